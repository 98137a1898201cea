"""TFLite's products, convolutions, pools and resizing: channels last, padding by name.

In: calls. Out: nodes. Not its business: arithmetic on elements (``arithmetic``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.frontend.tflite.call import Converter, TfliteCall, check_size

SAME = 0
"""The padding that makes a result as large as its operand over the stride; the other is none."""


def around(c: TfliteCall, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
            ) -> tuple[tuple[int, int], ...]:  # fmt: skip
    """Padding on both sides of each axis; an odd rest is behind."""
    if c.option("Padding") != SAME:
        return ((0, 0),) * len(sizes)
    pads: list[tuple[int, int]] = []
    for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pads.append((total // 2, total - total // 2))
    return tuple(pads)


def with_bias(c: TfliteCall, x: Node, k: int = 2) -> Node:
    """``x`` and operand ``k``, where it is there, through the fused activation."""
    bias = c.opt(k)
    return c.activated(x if bias is None else c.b(ops.add, x, bias))


def strides_of(c: TfliteCall) -> tuple[int, int]:
    strides = (c.option("StrideH"), c.option("StrideW"))
    if min(strides) < 1:
        raise OpError(f"strides {strides} must be at least 1")
    return strides


def windows_of(c: TfliteCall, kernel: Sequence[int]) -> dict[str, Any]:
    """Attributes of the op ``conv``: how windows of a kernel's height and width lie in the first operand."""
    strides, dilations = strides_of(c), (c.option("DilationHFactor"), c.option("DilationWFactor"))
    pads = around(c, c.size(c.x())[1:3], kernel, strides, dilations)
    return {"strides": strides, "dilations": dilations, "pads": pads}


def groups_of(c: TfliteCall, own: int) -> int:
    """How many groups of ``own`` channels the first operand has."""
    channels = c.size(c.x())[3]
    if own < 1 or channels % own:
        raise OpError(f"{channels} channels are no whole groups of {own}")
    return channels // own


def _conv_2d(c: TfliteCall) -> Node:
    """Kernels lie as output, height, width, input channels."""
    x, kernel = c.x(0), c.transposed(c.x(1), (0, 3, 1, 2))
    _, own, *taps = c.size(kernel)
    return with_bias(c, c.b(ops.conv, x, kernel, groups=groups_of(c, own), layout="NHWC", **windows_of(c, taps)))


def _depthwise(c: TfliteCall) -> Node:
    """Kernels lie as 1, height, width, output channels."""
    x, kernel = c.x(0), c.transposed(c.x(1), (3, 0, 1, 2))
    found = windows_of(c, c.size(kernel)[2:])
    return with_bias(c, c.b(ops.conv, x, kernel, groups=c.size(x)[3], layout="NHWC", **found))


def turned_padding(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], wanted: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """What a transposed convolution leaves out on both sides, and adds behind, for a result of the ``wanted`` sizes."""
    pads: list[tuple[int, int]] = []
    more: list[int] = []
    for n, k, s, out in zip(sizes, kernel, strides, wanted, strict=True):
        cut = (n - 1) * s + k - out
        pads.append((max(cut, 0) // 2, max(cut, 0) - max(cut, 0) // 2))
        more.append(max(-cut, 0))
    return tuple(pads), tuple(more)


def _transpose_conv(c: TfliteCall) -> Node:
    """The first operand is the result's shape, by which padding is known."""
    kernel, x, strides = c.transposed(c.x(1), (3, 0, 1, 2)), c.x(2), strides_of(c)
    pads, more = turned_padding(c.size(x)[1:3], c.size(kernel)[2:], strides, c.ints(0)[1:3])
    made = c.b(
        ops.conv_transpose, x, kernel, strides=strides, dilations=(1, 1), pads=pads, layout="NHWC", output_padding=more
    )
    return with_bias(c, made, 3)


def rows_of(c: TfliteCall, depth: int) -> tuple[int, ...]:
    """Sizes of what a fully connected layer keeps: leading axes are one unless the options say otherwise."""
    if c.option("WeightsFormat") != 0:
        raise OpError("weights that are shuffled for one processor are not read", remedy="convert without shuffling")
    return c.size(c.x())[:-1] if c.option("KeepNumDims") else (prod(c.size(c.x())) // max(depth, 1),)


def _fully_connected(c: TfliteCall) -> Node:
    """Rows of the second operand are results."""
    x, weight = c.x(0), c.transposed(c.x(1), (1, 0))
    depth, n_out = c.size(weight)
    outer = rows_of(c, depth)
    made = c.b(ops.matmul, c.shaped(x, (prod(outer), depth)), weight)
    return with_bias(c, c.shaped(made, (*outer, n_out)))


def _batch_matmul(c: TfliteCall) -> Node:
    def turned(x: Node, is_turned: bool) -> Node:
        rank = len(x.shape)
        return c.transposed(x, (*range(rank - 2), rank - 1, rank - 2)) if is_turned else x

    return c.b(ops.matmul, turned(c.x(0), c.option("AdjX", False)), turned(c.x(1), c.option("AdjY", False)))


def _pool(op: OpDef, **fixed: Any) -> Converter:
    def convert(c: TfliteCall) -> Node:
        return c.activated(_pooled(c, op, c.x(), **fixed))

    return convert


def _pooled(c: TfliteCall, op: OpDef, x: Node, **fixed: Any) -> Node:
    kernel, strides = (c.option("FilterHeight"), c.option("FilterWidth")), strides_of(c)
    if min(kernel) < 1:
        raise OpError(f"a window of {kernel} has no element")
    pads = around(c, c.size(x)[1:3], kernel, strides, (1, 1))
    return c.b(op, x, kernel=kernel, strides=strides, pads=pads, layout="NHWC", **fixed)


def _l2_pool(c: TfliteCall) -> Node:
    square = c.b(ops.mul, c.x(), c.x())
    return c.activated(c.b(ops.sqrt, _pooled(c, ops.avg_pool, square)))


def _resize(mode: str) -> Converter:
    def convert(c: TfliteCall) -> Node:
        n, _, _, channels = c.size(c.x())
        height, width = c.ints(1)
        check_size(max(height, width))
        aligned, centred = bool(c.option("AlignCorners")), bool(c.option("HalfPixelCenters"))
        coordinates = "align_corners" if aligned else "half_pixel" if centred else "asymmetric"
        # Without either, a place is cut to the element before it; with one of them a half goes to the next.
        nearest = "round_prefer_ceil" if aligned or centred else "floor"
        return c.b(
            ops.resize, c.x(), sizes=(n, height, width, channels), mode=mode, coordinate_mode=coordinates,
            nearest_mode=nearest,
        )  # fmt: skip

    return convert


TABLE: Mapping[str, Converter] = {
    "CONV_2D": _conv_2d, "DEPTHWISE_CONV_2D": _depthwise, "TRANSPOSE_CONV": _transpose_conv,
    "FULLY_CONNECTED": _fully_connected, "BATCH_MATMUL": _batch_matmul, "AVERAGE_POOL_2D": _pool(ops.avg_pool),
    "MAX_POOL_2D": _pool(ops.max_pool), "L2_POOL_2D": _l2_pool, "RESIZE_BILINEAR": _resize("linear"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("nearest"),
}  # fmt: skip
