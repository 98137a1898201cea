"""Where each position of a resized axis reads its input, and with which weights.

In: an axis's sizes and ``resize``'s attributes. Out: ``Taps``: indices and weights.
Not its business: applying them (``ops.resize``).

Coordinates and weights are f32, as in ONNX Runtime, but for means of elements of f64, of which PyTorch has them in f64
(``precision``). They are written once, over a small arithmetic with two meanings: NumPy arrays for the reference,
element values for the stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilewright.core.compute import Binary, Cast, Const, Index, Select, Unary
from tilewright.core.dims import is_known, known_at_least
from tilewright.core.expr import Dim, floordiv
from tilewright.core.graph import Attrs
from tilewright.core.types import DType, f32, f64

Number: TypeAlias = Any  # an array or a value of floats: whatever the arithmetic works on


def precision(mode: str, dtype: DType) -> DType:
    """The type of coordinates and weights for elements of ``dtype``. The nearest element is found in f32 everywhere."""
    return f64 if dtype is f64 and mode != "nearest" else f32


@dataclass(frozen=True)
class Arrays:
    """Arithmetic of floats on NumPy arrays; a position is all positions at once."""

    dtype: DType = f32

    def const(self, c: float) -> Number:
        return self.dtype.numpy.type(c)

    def size(self, n: Dim) -> Number:
        assert is_known(n)
        return self.const(n)

    def positions(self, n: int) -> Number:
        """Every position along ``n`` places."""
        return np.arange(n).astype(self.dtype.numpy)

    def floor(self, x: Number) -> Number:
        return np.floor(x)

    def ceil(self, x: Number) -> Number:
        return np.ceil(x)

    def compare(self, op: str, a: Number, b: Number) -> Number:
        return {"eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}[op](a, b)

    def either(self, a: Number, b: Number) -> Number:
        return np.logical_or(a, b)

    def select(self, cond: Number, a: Number, b: Number) -> Number:
        return np.asarray(np.where(cond, a, b), self.dtype.numpy)

    def clamp(self, x: Number, lo: Number, hi: Number) -> Number:
        return np.maximum(np.minimum(x, hi), lo)


@dataclass(frozen=True)
class ValueArithmetic:
    """Arithmetic of floats on element values."""

    dtype: DType = f32

    def const(self, c: float) -> Number:
        return Const(c, self.dtype)

    def size(self, n: Dim) -> Number:
        return Const(n, self.dtype) if is_known(n) else Cast(Index(n), self.dtype)

    def floor(self, x: Number) -> Number:
        return Unary("floor", x)

    def ceil(self, x: Number) -> Number:
        return Unary("ceil", x)

    def compare(self, op: str, a: Number, b: Number) -> Number:
        return Binary(op, a, b)

    def either(self, a: Number, b: Number) -> Number:
        return Binary("or", a, b)

    def select(self, cond: Number, a: Number, b: Number) -> Number:
        return Select(cond, a, b)

    def clamp(self, x: Number, lo: Number, hi: Number) -> Number:
        return Binary("max", Binary("min", x, hi), lo)


Arithmetic: TypeAlias = Arrays | ValueArithmetic


@dataclass(frozen=True)
class ResizedAxis:
    """One resized axis: its number, sizes before and after, and the attributes."""

    k: int
    n_in: Dim
    n_out: Dim
    attrs: Attrs

    @property
    def roi(self) -> tuple[float, float]:
        roi = self.attrs.roi
        return (roi[self.k], roi[self.k + len(roi) // 2]) if roi else (0.0, 1.0)


@dataclass(frozen=True)
class Taps:
    """Which elements one output position reads, with which weights; ``outside``: it shows the extrapolation value."""

    indices: list[Number]
    weights: list[Number]
    outside: Number | None


def resized_axes(x_shape: Sequence[Dim], a: Attrs) -> list[ResizedAxis]:
    """The axes that are not copied as they are."""
    found = [ResizedAxis(k, n, m, a) for k, (n, m) in enumerate(zip(x_shape, a.sizes, strict=True))]
    return [ax for ax in found if not _is_identity(ax)]


def _is_identity(ax: ResizedAxis) -> bool:
    scale = ax.attrs.scales[ax.k] if ax.attrs.scales else 1.0
    crops = ax.attrs.coordinate_mode == "tf_crop_and_resize" and ax.roi != (0.0, 1.0)
    return ax.n_in == ax.n_out and scale == 1.0 and not crops


# --- coordinates ----------------------------------------------------------------------------------------------------


def _coordinate(m: Arithmetic, o: Number, ax: ResizedAxis) -> Number:
    """Where output position ``o`` lies in the input."""
    mode, half = ax.attrs.coordinate_mode, m.const(0.5)
    n_in, n_out = m.size(ax.n_in), m.size(ax.n_out)
    scale = m.const(ax.attrs.scales[ax.k]) if ax.attrs.scales else n_out / n_in
    if mode == "asymmetric":
        return o / scale
    if mode == "tf_half_pixel_for_nn":
        return m.select(m.compare("eq", scale, m.const(1.0)), o, (o + half) / scale)
    if mode in ("align_corners", "tf_crop_and_resize"):
        return _corner_coordinate(m, o, ax)
    centred = (o + half) / scale - half
    if mode == "pytorch_half_pixel":
        return _unless_single(m, ax, centred, m.const(0.0))
    if mode == "half_pixel_symmetric":
        adjustment = n_out / (scale * n_in)
        return n_in / m.const(2.0) * (m.const(1.0) - adjustment) + centred
    return centred


def _corner_coordinate(m: Arithmetic, o: Number, ax: ResizedAxis) -> Number:
    one = m.const(1.0)
    last_in, last_out = m.size(ax.n_in) - one, m.size(ax.n_out) - one
    if ax.attrs.coordinate_mode == "align_corners":
        if ax.attrs.scales:  # the exact length, of which the size is the whole part
            last_out = m.const(ax.attrs.scales[ax.k]) * m.size(ax.n_in) - one
        return _unless_single(m, ax, o * last_in / last_out, m.const(0.0)) if ax.n_out != 1 else o * m.const(0.0)
    start, end = ax.roi
    middle = o * m.const(0.0) + m.const(0.5 * (start + end)) * last_in
    if ax.n_out == 1:
        return middle
    spread = m.const(start) * last_in + o * m.const(end - start) * last_in / last_out
    return _unless_single(m, ax, spread, middle)


def _unless_single(m: Arithmetic, ax: ResizedAxis, x: Number, single: Number) -> Number:
    """``single`` when the output has one element, else ``x``."""
    if is_known(ax.n_out):
        return x if ax.n_out != 1 else x * m.const(0.0) + single
    return m.select(m.compare("gt", m.size(ax.n_out), m.const(1.0)), x, single)


def _outside(m: Arithmetic, x: Number, ax: ResizedAxis) -> Number | None:
    if ax.attrs.coordinate_mode != "tf_crop_and_resize":
        return None
    last = m.size(ax.n_in) - m.const(1.0)
    return m.either(m.compare("lt", x, m.const(0.0)), m.compare("gt", x, last))


def ratio(ax: ResizedAxis) -> tuple[int, int] | None:
    """``(p, q)`` with ``n_in / n_out == p / q``: numbers as they are, and symbolic sizes of which one is a multiple."""
    n_in, n_out = ax.n_in, ax.n_out
    if is_known(n_in) and is_known(n_out):
        return (n_in, n_out) if n_in and n_out > 1 else None
    factor = floordiv(n_out, n_in)
    return (1, factor) if known_at_least(factor, 1) and n_out == n_in * factor else None


def low_index(ax: ResizedAxis, o: Dim) -> Dim | None:
    """The element at or before output position ``o``'s coordinate (-1 at least) as an index expression.

    None where sizes or modes do not give one. Beside f32 coordinates it may differ from their floor by one where the
    coordinate is a whole number but for rounding; interpolation is continuous there.
    """
    mode, sizes = ax.attrs.coordinate_mode, ratio(ax)
    if sizes is None:
        return None
    p, q = sizes
    if ax.attrs.scales and np.float32(ax.attrs.scales[ax.k]) != np.float32(q) / np.float32(p):
        return None
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and ax.n_out != 1 and is_known(ax.n_out)):
        return floordiv((o * 2 + 1) * p - q, 2 * q)
    return floordiv(o * p, q) if mode == "asymmetric" else None


# --- taps -----------------------------------------------------------------------------------------------------------


def taps_of(m: Arithmetic, o: Number, ax: ResizedAxis, low: Number | None = None) -> Taps:
    """The taps of output position ``o``; ``low`` is the element at or before the coordinate where that is known."""
    x = _coordinate(m, o, ax)
    zero, one = m.const(0.0), m.const(1.0)
    last = m.size(ax.n_in) - one
    outside = _outside(m, x, ax)
    if ax.attrs.mode == "nearest":
        return Taps([m.clamp(_rounded(m, x, ax.attrs.nearest_mode), zero, last)], [], outside)
    if ax.attrs.mode == "linear":
        low = m.clamp(m.floor(x) if low is None else low, zero, last)
        # Behind the last element both taps are that one: neither weight is 0 then, since 0 times infinity is NaN.
        part = m.clamp(x - low, zero, one)
        return Taps([low, m.clamp(low + one, zero, last)], [one - part, part], outside)
    low = m.floor(x) if low is None else low
    places = [low - one, low, low + one, low + m.const(2.0)]
    weights = _cubic_weights(m, x - low, ax.attrs.cubic_coeff)
    if ax.attrs.exclude_outside:
        weights = _renormalised(m, places, weights, last)
    return Taps([m.clamp(p, zero, last) for p in places], weights, outside)


def _rounded(m: Arithmetic, x: Number, mode: str) -> Number:
    low = m.floor(x)
    if mode == "floor":
        return low
    if mode == "ceil":
        return m.ceil(x)
    goes_up = m.compare("gt" if mode == "round_prefer_floor" else "ge", x - low, m.const(0.5))
    return m.select(goes_up, low + m.const(1.0), low)


def _cubic_weights(m: Arithmetic, s: Number, coefficient: float) -> list[Number]:
    """The convolution kernel with parameter ``coefficient`` at distances 1+s, s, 1-s, 2-s."""
    a, one, two = m.const(coefficient), m.const(1.0), m.const(2.0)
    a2, a3, a4, a5, a8 = (
        m.const(c) for c in (coefficient + 2, coefficient + 3, 4 * coefficient, 5 * coefficient, 8 * coefficient)
    )

    def near(d: Number) -> Number:
        return (a2 * d - a3) * d * d + one

    def far(d: Number) -> Number:
        return ((a * d - a5) * d + a8) * d - a4

    return [far(s + one), near(s), near(one - s), far(two - s)]


def _renormalised(m: Arithmetic, places: list[Number], weights: list[Number], last: Number) -> list[Number]:
    zero = m.const(0.0)
    kept = [
        m.select(m.either(m.compare("lt", p, zero), m.compare("gt", p, last)), zero, w)
        for p, w in zip(places, weights, strict=True)
    ]
    total = kept[0] + kept[1] + kept[2] + kept[3]
    return [w / total for w in kept]
