"""The pass ``winograd``: convolutions that take fewer multiplications in transformed tiles are rewritten to that form.

In: a graph whose convolutions are channels-last. Out: the same function within the stated error; the weights are
transformed now. Not its business: the arithmetic of the tiles (``ops.winograd``), loops (``tile``), sequences and
dilated images as plain images (``images``).

By modelled cycles: products, transforms of tiles, and streaming of the weights, which grow to 16/9 or 36/9. By error:
the rounding of a tile's products is amplified by the output transform. From the weights at hand and inputs that are
independent noise around a mean, the standard deviations of error and result follow; their ratio must stay below
``max_error``, a tenth of the 1e-4 of the largest output that a whole net may be off.

Bytes are transformed to 16 bits and stay exact (``ops.winograd``). So machines that multiply bytes as pairs of 16-bit
integers gain as they do in f32; where groups of four bytes are one instruction, tiles would save no more than that
does, and they are no form. In place of the error stands what fits: transformed inputs and weights into 16 bits, and a
result with the power of two of its tile into 32.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import are_known, known, known_at_most
from tilewright.core.estimates import ASSUMED_SIDE, DOUBT, PASSED_CYCLES, WAITED_FOR, over_batches
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array
from tilewright.graph.facts import MANTISSA_BITS, scalar
from tilewright.graph.forms.images import ImageForm, as_image
from tilewright.ops.winograd import (
    BYTES,
    POINTS,
    WHOLE_POINTS,
    results_along,
    transformed_weights,
    transforms_of,
    whole_transforms,
)
from tilewright.target import dots
from tilewright.target.target import Target

TILES = (5, 4, 3, 2)
TRANSFORM_CYCLES = 12.0
"""Of one element of a transformed tile, per vector of channels, reading and writing included."""
FEW_POINTS, ROW_CYCLES = 6, 18.0
"""The same along one axis only, of more points than these: 14 to 21 on sequences of 64 to 256 channels."""
INPUT_MEAN = 2.0
"""The mean of inputs in standard deviations, of one sign in all channels: worse than what follows a ReLU."""
WEIGHTS = (types.i8, types.i16)


@dataclass(frozen=True)
class Winograd(Pass):
    """Rewrites convolutions of stride 1 by small kernels to tiles of results, where that is faster and precise enough.

    Kernels have 1 to 5 taps along each of the last two axes, or along the only one (a sequence's), with any dilation.
    Of a volume the axis before those may have any taps, stride and dilation; the others are not dilated. It does not
    fire on larger kernels, on other strides, on weights known at run time only, on dtypes other than f32 and, with
    ``pairs``, bytes whose sums are i32, on sequences, planes or dilated images of symbolic size, on images of a single
    tile, or where a place has fewer results of a group than a vector holds. Of plain images batch, height and width
    may be symbolic; the image then counts as ``ASSUMED_SIDE`` long, and forms are compared over batches of many sizes
    (``over_batches``). ``lanes`` is the number of f32 in a vector; ``per_lane`` is how many products of one lane the
    direct form adds at once (2 in bf16). ``pairs`` is how many products of a lane a cycle makes by pairs of 16-bit
    integers, 0 where bytes are not multiplied so: such products take less time than their weights' way from memory
    sooner. ``cache_bytes`` and ``memory_bytes`` come in a cycle from the cache behind a core's own and from memory;
    points and products of ``block_bytes`` stay in a core's own, and a group's larger images go through it in blocks.
    """

    name: ClassVar[str] = "winograd"
    lanes: int = 16
    per_lane: int = 1
    max_error: float = 1e-5
    cache_bytes: float = 8.0
    memory_bytes: float = 4.5
    pairs: int = 0
    block_bytes: int = 1 << 19

    @staticmethod
    def on(target: Target, per_lane: int) -> Winograd:
        """The pass for a machine."""
        has_groups = dots.BYTES in target.dots
        return Winograd(
            target.lanes(types.f32),
            per_lane,
            cache_bytes=target.llc_bytes_per_cycle,
            memory_bytes=target.memory_bytes_per_cycle,
            pairs=0 if has_groups or dots.WORDS not in target.dots else dots.WORDS.group * target.fma_ports,
            block_bytes=target.l2_kept_bytes,
        )

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        def tiled(b: Rewriting, node: Node) -> Node | None:
            return _tiled(b, node, self)

        rule = Rule("winograd", (ops.conv,), tiled, "the same sums by interpolation, within the error of f32")
        return rewrite(graph, RuleTable([rule]), journal)


def _tiled(b: Rewriting, node: Node, options: Winograd) -> Node | None:
    found = best_tiling(b, node, options)
    return None if found is None else found.made()


@dataclass(frozen=True)
class Tiling:
    """A tiled form of a convolution: modelled cycles, and what makes it."""

    cycles: float
    made: Callable[[], Node]


def best_tiling(b: Rewriting, node: Node, options: Winograd) -> Tiling | None:
    """The fastest tiled form of a convolution that is precise enough, where it is faster than the direct form."""
    if not _fits(node, options) or node.inputs[1].shape[0] // node.attrs["groups"] < options.lanes:
        return None
    image = as_image(b, node)
    if image is None:
        return None
    image = _with_padding(image)
    direct = _cycles_of_direct(node, options)
    found = {m: tiled_cycles(image, m, options) for m in TILES if _gives(image, m)}
    taps = max(image.weights.shape[-2:])
    for m in sorted(found, key=lambda m: found[m] * (1 if m + taps - 1 <= FEW_POINTS else 1 / (1 - DOUBT))):
        if found[m] > direct * (1 - DOUBT) ** 2:  # each of the two may be as far off, and to opposite sides
            return None
        u = transformed_weights(image.weights, m)
        if image.is_whole:
            if is_exact(u, image.weights, m, 1 << image.x.dtype.bits):
                return Tiling(found[m], partial(_tiles, b, image, u.astype(np.int16), m))
        elif expected_error(u, image.weights, m) <= options.max_error:
            return Tiling(found[m], partial(_tiles, b, image, u, m))
    return None


def _with_padding(image: ImageForm) -> ImageForm:
    """The form that pads bytes by itself, where a zero point other than 0 had to stand around the image."""
    x, own = image.x, image.attrs["pads"]
    if not image.is_whole or x.op is not ops.pad or x.attrs["mode"] != "constant" or any(any(pair) for pair in own):
        return image
    value, (*others, high, wide, channels) = scalar(x.inputs[1]), x.attrs["pads"]
    if value is None or any(any(pair) for pair in (*others, channels)):
        return image
    attrs = {**image.attrs, "pads": (*own[:-2], high, wide), "outside": int(value)}
    return replace(image, x=x.inputs[0], attrs=attrs)


def _cycles_of_direct(node: Node, options: Winograd) -> float:
    return direct_cycles(node, options) / (options.per_lane if node.dtype.is_float else 1)


def _tiles(b: Rewriting, image: ImageForm, u: Array, m: int) -> Node:
    return image.back(b(ops.winograd_conv, image.x, b.const(u), tile=m, groups=image.groups, **image.attrs))


def convolution_cycles(b: Rewriting, node: Node, options: Winograd) -> float:
    """Modelled cycles of a convolution in the form that the pass gives it."""
    found = best_tiling(b, node, options)
    return _cycles_of_direct(node, options) if found is None else found.cycles


def _fits(node: Node, options: Winograd) -> bool:
    x, w = node.inputs
    a = node.attrs
    plain = set(a["strides"][-2:]) == {1}
    is_real = x.dtype is w.dtype is node.dtype is types.f32
    is_whole = options.pairs > 0 and x.dtype in BYTES and w.dtype in WEIGHTS and node.dtype is types.i32
    is_image = len(a["dilations"]) > 1 and 1 not in w.shape[-2:] and set(a["dilations"]) == {1}
    fixed = [x.shape[1:-3], node.shape[1:-3]] if is_image else [x.shape[1:], node.shape[1:]]
    numbers = [*(n for part in fixed for n in part), *(n for pair in a["pads"] for n in pair)]
    return (
        plain
        and a["layout"] == "NHWC"
        and w.op is CONST
        and (is_real or is_whole)
        and are_known(numbers)
        and 0 not in node.shape
    )


def _gives(image: ImageForm, m: int) -> bool:
    """Are there points for tiles of ``m`` results along the axes that have taps, and several such tiles?"""
    axes = [(r, n) for r, n in zip(image.weights.shape[-2:], image.shape[-3:-1], strict=True) if r > 1]
    points: Container[int] = WHOLE_POINTS if image.is_whole else POINTS
    return bool(axes) and all(m + r - 2 in points and not known_at_most(n, m) for r, n in axes)


def direct_cycles(node: Node, options: Winograd) -> float:
    """Modelled cycles of a convolution, one vector operation each."""
    return over_batches(node.shape[0], partial(_direct_cycles, node, options))


def _direct_cycles(node: Node, options: Winograd, batch: int) -> float:
    n_out, n_in, *taps = (known(d, 1) for d in node.inputs[1].shape)
    images = batch * prod(known(d, 1) for d in node.shape[1:-3])
    places = images * prod(known(d, ASSUMED_SIDE) for d in node.shape[1:-1][-2:])
    products = places * prod(taps) * n_in * -(-n_out // options.lanes) / (1 if node.dtype.is_float else options.pairs)
    weights = node.inputs[1].dtype.n_bytes * prod(taps) * n_in * n_out
    return float(max(products, weights / options.memory_bytes))


def tiled_cycles(image: ImageForm, tile: int, options: Winograd) -> float:
    """:func:`direct_cycles` of tiles of ``tile`` results along each axis that has taps."""
    return over_batches(image.shape[0], partial(_tiled_cycles, image, tile, options))


def _tiled_cycles(image: ImageForm, tile: int, options: Winograd, batch: int) -> float:
    lanes = options.lanes
    planes = [known(d, 1) for d in image.shape[1:-3]]
    height, width, n_out = (known(d, ASSUMED_SIDE) for d in image.shape[-3:])
    images = prod(known(d, 1) for d in image.x.shape[1:-3])
    _, n_in, *taps, high, wide = image.weights.shape
    sum_bytes = types.f32.n_bytes
    point_bytes = types.i16.n_bytes if image.is_whole else sum_bytes
    groups = image.groups
    vectors_in = groups * -(-n_in * point_bytes // (lanes * sum_bytes))
    vectors_out = groups * -(-n_out // groups // lanes)
    tile_high, tile_wide = results_along(high, tile), results_along(wide, tile)
    points = (tile_high + high - 1) * (tile_wide + wide - 1)
    n_tiles = batch * -(-height // tile_high) * -(-width // tile_wide)
    products = (
        n_tiles * prod(planes) * points * prod(taps) * n_in * vectors_out / (options.pairs if image.is_whole else 1)
    )
    weights = point_bytes * points * prod(taps) * n_in * n_out
    stream = weights / options.memory_bytes
    read_and_written = images * vectors_in + prod(planes) * vectors_out
    element = ROW_CYCLES if min(high, wide) == 1 and points > FEW_POINTS else TRANSFORM_CYCLES
    moved = n_tiles * points * read_and_written * element + image.moved / lanes * PASSED_CYCLES
    made = n_tiles * points * (point_bytes * images * groups * n_in + sum_bytes * prod(planes) * n_out)
    again = min(max(made / groups / options.block_bytes - 1, 0) * weights * WAITED_FOR, 2 * made) / options.cache_bytes
    return float(max(products, stream) + WAITED_FOR * stream + moved + again)


def is_exact(u: Array, weights: Array, m: int, n_values: int) -> bool:
    """Do transformed inputs, of ``n_values`` values each, and weights fit 16 bits, and scaled results 32?"""
    high, wide = (whole_transforms(results_along(r, m), r) for r in weights.shape[-2:])
    inputs = n_values * np.abs(high.b_t).sum(1).max() * np.abs(wide.b_t).sum(1).max()
    power = max(n & -n for n in high.times) * max(n & -n for n in wide.times)
    result = n_values * float(np.abs(weights.reshape(len(weights), -1).astype(np.int64)).sum(1).max(initial=0))
    most = types.i16.max
    return bool(inputs <= most and np.abs(u).max(initial=0) <= most and result * power <= types.i32.max)


def expected_error(u: Array, weights: Array, m: int) -> float:
    """The standard deviation of the rounding error, as a part of the result's, of the worst output channel's.

    ``u`` (AH, AW, ..., C, K) are the transformed ``weights`` (K, C, ..., RH, RW). Rounding errors are taken as
    independent, each half a unit in the last place of what is rounded: a sum of N products adds the square root of
    N / 2 to the few of the transforms.
    """
    (ah, aw), n_out = u.shape[:2], u.shape[-1]
    high, wide = transforms_of(u.shape, m)
    u = u.reshape(ah, aw, -1, n_out)
    noise = np.outer((high.b_t**2).sum(1), (wide.b_t**2).sum(1))
    mean = np.outer(high.b_t.sum(1) ** 2, wide.b_t.sum(1) ** 2)
    inputs = noise + INPUT_MEAN**2 * mean  # E[V^2] of every point
    worst = np.einsum("iu,jv->ijuv", high.a_t**2, wide.a_t**2).reshape(-1, ah, aw)
    power = np.einsum("uvck,uvck->uvk", u, u, optimize=False).astype(np.float64)  # sum over channels and other taps
    error = np.einsum("puv,uv,uvk->pk", worst, inputs, power, optimize=True).max(initial=0.0)
    signal = (weights.reshape(n_out, -1).astype(np.float64) ** 2).sum(1).max(initial=0.0)
    if not np.isfinite(error) or signal <= 0 or prod(u.shape) == 0:
        return float("inf")
    return float(2.0 ** -MANTISSA_BITS[types.f32] * np.sqrt((4 + u.shape[2] / 2) * error / float(signal)) / np.sqrt(3))
