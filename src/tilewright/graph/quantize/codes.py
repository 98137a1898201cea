"""Codes of few bits for a matrix of weights, in groups along the axis that a product sums over.

In: a matrix, bits, the size of a group. Out: words, scales and zero points as ``ops.coded`` defines them.
Not its business: which weights get codes (``graph.quantize.weights``).
"""

from __future__ import annotations

import numpy as np

from tilewright.core.types import Array
from tilewright.graph.forms.coded import Coded, coded

ROWS_AT_ONCE = 1024
"""What rounding needs beside the weights is in proportion to so many rows, not to the matrix."""


def scales_of(groups: Array, bits: int) -> Array:
    """The step of each group of weights f32[..., group], by which its largest one is the lowest code, as f32[...].

    The lowest code is the one without a counterpart of the other sign. Steps are numbers of half precision, unless
    those are too coarse for some.
    """
    at = np.abs(groups).argmax(-1)[..., None]
    exact = np.take_along_axis(groups, at, -1)[..., 0] / np.float32(-(1 << (bits - 1)))
    with np.errstate(over="ignore"):
        half = exact.astype(np.float16).astype(np.float32)
    is_coarse = np.abs(half - exact) > np.abs(exact) * np.float32(2.0**-10)
    return np.asarray(exact if is_coarse.any() else half)


def nearest(groups: Array, steps: Array, bits: int) -> Array:
    """The nearest unsigned codes u8 of weights f32[..., group] by the step of each group."""
    middle = 1 << (bits - 1)
    divisor = np.where(steps == 0, np.float32(1), steps)[..., None]
    return np.asarray(np.clip(np.rint(groups / divisor) + middle, 0, 2 * middle - 1).astype(np.uint8))


def rounded_rows(rows: Array, bits: int, group: int) -> tuple[Array, Array]:
    """Each weight's nearest code: u8[n, K] of f32[n, K] in whole groups along K, and the steps f32[n, groups]."""
    n, width = rows.shape
    codes, steps = np.empty((n, width), np.uint8), np.empty((n, width // group), np.float32)
    for start in range(0, n, ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        groups = np.ascontiguousarray(rows[part]).reshape(-1, width // group, group)
        steps[part] = scales_of(groups, bits)
        codes[part] = nearest(groups, steps[part], bits).reshape(-1, width)
    return codes, steps


def rounded(matrix: Array, bits: int, group: int) -> Coded:
    """A matrix f32[K, N] by each weight's nearest code (``K`` whole groups; ``N`` a multiple of a word's codes)."""
    codes, steps = rounded_rows(matrix.T, bits, group)
    return coded(codes.T, steps.T, np.array([[1 << (bits - 1)]]), bits)
