"""Convolutions over one to three spatial axes, and their transposes.

In: activations as N, C, spatial ("NCHW") or N, spatial, C ("NHWC"), weights as O, I/groups, spatial (transposed: I,
O/groups, spatial). Out: the same layout. Not its business: other layouts and algorithms (``graph``, ``tile``).

Output size per axis: ``(size + lo + hi - dilation * (kernel - 1) - 1) // stride + 1``; pads may be negative (crop).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Axis, Buffer, Const, Inside, Load, Select, Stage, Value
from tilewright.core.dims import are_known, is_known, known_under
from tilewright.core.expr import Dim, ceildiv, floordiv, mod
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import axis_over, cast_to, check, check_equal_dims, check_rank, fail, fold, narrowed
from tilewright.ops.contract import accumulator, contraction_dtype
from tilewright.ops.movement import concat, reshape, reverse, transpose
from tilewright.ops.samples import random
from tilewright.ops.source import full
from tilewright.ops.window import pad, slice_

CONTRACTS = frozenset({Trait.CONTRACTION})
LAYOUTS = ("NCHW", "NHWC")
Pads = Sequence[tuple[Dim, Dim]]

# --- shared with pooling --------------------------------------------------------------------------------------------


def channel_axis(layout: str, rank: int) -> int:
    """Where the channels are."""
    return 1 if layout == "NCHW" else rank - 1


def spatial_axes(layout: str, rank: int) -> range:
    """Where the spatial axes are."""
    return range(2, rank) if layout == "NCHW" else range(1, rank - 1)


def check_window(rank: int, a: Attrs, *lengths: str) -> None:
    """Raise ``OpError`` unless the layout is known and each attribute has one positive entry per spatial axis."""
    check(a.layout in LAYOUTS, lambda: f"layout {a.layout!r} is not one of {', '.join(LAYOUTS)}")
    for name in (*lengths, "pads"):
        if len(a[name]) != rank - 2:
            fail(f"{name} has {len(a[name])} entries for {rank - 2} spatial axes")
    for name in lengths:
        if min(a[name]) < 1:
            fail(f"{name} {a[name]} must be positive")


def window_size(size: Dim, kernel: Dim, stride: int, pads: tuple[Dim, Dim], dilation: int) -> Dim:
    """How many windows fit along an axis."""
    n = floordiv(size + pads[0] + pads[1] - (kernel - 1) * dilation - 1, stride) + 1
    check(
        not known_under(n, 0),
        lambda: f"a window of {kernel} with dilation {dilation} does not fit into {size} with pads {pads}",
        "use a larger input, a smaller kernel or more padding",
    )
    return n


def padding_behind(size: int, kernel: int, stride: int, before: int, dilation: int, places: int) -> int:
    """What padding behind an axis makes so many windows fit along it; negative where its end is not read."""
    return (places - 1) * stride + (kernel - 1) * dilation + 1 - size - before


def placed(n: Dim, c: Dim, spatial: Sequence[Dim], layout: str) -> tuple[Dim, ...]:
    """A shape or index in the order of ``layout``."""
    return (n, c, *spatial) if layout == "NCHW" else (n, *spatial, c)


def window_positions(at: Sequence[Dim], tap: Sequence[Dim], a: Attrs, dilations: Sequence[int]) -> list[Dim]:
    """Where in the unpadded input the window at ``at`` has its element ``tap``."""
    return [i * s + k * d - lo for i, k, s, d, (lo, _) in zip(at, tap, a.strides, dilations, a.pads, strict=True)]


def padded_load(x: Buffer, index: tuple[Dim, ...], spatial: Sequence[int], pads: Pads, outside: Value) -> Value:
    """``x[index]``, or ``outside`` where a padded axis leaves the buffer."""
    guards: list[Dim] = []
    for axis, (lo, hi) in zip(spatial, pads, strict=True):
        if lo != 0:
            guards.append(index[axis])
        if hi != 0:
            guards.append(x.shape[axis] - 1 - index[axis])
    load = Load(x, index)
    return Select(Inside(tuple(guards)), load, outside) if guards else load


def axes_named(extents: Sequence[Dim], prefix: str) -> tuple[Axis, ...]:
    return tuple(axis_over(e, f"{prefix}{n}") for n, e in enumerate(extents))


# --- conv -----------------------------------------------------------------------------------------------------------


def _infer_conv(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    x, w = ts
    check_rank(x, 3, "the input", 5)
    check_rank(w, x.rank, "the weight", x.rank)
    check_window(x.rank, a, "strides", "dilations")
    check(a.groups >= 1, lambda: f"groups {a.groups} must be positive")
    check(0 not in w.shape[2:], lambda: f"the weight {w} has no element to slide")
    dtype = contraction_dtype(x, w, a.out_dtype)
    channels, n_out = x.shape[channel_axis(a.layout, x.rank)], w.shape[0]
    check_equal_dims(channels, w.shape[1] * a.groups, lambda: f"channels of {x} and of {w} with {a.groups} groups")
    check(mod(n_out, a.groups) == 0, lambda: f"{n_out} output channels don't fill {a.groups} groups")
    sizes = [x.shape[k] for k in spatial_axes(a.layout, x.rank)]
    spatial = [
        window_size(n, k, s, p, d)
        for n, k, s, p, d in zip(sizes, w.shape[2:], a.strides, a.pads, a.dilations, strict=True)
    ]
    return TensorType(dtype, placed(x.shape[0], n_out, spatial, a.layout))


def _compute_conv(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    """One sum over (taps, input channels of the group); output channel ``o`` belongs to group ``o // size``."""
    (x, w), (out,) = ins, outs
    rank, acc = len(x.shape), accumulator(x.dtype, out.dtype)
    depth = w.shape[1]
    (n,) = axes_named((x.shape[0],), "n")
    (channel,) = axes_named((w.shape[0],), "c")
    at = axes_named([out.shape[k] for k in spatial_axes(a.layout, rank)], "p")
    taps, (member,) = axes_named(w.shape[2:], "k"), axes_named((depth,), "r")
    group = 0 if a.groups == 1 else floordiv(channel.sym, floordiv(w.shape[0], a.groups))
    position = window_positions([p.sym for p in at], [k.sym for k in taps], a, a.dilations)
    index = placed(n.sym, group * depth + member.sym, position, a.layout)
    element = padded_load(x, index, spatial_axes(a.layout, rank), a.pads, Const(0, x.dtype))
    weight = Load(w, (channel.sym, member.sym, *[k.sym for k in taps]))
    axes = (n, channel, *at) if a.layout == "NCHW" else (n, *at, channel)
    where = placed(n.sym, channel.sym, [p.sym for p in at], a.layout)
    expr = cast_to(element, acc) * cast_to(weight, acc)
    return fold(out, axes, where, expr, (*taps, member), "add", Const(0, acc))


def padded_array(x: Array, pads: Sequence[tuple[int, int]], value: Any) -> Array:
    """``x`` with its spatial axes (2 and up) padded by ``value``; negative pads crop."""
    grown = [(0, 0), (0, 0), *((max(lo, 0), max(hi, 0)) for lo, hi in pads)]
    x = np.pad(x, grown, constant_values=value)
    crop = [slice(max(-lo, 0), n - max(-hi, 0)) for (lo, hi), n in zip(pads, x.shape[2:], strict=True)]
    return x[(slice(None), slice(None), *crop)]


def taps_of(
    x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Each tap of the window and what the windows of a padded NCHW array hold there."""
    sizes = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)]
    for tap in np.ndindex(*kernel):
        starts = [t * d for t, d in zip(tap, dilations, strict=True)]
        cut = [slice(b, b + s * (n - 1) + 1 if n else b, s) for b, s, n in zip(starts, strides, sizes, strict=True)]
        yield tap, x[(slice(None), slice(None), *cut)]


def _conv_of(xs: Sequence[Array], a: Attrs) -> Array:
    x, w = xs
    operand = types.dtype_of(x.dtype)
    out = a.out_dtype or operand
    acc = accumulator(operand, out).numpy
    x, w = x.astype(acc), w.astype(acc)
    x = padded_array(x if a.layout == "NCHW" else np.moveaxis(x, -1, 1), a.pads, 0)
    n, groups, per_group = x.shape[0], a.groups, w.shape[0] // a.groups
    weights = w.reshape(groups, per_group, w.shape[1], math.prod(w.shape[2:]))
    sizes = next(taps_of(x, w.shape[2:], a.strides, a.dilations))[1].shape[2:]
    total = np.zeros((n, groups, per_group, math.prod(sizes)), acc)
    with np.errstate(all="ignore"):
        for tap, (_, part) in enumerate(taps_of(x, w.shape[2:], a.strides, a.dilations)):
            columns = part.reshape(n, groups, w.shape[1], total.shape[-1])
            total += np.matmul(weights[..., tap], columns)
    result = total.reshape(n, w.shape[0], *sizes)
    return narrowed(result if a.layout == "NCHW" else np.moveaxis(result, 1, -1), out)


def conv_attrs(n: int, layout: str = "NCHW", **given: Any) -> dict[str, Any]:
    """Attributes of a plain convolution over ``n`` axes, with changes."""
    return {"strides": (1,) * n, "pads": ((0, 0),) * n, "dilations": (1,) * n, "layout": layout, **given}


def _conv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, w = random(rng, (2, 4, 5, 6)), random(rng, (6, 2, 3, 2))
    full = conv_attrs(2, strides=(2, 1), pads=((1, 2), (0, 1)), dilations=(1, 2), groups=2)
    yield Sample((x, w), full)
    yield Sample((np.moveaxis(x, 1, -1).copy(), w), {**full, "layout": "NHWC"})
    yield Sample((x, random(rng, (3, 4, 1, 1))), conv_attrs(2))
    yield Sample(
        (np.moveaxis(x, 1, -1).copy(), random(rng, (4, 1, 3, 3))), conv_attrs(2, "NHWC", pads=((1, 1),) * 2, groups=4)
    )
    yield Sample((random(rng, (1, 2, 7)), random(rng, (3, 2, 3))), conv_attrs(1, strides=(2,), pads=((-1, 3),)))
    yield Sample((random(rng, (1, 1, 3, 3, 2)), random(rng, (2, 1, 2, 2, 1))), conv_attrs(3, pads=((1, 0),) * 3))
    yield Sample((random(rng, (0, 2, 3)), random(rng, (2, 2, 1))), conv_attrs(1))
    yield Sample((random(rng, (1, 2, 3)), random(rng, (0, 2, 2))), conv_attrs(1))
    yield Sample((random(rng, (1, 0, 3)), random(rng, (2, 0, 2))), conv_attrs(1))
    small = random(rng, (1, 2, 4), types.u8, (0, 255)), random(rng, (2, 2, 3), types.i8, (-128, 127))
    yield Sample(small, conv_attrs(1, pads=((1, 1),), out_dtype=types.i32))


WINDOW = {
    "strides": AttrDef("ints"), "pads": AttrDef("pads"), "dilations": AttrDef("ints"), "groups": AttrDef("int", 1),
}  # fmt: skip
LAYOUT = {"layout": AttrDef("str", "NCHW")}

conv = OpDef(
    "conv", ("x", "w"), {**WINDOW, **LAYOUT, "out_dtype": AttrDef("dtype", None)}, _infer_conv, _conv_of,
    _compute_conv, traits=CONTRACTS, samples=_conv_samples,
    doc="Correlation with the weights at every window; padding reads 0.",
)  # fmt: skip

# --- conv_transpose -------------------------------------------------------------------------------------------------


def _infer_transpose(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    x, w = ts
    check_rank(x, 3, "the input", 5)
    check_rank(w, x.rank, "the weight", x.rank)
    check_window(x.rank, a, "strides", "dilations")
    check(a.groups >= 1, lambda: f"groups {a.groups} must be positive")
    check(len(a.output_padding) == x.rank - 2, lambda: f"output_padding has {len(a.output_padding)} entries")
    dtype = contraction_dtype(x, w, None)
    channels = x.shape[channel_axis(a.layout, x.rank)]
    check_equal_dims(channels, w.shape[0], lambda: f"channels of {x} and rows of {w}")
    check(mod(channels, a.groups) == 0, lambda: f"{channels} channels don't fill {a.groups} groups")
    spatial = []
    for k, axis in enumerate(spatial_axes(a.layout, x.rank)):
        reach = (w.shape[2 + k] - 1) * a.dilations[k] + 1 + a.output_padding[k]
        spatial.append((x.shape[axis] - 1) * a.strides[k] + reach - a.pads[k][0] - a.pads[k][1])
    check(not any(known_under(n, 0) for n in spatial), lambda: f"pads {a.pads} leave nothing of the result")
    return TensorType(dtype, placed(x.shape[0], w.shape[1] * a.groups, spatial, a.layout))


def _decompose_transpose(b: Builder, inputs: tuple[Node, ...], a: Attrs) -> Node:
    """A convolution with the mirrored weights: of all phases of the result at once, or of the input with zeros."""
    x, w = inputs
    is_plain = are_known(w.shape[2:]) and all(d == 1 for d in a.dilations)
    if not is_plain or max(a.strides) == 1:
        return _by_zeros(b, x, w, a)
    return by_phases(b, x, w, a, phases_apart(w.shape[2:], a.strides), partial(b, conv))


def by_phases(
    b: Builder, x: Node, w: Node, a: Attrs, kinds: Sequence[Sequence[PhaseKind]], convolve: Callable[..., Node]
) -> Node:
    """Sub-pixel convolution (Shi et al., 2016): positions ``p`` with equal ``p % stride`` see the same taps.

    Before the pads crop it, ``y[s*m + r] = sum_j x[m - j] * w[s*j + r]``: one convolution of stride 1 that gives a
    channel for every phase ``r``, and then the phases take turns. ``kinds`` are each axis's (``phases_apart``,
    ``phases_together``); every choice of them has a convolution, which ``convolve`` makes as ``conv`` would be made.
    """
    rank, n, depth = len(x.shape), len(x.shape) - 2, w.shape[1]
    axes = spatial_axes(a.layout, rank)
    out = _infer_transpose([x.type, w.type], a).shape
    # Places of the result before it is cropped, and the blocks of a stride that they lie in.
    ends = [lo + out[axis] for axis, (lo, _) in zip(axes, a.pads, strict=True)]
    first = [floordiv(lo, s) for (lo, _), s in zip(a.pads, a.strides, strict=True)]
    counts = [ceildiv(end, s) - f for end, s, f in zip(ends, a.strides, first, strict=True)]
    is_first = a.layout == "NCHW"

    def of(chosen: tuple[PhaseKind, ...]) -> Node:
        """The results of the phases of a kind for each axis, with those phases as axes."""
        phases = (a.groups, *[len(kind.phases) for kind in chosen], depth)
        shape = (x.shape[0], *phases, *counts) if is_first else (x.shape[0], *counts, *phases)
        if any(kind.n_taps == 0 for kind in chosen):
            # A phase that no tap reaches, where the stride is larger than the kernel.
            return b(full, value=0.0, dtype=x.dtype, shape=shape)
        pads = [
            (kind.n_taps - 1 - f, m + f - x.shape[axis])
            for kind, f, m, axis in zip(chosen, first, counts, axes, strict=True)
        ]
        weights, ones = _phase_weights(b, w, a, chosen), (1,) * n
        y = convolve(x, weights, strides=ones, pads=tuple(pads), dilations=ones, groups=a.groups, layout=a.layout)
        return b(reshape, y, shape=shape)

    y = _joined(b, of, kinds, (), 2 if is_first else n + 2)
    if is_first:
        # Each axis's phases go right behind its blocks, so that a reshape interleaves them.
        turns = (0, 1, n + 2, *[axis for k in range(n) for axis in (n + 3 + k, 2 + k)])
    else:
        turns = (0, *[axis for k in range(n) for axis in (1 + k, n + 2 + k)], n + 1, 2 * n + 2)
    y = b(transpose, y, perm=turns)
    whole = [m * s for m, s in zip(counts, a.strides, strict=True)]
    y = b(reshape, y, shape=placed(x.shape[0], a.groups * depth, whole, a.layout))
    starts, stops = [0] * rank, list(y.shape)
    for axis, end, f, s, (lo, _) in zip(axes, ends, first, a.strides, a.pads, strict=True):
        starts[axis], stops[axis] = lo - f * s, end - f * s
    return b(slice_, y, starts=tuple(starts), stops=tuple(stops), steps=(1,) * rank)


@dataclass(frozen=True)
class PhaseKind:
    """Neighbouring phases of an axis that see equally many taps."""

    phases: range
    n_taps: int


def phases_apart(kernel: Sequence[Dim], strides: Sequence[int]) -> list[list[PhaseKind]]:
    """Of each axis the phases below ``kernel % stride``, which see one tap more, and the others.

    Zeros for the taps that are not there would take time, and would turn infinities into NaN.
    """
    found = []
    for k, s in zip(kernel, strides, strict=True):
        assert is_known(k)
        n_taps, rest = divmod(k, s)
        kinds = [PhaseKind(range(rest), n_taps + 1), PhaseKind(range(rest, s), n_taps)]
        found.append([kind for kind in kinds if kind.phases])
    return found


def phases_together(kernel: Sequence[Dim], strides: Sequence[int]) -> list[list[PhaseKind]]:
    """Of each axis all phases as one kind, some with a zero for a tap that is not there."""
    return [[PhaseKind(range(s), -(-k // s))] for k, s in zip(kernel, strides, strict=True) if is_known(k)]


def _joined(
    b: Builder,
    of: Callable[[tuple[PhaseKind, ...]], Node],
    kinds: Sequence[Sequence[PhaseKind]],
    chosen: tuple[PhaseKind, ...],
    axis: int,
) -> Node:
    """The results ``of`` every choice of a kind per axis, one behind the other along the phases' axes."""
    if not kinds:
        return of(chosen)
    parts = [_joined(b, of, kinds[1:], (*chosen, kind), axis + 1) for kind in kinds[0]]
    return b(concat, *parts, axis=axis) if len(parts) > 1 else parts[0]


def _phase_weights(b: Builder, w: Node, a: Attrs, kinds: Sequence[PhaseKind]) -> Node:
    """Weights (I, O/groups, kernel) as (groups, phases, O/groups by I/groups, taps of a phase, last first)."""
    (n_in, depth, *kernel), n = w.shape, len(kinds)
    # Phases of a single tap are no further apart than the kernel's taps, however large the stride is.
    width = [s if kind.n_taps > 1 else kind.phases.stop for kind, s in zip(kinds, a.strides, strict=True)]
    reach = [kind.n_taps * s for kind, s in zip(kinds, width, strict=True)]
    ends = [(0, r - k) for r, k in zip(reach, kernel, strict=True)]  # cut, or filled up with what is cut off below
    wide = b(pad, w, b.const(0, w.dtype), pads=((0, 0), (0, 0), *ends))
    per_group = floordiv(n_in, a.groups)
    pairs = [d for kind, s in zip(kinds, width, strict=True) for d in (kind.n_taps, s)]
    split = b(reshape, wide, shape=(a.groups, per_group, depth, *pairs))
    starts, stops = [0] * len(split.shape), list(split.shape)
    for k, kind in enumerate(kinds):
        starts[4 + 2 * k], stops[4 + 2 * k] = kind.phases.start, kind.phases.stop
    held = b(slice_, split, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(starts))
    phases, members = [4 + 2 * k for k in range(n)], [3 + 2 * k for k in range(n)]
    swapped = b(transpose, held, perm=(0, *phases, 2, 1, *members))
    n_phases = math.prod(len(kind.phases) for kind in kinds)
    taps = [kind.n_taps for kind in kinds]
    made = b(reshape, swapped, shape=(a.groups * n_phases * depth, per_group, *taps))
    return b(reverse, made, axes=tuple(range(2, n + 2)))


def _by_zeros(b: Builder, x: Node, w: Node, a: Attrs) -> Node:
    """Zeros between the elements of the input, then a convolution with the mirrored weights."""
    rank, n = len(x.shape), len(x.shape) - 2
    zero = b.const(0, x.dtype)
    for k, axis in enumerate(spatial_axes(a.layout, rank)):
        x = _spread(b, x, axis, a.strides[k], zero)
    mirrored = b(reverse, w, axes=tuple(range(2, rank)))
    pads = []
    for k in range(n):
        reach = (w.shape[2 + k] - 1) * a.dilations[k]
        pads.append((reach - a.pads[k][0], reach - a.pads[k][1] + a.output_padding[k] - (a.strides[k] - 1)))
    return b(
        conv, x, _regrouped(b, mirrored, a.groups), strides=(1,) * n, pads=tuple(pads), dilations=a.dilations,
        groups=a.groups, layout=a.layout,
    )  # fmt: skip


def _spread(b: Builder, x: Node, axis: int, stride: int, zero: Node) -> Node:
    """``stride - 1`` zeros after every element of an axis."""
    if stride == 1:
        return x
    head, size, tail = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    column = b(reshape, x, shape=(*head, size, 1, *tail))
    pads = [(0, 0)] * len(column.shape)
    pads[axis + 1] = (0, stride - 1)
    return b(reshape, b(pad, column, zero, pads=tuple(pads)), shape=(*head, size * stride, *tail))


def _regrouped(b: Builder, w: Node, groups: int) -> Node:
    """Weights (I, O/groups, ...) as (O, I/groups, ...)."""
    n_in, per_group, *kernel = w.shape
    split = b(reshape, w, shape=(groups, floordiv(n_in, groups), per_group, *kernel))
    swapped = b(transpose, split, perm=(0, 2, 1, *range(3, 3 + len(kernel))))
    return b(reshape, swapped, shape=(per_group * groups, floordiv(n_in, groups), *kernel))


def _transpose_of(xs: Sequence[Array], a: Attrs) -> Array:
    """Every input element adds its multiple of the kernel to the output; the pads are cut off at the end."""
    dtype = types.dtype_of(xs[0].dtype)
    acc = accumulator(dtype, dtype).numpy
    x, w = xs[0].astype(acc), xs[1].astype(acc)
    x = x if a.layout == "NCHW" else np.moveaxis(x, -1, 1)
    (n, n_in, *sizes), (_, per_group, *kernel) = x.shape, w.shape
    whole = [
        max((m - 1) * s, 0) + d * (k - 1) + 1 + o + s
        for m, s, d, k, o in zip(sizes, a.strides, a.dilations, kernel, a.output_padding, strict=True)
    ]
    total = np.zeros((n, a.groups, per_group, *whole), acc)
    columns = x.reshape(n, a.groups, n_in // a.groups, math.prod(sizes))
    with np.errstate(all="ignore"):
        for tap in np.ndindex(*kernel):
            weight = w[(slice(None), slice(None), *tap)].reshape(a.groups, n_in // a.groups, per_group)
            part = np.matmul(weight.swapaxes(1, 2), columns).reshape(n, a.groups, per_group, *sizes)
            cut = [
                slice(t * d, t * d + s * m, s) for t, d, s, m in zip(tap, a.dilations, a.strides, sizes, strict=True)
            ]
            total[(slice(None), slice(None), slice(None), *cut)] += part
    out = _infer_transpose([TensorType(dtype, xs[0].shape), TensorType(dtype, xs[1].shape)], a).shape
    result = total.reshape(n, a.groups * per_group, *whole)
    for k, axis in enumerate(spatial_axes(a.layout, x.ndim)):
        result = _window(result, 2 + k, a.pads[k][0], int(out[axis]))  # type: ignore[arg-type]
    return narrowed(result if a.layout == "NCHW" else np.moveaxis(result, 1, -1), dtype)


def _window(x: Array, axis: int, start: int, size: int) -> Array:
    """``size`` elements of an axis from ``start``, zeros where there are none."""
    grown = np.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)
    lo, hi = max(start, 0), max(min(start + size, x.shape[axis]), 0)
    before: tuple[slice, ...] = (slice(None),) * axis
    if lo < hi:
        grown[(*before, slice(lo - start, hi - start))] = x[(*before, slice(lo, hi))]
    return grown


def _transpose_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, w = random(rng, (2, 4, 3, 4)), random(rng, (4, 3, 3, 2))
    full = conv_attrs(2, strides=(2, 3), pads=((1, 0), (0, 1)), dilations=(1, 2), groups=2, output_padding=(1, 0))
    yield Sample((x, w), full)
    yield Sample((np.moveaxis(x, 1, -1).copy(), w), {**full, "layout": "NHWC"})
    yield Sample((x, random(rng, (4, 2, 1, 1))), conv_attrs(2, output_padding=(0, 0)))
    yield Sample(
        (random(rng, (1, 2, 4)), random(rng, (2, 1, 4))),
        conv_attrs(1, strides=(2,), pads=((1, 1),), output_padding=(1,)),
    )
    yield Sample(
        (random(rng, (1, 1, 2, 2, 2)), random(rng, (1, 2, 2, 2, 2))),
        conv_attrs(3, strides=(2, 2, 2), output_padding=(0,) * 3),
    )
    yield Sample(
        (random(rng, (1, 2, 3)), random(rng, (2, 1, 2))),
        conv_attrs(1, strides=(3,), pads=((-1, -2),), output_padding=(0,)),
    )
    yield Sample((random(rng, (1, 2, 3)), random(rng, (2, 0, 2))), conv_attrs(1, strides=(2,), output_padding=(0,)))
    yield Sample((random(rng, (1, 0, 3)), random(rng, (0, 2, 2))), conv_attrs(1, strides=(2,), output_padding=(0,)))


conv_transpose = OpDef(
    "conv_transpose", ("x", "w"), {**WINDOW, "output_padding": AttrDef("ints"), **LAYOUT}, _infer_transpose,
    _transpose_of, decompose=_decompose_transpose, traits=CONTRACTS, samples=_transpose_samples,
    doc="The transpose of conv: every element adds its multiple of the kernel to the output.",
)  # fmt: skip
