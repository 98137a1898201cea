"""Sorting by any comparator, and the largest elements.

In: calls. Out: nodes. A comparator is tried on samples (``regions``): where it compares operands one after another,
rising or falling, sorts by the last of them come first and each keeps the order of equals. Any other comparator is
applied to every pair: an element's place is the number of those before it.
Not its business: how one tensor is sorted (``ops.sort``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import Array, i64
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.operation import DAMAGED, NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.ops.control import flat, like
from tilewright.frontend.stablehlo.ops.elementwise import total_order
from tilewright.frontend.stablehlo.ops.movement import each
from tilewright.frontend.stablehlo.ops.narrow import all_in_wider
from tilewright.frontend.stablehlo.regions import keeps_larger, only_chooses, results_of, samples

Convert = Callable[[Operation], Result]

MOST_KEYS = 3
"""So many operands are tried as keys; with more the samples' combinations would be millions."""


class Key(NamedTuple):
    """An operand, or a part of a complex one, that a comparator compares. ``is_total``: by all bits, -0 before 0."""

    part: int
    is_falling: bool
    is_total: bool


def _sort(c: Operation) -> Result:
    xs, region = c.operands, c.op.regions[0]
    axis = c.integer("dimension", len(xs[0].shape) - 1)
    axis += len(xs[0].shape) if axis < 0 else 0
    keys = keys_of(c, region, xs) if only_chooses(region) else None
    if keys is None:
        places = _places(c, xs, axis, region)
        return [each(c, x, lambda p: _put(c, p, places, axis)) for x in xs]
    parts = flat(xs)
    if len(parts) == 1:
        (key,) = keys
        if not key.is_total or not parts[0].dtype.is_float:
            return c.b.results(c.b(ops.sort, parts[0], axis=axis, descending=key.is_falling))[0]
    order: Node | None = None
    for key in reversed(keys):
        x = total_order(c, parts[key.part]) if key.is_total else parts[key.part]
        if order is not None:
            x = c.b(ops.gather_elements, x, order, axis=axis)
        place = c.b.results(c.b(ops.sort, x, axis=axis, descending=key.is_falling))[1]
        order = place if order is None else c.b(ops.gather_elements, order, place, axis=axis)
    assert order is not None
    return like(xs, [c.b(ops.gather_elements, x, order, axis=axis) for x in parts])


def keys_of(c: Operation, region: Any, operands: Sequence[Value]) -> tuple[Key, ...] | None:
    """The keys of a comparator of pairs, first the one that decides; None where it is no such comparison."""
    kinds = [samples(x.dtype) for x in flat(operands)]
    read = [k for k in range(len(kinds)) if _depends(c, region, operands, kinds, k)]
    if not 1 <= len(read) <= MOST_KEYS:
        return None
    grid = np.meshgrid(*[np.arange(len(kinds[k])) for k in read for _ in range(2)], indexing="ij")
    pairs = {k: (kinds[k][grid[2 * n].ravel()], kinds[k][grid[2 * n + 1].ravel()]) for n, k in enumerate(read)}
    zeros = [np.zeros(grid[0].size, kind.dtype) for kind in kinds]
    (given,) = _compared(c, region, operands, [pairs.get(k, (zero, zero)) for k, zero in enumerate(zeros)])
    for order in permutations(read):
        for choice in range(4 ** len(order)):
            keys = tuple(Key(k, bool(choice >> 2 * n & 1), bool(choice >> 2 * n & 2)) for n, k in enumerate(order))
            if np.array_equal(given, _before(keys, pairs)):
                return keys
    return None


def _depends(c: Operation, region: Any, operands: Sequence[Value], kinds: Sequence[Array], k: int) -> bool:
    """Does the comparison depend on part ``k``? All others are equal."""
    left, right = (g.ravel() for g in np.meshgrid(kinds[k], kinds[k], indexing="ij"))
    zeros = [np.zeros(left.size, kind.dtype) for kind in kinds]
    (given,) = _compared(c, region, operands, [(left, right) if n == k else (z, z) for n, z in enumerate(zeros)])
    return bool(given.any()) and not bool(given.all())


def _compared(
    c: Operation, region: Any, operands: Sequence[Value], pairs: Sequence[tuple[Array, Array]]
) -> list[Array]:
    """What the comparator says of pairs of samples, given for each part: the region takes operands pair by pair."""
    sides = [_complex_where(operands, [pair[side] for pair in pairs]) for side in range(2)]
    return results_of(c, region, [x for both in zip(*sides, strict=True) for x in both])


def _complex_where(operands: Sequence[Value], parts: Sequence[Array]) -> list[Array]:
    """Samples of parts as samples of operands."""
    rest, found = iter(parts), []
    for x in operands:
        sample = next(rest)
        if isinstance(x, Pair):
            joined = np.empty(sample.shape, np.complex128 if sample.dtype == np.float64 else np.complex64)
            joined.real, joined.imag = sample, next(rest)  # a sum of products would make NaN of infinities
            sample = joined
        found.append(sample)
    return found


def _before(keys: Sequence[Key], pairs: Mapping[int, tuple[Array, Array]]) -> Array:
    """Which pairs are in order, by keys."""
    decided: Array = np.zeros(pairs[keys[0].part][0].shape, bool)
    before = decided.copy()
    for key in keys:
        left, right = (_ranks(x, is_total=key.is_total) for x in pairs[key.part])
        smaller = (left > right) if key.is_falling else (left < right)
        before |= ~decided & smaller
        decided |= left != right
    return before


def _ranks(x: Array, *, is_total: bool) -> Array:
    """Numbers in the order of the elements: one zero and NaN last, or the order of all bits."""
    if x.dtype.kind in "iub":
        return x.astype(object)
    wide = x.astype(np.float64)
    if is_total:
        bits = wide.view(np.int64)
        return np.where(bits < 0, bits ^ np.int64(np.iinfo(np.int64).max), bits)
    return np.where(np.isnan(wide), np.inf, np.clip(wide, -1e308, 1e308))


def _places(c: Operation, xs: Sequence[Value], axis: int, region: Any) -> Node:
    """Where each element goes: the number of elements that come before it, of equals those that stood before it."""
    shape, rank = xs[0].shape, len(xs[0].shape)
    n = shape[axis]
    rows = [each(c, x, lambda p: c.reshape(p, (*shape[: axis + 1], 1, *shape[axis + 1 :]))) for x in xs]
    columns = [each(c, x, lambda p: c.reshape(p, (*shape[:axis], 1, *shape[axis:]))) for x in xs]
    pairs = [p for row, column in zip(rows, columns, strict=True) for p in (row, column)]
    turned = [p for row, column in zip(rows, columns, strict=True) for p in (column, row)]
    (before,), (behind,) = c.walker.apply(region, pairs), c.walker.apply(region, turned)
    if not isinstance(before, Node) or not isinstance(behind, Node):
        raise NoForm("a comparison that gives no truth", "compare real numbers")
    at = c.b(ops.iota, extent=n, dtype=i64)
    earlier = c.b(ops.lt, c.along(at, axis, rank + 1), c.along(at, axis + 1, rank + 1))
    ties = c.b(ops.logical_and, c.b(ops.logical_not, c.b(ops.logical_or, before, behind)), earlier)
    counted = c.cast(c.expand(c.b(ops.logical_or, before, ties), (*shape[: axis + 1], n, *shape[axis + 1 :])), i64)
    return c.b(ops.reduce_sum, counted, axes=(axis,))


def _put(c: Operation, x: Node, places: Node, axis: int) -> Node:
    """Each element at its place."""
    return c.b(ops.scatter_elements, x, places, x, axis=axis, reduction="none")


def _top_k(c: Operation) -> Result:
    """The k largest along the last axis and their places; NaN first, of equals the first."""
    x = c.node(0)
    attribute = c.attribute("composite_attributes")["k"] if c.op.name == "stablehlo.composite" else c.attribute("k")
    axis = len(x.shape) - 1
    values, places = c.b.results(c.b(ops.top_k, x, k=int(attribute.value), axis=axis))
    return [values, c.cast(places, c.type(1).dtype)]


def approximate_top_k(c: Operation) -> Result:
    """XLA's call for the largest (or smallest) elements, of which some may be missed: none is here."""
    config = c.attribute("mhlo.backend_config")
    names = {"top_k", "reduction_dim", "aggregate_to_topk"}
    if not hasattr(config, "get_named") or any(n not in config for n in names):
        raise NoForm("no number of elements in its configuration", DAMAGED)
    k, axis, is_whole = (int(config[n].value) for n in ("top_k", "reduction_dim", "aggregate_to_topk"))
    xs = c.operands[: len(c.operands) // 2]
    if not is_whole or isinstance(xs[0], Pair):
        raise NoForm("an approximate choice of more elements than asked for", "use jax.lax.top_k")
    axis += len(xs[0].shape) if axis < 0 else 0
    is_largest = keeps_larger(c, c.walker.called(c))
    _, places = c.b.results(c.b(ops.top_k, xs[0], k=k, axis=axis, largest=is_largest))
    return [each(c, x, lambda p: c.b(ops.gather_elements, p, places, axis=axis)) for x in xs]


TABLE: Mapping[str, Convert] = {"stablehlo.sort": all_in_wider(_sort), "chlo.top_k": all_in_wider(_top_k)}
