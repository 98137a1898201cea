"""Weighted sums over windows along an axis, as adaptive averages and antialiased images are made of.

In: an operand and a matrix of known weights, most of them zero. Out: a node that reads an element only where its weight
is not zero: a product with the matrix would multiply infinities by zeros, and spread them over the whole axis as NaN.
Not its business: the weights.
"""

from __future__ import annotations

import numpy as np

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import Array, bool_, i64
from tilewright.frontend.sampled import Building


def banded_sum(b: Building, x: Node, axis: int, weights: Array) -> Node:
    """``sum(x[.., i, ..] * weights[o, i] for i in window(o))``; a window holds the weights of a row that are not 0."""
    n_out, n_in = weights.shape
    held = weights != 0
    first, end = held.argmax(1), n_in - held[:, ::-1].argmax(1)
    width = int(np.where(held.any(1), end - first, 0).max(initial=0))
    places = first[:, None] + np.arange(width)
    is_read, places = places < n_in, np.minimum(places, n_in - 1)
    is_read &= np.take_along_axis(held, places, 1)
    window = (n_out, width, *(1,) * (len(x.shape) - axis - 1))
    factors = b.const(np.take_along_axis(weights, places, 1).reshape(window), x.dtype)
    terms = b(ops.mul, b(ops.gather, x, b.const(places, i64), axis=axis), factors)
    kept = b(ops.where, b.const(is_read.reshape(window), bool_), terms, b.const(0, x.dtype))
    return b(ops.reduce_sum, kept, axes=(axis + 1,), keepdims=False)
