"""Ops that keep or surround a box of elements: slice, pad, trilu.

In: operand types, arrays or buffers. Out: each op's type rule, NumPy meaning and one-stage index map.
Not its business: boxes whose place is data (``ops.index``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core.compute import Buffer, Const, Inside, Load, Select, Value
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known, known_under
from tilewright.core.expr import Dim, ceildiv, is_nonneg, maximum, minimum, mod
from tilewright.core.floors import simplest
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.rules import MOVEMENT, Types
from tilewright.ops.stages import Items, assign, copy_from

# --- slice, pad -----------------------------------------------------------------------------------------------------


def _infer_slice(ts: Types, a: Attrs) -> TensorType:
    if not len(a.starts) == len(a.stops) == len(a.steps) == ts[0].rank:
        raise OpError(f"starts, stops and steps need one entry per axis of {ts[0]}")
    if 0 in a.steps:
        raise OpError("a step is zero")
    shape: list[Dim] = []
    for n, start, stop, step in zip(ts[0].shape, a.starts, a.stops, a.steps, strict=True):
        length = ceildiv(stop - start, step) if step > 0 else ceildiv(start - stop, -step)
        length = max(length, 0) if is_known(length) else simplest(length)
        last = start + (length - 1) * step
        if length != 0 and any(known_under(e, 0) for e in (start, last, n - 1 - start, n - 1 - last)):
            raise OpError(
                f"slice {start}:{stop}:{step} leaves the dimension {n}", remedy="clamp the bounds to the shape first"
            )
        shape.append(length)
    return ts[0].with_shape(shape)


def _ref_slice(xs: Sequence[Array], a: Attrs) -> Array:
    """A stop of -1 or less under a negative step means "before the first element", unlike NumPy's."""
    at = tuple(
        slice(start, None if step < 0 and stop < 0 else stop, step)
        for start, stop, step in zip(a.starts, a.stops, a.steps, strict=True)
    )
    return xs[0][at].copy()


def _slice_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((5, 6)).astype(np.float32)
    for starts, stops, steps in [
        ((1, 0), (4, 6), (1, 1)),
        ((4, 5), (-1, 0), (-1, -2)),
        ((0, 1), (5, 6), (2, 3)),
        ((2, 0), (2, 6), (1, 1)),
    ]:
        yield Sample((x,), {"starts": starts, "stops": stops, "steps": steps})
    yield Sample((rng.integers(0, 9, (7,)),), {"starts": (6,), "stops": (1,), "steps": (-2,)})
    yield Sample((np.zeros((0, 2), np.float32),), {"starts": (0, 0), "stops": (0, 1), "steps": (1, 1)})


slice_ = OpDef(
    "slice",
    ("x",),
    {"starts": AttrDef("dims"), "stops": AttrDef("dims"), "steps": AttrDef("ints")},
    _infer_slice,
    _ref_slice,
    compute=lambda ins, outs, a: copy_from(
        outs[0], ins[0], lambda at: [s + i * d for i, s, d in zip(at, a.starts, a.steps, strict=True)]
    ),
    traits=MOVEMENT,
    samples=_slice_samples,
    doc="Elements start, start+step, ... before stop, per axis. Bounds are clamped to the shape already: a stop of -1 "
    "under a negative step means one before the first element.",
)

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _infer_pad(ts: Types, a: Attrs) -> TensorType:
    x, value = ts
    if len(a.pads) != x.rank:
        raise OpError(f"pads has {len(a.pads)} pairs for {x}")
    if value.rank or value.dtype is not x.dtype:
        raise OpError(f"value must be a 0-d {x.dtype}, not {value}")
    if a.mode not in PAD_MODES:
        raise OpError(f"mode {a.mode!r} is none of {', '.join(PAD_MODES)}")
    shape = [n + lo + hi for n, (lo, hi) in zip(x.shape, a.pads, strict=True)]
    if any(known_under(d, 0) for d in shape):
        raise OpError(f"negative pads {a.pads} remove more than {x} has")
    if a.mode != "constant" and any(n == 0 and d != 0 for n, d in zip(x.shape, shape, strict=True)):
        raise OpError(f"mode {a.mode!r} has no elements to copy in {x}")
    return x.with_shape(shape)


def _source(i: Dim, n: Dim, pads: tuple[Dim, Dim], mode: str) -> Dim:
    """The position in a dimension of ``n`` that padded position ``i`` copies."""
    lo, hi = pads
    j = i - lo
    if mode == "constant" or (lo == 0 and hi == 0):
        return j
    if mode == "wrap":
        return mod(j, n)
    if mode == "edge":
        return maximum(minimum(j, n - 1), 0)
    if n == 1:
        return 0
    period = maximum((n - 1) * 2, 1)
    once = is_nonneg(n - 1 - lo) and is_nonneg(n - 1 - hi)
    folded = maximum(j, j * -1) if once else mod(j, period)
    return minimum(folded, period - folded)


def _ref_pad(xs: Sequence[Array], a: Attrs) -> Array:
    x, value = xs
    if a.mode == "constant":
        out = np.full([n + lo + hi for n, (lo, hi) in zip(x.shape, a.pads, strict=True)], value[()], x.dtype)
        put = tuple(
            slice(max(lo, 0), max(lo, 0) + max(0, n + min(lo, 0) + min(hi, 0)))
            for n, (lo, hi) in zip(x.shape, a.pads, strict=True)
        )
        take = tuple(slice(max(-lo, 0), max(n + min(hi, 0), 0)) for n, (lo, hi) in zip(x.shape, a.pads, strict=True))
        out[put] = x[take]
        return out
    for axis, (lo, hi) in enumerate(a.pads):
        n = x.shape[axis]
        i = np.arange(n + lo + hi) - lo
        if a.mode == "wrap":
            i = i % max(n, 1)
        elif a.mode == "edge":
            i = np.clip(i, 0, max(n - 1, 0))
        else:
            i = np.abs((i + n - 1) % max(2 * (n - 1), 1) - (n - 1)) if n > 1 else np.zeros_like(i)
        x = np.take(x, i, axis)
    return x


def _pad_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    x, value = ins

    def element(at: Sequence[Dim]) -> Value:
        index = tuple(_source(i, n, p, a.mode) for i, n, p in zip(at, x.shape, a.pads, strict=True))
        guards: list[Dim] = []
        if a.mode == "constant":
            for j, n, (lo, hi) in zip(index, x.shape, a.pads, strict=True):
                guards += [j] if not is_nonneg(lo * -1) else []
                guards += [n - 1 - j] if not is_nonneg(hi * -1) else []
        return Select(Inside(tuple(guards)), Load(x, index), value[()]) if guards else Load(x, index)

    return assign(outs[0], element)


def _pad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, zero = rng.standard_normal((3, 4)).astype(np.float32), np.array(0.5, np.float32)
    yield Sample((x, zero), {"pads": ((1, 0), (2, 1))})
    yield Sample((x, zero), {"pads": ((0, -1), (-2, 3))})
    yield Sample((x, zero), {"pads": ((4, -4), (0, 0))})
    for mode in ("reflect", "edge", "wrap"):
        yield Sample((x, zero), {"pads": ((2, 1), (0, 3)), "mode": mode})
        yield Sample((x, zero), {"pads": ((5, 0), (-1, 7)), "mode": mode})
    yield Sample((x[:1], zero), {"pads": ((2, 2), (0, 0)), "mode": "reflect"})
    yield Sample((np.zeros((0, 2), np.int64), np.array(7)), {"pads": ((1, 2), (0, 0))})


pad = OpDef(
    "pad",
    ("x", "value"),
    {"pads": AttrDef("pads"), "mode": AttrDef("str", "constant")},
    _infer_pad,
    _ref_pad,
    compute=_pad_compute,
    traits=MOVEMENT,
    samples=_pad_samples,
    doc="Adds (before, after) elements per axis; negative counts crop. Outside is value (constant), the nearest "
    "element (edge), the mirror image without the border element, folded as often as needed (reflect), or the other "
    "end (wrap).",
)

# --- trilu, one_hot, space and depth --------------------------------------------------------------------------------


def _infer_trilu(ts: Types, a: Attrs) -> TensorType:
    if ts[0].rank < 2:
        raise OpError(f"needs a matrix or a batch of them, not {ts[0]}")
    if not ts[0].dtype.is_float and not math.isfinite(a.fill):
        raise OpError(f"fill {a.fill} is no {ts[0].dtype}")
    return ts[0]


def _trilu_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    def element(at: Sequence[Dim]) -> Value:
        above = at[-1] - at[-2] - a.k
        kept = above if a.upper else above * -1
        return Select(Inside((kept,)), Load(ins[0], tuple(at)), Const(a.fill, ins[0].dtype))

    return assign(outs[0], element)


def _trilu_of(xs: Sequence[Array], a: Attrs) -> Array:
    inside = np.ones(xs[0].shape, np.bool_)
    kept = np.triu(inside, a.k) if a.upper else np.tril(inside, a.k)
    return np.where(kept, xs[0], xs[0].dtype.type(a.fill))


def _trilu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    for k, upper in [(0, True), (0, False), (1, True), (-1, False), (9, True), (-9, True)]:
        yield Sample((x,), {"k": k, "upper": upper})
    yield Sample((np.zeros((0, 3), np.bool_),), {"k": 0, "upper": True})
    yield Sample((x,), {"k": 0, "upper": False, "fill": float("-inf")})


trilu = OpDef(
    "trilu",
    ("x",),
    {"k": AttrDef("dim", 0), "upper": AttrDef("bool", True), "fill": AttrDef("float", 0.0)},
    _infer_trilu,
    _trilu_of,
    compute=_trilu_compute,
    traits=MOVEMENT,
    samples=_trilu_samples,
    doc="The part of each matrix on and above (upper) or below diagonal k; ``fill`` elsewhere.",
)
