"""TFLite's operators on places: segments, diagonals, buckets, parts of sequences that turn, bits read anew.

In: calls. Out: nodes. Not its business: plain moves and lookups (``moves``), windows of volumes (``volumes``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.types import DType, i32, i64
from tilewright.frontend.tflite.call import Converter, TfliteCall


def _steps(c: TfliteCall, n: int, axis: int, rank: int) -> Node:
    """0, 1, 2... along an axis, of size 1 along the others."""
    return _along(c, c.b(ops.iota, extent=n, dtype=i64), axis, rank)


def _along(c: TfliteCall, vector: Node, axis: int, rank: int) -> Node:
    (n,) = c.size(vector)
    return c.shaped(vector, [n if k == axis else 1 for k in range(rank)])


# --- bits -----------------------------------------------------------------------------------------------------------

_UNSIGNED: Mapping[int, DType] = {1: types.u8, 2: types.u16, 4: types.u32, 8: types.u64}


def _bitcast(c: TfliteCall) -> Node:
    """The same bytes as elements of another type: several for one, the lowest first, or one for several."""
    x, target = c.x(), c.dtypes[0]
    if types.bool_ in (x.dtype, target):
        raise OpError(f"bits of {x.dtype} are not read as {target}", remedy="cast it")
    size, ratio = c.size(x), max(x.dtype.n_bytes, target.n_bytes) // min(x.dtype.n_bytes, target.n_bytes)
    narrow, wide = (_UNSIGNED[f(x.dtype.n_bytes, target.n_bytes)] for f in (min, max))
    shifts = c.b.const(np.arange(ratio, dtype=wide.numpy) * np.array(8 * narrow.n_bytes, wide.numpy))
    bits = c.b(ops.bitcast, x, dtype=_UNSIGNED[x.dtype.n_bytes])
    if ratio == 1:
        return c.b(ops.bitcast, x, dtype=target)
    if x.dtype is not target and wide.n_bytes == x.dtype.n_bytes:
        least = c.b(ops.shift_right, c.shaped(bits, (*size, 1)), shifts)
        mask = c.b.const((1 << 8 * narrow.n_bytes) - 1, wide)
        return c.b(ops.bitcast, c.cast(c.b(ops.bitwise_and, least, mask), narrow), dtype=target)
    if not size or size[-1] != ratio:
        raise OpError(f"{x.type} has no {ratio} elements for each one of {target}")
    moved = c.b(ops.shift_left, c.cast(bits, wide), shifts)
    joined = _last(c, moved, 0)
    for k in range(1, ratio):
        joined = c.b(ops.bitwise_or, joined, _last(c, moved, k))
    return c.b(ops.bitcast, joined, dtype=target)


def _last(c: TfliteCall, x: Node, k: int) -> Node:
    """The elements at place ``k`` of the last axis."""
    *outer, _ = size = c.size(x)
    starts, stops = [0] * len(size), list(size)
    starts[-1], stops[-1] = k, k + 1
    part = c.b(ops.slice, x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(size))
    return c.shaped(part, outer)


# --- shapes and buckets ---------------------------------------------------------------------------------------------


def _broadcast_args(c: TfliteCall) -> Node:
    """The shape to which two shapes broadcast."""
    try:
        shape = np.broadcast_shapes(*(tuple(c.ints(k)) for k in range(2)))
    except ValueError as error:
        raise OpError(f"the shapes {c.ints(0)} and {c.ints(1)} do not broadcast") from error
    return c.b.const(np.array(shape, c.dtypes[0].numpy))


def _bucketize(c: TfliteCall) -> Node:
    """How many boundaries, which ascend, are not over a number: all of them for what is no number."""
    x = c.x()
    n = 0 if c.options is None else c.options.BoundariesLength()
    edges = np.asarray(c.options.BoundariesAsNumpy() if n else [], np.float32)
    if not (edges[:-1] <= edges[1:]).all():
        raise OpError("its boundaries do not ascend", remedy="sort them")
    kind = types.f64 if x.dtype is types.f64 else types.f32
    row = c.shaped(c.cast(x, kind), (*c.size(x), 1))
    over = c.b(ops.lt, row, c.b.const(edges.astype(kind.numpy)))
    found = c.cast(c.b(ops.logical_not, over), i32)
    return c.b(ops.reduce_sum, found, axes=(len(c.size(x)),), keepdims=False)


# --- diagonals ------------------------------------------------------------------------------------------------------


def _diagonal(c: TfliteCall, x: Node, vector: Node) -> Node:
    """Matrices ``x`` with ``vector`` along their diagonals."""
    *outer, rows, columns = c.size(x)
    rank, n = len(outer) + 2, min(rows, columns)
    if c.size(vector) != (*outer, n) or vector.dtype is not x.dtype:
        raise OpError(f"{vector.type} is no diagonal of {x.type}")
    pads = ((0, 0),) * len(outer) + ((0, columns - n),)
    padded = c.b(ops.pad, vector, c.number(0, vector), pads=pads, mode="constant") if columns > n else vector
    is_on = c.b(ops.eq, _steps(c, rows, rank - 2, rank), _steps(c, columns, rank - 1, rank))
    return c.b(ops.where, is_on, c.shaped(padded, (*outer, 1, columns)), x)


def _matrix_diag(c: TfliteCall) -> Node:
    size = c.size(c.x())
    if not size:
        raise OpError("a number is no diagonal")
    zeros = c.b(ops.full, value=0.0, dtype=c.x().dtype, shape=(*size, size[-1]))
    return _diagonal(c, zeros, c.x())


def _matrix_set_diag(c: TfliteCall) -> Node:
    if len(c.size(c.x())) < 2:
        raise OpError(f"{c.x().type} is no matrix")
    return _diagonal(c, c.x(0), c.x(1))


# --- sequences ------------------------------------------------------------------------------------------------------


def _reverse_sequence(c: TfliteCall) -> Node:
    """The first steps of each row of the batch in opposite order, as many as the second operand says."""
    x, lengths, size = c.x(0), c.x(1), c.size(c.x(0))
    rank = len(size)
    time, batch = c.axis(c.option("SeqDim"), rank), c.axis(c.option("BatchDim"), rank)
    if time == batch:
        raise OpError("steps and rows of the batch are along one axis")
    if c.size(lengths) != (size[batch],):
        raise OpError(f"{lengths.type} is no length for each of {size[batch]} rows")
    step, length = _steps(c, size[time], time, rank), _along(c, c.cast(lengths, i64), batch, rank)
    turned = c.b(ops.sub, c.b(ops.sub, length, c.b.const(1, i64)), step)
    places = c.b(ops.where, c.b(ops.lt, step, length), turned, step)
    return c.b(ops.gather_elements, x, c.b(ops.expand, places, shape=size), axis=time)


# --- writes at places -----------------------------------------------------------------------------------------------


def _sparse_to_dense(c: TfliteCall) -> Node:
    """One value for all, the fourth operand, but for those at places; of equal places the last counts."""
    places, shape, values, default = c.x(0), tuple(c.ints(1)), c.x(2), c.x(3)
    at = c.size(places)
    rows = at if len(at) == 2 else (prod(at), 1)
    if len(at) > 2 or rows[1] != len(shape):
        raise OpError(f"{places.type} is no places within {shape}")
    base = c.b(ops.expand, c.shaped(default, ()), shape=shape)
    if c.size(values) not in ((), rows[:1]):
        raise OpError(f"{values.type} is no value for each of {rows[0]} places")
    given = c.b(ops.expand, values, shape=rows[:1])
    return c.b(ops.scatter_nd, base, c.shaped(c.cast(places, i64), rows), given, reduction="none")


def _segments(reduction: str) -> Converter:
    """Rows of one segment become one; rows of a negative segment count for none, and a segment of none has a start."""

    def convert(c: TfliteCall) -> Node:
        x, ids, (n,) = c.x(0), c.x(1), c.ints(2)
        size, named = c.size(x), c.size(ids)
        if size[: len(named)] != named or not named:
            raise OpError(f"{ids.type} does not name a segment for each row of {x.type}")
        if n < 0:
            raise OpError(f"there are no {n} segments")
        inner, rows = size[len(named) :], prod(named)
        starts = {"add": 0, "mul": 1, "min": x.dtype.max, "max": x.dtype.min}
        base = c.b(ops.expand, c.b.const(np.array(starts[reduction], x.dtype.numpy)), shape=(n + 1, *inner))
        flat = c.shaped(c.cast(ids, i64), (rows,))
        at = c.b(ops.where, c.b(ops.lt, flat, c.b.const(0, i64)), c.b.const(n, i64), flat)
        made = c.b(ops.scatter_nd, base, c.shaped(at, (rows, 1)), c.shaped(x, (rows, *inner)), reduction=reduction)
        rank = 1 + len(inner)
        return c.b(ops.slice, made, starts=(0,) * rank, stops=(n, *inner), steps=(1,) * rank)

    return convert


def _dilate(c: TfliteCall) -> Node:
    return spread(c, c.x(0), c.shaped(c.x(2), ()), c.ints(1))


def spread(c: TfliteCall, x: Node, between: Node, apart: Sequence[int]) -> Node:
    """Elements ``apart`` along each axis, with a number between them."""
    size = c.size(x)
    if len(apart) != len(size) or min(apart, default=1) < 1:
        raise OpError(f"{apart} are no distances along the axes of {x.type}")
    pads = tuple(v for d in apart for v in ((0, 0), (0, d - 1)))
    padded = c.b(ops.pad, c.shaped(x, [v for n in size for v in (n, 1)]), between, pads=pads, mode="constant")
    wide = c.shaped(padded, [n * d for n, d in zip(size, apart, strict=True)])
    stops = tuple(max((n - 1) * d + 1, 0) if n else 0 for n, d in zip(size, apart, strict=True))
    return c.b(ops.slice, wide, starts=(0,) * len(size), stops=stops, steps=(1,) * len(size))


TABLE: Mapping[str, Converter] = {
    "BITCAST": _bitcast, "BROADCAST_ARGS": _broadcast_args, "BUCKETIZE": _bucketize, "MATRIX_DIAG": _matrix_diag,
    "MATRIX_SET_DIAG": _matrix_set_diag, "REVERSE_SEQUENCE": _reverse_sequence, "SPARSE_TO_DENSE": _sparse_to_dense,
    "UNSORTED_SEGMENT_SUM": _segments("add"), "UNSORTED_SEGMENT_PROD": _segments("mul"),
    "UNSORTED_SEGMENT_MIN": _segments("min"), "UNSORTED_SEGMENT_MAX": _segments("max"), "DILATE": _dilate,
}  # fmt: skip
