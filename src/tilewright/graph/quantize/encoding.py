"""How real numbers are written as integers: ranges, scales and zero points.

In: a range of numbers, weights. Out: a scale and a zero point; weights as bytes. Not its business: which range a
tensor has (``observe``).

An integer ``k`` means ``(k - zero) * scale`` (Jacob et al., 2018). 0 has an integer of its own, because padding and
ReLU make so many of them. Weights have a zero point of 0, so that no sum of activations is needed beside a product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilewright.core.dims import numbers
from tilewright.core.expr import Dim
from tilewright.core.types import Array, DType


class Range(NamedTuple):
    """Numbers from ``low`` to ``high``."""

    low: float
    high: float


@dataclass(frozen=True)
class Encoding:
    """One scale (an f32) and one zero point for a whole tensor of ``dtype``."""

    scale: float
    zero: int
    dtype: DType

    def stored(self, x: Array) -> Array:
        """Real numbers as integers, rounded half to even and saturated."""
        steps = np.rint(x / self.scale) + self.zero
        kept: Array = np.clip(steps, self.dtype.min, self.dtype.max)
        return kept.astype(np.int64)

    def rounded(self, x: Array) -> Array:
        """The numbers that the integers of ``x`` mean."""
        return (self.stored(x) - self.zero) * self.scale

    @property
    def covered(self) -> Range:
        """The numbers that have an integer, half a step beyond the ends included."""
        low, high = int(self.dtype.min) - self.zero, int(self.dtype.max) - self.zero
        return Range((low - 0.5) * self.scale, (high + 0.5) * self.scale)


def encoding_of(covered: Range, dtype: DType) -> Encoding:
    """The encoding whose integers cover a range and 0; a range of nothing but 0 has scale 1."""
    low, high = min(covered.low, 0.0), max(covered.high, 0.0)
    least, most = int(dtype.min), int(dtype.max)
    scale = float(np.float32((high - low) / (most - least)))
    if scale < np.finfo(np.float32).tiny:
        return Encoding(1.0, 0 if dtype.is_signed else least, dtype)
    return Encoding(scale, int(np.clip(np.rint(least - low / scale), least, most)), dtype)


class ByteWeights(NamedTuple):
    """i8 numbers, and an f32 scale for all (0-d) or for each place along ``axis`` (1-d)."""

    numbers: Array
    scale: Array
    axis: int

    def columns(self, first: Dim, last: Dim) -> ByteWeights:
        """Some columns of a matrix, whose sizes are known."""
        which = slice(*numbers((first, last)))
        return ByteWeights(self.numbers[:, which], self.scale[which] if self.scale.ndim else self.scale, self.axis)

    def rounded(self) -> Array:
        """The f32 numbers that are stored."""
        shape = [-1 if k == self.axis else 1 for k in range(self.numbers.ndim)]
        return self.numbers * (self.scale.reshape(shape) if self.scale.ndim else self.scale)


def greatest_of(bits: int) -> int:
    """The largest number of weights with a sign and ``bits - 1`` more."""
    return (1 << (bits - 1)) - 1


def weights_of(array: Array, axis: int | None, bits: int = 8) -> ByteWeights:
    """The nearest i8 with a sign and ``bits - 1`` more, with one scale, or one for each place along ``axis``."""
    greatest = greatest_of(bits)
    others = tuple(k for k in range(array.ndim) if k != axis)
    most = np.abs(array).max(axis=None if axis is None else others, initial=0)
    scale = np.asarray(np.where(most > 0, most / greatest, 1), np.float32)
    spread = scale if axis is None else np.expand_dims(scale, others)
    numbers = np.clip(np.rint(array / spread), -greatest, greatest).astype(np.int8)
    return ByteWeights(numbers, scale, axis or 0)


def decibels(signal: float, noise: float) -> float:
    """A signal's power over that of its noise, both sums of squares; infinite without noise."""
    return float(10 * np.log10(signal / noise)) if signal and noise else np.inf if not noise else -np.inf
