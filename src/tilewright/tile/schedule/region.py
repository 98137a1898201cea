"""Box inference: which elements of a buffer one iteration of a loop reads, with the memory of splits.

In: the loads of a buffer under a loop. Out: per dimension a base, fresh loops that walk the box, and its size.
Not its business: moving statements (``stages.compute_at``).

Memory of splits: when every read has the same index ``base + f*v_o + v_i``, the box is walked by copies of ``v_o``
and ``v_i`` with their own extents, so that a ragged tile stays exactly as ragged. Otherwise (also where the loops
overlap, as those of a sliding window) the box is the interval from the lowest to the highest element, cut at the
buffer's ends: beyond them only guarded reads go, whose guards are false there.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from tilewright.core.compute import Load
from tilewright.core.dims import is_known, known_under
from tilewright.core.expr import BinaryExpr, Dim, Sym, bounds, maximum, minimum, symbol_order, symbols, terms_of
from tilewright.core.indices import is_chosen
from tilewright.tile.affine import coefficient, without
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kind, Loop


@dataclass(frozen=True)
class Side:
    """One dimension of a box: elements ``base + offset`` for the values of ``offset`` that ``loops`` walk.

    ``size`` bounds the offset; no loops means a single point. ``is_exact``: it is what is read, not a box around it.
    """

    base: Dim
    loops: tuple[Loop, ...]
    offset: Dim
    size: Dim
    is_exact: bool = False


def side_of(loads: Sequence[Load], d: int, inner: Sequence[Loop], name: str, where: str) -> Side:
    """The box's side in dimension ``d``; ``inner`` are the loops between the target loop and the reads, in order.

    Indices that are kept inside of the buffer by a minimum and a maximum, as a stencil's are whose edges repeat, read
    no more than without: the box has the size that it would have then, and begins where the lowest of them is kept.
    """
    extent, by_loop = loads[0].buffer.shape[d], {x.sym for x in inner}
    kept = [(i, i if is_chosen(i) else _unkept(i, extent, by_loop)) for x in loads for i in (x.index[d],)]
    if any(i != e for i, e in kept):
        free = [Load(x.buffer, (*x.index[:d], e, *x.index[d + 1 :])) for x, (_, e) in zip(loads, kept, strict=True)]
        side = side_of(free, d, inner, name, where)
        size = side.size if is_known(side.size) else bounds(side.size)[1]
        if size is None:
            raise ScheduleError("compute_at", where, f"the range of {kept[0][0]} inside the loop is not known")
        base = maximum(0, minimum(extent - 1, side.base))
        return _interval(base, minimum(size, extent - base), name)
    exprs: list[Dim] = []
    for load in loads:
        e = load.index[d]
        if is_chosen(e):
            return _interval(0, extent, name)
        if e not in exprs:
            exprs.append(e)
    by_sym = {x.sym: x for x in inner}
    bases = [_base(e, by_sym.keys(), where) for e in exprs]
    if len(exprs) == 1 and all(coefficient(exprs[0], s) is not None for s in by_sym):
        used = [x for x in inner if x.sym in symbols(exprs[0])]
        if not used:
            return Side(bases[0], (), 0, 1, True)
        if _closed(used, inner) and not _overlap(exprs[0], used):
            offset = exprs[0] - bases[0]
            lo, hi = bounds(offset)
            if lo == 0 and hi is not None:
                return Side(bases[0], tuple(used), offset, hi + 1, True)
    whole = _equal_ranges(exprs, bases, by_sym)
    if whole is not None:
        return replace(_interval(bases[0], whole, name), is_exact=True)
    return _hull(exprs, bases, extent, name, where)


def _unkept(e: Dim, extent: Dim, inner: Container[Sym]) -> Dim:
    """An index without what keeps it from 0 to the last element, where loops inside are what it keeps."""
    if isinstance(e, BinaryExpr) and e.op in ("min", "max") and any(s in inner for s in symbols(e)):
        end: Dim = 0 if e.op == "max" else extent - 1
        if end in (e.a, e.b):
            return _unkept(e.b if e.a == end else e.a, extent, inner)
    return e


def _base(e: Dim, inner: Sequence[Sym] | object, where: str) -> Dim:
    syms = [s for s in sorted(symbols(e), key=symbol_order) if s in inner]  # type: ignore[operator]
    for s in syms:
        # A quotient or remainder of loops inside alone has the same range in every iteration.
        if coefficient(e, s) is None and any(s in symbols(a) and not symbols(a) <= {*syms} for a, _ in terms_of(e)):
            raise ScheduleError("compute_at", where, f"the index {e} is not affine in the loops inside")
    return without(e, syms)


def _closed(used: Sequence[Loop], inner: Sequence[Loop]) -> bool:
    """Do the extents of ``used`` depend on no inner loop outside of ``used``?"""
    free = {x.sym for x in inner} - {x.sym for x in used}
    return not any(symbols(x.extent) & free for x in used)


def _overlap(e: Dim, loops: Sequence[Loop]) -> bool:
    """Do different iterations of ``loops`` provably meet at one element?"""
    reach = 1
    steps = [(coefficient(e, x.sym), x.extent) for x in loops]
    if not all(is_known(c) and is_known(n) for c, n in steps):
        return False
    for c, n in sorted((abs(c), n) for c, n in steps if is_known(c) and is_known(n)):
        if c < reach and n > 1:
            return True
        reach += c * (n - 1)
    return False


def _equal_ranges(exprs: Sequence[Dim], bases: Sequence[Dim], loops: dict[Sym, Loop]) -> Dim | None:
    """The common extent when each read is ``base + v`` with loops of one extent, not decided inside, and one base."""
    extents: list[Dim] = []
    for e, base in zip(exprs, bases, strict=True):
        v = e - base
        if base != bases[0] or not isinstance(v, Sym) or v not in loops:
            return None
        extents.append(loops[v].extent)
    is_common = all(x == extents[0] for x in extents) and not any(s in loops for s in symbols(extents[0]))
    return extents[0] if is_common else None


def _interval(base: Dim, extent: Dim, name: str) -> Side:
    hi = bounds(extent)[1]
    sym = Sym(name, 0, None if hi is None else max(hi - 1, 0))
    return Side(base, (Loop(sym, extent, Kind.SERIAL),), sym, extent if hi is None else hi)


def _hull(exprs: Sequence[Dim], bases: Sequence[Dim], extent: Dim, name: str, where: str) -> Side:
    lows: list[int] = []
    highs: list[int] = []
    for e, base in zip(exprs, bases, strict=True):
        shift = base - bases[0]
        lo, hi = bounds(e - base)
        if not is_known(shift) or lo is None or hi is None:
            raise ScheduleError("compute_at", where, f"the range of {e} inside the loop is not known at compile time")
        lows.append(shift + lo)
        highs.append(shift + hi)
    base = bases[0] + min(lows)
    size = max(highs) - min(lows) + 1
    if known_under(base, 0):
        base, size = 0, max(size + base, 1)
    return _interval(base, minimum(size, extent - base), name)
