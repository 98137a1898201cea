"""Converters of ONNX ops whose positions are data: gather, scatter, selection, sorting.

In: a ``Call``. Out: nodes of the graph IR. Not its business: slices with known bounds (``onnx.ops.movement``).
"""

from __future__ import annotations

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known, known_under
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import f32, i64
from tilewright.frontend.distinct import distinct
from tilewright.frontend.homes import TyingBuilder
from tilewright.frontend.index_checks import index_check
from tilewright.frontend.onnx.call import Call, Results, Table
from tilewright.frontend.onnx.ops.contract import refuse_misfit
from tilewright.frontend.onnx.shapes import is_symbolic

REDUCTIONS = ("none", "add", "mul", "min", "max")


def _axis(c: Call, default: int = 0) -> int:
    return c.axis(c.int_("axis", default), len(c.x(0).shape))


def _gather(c: Call) -> Node:
    x, indices, axis = c.x(0), c.x(1), _axis(c)
    if x.shape:
        found = index_check(c, c.dim_value, x.shape, indices, axis, -1 * x.shape[axis], c.loc, c.emitter.formals)
        if found is not None:
            c.host.check(*found)
        _keep_inside(c, indices, x.shape[axis])
    return c(ops.gather, x, indices, axis=axis)


def _keep_inside(c: Call, indices: Node, n: Dim) -> None:
    """Let calls keep indices that no data decide within a dimension of ``n``."""
    values = c.emitter.values(indices)
    for k in sorted(set(values.flat), key=str) if values is not None else ():
        if known_under(n - 1 - k, 0) or known_under(n + k, 0):
            refuse_misfit(c, f"index {k} is outside of a dimension of {n}", "use indices within the dimension")
        c.assume(n - 1 - k, n + k)


def _gather_elements(c: Call) -> Node:
    return c(ops.gather_elements, c.x(0), c.x(1), axis=_axis(c))


def _gather_nd(c: Call) -> Node:
    return c(ops.gather_nd, c.x(0), c.x(1), batch_dims=c.int_("batch_dims", 0))


def _scatter_elements(c: Call) -> Node:
    reduction = c.choice("reduction", REDUCTIONS, "none")
    return c(ops.scatter_elements, c.x(0), c.x(1), c.x(2), axis=_axis(c), reduction=reduction)


def _scatter_nd(c: Call) -> Node:
    return c(ops.scatter_nd, c.x(0), c.x(1), c.x(2), reduction=c.choice("reduction", REDUCTIONS, "none"))


def _one_hot(c: Call) -> Node:
    indices, off_on = c.x(0), c.x(2)
    depth = c.sizes(c.cast(c.x(1), i64), "depth")[0]
    axis = c.axis(c.int_("axis", -1), len(indices.shape) + 1)
    return c(ops.one_hot, c.cast(indices, i64), off_on, depth=depth, axis=axis)


def _top_k(c: Call) -> Results:
    x = c.x(0)
    axis = _axis(c, -1)
    k: Dim = c.int_("k") if c.opset < 10 else c.sizes(c.x(1), "k")[0]
    c.assume(x.shape[axis] - k)
    return c.results(
        c(ops.top_k, x, k=k, axis=axis, largest=c.flag("largest", True), sorted=c.flag("sorted", True))
    )  # fmt: skip


def nonzero(c: Call, x: Node) -> Node:
    """Positions of elements that are not zero, i64[rank, n]; n is a new symbol unless ``x`` is known."""
    known = c.emitter.values(x)
    if known is not None and not is_symbolic(known):
        return c.array(np.array(np.nonzero(known.astype(bool)), np.int64))
    return c.results(c(ops.nonzero, x, count=c.emitter.fresh("n_nonzero")))[0]


def _non_zero(c: Call) -> Node:
    x = c.x(0)
    return nonzero(c, x if x.shape else c.reshape(x, (1,)))


def _compress(c: Call) -> Node:
    """The slices where a condition holds."""
    x, condition = c.x(0), c.x(1)
    axis = 0
    if c.has("axis"):
        axis = _axis(c)
    else:
        x = c.reshape(x, (x.type.n_elements,))
    places = nonzero(c, condition)
    return c(ops.gather, x, c.reshape(places, (places.shape[1],)), axis=axis)


def steps_along(c: Call, x: Node, axis: int) -> Node:
    """0, 1, 2... along ``axis``, of size 1 elsewhere."""
    return c.align(c(ops.iota, extent=x.shape[axis], dtype=i64), axis, len(x.shape))


def _along(c: Call, x: Node, axis: int, rank: int) -> Node:
    return c.align(c.cast(x, i64), axis, rank)


def _reverse_sequence(c: Call) -> Node:
    """The first ``lengths[b]`` steps of each batch row in opposite order."""
    x, lengths = c.x(0), c.x(1)
    rank = len(x.shape)
    batch, time = c.axis(c.int_("batch_axis", 1), rank), c.axis(c.int_("time_axis", 0), rank)
    if batch == time:
        c.refuse("batch_axis and time_axis are the same")
    step, length = steps_along(c, x, time), _along(c, lengths, batch, rank)
    turned = c(ops.sub, c(ops.sub, length, c.const(1, i64)), step)
    places = c(ops.where, c(ops.lt, step, length), turned, step)
    return c(ops.gather_elements, x, c.expand(places, x.shape), axis=time)


def _tensor_scatter(c: Call) -> Node:
    """A cache with an update written at a position per batch row."""
    cache, update, starts = c.x(0), c.x(1), c.opt(2)
    rank = len(cache.shape)
    axis = c.axis(c.int_("axis", -2), rank)
    if axis == 0:
        c.refuse("axis=0 is the batch")
    circular = c.choice("mode", ("linear", "circular"), "linear") == "circular"
    offset = steps_along(c, cache, axis)
    if starts is not None:
        offset = c(ops.sub, offset, _along(c, starts, 0, rank))
    if circular:
        offset = c(ops.mod, offset, c.dim_value(cache.shape[axis]))
    length = c.dim_value(update.shape[axis])
    inside = c(ops.logical_and, c(ops.ge, offset, c.const(0, i64)), c(ops.lt, offset, length))
    place = c(ops.where, inside, offset, c.const(0, i64))
    spread = [*cache.shape]
    taken = c(ops.gather_elements, update, c.expand(place, spread), axis=axis)
    return c(ops.where, inside, taken, cache)


def _non_max_suppression(c: Call) -> Node:
    boxes, scores, limit = c.x(0), c.x(1), c.opt(2)
    misfit = f"boxes {boxes.type} do not fit scores {scores.type}"
    if len(boxes.shape) != 3 or len(scores.shape) != 3:
        c.refuse(misfit)
    n_batches, _, n = scores.shape
    for a, b in zip(boxes.shape, (n_batches, n, 4), strict=True):
        c.require_equal(a, b, misfit)
    center = c.int_("center_point_box", 0) != 0
    most = int(c.number(limit, "max_output_boxes_per_class")) if limit is not None else 0
    if most < 1 or 0 in scores.shape:
        return c.full(0, i64, (0, 3))
    thresholds = []
    for k, default in ((3, 0.0), (4, -np.inf)):
        given = c.opt(k)
        thresholds.append(c.reshape(given, ()) if given is not None else c.const(default, f32))
    most = min(most, n) if is_known(n) else min(most, 1 << 31)
    order = c.results(c(ops.sort, scores, axis=2, descending=True))[1]
    form = {"limit": most, "center": center, "count": c.emitter.fresh("n_boxes")}
    return c.results(c(ops.suppress, boxes, scores, order, *thresholds, **form))[0]


def _unique(c: Call) -> Results:
    x = c.x(0)
    axis = c.axis(c.int_("axis"), len(x.shape)) if c.has("axis") else None
    return unique(c, x, axis, is_sorted=c.flag("sorted", True))


def unique(c: Call, x: Node, axis: int | None, *, is_sorted: bool) -> list[Node]:
    """Distinct elements or slices, where each is first, which of them each is, and how many are equal to each."""
    n = x.shape[axis] if axis is not None else x.type.n_elements
    if n == 0:
        return [x if axis is not None else c.reshape(x, (0,)), *(c.full(0, i64, (0,)) for _ in range(3))]

    def places(flags: Node) -> Node:
        found = nonzero(c, flags)
        return c.reshape(found, (found.shape[1],))

    b = TyingBuilder(c.emitter.pool, c.loc, c.emitter.homes)
    return list(distinct(b, x, axis, places, is_sorted=is_sorted, nan_is_one=True))


TABLE: Table = {
    "Compress": _compress,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "TopK": _top_k,
    "Unique": _unique,
}
