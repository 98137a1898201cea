"""Sizes that PyTorch computes through floats and rounds: ``int(h / 2)``, ``round(w * 1.5)``, ``int((n * n)**0.5)``.

In: a sympy expression that rounds a float. Out: the dimension, in integers. Only where the float arithmetic is exact
but for one last division, whose rounding never crosses a whole number: ``floor(fl(a / b)) == a // b`` for whole ``a``
and ``b`` below 2**53; or for one product of a size with a factor such as 0.6 that no size brings below the whole number
that it stands for. Not its business: floats that stay floats (``torch.fx.floats``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tilewright.core.dims import is_known, known_under
from tilewright.core.expr import Dim, ceildiv, floordiv, is_nonneg, maximum, minimum, mod

Convert = Callable[[Any], Dim]

MAX_DENOMINATOR = 1 << 16
"""Of a factor such as 1.5 or 0.0625; with it, products with sizes are exact."""


@dataclass(frozen=True)
class Ratio:
    """``top / bottom``; ``exact`` where the float is that number, and not the nearest to it."""

    top: Dim
    bottom: Dim
    exact: bool = True


def rounded(e: Any, convert: Convert) -> Dim | None:
    """The dimension that ``FloorToInt``, ``CeilToInt``, ``TruncToInt`` or ``RoundToInt`` of a float is.

    ``convert`` gives the dimension of a whole sub-expression. None where the float has no exact form here.
    """
    kind = type(e).__name__
    if kind not in _ROUNDINGS:
        return None
    ratio = _ratio(e.args[0], convert)
    if ratio is None and kind in ("FloorToInt", "TruncToInt"):
        ratio = _scaled(e.args[0], convert)
    if ratio is None or not (is_known(ratio.bottom) or is_nonneg(ratio.bottom - 1)):
        return None
    return _ROUNDINGS[kind](ratio.top, ratio.bottom)


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


def _scaled(e: Any, convert: Convert) -> Ratio | None:
    """A size times a factor of few digits, as a ratio whose floor is that of the float product; None where it is not.

    Let the factor ``c`` be the float nearest to ``p / q``. The product with a multiple of ``q`` is rounded to the whole
    number ``K`` or to one beside it. It is not below ``K`` where ``c`` is ``p / q`` or more. A smaller ``c`` is off by
    a part ``d`` of the distance between floats around it, and the product by ``d * m(K) / m(c)`` of that distance
    around ``K``, with ``m`` the fractions in 1 to 2: rounding mends half a distance. Products with other sizes are at
    least ``1 / q`` away from whole numbers.
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
    factor = float(factors[0])
    mantissa, _ = math.frexp(factor)  # in 0.5 to 1
    off = (Fraction(ratio.top, ratio.bottom) - Fraction(factor)) / Fraction(math.ulp(factor))
    return Ratio(ratio.top * size.top, ratio.bottom) if 2 * off <= Fraction(mantissa) else None


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
