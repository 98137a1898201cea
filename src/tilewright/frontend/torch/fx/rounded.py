"""Sizes that PyTorch computes through floats and rounds: ``int(h / 2)``, ``round(w * 1.5)``, ``int((n * n)**0.5)``.

In: a sympy expression that rounds a float. Out: the dimension, in integers. Only where the float arithmetic is exact
but for one last division, whose rounding never crosses a whole number: ``floor(fl(a / b)) == a // b`` for whole ``a``
and ``b`` below 2**53; or for one product of a size with a factor such as 0.7, where the sizes are known whose products
are rounded to below a whole number. Not its business: floats that stay floats (``torch.fx.floats``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

from tilewright.core.dims import is_known, known_under
from tilewright.core.expr import Dim, bounds, ceildiv, floordiv, is_nonneg, maximum, minimum, mod

Convert = Callable[[Any], Dim]

MAX_DENOMINATOR = 1 << 16
"""Of a factor such as 1.5 or 0.0625; with it, products with sizes are exact."""

MOST_SIZE = 1 << 40
"""What no size is beyond: no memory holds more elements, and doubles are exact up to here."""


@dataclass(frozen=True)
class Ratio:
    """``top / bottom``; ``exact`` where the float is that number, and not the nearest to it."""

    top: Dim
    bottom: Dim
    exact: bool = True


@dataclass(frozen=True)
class RoundedSize:
    """A size, and the most that it is: a short expression where that of ``size`` has a term for each power of two."""

    size: Dim
    most: Dim


def rounded(e: Any, convert: Convert) -> RoundedSize | None:
    """The dimension that ``FloorToInt``, ``CeilToInt``, ``TruncToInt`` or ``RoundToInt`` of a float is.

    ``convert`` gives the dimension of a whole sub-expression. None where the float has no exact form here.
    """
    kind = type(e).__name__
    if kind not in _ROUNDINGS:
        return None
    ratio = _ratio(e.args[0], convert)
    if ratio is None and kind in ("FloorToInt", "TruncToInt"):
        return _scaled(e.args[0], convert)
    if ratio is None or not (is_known(ratio.bottom) or is_nonneg(ratio.bottom - 1)):
        return None
    size = _ROUNDINGS[kind](ratio.top, ratio.bottom)
    return RoundedSize(size, size)


def compared(a: Any, b: Any, convert: Convert) -> tuple[Dim, Dim] | None:
    """Whole numbers that compare as two floats do, which are quotients of whole numbers below 2**26.

    Two such quotients that differ, differ by more than their rounding. None where a side is no such quotient.
    """
    x, y = (_constant(e) if getattr(e, "is_Float", False) else _ratio(e, convert) for e in (a, b))
    if x is None or y is None or not all(is_nonneg(r.bottom - 1) for r in (x, y)):
        return None
    return x.top * y.bottom, y.top * x.bottom


def _constant(e: Any) -> Ratio | None:
    """The simplest fraction that rounds to a float."""
    value = Fraction(float(e)).limit_denominator(MAX_DENOMINATOR)
    return Ratio(value.numerator, value.denominator) if float(value) == float(e) else None


def _ratio(e: Any, convert: Convert) -> Ratio | None:
    kind = type(e).__name__
    if kind in ("ToFloat", "Identity"):
        return _ratio(e.args[0], convert)
    if getattr(e, "is_Number", False):
        return _number(e)
    if kind == "FloatPow" or kind.endswith("_sqrt"):
        return _root(e, convert)
    if kind in ("IntTrueDiv", "FloatTrueDiv"):
        a, b = (_ratio(x, convert) for x in e.args)
        return None if a is None or b is None or not (a.exact and b.exact) else _divided(a, b)
    if kind in ("Add", "Mul") and not getattr(e, "is_integer", False):
        return _folded(kind, e.args, convert)
    return Ratio(convert(e), 1) if getattr(e, "is_integer", False) else None


def _scaled(e: Any, convert: Convert) -> RoundedSize | None:
    """The floor of the float product of a size with a factor of few digits; None for other floats.

    Let the factor ``c`` be the float nearest to ``p / q``. Products with sizes that ``q`` does not divide are at least
    ``1 / q`` away from whole numbers, farther than rounding moves them. The product with ``q * t`` is rounded to the
    whole number ``p * t``, or to the float below it, whose floor is one less (``_short_of``). Taking one from ``p``
    times such a size lowers its floor, and no other's.
    """
    factors = [a for a in e.args if getattr(a, "is_Float", False)] if type(e).__name__ == "Mul" else []
    if len(factors) != 1:
        return None
    ratio = _constant(factors[0])
    size = _folded("Mul", [a for a in e.args if a is not factors[0]], convert)
    if ratio is None or size is None or size.bottom != 1 or not is_known(ratio.top) or not is_known(ratio.bottom):
        return None
    if ratio.top <= 0 or not is_nonneg(size.top):
        return None
    runs = _short_of(float(factors[0]), ratio.top, ratio.bottom, bounds(size.top)[1])
    short = [minimum(size.top - first + 1, last + 1 - size.top) for first, last in runs]
    most = floordiv(ratio.top * size.top, ratio.bottom)
    if not short:
        return RoundedSize(most, most)
    while len(short) > 1:  # by halves: a chain of them would be deep
        short = [reduce(maximum, short[k : k + 2]) for k in range(0, len(short), 2)]
    one_less = minimum(maximum(short[0], 0), 1)
    return RoundedSize(floordiv(maximum(ratio.top * size.top - one_less, 0), ratio.bottom), most)


def _short_of(factor: float, top: int, bottom: int, end: int | None) -> list[tuple[int, int]]:
    """Runs of sizes whose multiples of ``bottom`` have float products below the whole number that they stand for.

    Where ``factor`` is ``top / bottom`` or more, rounding keeps the order, and there are none. Else the product with
    ``bottom * t`` lies ``off * t`` below the whole number ``top * t``. Is that in ``2**b`` to ``2**(b + 1)``, floats
    below it are ``2**(b - 52)`` apart, and rounding mends half of this; at just a half it goes up, to the even one.
    """
    off = top - Fraction(factor) * bottom
    most = (MOST_SIZE if end is None else min(end, MOST_SIZE)) // bottom
    runs: list[tuple[int, int]] = []
    for b in range((top * most).bit_length() if off > 0 else 0):
        first = math.floor(max(Fraction(2**b, top), Fraction(2**b, 2**53) / off)) + 1
        last = min(2 ** (b + 1) // top, most)
        if first <= last:
            joined = runs.pop()[0] if runs and runs[-1][1] + 1 == first else first
            runs.append((joined, last))
    return [(bottom * first, bottom * last) for first, last in runs]


def _root(e: Any, convert: Convert) -> Ratio | None:
    """The root of a size squared, which is exact."""
    base = e.args[0].args[0] if type(e.args[0]).__name__ == "ToFloat" else e.args[0]
    if (len(e.args) == 2 and e.args[1] != 0.5) or type(base).__name__ not in ("Pow", "PowByNatural"):
        return None
    if base.args[1] != 2 or not getattr(base.args[0], "is_integer", False):
        return None
    size = convert(base.args[0])
    return Ratio(size, 1) if is_nonneg(size) else None


def _number(e: Any) -> Ratio | None:
    value = Fraction(int(e)) if getattr(e, "is_Integer", False) else Fraction(float(e))
    fits = value.denominator <= MAX_DENOMINATOR and abs(value.numerator) <= 1 << 31
    return Ratio(value.numerator, value.denominator) if fits else None


def _divided(a: Ratio, b: Ratio) -> Ratio | None:
    """Dividing by a power of two is exact."""
    top, bottom = a.top * b.bottom, a.bottom * b.top
    if known_under(bottom, 0):
        top, bottom = -1 * top, -bottom
    if bottom == 0:
        return None
    return Ratio(top, bottom, is_known(bottom) and bottom & (bottom - 1) == 0)


def _folded(kind: str, args: Any, convert: Convert) -> Ratio | None:
    result = Ratio(0 if kind == "Add" else 1, 1)
    for x in args:
        r = _ratio(x, convert)
        if r is None or not r.exact:
            return None
        if kind == "Mul":
            result = Ratio(result.top * r.top, result.bottom * r.bottom)
        else:
            result = Ratio(result.top * r.bottom + r.top * result.bottom, result.bottom * r.bottom)
    return result


def _truncated(a: Dim, b: Dim) -> Dim:
    if is_nonneg(a):
        return floordiv(a, b)
    return floordiv(maximum(a, 0), b) - floordiv(maximum(-1 * a, 0), b)


def _nearest(a: Dim, b: Dim) -> Dim:
    """Halves go to the even neighbour, as Python's ``round`` does."""
    twice = 2 * a + b
    up = floordiv(twice, 2 * b)
    is_half = 1 - minimum(mod(twice, 2 * b), 1)
    return up - is_half * mod(up, 2)


_ROUNDINGS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "FloorToInt": floordiv,
    "CeilToInt": ceildiv,
    "TruncToInt": _truncated,
    "RoundToInt": _nearest,
}
