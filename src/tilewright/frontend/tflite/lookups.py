"""TFLite's distinct elements and tables of numbers.

In: calls. Out: nodes. Not its business: tables of text.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.frontend.distinct import distinct
from tilewright.frontend.tflite.call import Converter, TfliteCall, check_size

SUM, MEAN, ROOT = range(3)
"""How rows of an embedding are joined: a weighted sum, over the weights' sum, or over the root of their squares."""


def _unique(c: TfliteCall) -> list[Node]:
    """Distinct elements in the order in which they are first met, and which of them each element is."""
    x = c.x()
    if len(c.size(x)) != 1:
        raise OpError(f"distinct elements are those of a vector, not of {x.type}")
    (n,) = c.size(x)
    check_size(n)
    if n == 0:
        return [x, c.b.const(np.zeros(0, c.dtypes[1].numpy))]

    def places(flags: Node) -> Node:
        rows, _ = c.b.results(c.b(ops.argwhere, flags, count=f"unique_{x.serial}"))
        return c.b(ops.reshape, rows, shape=rows.shape[:1])

    found = distinct(c.b, x, None, places, is_sorted=False)
    return [found.values, c.cast(found.inverse, c.dtypes[1])]


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
    check_size(places * width)
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


TABLE: Mapping[str, Converter] = {
    "UNIQUE": _unique, "HASHTABLE_LOOKUP": _hashtable_lookup, "EMBEDDING_LOOKUP_SPARSE": _embedding_lookup_sparse,
}  # fmt: skip
