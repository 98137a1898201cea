"""Pooling over windows of one to three spatial axes.

In: activations as N, C, spatial ("NCHW") or N, spatial, C ("NHWC"). Out: the same layout.
Not its business: global pools (reductions), and rounding of sizes up, which frontends turn into padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    Inside,
    Load,
    Select,
    Stage,
    Unary,
    Value,
)
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, bounds, ceildiv, maximum, minimum, substitute
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, DType, TensorType
from tilewright.ops.common import (
    FLOATS,
    NUMERIC,
    cast_to,
    check,
    check_dtype,
    check_rank,
    fold,
    lowest,
    narrowed,
    wide,
    widened,
)
from tilewright.ops.convolution import (
    axes_named,
    channel_axis,
    check_window,
    padded_array,
    padded_load,
    placed,
    spatial_axes,
    taps_of,
    window_positions,
    window_size,
)
from tilewright.ops.samples import random
from tilewright.ops.stages import as_i64

REDUCES = frozenset({Trait.REDUCTION})


def _infer(ts: Sequence[TensorType], a: Attrs, dtypes: Sequence[DType]) -> TensorType:
    (x,) = ts
    check_dtype(x, dtypes)
    check_rank(x, 3, most=5)
    dilations = _dilations(a)
    check_window(x.rank, a, "kernel", "strides")
    check(
        len(dilations) == x.rank - 2 and all(d >= 1 for d in dilations),
        lambda: f"dilations {dilations} must be positive",
    )
    pads = total_pads(a)
    sizes = [x.shape[k] for k in spatial_axes(a.layout, x.rank)]
    spatial = [window_size(*v) for v in zip(sizes, a.kernel, a.strides, pads, dilations, strict=True)]
    return x.with_shape(placed(x.shape[0], x.shape[channel_axis(a.layout, x.rank)], spatial, a.layout))


def _dilations(a: Attrs) -> tuple[int, ...]:
    dilations: tuple[int, ...] = a.dilations
    return dilations or (1,) * len(a.kernel)


def total_pads(a: Attrs) -> tuple[tuple[Dim, Dim], ...]:
    """The padding of every spatial axis with the end padding that never counts."""
    extra = a.get("ceil_pads") or (0,) * len(a.pads)
    return tuple((lo, hi + more) for (lo, hi), more in zip(a.pads, extra, strict=True))


class _Window:
    """The loops of a pool: ``axes`` of the result, ``taps`` of the window, and where they read and write."""

    def __init__(self, x: Buffer, out: Buffer, a: Attrs) -> None:
        rank = len(x.shape)
        self.spatial = spatial_axes(a.layout, rank)
        self.pads = total_pads(a)
        (n,), (c,) = axes_named((x.shape[0],), "n"), axes_named((x.shape[channel_axis(a.layout, rank)],), "c")
        self.at = axes_named([out.shape[k] for k in self.spatial], "p")
        self.taps = axes_named(a.kernel, "k")
        self.axes: tuple[Axis, ...] = (n, c, *self.at) if a.layout == "NCHW" else (n, *self.at, c)
        self.position = window_positions([p.sym for p in self.at], [k.sym for k in self.taps], a, _dilations(a))
        self.batch, self.channel = n.sym, c.sym
        self.read = placed(n.sym, c.sym, self.position, a.layout)
        self.write = placed(n.sym, c.sym, [p.sym for p in self.at], a.layout)


# --- max ------------------------------------------------------------------------------------------------------------


def _compute_max(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    (x,), (out,) = ins, outs
    w = _Window(x, out, a)
    element = padded_load(x, w.read, w.spatial, w.pads, lowest(x.dtype))
    return fold(out, w.axes, w.write, element, w.taps, "max", lowest(x.dtype))


def _windows(x: Array, a: Attrs, outside: Any) -> Array:
    """All windows of an array in its layout as (tap, N, C, spatial)."""
    x = padded_array(x if a.layout == "NCHW" else np.moveaxis(x, -1, 1), total_pads(a), outside)  # type: ignore[arg-type]
    return np.stack([part for _, part in taps_of(x, a.kernel, a.strides, _dilations(a))])


def _in_layout(x: Array, a: Attrs) -> Array:
    return x if a.layout == "NCHW" else np.moveaxis(x, 1, -1)


def _max_of(xs: Sequence[Array], a: Attrs) -> Array:
    x = widened(xs[0])
    least = lowest(types.dtype_of(x.dtype)).value
    return narrowed(_in_layout(np.max(_windows(x, a, least), axis=0), a), types.dtype_of(xs[0].dtype))


def _infer_indices(ts: Sequence[TensorType], a: Attrs) -> tuple[TensorType, TensorType]:
    values = _infer(ts, a, NUMERIC)
    return values, values.with_dtype(types.i64)


def _flat_index(
    shape: Sequence[Dim], batch: Dim, channel: Dim, position: Sequence[Dim], a: Attrs, *, column_major: bool = False
) -> Dim:
    """Where an element lies in the whole N, C, spatial tensor; ``column_major``: the first spatial axis is fastest."""
    sizes = [shape[k] for k in spatial_axes(a.layout, len(shape))]
    pairs = list(zip(sizes, position, strict=True))
    flat: Dim = batch * shape[channel_axis(a.layout, len(shape))] + channel
    for size in sizes if column_major else ():
        flat = flat * size
    if not column_major:
        for size, at in pairs:
            flat = flat * size + at
        return flat
    inner: Dim = 0
    for size, at in reversed(pairs):
        inner = inner * size + at
    return flat + inner


def _compute_indices(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    """The maxima, then how far behind its window's start the first element lies that is the maximum, then where.

    The first is so along rows, also where places are counted along columns: those follow from the place along rows.
    """
    (x,), (top, at) = ins, outs
    w = _Window(x, top, a)
    inside = Inside(tuple(g for k, p in zip(w.spatial, w.position, strict=True) for g in (p, x.shape[k] - 1 - p)))
    first = [substitute(p, dict.fromkeys((k.sym for k in w.taps), 0)) for p in w.position]
    stages = _compute_max(ins, (top,), a)
    element, most = Load(x, w.read), Load(top, w.write)
    chosen: Value = Binary("eq", element, most)
    if x.dtype.is_float:
        chosen = Binary("or", chosen, Unary("isnan", element))
    for by_columns in (False, True) if a.column_major else (False,):
        start, flat = (
            _flat_index(x.shape, w.batch, w.channel, p, a, column_major=by_columns) for p in (first, w.position)
        )
        behind = Buffer(f"{at.name}_behind{'_along' * by_columns}", _holds(bounds(flat - start)[1]), at.shape)
        none = Const(behind.dtype.max, behind.dtype)
        steps, least = Cast(Index(flat - start), behind.dtype), Load(behind, w.write)
        stages += fold(behind, w.axes, w.write, Select(inside, Select(chosen, steps, none), none), w.taps, "min", none)
        place = Select(Binary("eq", least, none), Const(types.i64.max, types.i64), Index(start) + as_i64(least))
        chosen = Binary("eq", steps, least)
    return (*stages, Stage((at,), w.axes, w.write, (place,)))


def _holds(most: int | None) -> DType:
    return types.i32 if most is not None and most < types.i32.max else types.i64


def _indices_of(xs: Sequence[Array], a: Attrs) -> tuple[Array, Array]:
    x = widened(xs[0])
    shape = x.shape
    n, c, *sizes = shape if a.layout == "NCHW" else (shape[0], shape[-1], *shape[1:-1])
    ids = _in_layout(np.arange(x.size, dtype=np.int64).reshape(n, c, *sizes), a)
    values = _windows(x, a, lowest(types.dtype_of(x.dtype)).value)
    places = _windows(ids, a, types.i64.max)
    top = np.max(values, axis=0)
    is_top = (values == top) | ((values != values) & (top != top))
    at = np.min(np.where(is_top, places, types.i64.max), axis=0)
    if a.column_major:
        along = np.arange(x.size).reshape(n, c, *sizes[::-1]).transpose(0, 1, *range(1 + len(sizes), 1, -1))
        is_place = at < x.size
        at[is_place] = along.ravel()[at[is_place]]
    return narrowed(_in_layout(top, a), types.dtype_of(xs[0].dtype)), _in_layout(at, a)


# --- average --------------------------------------------------------------------------------------------------------


def counts_at(a: Attrs, sizes: Sequence[Dim], at: Sequence[Dim]) -> list[Dim]:
    """How many elements of the window at ``at`` count, per axis."""
    counts: list[Dim] = []
    pairs = zip(sizes, at, a.kernel, a.strides, a.pads, _dilations(a), strict=True)
    for k, (size, i, kernel, stride, (lo, hi), dilation) in enumerate(pairs):
        start = i * stride - lo
        if a.count_include_pad:
            is_whole = not a.ceil_pads or a.ceil_pads[k] == 0
            counts.append(kernel if is_whole else minimum(kernel, ceildiv(size + hi - start, dilation)))
        elif (lo, hi) == (0, 0) and (not a.ceil_pads or a.ceil_pads[k] == 0):
            counts.append(kernel)
        else:
            counts.append(minimum(kernel, ceildiv(size - start, dilation)) - maximum(0, ceildiv(-1 * start, dilation)))
    return counts


def _infer_avg(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    check(a.divisor >= 0, lambda: f"divisor {a.divisor} must be positive, or 0 for the number of elements")
    check(len(a.ceil_pads) in (0, len(a.pads)), lambda: f"ceil_pads {a.ceil_pads} must have an entry per spatial axis")
    return _infer(ts, a, FLOATS)


def _compute_avg(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    (x,), (out,) = ins, outs
    w = _Window(x, out, a)
    acc = wide(x.dtype)
    element = cast_to(padded_load(x, w.read, w.spatial, w.pads, Const(0, x.dtype)), acc)
    total = Buffer(f"{out.name}_sum", acc, out.shape)
    count: Dim = 1
    for n in [a.divisor] if a.divisor else counts_at(a, [x.shape[k] for k in w.spatial], [p.sym for p in w.at]):
        count = count * n
    divisor: Value = Const(count, acc) if is_known(count) else Cast(Index(count), acc)
    mean = cast_to(Load(total, w.write) / divisor, out.dtype)
    return *fold(total, w.axes, w.write, element, w.taps, "add", Const(0, acc)), Stage((out,), w.axes, w.write, (mean,))


def _avg_of(xs: Sequence[Array], a: Attrs) -> Array:
    x = widened(xs[0])
    total = np.sum(_windows(x, a, 0), axis=0, dtype=x.dtype)
    sizes = [x.shape[k] for k in spatial_axes(a.layout, x.ndim)]
    count = np.ones(total.shape[2:], x.dtype)
    for at in np.ndindex(*total.shape[2:]):
        count[at] = a.divisor or np.prod(np.array(counts_at(a, sizes, at), np.int64))
    with np.errstate(all="ignore"):
        return narrowed(_in_layout(np.asarray(total / count), a), types.dtype_of(xs[0].dtype))


# --- definitions ----------------------------------------------------------------------------------------------------


def pool_attrs(n: int, layout: str = "NCHW", kernel: int = 2, **given: Any) -> dict[str, Any]:
    """Attributes of a plain pool over ``n`` axes, with changes."""
    return {"kernel": (kernel,) * n, "strides": (1,) * n, "pads": ((0, 0),) * n, "layout": layout, **given}


def _max_samples(rng: np.random.Generator, **more: Any) -> Iterator[Sample]:
    x = random(rng, (2, 3, 5, 4))
    yield Sample((x,), pool_attrs(2, strides=(2, 1), pads=((1, 1), (0, 1)), dilations=(1, 2), **more))
    yield Sample((np.moveaxis(x, 1, -1).copy(),), pool_attrs(2, "NHWC", 3, pads=((1, 1), (1, 1)), **more))
    yield Sample((random(rng, (1, 2, 6)),), pool_attrs(1, strides=(2,), **more))
    yield Sample((random(rng, (1, 1, 3, 3, 3)),), pool_attrs(3, pads=((0, 1),) * 3, **more))
    yield Sample(
        (np.array([[[1, np.nan, 2, -np.inf, -np.inf, 3]]], np.float32),), pool_attrs(1, pads=((1, 1),), **more)
    )
    yield Sample((random(rng, (1, 2, 5), types.i32),), pool_attrs(1, pads=((1, 0),), **more))
    yield Sample((random(rng, (0, 2, 4)),), pool_attrs(1, **more))


def _indices_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _max_samples(rng)
    yield Sample((random(rng, (2, 2, 3, 4), types.i32, (0, 2)),), pool_attrs(2, column_major=True))


def _avg_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = random(rng, (2, 3, 5, 4))
    padded: dict[str, Any] = {"strides": (2, 1), "pads": ((1, 1), (1, 0))}
    yield Sample((x,), pool_attrs(2, **padded))
    yield Sample((x,), pool_attrs(2, count_include_pad=True, **padded))
    yield Sample((x,), pool_attrs(2, divisor=3, **padded))
    yield Sample((x,), pool_attrs(2, kernel=3, strides=(2, 2), pads=((0, 0),) * 2, ceil_pads=(0, 1)))
    yield Sample(
        (x,), pool_attrs(2, kernel=3, strides=(2, 2), pads=((0, 0),) * 2, ceil_pads=(0, 1), count_include_pad=True)
    )
    yield Sample((np.moveaxis(x, 1, -1).copy(),), pool_attrs(2, "NHWC", **padded))
    yield Sample((random(rng, (1, 2, 7)),), pool_attrs(1, kernel=3, pads=((1, 2),), dilations=(2,)))
    yield Sample((random(rng, (0, 2, 4)),), pool_attrs(1))


WINDOW = {"kernel": AttrDef("ints"), "strides": AttrDef("ints"), "pads": AttrDef("pads")}
LAYOUT = {"layout": AttrDef("str", "NCHW")}
DILATIONS = {"dilations": AttrDef("ints", ())}

max_pool = OpDef(
    "max_pool", ("x",), {**WINDOW, **DILATIONS, **LAYOUT}, lambda ts, a: _infer(ts, a, NUMERIC), _max_of, _compute_max,
    traits=REDUCES, samples=_max_samples, doc="The maximum of every window; padding counts as the lowest value.",
)  # fmt: skip
max_pool_indices = OpDef(
    "max_pool_indices", ("x",), {**WINDOW, **DILATIONS, **LAYOUT, "column_major": AttrDef("bool", False)},
    _infer_indices, _indices_of, _compute_indices, traits=REDUCES, samples=_indices_samples,
    doc="The maximum of every window and its flat position in the whole N, C, spatial tensor.",
)  # fmt: skip
avg_pool = OpDef(
    "avg_pool", ("x",),
    {
        **WINDOW, "count_include_pad": AttrDef("bool", False), "divisor": AttrDef("int", 0),
        "ceil_pads": AttrDef("ints", ()), **DILATIONS, **LAYOUT,
    },
    _infer_avg, _avg_of, _compute_avg, traits=REDUCES, samples=_avg_samples,
    doc="The mean of every window over the elements that count; ceil_pads is end padding that never counts.",
)  # fmt: skip
