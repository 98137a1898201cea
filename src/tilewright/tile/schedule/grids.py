"""Primitives that make grids of a GPU: enclose, fill; and what holds for all: none makes blocks or threads race.

In: a kernel, names of loops. Out: a kernel that means the same, or a ``ScheduleError``.
Not its business: which loop becomes which kind (``loops.set_kind`` checks one).
"""

from __future__ import annotations

from tilewright.core.compute import Inside
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Barrier, For, If, Kernel, Kind, walk, written
from tilewright.tile.rewrite import loops_of, substitute_body
from tilewright.tile.schedule.loops import check_apart, is_depth
from tilewright.tile.schedule.tree import Nest, find_loop, fresh, identifier, new_loop, replace_stmt

RACING = (Kind.BLOCK, Kind.THREAD, Kind.WARP)
"""Loops whose iterations a GPU runs beside each other."""


def enclose(kernel: Kernel, loop: str) -> Kernel:
    """``for v<n: X`` -> ``for v_b<1: for v<n: X``: a loop round it, for a grid of one block or a phase of one thread.

    A statement at the top that is in no loop is known by the buffer that it writes. Always legal. Fails: there is no
    such loop or statement.
    """
    lone = (s for s in kernel.body if any(b.name == loop for b in written(s)))
    target = next(lone, None) or find_loop(kernel, loop, "enclose")
    return replace_stmt(kernel, target, For(new_loop(fresh(kernel, f"{identifier(loop)}_b"), 1), (target,)))


def fill(kernel: Kernel, loop: str, n: int) -> Kernel:
    """``for v<e: for w: X`` -> ``for v<n: for w: if inside(e - 1 - v): X``, with as many iterations as there may be.

    For threads and registers, of which there are always as many. The condition goes inside of the loops that nest
    perfectly below, up to lanes. Fails: there may be more than ``n`` iterations; the loop itself is lanes.
    """
    target = find_loop(kernel, loop, "fill")
    e, old = target.loop.extent, target.loop.sym
    if old.hi is None or old.hi >= n or target.loop.kind in (Kind.VECTOR, Kind.DOT):
        raise ScheduleError("fill", f"{loop}, {n}", f"it may have more iterations, or is lanes: {e}")
    if e == n:
        return kernel
    made = new_loop(loop, n, target.loop.kind)
    around, body = [made], substitute_body(target.body, {old: made.sym})
    while len(body) == 1 and isinstance(body[0], For) and body[0].loop.kind not in (Kind.VECTOR, Kind.DOT):
        around.append(body[0].loop)
        body = body[0].body
    return replace_stmt(kernel, target, Nest(tuple(around), (If(Inside((e - 1 - made.sym,)), body),)).wrap())


def check_races(kernel: Kernel, primitive: str, where: str) -> None:
    """Refuse a kernel of which a primitive let blocks, or threads of one phase, share what one of them writes.

    Loops were independent when they became block and thread loops; what moves into them later must leave them so. A
    flat kernel is refused too, since its barriers say what the loops' order does not.
    """
    if not any(x.kind in RACING for x in loops_of(kernel.body)):
        return
    if any(isinstance(s, Barrier) for s in walk(kernel.body)):
        raise ScheduleError(primitive, where, "the kernel is flat", remedy="schedule it before it is made flat")
    for s in walk(kernel.body):
        if isinstance(s, For) and s.loop.kind in RACING and s.loop.extent != 1 and not is_depth(kernel, s):
            check_apart(kernel, s, s.loop.kind, primitive, where)
