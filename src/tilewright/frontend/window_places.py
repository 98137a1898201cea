"""Windows of a tensor at places that are data, as gathers and scatters of StableHLO read and write them.

In: nodes, and how windows lie. Out: the rows that windows are made of, and what is read or written there. The axes of
the operand that indices choose along, or of which windows are less than the whole, come first and are laid out as one
axis of rows; what is left are whole axes behind it. An index vector and a place in its window name a row:

    row = sum over such axes of (start + place in the window) * stride

Not its business: formats (``stablehlo.ops.index``, ``tflite.lookups``), and indices of single elements (``ops.gather``,
``ops.scatter_nd``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import bool_, i64, product, u8
from tilewright.frontend.moves import Moves


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


def starts_of(m: Moves, indices: Node, vector: int, windows: Windows, clamp: bool) -> dict[int, Node]:
    """Where windows begin along each axis that rows are made of, over the indices' axes."""
    rank = len(indices.shape)
    if vector == rank:
        indices, rank = m.reshape(indices, (*indices.shape, 1)), rank + 1
    found: dict[int, Node] = {}
    for place, axis in enumerate(windows.chosen):
        start = m.reshape(m.cast(m.slice(indices, vector, place, place + 1), i64), windows.index_shape)
        if clamp:
            last = m.reshape(m.dims([windows.shape[axis] - windows.sizes[axis]]), ())
            start = m.b(ops.clamp, start, m.b.const(0, i64), last)
        found[axis] = start
    for axis, index_axis in zip(windows.batching, windows.index_batching, strict=True):
        at = m.b(ops.iota, extent=windows.index_shape[index_axis], dtype=i64)
        found[axis] = m.along(at, index_axis, len(windows.index_shape))
    return found


def rows_of(m: Moves, starts: Mapping[int, Node], windows: Windows) -> Node:
    """The row of each place of each window: the indices' axes, then the window's."""
    n_index, axes = len(windows.index_shape), windows.row_axes
    rank = n_index + len(axes)
    row: Node | None = None
    for k, axis in enumerate(axes):
        at = m.b.const(0, i64)
        if axis in starts:
            at = m.reshape(starts[axis], (*starts[axis].shape, *[1] * len(axes)))
        if windows.sizes[axis] != 1:
            place = m.along(m.b(ops.iota, extent=windows.sizes[axis], dtype=i64), n_index + k, rank)
            at = m.b(ops.add, at, place)
        stride = product([windows.shape[a] for a in axes[k + 1 :]])
        if stride != 1:
            at = m.b(ops.mul, at, m.reshape(m.dims([stride]), ()))
        row = at if row is None else m.b(ops.add, row, at)
    whole = (*windows.index_shape, *windows.window)
    return m.expand(m.b.const(0, i64) if row is None else row, whole)


def as_rows(m: Moves, x: Node, windows: Windows) -> Node:
    """The operand with its rows along the first axis."""
    x = m.transpose(x, (*windows.row_axes, *windows.whole_axes))
    return m.reshape(x, (windows.n_rows, *[windows.shape[k] for k in windows.whole_axes]))


def index_shape_of(indices: Node, vector: int) -> tuple[Dim, ...]:
    return tuple(n for k, n in enumerate(indices.shape) if k != vector)


def without_vector(axes: Sequence[int], vector: int) -> tuple[int, ...]:
    """Axes of the indices as axes of their shape without vectors."""
    return tuple(a - (a > vector) for a in axes)


# --- gather ---------------------------------------------------------------------------------------------------------


def gathered(
    m: Moves, x: Node, windows: Windows, rows: Node, dropped: Collection[int], offsets: Collection[int]
) -> Node:
    """Windows without the ``dropped`` axes: theirs are the axes ``offsets`` of the result, the indices' the others."""
    kept = [k for k in range(len(windows.shape)) if k not in dropped]
    n_index = len(windows.index_shape)
    made = m.b(ops.gather, as_rows(m, x, windows), rows, axis=0)
    # Axes now: the indices', the window's along rows, the whole ones.
    order = {axis: n_index + k for k, axis in enumerate((*windows.row_axes, *windows.whole_axes))}
    lost = {order[k] for k in dropped}
    made = m.reshape(made, [n for k, n in enumerate(made.shape) if k not in lost])
    place = {axis: at - sum(gone < at for gone in lost) for axis, at in order.items()}
    index_axes, window_axes = iter(range(n_index)), iter([place[k] for k in kept])
    rank = n_index + len(kept)
    return m.transpose(made, [next(window_axes) if k in offsets else next(index_axes) for k in range(rank)])


# --- scatter --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScatterNumbers:
    """The dimension numbers of a scatter, as StableHLO's specification names them."""

    update_window: tuple[int, ...]
    inserted_window: tuple[int, ...]
    to_operand: tuple[int, ...]
    index_vector: int
    input_batching: tuple[int, ...] = ()
    index_batching: tuple[int, ...] = ()

    def windows(self, shape: tuple[Dim, ...], update_shape: tuple[Dim, ...], indices: Node) -> Windows:
        """How windows lie in an operand of ``shape``."""
        dropped = {*self.inserted_window, *self.input_batching}
        given = iter([update_shape[k] for k in self.update_window])
        sizes = tuple(1 if k in dropped else next(given) for k in range(len(shape)))
        return Windows(
            shape, sizes, self.to_operand, self.input_batching,
            without_vector(self.index_batching, self.index_vector), index_shape_of(indices, self.index_vector),
        )  # fmt: skip

    def ordered(self, m: Moves, x: Node, windows: Windows) -> Node:
        """Updates with the indices' axes first, then the window's along rows, then the whole ones."""
        dropped = {*self.inserted_window, *self.input_batching}
        kept = iter(self.update_window)
        of_axis = {k: next(kept) for k in range(len(windows.shape)) if k not in dropped}
        index_axes = [k for k in range(len(x.shape)) if k not in self.update_window]
        order = [*index_axes, *[of_axis[k] for k in (*windows.row_axes, *windows.whole_axes) if k in of_axis]]
        whole = [windows.shape[k] for k in windows.whole_axes]
        return m.reshape(m.transpose(x, order), (*windows.index_shape, *windows.window, *whole))


def rows_inside(m: Moves, starts: Mapping[int, Node], windows: Windows, *, by_element: bool = False) -> Node:
    """The row of each place of each window; behind all rows for what leaves the operand.

    A window that does so is left out as a whole, as in XLA; by StableHLO's specification (``by_element``) only those of
    its elements that lie outside are.
    """
    rows, n_index = rows_of(m, starts, windows), len(windows.index_shape)
    rank, inside = n_index + len(windows.row_axes), None
    for k, axis in enumerate(windows.row_axes):
        if axis not in windows.chosen:
            continue
        at, size = m.reshape(starts[axis], (*starts[axis].shape, *[1] * len(windows.row_axes))), windows.sizes[axis]
        if by_element:
            at = m.b(ops.add, at, m.along(m.b(ops.iota, extent=size, dtype=i64), n_index + k, rank))
            size = 1
        last = m.reshape(m.dims([windows.shape[axis] - size]), ())
        fits = m.b(ops.logical_and, m.b(ops.ge, at, m.b.const(0, i64)), m.b(ops.le, at, last))
        inside = fits if inside is None else m.b(ops.logical_and, inside, fits)
    if inside is None:
        return rows
    return m.b(ops.where, inside, rows, m.reshape(m.dims([windows.n_rows]), ()))


def with_room(m: Moves, x: Node, windows: Windows) -> Node:
    """The operand by rows, with one more row."""
    made = as_rows(m, x, windows)
    pads = ((0, 1), *[(0, 0)] * (len(made.shape) - 1))
    return m.b(ops.pad, made, m.b.const(0, x.dtype), pads=pads)


def back_from_rows(m: Moves, made: Node, windows: Windows) -> Node:
    """The operand's own order of what lies by rows, without the last row."""
    axes = (*windows.row_axes, *windows.whole_axes)
    made = m.reshape(m.slice(made, 0, 0, windows.n_rows), [windows.shape[k] for k in axes])
    return m.transpose(made, [axes.index(k) for k in range(len(axes))])


def scattered(m: Moves, x: Node, updates: Node, rows: Node, windows: Windows, reduction: str) -> Node:
    if x.dtype is bool_:
        by_bytes = {"add": "max", "mul": "min"}.get(reduction, reduction)  # or, and
        made = scattered(m, m.cast(x, u8), m.cast(updates, u8), rows, windows, by_bytes)
        return m.cast(made, bool_)
    at = m.reshape(rows, (*rows.shape, 1))
    return back_from_rows(m, m.b(ops.scatter_nd, with_room(m, x, windows), at, updates, reduction=reduction), windows)
