"""AWQ: weights that large inputs meet get finer steps, by scaling them before they are rounded (Lin et al., 2024).

In: a matrix of weights, the sum of products of its inputs with each other. Out: a factor for each input. Not its
business: collecting inputs, rounding (``codes``), where inputs are divided by the factors (``weights``).

A weight's error counts by the size of what it multiplies. Multiplied by a factor above 1 before it is rounded, and its
input divided by that, it is off by less, and the others of its group by little more, as long as the group's largest
weight stays the same one.
"""

from __future__ import annotations

import numpy as np

from tilewright.core.types import Array
from tilewright.graph.quantize.books import Book
from tilewright.graph.quantize.codes import real_rows, rounded_rows

EXPONENTS = np.linspace(0, 1, 21)
"""Powers of an input's size that are tried as its factor, as in the paper; 0 leaves weights as they are."""


def awq_factors(rows: Array, moments: Array, book: Book, group: int) -> Array:
    """Factors f32[K] for weights f32[n, K] in whole groups along K, the power of inputs' sizes with the least error.

    ``moments`` is ``sum_x x x^T``, f64[K, K]; an input's size is the root of its mean square. Inputs that are always 0
    count as the smallest that is not.
    """
    squares = np.diagonal(moments)
    positive = squares[squares > 0]
    if not positive.size:
        return np.ones(len(squares), np.float32)
    sizes = np.sqrt(np.maximum(squares, positive.min()))
    tried = [_centred(sizes**exponent) for exponent in EXPONENTS]
    return min(tried, key=lambda factors: _error(rows, factors, moments, book, group))


def _centred(factors: Array) -> Array:
    """Factors around 1: the product of the largest and the smallest is 1."""
    return np.asarray(factors / np.sqrt(factors.max() * factors.min()), np.float32)


def _error(rows: Array, factors: Array, moments: Array, book: Book, group: int) -> float:
    """The squared error of all results for the inputs that ``moments`` was made of."""
    near = real_rows(*rounded_rows(rows * factors, book, group), book) / factors
    off = (near - rows).astype(np.float64)
    return float(np.sum((off @ moments) * off))
