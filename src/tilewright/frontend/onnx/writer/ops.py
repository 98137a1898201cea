"""How ops of arithmetic, windows and norms are written in ONNX (opset 21): the importer's converters, backwards.

In: a node whose operands are written. Out: ONNX nodes in ``OnnxNodes``; ``OpError`` where this form of an op has no
counterpart. Not its business: ops without an entry, which are written as what they are spelled by or decompose into.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Attrs, Node
from tilewright.core.types import Array
from tilewright.frontend.onnx.writer.nodes import ELEMENT_CODES, OnnxNodes, Writer


def plain(name: str, **fixed: Any) -> Writer:
    """An op whose operands and attributes are called alike in ONNX."""

    def write(w: OnnxNodes, node: Node) -> None:
        w.give(node, name, [w.name(x) for x in node.inputs], **fixed, **node.attrs)

    return write


def reduction(name: str) -> Writer:
    def write(w: OnnxNodes, node: Node) -> None:
        axes = w.dims(node.attrs["axes"])
        no_axes = {} if node.attrs["axes"] else {"noop_with_empty_axes": 1}
        w.give(node, name, [w.name(node.inputs[0]), axes], keepdims=int(node.attrs["keepdims"]), **no_axes)

    return write


def position(name: str) -> Writer:
    def write(w: OnnxNodes, node: Node) -> None:
        a = node.attrs
        w.give(
            node, name, [w.name(node.inputs[0])], axis=a["axis"], keepdims=int(a["keepdims"]),
            select_last_index=int(a["select_last"]),
        )  # fmt: skip

    return write


# --- element-wise ---------------------------------------------------------------------------------------------------


def on_bools(name: str, of_bools: str, negated: int | None = None) -> Writer:
    """Arithmetic and order of bools, which ONNX has as logic: of operand ``negated`` the opposite."""

    def write(w: OnnxNodes, node: Node) -> None:
        names = [w.name(x) for x in node.inputs]
        if node.inputs[0].dtype is not types.bool_:
            w.give(node, name, names)
            return
        if negated is not None:
            names[negated] = w.emit("Not", [names[negated]])
        w.give(node, of_bools, names)

    return write


def add(w: OnnxNodes, node: Node) -> None:
    """A sum; that of a product or convolution and one number for each channel is its bias."""
    for product, bias in (node.inputs, node.inputs[::-1]):
        if w.takes_bias(product) and (name := _bias_of(w, product, bias)) is not None:
            w.with_bias(node, product, name)
            return
    plain("Or" if node.dtype is types.bool_ else "Add")(w, node)


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


def mod(w: OnnxNodes, node: Node) -> None:
    if node.dtype.is_float:
        raise OpError("ONNX's Mod of floats has the sign of the dividend")
    plain("Mod")(w, node)


def not_equal(w: OnnxNodes, node: Node) -> None:
    w.give(node, "Not", [w.emit("Equal", [w.name(x) for x in node.inputs])])


def where(w: OnnxNodes, node: Node) -> None:
    """A choice; of bools, for which ONNX Runtime has no Where, by logic."""
    if node.dtype is not types.bool_:
        plain("Where")(w, node)
        return
    condition, a, b = (w.name(x) for x in node.inputs)
    other = w.emit("Not", [condition])
    w.give(node, "Or", [w.emit("And", [condition, a]), w.emit("And", [other, b])])


def clamp(w: OnnxNodes, node: Node) -> None:
    x, lo, hi = node.inputs
    if lo.type.rank or hi.type.rank:
        w.give(node, "Min", [w.emit("Max", [w.name(x), w.name(lo)]), w.name(hi)])
    else:
        plain("Clip")(w, node)


def cast(w: OnnxNodes, node: Node) -> None:
    w.give(node, "Cast", [w.name(node.inputs[0])], to=ELEMENT_CODES[node.dtype.numpy])


def exp2(w: OnnxNodes, node: Node) -> None:
    w.give(node, "Pow", [w.number(node.dtype.numpy.type(2)), w.name(node.inputs[0])])


def rsqrt(w: OnnxNodes, node: Node) -> None:
    w.give(node, "Reciprocal", [w.emit("Sqrt", [w.name(node.inputs[0])])])


def silu(w: OnnxNodes, node: Node) -> None:
    x = w.name(node.inputs[0])
    w.give(node, "Mul", [x, w.emit("Sigmoid", [x])])


def any_(w: OnnxNodes, node: Node) -> None:
    """Whether any holds: is their number not 0? All hold where none does not."""
    x = w.name(node.inputs[0])
    if not node.attrs["axes"]:  # ONNX would take none for all
        w.give(node, "Identity", [x])
        return
    of_all = node.op is ops.reduce_all
    numbers = w.emit("Cast", [w.emit("Not", [x]) if of_all else x], to=ELEMENT_CODES[types.i32.numpy])
    count = w.emit("ReduceSum", [numbers, w.dims(node.attrs["axes"])], keepdims=int(node.attrs["keepdims"]))
    if of_all:
        w.give(node, "Equal", [count, w.number(types.i32.numpy.type(0))])
    else:
        w.give(node, "Cast", [count], to=ELEMENT_CODES[types.bool_.numpy])


# --- products and windows -------------------------------------------------------------------------------------------


_MULTIPLIED = (types.f16, types.bf16, types.f32, types.f64, types.i32, types.i64, types.u32, types.u64)
"""Types that ONNX's MatMul has."""


def matmul(w: OnnxNodes, node: Node) -> None:
    a, b = node.inputs
    names = [w.name(a), w.name(b)]
    same = all(x.dtype is node.dtype for x in node.inputs)
    if same and node.dtype in _MULTIPLIED:
        w.give(node, "MatMul", names)
        if a.type.rank == b.type.rank == 2:
            w.may_have_bias(node)
    elif same and node.dtype.bits <= 16:
        # Sums of products of narrow integers wrap, as the low bits of wider ones do.
        wide = [w.emit("Cast", [n], to=ELEMENT_CODES[types.i32.numpy]) for n in names]
        w.give(node, "Cast", [w.emit("MatMul", wide)], to=ELEMENT_CODES[node.dtype.numpy])
    elif node.dtype is types.i32 and all(x.dtype in (types.i8, types.u8) for x in node.inputs):
        w.give(node, "MatMulInteger", names)
    else:
        raise OpError(f"ONNX has no product of {a.dtype} with a result of {node.dtype}")


def flat(pads: Sequence[tuple[Dim, Dim]]) -> list[Dim]:
    """ONNX's order: all that comes before, then all that comes after."""
    return [lo for lo, _ in pads] + [hi for _, hi in pads]


def _window(a: Attrs) -> dict[str, Any]:
    if a["layout"] != "NCHW":
        raise OpError("ONNX's windows have channels first")
    if any(not is_known(p) or p < 0 for pair in a["pads"] for p in pair):
        raise OpError("ONNX's windows have padding of a known size, and crop nothing")
    dilations = {"dilations": list(a["dilations"])} if a["dilations"] else {}
    return {"strides": list(a["strides"]), "pads": flat(a["pads"]), **dilations}


def conv(w: OnnxNodes, node: Node) -> None:
    """A convolution or its transpose; one of bytes has sums of 32 bits."""
    x, kernel = node.inputs
    are_bytes = all(k.dtype in (types.i8, types.u8) for k in node.inputs)
    if node.op is ops.conv and are_bytes and node.dtype is types.i32:
        w.give(node, "ConvInteger", [w.name(x), w.name(kernel)], **_window(node.attrs), group=node.attrs["groups"])
        return
    if node.dtype is not x.dtype:
        raise OpError(f"ONNX has no convolution of {x.dtype} with a result of {node.dtype}")
    extra = {"output_padding": list(node.attrs["output_padding"])} if node.op is ops.conv_transpose else {}
    name = "ConvTranspose" if node.op is ops.conv_transpose else "Conv"
    w.give(node, name, [w.name(x), w.name(kernel)], **_window(node.attrs), group=node.attrs["groups"], **extra)
    w.may_have_bias(node)


def max_pool(w: OnnxNodes, node: Node) -> None:
    x = node.inputs[0].dtype
    if not (x.is_float or x.bits == 8):
        raise OpError(f"ONNX's MaxPool is of floats and bytes, not of {x}")
    if node.op is ops.max_pool_indices:
        order = {"storage_order": int(node.attrs["column_major"])}
        w.give(node, "MaxPool", [w.name(node.inputs[0])], kernel_shape=list(node.attrs["kernel"]),
               **_window(node.attrs), **order)  # fmt: skip
        return
    w.give(node, "MaxPool", [w.name(node.inputs[0])], kernel_shape=list(node.attrs["kernel"]), **_window(node.attrs))


def avg_pool(w: OnnxNodes, node: Node) -> None:
    a = node.attrs
    if a["divisor"]:
        raise OpError("ONNX's AveragePool divides by what is in the window")
    if any(a["ceil_pads"]):
        raise OpError("ONNX's AveragePool has no padding at the end that never counts")
    counts = int(a["count_include_pad"])
    x = w.name(node.inputs[0])
    w.give(node, "AveragePool", [x], kernel_shape=list(a["kernel"]), count_include_pad=counts, **_window(a))


# --- norms and quantisation -----------------------------------------------------------------------------------------


def batch_norm(w: OnnxNodes, node: Node) -> None:
    if node.attrs["axis"] != 1:
        raise OpError("ONNX's BatchNormalization has channels first")
    w.give(node, "BatchNormalization", [w.name(x) for x in node.inputs], epsilon=node.attrs["epsilon"])


def layer_norm(w: OnnxNodes, node: Node) -> None:
    x, *given = node.inputs
    axis = node.attrs["axis"]
    names = [w.name(p) for p in given] or [_ones(w, x, axis)]
    w.give(node, "LayerNormalization", [w.name(x), *names], axis=axis, epsilon=node.attrs["epsilon"])


def _ones(w: OnnxNodes, x: Node, axis: int) -> str:
    return w.emit("Expand", [w.number(x.dtype.numpy.type(1)), w.dims(x.shape[axis:])])


def group_norm(w: OnnxNodes, node: Node) -> None:
    names = [w.name(x) for x in node.inputs]
    w.give(node, "GroupNormalization", names, num_groups=node.attrs["groups"], epsilon=node.attrs["epsilon"])


def quantisation(name: str) -> Writer:
    def write(w: OnnxNodes, node: Node) -> None:
        a, (x, scale, zero) = node.attrs, node.inputs
        packed = _in_four_bits(x, zero) if a["block_size"] else None
        codes, points = map(w.number, packed) if packed is not None else map(w.name, (x, zero))
        w.give(node, name, [codes, w.name(scale), points], axis=a["axis"], block_size=a["block_size"])

    return write


def _in_four_bits(x: Node, zero: Node) -> tuple[Array, Array] | None:
    """Constant codes and zero points in blocks that four bits hold, which a file has two of in a byte."""
    if x.op is not CONST or zero.op is not CONST or x.dtype is not types.u8:
        return None
    arrays: list[Array] = [p.attrs["data"].array for p in (x, zero)]
    if max(int(a.max(initial=0)) for a in arrays) > types.u4.max:
        return None
    codes, points = (a.astype(types.u4.numpy) for a in arrays)
    return codes, points
