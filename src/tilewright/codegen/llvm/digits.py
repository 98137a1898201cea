"""Digits of a number that a loop counts up: carried from turn to turn, where each turn would divide for them.

In: floor divisions and remainders, by numbers, of a sum that a loop's variable moves on. Out: phis, and the
instructions at the end of a turn that move them on. Not its business: which loops have them (``loops``), all other
divisions (``index``).

Before: ``for k: .. k // 7 % 4, k % 7``, which takes products of twice the width and shifts in each turn. After: a digit
below 7 that one is added to, and that begins again at 7, and one below 4 that one is added to then: an addition, a
comparison and a selection each. This is strength reduction as for an odometer; hints walk rows of so many lines in the
innermost loop of a product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tilewright.codegen.llvm.writer import Val
from tilewright.core import expr
from tilewright.core.dims import is_known
from tilewright.core.expr import BinaryExpr, Dim, Sym

if TYPE_CHECKING:
    from tilewright.codegen.llvm.index import IndexSpace


class DigitPlace(NamedTuple):
    """``number // unit % size``, where ``size`` may be None: all of the quotient."""

    number: Dim
    unit: int
    size: int | None

    @classmethod
    def of(cls, atom: BinaryExpr) -> DigitPlace | None:
        """What a floor division or a remainder by a number asks for; None of other expressions."""
        if atom.op not in ("floordiv", "mod") or not is_known(atom.b) or atom.b < 1:
            return None
        inner = _lone_atom(atom.a)
        within = None if inner is None else cls.of(inner)
        if atom.op == "floordiv":
            if within is not None and within.size is not None and within.unit == 1 and within.size % atom.b == 0:
                return cls(within.number, atom.b, within.size // atom.b)
            return cls(atom.a, atom.b, None)
        if within is not None and within.size is None:
            return cls(within.number, within.unit, atom.b)
        return cls(atom.a, 1, atom.b)

    @property
    def is_of_bits(self) -> bool:
        """Are shifts and masks all that it takes?"""
        return _is_power(self.unit) and (self.size is None or _is_power(self.size))


class _Digit(NamedTuple):
    """The phi ``name``, which begins with ``first`` and grows by ``step`` a turn, and one more where ``below`` ends."""

    name: str
    first: Val
    step: int
    size: int | None
    below: _Digit | None


class CarriedDigits:
    """The digits that one loop carries: all of sums in which its variable ``sym``, from ``lo`` on, has a factor."""

    def __init__(self, space: IndexSpace, sym: Sym, lo: Dim, kind: str) -> None:
        self.space, self.sym, self.lo, self.kind = space, sym, lo, kind
        self.level = space.writer.level
        self._found: dict[DigitPlace, _Digit] = {}
        self._moved: dict[DigitPlace, tuple[str, str]] = {}

    def value(self, atom: BinaryExpr) -> Val | None:
        """The value of a division or remainder; None where the loop can't carry it, or need not."""
        place = DigitPlace.of(atom)
        if place is None or place.is_of_bits or not self._moves(place.number):
            return None
        low, high = self.space.bounds(place.number)
        if low is None or low < 0 or (self.kind != "i64" and (high is None or high >= 1 << 31)):
            return None
        if place.size is None or not _is_power(place.size):
            return self._value(self._digit(place))
        quotient = self._value(self._digit(place._replace(size=None)))
        return Val(self.space.writer.pure(f"and i64 {quotient.text}, {place.size - 1}", self.level), self.level, 0)

    def _moves(self, number: Dim) -> bool:
        """Does each turn add a number to it, and does all else that it depends on stay?"""
        others = [s for a, _ in expr.terms_of(number) if a != self.sym for s in expr.symbols(a)]
        runs = [self.space.run[self.space.id_of(s)] for s in others]
        return expr.coef_of(number, self.sym) > 0 and all(r is not None and r.level < self.level for r in runs)

    def _digit(self, place: DigitPlace) -> _Digit:
        found = self._found.get(place)
        if found is None:
            number, unit, size = place
            first = expr.floordiv(expr.substitute(number, {self.sym: self.lo}), unit)
            first = first if size is None else expr.mod(first, size)
            below = None if unit == 1 else self._digit(DigitPlace(number, 1, unit))
            step = expr.coef_of(number, self.sym) // unit
            step = step if size is None else step % size
            found = _Digit(self.space.writer.name(), self.space.value(first), step, size, below)
            self._found[place] = found
        return found

    def _value(self, digit: _Digit) -> Val:
        name = digit.name if self.kind == "i64" else f"{digit.name}.wide"
        return Val(name, self.level, 0)

    def move_on(self) -> None:
        """Emit what the next turn begins with."""
        w = self.space.writer
        for place, d in self._found.items():
            above = d.name
            if d.step:
                above = w.fresh(f"add nuw nsw {self.kind} {above}, {d.step}")
            if d.below is not None:
                _, ends = self._moved[DigitPlace(place.number, 1, place.unit)]
                above = w.fresh(f"add nuw nsw {self.kind} {above}, {w.fresh(f'zext i1 {ends} to {self.kind}')}")
            ends = ""
            if d.size is not None:
                ends = w.fresh(f"icmp uge {self.kind} {above}, {d.size}")
                rest = w.fresh(f"sub {self.kind} {above}, {d.size}")
                above = w.fresh(f"select i1 {ends}, {self.kind} {rest}, {self.kind} {above}")
            self._moved[place] = above, ends

    def phis(self, before: str, latch: str) -> Iterator[str]:
        """The lines that begin a turn, of a loop behind the block ``before`` whose turns end in ``latch``."""
        for place, d in self._found.items():
            first = d.first.text
            if self.kind != "i64" and first.startswith("%"):
                first = self.space.writer.pure(f"trunc i64 {first} to {self.kind}", d.first.level)
            following, _ = self._moved[place]
            yield f"  {d.name} = phi {self.kind} [ {first}, %{before} ], [ {following}, %{latch} ]"

    def widened(self) -> Iterator[str]:
        """The lines behind all phis: digits as wide as indices are."""
        if self.kind != "i64":
            for d in self._found.values():
                yield f"  {d.name}.wide = zext nneg {self.kind} {d.name} to i64"


def _lone_atom(e: Dim) -> BinaryExpr | None:
    """The division that an expression is and nothing else."""
    terms = expr.terms_of(e)
    if len(terms) == 1 and terms[0][1] == 1 and expr.const_of(e) == 0 and isinstance(terms[0][0], BinaryExpr):
        return terms[0][0]
    return None


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0
