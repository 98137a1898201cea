"""Arithmetic, comparisons, pools and reductions of quantised tensors, in whole numbers.

In: calls whose operands are codes. Out: nodes. Not its business: functions of one operand (``integer_tables``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array
from tilewright.frontend.tflite.arithmetic import axes_of
from tilewright.frontend.tflite.call import Converter, TfliteCall, check_size
from tilewright.frontend.tflite.cells import scan
from tilewright.frontend.tflite.codes import centred, coded, nearest, of, rescaled, result
from tilewright.frontend.tflite.fixed_point import multiplier_of, quotient
from tilewright.frontend.tflite.moves import joined, space_to_batch
from tilewright.frontend.tflite.quantisation import Quantisation
from tilewright.frontend.tflite.windows import around, strides_of
from tilewright.ops.quant import POINT

SUM_BITS = {types.i8: 20, types.u8: 20, types.i16: 15}
"""Bits by which operands of a sum are shifted up, so that their scales can be taken in whole numbers."""
SQUARE_BITS, ORDER_BITS, PLACE_BITS = 7, 8, 10
"""The same for differences that are squared, for comparisons, and for places between pixels."""


def _up(c: TfliteCall, x: Node, bits: int) -> Node:
    return c.b(ops.mul, x, c.b.const(1 << bits, x.dtype))


def _of_one_scale(c: TfliteCall, bits: int) -> tuple[Node, Node, np.float64]:
    """Both operands in steps of twice the larger scale over ``2**bits``; and that scale."""
    first, second = of(c, 0).scale, of(c, 1).scale
    twice = np.float64(2 * max(first, second))
    if twice == 0:
        raise OpError("both operands have a scale of 0")
    x, y = (
        rescaled(c, _up(c, centred(c, k), bits), [float(np.float64(s) / twice)]) for k, s in enumerate((first, second))
    )
    return x, y, twice


def _sum(op: OpDef) -> Converter:
    def convert(c: TfliteCall) -> Node:
        quantised, bits = [of(c, 0), of(c, 1), result(c)], SUM_BITS[c.x(0).dtype]
        if c.x(0).dtype is types.i16 and c.option("PotScaleInt16", True) and all(map(_is_power_of_two, quantised)):
            raise OpError("sums of 16 bits by shifts alone are not read", remedy="convert with a newer converter")
        x, y, twice = _of_one_scale(c, bits)
        factor = twice / (np.float64(1 << bits) * np.float64(result(c).scale))
        return coded(c, rescaled(c, c.b(op, x, y), [float(factor)]))

    return convert


def _is_power_of_two(q: Quantisation) -> bool:
    return bool(np.frexp(q.scale)[0] == 0.5)


def _product(c: TfliteCall) -> Node:
    factor = of(c, 0).scale * of(c, 1).scale / result(c).scale
    return coded(c, rescaled(c, c.b(ops.mul, centred(c, 0), centred(c, 1)), [float(factor)]))


def _quotient_of_codes(c: TfliteCall) -> Node:
    """A table of all pairs of codes. What is divided by 0, LiteRT leaves open: here the greatest code, or the least."""
    dtype = c.dtypes[0]
    if dtype not in (types.i8, types.u8) or {c.x(0).dtype, c.x(1).dtype} != {dtype}:
        raise OpError("quotients of codes are of 8 bits", remedy="keep this operator in floats")
    least = int(dtype.min)
    codes = np.arange(least, least + 256, dtype=np.int64)
    x, y = np.meshgrid(codes - of(c, 0).zero, codes - of(c, 1).zero, indexing="ij")
    real = float(np.float64(of(c, 0).scale) / (np.float64(of(c, 1).scale) * np.float64(result(c).scale)))
    if not np.isfinite(real):
        raise OpError("a scale of 0 divides")
    steps = np.where(y == 0, np.sign(x) * 256, quotient(x, np.where(y == 0, 1, y), real))
    table = np.clip(steps + result(c).zero, *result(c).limits(c.activation, dtype)).astype(dtype.numpy)
    row, column = (c.b(ops.sub, c.cast(c.x(k), types.i32), c.b.const(least, types.i32)) for k in range(2))
    place = c.b(ops.add, c.b(ops.mul, row, c.b.const(256, types.i32)), column)
    return c.b(ops.gather, c.b.const(table.reshape(-1)), place, axis=0)


def _squared_difference(c: TfliteCall) -> Node:
    if c.x(0).dtype is not types.i8:
        raise OpError("squared differences are of 8 bits")
    x, y, twice = _of_one_scale(c, SQUARE_BITS)
    less = c.b(ops.sub, x, y)
    factor = twice * twice / (np.float64(1 << 2 * SQUARE_BITS) * np.float64(result(c).scale))
    return coded(c, rescaled(c, c.b(ops.mul, less, less), [float(factor)]), _whole(c))


def _whole(c: TfliteCall) -> tuple[int, int]:
    return result(c).limits("NONE", c.dtypes[0])


def _compared(op: OpDef) -> Converter:
    def convert(c: TfliteCall) -> Node:
        if c.x(0).dtype is types.i16 and op not in (ops.eq, ops.ne):
            return c.b(op, c.x(0), c.x(1))  # LiteRT orders codes of 16 bits whatever their scales are
        x, y = (rescaled(c, _up(c, centred(c, k), ORDER_BITS), [float(of(c, k).scale)]) for k in range(2))
        return c.b(op, x, y)

    return convert


def _have_one_scale(quantised: Sequence[Quantisation]) -> bool:
    """And one zero point?"""
    return len({(float(q.scale), q.zero) for q in quantised}) == 1


def _larger(op: OpDef) -> Converter:
    """Of codes as they are: both operands and the result have one scale."""

    def convert(c: TfliteCall) -> Node:
        if not _have_one_scale([of(c, 0), of(c, 1), result(c)]):
            raise OpError("operands and result of a minimum or maximum must have one scale and zero point")
        return c.b(op, c.x(0), c.x(1))

    return convert


def _prelu(c: TfliteCall) -> Node:
    x = centred(c, 0)
    one = of(c, 0).scale / result(c).scale
    slope = of(c, 0).scale * of(c, 1).scale / result(c).scale
    below = rescaled(c, c.b(ops.mul, x, centred(c, 1)), [float(slope)])
    positive = c.b(ops.ge, x, c.b.const(0, types.i32))
    return coded(c, c.b(ops.where, positive, rescaled(c, x, [float(one)]), below), _whole(c))


# --- windows and reductions -----------------------------------------------------------------------------------------


def _max_pool(c: TfliteCall) -> Node:
    kernel, strides = (c.option("FilterHeight"), c.option("FilterWidth")), strides_of(c)
    pads = around(c, c.size(c.x())[1:3], kernel, strides, (1, 1))
    y = c.b(ops.max_pool, c.x(), kernel=kernel, strides=strides, pads=pads, layout="NHWC")
    low, high = result(c).limits(c.activation, c.dtypes[0])
    if (low, high) == _whole(c):
        return y
    return c.b(ops.clamp, y, c.b.const(low, y.dtype), c.b.const(high, y.dtype))


def _average_pool(c: TfliteCall) -> Node:
    """The mean of the codes in a window, halves away from 0; a window counts what lies inside of the image.

    The sum is a convolution by ones. The quotient is one of floats cut to a whole number, which is exact below 2**24.
    """
    x, kernel, strides = c.x(), (c.option("FilterHeight"), c.option("FilterWidth")), strides_of(c)
    _, height, width, channels = c.size(x)
    if min(kernel) < 1 or prod(kernel) << x.dtype.bits > 1 << 24:
        raise OpError(f"a window of {kernel} is not averaged in whole numbers")
    pads = around(c, (height, width), kernel, strides, (1, 1))
    check_size(max(channels * prod(kernel), height, width))
    ones = c.b.const(np.ones((channels, 1, *kernel), np.int32))
    image = c.cast(c.transposed(x, (0, 3, 1, 2)), types.i32)
    sums = c.b(ops.conv, image, ones, strides=strides, dilations=(1, 1), pads=pads, groups=channels, layout="NCHW")
    sums = c.transposed(sums, (0, 2, 3, 1))
    counts = []
    for size, k, s, (lo, _), out in zip((height, width), kernel, strides, pads, c.size(sums)[1:3], strict=True):
        first = np.arange(out) * s - lo
        counts.append((np.minimum(first + k, size) - np.maximum(first, 0)).astype(np.int32))
    count = (counts[0][:, None] * counts[1])[..., None]
    if count.size and count.min() < 1:
        raise OpError("a window lies outside of the image")
    low, high = result(c).limits(c.activation, c.dtypes[0])
    y = _quotient(c, sums, count)
    return c.cast(c.b(ops.clamp, y, c.b.const(low, types.i32), c.b.const(high, types.i32)), c.dtypes[0])


def _quotient(c: TfliteCall, sums: Node, count: Array) -> Node:
    """Whole numbers below 2**24 over constants, halves away from 0."""
    half = c.b.const((count // 2).astype(np.int32))
    positive = c.b(ops.gt, sums, c.b.const(0, types.i32))
    away = c.b(ops.where, positive, c.b(ops.add, sums, half), c.b(ops.sub, sums, half))
    floats = c.b(ops.div, c.cast(away, types.f32), c.b.const(count.astype(np.float32)))
    return c.cast(c.b(ops.trunc, floats), types.i32)


def _mean(c: TfliteCall) -> Node:
    """The multiplier takes the count of elements in, as far as its 32 bits go."""
    x, axes = centred(c, 0), axes_of(c)
    n = prod([c.size(x)[k] for k in axes])
    if n == 0:
        raise OpError("the mean of no elements has no code")
    multiplier, exponent = multiplier_of(float(np.float64(of(c, 0).scale) / np.float64(result(c).scale)))
    shift = min(n.bit_length() - 1, 32, POINT + exponent)
    total = c.b(ops.reduce_sum, x, axes=axes, keepdims=bool(c.option("KeepDims")))
    over, down = c.b.const((multiplier << shift) // n, types.i32), c.b.const(exponent - shift, types.i32)
    return coded(c, c.b(ops.rescale, total, over, down), _whole(c))


def _total(c: TfliteCall) -> Node:
    """In f32, as LiteRT's default kernel has it: its reference kernel reads signed codes as unsigned ones."""
    x, axes, zero = c.cast(c.x(), types.i32), axes_of(c), result(c).zero
    n = prod([c.size(x)[k] for k in axes])
    sums = c.cast(c.b(ops.reduce_sum, x, axes=axes, keepdims=bool(c.option("KeepDims"))), types.f32)
    scale = np.float32(of(c, 0).scale / result(c).scale)
    bias = np.float32(np.float32(-of(c, 0).zero) * scale * np.float32(n))
    steps = nearest(c, c.b(ops.add, c.b(ops.mul, sums, c.number(float(scale), sums)), c.number(float(bias), sums)))
    low, high = (float(limit - zero) for limit in _whole(c))
    return coded(c, c.cast(c.b(ops.clamp, steps, c.number(low, sums), c.number(high, sums)), types.i32), _whole(c))


def _factors(c: TfliteCall) -> Node:
    """A product one factor after another, each brought back by that root of the result's scale that all of them share.

    Factors come in the order in which they lie in memory, because each product is rounded.
    """
    x, axes = c.cast(centred(c, 0), types.i64), axes_of(c)
    n = prod([c.size(x)[k] for k in axes])
    if n == 0 or c.x().dtype is types.u8:
        raise OpError(f"the product of {n} codes of {c.x().dtype} has no code")
    real = float(np.float64(of(c, 0).scale) / np.power(np.float64(result(c).scale), 1 / n))
    rest = [k for k in range(len(x.shape)) if k not in axes]
    rows = c.shaped(c.transposed(x, (*axes, *rest)), (n, *(c.size(x)[k] for k in rest)))

    def step(c: TfliteCall, row: Node, state: Sequence[Node], _: Sequence[Node]) -> tuple[Node, list[Node]]:
        y = c.cast(rescaled(c, c.b(ops.mul, row, state[0]), [real]), types.i64)
        return y, [y]

    begin, steps = (0,) * len(rest), (1,) * len(rows.shape)
    others = c.b(ops.slice, rows, starts=(1, *begin), stops=c.size(rows), steps=steps)
    total = c.b(ops.gather, rows, c.b.const(0, types.i64), axis=0)
    if n > 1:
        (total,) = scan(c, step, others, [total], [], False)[1]
    y = coded(c, rescaled(c, total, [real]), _whole(c))
    return c.shaped(y, [1 if k in axes else n for k, n in enumerate(c.size(x))]) if c.option("KeepDims") else y


def _bilinear(c: TfliteCall) -> Node:
    """Places between pixels in steps of 2**-10; the weighted sum of four pixels, halves away from 0."""
    sums = types.i64 if c.x().dtype is types.i16 else types.i32
    x, wanted = c.cast(c.x(), sums), c.ints(1)
    for axis, out in enumerate(wanted, 1):
        x = _between_pixels(c, x, axis, out)
    half = 1 << (2 * PLACE_BITS - 1)
    positive = c.b(ops.gt, x, c.b.const(0, sums))
    away = c.b(ops.where, positive, c.b.const(half, sums), c.b.const(-half, sums))
    whole = c.b(ops.div, c.b(ops.add, x, away), c.b.const(1 << 2 * PLACE_BITS, sums))
    return c.cast(whole, c.dtypes[0])


def _between_pixels(c: TfliteCall, x: Node, axis: int, out: int) -> Node:
    """``2**10`` times the pixels at ``out`` places along an axis."""
    n, one = c.size(x)[axis], 1 << PLACE_BITS
    if n < 1 or out < 1:
        raise OpError(f"{n} pixels are not resized to {out}")
    check_size(out)
    step = (one * n + out // 2) // out
    if c.option("AlignCorners") and out > 1:
        step = (one * (n - 1) + (out - 1) // 2) // (out - 1)
    at = np.arange(out, dtype=np.int64)
    place = at * step + (step // 2 - one // 2 if c.option("HalfPixelCenters") else 0)
    below = np.maximum(place // one, 0)
    above = np.minimum((place + one - 1) // one, n - 1)
    part = (place - below * one).astype(x.dtype.numpy).reshape([-1 if k == axis else 1 for k in range(4)])
    first, second = (c.b(ops.gather, x, c.b.const(np.asarray(np.clip(p, 0, n - 1), np.int64)), axis=axis)
                     for p in (below, above))  # fmt: skip
    weighted = (c.b(ops.mul, first, c.b.const(one - part)), c.b(ops.mul, second, c.b.const(part)))
    return c.b(ops.add, *weighted)


def _pad(c: TfliteCall) -> Node:
    """Around with what stands for 0, or with the code that is given."""
    pads = tuple((int(lo), int(hi)) for lo, hi in c.known(1).reshape(-1, 2))
    value = c.opt(2)
    outside = c.b.const(result(c).zero, c.x().dtype) if value is None else c.shaped(value, ())
    return c.b(ops.pad, c.x(), outside, pads=pads, mode="constant")


def _joined(c: TfliteCall) -> Node:
    """Codes of one scale; those of other scales would have to be computed anew."""
    if not _have_one_scale([*(of(c, k) for k in range(len(c.inputs))), result(c)]):
        raise OpError("tensors of several scales are not joined", remedy="quantise with a newer converter")
    return joined(c)


def _blocks(c: TfliteCall) -> Node:
    return space_to_batch(c, result(c).zero)


TABLE: Mapping[str, Converter] = {
    "ADD": _sum(ops.add), "SUB": _sum(ops.sub), "MUL": _product, "DIV": _quotient_of_codes,
    "SQUARED_DIFFERENCE": _squared_difference,
    "EQUAL": _compared(ops.eq), "NOT_EQUAL": _compared(ops.ne), "LESS": _compared(ops.lt),
    "LESS_EQUAL": _compared(ops.le), "GREATER": _compared(ops.gt), "GREATER_EQUAL": _compared(ops.ge),
    "MINIMUM": _larger(ops.minimum), "MAXIMUM": _larger(ops.maximum), "PRELU": _prelu, "MAX_POOL_2D": _max_pool,
    "AVERAGE_POOL_2D": _average_pool, "MEAN": _mean, "SUM": _total, "REDUCE_PROD": _factors,
    "RESIZE_BILINEAR": _bilinear, "PAD": _pad, "PADV2": _pad, "CONCATENATION": _joined, "SPACE_TO_BATCH_ND": _blocks,
}  # fmt: skip
