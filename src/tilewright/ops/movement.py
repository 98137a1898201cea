"""Ops that copy elements to other places: views, permutations, joining, repetition, space and depth.

In: operand types, arrays or buffers. Out: each op's type rule, NumPy meaning and one-stage index map.
Not its business: slices and padding (``ops.window``), indices that are data (``ops.index``), and where a copy is fused
away (``partition``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core.compute import Buffer, Inside, Load, Select, Value, axes_for, syms
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known, known_under
from tilewright.core.expr import Dim, Sym, floordiv, minimum, mod
from tilewright.core.floors import simplest
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.shapes import reshape_index, surely_differ, surely_unfit
from tilewright.core.types import Array, TensorType, product
from tilewright.ops.common import check_axes, check_axis
from tilewright.ops.rules import MOVEMENT, Types, check_not_negative, shape_text
from tilewright.ops.stages import Items, assign, copy_from, write

MAX_INTERLEAVED = 4
"""Operands whose elements alternate in the result: of more, less than a quarter of each vector is used."""

# --- reshape, transpose, expand -------------------------------------------------------------------------------------


def _infer_reshape(ts: Types, a: Attrs) -> TensorType:
    check_not_negative(a.shape)
    n_in, n_out = ts[0].n_elements, product(a.shape)
    if surely_differ(n_in, n_out):
        raise OpError(
            f"{ts[0]} has {n_in} elements and can't take the shape {shape_text(a.shape)} of {n_out}",
            remedy="give a shape with the same number of elements",
        )
    return ts[0].with_shape(a.shape)


def _reshape_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for old, new in [((2, 6), (3, 4)), ((4,), (2, 1, 2)), ((1, 1), ()), ((0, 3), (3, 0, 2)), ((2, 3, 4), (2, 12))]:
        yield Sample((rng.standard_normal(old).astype(np.float32),), {"shape": new})
    yield Sample((rng.integers(0, 9, (6, 4, 5)),), {"shape": (8, 3, 5)})


reshape = OpDef(
    "reshape",
    ("x",),
    {"shape": AttrDef("dims")},
    _infer_reshape,
    lambda xs, a: xs[0].reshape(a.shape),
    compute=lambda ins, outs, a: copy_from(outs[0], ins[0], lambda i: reshape_index(ins[0].shape, outs[0].shape, i)),
    traits=MOVEMENT | {Trait.VIEW},
    samples=_reshape_samples,
    doc="The same elements in row-major order under another shape.",
)


def _infer_transpose(ts: Types, a: Attrs) -> TensorType:
    if sorted(a.perm) != list(range(ts[0].rank)):
        raise OpError(f"perm {a.perm} is not a permutation of the axes of {ts[0]}")
    return ts[0].with_shape([ts[0].shape[p] for p in a.perm])


def _transpose_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, perm in [
        ((2, 3), (1, 0)),
        ((2, 3, 4), (2, 0, 1)),
        ((), ()),
        ((0, 2), (1, 0)),
        ((1, 2, 3, 2), (0, 2, 3, 1)),
    ]:
        yield Sample((rng.standard_normal(shape).astype(np.float32),), {"perm": perm})


transpose = OpDef(
    "transpose",
    ("x",),
    {"perm": AttrDef("ints")},
    _infer_transpose,
    lambda xs, a: np.transpose(xs[0], a.perm).copy(),
    compute=lambda ins, outs, a: copy_from(outs[0], ins[0], lambda i: [i[a.perm.index(k)] for k in range(len(i))]),
    traits=MOVEMENT,
    samples=_transpose_samples,
    doc="Axis k of the result is axis perm[k] of x.",
)


def _infer_expand(ts: Types, a: Attrs) -> TensorType:
    old = ts[0].shape
    lead = len(a.shape) - len(old)
    check_not_negative(a.shape)
    if lead < 0 or any(surely_unfit(n, m) for n, m in zip(old, a.shape[max(lead, 0) :], strict=False)):
        raise OpError(f"{ts[0]} does not broadcast to {shape_text(a.shape)}")
    return ts[0].with_shape(a.shape)


def _expand_index(x: Buffer, shape: Sequence[Dim], at: Sequence[Dim]) -> list[Dim]:
    lead = len(at) - len(x.shape)
    return [_stretched(n, m, i) for n, m, i in zip(x.shape, shape[lead:], at[lead:], strict=True)]


def _stretched(old: Dim, new: Dim, i: Dim) -> Dim:
    """Where the operand has element ``i``; a symbolic size that is not surely the new one may turn out to be 1."""
    if old == 1:
        return 0
    return i if old == new or is_known(old) else minimum(i, old - 1)


def _expand_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for old, new in [((3, 1), (3, 4)), ((2,), (3, 2)), ((), (2, 2)), ((1, 3), (0, 3)), ((1,), (1,))]:
        yield Sample((rng.standard_normal(old).astype(np.float32),), {"shape": new})


expand = OpDef(
    "expand",
    ("x",),
    {"shape": AttrDef("dims")},
    _infer_expand,
    lambda xs, a: np.broadcast_to(xs[0], a.shape).copy(),
    compute=lambda ins, outs, a: copy_from(outs[0], ins[0], lambda i: _expand_index(ins[0], outs[0].shape, i)),
    traits=MOVEMENT,
    samples=_expand_samples,
    doc="NumPy's broadcast_to; a symbolic dimension that turns out to be 1 stretches too.",
)

# --- concat, tile, reverse, roll ------------------------------------------------------------------------------------


def _infer_concat(ts: Types, a: Attrs) -> TensorType:
    if not ts:
        raise OpError("takes at least one operand")
    first = ts[0]
    check_axis(a.axis, first.rank)
    total: Dim = 0
    for t in ts:
        if t.dtype is not first.dtype or t.rank != first.rank:
            raise OpError(f"operands must agree in dtype and rank: {first} and {t}")
        if any(k != a.axis and surely_differ(t.shape[k], first.shape[k]) for k in range(t.rank)):
            raise OpError(f"operands must agree outside of axis {a.axis}: {first} and {t}")
        total = total + t.shape[a.axis]
    shape = [_more_static([t.shape[k] for t in ts]) for k in range(first.rank)]
    shape[a.axis] = simplest(total)
    return first.with_shape(shape)


def _more_static(dims: Sequence[Dim]) -> Dim:
    """Of dimensions that must be equal, a number where there is one, else the first."""
    return next((d for d in dims if is_known(d)), dims[0])


def _concat_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    if 1 < len(ins) <= MAX_INTERLEAVED and all(n == 1 for x in ins for n in x.shape[a.axis :]):
        return _interleaved(ins, outs[0], a.axis)
    items: Items = []
    offset: Dim = 0
    for x in ins:
        axes = axes_for(x.shape)
        at = syms(axes)
        index: list[Dim] = list(at)
        index[a.axis] = at[a.axis] + offset
        items.append(write(outs[0], axes, index, Load(x, at)))
        offset = offset + x.shape[a.axis]
    return items


def _interleaved(ins: tuple[Buffer, ...], out: Buffer, axis: int) -> Items:
    """Each operand has one element where all of them lie beside each other: they are written together, in order."""

    def value(at: tuple[Sym, ...]) -> Value:
        index = tuple(0 if k == axis else i for k, i in enumerate(at))
        *first, last = (Load(x, index) for x in ins)
        v: Value = last
        for k, x in reversed(list(enumerate(first))):
            v = Select(Inside((k - at[axis],)), x, v)
        return v

    return assign(out, value)


def _concat_samples(rng: np.random.Generator) -> Iterator[Sample]:
    cases = [([(2, 3), (1, 3)], 0), ([(2, 3), (2, 1), (2, 2)], 1), ([(4, 1)], 0), ([(0, 2), (3, 2)], 0)]
    cases += [([(5, 1)] * 2, 1), ([(3, 1)] * 4, 1), ([(3, 1)] * 5, 1)]
    for shapes, axis in cases:
        yield Sample(tuple(rng.standard_normal(s).astype(np.float32) for s in shapes), {"axis": axis})


concat = OpDef(
    "concat",
    ("*xs",),
    {"axis": AttrDef("int")},
    _infer_concat,
    lambda xs, a: np.concatenate(xs, a.axis),
    compute=_concat_compute,
    traits=MOVEMENT,
    samples=_concat_samples,
    doc="Operands one after another along an axis; a stage for each, or one where their elements alternate.",
)


def _infer_tile(ts: Types, a: Attrs) -> TensorType:
    if len(a.repeats) != ts[0].rank or any(known_under(r, 0) for r in a.repeats):
        raise OpError(f"repeats {a.repeats} must have one count >= 0 per axis of {ts[0]}")
    return ts[0].with_shape([n * r for n, r in zip(ts[0].shape, a.repeats, strict=True)])


def _tile_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, repeats in [((2, 3), (2, 1)), ((2,), (3,)), ((1, 2, 1), (2, 2, 3)), ((2, 2), (0, 1)), ((), ())]:
        yield Sample((rng.standard_normal(shape).astype(np.float32),), {"repeats": repeats})


tile = OpDef(
    "tile",
    ("x",),
    {"repeats": AttrDef("dims")},
    _infer_tile,
    lambda xs, a: np.tile(xs[0], a.repeats).reshape([n * r for n, r in zip(xs[0].shape, a.repeats, strict=True)]),
    compute=lambda ins, outs, a: copy_from(
        outs[0],
        ins[0],
        lambda at: [i if r == 1 or n == 0 else mod(i, n) for i, n, r in zip(at, ins[0].shape, a.repeats, strict=True)],
    ),
    traits=MOVEMENT,
    samples=_tile_samples,
    doc="x repeated repeats[k] times along axis k.",
)


def _infer_axes(ts: Types, a: Attrs) -> TensorType:
    check_axes(a.axes, ts[0].rank)
    return ts[0]


def _reverse_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axes in [((2, 3), (1,)), ((2, 3), (0, 1)), ((4,), ()), ((0, 2), (0,)), ((2, 1, 3), (2, 0))]:
        yield Sample((rng.standard_normal(shape).astype(np.float32),), {"axes": axes})


reverse = OpDef(
    "reverse",
    ("x",),
    {"axes": AttrDef("ints")},
    _infer_axes,
    lambda xs, a: np.flip(xs[0], a.axes).copy(),
    compute=lambda ins, outs, a: copy_from(
        outs[0],
        ins[0],
        lambda at: [n - 1 - i if k in a.axes else i for k, (i, n) in enumerate(zip(at, ins[0].shape, strict=True))],
    ),
    traits=MOVEMENT,
    samples=_reverse_samples,
    doc="Elements in opposite order along axes.",
)


def _infer_roll(ts: Types, a: Attrs) -> TensorType:
    check_axes(a.axes, ts[0].rank)
    if len(a.shifts) != len(a.axes):
        raise OpError(f"{len(a.shifts)} shifts for {len(a.axes)} axes")
    return ts[0]


def _rolled(i: Dim, n: Dim, k: int, a: Attrs) -> Dim:
    return mod(i - a.shifts[a.axes.index(k)], n) if k in a.axes and n != 0 else i


def _roll_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, shifts, axes in [
        ((5,), (2,), (0,)),
        ((2, 3), (-1, 4), (0, 1)),
        ((2, 3), (1,), (1,)),
        ((0,), (1,), (0,)),
    ]:
        yield Sample((rng.standard_normal(shape).astype(np.float32),), {"shifts": shifts, "axes": axes})


roll = OpDef(
    "roll",
    ("x",),
    {"shifts": AttrDef("dims"), "axes": AttrDef("ints")},
    _infer_roll,
    lambda xs, a: np.roll(xs[0], a.shifts, a.axes) if a.axes else xs[0],
    compute=lambda ins, outs, a: copy_from(
        outs[0], ins[0], lambda at: [_rolled(i, n, k, a) for k, (i, n) in enumerate(zip(at, ins[0].shape, strict=True))]
    ),
    traits=MOVEMENT,
    samples=_roll_samples,
    doc="Elements moved by shifts along axes; what leaves at one end enters at the other.",
)

# --- space and depth -------------------------------------------------------------------------------------------------


def _check_block(t: TensorType, a: Attrs) -> None:
    if t.rank != 4:
        raise OpError(f"takes a 4-D tensor in NCHW order, not {t}")
    if a.block < 1 or a.mode not in ("DCR", "CRD"):
        raise OpError(f"block {a.block} must be positive and mode {a.mode!r} DCR or CRD")


def _divided(n: Dim, by: int, what: str) -> Dim:
    if is_known(n) and n % by:
        raise OpError(f"{what} {n} is not a multiple of {by}")
    return floordiv(n, by)


def _infer_depth_to_space(ts: Types, a: Attrs) -> TensorType:
    _check_block(ts[0], a)
    n, c, h, w = ts[0].shape
    return ts[0].with_shape((n, _divided(c, a.block**2, "the channel count"), h * a.block, w * a.block))


def _ref_depth_to_space(xs: Sequence[Array], a: Attrs) -> Array:
    (n, c, h, w), b = xs[0].shape, a.block
    deep = c // (b * b)
    if a.mode == "DCR":
        parts = xs[0].reshape(n, b, b, deep, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = xs[0].reshape(n, deep, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, deep, h * b, w * b)


def _depth_index(at: Sequence[Dim], deep: Dim, a: Attrs) -> list[Dim]:
    (n, c, y, x), b = at, a.block
    corner = mod(y, b) * b + mod(x, b)
    return [n, corner * deep + c if a.mode == "DCR" else c * (b * b) + corner, floordiv(y, b), floordiv(x, b)]


def _depth_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, block, mode in [
        ((1, 8, 2, 3), 2, "DCR"),
        ((2, 8, 1, 2), 2, "CRD"),
        ((1, 2, 2, 2), 1, "DCR"),
        ((0, 9, 1, 1), 3, "CRD"),
    ]:
        yield Sample((rng.standard_normal(shape).astype(np.float32),), {"block": block, "mode": mode})


depth_to_space = OpDef(
    "depth_to_space",
    ("x",),
    {"block": AttrDef("int"), "mode": AttrDef("str", "DCR")},
    _infer_depth_to_space,
    _ref_depth_to_space,
    compute=lambda ins, outs, a: copy_from(outs[0], ins[0], lambda at: _depth_index(at, outs[0].shape[1], a)),
    traits=MOVEMENT,
    samples=_depth_samples,
    doc="N, C*b*b, H, W to N, C, H*b, W*b. The channel is (row, column, c) in mode DCR and (c, row, column) in CRD.",
)


def _infer_space_to_depth(ts: Types, a: Attrs) -> TensorType:
    _check_block(ts[0], a)
    n, c, h, w = ts[0].shape
    return ts[0].with_shape((n, c * a.block**2, _divided(h, a.block, "the height"), _divided(w, a.block, "the width")))


def _ref_space_to_depth(xs: Sequence[Array], a: Attrs) -> Array:
    (n, c, h, w), b = xs[0].shape, a.block
    parts = xs[0].reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if a.mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.transpose(order).reshape(n, c * b * b, h // b, w // b)


def _space_index(at: Sequence[Dim], c: Dim, a: Attrs) -> list[Dim]:
    (n, d, y, x), b = at, a.block
    corner = floordiv(d, c) if a.mode == "DCR" else mod(d, b * b)
    channel = mod(d, c) if a.mode == "DCR" else floordiv(d, b * b)
    return [n, channel, y * b + floordiv(corner, b), x * b + mod(corner, b)]


def _space_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, block, mode in [
        ((1, 2, 4, 6), 2, "DCR"),
        ((2, 2, 2, 4), 2, "CRD"),
        ((1, 1, 3, 3), 3, "DCR"),
        ((0, 3, 2, 2), 1, "DCR"),
    ]:
        yield Sample((rng.standard_normal(shape).astype(np.float32),), {"block": block, "mode": mode})


space_to_depth = OpDef(
    "space_to_depth",
    ("x",),
    {"block": AttrDef("int"), "mode": AttrDef("str", "DCR")},
    _infer_space_to_depth,
    _ref_space_to_depth,
    compute=lambda ins, outs, a: copy_from(
        outs[0], ins[0], lambda at: _space_index(at, ins[0].shape[1], a) if ins[0].shape[1] != 0 else [0] * 4
    ),
    traits=MOVEMENT,
    samples=_space_samples,
    doc="The inverse of depth_to_space of the same mode; ONNX's SpaceToDepth is DCR, PyTorch's pixel_unshuffle CRD.",
)
