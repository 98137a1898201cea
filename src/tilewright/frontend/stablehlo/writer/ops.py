"""How arithmetic, reductions, products and windows are written in StableHLO.

In: a node whose operands are written. Out: operations in ``HloLines``; ``OpError`` where this form of an op has none.
Not its business: moves, lookups and control (``writer.moves``), ops that are spelled or decompose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import DType, TensorType
from tilewright.frontend.stablehlo.writer.lines import (
    HloLines,
    HloValue,
    Region,
    Writer,
    array_text,
    pairs_text,
    sizes,
)
from tilewright.ops.common import highest, lowest, wide


def broadcast(w: HloLines, x: HloValue, shape: tuple[int, ...]) -> HloValue:
    """``x`` under a larger shape, as NumPy broadcasts: StableHLO does nothing by itself."""
    if x.shape == shape:
        return x
    dims = range(len(shape) - x.type.rank, len(shape))
    return w.one("broadcast_in_dim", [x], x.type.with_shape(shape), f"broadcast_dimensions = {array_text(list(dims))}")


def one(name: str) -> Writer:
    def write(w: HloLines, node: Node) -> None:
        w.give(node, w.one(name, w.values(node), node.type))

    return write


def of_chlo(name: str) -> Writer:
    """A function that CHLO, StableHLO's companion, has."""

    def write(w: HloLines, node: Node) -> None:
        w.give(node, *w.operation(f"chlo.{name}", w.values(node), [node.type]))

    return write


def together(name: str) -> Writer:
    """An operation on operands of one shape."""

    def write(w: HloLines, node: Node) -> None:
        shape = sizes(node.type)
        w.give(node, w.one(name, [broadcast(w, x, shape) for x in w.values(node)], node.type))

    return write


def compared(w: HloLines, a: HloValue, b: HloValue, direction: str) -> HloValue:
    dtype = a.type.dtype
    kind = "FLOAT" if dtype.is_float else "SIGNED" if dtype.is_signed else "UNSIGNED"
    text = (
        f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
        f"compare_type = #stablehlo<comparison_type {kind}>"
    )
    return w.one("compare", [a, b], a.type.with_dtype(types.bool_), text)


def comparison(direction: str) -> Writer:
    def write(w: HloLines, node: Node) -> None:
        a, b = (broadcast(w, x, sizes(node.type)) for x in w.values(node))
        w.give(node, compared(w, a, b, direction))

    return write


def shift_right(w: HloLines, node: Node) -> None:
    name = "arithmetic" if node.dtype.is_signed else "logical"
    together(f"shift_right_{name}")(w, node)


def isnan(w: HloLines, node: Node) -> None:
    (x,) = w.values(node)
    w.give(node, compared(w, x, x, "NE"))


def isinf(w: HloLines, node: Node) -> None:
    (x,) = w.values(node)
    size = w.one("abs", [x], x.type)
    w.give(node, compared(w, size, broadcast(w, w.scalar(float("inf"), x.type.dtype), x.shape), "EQ"))


def reciprocal(w: HloLines, node: Node) -> None:
    (x,) = w.values(node)
    w.give(node, w.one("divide", [broadcast(w, w.scalar(1, x.type.dtype), x.shape), x], x.type))


def reinterpret(w: HloLines, node: Node) -> None:
    w.give(node, w.one("bitcast_convert", w.values(node), node.type))


# --- reductions -----------------------------------------------------------------------------------------------------


def combiner(w: HloLines, name: str, dtype: DType) -> Region:
    """A region of one operation on two elements."""
    a, b = (w.fresh(TensorType(dtype, ())) for _ in range(2))
    return [a, b], lambda inner: [inner.one(name, [a, b], a.type)]


def converted(w: HloLines, x: HloValue, dtype: DType) -> HloValue:
    return x if x.type.dtype is dtype else w.one("convert", [x], x.type.with_dtype(dtype))


def reduction(name: str, first: Callable[[DType], float]) -> Writer:
    """A fold over axes, of narrow floats in f32."""

    def write(w: HloLines, node: Node) -> None:
        (x,) = w.values(node)
        axes, dtype = node.attrs["axes"], wide(node.dtype)
        x = converted(w, x, dtype)
        kept = tuple(n for k, n in enumerate(x.shape) if k not in axes)
        none = w.scalar(first(dtype), dtype)
        region = combiner(w, name, dtype)
        attributes = f"<{{dimensions = {array_text(axes)}}}>"
        (made,) = w.operation("stablehlo.reduce", [x, none], [x.type.with_shape(kept)], attributes, [region])
        made = converted(w, made, node.dtype)
        w.give(node, w.one("reshape", [made], node.type) if made.type != node.type else made)

    return write


def extreme(direction: str) -> Writer:
    """The place of the largest or smallest element, NaN before all: a fold of pairs."""

    def write(w: HloLines, node: Node) -> None:
        (x,), a = w.values(node), node.attrs
        places = TensorType(types.i64, x.shape)
        at = w.one("iota", [], places, f"iota_dimension = {a['axis']} : i64")
        value, place = TensorType(x.type.dtype, ()), TensorType(types.i64, ())
        x1, i1, x2, i2 = (w.fresh(t) for t in (value, place, value, place))

        def region(inner: HloLines) -> Sequence[HloValue]:
            one, two = (compared(inner, v, v, "NE") for v in (x1, x2))
            better = inner.one("or", [compared(inner, x1, x2, direction), one], one.type)
            # Equal are equal numbers and two NaN; of equals the place decides.
            same = inner.one("or", [compared(inner, x1, x2, "EQ"), inner.one("and", [one, two], one.type)], one.type)
            before = compared(inner, i1, i2, "GT" if a["select_last"] else "LT")
            first = inner.one("select", [same, before, better], one.type)
            return [inner.one("select", [first, p, q], p.type) for p, q in ((x1, x2), (i1, i2))]

        start = lowest(x.type.dtype) if direction == "GT" else highest(x.type.dtype)
        last = 0 if a["select_last"] else int(types.i64.max)
        kept = tuple(n for k, n in enumerate(x.shape) if k != a["axis"])
        _, made = w.operation(
            "stablehlo.reduce", [x, at, w.scalar(start.value, x.type.dtype), w.scalar(last, types.i64)],
            [x.type.with_shape(kept), places.with_shape(kept)], f"<{{dimensions = {array_text([a['axis']])}}}>",
            [([x1, i1, x2, i2], region)],
        )  # fmt: skip
        w.give(node, w.one("reshape", [made], node.type) if made.type != node.type else made)

    return write


# --- products and windows -------------------------------------------------------------------------------------------


def matmul(w: HloLines, node: Node) -> None:
    a, b = w.values(node)
    if a.type.rank < 2 or b.type.rank < 2:
        raise OpError("products of vectors are written as products of matrices")
    _check_operands(node)
    outer = sizes(node.type)[:-2]
    a, b = (broadcast(w, x, (*outer, *x.shape[-2:])) for x in (a, b))
    batch = list(range(len(outer)))
    n = len(outer)
    text = (
        f"dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {batch}, rhs_batching_dimensions = {batch}, "
        f"lhs_contracting_dimensions = [{n + 1}], rhs_contracting_dimensions = [{n}]>"
    )
    w.give(node, w.one("dot_general", [a, b], node.type, text))


def _pads(pads: Sequence[tuple[Dim, Dim]]) -> list[tuple[int, int]]:
    known = [(lo, hi) for lo, hi in pads if is_known(lo) and is_known(hi)]
    if len(known) < len(pads):
        raise OpError("padding by sizes that each call gives is not written")
    return known


def _convolution(w: HloLines, node: Node, kernel: str, pads: Sequence[tuple[int, int]], window: str) -> None:
    """Any convolution; ``kernel`` spells the kernel's first two axes, ``window`` what is particular."""
    spatial = list(map(str, range(len(pads))))
    last = ", ".join(spatial)
    lay = f"[b, f, {last}]" if node.attrs["layout"] == "NCHW" else f"[b, {last}, f]"
    text = (
        f"{window}, padding = {pairs_text(pads)}, feature_group_count = {node.attrs['groups']} : i64, "
        f"batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<{lay}x[{kernel}, {last}]->{lay}>"
    )
    w.give(node, w.one("convolution", w.values(node), node.type, text))


def _check_operands(node: Node) -> None:
    a, b = node.inputs
    if a.dtype is not b.dtype:
        raise OpError(f"StableHLO has no {node.op.name} of {a.dtype} and {b.dtype}")


def conv(w: HloLines, node: Node) -> None:
    _check_operands(node)
    a = node.attrs
    window = f"window_strides = {array_text(a['strides'])}, rhs_dilation = {array_text(a['dilations'])}"
    _convolution(w, node, "o, i", _pads(a["pads"]), window)


def conv_transpose(w: HloLines, node: Node) -> None:
    """The input with zeros between its elements, under the mirrored kernel."""
    a = node.attrs
    if a["groups"] != 1:
        raise OpError("a transposed convolution of groups is not written")
    reach = [(n - 1) * d for n, d in zip(sizes(node.inputs[1].type)[2:], a["dilations"], strict=True)]
    pads = [
        (r - lo, r - hi + more) for r, (lo, hi), more in zip(reach, _pads(a["pads"]), a["output_padding"], strict=True)
    ]
    ones = array_text([1] * len(pads))
    mirrored = f"array<i1: {', '.join(['true'] * len(pads))}>"
    window = (
        f"window_strides = {ones}, lhs_dilation = {array_text(a['strides'])}, "
        f"rhs_dilation = {array_text(a['dilations'])}, window_reversal = {mirrored}"
    )
    _convolution(w, node, "i, o", pads, window)


def _windows(w: HloLines, node: Node, name: str, x: HloValue, first: float) -> HloValue:
    """A fold of each window."""
    a, dtype = node.attrs, x.type.dtype

    def placed(numbers: Sequence[int], outside: int) -> list[int]:
        two = [outside, outside]
        return [*two, *numbers] if a["layout"] == "NCHW" else [two[0], *numbers, two[1]]

    pads = _pads(a["pads"])
    around = [(0, 0), (0, 0), *pads] if a["layout"] == "NCHW" else [(0, 0), *pads, (0, 0)]
    attributes = (
        f"<{{window_dimensions = {array_text(placed(a['kernel'], 1))}, "
        f"window_strides = {array_text(placed(a['strides'], 1))}, "
        f"window_dilations = {array_text(placed(a['dilations'] or (1,) * len(pads), 1))}, "
        f"padding = {pairs_text(around)}}}>"
    )
    region, none = combiner(w, name, dtype), w.scalar(first, dtype)
    result = node.type.with_dtype(dtype)
    (made,) = w.operation("stablehlo.reduce_window", [x, none], [result], attributes, [region])
    return made


def max_pool(w: HloLines, node: Node) -> None:
    (x,) = w.values(node)
    w.give(node, _windows(w, node, "maximum", x, lowest(x.type.dtype).value))


def avg_pool(w: HloLines, node: Node) -> None:
    """The sum of whole windows over their size; other averages are made of this one."""
    a, (x,) = node.attrs, w.values(node)
    if a["divisor"] or any(a["ceil_pads"]) or not a["count_include_pad"]:
        raise OpError("an average over what counts is made of sums")
    n = 1
    for k in a["kernel"]:
        n *= k
    total = _windows(w, node, "add", converted(w, x, wide(node.dtype)), 0)
    size = broadcast(w, w.scalar(n, total.type.dtype), total.shape)
    w.give(node, converted(w, w.one("divide", [total, size], total.type), node.dtype))


SAME = {
    ops.neg: "negate", ops.abs: "abs", ops.sign: "sign", ops.exp: "exponential", ops.expm1: "exponential_minus_one",
    ops.log: "log", ops.log1p: "log_plus_one", ops.sqrt: "sqrt", ops.rsqrt: "rsqrt", ops.sin: "sine",
    ops.cos: "cosine", ops.tan: "tan", ops.tanh: "tanh", ops.floor: "floor", ops.ceil: "ceil",
    ops.round: "round_nearest_even", ops.logical_not: "not", ops.bitwise_not: "not", ops.sigmoid: "logistic",
    ops.cast: "convert", ops.decode: "convert",
}  # fmt: skip
CHLO = {
    ops.asin: "asin", ops.acos: "acos", ops.atan: "atan", ops.sinh: "sinh", ops.cosh: "cosh", ops.asinh: "asinh",
    ops.acosh: "acosh", ops.atanh: "atanh", ops.erf: "erf",
}  # fmt: skip
TOGETHER = {
    ops.add: "add", ops.sub: "subtract", ops.mul: "multiply", ops.div: "divide", ops.fmod: "remainder",
    ops.pow: "power", ops.minimum: "minimum", ops.maximum: "maximum", ops.logical_and: "and", ops.logical_or: "or",
    ops.logical_xor: "xor", ops.bitwise_and: "and", ops.bitwise_or: "or", ops.bitwise_xor: "xor",
    ops.shift_left: "shift_left", ops.atan2: "atan2", ops.where: "select",
}  # fmt: skip
COMPARED = {ops.eq: "EQ", ops.ne: "NE", ops.lt: "LT", ops.le: "LE", ops.gt: "GT", ops.ge: "GE"}
