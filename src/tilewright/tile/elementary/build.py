"""Small words for writing formulas as value trees.

In: values of f32 or f64 and Python numbers. Out: values. Not its business: any particular function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.core import types
from tilewright.core.compute import Binary, Bitcast, Cast, Const, Fma, Select, Unary, Value
from tilewright.core.types import DType

HALVING = (4097.0, 134217729.0)
"""What takes the upper half of the digits of an f32 and of an f64."""
ROUNDING = (12582912.0, 6755399441055744.0)
"""1.5 * 2**23 (2**52): adding it leaves the rounded number in the low bits, of f32 and of f64."""


@dataclass(frozen=True)
class Style:
    """What the target offers.

    ``has_fma``: ``Fma`` rounds once. ``has_scalef``: ``mul(x, pow2i(n))`` is ``x * 2**n`` for every ``n``, as if the
    exponent of ``pow2i`` had no bounds, infinities included; ``rint_rest``, ``exponent`` and ``significand`` are one
    instruction each. ``has_special``: so are ``exp2`` within 2 ULP and ``reciprocal_flushed``.
    """

    has_fma: bool = True
    has_scalef: bool = False
    has_special: bool = False


def c(number: float, like: Value) -> Value:
    """A constant of the type of ``like``."""
    return Const(number, like.dtype)


def is_double(x: Value) -> bool:
    """Is it f64 (and not f32)?"""
    return x.dtype is types.f64


def by_type(x: Value, single: float, double: float) -> Value:
    """A constant that depends on the precision."""
    return c(double if is_double(x) else single, x)


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """``c0 + c1*x + c2*x**2 + ...`` by Horner's rule."""
    result = c(coefficients[-1], x)
    for a in reversed(coefficients[:-1]):
        result = Fma(result, x, c(a, x))
    return result


def fma(a: Value, b: Value, d: Value) -> Value:
    """``a * b + d``."""
    return Fma(a, b, d)


def absolute(x: Value) -> Value:
    """``|x|``."""
    return Unary("abs", x)


def rint(x: Value) -> Value:
    """The nearest whole number."""
    return Unary("rint", x)


def rint_rest(x: Value) -> Value:
    """``x - rint(x)``, and 0 for infinities."""
    return Unary("rint_rest", x)


def sqrt(x: Value) -> Value:
    """The square root."""
    return Unary("sqrt", x)


def less(a: Value, b: Value) -> Value:
    """``a < b``; false for NaN."""
    return Binary("lt", a, b)


def equal(a: Value, b: Value) -> Value:
    """``a == b``."""
    return Binary("eq", a, b)


def choose(cond: Value, a: Value, b: Value) -> Value:
    """``a if cond else b``."""
    return Select(cond, a, b)


def clamp(x: Value, low: float, high: float) -> Value:
    """``x`` limited to an interval; NaN stays NaN. A sign is changed behind it, where a multiply-add takes it in."""
    if isinstance(x, Unary) and x.op == "neg":
        return Unary("neg", clamp(x.a, -high, -low))
    return Binary("min", c(high, x), Binary("max", c(low, x), x))


def integer_type(x: Value) -> DType:
    """The signed integers as wide as the float type of ``x``."""
    return types.i64 if is_double(x) else types.i32


def bits(x: Value) -> Value:
    """The bits of a float as a signed integer."""
    return Bitcast(x, integer_type(x))


def floats(i: Value) -> Value:
    """The float with the bits of an integer."""
    return Bitcast(i, types.f64 if i.dtype is types.i64 else types.f32)


def n(number: int, like: Value) -> Value:
    """An integer constant of the type of ``like``."""
    return Const(number, like.dtype)


def integer(op: str, a: Value, b: int) -> Value:
    """An integer operation with a constant."""
    return Binary(op, a, n(b, a))


def sign_bit(x: Value) -> Value:
    """Only the sign of ``x``, as bits."""
    b = bits(x)
    return Binary("and", b, n(b.dtype.min if isinstance(b.dtype.min, int) else 0, b))


def with_sign_of(size: Value, x: Value) -> Value:
    """The non-negative ``size`` with the sign of ``x``."""
    return floats(Binary("or", bits(size), sign_bit(x)))


def flip_sign(x: Value, sign: Value) -> Value:
    """``x`` with its sign changed where ``sign`` (bits from :func:`sign_bit`) is set."""
    return floats(Binary("xor", bits(x), sign))


def convert(x: Value, dtype: DType) -> Value:
    """Another type, the same number."""
    return x if x.dtype is dtype else Cast(x, dtype)


def two_product(a: Value, b: Value, style: Style) -> tuple[Value, Value]:
    """``a * b`` as an exact sum of two floats (barring overflow)."""
    high = a * b
    if style.has_fma:
        return high, Fma(a, b, -high)
    a1, a2 = _halves(a)
    b1, b2 = _halves(b)
    return high, ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """``a + b`` as an exact sum of two floats."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def fast_two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """``a + b`` as an exact sum of two floats, for ``|a| >= |b|``."""
    total = a + b
    return total, b - (total - a)


def _halves(a: Value) -> tuple[Value, Value]:
    """Veltkamp's splitting: two floats of half the precision."""
    scaled = a * by_type(a, *HALVING)
    high = scaled - (scaled - a)
    return high, a - high
