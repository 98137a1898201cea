"""Reading index expressions as affine functions of loops.

In: index expressions. Out: coefficients, linear offsets of accesses, ranges.
Not its business: what to do with them (``cost``, ``schedule``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tilewright.core.compute import Buffer, IndexLike
from tilewright.core.dims import is_known, known_at_least, known_over, known_under, numbers
from tilewright.core.effort import EFFORT
from tilewright.core.expr import (
    BinaryExpr,
    Dim,
    Mul,
    Sym,
    bounds,
    const_of,
    floordiv,
    is_nonneg,
    mod,
    substitute,
    symbols,
    terms_of,
    weighted_sum,
)
from tilewright.core.indices import at_first, chosen, is_chosen, placed


def coefficient(e: Dim, sym: Sym) -> Dim | None:
    """``c`` when ``e == c*sym + rest`` and neither depends on ``sym``; None when ``e`` is not affine in it."""
    total: Dim = 0
    if sym not in symbols(e):
        return total
    for atom, coef in terms_of(e):
        if atom == sym:
            total = total + coef
        elif sym in symbols(atom):
            if not isinstance(atom, Mul) or atom.factors.count(sym) != 1:
                return None
            rest: Dim = coef
            for f in atom.factors:
                if f != sym:
                    if sym in symbols(f):
                        return None
                    rest = rest * f
            total = total + rest
    return total


def period(e: Dim, sym: Sym) -> int | None:
    """``k`` when ``e`` depends on ``sym`` only through ``sym // k``: so many neighbours are equal. None otherwise."""
    found: set[int] = set()
    for atom, _ in terms_of(e):
        if sym not in symbols(atom):
            continue
        if not isinstance(atom, BinaryExpr) or atom.op != "floordiv" or atom.a != sym or not is_known(atom.b):
            return None
        found.add(atom.b)
    return found.pop() if len(found) == 1 else None


def remainder(e: Dim, sym: Sym) -> int | None:
    """``k`` when ``e`` depends on ``sym`` only through ``sym % k``: it repeats. None otherwise."""
    found = {a for a, _ in terms_of(e) if sym in symbols(a)}
    atom = found.pop() if len(found) == 1 else None
    if isinstance(atom, BinaryExpr) and atom.op == "mod" and atom.a == sym and is_known(atom.b):
        return atom.b
    return None


def is_affine(e: Dim, syms: Iterable[Sym]) -> bool:
    """Is ``e`` affine in every one of ``syms``?"""
    return all(coefficient(e, s) is not None for s in syms)


def linear(buffer: Buffer, index: tuple[IndexLike, ...]) -> Dim | None:
    """The element offset of an access; None when an index is a run-time value."""
    if chosen(index):
        return None
    at, strides = placed(index), buffer.strides
    known = numbers(strides)
    if len(known) == len(strides):
        return weighted_sum(0, tuple(zip(at, known, strict=True)))
    total: Dim = 0
    for i, stride in zip(at, strides, strict=True):
        total = total + i * stride
    return total


def first_offset(buffer: Buffer, index: tuple[IndexLike, ...]) -> Dim:
    """The element offset of an access, or of the first one that the data may choose."""
    offset = linear(buffer, at_first(index))
    assert offset is not None
    return offset


def stride_along(buffer: Buffer, index: tuple[IndexLike, ...], sym: Sym) -> Dim | None:
    """How many elements one step of ``sym`` moves an access; None when not affine or not known before run time."""
    offset = linear(buffer, index)
    return None if offset is None else coefficient(offset, sym)


def group_along(buffer: Buffer, index: tuple[IndexLike, ...], sym: Sym) -> int:
    """``g`` when an access is ``B[.., sym // g, .., sym % g]``, its last dimension a group of ``g``; else 0."""
    last, size = index[-1] if index else 0, buffer.shape[-1] if buffer.shape else 1
    if is_chosen(last) or last == sym or not known_at_least(size, 2):
        return 0
    return size if last == mod(sym, size) else 0


def without(e: Dim, syms: Iterable[Sym]) -> Dim:
    """``e`` with ``syms`` at zero: the base of a tile."""
    return substitute(e, {s: 0 for s in syms})


def settled(e: Dim, extents: Mapping[Sym, Dim]) -> Dim:
    """``e`` with the quotients and remainders by numbers gone that loops of these extents, outer ones first, decide.

    ``(48*o + i) // 257`` is 0 where o goes to 5 and i to ``min(257 - 48*o, 48) - 1``: the last tile ends at 257.
    """
    total: Dim = const_of(e)
    for atom, coef in terms_of(e):
        total = total + coef * _settled_atom(atom, extents)
    return total


def _settled_atom(atom: Dim, extents: Mapping[Sym, Dim]) -> Dim:
    if not isinstance(atom, BinaryExpr) or atom.op not in ("floordiv", "mod") or not is_known(atom.b):
        return atom
    a, b = settled(atom.a, extents), atom.b
    lo, hi = bounds(a)[0], _greatest(a, extents)
    if b > 0 and lo is not None and hi is not None and lo // b == hi // b:
        return lo // b if atom.op == "floordiv" else a - lo // b * b
    return floordiv(a, b) if atom.op == "floordiv" else mod(a, b)


def _greatest(e: Dim, extents: Mapping[Sym, Dim]) -> int | None:
    """The least of the upper bounds that follow when loops, inner ones first, stand at the end of what they walk."""
    found = [e]
    for sym, extent in list(extents.items())[::-1]:
        for x in found[:]:
            c = coefficient(x, sym)
            if known_over(c, 0) and not is_known(extent):
                found += [x + c * (n - 1 - sym) for n in _no_less(extent)]
    return min((hi for x in found if (hi := bounds(x)[1]) is not None), default=None)


def _no_less(e: Dim) -> Iterator[Dim]:
    """Expressions without minima, each at least ``e``: every choice of their operands, within quotients too."""
    for atom, coef in terms_of(e):
        if coef != 1 or not isinstance(atom, BinaryExpr):
            continue
        choices: list[Dim] = [atom]
        if atom.op == "min":
            choices = [atom.a, atom.b]
        elif atom.op == "floordiv" and is_known(atom.b) and atom.b > 0:
            choices = [floordiv(a, atom.b) for a in _no_less(atom.a)]
        if choices != [atom]:
            for choice in choices:
                yield from _no_less(e - atom + choice)
            return
    yield e


DEEPEST = EFFORT.listed.bit_length() - 1
"""Minima and maxima within each other that a proof looks into: each of them doubles the cases."""


def least(e: Dim, extents: Mapping[Sym, Dim]) -> Dim:
    """``e`` where loops of these extents, of which outer ones come first, make it least, if each has an iteration.

    Loops, inner ones first, stand at 0 or at their last iteration. One along which ``e`` may rise and fall stays.
    """
    for sym, extent in list(extents.items())[::-1]:
        slope = _slope(e, sym)
        if slope:
            e = substitute(e, {sym: 0 if slope > 0 else extent - 1})
    return e


def _slope(e: Dim, sym: Sym) -> int:
    """1 where ``e`` never falls as ``sym`` grows, -1 where it never rises; 0 where neither is told, or it stays.

    A quotient by a positive number goes as its dividend does: ``(n + 1) // 2 - i // 2`` falls.
    """
    c = coefficient(e, sym)
    if c is not None:
        return (known_over(c, 0) and 1) or (known_under(c, 0) and -1) or 0
    found: set[int] = set()
    for atom, coef in terms_of(e):
        if sym in symbols(atom):
            if isinstance(atom, BinaryExpr) and atom.op == "floordiv" and known_over(atom.b, 0):
                slope = _slope(atom.a, sym)
            else:
                slope = int(atom == sym)
            found.add(slope if coef > 0 else -slope)
    return found.pop() if len(found) == 1 else 0


def never_negative(e: Dim, extents: Mapping[Sym, Dim], depth: int = DEEPEST) -> bool:
    """Is ``e >= 0`` proved for all iterations of loops of these extents, of which outer ones come first?"""
    if is_nonneg(e):
        return True
    e = least(e, extents)
    if is_nonneg(e) or depth == 0:
        return is_nonneg(e)
    for is_least, atom, c in extremes_of(e):
        branches = (never_negative(e + c * (x - atom), extents, depth - 1) for x in (atom.a, atom.b))
        return all(branches) if is_least else any(branches)
    return False


def extremes_of(e: Dim) -> list[tuple[bool, BinaryExpr, int]]:
    """The minima and maxima that ``e`` adds up, with their factors, and whether ``e`` is the least of the two cases.

    It is where a minimum is added or a maximum taken away; else it is the greatest. Those of which ``e`` is the least
    stand first: which case of another one shows something may be another one in each of theirs.
    """
    found = [(a, c) for a, c in terms_of(e) if isinstance(a, BinaryExpr) and a.op in ("min", "max")]
    return sorted((((a.op == "min") == (c > 0), a, c) for a, c in found), key=lambda x: not x[0])
