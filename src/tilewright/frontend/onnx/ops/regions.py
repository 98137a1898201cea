"""Converters of ONNX ops that reduce regions of images to grids of bins: RoiAlign and MaxRoiPool.

In: a ``Call``. Out: nodes of the graph IR. Not its business: other reading at computed places (``onnx.ops.sampling``).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import reduce

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import f32, i64, product
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Table

# --- RoiAlign -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Samples:
    """Where the bins of every region are sampled along one axis of ``size``.

    ``at`` is f32[regions, bins, per bin]. Of bins with as many samples as they are long, ``live`` marks those that
    are, and ``count``, f32[regions], says how many a bin has, also those far outside of the image, which are no part of
    ``at``.
    """

    at: Node
    size: Dim
    live: Node | None = None
    count: Node | None = None


@dataclass(frozen=True)
class _Tap:
    """One of the two elements between which a sample lies: its place and its weight, [regions, bins, per bin]."""

    place: Node
    weight: Node


def _roi_align(c: Call) -> Node:
    """Regular samples in every bin of every region, each bilinear, their mean or greatest weighted tap."""
    m = Formula(c)
    x, rois, batches = c.x(0), c.x(1), c.x(2)
    mode = c.choice("mode", ("avg", "max"), "avg")
    bins = c.int_("output_height", 1), c.int_("output_width", 1)
    ratio = c.int_("sampling_ratio", 0)
    # before, no attribute, and nothing moved by half an element
    default = "half_pixel" if c.opset >= 16 else "output_half_pixel"
    half = c.choice("coordinate_transformation_mode", ("half_pixel", "output_half_pixel"), default) == "half_pixel"
    corners = m.sub(m.mul(c.cast(rois, f32), c.float_("spatial_scale", 1.0)), 0.5 if half else 0.0)
    axes = []
    for k in range(2):
        start, end = m.row(corners, 1 - k), m.row(corners, 3 - k)
        length = m.sub(end, start)
        length = length if half else m.max(length, 1.0)  # without the half regions have at least one element
        size = x.shape[2 + k]
        axes.append(
            _regular(c, start, length, size, bins[k], ratio)
            if ratio > 0
            else _by_length(c, start, length, size, bins[k])
        )
    value = _sampled(c, x, batches, axes, mode)
    fold = ops.reduce_sum if mode == "avg" else ops.reduce_max
    y = c(fold, value, axes=(3, 5), keepdims=False)
    if mode == "avg":
        y = m.div(y, _samples_of_a_bin(c, axes))
    elif ratio <= 0:  # a bin without samples, or with none on the image, is 0
        y = m.where(m.gt(y, float("-inf")), y, 0.0)
    return c.cast(c.transpose(y, (1, 0, 2, 3)), x.dtype)


def _regular(c: Call, start: Node, length: Node, size: Dim, bins: int, ratio: int) -> _Samples:
    """``ratio`` samples in every bin."""
    m = Formula(c)
    steps = m.div(m.add(m.steps(bins * ratio, f32), 0.5), float(bins * ratio))
    among = (*start.shape, 1, 1)
    at = m.add(c.reshape(start, among), m.mul(c.reshape(length, among), c.reshape(steps, (bins, ratio))))
    return _Samples(at, size)


def _by_length(c: Call, start: Node, length: Node, size: Dim, bins: int) -> _Samples:
    """As many samples as a bin is long, rounded up: at most 1 apart, and where there are two more than 0.5.

    Only those count that lie on the image, and one on either side of it (0, which the greatest may be): at most twice
    as many as the image is large, and a few.
    """
    m = Formula(c)
    regions = start.shape[0]
    length = m.div(length, float(bins))
    count = m.max(c(ops.ceil, length), 0.0)
    # of no sample: anything but a division by 0
    step = c.reshape(m.where(m.gt(count, 0.0), m.div(length, m.max(count, 1.0)), 1.0), (regions, 1))
    first = m.add(c.reshape(start, (regions, 1)), m.mul(c.reshape(length, (regions, 1)), m.steps(bins, f32)))

    def index(at: Node) -> Node:
        """Which sample lies at ``at``, as a fraction."""
        return m.sub(m.div(m.sub(at, first), step), 0.5)

    ends = c.reshape(count, (regions, 1))
    low = m.clip(m.floor(index(m.node(-1.0, f32))), 0.0, ends)
    high = m.clip(m.add(c(ops.ceil, index(m.node(size, f32))), 1.0), 0.0, ends)
    most = c(ops.reduce_max, c.cast(m.sub(high, low), i64), axes=(0, 1), keepdims=False)
    per_bin = c.size(m.min(most, 2 * size + 8), "the number of samples of a bin")
    among = (regions, bins, 1)
    chosen = m.add(c.reshape(low, among), m.steps(per_bin, f32))
    at = m.add(c.reshape(first, among), m.mul(m.add(chosen, 0.5), c.reshape(step, (regions, 1, 1))))
    return _Samples(at, size, m.lt(chosen, c.reshape(high, among)), count)


def _samples_of_a_bin(c: Call, axes: list[_Samples]) -> Node:
    """f32[regions, 1, 1] or a number: how many samples each bin has, and no less than 1 for a mean."""
    m = Formula(c)
    rows, columns = axes
    if rows.count is None or columns.count is None:
        return m.node(rows.at.shape[2] * columns.at.shape[2], f32)
    return c.reshape(m.max(m.mul(rows.count, columns.count), 1.0), (rows.at.shape[0], 1, 1))


def _sampled(c: Call, x: Node, batches: Node, axes: list[_Samples], mode: str) -> Node:
    """The value at every sample, f32[channels, regions, bins, per bin, bins, per bin]: the sum of its four weighted
    taps, or the greatest. Beyond the image it is 0, and what is no sample does not count."""
    m = Formula(c)
    rows, columns = axes

    def down(of: Node) -> Node:
        return c.reshape(of, (*of.shape, 1, 1))

    def across(of: Node) -> Node:
        return c.reshape(of, (of.shape[0], 1, 1, *of.shape[1:]))

    source = c.reshape(  # batch, rows and columns are one axis: a tap is one gather for all channels
        c.cast(c.transpose(x, (1, 0, 2, 3)), f32), (x.shape[1], product((x.shape[0], x.shape[2], x.shape[3])))
    )
    start = c.reshape(c.cast(batches, i64), (*batches.shape, 1, 1, 1, 1))
    terms = []
    for row, column in itertools.product(_taps(c, rows), _taps(c, columns)):
        at = m.add(m.mul(start, x.shape[2]), down(row.place))
        at = m.add(m.mul(at, x.shape[3]), across(column.place))
        weight = m.mul(down(row.weight), across(column.weight))
        terms.append(m.mul(c(ops.gather, source, at, axis=1), weight))
    value = m.sum(terms) if mode == "avg" else reduce(m.max, terms)
    value = m.where(c(ops.logical_or, down(_beyond(c, rows)), across(_beyond(c, columns))), 0.0, value)
    if rows.live is not None and columns.live is not None:
        live = m.both(down(rows.live), across(columns.live))
        value = m.where(live, value, 0.0 if mode == "avg" else float("-inf"))
    return value


def _beyond(c: Call, axis: _Samples) -> Node:
    m = Formula(c)
    return c(ops.logical_or, m.lt(axis.at, -1.0), m.gt(axis.at, m.node(axis.size, f32)))


def _taps(c: Call, axis: _Samples) -> list[_Tap]:
    m = Formula(c)
    last = m.sub(m.node(axis.size, f32), 1.0)
    at = m.clip(axis.at, 0.0, last)
    low = m.floor(at)
    t = m.sub(at, low)
    return [_Tap(c.cast(low, i64), m.sub(1.0, t)), _Tap(c.cast(m.min(m.add(low, 1.0), last), i64), t)]


# --- MaxRoiPool -----------------------------------------------------------------------------------------------------


def _max_roi_pool(c: Call) -> Node:
    """The greatest element in every bin of every region; corners are rounded, bins may share elements, and a bin
    outside of the image is 0 (Girshick, Fast R-CNN, 2015, section 2.1)."""
    m = Formula(c)
    x, rois = c.x(0), c.x(1)
    bins = c.ints("pooled_shape")
    regions = rois.shape[0]
    corners = c(ops.floor, m.add(m.mul(rois, c.float_("spatial_scale", 1.0)), 0.5))
    y = c(ops.gather, x, c.cast(m.row(rois, 0), i64), axis=0)
    some = []
    for k in range(2):
        start, end, size = m.row(corners, 2 - k), m.row(corners, 4 - k), x.shape[2 + k]
        length = m.div(m.max(m.add(m.sub(end, start), 1.0), 1.0), float(bins[k]))
        column = (regions, 1)
        numbers = m.steps(bins[k], x.dtype)
        low = m.floor(m.mul(c.reshape(length, column), numbers))
        high = c(ops.ceil, m.mul(c.reshape(length, column), m.add(numbers, 1.0)))
        low, high = (m.clip(m.add(edge, c.reshape(start, column)), 0.0, m.node(size, x.dtype)) for edge in (low, high))
        some.append(m.lt(low, high))
        at = m.steps(size, x.dtype)
        among = (regions, bins[k], 1)
        inside = m.both(m.ge(at, c.reshape(low, among)), m.lt(at, c.reshape(high, among)))
        # along rows: [regions, channels, bins, size, columns]; along columns: [regions, channels, bins, bins, size]
        spread = c.reshape(y, (*y.shape[: 2 + k], 1, *y.shape[2 + k :]))
        mask = (regions, 1, bins[0], size, 1) if k == 0 else (regions, 1, 1, bins[1], size)
        y = m.where(c.reshape(inside, mask), spread, float("-inf"))
        y = c(ops.reduce_max, y, axes=(3 + k,), keepdims=False)
    filled = m.both(c.reshape(some[0], (regions, 1, bins[0], 1)), c.reshape(some[1], (regions, 1, 1, bins[1])))
    return m.where(filled, y, 0.0)


TABLE: Table = {"MaxRoiPool": _max_roi_pool, "RoiAlign": _roi_align}
