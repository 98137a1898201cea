"""Primitives on stages: cache, fork, compute_at, ring, place, fold.

In: a kernel, the name of the buffer that a stage writes. Out: a kernel that means the same, or a ``ScheduleError``.
Not its business: loops of one nest (``loops``), layouts of operands (``operands``), partial results (``partials``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilewright.core.compute import Buffer, IndexLike, Load
from tilewright.core.dims import are_known, is_known, known_at_least
from tilewright.core.expr import (
    Dim,
    Sym,
    bounds,
    is_nonneg,
    maximum,
    minimum,
    mod,
    substitute,
    symbols,
)
from tilewright.core.indices import is_chosen, symbols_at
from tilewright.tile.affine import coefficient, settled, without
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import (
    Fold,
    For,
    If,
    Kernel,
    Kind,
    Loop,
    Place,
    Prefetch,
    Role,
    Space,
    Stmt,
    Store,
    Update,
    walk,
    written,
    written_in,
)
from tilewright.tile.rewrite import Body, loads_of, loops_of, reads, rewrite_accesses, substitute_body
from tilewright.tile.schedule.fresh import starts_fresh
from tilewright.tile.schedule.guards import check_guarded, guarded_sides
from tilewright.tile.schedule.loops import renamed
from tilewright.tile.schedule.region import Side, side_of
from tilewright.tile.schedule.tree import (
    Nest,
    edit,
    find_loop,
    find_place,
    fresh,
    fresh_among,
    home_of,
    identifier,
    makers_of,
    nest_of,
    new_loop,
    readers,
    replace_stmt,
    with_body,
    without_idle_hints,
    writers,
)


def cache(kernel: Kernel, buffer: str) -> Kernel:
    """``C = e`` -> ``C_c = e; C = copy of C_c``: the copy is the write-back, to be tiled; C_c can go ``compute_at``.

    Loops of the copy are called ``C_w0, C_w1...``; those of last dimensions of one element stand outermost, so that the
    innermost goes along memory. Fails: C is an input; its nests do not start by assigning, read it, or leave elements
    out; it is read between them.
    """
    place = find_place(kernel, buffer, "cache")
    old = place.buffer
    if place.role in (Role.IN, Role.CONST):
        raise ScheduleError("cache", buffer, "the kernel does not write it")
    makers = makers_of(kernel.body, old)
    if not makers or any(isinstance(s, If) for s in makers):
        raise ScheduleError("cache", buffer, "no plain nest writes it")
    if any(True for _ in readers(tuple(makers), old)):
        raise ScheduleError("cache", buffer, "the nests that write it read it too")
    every = list(walk(kernel.body))
    first, last = (next(k for k, s in enumerate(every) if s is m) for m in (makers[0], makers[-1]))
    if any(reads(s, old) for s in every[first:last]):
        raise ScheduleError("cache", buffer, "it is read before the last nest that writes it, and the copy")
    extents = _written_extents([nest_of(s) for s in makers], old)
    if not _starts_with_store(makers, old):
        raise ScheduleError("cache", buffer, "it is updated, not assigned: its earlier content matters")
    new = Buffer(fresh(kernel, f"{buffer}_c"), old.dtype, old.shape)
    names = [fresh(kernel, f"{identifier(buffer)}_w{d}") for d in range(len(old.shape))]
    loops = tuple(new_loop(n, e) for n, e in zip(names, extents, strict=True))
    at = tuple(x.sym for x in loops)
    # Loops of one element behind the last real one would hide from rules that it goes along memory.
    behind = next((d for d in range(len(loops), 0, -1) if extents[d - 1] != 1), 0)
    order = (*loops[behind:], *loops[:behind])
    copy = Nest(order, (Store(old, at, Load(new, at)),)).wrap() if loops else Store(old, (), Load(new, ()))
    body = kernel.body
    for s in makers:
        moved = rewrite_accesses((s,), lambda b, ix: Load(new, ix) if b is old else None)
        written_back = (*moved, copy) if s is makers[-1] else moved
        body = edit(body, s, partial(_always, written_back))
    return with_body(replace(kernel, places=(*kernel.places, Place(new, Space.GLOBAL))), body)


def _always(body: Body, _: Stmt) -> Body:
    return body


def _written_extents(nests: Sequence[Nest], buffer: Buffer) -> tuple[Dim, ...]:
    """How much of each dimension the nests write, all of them the same: everything, or the part of a ragged tile."""
    found: set[tuple[Dim, ...]] = set()
    for nest in nests:
        walked = {d: s for s, d in _own_axes(nest, buffer, buffer.name).items()}
        loops = {x.sym: x.extent for x in nest.loops}
        own = [loops[walked[d]] if d in walked else 1 for d in range(len(buffer.shape))]
        missed = any(n != 1 and d not in walked for d, n in enumerate(buffer.shape))
        if missed or any(symbols(e) & loops.keys() for e in own):
            raise ScheduleError("cache", buffer.name, "a nest that writes it leaves elements out")
        found.add(tuple(own))
    if len(found) != 1:
        raise ScheduleError("cache", buffer.name, "its nests write different parts of it")
    return found.pop()


def _starts_with_store(makers: list[Stmt], buffer: Buffer) -> bool:
    first = next(s for s in walk(tuple(makers)) if buffer in written(s))
    return isinstance(first, Store)


def fork(kernel: Kernel, buffer: str, loop: str) -> Kernel:
    """Two readers of a temporary get one copy each: ``T = e; X(T); Y(T)`` -> ``T = e; T_f = e; X(T); Y(T_f)``.

    So that both can go ``compute_at`` their own reader. Loops of the second nests get the suffix ``_f``. Fails: T is no
    temporary; the loop's body does not read it, or runs before T is made; what makes T can't run twice, because it
    changes another buffer that it reads, or something between two of its nests changes what they read or write.
    """
    spot, at = find_place(kernel, buffer, "fork"), find_loop(kernel, loop, "fork")
    old, where = spot.buffer, f"{buffer}, {loop}"
    if spot.role is not Role.TMP:
        raise ScheduleError("fork", where, f"a parameter of role {spot.role.value} has one copy")
    if not any(True for _ in readers(at.body, old)):
        raise ScheduleError("fork", where, "the loop's body does not read it")
    new = Buffer(fresh(kernel, f"{buffer}_f"), old.dtype, old.shape)

    def swap(b: Buffer, ix: tuple[IndexLike, ...]) -> Load | None:
        return Load(new, ix) if b is old else None

    home = home_of(kernel.body, old)
    makers = writers(home, old)
    if any(x is at for m in makers for x in walk((m,))):
        raise ScheduleError("fork", where, "the loop writes it")
    if broken := _why_not_twice(home, makers, at, old):
        raise ScheduleError("fork", where, broken)
    copies = rewrite_accesses(renamed(kernel, tuple(makers), "f"), swap)
    body = edit(kernel.body, at, lambda _: (For(at.loop, rewrite_accesses(at.body, swap)),))
    body = edit(body, makers[-1], lambda s: (s, *copies))
    return with_body(replace(kernel, places=(*kernel.places, replace(spot, buffer=new))), body)


def _why_not_twice(home: Body, makers: Sequence[Stmt], reader: For, buffer: Buffer) -> str:
    """What is against running the makers of a buffer once more behind the last of them; nothing if they can."""
    # By identity: two statements of one text are two.
    first, last = (next(k for k, s in enumerate(home) if s is m) for m in (makers[0], makers[-1]))
    if any(x is reader for s in home[:last] for x in walk((s,))):
        return "the loop runs before it is made"
    changed = {b for s in walk(makers) for b in written(s) if b is not buffer}
    used = {x.buffer for s in walk(makers) for x in loads_of(s)}
    updated = {b for s in walk(makers) if isinstance(s, Update | Fold) for b in written(s)}
    # What is stored twice alike does no harm; what is read, as by an update, must be stored by that very run.
    if again := {b.name for b in changed & (used | updated) if not starts_fresh(tuple(makers), b)}:
        return f"what makes it changes {min(again)} too, and would do so twice"
    between = [s for s in home[first:last] if not any(s is m for m in makers)]
    # Storing again what another nest has changed since would undo that.
    if late := {b.name for s in walk(between) for b in written(s) if b in used | changed}:
        return f"{min(late)} changes while it is made"
    return ""


def place(kernel: Kernel, buffer: str, space: str) -> Kernel:
    """Put a temporary into another space. Fails: it is a parameter of the user, or its size is no number."""
    old = find_place(kernel, buffer, "place")
    if old.role is not Role.TMP:
        raise ScheduleError("place", buffer, f"a parameter of role {old.role.value} stays global")
    if Space(space) is not Space.GLOBAL and not are_known(old.buffer.shape):
        raise ScheduleError("place", buffer, f"{old.buffer} has a size that is known at run time only")
    places = tuple(replace(p, space=Space(space)) if p is old else p for p in kernel.places)
    moved = replace(kernel, places=places)
    return without_idle_hints(moved, old.buffer)


def compute_at(kernel: Kernel, buffer: str, loop: str, space: str = "local") -> Kernel:
    """The nests that write a temporary move under ``loop`` and compute just the box that its body reads.

    Before: ``for i,j: T[i,j] = e(i,j);  for io: for ii: ... T[4*io+ii, j]``.
    After: ``for io: (for ii', j': T[ii', j'] = e(4*io+ii', j')); for ii: ... T[ii, j]``, T shrunk to the box; in
    space ``global`` T keeps its shape and place. New loops: a copy of the consumer's loop ``x`` in the n-th nest is
    ``x_Tn``; an interval's loop is ``Td_n`` after its dimension ``d``. Fails: T is not a temporary; it is read outside
    of ``loop``, or read behind guards at places that may lie outside of T, which nothing computes; a producer writes it
    at anything but its own loops, or writes another buffer too; something in between changes what the producers read;
    the box is unbounded; a serial loop would move into lanes; a hint outside of ``loop`` asks for T.
    """
    spot = find_place(kernel, buffer, "compute_at")
    at, where = find_loop(kernel, loop, "compute_at"), f"{buffer}, {loop}"
    old = spot.buffer
    if spot.role is not Role.TMP:
        raise ScheduleError("compute_at", where, f"a parameter of role {spot.role.value} can't move")
    home = home_of(kernel.body, old)
    makers = writers(home, old)
    _check_move(home, makers, at, old, where)
    loads = list(readers(at.body, old))
    if not loads:
        raise ScheduleError("compute_at", where, "the loop's body does not read it")
    inner = loops_of(at.body)
    names = [f"{identifier(buffer)}{d}" for d in range(len(old.shape))]
    sides = [side_of(loads, d, inner, names[d], where) for d in range(len(old.shape))]
    around = {x.sym: x.extent - 1 for x in loops_of(kernel.body)}
    # A box as large as the whole needs no base, whatever the loops outside are at.
    sides = [_filled(side, extent, around) for side, extent in zip(sides, old.shape, strict=True)]
    sides = guarded_sides(kernel, at.body, old, sides, where)
    whole = Space(space) is Space.GLOBAL
    new = Buffer(old.name, old.dtype, old.shape) if whole else shrunk(old, sides, Space(space), where)
    shift = [Side(0, (s.loops or _ONE), s.offset, s.size) if whole else s for s in sides]
    taken: set[str] = set()
    nests = tuple(_moved(kernel, nest_of(s), n, old, new, (sides, shift), taken, where) for n, s in enumerate(makers))
    if _is_in_lanes(kernel, at) and any(x.kind in (Kind.SERIAL, Kind.PARALLEL) for x in loops_of(nests)):
        raise ScheduleError("compute_at", where, "a serial loop would move into lanes")
    body = rewrite_accesses(at.body, lambda b, ix: Load(new, rebased(ix, shift)) if b is old else None)
    moved_at = For(at.loop, _before_readers(body, nests, new))
    result = replace_stmt(kernel, at, moved_at).body
    for s in makers:
        result = edit(result, s, lambda _: ())
    places = tuple(Place(new, Space(space)) if p is spot else p for p in kernel.places)
    moved = with_body(replace(kernel, places=places), result)
    return without_idle_hints(moved, new)


def ring(kernel: Kernel, buffer: str, loop: str) -> Kernel:
    """``compute_at`` where neighbouring iterations read windows that overlap: what the last one made is kept.

    Before: ``for i,j: T[i,j] = e(i,j);  for v: ... T[s*v + k - p, j] ...`` with k < K. After: ``for v: (for r, j':
    T[i % K, j'] = e(i, j')); ... T[(s*v + k - p) % K, j]``, places counted from the first window's. i are the elements
    of this window beyond the last one's, inside of T: a window in the first iteration, s in every other. T becomes
    local, of K elements in that dimension. New loops are named as ``compute_at`` does. Parts of a ``split`` loop begin
    with a window of their own. Fails: as ``compute_at`` does; the loop is not serial; not exactly one index of T moves
    with it, by a positive number; the window's size is not known; windows do not overlap; a producer reads T at other
    elements than it writes.
    """
    spot, at, where = find_place(kernel, buffer, "ring"), find_loop(kernel, loop, "ring"), f"{buffer}, {loop}"
    old, v = spot.buffer, at.loop.sym
    if spot.role is not Role.TMP or at.loop.kind is not Kind.SERIAL:
        raise ScheduleError("ring", where, "only a temporary can be a ring, over a serial loop")
    home = home_of(kernel.body, old)
    makers = writers(home, old)
    _check_move(home, makers, at, old, where)
    for s in walk(tuple(makers)):
        if any(x.buffer is old and not (isinstance(s, Store | Update) and x.index == s.index) for x in loads_of(s)):
            raise ScheduleError("ring", where, "what is computed there depends on other elements of it")
    loads = list(readers(at.body, old))
    if not loads:
        raise ScheduleError("ring", where, "the loop's body does not read it")
    moving = {d for x in loads for d, i in enumerate(x.index) if v in symbols_at(i)}
    if len(moving) != 1:
        raise ScheduleError("ring", where, f"{len(moving)} of its indices move with the loop")
    dim, inner = moving.pop(), loops_of(at.body)
    start, size, step = _window([x.index[dim] for x in loads], {x.sym for x in inner}, v, where)
    names = [f"{identifier(buffer)}{d}" for d in range(len(old.shape))]
    around = {x.sym: x.extent - 1 for x in loops_of(kernel.body)}
    sides = [
        _new_rows(start, size, step, v, old.shape[d], names[d])
        if d == dim
        else _filled(side_of(loads, d, inner, names[d], where), old.shape[d], around)
        for d in range(len(old.shape))
    ]
    others = [side for d, side in enumerate(sides) if d != dim]
    if any(v in symbols(side.base) or any(v in symbols(x.extent) for x in side.loops) for side in others):
        raise ScheduleError("ring", where, "the part that is read moves in another direction too")
    rows = new_loop(names[dim], old.shape[dim])  # those beyond its ends are not computed
    cut = Side(0, (rows,), rows.sym, size)
    check_guarded(kernel, at.body, old, [cut if d == dim else s for d, s in enumerate(sides)], where)
    kept = [replace(s, size=size) if d == dim else s for d, s in enumerate(sides)]
    new = shrunk(old, kept, Space.LOCAL, where)
    stay = [Side(0, _ONE, s.offset, s.size) for s in sides]
    taken: set[str] = set()
    nests = tuple(_moved(kernel, nest_of(s), n, old, old, (sides, stay), taken, where) for n, s in enumerate(makers))
    first = _first_use(at.body, old)

    def place_in_ring(b: Buffer, ix: tuple[IndexLike, ...]) -> Load | None:
        if b is not old:
            return None
        return Load(new, tuple(
            i if is_chosen(i) else mod(i - start, size) if d == dim else i - side.base
            for d, (i, side) in enumerate(zip(ix, sides, strict=True)) if side.loops
        ))  # fmt: skip

    body = rewrite_accesses((*at.body[:first], *nests, *at.body[first:]), place_in_ring)
    result = replace_stmt(kernel, at, For(at.loop, body)).body
    for s in makers:
        result = edit(result, s, lambda _: ())
    places = tuple(Place(new, Space.LOCAL) if p is spot else p for p in kernel.places)
    return with_body(replace(kernel, places=places), result)


def _window(indices: Sequence[IndexLike], inner: set[Sym], v: Sym, where: str) -> tuple[Dim, int, int]:
    """What the first iteration of ``v`` reads: its first element, how many; and how far each further one moves."""
    bases: list[tuple[Dim, int, int]] = []
    steps: set[Dim | None] = set()
    for e in indices:
        if is_chosen(e) or any(coefficient(e, s) is None for s in symbols(e) & inner):
            raise ScheduleError("ring", where, f"the index {e} is not affine in the loops inside")
        base = without(e, inner)
        lo, hi = bounds(e - base)
        if lo is None or hi is None:
            raise ScheduleError("ring", where, f"the range of {e} inside the loop is not known at compile time")
        steps.add(coefficient(base, v))
        bases.append((base, lo, hi))
    step, *others = steps
    if others or not known_at_least(step, 1):
        raise ScheduleError("ring", where, "its reads do not all move by one positive number")
    first = bases[0][0]
    shifts = [base - first for base, _, _ in bases]
    if not are_known(shifts):
        raise ScheduleError("ring", where, "the distance between its reads is not known at compile time")
    lows = [x + lo for x, (_, lo, _) in zip(shifts, bases, strict=True) if is_known(x)]
    highs = [x + hi for x, (_, _, hi) in zip(shifts, bases, strict=True) if is_known(x)]
    size = max(highs) - min(lows) + 1
    if step >= size:
        raise ScheduleError("ring", where, "windows do not overlap", remedy="use compute_at")
    return without(first, [v]) + min(lows), size, step


def _new_rows(start: Dim, size: int, step: int, v: Sym, extent: Dim, name: str) -> Side:
    """The elements that iteration ``v`` reads and none before it did: a whole window in the first, then ``step``."""
    end = start + step * v + size
    base = end - step - (size - step) * maximum(0, 1 - v)
    base = base if is_nonneg(base) else maximum(0, base)
    n = (end if is_nonneg(extent - end) else minimum(extent, end)) - base
    sym = Sym(name, 0, size - 1)
    return Side(base, (Loop(sym, n if is_nonneg(n) else maximum(0, n)),), sym, size)


def _filled(side: Side, extent: Dim, last: Mapping[Sym, Dim]) -> Side:
    """A ragged tile in full, where the buffer reaches to the end of the last one: its size is a number then.

    A tile moves on with the loops that its size hangs on, so only the last ones are cut. What always begins at the same
    place, as the keys before a query, is no tile.
    """
    if not is_known(side.size) or len(side.loops) != 1 or side.loops[0].extent == side.size:
        return side
    if not symbols(side.loops[0].extent) & last.keys() <= symbols(side.base):
        return side
    end = substitute(side.base, last) + side.size
    if side.offset != side.loops[0].sym or not is_nonneg(extent - end):
        return side
    full = Loop(side.loops[0].sym, side.size, side.loops[0].kind)
    return replace(side, loops=(full,), is_exact=True)


def _before_readers(body: Body, nests: Body, buffer: Buffer) -> Body:
    """The body with the nests right before the buffer's first reader, so that statements before it keep their operands.

    Where all of it is under one condition, they are too: what nobody reads may be outside of what it is made from.
    """
    if len(body) == 1 and isinstance(body[0], If) and not reads(body[0], buffer):
        return (If(body[0].cond, _before_readers(body[0].body, nests, buffer)),)
    first = _first_use(body, buffer)
    return (*body[:first], *nests, *body[first:])


def _first_use(body: Body, buffer: Buffer) -> int:
    """The first statement that reads the buffer, or the ones before it that only start what that one goes on with."""
    k = next(k for k, s in enumerate(body) if any(True for _ in readers((s,), buffer)))
    made = set(written_in(body[k]))
    while k and made.issuperset(written_in(body[k - 1])):
        k -= 1
    return k


def _is_in_lanes(kernel: Kernel, loop: For) -> bool:
    vectors = (s for s in walk(kernel.body) if isinstance(s, For) and s.loop.kind is Kind.VECTOR)
    return any(x is loop for v in vectors for x in walk((v,)))


def _check_move(home: Body, makers: list[Stmt], at: For, old: Buffer, where: str) -> None:
    if not makers:
        raise ScheduleError("compute_at", where, "nothing writes it")
    consumer = next((s for s in home if any(x is at for x in walk((s,)))), None)
    if consumer is None or consumer in makers:
        raise ScheduleError("compute_at", where, "the loop is not beside the nests that write the buffer")
    reads = {x.buffer for m in makers for s in walk((m,)) for x in loads_of(s)} - {old}
    for m in makers:
        others = {b for s in walk((m,)) for b in written(s)} - {old}
        if others:
            raise ScheduleError("compute_at", where, f"its nest also writes {min(str(b) for b in others)}")
    first, last = home.index(makers[0]), home.index(consumer)
    if home.index(makers[-1]) > last:
        raise ScheduleError("compute_at", where, "it is written after the loop")
    for s in home[first : last + 1]:
        if s not in makers and not reads.isdisjoint(written_in(s)):
            raise ScheduleError("compute_at", where, "what it is computed from changes before the loop ends")
    inside = sum(1 for _ in readers(at.body, old))
    if sum(1 for _ in readers(home, old)) != inside:
        raise ScheduleError("compute_at", where, "it is also read outside of the loop", remedy="choose an outer loop")
    if _n_hints(home, old) != _n_hints(at.body, old):
        remedy = "choose an outer loop, or ask for it once it has moved"
        raise ScheduleError("compute_at", where, "a hint outside of the loop asks for it", remedy=remedy)


def _n_hints(body: Body, buffer: Buffer) -> int:
    return sum(isinstance(s, Prefetch) and s.buffer is buffer for s in walk(body))


_ONE = (Loop(Sym("once", 0, 0), 1),)


def shrunk(old: Buffer, sides: list[Side], space: Space, where: str) -> Buffer:
    """The box's own buffer, without the sides that are a point."""
    shape = tuple(s.size for s in sides if s.loops) or (1,)
    if space is not Space.GLOBAL and not are_known(shape):
        raise ScheduleError("compute_at", where, f"the box {shape} has no size known at compile time")
    return Buffer(old.name, old.dtype, shape)


def rebased(index: tuple[IndexLike, ...], sides: list[Side]) -> tuple[IndexLike, ...]:
    """An index of a buffer as one of the box that ``shrunk`` made of it."""
    moved: list[IndexLike] = []
    for i, s in zip(index, sides, strict=True):
        if s.loops:
            moved.append(i if is_chosen(i) else i - s.base)
    return tuple(moved) or (0,)


def _moved(
    kernel: Kernel,
    nest: Nest,
    n: int,
    old: Buffer,
    new: Buffer,
    walk_and_shift: tuple[list[Side], list[Side]],
    taken: set[str],
    where: str,
) -> Stmt:
    """The producer's nest with its axes replaced by walks over the box."""
    sides, shift = walk_and_shift
    axes = _own_axes(nest, old, where, [s.base if not s.loops else None for s in sides])
    loops: list[Loop] = []
    dims: dict[Sym, Dim] = {}
    for loop in nest.loops:
        d = axes.get(loop.sym)
        if d is None:
            loops.append(Loop(loop.sym, substitute(loop.extent, dims), loop.kind))
            continue
        # Walking the box where only a part was written would write more than before.
        if loop.extent != old.shape[d] and not sides[d].is_exact:
            raise ScheduleError("compute_at", where, f"its nest writes only {loop.extent} of {old.shape[d]} elements")
        side = sides[d]
        local: dict[Sym, Dim] = {}
        for x in side.loops:
            name = copy_name(kernel, x.sym.name, identifier(old.name), n, taken)
            sym = Sym(name, x.sym.lo, x.sym.hi)
            loops.append(Loop(sym, substitute(x.extent, local), x.kind))
            local[x.sym] = sym
        dims[loop.sym] = side.base + substitute(side.offset, local)
    leaf = substitute_body(nest.leaf, dims)
    leaf = rewrite_accesses(leaf, lambda b, ix: Load(new, rebased(ix, shift)) if b is old else None)
    extents = {x.sym: x.extent for x in loops}
    # Bounds of the new loops settle minima and maxima that the old ones left open.
    leaf = rewrite_accesses(leaf, lambda b, ix: Load(b, tuple(_settled(i, extents) for i in ix)))
    if not loops:
        return leaf[0] if len(leaf) == 1 else For(new_loop(fresh(kernel, "once"), 1), leaf)
    return Nest(tuple(loops), leaf).wrap()


def _settled(i: IndexLike, extents: Mapping[Sym, Dim]) -> IndexLike:
    return i if is_chosen(i) else settled(i, extents)


def copy_name(kernel: Kernel, loop: str, buffer: str, n: int, taken: set[str]) -> str:
    base = f"{loop}_{n}" if loop.startswith(buffer) and loop[len(buffer) :].isdigit() else f"{loop}_{buffer}{n}"
    return fresh_among(kernel, base, taken)


def _own_axes(nest: Nest, buffer: Buffer, where: str, points: Sequence[Dim | None] = ()) -> dict[Sym, int]:
    """Which loop of the nest walks which dimension of the buffer that it writes; none where it is one of ``points``."""
    writes = [s for s in walk(nest.leaf) if buffer in written(s)]
    axes: dict[Sym, int] = {}
    own = {x.sym for x in nest.loops}
    for s in writes:
        assert isinstance(s, Store | Update) or hasattr(s, "index")
        for d, i in enumerate(s.index):
            is_only_one = buffer.shape[d] == 1 and not is_chosen(i) and is_known(i)
            if is_only_one or (points and i not in own and i == points[d]):
                continue
            if not isinstance(i, Sym) or i not in own or axes.setdefault(i, d) != d:
                raise ScheduleError("compute_at", where, f"its nest writes at {i}, which is not a loop of its own")
    return axes


def fold(kernel: Kernel, buffer: str, dim: int, loop: str) -> Kernel:
    """A dimension of a temporary keeps only what one iteration of a loop touches; the next one uses the place again.

    Before: ``for io: (T[h, 4*io + i] = e; ... T[h, 4*io + i] ...)``. After: the same with ``T[h, i]``, T of 4 elements
    in that dimension. For scratch whose other dimensions have run-time sizes. Fails: T is no temporary, or is touched
    outside of the loop; an iteration does not begin by assigning it; its accesses differ by more than loops inside;
    their range is not known; the loop is parallel.
    """
    spot, target = find_place(kernel, buffer, "fold"), find_loop(kernel, loop, "fold")
    old, where = spot.buffer, f"{buffer}, {dim}, {loop}"
    if spot.role is not Role.TMP or target.loop.kind is not Kind.SERIAL:
        raise ScheduleError("fold", where, "only a temporary, over a serial loop")
    if not 0 <= dim < len(old.shape):
        raise ScheduleError("fold", where, f"{buffer} has {len(old.shape)} dimensions, the first is 0")
    # A place that is used again must hold nothing that somebody still wants.
    inside = [s for s in walk(target.body) if _accesses(s, old)]
    if len(inside) != sum(1 for s in walk(kernel.body) if _accesses(s, old)) or not starts_fresh(target.body, old):
        raise ScheduleError("fold", where, "what one iteration leaves is seen by another, or outside of the loop")
    inner = {x.sym for x in loops_of(target.body)}
    bases: set[Dim] = set()
    size = 0
    for e in (ix[dim] for s in inside for ix in _accesses(s, old)):
        base = None if is_chosen(e) else substitute(e, {s: 0 for s in inner})
        hi = None if base is None or is_chosen(e) else bounds(e - base)[1]
        if base is None or hi is None:
            raise ScheduleError("fold", where, f"the range of {e} inside the loop is not known at compile time")
        bases.add(base)
        size = max(size, hi + 1)
    # One origin for all accesses, or they would fall on each other's places.
    if len(bases) != 1:
        raise ScheduleError("fold", where, "its accesses begin at different places")
    base = bases.pop()
    if symbols(base) & {x.sym for x in loops_of(kernel.body)} != {target.loop.sym}:
        raise ScheduleError("fold", where, f"it begins at {base}, which is not decided by this loop alone")
    new = Buffer(old.name, old.dtype, (*old.shape[:dim], size, *old.shape[dim + 1 :]))

    def moved(b: Buffer, ix: tuple[IndexLike, ...]) -> Load | None:
        if b is not old:
            return None
        return Load(new, tuple(i - base if d == dim and not is_chosen(i) else i for d, i in enumerate(ix)))

    places = tuple(replace(p, buffer=new) if p is spot else p for p in kernel.places)
    return with_body(replace(kernel, places=places), rewrite_accesses(kernel.body, moved))


def _accesses(s: Stmt, buffer: Buffer) -> list[tuple[IndexLike, ...]]:
    """Where one statement (not its children) touches the buffer."""
    found = [x.index for x in loads_of(s) if x.buffer is buffer]
    return [*found, s.index] if isinstance(s, Store | Update | Fold) and buffer in written(s) else found
