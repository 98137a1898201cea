"""sin, cos, tan, asin, acos, atan, atan2.

In: values of f32 or f64. Out: value trees. Not its business: f16 and bf16 (``tile.math`` widens them).

Arguments of sin, cos and tan are reduced modulo pi/2, which is right for every finite number. For f32, where the target
fuses products, ``n`` times pi/2 is subtracted: in three f32 below 2**13 (Cody and Waite, Software manual for the
elementary functions, 1980), in two f64 below 2**30. Else f64 takes parts of 2/pi (Payne and Hanek, 1983, with exact
products of 24 by 29 bits instead of integers). Vectors without a number so large skip what is for those. For f64, ``n``
times pi/2 in three floats (161 bits) is subtracted in sums of two floats, which holds the stated bounds for
``|x| < 2**45``; beyond, parts of 2/pi as for f32, six of them in each of seven ranges, chosen without a load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from tilewright.core import types
from tilewright.core.compute import Binary, Value
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
    flip_sign,
    fma,
    integer,
    is_double,
    less,
    n,
    polynomial,
    rint,
    sqrt,
    two_product,
    two_sum,
    with_sign_of,
)

_SIN_F32 = (-0.16666664661114838, 0.008332748037517147, -0.00019587840521305324)
_SIN_F64 = (
    -0.16666666666666666,
    0.008333333333330946,
    -0.0001984126983675497,
    2.755731610068303e-06,
    -2.5051131455427946e-08,
    1.591810123027412e-10,
)
_COS_F32 = (0.04166666465830042, -0.0013888302802309161, 2.454789161981386e-05)
_COS_F64 = (
    0.041666666666666664,
    -0.0013888888888887395,
    2.4801587298763433e-05,
    -2.7557317270560326e-07,
    2.0876146024689747e-09,
    -1.1382614868556325e-11,
)
_ASIN_F32 = (
    0.1666666633654049,
    0.07500094761172901,
    0.04459931916287114,
    0.031101727829067168,
    0.017143716819253568,
    0.03370072632136513,
)
_ASIN_F64 = (
    0.16666666666666669,
    0.07499999999998425,
    0.04464285714637338,
    0.030381944137085216,
    0.022372173002005596,
    0.017352391265909227,
    0.013971235301124539,
    0.011478952690257387,
    0.010324318288744113,
    0.00545087818772055,
    0.017419357964884856,
    -0.014881409392818066,
    0.02877844261259304,
)
_ATAN_F32 = (-0.3333333175970025, 0.19999540146206404, -0.14263943907717944, 0.10743605148917443, -0.06451509518644878)
_ATAN_F64 = (
    -0.3333333333333333,
    0.19999999999999804,
    -0.14285714285659729,
    0.11111111105145725,
    -0.09090908753017178,
    0.07692296361048218,
    -0.06666424634599337,
    0.05878926110528101,
    -0.052304330074828924,
    0.0455149623749493,
    -0.034568068014968874,
    0.016282993238924487,
)
_HALF_PI_PARTS = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)

_TWO_OVER_PI = int(
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E006492EEA09D1921CFE1D"
    "EB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980FEF2F118B"
    "5A0A6D1F6D367ECF27CB09B74F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D0856033046FC7B"
    "6BABF0CFBC209AF4361D",
    16,
)
_TWO_OVER_PI_BITS = _TWO_OVER_PI.bit_length()
_HALF_PI_SINGLES = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
"""pi/2 as three f32: what they leave is below 2**-76."""
_NEAR = 2.0**13
"""Below it, f32 tell quadrants apart: 2/pi is good to 2**-24, so that none is missed by more than 2**-11 of one."""
_FEW_TURNS = 2.0 ** (types.i32.bits - 2)
"""Below it, the integer that a quadrant is read from holds all of them."""
_RANGES_F32 = (50, 76, 102)
"""Powers of two at which f32 arguments are divided, so that products stay below 2**51."""
_RANGES_F64 = (45, 185, 325, 465, 605, 745, 885, 1025)
"""The same of f64: below the first, arguments are reduced by pi/2 in three floats, in a range by six parts of 2/pi."""


def _parts_of_two_over_pi(least_exponent: int) -> tuple[float, ...]:
    """2/pi modulo 4 * 2**-least_exponent, as four numbers of at most 29 bits that f64 holds.

    For multiples of ``2**least_exponent`` the product with what is left out is a multiple of 4 quadrants.
    """
    rest = _TWO_OVER_PI
    period = 1 << (_TWO_OVER_PI_BITS + 2 - max(least_exponent, 0))
    rest = (rest + period // 2) % period - period // 2
    parts = []
    for k in range(4):
        unit = (period >> 1) >> (28 + 29 * k) if least_exponent > 0 else 1 << (_TWO_OVER_PI_BITS - 29 * (k + 1))
        part = (2 * rest + unit) // (2 * unit) * unit
        parts.append(part / (1 << _TWO_OVER_PI_BITS))
        rest -= part
    return tuple(parts)


def _parts_for_doubles(least: int) -> tuple[float, ...]:
    """``2**least`` times 2/pi, for multiples of ``2**least / 2**52``, modulo 4: six numbers of 53 bits, largest first.

    Scaled, so that none is too small for f64: the first is at most ``2**53``.
    """
    period = 1 << (_TWO_OVER_PI_BITS + 2 + 52 - least)
    rest = (_TWO_OVER_PI + period // 2) % period - period // 2
    unit = 1 << (_TWO_OVER_PI_BITS - least)
    parts = []
    for _ in range(6):
        parts.append(rest / unit)  # rounded to 53 bits
        above, below = parts[-1].as_integer_ratio()
        rest -= above * unit // below
    return tuple(parts)


def _range_of_f32(number: int) -> tuple[float, ...]:
    """The parts for the arguments that lie behind so many of ``_RANGES_F32``, the digits of an f32 each."""
    return _parts_of_two_over_pi(_RANGES_F32[number - 1] - 23 if number else 0)


def _by_reduction(x: Value, style: Style, function: Callable[[Value, Value], Value]) -> Value:
    """``function(r, q)`` of ``x = q * pi/2 + r``: ``r`` as precise as ``x``, ``q`` in the low bits of an integer."""
    if is_double(x):
        near = less(absolute(x), c(2.0 ** _RANGES_F64[0], x))
        return choose(near, function(*_reduced_double(x, style)), function(*_reduced_far(x, style)))
    anywhere = function(*_reduced_single(x))
    if not style.has_fma:
        return anywhere
    few = choose(less(absolute(x), c(_FEW_TURNS, x)), function(*_reduced_few(x)), anywhere)
    return choose(less(absolute(x), c(_NEAR, x)), function(*_reduced_near(x)), few)


def _reduced_near(x: Value) -> tuple[Value, Value]:
    """For ``|x| < 2**13``: what the first product leaves is a multiple of 2**-24 below 1, so it is exact.

    The second rounds. No such number is nearer than 2**-28 to a multiple of pi/2, where the third is below 2**-36: it
    rounds once more only where the sine is its argument.
    """
    shifted = fma(x, c(2 / math.pi, x), c(ROUNDING[0], x))
    rest = x
    for part in _HALF_PI_SINGLES:
        rest = fma(-(shifted - c(ROUNDING[0], x)), c(part, x), rest)
    return rest, bits(shifted)


def _reduced_few(x: Value) -> tuple[Value, Value]:
    """For ``|x| < 2**30``: what is left after the first product is exact, after the second good to 1e-17."""
    wide = convert(x, types.f64)
    shifted = fma(wide, c(2 / math.pi, wide), c(ROUNDING[1], wide))
    whole = shifted - c(ROUNDING[1], wide)
    rest = fma(-whole, c(_HALF_PI_PARTS[1], wide), fma(-whole, c(_HALF_PI_PARTS[0], wide), wide))
    return convert(rest, x.dtype), convert(bits(shifted), types.i32)


def _reduced_double(x: Value, style: Style) -> tuple[Value, Value]:
    """What is left of ``x`` cancels exactly; only the last sum rounds."""
    shifted = fma(x, c(2 / math.pi, x), c(ROUNDING[1], x))
    whole = choose(
        less(absolute(x), c(1e290, x)), shifted - c(ROUNDING[1], x), x * c(0.0, x)
    )  # products must not overflow
    first, second, third = (c(part, x) for part in _HALF_PI_PARTS)
    high, low = two_product(whole, first, style)
    rest, tail = two_sum(x - high, -low)
    high, low = two_product(whole, second, style)
    rest, more = two_sum(rest, -high)
    return clamp(rest + (tail + (more - fma(whole, third, low))), -0.8, 0.8), bits(shifted)


def _reduced_far(x: Value, style: Style) -> tuple[Value, Value]:
    """Payne and Hanek's reduction with exact products of two floats instead of integers.

    ``x = y * 2**least``, with ``least`` the lowest exponent of its range and ``|y| < 2**140``; ``parts`` are
    2/pi by ``2**least`` without what makes multiples of 4 in the product. What is left of it behind the six parts is
    below ``2**(53 - 6*53)``, and times ``y`` below ``2**-125``. Products and sums are exact but for ``slight``, the
    sum's third float, and the last two lines. No f64 is nearer than 2**-62 quadrants to a multiple of pi/2 (Kahan and
    McDonald's search), so the error is below 2**-62 of what is left, less than the rounding of the result.
    """
    size = absolute(x)
    *ranges, (last, _) = pairwise(_RANGES_F64)
    scale = c(math.ldexp(1.0, -last), x)
    parts = [c(part, x) for part in _parts_for_doubles(last)]
    for least, end in reversed(ranges):
        is_here = less(size, c(math.ldexp(1.0, end), x))
        scale = choose(is_here, c(math.ldexp(1.0, -least), x), scale)
        chosen = [c(part, x) for part in _parts_for_doubles(least)]
        parts = [choose(is_here, a, b) for a, b in zip(chosen, parts, strict=True)]
    y = x * scale
    terms = [_modulo_four(t) for part in parts for t in two_product(y, part, style)]
    total, small, slight = terms[0], c(0.0, x), c(0.0, x)
    for t in terms[1:]:
        total, left = two_sum(total, t)
        small, left = two_sum(small, left)
        slight = slight + left
    total, small = two_sum(total, small)
    whole = rint(total)
    turns, rest = two_sum(total - whole, small)
    rest = rest + slight
    high, low = two_product(turns, c(_HALF_PI_PARTS[0], x), style)
    low = low + fma(turns, c(_HALF_PI_PARTS[1], x), rest * c(_HALF_PI_PARTS[0], x))
    return high + low, bits(whole + c(ROUNDING[1], x))


def _modulo_four(x: Value) -> Value:
    """``x`` less the nearest multiple of 4, exactly."""
    return fma(rint(x * c(0.25, x)), c(-4.0, x), x)


def _reduced_single(x: Value) -> tuple[Value, Value]:
    """``x * 2/pi`` in four exact products; what is left of the first two without whole quadrants cancels exactly."""
    wide = convert(x, types.f64)
    size = absolute(wide)
    ranges = [_range_of_f32(k) for k in range(4)]
    products = []
    for k in range(4):
        part = c(ranges[3][k], wide)
        for number in (2, 1, 0):
            below = c(2.0 ** _RANGES_F32[number], wide)
            part = choose(less(size, below), c(ranges[number][k], wide), part)
        products.append(wide * part)
    magic = c(ROUNDING[1], wide)
    first, second, third, fourth = products
    shifted = [first + magic, second + magic]
    left, right = first - (shifted[0] - magic), second - (shifted[1] - magic)
    shifted.append(((left + right) + third) + magic)
    turns = (((left - (shifted[2] - magic)) + right) + third) + fourth
    quadrant = Binary("add", Binary("add", bits(shifted[0]), bits(shifted[1])), bits(shifted[2]))
    return convert(turns * c(math.pi / 2, wide), x.dtype), convert(quadrant, types.i32)


def _sine(r: Value) -> Value:
    z = r * r
    return fma(r * z, polynomial(z, _SIN_F64 if is_double(r) else _SIN_F32), r)


def _cosine(r: Value) -> Value:
    z = r * r
    tail = z * z * polynomial(z, _COS_F64 if is_double(r) else _COS_F32)
    half = c(0.5, r) * z
    first = c(1.0, r) - half
    return first + (((c(1.0, r) - first) - half) + tail)


def _odd(q: Value) -> Value:
    return equal(integer("and", q, 1), n(1, q))


def _upper_half(q: Value) -> Value:
    """The sign bit where the second bit of ``q`` is set."""
    return integer("shl", integer("and", q, 2), q.dtype.bits - 2)


def sin(x: Value, style: Style) -> Value:
    """f32 and f64 within 2 ULP, for every finite number."""

    def of(r: Value, q: Value) -> Value:
        return flip_sign(choose(_odd(q), _cosine(r), _sine(r)), _upper_half(q))

    result = _by_reduction(x, style, of)
    return choose(equal(x, c(0.0, x)), x, result)


def cos(x: Value, style: Style) -> Value:
    """f32 and f64 within 2 ULP, for every finite number."""

    def of(r: Value, q: Value) -> Value:
        return flip_sign(choose(_odd(q), _sine(r), _cosine(r)), _upper_half(integer("add", q, 1)))

    return _by_reduction(x, style, of)


def tan(x: Value, style: Style) -> Value:
    """f32 and f64 within 4 ULP, for every finite number."""

    def of(r: Value, q: Value) -> Value:
        s, k = _sine(r), _cosine(r)
        odd = _odd(q)
        return choose(odd, -k, s) / choose(odd, s, k)

    result = _by_reduction(x, style, of)
    return choose(equal(x, c(0.0, x)), x, result)


def _asin_core(s: Value, z: Value) -> Value:
    """``asin(s)`` for ``s*s = z <= 1/4``."""
    return fma(s * z, polynomial(z, _ASIN_F64 if is_double(s) else _ASIN_F32), s)


def asin(x: Value, style: Style) -> Value:
    """f32 and f64 within 3 ULP; NaN outside [-1, 1]."""
    size = absolute(x)
    big = less(c(0.5, x), size)
    z = choose(big, (c(1.0, x) - size) * c(0.5, x), size * size)
    s = choose(big, sqrt(z), size)
    core = _asin_core(s, z)
    folded = c(math.pi / 2, x) - (core + core - _half_pi_low(x))
    return with_sign_of(choose(big, folded, core), x)


def acos(x: Value, style: Style) -> Value:
    """f32 and f64 within 3 ULP; NaN outside [-1, 1]."""
    size = absolute(x)
    big = less(c(0.5, x), size)
    z = choose(big, (c(1.0, x) - size) * c(0.5, x), size * size)
    s = choose(big, sqrt(z), size)
    core = _asin_core(s, z)
    double = core + core
    low, half_pi = _half_pi_low(x), c(math.pi / 2, x)
    near_one = choose(less(x, c(0.0, x)), (half_pi - double) + half_pi + (low + low), double)
    signed = with_sign_of(core, x)
    return choose(big, near_one, half_pi - (signed - low))


def _half_pi_low(x: Value) -> Value:
    """What the constant pi/2 lacks."""
    return by_type(x, -4.371139000186241e-08, _HALF_PI_PARTS[1])


def _atan_unit(a: Value, b: Value) -> Value:
    """``atan(a / b)`` for ``0 <= a <= b``, not both 0: above tan(pi/8), pi/4 plus the angle to the diagonal."""
    steep = less(b * c(math.tan(math.pi / 8), b), a)
    t = choose(steep, a - b, a) / choose(steep, a + b, b)
    z = t * t
    core = t * z * polynomial(z, _ATAN_F64 if is_double(t) else _ATAN_F32)
    low = choose(steep, c(0.5, t) * _half_pi_low(t), c(0.0, t))
    return choose(steep, c(math.pi / 4, t), c(0.0, t)) + (t + (core + low))


def atan(x: Value, style: Style) -> Value:
    """f32 and f64 within 3 ULP."""
    size = absolute(x)
    one = c(1.0, x)
    inverted = less(one, size)
    a = choose(inverted, one / size, size)
    angle = _atan_unit(a, one)
    folded = c(math.pi / 2, x) - (angle - _half_pi_low(x))
    return with_sign_of(choose(inverted, folded, angle), x)


def atan2(y: Value, x: Value, style: Style) -> Value:
    """The angle of the point (x, y); f32 and f64 within 4 ULP."""
    a, b = absolute(y), absolute(x)
    steep = less(b, a)
    low, high = choose(steep, b, a), choose(steep, a, b)
    zero, one, infinity = c(0.0, x), c(1.0, x), c(math.inf, x)
    ratio = low / high
    ratio = choose(equal(high, zero), zero, ratio)
    ratio = choose(equal(low, infinity), one, ratio)
    angle = _atan_unit(ratio, one)
    half_pi = c(math.pi / 2, x)
    angle = choose(steep, half_pi - (angle - _half_pi_low(x)), angle)
    behind = half_pi - (angle - _half_pi_low(x)) + half_pi + _half_pi_low(x)
    is_behind = Binary("lt", bits(x), n(0, bits(x)))
    result = with_sign_of(choose(is_behind, behind, angle), y)
    return choose(Binary("ne", a, a), y + x, choose(Binary("ne", b, b), y + x, result))
