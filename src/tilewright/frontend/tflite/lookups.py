"""TFLite's distinct elements and tables of numbers, and the ops of StableHLO that LiteRT has kernels for.

In: calls. Out: nodes. Not its business: tables of text, and StableHLO programs of their own (``frontend.stablehlo``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.frontend.tflite.arithmetic import two
from tilewright.frontend.tflite.call import Converter, TfliteCall
from tilewright.frontend.tflite.segments import spread

SUM, MEAN, ROOT = range(3)
"""How rows of an embedding are joined: a weighted sum, over the weights' sum, or over the root of their squares."""


MOST_ELEMENTS = 1 << 27
"""Of what is made at import: a few bytes of a damaged file could ask for any size."""


def _check_size(n: int) -> None:
    if n > MOST_ELEMENTS:
        raise OpError(f"{n} elements are more than the {MOST_ELEMENTS} that are read", remedy="convert the model anew")


def _unique(c: TfliteCall) -> list[Node]:
    """Distinct elements in the order in which they are first met, and which of them each element is.

    Sorted, equal elements are neighbours; the least place of a group is where its element is first met.
    """
    x = c.x()
    if len(c.size(x)) != 1:
        raise OpError(f"distinct elements are those of a vector, not of {x.type}")
    (n,) = c.size(x)
    _check_size(n)
    if n == 0:
        return [x, c.b.const(np.zeros(0, c.dtypes[1].numpy))]
    ordered, order = c.b.results(c.b(ops.sort, x, axis=0))
    order = c.cast(order, types.i64)
    before = c.b(ops.slice, ordered, starts=(0,), stops=(n - 1,), steps=(1,))
    after = c.b(ops.slice, ordered, starts=(1,), stops=(n,), steps=(1,))
    starts = c.b(ops.concat, c.b.const(np.ones(1, np.bool_)), c.b(ops.ne, after, before), axis=0)
    one, last = c.b.const(1, types.i64), c.b.const(np.full(n, n - 1, np.int64))
    group = c.b(ops.sub, c.b(ops.cumsum, c.cast(starts, types.i64), axis=0), one)
    least = c.b(ops.scatter_elements, last, group, order, axis=0, reduction="min")
    zeros, places = c.b.const(np.zeros(n, np.int64)), c.b.const(np.arange(n))
    first = c.b(ops.scatter_elements, zeros, order, c.b(ops.gather, least, group, axis=0), axis=0)
    is_first = c.b(ops.eq, first, places)
    rank = c.b(ops.sub, c.b(ops.cumsum, c.cast(is_first, types.i64), axis=0), one)
    rows, _ = c.b.results(c.b(ops.argwhere, is_first, count=f"unique_{x.serial}"))
    found = c.b(ops.reshape, rows, shape=(rows.shape[0],))
    return [c.b(ops.gather, x, found, axis=0), c.cast(c.b(ops.gather, rank, first, axis=0), c.dtypes[1])]


def _hashtable_lookup(c: TfliteCall) -> list[Node]:
    """The rows of keys, zeros for keys that are not there, and a mark where they are: u8."""
    asked, keys, values = c.x(0), c.x(1), c.x(2)
    (n_asked,), (n_keys,) = c.size(asked), c.size(keys)
    columns, rows = c.shaped(asked, (n_asked, 1)), c.shaped(keys, (1, n_keys))
    same = c.cast(c.b(ops.eq, columns, rows), types.i32)
    place = c.b(ops.argmax, same, axis=1, keepdims=False)
    hit = c.b(ops.reduce_max, same, axes=(1,), keepdims=False)
    found = c.b(ops.gather, values, place, axis=0)
    is_hit = c.b(ops.gt, hit, c.b.const(0, types.i32))
    shape = (n_asked, *(1 for _ in c.size(values)[1:]))
    made = c.b(ops.where, c.shaped(is_hit, shape), found, c.number(0, found))
    return [made, c.cast(hit, types.u8)]


def _embedding_lookup_sparse(c: TfliteCall) -> Node:
    """Weighted rows of a table, those of each place joined; a place without any is zeros."""
    ids, indices, weights, table = c.x(0), c.x(1), c.x(3), c.x(4)
    outer = c.ints(2)[:-1]
    combiner = c.option("Combiner")
    (n,), (_, rank), (_, *row) = c.size(ids), c.size(indices), c.size(table)
    places = prod(outer)
    steps = np.array([prod(outer[k + 1 :]) for k in range(len(outer))], np.int64)
    known = c.b(ops.slice, indices, starts=(0, 0), stops=(n, rank - 1), steps=(1, 1))
    at = c.b(ops.mul, c.cast(known, types.i64), c.b.const(steps))
    at = c.b(ops.reduce_sum, at, axes=(1,), keepdims=False)
    width = prod(row)
    _check_size(places * width)
    rows = c.b(ops.gather, c.shaped(table, (c.size(table)[0], width)), ids, axis=0)

    def joined(values: Node, columns: int) -> Node:
        zeros = c.b.const(np.zeros((places, columns), np.float32))
        spread = c.b(ops.expand, c.shaped(at, (n, 1)), shape=(n, columns))
        return c.b(ops.scatter_elements, zeros, spread, values, axis=0, reduction="add")

    column = c.shaped(weights, (n, 1))
    total = joined(c.b(ops.mul, rows, column), width)
    if combiner in (MEAN, ROOT):
        scale = joined(column if combiner == MEAN else c.b(ops.mul, column, column), 1)
        scale = scale if combiner == MEAN else c.b(ops.sqrt, scale)
        is_none = c.b(ops.eq, scale, c.number(0, scale))
        total = c.b(ops.div, total, c.b(ops.where, is_none, c.number(1, scale), scale))
    return c.shaped(total, (*outer, *row))


# --- StableHLO within TFLite ----------------------------------------------------------------------------------------


def _composite(c: TfliteCall) -> list[Node]:
    """What the composite is made of: its name promises nothing else."""
    return c.inner(c.option("DecompositionSubgraphIndex"), c.b, [c.x(k) for k in range(len(c.inputs))])


def _stablehlo_pad(c: TfliteCall) -> Node:
    """A value around elements, and between them; negative sizes take elements away."""
    x, value = c.x(0), c.shaped(c.x(1), ())
    low, high, inner = (
        [int(n) for n in getattr(c.options, f"{name}AsNumpy")()]
        for name in ("EdgePaddingLow", "EdgePaddingHigh", "InteriorPadding")
    )
    if any(inner):
        apart = [gap + 1 if n > 1 else 1 for n, gap in zip(c.size(x), inner, strict=True)]
        _check_size(max(n * d for n, d in zip(c.size(x), apart, strict=True)))
        x = spread(c, x, value, apart)
    return c.b(ops.pad, x, value, pads=tuple(zip(low, high, strict=True)), mode="constant")


def _stablehlo_gather(c: TfliteCall) -> Node:
    """A window of the operand for each vector of indices, which are brought inside where it would reach out."""
    x, indices = c.x(0), c.x(1)
    offsets, collapsed, start_map, sizes = (
        _ints(c, name) for name in ("OffsetDims", "CollapsedSliceDims", "StartIndexMap", "SliceSizes")
    )
    shape, index_shape, vector = c.size(x), c.size(indices), c.option("IndexVectorDim")
    rank, left = len(shape), [k for k in range(len(shape)) if k not in collapsed]
    outer = [n for k, n in enumerate(index_shape) if k != vector]
    is_sound = (
        len(sizes) == rank and all(0 <= n <= m for n, m in zip(sizes, shape, strict=True))
        and 0 <= vector < len(index_shape) and index_shape[vector] == len(start_map) == len({*start_map})
        and {*start_map} <= {*range(rank)} and {*collapsed} <= {*range(rank)} and all(sizes[k] == 1 for k in collapsed)
        and len(offsets) == len({*offsets}) == len(left) and {*offsets} <= {*range(len(outer) + len(left))}
    )  # fmt: skip
    if not is_sound:
        raise OpError(f"the dimensions of a gather of {x.type} at {indices.type} do not fit", remedy="convert it anew")
    strides = [prod(shape[k + 1 :]) for k in range(rank)]
    _check_size(prod(sizes))
    window = np.zeros([sizes[k] for k in left], np.int64)
    for axis, k in enumerate(left):
        window += strides[k] * np.arange(sizes[k]).reshape([-1 if a == axis else 1 for a in range(len(left))])
    by_vector = (*(k for k in range(len(index_shape)) if k != vector), vector)
    at = c.cast(c.transposed(indices, by_vector), types.i64)
    last = c.b.const(np.array([shape[k] - sizes[k] for k in start_map], np.int64))
    steps = c.b.const(np.array([strides[k] for k in start_map], np.int64))
    begins = c.b(ops.mul, c.b(ops.minimum, c.b(ops.maximum, at, c.b.const(0, types.i64)), last), steps)
    first = c.b(ops.reduce_sum, begins, axes=(len(outer),), keepdims=False)
    places = c.b(ops.add, c.shaped(first, (*outer, *[1] * len(left))), c.b.const(window))
    found = c.b(ops.gather, c.shaped(x, (prod(shape),)), places, axis=0)
    batch = iter(range(len(outer)))
    into = [
        len(outer) + offsets.index(k) if k in offsets else next(batch) for k in range(len(outer) + len(left))
    ]  # fmt: skip
    return c.transposed(found, into)


def _ints(c: TfliteCall, name: str) -> list[int]:
    """A vector among the options; empty where it is left out."""
    return [int(n) for n in getattr(c.options, f"{name}AsNumpy")()] if c.option(f"{name}Length") else []


def _of_numbers(of_floats: Converter) -> Converter:
    def convert(c: TfliteCall) -> Node | Sequence[Node]:
        if c.x().dtype is types.bool_:
            raise OpError(f"{c.name} of bools has no form here", remedy="convert the model anew")
        return of_floats(c)

    return convert


TABLE: Mapping[str, Converter] = {
    "UNIQUE": _unique, "HASHTABLE_LOOKUP": _hashtable_lookup, "EMBEDDING_LOOKUP_SPARSE": _embedding_lookup_sparse,
    "STABLEHLO_COMPOSITE": _composite, "STABLEHLO_PAD": _stablehlo_pad, "STABLEHLO_GATHER": _stablehlo_gather,
    "STABLEHLO_ADD": _of_numbers(two(ops.add)),
    "STABLEHLO_MULTIPLY": _of_numbers(two(ops.mul)), "STABLEHLO_MAXIMUM": _of_numbers(two(ops.maximum)),
    "STABLEHLO_MINIMUM": _of_numbers(two(ops.minimum)),
}  # fmt: skip
