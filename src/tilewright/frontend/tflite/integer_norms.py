"""Rows of quantised tensors over their lengths, in fixed point, and the inverse root that this takes.

In: a call whose operand is codes; whole numbers as nodes. Out: nodes. Not its business: the same of numbers that are
known at import (``fixed_point``).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.frontend.tflite.call import Converter, TfliteCall
from tilewright.frontend.tflite.codes import centred, of, result
from tilewright.frontend.tflite.fixed_point import MOST, steps_of
from tilewright.frontend.tflite.integer_softmax import long, times, zeros_before
from tilewright.ops.quant import POINT

UNIT_BITS = 7
"""A result's step is ``2**-7``: a row over its length has no number beyond 1."""


def _l2_normalization(c: TfliteCall) -> Node:
    """Codes of 8 bits along the last axis; the result's zero point is the middle of its codes."""
    made, dtype = result(c), c.dtypes[0]
    middle = {types.i8: 0, types.u8: 128}.get(dtype)
    if c.x().dtype is not dtype or middle is None or (made.scale, made.zero) != (np.float32(2.0**-UNIT_BITS), middle):
        raise OpError("a row over its length has codes of 8 bits, of a scale of 1/128 around their middle")
    of(c, 0)
    *outer, depth = c.size(c.x())
    rows = c.shaped(centred(c, 0), (prod(outer), depth))
    wide = c.cast(rows, types.i64)
    root, exponent = inverse_root(c, c.b(ops.reduce_sum, c.b(ops.mul, wide, wide), axes=(1,), keepdims=True))
    if dtype is types.u8:  # whose kernel shifts up before it multiplies, whatever the exponent
        rows = c.b(ops.mul, rows, c.b.const(1 << UNIT_BITS, types.i32))
    else:
        exponent = c.b(ops.add, exponent, long(c, UNIT_BITS))
    factors = [c.cast(c.shaped(y, (prod(outer),)), types.i32) for y in (root, exponent)]
    y = c.b(ops.add, c.b(ops.rescale, rows, *factors, axis=0), c.b.const(middle, types.i32))
    y = c.b(ops.clamp, y, c.b.const(int(dtype.min), types.i32), c.b.const(int(dtype.max), types.i32))
    return c.cast(c.shaped(y, (*outer, depth)), dtype)


def inverse_root(c: TfliteCall, x: Node) -> tuple[Node, Node]:
    """``fixed_point.inverse_root`` of positive numbers of 32 bits along a last axis of one element, in i64."""
    number, is_one = x, c.b(ops.le, x, long(c, 1))
    is_large = c.b(ops.ge, x, long(c, 1 << 29))
    x = c.b(ops.where, is_large, c.b(ops.shift_right, x, long(c, 2)), x)
    pairs = c.b(ops.sub, c.b(ops.shift_right, c.b(ops.sub, zeros_before(c, x), long(c, 1)), long(c, 1)), long(c, 1))
    shift = c.b(ops.sub, c.b(ops.add, long(c, 11), c.cast(is_large, types.i64)), pairs)
    x = c.b(ops.shift_left, x, c.b(ops.mul, pairs, long(c, 2)))
    half = c.b(ops.shift_right, c.b(ops.add, c.b(ops.shift_right, x, long(c, 1)), long(c, 1)), long(c, 1))
    root = c.b(ops.add, c.b(ops.mul, number, long(c, 0)), long(c, 1 << (POINT - 3)))
    for _ in range(5):
        cube = _saturated(c, times(c, times(c, root, root), root), 6)
        root = _saturated(c, c.b(ops.sub, times(c, long(c, 3 << (POINT - 4)), root), times(c, half, cube)), 3)
    found = times(c, root, long(c, steps_of(np.sqrt(0.5))))
    left = c.b(ops.maximum, c.b(ops.neg, shift), long(c, 0))
    found = c.b(ops.shift_left, found, left)
    right = c.b(ops.maximum, shift, long(c, 0))
    return c.b(ops.where, is_one, long(c, MOST), found), c.b(ops.where, is_one, long(c, 0), c.b(ops.neg, right))


def _saturated(c: TfliteCall, x: Node, by: int) -> Node:
    """``x * 2**by``, as far as 32 bits hold it."""
    return c.b(ops.clamp, c.b(ops.mul, x, long(c, 1 << by)), long(c, -(1 << POINT)), long(c, MOST))


TABLE: Mapping[str, Converter] = {"L2_NORMALIZATION": _l2_normalization}
