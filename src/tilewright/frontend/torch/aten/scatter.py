"""ATen's scatters that need more than one op: reductions with a fresh start, masks, flat positions, strided targets.

In: calls. Out: nodes. Not its business: plain scatters and index assignment (``torch.aten.index``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright import ops
from tilewright.core.dims import are_known, is_known, numbers
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import Array, DType, bool_, i64, product
from tilewright.frontend.nodes import dim_scalar, expand, reshape, slice_axis
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, as_node, cast

Convert = Callable[[AtenCall], Result]

REDUCTIONS: Mapping[str, str] = {"sum": "add", "prod": "mul", "mean": "add", "amin": "min", "amax": "max"}


def start_of(name: str, dtype: DType) -> float | int | bool:
    """What a reduction starts from."""
    if name in ("sum", "mean"):
        return 0
    if name == "prod":
        return 1
    if dtype.is_float:
        return math.inf if name == "amin" else -math.inf
    if dtype is bool_:
        return name == "amin"
    return dtype.max if name == "amin" else dtype.min


def _scattered(c: AtenCall, x: Node, index: Node, src: Node, axis: int, name: str, include_self: bool) -> Node:
    """Fold ``src`` into ``x``; without ``include_self``, what is written to at all starts anew."""
    b = c.b
    if name not in REDUCTIONS:
        raise Unsupported(f"the reduction {name}", f"use one of {', '.join(REDUCTIONS)}")
    flag = x.dtype is bool_
    if flag:  # folded as bytes: and, or
        x, src = cast(b, x, i64), cast(b, src, i64)
    if not include_self:
        fresh = expand(b, b.const(start_of(name, x.dtype), x.dtype), src.shape)
        x = b(ops.scatter_elements, x, index, fresh, axis=axis, reduction="none")
    y = b(ops.scatter_elements, x, index, src, axis=axis, reduction=REDUCTIONS[name])
    if name == "mean":
        ones = b(ops.full, value=1.0, dtype=y.dtype, shape=src.shape)
        start = b(ops.full, value=1.0 if include_self else 0.0, dtype=y.dtype, shape=y.shape)
        counts = b(ops.scatter_elements, start, index, ones, axis=axis, reduction="add")
        counts = b(ops.maximum, counts, b.const(1, y.dtype))
        y = b(ops.div if y.dtype.is_float else ops.floor_div, y, counts)
    return cast(b, y, bool_) if flag else y


def _scatter_reduce(c: AtenCall) -> Node:
    x, index, src = c.tensor("self"), c.tensor("index"), c.tensor("src", c.dtype)
    shape = x.shape
    if not shape:
        x, index, src = (reshape(c.b, t, (t.type.n_elements,)) for t in (x, index, src))
    if not index.shape:
        index, src = reshape(c.b, index, (1,)), reshape(c.b, src, (1,))
    for k, n in enumerate(index.shape):
        src = slice_axis(c.b, src, k, 0, n)
    axis = c.axis(len(x.shape))
    return reshape(c.b, _scattered(c, x, index, src, axis, c["reduce"], bool(c["include_self"])), shape)


def _index_reduce(c: AtenCall) -> Node:
    x, index, src = c.tensor("self"), c.tensor("index"), c.tensor("source", c.dtype)
    shape = x.shape
    if not shape:
        x, src = reshape(c.b, x, (1,)), reshape(c.b, src, (1,))
    axis = c.axis(len(x.shape))
    at = reshape(c.b, index, tuple(src.shape[axis] if k == axis else 1 for k in range(len(x.shape))))
    name = {"prod": "prod", "mean": "mean", "amin": "amin", "amax": "amax"}[c["reduce"]]
    at = expand(c.b, at, src.shape)
    return reshape(c.b, _scattered(c, x, at, src, axis, name, bool(c["include_self"])), shape)


def _flat(c: AtenCall, x: Node) -> Node:
    return reshape(c.b, x, (x.type.n_elements,))


def _put(c: AtenCall) -> Node:
    """Assignment at row-major positions."""
    x, index, src = c.tensor("self"), c.tensor("index"), c.tensor("source", c.dtype)
    if x.type.n_elements == 0:
        return x
    reduction = "add" if c["accumulate"] else "none"
    flat = c.b(ops.scatter_elements, _flat(c, x), _flat(c, index), _flat(c, src), axis=0, reduction=reduction)
    return reshape(c.b, flat, x.shape)


def _rank_among_set(c: AtenCall, flat: Node) -> tuple[Node, Node]:
    """For each element of a flat mask, how many before it are set; and how many are set in all."""
    ones = cast(c.b, flat, i64)
    before = c.b(ops.sub, c.b(ops.cumsum, ones, axis=0), ones)
    return before, c.b(ops.reduce_sum, ones, axes=(0,), keepdims=False)


def _masked_scatter(c: AtenCall) -> Node:
    """The set elements take the source's in order."""
    x, src = c.tensor("self"), c.tensor("source")
    x = expand(c.b, x, c.shape)
    mask = _flat(c, expand(c.b, c.tensor("mask", bool_), c.shape))
    if src.type.n_elements == 0 or x.type.n_elements == 0:
        return x
    rank, n_set = _rank_among_set(c, mask)
    if c.check is not None:
        n_given = dim_scalar(c.b, src.type.n_elements, i64)
        c.check(c.b(ops.le, n_set, n_given), "the mask has more places than the source has elements")
    taken = c.b(ops.gather, _flat(c, src), rank, axis=0)
    return reshape(c.b, c.b(ops.where, mask, taken, _flat(c, x)), c.shape)


def masked_put(c: AtenCall, x: Node, mask: Node, values: Node) -> Node:
    """``x[mask] = values`` for a mask over the leading axes: set places take rows of the values in order."""
    b, depth = c.b, len(mask.shape)
    rest = x.shape[depth:]
    if x.type.n_elements == 0:
        return x
    n_rows = mask.type.n_elements
    rows = reshape(b, x, (n_rows, *rest))
    flat = _flat(c, mask)
    full_rank = len(rest) + 1
    values = reshape(b, values, (*(1,) * (full_rank - len(values.shape)), *values.shape))
    count = values.shape[0]
    values = expand(b, values, (count, *rest))
    if count == 1:
        taken = expand(b, values, rows.shape)
    else:
        rank, n_set = _rank_among_set(c, flat)
        _check_count(c, count, n_set)
        if count == 0:
            return x
        taken = b(ops.gather, values, rank, axis=0)
    if c["accumulate"]:
        taken = b(ops.add, rows, taken)
    chosen = reshape(b, flat, (n_rows, *(1,) * len(rest)))
    return reshape(b, b(ops.where, chosen, taken, rows), x.shape)


def _check_count(c: AtenCall, count: Dim, n_set: Node) -> None:
    """There is a row of the values for each set place, or one for all."""
    if c.check is None:
        return
    b, given = c.b, dim_scalar(c.b, count, i64)
    fits = b(ops.eq, given, n_set)
    if not is_known(count):
        fits = b(ops.logical_or, fits, b(ops.eq, given, b.const(1, i64)))
    c.check(fits, f"the mask has not as many places as there are values, {count}")


def _with_positions(c: AtenCall, x: Node, src: Node, positions: Array) -> Node:
    """``x`` with ``src`` at row-major positions that are known now."""
    n = x.type.n_elements
    if not is_known(n):
        raise Unsupported("needs a static shape", "make the dimensions static")
    at = np.arange(n, dtype=np.int64)
    at[positions.ravel()] = n + np.arange(positions.size, dtype=np.int64)
    both = c.b(ops.concat, _flat(c, x), _flat(c, src), axis=0)
    return reshape(c.b, c.b(ops.gather, both, c.b.const(at), axis=0), x.shape)


def _positions(x: Node) -> Array:
    n = x.type.n_elements
    if not is_known(n):
        raise Unsupported("needs a static shape", "make the dimensions static")
    return np.arange(n, dtype=np.int64).reshape(numbers(x.shape))


def _diagonal_scatter(c: AtenCall) -> Node:
    x, src = c.tensor("self"), c.tensor("src", c.dtype)
    if not are_known(x.shape):
        strides = [product(x.shape[k + 1 :]) for k in range(len(x.shape))]
        row, column = (strides[c[name] % len(strides)] for name in ("dim1", "dim2"))
        kept = [d for k, d in enumerate(strides) if k not in (c["dim1"] % len(strides), c["dim2"] % len(strides))]
        start = c["offset"] * column if c["offset"] >= 0 else -c["offset"] * row
        return _at_strides(c, x, src, list(src.shape), [*kept, row + column], start)
    return _with_positions(c, x, src, np.diagonal(_positions(x), c["offset"], c["dim1"], c["dim2"]))


def _as_strided_scatter(c: AtenCall) -> Node:
    x, src = c.tensor("self"), c.tensor("src", c.dtype)
    size, stride, start = list(c["size"]), list(c["stride"]), c["storage_offset"]
    if not are_known((*size, *stride, start, *x.shape)):
        return _at_strides(c, x, src, size, stride, start)
    at = np.asarray(start, np.int64)
    for k, (count, step) in enumerate(zip(size, stride, strict=True)):
        at = at + (np.arange(count, dtype=np.int64) * step).reshape([-1 if j == k else 1 for j in range(len(size))])
    if at.size and not 0 <= at.min() <= at.max() < math.prod(_positions(x).shape):
        raise Unsupported("elements of memory that the operand does not have", "give as_strided the whole tensor")
    return _with_positions(c, x, src, np.broadcast_to(at, size))


def _at_strides(c: AtenCall, x: Node, src: Node, size: Sequence[Dim], stride: Sequence[Dim], start: Dim) -> Node:
    """``x`` with ``src`` at positions that only a call's sizes tell."""
    b = c.b
    at = as_node(b, start, i64)
    for k, (count, step) in enumerate(zip(size, stride, strict=True)):
        along = b(ops.mul, b(ops.iota, extent=count, dtype=i64), as_node(b, step, i64))
        at = b(ops.add, at, reshape(b, along, [count if j == k else 1 for j in range(len(size))]))
    at = _flat(c, expand(b, at, tuple(size)))
    made = b(ops.scatter_elements, _flat(c, x), at, _flat(c, src), axis=0, reduction="none")
    return reshape(b, made, x.shape)


def _nonzero_static(c: AtenCall) -> Node:
    """The first ``size`` places that are not zero; the rest holds the fill value."""
    b, x = c.b, c.tensor("self", bool_)
    rows, fill = c.static("size"), as_node(b, c["fill_value"], i64)
    rank, n = len(x.shape), x.type.n_elements
    if n == 0 or rank == 0 or rows == 0:
        return expand(b, fill, c.shape)
    mask = _flat(c, x)
    rank_of, _ = _rank_among_set(c, mask)
    spare = b.const(rows, i64)
    at = b(ops.where, b(ops.logical_and, mask, b(ops.lt, rank_of, spare)), rank_of, spare)
    start = expand(b, b.const(-1, i64), (rows + 1,))
    found = b(ops.scatter_elements, start, at, b(ops.iota, extent=n, dtype=i64), axis=0, reduction="none")
    found = slice_axis(b, found, 0, 0, rows)
    columns = []
    rest = found
    for d in reversed(x.shape):
        size = as_node(b, d, i64)
        columns.append(reshape(b, b(ops.mod, rest, size), (rows, 1)))
        rest = b(ops.floor_div, rest, size)
    places = columns[0] if rank == 1 else b(ops.concat, *columns[::-1], axis=1)
    is_set = reshape(b, b(ops.ge, found, b.const(0, i64)), (rows, 1))
    return b(ops.where, is_set, places, fill)


def _index_fill(c: AtenCall) -> Node:
    x, index = c.tensor("self"), c.tensor("index")
    value = c.tensor("value", c.dtype)
    if not x.shape:
        return expand(c.b, value, ()) if index.type.n_elements != 0 else x
    axis = c.axis(len(x.shape))
    index = _flat(c, index)
    shape = tuple(index.shape[0] if k == axis else d for k, d in enumerate(x.shape))
    at = reshape(c.b, index, tuple(index.shape[0] if k == axis else 1 for k in range(len(x.shape))))
    src = expand(c.b, reshape(c.b, value, ()), shape)
    return c.b(ops.scatter_elements, x, expand(c.b, at, shape), src, axis=axis, reduction="none")


TABLE: Mapping[str, Convert] = {
    "scatter_reduce.two": _scatter_reduce, "index_reduce.default": _index_reduce, "put.default": _put,
    "masked_scatter.default": _masked_scatter, "diagonal_scatter.default": _diagonal_scatter,
    "as_strided_scatter.default": _as_strided_scatter, "nonzero_static.default": _nonzero_static,
    "index_fill.int_Scalar": _index_fill, "index_fill.int_Tensor": _index_fill,
}  # fmt: skip
