"""Operations that read or write at places which are data: gather, scatter, dynamic slices.

In: calls with dimension numbers. Out: nodes or pairs.

Both ``gather`` and ``scatter`` go by rows. The axes of the operand that indices choose along, or of which windows are
less than the whole, come first and are laid out as one axis of rows; what is left are whole axes behind it. An index
vector and a place in its window name a row:

    row = sum over such axes of (start + place in the window) * stride

Not its business: what happens to indices of single elements (``ops.gather``, ``ops.scatter_nd``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType, bool_, i64, product, u8
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.ops.control import flat, like
from tilewright.frontend.stablehlo.ops.movement import each
from tilewright.frontend.stablehlo.ops.narrow import all_in_wider
from tilewright.frontend.stablehlo.regions import SECOND, combiner_of

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


# --- rows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """How windows lie in an operand of ``shape``: ``sizes`` by its axes.

    ``chosen`` are the axes that an index vector's entries are for, ``batching`` those whose place is that of an axis of
    the indices (``index_batching``), which is an axis of ``index_shape``, the indices' shape without their vectors.
    """

    shape: tuple[Dim, ...]
    sizes: tuple[Dim, ...]
    chosen: tuple[int, ...]
    batching: tuple[int, ...]
    index_batching: tuple[int, ...]
    index_shape: tuple[Dim, ...]

    @property
    def row_axes(self) -> tuple[int, ...]:
        """The axes that rows are made of."""
        placed = {*self.chosen, *self.batching}
        return tuple(k for k, n in enumerate(self.shape) if k in placed or n != self.sizes[k])

    @property
    def whole_axes(self) -> tuple[int, ...]:
        """The axes of which every window has all."""
        return tuple(k for k in range(len(self.shape)) if k not in self.row_axes)

    @property
    def n_rows(self) -> Dim:
        return product([self.shape[k] for k in self.row_axes])

    @property
    def window(self) -> tuple[Dim, ...]:
        """The sizes of a window along the axes that rows are made of."""
        return tuple(self.sizes[k] for k in self.row_axes)


def _starts(c: Operation, indices: Node, vector: int, windows: Windows, clamp: bool) -> dict[int, Node]:
    """Where windows begin along each axis that rows are made of, over the indices' axes."""
    rank = len(indices.shape)
    if vector == rank:
        indices, rank = c.reshape(indices, (*indices.shape, 1)), rank + 1
    found: dict[int, Node] = {}
    for place, axis in enumerate(windows.chosen):
        start = c.reshape(c.cast(c.slice(indices, vector, place, place + 1), i64), windows.index_shape)
        if clamp:
            last = c.reshape(c.dims([windows.shape[axis] - windows.sizes[axis]]), ())
            start = c.b(ops.clamp, start, c.b.const(0, i64), last)
        found[axis] = start
    for axis, index_axis in zip(windows.batching, windows.index_batching, strict=True):
        at = c.b(ops.iota, extent=windows.index_shape[index_axis], dtype=i64)
        found[axis] = c.along(at, index_axis, len(windows.index_shape))
    return found


def _rows(c: Operation, starts: Mapping[int, Node], windows: Windows) -> Node:
    """The row of each place of each window: the indices' axes, then the window's."""
    n_index, axes = len(windows.index_shape), windows.row_axes
    rank = n_index + len(axes)
    row: Node | None = None
    for k, axis in enumerate(axes):
        at = c.b.const(0, i64)
        if axis in starts:
            at = c.reshape(starts[axis], (*starts[axis].shape, *[1] * len(axes)))
        if windows.sizes[axis] != 1:
            place = c.along(c.b(ops.iota, extent=windows.sizes[axis], dtype=i64), n_index + k, rank)
            at = c.b(ops.add, at, place)
        stride = product([windows.shape[a] for a in axes[k + 1 :]])
        if stride != 1:
            at = c.b(ops.mul, at, c.reshape(c.dims([stride]), ()))
        row = at if row is None else c.b(ops.add, row, at)
    whole = (*windows.index_shape, *windows.window)
    return c.expand(c.b.const(0, i64) if row is None else row, whole)


def _as_rows(c: Operation, x: Node, windows: Windows) -> Node:
    """The operand with its rows along the first axis."""
    x = c.transpose(x, (*windows.row_axes, *windows.whole_axes))
    return c.reshape(x, (windows.n_rows, *[windows.shape[k] for k in windows.whole_axes]))


def _index_shape(indices: Node, vector: int) -> tuple[Dim, ...]:
    return tuple(n for k, n in enumerate(indices.shape) if k != vector)


def _without_vector(axes: Sequence[int], vector: int) -> tuple[int, ...]:
    """Axes of the indices as axes of their shape without vectors."""
    return tuple(a - (a > vector) for a in axes)


# --- gather ---------------------------------------------------------------------------------------------------------


def _gather(c: Operation) -> Value:
    """Windows at clamped places; the result has the window's axes at ``offset_dims``, the indices' at the others."""
    from jax.extend.mlir.dialects import stablehlo

    numbers = stablehlo.GatherDimensionNumbers(c.attribute("dimension_numbers"))
    sizes = c.sizes(2) if c.op.name == "stablehlo.dynamic_gather" else c.ints("slice_sizes")
    indices, vector = c.node(1), numbers.index_vector_dim
    windows = Windows(
        c.operands[0].shape, tuple(sizes), tuple(numbers.start_index_map), tuple(numbers.operand_batching_dims),
        _without_vector(numbers.start_indices_batching_dims, vector), _index_shape(indices, vector),
    )  # fmt: skip
    rows = _rows(c, _starts(c, indices, vector, windows, clamp=True), windows)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [k for k in range(len(windows.shape)) if k not in dropped]
    n_index, offsets = len(windows.index_shape), list(numbers.offset_dims)

    def taken(x: Node) -> Node:
        made = c.b(ops.gather, _as_rows(c, x, windows), rows, axis=0)
        # Axes now: the indices', the window's along rows, the whole ones.
        order = {axis: n_index + k for k, axis in enumerate((*windows.row_axes, *windows.whole_axes))}
        lost = {order[k] for k in dropped}
        made = c.reshape(made, [n for k, n in enumerate(made.shape) if k not in lost])
        place = {axis: at - sum(gone < at for gone in lost) for axis, at in order.items()}
        index_axes, window_axes = iter(range(n_index)), iter([place[k] for k in kept])
        rank = n_index + len(kept)
        return c.transpose(made, [next(window_axes) if k in offsets else next(index_axes) for k in range(rank)])

    return each(c, c.operands[0], taken)


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

    numbers = stablehlo.ScatterDimensionNumbers(c.attribute("scatter_dimension_numbers"))
    n = (len(c.operands) - 1) // 2
    indices, vector = c.node(n), numbers.index_vector_dim
    shape = c.operands[0].shape
    windows = _scatter_windows(shape, c.operands[n + 1].shape, numbers, indices, vector)
    starts = _starts(c, indices, vector, windows, clamp=False)
    rows = _rows_inside(c, starts, windows)
    values = [_Updates(c, windows, tuple(numbers.update_window_dims), numbers).ordered(x) for x in c.operands[n + 1 :]]
    region = c.op.regions[0]
    if n == 1:
        op = combiner_of(region)
        x, update = c.operands[0], values[0]
        if isinstance(x, Pair) and isinstance(update, Pair) and op in (ops.add, SECOND):
            parts = ((x.re, update.re), (x.im, update.im))
            return Pair(*(_scattered(c, p, q, rows, windows, REDUCTIONS[op]) for p, q in parts))
        if isinstance(x, Node) and isinstance(update, Node) and op in REDUCTIONS:
            return _scattered(c, x, update, rows, windows, REDUCTIONS[op])
    return _one_after_another(c, c.operands[:n], values, rows, windows)


def _scatter_windows(
    shape: tuple[Dim, ...], update_shape: tuple[Dim, ...], numbers: Any, indices: Node, vector: int
) -> Windows:
    dropped = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    given = iter([update_shape[k] for k in numbers.update_window_dims])
    sizes = tuple(1 if k in dropped else next(given) for k in range(len(shape)))
    return Windows(
        shape, sizes, tuple(numbers.scattered_dims_to_operand_dims), tuple(numbers.input_batching_dims),
        _without_vector(numbers.scatter_indices_batching_dims, vector), _index_shape(indices, vector),
    )  # fmt: skip


@dataclass(frozen=True)
class _Updates:
    """How updates lie: axes of windows among axes of indices."""

    c: Operation
    windows: Windows
    window_axes: tuple[int, ...]
    numbers: Any

    def ordered(self, updates: Value) -> Value:
        """The updates with the indices' axes first, then the window's along rows, then the whole ones."""
        return each(self.c, updates, self._ordered)

    def _ordered(self, x: Node) -> Node:
        w = self.windows
        dropped = {*self.numbers.inserted_window_dims, *self.numbers.input_batching_dims}
        kept = iter(self.window_axes)
        of_axis = {k: next(kept) for k in range(len(w.shape)) if k not in dropped}
        index_axes = [k for k in range(len(x.shape)) if k not in self.window_axes]
        order = [*index_axes, *[of_axis[k] for k in (*w.row_axes, *w.whole_axes) if k in of_axis]]
        whole = [w.shape[k] for k in w.whole_axes]
        return self.c.reshape(self.c.transpose(x, order), (*w.index_shape, *w.window, *whole))


def _rows_inside(c: Operation, starts: Mapping[int, Node], windows: Windows) -> Node:
    """The row of each place of each window; behind all rows for a window that leaves the operand."""
    rows = _rows(c, starts, windows)
    inside: Node | None = None
    for axis in windows.chosen:
        last = c.reshape(c.dims([windows.shape[axis] - windows.sizes[axis]]), ())
        start = starts[axis]
        fits = c.b(ops.logical_and, c.b(ops.ge, start, c.b.const(0, i64)), c.b(ops.le, start, last))
        inside = fits if inside is None else c.b(ops.logical_and, inside, fits)
    if inside is None:
        return rows
    inside = c.reshape(inside, (*inside.shape, *[1] * len(windows.row_axes)))
    return c.b(ops.where, inside, rows, c.reshape(c.dims([windows.n_rows]), ()))


def _with_room(c: Operation, x: Node, windows: Windows) -> Node:
    """The operand by rows, with one more row."""
    made = _as_rows(c, x, windows)
    pads = ((0, 1), *[(0, 0)] * (len(made.shape) - 1))
    return c.b(ops.pad, made, c.b.const(0, x.dtype), pads=pads)


def _back(c: Operation, made: Node, windows: Windows) -> Node:
    """The operand's own order of what lies by rows, without the last row."""
    axes = (*windows.row_axes, *windows.whole_axes)
    made = c.reshape(c.slice(made, 0, 0, windows.n_rows), [windows.shape[k] for k in axes])
    return c.transpose(made, [axes.index(k) for k in range(len(axes))])


def _scattered(c: Operation, x: Node, updates: Node, rows: Node, windows: Windows, reduction: str) -> Node:
    if x.dtype is bool_:
        by_bytes = {"add": "max", "mul": "min"}.get(reduction, reduction)  # or, and
        made = _scattered(c, c.cast(x, u8), c.cast(updates, u8), rows, windows, by_bytes)
        return c.cast(made, bool_)
    at = c.reshape(rows, (*rows.shape, 1))
    return _back(c, c.b(ops.scatter_nd, _with_room(c, x, windows), at, updates, reduction=reduction), windows)


def _one_after_another(
    c: Operation, xs: Sequence[Value], updates: Sequence[Value], rows: Node, windows: Windows
) -> list[Value]:
    """A loop over all places, in order: the region takes what lies there and the update, and says what comes there."""
    # Updates that lie outside are dropped by writing them to room behind the last row, which nobody reads.
    held = [_with_room(c, x, windows) for x in flat(xs)]
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
    return like(xs, [_back(c, x, windows) for x in c.b.results(node)])


TABLE: Mapping[str, Convert] = {
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.gather": _gather,
    "stablehlo.dynamic_gather": _gather,
    "stablehlo.torch_index_select": _torch_index_select,
    "stablehlo.scatter": all_in_wider(_scatter),
}
