"""ATen's histograms in one and several dimensions.

In: a ``AtenCall``. Out: nodes of the graph IR. Not its business: ``histc``, which has equal bins only
(``torch.aten.order``).

A value belongs to the bin whose lower edge is the last that is not above it; the last edge belongs to the last bin, and
what lies outside or is NaN does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Builder, Node
from tilewright.core.types import f64, i64
from tilewright.frontend.nodes import reshape, slice_axis
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast
from tilewright.frontend.torch.aten.order import counted

Convert = Callable[[AtenCall], Result]


def _equal_edges(c: AtenCall, points: Node, bins: Sequence[int]) -> list[Node]:
    """Edges of equal bins along each dimension of ``points[n, d]``, over the given range or that of the values."""
    b, given = c.b, c["range"]
    edges: list[Node] = []
    for d, n in enumerate(bins):
        if given is not None:
            first, last = (b.const(float(given[2 * d + k]), f64) for k in (0, 1))
        elif points.shape[0] == 0:
            first, last = b.const(0.0, f64), b.const(1.0, f64)
        else:
            column = cast(b, slice_axis(b, points, 1, d, 1), f64)
            first, last = (b(op, column, axes=(0, 1), keepdims=False) for op in (ops.reduce_min, ops.reduce_max))
        half = b(ops.where, b(ops.eq, first, last), b.const(0.5, f64), b.const(0.0, f64))
        first, last = b(ops.sub, first, half), b(ops.add, last, half)
        step = b(ops.div, b(ops.sub, last, first), b.const(n, f64))
        i = b(ops.iota, extent=n + 1, dtype=f64)
        rising = b(ops.add, first, b(ops.mul, i, step))
        falling = b(ops.sub, last, b(ops.mul, b(ops.sub, b.const(n, f64), i), step))
        upper = b(ops.ge, i, b.const((n + 1) // 2, f64))
        edges.append(cast(b, b(ops.where, upper, falling, rising), points.dtype))
    return edges


def _counts(c: AtenCall, points: Node, edges: Sequence[Node]) -> Node:
    """How many of ``points[n, d]``, or how much of their weights, lie in each bin; by volume for a density."""
    b = c.b
    n = points.shape[0]
    shape: list[int] = []
    for e in edges:
        if not is_known(e.shape[0]):
            raise Unsupported("a symbolic number of bins", "use a fixed number")
        shape.append(e.shape[0] - 1)
    at, inside = b.const(0, i64), b.const(True)
    for d, e in enumerate(edges):
        x = reshape(b, slice_axis(b, points, 1, d, 1), (n,))
        last = reshape(b, slice_axis(b, e, 0, shape[d], 1), ())
        k = b(ops.sub, counted(b, e, x, True), b.const(1, i64))
        k = b(ops.minimum, k, b.const(shape[d] - 1, i64))
        known = b(ops.logical_and, b(ops.ge, k, b.const(0, i64)), b(ops.le, x, last))
        inside = b(ops.logical_and, inside, known)
        at = b(ops.add, b(ops.mul, at, b.const(shape[d], i64)), k)
    total = 1
    for size in shape:
        total *= size
    at = b(ops.where, inside, at, b.const(total, i64))  # a place behind the bins for what does not count
    weight = c.optional("weight", points.dtype)
    weight = b(ops.full, value=1.0, dtype=points.dtype, shape=(n,)) if weight is None else reshape(b, weight, (n,))
    found = b(ops.full, value=0.0, dtype=points.dtype, shape=(total + 1,))
    found = b(ops.scatter_elements, found, at, weight, axis=0, reduction="add")
    found = reshape(b, slice_axis(b, found, 0, 0, total), shape)
    return _density(b, found, edges) if c["density"] else found


def _density(b: Builder, found: Node, edges: Sequence[Node]) -> Node:
    """Counts by their sum and the volume of each bin."""
    rank = len(edges)
    found = b(ops.div, found, b(ops.reduce_sum, found, axes=tuple(range(rank)), keepdims=False))
    for d, e in enumerate(edges):
        bins = found.shape[d]
        width = b(ops.sub, slice_axis(b, e, 0, 1, bins), slice_axis(b, e, 0, 0, bins))
        found = b(ops.div, found, reshape(b, width, [bins if k == d else 1 for k in range(rank)]))
    return found


def _column(c: AtenCall) -> Node:
    x = c.tensor("self")
    return reshape(c.b, x, (x.type.n_elements, 1))


def _histogram(c: AtenCall) -> Result:
    points = _column(c)
    edges = _equal_edges(c, points, [c.static("bins")])
    return _counts(c, points, edges), edges[0]


def _histogram_of_edges(c: AtenCall) -> Result:
    edges = c.tensor("bins")
    return _counts(c, _column(c), [edges]), edges


def _points(c: AtenCall) -> Node:
    x = c.tensor("self")
    n = x.type.with_shape(x.shape[:-1]).n_elements
    return reshape(c.b, x, (n, x.shape[-1]))


def _edges_only(c: AtenCall) -> Result:
    return tuple(_equal_edges(c, _points(c), c["bins"]))


def _from_counts(c: AtenCall) -> Node:
    points = _points(c)
    return _counts(c, points, _equal_edges(c, points, c["bins"]))


def _from_edges(c: AtenCall) -> Node:
    return _counts(c, _points(c), c.tensors("bins"))


TABLE: Mapping[str, Convert] = {
    "histogram.bin_ct": _histogram,
    "histogram.bins_tensor": _histogram_of_edges,
    "_histogramdd_bin_edges.default": _edges_only,
    "_histogramdd_from_bin_cts.default": _from_counts,
    "_histogramdd_from_bin_tensors.default": _from_edges,
}
