"""Does an iteration store what it reads of a temporary, so that it sees nothing of other iterations?

In: the statements of one iteration, a buffer. Out: yes where it is proved, for all sizes and all values of the loops
around. Not its business: which primitives may rely on it (``loops``, ``stages``, ``memory``).

A read is proved by one store before it, or by two that walk the full tiles of one loop and its rest: there are
iterations of the store's loops, as expressions of the read's, that store the very element that is read. They are found
dimension by dimension, where an index is a number whose digits are loops (``4*a + b``), and they exist where each is
proved to be at least 0 and less than the extent of its loop, by the loops around the read or by its conditions; extents
may depend on any loops around. What holds of all elements of an index that the data choose holds of a loop over the
dimension. Where a store is under a condition, the read has to be under the same one, which may be one of the value that
reads, and nothing may change it between, or the extents of the read's loops say that it holds.

Loops that were fused and split again, as threads share out a tile, leave quotients and remainders that are no such
digits. Where loops of known extents alone decide the places, these are listed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, takewhile
from math import prod

import numpy as np

from tilewright.core.compute import (
    Buffer,
    IndexLike,
    Inside,
    Load,
    Select,
    Value,
    loads,
    rewrite_value,
    substitute_value,
    symbols_of_value,
)
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known, numbers
from tilewright.core.effort import EFFORT
from tilewright.core.expr import (
    BinaryExpr,
    Dim,
    Sym,
    ceildiv,
    floordiv,
    is_nonneg,
    mod,
    substitute,
    symbols,
)
from tilewright.core.indices import chosen, is_chosen, placed
from tilewright.core.valued import OF_ARRAYS, valued
from tilewright.tile.affine import coefficient, never_negative, without
from tilewright.tile.ir import Fold, For, If, Loop, Stmt, Store, Update, walk, written
from tilewright.tile.rewrite import Body, loads_of, loop_sym

Around = tuple[For | If, ...]


def starts_fresh(body: Body, buffer: Buffer) -> bool:
    """Is whatever one run of ``body`` reads of the buffer stored by that run before?"""
    stored: list[_Access] = []
    changed = {b for s in walk(body) for b in written(s)}
    for access in _accesses(body, buffer, ()):
        if access.stores:
            stored.append(access)
        elif not any(_covers(s, access, changed) for s in chain(stored, _undivided(stored))):
            return False
    return bool(stored)


def _undivided(stored: Sequence[_Access]) -> Iterator[_Access]:
    """The one store that two neighbours are parts of, where these walk the full tiles of a loop and the rest of it."""
    found = (_joined(first, last) for first, last in pairwise(stored))
    return (whole for whole in found if whole is not None)


def _joined(first: _Access, last: _Access) -> _Access | None:
    """The store whose loop over full tiles ``first`` has, and ``last`` over the rest: as ``divide`` makes them."""
    n = _n_shared(first, last)
    rest = (*first.around[n:], *last.around[n:])
    if chosen(first.index) or chosen(last.index) or any(isinstance(s, If) for s in rest):
        return None
    (loops, index), (others, at) = (_whole_loops(x, n) for x in (first, last))
    walked: dict[Sym, Dim] = {}
    seams = 0
    for i, j in zip(index, at, strict=True):
        own = symbols(j) & others.keys()
        if i == j and not own:
            continue  # by loops around both
        if not isinstance(i, Sym) or i not in loops or len(own) != 1 or i in walked:
            return None
        (sym,) = own
        walked[i] = loops[i]
        if j != sym or others[sym] != loops[i]:
            seams += 1
            walked[i] = _sum_of_parts(loops[i], others[sym])
            if j - sym != loops[i]:
                return None
    if seams != 1 or walked.keys() != loops.keys() or len(others) != len(loops):
        return None
    new = tuple([For(Loop(sym, extent), ()) for sym, extent in walked.items()])
    return _Access(index, (*first.around[:n], *new), True, first.shape)


def _whole_loops(access: _Access, n: int) -> tuple[dict[Sym, Dim], tuple[Dim, ...]]:
    """Loops behind the ``n`` outermost, those that a split has made as one, and the index by them."""
    own = {s.loop.sym: s.loop.extent for s in access.around[n:] if isinstance(s, For)}
    loops, index, _ = _without_splits(own, placed(access.index), [])
    return loops, index


def _sum_of_parts(full: Dim, rest: Dim) -> Dim:
    """``full + rest``, of which the algebra does not see that full tiles and the rest are all."""
    if isinstance(rest, BinaryExpr) and rest.op == "mod" and full == floordiv(rest.a, rest.b) * rest.b:
        return rest.a
    return full + rest


@dataclass(frozen=True)
class _Access:
    """One access, and the loops and conditions of the body around it, outermost first."""

    index: tuple[IndexLike, ...]
    around: Around
    stores: bool
    shape: tuple[Dim, ...]


def _accesses(body: Body, buffer: Buffer, around: Around) -> Iterator[_Access]:
    """In the order of one pass over the statements; an update reads what it writes."""
    for s in body:
        for load in loads_of(s):
            if load.buffer is buffer:
                yield _Access(load.index, (*around, *_guards(s, load)), False, buffer.shape)
        if isinstance(s, For | If):
            yield from _accesses(s.body, buffer, (*around, s))
        elif _writes(s, buffer):
            assert isinstance(s, Store | Update | Fold)
            yield _Access(s.index, around, isinstance(s, Store), buffer.shape)


def _guards(s: Stmt, load: Load) -> Iterator[If]:
    """The conditions of a statement's value without which it does not read the element."""
    if not isinstance(s, Store | Update):
        return
    for x in walk_value(s.value):
        if not isinstance(x, Select) or not isinstance(x.cond, Inside) or load not in loads(x.a):
            continue
        if load not in loads(rewrite_value(s.value, partial(_otherwise, x))):
            yield If(x.cond, ())


def _otherwise(select: Select, value: Value) -> Value | None:
    return select.b if value == select else None


def _writes(s: Stmt, buffer: Buffer) -> bool:
    return (isinstance(s, Store | Update) and s.buffer is buffer) or (isinstance(s, Fold) and buffer in s.buffers)


def _n_shared(one: _Access, other: _Access) -> int:
    """How many loops and conditions are around both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(one.around, other.around, strict=False)))


def _covers(store: _Access, read: _Access, changed: Container[Buffer]) -> bool:
    """Does the store, in the same iteration of the loops that both are in, write all that is read?

    ``changed`` are buffers that may be written between the two.
    """
    n = _n_shared(store, read)
    conditions = [s.cond for s in store.around[n:] if isinstance(s, If)]
    if any(x.buffer in changed for c in conditions for x in loads(c)):
        return False
    return _covers_by_digits(store, read, n, conditions) or _covers_by_places(store, read, n, conditions)


def _covers_by_places(store: _Access, read: _Access, n: int, conditions: Sequence[Value]) -> bool:
    """The same by a list of all places; no proof where loops outside of both, or unknown sizes, have a say."""
    guards = [d for c in conditions if isinstance(c, Inside) for d in c.exprs]
    if not all(isinstance(c, Inside) for c in conditions):
        return False
    used = set[Sym]().union(*[symbols(d) for d in (*placed(store.index), *guards)])
    others = [s.loop.extent for s in store.around[n:] if isinstance(s, For) and s.loop.sym not in used]
    if not all(is_nonneg(extent - 1) for extent in others):
        return False
    known = [s.cond for s in read.around[n:] if isinstance(s, If)]
    loops = {s.loop.sym for s in read.around[n:] if isinstance(s, For)}
    asked = [d for c in known if isinstance(c, Inside) for d in c.exprs if symbols(d) <= loops]
    stored = _places(store, n, guards)
    # Conditions leave places out, and take loops that there are more places of to list.
    wanted = (_places(read, n, told) for told in ([asked, []] if asked else [[]]))
    return stored is not None and any(x is not None and x <= stored for x in wanted)


def _places(access: _Access, n: int, guards: Sequence[Dim]) -> set[int] | None:
    """The elements that an access touches in one iteration of the ``n`` outermost loops; None where that is unknown.

    Loops that decide none of them are taken to run.
    """
    shape = numbers(access.shape)
    index = placed(access.index)
    if len(shape) < len(access.shape) or len(index) < len(access.index):
        return None
    used = set[Sym]().union(*[symbols(d) for d in (*index, *guards)])
    loops = {s.loop.sym: s.loop.extent for s in access.around[n:] if isinstance(s, For) and s.loop.sym in used}
    # An extent that is not the same in all iterations around it is a condition on a loop over the most that it may be.
    most = [extent if is_known(extent) else _most(sym) for sym, extent in loops.items()]
    guards = [*guards, *(extent - 1 - sym for sym, extent in loops.items() if not is_known(extent))]
    used |= set[Sym]().union(*map(symbols, guards))
    extents = [max(n, 0) for n in most if n is not None]
    if used - loops.keys() or len(extents) < len(loops) or prod(extents) > EFFORT.points:
        return None
    at = dict(zip(loops, np.indices(extents).reshape(len(extents), prod(extents)), strict=True))
    inside = np.ones(prod(extents), bool)
    for d in guards:
        inside &= valued(d, at, OF_ARRAYS) >= 0
    flat = np.zeros(prod(extents), np.int64)
    for d, size in zip(index, shape, strict=True):
        flat = flat * size + valued(d, at, OF_ARRAYS)
    return set(flat[inside].tolist())


def _most(sym: Sym) -> int | None:
    """How many iterations a loop has at most."""
    return None if sym.hi is None else sym.hi + 1


def _covers_by_digits(store: _Access, read: _Access, n: int, conditions: Sequence[Value]) -> bool:
    """The same by solving for the store's loops."""
    own = {s.loop.sym: s.loop.extent for s in store.around[n:] if isinstance(s, For)}
    stored = store.index
    if not chosen(stored):
        own, stored, conditions = _without_splits(own, placed(stored), conditions)
    index, over = _as_loops(read)
    walked = {s.loop.sym: s.loop.extent for s in read.around if isinstance(s, For)} | over
    found = _iterations(stored, index, own)
    if found is None:
        return False
    known = [s.cond for s in read.around if isinstance(s, If)]
    said = {d for c in known if isinstance(c, Inside) for d in c.exprs}
    full = [0, *_full_tiles(read)]
    for sym, extent in own.items():
        ends = (found[sym], substitute(extent, found) - 1 - found[sym])
        if not all(d in said or any(never_negative(d - least, walked) for least in full) for d in ends):
            return False
    asked = [substitute_value(c, found) for c in conditions]
    return all(c in known or (isinstance(c, Inside) and _always_inside(c, walked)) for c in asked)


def _full_tiles(read: _Access) -> Iterator[Dim]:
    """What is at least 0 where a loop over the full tiles of another runs, though it may run no more than once."""
    for s in read.around:
        if isinstance(s, For) and isinstance(s.loop.extent, BinaryExpr) and s.loop.extent.op == "floordiv":
            whole, tile = s.loop.extent.a, s.loop.extent.b
            if is_known(tile):
                yield whole - (s.loop.sym + 1) * tile


def _always_inside(cond: Inside, walked: Mapping[Sym, Dim]) -> bool:
    return all(never_negative(d, walked) for d in cond.exprs)


def _without_splits(
    own: dict[Sym, Dim], index: Sequence[Dim], conditions: Sequence[Value]
) -> tuple[dict[Sym, Dim], tuple[Dim, ...], Sequence[Value]]:
    """The loops with those that a split has made as one again: ``f*v_o + v_i`` is then a loop over the whole."""
    loops, index = own, tuple(index)
    # From the inside out: what was split twice is whole again after two turns.
    while pair := _split_pair(loops, index, conditions):
        outer, inner, whole = pair
        joined = loop_sym(f"{outer.name} whole", whole)
        loops = {(joined if s == outer else s): (whole if s == outer else e) for s, e in loops.items() if s != inner}
        at: dict[Sym, Dim] = {outer: 0, inner: joined}
        index = tuple(substitute(i, at) for i in index)
        conditions = [substitute_value(c, at) for c in conditions]
    return loops, index, conditions


def _split_pair(
    loops: dict[Sym, Dim], index: Sequence[Dim], conditions: Sequence[Value]
) -> tuple[Sym, Sym, Dim] | None:
    """Two loops that a split has made, the outer one first, and the extent of what was split."""
    for inner in reversed(loops):
        for outer in reversed(loops):
            whole = _whole(loops, index, outer, inner)
            if whole is not None and all(_asks_together(c, loops[inner], outer, inner) for c in conditions):
                return outer, inner, whole
    return None


def _asks_together(cond: Value, factor: Dim, outer: Sym, inner: Sym) -> bool:
    """Does a condition depend on two loops by ``factor*outer + inner`` alone?"""
    if not {outer, inner} & symbols_of_value(cond):
        return True
    if not isinstance(cond, Inside):
        return False
    steps = [(coefficient(d, outer), coefficient(d, inner)) for d in cond.exprs]
    return all(a is not None and c is not None and a == factor * c for a, c in steps)


def _whole(loops: Mapping[Sym, Dim], index: Sequence[Dim], outer: Sym, inner: Sym) -> Dim | None:
    """The extent of the loop of which two loops are a split; None where they are none, or used apart."""
    if outer not in loops or inner not in loops or outer == inner:
        return None
    used = [i for i in index if {outer, inner} & symbols(i)]
    if len(used) != 1 or any({outer, inner} & symbols(e) for s, e in loops.items() if s != inner):
        return None
    steps = coefficient(used[0], outer), coefficient(used[0], inner)
    if not is_known(steps[0]) or not is_known(steps[1]) or steps[1] <= 0 or steps[0] % steps[1]:
        return None
    factor, extent = steps[0] // steps[1], loops[inner]
    if extent == factor:
        return loops[outer] * factor
    if isinstance(extent, BinaryExpr) and extent.op == "min" and factor in (extent.a, extent.b):
        whole = (extent.b if extent.a == factor else extent.a) + outer * factor
        if outer not in symbols(whole) and loops[outer] == ceildiv(whole, factor):
            return whole
    return None


def _as_loops(read: _Access) -> tuple[list[Dim], dict[Sym, Dim]]:
    """The index with a loop over the whole dimension for each part that the data choose; those loops' extents."""
    index: list[Dim] = []
    loops: dict[Sym, Dim] = {}
    for d, (i, extent) in enumerate(zip(read.index, read.shape, strict=True)):
        if is_chosen(i):
            i = loop_sym(f"any {d}", extent)
            loops[i] = extent
        index.append(i)
    return index, loops


def _without_single(d: Dim) -> Dim:
    """``d`` with the loops of one iteration at most as numbers: what stands at 0 is read by one of them."""
    return substitute(d, {s: s.lo for s in symbols(d) if s.lo is not None and s.lo == s.hi})


def _iterations(stored: Sequence[IndexLike], read: Sequence[Dim], own: Iterable[Sym]) -> dict[Sym, Dim] | None:
    """Values of the store's own loops with which it writes at ``read``; None where there is no such expression."""
    found: dict[Sym, Dim] = {}
    for i, at in zip(stored, read, strict=True):
        if is_chosen(i):
            return None
        mine = [s for s in own if s in symbols(i)]
        digits = [(c, s) for s in mine if is_known(c := coefficient(i, s)) and c > 0]
        if len(digits) < len(mine):
            return None
        rest = at - without(i, mine)
        for c, s in sorted(digits, key=lambda t: (-t[0], t[1].name)):
            value, rest = floordiv(rest, c), mod(rest, c)
            if found.setdefault(s, value) != value:
                return None
        if _without_single(rest) != 0:
            return None
    return {s: found.get(s, 0) for s in own}
