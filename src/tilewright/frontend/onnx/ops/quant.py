"""Converters of ONNX quantisation ops.

In: a ``Call``. Out: nodes of the graph IR. Not its business: integer products (``onnx.ops.contract``).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import WHOLE, DType, f32, i32, u8
from tilewright.frontend.onnx.call import Call, Results, Table
from tilewright.frontend.onnx.ops.contract import add_channels, centred, conv, matmul
from tilewright.ops.narrow import computed

QUANTIZED = ("i8", "u8", "i16", "u16")


def _parameter(c: Call, p: Node) -> Node:
    """A scale or zero point: 0-d when it is one number for the whole tensor."""
    return c.reshape(p, ()) if p.shape == (1,) else p


def dequantized(c: Call, x: Node, scale: Node, zero: Node | None, axis: int = 0) -> Node:
    """``(x - zero) * scale``, with one scale for all or one for each place along ``axis``."""
    scale = _parameter(c, scale)
    wide = c.cast(x, computed(x.dtype) if x.dtype.is_narrow else x.dtype)
    point = c.cast(_parameter(c, zero), wide.dtype) if zero is not None else c.full(0, wide.dtype, scale.shape)
    return c(ops.dequantize_linear, wide, scale, point, axis=axis)


def quantized(c: Call, x: Node, scale: Node, zero: Node | None, default: DType = u8) -> Node:
    """``x / scale`` rounded, plus ``zero``, clamped to its dtype or, without it, to ``default``; one scale for all."""
    dtype = zero.dtype if zero is not None else default
    point = c.reshape(zero, ()) if zero is not None else c.const(0, dtype)
    return c(ops.quantize_linear, x, c.reshape(scale, ()), point, axis=0, dtype=dtype)


def _blocks(c: Call, x: Node, axis: int, scale: Node) -> dict[str, int]:
    block = c.int_("block_size", 0)
    if not block or not scale.shape:
        return {}
    if block < 0 or len(scale.shape) != len(x.shape):
        c.refuse(f"block_size={block} needs a scale of the operand's rank")
    return {"block_size": block}


def _axis_of(c: Call, x: Node, scale: Node) -> int:
    axis = c.int_("axis", 1)
    return c.axis(axis, len(x.shape)) if scale.shape and x.shape else 0


def quantize_linear(c: Call) -> Node:
    """QuantizeLinear in all forms."""
    c.ignore("precision")
    saturate = c.flag("saturate", True)
    x, scale, zero = c.x(0), _parameter(c, c.x(1)), c.opt(2)
    default = zero.dtype if zero is not None else u8
    dtype = default if c.int_("output_dtype", 0) == 0 else c.dtype("output_dtype")
    if zero is not None and zero.dtype is not dtype:
        c.refuse(f"output_dtype {dtype} differs from the zero point's {zero.dtype}")
    axis = _axis_of(c, x, scale)
    blocks = _blocks(c, x, axis, scale)
    if not x.dtype.is_float:
        x = c.cast(x, f32)
    if x.dtype is not scale.dtype:
        x, scale = c.cast(x, f32), c.cast(scale, f32)
    point = _parameter(c, zero) if zero is not None else None
    if dtype.is_narrow and dtype not in WHOLE:
        y = c(ops.div, x, _repeated(c, scale, x, axis, blocks))
        if point is not None:
            y = c(ops.add, y, _repeated(c, c.cast(point, y.dtype), x, axis, blocks))
        return c.cast(y, dtype, saturate=saturate)
    wide = computed(dtype) if dtype.is_narrow else dtype
    point = c.cast(point, wide) if point is not None else c.full(0, wide, scale.shape)
    y = c(ops.quantize_linear, x, scale, point, axis=axis, dtype=wide, **blocks)
    return y if wide is dtype else c.cast(_clamped(c, y, dtype), dtype)


def _clamped(c: Call, x: Node, dtype: DType) -> Node:
    return c(ops.clamp, x, c.const(int(dtype.min), x.dtype), c.const(int(dtype.max), x.dtype))


def _repeated(c: Call, p: Node, x: Node, axis: int, blocks: dict[str, int]) -> Node:
    """A scale or zero point in a shape that broadcasts with ``x``: blocks spelled out, one axis put in its place."""
    if not blocks:
        return c.align(p, axis, len(x.shape)) if len(p.shape) == 1 else p
    size = blocks["block_size"]
    shape = p.shape
    apart = c.reshape(p, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    spread = c.expand(apart, (*shape[: axis + 1], size, *shape[axis + 1 :]))
    joined = c.reshape(spread, (*shape[:axis], shape[axis] * size, *shape[axis + 1 :]))
    return c.slice_axis(joined, axis, 0, x.shape[axis])


def dequantize_linear(c: Call) -> Node:
    """DequantizeLinear in all forms."""
    x, scale, zero = c.x(0), _parameter(c, c.x(1)), c.opt(2)
    point = _parameter(c, zero) if zero is not None else None
    axis = _axis_of(c, x, scale)
    blocks = _blocks(c, x, axis, scale)
    if x.dtype.is_narrow and x.dtype not in WHOLE:
        y = c.cast(x, scale.dtype)
        if point is not None:
            y = c(ops.sub, y, _repeated(c, c.cast(point, y.dtype), x, axis, blocks))
        y = c(ops.mul, y, _repeated(c, scale, x, axis, blocks))
    else:
        wide = computed(x.dtype) if x.dtype.is_narrow else x.dtype
        point = c.cast(point, wide) if point is not None else c.full(0, wide, scale.shape)
        y = c(ops.dequantize_linear, c.cast(x, wide), scale, point, axis=axis, **blocks)
    return y if c.int_("output_dtype", 0) == 0 else c.cast(y, c.dtype("output_dtype"))


def _dynamic_quantize(c: Call) -> Results:
    return c.results(c(ops.dynamic_quantize_linear, c.x(0)))


def requantized(c: Call, accumulated: Node, scales: Sequence[Node], zero: Node, axis: int) -> Node:
    """``round(accumulated * (a * b / y)) + zero`` clamped to the zero point's dtype."""
    a, b, y = (c.cast(s, f32) for s in scales)
    factor = c(
        ops.div,
        c(ops.mul, _spread(c, a, accumulated, axis - 1), _spread(c, b, accumulated, axis)),
        _spread(c, y, accumulated, axis - 1),
    )
    scaled = c(ops.round, c(ops.mul, c.cast(accumulated, f32), factor))
    shifted = c(ops.add, scaled, c.cast(_spread(c, zero, accumulated, axis - 1), f32))
    return saturated(c, shifted, zero.dtype)


def _spread(c: Call, p: Node, like: Node, axis: int) -> Node:
    if p.shape in ((), (1,)):
        return c.reshape(p, ())
    return c.align(p, axis % len(like.shape), len(like.shape)) if len(p.shape) == 1 else p


def saturated(c: Call, x: Node, dtype: DType) -> Node:
    """``x`` clamped to the range of an integer type and cast to it."""
    if dtype.name not in QUANTIZED:
        c.refuse(f"quantisation to {dtype} is not supported", f"supported: {', '.join(QUANTIZED)}")
    return c.cast(c(ops.clamp, x, c.const(dtype.min, x.dtype), c.const(dtype.max, x.dtype)), dtype)


def _qlinear_matmul(c: Call) -> Node:
    a, b = c.x(0), c.x(3)
    left = centred(c, a, c.x(2), max(len(a.shape) - 2, 0))
    right = centred(c, b, c.x(5), len(b.shape) - 1)
    product = matmul(c, left, right)
    return requantized(c, product, (c.x(1), c.x(4), c.x(6)), c.x(7), len(product.shape) - 1)


def _qlinear_conv(c: Call) -> Node:
    return qlinear_conv(c, c.x(0))


def qlinear_conv(c: Call, x: Node) -> Node:
    """The node's convolution of a channels-first operand; the other operands are the node's."""
    accumulated = conv(c, centred(c, x, c.x(2), 1), centred(c, c.x(3), c.x(5), 0))
    bias = c.opt(8)
    accumulated = add_channels(c, accumulated, c.cast(bias, i32) if bias is not None else None)
    return requantized(c, accumulated, (c.x(1), c.x(4), c.x(6)), c.x(7), 1)


TABLE: Table = {
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": quantize_linear,
}
