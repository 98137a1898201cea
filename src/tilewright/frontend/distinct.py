"""Distinct elements, and distinct slices along an axis, as every frontend that has them needs them.

In: a builder, a node, and how to find where flags are set: how many distinct elements there are only data say, and each
frontend names such a size in its own way. Out: nodes. Not its business: which results a call asks for, and operands
without elements, of which the sizes of all results are known.

Sorted, equal slices are neighbours, and each group of them begins where one differs from the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.types import bool_, i64, product, u8
from tilewright.frontend.nodes import dim_scalar, reshape, transpose
from tilewright.ops.loops import repeated

Places = Callable[[Node], Node]
"""Where flags are set, of a vector of them: ``i64[n]`` of a size that data decide, in order."""


class EqualRuns(NamedTuple):
    """Where each run of equal slices begins, the number of the run of every slice, and how long each run is."""

    begins: Node
    numbers: Node
    lengths: Node


class Distinct(NamedTuple):
    """Distinct slices, where each is first, which of them each slice is, and how many are equal to it."""

    values: Node
    firsts: Node
    inverse: Node
    counts: Node


def runs(b: Builder, x: Node, places: Places, axis: int = 0, *, nan_is_one: bool = False) -> EqualRuns:
    """Neighbours along an axis that are equal. NaN equals none, also itself, unless ``nan_is_one``."""
    n = x.shape[axis]
    at, one = b(ops.iota, extent=n, dtype=i64), b.const(1, i64)
    before = b(ops.gather, x, b(ops.maximum, b(ops.sub, at, one), b.const(0, i64)), axis=axis)
    differs = b(ops.ne, x, before)
    if nan_is_one and x.dtype.is_float:
        both = b(ops.logical_and, b(ops.isnan, x), b(ops.isnan, before))
        differs = b(ops.logical_and, differs, b(ops.logical_not, both))
    others = tuple(k for k in range(len(x.shape)) if k != axis)
    differs = b(ops.reduce_any, differs, axes=others, keepdims=False) if others else differs
    starts = b(ops.logical_or, b(ops.eq, at, b.const(0, i64)), differs)
    numbers = b(ops.sub, b(ops.cumsum, b(ops.cast, starts, dtype=i64), axis=0), one)
    begins = places(starts)
    zeros, ones = (b(ops.full, value=value, dtype=i64, shape=(n,)) for value in (0.0, 1.0))
    sizes = b(ops.scatter_elements, zeros, numbers, ones, axis=0, reduction="add")
    # each length by a place that was found, so that nothing is made of the size alone, which data decide
    lengths = b(ops.gather, sizes, b(ops.gather, numbers, begins, axis=0), axis=0)
    return EqualRuns(begins, numbers, lengths)


def distinct(
    b: Builder, x: Node, axis: int | None, places: Places, *, is_sorted: bool = True, nan_is_one: bool = False
) -> Distinct:
    """Of the slices along ``axis``, or of all elements, in ascending order, or in that in which they are first met."""
    flat = reshape(b, x, (x.type.n_elements,)) if axis is None else x
    axis = axis or 0
    keys = b(ops.cast, flat, dtype=u8) if flat.dtype is bool_ else flat
    order = _order(b, keys, axis)
    begins, kinds, counts = runs(b, b(ops.gather, keys, order, axis=axis), places, axis, nan_is_one=nan_is_one)
    firsts = b(ops.gather, order, begins, axis=0)
    if not is_sorted:
        firsts, by_place = b.results(b(ops.sort, firsts, axis=0))
        counts = b(ops.gather, counts, by_place, axis=0)
        _, ranks = b.results(b(ops.sort, by_place, axis=0))
        kinds = b(ops.gather, ranks, kinds, axis=0)
    return Distinct(b(ops.gather, flat, firsts, axis=axis), firsts, _put(b, kinds, order), counts)


def _put(b: Builder, x: Node, order: Node) -> Node:
    """``x`` back in the order before it was sorted."""
    untouched = b(ops.full, value=0.0, dtype=x.dtype, shape=x.shape)
    return b(ops.scatter_elements, untouched, order, x, axis=0)


def _order(b: Builder, x: Node, axis: int) -> Node:
    """The lexicographic order of slices along ``axis``: stably sorted by each of their elements, the last one first."""
    if len(x.shape) == 1:
        return b.results(b(ops.sort, x, axis=0))[1]
    n: Dim = x.shape[axis]
    slices = transpose(b, x, (*(k for k in range(len(x.shape)) if k != axis), axis))
    m = product(slices.shape[:-1])
    count = dim_scalar(b, m, i64)

    def by_one_element(b: Builder, i: Node, carried: Sequence[Node], fixed: Sequence[Node]) -> Sequence[Node]:
        (order,), (columns, last) = carried, fixed
        column = b(ops.gather, columns, b(ops.sub, last, i), axis=0)
        _, finer = b.results(b(ops.sort, b(ops.gather, column, order, axis=0), axis=0))
        return [b(ops.gather, order, finer, axis=0)]

    start, whole = b(ops.iota, extent=n, dtype=i64), reshape(b, slices, (m, n))
    fixed = (whole, b(ops.sub, count, b.const(1, i64)))
    return repeated(b, "by_one_element", m, [start], fixed, by_one_element)[0]
