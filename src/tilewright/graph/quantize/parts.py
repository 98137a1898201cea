"""Channels that are larger than all others are read in parts: several columns, each of a smaller number.

In: what the channels of an operand held, the factors that they are divided by, weights. Out: how many parts each
channel is read in, and the operand of those columns. Not its business: factors (``smooth``), quantising.

A tensor has one scale, and one channel that is eight times as large as the others costs them three of their eight bits.
Such a channel is divided by eight and read by eight columns with equal weights (Zhao et al., Improving Neural Network
Quantization without Retraining using Outlier Channel Splitting, 2019). It loses nothing by that: of ``n`` parts, part
``j`` is moved by ``(j + 1/2) / n - 1/2`` steps before it is rounded, and the sum of the rounded parts is then the
channel rounded once (Hermite's identity), so its step is that of the small channels. These offsets add up to zero, so
that the function stays as it is. The product stays one product of bytes, of a few more terms.

**What a column is worth.** As many columns again as an operand has would hold a second digit of every number, which is
as many more bits as a number has. So columns are added while they save more bits of error than their share of those.

Where each row has a scale of its own, its parts are moved by shares of the row's step, in the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core.graph import Builder, Node
from tilewright.core.types import Array
from tilewright.graph.quantize.rounded import Channels, Rounded, met_by, row_reaches

GROUP = 4
"""Columns are added in groups of so many: as many bytes as instructions for products of bytes sum over."""


class SplitChannels(NamedTuple):
    """Channel ``c`` is read by ``parts[c]`` columns of ``x[c] / (factors[c] * parts[c])``, in steps of ``step``."""

    factors: Array
    parts: Array
    step: float

    @property
    def n_added(self) -> int:
        """How many columns there are beside one for each channel."""
        return int(self.parts.sum()) - len(self.parts)

    @property
    def changes(self) -> bool:
        """Are the columns others than the channels themselves?"""
        return self.n_added > 0 or bool((self.factors != 1).any())

    @property
    def shifts(self) -> Array:
        """The shares of a step by which the columns are moved before they are rounded; f32[columns]."""
        places = self._places()
        turns = np.arange(len(places)) - np.repeat(np.cumsum(self.parts) - self.parts, self.parts)
        return _f32((turns + 0.5) / self.parts[places] - 0.5)

    def _places(self) -> Array:
        """The channel of each column."""
        return np.repeat(np.arange(len(self.parts)), self.parts)

    def weights(self, array: Array) -> Array:
        """The weights f32[columns, N] of f32[K, N]."""
        return np.repeat(array * self.factors[:, None], self.parts, axis=0)

    def taken_from(self, b: Builder, x: Node) -> Node:
        """The columns of ``x``, not moved yet."""
        if not self.n_added:
            return b(ops.mul, x, b.const(1 / self.factors))
        places = self._places()
        shares = _f32(1 / (self.factors * self.parts)[places])
        return b(ops.mul, b(ops.gather, x, b.const(places), axis=x.type.rank - 1), b.const(shares))

    def moved(self, b: Builder, columns: Node) -> Node:
        """The columns, moved by shares of the step that all have."""
        return b(ops.add, columns, b.const(_f32(self.shifts * self.step))) if self.n_added else columns


def most_worth(
    tried: Sequence[Array], seen: Channels, weights: Sequence[Array], rounded: Rounded, may_split: bool
) -> SplitChannels:
    """Of the ``tried`` factors, those with the least bits of error and price; with ``may_split`` of all parts, too."""
    met = met_by(weights)
    best, least = SplitChannels(tried[0], np.ones(len(met), np.int64), 0.0), np.inf
    n_most = len(met) if may_split else 0
    for factors in tried:
        found, bits = _in_parts(factors, seen, met, rounded.of_weights(seen, weights, factors), rounded, least, n_most)
        if found is not None:
            best, least = found, bits
    return best


def _in_parts(
    factors: Array, seen: Channels, met: Array, of_weights: float, rounded: Rounded, least: float, n_most: int
) -> tuple[SplitChannels | None, float]:
    """The best columns for these factors, at most ``n_most`` added, and their bits, where fewer than ``least``.

    The channel that is largest at one of the range's ends gets a further part, until the columns' price alone is more
    than the best has, whatever rounding the operand costs.
    """
    n_channels, best = len(factors), None
    price = float(np.log2(rounded.n_steps + 1)) / n_channels
    scaled = seen.over(factors)
    parts = np.ones(n_channels, np.int64)
    for n_added in range(n_most + 1):
        if _bits(of_weights) + price * n_added >= least:
            break
        step = rounded.step(scaled, parts)
        bits = _bits(rounded.of_operand(seen, met, factors, step) + of_weights) + price * n_added
        if n_added % GROUP == 0 and bits < least:
            best, least = SplitChannels(factors, parts.copy(), step), bits
        parts[min(_ends(scaled, parts), key=lambda k: _step_with(scaled, parts, k, rounded))] += 1
    return best, least


def _ends(scaled: Channels, parts: Array) -> tuple[int, int]:
    """The channels at the two ends of the range; of rows' ranges those at the ends of most, the wider counting more."""
    if scaled.rows is None:
        return int(np.argmax(scaled.high / parts)), int(np.argmin(scaled.low / parts))
    held = scaled.rows / parts
    wide = np.square(row_reaches(held))
    high, low = (int(np.argmax(np.bincount(found, wide))) for found in (held.argmax(axis=1), held.argmin(axis=1)))
    return high, low


def _step_with(scaled: Channels, parts: Array, at: int, rounded: Rounded) -> float:
    """The step with one more part of a channel."""
    more = parts.copy()
    more[at] += 1
    return rounded.step(scaled, more)


def _bits(square: float) -> float:
    """Bits of an error whose square this is; as many fewer for half of the error as a number has one more."""
    return float(np.log2(max(square, np.finfo(np.float64).tiny))) / 2


def _f32(array: Array) -> Array:
    return np.asarray(array, np.float32)
