"""Converters of ONNX ops that read images at computed places: GridSample, DeformConv; and Col2Im.

In: a ``Call``. Out: nodes of the graph IR: coordinates by arithmetic, one gather and one weight per tap, sums.
Not its business: Resize, whose places are the same for every image (``onnx.ops.resize``); regions
(``onnx.ops.regions``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known, known_multiple
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import DType, f32, f64, i64, product
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Table
from tilewright.frontend.sampled import Image

CUBIC = -0.75
MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}


@dataclass(frozen=True)
class Tap:
    """One element along one axis: its place, its weight (None for 1), and whether it lies inside (None: surely)."""

    place: Node
    weight: Node | None
    inside: Node | None


def _interpolated(c: Call, x: Node, shape: Sequence[Dim], taps: Sequence[Sequence[Tap]]) -> Node:
    """The weighted sum over all combinations of taps, one per axis.

    ``x`` is [..., elements of ``shape``]; places are i64 and broadcast with the result's leading axes.
    """
    m = Formula(c)
    terms = []
    n_points = taps[0][0].place.shape[-1]
    image = Image.of(c, x, n_points, math.prod(map(len, taps)))
    for chosen in itertools.product(*taps):
        at = chosen[0].place
        for tap, size in zip(chosen[1:], shape[1:], strict=True):
            at = m.add(m.mul(at, size), tap.place)
        value = image.at(at)
        weights = [t.weight for t in chosen if t.weight is not None]
        if weights:
            value = m.mul(value, image.beside(c.cast(reduce(m.mul, weights), value.dtype)))
        flags = [t.inside for t in chosen if t.inside is not None]
        if flags:
            value = m.where(image.beside(reduce(m.both, flags)), value, 0)
        terms.append(value)
    return image.whole(m.sum(terms), n_points)


# --- GridSample -----------------------------------------------------------------------------------------------------


def grid_sample(c: Call) -> Node:
    """GridSample in all forms."""
    m = Formula(c)
    x, grid = c.x(0), c.x(1)
    n_axes = len(x.shape) - 2
    spelled = c.choice("mode", tuple(MODES), "linear" if c.opset >= 20 else "bilinear")
    mode, padding = MODES[spelled], c.choice("padding_mode", ("zeros", "border", "reflection"), "zeros")
    align = c.flag("align_corners")
    misfit = f"a grid of {grid.type} does not sample {x.type}"
    if n_axes < 1 or len(grid.shape) != n_axes + 2:
        c.refuse(misfit)
    c.require_equal(grid.shape[-1], n_axes, misfit)
    c.require_equal(grid.shape[0], x.shape[0], misfit)
    n_points = product(grid.shape[1:-1])
    real = f64 if x.dtype is f64 else f32
    places = c.reshape(c.cast(grid, real), (grid.shape[0], 1, n_points, n_axes))
    shape = x.shape[2:]
    taps = []
    for k, size in enumerate(shape):
        # -1 and 1 are the centres of the outermost elements, or their outer edges
        low, high = (m.node(0.0, real), _size(c, size, real, -1.0)) if align else (
            m.node(-0.5, real), _size(c, size, real, -0.5)
        )  # fmt: skip
        along = m.row(places, n_axes - 1 - k)  # a grid gives x before y
        scaled = m.mul(m.add(along, 1.0), 0.5)
        at = (
            m.mul(scaled, _size(c, size, real, -1.0)) if align else m.sub(m.mul(scaled, _size(c, size, real, 0.0)), 0.5)
        )
        at = c(ops.round, at) if mode == "nearest" else at
        edge = _Edge(c, padding, size, low, high)
        tapwise = mode == "cubic" and padding == "border"  # each tap is brought inside, not the point between them
        taps.append(_taps(c, at if tapwise else edge.moved(at), mode, edge))
    source = c.cast(c.reshape(x, (*x.shape[:2], product(shape))), real)
    y = _interpolated(c, source, shape, taps)
    return c.cast(c.reshape(y, (*x.shape[:2], *grid.shape[1:-1])), x.dtype)


def _size(c: Call, size: Dim, dtype: DType, extra: float) -> Node:
    m = Formula(c)
    return m.add(m.node(size, dtype), extra)


@dataclass(frozen=True)
class _Edge:
    """What lies outside of an axis of ``size`` whose borders are ``low`` and ``high``."""

    c: Call
    padding: str
    size: Dim
    low: Node
    high: Node

    def moved(self, x: Node) -> Node:
        """A coordinate brought inside, except where outside is zero."""
        m = Formula(self.c)
        if self.padding == "zeros":
            return x
        if self.padding == "border":
            return m.clip(x, 0.0, _size(self.c, self.size, x.dtype, -1.0))
        span = m.sub(self.high, self.low)
        safe = m.max(span, 1e-6)
        below = m.lt(x, self.low)
        distance = m.max(m.max(m.sub(self.low, x), m.sub(x, self.high)), 0.0)
        turns = m.floor(m.div(distance, safe))
        rest = m.sub(distance, m.mul(turns, safe))
        from_low = m.eq(m.mod(m.add(turns, m.where(below, 0.0, m.node(1.0, x.dtype))), 2.0), 0.0)
        reflected = m.where(from_low, m.add(self.low, rest), m.sub(self.high, rest))
        inside = m.both(m.ge(x, self.low), m.le(x, self.high))
        return m.where(m.eq(span, 0.0), 0.0, m.where(inside, x, reflected))

    def tap(self, at: Node, weight: Node | None) -> Tap:
        """A tap at a whole coordinate."""
        m = Formula(self.c)
        last = _size(self.c, self.size, at.dtype, -1.0)
        inside = m.both(m.ge(at, 0.0), m.le(at, last)) if self.padding == "zeros" else None
        return Tap(self.c.cast(m.clip(self.moved(at), 0.0, last), i64), weight, inside)


def _taps(c: Call, at: Node, mode: str, edge: _Edge) -> list[Tap]:
    m = Formula(c)
    if mode == "nearest":
        return [edge.tap(at, None)]
    low = m.floor(at)
    t = m.sub(at, low)
    if mode == "linear":
        return [edge.tap(low, m.sub(1.0, t)), edge.tap(m.add(low, 1.0), t)]
    distances: list[tuple[float, Node, Callable[[Node], Node]]] = [
        (-1.0, m.add(t, 1.0), lambda d: _far(m, d)),
        (0.0, t, lambda d: _near(m, d)),
        (1.0, m.sub(1.0, t), lambda d: _near(m, d)),
        (2.0, m.sub(2.0, t), lambda d: _far(m, d)),
    ]
    return [edge.tap(m.add(low, step), weight(d)) for step, d, weight in distances]


def _near(m: Formula, d: Node) -> Node:
    """The cubic convolution kernel up to a distance of 1."""
    return m.add(m.mul(m.mul(m.sub(m.mul(d, CUBIC + 2), CUBIC + 3), d), d), 1.0)


def _far(m: Formula, d: Node) -> Node:
    """The cubic convolution kernel from 1 to 2."""
    return m.sub(m.mul(m.add(m.mul(m.sub(m.mul(d, CUBIC), 5 * CUBIC), d), 8 * CUBIC), d), 4 * CUBIC)


# --- DeformConv -----------------------------------------------------------------------------------------------------


def _deform_conv(c: Call) -> Node:
    """Columns sampled at moved places, then a product with the weights per group."""
    m = Formula(c)
    x, w, offset, bias, mask = c.x(0), c.x(1), c.x(2), c.opt(3), c.opt(4)
    kernel = [d for d in w.shape[2:] if is_known(d)]
    if len(x.shape) != 4 or len(kernel) != 2:
        c.refuse("takes images of two dimensions and weights of a fixed size")
    c.ignore("kernel_shape")
    groups, offset_groups = c.int_("group", 1), c.int_("offset_group", 1)
    strides, dilations, pads = c.ints("strides", [1, 1]), c.ints("dilations", [1, 1]), c.ints("pads", [0] * 4)
    batch, channels = x.shape[:2]
    if not known_multiple(channels, offset_groups) or channels % groups:
        c.refuse(f"{channels} channels don't split into {groups} groups and {offset_groups} offset groups")
    out = offset.shape[2:]
    n_taps, n_points = math.prod(kernel), product(out)
    real = x.dtype if x.dtype in (f32, f64) else f32
    moves = c.reshape(c.cast(offset, real), (batch, offset_groups, n_taps, 2, *out))
    taps = []
    for k in range(2):
        steps = np.arange(kernel[k]) * dilations[k] - pads[k]
        # taps row by row, as the offsets have them
        base = np.repeat(steps, kernel[1]) if k == 0 else np.tile(steps, kernel[0])
        grid = m.mul(m.steps(out[k], real), float(strides[k]))
        along = c.reshape(grid, (out[0], 1) if k == 0 else (1, out[1]))
        at = m.add(c.const(base.reshape(-1, 1, 1), real), along)
        moved = m.add(c.reshape(c.slice_axis(moves, 3, k, k + 1), (batch, offset_groups, n_taps, *out)), at)
        place = c.reshape(moved, (batch, offset_groups, 1, n_taps * n_points))
        taps.append(_taps(c, place, "linear", _Edge(c, "zeros", x.shape[2 + k], place, place)))
    source = c.cast(x, real)
    source = c.reshape(source, (batch, offset_groups, channels // offset_groups, product(x.shape[2:])))
    columns = _interpolated(c, source, x.shape[2:], taps)
    if mask is not None:
        columns = m.mul(columns, c.reshape(c.cast(mask, real), (batch, offset_groups, 1, n_taps * n_points)))
    per_group = channels // groups * n_taps
    columns = c.reshape(columns, (batch, groups, per_group, n_points))
    matrix = c.reshape(c.cast(w, real), (groups, w.shape[0] // groups, per_group))
    y = c.reshape(c(ops.matmul, matrix, columns), (batch, w.shape[0], *out))
    if bias is not None:
        y = m.add(y, c.reshape(c.cast(bias, real), (w.shape[0], 1, 1)))
    return c.cast(y, x.dtype)


# --- Col2Im ---------------------------------------------------------------------------------------------------------


def _col2im(c: Call) -> Node:
    """The transpose of taking blocks: a transposed convolution with one kernel of a single 1 for each place in it."""
    x, image, block = c.x(0), c.ints_of(c.x(1), "image_shape"), c.ints_of(c.x(2), "block_shape")
    n = len(image)
    dilations, strides = c.ints("dilations", [1] * n), c.ints("strides", [1] * n)
    pads = c.ints("pads", [0] * 2 * n)
    n_taps = math.prod(block)
    if len(x.shape) != 3 or len(block) != n or not is_known(x.shape[1]) or n_taps < 1 or x.shape[1] % n_taps:
        c.refuse(f"blocks of {block} don't make {image} of {x.type}")
    spans = [(b - 1) * d + 1 for b, d in zip(block, dilations, strict=True)]
    room = [size + pads[k] + pads[k + n] - spans[k] for k, size in enumerate(image)]
    counts = [r // s + 1 for r, s in zip(room, strides, strict=True)]
    if min(room) < 0 or (is_known(x.shape[2]) and x.shape[2] != math.prod(counts)):
        c.refuse(f"{x.shape[2]} blocks of {block} don't make {image}")
    channels = x.shape[1] // n_taps
    spread = c.reshape(x, (x.shape[0], x.shape[1], *counts))
    kernels = np.tile(np.eye(n_taps, dtype=np.float32).reshape(n_taps, 1, *block), (channels, *(1,) * (n + 1)))
    return c(
        ops.conv_transpose, spread, c.const(kernels, x.dtype), strides=strides, dilations=dilations, groups=channels,
        pads=tuple((pads[k], pads[k + n]) for k in range(n)),
        output_padding=tuple(r % s for r, s in zip(room, strides, strict=True)),
    )  # fmt: skip


TABLE: Table = {"Col2Im": _col2im, "DeformConv": _deform_conv, "GridSample": grid_sample}
