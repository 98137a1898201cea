"""The error that rounding an operand and weights is expected to bring into a product.

In: what the channels of an operand held, its weights. Out: squares of errors. Not its business: what is done about them
(``smooth``, ``parts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilewright.core.types import Array


class Channels(NamedTuple):
    """The least and the greatest number of each channel of a tensor, and the mean of their squares; f64[K] each.

    Where scales are of rows, there are some of the rows, too: f64[rows, K].
    """

    low: Array
    high: Array
    square: Array
    rows: Array | None = None

    def over(self, divisors: Array) -> Channels:
        """The ends and the rows of channels that are each divided by its own number; squares stay."""
        rows = None if self.rows is None else self.rows / divisors
        return self._replace(low=self.low / divisors, high=self.high / divisors, rows=rows)

    @property
    def peak(self) -> Array:
        """The greatest magnitude of each channel."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


@dataclass(frozen=True)
class Rounded:
    """What operands and weights are rounded to: how many steps a range has, and whether columns have their own.

    ``n_steps`` is that of activations, ``greatest`` the largest number of a weight.
    """

    n_steps: int
    greatest: int
    per_channel: bool

    def step(self, seen: Channels, divisors: Array) -> float:
        """The step of the one range of all channels, each divided by its own number, and of 0.

        Where scales are of rows it is the root of the mean square of the rows' steps, on which errors depend.
        """
        scaled = seen.over(divisors)
        if scaled.rows is not None:
            return float(np.sqrt(np.square(row_reaches(scaled.rows)).mean())) / self.n_steps
        return (float(scaled.high.max(initial=0)) - float(scaled.low.min(initial=0))) / self.n_steps

    def of_operand(self, seen: Channels, met: Array, factors: Array, step: float) -> float:
        """The expected square of the error that a row of ``x @ w`` has by rounding ``x / factors`` to ``step``.

        Rounding to steps of ``d`` has a mean square of ``d**2 / 12``, no more than that of what is rounded, and the
        errors of different numbers have nothing to do with each other. That of a channel is multiplied by the weights
        that it meets, the sum of whose squares is ``met``.
        """
        return float(np.minimum(np.square(factors * step) / 12, seen.square) @ met)

    def of_weights(self, seen: Channels, weights: Sequence[Array], factors: Array) -> float:
        """That by rounding ``w * factors``, all weights that ``x`` meets: each by what its channel holds."""
        held, error = float((seen.square / np.square(factors, dtype=np.float64)).sum()), 0.0
        for w in weights:
            peaks = np.abs(w * factors[:, None]).max(axis=0, initial=0)
            steps = (peaks if self.per_channel else np.full_like(peaks, peaks.max(initial=0))) / self.greatest
            error += float(np.square(steps).sum()) / 12 * held
        return error


def row_reaches(rows: Array) -> Array:
    """How far the numbers of each row [n, K] reach, 0 among them."""
    return np.asarray(rows.max(axis=1, initial=0) - rows.min(axis=1, initial=0))


def met_by(weights: Sequence[Array]) -> Array:
    """The sum of squares of the weights that each channel meets; f64[K]."""
    return np.asarray(sum(np.square(w).sum(axis=1) for w in weights))
