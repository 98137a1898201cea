"""Converters of ONNX Runtime's own ops on images: convolutions with what follows, channels-last forms, crops.

In: a ``Call``. Out: nodes of the graph IR, channels-first inside; the graph's own layout passes choose another.
Not its business: quantised images (``onnx.microsoft.quant``); blocked layouts, which are refused (``onnx.table``).
"""

from __future__ import annotations

import itertools

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import f32, i64
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Results, Table
from tilewright.frontend.onnx.microsoft.fused import activated
from tilewright.frontend.onnx.ops.contract import add_channels, conv
from tilewright.frontend.onnx.ops.pool import greatest
from tilewright.frontend.onnx.ops.sampling import grid_sample


def channels_first(c: Call, x: Node) -> Node:
    """N, spatial, C as N, C, spatial."""
    rank = len(x.shape)
    return c.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(c: Call, x: Node) -> Node:
    """N, C, spatial as N, spatial, C."""
    rank = len(x.shape)
    return c.transpose(x, (0, *range(2, rank), 1))


def _fused_conv(c: Call) -> Node:
    """Convolution, bias, a tensor of the result's shape, activation."""
    y, more = add_channels(c, conv(c, c.x(0), c.x(1)), c.opt(2)), c.opt(3)
    y = y if more is None else c(ops.add, y, more)
    numbers = c.floats("activation_params", [])
    return activated(c, y, numbers) if c.str_("activation", "") else y


def _nhwc_conv(c: Call) -> Node:
    """Weights are output channels, spatial, input channels."""
    y = conv(c, channels_first(c, c.x(0)), channels_first(c, c.x(1)))
    return channels_last(c, add_channels(c, y, c.opt(2)))


def _nhwc_max_pool(c: Call) -> Results:
    y = greatest(c, channels_first(c, c.x(0)))
    assert isinstance(y, Node)
    return channels_last(c, y)


def _group_norm(c: Call) -> Results:
    """Normalised over groups of channels, after a sum when the node skips; 1 as activation is SiLU."""
    x, skip, bias = c.x(0), c.opt(3), c.opt(4)
    last, groups = c.flag("channels_last", True), c.int_("groups")
    if skip is not None:
        per_image = len(skip.shape) == 2  # one number a channel
        x = c(ops.add, x, c.reshape(skip, (skip.shape[0], 1, 1, skip.shape[1])) if per_image else skip)
        x = x if bias is None else c(ops.add, x, bias)
    wide = channels_first(c, x) if last else x
    scale, shift = (c.cast(c.x(i), wide.dtype) for i in (1, 2))
    y = c(ops.group_norm, wide, scale, shift, groups=groups, epsilon=c.float_("epsilon", 1e-5))
    if c.flag("activation"):
        y = c(ops.mul, y, c(ops.sigmoid, y))
    return channels_last(c, y) if last else y, x


def _crop_and_resize(c: Call) -> Node:
    """Samples between the corners of each region, corners included; ``extrapolation_value`` beyond the image."""
    m = Formula(c)
    x, rois, images = c.x(0), c.x(1), c.x(2)
    crop = c.sizes(c.x(3), "crop_size")
    nearest = c.choice("mode", ("bilinear", "nearest"), "bilinear") == "nearest"
    n, sizes = rois.shape[0], x.shape[2:]
    at = [_along(c, m.row(rois, k), m.row(rois, k + 2), sizes[k], crop[k]) for k in (0, 1)]
    inside = [m.both(m.ge(p, 0.0), m.le(p, size - 1)) for p, size in zip(at, sizes, strict=True)]
    taps = [_taps(c, p, size, nearest) for p, size in zip(at, sizes, strict=True)]
    source = c.reshape(c.transpose(x, (1, 0, 2, 3)), (x.shape[1], x.shape[0] * sizes[0] * sizes[1]))
    start = c.reshape(c.cast(images, i64), (n, 1, 1))
    terms = []
    for (row, down), (column, across) in itertools.product(*taps):
        row, down = (c.reshape(t, (n, crop[0], 1)) for t in (row, down))
        column, across = (c.reshape(t, (n, 1, crop[1])) for t in (column, across))
        place = m.add(m.mul(m.add(m.mul(start, sizes[0]), row), sizes[1]), column)
        terms.append(m.mul(c(ops.gather, source, place, axis=1), m.mul(down, across)))
    seen = m.both(c.reshape(inside[0], (n, crop[0], 1)), c.reshape(inside[1], (n, 1, crop[1])))
    y = m.where(seen, m.sum(terms), c.float_("extrapolation_value", 0.0))
    return c.transpose(y, (1, 0, 2, 3))


def _along(c: Call, low: Node, high: Node, size: Dim, count: Dim) -> Node:
    """Coordinates of ``count`` samples of each region along one axis, f32[regions, count]."""
    m = Formula(c)
    last = m.node(size - 1, f32)
    n = low.shape[0]
    low, high = (c.reshape(m.mul(t, last), (n, 1)) for t in (low, high))
    if count == 1:
        return m.mul(m.add(low, high), 0.5)
    step = m.div(m.sub(high, low), m.node(count - 1, f32))
    return m.add(low, m.mul(step, c.reshape(m.steps(count, f32), (1, count))))


def _taps(c: Call, at: Node, size: Dim, nearest: bool) -> list[tuple[Node, Node]]:
    """Places and weights of the samples; those outside of the image are read at its edge."""
    m = Formula(c)
    one, last = c.full(1.0, f32, at.shape), m.node(size - 1, f32)
    at = m.clip(at, 0.0, last)
    if nearest:
        return [(c.cast(m.floor(m.add(at, 0.5)), i64), one)]
    low = m.floor(at)
    t = m.sub(at, low)
    return [(c.cast(low, i64), m.sub(one, t)), (c.cast(m.min(m.add(low, 1.0), last), i64), t)]


TABLE: Table = {
    "CropAndResize": _crop_and_resize,
    "FusedConv": _fused_conv,
    "GridSample": grid_sample,
    "GroupNorm": _group_norm,
    "NhwcConv": _nhwc_conv,
    "NhwcMaxPool": _nhwc_max_pool,
    "SkipGroupNorm": _group_norm,
}
