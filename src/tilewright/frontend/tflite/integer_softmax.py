"""Softmax of quantised tensors along the last axis, in fixed point.

In: a call whose operand is codes. Out: nodes. Not its business: the arithmetic of numbers (``fixed_point``).

The exponential of a difference to the greatest code is one of 256 fractions, computed at import. Their sum has 12 bits
before the point; its reciprocal is found for each row by three steps of Newton's method on ``1 / (1 + x)``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import are_known, numbers
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.frontend.tflite.call import Converter, TfliteCall
from tilewright.frontend.tflite.codes import of, result
from tilewright.frontend.tflite.fixed_point import (
    MOST,
    NEWTON_BITS,
    exponential,
    multiplier_of,
    rescaled,
    shifted_down,
)
from tilewright.frontend.tflite.integer_tables import interpolate, sampled
from tilewright.ops.quant import POINT

DIFFERENCE_BITS, SUM_BITS = 5, 12
"""Bits before the point of a difference, and of a sum of exponentials."""
LOWEST = -10.0
"""Exponentials of 16 bits are tabulated from here to 0."""


def _softmax(c: TfliteCall) -> Node:
    if c.x().dtype is types.i16:
        return _of_short(c)
    if c.dtypes[0] not in (types.i8, types.u8):
        raise OpError(f"softmax of {c.x().dtype} with a result of {c.dtypes[0]} is not read")
    exps = exponentials(*scaling(c, float(c.option("Beta")) * float(of(c, 0).scale)))
    axis = len(c.x().shape) - 1
    x = c.cast(c.x(), types.i32)
    place = c.b(ops.sub, c.b(ops.reduce_max, x, axes=(axis,), keepdims=True), x)
    parts = c.b.const(shifted_down(exps, SUM_BITS).astype(np.int32))
    scale, digits = _reciprocal(c, c.b(ops.minimum, summed(c, parts, place), long(c, MOST)))
    exponent = c.b(ops.add, digits, c.b.const(POINT - 8, types.i64))
    product = times(c, scale, c.cast(c.b(ops.gather, c.b.const(exps.astype(np.int32)), place, axis=0), types.i64))
    # No product is negative, so that halves go up.
    half = c.b(ops.shift_right, c.b(ops.shift_left, long(c, 1), exponent), long(c, 1))
    y = c.b(ops.add, c.b(ops.shift_right, c.b(ops.add, product, half), exponent), long(c, int(c.dtypes[0].min)))
    return c.cast(c.b(ops.minimum, y, long(c, int(c.dtypes[0].max))), c.dtypes[0])


def scaling(c: TfliteCall, scale: float) -> tuple[float, int]:
    """By what a difference of codes is multiplied to be one in fixed point, and the largest that is one there."""
    factor = min(scale * 2.0 ** (POINT - DIFFERENCE_BITS), float(MOST))
    if not factor > 1:
        raise OpError("the operand's scale is too small for softmax")
    left = multiplier_of(factor)[1]
    return factor, int(np.floor(((1 << DIFFERENCE_BITS) - 1) * (1 << (POINT - DIFFERENCE_BITS)) / (1 << left)))


def exponentials(factor: float, reach: int) -> Array:
    """The exponential of each difference of two codes, the first being 1; 0 where the difference is out of reach."""
    below = np.arange(256, dtype=np.int64)
    found = exponential(rescaled(-np.minimum(below, reach), factor), DIFFERENCE_BITS)
    return np.where(below <= reach, found, 0)


def summed(c: TfliteCall, parts: Node, place: Node) -> Node:
    """The sum along the last axis of the numbers that stand at places of a table, in i64.

    Sums of 32 bits are faster, and hold that of a short row.
    """
    axis, found = len(place.shape) - 1, c.b(ops.gather, parts, place, axis=0)
    if not is_short(place):
        found = c.cast(found, types.i64)
    return c.cast(c.b(ops.reduce_sum, found, axes=(axis,), keepdims=True), types.i64)


def is_short(x: Node) -> bool:
    """Is the sum of a row's exponentials, none of which is more than 1, sure to be below ``2**SUM_BITS``?"""
    row = x.shape[-1:]
    return are_known(row) and numbers(row)[0] < 1 << SUM_BITS


def long(c: TfliteCall, n: int) -> Node:
    """A whole number of 64 bits."""
    return c.b.const(n, types.i64)


def times(c: TfliteCall, a: Node, b: Node) -> Node:
    """The product of two fractions, halves up."""
    return c.b(ops.shift_right, c.b(ops.add, c.b(ops.mul, a, b), long(c, 1 << (POINT - 1))), long(c, POINT))


def zeros_before(c: TfliteCall, x: Node) -> Node:
    """Bits of 32 above the first that is set in positive numbers along a last axis of one element."""
    powers = c.b.const(np.left_shift(1, np.arange(32), dtype=np.int64))
    reached = c.cast(c.b(ops.ge, x, powers), types.i64)
    return c.b(ops.sub, long(c, 32), c.b(ops.reduce_sum, reached, axes=(len(x.shape) - 1,), keepdims=True))


def _reciprocal(c: TfliteCall, total: Node) -> tuple[Node, Node]:
    """A fraction and the bits by which the reciprocal of a sum of at least 1 is smaller."""
    zeros = zeros_before(c, total)
    part = c.b(ops.sub, c.b(ops.shift_left, total, zeros), long(c, 1 << POINT))
    found = inverse_of_one_more(c, part)
    return found, c.b(ops.sub, long(c, SUM_BITS), zeros)


def inverse_of_one_more(c: TfliteCall, part: Node) -> Node:
    """``1 / (1 + x)`` of a fraction, by Newton's method."""
    whole = c.b(ops.add, part, long(c, MOST))
    half = c.b(ops.shift_right, c.b(ops.add, whole, long(c, 1)), long(c, 1))
    one = 1 << (POINT - NEWTON_BITS)
    first, slope = round(48 / 17 * one), round(-32 / 17 * one)
    x = c.b(ops.add, long(c, first), times(c, half, long(c, slope)))
    for _ in range(3):
        rest = c.b(ops.sub, long(c, one), times(c, half, x))
        x = c.b(ops.add, x, c.b(ops.mul, times(c, x, rest), long(c, 1 << NEWTON_BITS)))
    return c.b(ops.minimum, c.b(ops.mul, x, long(c, 2)), long(c, MOST))


# --- 16 bits --------------------------------------------------------------------------------------------------------


def _of_short(c: TfliteCall) -> Node:
    """By two tables of 513 numbers: exponentials, and ``1 / (1 + x)``."""
    q, made = of(c, 0), result(c)
    if c.dtypes[0] is not types.i16 or q.zero or made.zero:
        raise OpError("softmax of 16 bits gives 16 bits, and has zero points of 0")
    span, low, high = np.float64(2**16 - 1), -(2**15), 2**15 - 1
    axis, codes = len(c.x().shape) - 1, np.arange(low, high + 1)
    exps = interpolate(sampled(np.exp, -np.float64(LOWEST) / span, high, 2.0 / span, 0), codes)
    inverses = interpolate(sampled(lambda x: 1 / (1 + x), 1 / span, low, 2.0 / span, 0), codes)
    factor = float(np.float64(np.float32(q.scale * np.float32(c.option("Beta")))) / (-LOWEST / 65535.0))
    x = c.cast(c.x(), types.i32)
    below = c.b(ops.sub, c.b(ops.reduce_max, x, axes=(axis,), keepdims=True), x)
    places = np.clip(rescaled(-np.arange(1 << 16, dtype=np.int64), factor) + high, low, high) - low
    parts = c.b(ops.gather, c.b.const(exps[places].astype(np.int32)), below, axis=0)
    total = c.cast(c.b(ops.reduce_sum, parts, axes=(axis,), keepdims=True), types.i64)
    zeros = zeros_before(c, total)
    shifted = c.b(ops.shift_left, total, c.b(ops.sub, zeros, long(c, 1)))
    shifted = c.b(ops.shift_right, c.b(ops.add, shifted, long(c, 1 << 13)), long(c, 14))
    at = c.b(ops.clamp, c.b(ops.sub, shifted, long(c, 1 << 16)), long(c, 0), long(c, (1 << 16) - 1))
    inverse = c.b(ops.gather, c.b.const(inverses.astype(np.int64)), at, axis=0)
    right = c.b(ops.sub, long(c, 31), zeros)
    half = c.b(ops.shift_left, long(c, 1), c.b(ops.sub, right, long(c, 1)))
    product = c.b(ops.add, c.b(ops.mul, c.cast(parts, types.i64), inverse), half)
    y = c.b(ops.shift_right, product, right)
    return c.cast(c.b(ops.clamp, y, long(c, 0), long(c, high)), types.i16)


TABLE: Mapping[str, Converter] = {"SOFTMAX": _softmax}
