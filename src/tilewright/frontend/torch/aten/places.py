"""ATen's calls whose result's size only data decide: where a mask holds, what stands there, which values there are.

In: calls, whose results have a symbol of PyTorch's for the unknown size. Out: nodes with a symbol of ours, which the
mask's number of elements bounds; ``fx`` makes the two one. Not its business: assignment by a mask, whose result has
the operand's shape (``torch.aten.index``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, maximum
from tilewright.core.graph import Node
from tilewright.core.types import bool_, i64, product
from tilewright.frontend.distinct import distinct, runs
from tilewright.frontend.nodes import dim_scalar, expand, reshape, slice_axis
from tilewright.frontend.torch.aten.call import (
    AtenCall,
    Result,
    Unsupported,
    cast,
    is_decided_by_data,
    norm_axis,
)
from tilewright.ops.value_bounds import bounds_of

Convert = Callable[[AtenCall], Result]

OWN = 10**9
"""Added to a node's number in the name of a size: PyTorch counts its own from 0."""
UNBOUNDED = "a size that nothing bounds"
"""The rule that a call breaks whose result's size only data decide, where no memory can be planned for it."""


def places(c: AtenCall, mask: Node) -> Node:
    """Where ``mask`` holds, ``i64[n, rank]`` in row-major order; ``n`` is the call's data-dependent size.

    Of a mask without elements PyTorch may know that ``n`` is 0.
    """
    if mask.type.n_elements == 0 and not _unknown_sizes(c):
        return c.b(ops.full, value=0.0, dtype=i64, shape=(0, len(mask.shape)))
    found, _ = c.b.results(c.b(ops.argwhere, mask, count=unknown_size(c, mask)))
    return found


def unknown_size(c: AtenCall, source: Node) -> str:
    """The name of the size that ``source`` decides.

    One of our own where the program only works for a certain size, as in a sum with another tensor, and PyTorch has
    that in its place: a call ends where data decide on another (``frontend.size_rules``).
    """
    unknown = _unknown_sizes(c)
    if len(unknown) > 1:
        raise Unsupported(f"a result {c.out} of which data decide several sizes", "use torch.where")
    return unknown[0] if unknown else f"u{OWN + source.serial}"


def _unknown_sizes(c: AtenCall) -> list[str]:
    return sorted({d.name for t in c.results if t for d in t.shape if is_decided_by_data(d)})


def size_of(c: AtenCall, value: Node) -> Dim:
    """The integer ``value`` as the call's data-dependent size, bounded by the program's promise or its arithmetic."""
    name = unknown_size(c, value)
    sizes = [d for t in c.results if t for d in t.shape]
    if not _unknown_sizes(c):  # one more than there may be is another number than the program's, however large it is
        most: Dim | None = reduce(maximum, sizes) + 1
    else:
        promised = next(d.hi for d in sizes if isinstance(d, Sym) and d.name == name)
        most = bounds_of(value)[1] if promised is None else promised
    if most is None:
        remedy = "clamp what it is computed of, or promise torch._check(result.shape[0] <= n)"
        raise Unsupported(UNBOUNDED, remedy)
    marker, _ = c.b.results(c.b(ops.as_size, reshape(c.b, value, ()), count=name, most=most))
    return marker.shape[1]


def slice_by_data(c: AtenCall, x: Node, axis: int, step: int) -> Node:
    """A slice of which data decide where it begins or ends; its size is at most that of the whole axis."""
    b, n = c.b, dim_scalar(c.b, x.shape[axis], i64)
    start, end = (_inside(c, c[name], n, default) for name, default in (("start", 0), ("end", x.shape[axis])))
    size = c.shape[axis]
    if is_decided_by_data(size):
        length = b(ops.maximum, b(ops.sub, end, start), b.const(0, i64))
        length = b(ops.floor_div, b(ops.add, length, b.const(step - 1, i64)), b.const(step, i64))
        marker, _ = b.results(b(ops.as_size, length, count=size.name, most=x.shape[axis]))
        size = marker.shape[1]
    if c["start"] is None or (is_known(c["start"]) and c["start"] == 0):
        return slice_axis(b, x, axis, 0, size, step)
    at = b(ops.add, start, b(ops.mul, b(ops.iota, extent=size, dtype=i64), b.const(step, i64)))
    return b(ops.gather, x, at, axis=axis)


def _inside(c: AtenCall, index: Dim | Node | None, n: Node, default: Dim) -> Node:
    """An end of a slice as Python means it: negative counts from the end, and the result lies in ``0..n``."""
    b, zero = c.b, c.b.const(0, i64)
    at = default if index is None else index
    at = reshape(b, cast(b, at, i64), ()) if isinstance(at, Node) else dim_scalar(b, at, i64)
    at = b(ops.where, b(ops.lt, at, zero), b(ops.add, at, n), at)
    return b(ops.minimum, b(ops.maximum, at, zero), n)


def _bincount(c: AtenCall) -> Node:
    """How often each number occurs, or the sum of its weights; elements that are no place do not count.

    A ``minlength`` that is the result's own size is that size, which was found before (``torch_compile.sizes``).
    """
    b, x = c.b, c.tensor("self", i64)
    n = c["minlength"]
    if not is_decided_by_data(n) or n.name not in _unknown_sizes(c):
        needed = dim_scalar(b, n, i64)
        if x.type.n_elements != 0:
            most = b(ops.reduce_max, x, axes=(0,), keepdims=False)
            needed = b(ops.maximum, needed, b(ops.add, most, b.const(1, i64)))
        n = size_of(c, needed)
    end = dim_scalar(b, n, i64)
    inside = b(ops.logical_and, b(ops.ge, x, b.const(0, i64)), b(ops.lt, x, end))
    weights = c.optional("weights", c.dtype)
    added = weights if weights is not None else b(ops.full, value=1.0, dtype=c.dtype, shape=x.shape)
    counts = b(ops.full, value=0.0, dtype=c.dtype, shape=(n + 1,))
    counts = b(ops.scatter_elements, counts, b(ops.where, inside, x, end), added, axis=0, reduction="add")
    return slice_axis(b, counts, 0, 0, n)


def _nonzero(c: AtenCall) -> Node:
    x = c.tensor("self")
    if not x.shape:
        return slice_axis(c.b, places(c, reshape(c.b, x, (1,))), 1, 0, 0)
    return places(c, x)


def _masked_select(c: AtenCall) -> Node:
    x, mask = c.tensor("self"), c.tensor("mask", bool_)
    shape = _broadcast(c, x, mask)
    at = places(c, reshape(c.b, expand(c.b, mask, shape), (product(shape),)))
    return c.b(ops.gather_nd, reshape(c.b, expand(c.b, x, shape), (product(shape),)), at)


def _broadcast(c: AtenCall, x: Node, mask: Node) -> tuple[Dim, ...]:
    return c.b(ops.logical_and, cast(c.b, x, bool_), mask).shape


def _nothing(c: AtenCall) -> list[Node]:
    """The results for an operand without elements, whose sizes PyTorch knows."""
    return [c.b(ops.full, value=0.0, dtype=t.dtype, shape=t.shape) for t in c.results if t is not None]


def _unique(c: AtenCall) -> Result:
    """Values, the place of each element among them, how often each occurs."""
    x = c.tensor("self")
    if x.type.n_elements == 0:
        return _nothing(c)
    found = distinct(c.b, x, None, partial(_vector, c))
    return _asked_for(c, found.values, reshape(c.b, found.inverse, x.shape), found.counts)


def _unique_dim(c: AtenCall) -> Result:
    """As ``_unique`` for the slices along an axis, which are compared element by element."""
    x = c.tensor("self")
    if x.type.n_elements == 0:
        return _nothing(c)
    found = distinct(c.b, x, norm_axis(c["dim"], len(x.shape)), partial(_vector, c))
    return _asked_for(c, found.values, found.inverse, found.counts)


def _vector(c: AtenCall, flags: Node) -> Node:
    """:func:`places` of a vector."""
    found = places(c, flags)
    return reshape(c.b, found, found.shape[:1])


def _asked_for(c: AtenCall, values: Node, inverse: Node, counts: Node) -> Result:
    """Places and counts that nobody asked for are empty tensors."""
    empty = c.b(ops.full, value=0.0, dtype=i64, shape=(0,))
    unasked = [t is not None and t.shape == (0,) for t in c.results]
    return values, empty if unasked[1] else inverse, empty if unasked[2] else counts


def _unique_consecutive(c: AtenCall) -> Result:
    x = c.tensor("self")
    if x.type.n_elements == 0:
        return _nothing(c)
    flat = reshape(c.b, x, (x.type.n_elements,)) if c["dim"] is None else x
    axis = 0 if c["dim"] is None else norm_axis(c["dim"], len(x.shape))
    begins, numbers_, lengths = runs(c.b, flat, partial(_vector, c), axis)
    values = c.b(ops.gather, flat, begins, axis=axis)
    return _asked_for(c, values, numbers_ if flat is x else reshape(c.b, numbers_, x.shape), lengths)


TABLE: Mapping[str, Convert] = {
    "nonzero.default": _nonzero, "masked_select.default": _masked_select, "_unique2.default": _unique,
    "unique_dim.default": _unique_dim,
    "unique_consecutive.default": _unique_consecutive, "bincount.default": _bincount,
}  # fmt: skip
