"""Codes of few bits for a matrix of weights, in groups along the axis that a product sums over.

In: a matrix, a book, the size of a group. Out: codes and steps, and the product that reads them. Not its business:
which weights get codes (``graph.quantize.weights``).
"""

from __future__ import annotations

import numpy as np

from tilewright.core.effort import EFFORT
from tilewright.core.graph import Builder, Node
from tilewright.core.types import Array
from tilewright.graph.forms.coded import coded, coded_product
from tilewright.graph.forms.scaled import scaled_product
from tilewright.graph.quantize.books import Book, Floats, Levels


def rounded_rows(rows: Array, book: Book, group: int, is_near: bool = False) -> tuple[Array, Array]:
    """Each weight's nearest code: [n, K] of f32[n, K] in whole groups along K, and the steps f32[n, groups].

    With ``is_near`` steps are those of the least error, which takes ten times as long.
    """
    n, width = rows.shape
    steps = np.empty((n, width // group), np.float32)
    parts = []
    at_once = max(EFFORT.elements // max(width, 1), 1)  # so that what it needs beside the weights does not grow
    for start in range(0, n, at_once):
        part = slice(start, start + at_once)
        groups = np.ascontiguousarray(rows[part], np.float32).reshape(-1, width // group, group)
        steps[part] = book.near_steps(groups) if is_near else book.steps_of(groups)
        parts.append(book.nearest(groups, steps[part]).reshape(-1, width))
    return np.concatenate(parts), steps


def real_rows(codes: Array, steps: Array, book: Book) -> Array:
    """The weights f32[n, K] that codes [n, K] and steps f32[n, groups] stand for."""
    return np.asarray(book.numbers(codes) * np.repeat(steps, codes.shape[1] // steps.shape[1], 1))


def product_of(b: Builder, x: Node, codes: Array, steps: Array, book: Book) -> Node:
    """``x @ rows.T`` for x f32[..., K] and the rows [N, K] of these codes and steps; f32[..., N]."""
    if isinstance(book, Levels):
        matrix = coded(codes.T, steps.T, np.array([[book.zero]]), book.bits)
        return coded_product(b, x, matrix, book.bits, book.levels)
    assert isinstance(book, Floats)
    return scaled_product(b, x, codes.T, steps.T, book.dtype)
