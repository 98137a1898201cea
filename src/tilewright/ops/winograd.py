"""Convolution by Winograd's minimal filtering: fewer multiplications, from transformed tiles and transformed weights.

In: activations (N, ..., H, W, C) and weights that are transformed already (AH, AW, ..., C, K). Out: (N, ..., OH, OW,
K). Each of the last two spatial axes is cut into tiles of ``m`` results, or, where the weights have one element along
it (``A`` is 1), is left as it is. Axes before them ("leading", the depth of a volume) slide as in a plain convolution:
their taps are summed where the channels are, among transformed tiles. With ``groups``, ``C`` of the weights is one
group's, and K all results. Not its business: when it pays and whether its error is small enough
(``graph.forms.winograd``), loops (``tile``).

A tile of ``m x m`` results of an ``r x r`` kernel is ``A_t [(G w G_t) * (B_t d B)] A`` with ``d`` the ``a x a`` inputs
that it reads, ``a = m + r - 1`` (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015). The
matrices follow from ``a - 1`` points and infinity (Toom and Cook). The points decide the error: with 0, +-sqrt(1/2),
+-sqrt(2) that of F(4x4, 3x3) is a third of what 0, +-1, +-2 give; pairs of opposite points halve the additions.

Bytes with weights of i16 have no error at all. With whole points ``B_t`` is whole, and so is ``G`` when each of its
rows is multiplied by its denominator. ``A_t`` takes that back, and each of its rows then gives a known multiple of a
result. All sums are taken modulo 2**32, in which odd numbers have inverses; the power of two in the multiple is
shifted out at last. So a result is right where its product with that power fits into 32 bits, however large
transformed products are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd, lcm, prod
from typing import Any

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Axis, Binary, Buffer, Const, Fma, Inside, Load, Select, Stage, Value
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, ceildiv, floordiv, mod
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import axis_over, cast_to, check, check_equal_dims, check_rank, fold
from tilewright.ops.convolution import axes_named, padded_array, padded_load, taps_of, window_size
from tilewright.ops.samples import random

POINTS: Mapping[int, tuple[float, ...]] = {
    0: (),
    3: (0.0, 1.0, -1.0),
    4: (0.4, -0.4, 1.2, -1.2),
    5: (0.0, 0.5**0.5, -(0.5**0.5), 2.0**0.5, -(2.0**0.5)),
    6: (0.35, -0.35, 0.85, -0.85, 1.7, -1.7),
}
"""Interpolation points by how many a size needs, infinity aside; even numbers of them do without 0: pairs, as above.

Of the points in a grid of twentieths these give the least error, by ``graph.forms.winograd.expected_error``:
F(5x5, 3x3) 2.4 times that of F(4x4, 3x3), and F(3x3, 3x3) half of it.
"""
WHOLE_POINTS: Mapping[int, tuple[int, ...]] = {0: (), 3: (0, 1, -1), 4: (0, 1, -1, 2), 5: (0, 1, -1, 2, -2)}
"""The same for integers, for which small points matter: transformed numbers have to fit 16 bits."""
BYTES = (types.i8, types.u8)
SUM_BITS = types.i32.bits
BLOCK = 1024  # weights that are transformed at a time: cached, and too few for BLAS to start threads


BESIDE = 4
"""Tiles beside each other that are computed together where the width is known at run time only."""


@dataclass(frozen=True)
class Transforms:
    """The matrices of F(m, r) in one dimension: results ``a_t`` (m, a), weights ``g`` (a, r), inputs ``b_t`` (a, a).

    Row ``i`` of ``a_t`` gives ``times[i]`` times the result; with real points that is 1.
    """

    a_t: Array
    g: Array
    b_t: Array
    times: tuple[int, ...]


@cache
def transforms(m: int, r: int) -> Transforms:
    """F(m, r) in f64; ``m + r - 2`` is a key of ``POINTS``."""
    points = POINTS[m + r - 2]
    a = m + r - 1
    a_t, g, b_t = np.zeros((m, a)), np.zeros((a, r)), np.zeros((a, a))
    for j, p in enumerate(points):
        others = [q for k, q in enumerate(points) if k != j]
        a_t[:, j] = p ** np.arange(m)
        g[j] = p ** np.arange(r) / np.prod([p - q for q in others])
        b_t[j, :-1] = np.poly(others)[::-1]
    a_t[-1, -1] = g[-1, -1] = 1
    b_t[-1] = np.atleast_1d(np.poly(points))[::-1]
    a_t, g, b_t = (np.round(x, 12) + 0.0 for x in (a_t, g, b_t))
    return Transforms(a_t, g, b_t, (1,) * m)


@cache
def whole_transforms(m: int, r: int) -> Transforms:
    """F(m, r) of whole numbers; ``m + r - 2`` is a key of ``WHOLE_POINTS``."""
    points = WHOLE_POINTS[m + r - 2]
    a = m + r - 1
    a_t, g, b_t = np.zeros((m, a)), np.zeros((a, r)), np.zeros((a, a))
    denominators = [prod(p - q for k, q in enumerate(points) if k != j) for j, p in enumerate(points)]
    whole = lcm(*denominators)
    for j, p in enumerate(points):
        a_t[:, j] = p ** np.arange(m) * (whole // denominators[j])
        g[j] = p ** np.arange(r)
        b_t[j, :-1] = np.poly([q for k, q in enumerate(points) if k != j])[::-1]
    a_t[-1, -1], g[-1, -1] = whole, 1
    b_t[-1] = np.atleast_1d(np.poly(points))[::-1]
    common = [gcd(whole, *(int(x) for x in row)) for row in a_t]
    a_t /= np.array(common)[:, None]
    a_t, g, b_t = (np.rint(x) + 0.0 for x in (a_t, g, b_t))
    return Transforms(a_t, g, b_t, tuple([whole // n for n in common]))


def results_along(n_points: Dim, m: int) -> int:
    """How many results a tile has along an axis of ``n_points``: ``m``, or 1 where nothing is transformed."""
    return 1 if n_points == 1 else m


def transforms_of(u_shape: Sequence[Dim], m: int, is_whole: bool = False) -> tuple[Transforms, Transforms]:
    """The matrices along height and width for weights (AH, AW, ...) of tiles of ``m`` results."""
    (ah, mh), (aw, mw) = ((int(n), results_along(n, m)) for n in u_shape[:2])  # type: ignore[arg-type]
    made = whole_transforms if is_whole else transforms
    return made(mh, ah - mh + 1), made(mw, aw - mw + 1)


def transformed_weights(w: Array, m: int) -> Array:
    """Weights (K, C, ..., RH, RW) as (AH, AW, ..., C, K), computed in f64: floats as such, integers as i32."""
    k, c, *leading, rh, rw = w.shape
    made = transforms if w.dtype.kind == "f" else whole_transforms
    high, wide = (made(results_along(r, m), r).g for r in (rh, rw))
    both = np.kron(high, wide)  # (AH*AW, RH*RW): rows and columns at once
    taps = np.moveaxis(w.reshape(k, c, *leading, rh * rw), (-1, 0, 1), (0, -1, -2)).reshape(rh * rw, -1)
    result = np.empty((len(both), taps.shape[1]), w.dtype if w.dtype.kind == "f" else np.int32)
    with np.errstate(all="ignore"):
        for start in range(0, taps.shape[1], BLOCK):
            result[:, start : start + BLOCK] = both @ taps[:, start : start + BLOCK].astype(np.float64)
    return result.reshape(len(high), len(wide), *leading, c, k)


# --- linear maps as expressions --------------------------------------------------------------------------------------


def applied(matrix: Array, values: Sequence[Value]) -> list[Value]:
    """``matrix @ values`` with few operations: columns and rows that differ in signs only share their sums."""
    columns = _mirrored(matrix.T)
    if columns is not None:
        i, j = columns
        same = matrix[:, i] == matrix[:, j]
        total, difference = values[i] + values[j], values[i] - values[j]
        rest = [k for k in range(matrix.shape[1]) if k not in (i, j)]
        half = np.stack([np.where(same, matrix[:, i], 0), np.where(same, 0, matrix[:, i])], axis=1)
        return applied(np.concatenate([half, matrix[:, rest]], axis=1), [total, difference, *[values[k] for k in rest]])
    rows = _mirrored(matrix)
    if rows is None:
        return [_dot(row, values) for row in matrix]
    i, j = rows
    kept = np.where(matrix[i] == matrix[j], matrix[i], 0)
    turned = np.where(matrix[i] == matrix[j], 0, matrix[i])
    scale = turned[np.flatnonzero(turned)[-1]]
    if values[0].dtype.is_integer and (turned % scale).any():
        scale = 1.0
    even, odd = _dot(kept, values), _dot(turned / scale, values)
    rest = [k for k in range(len(matrix)) if k not in (i, j)]
    made = dict(zip(rest, applied(matrix[rest], values), strict=True)) if rest else {}
    made[i], made[j] = _plus(even, float(scale), odd), _plus(even, -float(scale), odd)
    return [made[k] for k in range(len(matrix))]


def _mirrored(rows: Array) -> tuple[int, int] | None:
    """Two rows that differ in the signs of some but not all of their numbers."""
    for i, x in enumerate(rows):
        for j in range(i + 1, len(rows)):
            y = rows[j]
            if np.allclose(np.abs(x), np.abs(y)) and not np.allclose(x, y) and not np.allclose(x, -y):
                return i, j
    return None


def _dot(row: Array, values: Sequence[Value]) -> Value:
    terms = [(float(c) if v.dtype.is_float else int(c), v) for c, v in zip(row, values, strict=True) if c != 0]
    terms.sort(key=lambda t: t[0] != 1)  # a sum starts with what needs no multiplication
    (c, v), *others = terms
    total = v if c == 1 else Const(c, v.dtype) * v
    for c, v in others:
        total = _plus(total, c, v)
    return total


def _plus(total: Value, c: float, v: Value) -> Value:
    if c in (1, -1):
        return total + v if c == 1 else total - v
    return Fma(v, Const(c, v.dtype), total) if v.dtype.is_float else total + Const(int(c), v.dtype) * v


def _divided(v: Value, n: int) -> Value:
    """``n`` times a result modulo 2**32, by ``n``: its odd part has an inverse, the rest is a shift."""
    shift = (n & -n).bit_length() - 1
    odd = n >> shift
    if odd != 1:
        v = v * Const(_signed(pow(odd, -1, 1 << SUM_BITS)), v.dtype)
    return Binary("shr", v, Const(shift, v.dtype)) if shift else v


def _signed(n: int) -> int:
    return n - (1 << SUM_BITS) if n >> (SUM_BITS - 1) else n


def _one_of(at: Dim, values: Sequence[Value]) -> Value:
    """``values[at]``; decided when the code is made, where ``at`` is a number then."""
    chosen = values[-1]
    for k in reversed(range(len(values) - 1)):
        chosen = Select(Inside((k - at,)), values[k], chosen)
    return chosen


# --- the op ----------------------------------------------------------------------------------------------------------


def _kernel_sizes(u: Sequence[Dim], m: int, points: Mapping[int, Sequence[float]]) -> tuple[int, int]:
    """Taps along height and width."""
    for n in u[:2]:
        check(
            is_known(n) and n - 1 in points and 0 < results_along(n, m) <= n,
            lambda: f"weights transformed to {u[0]} x {u[1]} don't give tiles of {m}",
            f"give sides of {' or '.join(str(p + 1) for p in points)} and a smaller tile",
        )
    high, wide = (n - results_along(n, m) + 1 for n in u[:2] if is_known(n))
    return high, wide


@dataclass(frozen=True)
class _Leading:
    """How the taps of the leading spatial axes slide: one entry per axis."""

    taps: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[Dim, Dim], ...]


def _leading(u_shape: Sequence[Dim], a: Attrs) -> _Leading:
    taps = tuple(u_shape[2:-2])
    ones = (1,) * len(taps)
    return _Leading(taps, tuple(a.strides or ones), tuple(a.dilations or ones), tuple(a.pads[:-2]))


def _infer(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    x, u = ts
    check_rank(x, 4, "the input", 5)
    check_rank(u, x.rank, "the weight", x.rank)
    is_whole = x.dtype in BYTES and u.dtype is types.i16
    check(
        is_whole or (x.dtype is u.dtype and x.dtype in (types.f32, types.f64)),
        lambda: f"{x.dtype} and {u.dtype} are not one float, nor a byte and i16",
    )
    check(len(a.pads) == x.rank - 2, lambda: f"pads has {len(a.pads)} entries for {x.rank - 2} spatial axes")
    for name in ("strides", "dilations"):
        check(
            len(a[name]) in (0, x.rank - 4) and all(n >= 1 for n in a[name]),
            lambda: f"{name} {a[name]} are not {x.rank - 4} positive numbers",  # noqa: B023
        )
    kernel = _kernel_sizes(u.shape, a.tile, WHOLE_POINTS if is_whole else POINTS)
    check(a.groups >= 1, lambda: f"groups {a.groups} must be positive")
    check(mod(u.shape[-1], a.groups) == 0, lambda: f"{u.shape[-1]} output channels don't fill {a.groups} groups")
    check_equal_dims(x.shape[-1], u.shape[-2] * a.groups, lambda: f"channels of {x} and of {u}, {a.groups} groups")
    lead = _leading(u.shape, a)
    sizes = [
        window_size(*given)
        for given in zip(x.shape[1:-3], lead.taps, lead.strides, lead.pads, lead.dilations, strict=True)
    ]
    sizes += [window_size(n, r, 1, p, 1) for n, r, p in zip(x.shape[-3:-1], kernel, a.pads[-2:], strict=True)]
    return TensorType(types.i32 if is_whole else x.dtype, (x.shape[0], *sizes, u.shape[-1]))


def _compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], attrs: Attrs) -> tuple[Stage, ...]:
    """Columns of the input, their rows, a product per point, columns of the results, their rows.

    Tiles overlap in ``r - 1`` columns of the input: those are transformed once. With sizes known at run time only,
    a row of tiles is filled up to whole runs of ``BESIDE``, so that a block of them has a size that is a number.
    Points and products of each group are matrices of their own. Leading axes stand beside the channels in the
    points: what a tap shifts along is contiguous, and the tiles of an image are one axis.
    """
    (x, u), (out,) = ins, outs
    (ah, aw), dtype = u.shape[:2], u.dtype
    assert is_known(ah) and is_known(aw)
    mh, mw = results_along(ah, attrs.tile), results_along(aw, attrs.tile)
    is_whole, sums = not x.dtype.is_float, out.dtype
    (high, wide), lead = transforms_of(u.shape, attrs.tile, is_whole), _leading(u.shape, attrs)
    n_batch, n_y, n_x = x.shape[0], ceildiv(out.shape[-3], mh), ceildiv(out.shape[-2], mw)
    if mw > 1 and not (is_known(n_y) and is_known(n_x)):
        # A whole number of runs, so that a block of tiles has a size that is a number.
        n_x = ceildiv(n_x, BESIDE) * BESIDE
    depth, width = u.shape[-2], floordiv(u.shape[-1], attrs.groups)
    n, ty, tx, c, k, channel, result = (
        axis_over(e, s)
        for e, s in zip((n_batch, n_y, n_x, depth, width, x.shape[-1], out.shape[-1]), "nyxckef", strict=True)
    )
    groups = axes_named((attrs.groups,), "g") if attrs.groups > 1 else ()
    group = [g.sym for g in groups]
    at, to, row, column = (
        axis_over(e, s) for e, s in zip((ah, aw, mh, mw * n_x + aw - mw), ("u", "v", "i", "w"), strict=True)
    )
    planes, images, taps = (
        axes_named(e, s) for e, s in ((x.shape[1:-3], "z"), (out.shape[1:-3], "d"), (lead.taps, "t"))
    )
    plane, image = [z.sym for z in planes], [z.sym for z in images]

    # Vertically first: neighbouring tiles share the columns of their input.
    columns = Buffer("columns", dtype, (n_batch, *x.shape[1:-3], n_y, ah, column.extent, x.shape[-1]))
    inputs = [
        cast_to(
            _padded(x, (n.sym, *plane, ty.sym * mh + i, column.sym, channel.sym), out.shape, (mh, mw), attrs), dtype
        )
        for i in range(ah)
    ]
    axes: tuple[Axis, ...] = (n, *planes, ty, at, column, channel)
    first = Stage((columns,), axes, tuple(s.sym for s in axes), (_one_of(at.sym, applied(high.b_t, inputs)),))

    # Points outermost: for each there is one product of matrices, of all tiles by the channels.
    points = Buffer("points", dtype, (ah, aw, *[g.extent for g in groups], n_batch, n_y, n_x, *x.shape[1:-3], depth))
    own = _of_group(group, c.sym, depth)
    inputs = [Load(columns, (n.sym, *plane, ty.sym, at.sym, tx.sym * mw + j, own)) for j in range(aw)]
    axes = (at, to, *groups, n, ty, tx, *planes, c)
    second = Stage((points,), axes, tuple(s.sym for s in axes), (_one_of(to.sym, applied(wide.b_t, inputs)),))

    products = Buffer("products", sums, (*points.shape[: 5 + len(groups)], *out.shape[1:-3], width))
    axes = (at, to, *groups, n, ty, tx, *images, k)
    slides = zip(image, taps, lead.strides, lead.dilations, lead.pads, strict=True)
    position = [z * s + t.sym * d - lo for z, t, s, d, (lo, _) in slides]
    tile = [x.sym for x in axes[: 5 + len(groups)]]
    slid = range(len(tile), len(tile) + len(taps))
    operand = padded_load(points, (*tile, *position, c.sym), slid, lead.pads, Const(0, dtype))
    weight = Load(u, (at.sym, to.sym, *(t.sym for t in taps), c.sym, _of_group(group, k.sym, width)))
    term = cast_to(operand, sums) * cast_to(weight, sums)
    third = fold(products, axes, tuple(s.sym for s in axes), term, (*taps, c), "add", Const(0, sums))

    rows = Buffer("rows", sums, (n_batch, *out.shape[1:-3], n_y, n_x, mh, aw, out.shape[-1]))
    of, within = ([floordiv(result.sym, width)], mod(result.sym, width)) if groups else ([], result.sym)
    results = [Load(products, (p, to.sym, *of, n.sym, ty.sym, tx.sym, *image, within)) for p in range(ah)]
    axes = (n, *images, ty, tx, row, to, result)
    fourth = Stage((rows,), axes, tuple(s.sym for s in axes), (_one_of(row.sym, applied(high.a_t, results)),))

    oy, ox = axis_over(out.shape[-3], "oy"), axis_over(out.shape[-2], "ox")
    place = (n.sym, *image, floordiv(oy.sym, mh), floordiv(ox.sym, mw), mod(oy.sym, mh))
    results = [Load(rows, (*place, p, result.sym)) for p in range(aw)]
    axes = (n, *images, oy, ox, result)
    made = applied(wide.a_t, results)
    if is_whole:
        made = [
            _one_of(place[-1], [_divided(v, above * beside) for above in high.times])
            for v, beside in zip(made, wide.times, strict=True)
        ]
    last = Stage((out,), axes, tuple(s.sym for s in axes), (_one_of(mod(ox.sym, mw), made),))
    return (first, second, *third, fourth, last)


def _of_group(group: Sequence[Sym], channel: Sym, n: Dim) -> Dim:
    """A channel of a group among all, ``n`` of each group."""
    return sum((g * n for g in group), channel)


def _padded(x: Buffer, at: tuple[Dim, ...], sizes: Sequence[Dim], tile: tuple[int, int], a: Attrs) -> Value:
    """The input at a place of the padded image, which reaches to the end of the last tile."""
    guards: list[Dim] = []
    index = list(at)
    for d, m, (lo, hi) in zip((-3, -2), tile, a.pads[-2:], strict=True):
        index[d] = at[d] - lo
        if lo != 0:
            guards.append(index[d])
        if hi != 0 or mod(sizes[d], m) != 0:
            guards.append(x.shape[d] - 1 - index[d])
    load = Load(x, tuple(index))
    return Select(Inside(tuple(guards)), load, Const(a.outside, x.dtype)) if guards else load


def _reference(xs: Sequence[Array], a: Attrs) -> Array:
    """Group by group."""
    x, u = (np.split(v, a.groups, axis=-1) for v in xs)
    return np.concatenate([_of_one_group(pair, a) for pair in zip(x, u, strict=True)], axis=-1)


def _of_one_group(xs: Sequence[Array], a: Attrs) -> Array:
    """In f64, which holds the integers exactly, tap by tap of the leading axes."""
    is_whole = xs[0].dtype.kind != "f"
    x, u = (v.astype(np.float64) for v in xs)
    lead = _leading(u.shape, a)
    pads = [(int(lo), int(hi)) for lo, hi in lead.pads]  # type: ignore[arg-type]
    grown = padded_array(np.moveaxis(x, -1, 1), [*pads, (0, 0), (0, 0)], 0)
    total: Any = 0.0
    for tap, part in taps_of(grown, [*u.shape[2:-2], 1, 1], [*lead.strides, 1, 1], [*lead.dilations, 1, 1]):
        planes = np.moveaxis(part, 1, -1)
        images = planes.reshape(-1, *planes.shape[-3:])
        weights = np.moveaxis(u, (0, 1), (-4, -3))[tap[:-2]]
        results = _tiled(images, weights, a, is_whole)
        total += results.reshape(*planes.shape[:-3], *results.shape[1:])
    if not is_whole:
        return np.asarray(total).astype(xs[0].dtype)
    high, wide = (t.times for t in transforms_of(u.shape, a.tile, is_whole))
    n_y, n_x = total.shape[-3:-1]
    times = np.outer(np.resize(high, n_y), np.resize(wide, n_x)).astype(np.int64)[..., None]
    powers = times & -times
    inverse = np.vectorize(lambda n: pow(int(n), -1, 1 << SUM_BITS))(times // powers)
    steps = (total.astype(np.int64) & 0xFFFFFFFF) * inverse.astype(np.uint64).astype(np.int64)
    return np.asarray((steps & 0xFFFFFFFF).astype(np.uint32).view(np.int32) // powers.astype(np.int32), np.int32)


def _tiled(x: Array, u: Array, a: Attrs, is_whole: bool) -> Array:
    """Images (N, H, W, C) with weights (AH, AW, C, K), tile by tile."""
    (ah, aw), (mh, mw) = u.shape[:2], (results_along(n, a.tile) for n in u.shape[:2])
    high, wide = transforms_of(u.shape, a.tile, is_whole)
    (top, bottom), (left, right) = a.pads[-2:]
    n_y, n_x = x.shape[1] + top + bottom - (ah - mh), x.shape[2] + left + right - (aw - mw)
    t_y, t_x = -(-n_y // mh), -(-n_x // mw)
    grown = np.full((x.shape[0], max(mh * t_y + ah - mh, 0), max(mw * t_x + aw - mw, 0), x.shape[3]), float(a.outside))
    cut = x[:, max(-top, 0) :, max(-left, 0) :][:, : grown.shape[1] - max(top, 0), : grown.shape[2] - max(left, 0)]
    kept = cut[:, : n_y + ah - mh - max(top, 0) - max(bottom, 0), : n_x + aw - mw - max(left, 0) - max(right, 0)]
    grown[:, max(top, 0) :, max(left, 0) :][:, : kept.shape[1], : kept.shape[2]] = kept
    out = np.zeros((x.shape[0], mh * t_y, mw * t_x, u.shape[3]))
    with np.errstate(all="ignore"):
        for y, z in np.ndindex(t_y, t_x):
            d = grown[:, mh * y : mh * y + ah, mw * z : mw * z + aw]
            v = np.einsum("ui,vj,nijc->uvnc", high.b_t, wide.b_t, d, optimize=True)
            p = np.einsum("iu,jv,uvnk->nijk", high.a_t, wide.a_t, v @ u, optimize=True)
            out[:, mh * y : mh * y + mh, mw * z : mw * z + mw] = p
    return out[:, :n_y, :n_x]


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for m, size, pads in ((2, (5, 6), ((1, 1), (1, 1))), (4, (9, 6), ((1, 0), (0, 2))), (4, (6, 6), ((0, 0), (-1, 1)))):
        w = random(rng, (5, 3, 3, 3))
        yield Sample((random(rng, (2, *size, 3)), transformed_weights(w, m)), {"tile": m, "pads": pads})
    for kernel, m in (((1, 3), 4), ((3, 1), 2), ((5, 3), 2), ((1, 4), 3)):
        u = transformed_weights(random(rng, (5, 3, *kernel)), m)
        yield Sample((random(rng, (2, 6, 7, 3)), u), {"tile": m, "pads": ((1, 0), (0, 2))})
    u = transformed_weights(random(rng, (6, 2, 3, 3)), 2)
    yield Sample((random(rng, (2, 5, 6, 6)), u), {"tile": 2, "pads": ((1, 1), (1, 1)), "groups": 3})
    w = random(rng, (5, 3, 3, 3, 3))
    around = {"tile": 2, "pads": ((1, 1), (1, 1), (0, 1))}
    yield Sample((random(rng, (2, 4, 5, 6, 3)), transformed_weights(w, 2)), around)
    given = {"tile": 2, "pads": ((0, 2), (1, 1), (1, 1)), "strides": (2,), "dilations": (2,)}
    yield Sample((random(rng, (1, 7, 6, 5, 3)), transformed_weights(w[:, :, :2], 2)), given)
    for dtype, kernel, m in ((np.uint8, (3, 3), 4), (np.int8, (3, 3), 2), (np.uint8, (1, 3), 3), (np.int8, (3, 2), 4)):
        info = np.iinfo(dtype)
        bytes_ = rng.integers(info.min, info.max + 1, (2, 9, 7, 6)).astype(dtype)
        u = transformed_weights(rng.integers(-127, 128, (5, 6, *kernel)).astype(np.int8), m)
        yield Sample((bytes_, u.astype(np.int16)), {"tile": m, "pads": ((1, 0), (0, 2)), "outside": 7})


winograd_conv = OpDef(
    "winograd_conv", ("x", "u"), {
        "tile": AttrDef("int"), "pads": AttrDef("pads"),
        "strides": AttrDef("ints", ()), "dilations": AttrDef("ints", ()), "outside": AttrDef("int", 0),
        "groups": AttrDef("int", 1),
    }, _infer, _reference, _compute,
    traits=frozenset({Trait.CONTRACTION}), samples=_samples,
    doc="A convolution in tiles of transformed inputs and weights, fewer multiplications; strides and "
    "dilations are those of the axes before the last two; along these padding reads ``outside``, else 0.",
)  # fmt: skip
