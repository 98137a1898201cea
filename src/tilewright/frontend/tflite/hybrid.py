"""Products of floats with quantised weights: rows of floats become codes in every call (TFLite's dynamic range).

In: calls whose first operand is floats and whose weights are codes. Out: nodes on floats.
Not its business: calls that are codes throughout (``integer_products``).

Weights keep their bytes; sums are whole numbers, multiplied by both scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.frontend.tflite.call import TfliteCall
from tilewright.frontend.tflite.codes import nearest
from tilewright.frontend.tflite.quantisation import Quantisation
from tilewright.frontend.tflite.windows import groups_of, rows_of, windows_of

MOST = 127


@dataclass(frozen=True)
class _CodedRows:
    """Codes less their zero points, in i32, and the scale of each row, as broadcasts with them."""

    codes: Node
    scale: Node


def _symmetric(c: TfliteCall, x: Node) -> _CodedRows:
    """Codes from -127 to 127 for the greatest magnitude of a row; a row of zeros has a scale of 1."""
    axes = tuple(range(1, len(x.shape)))
    reach = c.b(ops.reduce_max, c.b(ops.abs, x), axes=axes, keepdims=True)
    none, one, most = c.b(ops.eq, reach, c.number(0, x)), c.number(1, x), c.number(MOST, x)
    reach = c.b(ops.where, none, one, reach)
    codes = nearest(c, c.b(ops.mul, x, c.b(ops.div, most, reach)))
    codes = c.b(ops.clamp, codes, c.number(-MOST, x), most)
    return _CodedRows(c.cast(c.cast(codes, types.i8), types.i32), c.b(ops.where, none, one, c.b(ops.div, reach, most)))


def _asymmetric(c: TfliteCall, x: Node) -> _CodedRows:
    """Codes from -128 to 127 for a row's range with 0, whose code is a whole number."""
    axes, zero, one = tuple(range(1, len(x.shape))), c.number(0, x), c.number(1, x)
    least, most = c.number(-MOST - 1, x), c.number(MOST, x)
    low = c.b(ops.minimum, c.b(ops.reduce_min, x, axes=axes, keepdims=True), zero)
    high = c.b(ops.maximum, c.b(ops.reduce_max, x, axes=axes, keepdims=True), zero)
    none = c.b(ops.eq, low, high)
    step = c.b(ops.div, c.b(ops.where, none, one, c.b(ops.sub, high, low)), c.number(2 * MOST + 1, x))
    below, above = c.b(ops.div, low, step), c.b(ops.div, high, step)
    nearer = c.b(ops.lt, c.b(ops.sub, c.number(MOST + 1, x), below), c.b(ops.add, most, above))
    point = c.b(ops.where, nearer, c.b(ops.sub, least, below), c.b(ops.sub, most, above))
    point = nearest(c, c.b(ops.clamp, point, least, most))
    codes = nearest(c, c.b(ops.add, point, c.b(ops.mul, x, c.b(ops.div, one, step))))
    codes = c.cast(c.b(ops.clamp, codes, least, most), types.i8)
    wide = c.b(ops.sub, c.cast(codes, types.i32), c.cast(point, types.i32))
    return _CodedRows(c.b(ops.where, none, c.b.const(0, types.i32), wide), c.b(ops.where, none, one, step))


def coded_rows(c: TfliteCall, x: Node) -> _CodedRows:
    """Codes of rows ``[n, depth]``, with zero points where the operator's options ask for them."""
    return _asymmetric(c, x) if c.option("AsymmetricQuantizeInputs") else _symmetric(c, x)


def weights_at(c: TfliteCall, k: int) -> Quantisation:
    """How the codes of operand ``k`` are numbers; ``OpError`` for codes that rows of floats are not multiplied with."""
    q = c.quantised[k]
    if q is None or c.x(k).dtype is not types.i8:
        raise OpError(f"floats are not multiplied with codes of {c.x(k).type}", remedy="quantise weights to int8")
    if q.zeros.any():
        raise OpError("codes that are multiplied with floats have a zero point of 0")
    return q


def _weights(c: TfliteCall, axis: int) -> tuple[Quantisation, Array]:
    q = weights_at(c, 1)
    q.check_along(axis)
    return q, c.known(1)


def _finished(c: TfliteCall, y: Node) -> Node:
    bias = c.opt(2)
    return c.activated(y if bias is None else c.b(ops.add, bias, y))


def fully_connected(c: TfliteCall) -> Node:
    """Each row has its own scale, with a zero point where the file asks for one."""
    q, codes = _weights(c, 0)
    n_out, depth = codes.shape
    outer = rows_of(c, depth)
    x = c.shaped(c.x(), (prod(outer), depth))
    rows = coded_rows(c, x)
    weights = c.b.const(np.ascontiguousarray(codes.T.astype(np.int32)))
    sums = c.cast(c.b(ops.matmul, rows.codes, weights), types.f32)
    scale = c.b(ops.mul, rows.scale, c.b.const(np.asarray(q.scales, np.float32)))
    return c.shaped(_finished(c, c.b(ops.mul, sums, scale)), (*outer, n_out))


def conv_2d(c: TfliteCall) -> Node:
    """Each image has its own scale, and a zero point unless all channels of the kernel have one scale."""
    q, codes = _weights(c, 0)
    groups = groups_of(c, codes.shape[3])
    of_one_scale = groups == 1 and bool((q.scales == q.scales[0]).all())
    return _convolved(c, q, codes.transpose(0, 3, 1, 2), groups, of_one_scale)


def depthwise(c: TfliteCall) -> Node:
    """As :func:`conv_2d`, each channel by itself."""
    q, codes = _weights(c, 3)
    return _convolved(c, q, codes.transpose(3, 0, 1, 2), c.size(c.x())[3])


def _convolved(c: TfliteCall, q: Quantisation, kernel: Array, groups: int, is_symmetric: bool = False) -> Node:
    found = windows_of(c, kernel.shape[2:])
    rows = _symmetric(c, c.x()) if is_symmetric else _asymmetric(c, c.x())
    image = c.b(ops.transpose, rows.codes, perm=(0, 3, 1, 2))
    weights = c.b.const(np.ascontiguousarray(kernel.astype(np.int32)))
    sums = c.b(ops.conv, image, weights, groups=groups, layout="NCHW", **found)
    sums = c.cast(c.transposed(sums, (0, 2, 3, 1)), types.f32)
    if is_symmetric:
        return _finished(c, c.b(ops.mul, sums, c.b(ops.mul, rows.scale, c.number(float(q.scales[0]), sums))))
    scales = c.b.const(np.asarray(q.scales, np.float32))
    if c.name == "DEPTHWISE_CONV_2D":  # the two kernels multiply in different orders
        return _finished(c, c.b(ops.mul, sums, c.b(ops.mul, scales, rows.scale)))
    return _finished(c, c.b(ops.mul, c.b(ops.mul, sums, scales), rows.scale))
