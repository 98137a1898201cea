"""The largest value of an expression, up to given values of its symbols: the memory that every call's sizes fit in.

In: an expression and a cap for some of its symbols. Out: an expression of the others, no smaller than any value.
Not its business: bounds that symbols have of themselves (``core.expr``).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.core.expr import OPERATIONS, Atom, BinaryExpr, Dim, Mul, Sym, floordiv, maximum, symbols


def largest(e: Dim, caps: Mapping[Sym, Dim]) -> Dim:
    """A bound of ``e`` where each symbol of ``caps`` is at least its lower bound and at most that value.

    A quotient is largest where its divisor is least. Factors, dividends and divisors are sizes: none is negative.
    """
    return _extreme(e, caps, most=True)


def _extreme(e: Dim, caps: Mapping[Sym, Dim], *, most: bool) -> Dim:
    if isinstance(e, int) or not symbols(e) & caps.keys():
        return e
    total: Dim = e.const
    for atom, coef in e.terms:
        total = total + _extreme_atom(atom, caps, most=most == (coef > 0)) * coef
    return total


def _extreme_atom(atom: Atom, caps: Mapping[Sym, Dim], *, most: bool) -> Dim:
    if not symbols(atom) & caps.keys():
        return atom
    if isinstance(atom, Sym):
        return caps[atom] if most else atom.lo or 0
    if isinstance(atom, Mul):
        total: Dim = 1
        for f in atom.factors:
            total = total * _extreme_atom(f, caps, most=most)
        return total
    assert isinstance(atom, BinaryExpr)
    if atom.op == "mod":
        return _extreme(atom.b, caps, most=True) - 1 if most else 0
    if atom.op == "floordiv":
        return floordiv(_extreme(atom.a, caps, most=most), maximum(_extreme(atom.b, caps, most=not most), 1))
    return OPERATIONS[atom.op](_extreme(atom.a, caps, most=most), _extreme(atom.b, caps, most=most))
