"""GPTQ: codes that keep a product's results for given inputs, not each weight (Frantar et al., 2023).

In: a matrix of weights, the sum of products of its inputs with each other. Out: codes and steps, or bytes. Not its
business: collecting inputs, which weights get codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tilewright.core.effort import EFFORT
from tilewright.core.types import Array
from tilewright.graph.quantize.books import Book
from tilewright.graph.quantize.encoding import ByteWeights
from tilewright.graph.quantize.places import Layer
from tilewright.graph.quantize.windows import matrices_of, weights_from

BLOCK = EFFORT.listed
"""Places whose errors reach the places behind them at once, as one product of matrices."""
DAMPING = 0.01
"""What is added to the diagonal, of its mean: inputs that are always alike, or zero, leave no error to move."""


def gptq_rows(rows: Array, moments: Array, book: Book, group: int) -> tuple[Array, Array]:
    """Codes [n, K] of f32[n, K] in whole groups along K, and the steps f32[n, groups], for ``x @ rows.T``.

    ``moments`` is ``sum_x x x^T``, f64[K, K]. Steps are those of the weights as they are, since a group is rounded in
    parts.
    """
    n, depth = rows.shape
    steps = book.near_steps(np.ascontiguousarray(rows, np.float32).reshape(n, depth // group, group))
    codes = [np.empty(0)] * depth

    def rounded(k: int, column: Array) -> Array:
        step = steps[:, k // group]
        codes[k] = book.nearest(column[:, None].astype(np.float32), step)[:, 0]
        return book.numbers(codes[k]) * step.astype(np.float64)

    mean = max(float(np.trace(moments)) / depth, np.finfo(np.float32).tiny)
    _round_in_turn(rows, moments + np.eye(depth) * (DAMPING * mean), rounded)
    return np.stack(codes, axis=1), steps


class Inputs(NamedTuple):
    """What a product's inputs hold: ``sum_x x x^T`` f64[K, K] of ``n_rows`` rows, and the step they are rounded to."""

    moments: Array
    n_rows: int
    step: float

    def expected(self) -> Array:
        """What other rows, rounded, are expected to hold.

        Rounding adds ``step**2 / 12`` to the mean square of each place, and nothing to what two places have in common.
        What K places seem to have in common in n rows is chance by a share of about K / n, which is why their own
        squares count for more by that. Rows of zeros, whose step may be 0, get the least that has an inverse.
        """
        chance, rounding = len(self.moments) / self.n_rows, self.n_rows * self.step**2 / 12
        own = chance * np.diagonal(self.moments) + max(rounding, float(np.finfo(np.float32).tiny))
        return np.asarray(self.moments + np.diag(own))


def gptq_weights(array: Array, inputs: Inputs, nearest: Sequence[ByteWeights], greatest: int = 0) -> list[ByteWeights]:
    """Weights f32[K, N] in the scales of each of ``nearest``, with numbers that keep ``x @ array`` by their turns.

    None is larger than ``greatest`` or, where that is 0, than the largest there is. All are chosen at once, because it
    is ``inputs`` that take the time.
    """
    n, greatest = array.shape[1], greatest or _greatest(nearest)
    rows = np.tile(array.T, (len(nearest), 1))
    steps = np.concatenate([np.broadcast_to(w.scale, n) for w in nearest]).astype(np.float64)
    numbers = np.empty(array.shape[:1] + steps.shape, np.int8)

    def rounded(k: int, column: Array) -> Array:
        found = np.clip(np.rint(column / steps), -greatest, greatest)
        numbers[k] = found
        return np.asarray(found * steps)

    _round_in_turn(rows, inputs.expected(), rounded)
    parts = [np.ascontiguousarray(numbers[:, k * n : (k + 1) * n]) for k in range(len(nearest))]
    return [w._replace(numbers=part) for w, part in zip(nearest, parts, strict=True)]


def _greatest(weights: Sequence[ByteWeights]) -> int:
    return max(int(np.abs(w.numbers.astype(np.int16)).max(initial=0)) for w in weights)


def gptq_layer(layer: Layer, inputs: Sequence[Inputs], nearest: Sequence[ByteWeights]) -> list[ByteWeights]:
    """The weights of a layer in the scales of each of ``nearest``; ``inputs`` are those of each group."""
    found, greatest = [matrices_of(layer, w.numbers).copy() for w in nearest], _greatest(nearest)
    for g, (matrix, held) in enumerate(zip(matrices_of(layer, layer.weights), inputs, strict=True)):
        near = [_of_group(layer, w, g, len(inputs)) for w in nearest]
        for made, chosen in zip(found, gptq_weights(matrix, held, near, greatest), strict=True):
            made[g] = chosen.numbers
    return [w._replace(numbers=weights_from(layer, made)) for w, made in zip(nearest, found, strict=True)]


def _of_group(layer: Layer, weights: ByteWeights, g: int, n_groups: int) -> ByteWeights:
    """The part of a group, as a matrix [terms, results]."""
    scale = weights.scale.reshape(n_groups, -1)[g] if weights.scale.ndim else weights.scale
    return ByteWeights(matrices_of(layer, weights.numbers)[g], scale, 1)


def _round_in_turn(rows: Array, moments: Array, rounded: Callable[[int, Array], Array]) -> None:
    """Round places one after the other, those of the largest inputs first.

    ``rounded(k, column)`` has what f64[n] of place ``k`` become. The error that each makes is spread over those that
    are left, by the inverse of ``moments``, whose Cholesky factor has all the weights for that.
    """
    depth = rows.shape[1]
    order = np.argsort(-np.diagonal(moments), kind="stable")
    factor = _factor_of_inverse(moments[np.ix_(order, order)])
    left = rows.T[order].astype(np.float64)
    for start in range(0, depth, BLOCK):
        stop = min(start + BLOCK, depth)
        errors = np.empty((stop - start, len(rows)))
        for k in range(start, stop):
            errors[k - start] = (left[k] - rounded(int(order[k]), left[k])) / factor[k, k]
            left[k + 1 : stop] -= np.outer(factor[k, k + 1 : stop], errors[k - start])
        left[stop:] -= factor[start:stop, stop:].T @ errors


def _factor_of_inverse(moments: Array) -> Array:
    """The upper triangle ``u`` with ``u.T @ u`` the inverse.

    With places in reverse, ``moments`` is ``g @ g.T`` with a lower triangle, whose inverse is ``u`` in reverse.
    """
    return _inverse(np.linalg.cholesky(moments[::-1, ::-1]))[::-1, ::-1]


def _inverse(lower: Array) -> Array:
    """The inverse of a lower triangle: of two halves, and a product of the three."""
    n = len(lower)
    if n <= BLOCK:
        return np.tril(np.linalg.inv(lower))
    half = n // 2
    found = np.zeros_like(lower)
    first, last = found[:half, :half], found[half:, half:]
    first[...], last[...] = _inverse(lower[:half, :half]), _inverse(lower[half:, half:])
    found[half:, :half] = -last @ (lower[half:, :half] @ first)
    return found
