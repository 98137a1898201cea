"""Resize: interpolation along any axes, with ONNX's coordinate and rounding modes.

In: operand types, arrays or buffers. Out: the type rule, NumPy meaning and stages: small tables of indices and weights
per axis, then one stage for nearest, else one per axis. (Axis by axis, all but the last are vectors of whole rows:
doubling 64x64 planes linearly took a third of the time of one stage with a tap per corner.)
Not its business: coordinates and weights (``ops.sampling``), sizes from scales (frontends), anti-aliasing.

Where sizes are numbers, or one a whole multiple of the other, the common modes need no table: indices are the output
position times a ratio, divided in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Buffer, Cast, Const, Index, IndexLike, Load, Select, Value, axes_for, syms
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, floordiv, maximum, minimum
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import cast_to, check_dtype, narrowed, wide
from tilewright.ops.rules import Types, check_not_negative
from tilewright.ops.sampling import (
    Arrays,
    ResizedAxis,
    ValueArithmetic,
    low_index,
    precision,
    ratio,
    resized_axes,
    taps_of,
)
from tilewright.ops.stages import Items, assign, write

MODES = ("nearest", "linear", "cubic")
COORDINATE_MODES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

# --- reference ------------------------------------------------------------------------------------------------------


def _ref_resize(xs: Sequence[Array], a: Attrs) -> Array:
    x = xs[0]
    dtype = types.dtype_of(x.dtype)
    outside = np.zeros(a.sizes, np.bool_)
    y = x if a.mode == "nearest" else x.astype(wide(dtype).numpy)
    arithmetic = Arrays(precision(a.mode, dtype))
    for ax in resized_axes(x.shape, a):
        assert is_known(ax.n_out)
        taps = taps_of(arithmetic, arithmetic.positions(ax.n_out), ax)
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

SURROGATE = 64  # stands for a symbolic size when a whole factor is looked for


def _nearest_index(ax: ResizedAxis) -> Callable[[Dim], Dim] | None:
    """The nearest element as an index expression, where one of two forms gives exactly what f32 coordinates give."""
    sizes = ratio(ax)
    if sizes is None or ax.attrs.coordinate_mode == "tf_crop_and_resize":
        return None
    p, q = sizes
    size = (ax.n_in, ax.n_out) if is_known(ax.n_in) else (SURROGATE * p, SURROGATE * q)
    assert is_known(size[1])
    positions, arithmetic = np.arange(size[1]), Arrays()
    found = taps_of(arithmetic, arithmetic.positions(size[1]), replace(ax, n_in=size[0], n_out=size[1])).indices[0]
    if np.array_equal(found, positions * p // q):
        return lambda o: floordiv(o * p, q)
    if np.array_equal(found, (2 * positions + 1) * p // (2 * q)):
        return lambda o: floordiv((o * 2 + 1) * p, 2 * q)
    return None


@dataclass(frozen=True)
class _AxisReads:
    """How one axis is read: per tap the index at an output position, and its weight; when that lies outside."""

    k: int
    indices: Sequence[Callable[[Dim], IndexLike]]
    weights: Sequence[Callable[[Dim], Value]] = ()
    outside: Callable[[Dim], Value] | None = None


def _planned(ax: ResizedAxis, prefix: str, real: types.DType) -> tuple[Items, _AxisReads]:
    """Stages that fill the tables of an axis, and how to read them."""
    m = ValueArithmetic(precision(ax.attrs.mode, real))
    # A whole ratio gives the place as an index expression, which needs no table and no gather.
    nearest = _nearest_index(ax) if ax.attrs.mode == "nearest" else None
    if nearest is not None:
        return [], _AxisReads(ax.k, [nearest])
    if ax.attrs.mode != "nearest" and low_index(ax, 0) is not None:
        return _placed(ax, prefix, real)
    items: Items = []

    def table(name: str, dtype: types.DType, value: Callable[[Value], Value]) -> Callable[[Dim], Value]:
        buffer = Buffer(f"{prefix}_{name}{ax.k}", dtype, (ax.n_out,))
        items.extend(assign(buffer, lambda at: value(Cast(Index(at[0]), m.dtype))))
        return lambda o: buffer[o]

    def index(tap: int) -> Callable[[Dim], Value]:
        return table(f"index{tap}_", types.i64, lambda o: Cast(taps_of(m, o, ax).indices[tap], types.i64))

    def weight(tap: int) -> Callable[[Dim], Value]:
        return table(f"weight{tap}_", real, lambda o: cast_to(taps_of(m, o, ax).weights[tap], real))

    def is_outside(o: Value) -> Value:
        flag = taps_of(m, o, ax).outside
        assert isinstance(flag, Value)
        return flag

    # How many taps there are does not depend on the place.
    sketch = taps_of(m, m.const(0), ax)
    indices = [index(t) for t in range(len(sketch.indices))]
    weights = [weight(t) for t in range(len(sketch.weights))]
    outside = None if sketch.outside is None else table("outside", types.bool_, is_outside)
    return items, _AxisReads(ax.k, indices, weights, outside)


def _placed(ax: ResizedAxis, prefix: str, real: types.DType) -> tuple[Items, _AxisReads]:
    """A plan whose indices are index expressions; only its weights are in tables."""
    # The first of the taps, counted from the one at or below the place: two of a line, four of a cubic.
    first = 0 if ax.attrs.mode == "linear" else -1
    last = ax.n_in - 1
    m = ValueArithmetic(precision(ax.attrs.mode, real))
    items: Items = []

    def low(o: Dim) -> Dim:
        found = low_index(ax, o)
        assert found is not None
        return found

    def index(tap: int) -> Callable[[Dim], Dim]:
        # Both taps of a line move together at the lower border, where the place itself is moved inside.
        if first == 0:
            return lambda o: minimum(maximum(low(o), 0) + tap, last)
        return lambda o: minimum(maximum(low(o) + (first + tap), 0), last)

    def weight(tap: int) -> Callable[[Dim], Value]:
        buffer = Buffer(f"{prefix}_weight{tap}_{ax.k}", real, (ax.n_out,))

        def of(at: Sequence[Dim]) -> Value:
            return cast_to(taps_of(m, m.size(at[0]), ax, m.size(low(at[0]))).weights[tap], real)

        items.extend(assign(buffer, of))
        return lambda o: buffer[o]

    n_taps = 2 if first == 0 else 4
    plan = _AxisReads(ax.k, [index(t) for t in range(n_taps)], [weight(t) for t in range(n_taps)])
    return items, plan


def _read(x: Buffer, at: Sequence[Dim], plans: Sequence[_AxisReads], real: types.DType) -> Value:
    """The element that nearest plans name, or the weighted sum of the taps of one plan."""
    index: list[IndexLike] = list(at)
    for p in plans:
        index[p.k] = p.indices[0](at[p.k])
    if not any(p.weights for p in plans):
        return Load(x, tuple(index))
    (p,) = plans
    total: Value | None = None
    for place, weight in zip(p.indices, p.weights, strict=True):
        index[p.k] = place(at[p.k])
        term = cast_to(Load(x, tuple(index)), real) * weight(at[p.k])
        total = term if total is None else total + term
    assert total is not None
    return total


def _extrapolated(v: Value, at: Sequence[Dim], plans: Sequence[_AxisReads], a: Attrs) -> Value:
    for p in plans:
        if p.outside is not None:
            v = Select(p.outside(at[p.k]), Const(a.extrapolation, v.dtype), v)
    return v


def _resize_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    (x,), (out,) = ins, outs
    real = wide(x.dtype)
    items: Items = []
    plans: list[_AxisReads] = []
    for ax in resized_axes(x.shape, a):
        tables, plan = _planned(ax, out.name, real)
        items += tables
        plans.append(plan)
    together = plans if a.mode == "nearest" or len(plans) <= 1 else []
    for p in plans if not together else []:
        y = Buffer(f"{out.name}_axis{p.k}", real, (*x.shape[: p.k], out.shape[p.k], *x.shape[p.k + 1 :]))
        loops = axes_for(y.shape)
        items.append(write(y, loops, syms(loops), _read(x, syms(loops), [p], real)))
        x = y

    def element(at: Sequence[Dim]) -> Value:
        value = cast_to(_read(x, at, together, real), out.dtype)
        return _extrapolated(value, at, plans, a)

    return items + assign(out, element)


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
    for mode in ("linear", "cubic"):
        yield Sample((x.astype(np.float64),), {"sizes": (1, 2, 5, 7), "mode": mode})


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
