"""ATen's order statistics, searches and histograms.

In: calls. Out: nodes. Not its business: sort and top-k as such (``torch.aten.reduce``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from tilewright import ops
from tilewright.core.dims import known_over
from tilewright.core.expr import Dim, is_nonneg, maximum
from tilewright.core.graph import CONST, Builder, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import bool_, f32, f64, i32, i64
from tilewright.frontend.nodes import count_passed, dim_scalar, expand, reshape, slice_axis, transpose
from tilewright.frontend.torch.aten.call import AtenCall, Result, as_node, cast
from tilewright.frontend.torch.aten.places import size_of

Convert = Callable[[AtenCall], Result]

FEW_EDGES = 64
"""So many at most are all compared with each value: that takes less time than halving them."""


def _is_nan(b: Builder, x: Node) -> Node:
    return b(ops.isnan, x) if x.dtype.is_float else expand(b, b.const(False, bool_), x.shape)


def _positions(b: Builder, x: Node, axis: int) -> Node:
    """Each element's index along an axis."""
    n = x.shape[axis]
    row = reshape(b, b(ops.iota, extent=n, dtype=i64), tuple(n if k == axis else 1 for k in range(len(x.shape))))
    return expand(b, row, x.shape)


def _of_rank(b: Builder, x: Node, axis: int, k: Node) -> tuple[Node, Node]:
    """The element at rank ``k``, which has extent 1 along the axis, and its position."""
    value, position = b.results(b(ops.ranked, x, k, axis=axis))
    return value, position


def _nan_position(b: Builder, x: Node, axis: int) -> tuple[Node, Node]:
    """Whether a row holds NaN, and where the first is."""
    nan = _is_nan(b, x)
    far = as_node(b, x.shape[axis], i64)
    place = b(ops.where, nan, _positions(b, x, axis), far)
    return (
        b(ops.reduce_any, nan, axes=(axis,), keepdims=True),
        b(ops.reduce_min, place, axes=(axis,), keepdims=True),
    )


def _statistic(x: Node, axis: int, b: Builder, kind: str, rank: int = 0) -> tuple[Node, Node]:
    """The median or an element of a rank, and where it was; both with extent 1 along the axis."""
    n = x.shape[axis]
    row = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    if kind == "nanmedian" and x.dtype.is_float:
        valid = cast(b, b(ops.logical_not, _is_nan(b, x)), i64)
        count = b(ops.reduce_sum, valid, axes=(axis,), keepdims=True)
        half = b(ops.floor_div, b(ops.sub, count, b.const(1, i64)), b.const(2, i64))
        value, index = _of_rank(b, x, axis, b(ops.maximum, half, b.const(0, i64)))
        return _nan_of_nothing(b, value, n), index
    k = as_node(b, rank if kind == "rank" else (n - 1) // 2, i64)
    value, index = _of_rank(b, x, axis, expand(b, k, row))
    if kind == "median" and x.dtype.is_float:
        has_nan, where = _nan_position(b, x, axis)
        value = b(ops.where, has_nan, b.const(math.nan, x.dtype), value)
        index = b(ops.where, has_nan, where, index)
        value = _nan_of_nothing(b, value, n)
    return value, index


def _nan_of_nothing(b: Builder, value: Node, n: Dim) -> Node:
    """A median of ``n`` elements, which is NaN where calls or data leave none."""
    if is_nonneg(n - 1):
        return value
    is_nothing = b(ops.eq, dim_scalar(b, n, i64), b.const(0, i64))
    return b(ops.where, is_nothing, b.const(math.nan, value.dtype), value)


def _along(kind: str) -> Convert:
    def convert(c: AtenCall) -> Result:
        x = c.tensor("self")
        if not x.shape:
            return x, c.b.const(0, i64)
        axis = c.axis(len(x.shape))
        rank = c.static("k") - 1 if kind == "rank" else 0
        value, index = _statistic(x, axis, c.b, kind, rank)
        return reshape(c.b, value, c.shape), reshape(c.b, index, c.shape)

    return convert


def _of_all(kind: str) -> Convert:
    def convert(c: AtenCall) -> Node:
        x = c.tensor("self")
        n = x.type.n_elements
        if n == 0:
            return c.b.const(math.nan if x.dtype.is_float else x.dtype.min, x.dtype)
        value, _ = _statistic(reshape(c.b, x, (n,)), 0, c.b, kind)
        return reshape(c.b, value, ())

    return convert


def _mode(c: AtenCall) -> Result:
    """The most frequent value, the least of several, and the last place where it stands."""
    b, x = c.b, c.tensor("self")
    if not x.shape:
        return x, b.const(0, i64)
    axis = c.axis(len(x.shape))
    left = reshape(b, x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    right = reshape(b, x, (*x.shape[:axis], 1, *x.shape[axis:]))
    same = cast(b, b(ops.eq, left, right), i64)
    counts = b(ops.reduce_sum, same, axes=(axis + 1,), keepdims=False)
    most = b(ops.eq, counts, b(ops.reduce_max, counts, axes=(axis,), keepdims=True))
    highest = b.const(math.inf if x.dtype.is_float else x.dtype.max if x.dtype is not bool_ else True, x.dtype)
    candidates = b(ops.where, most, x, highest)
    if x.dtype is bool_:
        value = b(ops.reduce_all, candidates, axes=(axis,), keepdims=True)
    else:
        value = b(ops.reduce_min, candidates, axes=(axis,), keepdims=True)
    place = b(ops.where, b(ops.eq, x, value), _positions(b, x, axis), b.const(0, i64))
    index = b(ops.reduce_max, place, axes=(axis,), keepdims=True)
    return reshape(b, value, c.shape), reshape(b, index, c.shape)


def _running(op: OpDef) -> Convert:
    """A running extreme and where it last was: places that equal it, carried on."""

    def convert(c: AtenCall) -> Result:
        b, x = c.b, c.tensor("self")
        if not x.shape:
            return x, b.const(0, i64)
        axis = c.axis(len(x.shape))
        flag = x.dtype is bool_
        wide = cast(b, x, i64) if flag else x
        y = b(op, wide, axis=axis)
        is_new = b(ops.eq, wide, y)
        if x.dtype.is_float:
            is_new = b(ops.logical_or, is_new, _is_nan(b, x))
        places = b(ops.where, is_new, _positions(b, x, axis), b.const(0, i64))
        return cast(b, y, x.dtype), b(ops.cummax, places, axis=axis)

    return convert


def _logcumsumexp(c: AtenCall) -> Node:
    """Sums of ``exp(x - m)`` for the running maximum ``m``; what came before shrinks where it grows."""
    b, x = c.b, c.tensor("self", c.dtype)
    if not x.shape:
        return x
    axis = c.axis(len(x.shape))
    wide = x if x.dtype is f64 else cast(b, x, f32)
    perm = (axis, *(k for k in range(len(x.shape)) if k != axis))
    first = transpose(b, wide, perm)
    most = b(ops.cummax, first, axis=0)
    most = b(ops.where, b(ops.isinf, most), b.const(0, wide.dtype), most)  # of infinities: inf - inf is no number
    n, rest = first.shape[0], first.shape[1:]
    start = b(ops.full, value=0.0, dtype=wide.dtype, shape=(1, *rest))
    before = b(ops.concat, start, slice_axis(b, most, 0, 0, maximum(n - 1, 0)), axis=0)
    before = slice_axis(b, before, 0, 0, n)
    factors = b(ops.exp, b(ops.sub, before, most))
    is_first = b(ops.eq, _positions(b, first, 0), b.const(0, i64))
    factors = b(ops.where, is_first, b.const(0, wide.dtype), factors)
    sums = b(ops.linear_scan, factors, b(ops.exp, b(ops.sub, first, most)))
    found = b(ops.add, most, b(ops.log, sums))
    return cast(b, transpose(b, found, [perm.index(k) for k in range(len(perm))]), c.dtype)


# --- searches and histograms ----------------------------------------------------------------------------------------


def counted(b: Builder, edges: Node, x: Node, right: bool) -> Node:
    """How many of ``edges[..., n]`` are below each of ``x[..., m]``, or from the right not above; NaN is above all.

    ``edges`` are in order along their last axis: of many, half are left out at a time.
    """
    n, m = edges.shape[-1], x.shape[-1]
    if known_over(n, FEW_EDGES):
        at = partial(b, ops.gather_elements, edges, axis=len(edges.shape) - 1)
        return count_passed(b, n, x.shape, lambda k: b(ops.logical_not, b(ops.gt if right else ops.ge, at(k), x)))
    edge = reshape(b, edges, (*edges.shape[:-1], 1, n))
    value = reshape(b, x, (*x.shape[:-1], m, 1))
    passed = b(ops.logical_not, b(ops.gt if right else ops.ge, edge, value))
    return b(ops.reduce_sum, cast(b, passed, i64), axes=(len(passed.shape) - 1,), keepdims=False)


def _probed(b: Builder, edges: Node, x: Node, right: bool, n: int) -> Node:
    """As :func:`counted`, by the very probes of PyTorch's binary search, whose answers for edges that are not in order
    (among them NaN, which no comparison passes) depend on which edges it looks at."""
    start, end = (b(ops.full, value=v, dtype=i64, shape=x.shape) for v in (0, n))
    one, last = b.const(1, i64), b.const(n - 1, i64)
    for _ in range(n.bit_length()):
        middle = b(ops.shift_right, b(ops.add, start, end), one)
        edge = b(ops.gather_elements, edges, b(ops.minimum, middle, last), axis=len(edges.shape) - 1)
        passed = b(ops.logical_not, b(ops.gt if right else ops.ge, edge, x))
        is_open = b(ops.lt, start, end)
        after = b(ops.where, b(ops.logical_and, is_open, passed), b(ops.add, middle, one), start)
        end = b(ops.where, b(ops.logical_and, is_open, b(ops.logical_not, passed)), middle, end)
        start = after
    return start


def _may_hold_nan(edges: Node) -> bool:
    if edges.op is CONST:
        return bool(np.isnan(edges.attrs.data.array.astype(np.float64)).any())
    return edges.dtype.is_float


def _search(c: AtenCall, edges: Node, x: Node, right: bool) -> Node:
    """One row of edges for all values, or a row for each row of them."""
    if x.dtype is not edges.dtype:
        wide = f64 if x.dtype.is_float or edges.dtype.is_float else i64
        edges, x = cast(c.b, edges, wide), cast(c.b, x, wide)
    shape, n = x.shape, edges.shape[-1]
    if len(edges.shape) == 1:
        x = reshape(c.b, x, (x.type.n_elements,))
    if known_over(n, 0) and _may_hold_nan(edges):
        found = _probed(c.b, edges, x, right, n)
    else:
        found = counted(c.b, edges, x, right)
    return cast(c.b, reshape(c.b, found, shape), i32 if c["out_int32"] else i64)


def _searchsorted(c: AtenCall) -> Node:
    edges, x = c.tensor("sorted_sequence"), as_node(c.b, c["self"])
    if c["sorter"] is not None:
        edges = c.b(ops.gather_elements, edges, c.tensor("sorter"), axis=len(edges.shape) - 1)
    return _search(c, edges, x, bool(c["right"]) or c["side"] == "right")


def _bucketize(c: AtenCall) -> Node:
    return _search(c, c.tensor("boundaries"), as_node(c.b, c["self"]), bool(c["right"]))


def _histc(c: AtenCall) -> Node:
    """Equal bins from the least to the greatest, or between bounds; values outside do not count."""
    b, x, bins = c.b, c.tensor("self"), c.static("bins")
    low, high = c.static("min"), c.static("max")
    flat = cast(b, reshape(b, x, (x.type.n_elements,)), f64)
    if x.type.n_elements == 0:
        return b(ops.full, value=0.0, dtype=c.dtype, shape=c.shape)
    first, last = b.const(low, f64), b.const(high, f64)
    if low == high:
        first = b(ops.reduce_min, flat, axes=(0,), keepdims=False)
        last = b(ops.reduce_max, flat, axes=(0,), keepdims=False)
    one, same = b.const(1, f64), b(ops.eq, first, last)
    first, last = (b(ops.where, same, b(op, v, one), v) for v, op in ((first, ops.sub), (last, ops.add)))
    position = b(ops.div, b(ops.mul, b(ops.sub, flat, first), b.const(bins, f64)), b(ops.sub, last, first))
    at = b(ops.minimum, cast(b, position, i64), b.const(bins - 1, i64))
    inside = b(ops.logical_and, b(ops.ge, flat, first), b(ops.le, flat, last))
    at = b(ops.where, inside, at, b.const(bins, i64))
    counts = b(ops.full, value=0.0, dtype=c.dtype, shape=(bins + 1,))
    ones = b(ops.full, value=1.0, dtype=c.dtype, shape=flat.shape)
    counts = b(ops.scatter_elements, counts, at, ones, axis=0, reduction="add")
    return slice_axis(b, counts, 0, 0, bins)


def _repeat_interleave(c: AtenCall) -> Node:
    """The index of what is repeated, for each result; where their number is not given, something must bound it."""
    repeats = c.tensor("repeats", i64)
    n: Dim = c.shape[0]
    if c["output_size"] is None:
        n = size_of(c, c.b(ops.reduce_sum, repeats, axes=(0,)))
    ends = c.b(ops.cumsum, repeats, axis=0)
    return cast(c.b, counted(c.b, ends, c.b(ops.iota, extent=n, dtype=i64), True), c.dtype)


TABLE: Mapping[str, Convert] = {
    "kthvalue.default": _along("rank"), "median.dim": _along("median"), "nanmedian.dim": _along("nanmedian"),
    "median.default": _of_all("median"), "nanmedian.default": _of_all("nanmedian"), "mode.default": _mode,
    "cummax.default": _running(ops.cummax), "cummin.default": _running(ops.cummin),
    "logcumsumexp.default": _logcumsumexp, "searchsorted.Tensor": _searchsorted, "searchsorted.Scalar": _searchsorted,
    "bucketize.Tensor": _bucketize, "bucketize.Scalar": _bucketize, "histc.default": _histc,
    "repeat_interleave.Tensor": _repeat_interleave,
}  # fmt: skip
