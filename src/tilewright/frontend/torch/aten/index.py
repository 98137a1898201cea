"""ATen's reads and writes at indices that are data.

In: calls. Out: nodes. A boolean mask as an index stands for the places where it holds, whose number only data decide;
a write by one keeps the shape and is a ``where``. Not its business: slices (``torch.aten.movement``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import bool_, i64
from tilewright.frontend.nodes import expand, reshape, slice_axis, transpose
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast
from tilewright.frontend.torch.aten.places import places
from tilewright.frontend.torch.aten.scatter import masked_put

Convert = Callable[[AtenCall], Result]
MASK_REMEDY = "use torch.where(mask, ...) or a multiplication with the mask, which keep the shape"


def _embedding(c: AtenCall) -> Node:
    return c.b(ops.gather, c.tensor("weight"), c.tensor("indices"), axis=0)


def _index_select(c: AtenCall) -> Node:
    x, index = c.tensor("self"), c.tensor("index")
    if not x.shape:
        return x
    return c.b(ops.gather, x, reshape(c.b, index, (index.type.n_elements,)), axis=c.axis(len(x.shape)))


def _gather(c: AtenCall) -> Node:
    x, index = c.tensor("self"), c.tensor("index")
    if not x.shape:
        return expand(c.b, x, index.shape)
    if index.type.n_elements == 0:  # of any rank
        return c.b(ops.full, value=0.0, dtype=x.dtype, shape=index.shape)
    return c.b(ops.gather_elements, x, index, axis=c.axis(len(x.shape)))


def _indices(c: AtenCall) -> list[Node | None]:
    """The index of each axis of the operand; a mask is as many as it has axes."""
    found: list[Node | None] = []
    for i in c["indices"]:
        if not isinstance(i, Node):
            found.append(None if i is None else c.b.const(0, i64))
        elif i.dtype is bool_ and i.shape:
            at = places(c, i)
            found += [reshape(c.b, slice_axis(c.b, at, 1, k, 1), at.shape[:1]) for k in range(len(i.shape))]
        else:
            found.append(i)
    return found


def _joined(c: AtenCall, indices: list[Node]) -> Node:
    """Index tensors broadcast together, one column each, for the nd forms."""
    shape = indices[0].shape
    for other in indices[1:]:
        shape = c.b(ops.add, *(c.b(ops.full, value=0.0, dtype=i64, shape=s) for s in (shape, other.shape))).shape
    columns = [reshape(c.b, expand(c.b, cast(c.b, i, i64), shape), (*shape, 1)) for i in indices]
    return columns[0] if len(columns) == 1 else c.b(ops.concat, *columns, axis=len(shape))


def _axes_first(rank: int, axes: list[int]) -> list[int]:
    return [*axes, *(k for k in range(rank) if k not in axes)]


def _index(c: AtenCall) -> Node:
    """Advanced indexing: indexed axes that stand together stay in place, others move to the front."""
    x, indices = c.tensor("self"), _indices(c)
    axes = [k for k, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    if len(axes) == 1:
        return c.b(ops.gather, x, given[0], axis=axes[0])
    at = _joined(c, given)
    y = c.b(ops.gather_nd, transpose(c.b, x, _axes_first(len(x.shape), axes)), at)
    n_new, lead = len(at.shape) - 1, axes[0]
    together = axes == list(range(axes[0], axes[-1] + 1))
    if not together or lead == 0:
        return y
    order = [*range(n_new, n_new + lead), *range(n_new), *range(n_new + lead, len(y.shape))]
    return transpose(c.b, y, order)


def _index_put(c: AtenCall) -> Node:
    """Advanced assignment; a boolean mask with one value is a ``where``."""
    x, values = c.tensor("self"), c.tensor("values", c.dtype)
    masks = [i for i in c["indices"] if isinstance(i, Node) and i.dtype is bool_]
    if masks:
        return _masked_put(c, x, masks, values)
    indices = _indices(c)
    axes = [k for k, i in enumerate(indices) if i is not None]
    order = _axes_first(len(x.shape), axes)
    at = _joined(c, [i for i in indices if i is not None])
    moved = transpose(c.b, x, order)
    n_new, lead = len(at.shape) - 1, axes[0]
    target = (*at.shape[:-1], *moved.shape[len(axes) :])
    together = axes == list(range(axes[0], axes[-1] + 1))
    if together and lead:
        placed = (*target[n_new : n_new + lead], *target[:n_new], *target[n_new + lead :])
        values = expand(c.b, values, placed)
        values = transpose(c.b, values, [*range(lead, lead + n_new), *range(lead), *range(lead + n_new, len(placed))])
    y = c.b(ops.scatter_nd, moved, at, expand(c.b, values, target), reduction="add" if c["accumulate"] else "none")
    return transpose(c.b, y, [order.index(k) for k in range(len(order))])


def _masked_put(c: AtenCall, x: Node, masks: list[Node], values: Node) -> Node:
    """The axes of the mask go to the front, and those of the values that its set places are."""
    given = [i for i in c["indices"] if i is not None]
    if len(given) != 1:
        raise Unsupported("a boolean mask beside other indices", MASK_REMEDY)
    mask, rank = masks[0], len(x.shape)
    lead = next(k for k, i in enumerate(c["indices"]) if i is not None)
    if lead == 0:
        return masked_put(c, x, mask, values)
    order = _axes_first(rank, [*range(lead, lead + len(mask.shape))])
    n_kept = rank - len(mask.shape) + 1
    values = reshape(c.b, values, (*(1,) * (n_kept - len(values.shape)), *values.shape))
    values = transpose(c.b, values, _axes_first(n_kept, [lead]))
    y = masked_put(c, transpose(c.b, x, order), mask, values)
    return transpose(c.b, y, [order.index(k) for k in range(rank)])


def _scatter_elements(reduction: str) -> Convert:
    def convert(c: AtenCall) -> Node:
        x, index = c.tensor("self"), c.tensor("index")
        axis = c.axis(len(x.shape))
        if "src" in c.args:
            src = c.tensor("src", x.dtype)
            for k, n in enumerate(index.shape):
                if n != src.shape[k]:
                    src = _first(c, src, k, n)
        else:
            src = expand(c.b, c.tensor("value", x.dtype), index.shape)
        if not x.shape:
            x, index, src = (reshape(c.b, t, (1,)) for t in (x, index, src))
            return reshape(c.b, c.b(ops.scatter_elements, x, index, src, axis=0, reduction=reduction), ())
        return c.b(ops.scatter_elements, x, index, src, axis=axis, reduction=reduction)

    return convert


def _first(c: AtenCall, x: Node, axis: int, n: object) -> Node:
    stops = tuple(n if k == axis else d for k, d in enumerate(x.shape))
    return c.b(ops.slice, x, starts=(0,) * len(stops), stops=stops, steps=(1,) * len(stops))


def _index_add(c: AtenCall) -> Node:
    x, index, src = c.tensor("self"), c.tensor("index"), c.tensor("source", c.dtype)
    shape = x.shape
    if not shape:
        x, src = reshape(c.b, x, (1,)), reshape(c.b, src, (1,))
    axis = c.axis(len(x.shape))
    if c["alpha"] != 1:
        src = c.b(ops.mul, src, c.tensor("alpha", c.dtype))
    at = reshape(c.b, index, tuple(src.shape[axis] if k == axis else 1 for k in range(len(x.shape))))
    y = c.b(ops.scatter_elements, x, expand(c.b, at, src.shape), src, axis=axis, reduction="add")
    return reshape(c.b, y, shape)


TABLE: Mapping[str, Convert] = {
    "embedding.default": _embedding, "index_select.default": _index_select, "gather.default": _gather,
    "index.Tensor": _index, "_unsafe_index.Tensor": _index,
    "index_put.default": _index_put, "_unsafe_index_put.default": _index_put,
    "scatter.src": _scatter_elements("none"), "scatter.value": _scatter_elements("none"),
    "scatter_add.default": _scatter_elements("add"),
    "scatter.reduce": lambda c: _scatter_elements({"add": "add", "multiply": "mul"}[c["reduce"]])(c),
    "scatter.value_reduce": lambda c: _scatter_elements({"add": "add", "multiply": "mul"}[c["reduce"]])(c),
    "index_add.default": _index_add,
}  # fmt: skip
