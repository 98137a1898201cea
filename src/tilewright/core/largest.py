"""The largest value of an expression, up to given values of its symbols: the memory that every call's sizes fit in.

In: an expression and a cap for some of its symbols. Out: an expression of the others, no smaller than any value.
Not its business: bounds that symbols have of themselves (``core.expr``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TypeAlias

from tilewright.core.expr import (
    OPERATIONS,
    Atom,
    BinaryExpr,
    Dim,
    Mul,
    Sym,
    floordiv,
    is_nonneg,
    maximum,
    minimum,
    symbols,
)

Ends: TypeAlias = tuple[Dim, Dim]


def largest(e: Dim, caps: Mapping[Sym, Dim]) -> Dim:
    """A bound of ``e`` where each symbol of ``caps`` is at least its lower bound and at most that value.

    Divisors are sizes of which none is 0; parts may be negative, as in ``-(-n // k)``, which rounds up.
    """
    return _ends(e, caps)[1]


def _ends(e: Dim, caps: Mapping[Sym, Dim]) -> Ends:
    """The least and the largest value."""
    if isinstance(e, int) or not symbols(e) & caps.keys():
        return e, e
    low: Dim = e.const
    high: Dim = e.const
    for atom, coef in e.terms:
        ends = _atom_ends(atom, caps)
        least, most = ends if coef > 0 else ends[::-1]
        low, high = low + least * coef, high + most * coef
    return low, high


def _atom_ends(atom: Atom, caps: Mapping[Sym, Dim]) -> Ends:
    if not symbols(atom) & caps.keys():
        return atom, atom
    if isinstance(atom, Sym):
        return atom.lo or 0, caps[atom]
    if isinstance(atom, Mul):
        return reduce(_product, (_atom_ends(f, caps) for f in atom.factors))
    assert isinstance(atom, BinaryExpr)
    a, b = _ends(atom.a, caps), _ends(atom.b, caps)
    if atom.op == "mod":
        return 0, b[1] - 1
    if atom.op == "floordiv":
        return _quotient(a, (maximum(b[0], 1), maximum(b[1], 1)))
    return OPERATIONS[atom.op](a[0], b[0]), OPERATIONS[atom.op](a[1], b[1])


def _product(a: Ends, b: Ends) -> Ends:
    """Two numbers that may be negative have their product's ends at any pair of theirs."""
    if is_nonneg(a[0]) and is_nonneg(b[0]):
        return a[0] * b[0], a[1] * b[1]
    corners = [x * y for x in a for y in b]
    return reduce(minimum, corners), reduce(maximum, corners)


def _quotient(a: Ends, divisor: Ends) -> Ends:
    """A quotient lies farthest from 0 where its divisor is least, on either side of it."""
    low, high = ([floordiv(x, d) for d in divisor] for x in a)
    return minimum(*low), high[0] if is_nonneg(a[1]) else maximum(*high)
