"""ATen's calls whose result's size only data decide: where a mask holds, what stands there, which values there are.

In: calls, whose results have a symbol of PyTorch's for the unknown size. Out: nodes with a symbol of ours, which the
mask's number of elements bounds; ``fx`` makes the two one. Not its business: assignment by a mask, whose result has
the operand's shape (``aten_index``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Node
from tilewright.core.types import bool_, i64
from tilewright.frontend.aten_call import (
    Call,
    Result,
    Unsupported,
    cast,
    dim_scalar,
    expand,
    reshape,
    slice_axis,
)
from tilewright.frontend.fx_symbols import is_decided_by_data
from tilewright.ops.value_bounds import bounds_of

Convert = Callable[[Call], Result]


def places(c: Call, mask: Node) -> Node:
    """Where ``mask`` holds, ``i64[n, rank]`` in row-major order; ``n`` is the call's data-dependent size."""
    found, _ = c.b.results(c.b(ops.argwhere, mask, count=unknown_size(c)))
    return found


def unknown_size(c: Call) -> str:
    """The name of the call's data-dependent size."""
    unknown = sorted({d.name for t in c.results if t for d in t.shape if isinstance(d, Sym) and is_decided_by_data(d)})
    if len(unknown) != 1:
        raise Unsupported(f"a result {c.out} of which data decide a size that PyTorch fixes", "use torch.where")
    return unknown[0]


def size_of(c: Call, value: Node) -> Dim:
    """The integer ``value`` as the call's data-dependent size, bounded by the program's promise or its arithmetic."""
    name = unknown_size(c)
    promised = next(d.hi for t in c.results if t for d in t.shape if isinstance(d, Sym) and d.name == name)
    most = bounds_of(value)[1] if promised is None else promised
    if most is None:
        remedy = "clamp what it is computed of, or promise torch._check(result.shape[0] <= n)"
        raise Unsupported("a size that nothing bounds", remedy)
    marker, _ = c.b.results(c.b(ops.as_size, reshape(c.b, value, ()), count=name, most=most))
    return marker.shape[1]


def _bincount(c: Call) -> Node:
    """How often each number occurs, or the sum of its weights; elements that are no place do not count."""
    b, x, least = c.b, c.tensor("self", i64), c.b.const(c.static("minlength"), i64)
    needed = least
    if x.type.n_elements != 0:
        needed = b(ops.maximum, least, b(ops.add, b(ops.reduce_max, x, axes=(0,), keepdims=False), b.const(1, i64)))
    n = size_of(c, needed)
    end = dim_scalar(b, n, i64)
    inside = b(ops.logical_and, b(ops.ge, x, b.const(0, i64)), b(ops.lt, x, end))
    weights = c.optional("weights", c.dtype)
    added = weights if weights is not None else b(ops.full, value=1.0, dtype=c.dtype, shape=x.shape)
    counts = b(ops.full, value=0.0, dtype=c.dtype, shape=(n + 1,))
    counts = b(ops.scatter_elements, counts, b(ops.where, inside, x, end), added, axis=0, reduction="add")
    return slice_axis(b, counts, 0, 0, n)


def _nonzero(c: Call) -> Node:
    x = c.tensor("self")
    if not x.shape:
        return reshape(c.b, places(c, reshape(c.b, x, (1,))), c.shape)
    return places(c, x)


def _masked_select(c: Call) -> Node:
    x, mask = c.tensor("self"), c.tensor("mask", bool_)
    shape = _broadcast(c, x, mask)
    at = places(c, reshape(c.b, expand(c.b, mask, shape), (_count(c, shape),)))
    return c.b(ops.gather_nd, reshape(c.b, expand(c.b, x, shape), (_count(c, shape),)), at)


def _broadcast(c: Call, x: Node, mask: Node) -> tuple[Dim, ...]:
    return c.b(ops.logical_and, cast(c.b, x, bool_), mask).shape


def _count(c: Call, shape: tuple[Dim, ...]) -> Dim:
    n: Dim = 1
    for d in shape:
        n = n * d
    return n


def _unique(c: Call) -> Result:
    """Sorted, equal neighbours fall together. Values, the place of each element among them, how often each occurs."""
    x = c.tensor("self")
    n = x.type.n_elements
    ordered, order = c.b.results(c.b(ops.sort, reshape(c.b, x, (n,)), axis=0))
    values, kind, counts = _runs(c, ordered)
    untouched = c.b(ops.full, value=0.0, dtype=i64, shape=(n,))
    inverse = c.b(ops.scatter_elements, untouched, order, kind, axis=0)
    return _asked_for(c, values, reshape(c.b, inverse, x.shape), counts)


def _asked_for(c: Call, values: Node, inverse: Node, counts: Node) -> Result:
    """Places and counts that nobody asked for are empty tensors."""
    empty = c.b(ops.full, value=0.0, dtype=i64, shape=(0,))
    return values, inverse if c["return_inverse"] else empty, counts if c["return_counts"] else empty


def _unique_consecutive(c: Call) -> Result:
    if c["dim"] is not None:
        raise Unsupported("unique_consecutive along a dimension", "flatten the tensor first")
    x = c.tensor("self")
    values, kind, counts = _runs(c, reshape(c.b, x, (x.type.n_elements,)))
    return _asked_for(c, values, reshape(c.b, kind, x.shape), counts)


def _runs(c: Call, x: Node) -> tuple[Node, Node, Node]:
    """Of each run of equal elements of a row: the value, the number of the run for every element, and the length."""
    (n,) = x.shape
    before = c.b(ops.gather, x, c.b(ops.sub, c.b(ops.iota, extent=n, dtype=i64), c.b.const(1, i64)), axis=0)
    is_first = c.b(ops.eq, c.b(ops.iota, extent=n, dtype=i64), c.b.const(0, i64))
    starts = c.b(ops.logical_or, is_first, c.b(ops.ne, x, before))
    kind = c.b(ops.sub, c.b(ops.cumsum, cast(c.b, starts, i64), axis=0), c.b.const(1, i64))
    at = places(c, starts)
    count = at.shape[0]
    zeros = c.b(ops.full, value=0.0, dtype=i64, shape=(count,))
    ones = c.b(ops.full, value=1.0, dtype=i64, shape=(n,))
    lengths = c.b(ops.scatter_elements, zeros, kind, ones, axis=0, reduction="add")
    return c.b(ops.gather, x, reshape(c.b, at, (count,)), axis=0), kind, lengths


TABLE: Mapping[str, Convert] = {
    "nonzero.default": _nonzero, "masked_select.default": _masked_select, "_unique2.default": _unique,
    "unique_consecutive.default": _unique_consecutive, "bincount.default": _bincount,
}  # fmt: skip
