"""Resize: interpolation along any axes, with ONNX's coordinate and rounding modes.

In: operand types, arrays or buffers. Out: the type rule, NumPy meaning and stages: one for nearest and for linear over
up to three axes (a tap per corner), else one per resized axis.
Not its business: sizes from scales (frontends), anti-aliasing.

Coordinates and weights are f32 whatever x is, as in ONNX Runtime. They are written once, over a small arithmetic with
two meanings: NumPy arrays for the reference, element values for the stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    IndexLike,
    Load,
    Select,
    Unary,
    Value,
    axes_for,
    syms,
)
from tilewright.core.diag import OpError
from tilewright.core.expr import Dim, floordiv
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import cast_to, check_dtype, narrowed, wide
from tilewright.ops.rules import Types, check_not_negative
from tilewright.ops.stages import Items, assign, write

MODES = ("nearest", "linear", "cubic")
COORDINATE_MODES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
MAX_CORNER_AXES = 3

Number: TypeAlias = Any  # an f32 array or an f32 value: whatever the arithmetic works on


class _Arrays:
    """f32 arithmetic on NumPy arrays; a position is all positions at once."""

    def const(self, c: float) -> Number:
        return np.float32(c)

    def size(self, n: Dim) -> Number:
        assert isinstance(n, int)
        return np.float32(n)

    def floor(self, x: Number) -> Number:
        return np.floor(x)

    def ceil(self, x: Number) -> Number:
        return np.ceil(x)

    def compare(self, op: str, a: Number, b: Number) -> Number:
        return {"eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}[op](a, b)

    def either(self, a: Number, b: Number) -> Number:
        return np.logical_or(a, b)

    def select(self, cond: Number, a: Number, b: Number) -> Number:
        return np.asarray(np.where(cond, a, b), np.float32)

    def clamp(self, x: Number, lo: Number, hi: Number) -> Number:
        return np.maximum(np.minimum(x, hi), lo)


class _Values:
    """f32 arithmetic on element values."""

    def const(self, c: float) -> Number:
        return Const(c, types.f32)

    def size(self, n: Dim) -> Number:
        return Const(n, types.f32) if isinstance(n, int) else Cast(Index(n), types.f32)

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


Arithmetic: TypeAlias = _Arrays | _Values


@dataclass(frozen=True)
class _Axis:
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
class _Taps:
    """Which elements one output position reads, with which weights; ``outside``: it shows the extrapolation value."""

    indices: list[Number]
    weights: list[Number]
    outside: Number | None


def _axes(x_shape: Sequence[Dim], a: Attrs) -> list[_Axis]:
    """The axes that are not copied as they are."""
    found = [_Axis(k, n, m, a) for k, (n, m) in enumerate(zip(x_shape, a.sizes, strict=True))]
    return [ax for ax in found if not _is_identity(ax)]


def _is_identity(ax: _Axis) -> bool:
    scale = ax.attrs.scales[ax.k] if ax.attrs.scales else 1.0
    crops = ax.attrs.coordinate_mode == "tf_crop_and_resize" and ax.roi != (0.0, 1.0)
    return ax.n_in == ax.n_out and scale == 1.0 and not crops


# --- coordinates ----------------------------------------------------------------------------------------------------


def _coordinate(m: Arithmetic, o: Number, ax: _Axis) -> Number:
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


def _corner_coordinate(m: Arithmetic, o: Number, ax: _Axis) -> Number:
    one = m.const(1.0)
    last_in, last_out = m.size(ax.n_in) - one, m.size(ax.n_out) - one
    if ax.attrs.coordinate_mode == "align_corners":
        return _unless_single(m, ax, o * last_in / last_out, m.const(0.0)) if ax.n_out != 1 else o * m.const(0.0)
    start, end = ax.roi
    middle = o * m.const(0.0) + m.const(0.5 * (start + end)) * last_in
    if ax.n_out == 1:
        return middle
    spread = m.const(start) * last_in + o * m.const(end - start) * last_in / last_out
    return _unless_single(m, ax, spread, middle)


def _unless_single(m: Arithmetic, ax: _Axis, x: Number, single: Number) -> Number:
    """``single`` when the output has one element, else ``x``."""
    if isinstance(ax.n_out, int):
        return x if ax.n_out != 1 else x * m.const(0.0) + single
    return m.select(m.compare("gt", m.size(ax.n_out), m.const(1.0)), x, single)


def _outside(m: Arithmetic, x: Number, ax: _Axis) -> Number | None:
    if ax.attrs.coordinate_mode != "tf_crop_and_resize":
        return None
    last = m.size(ax.n_in) - m.const(1.0)
    return m.either(m.compare("lt", x, m.const(0.0)), m.compare("gt", x, last))


# --- taps -----------------------------------------------------------------------------------------------------------


def _taps(m: Arithmetic, o: Number, ax: _Axis) -> _Taps:
    x = _coordinate(m, o, ax)
    zero, one = m.const(0.0), m.const(1.0)
    last = m.size(ax.n_in) - one
    outside = _outside(m, x, ax)
    if ax.attrs.mode == "nearest":
        return _Taps([m.clamp(_rounded(m, x, ax.attrs.nearest_mode), zero, last)], [], outside)
    if ax.attrs.mode == "linear":
        x = m.clamp(x, zero, last)
        low = m.floor(x)
        return _Taps([low, m.clamp(low + one, zero, last)], [one - (x - low), x - low], outside)
    low = m.floor(x)
    places = [low - one, low, low + one, low + m.const(2.0)]
    weights = _cubic_weights(m, x - low, ax.attrs.cubic_coeff)
    if ax.attrs.exclude_outside:
        weights = _renormalised(m, places, weights, last)
    return _Taps([m.clamp(p, zero, last) for p in places], weights, outside)


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


# --- reference ------------------------------------------------------------------------------------------------------


def _ref_resize(xs: Sequence[Array], a: Attrs) -> Array:
    x = xs[0]
    dtype = types.dtype_of(x.dtype)
    outside = np.zeros(a.sizes, np.bool_)
    y = x if a.mode == "nearest" else x.astype(wide(dtype).numpy)
    for ax in _axes(x.shape, a):
        assert isinstance(ax.n_out, int)
        taps = _taps(_Arrays(), np.arange(ax.n_out, dtype=np.float32), ax)
        parts = [np.take(y, i.astype(np.int64), ax.k) for i in taps.indices]
        line = [-1 if k == ax.k else 1 for k in range(x.ndim)]
        if a.mode == "nearest":
            y = parts[0]
        else:
            y = np.sum(
                [p * w.astype(y.dtype).reshape(line) for p, w in zip(parts, taps.weights, strict=True)], 0, y.dtype
            )
        if taps.outside is not None:
            outside = outside | taps.outside.reshape(line)
    y = narrowed(y, dtype)
    if outside.any():
        y = np.where(outside, np.asarray(a.extrapolation).astype(x.dtype), y)
    return y.copy()


# --- stages ---------------------------------------------------------------------------------------------------------


def _integer_ratio(ax: _Axis) -> bool:
    """True when nearest indices are exactly ``o * n_in // n_out``: the common upsampling by a whole factor."""
    if not (isinstance(ax.n_in, int) and isinstance(ax.n_out, int)) or ax.attrs.coordinate_mode == "tf_crop_and_resize":
        return False
    taps = _taps(_Arrays(), np.arange(ax.n_out, dtype=np.float32), ax)
    return bool(np.array_equal(taps.indices[0], np.arange(ax.n_out) * ax.n_in // ax.n_out))


def _position(o: Dim) -> Value:
    return Const(o, types.f32) if isinstance(o, int) else Cast(Index(o), types.f32)


def _index(i: Number) -> Value:
    return Cast(i, types.i64)


def _any_outside(plans: Sequence[_Taps]) -> Value | None:
    flags = [t.outside for t in plans if t.outside is not None]
    result: Value | None = None
    for flag in flags:
        result = flag if result is None else Binary("or", result, flag)
    return result


def _nearest(x: Buffer, at: Sequence[Dim], axes: Sequence[_Axis], a: Attrs) -> Value:
    index: list[IndexLike] = list(at)
    plans: list[_Taps] = []
    for ax in axes:
        if _integer_ratio(ax):
            index[ax.k] = floordiv(at[ax.k] * ax.n_in, ax.n_out)
            continue
        plans.append(_taps(_Values(), _position(at[ax.k]), ax))
        index[ax.k] = _index(plans[-1].indices[0])
    return _extrapolated(Load(x, tuple(index)), _any_outside(plans), a)


def _corners(x: Buffer, at: Sequence[Dim], axes: Sequence[_Axis], a: Attrs, real: types.DType) -> Value:
    """The weighted sum of one load per combination of the axes' taps."""
    plans = [_taps(_Values(), _position(at[ax.k]), ax) for ax in axes]
    total: Value | None = None
    for corner in product(*(range(len(t.indices)) for t in plans)):
        index: list[IndexLike] = list(at)
        weight: Value | None = None
        for ax, t, c in zip(axes, plans, corner, strict=True):
            index[ax.k] = _index(t.indices[c])
            weight = t.weights[c] if weight is None else weight * t.weights[c]
        term = cast_to(Load(x, tuple(index)), real)
        term = term if weight is None else term * cast_to(weight, real)
        total = term if total is None else total + term
    assert total is not None
    return _extrapolated(total, _any_outside(plans), a)


def _extrapolated(v: Value, outside: Value | None, a: Attrs) -> Value:
    return v if outside is None else Select(outside, Const(a.extrapolation, v.dtype), v)


def _resize_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    (x,), (out,) = ins, outs
    axes, real = _axes(x.shape, a), wide(x.dtype)
    if a.mode == "nearest":
        return assign(out, lambda at: _nearest(x, at, axes, a))
    if a.mode == "linear" and len(axes) <= MAX_CORNER_AXES:
        return assign(out, lambda at: cast_to(_corners(x, at, axes, a, real), out.dtype))
    return _axis_by_axis(x, out, axes, a, real)


def _axis_by_axis(x: Buffer, out: Buffer, axes: Sequence[_Axis], a: Attrs, real: types.DType) -> Items:
    """One stage per axis through temporaries; what lies outside is settled in the last stage, over all axes."""
    items: Items = []
    plain = a if a.coordinate_mode != "tf_crop_and_resize" else None
    for ax in axes:
        shape = (*x.shape[: ax.k], ax.n_out, *x.shape[ax.k + 1 :])
        temp = Buffer(f"{out.name}_axis{ax.k}", real, shape)
        loops = axes_for(shape)
        at = syms(loops)
        taps = _taps(_Values(), _position(at[ax.k]), ax)
        terms = [
            cast_to(Load(x, (*at[: ax.k], _index(i), *at[ax.k + 1 :])), real) * cast_to(w, real)
            for i, w in zip(taps.indices, taps.weights, strict=True)
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        items.append(write(temp, loops, at, total))
        x = temp

    def last(at: Sequence[Dim]) -> Value:
        v = cast_to(Load(x, tuple(at)), out.dtype)
        flags = [] if plain else [_taps(_Values(), _position(at[ax.k]), ax) for ax in axes]
        return _extrapolated(v, _any_outside(flags), a)

    return items + assign(out, last)


# --- the op ---------------------------------------------------------------------------------------------------------


def _infer_resize(ts: Types, a: Attrs) -> TensorType:
    x = ts[0]
    check_not_negative(a.sizes)
    if len(a.sizes) != x.rank or len(a.scales) not in (0, x.rank) or len(a.roi) not in (0, 2 * x.rank):
        raise OpError(f"sizes, scales and roi need one entry (roi: two) per axis of {x}")
    for value, allowed, name in (
        (a.mode, MODES, "mode"),
        (a.coordinate_mode, COORDINATE_MODES, "coordinate_mode"),
        (a.nearest_mode, NEAREST_MODES, "nearest_mode"),
    ):
        if value not in allowed:
            raise OpError(f"{name} {value!r} is none of {', '.join(allowed)}")
    if any(n == 0 and m != 0 for n, m in zip(x.shape, a.sizes, strict=True)):
        raise OpError(f"{x} has no elements to make {a.sizes} of")
    if any(s <= 0 for s in a.scales):
        raise OpError(f"scales {a.scales} must be positive")
    if a.mode != "nearest":
        check_dtype(x, types.FLOATS, "x")
    return x.with_shape(a.sizes)


def _resize_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((1, 2, 3, 4)).astype(np.float32)
    up, down = (1, 2, 6, 8), (1, 2, 2, 3)
    for mode in COORDINATE_MODES:
        yield Sample((x,), {"sizes": up, "mode": "linear", "coordinate_mode": mode})
        yield Sample((x,), {"sizes": down, "mode": "nearest", "coordinate_mode": mode})
    for mode in NEAREST_MODES:
        yield Sample((x,), {"sizes": (1, 2, 5, 7), "nearest_mode": mode})
        yield Sample((x,), {"sizes": up, "nearest_mode": mode, "coordinate_mode": "asymmetric"})
    for exclude in (False, True):
        yield Sample((x,), {"sizes": up, "mode": "cubic", "exclude_outside": exclude})
        yield Sample((x,), {"sizes": down, "mode": "cubic", "exclude_outside": exclude, "cubic_coeff": -0.5})
    crop = {"coordinate_mode": "tf_crop_and_resize", "roi": (0, 0, -0.2, 0.1, 1, 1, 0.8, 1.3), "extrapolation": 9.0}
    for m in MODES:
        yield Sample((x,), {"sizes": up, "mode": m, **crop})
    yield Sample((x,), {"sizes": (1, 2, 4, 5), "scales": (1, 1, 1.4, 1.3), "mode": "linear"})
    yield Sample((x[0, 0],), {"sizes": (1, 1), "mode": "linear", "coordinate_mode": "pytorch_half_pixel"})
    yield Sample((x,), {"sizes": (1, 3, 2, 2), "mode": "linear"})
    yield Sample((x[:0],), {"sizes": (0, 2, 6, 6), "mode": "cubic"})


resize = OpDef(
    "resize",
    ("x",),
    {
        "sizes": AttrDef("dims"),
        "scales": AttrDef("floats", ()),
        "mode": AttrDef("str", "nearest"),
        "coordinate_mode": AttrDef("str", "half_pixel"),
        "nearest_mode": AttrDef("str", "round_prefer_floor"),
        "cubic_coeff": AttrDef("float", -0.75),
        "exclude_outside": AttrDef("bool", False),
        "extrapolation": AttrDef("float", 0.0),
        "roi": AttrDef("floats", ()),
    },
    _infer_resize,
    _ref_resize,
    compute=_resize_compute,
    samples=_resize_samples,
    doc="x with other sizes, one per axis, by interpolation; attribute values are named as in ONNX. Scales, where "
    "given, are what coordinates are computed with (else size after / size before). roi (all starts, then all ends) "
    "and extrapolation are for tf_crop_and_resize.",
)
