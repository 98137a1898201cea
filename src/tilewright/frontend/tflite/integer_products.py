"""Products and convolutions of quantised tensors: whole sums, brought back to codes in fixed point.

In: calls whose operands are codes. Out: nodes. Not its business: codes multiplied with floats (``hybrid``).

Sums are of codes less their zero points, so that places outside of an image add 0, in 32 bits or, for activations of 16
bits, in 64. The pass ``integer-products`` makes products of bytes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import Node
from tilewright.core.types import DType
from tilewright.frontend.tflite import hybrid
from tilewright.frontend.tflite.call import Converter, TfliteCall
from tilewright.frontend.tflite.codes import centred, coded, nearest, of, rescaled, result
from tilewright.frontend.tflite.windows import groups_of, rows_of, strides_of, turned_padding, windows_of

LONG = 4
"""The schema's number for a bias of 64 bits is that of its type INT64."""
_SHORT = 2
"""INT32."""


def _factors(c: TfliteCall, x: int, weights: int, *, in_floats: bool) -> list[float]:
    """Scales of the operands over the result's, one or one for each channel.

    Of one scale for all channels, products that are no convolutions multiply in f32 first.
    """
    step, scales, made = of(c, x).scale, of(c, weights).scales, np.float64(result(c).scale)
    if scales.size == 1 and (in_floats or c.x(x).dtype is types.u8):
        return [float(np.float64(np.float32(step * scales[0])) / made)]
    return [float(np.float64(step) * np.float64(s) / made) for s in scales]


def _accumulator(c: TfliteCall, x: int, bias: int) -> DType:
    """Where codes of 16 bits are summed: the bias says it, else the options, else in 64 bits."""
    if c.x(x).dtype is not types.i16:
        return types.i32
    given = c.opt(bias)
    wide = given.dtype is not types.i32 if given is not None else c.option("QuantizedBiasType", 0) != _SHORT
    return types.i64 if wide else types.i32


def _weights(c: TfliteCall, k: int, perm: tuple[int, ...], axis: int) -> Node:
    """Constant codes less their zero points, turned."""
    q, codes = of(c, k), c.known(k).astype(np.int32)
    q.check_along(axis)
    zeros = q.zeros.reshape([-1 if q.zeros.size > 1 and j == q.axis else 1 for j in range(codes.ndim)])
    return c.b.const(np.ascontiguousarray((codes - zeros).astype(np.int32).transpose(perm)))


def _finished(c: TfliteCall, sums: Node, bias: int, factors: list[float]) -> Node:
    """Sums with channels last, with their bias, as codes."""
    given = c.opt(bias)
    if given is not None:
        sums = c.b(ops.add, sums, c.cast(given, sums.dtype))
    return coded(c, rescaled(c, sums, factors, axis=len(sums.shape) - 1))


def _image(c: TfliteCall, k: int, dtype: DType) -> Node:
    """Operand ``k`` with channels first, less its zero point."""
    return c.cast(centred(c, k, c.transposed(c.x(k), (0, 3, 1, 2))), dtype)


def _convolved(c: TfliteCall, kernel: Node, groups: int) -> Node:
    dtype, found = _accumulator(c, 0, 2), windows_of(c, c.size(kernel)[2:])
    sums = c.b(ops.conv, _image(c, 0, dtype), c.cast(kernel, dtype), groups=groups, layout="NCHW", **found)
    return _finished(c, c.transposed(sums, (0, 2, 3, 1)), 2, _factors(c, 0, 1, in_floats=False))


def _conv_2d(c: TfliteCall) -> Node:
    if c.x().dtype.is_float:
        return hybrid.conv_2d(c)
    kernel = _weights(c, 1, (0, 3, 1, 2), 0)
    return _convolved(c, kernel, groups_of(c, c.size(kernel)[1]))


def _depthwise(c: TfliteCall) -> Node:
    if c.x().dtype.is_float:
        return hybrid.depthwise(c)
    return _convolved(c, _weights(c, 1, (3, 0, 1, 2), 3), c.size(c.x())[3])


def _transpose_conv(c: TfliteCall) -> Node:
    """The first operand is the result's shape."""
    kernel, dtype = _weights(c, 1, (3, 0, 1, 2), 0), _accumulator(c, 2, 3)
    strides = strides_of(c)
    pads, more = turned_padding(c.size(c.x(2))[1:3], c.size(kernel)[2:], strides, c.ints(0)[1:3])
    sums = c.b(
        ops.conv_transpose, _image(c, 2, dtype), c.cast(kernel, dtype), strides=strides, dilations=(1, 1), pads=pads,
        layout="NCHW", output_padding=more,
    )  # fmt: skip
    return _finished(c, c.transposed(sums, (0, 2, 3, 1)), 3, _factors(c, 2, 1, in_floats=False))


def _fully_connected(c: TfliteCall) -> Node:
    if c.x().dtype.is_float:
        return hybrid.fully_connected(c)
    weights, dtype = _weights(c, 1, (1, 0), 0), _accumulator(c, 0, 2)
    depth, n_out = c.size(weights)
    outer = rows_of(c, depth)
    rows = c.cast(centred(c, 0, c.shaped(c.x(), (prod(outer), depth))), dtype)
    sums = c.b(ops.matmul, rows, c.cast(weights, dtype))
    if c.x().dtype is not types.u8:
        return c.shaped(_by_doubles(c, sums), (*outer, n_out))
    return c.shaped(_finished(c, sums, 2, _factors(c, 0, 1, in_floats=True)), (*outer, n_out))


def _by_doubles(c: TfliteCall, sums: Node) -> Node:
    """Sums of signed codes times their factors in f64, halves away from 0, as the reference kernel of layers has it."""
    bias = c.opt(2)
    sums = sums if bias is None else c.b(ops.add, sums, c.cast(bias, sums.dtype))
    factors = np.array(_factors(c, 0, 1, in_floats=False))
    steps = nearest(c, c.b(ops.mul, c.cast(sums, types.f64), c.b.const(factors)))
    return coded(c, c.cast(steps, types.i32))


def _batch_matmul(c: TfliteCall) -> Node:
    dtype = types.i64 if c.x().dtype is types.i16 else types.i32

    def turned(k: int, is_turned: bool) -> Node:
        x, rank = c.x(k), len(c.x(k).shape)
        return c.cast(centred(c, k, c.transposed(x, (*range(rank - 2), rank - 1, rank - 2)) if is_turned else x), dtype)

    sums = c.b(ops.matmul, turned(0, c.option("AdjX", False)), turned(1, c.option("AdjY", False)))
    return coded(c, rescaled(c, sums, _factors(c, 0, 1, in_floats=True)), result(c).limits("NONE", c.dtypes[0]))


TABLE: Mapping[str, Converter] = {
    "CONV_2D": _conv_2d, "DEPTHWISE_CONV_2D": _depthwise, "TRANSPOSE_CONV": _transpose_conv,
    "FULLY_CONNECTED": _fully_connected, "BATCH_MATMUL": _batch_matmul,
}  # fmt: skip
