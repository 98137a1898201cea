"""Converters of ONNX Resize and Upsample.

In: a ``Call``. Out: nodes of the graph IR with the size and the scale of every axis settled.
Not its business: interpolation (``ops``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core import expr
from tilewright.core.dims import is_known, known_over
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import Array, DType, f32, f64
from tilewright.frontend.banded import banded_sum
from tilewright.frontend.onnx.call import Call, Table

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")


def _scales_of(c: Call, node: Node) -> list[float]:
    found = list(c.known(node, "scales").flat)
    if not all(isinstance(s, int | float) and math.isfinite(s) and s > 0 for s in found):
        c.refuse(f"scales {found} must be positive numbers", "fix symbolic dimensions with input_shapes=")
    return [float(s) for s in found]


def _scaled(size: Dim, scale: float) -> Dim:
    """``floor(size * scale)``, in f32 as ONNX Runtime has it: scales are f32 in the file, and 0.7 times 10 is 7.

    Of a symbolic size, with the short fraction that the scale stands for.
    """
    if is_known(size):
        return math.floor(np.float32(size) * np.float32(scale))
    f = Fraction(scale).limit_denominator(1 << 10)
    return expr.floordiv(size * f.numerator, f.denominator)


def _with_policy(c: Call, x: Node, axes: Sequence[int], sizes: list[Dim]) -> tuple[list[Dim], list[float]]:
    """The sizes, and the one scale that ``keep_aspect_ratio_policy`` derives from them; none when they stretch."""
    policy = c.choice("keep_aspect_ratio_policy", POLICIES, "stretch")
    if policy == "stretch" or not sizes:
        return sizes, []
    pairs = [(out, x.shape[a]) for a, out in zip(axes, sizes, strict=True)]
    fixed = [(out, n) for out, n in pairs if is_known(out) and known_over(n, 0)]
    if len(fixed) != len(pairs):
        c.refuse(f"keep_aspect_ratio_policy={policy} needs fixed sizes", "fix the dimensions with input_shapes=")
    ratios = [out / n for out, n in fixed]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [math.floor(scale * n + 0.5) for _, n in fixed], [scale] * len(fixed)


def _operand(c: Call, i: int) -> Node | None:
    """An optional operand, which old exporters leave out by giving an empty tensor."""
    node = c.opt(i)
    return None if node is None or node.shape == (0,) else node


def _resize(c: Call) -> Node:
    x = c.x(0)
    rank = len(x.shape)
    since_11 = c.opset >= 11
    # opset 11 put `roi` before the scales
    scales_node, sizes_node = _operand(c, 2 if since_11 else 1), _operand(c, 3) if since_11 else None
    axes = c.axes(c.ints("axes", range(rank)), rank)
    crop = c.str_("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    roi = [(0.0, 1.0)] * rank
    if crop:
        ends = [float(v) for v in c.known(c.x(1), "roi").flat]
        if len(ends) != 2 * len(axes):
            c.refuse(f"roi has {len(ends)} numbers for {len(axes)} axes")
        for k, axis in enumerate(axes):
            roi[axis] = (ends[k], ends[k + len(axes)])  # all starts, then all ends
    if scales_node is not None:
        scales = _scales_of(c, scales_node)
        if len(scales) != len(axes):
            c.refuse(f"{len(scales)} scales for {len(axes)} axes")
        c.ignore("keep_aspect_ratio_policy")  # which is about sizes
        spans = [roi[a][1] - roi[a][0] for a in axes]
        sizes = [_scaled(x.shape[a], s * span) for a, s, span in zip(axes, scales, spans, strict=True)]
        if not since_11 and c.str_("mode", "nearest") == "nearest":
            return _nearest_10(c, x, sizes, scales)
    elif sizes_node is not None:
        given = c.sizes(sizes_node, "sizes")
        if len(given) != len(axes):
            c.refuse(f"{len(given)} sizes for {len(axes)} axes")
        sizes, scales = _with_policy(c, x, axes, given)
    else:
        c.refuse("needs either scales or sizes")
    form = {"roi": (*(a for a, _ in roi), *(b for _, b in roi))} if crop else {}
    return _emit(c, x, axes, sizes, scales, form)


def _nearest_10(c: Call, x: Node, sizes: Sequence[Dim], scales: Sequence[float]) -> Node:
    """Before opset 11 a shrunk axis rounds coordinates up and a stretched one down; the axes are independent."""
    for rounding, chosen in (("ceil", [s < 1 for s in scales]), ("floor", [s > 1 for s in scales])):
        if any(chosen):
            shape = tuple(new if on else d for new, d, on in zip(sizes, x.shape, chosen, strict=True))
            factors = tuple(s if on else 1.0 for s, on in zip(scales, chosen, strict=True))
            x = c(ops.resize, x, sizes=shape, scales=factors, coordinate_mode="asymmetric", nearest_mode=rounding)
    return x


def _emit(
    c: Call, x: Node, axes: Sequence[int], sizes: Sequence[Dim], scales: Sequence[float], form: dict[str, Any]
) -> Node:
    mode = c.choice("mode", MODES, "nearest")
    default = "half_pixel" if c.opset >= 11 else "asymmetric"
    if c.flag("antialias") and mode != "nearest":
        return _smoothed(c, x, axes, sizes, scales, mode)
    shape, factors = list(x.shape), [1.0] * len(x.shape)
    for k, axis in enumerate(axes):
        shape[axis] = sizes[k]
        if scales:
            factors[axis] = scales[k]
    return _between(
        c, x, sizes=tuple(shape), scales=tuple(factors) if scales else (), mode=mode,
        coordinate_mode=c.choice("coordinate_transformation_mode", COORDINATES, default),
        nearest_mode=c.choice("nearest_mode", NEAREST, "round_prefer_floor" if c.opset >= 11 else "floor"),
        cubic_coeff=c.float_("cubic_coeff_a", -0.75), exclude_outside=c.flag("exclude_outside"),
        extrapolation=c.float_("extrapolation_value", 0.0), **form,
    )  # fmt: skip


def _between(c: Call, x: Node, **form: Any) -> Node:
    """``resize``; what lies between whole numbers loses its fraction, as in the reference and ONNX Runtime."""
    if x.dtype.is_float or form["mode"] == "nearest":
        return c(ops.resize, x, **form)
    y = c(ops.resize, c.cast(x, f32 if x.dtype.bits <= 16 else f64), **form)
    return c.cast(_clamped_to(c, c(ops.trunc, y), x.dtype), x.dtype)


def _smoothed(c: Call, x: Node, axes: Sequence[int], sizes: Sequence[Dim], scales: Sequence[float], mode: str) -> Node:
    """With antialiasing: per axis sums over windows, wider than one step where the axis shrinks."""
    coordinates = c.choice("coordinate_transformation_mode", tuple(_CENTRES), "half_pixel")
    coefficient, exclude = c.float_("cubic_coeff_a", -0.75), c.flag("exclude_outside")
    c.ignore("nearest_mode", "extrapolation_value")
    y = x if x.dtype.is_float and x.dtype.bits >= 32 else c.cast(x, f32)
    for k, axis in enumerate(axes):
        n_in, n_out = x.shape[axis], sizes[k]
        if not is_known(n_in) or not is_known(n_out):
            c.refuse("antialias=1 needs fixed sizes", "fix the dimensions with input_shapes=")
        scale = scales[k] if scales else n_out / n_in
        if n_in == n_out and scale == 1:
            continue
        centre = _CENTRES[coordinates](np.arange(n_out, dtype=np.float64), n_in, n_out, scale)
        matrix = _filter_matrix(centre, n_in, scale, mode, coefficient, exclude)
        y = banded_sum(c, y, axis, matrix)
    return c.cast(y if x.dtype.is_float else _clamped_to(c, c(ops.round, y), x.dtype), x.dtype)


def _clamped_to(c: Call, y: Node, dtype: DType) -> Node:
    """Whole numbers within the range of an integer type."""
    return c(ops.clamp, y, c.const(dtype.min, y.dtype), c.const(dtype.max, y.dtype))


def _half_pixel(at: Array, n_in: int, n_out: int, scale: float) -> Array:
    return np.asarray((at + 0.5) / scale - 0.5)


def _pytorch_half_pixel(at: Array, n_in: int, n_out: int, scale: float) -> Array:
    return _half_pixel(at, n_in, n_out, scale) if n_out > 1 else at * 0.0


def _symmetric_half_pixel(at: Array, n_in: int, n_out: int, scale: float) -> Array:
    return _half_pixel(at, n_in, n_out, scale) + n_in / 2 * (1 - n_out / (scale * n_in))


def _aligned_corners(at: Array, n_in: int, n_out: int, scale: float) -> Array:
    return at * (n_in - 1) / (scale * n_in - 1) if scale * n_in != 1 else at * 0.0


_CENTRES: Mapping[str, Callable[[Array, int, int, float], Array]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "half_pixel_symmetric": _symmetric_half_pixel,
    "align_corners": _aligned_corners,
    "asymmetric": lambda at, n_in, n_out, scale: at / scale,
}
"""Where the elements of the result lie on the axis of the operand."""


def _filter_matrix(centre: Array, n_in: int, scale: float, mode: str, a: float, exclude: bool) -> Array:
    """Weights [n_out, n_in] of a triangle or cubic filter around ``centre``, stretched by a scale below 1."""
    n_out = len(centre)
    stretch = min(scale, 1.0)
    reach = 1 if mode == "linear" else 2
    low = np.floor(centre)
    low -= centre == low  # a whole coordinate counts from the element before it
    first = math.floor(-reach / stretch) + 1
    steps = np.arange(first, 2 - first)
    places = low[:, None] + steps
    d = np.abs(centre[:, None] - places) * stretch
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    weights = np.clip(1 - d, 0, 1) if mode == "linear" else np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    if exclude:
        weights = np.where((places < 0) | (places >= n_in), 0.0, weights)
    weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((n_out, n_in))
    rows = np.broadcast_to(np.arange(n_out)[:, None], places.shape)
    np.add.at(matrix, (rows, np.clip(places, 0, n_in - 1).astype(np.int64)), weights)
    return matrix


def _upsample(c: Call) -> Node:
    x = c.x(0)
    scales = c.floats("scales") if c.opset < 9 else _scales_of(c, c.x(1))
    if len(scales) != len(x.shape):
        c.refuse(f"{len(scales)} scales for rank {len(x.shape)}")
    mode = c.choice("mode", ("nearest", "linear", "bilinear"), "nearest")
    sizes = [_scaled(d, s) for d, s in zip(x.shape, scales, strict=True)]
    return _between(
        c, x, sizes=tuple(sizes), scales=tuple(scales), mode="nearest" if mode == "nearest" else "linear",
        coordinate_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


TABLE: Table = {"Resize": _resize, "Upsample": _upsample}
