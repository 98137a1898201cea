"""GPTQ: codes that keep a product's results for given inputs, not each weight (Frantar et al., 2023).

In: a matrix of weights, the sum of products of its inputs with each other. Out: codes and steps. Not its business:
collecting inputs, which weights get codes.
"""

from __future__ import annotations

import numpy as np

from tilewright.core.types import Array
from tilewright.graph.quantize.books import Book

DAMPING = 0.01
"""What is added to the diagonal, of its mean: inputs that are always alike, or zero, leave no error to move."""


def gptq_rows(rows: Array, moments: Array, book: Book, group: int) -> tuple[Array, Array]:
    """Codes [n, K] of f32[n, K] in whole groups along K, and the steps f32[n, groups], for ``x @ rows.T``.

    ``moments`` is ``sum_x x x^T``, f64[K, K]. Places are rounded one after the other; the error that each makes is
    spread over those that are left, by the inverse of ``moments``, whose Cholesky factor has all the weights for that.
    """
    n, depth = rows.shape
    damped = moments + np.eye(depth) * (DAMPING * max(float(np.trace(moments)) / depth, np.finfo(np.float32).tiny))
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T
    left = rows.astype(np.float64)
    steps, codes = np.empty((n, depth // group), np.float32), []
    for start in range(0, depth, group):
        part = slice(start, start + group)
        step = book.steps_of(left[:, part].astype(np.float32))
        steps[:, start // group] = step
        errors = np.empty((n, group))
        for k in range(start, start + group):
            code = book.nearest(left[:, k : k + 1].astype(np.float32), step)[:, 0]
            codes.append(code)
            errors[:, k - start] = (left[:, k] - book.numbers(code) * step.astype(np.float64)) / factor[k, k]
            left[:, k + 1 : part.stop] -= np.outer(errors[:, k - start], factor[k, k + 1 : part.stop])
        left[:, part.stop :] -= errors @ factor[part, part.stop :]
    return np.stack(codes, axis=1), steps
