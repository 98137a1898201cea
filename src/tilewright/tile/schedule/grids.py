"""Primitives that make grids of a GPU: enclose. And what holds for all primitives: none makes blocks or threads race.

In: a kernel, names of loops. Out: a kernel that means the same, or a ``ScheduleError``.
Not its business: which loop becomes which kind (``loops.set_kind`` checks one).
"""

from __future__ import annotations

from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Barrier, For, Kernel, Kind, walk
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule.loops import check_apart
from tilewright.tile.schedule.tree import find_loop, fresh, new_loop, replace_stmt


def enclose(kernel: Kernel, loop: str) -> Kernel:
    """``for v<n: X`` -> ``for v_b<1: for v<n: X``: a loop round it, for a grid of one block or a phase of one thread.

    Always legal. Fails: there is no such loop.
    """
    target = find_loop(kernel, loop, "enclose")
    return replace_stmt(kernel, target, For(new_loop(fresh(kernel, f"{loop}_b"), 1), (target,)))


def check_races(kernel: Kernel, primitive: str, where: str) -> None:
    """Refuse a kernel of which a primitive let blocks, or threads of one phase, share what one of them writes.

    Loops were independent when they became block and thread loops; what moves into them later must leave them so. A
    flat kernel is refused too, since its barriers say what the loops' order does not.
    """
    if not any(x.kind in (Kind.BLOCK, Kind.THREAD) for x in loops_of(kernel.body)):
        return
    if any(isinstance(s, Barrier) for s in walk(kernel.body)):
        raise ScheduleError(primitive, where, "the kernel is flat", remedy="schedule it before it is made flat")
    for s in walk(kernel.body):
        if isinstance(s, For) and s.loop.kind in (Kind.BLOCK, Kind.THREAD):
            check_apart(kernel, s, s.loop.kind, primitive, where)
