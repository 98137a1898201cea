"""Convolutions as convolutions of images without dilation, the form that ``winograd`` can tile.

In: a channels-last convolution of stride 1, of sequences, images or volumes, maybe dilated. Out: an ``ImageForm``:
an equal convolution of images, and the way back to the result. Not its business: whether that pays (``winograd``).

A sequence dilated by ``d`` is an image of ``d`` columns, row by row: ``x[q * d + p]`` stands in row ``q`` and column
``p``, and the taps lie below each other. That is a view. An image dilated along both axes is ``dy * dx`` images, one of
every phase; those are brought together, and their results taken apart, by one transpose each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright import ops
from tilewright.core.dims import is_known, known
from tilewright.core.graph import Node
from tilewright.core.rewrite import Rewriting
from tilewright.core.types import Array


@dataclass(frozen=True)
class ImageForm:
    """``back(convolution of x by weights)`` is the result; ``attrs`` has pads, and what leading axes slide by.

    ``shape`` is the convolution's own result's, ``moved`` counts elements that the views cost a copy of.
    """

    x: Node
    weights: Array
    attrs: dict[str, Any]
    shape: tuple[Any, ...]
    back: Callable[[Node], Node]
    moved: int

    @property
    def groups(self) -> int:
        """How many times as many channels the image has as each result is a sum of."""
        return known(self.x.shape[-1], 1) // int(self.weights.shape[1])

    @property
    def is_whole(self) -> bool:
        """Are its numbers integers?"""
        return self.x.dtype.is_integer


def as_image(b: Rewriting, node: Node) -> ImageForm | None:
    """The image form of a convolution whose weights are constant and whose sizes, but for the batch, are numbers."""
    x, a = node.inputs[0], node.attrs
    weights: Array = node.inputs[1].attrs["data"].array
    taps = weights.shape[2:]
    dilations = tuple(1 if k == 1 else d for k, d in zip(taps, a["dilations"], strict=True))
    if len(taps) == 1:
        return _sequence(b, node, weights, dilations[0])
    slides = {name: a[name][:-2] for name in ("strides", "dilations")}
    if set(dilations[-2:]) == {1}:
        return ImageForm(x, weights, {"pads": a["pads"], **slides}, node.shape, lambda y: y, 0)
    return _phases(b, node, weights, dilations) if len(taps) == 2 else None


def _sequence(b: Rewriting, node: Node, weights: Array, dilation: int) -> ImageForm:
    """One row for taps that are neighbours, else rows as long as their distance."""
    x, (n_batch, length, n_out), n_taps = node.inputs[0], node.shape, weights.shape[2]
    ((lo, hi),) = node.attrs["pads"]
    n_in = weights.shape[1] * int(node.attrs["groups"])
    if dilation == 1:
        row = b(ops.reshape, x, shape=(n_batch, 1, x.shape[1], n_in))
        attrs = {"pads": ((0, 0), (lo, hi))}

        def flat(y: Node) -> Node:
            return b(ops.reshape, y, shape=node.shape)

        return ImageForm(row, weights[:, :, None], attrs, (n_batch, 1, length, n_out), flat, 0)
    above, before = (lo // dilation, 0) if lo % dilation == 0 else (0, lo)
    n_rows, n_results = -(-(before + x.shape[1]) // dilation), -(-length // dilation)
    around = (before, n_rows * dilation - before - x.shape[1])
    whole = b(ops.pad, x, b.const(0, x.dtype), pads=((0, 0), around, (0, 0))) if any(around) else x
    rows = b(ops.reshape, whole, shape=(n_batch, n_rows, dilation, n_in))
    attrs = {"pads": ((above, n_results + n_taps - 1 - above - n_rows), (0, 0))}
    shape = (n_batch, n_results, dilation, n_out)

    def back(y: Node) -> Node:
        return _cut(b, b(ops.reshape, y, shape=(n_batch, n_results * dilation, n_out)), node)

    moved = 0 if whole is x else _numbers(whole)
    return ImageForm(rows, weights[..., None], attrs, shape, back, moved)


def _phases(b: Rewriting, node: Node, weights: Array, dilations: tuple[int, ...]) -> ImageForm:
    """The pixels whose places are equal modulo the dilations are an image of their own."""
    x, (n_batch, *results, n_out) = node.inputs[0], node.shape
    counts = [-(-n // d) for n, d in zip(results, dilations, strict=True)]
    sizes = [n + k - 1 for n, k in zip(counts, weights.shape[2:], strict=True)]
    pads = [
        (lo, s * d - n - lo)
        for s, d, n, (lo, _) in zip(sizes, dilations, x.shape[1:-1], node.attrs["pads"], strict=True)
    ]
    (dy, dx), (high, wide), n_in = dilations, sizes, weights.shape[1] * int(node.attrs["groups"])
    whole = b(ops.pad, x, b.const(0, x.dtype), pads=((0, 0), *pads, (0, 0)))
    apart = b(ops.reshape, whole, shape=(n_batch, high, dy, wide, dx, n_in))
    turned = b(ops.transpose, apart, perm=(0, 2, 4, 1, 3, 5))
    images = b(ops.reshape, turned, shape=(n_batch * (dy * dx), high, wide, n_in))

    def back(y: Node) -> Node:
        phases = b(ops.reshape, y, shape=(n_batch, dy, dx, *counts, n_out))
        pixels = b(ops.transpose, phases, perm=(0, 3, 1, 4, 2, 5))
        return _cut(b, b(ops.reshape, pixels, shape=(n_batch, counts[0] * dy, counts[1] * dx, n_out)), node)

    shape = (n_batch * (dy * dx), *counts, n_out)
    moved = 2 * _numbers(whole) * (n_in + n_out) // n_in
    return ImageForm(images, weights, {"pads": ((0, 0), (0, 0))}, shape, back, moved)


def _numbers(node: Node) -> int:
    """How many of them one element of the batch has."""
    return prod(n for n in node.shape[1:] if is_known(n))


def _cut(b: Rewriting, y: Node, node: Node) -> Node:
    """What belongs to the result of ``y``, which may be longer."""
    if y.shape == node.shape:
        return y
    rank = len(node.shape)
    return b(ops.slice, y, starts=(0,) * rank, stops=node.shape, steps=(1,) * rank)
