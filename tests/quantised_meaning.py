"""What single nodes of quantised ONNX models give, where neither ONNX's reference nor ONNX Runtime is right.

The reference's convolutions of one or three spatial axes and its SAME pads are wrong, and so are its zero points of
rows; ONNX Runtime saturates sums of pairs of bytes on some machines, and lacks signed activations. So whole numbers are
multiplied in i64 here, and convolved in f32, in which all sums that occur are exact.

In: a node and its operands. Out: its results. Not its business: all other nodes (``onnx.reference``, ONNX Runtime).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from frontend.onnx_build import runtime_answers

Array = np.ndarray
Operands = Sequence[Array | None]
OPSET = 21


def element_type(a: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(a.dtype))


def of_one_node(node: onnx.NodeProto, feeds: Mapping[str, Array], opset: int) -> onnx.ModelProto:
    """A model of the node alone."""
    inputs = [helper.make_tensor_value_info(n, element_type(a), a.shape) for n, a in feeds.items()]
    outputs = [helper.make_empty_tensor_value_info(o) for o in node.output]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=10)


def by_runtime(node: onnx.NodeProto, feeds: Mapping[str, Array], opset: int) -> list[Array]:
    return runtime_answers(of_one_node(node, feeds, opset), feeds)


def by_reference(node: onnx.NodeProto, feeds: Mapping[str, Array], opset: int) -> list[Array]:
    return [np.asarray(r) for r in ReferenceEvaluator(of_one_node(node, feeds, opset)).run(None, dict(feeds))]


def along(p: Array | None, rank: int, axis: int) -> Array:
    """A parameter that broadcasts with a tensor: of one number, or of a number for each place of the axis."""
    if p is None:
        return np.zeros(())
    return p.reshape(()) if p.size == 1 else p.reshape([-1 if k == axis % rank else 1 for k in range(rank)])


def centred(x: Array, zero: Array | None, axis: int) -> Array:
    wide = x.astype(np.int64)
    return wide if zero is None else wide - along(zero.astype(np.int64), x.ndim, axis)


def integer_matmul(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    return centred(a, a_zero, -2) @ centred(b, b_zero, -1)


def integer_conv(node: onnx.NodeProto, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None) -> Array:
    feeds = {"x": centred(x, x_zero, 1).astype(np.float32), "w": centred(w, w_zero, 0).astype(np.float32)}
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    conv.attribute.extend(node.attribute)
    return by_runtime(conv, feeds, OPSET)[0].astype(np.int64)


def requantised(total: Array, scales: Operands, zero: Array, axis: int) -> Array:
    """In the order of the definition: rounded half to even, then the zero point, then the type's bounds."""
    a, b, y = (along(s, total.ndim, k) for s, k in zip(scales, (-2, axis, -2), strict=True))
    factor = a.astype(np.float32) * b.astype(np.float32) / y.astype(np.float32)
    limits = np.iinfo(zero.dtype)
    scaled = np.rint(total.astype(np.float32) * factor) + along(zero.astype(np.int64), total.ndim, -2)
    return np.clip(scaled, limits.min, limits.max).astype(zero.dtype)


# --- nodes ----------------------------------------------------------------------------------------------------------


def _matmul_integer(node: onnx.NodeProto, o: Operands) -> Array:
    return integer_matmul(o[0], o[1], o[2], o[3]).astype(np.int32)


def _conv_integer(node: onnx.NodeProto, o: Operands) -> Array:
    return integer_conv(node, o[0], o[1], o[2], o[3]).astype(np.int32)


def _qlinear_matmul(node: onnx.NodeProto, o: Operands) -> Array:
    return requantised(integer_matmul(o[0], o[3], o[2], o[5]), (o[1], o[4], o[6]), o[7], -1)


def _qlinear_conv(node: onnx.NodeProto, o: Operands) -> Array:
    total = integer_conv(node, o[0], o[3], o[2], o[5])
    if o[8] is not None:
        total = total + along(o[8], total.ndim, 1)
    return requantised(total, (o[1], o[4], o[6]), o[7], 1)


def _gemm(node: onnx.NodeProto, o: Operands) -> Array:
    total = integer_matmul(o[0], o[3], o[2], o[5]) + (0 if o[6] is None else o[6])
    return requantised(total, (o[1], o[4], o[7]), o[8], -1)


def _matmul_to_float(node: onnx.NodeProto, o: Operands) -> Array:
    total = integer_matmul(o[0], o[1], o[4], o[5]).astype(np.float32)
    return total * (along(o[2], total.ndim, -2) * along(o[3], total.ndim, -1)).astype(np.float32)


def _dynamic_matmul(node: onnx.NodeProto, o: Operands) -> Array:
    quantise = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    codes, scale, zero = by_reference(quantise, {"x": o[0]}, OPSET)
    return _matmul_to_float(node, (codes, o[1], scale, o[2], zero, o[3]))


MEANING: Mapping[str, Callable[[onnx.NodeProto, Operands], Array]] = {
    "ConvInteger": _conv_integer, "DynamicQuantizeMatMul": _dynamic_matmul, "MatMulInteger": _matmul_integer,
    "MatMulIntegerToFloat": _matmul_to_float, "QGemm": _gemm, "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
}  # fmt: skip
BY_RUNTIME = ("AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")
"""Windows over floats or bytes, of which the reference has errors, too."""


def results(node: onnx.NodeProto, operands: Operands, opset: int) -> list[Array]:
    """What the node gives."""
    if node.op_type in MEANING:
        padded: list[Any] = [*operands, *[None] * (9 - len(operands))]
        return [MEANING[node.op_type](node, padded)]
    feeds = {n: a for n, a in zip(node.input, operands, strict=True) if a is not None}
    if node.domain or (node.op_type in BY_RUNTIME and operands[0].dtype != np.float64):
        return by_runtime(node, feeds, min(opset, 23))
    forms = {"QuantizeLinear": 21, "DequantizeLinear": 21}  # the oldest that the reference has
    return by_reference(node, feeds, max(opset, forms.get(node.op_type, 0)))
