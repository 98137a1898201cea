"""erf, reciprocal square root, and the remainder of floats.

In: values of f32 or f64. Out: value trees. Not its business: f16 and bf16 (``tile.math`` widens them).
"""

from __future__ import annotations

import math
import sys

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Binary, Const, Unary, Value
from tilewright.tile.elementary.build import (
    HALVING,
    Style,
    absolute,
    by_type,
    c,
    choose,
    convert,
    equal,
    fma,
    is_double,
    less,
    polynomial,
    sqrt,
    two_product,
    with_sign_of,
)
from tilewright.tile.elementary.exponential import exp, exp2_normal

# erf(x) / x - 1 in x**2, for |x| <= 1
_ERF_SMALL_F32 = (
    0.1283791658483509,
    -0.37612626666720334,
    0.11283594715160218,
    -0.026854212010626412,
    0.005189087423433974,
    -0.000801686428716587,
    7.875875062685488e-05,
)
_ERF_SMALL_F64 = (
    0.12837916709551256,
    -0.37612638903183754,
    0.1128379167095512,
    -0.02686617064512984,
    0.0052239776254232985,
    -0.000854832702193483,
    0.00012055332902888736,
    -1.4925647567519332e-05,
    1.6462045441468418e-06,
    -1.6364642158167616e-07,
    1.4792401209404813e-08,
    -1.216456005728345e-09,
    8.709045129053106e-11,
    -4.230945824295338e-12,
)
# -log2(erfc(x)) / x, for 0.9 <= x <= 4
_LOG_ERFC_F32 = (
    1.628642226387492,
    0.9149496091300194,
    0.15551131790897146,
    -0.036202173652690996,
    0.006181071655119953,
    -0.0007128206279147437,
    4.871292336626554e-05,
    -1.459784038174465e-06,
)
# log2(erfc(x)) / x, for 0 <= x <= 5: erfc within 5e-8 of 1, and within 5e-4 of itself
_LOG_ERFC_WHOLE_F32 = (
    -1.6279106586583574,
    -0.9183828639544427,
    -0.14865325044118627,
    0.028638920597137577,
    -0.0011920341239005238,
    -0.0012829577879627145,
    0.0004206078100946829,
    -5.7744415926617964e-05,
    3.0756006525331023e-06,
)
# erfc(x) * exp(x**2) in (x - 2) / (x + 2), for 1 <= x <= 6
_ERFC_F64 = (
    0.25539567631050575,
    -0.4271858474139585,
    0.24165819424246585,
    -0.07897858101570611,
    0.0037328924043978336,
    0.006997461736971578,
    -0.00084714325299195,
    -0.0009819769411038642,
    4.355558686575482e-05,
    0.00017435947400205157,
    2.7527175557227246e-05,
    -2.7562209161129353e-05,
    -1.3998283772784976e-05,
    1.3058577122278017e-06,
    4.011749647325067e-06,
    1.272567661840228e-06,
    -1.1352571477273627e-06,
)

_MAX_HALVED = sys.float_info.max / (2 * HALVING[1])
"""What f64 may be taken in halves without an overflow."""


def erf(x: Value, style: Style) -> Value:
    """f32 and f64 within 2 ULP. Beyond 1, f32 is ``1 - 2**-p(x)``, which needs no division."""
    size = absolute(x)
    z = size * size
    near = fma(size, polynomial(z, _ERF_SMALL_F64 if is_double(x) else _ERF_SMALL_F32), size)
    far = c(1.0, x) - (_erfc_f64(size, style) if is_double(x) else _erfc_f32(size, style))
    return with_sign_of(choose(less(size, c(1.0, x)), near, far), x)


def _erfc_f32(size: Value, style: Style) -> Value:
    limited = Binary("min", c(4.0, size), size)
    return exp2_normal(-(limited * polynomial(limited, _LOG_ERFC_F32)), style)


def _erfc_f64(size: Value, style: Style) -> Value:
    limited, two = Binary("min", c(6.0, size), size), c(2.0, size)
    tail = polynomial((limited - two) / (limited + two), _ERFC_F64)
    return exp(-(limited * limited), style) * tail


def one_plus_erf(x: Value, style: Style) -> Value:
    """``1 + erf(x)`` of f32 as ``erfc(-x)``: within 2e-7, and within 4e-4 of itself where it is small.

    The sum needs no digits of an erf near 0, so one form is good for every ``x``: ``2**p(-x)`` for negative ones, or 2
    less that. Beyond 5 the sum is 0 or 2.
    """
    size = absolute(x)
    rest = exp2_normal(size * polynomial(size, _LOG_ERFC_WHOLE_F32), style)
    rest = choose(less(c(5.0, x), size), c(0.0, x), rest)
    return choose(less(x, c(0.0, x)), rest, c(2.0, x) - rest)


def rsqrt(x: Value, style: Style) -> Value:
    """``1 / sqrt(x)``; f32 and f64 within 1.5 ULP."""
    return c(1.0, x) / sqrt(x)


def reciprocal(x: Value, style: Style) -> Value:
    """``1 / x``."""
    return c(1.0, x) / x


def remainder(x: Value, y: Value, style: Style) -> Value:
    """C's fmod. f32: exact. f64: exact while ``|x / y| < 2**200``, NaN beyond.

    A quotient below ``2**22`` (f64: 2**50) takes one step, which rounds nothing; else long division. By a power of two,
    one step is exact whatever the quotient.
    """
    most = 1 / np.finfo(x.dtype.numpy).tiny
    if isinstance(y, Const) and 1 <= abs(y.value) <= most and math.frexp(y.value)[0] in (0.5, -0.5):
        rest = x - Unary("trunc", x * c(1 / abs(y.value), x)) * c(abs(y.value), x)
        return with_sign_of(rest, x)
    r, d = absolute(x), absolute(y)
    limit = c(math.inf if style.has_fma or not is_double(x) else _MAX_HALVED, d)
    within = Binary("and", less(r, d * by_type(d, 2.0**22, 2.0**50)), Binary("and", less(r, limit), less(d, limit)))
    wide = x.dtype if style.has_fma else types.f64
    rest, divisor = (convert(v, wide) for v in (r, d))
    rest = convert(_without_multiples(rest, divisor, is_double(x), style), x.dtype)
    return choose(within, with_sign_of(rest, x), _any_remainder(x, y, style))


def _without_multiples(r: Value, d: Value, in_halves: bool, style: Style) -> Value:
    """``r`` less the whole multiples of ``d`` in it; ``in_halves`` where a product has more digits than ``r`` holds."""
    quotient = Unary("trunc", r / d)
    if in_halves:
        product, error = two_product(quotient, d, style)
        rest = (r - product) - error
    else:
        rest = fma(-quotient, d, r)
    return choose(less(rest, c(0.0, r)), rest + d, rest)


def _any_remainder(x: Value, y: Value, style: Style) -> Value:
    """Long division: each step takes up to 29 (f64: 50) bits off the quotient without an error."""
    wide = is_double(x)
    r, d = (absolute(convert(v, types.f64)) for v in (x, y))
    unscale = c(1.0, r)
    if wide and not style.has_fma:  # keep exact products of halves away from overflow
        huge = less(c(_MAX_HALVED, r), r)
        r, d = choose(huge, r * c(2.0**-200, r), r), choose(huge, d * c(2.0**-200, d), d)
        unscale = choose(huge, c(2.0**200, r), unscale)
    for step in range(3 if wide else 9, -1, -1):
        scaled = d * c(2.0 ** (step * (50 if wide else 29)), d)
        rest = _without_multiples(r, scaled, wide, style)
        r = choose(less(r, scaled), r, rest)
    nan = c(math.nan, r)
    r = choose(less(r, d), choose(less(r, c(0.0, r)), nan, r), nan) * unscale  # lost digits leave any size and sign
    result = with_sign_of(convert(r, x.dtype), x)
    infinity = c(math.inf, x)
    result = choose(Binary("and", less(absolute(x), infinity), equal(absolute(y), infinity)), x, result)
    return choose(Binary("and", less(absolute(x), absolute(y)), less(absolute(y), infinity)), x, result)
