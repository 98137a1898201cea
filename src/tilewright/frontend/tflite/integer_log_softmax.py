"""Logarithm of the softmax of quantised rows, in fixed point.

In: a call whose operand is codes of 8 bits. Out: nodes. Not its business: softmax itself (``integer_softmax``).

Every step rounds as gemmlowp's does, here on whole numbers of 64 bits that hold values of 32. A sum of exponentials has
12 bits before the point, its logarithm 5. ``log(z)`` is ``log(2)`` times an exponent, in quarters, and a ratio of
polynomials of what is left, which lies around ``2**-0.25``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.frontend.tflite.call import Converter, TfliteCall
from tilewright.frontend.tflite.codes import of, rescaled, result
from tilewright.frontend.tflite.fixed_point import MOST, multiplier_of, shifted_down, steps_of
from tilewright.frontend.tflite.fixed_point import rescaled as rescaled_numbers
from tilewright.frontend.tflite.integer_softmax import (
    DIFFERENCE_BITS,
    SUM_BITS,
    exponentials,
    inverse_of_one_more,
    is_short,
    long,
    scaling,
    summed,
    times,
    zeros_before,
)
from tilewright.ops.quant import POINT

RESULT_BITS, LOG_BITS = 4, 6
"""Bits before the point of a result, whose scale is 1/16, and of a logarithm while it is summed."""


def _log_softmax(c: TfliteCall) -> Node:
    made, dtype = result(c), c.dtypes[0]
    zero = int(dtype.max)
    if c.x().dtype is not dtype or dtype is types.i16 or (float(made.scale), made.zero) != (1 / 16, zero):
        raise OpError(f"the logarithm of softmax has codes of 8 bits, its result a scale of 1/16 and {zero} as 0")
    factor, reach = scaling(c, float(of(c, 0).scale))
    axis = len(c.x().shape) - 1
    x = c.cast(c.x(), types.i32)
    most = c.b(ops.reduce_max, x, axes=(axis,), keepdims=True)
    below = c.b(ops.sub, most, x)
    total = summed(c, c.b.const(shifted_down(exponentials(factor, reach), SUM_BITS).astype(np.int32)), below)
    log = _log(c, c.b(ops.minimum, total, long(c, MOST)))
    # What lies further below than a result can tell is its least code.
    lowest = c.cast(c.b(ops.sub, log, long(c, 1 << POINT)), types.i32)
    reverse = 2.0 ** (POINT - multiplier_of(factor)[1]) / multiplier_of(factor)[0]
    least = c.b(ops.maximum, rescaled(c, lowest, [reverse]), c.b.const(-reach - 1, types.i32))
    differences = rescaled_numbers(-np.minimum(np.arange(256, dtype=np.int64), reach), factor)
    y = c.b(ops.sub, c.b(ops.gather, c.b.const(differences), below, axis=0), log)
    y = c.b(ops.add, _halved(c, y, POINT - DIFFERENCE_BITS - RESULT_BITS), long(c, zero))
    low = long(c, int(dtype.min))
    y = c.b(ops.where, c.b(ops.gt, c.b(ops.neg, below), least), c.b(ops.clamp, y, low, long(c, zero)), low)
    if not is_short(x):
        y = c.b(ops.where, c.b(ops.gt, total, long(c, MOST)), _of_floats(c, x, most), y)
    return c.cast(y, dtype)


def _of_floats(c: TfliteCall, x: Node, most: Node) -> Node:
    """As LiteRT's default kernel has it: sums that leave 32 bits are wrong in its reference kernel."""
    scale, axis = of(c, 0).scale, len(x.shape) - 1
    table = np.exp(-scale * np.arange(256, dtype=np.float32))
    parts = c.b(ops.gather, c.b.const(table), c.b(ops.sub, most, x), axis=0)
    log = c.b(ops.log, c.b(ops.reduce_sum, parts, axes=(axis,), keepdims=True))
    x, most = c.cast(x, types.f32), c.cast(most, types.f32)
    less = c.b(ops.add, c.b(ops.mul, most, c.number(float(scale), x)), log)
    low, high, unit = int(c.dtypes[0].min), int(c.dtypes[0].max), 1 / float(result(c).scale)
    steps = (c.b(ops.mul, x, c.number(unit * float(scale), x)), c.b(ops.mul, less, c.number(unit, x)))
    whole = c.cast(c.b(ops.round, c.b(ops.sub, *steps)), types.i64)
    return c.b(ops.clamp, c.b(ops.add, whole, long(c, high)), long(c, low), long(c, high))


def _halved(c: TfliteCall, x: Node, by: int) -> Node:
    """``x / 2**by``, halves away from 0."""
    is_negative = c.cast(c.b(ops.lt, x, long(c, 0)), types.i64)
    return c.b(ops.shift_right, c.b(ops.sub, c.b(ops.add, x, long(c, 1 << (by - 1))), is_negative), long(c, by))


def _cut(c: TfliteCall, x: Node) -> Node:
    return c.b(ops.clamp, x, long(c, -(1 << POINT)), long(c, MOST))


def _log(c: TfliteCall, total: Node) -> Node:
    """The logarithm of a sum of at least 1 along a last axis of one element, ``DIFFERENCE_BITS`` before the point."""

    def fraction(real: float) -> Node:
        return long(c, steps_of(real))

    def power(zeros: Node, quarters: int) -> Node:
        """What the sum is more than its fraction, as a power of 2 and a quarter."""
        whole = c.b(ops.shift_left, c.b(ops.sub, long(c, SUM_BITS), zeros), long(c, POINT - LOG_BITS))
        return c.b(ops.add, whole, long(c, quarters << (POINT - LOG_BITS - 2)))

    root, fourth = np.sqrt(0.5), np.sqrt(np.sqrt(2.0))
    zeros = zeros_before(c, total)
    first = times(c, c.b(ops.shift_left, total, c.b(ops.sub, zeros, long(c, 1))), fraction(root))
    first = _cut(c, c.b(ops.shift_left, first, long(c, 1)))
    others = c.b(ops.sub, zeros_before(c, times(c, total, fraction(root))), long(c, 1))
    rest = c.b(ops.minimum, first, _cut(c, c.b(ops.shift_left, total, others)))
    exponent = c.b(ops.maximum, power(zeros, 1), power(others, -1))
    start = fraction(np.sqrt(root))
    p = c.b(ops.shift_right, c.b(ops.add, c.b(ops.add, rest, start), long(c, 1)), long(c, 1))
    q = c.b(ops.mul, c.b(ops.sub, rest, start), long(c, 2))
    square = times(c, q, q)
    above = c.b(ops.add, times(c, q, rest), times(c, times(c, q, square), fraction(11 / 240 * fourth)))
    inner = c.b(ops.add, c.b(ops.add, fraction(2 / fourth - fourth), q), times(c, fraction(fourth / 20), square))
    under = c.b(ops.add, times(c, p, inner), times(c, fraction(fourth / 4), q))
    ratio = times(c, _halved(c, above, LOG_BITS), inverse_of_one_more(c, under))
    made = c.b(ops.add, times(c, exponent, fraction(np.log(2.0))), ratio)
    return _cut(c, c.b(ops.shift_left, made, long(c, LOG_BITS - DIFFERENCE_BITS)))


TABLE: Mapping[str, Converter] = {"LOG_SOFTMAX": _log_softmax}
