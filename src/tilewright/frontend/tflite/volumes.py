"""TFLite's convolutions of volumes, and reductions of windows along any axes.

In: calls. Out: nodes. Not its business: convolutions and pools of images (``windows``).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import bool_, i64
from tilewright.frontend.tflite.call import Converter, TfliteCall
from tilewright.frontend.tflite.windows import SAME, around, turned_padding, with_bias


def _three(c: TfliteCall, name: str) -> tuple[int, int, int]:
    """An option of depth, height and width, each at least 1."""
    found = (c.option(name.format("D")), c.option(name.format("H")), c.option(name.format("W")))
    if min(found) < 1:
        raise OpError(f"strides and dilations {found} must be at least 1")
    return found


def _forms(c: TfliteCall) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return _three(c, "Stride{}"), _three(c, "Dilation{}Factor")


def _check_volumes(c: TfliteCall, *places: int) -> None:
    for k in places:
        if len(c.size(c.x(k))) != 5:
            raise OpError(f"operand {k}, {c.x(k).type}, has no depth, height and width")


def _conv_3d(c: TfliteCall) -> Node:
    """Kernels lie as depth, height, width, input, output channels."""
    _check_volumes(c, 0, 1)
    x, kernel = c.x(0), c.transposed(c.x(1), (4, 3, 0, 1, 2))
    strides, dilations = _forms(c)
    pads = around(c, c.size(x)[1:4], c.size(kernel)[2:], strides, dilations)
    return with_bias(
        c, c.b(ops.conv, x, kernel, strides=strides, dilations=dilations, pads=pads, groups=1, layout="NHWC")
    )


def _conv_3d_transpose(c: TfliteCall) -> Node:
    """The first operand is the result's shape; kernels lie as depth, height, width, output, input channels."""
    _check_volumes(c, 1, 2)
    kernel, x, wanted = c.transposed(c.x(1), (4, 3, 0, 1, 2)), c.x(2), c.ints(0)[1:4]
    strides, dilations = _forms(c)
    reach = [(k - 1) * d + 1 for k, d in zip(c.size(kernel)[2:], dilations, strict=True)]
    lost = [0 if c.option("Padding") == SAME else k - 1 for k in reach]
    own = [-(-(n - k) // s) for n, k, s in zip(wanted, lost, strides, strict=True)]
    if own != [*c.size(x)[1:4]]:
        raise OpError(f"a result of {wanted} is made of volumes of {own}, not of {x.type}")
    pads, more = turned_padding(own, reach, strides, wanted)
    made = c.b(
        ops.conv_transpose, x, kernel, strides=strides, dilations=dilations, pads=pads, layout="NHWC",
        output_padding=more,
    )  # fmt: skip
    return with_bias(c, made, 3)


_REDUCED: Mapping[int, tuple[OpDef, OpDef]] = {
    1: (ops.reduce_sum, ops.add), 2: (ops.reduce_prod, ops.mul), 3: (ops.reduce_min, ops.minimum),
    4: (ops.reduce_max, ops.maximum), 5: (ops.reduce_all, ops.logical_and), 6: (ops.reduce_any, ops.logical_or),
}  # fmt: skip
"""How the schema's functions reduce a window, and join it with the value at the start."""
_OF_TRUTH = (5, 6)
"""Those that ask of numbers whether they are 0, and answer by 1 or 0."""


def _reduce_window(c: TfliteCall) -> Node:
    """One axis after the other: the elements of its windows along an axis of their own, which is reduced."""
    x, size = c.x(0), c.size(c.x(0))
    window, strides, dilations = (c.ints(k) for k in (2, 3, 4))
    if any(len(v) != len(size) or min(v, default=1) < 1 for v in (window, strides, dilations)):
        raise OpError(f"a window of {window} by strides {strides} and dilations {dilations} does not fit {x.type}")
    kind = c.option("ReduceFunction")
    if kind not in _REDUCED:
        raise OpError(f"the function {kind} of windows is not known")
    reduced, joined = _REDUCED[kind]
    start, dtype = c.shaped(c.x(1), ()), x.dtype
    if kind in _OF_TRUTH and dtype is not bool_:
        x, start = (c.b(ops.ne, v, c.number(0, v)) for v in (x, start))
    for axis, (n, k, s, d) in enumerate(zip(size, window, strides, dilations, strict=True)):
        if k == s == 1:
            continue
        count = max((n - (k - 1) * d - 1) // s + 1, 0)
        places = c.b(ops.add, _every(c, count, s, (count, 1)), _every(c, k if count else 0, d, (1, k if count else 0)))
        x = c.b(reduced, c.b(ops.gather, x, places, axis=axis), axes=(axis + 1,), keepdims=False)
    return c.cast(c.b(joined, start, x), dtype)


def _every(c: TfliteCall, n: int, step: int, shape: tuple[int, int]) -> Node:
    """0, ``step``, twice of it..."""
    return c.shaped(c.b(ops.mul, c.b(ops.iota, extent=n, dtype=i64), c.b.const(step, i64)), shape)


TABLE: Mapping[str, Converter] = {
    "CONV_3D": _conv_3d, "CONV_3D_TRANSPOSE": _conv_3d_transpose, "REDUCE_WINDOW": _reduce_window,
}  # fmt: skip
