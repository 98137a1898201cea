"""What is seen of a tensor while batches stream by, and the range of numbers that its bytes should cover.

In: arrays, one batch after another, of any number. Out: the least and the greatest number, a histogram, and a range by
one of ``OBSERVERS``. Not its business: which tensors are looked at (``places``), scales (``encoding``).

A histogram has a fixed number of bins around 0. Where a number lies outside, its range doubles and neighbours merge,
so that the counts are exact at any time and memory stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilewright.core.types import Array, DType, u8
from tilewright.graph.quantize.encoding import Range, encoding_of

HALF = 4 * 2**u8.bits
"""Bins on each side of 0: four for each step of 8 bits."""
CLIPPED = np.linspace(1, 0.05, 96)
"""Shares of the greatest magnitude that ``mse`` and ``entropy`` try as the limit, in steps of one percent."""


class Histogram:
    """Counts of a tensor's numbers between ``-limit`` and ``limit``, their least and greatest, and their number."""

    def __init__(self) -> None:
        self.counts = np.zeros(2 * HALF, np.int64)
        self.limit = 0.0
        self.low, self.high = np.inf, -np.inf
        self.n = 0

    def add(self, array: Array) -> None:
        """Count finite numbers: those of one batch."""
        if not array.size:
            return
        low, high = float(array.min()), float(array.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.n += array.size
        self._cover(max(-low, high))
        counts, _ = np.histogram(array, bins=2 * HALF, range=(-self.limit, self.limit))
        self.counts += counts

    def merge(self, other: Histogram) -> None:
        """Add what another histogram has counted."""
        if not other.n:
            return
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.n += other.n
        self._cover(max(self.limit, other.limit))
        self.counts += np.histogram(other.centres(), 2 * HALF, (-self.limit, self.limit), weights=other.counts)[
            0
        ].astype(np.int64)

    def centres(self) -> Array:
        """The number in the middle of each bin."""
        return np.asarray((np.arange(2 * HALF) + 0.5 - HALF) * (self.limit / HALF))

    def outside(self, covered: Range) -> float:
        """The share of the numbers that lie outside of a range, bin by bin; the ends of all numbers are exact."""
        if not self.n or (covered.low <= self.low and self.high <= covered.high):
            return 0.0
        centres = self.centres()
        return float(self.counts[(centres < covered.low) | (centres > covered.high)].sum() / self.n)

    def _cover(self, limit: float) -> None:
        if self.limit == 0:
            self.limit = limit or 1.0
        while self.limit < limit:
            merged = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.zeros_like(self.counts)
            self.counts[HALF // 2 : HALF // 2 + HALF] = merged
            self.limit *= 2


Observer = Callable[[Histogram, DType], Range]


def _whole(seen: Histogram, dtype: DType) -> Range:
    return Range(seen.low, seen.high)


def percentile(share: float) -> Observer:
    """The observer that leaves out a share of the numbers, half of it at each end."""

    def observer(seen: Histogram, dtype: DType) -> Range:
        below = np.cumsum(seen.counts) / seen.n
        centres, step = seen.centres(), seen.limit / HALF
        low = centres[np.searchsorted(below, share / 2)] - step / 2
        high = centres[np.searchsorted(below, 1 - share / 2)] + step / 2
        return Range(max(float(low), seen.low), min(float(high), seen.high))

    return observer


def _shares(seen: Histogram) -> list[Range]:
    limits = (CLIPPED * max(-seen.low, seen.high)).tolist()
    return [Range(max(seen.low, -limit), min(seen.high, limit)) for limit in limits]


def _least_square(seen: Histogram, dtype: DType) -> Range:
    """The range with the least mean squared error of what was counted."""
    centres = seen.centres()

    def error(covered: Range) -> float:
        steps = encoding_of(covered, dtype)
        return float((seen.counts * (steps.rounded(centres) - centres) ** 2).sum())

    return min(_shares(seen), key=error)


def _least_divergence(seen: Histogram, dtype: DType) -> Range:
    """The range whose bytes tell most of the distribution (Migacz, 8-bit inference with TensorRT, 2017).

    For each range the counts outside go to its ends; the distribution of the bytes, each spread evenly over the bins
    that it stands for and that are not empty, is compared with it by the Kullback-Leibler divergence.
    """
    centres = seen.centres()

    def divergence(covered: Range) -> float:
        inside = np.flatnonzero((centres >= covered.low) & (centres <= covered.high))
        if inside.size == 0:
            return np.inf
        first, last = inside[0], inside[-1]
        counts = seen.counts[first : last + 1].astype(np.float64)
        wanted = counts.copy()
        wanted[0] += seen.counts[:first].sum()
        wanted[-1] += seen.counts[last + 1 :].sum()
        steps = encoding_of(covered, dtype).stored(centres[first : last + 1])
        steps -= steps.min()
        bins = np.bincount(steps, counts > 0)
        spread = np.bincount(steps, counts)[steps] / np.maximum(bins[steps], 1) * (counts > 0)
        held = wanted > 0
        p, q = wanted[held] / wanted.sum(), np.maximum(spread[held] / max(spread.sum(), 1), np.finfo(np.float64).tiny)
        return float((p * np.log(p / q)).sum())

    return min(_shares(seen), key=divergence)


OBSERVERS: Mapping[str, Observer] = {
    "minmax": _whole,
    "percentile": percentile(1e-4),
    "entropy": _least_divergence,
    "mse": _least_square,
}
"""How a range is chosen: all numbers, all but one in 10,000, the least divergence, the least squared error."""
