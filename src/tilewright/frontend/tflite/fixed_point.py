"""TFLite's arithmetic in fixed point, which defines what a quantised model gives bit by bit.

In: real factors, and whole numbers as arrays. Out: multipliers with shifts, and whole numbers, as LiteRT's reference
kernels (and gemmlowp, whose rounding they use) compute them. Not its business: nodes of a graph (``codes``).

A number in fixed point is an integer ``n`` that stands for ``n / 2**(31 - i)``, ``i`` being the bits before the point;
where ``point`` is given, 31 is that: 15 for numbers of 16 bits.
Source: Jacob et al., 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only
inference", and the kernels of LiteRT.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp

import numpy as np

from tilewright.core.types import Array
from tilewright.ops.quant import POINT

MOST = (1 << POINT) - 1
"""The greatest fraction below 1, which stands for 1 too."""
LEAST_EXPONENT = -POINT
"""Factors below 2**-32 move every bit out: they count as 0."""


SHORT = 15
"""Where the binary point of numbers of 16 bits lies."""


def steps_of(real: float, point: int = POINT) -> int:
    """``real`` to the nearest step of 2**-31, halves away from 0."""
    return int(rounded(np.asarray(real * 2.0**point)))


def multiplier_of(real: float) -> tuple[int, int]:
    """``real`` as a fraction in steps of 2**-31 and an exponent of 2; ``real`` is finite and not negative."""
    if real == 0:
        return 0, 0
    fraction, exponent = frexp(real)
    steps = steps_of(fraction)
    if steps == 1 << POINT:
        steps, exponent = steps // 2, exponent + 1
    return (0, 0) if exponent < LEAST_EXPONENT else (steps, exponent)


def multipliers_of(reals: Sequence[float]) -> tuple[Array, Array]:
    """:func:`multiplier_of` each, as two arrays of i32."""
    pairs = np.array([multiplier_of(float(real)) for real in reals], np.int64)
    return pairs[:, 0].astype(np.int32), pairs[:, 1].astype(np.int32)


def rounded(x: Array) -> Array:
    """To the nearest whole number, halves away from 0."""
    whole: Array = np.trunc(x)
    return np.asarray(whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), 0))


def high_product(a: Array, b: Array | int, point: int = POINT) -> Array:
    """The product of two fractions in steps of 2**-31, halves up."""
    nearest: Array = a * b + (1 << (point - 1))
    return np.asarray(np.minimum(nearest >> point, (1 << point) - 1))


def shifted_down(x: Array, by: int) -> Array:
    """``x / 2**by``, halves away from 0."""
    if by == 0:
        return x
    nearest: Array = x + (1 << (by - 1)) - (x < 0)
    return np.asarray(nearest >> by)


def shifted_up(x: Array, by: int, point: int = POINT) -> Array:
    """``x * 2**by``, as far as 32 bits hold it."""
    return np.asarray(np.clip(x << by, -(1 << point), (1 << point) - 1))


def rescaled(x: Array, real: float) -> Array:
    """``x * real`` of numbers of 32 bits, as the op ``rescale`` has it, which wraps where a shift leaves 32 bits."""
    multiplier, exponent = multiplier_of(real)
    shifted = (x << min(max(exponent, 0), 32)).astype(np.int32).astype(np.int64)
    return shifted_down(high_product(shifted, multiplier), max(-exponent, 0))


def exponential(x: Array, bits: int, point: int = POINT) -> Array:
    """``exp(x)`` of numbers that are not positive, with ``bits`` before the point, as fractions.

    The part above a multiple of 1/4 by a polynomial, the multiple by a product of constants for its bits.
    """

    def times(a: Array, b: Array | int) -> Array:
        return high_product(a, b, point)

    quarter, most = 1 << (point - bits - 2), (1 << point) - 1
    part = (x & (quarter - 1)) - quarter
    y = shifted_up(part, bits, point) + (1 << (point - 3))
    y2 = times(y, y)
    y3, y4 = times(y2, y), times(y2, y2)
    third, eighth = steps_of(1 / 3, point), steps_of(np.exp(-0.125), point)
    rest = shifted_down(times(shifted_down(y4, 2) + y3, third) + y2, 1)
    result = np.minimum(eighth + times(y + rest, eighth), most)
    left = part - x
    for exponent in range(-2, min(bits, 5)):
        factor = steps_of(np.exp(-(2.0**exponent)), point)
        result = np.where(left & (1 << (point - bits + exponent)), times(result, factor), result)
    if bits > 5:  # below -32
        result = np.where(x < -(1 << (point - bits + 5)), 0, result)
    return np.asarray(np.where(x == 0, most, result))


NEWTON_BITS = 2
"""Bits before the point in Newton's method on ``1 / (1 + x)``."""


def inverse_of_one_more(x: Array) -> Array:
    """``1 / (1 + x)`` of fractions of 32 bits."""
    half, one = (x + MOST + 1) >> 1, 1 << (POINT - NEWTON_BITS)
    y = round(48 / 17 * one) + high_product(half, round(-32 / 17 * one))
    for _ in range(3):
        y = y + shifted_up(high_product(y, one - high_product(half, y)), NEWTON_BITS)
    return np.asarray(np.minimum(2 * y, MOST))


def quotient(a: Array, b: Array, real: float) -> Array:
    """``a / b * real`` of whole numbers of few bits, ``b`` not 0, by a reciprocal in fixed point.

    LiteRT shifts by more bits than a number has where ``a`` is 0 or nearly: its result is any number then, ours this.
    """
    a, b = np.where(b < 0, -a, a).astype(np.int64), np.abs(b).astype(np.int64)
    multiplier, exponent = multiplier_of(real)
    n_bits = np.frexp(b.astype(np.float64))[1].astype(np.int64)
    inverse = inverse_of_one_more((b << (POINT + 1 - n_bits)) - (1 << POINT))
    # Of a power of two that is negative one bit more is a sign.
    headroom = POINT - np.frexp(np.where(a < 0, -a - 0.5, a))[1].astype(np.int64)
    first = high_product(high_product(a << headroom, inverse), multiplier)
    down = np.clip(headroom + n_bits - 1 - exponent, 1, 62)
    return np.asarray((first + (np.int64(1) << (down - 1)) - (first < 0)) >> down)


def _twice_inverse(x: Array) -> Array:
    """``2 / (1 + x)`` of fractions of 16 bits, with ``NEWTON_BITS`` before the point."""
    half = (x + (1 << SHORT)) >> 1
    one = 1 << (SHORT - NEWTON_BITS)
    y = steps_of(48 / 17 / 4, SHORT) + high_product(half, steps_of(-32 / 17 / 4, SHORT), SHORT)
    for _ in range(3):
        rest = one - high_product(half, y, SHORT)
        y = y + shifted_up(high_product(y, rest, SHORT), NEWTON_BITS, SHORT)
    return np.asarray(y)


def sigmoid(x: Array, bits: int) -> Array:
    """The sigmoid of numbers of 16 bits with ``bits`` before the point, as fractions."""
    positive = shifted_up(_twice_inverse(exponential(-np.abs(x), bits, SHORT)), 1, SHORT)
    return np.asarray(np.where(x == 0, 1 << (SHORT - 1), np.where(x > 0, positive, (1 << SHORT) - 1 - positive)))


def tanh(x: Array, bits: int) -> Array:
    """The hyperbolic tangent of numbers of 16 bits with ``bits`` before the point, as fractions."""
    inverse = _twice_inverse(exponential(-np.abs(x), bits + 1, SHORT))
    positive = shifted_up(inverse - (1 << (SHORT - NEWTON_BITS)), NEWTON_BITS, SHORT)
    return np.asarray(np.sign(x) * positive)


def inverse_root(x: int) -> tuple[int, int]:
    """``1 / sqrt(x)`` as a multiplier and an exponent, by five steps of Newton's method."""
    if x <= 1:
        return MOST, 0
    shift = 11
    while x >= 1 << 29:
        x, shift = x // 4, shift + 1
    pairs = (POINT - x.bit_length()) // 2 - 1
    x, shift = x << 2 * pairs, shift - pairs
    half = shifted_down(np.asarray(np.int64(x >> 1)), 1)
    root = np.asarray(np.int64(1 << (POINT - 3)))
    for _ in range(5):
        cube = shifted_up(high_product(high_product(root, root), root), 6)
        ahead = high_product(np.asarray(np.int64(3 << (POINT - 4))), root) - high_product(half, cube)
        root = shifted_up(ahead, 3)
    found = int(high_product(root, steps_of(np.sqrt(0.5))))
    return (found << -shift, 0) if shift < 0 else (found, -shift)
