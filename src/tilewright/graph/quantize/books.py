"""What a weight of few bits may be: a number of steps, and steps are a group's own.

In: weights in groups. Out: the step of each group, codes, and the numbers that codes stand for. Not its business:
which weights get codes (``graph.quantize.weights``), how they are stored and multiplied (``ops.coded``,
``ops.scaled``).

Integers are evenly spaced. Levels of a code book are whole numbers too, closer where weights are many: NF4 has the
quantiles of a normal distribution (Dettmers et al., QLoRA, 2023), here to a 127th of the largest so that they are
bytes; FP4 the numbers of the format E2M1 (OCP Microscaling Formats, 2023) in halves. Small floats are themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from tilewright.core import types
from tilewright.core.types import Array, DType
from tilewright.graph.facts import MANTISSA_BITS
from tilewright.ops.coded import NF4

TOP = types.f8e4m3fn.max
TRIED = np.linspace(0.9, 1.1, 9)
"""Shares of the step that reaches a group's largest weight. Twice as far and five times as dense is 0.1 to 0.6 decibels
better, and takes ten times as long."""
MOST_COARSE = 2.0 ** (1 - MANTISSA_BITS[types.f16])
"""How far a step may be rounded, of itself, to be stored in half precision."""


@dataclass(frozen=True)
class Book(ABC):
    """A set of numbers that weights are rounded to, in steps of their group; ``bits`` is what a code takes."""

    name: str
    bits: int

    @property
    def has_steps(self) -> bool:
        """Does each group have a step? Otherwise all steps are 1."""
        return True

    @abstractmethod
    def steps_of(self, groups: Array) -> Array:
        """The step of each group of weights f32[..., group], as f32[...]; of zeros 0 or 1."""

    def near_steps(self, groups: Array) -> Array:
        """The step of each group with the least squared error, of some around the one that reaches its largest weight.

        Where the weights of a group fall between codes is luck, which a slightly other step changes.
        """
        first = self.steps_of(groups)
        if not self.has_steps:
            return first
        tried = [half_where_near(first * np.float32(share)) for share in TRIED]
        off = [np.square(self.numbers(self.nearest(groups, s)) * s[..., None] - groups).sum(-1) for s in tried]
        return np.asarray(np.choose(np.argmin(off, axis=0), tried))

    @abstractmethod
    def nearest(self, groups: Array, steps: Array) -> Array:
        """The code of each weight of f32[..., group] by its group's step, in the type that codes have."""

    @abstractmethod
    def numbers(self, codes: Array) -> Array:
        """What codes stand for, in steps, f32."""


@dataclass(frozen=True)
class Levels(Book):
    """Codes u8 of whole numbers. ``levels`` ascend from 0; without them a code is its own level.

    ``zero`` is the level of 0, and ``step`` makes the largest weight of a group the lowest level: the one whose
    counterpart of the other sign is the furthest or is missing.
    """

    zero: int
    levels: tuple[int, ...] = ()

    def steps_of(self, groups: Array) -> Array:
        at = np.abs(groups).argmax(-1)[..., None]
        largest = np.take_along_axis(groups, at, -1)[..., 0]
        # A book that reaches as far up as down keeps its steps positive: its levels need not be symmetric between.
        is_even = bool(self.levels) and self.levels[-1] == 2 * self.zero
        return half_where_near(np.abs(largest) / np.float32(self.zero) if is_even else largest / np.float32(-self.zero))

    def nearest(self, groups: Array, steps: Array) -> Array:
        divisor = np.where(steps == 0, np.float32(1), steps)[..., None]
        number = groups / divisor + np.float32(self.zero)
        if not self.levels:
            return np.asarray(np.clip(np.rint(groups / divisor) + self.zero, 0, (1 << self.bits) - 1).astype(np.uint8))
        between = (np.array(self.levels[1:], np.float32) + np.array(self.levels[:-1], np.float32)) / 2
        return np.asarray(np.searchsorted(between, number).astype(np.uint8))

    def numbers(self, codes: Array) -> Array:
        levels = np.array(self.levels, np.int32)[codes] if self.levels else codes.astype(np.int32)
        return np.asarray(levels - self.zero, np.float32)


@dataclass(frozen=True)
class Floats(Book):
    """Codes are small floats, as u8 where they have 8 bits; f16 as itself, whose step is 1.

    A group's largest weight becomes ``TOP`` in both formats of 8 bits. E5M2 has more room above, but its numbers are
    as dense at any size, and steps would be too small for half precision.
    """

    dtype: DType

    @property
    def has_steps(self) -> bool:
        return self.dtype is not types.f16

    def steps_of(self, groups: Array) -> Array:
        if not self.has_steps:
            return np.ones(groups.shape[:-1], np.float32)
        return half_where_near(np.abs(groups).max(-1) / np.float32(TOP))

    def nearest(self, groups: Array, steps: Array) -> Array:
        divisor = np.where(steps == 0, np.float32(1), steps)[..., None]
        largest = np.float32(self.dtype.max)
        numbers = np.clip(groups / divisor, -largest, largest).astype(self.dtype.numpy)
        return numbers if self.dtype is types.f16 else numbers.view(np.uint8)

    def numbers(self, codes: Array) -> Array:
        return np.asarray(codes.view(self.dtype.numpy).astype(np.float32))


def half_where_near(steps: Array) -> Array:
    """Steps as numbers of half precision, unless those are too coarse for some; f32."""
    with np.errstate(over="ignore"):
        half = steps.astype(np.float16).astype(np.float32)
    is_coarse = np.abs(half - steps) > np.abs(steps) * np.float32(MOST_COARSE)
    return np.asarray(steps if is_coarse.any() else half)


def _normal_levels() -> tuple[int, ...]:
    """NF4's numbers in 127ths, as levels from 0."""
    return tuple(round(n * 127) + 127 for n in NF4)


def _e2m1_levels() -> tuple[int, ...]:
    """E2M1's numbers in halves, as levels from 0; its two zeros are one level twice."""
    numbers = np.arange(16, dtype=np.uint8).view(types.f4e2m1.numpy).astype(np.float32)
    return tuple(int(2 * n) + 12 for n in np.sort(numbers))


BOOKS: dict[str, Book] = {
    b.name: b
    for b in (
        Levels("int8", 8, 128), Levels("int4", 4, 8), Levels("nf4", 4, 127, _normal_levels()),
        Levels("fp4", 4, 12, _e2m1_levels()), Floats("fp8", 8, types.f8e4m3fn), Floats("fp8e5m2", 8, types.f8e5m2),
        Floats("fp16", 16, types.f16),
    )
}  # fmt: skip
"""By the names that users write."""
