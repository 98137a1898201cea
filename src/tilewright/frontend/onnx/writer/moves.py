"""How moves, lookups, orders and sources are written in ONNX (opset 21).

In: a node whose operands are written. Out: ONNX nodes in ``OnnxNodes``; ``OpError`` where this form of an op has no
counterpart. Not its business: arithmetic (``writer.ops``), recurrences and control flow (``writer.control``).
"""

from __future__ import annotations

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known, known, known_under
from tilewright.core.graph import Node
from tilewright.frontend.onnx.writer.nodes import ELEMENT_CODES, OnnxNodes, Writer
from tilewright.frontend.onnx.writer.ops import flat


def shaped(name: str, attr: str) -> Writer:
    """An op whose second operand in ONNX is a vector of sizes."""

    def write(w: OnnxNodes, node: Node) -> None:
        w.give(node, name, [w.name(node.inputs[0]), w.dims(node.attrs[attr])])

    return write


def reshape(w: OnnxNodes, node: Node) -> None:
    """Sizes as they are; one that must be computed is left to ONNX where it is the only one."""
    shape = node.attrs["shape"]
    computed = [d for d in shape if not is_known(d)]
    if len(computed) == 1 and 0 not in shape:
        shape = [known(d, -1) for d in shape]
    w.give(node, "Reshape", [w.name(node.inputs[0]), w.dims(shape)], allowzero=int(0 in shape))


def expand(w: OnnxNodes, node: Node) -> None:
    w.give(node, "Expand", [w.name(node.inputs[0]), w.dims(node.shape)])


def blocks(name: str) -> Writer:
    def write(w: OnnxNodes, node: Node) -> None:
        a = node.attrs
        if name == "SpaceToDepth" and a["mode"] != "DCR":
            raise OpError("ONNX's SpaceToDepth is of mode DCR")
        mode = {"mode": a["mode"]} if name == "DepthToSpace" else {}
        w.give(node, name, [w.name(node.inputs[0])], blocksize=a["block"], **mode)

    return write


def pad(w: OnnxNodes, node: Node) -> None:
    """Elements that are mirrored or repeated may be cut off themselves: in a node behind, since ONNX cuts first."""
    (x, value), pads, mode = node.inputs, node.attrs["pads"], node.attrs["mode"]
    if mode not in ("reflect", "wrap") or not any(known_under(n, 0) for pair in pads for n in pair):
        w.give(node, "Pad", [w.name(x), w.dims(flat(pads)), w.name(value)], mode=mode)
        return
    added = [(0 if known_under(before, 0) else before, 0 if known_under(after, 0) else after) for before, after in pads]
    starts = [-before if known_under(before, 0) else 0 for before, _ in pads]
    stops = [start + n for start, n in zip(starts, node.shape, strict=True)]
    whole = w.emit("Pad", [w.name(x), w.dims(flat(added)), w.name(value)], mode=mode)
    w.give(node, "Slice", [whole, w.dims(starts), w.dims(stops)])


def slice_(w: OnnxNodes, node: Node) -> None:
    """A stop of -1 under a negative step is one before the first element, which ONNX writes as a far number."""
    a = node.attrs
    far = int(types.i64.min)
    stops = [far if step < 0 and stop == -1 else stop for stop, step in zip(a["stops"], a["steps"], strict=True)]
    axes = range(len(stops))
    w.give(
        node, "Slice", [w.name(node.inputs[0]), w.dims(a["starts"]), w.dims(stops), w.dims(axes), w.dims(a["steps"])]
    )


def resize(w: OnnxNodes, node: Node) -> None:
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


def sources(w: OnnxNodes, node: Node) -> None:
    """The sizes of a shape, or 0, 1, 2...: the operands only bring in symbols."""
    code = ELEMENT_CODES[types.i64.numpy]
    if node.op is ops.dim_values:
        w.give_values(node, [w.dims(node.attrs["dims"])])
        return
    scalar = w.emit("Squeeze", [w.dims([node.attrs["extent"]])])
    zero, one = w.number(types.i64.numpy.type(0)), w.number(types.i64.numpy.type(1))
    counted = w.emit("Range", [zero, scalar, one])
    if ELEMENT_CODES[node.dtype.numpy] == code:
        w.give_values(node, [counted])
    else:
        w.give(node, "Cast", [counted], to=ELEMENT_CODES[node.dtype.numpy])


def full(w: OnnxNodes, node: Node) -> None:
    value = w.number(node.dtype.numpy.type(node.attrs["value"]))
    w.give(node, "Expand", [value, w.dims(node.attrs["shape"])])


def top_k(w: OnnxNodes, node: Node) -> None:
    a = node.attrs
    k = w.dims([a["k"]])
    w.give(node, "TopK", [w.name(node.inputs[0]), k], axis=a["axis"], largest=int(a["largest"]), sorted=1)


def indexed(name: str, wanted: tuple[types.DType, ...] = (types.i32, types.i64)) -> Writer:
    """A lookup; ONNX's indices are of few types."""

    def write(w: OnnxNodes, node: Node) -> None:
        x, indices, *others = node.inputs
        at = w.name(indices)
        if indices.dtype not in wanted:
            at = w.emit("Cast", [at], to=ELEMENT_CODES[types.i64.numpy])
        w.give(node, name, [w.name(x), at, *map(w.name, others)], **node.attrs)

    return write


def reverse(w: OnnxNodes, node: Node) -> None:
    axes = node.attrs["axes"]
    far = w.dims([int(types.i64.min)] * len(axes))
    ones = w.dims([-1] * len(axes))
    if axes:
        w.give(node, "Slice", [w.name(node.inputs[0]), ones, far, w.dims(axes), ones])
    else:
        w.give(node, "Identity", [w.name(node.inputs[0])])


def trilu(w: OnnxNodes, node: Node) -> None:
    a, (x,) = node.attrs, node.inputs
    if a["fill"]:
        raise OpError("ONNX's Trilu fills with zeros")
    k = w.emit("Squeeze", [w.dims([a["k"]])])
    w.give(node, "Trilu", [w.name(x), k], upper=int(a["upper"]))


def dynamic_slice(w: OnnxNodes, node: Node) -> None:
    """Starts are moved until the window fits."""
    x, starts = node.inputs
    sizes = node.attrs["sizes"]
    if not sizes:
        w.give(node, "Identity", [w.name(x)])
        return
    room = w.dims([n - m for n, m in zip(x.shape, sizes, strict=True)])
    first = w.emit("Cast", [w.name(starts)], to=ELEMENT_CODES[types.i64.numpy])
    first = w.emit("Min", [w.emit("Max", [first, w.number(types.i64.numpy.type(0))]), room])
    w.give(node, "Slice", [w.name(x), first, w.emit("Add", [first, w.dims(sizes)])])


def sort(w: OnnxNodes, node: Node) -> None:
    a, (x,) = node.attrs, node.inputs
    n = w.dims([x.shape[a["axis"]]])
    w.give(node, "TopK", [w.name(x), n], axis=a["axis"], largest=int(a["descending"]), sorted=1)


def cumsum(w: OnnxNodes, node: Node) -> None:
    a, (x,) = node.attrs, node.inputs
    if x.dtype not in (types.i32, types.i64, types.f32, types.f64):
        raise OpError(f"ONNX has no CumSum of {x.dtype}")
    axis = w.number(types.i64.numpy.type(a["axis"]))
    flags = {"exclusive": int(a["exclusive"]), "reverse": int(a["reverse"])}
    if a["accumulator"] in (None, x.dtype):
        w.give(node, "CumSum", [w.name(x), axis], **flags)
        return
    wide = w.emit("Cast", [w.name(x)], to=ELEMENT_CODES[a["accumulator"].numpy])
    w.give(node, "Cast", [w.emit("CumSum", [wide, axis], **flags)], to=ELEMENT_CODES[x.dtype.numpy])


def with_sizes(w: OnnxNodes, node: Node) -> None:
    w.give_values(node, [w.name(node.inputs[0])])


def as_size(w: OnnxNodes, node: Node) -> None:
    """An empty tensor of that width, and the width."""
    code = ELEMENT_CODES[types.i64.numpy]
    given = w.emit("Reshape", [w.emit("Cast", [w.name(node.inputs[0])], to=code), w.dims([1])])
    width = w.emit("Max", [w.emit("Min", [given, w.dims([node.attrs["most"]])]), w.dims([0])])
    empty = w.emit("Expand", [w.number(np.zeros((1, 1), np.bool_)), w.emit("Concat", [w.dims([0]), width], axis=0)])
    w.give_values(node, [empty, w.emit("Squeeze", [width])])


def argwhere(w: OnnxNodes, node: Node) -> None:
    found = w.emit("NonZero", [w.name(node.inputs[0])])
    rows = w.emit("Transpose", [found], perm=[1, 0])
    w.give_values(node, [rows, w.emit("Squeeze", [w.emit("Shape", [rows], start=0, end=1)])])


def suppress(w: OnnxNodes, node: Node) -> None:
    """ONNX sorts the scores itself."""
    boxes, scores, _, iou, least = map(w.name, node.inputs)
    limit = w.number(types.i64.numpy.type(node.attrs["limit"]))
    found = w.emit("NonMaxSuppression", [boxes, scores, limit, iou, least], center_point_box=int(node.attrs["center"]))
    w.give_values(node, [found, w.emit("Squeeze", [w.emit("Shape", [found], start=0, end=1)])])


def fourier(w: OnnxNodes, node: Node) -> None:
    """ONNX's DFT forwards, or backwards where it divides by the length."""
    (x,), a = node.inputs, node.attrs
    if not is_known(a["n"]):
        raise OpError("ONNX's DFT of a length that a call decides is written as products")
    if a["form"] == "hermitian" or (a["form"] == "real" and a["sign"] > 0):
        raise OpError("ONNX's DFT gives no real signals, and of real ones only transforms with a negative exponent")
    if a["kept"]:
        raise OpError("ONNX's DFT gives half of the results of real signals, or all")
    rank, name = len(x.shape), w.name(x)
    n = w.number(types.i64.numpy.type(a["n"]))
    scale, options = a["scale"], {}
    if a["form"] == "real":
        name = w.emit("Reshape", [name, w.dims((*x.shape, 1))], allowzero=int(0 in x.shape))
        axis, options = rank - 1, {"onesided": 1}
    else:
        axis = rank - 2 - a["inner"]
    if a["sign"] > 0:
        scale, options = scale * a["n"], {"inverse": 1}
    operands = [name, n, w.number(types.i64.numpy.type(axis))]
    if scale == 1:
        w.give(node, "DFT", operands, **options)
    else:
        w.give(node, "Mul", [w.emit("DFT", operands, **options), w.number(x.dtype.numpy.type(scale))])
