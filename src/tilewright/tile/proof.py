"""Proofs that an expression of loops and sizes is never negative where a statement runs.

In: an expression, the loops around a statement, guards there. Out: proved or not. Not its business: what is asked of a
kernel (``reach``), the quick proofs that primitives need while schedules are chosen (``affine.never_negative``).

Loops go out innermost first, each at the end of its walk where the expression is least; a minimum, a maximum, a
quotient or a remainder in the way is split into cases or bounded first, while the loops that it depends on are there.
Where a case leaves a loop around the statement without an iteration, nothing runs in it, so nothing has to hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from tilewright.core.dims import is_known, known_over, known_under
from tilewright.core.expr import (
    OPERATIONS,
    Atom,
    BinaryExpr,
    Dim,
    Mul,
    Sym,
    bounds,
    ceildiv,
    floordiv,
    is_nonneg,
    substitute,
    symbols,
    terms_of,
)
from tilewright.tile.affine import DEEPEST, coefficient
from tilewright.tile.ir import Loop


@dataclass(frozen=True)
class Where:
    """Where a statement runs: ``loops`` around it, outermost first, and what guards keep from being negative."""

    loops: tuple[Loop, ...] = ()
    guards: tuple[Dim, ...] = ()

    def never_negative(self, e: Dim) -> bool:
        """Is ``e >= 0`` proved for every run of the statement?"""
        walks = tuple((x.sym, x.extent) for x in self.loops)
        return _Case(walks, tuple(n for _, n in walks), self.guards).follows(e, DEEPEST)


@dataclass(frozen=True)
class _Case:
    """Loops that are still to go out, the extents of all of them, each of which has an iteration, and guards."""

    walks: tuple[tuple[Sym, Dim], ...]
    alive: tuple[Dim, ...]
    guards: tuple[Dim, ...]

    def follows(self, e: Dim, depth: int) -> bool:
        """Is ``e >= 0`` by itself, or since one thing that is known here is?"""
        known = (0, *self.guards, *(n - 1 for n in self.alive))
        return any(self.holds(e - g, depth) for g in dict.fromkeys(known))

    def holds(self, e: Dim, depth: int) -> bool:
        if is_nonneg(e):
            return True
        for k in range(len(self.walks) - 1, -1, -1):
            sym, extent = self.walks[k]
            c = coefficient(e, sym)
            if known_over(c, 0) or known_under(c, 0):
                e = substitute(e, {sym: 0 if known_over(c, 0) else extent - 1})
            elif sym in symbols(e):
                return replace(self, walks=self.walks[: k + 1]).split(e, sym, depth)
        return is_nonneg(e) or self.split(e, None, depth)

    def split(self, e: Dim, sym: Sym | None, depth: int) -> bool:
        """The proof by cases of one term, which holds ``sym``."""
        if depth == 0:
            return False
        for atom, c in sorted(terms_of(e), key=_lost):
            if sym is not None and sym not in symbols(atom):
                continue
            if isinstance(atom, BinaryExpr):
                return self._by_term(e, atom, c, depth - 1)
            if isinstance(atom, Mul):
                ranged = [f for f in atom.factors if _range(f) is not None]
                inner = next(filter(_is_remainder, ranged), ranged[0] if ranged else None)
                ends = None if inner is None else _ends(e, inner)
                if ends is not None:
                    return all(self.holds(x, depth - 1) for x in ends)
        return False

    def _by_term(self, e: Dim, atom: BinaryExpr, c: int, depth: int) -> bool:
        a, b, rest = atom.a, atom.b, e - c * atom
        if atom.op in ("min", "max"):
            if _is_either(atom, c):
                return all(self._given(atom, x, e, depth) for x in (a, b))
            return any(self.holds(rest + c * x, depth) for x in (a, b))
        if not known_over(b, 0):
            return False
        if atom.op == "mod":
            end = 0 if c > 0 else b - 1
            return self.holds(rest + c * (a - b * floordiv(a, b)), depth) or self.holds(rest + c * end, depth)
        if is_known(rest):  # c*(a // b) + rest >= 0 says where a is, exactly
            return self.follows(a - ceildiv(-rest, c) * b if c > 0 else (rest // -c + 1) * b - 1 - a, depth)
        # b*(a // b) is between a - b + 1 and a; and the quotient is at least 1 where a is at least b.
        if self.holds(b * rest + c * (a if c < 0 else a - b + 1), depth):
            return True
        if c < 0:
            most = bounds(atom)[1]
            return most is not None and self.holds(rest + c * most, depth)
        return any(self.holds(rest + c * q, depth) and self.follows(a - q * b, depth) for q in (0, 1))

    def _given(self, atom: BinaryExpr, value: Dim, e: Dim, depth: int) -> bool:
        """The proof where a minimum or a maximum is the one of its operands."""
        alive = tuple(_put(n, atom, value) for n in self.alive)
        if any((high := bounds(n)[1]) is not None and high <= 0 for n in alive):
            return True
        walks = tuple((s, _put(n, atom, value)) for s, n in self.walks)
        return _Case(walks, alive, self.guards).holds(_put(e, atom, value), depth)


def _lost(term: tuple[Atom, int]) -> int:
    """How much is lost by going on without a term: nothing in a case of two or where quotients may cancel."""
    atom, c = term
    return 0 if _is_remainder(atom) else 1 if isinstance(atom, BinaryExpr) and _is_either(atom, c) else 2


def _is_either(atom: BinaryExpr, c: int) -> bool:
    """Is a term the smaller one of two, so that it has to do as either?"""
    return atom.op == ("min" if c > 0 else "max")


def _is_remainder(x: Atom) -> TypeGuard[BinaryExpr]:
    return isinstance(x, BinaryExpr) and x.op == "mod"


def _range(x: Atom) -> tuple[int, int] | None:
    """The least and the greatest of what can be a factor: a remainder, a loop of a few iterations."""
    low, high = bounds(x)
    return None if low is None or high is None else (low, high)


def _ends(e: Dim, factor: Atom) -> Sequence[Dim] | None:
    """``e`` with a factor at its least and at its greatest; None where ``e`` is not affine in it."""
    found = _range(factor)
    if found is None or coefficient(_put(e, factor, _FACTOR), _FACTOR) is None:
        return None
    return [_put(e, factor, end) for end in found]


_FACTOR = Sym("a factor")


def _put(e: Dim, old: Atom, new: Dim) -> Dim:
    """``e`` with every ``old`` in it replaced, simplified again."""
    if is_known(e) or not symbols(old) <= symbols(e):
        return e
    total: Dim = e.const
    for atom, coef in terms_of(e):
        term: Dim = coef
        for f in atom.factors if isinstance(atom, Mul) else (atom,):
            if f == old:
                term = term * new
            elif isinstance(f, BinaryExpr):
                term = term * OPERATIONS[f.op](_put(f.a, old, new), _put(f.b, old, new))
            else:
                term = term * f
        total = total + term
    return total
