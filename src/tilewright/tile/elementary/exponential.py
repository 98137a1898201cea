"""exp, exp2, expm1, sinh, cosh, tanh, log, log2, log1p, asinh, acosh, atanh, pow.

In: values of f32 or f64. Out: value trees. Not its business: f16 and bf16 (``tile.math`` widens them).

``exp(x) = 2**n * e**r`` with ``n = rint(x / ln 2)`` and ``r`` in two steps, so that ``n * ln2_high`` is exact without a
fused multiply-add. ``log(m * 2**e)`` with ``m`` around 1 is ``e * ln 2 + 2 atanh((m - 1) / (m + 1))``, in f32 a
polynomial in ``m - 1``, which takes a division less. Coefficients are minimax fits (Chebyshev nodes, 200 bits); the
bounds stated are measured by ``tests/codegen/test_math.py``.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Binary, Const, Unary, Value
from tilewright.tile.elementary.build import (
    ROUNDING,
    Style,
    absolute,
    bits,
    by_type,
    c,
    choose,
    clamp,
    convert,
    equal,
    fast_two_sum,
    floats,
    fma,
    integer,
    is_double,
    less,
    n,
    polynomial,
    rint,
    rint_rest,
    sign_bit,
    sqrt,
    two_product,
    two_sum,
    with_sign_of,
)

_EXP_TAIL_F32 = (0.5, 0.16666576989698775, 0.041666554617204574, 0.008363179052722578, 0.0013926183587713494)
_EXP_TAIL_F64 = (
    0.5,
    0.1666666666666667,
    0.04166666666666667,
    0.008333333333326136,
    0.0013888888888883748,
    0.00019841269874820627,
    2.4801587325547743e-05,
    2.7557255400206422e-06,
    2.75572736431103e-07,
    2.5105217004720745e-08,
    2.0914686968086876e-09,
)
_EXP2_F32 = (
    0.6931471880352003,
    0.24022650760645808,
    0.05550357071152507,
    0.009618082519990467,
    0.0013390886332106697,
    0.0001545318282995974,
)
_EXP2_F64 = (
    0.6931471805599453,
    0.24022650695910072,
    0.055504108664821625,
    0.00961812910762848,
    0.0013333558146406436,
    0.00015403530393370715,
    1.5252733841601815e-05,
    1.3215486808727859e-06,
    1.0178057064573359e-07,
    7.054897292691627e-09,
    4.455822025014915e-10,
    2.5729344553786755e-11,
)
_LOG_F32 = (
    0.33333331180030046,
    -0.24999996957950882,
    0.200007157488921,
    -0.16667802319501254,
    0.1424905764569748,
    -0.12425687331451106,
    0.1168541992348674,
    -0.11479733846637635,
    0.06971611471451178,
)
"""Of ``(log(1 + f) - f + f**2 / 2) / f**3`` by ``f``."""
_LOG_F64 = (
    0.666666666666667,
    0.3999999999989938,
    0.28571428626031065,
    0.2222221112572281,
    0.18182889786191042,
    0.15331699633543858,
    0.14616721179861816,
)
_LOG_TAIL_F64 = (
    0.4,
    0.2857142857142937,
    0.2222222222165554,
    0.1818181833547124,
    0.15384594954137945,
    0.13334805149611875,
    0.11706224135460942,
    0.11723306234080849,
)
_TANH_F32 = (
    -0.333333283662796,
    0.1333286166191101,
    -0.05386519804596901,
    0.021066630259156227,
    -0.0062002576887607574,
)
"""Of ``(tanh(x) / x - 1) / x**2`` by ``x**2``."""
_TANH_SMALL = 0.61
_LN2_HIGH, _LN2_LOW = (0.693115234375, 0.6931471803691238), (3.1946184945309415e-05, 1.9082149292705877e-10)
_LOG2_E = math.log2(math.e)
_LOG2_E_LOW = _LOG2_E - float(np.float32(_LOG2_E))
"""What ``log2(e)`` is more than its f32."""


def _rounded(x: Value, factor: float, bias: int) -> tuple[Value, Value]:
    """``n = rint(x * factor)``: a sum that holds ``n + bias`` in its low bits, and ``n``.

    A scale that is made of ``n`` needs a bias; one that is added here takes no operation of its own.
    """
    magic = by_type(x, ROUNDING[0] + bias, ROUNDING[1] + bias)
    shifted = x + magic if factor == 1 else fma(x, c(factor, x), magic)
    return shifted, shifted - magic


def _bias(x: Value) -> int:
    """What the exponent of a scale is more than itself, as its bits hold it."""
    return 1023 if is_double(x) else 127


def _power_of_two(biased: Value) -> Value:
    """``2**n`` for ``n`` and its exponent's bias in the low bits of an integer, where that is a normal number."""
    return floats(integer("shl", biased, 52 if biased.dtype is types.i64 else 23))


def _no_number(x: Value) -> float:
    """The power of two that is rounded to 0, half the least denormal number; so are those below it."""
    return -1075.0 if is_double(x) else -150.0


def _no_factor(x: Value) -> float:
    """The exponent whose two halves, biased, are 0, and so are the factors that :func:`_scaled` makes of them."""
    return -2.0 * _bias(x)


def _none_below(x: Value, least: float, power: Value) -> Value:
    """0 where ``x`` is below ``least``. Rounding a power to 0 takes many CPUs 150 cycles, masking it out none."""
    return choose(less(x, c(least, x)), c(0.0, x), power)


def _scaled(p: Value, shifted: Value, whole: Value, style: Style, shift: int = 0) -> Value:
    """``p * 2**(whole + shift)``, rounded once even when denormal; ``shifted`` holds that exponent and two biases.

    Two factors of half the exponent are normal numbers each.
    """
    if style.has_scalef:
        return p * Unary("pow2i", whole + c(shift, whole) if shift else whole)
    number = bits(shifted)
    first = integer("shr", number, 1)
    return p * _power_of_two(first) * _power_of_two(Binary("sub", number, first))


def _reduced(x: Value, bias: int) -> tuple[Value, Value, Value]:
    """``x = whole * ln 2 + r``: the sum that holds ``whole + bias``, ``whole`` and ``r``."""
    shifted, whole = _rounded(x, _LOG2_E, bias)
    r = fma(whole, by_type(x, -_LN2_HIGH[0], -_LN2_HIGH[1]), x)
    return shifted, whole, fma(whole, by_type(x, -_LN2_LOW[0], -_LN2_LOW[1]), r)


def _exp_minus_one(r: Value) -> Value:
    """``e**r - 1`` for ``|r| <= ln 2 / 2``. ``r * r`` alone would be denormal, and slow, where ``r`` is next to 0."""
    return fma(r, r * polynomial(r, _EXP_TAIL_F64 if is_double(r) else _EXP_TAIL_F32), r)


def exp(x: Value, style: Style, shift: int = 0) -> Value:
    """``e**x * 2**shift``; f32 and f64 within 1.5 ULP, denormal results too; by an instruction of ``exp2`` within 4."""
    if style.has_special:
        return _exp_by_exp2(clamp(x, -105.0, 90.0), shift)
    least, most = (_no_factor(x) - shift) * math.log(2), 711.0 if is_double(x) else 90.0
    limited = Binary("min", c(most, x), x) if style.has_scalef else clamp(x, least, most)
    shifted, whole, r = _reduced(limited, 2 * _bias(x) + shift)
    result = _scaled(_exp_minus_one(r) + c(1.0, r), shifted, whole, style, shift)
    return _none_below(x, (_no_number(x) - shift) * math.log(2), result) if style.has_scalef else result


def exp_plus(x: Value, number: Value, style: Style) -> Value:
    """``e**x + number`` as :func:`exp` and a sum give it, for a ``number`` beside which denormal powers are nothing.

    Then one scale is enough, of half the power, and the sum doubles it.
    """
    if style.has_scalef:
        return exp(x, style) + number
    bias = _bias(x) - 1
    shifted, _, r = _reduced(clamp(x, -bias * math.log(2), 710.0 if is_double(x) else 89.0), bias)
    half = _power_of_two(bits(shifted))
    return fma((_exp_minus_one(r) + c(1.0, r)) * half, c(2.0, x), number)


def _exp_by_exp2(x: Value, shift: int) -> Value:
    """The power of 2 by an instruction, times that of what ``x * log2(e)`` loses when it is rounded."""
    high = x * c(_LOG2_E, x)
    rest = fma(x, c(_LOG2_E_LOW, x), fma(x, c(_LOG2_E, x), Unary("neg", high)))
    power = Unary("exp2", high + c(shift, x) if shift else high)
    return power * fma(rest, c(math.log(2), x), c(1.0, x))


def exp2(x: Value, style: Style) -> Value:
    """``2**x``; f32 and f64 within 1.5 ULP. Where an instruction scales by any power, no ``x`` has to be kept off."""
    if style.has_scalef:
        return _none_below(x, _no_number(x), _exp2_scaled(x))
    x = clamp(x, _no_factor(x), 1025.0 if is_double(x) else 129.0)
    shifted, whole = _rounded(x, 1.0, 2 * _bias(x))
    return _scaled(_exp2_near_zero(x - whole), shifted, whole, style)


def exp2_normal(x: Value, style: Style) -> Value:
    """``2**x`` for ``x`` from -125 to 126 (f64: -1021 to 1022), within 1.5 ULP, and 0 at -127; NaN stays NaN."""
    if style.has_scalef:
        return _exp2_scaled(x)
    shifted, whole = _rounded(x, 1.0, _bias(x))
    return _exp2_near_zero(x - whole) * _power_of_two(bits(shifted))


def exp2_flushed(x: Value, style: Style) -> Value:
    """``2**x`` for ``x`` up to 127 (f64: 1023), within 1.5 ULP; 0 for what would be denormal; NaN stays NaN."""
    bias = _bias(x)
    if style.has_scalef:
        return _none_below(x, 1 - bias, _exp2_scaled(x))
    return exp2_normal(Binary("max", c(-bias, x), x), style)


def _exp2_scaled(x: Value) -> Value:
    """``2**x`` by one rounding: infinities leave no rest, and scale 1 to infinity or 0."""
    return _exp2_near_zero(rint_rest(x)) * Unary("pow2i", rint(x))


def _exp2_near_zero(r: Value) -> Value:
    """``2**r`` for ``|r| <= 1/2``."""
    return fma(polynomial(r, _EXP2_F64 if is_double(r) else _EXP2_F32), r, c(1.0, r))


def expm1(x: Value, style: Style) -> Value:
    """``e**x - 1``; f32 and f64 within 2 ULP."""
    result = _expm1_between(clamp(x, -40.0, 709.9) if is_double(x) else clamp(x, -20.0, 88.9))
    return choose(less(absolute(x), by_type(x, 2.0**-26, 2.0**-55)), x, result)


def _expm1_between(x: Value) -> Value:
    """``e**x - 1`` for ``x`` that overflows nothing; a denormal one loses its last bit."""
    shifted, _, r = _reduced(x, _bias(x) - 1)
    half = _power_of_two(bits(shifted))
    result = fma(half, _exp_minus_one(r), half - c(0.5, x))
    return result + result


def sinh(x: Value, style: Style) -> Value:
    """f32 and f64 within 3 ULP."""
    size = absolute(x)
    t = expm1(size, style)
    small = c(0.5, x) * (t + t / (t + c(1.0, x)))
    e = exp(size, style, shift=-1)
    large = e - c(0.25, x) / e
    return with_sign_of(choose(less(size, c(1.0, x)), small, large), x)


def cosh(x: Value, style: Style) -> Value:
    """f32 and f64 within 2 ULP."""
    e = exp(absolute(x), style, shift=-1)
    return e + c(0.25, x) / e


def tanh(x: Value, style: Style) -> Value:
    """f32 and f64 within 4 ULP."""
    size = absolute(x)
    if style.has_special:
        square = x * x
        small = fma(x * square, polynomial(square, _TANH_F32), x)
        large = fma(c(-2.0, x), _reciprocal(Unary("exp2", size * c(2 * _LOG2_E, x)) + c(1.0, x)), c(1.0, x))
        return choose(less(size, c(_TANH_SMALL, x)), small, with_sign_of(large, x))
    limited = Binary("min", by_type(x, 10.0, 20.0), size)
    t = _expm1_between(limited + limited)
    return with_sign_of(t / (t + c(2.0, x)), x)


def one_plus_tanh(x: Value, style: Style) -> Value:
    """``1 + tanh(x)`` of f32 as ``2 / (1 + exp(-2x))``: within 3 ULP of the exact sum, but 0 below -44."""
    below = exp(c(-2.0, x) * x, style) + c(1.0, x)
    return c(2.0, x) * _reciprocal(below) if style.has_special else c(2.0, x) / below


def _reciprocal(x: Value) -> Value:
    return Unary("reciprocal_flushed", x)


# --- logarithms -----------------------------------------------------------------------------------------------------


def _decomposed(x: Value, style: Style) -> tuple[Value, Value]:
    """``x = m * 2**e`` with ``m`` from sqrt(1/2) to sqrt(2): ``m - 1`` and ``e``; denormals are scaled up first.

    By instructions, ``e`` is infinite for 0 and infinity, where ``m`` is 1, and ``m`` is NaN for what is below 0.
    """
    if style.has_scalef:
        significand, exponent = Unary("significand", x), Unary("exponent", x)
        is_small = less(significand, c(math.sqrt(2), x))
        near = choose(is_small, significand - c(1.0, x), fma(significand, c(0.5, x), c(-1.0, x)))
        return near, choose(is_small, exponent, exponent + c(1.0, x))
    double = is_double(x)
    is_tiny = less(x, by_type(x, 2.0**-126, 2.0**-1022))
    scaled = choose(is_tiny, x * by_type(x, 2.0**25, 2.0**54), x)
    root = 0x3FE6A09E667F3BCD if double else 0x3F3504F3
    i = integer("sub", bits(scaled), root)
    m = floats(integer("add", integer("and", i, (1 << 52) - 1 if double else (1 << 23) - 1), root))
    e = _arithmetic_exponent(i, double)
    return m - c(1.0, x), choose(is_tiny, e - by_type(x, 25.0, 54.0), e)


def _arithmetic_exponent(i: Value, double: bool) -> Value:
    """The upper bits of ``i`` as a float, without a conversion from 64-bit integers (slow before AVX-512)."""
    if not double:
        return convert(integer("shr", i, 23), types.f32)
    positive = integer("shr", integer("add", i, 1 << 62), 52)
    number = floats(integer("or", Binary("and", positive, n(0xFFF, positive)), 0x4330000000000000))
    return number - Const(2.0**52 + 1024.0, types.f64)


def _log_rest(f: Value) -> Value:
    """``f - log(1 + f)``. In f64 a division costs less than the twenty powers that would be needed."""
    if not is_double(f):
        square = f * f
        odd, even = polynomial(square, _LOG_F32[1::2]), polynomial(square, _LOG_F32[::2])
        return square * fma(Unary("neg", f), fma(odd, f, even), c(0.5, f))
    s = f / (f + c(2.0, f))
    z = s * s
    half = c(0.5, f) * f * f
    return fma(Unary("neg", s), fma(polynomial(z, _LOG_F64), z, half), half)


def _guarded_log(x: Value, result: Value, style: Style) -> Value:
    """Put in what a logarithm gives at 0, below 0, at infinity and for NaN, unless its parts have led to it."""
    if style.has_scalef:
        return result
    infinity = c(math.inf, x)
    result = choose(less(x, infinity), result, x)
    result = choose(equal(x, c(0.0, x)), c(-math.inf, x), result)
    return choose(less(x, c(0.0, x)), c(math.nan, x), result)


def log(x: Value, style: Style) -> Value:
    """f32 and f64 within 1 ULP."""
    f, e = _decomposed(x, style)
    low = fma(e, by_type(x, -_LN2_LOW[0], -_LN2_LOW[1]), _log_rest(f))
    return _guarded_log(x, fma(e, by_type(x, *_LN2_HIGH), f - low), style)


def log2(x: Value, style: Style) -> Value:
    """f32 and f64 within 3 ULP."""
    f, e = _decomposed(x, style)
    return _guarded_log(x, fma(f - _log_rest(f), c(_LOG2_E, x), e), style)


def log1p(x: Value, style: Style) -> Value:
    """f32 and f64 within 3 ULP: ``log(u) * x / (u - 1)`` with ``u = 1 + x`` rounded."""
    u = x + c(1.0, x)
    corrected = log(u, style) * (x / (u - c(1.0, x)))
    result = choose(equal(u, c(1.0, x)), x, corrected)
    return choose(equal(x, c(math.inf, x)), x, result)


def asinh(x: Value, style: Style) -> Value:
    """f32 and f64 within 4 ULP."""
    size = absolute(x)
    one = c(1.0, x)
    square = size * size
    near = log1p(size + square / (one + sqrt(square + one)), style)
    far = log(size, style) + c(math.log(2), x)
    return with_sign_of(choose(less(size, by_type(x, 1e9, 1e18)), near, far), x)


def acosh(x: Value, style: Style) -> Value:
    """f32 and f64 within 4 ULP; NaN below 1."""
    t = x - c(1.0, x)
    near = log1p(t + sqrt(t * (t + c(2.0, x))), style)
    far = log(x, style) + c(math.log(2), x)
    result = choose(less(x, by_type(x, 1e9, 1e18)), near, far)
    return choose(less(x, c(1.0, x)), c(math.nan, x), result)


def atanh(x: Value, style: Style) -> Value:
    """f32 and f64 within 4 ULP; infinity at 1 and NaN beyond."""
    size = absolute(x)
    ratio = (size + size) / (c(1.0, x) - size)
    return with_sign_of_or_nan(c(0.5, x) * log1p(ratio, style), size, x)


def with_sign_of_or_nan(size: Value, argument: Value, x: Value) -> Value:
    """``size`` with the sign of ``x``, NaN where ``argument > 1``."""
    return choose(less(c(1.0, x), argument), c(math.nan, x), with_sign_of(size, x))


# --- powers ---------------------------------------------------------------------------------------------------------


def power(x: Value, y: Value, style: Style) -> Value:
    """``x ** y`` as C's pow; f32 within 1 ULP (computed in f64), f64 within 4 ULP."""
    size = absolute(x)
    result = _positive_power(size, y, style)
    return _power_cases(x, y, size, result)


def _positive_power(x: Value, y: Value, style: Style) -> Value:
    if is_double(x):
        high, low = _log2_pair(x, style)
        if not style.has_fma:  # Halves of larger numbers would overflow; powers of all but 1 are at an end long before.
            y = clamp(y, -(2.0**64), 2.0**64)
        product, error = two_product(high, y, style)
        beyond = less(c(1100.0, x), absolute(product))
        error = choose(beyond, c(0.0, x), fma(low, y, error))
        product = clamp(product, -1100.0, 1100.0)
        return _exp2_pair(product, error, style)
    wide_x, wide_y = convert(x, types.f64), convert(y, types.f64)
    return convert(exp2(log2(wide_x, style) * wide_y, style), types.f32)


def _log2_pair(x: Value, style: Style) -> tuple[Value, Value]:
    """``log2(x)`` as a sum of two f64, for finite positive ``x``: ``2 s + 2/3 s**3 + ...`` with leading pairs."""
    f, e = _decomposed(x, style)
    two = c(2.0, x)
    below, below_error = two_sum(f, two)
    s = f / below
    product, error = two_product(s, below, style)
    s_low = ((f - product) - error - s * below_error) / below
    z, z_error = two_product(s, s, style)
    z_error = fma(s * s_low, two, z_error)
    cube, cube_error = two_product(z, s, style)
    cube_error = cube_error + z_error * s + z * s_low
    third_high, third_low = 0.6666666666666666, 3.700743415417188e-17
    main, main_error = two_product(cube, c(third_high, x), style)
    main_error = main_error + fma(cube_error, c(third_high, x), cube * c(third_low, x))
    tail = cube * (z * polynomial(z, _LOG_TAIL_F64))
    total, low = fast_two_sum(s * two, main)
    low = low + (s_low * two + main_error + tail)
    total, low = fast_two_sum(total, low)
    inverse_high, inverse_low = _LOG2_E, 2.0355273740931033e-17
    scaled, scaled_error = two_product(total, c(inverse_high, x), style)
    scaled_error = scaled_error + fma(low, c(inverse_high, x), total * c(inverse_low, x))
    whole, rest = two_sum(e, scaled)
    return fast_two_sum(whole, rest + scaled_error)


def _exp2_pair(high: Value, low: Value, style: Style) -> Value:
    """``2 ** (high + low)`` for f64."""
    shifted, whole = _rounded(high, 1.0, 2 * _bias(high))
    r = (high - whole) + low
    p = fma(polynomial(r, _EXP2_F64), r, c(1.0, r))
    return _scaled(p, shifted, whole, style)


def _power_cases(x: Value, y: Value, size: Value, result: Value) -> Value:
    """Zeros, infinities, NaN and negative bases, as C's annex F has them."""
    zero, one, infinity = c(0.0, x), c(1.0, x), c(math.inf, x)
    whole = Unary("trunc", y)
    is_whole = equal(whole, y)
    half = c(0.5, y) * whole
    is_odd = Binary("and", is_whole, Binary("ne", Unary("trunc", half), half))
    rises = Binary("ne", less(size, one), less(zero, y))
    extreme = choose(rises, infinity, zero)
    at_edge = Binary("or", equal(size, zero), Binary("or", equal(size, infinity), equal(absolute(y), infinity)))
    result = choose(at_edge, extreme, result)
    negative = choose(is_whole, result, choose(at_edge, result, c(math.nan, x)))
    result = choose(less(x, zero), negative, result)
    flipped = floats(Binary("xor", bits(result), sign_bit(x)))
    result = choose(is_odd, flipped, result)
    result = choose(Binary("or", Unary("isnan", x), Unary("isnan", y)), x + y, result)
    minus_one_to_infinity = Binary("and", equal(size, one), equal(absolute(y), infinity))
    is_one = Binary("or", Binary("or", equal(x, one), equal(y, zero)), minus_one_to_infinity)
    return choose(is_one, one, result)


def integer_power(x: Value, y: Value) -> Value:
    """``x ** y`` for integers, wrapping; a negative exponent gives 0 unless the base is 1 or -1."""
    one, zero = n(1, x), n(0, x)
    result, base = one, x
    for k in range(x.dtype.bits):
        is_set = Binary("ne", integer("and", y, 1 << k), zero) if k < x.dtype.bits - x.dtype.is_signed else None
        if is_set is None:
            break
        result = choose(is_set, result * base, result)
        base = base * base
    if not x.dtype.is_signed:
        return result
    minus = n(-1, x)
    unit = choose(equal(x, minus), choose(equal(integer("and", y, 1), one), minus, one), zero)
    return choose(less(y, zero), choose(equal(x, one), one, unit), result)
