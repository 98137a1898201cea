"""What a layer's weights sum over, as matrices: of a convolution each window is a row, and each group has its own.

In: a layer, what its operand held. Out: weights as [groups, terms, results], rows as [groups, rows, terms]. Not its
business: choosing bytes (``gptq``).
"""

from __future__ import annotations

import math

import numpy as np

from tilewright import ops
from tilewright.core.types import Array
from tilewright.graph.quantize.places import Layer
from tilewright.ops.convolution import padded_array, taps_of


def has_matrices(layer: Layer) -> bool:
    """Does each of the layer's results sum over rows by one of a few matrices?"""
    return layer.is_matrix or layer.node.op is ops.conv


def matrices_of(layer: Layer, weights: Array) -> Array:
    """Weights, or their bytes, as [groups, terms, results]."""
    if layer.is_matrix:
        return weights[None]
    groups, n = layer.node.attrs["groups"], len(weights)
    return weights.reshape(groups, n // groups, math.prod(weights.shape[1:])).transpose(0, 2, 1)


def weights_from(layer: Layer, matrices: Array) -> Array:
    """The way back from ``matrices_of``."""
    if layer.is_matrix:
        return np.ascontiguousarray(matrices[0])
    return np.ascontiguousarray(matrices.transpose(0, 2, 1)).reshape(layer.weights.shape)


def spaced(n: int, most: int) -> Array:
    """At most so many of ``n`` places, equally far apart; i64."""
    return np.unique(np.linspace(0, max(n - 1, 0), min(most, n)).astype(np.int64))


def rows_of(layer: Layer, x: Array, most: int) -> Array:
    """What the layer's results sum over when its operand holds ``x``: f64[groups, rows, terms].

    Of a convolution at most so many windows, equally far apart: neighbours hold much of the same.
    """
    if layer.is_matrix:
        return np.asarray(x, np.float64).reshape(1, -1, len(layer.weights))
    a, (_, depth, *kernel) = layer.node.attrs, layer.weights.shape
    padded = padded_array(x if a["layout"] == "NCHW" else np.moveaxis(x, -1, 1), a["pads"], 0)
    taps = [part for _, part in taps_of(padded, kernel, a["strides"], a["dilations"])]
    places = (len(x), *taps[0].shape[2:])
    chosen = np.unravel_index(spaced(math.prod(places), most), places)
    rows = np.stack([np.moveaxis(part, 1, -1)[chosen] for part in taps], axis=-1).astype(np.float64)
    return rows.reshape(len(rows), a["groups"], depth * len(taps)).transpose(1, 0, 2)
