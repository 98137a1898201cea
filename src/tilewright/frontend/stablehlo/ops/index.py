"""Operations that read or write at places which are data: gather, scatter, dynamic slices.

In: calls with dimension numbers. Out: nodes or pairs.

Not its business: how windows at such places are read and written (``frontend.window_places``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType, bool_, i64, product
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.ops.control import flat, like
from tilewright.frontend.stablehlo.ops.movement import each
from tilewright.frontend.stablehlo.ops.narrow import all_in_wider
from tilewright.frontend.stablehlo.regions import SECOND, combiner_of
from tilewright.frontend.window_places import (
    ScatterNumbers,
    Windows,
    back_from_rows,
    gathered,
    index_shape_of,
    rows_inside,
    rows_of,
    scattered,
    starts_of,
    with_room,
    without_vector,
)

Convert = Callable[[Operation], Result]

# --- dynamic slices -------------------------------------------------------------------------------------------------


def _dynamic_slice(c: Operation) -> Value:
    sizes = c.ints("slice_sizes")
    if not sizes:
        return c.operands[0]
    starts = c.starts(1, len(sizes))
    return each(c, c.operands[0], lambda x: c.b(ops.dynamic_slice, x, starts, sizes=sizes))


def _dynamic_update_slice(c: Operation) -> Value:
    x, update = c.operands[:2]
    rank = len(x.shape)
    if rank == 0:
        return update
    starts = c.starts(2, rank)
    if isinstance(x, Pair) and isinstance(update, Pair):
        parts = ((x.re, update.re), (x.im, update.im))
        return Pair(*(c.b(ops.dynamic_update_slice, p, q, starts) for p, q in parts))
    return c.b(ops.dynamic_update_slice, c.node(0), c.node(1), starts)


# --- gather ---------------------------------------------------------------------------------------------------------


def _gather(c: Operation) -> Value:
    """Windows at clamped places; the result has the window's axes at ``offset_dims``, the indices' at the others."""
    from jax.extend.mlir.dialects import stablehlo

    numbers = stablehlo.GatherDimensionNumbers(c.attribute("dimension_numbers"))
    sizes = c.sizes(2) if c.op.name == "stablehlo.dynamic_gather" else c.ints("slice_sizes")
    indices, vector = c.node(1), numbers.index_vector_dim
    windows = Windows(
        c.operands[0].shape, tuple(sizes), tuple(numbers.start_index_map), tuple(numbers.operand_batching_dims),
        without_vector(numbers.start_indices_batching_dims, vector), index_shape_of(indices, vector),
    )  # fmt: skip
    rows = rows_of(c, starts_of(c, indices, vector, windows, clamp=True), windows)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    offsets = tuple(numbers.offset_dims)
    return each(c, c.operands[0], lambda x: gathered(c, x, windows, rows, dropped, offsets))


def _torch_index_select(c: Operation) -> Value:
    if c.integer("batch_dims", 0):
        raise NoForm("torch_index_select of batches", "use gather")
    axis = c.integer("dim")
    return each(c, c.operands[0], lambda x: c.b(ops.gather, x, c.cast(c.node(1), i64), axis=axis))


# --- scatter --------------------------------------------------------------------------------------------------------

REDUCTIONS = {ops.add: "add", ops.mul: "mul", ops.minimum: "min", ops.maximum: "max", SECOND: "none"}


def _scatter(c: Operation) -> Result:
    """Updates at places that are data; a window that leaves the operand is not written.

    Such windows go to a row behind the last one, which is then left out.
    """
    from jax.extend.mlir.dialects import stablehlo

    d = stablehlo.ScatterDimensionNumbers(c.attribute("scatter_dimension_numbers"))
    numbers = ScatterNumbers(
        tuple(d.update_window_dims), tuple(d.inserted_window_dims), tuple(d.scattered_dims_to_operand_dims),
        d.index_vector_dim, tuple(d.input_batching_dims), tuple(d.scatter_indices_batching_dims),
    )  # fmt: skip
    n = (len(c.operands) - 1) // 2
    indices = c.node(n)
    windows = numbers.windows(c.operands[0].shape, c.operands[n + 1].shape, indices)
    rows = rows_inside(c, starts_of(c, indices, numbers.index_vector, windows, clamp=False), windows)
    values = [each(c, x, lambda p: numbers.ordered(c, p, windows)) for x in c.operands[n + 1 :]]
    region = c.op.regions[0]
    if n == 1:
        op = combiner_of(region)
        x, update = c.operands[0], values[0]
        if isinstance(x, Pair) and isinstance(update, Pair) and op in (ops.add, SECOND):
            parts = ((x.re, update.re), (x.im, update.im))
            return Pair(*(scattered(c, p, q, rows, windows, REDUCTIONS[op]) for p, q in parts))
        if isinstance(x, Node) and isinstance(update, Node) and op in REDUCTIONS:
            return scattered(c, x, update, rows, windows, REDUCTIONS[op])
    return _one_after_another(c, c.operands[:n], values, rows, windows)


def _one_after_another(
    c: Operation, xs: Sequence[Value], updates: Sequence[Value], rows: Node, windows: Windows
) -> list[Value]:
    """A loop over all places, in order: the region takes what lies there and the update, and says what comes there."""
    # Updates that lie outside are dropped by writing them to room behind the last row, which nobody reads.
    held = [with_room(c, x, windows) for x in flat(xs)]
    count = product(rows.shape)
    whole = [windows.shape[k] for k in windows.whole_axes]
    places = c.reshape(rows, (count,))
    given = [c.reshape(u, (count, *whole)) for u in flat(updates)]
    # The loop's body is a graph of its own; what it reads of this one comes in as captures.
    child = c.walker.child(Pool())
    pool, inner = child.scope.pool, Operation(child, Builder(child.scope.pool, c.b.loc), c.op, ())
    b = inner.b
    i, going = pool.input("i", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    now = [pool.input(f"carried_{k}", x.type) for k, x in enumerate(held)]
    at, rest = (child.scope.inner(places), [child.scope.inner(u) for u in given])
    assert isinstance(at, Node)
    row = b(ops.gather, at, i, axis=0)
    old = [b(ops.gather, x, row, axis=0) for x in now]
    new = [b(ops.gather, u, i, axis=0) for u in rest if isinstance(u, Node)]
    made = child.apply(c.op.regions[0], [*like(xs, old), *like(updates, new)])
    after = [
        b(ops.scatter_nd, x, b(ops.reshape, row, shape=(1, 1)), b(ops.reshape, v, shape=(1, *v.shape)))
        for x, v in zip(now, flat(made), strict=True)
    ]
    names = ("going", *(f"carried_{k}" for k in range(len(after))))
    inputs = (i, going, *now, *child.scope.captured.values())
    body = Graph("scatter", pool, inputs, (going, *after), names)
    trips, captures = c.reshape(c.dims([count]), ()), tuple(child.scope.captured)
    node = c.b(ops.loop, trips, c.b.const(True, bool_), *held, *captures, body=body, n_carried=len(held))
    return like(xs, [back_from_rows(c, x, windows) for x in c.b.results(node)])


TABLE: Mapping[str, Convert] = {
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.gather": _gather,
    "stablehlo.dynamic_gather": _gather,
    "stablehlo.torch_index_select": _torch_index_select,
    "stablehlo.scatter": all_in_wider(_scatter),
}
