"""Reductions along axes, by any region.

In: calls. Out: nodes or pairs. A region with a name is that reduction, the region of an arg-extreme is an arg-extreme,
and any other one joins neighbours, then what that gave, until one is left: the spec leaves the order to us as long as
the operands keep theirs. Not its business: windows (``window``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, bool_
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.ops.movement import each
from tilewright.frontend.stablehlo.ops.narrow import all_in_wider
from tilewright.frontend.stablehlo.regions import combiner_of, only_chooses, results_of, samples
from tilewright.frontend.window_folds import fold_of, is_neutral, joined

Convert = Callable[[Operation], Result]


def _reduce(c: Operation) -> Result:
    n = len(c.operands) // 2
    axes, region = c.ints("dimensions"), c.op.regions[0]
    if n == 1:
        x, start, op = c.operands[0], c.operands[1], combiner_of(region)
        if isinstance(x, Pair) and isinstance(start, Pair) and op is ops.add:
            return Pair(_fold(c, x.re, start.re, axes, op), _fold(c, x.im, start.im, axes, op))
        if isinstance(x, Node) and isinstance(start, Node) and fold_of(op, x.dtype) and isinstance(op, OpDef):
            return _fold(c, x, start, axes, op)
    found = _arg_extreme(c, axes, region) if n == 2 else None
    return found or by_neighbours(c, c.operands[:n], c.operands[n:], axes, region)


def _fold(c: Operation, x: Node, start: Node, axes: Sequence[int], op: OpDef) -> Node:
    fold = fold_of(op, x.dtype)
    assert fold is not None
    made = c.b(fold, x, axes=tuple(sorted(axes))) if axes else x
    return joined(c, made, start, op)


# --- arg-extremes ---------------------------------------------------------------------------------------------------


def _arg_extreme(c: Operation, axes: Sequence[int], region: Any) -> list[Value] | None:
    """The largest or smallest element and its place, where the region picks them; NaN first, then the first place."""
    x, at, start, _ = c.operands
    if isinstance(x, Pair) or not isinstance(at, Node) or not isinstance(start, Node) or len(axes) != 1:
        return None
    (axis,) = axes
    if not only_chooses(region) or not _is_ramp(at, axis) or x.dtype is bool_:
        return None
    for place, extreme, op in ((ops.argmax, ops.reduce_max, ops.maximum), (ops.argmin, ops.reduce_min, ops.minimum)):
        if is_neutral(start, op) and _picks(c, region, x.dtype, at.dtype, is_max=op is ops.maximum):
            best = c.b(extreme, x, axes=(axis,))
            return [best, c.cast(c.b(place, x, axis=axis), at.dtype)]
    return None


def _is_ramp(x: Node, axis: int) -> bool:
    """Is ``x`` 0, 1, 2, ... along ``axis``, the same for all else?"""
    if x.op is ops.iota:
        return len(x.shape) == 1
    if x.op is ops.cast:
        return _is_ramp(x.inputs[0], axis)
    if x.op is ops.expand and x.inputs[0].op is ops.reshape:
        line, spread = x.inputs[0].inputs[0], x.inputs[0].shape
        return line.op is ops.iota and spread[axis] == line.shape[0] == x.shape[axis]
    return x.op is ops.expand and len(x.shape) == len(x.inputs[0].shape) == 1 and _is_ramp(x.inputs[0], axis)


def _picks(c: Operation, region: Any, dtype: DType, at_dtype: DType, *, is_max: bool) -> bool:
    """Does a region of (value, place, value, place) pick as ``argmax`` or ``argmin`` does?

    The first place is always before the second one, since operands keep their order: of two NaN some regions take the
    first whatever its place.
    """
    values, places = samples(dtype), np.arange(3).astype(at_dtype.numpy)
    grid = np.meshgrid(*[np.arange(len(s)) for s in (values, places, values, places)], indexing="ij")
    in_order = grid[1] < grid[3]
    x, i, y, j = (s[k[in_order]] for s, k in zip((values, places, values, places), grid, strict=True))
    best, at = results_of(c, region, [x, i, y, j])
    first_nan, second_nan = (x != x, y != y)
    with np.errstate(invalid="ignore"):
        wins, ties = (x > y) if is_max else (x < y), (x == y)
    first = np.where(first_nan | second_nan, first_nan, wins | ties)
    same = np.array_equal(best.astype(np.float64), np.where(first, x, y).astype(np.float64), equal_nan=True)
    return same and np.array_equal(at, np.where(first, i, j))


# --- any region -----------------------------------------------------------------------------------------------------


def by_neighbours(
    c: Operation, xs: Sequence[Value], starts: Sequence[Value], axes: Sequence[int], region: Any
) -> list[Value]:
    """A reduction by a region: along each axis neighbours are joined, in order, until one is left."""
    for axis in sorted(axes, reverse=True):
        xs = [
            each(c, x, lambda p: c.reshape(p, [*p.shape[:axis], *p.shape[axis + 1 :]]))  # noqa: B023
            for x in _one_left(c, list(xs), starts, axis, region)
        ]
    return c.walker.apply(region, [*starts, *xs]) if axes else list(xs)


def _one_left(c: Operation, xs: list[Value], starts: Sequence[Value], axis: int, region: Any) -> list[Value]:
    n = xs[0].shape[axis]
    if not is_known(n):
        raise NoForm("a reduction by its own region over a symbolic size", "give that dimension a fixed size")
    if n == 0:
        return [each(c, s, lambda p: _filled(c, p, xs[0], axis)) for s in starts]
    while n > 1:
        even, odd = ([_every_second(c, x, axis, first, n) for x in xs] for first in (0, 1))
        made = c.walker.apply(region, [*even, *odd])
        if n % 2:
            made = [_appended(c, x, y, axis, n - 1) for x, y in zip(made, xs, strict=True)]
        xs, n = made, (n + 1) // 2
    return xs


def _filled(c: Operation, start: Node, like: Value, axis: int) -> Node:
    return c.expand(start, [1 if k == axis else d for k, d in enumerate(like.shape)])


def _every_second(c: Operation, x: Value, axis: int, first: int, n: int) -> Value:
    def cut(p: Node) -> Node:
        starts = [first if k == axis else 0 for k in range(len(p.shape))]
        stops = [n - n % 2 if k == axis else d for k, d in enumerate(p.shape)]
        steps = [2 if k == axis else 1 for k in range(len(p.shape))]
        return c.b(ops.slice, p, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    return each(c, x, cut)


def _appended(c: Operation, made: Value, x: Value, axis: int, at: int) -> Value:
    def append(p: Node, q: Node) -> Node:
        return c.b(ops.concat, p, c.slice(q, axis, at, at + 1), axis=axis)

    if isinstance(made, Pair) and isinstance(x, Pair):
        return Pair(append(made.re, x.re), append(made.im, x.im))
    assert isinstance(made, Node) and isinstance(x, Node)
    return append(made, x)


TABLE: Mapping[str, Convert] = {"stablehlo.reduce": all_in_wider(_reduce)}
