"""GPTQ: codes that keep a product's results for given inputs, not each weight (Frantar et al., 2023).

In: a matrix of weights, the sum of products of its inputs with each other. Out: codes and steps. Not its business:
collecting inputs, which weights get codes.
"""

from __future__ import annotations

import numpy as np

from tilewright.core.types import Array
from tilewright.graph.quantize.books import Book

BLOCK = 64
"""Places whose errors reach the places behind them at once, as one product of matrices."""
DAMPING = 0.01
"""What is added to the diagonal, of its mean: inputs that are always alike, or zero, leave no error to move."""


def gptq_rows(rows: Array, moments: Array, book: Book, group: int) -> tuple[Array, Array]:
    """Codes [n, K] of f32[n, K] in whole groups along K, and the steps f32[n, groups], for ``x @ rows.T``.

    ``moments`` is ``sum_x x x^T``, f64[K, K]. Places are rounded one after the other, those of the largest inputs
    first; the error that each makes is spread over those that are left, by the inverse of ``moments``, whose Cholesky
    factor has all the weights for that. Steps are those of the weights as they are, since a group is rounded in parts.
    """
    n, depth = rows.shape
    order = np.argsort(-np.diagonal(moments), kind="stable")
    damped = moments + np.eye(depth) * (DAMPING * max(float(np.trace(moments)) / depth, np.finfo(np.float32).tiny))
    factor = np.linalg.cholesky(np.linalg.inv(damped[np.ix_(order, order)])).T
    left = rows[:, order].astype(np.float64)
    steps = book.near_steps(np.ascontiguousarray(rows, np.float32).reshape(n, depth // group, group))
    codes = [np.empty(0)] * depth
    for start in range(0, depth, BLOCK):
        stop = min(start + BLOCK, depth)
        errors = np.empty((n, stop - start))
        for k in range(start, stop):
            step = steps[:, order[k] // group]
            code = book.nearest(left[:, k : k + 1].astype(np.float32), step)[:, 0]
            codes[order[k]] = code
            errors[:, k - start] = (left[:, k] - book.numbers(code) * step.astype(np.float64)) / factor[k, k]
            left[:, k + 1 : stop] -= np.outer(errors[:, k - start], factor[k, k + 1 : stop])
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return np.stack(codes, axis=1), steps
