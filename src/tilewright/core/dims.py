"""What is asked of a ``Dim``: is it a number, which, and how does it compare with another number?

In: sizes, extents, offsets, steps and coefficients, each a number or an expression whose value only a call knows; where
a caller may have none at all, ``None``. Out: answers, so that no caller needs to know what a ``Dim`` is made of.
Not its business: arithmetic and what the bounds of symbols prove (``core.expr``), facts about whole shapes
(``core.shapes``), parts of an index that the data choose (``core.indices``).

The comparisons are of numbers only: an expression is neither over nor at most anything, however wide somebody declared
a symbol. ``not known_over(n, 4)`` is "at most 4, or not known"; ``known_at_most(n, 4)`` leaves the unknown out. Which
of the two is meant is what a caller has to decide. What to expect of a run-time size within its bounds is not asked
here (``choose.cost.tile.estimate``).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from tilewright.core.expr import Dim, const_of, terms_of

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # in `typing` from Python 3.13 on; type checkers bring its types along

T = TypeVar("T")


def is_known(d: Dim | None) -> TypeIs[int]:
    """Is it a number? Where it is, the type checker knows it as one afterwards."""
    return isinstance(d, int)


def are_known(dims: Iterable[Dim | None]) -> bool:
    """Are all of them numbers? None at all are."""
    return all([isinstance(d, int) for d in dims])


def known(d: Dim | None, otherwise: T) -> int | T:
    """The number; ``otherwise`` where it is known at run time only, or not at all."""
    return d if isinstance(d, int) else otherwise


def numbers(dims: Iterable[Dim | None]) -> list[int]:
    """Those that are numbers, in their order."""
    return [d for d in dims if isinstance(d, int)]


def known_over(d: Dim | None, n: float) -> TypeGuard[int]:
    """Is it a number, and more than ``n``?"""
    return isinstance(d, int) and d > n


def known_under(d: Dim | None, n: float) -> TypeGuard[int]:
    """Is it a number, and less than ``n``?"""
    return isinstance(d, int) and d < n


def known_at_least(d: Dim | None, n: float) -> TypeGuard[int]:
    """Is it a number, and ``n`` or more?"""
    return isinstance(d, int) and d >= n


def known_at_most(d: Dim | None, n: float) -> TypeGuard[int]:
    """Is it a number, and ``n`` or less?"""
    return isinstance(d, int) and d <= n


def known_multiple(d: Dim | None, n: int) -> TypeGuard[int]:
    """Is it a number, and does ``n`` divide it without a rest?"""
    return isinstance(d, int) and d % n == 0


def is_padded(pads: Iterable[Iterable[Dim]]) -> bool:
    """Is one of the pads another number than 0, or may one that only a call knows be?"""
    return any(n != 0 for around in pads for n in around)


def divisor(e: Dim) -> int:
    """The largest number that divides ``e`` whatever its symbols are; 0 of 0."""
    return abs(e) if isinstance(e, int) else gcd(const_of(e), *(c for _, c in terms_of(e)))
