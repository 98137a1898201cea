"""How moves, lookups, orders and control flow are written in StableHLO.

In: a node whose operands are written. Out: operations in ``HloLines``; ``OpError`` where this form of an op has none.
Not its business: arithmetic (``writer.ops``), ops that are spelled or decompose.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import are_known, is_known
from tilewright.core.graph import Node
from tilewright.core.types import TensorType
from tilewright.frontend.stablehlo.writer.lines import HloLines, HloValue, Region, array_text, sizes
from tilewright.frontend.stablehlo.writer.ops import broadcast, combiner, compared, converted

_COMBINERS = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def reshape(w: HloLines, node: Node) -> None:
    w.give(node, w.one("reshape", w.values(node), node.type))


def expand(w: HloLines, node: Node) -> None:
    w.give(node, broadcast(w, w.value(node.inputs[0]), sizes(node.type)))


def transpose(w: HloLines, node: Node) -> None:
    w.give(node, w.one("transpose", w.values(node), node.type, f"permutation = {array_text(node.attrs['perm'])}"))


def reverse(w: HloLines, node: Node) -> None:
    w.give(node, _reversed(w, w.value(node.inputs[0]), node.attrs["axes"]))


def _reversed(w: HloLines, x: HloValue, axes: Sequence[int]) -> HloValue:
    return w.one("reverse", [x], x.type, f"dimensions = {array_text(axes)}") if axes else x


def concat(w: HloLines, node: Node) -> None:
    w.give(node, w.one("concatenate", w.values(node), node.type, f"dimension = {node.attrs['axis']} : i64"))


def slice_(w: HloLines, node: Node) -> None:
    """Steps backwards take the same elements forwards, and turn them."""
    a, (x,) = node.attrs, w.values(node)
    bounds: list[tuple[int, int, int]] = []
    for n, start, step in zip(sizes(node.type), a["starts"], a["steps"], strict=True):
        last = start + (n - 1) * step
        first, end = (start, last + 1) if step > 0 else (last, start + 1)
        bounds.append((first, end, abs(step)) if n else (0, 0, 1))
    starts, limits, strides = (array_text(list(part)) for part in zip(*bounds, strict=True)) if bounds else ([""] * 3)
    if not bounds:
        w.give(node, x)
        return
    text = f"start_indices = {starts}, limit_indices = {limits}, strides = {strides}"
    made = w.one("slice", [x], node.type, text)
    w.give(node, _reversed(w, made, [k for k, step in enumerate(a["steps"]) if step < 0]))


def pad(w: HloLines, node: Node) -> None:
    a = node.attrs
    if a["mode"] != "constant":
        raise OpError("padding that repeats elements is made of lookups")
    if not all(is_known(d) for pair in a["pads"] for d in pair):
        raise OpError("padding by sizes that each call gives is not written")
    low, high = (array_text([pair[k] for pair in a["pads"]]) for k in (0, 1))
    none = array_text([0] * len(a["pads"]))
    x, value = w.values(node)
    text = f"edge_padding_low = {low}, edge_padding_high = {high}, interior_padding = {none}"
    w.give(node, w.one("pad", [x, converted(w, value, x.type.dtype)], node.type, text))


def sources(w: HloLines, node: Node) -> None:
    """Ramps, sizes and fills; operands only bring in symbols, and there are none."""
    a, t = node.attrs, node.type
    if node.op is ops.iota:
        w.give(node, w.one("iota", [], t, "iota_dimension = 0 : i64"))
    elif node.op is ops.dim_values:
        if not are_known(a["dims"]):
            raise OpError("sizes that each call gives are not written", remedy="fix them: fix_dims, or --fix")
        w.give(node, w.number(np.array(a["dims"], np.int64)))
    else:
        w.give(node, broadcast(w, w.scalar(a["value"], t.dtype), sizes(t)))


def with_sizes(w: HloLines, node: Node) -> None:
    w.give(node, w.value(node.inputs[0]))


def clamp(w: HloLines, node: Node) -> None:
    x, low, high = (broadcast(w, v, sizes(node.type)) for v in w.values(node))
    w.give(node, w.one("clamp", [low, x, high], node.type))


# --- windows and lookups --------------------------------------------------------------------------------------------


def _scalars(w: HloLines, starts: HloValue) -> list[HloValue]:
    """Each element of a vector as a value."""
    made: list[HloValue] = []
    for k in range(starts.shape[0]):
        text = f"start_indices = array<i64: {k}>, limit_indices = array<i64: {k + 1}>, strides = array<i64: 1>"
        cut = w.one("slice", [starts], starts.type.with_shape((1,)), text)
        made.append(w.one("reshape", [cut], starts.type.with_shape(())))
    return made


def dynamic_slice(w: HloLines, node: Node) -> None:
    x, starts = w.values(node)
    text = f"slice_sizes = {array_text(sizes(node.type))}"
    w.give(node, w.one("dynamic_slice", [x, *_scalars(w, starts)], node.type, text))


def dynamic_update_slice(w: HloLines, node: Node) -> None:
    x, update, starts = w.values(node)
    w.give(node, w.one("dynamic_update_slice", [x, update, *_scalars(w, starts)], node.type))


def _from_the_start(w: HloLines, at: HloValue, n: HloValue) -> HloValue:
    """Places that count from the end where they are negative, as i64 places from the start, moved inside."""
    at = converted(w, at, types.i64)
    n, zero, one = (broadcast(w, v, at.shape) for v in (n, w.scalar(0, types.i64), w.scalar(1, types.i64)))
    made = w.one("select", [compared(w, at, zero, "LT"), w.one("add", [at, n], at.type), at], at.type)
    last = w.one("maximum", [w.one("subtract", [n, one], n.type), zero], n.type)
    return w.one("clamp", [zero, made, last], made.type)


def gather(w: HloLines, node: Node) -> None:
    x, at = w.values(node)
    axis, rank = node.attrs["axis"], at.type.rank
    at = _from_the_start(w, at, w.scalar(x.shape[axis], types.i64))
    offsets = [*range(axis), *range(axis + rank, node.type.rank)]
    taken = [1 if k == axis else n for k, n in enumerate(x.shape)]
    numbers = (
        f"#stablehlo.gather<offset_dims = {offsets}, collapsed_slice_dims = [{axis}], start_index_map = [{axis}], "
        f"index_vector_dim = {rank}>"
    )
    w.give(node, _gathered(w, x, at, numbers, taken, node.type))


def _gathered(w: HloLines, x: HloValue, at: HloValue, numbers: str, taken: Sequence[int], t: TensorType) -> HloValue:
    text = f"dimension_numbers = {numbers}, slice_sizes = {array_text(taken)}, indices_are_sorted = false"
    return w.one("gather", [x, at], t, text)


def _grid(w: HloLines, at: HloValue, axis: int, n: int) -> HloValue:
    """For each element the whole index of its place: its own along all axes but ``axis``, where ``at`` says it."""
    shape = (*at.shape, 1)
    parts: list[HloValue] = []
    for k in range(at.type.rank):
        t = TensorType(types.i64, shape)
        if k == axis:
            parts.append(w.one("reshape", [_from_the_start(w, at, w.scalar(n, types.i64))], t))
        else:
            parts.append(w.one("iota", [], t, f"iota_dimension = {k} : i64"))
    whole = TensorType(types.i64, (*at.shape, at.type.rank))
    return w.one("concatenate", parts, whole, f"dimension = {at.type.rank} : i64")


def gather_elements(w: HloLines, node: Node) -> None:
    x, at = w.values(node)
    axis, dims = node.attrs["axis"], list(range(x.type.rank))
    grid = _grid(w, at, axis, x.shape[axis])
    numbers = (
        f"#stablehlo.gather<collapsed_slice_dims = {dims}, start_index_map = {dims}, index_vector_dim = {len(dims)}>"
    )
    w.give(node, _gathered(w, x, grid, numbers, [1] * len(dims), node.type))


def _depth(w: HloLines, x: HloValue, at: HloValue) -> tuple[HloValue, int]:
    """Rows of indices from the start, and how many axes they name."""
    depth = at.shape[-1]
    n = w.number(np.array(x.shape[:depth], np.int64))
    return _from_the_start(w, at, n), depth


def gather_nd(w: HloLines, node: Node) -> None:
    if node.attrs["batch_dims"]:
        raise OpError("lookups of each of many tensors are not written")
    x, at = w.values(node)
    at, depth = _depth(w, x, at)
    named, outer = list(range(depth)), at.type.rank - 1
    numbers = (
        f"#stablehlo.gather<offset_dims = {list(range(outer, node.type.rank))}, collapsed_slice_dims = {named}, "
        f"start_index_map = {named}, index_vector_dim = {outer}>"
    )
    w.give(node, _gathered(w, x, at, numbers, [1] * depth + list(x.shape[depth:]), node.type))


def _scattered(w: HloLines, node: Node, at: HloValue, numbers: str) -> None:
    """Updates written at places one after another, alone or folded with what is there."""
    x, _, updates = w.values(node)
    kind, dtype = node.attrs["reduction"], x.type.dtype
    if kind == "none":
        old, new = (w.fresh(TensorType(dtype, ())) for _ in range(2))
        region: Region = ([old, new], lambda inner: [new])
    else:
        region = combiner(w, _COMBINERS[kind], dtype)
    text = f"<{{scatter_dimension_numbers = {numbers}, indices_are_sorted = false, unique_indices = false}}>"
    w.give(node, *w.operation("stablehlo.scatter", [x, at, updates], [node.type], text, [region]))


def scatter_nd(w: HloLines, node: Node) -> None:
    x, at, updates = w.values(node)
    at, depth = _depth(w, x, at)
    named, outer = list(range(depth)), at.type.rank - 1
    numbers = (
        f"#stablehlo.scatter<update_window_dims = {list(range(outer, updates.type.rank))}, "
        f"inserted_window_dims = {named}, scatter_dims_to_operand_dims = {named}, index_vector_dim = {outer}>"
    )
    _scattered(w, node, at, numbers)


def scatter_elements(w: HloLines, node: Node) -> None:
    x, at, _ = w.values(node)
    axis, dims = node.attrs["axis"], list(range(x.type.rank))
    grid = _grid(w, at, axis, x.shape[axis])
    numbers = (
        f"#stablehlo.scatter<inserted_window_dims = {dims}, scatter_dims_to_operand_dims = {dims}, "
        f"index_vector_dim = {len(dims)}>"
    )
    _scattered(w, node, grid, numbers)


def sort(w: HloLines, node: Node) -> None:
    """Values with their places; NaN counts as larger than all, and zeros of both signs are equal."""
    a, (x,) = node.attrs, w.values(node)
    places = TensorType(types.i64, x.shape)
    at = w.one("iota", [], places, f"iota_dimension = {a['axis']} : i64")
    value, place = TensorType(x.type.dtype, ()), TensorType(types.i64, ())
    x1, x2, i1, i2 = (w.fresh(t) for t in (value, value, place, place))

    def before(inner: HloLines) -> Sequence[HloValue]:
        low, high = (x2, x1) if a["descending"] else (x1, x2)
        less = compared(inner, low, high, "LT")
        only = inner.one("and", [compared(inner, high, high, "NE"), compared(inner, low, low, "EQ")], less.type)
        return [inner.one("or", [less, only], less.type)]

    text = f"<{{dimension = {a['axis']} : i64, is_stable = true}}>"
    region: Region = ([x1, x2, i1, i2], before)
    w.give(node, *w.operation("stablehlo.sort", [x, at], [x.type, places], text, [region]))


# --- control flow ---------------------------------------------------------------------------------------------------


def if_(w: HloLines, node: Node) -> None:
    condition, *captures = w.values(node)

    def branch(name: str) -> Region:
        return [], lambda inner: inner.sub_graph(node.attrs[name], captures)

    branches = [branch(name) for name in ("then_branch", "else_branch")]
    w.give(node, *w.operation("stablehlo.if", [condition], node.types, "", branches))


def loop(w: HloLines, node: Node) -> None:
    """The number of the trip, the condition, what is carried, and room for what each trip adds to the results."""
    trips, condition, *others = w.values(node)
    body, n = node.attrs["body"], node.attrs["n_carried"]
    carried, captures, scanned = others[:n], others[n:], node.types[n:]
    for t in node.types:
        sizes(t)  # what is carried keeps its size
    length = node.attrs["length"]
    if scanned and (not is_known(length) or length < 0):
        raise OpError("a loop whose results grow by a number of trips that each call gives is not written")
    room = [broadcast(w, w.scalar(0, t.dtype), sizes(t)) for t in scanned]
    given = [w.scalar(0, types.i64), condition, *carried, *room]
    arguments, tested = ([w.fresh(v.type) for v in given] for _ in range(2))

    def goes_on(inner: HloLines) -> Sequence[HloValue]:
        is_left = compared(inner, tested[0], trips, "LT")
        return [inner.one("and", [is_left, tested[1]], is_left.type)]

    def step(inner: HloLines) -> Sequence[HloValue]:
        own = arguments[: 2 + n]
        still, *results = inner.sub_graph(body, [*own, *captures])
        kept = [
            _row_written(inner, buffer, row, own[0])
            for buffer, row in zip(arguments[2 + n :], results[n:], strict=True)
        ]
        return [inner.one("add", [own[0], inner.scalar(1, types.i64)], own[0].type), still, *results[:n], *kept]

    regions: list[Region] = [(tested, goes_on), (arguments, step)]
    made = w.operation("stablehlo.while", given, [v.type for v in given], "", regions)
    w.give(node, *made[2:])


def _row_written(w: HloLines, buffer: HloValue, row: HloValue, at: HloValue) -> HloValue:
    """A buffer with one trip's result at its place; one for no trip has none."""
    if buffer.shape[0] == 0:
        return buffer
    flat = w.one("reshape", [row], row.type.with_shape((1, *row.shape)))
    starts = [at, *[w.scalar(0, types.i64)] * row.type.rank]
    return w.one("dynamic_update_slice", [buffer, flat, *starts], buffer.type)
