"""Reading index expressions as affine functions of loops.

In: index expressions. Out: coefficients, linear offsets of accesses, ranges.
Not its business: what to do with them (``cost``, ``schedule``).
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.core.compute import Buffer, IndexLike, Value
from tilewright.core.expr import Binary, Dim, Mul, Sym, const_of, mod, substitute, symbols, terms_of


def coefficient(e: Dim, sym: Sym) -> Dim | None:
    """``c`` when ``e == c*sym + rest`` and neither depends on ``sym``; None when ``e`` is not affine in it."""
    total: Dim = 0
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
        if not isinstance(atom, Binary) or atom.op != "floordiv" or atom.a != sym or not isinstance(atom.b, int):
            return None
        found.add(atom.b)
    return found.pop() if len(found) == 1 else None


def is_affine(e: Dim, syms: Iterable[Sym]) -> bool:
    """Is ``e`` affine in every one of ``syms``?"""
    return all(coefficient(e, s) is not None for s in syms)


def strides_of(buffer: Buffer) -> tuple[Dim, ...]:
    """Row-major element strides."""
    strides: list[Dim] = []
    step: Dim = 1
    for d in reversed(buffer.shape):
        strides.append(step)
        step = step * d
    return tuple(reversed(strides))


def linear(buffer: Buffer, index: tuple[IndexLike, ...]) -> Dim | None:
    """The element offset of an access; None when an index is a run-time value."""
    total: Dim = 0
    for i, stride in zip(index, strides_of(buffer), strict=True):
        if isinstance(i, Value):
            return None
        total = total + i * stride
    return total


def stride_along(buffer: Buffer, index: tuple[IndexLike, ...], sym: Sym) -> Dim | None:
    """How many elements one step of ``sym`` moves an access; None when not affine or not known before run time."""
    offset = linear(buffer, index)
    return None if offset is None else coefficient(offset, sym)


def group_along(buffer: Buffer, index: tuple[IndexLike, ...], sym: Sym) -> int:
    """``g`` when an access is ``B[.., sym // g, .., sym % g]``, its last dimension a group of ``g``; else 0."""
    last, size = index[-1] if index else 0, buffer.shape[-1] if buffer.shape else 1
    if isinstance(last, Value) or last == sym or not isinstance(size, int) or size < 2:
        return 0
    return size if last == mod(sym, size) else 0


def without(e: Dim, syms: Iterable[Sym]) -> Dim:
    """``e`` with ``syms`` at zero: the base of a tile."""
    return substitute(e, {s: 0 for s in syms})


def constant_part(e: Dim) -> int:
    return const_of(e)
