"""The pass ``winograd``: convolutions that take fewer multiplications in transformed tiles are rewritten to that form.

In: a graph whose convolutions are channels-last. Out: the same function within the stated error; the weights are
transformed now. Not its business: the arithmetic of the tiles (``ops.winograd``), loops (``tile``).

By modelled cycles: products, transforms of tiles, and streaming of the weights, which grow to 16/9 or 36/9. By error:
the rounding of a tile's products is amplified by the output transform. From the weights at hand and inputs that are
independent noise around a mean, the standard deviations of error and result follow; their ratio must stay below
``max_error``, a tenth of the 1e-4 of the largest output that a whole net may be off.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array
from tilewright.ops.winograd import transformed_weights, transforms

TILES = (4, 2)
KERNEL = 3
TRANSFORM_CYCLES = 8.0
"""Of one element of a transformed tile, per vector of channels, reading and writing included."""
STREAM_BYTES = 4.5
"""Bytes of weights that arrive from memory per cycle."""
ADVANTAGE = 0.9
"""A tiled form must be modelled at no more than this part of the direct form's cycles."""
INPUT_MEAN = 2.0
"""The mean of inputs in standard deviations, of one sign in all channels: worse than what follows a ReLU."""
EPSILON = 2.0**-24


@dataclass(frozen=True)
class Winograd(Pass):
    """Rewrites 3x3 convolutions of stride 1 to tiles of 4x4 or 2x2 results where that is faster and precise enough.

    Of a volume the last two axes count as the image; the axis before them may have any taps, stride and dilation.
    It does not fire on other kernels, strides, dilations or groups, on weights known at run time only, on dtypes other
    than f32, on images of symbolic size (the batch may be), on images of a single tile, or where a place has fewer
    results than a vector holds. ``lanes`` is the number of f32 in a vector; ``per_lane`` is how many products of one
    lane the direct form adds at once (2 in bf16).
    """

    name: ClassVar[str] = "winograd"
    lanes: int = 16
    per_lane: int = 1
    max_error: float = 1e-5

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        def tiled(b: Rewriting, node: Node) -> Node | None:
            return _tiled(b, node, self)

        rule = Rule("winograd", (ops.conv,), tiled, "the same sums by interpolation, within the error of f32")
        return rewrite(graph, RuleTable([rule]), journal)


def _tiled(b: Rewriting, node: Node, options: Winograd) -> Node | None:
    if not _fits(node):
        return None
    weights: Array = node.inputs[1].attrs["data"].array
    if len(weights) < options.lanes:
        return None
    direct = cycles(node, 0, options.lanes) / options.per_lane
    fitting = [m for m in TILES if all(isinstance(d, int) and d > m for d in node.shape[-3:-1])]
    found = {m: cycles(node, m, options.lanes) for m in fitting}
    for m in sorted(found, key=found.__getitem__):
        if found[m] > direct * ADVANTAGE:
            return None
        u = transformed_weights(weights, m)
        if expected_error(u, weights, m) <= options.max_error:
            slides = {name: node.attrs[name][:-2] for name in ("strides", "dilations")}
            return b(ops.winograd_conv, node.inputs[0], b.const(u), tile=m, pads=node.attrs["pads"], **slides)
    return None


def _fits(node: Node) -> bool:
    x, w = node.inputs
    a = node.attrs
    slides = {*a["strides"][-2:], *a["dilations"][-2:]}
    plain = a["groups"] == 1 and slides == {1} and a["out_dtype"] in (None, types.f32)
    numbers = [*x.shape[1:], *node.shape[1:], *(n for pair in a["pads"] for n in pair)]
    return (
        plain
        and a["layout"] == "NHWC"
        and w.op is CONST
        and len(w.shape) > 3
        and w.shape[-2:] == (KERNEL, KERNEL)
        and x.dtype is w.dtype is types.f32
        and all(isinstance(n, int) for n in numbers)
        and 0 not in node.shape
    )


def cycles(node: Node, tile: int, lanes: int) -> float:
    """Modelled cycles of a convolution per image, one vector operation each: direct (``tile`` 0) or in tiles."""
    batch, *images, height, width, n_out = (d if isinstance(d, int) else 1 for d in node.shape)
    planes = prod(d if isinstance(d, int) else 1 for d in node.inputs[0].shape[1:-3])
    _, n_in, *taps, _, _ = (d if isinstance(d, int) else 1 for d in node.inputs[1].shape)
    vectors_in, vectors_out = -(-n_in // lanes), -(-n_out // lanes)
    side = tile + KERNEL - 1 if tile else KERNEL
    n_tiles = batch * (-(-height // tile) * -(-width // tile) if tile else height * width)
    products = n_tiles * prod(images) * side**2 * prod(taps) * n_in * vectors_out
    stream = 4 * side**2 * prod(taps) * n_in * n_out / STREAM_BYTES
    read_and_written = planes * vectors_in + prod(images) * vectors_out
    moved = n_tiles * side**2 * read_and_written * TRANSFORM_CYCLES if tile else 0.0
    return max(products, stream) + moved


def expected_error(u: Array, weights: Array, m: int) -> float:
    """The standard deviation of the rounding error, as a part of the result's, of the worst output channel's.

    ``u`` (a, a, ..., C, K) are the transformed ``weights`` (K, C, ..., r, r). Rounding errors are taken as independent,
    each ``EPSILON`` of what is rounded: a sum of N products adds the square root of N / 2 to the few of the transforms.
    """
    size, n_out = len(u), u.shape[-1]
    u = u.reshape(size, size, -1, n_out)
    matrices = transforms(m, size - m + 1)
    noise, mean = (matrices.b_t**2).sum(1), matrices.b_t.sum(1) ** 2
    inputs = np.outer(noise, noise) + INPUT_MEAN**2 * np.outer(mean, mean)  # E[V^2] of every point
    gain = (matrices.a_t**2)[-1:] if m == 1 else matrices.a_t**2
    worst = np.einsum("iu,jv->ijuv", gain, gain).reshape(-1, size, size)
    power = np.einsum("uvck,uvck->uvk", u, u, optimize=False).astype(np.float64)  # sum over channels and other taps
    error = np.einsum("puv,uv,uvk->pk", worst, inputs, power, optimize=True).max(initial=0.0)
    signal = (weights.reshape(n_out, -1).astype(np.float64) ** 2).sum(1).max(initial=0.0)
    if not np.isfinite(error) or signal <= 0 or prod(u.shape) == 0:
        return float("inf")
    return float(EPSILON * np.sqrt((4 + u.shape[2] / 2) * error / float(signal)) / np.sqrt(3))
