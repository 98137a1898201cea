"""How each op is written in ONNX (opset 21): the counterpart of the importer's converters.

In: a node whose operands are written. Out: ONNX nodes in ``OnnxNodes``; ``OpError`` where this form of an op has no
counterpart. Not its business: ops without an entry, which are written as what they decompose into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Attrs, Node
from tilewright.core.opdef import OpDef
from tilewright.frontend.onnx.writer.nodes import ELEMENT_CODES, OnnxNodes

Writer = Callable[[OnnxNodes, Node], None]


def _plain(name: str, **fixed: Any) -> Writer:
    """An op whose operands and attributes are called alike in ONNX."""

    def write(w: OnnxNodes, node: Node) -> None:
        w.give(node, name, [w.name(x) for x in node.inputs], **fixed, **node.attrs)

    return write


def _reduction(name: str) -> Writer:
    def write(w: OnnxNodes, node: Node) -> None:
        axes = w.dims(node.attrs["axes"])
        no_axes = {} if node.attrs["axes"] else {"noop_with_empty_axes": 1}
        w.give(node, name, [w.name(node.inputs[0]), axes], keepdims=int(node.attrs["keepdims"]), **no_axes)

    return write


def _position(name: str) -> Writer:
    def write(w: OnnxNodes, node: Node) -> None:
        a = node.attrs
        w.give(
            node, name, [w.name(node.inputs[0])], axis=a["axis"], keepdims=int(a["keepdims"]),
            select_last_index=int(a["select_last"]),
        )  # fmt: skip

    return write


# --- element-wise ---------------------------------------------------------------------------------------------------


def _add(w: OnnxNodes, node: Node) -> None:
    """A sum; that of a product or convolution and one number for each channel is its bias."""
    for product, bias in (node.inputs, node.inputs[::-1]):
        if w.takes_bias(product) and (name := _bias_of(w, product, bias)) is not None:
            w.with_bias(node, product, name)
            return
    _plain("Or" if node.dtype is types.bool_ else "Add")(w, node)


def _bias_of(w: OnnxNodes, product: Node, bias: Node) -> str | None:
    """The vector that ``bias`` spreads over the channels of a product or convolution, where it does."""
    axis = 1
    channels = product.shape[axis]
    spread = (channels, *[1] * (product.type.rank - axis - 1))
    if bias.shape not in (spread, (1, *spread)):
        return None
    if bias.shape == (channels,):
        return w.name(bias)
    if bias.op is CONST:
        return w.number(bias.attrs["data"].array.reshape(-1))
    if bias.op is ops.reshape and bias.inputs[0].shape == (channels,):
        return w.name(bias.inputs[0])
    return None


def _mod(w: OnnxNodes, node: Node) -> None:
    if node.dtype.is_float:
        raise OpError("ONNX's Mod of floats has the sign of the dividend")
    _plain("Mod")(w, node)


def _not_equal(w: OnnxNodes, node: Node) -> None:
    w.give(node, "Not", [w.emit("Equal", [w.name(x) for x in node.inputs])])


def _clamp(w: OnnxNodes, node: Node) -> None:
    x, lo, hi = node.inputs
    if lo.type.rank or hi.type.rank:
        w.give(node, "Min", [w.emit("Max", [w.name(x), w.name(lo)]), w.name(hi)])
    else:
        _plain("Clip")(w, node)


def _cast(w: OnnxNodes, node: Node) -> None:
    w.give(node, "Cast", [w.name(node.inputs[0])], to=ELEMENT_CODES[node.dtype.numpy])


def _exp2(w: OnnxNodes, node: Node) -> None:
    w.give(node, "Pow", [w.number(node.dtype.numpy.type(2)), w.name(node.inputs[0])])


def _rsqrt(w: OnnxNodes, node: Node) -> None:
    w.give(node, "Reciprocal", [w.emit("Sqrt", [w.name(node.inputs[0])])])


def _silu(w: OnnxNodes, node: Node) -> None:
    x = w.name(node.inputs[0])
    w.give(node, "Mul", [x, w.emit("Sigmoid", [x])])


def _any(w: OnnxNodes, node: Node) -> None:
    """Whether any holds: is their number not 0? All hold where none does not."""
    x = w.name(node.inputs[0])
    of_all = node.op is ops.reduce_all
    numbers = w.emit("Cast", [w.emit("Not", [x]) if of_all else x], to=ELEMENT_CODES[types.i32.numpy])
    count = w.emit("ReduceSum", [numbers, w.dims(node.attrs["axes"])], keepdims=int(node.attrs["keepdims"]))
    if of_all:
        w.give(node, "Equal", [count, w.number(types.i32.numpy.type(0))])
    else:
        w.give(node, "Cast", [count], to=ELEMENT_CODES[types.bool_.numpy])


# --- products and windows -------------------------------------------------------------------------------------------


def _matmul(w: OnnxNodes, node: Node) -> None:
    a, b = node.inputs
    names = [w.name(a), w.name(b)]
    if node.attrs["out_dtype"] in (None, a.dtype):
        w.give(node, "MatMul", names)
        if a.type.rank == b.type.rank == 2:
            w.may_have_bias(node)
    elif node.dtype is types.i32:
        w.give(node, "MatMulInteger", names)
    else:
        raise OpError(f"ONNX has no product of {a.dtype} with a result of {node.dtype}")


def _flat(pads: Sequence[tuple[Dim, Dim]]) -> list[Dim]:
    """ONNX's order: all that comes before, then all that comes after."""
    return [lo for lo, _ in pads] + [hi for _, hi in pads]


def _window(a: Attrs) -> dict[str, Any]:
    if a["layout"] != "NCHW":
        raise OpError("ONNX's windows have channels first")
    dilations = {"dilations": list(a["dilations"])} if a["dilations"] else {}
    return {"strides": list(a["strides"]), "pads": _flat(a["pads"]), **dilations}


def _conv(w: OnnxNodes, node: Node) -> None:
    x, kernel = node.inputs
    if node.dtype is not x.dtype:
        raise OpError(f"ONNX has no convolution of {x.dtype} with a result of {node.dtype}")
    extra = {"output_padding": list(node.attrs["output_padding"])} if node.op is ops.conv_transpose else {}
    name = "ConvTranspose" if node.op is ops.conv_transpose else "Conv"
    w.give(node, name, [w.name(x), w.name(kernel)], **_window(node.attrs), group=node.attrs["groups"], **extra)
    w.may_have_bias(node)


def _max_pool(w: OnnxNodes, node: Node) -> None:
    w.give(node, "MaxPool", [w.name(node.inputs[0])], kernel_shape=list(node.attrs["kernel"]), **_window(node.attrs))


def _avg_pool(w: OnnxNodes, node: Node) -> None:
    a = node.attrs
    if a["divisor"]:
        raise OpError("ONNX's AveragePool divides by what is in the window")
    if any(a["ceil_pads"]):
        raise OpError("ONNX's AveragePool has no padding at the end that never counts")
    counts = int(a["count_include_pad"])
    x = w.name(node.inputs[0])
    w.give(node, "AveragePool", [x], kernel_shape=list(a["kernel"]), count_include_pad=counts, **_window(a))


# --- moving data ----------------------------------------------------------------------------------------------------


def _shaped(name: str, attr: str) -> Writer:
    """An op whose second operand in ONNX is a vector of sizes."""

    def write(w: OnnxNodes, node: Node) -> None:
        w.give(node, name, [w.name(node.inputs[0]), w.dims(node.attrs[attr])])

    return write


def _reshape(w: OnnxNodes, node: Node) -> None:
    """Sizes as they are; one that must be computed is left to ONNX where it is the only one."""
    shape = node.attrs["shape"]
    computed = [d for d in shape if not isinstance(d, int)]
    if len(computed) == 1 and 0 not in shape:
        shape = [d if isinstance(d, int) else -1 for d in shape]
    w.give(node, "Reshape", [w.name(node.inputs[0]), w.dims(shape)], allowzero=int(0 in shape))


def _expand(w: OnnxNodes, node: Node) -> None:
    w.give(node, "Expand", [w.name(node.inputs[0]), w.dims(node.shape)])


def _blocks(name: str) -> Writer:
    def write(w: OnnxNodes, node: Node) -> None:
        a = node.attrs
        if name == "SpaceToDepth" and a["mode"] != "DCR":
            raise OpError("ONNX's SpaceToDepth is of mode DCR")
        mode = {"mode": a["mode"]} if name == "DepthToSpace" else {}
        w.give(node, name, [w.name(node.inputs[0])], blocksize=a["block"], **mode)

    return write


def _pad(w: OnnxNodes, node: Node) -> None:
    x, value = node.inputs
    w.give(node, "Pad", [w.name(x), w.dims(_flat(node.attrs["pads"])), w.name(value)], mode=node.attrs["mode"])


def _slice(w: OnnxNodes, node: Node) -> None:
    """A stop of -1 under a negative step is one before the first element, which ONNX writes as a far number."""
    a = node.attrs
    far = int(types.i64.min)
    stops = [far if step < 0 and stop == -1 else stop for stop, step in zip(a["stops"], a["steps"], strict=True)]
    axes = range(len(stops))
    w.give(
        node, "Slice", [w.name(node.inputs[0]), w.dims(a["starts"]), w.dims(stops), w.dims(axes), w.dims(a["steps"])]
    )


def _resize(w: OnnxNodes, node: Node) -> None:
    a = node.attrs
    if a["coordinate_mode"] == "tf_crop_and_resize":
        raise OpError("resizing of a cut is not written")
    modes = {
        "mode": a["mode"], "coordinate_transformation_mode": a["coordinate_mode"], "nearest_mode": a["nearest_mode"],
        "cubic_coeff_a": a["cubic_coeff"], "exclude_outside": int(a["exclude_outside"]),
        "extrapolation_value": a["extrapolation"],
    }  # fmt: skip
    x = w.name(node.inputs[0])
    if a["scales"]:
        scales = w.number(np.array(a["scales"], np.float32))
        w.give(node, "Resize", [x, "", scales], **modes)
    else:
        w.give(node, "Resize", [x, "", "", w.dims(a["sizes"])], **modes)


def _sources(w: OnnxNodes, node: Node) -> None:
    """The sizes of a shape, or 0, 1, 2...: the operands only bring in symbols."""
    code = ELEMENT_CODES[types.i64.numpy]
    if node.op is ops.dim_values:
        w.alias(node, w.dims(node.attrs["dims"]))
        return
    scalar = w.emit("Squeeze", [w.dims([node.attrs["extent"]])])
    zero, one = w.number(types.i64.numpy.type(0)), w.number(types.i64.numpy.type(1))
    counted = w.emit("Range", [zero, scalar, one])
    if ELEMENT_CODES[node.dtype.numpy] == code:
        w.alias(node, counted)
    else:
        w.give(node, "Cast", [counted], to=ELEMENT_CODES[node.dtype.numpy])


def _full(w: OnnxNodes, node: Node) -> None:
    value = w.number(node.dtype.numpy.type(node.attrs["value"]))
    w.give(node, "Expand", [value, w.dims(node.attrs["shape"])])


def _top_k(w: OnnxNodes, node: Node) -> None:
    a = node.attrs
    k = w.dims([a["k"]])
    w.give(node, "TopK", [w.name(node.inputs[0]), k], axis=a["axis"], largest=int(a["largest"]), sorted=1)


# --- norms and quantisation -----------------------------------------------------------------------------------------


def _batch_norm(w: OnnxNodes, node: Node) -> None:
    if node.attrs["axis"] != 1:
        raise OpError("ONNX's BatchNormalization has channels first")
    w.give(node, "BatchNormalization", [w.name(x) for x in node.inputs], epsilon=node.attrs["epsilon"])


def _layer_norm(w: OnnxNodes, node: Node) -> None:
    x, *given = node.inputs
    axis = node.attrs["axis"]
    names = [w.name(p) for p in given] or [_ones(w, x, axis)]
    w.give(node, "LayerNormalization", [w.name(x), *names], axis=axis, epsilon=node.attrs["epsilon"])


def _ones(w: OnnxNodes, x: Node, axis: int) -> str:
    return w.emit("Expand", [w.number(x.dtype.numpy.type(1)), w.dims(x.shape[axis:])])


def _group_norm(w: OnnxNodes, node: Node) -> None:
    names = [w.name(x) for x in node.inputs]
    w.give(node, "GroupNormalization", names, num_groups=node.attrs["groups"], epsilon=node.attrs["epsilon"])


def _quantisation(name: str) -> Writer:
    def write(w: OnnxNodes, node: Node) -> None:
        a = node.attrs
        w.give(node, name, [w.name(x) for x in node.inputs], axis=a["axis"], block_size=a["block_size"])

    return write


_SAME_NAME = {
    ops.neg: "Neg", ops.abs: "Abs", ops.sign: "Sign", ops.exp: "Exp", ops.log: "Log", ops.sqrt: "Sqrt",
    ops.reciprocal: "Reciprocal", ops.sin: "Sin", ops.cos: "Cos", ops.tan: "Tan", ops.asin: "Asin", ops.acos: "Acos",
    ops.atan: "Atan", ops.sinh: "Sinh", ops.cosh: "Cosh", ops.tanh: "Tanh", ops.asinh: "Asinh", ops.acosh: "Acosh",
    ops.atanh: "Atanh", ops.erf: "Erf", ops.floor: "Floor", ops.ceil: "Ceil", ops.round: "Round",
    ops.logical_not: "Not", ops.isnan: "IsNaN", ops.isinf: "IsInf", ops.sigmoid: "Sigmoid", ops.relu: "Relu",
    ops.softplus: "Softplus", ops.mish: "Mish", ops.softsign: "Softsign", ops.hard_swish: "HardSwish",
    ops.leaky_relu: "LeakyRelu", ops.elu: "Elu", ops.selu: "Selu", ops.celu: "Celu", ops.hard_sigmoid: "HardSigmoid",
    ops.gelu: "Gelu", ops.sub: "Sub", ops.mul: "Mul", ops.div: "Div", ops.pow: "Pow", ops.minimum: "Min",
    ops.maximum: "Max", ops.logical_and: "And", ops.logical_or: "Or", ops.logical_xor: "Xor", ops.eq: "Equal",
    ops.lt: "Less", ops.le: "LessOrEqual", ops.gt: "Greater", ops.ge: "GreaterOrEqual", ops.where: "Where",
    ops.prelu: "PRelu", ops.einsum: "Einsum", ops.softmax: "Softmax", ops.log_softmax: "LogSoftmax",
    ops.concat: "Concat", ops.transpose: "Transpose", ops.gather: "Gather", ops.gather_elements: "GatherElements",
    ops.gather_nd: "GatherND", ops.scatter_elements: "ScatterElements", ops.scatter_nd: "ScatterND",
    ops.instance_norm: "InstanceNormalization", ops.lrn: "LRN",
    ops.dynamic_quantize_linear: "DynamicQuantizeLinear",
}  # fmt: skip

WRITERS: dict[OpDef, Writer] = {
    **{op: _plain(name) for op, name in _SAME_NAME.items()},
    ops.fmod: _plain("Mod", fmod=1), ops.mod: _mod, ops.ne: _not_equal, ops.add: _add, ops.clamp: _clamp,
    ops.cast: _cast, ops.exp2: _exp2, ops.rsqrt: _rsqrt, ops.silu: _silu,
    ops.reduce_sum: _reduction("ReduceSum"), ops.reduce_prod: _reduction("ReduceProd"),
    ops.reduce_max: _reduction("ReduceMax"), ops.reduce_min: _reduction("ReduceMin"),
    ops.reduce_mean: _reduction("ReduceMean"), ops.reduce_l1: _reduction("ReduceL1"),
    ops.reduce_l2: _reduction("ReduceL2"), ops.logsumexp: _reduction("ReduceLogSumExp"),
    ops.reduce_any: _any, ops.reduce_all: _any, ops.argmax: _position("ArgMax"), ops.argmin: _position("ArgMin"),
    ops.matmul: _matmul, ops.conv: _conv, ops.conv_transpose: _conv, ops.max_pool: _max_pool, ops.avg_pool: _avg_pool,
    ops.reshape: _reshape, ops.expand: _expand, ops.tile: _shaped("Tile", "repeats"),
    ops.depth_to_space: _blocks("DepthToSpace"), ops.space_to_depth: _blocks("SpaceToDepth"), ops.pad: _pad,
    ops.slice: _slice, ops.resize: _resize, ops.iota: _sources, ops.dim_values: _sources, ops.full: _full,
    ops.top_k: _top_k, ops.batch_norm: _batch_norm, ops.layer_norm: _layer_norm, ops.group_norm: _group_norm,
    ops.quantize_linear: _quantisation("QuantizeLinear"), ops.dequantize_linear: _quantisation("DequantizeLinear"),
}  # fmt: skip
"""What writes each op that ONNX has."""
