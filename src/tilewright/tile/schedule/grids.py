"""Primitives that make grids of a GPU: enclose, fill, pipeline; none makes blocks or threads race.

In: a kernel, names of loops. Out: a kernel that means the same, or a ``ScheduleError``.
Not its business: which loop becomes which kind (``loops.set_kind`` checks one).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.core.compute import Buffer, Const, Inside, Load, Select
from tilewright.core.expr import Dim, Sym, is_nonneg, mod, substitute, symbols
from tilewright.core.indices import chosen, symbols_in
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import (
    NESTS,
    Barrier,
    For,
    If,
    Kernel,
    Kind,
    Loop,
    Space,
    Stmt,
    Store,
    walk,
    written,
    written_in,
)
from tilewright.tile.rewrite import Body, loads_of, loops_of, rewrite_accesses, substitute_body
from tilewright.tile.schedule.fresh import starts_fresh
from tilewright.tile.schedule.loops import apart, check_apart, renamed
from tilewright.tile.schedule.tree import (
    Nest,
    find_loop,
    find_place,
    fresh,
    identifier,
    is_folded,
    new_loop,
    replace_stmt,
    touches,
)

RACING = (Kind.BLOCK, Kind.THREAD, Kind.WARP)
"""Loops whose iterations a GPU runs beside each other."""


def enclose(kernel: Kernel, loop: str) -> Kernel:
    """``for v<n: X`` -> ``for v_b<1: for v<n: X``: a loop round it, for a grid of one block or a phase of one thread.

    A single statement is known by the buffer that it writes, alone or at the top. Always legal. Fails: there is no such
    loop or statement.
    """
    lone = [s for s in kernel.body if any(b.name == loop for b in written(s))]
    lone = lone or [s for s in walk(kernel.body) if any(b.name == loop for b in written(s))]
    is_one = len(lone) == 1 or (lone and lone[0] in kernel.body)
    target = lone[0] if is_one else find_loop(kernel, loop, "enclose")
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


def pipeline(kernel: Kernel, buffer: str, loop: str, stages: int, spare: int = 0) -> Kernel:
    """A temporary is filled ``stages - 1`` iterations of a loop before it is read, by asynchronous copies.

    Before: ``for v<n: (T[i] = e(v, i)); .. T[i] ..``. After, for s stages: ``for p<s-1: T[p, i] = e(p, i);
    for v<n: (T[(v + s - 1) % s, i] = e(v + s - 1, i)); .. T[v % s, i] ..``, with zeros where there is no such
    iteration. With ``spare`` there are so many parts more, which are filled that many iterations after they were read.
    Copies of loops inside get the suffix ``_p``. Fails: the loop is not serial; T is no temporary in shared
    memory that the loop alone touches; not exactly one statement of the loop's body writes it, before all others that
    touch it, and nothing else; that is not one store, of each element once at most; the data decide whether or where it
    stores, or the loop decides where; a loop inside may run further in later iterations; what that reads changes in the
    loop; an iteration may read what another one left.
    """
    spot, target = find_place(kernel, buffer, "pipeline"), find_loop(kernel, loop, "pipeline")
    old, v, where = spot.buffer, target.loop.sym, f"{buffer}, {loop}, {stages}"
    if spot.space is not Space.SHARED or target.loop.kind is not Kind.SERIAL or stages < 2 or spare < 0 or spot.ahead:
        rule = "it takes a buffer in shared memory, a serial loop and two stages or more"
        raise ScheduleError("pipeline", where, rule)
    makers = [s for s in target.body if old in written_in(s)]
    users = [s for s in target.body if touches(s, old)]
    n_inside, n_all = (
        sum(touches(s, old) for s in walk(b) if not isinstance(s, NESTS)) for b in (target.body, kernel.body)
    )
    if len(makers) != 1 or users[0] is not makers[0] or n_inside != n_all:
        raise ScheduleError("pipeline", where, "one statement of the loop fills it, before the others read it there")
    (maker,) = makers
    leaves = [s for s in walk((maker,)) if not isinstance(s, For | If)]
    changed = {b for s in walk(target.body) for b in written(s)}
    stores = [s for s in leaves if isinstance(s, Store) and s.buffer is old]
    loops = loops_of((maker,))
    if len(stores) < len(leaves):
        raise ScheduleError("pipeline", where, "what fills it does more than that")
    if len(leaves) != 1 or not apart([x.index for x in stores], [x.sym for x in loops if x.extent != 1], set()):
        raise ScheduleError("pipeline", where, "what fills it may store an element twice, and copies have no order")
    if any(chosen(s.index) for s in stores) or any(isinstance(s, If) and any(loads_of(s)) for s in walk((maker,))):
        rule = "data would be asked, of iterations that there are not, whether or where it is filled"
        raise ScheduleError("pipeline", where, rule)
    later = v + (stages - 1)
    if any(v in symbols_in(s.index) for s in stores) or not all(_stays(x, v, later) for x in loops):
        rule = "it may be filled outside of its shape, for iterations that there are not"
        raise ScheduleError("pipeline", where, rule)
    if any(x.buffer in changed for s in walk((maker,)) for x in loads_of(s)):
        raise ScheduleError("pipeline", where, "what it is filled with changes in the loop")
    if not starts_fresh(target.body, old):
        raise ScheduleError("pipeline", where, "an iteration may read what another one left")
    parts = stages + spare
    new = Buffer(old.name, old.dtype, (parts, *old.shape))

    # What an iteration reads lies where it was put so many iterations before, and is not written over until then.
    def at(stage: Dim, body: Body) -> Body:
        return rewrite_accesses(body, lambda b, ix: Load(new, (stage, *ix)) if b is old else None)

    first = new_loop(fresh(kernel, f"{loop}_p"), stages - 1)
    before = at(first.sym, _where_inside(target, first.sym, renamed(kernel, (maker,), "p")))
    ahead = at(mod(later, parts), _where_inside(target, later, (maker,)))
    body = tuple(y for s in target.body for y in (ahead if s is maker else at(mod(v, parts), (s,))))
    places = tuple(replace(p, buffer=new, ahead=stages - 1) if p is spot else p for p in kernel.places)
    return replace_stmt(replace(kernel, places=places), target, For(first, before), For(target.loop, body))


def _stays(loop: Loop, v: Sym, later: Dim) -> bool:
    """Does a loop run no further than it may, where ``v`` in its extent is a later iteration, even one too many?"""
    most, extent = loop.sym.hi, loop.extent
    return v not in symbols(extent) or (most is not None and is_nonneg(most + 1 - substitute(extent, {v: later})))


def _where_inside(target: For, at: Dim, body: Body) -> Body:
    """A loop's statements in iteration ``at``, which store zeros where that is not one."""
    rest = target.loop.extent - 1 - at
    moved = substitute_body(body, {target.loop.sym: at})
    return moved if is_nonneg(rest) else tuple(_guarded_stores(moved, rest))


def _guarded_stores(body: Body, rest: Dim) -> Iterator[Stmt]:
    for s in body:
        if isinstance(s, For):
            yield For(s.loop, tuple(_guarded_stores(s.body, rest)))
        elif isinstance(s, If):
            yield If(s.cond, tuple(_guarded_stores(s.body, rest)))
        else:
            assert isinstance(s, Store)
            value, zero = s.value, Const(0, s.value.dtype)
            guards: tuple[Dim, ...] = (rest,)
            if isinstance(value, Select) and isinstance(inside := value.cond, Inside) and value.b == zero:
                value, guards = value.a, (*inside.exprs, rest)  # one guard for both, which one copy can express
            yield Store(s.buffer, s.index, Select(Inside(guards), value, zero))


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
        if not isinstance(s, For) or s.loop.kind not in RACING or s.loop.extent == 1:
            continue
        if s.loop.kind is not Kind.WARP or not is_folded(kernel, s):
            check_apart(kernel, s, s.loop.kind, primitive, where)
