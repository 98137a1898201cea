"""Elements of images at computed places, for all channels: one by one, or as rows of channels.

In: an image, and its elements' places for points of each result. Out: nodes. Not its business: where the places are,
and how much each element weighs (``torch.aten.sample``, ``onnx.ops.sampling``).

A channel's elements at scattered places are gathered, a cache line for each. Where channels of an element lie next to
each other, one load has all of them. It takes two transposes, of the image and of the result, which pays where many
points of many channels are sampled (``docs/choices.md``, "Layers that were behind").
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known, numbers
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, i32, product

LEAST_CHANNELS = 8
GATHERED, LOADED, TURNED = 11, 3, 3
"""Time for an element: read at a scattered place, read as part of a row, transposed (25 of them are a nanosecond)."""


class Building(Protocol):
    """What makes nodes: a ``Builder``, or a frontend's call."""

    def __call__(self, op: OpDef, *inputs: Node, **attrs: Any) -> Node: ...

    def const(self, value: Any, dtype: DType, /) -> Node: ...


@dataclass(frozen=True)
class Image:
    """``x[.., channels, elements]``; places and whatever meets elements are ``[.., 1, points]``."""

    b: Building
    x: Node
    by_rows: bool

    @staticmethod
    def of(b: Building, x: Node, n_points: Dim, n_taps: int) -> Image:
        """An image of which ``n_points`` results each read ``n_taps`` elements."""
        *lead, channels, elements = x.shape
        sizes = numbers((*lead, channels, elements, n_points))
        if len(sizes) < x.type.rank + 1 or 0 in sizes or prod(sizes[:-1]) > i32.max or sizes[-3] < LEAST_CHANNELS:
            return Image(b, x, False)
        *_, size, n = sizes
        one_by_one = GATHERED * n_taps * n
        return Image(b, x, TURNED * (size + n) + LOADED * n_taps * n < one_by_one)

    @property
    def n_images(self) -> Dim:
        return product(self.x.shape[:-2])

    def _starts(self) -> list[int]:
        """Where each image's rows start."""
        *lead, _, size = self.x.shape
        return [k * size for k in range(prod(d for d in lead if is_known(d)))] if is_known(size) else []

    def at(self, places: Node) -> Node:
        """The elements at places inside the image."""
        b, (*lead, channels, size), n = self.b, self.x.shape, places.shape[-1]
        if not self.by_rows:
            every = b(ops.expand, places, shape=(*lead, channels, n))
            return b(ops.gather_elements, self.x, every, axis=len(lead) + 1)
        apart = b(ops.reshape, self.x, shape=(self.n_images, channels, size))
        rows = b(ops.reshape, b(ops.transpose, apart, perm=(0, 2, 1)), shape=(self.n_images * size, channels))
        starts = b.const(np.array(self._starts()).reshape(-1, 1), places.dtype)
        in_all = b(ops.add, self._rows(places, n), starts)
        return b(ops.gather, rows, b(ops.reshape, in_all, shape=(self.n_images * n,)), axis=0)

    def beside(self, v: Node) -> Node:
        """Numbers of points in the shape in which they meet elements."""
        if not self.by_rows:
            return v
        n = v.shape[-1]
        return self.b(ops.reshape, self._rows(v, n), shape=(self.n_images * n, 1))

    def _rows(self, v: Node, n: Dim) -> Node:
        every = self.b(ops.expand, v, shape=(*self.x.shape[:-2], 1, n))
        return self.b(ops.reshape, every, shape=(self.n_images, n))

    def whole(self, y: Node, n: Dim) -> Node:
        """``[.., channels, points]`` of what was made of elements."""
        if not self.by_rows:
            return y
        *lead, channels, _ = self.x.shape
        apart = self.b(ops.reshape, y, shape=(self.n_images, n, channels))
        return self.b(ops.reshape, self.b(ops.transpose, apart, perm=(0, 2, 1)), shape=(*lead, channels, n))
