"""Weighted sums over windows along an axis, as adaptive averages and antialiased images are made of.

In: an operand and a matrix of known weights, most of them zero. Out: a node that reads an element only where its weight
is not zero: a product with the matrix would multiply infinities by zeros, and spread them over the whole axis as NaN.
Not its business: the weights.
"""

from __future__ import annotations

import numpy as np

from tilewright import ops
from tilewright.core.dims import known_at_least
from tilewright.core.graph import Node
from tilewright.core.types import Array, bool_, i64
from tilewright.frontend.sampled import LEAST_CHANNELS, Building

MOST_TERMS = 8
"""Elements of a window that are added one by one; longer windows are loops. 13 to 6 takes 0.3 of a loop's time, 61 to 6
(11 elements) 2.3 of it."""


def banded_sum(b: Building, x: Node, axis: int, weights: Array) -> Node:
    """``sum(x[.., i, ..] * weights[o, i] for i in window(o))``; a window holds the weights of a row that are not 0.

    Windows along the last axis would be gathered element by element: where the axis before it fills vectors, the two
    are swapped.
    """
    rank = len(x.shape)
    rows = x.shape[axis - 1] if axis == rank - 1 and axis > 0 else 0
    if not known_at_least(rows, LEAST_CHANNELS):
        return _windowed(b, x, axis, weights)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    y = _windowed(b, b(ops.transpose, x, perm=swapped), rank - 2, weights)
    return b(ops.transpose, y, perm=swapped)


def _windowed(b: Building, x: Node, axis: int, weights: Array) -> Node:
    n_in, held = weights.shape[1], weights != 0
    first, end = held.argmax(1), n_in - held[:, ::-1].argmax(1)
    width = int(np.where(held.any(1), end - first, 0).max(initial=0))
    places = first[:, None] + np.arange(width)
    is_read, places = places < n_in, np.minimum(places, n_in - 1)
    is_read &= np.take_along_axis(held, places, 1)
    factors = np.take_along_axis(weights, places, 1)

    def terms(columns: int | slice) -> Node:
        """What the elements in these columns of the windows add, 0 for one that is not read."""
        window = (*places[:, columns].shape, *(1,) * (len(x.shape) - axis - 1))
        read = b(ops.gather, x, b.const(places[:, columns].copy(), i64), axis=axis)
        product = b(ops.mul, read, b.const(factors[:, columns].reshape(window), x.dtype))
        chosen = is_read[:, columns].reshape(window)
        return product if chosen.all() else b(ops.where, b.const(chosen, bool_), product, b.const(0, x.dtype))

    if not 0 < width <= MOST_TERMS:
        return b(ops.reduce_sum, terms(slice(None)), axes=(axis + 1,), keepdims=False)
    total = terms(0)
    for k in range(1, width):
        total = b(ops.add, total, terms(k))
    return total
