"""Converters of ONNX Runtime's ops on quantised tensors: what its quantiser writes around integer products.

In: a ``Call`` whose operands come as tensor, scale, zero point. Out: nodes of the graph IR: integer products with one
scaling behind them; what is no product is dequantised, computed in f32 and quantised again, as the definitions say.
Not its business: weights packed by bits (``onnx.microsoft.weights``), LSTMs (``onnx.microsoft.lstm``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import DType, f32, i32
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Converter, Results, Table
from tilewright.frontend.onnx.microsoft.image import channels_first, channels_last
from tilewright.frontend.onnx.ops.contract import centred, matmul
from tilewright.frontend.onnx.ops.norm import from_axis_on, softmax
from tilewright.frontend.onnx.ops.pool import average, window
from tilewright.frontend.onnx.ops.quant import (
    dequantize_linear,
    dequantized,
    qlinear_conv,
    quantize_linear,
    quantized,
    saturated,
)


def _real(c: Call, i: int) -> Node:
    """Operands ``i`` to ``i + 2``, a quantised tensor, its scale and its zero point, as f32."""
    return dequantized(c, c.x(i), c.x(i + 1), c.opt(i + 2))


def _again(c: Call, y: Node, i: int, dtype: DType) -> Node:
    """``y`` quantised by operands ``i``, the scale, and ``i + 1``, the zero point."""
    return quantized(c, y, c.x(i), c.opt(i + 1), dtype)


def _through_f32(f: Callable[[Call, Node], Node]) -> Converter:
    """``quantize(f(dequantize(x)))`` of operands x, its scale and zero point, the result's scale and zero point."""
    return lambda c: _again(c, f(c, _real(c, 0)), 3, c.x(0).dtype)


def _channels_first(f: Callable[[Call, Node], Node]) -> Callable[[Call, Node], Node]:
    """``f`` over a channels-first operand, for nodes that may say ``channels_last``."""

    def convert(c: Call, x: Node) -> Node:
        if not c.flag("channels_last"):
            return f(c, x)
        return channels_last(c, f(c, channels_first(c, x)))

    return convert


def _add(c: Call) -> Node:
    """In steps of the result, ``a * a_scale / y_scale + b * b_scale / y_scale`` and what the zero points add."""
    m = Formula(c)
    dtype, step = c.x(0).dtype, c.reshape(c.x(6), ())
    ratios = [m.div(c.reshape(c.x(i), ()), step) for i in (1, 4)]
    zeros = [0.0 if z is None else c.cast(c.reshape(z, ()), f32) for z in (c.opt(2), c.opt(5), c.opt(7))]
    offset = m.sub(m.node(zeros[2], f32), m.add(m.mul(ratios[0], zeros[0]), m.mul(ratios[1], zeros[1])))
    left, right = (m.mul(c.cast(c.x(i), f32), ratio) for i, ratio in zip((0, 3), ratios, strict=True))
    return saturated(c, c(ops.round, m.add(left, m.add(right, offset))), dtype)


def _mul(c: Call) -> Node:
    m = Formula(c)
    left, right = centred(c, c.x(0), c.opt(2), 0), centred(c, c.x(3), c.opt(5), 0)
    scales = [c.reshape(c.x(i), ()) for i in (1, 4, 6)]
    y = m.mul(c.cast(m.mul(left, right), f32), m.div(m.mul(scales[0], scales[1]), scales[2]))
    zero = c.opt(7)
    y = c(ops.round, y if zero is None else m.add(y, c.cast(c.reshape(zero, ()), f32)))
    return saturated(c, y, c.x(0).dtype)


def _where(c: Call) -> Node:
    y = c(ops.where, c.x(0), _real(c, 1), _real(c, 4))
    return _again(c, y, 7, c.x(1).dtype)


def _concat(c: Call) -> Node:
    parts = [_real(c, i) for i in range(2, len(c.inputs), 3)]
    if not parts:
        c.refuse("joins no tensors")
    y = c(ops.concat, *parts, axis=c.axis(c.int_("axis"), len(parts[0].shape)))
    return _again(c, y, 0, c.x(2).dtype)


def _leaky_relu(c: Call, x: Node) -> Node:
    return c(ops.leaky_relu, x, alpha=c.float_("alpha", 0.01))


def _softmax(c: Call, x: Node) -> Node:
    since_13 = c.int_("opset") >= 13
    axis = c.axis(c.int_("axis", -1 if since_13 else 1), len(x.shape))
    return softmax(c, x, axis) if since_13 else from_axis_on(c, x, axis, softmax)


def _global_average_pool(c: Call, x: Node) -> Node:
    return c(ops.reduce_mean, x, axes=tuple(range(2, len(x.shape))), keepdims=True)


def _average_pool(c: Call, x: Node) -> Node:
    return average(c, x, window(c, x), c.flag("count_include_pad"))


def _reduce_mean(c: Call, x: Node) -> Node:
    axes = c.axes(c.ints("axes", list(range(len(x.shape)))), len(x.shape))
    return c(ops.reduce_mean, x, axes=tuple(axes), keepdims=c.flag("keepdims", True))


# --- products -------------------------------------------------------------------------------------------------------


def _scaled(c: Call, accumulated: Node, scales: Sequence[Node], bias: Node | None = None) -> Node:
    """An integer result times its scales, each one number or one a column, plus ``bias``, in f32."""
    factor = c.reshape(scales[0], ()) if scales[0].shape == (1,) else scales[0]
    for s in scales[1:]:
        factor = c(ops.mul, factor, c.reshape(s, ()) if s.shape == (1,) else s)
    y = c(ops.mul, c.cast(accumulated, f32), factor)
    return y if bias is None else c(ops.add, y, bias)


def _dynamic_matmul(c: Call) -> Node:
    b, scale, zero = c.x(1), c.x(2), c.opt(3)
    quantised, a_scale, a_zero = c.results(c(ops.dynamic_quantize_linear, c.x(0)))
    accumulated = matmul(c, centred(c, quantised, a_zero, 0), centred(c, b, zero, len(b.shape) - 1))
    return _scaled(c, accumulated, (scale, a_scale), c.opt(4))


def _integer_matmul_to_float(c: Call) -> Node:
    a, b = c.x(0), c.x(1)
    left = centred(c, a, c.opt(4), max(len(a.shape) - 2, 0))
    return _scaled(
        c, matmul(c, left, centred(c, b, c.opt(5), len(b.shape) - 1)), (c.x(3), c.x(2)), c.opt(6)
    )  # fmt: skip


def _gemm(c: Call) -> Node:
    """``C`` is quantised by the product of the scales, so it joins the integer sum."""
    a, b = c.x(0), c.x(3)
    left = centred(c, a, c.opt(2), 0)
    right = centred(c, b, c.opt(5), 0 if c.flag("transB") else 1)
    left = c.transpose(left, (1, 0)) if c.flag("transA") else left
    right = c.transpose(right, (1, 0)) if c.flag("transB") else right
    total, bias, alpha = c(ops.matmul, left, right), c.opt(6), c.float_("alpha", 1.0)
    total = total if bias is None else c(ops.add, total, bias)
    y = _scaled(c, total, (c.x(4), c.x(1), c.const(alpha, f32)))
    return y if c.opt(7) is None else _again(c, y, 7, a.dtype)


def _matmul_integer(c: Call) -> Node:
    return matmul(c, c.cast(c.x(0), i32), c.cast(c.x(1), i32))


def _mul_integer(c: Call) -> Node:
    return c(ops.mul, centred(c, c.x(0), c.opt(1), 0), centred(c, c.x(2), c.opt(3), 0))


def _reduce_sum_integer(c: Call) -> Node:
    x = c.cast(c.x(0), i32)
    return c(ops.reduce_sum, x, axes=tuple(c.axes(c.ints("axes"), len(x.shape))), keepdims=c.flag("keepdims", True))


def _conv(c: Call) -> Results:
    return _channels_first(qlinear_conv)(c, c.x(0))


TABLE: Table = {
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulInteger16": _matmul_integer,
    "MatMulIntegerToFloat": _integer_matmul_to_float,
    "MulInteger": _mul_integer,
    "QGemm": _gemm,
    "QLinearAdd": _add,
    "QLinearAveragePool": _through_f32(_channels_first(_average_pool)),
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QLinearGlobalAveragePool": _through_f32(_channels_first(_global_average_pool)),
    "QLinearLeakyRelu": _through_f32(_leaky_relu),
    "QLinearMul": _mul,
    "QLinearReduceMean": _through_f32(_reduce_mean),
    "QLinearSigmoid": _through_f32(lambda c, x: c(ops.sigmoid, x)),
    "QLinearSoftmax": _through_f32(_softmax),
    "QLinearWhere": _where,
    "QuantizeLinear": quantize_linear,
    "ReduceSumInteger": _reduce_sum_integer,
}
