"""ATen's sampling at coordinates, and its reductions over segments and bags.

In: calls. Out: nodes. Not its business: resizing by a factor (``torch.aten.resample``), scatters as such
(``torch.aten.scatter``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known, known_at_most, numbers
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Builder, Node
from tilewright.core.types import bool_, f32, i32, i64, product
from tilewright.frontend.nodes import dim_scalar, expand, reshape, slice_axis
from tilewright.frontend.sampled import Image
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, as_node, cast
from tilewright.frontend.torch.aten.order import counted
from tilewright.frontend.torch.aten.scatter import REDUCTIONS, start_of

Convert = Callable[[AtenCall], Result]
NEAREST_MODE, CUBIC_MODE, CUBIC = 1, 2, -0.75


# --- sampling -------------------------------------------------------------------------------------------------------


def _number(b: Builder, value: float, like: Node) -> Node:
    return b.const(value, like.dtype)


def _unit_to_index(b: Builder, x: Node, size: Dim, align: bool) -> Node:
    """From -1 .. 1 to 0 .. size - 1 between the middles of the outer elements, or between their outer edges."""
    moved = b(ops.add, x, _number(b, 1, x))
    half = _number(b, 0.5, x)
    if align:
        return b(ops.mul, moved, b(ops.mul, dim_scalar(b, size - 1, x.dtype), half))
    return b(ops.sub, b(ops.mul, moved, b(ops.mul, dim_scalar(b, size, x.dtype), half)), half)


def _reflected(b: Builder, x: Node, low: float, span: Dim) -> Node:
    """Folded back at ``low`` and at ``low + span`` as often as it takes."""
    if span == 0:
        return b(ops.mul, x, _number(b, 0, x))
    width = dim_scalar(b, span, x.dtype)
    safe = width if is_known(span) else b(ops.maximum, width, _number(b, 1, x))
    distance = b(ops.abs, b(ops.sub, x, _number(b, low, x)))
    flips = b(ops.floor, b(ops.div, distance, safe))
    rest = b(ops.sub, distance, b(ops.mul, flips, safe))
    half = b(ops.mul, flips, _number(b, 0.5, x))
    is_odd = b(ops.ne, b(ops.floor, half), half)
    back = b(ops.sub, width, rest)
    return b(ops.add, b(ops.where, is_odd, back, rest), _number(b, low, x))


def _last(b: Builder, size: Dim, like: Node) -> Node:
    return dim_scalar(b, size - 1, like.dtype)


def _kept(b: Builder, at: Node, size: Dim, padding: int, align: bool) -> Node:
    """A place along one axis, brought inside by the rule for those outside (0: it stays)."""
    if padding == 2:
        at = _reflected(b, at, 0, size - 1) if align else _reflected(b, at, -0.5, size)
    return b(ops.clamp, at, _number(b, 0, at), _last(b, size, at)) if padding else at


def _cubic(b: Builder, t: Node) -> list[Node]:
    """The weights of the elements at distances 1 + t, t, 1 - t and 2 - t (Keys 1981, with -0.75)."""

    def polynomial(d: Node, *factors: float) -> Node:
        total = _number(b, factors[0], d)
        for factor in factors[1:]:
            total = b(ops.add, b(ops.mul, total, d), _number(b, factor, d))
        return total

    def near(d: Node) -> Node:
        return polynomial(d, CUBIC + 2, -(CUBIC + 3), 0, 1)

    def far(d: Node) -> Node:
        return polynomial(d, CUBIC, -5 * CUBIC, 8 * CUBIC, -4 * CUBIC)

    one, two = _number(b, 1, t), _number(b, 2, t)
    return [far(b(ops.add, t, one)), near(t), near(b(ops.sub, one, t)), far(b(ops.sub, two, t))]


def _taps(b: Builder, at: Node, size: Dim, mode: int, padding: int, align: bool) -> list[tuple[Node, Node | None]]:
    """Whole places along one axis, with their weights (None: 1)."""
    if mode == CUBIC_MODE:
        floor = b(ops.floor, at)
        places = [b(ops.add, floor, _number(b, k, at)) for k in (-1, 0, 1, 2)]
        weights = _cubic(b, b(ops.sub, at, floor))
        return [(_kept(b, p, size, padding, align), w) for p, w in zip(places, weights, strict=True)]
    at = _kept(b, at, size, padding, align)
    if mode == NEAREST_MODE:
        return [(b(ops.round, at), None)]
    floor, one = b(ops.floor, at), _number(b, 1, at)
    part = b(ops.sub, at, floor)
    return [(floor, b(ops.sub, one, part)), (b(ops.add, floor, one), part)]


def _grid_sampler(c: AtenCall) -> Node:
    """Each result is the nearest element to a coordinate, or those around it weighted by nearness."""
    b, x, grid = c.b, c.tensor("input"), c.tensor("grid")
    sizes = x.shape[2:]
    wide = cast(b, grid, f32) if grid.dtype.bits < 32 else grid
    last, padding, align = len(grid.shape) - 1, c["padding_mode"], bool(c["align_corners"])
    taps = []
    for k, size in enumerate(sizes):  # the grid's last axis counts from the last spatial axis on
        column = reshape(b, slice_axis(b, wide, last, len(sizes) - 1 - k, 1), grid.shape[:-1])
        at = _unit_to_index(b, column, size, align)
        taps.append(_taps(b, at, size, c["interpolation_mode"], padding, align))
    total: Node | None = None
    n = product(grid.shape[1:-1])
    image = Image.of(b, reshape(b, x, (*x.shape[:2], product(sizes))), n, math.prod(map(len, taps)))
    for corner in itertools.product(*taps):
        value = _corner(b, image, sizes, [at for at, _ in corner], wide.dtype is not x.dtype)
        weights = [w for _, w in corner if w is not None]
        if weights:
            weight = reduce(lambda v, w: b(ops.mul, v, w), weights)
            value = b(ops.mul, value, image.beside(reshape(b, weight, (weight.shape[0], 1, n))))
        total = value if total is None else b(ops.add, total, value)
    assert total is not None
    return cast(b, reshape(b, image.whole(total, n), (*x.shape[:2], *grid.shape[1:-1])), c.dtype)


def _corner(b: Builder, image: Image, sizes: Sequence[Dim], at: list[Node], is_narrow: bool) -> Node:
    """The elements at whole coordinates of an image of ``sizes``; 0 outside."""
    n_places = product(sizes)
    whole = i32 if known_at_most(n_places, i32.max) else i64
    inside: Node | None = None
    flat: Node | None = None
    for place, size in zip(at, sizes, strict=True):
        low, high = _number(b, 0, place), _last(b, size, place)
        held = b(ops.logical_and, b(ops.ge, place, low), b(ops.le, place, high))
        index = cast(b, b(ops.clamp, place, low, high), whole)
        inside = held if inside is None else b(ops.logical_and, inside, held)
        flat = index if flat is None else b(ops.add, b(ops.mul, flat, dim_scalar(b, size, whole)), index)
    assert inside is not None and flat is not None
    of_points = (flat.shape[0], 1, product(flat.shape[1:]))
    found = image.at(reshape(b, flat, of_points))
    found = cast(b, found, f32) if is_narrow else found
    return b(ops.where, image.beside(reshape(b, inside, of_points)), found, _number(b, 0, found))


# --- windows at random places ---------------------------------------------------------------------------------------


def _window_starts(c: AtenCall, x: Node, axis: int, column: int, size: int) -> Node:
    """Where the windows along one axis start (Graham 2014), for each image and channel."""
    b, samples = c.b, c.tensor("random_samples", x.dtype)
    pool, count = c["kernel_size"][axis], c["output_size"][axis]
    u = slice_axis(b, samples, 2, column, 1)
    last = expand(b, b.const(size - pool, i64), (*x.shape[:2], 1))
    if count == 1:
        return last
    alpha = b.const((size - pool) / (count - 1), x.dtype)
    steps = cast(b, b(ops.iota, extent=count - 1, dtype=i64), x.dtype)
    moved = cast(b, b(ops.mul, b(ops.add, u, steps), alpha), i64)
    starts = b(ops.sub, moved, cast(b, b(ops.mul, u, alpha), i64))
    return b(ops.concat, starts, last, axis=2)


def _fractional_max_pool(c: AtenCall) -> Result:
    """The greatest element of each window, and its place."""
    b, n = c.b, len(c["kernel_size"])
    x = c.tensor("self")
    x = reshape(b, x, (1, *x.shape)) if len(x.shape) == n + 1 else x
    sizes = numbers(x.shape)
    if len(sizes) != len(x.shape):
        raise Unsupported("fractional pooling of a symbolic size", "make the dimensions static")
    if 0 in sizes:
        return tuple(b(ops.full, value=0.0, dtype=t.dtype, shape=t.shape) for t in c.results if t is not None)
    lead, spatial, outs = x.shape[:2], sizes[2:], list(c["output_size"])
    columns = [1, 0] if n == 2 else list(range(n))  # PyTorch's samples are for x, y of images, but in order for volumes
    base: Node | None = None
    for axis, size in enumerate(spatial):
        starts = _window_starts(c, x, axis, columns[axis], size)
        starts = b(ops.mul, starts, b.const(math.prod(spatial[axis + 1 :]), i64))
        starts = reshape(b, starts, (*lead, *(outs[k] if k == axis else 1 for k in range(n)), 1))
        base = starts if base is None else b(ops.add, base, starts)
    assert base is not None
    # places of a window's elements, counted from its first
    inside = np.arange(math.prod(spatial)).reshape(spatial)[tuple(slice(k) for k in c["kernel_size"])].ravel()
    places = b(ops.add, base, b.const(inside.astype(np.int64)))
    windows = b(ops.gather_elements, reshape(b, x, (*lead, math.prod(spatial))),
                reshape(b, places, (*lead, math.prod(outs) * inside.size)), axis=2)  # fmt: skip
    windows = reshape(b, windows, places.shape)
    best = b(ops.argmax, windows, axis=n + 2, keepdims=True)
    found = (b(ops.gather_elements, t, best, axis=n + 2) for t in (windows, places))
    return tuple(reshape(b, t, c.shape) for t in found)


# --- segments and bags ----------------------------------------------------------------------------------------------


def _folded(b: Builder, rows: Node, owner: Node, n: Dim, name: str, initial: Node, axis: int = 0) -> Node:
    """Rows along an axis folded into ``n`` results by the owner of each (``n``: nobody); each starts at ``initial``."""
    if axis == 0 and len(owner.shape) == 1:  # whole rows, one index each
        start = expand(b, initial, (n + 1, *rows.shape[1:]))
        at = reshape(b, owner, (*owner.shape, 1))
        return slice_axis(b, b(ops.scatter_nd, start, at, rows, reduction=REDUCTIONS[name]), 0, 0, n)
    after = len(rows.shape) - axis - 1
    at = expand(b, reshape(b, owner, (*owner.shape, *(1,) * after)), rows.shape)
    start = expand(b, initial, (*rows.shape[:axis], n + 1, *rows.shape[axis + 1 :]))
    folded = b(ops.scatter_elements, start, at, rows, axis=axis, reduction=REDUCTIONS[name])
    return slice_axis(b, folded, axis, 0, n)


def _segment_reduce(c: AtenCall) -> Node:
    """Segments along one axis; each row of the axes before it has lengths, or offsets, of its own."""
    b, x, axis = c.b, c.tensor("data"), c.static("axis")
    lengths, offsets = c.optional("lengths", i64), c.optional("offsets", i64)
    given = lengths if lengths is not None else offsets
    if given is None:
        raise Unsupported("segments by indices", "give lengths or offsets")
    name = {"max": "amax", "min": "amin"}.get(c["reduce"], c["reduce"])
    first = as_node(b, c["initial"] if c["initial"] is not None else start_of(name, x.dtype), x.dtype)
    n, lead = c.shape[axis], x.shape[:axis]
    if 0 in x.shape or 0 in c.shape:
        empty = b.const(math.nan, x.dtype) if name == "mean" and c["initial"] is None else first
        return expand(b, empty, c.shape)
    ends = b(ops.cumsum, given, axis=axis) if lengths is not None else slice_axis(b, given, axis, 1, n)
    place = expand(b, b(ops.iota, extent=x.shape[axis], dtype=i64), (*lead, x.shape[axis]))
    owner = counted(b, ends, place, True)  # as many segments end at or before an element as come before its own
    if lengths is None:  # what lies before the first offset is nobody's
        is_before = b(ops.lt, place, slice_axis(b, given, axis, 0, 1))
        owner = b(ops.where, is_before, as_node(b, n, i64), owner)
    found = _folded(b, x, owner, n, name, first, axis)
    if name == "mean":
        ones = b(ops.full, value=1.0, dtype=x.dtype, shape=x.shape)
        counts = _folded(b, ones, owner, n, "sum", b.const(0, x.dtype), axis)
        is_empty = b(ops.eq, counts, b.const(0, x.dtype))
        empty = found if c["initial"] is not None else b.const(math.nan, x.dtype)
        found = b(ops.where, is_empty, empty, b(ops.div, found, counts))
    return found


def _step(offsets: Node) -> int | None:
    """The length of bags that are equally long: what a ramp from 0 is multiplied with."""
    if offsets.op is not ops.mul or offsets.inputs[0].op is not ops.iota or offsets.inputs[1].op is not CONST:
        return None
    return int(offsets.inputs[1].attrs["data"].array.item())


def _embedding_bag(c: AtenCall) -> Result:
    b, weight = c.b, c.tensor("weight")
    indices, offsets = c.tensor("indices", i64), c.tensor("offsets", i64)
    mode, n = c.static("mode"), c.shape[0]
    if 0 in indices.shape or 0 in weight.shape or n == 0:
        raise Unsupported("bags of nothing", "PyTorch runs it")
    rows = b(ops.gather, weight, indices, axis=0)
    if c["per_sample_weights"] is not None:
        factors = c.tensor("per_sample_weights", weight.dtype)
        rows = b(ops.mul, rows, reshape(b, factors, (rows.shape[0], 1)))
    name = ("sum", "mean", "amax")[mode]
    start = b.const(start_of(name, weight.dtype), weight.dtype)
    kept = b(ops.full, value=1.0, dtype=weight.dtype, shape=(rows.shape[0], 1))
    if c["padding_idx"] >= 0:
        is_kept = b(ops.ne, indices, b.const(c["padding_idx"], i64))
        is_kept = reshape(b, is_kept, (rows.shape[0], 1))
        rows, kept = b(ops.where, is_kept, rows, start), cast(b, is_kept, weight.dtype)
    step = _step(offsets)  # bags of one size are an axis: no scattering
    if step is not None and rows.shape[0] == n * step:
        bags, marks = (reshape(b, x, (n, step, x.shape[1])) for x in (rows, kept))
        found = b(ops.reduce_max if name == "amax" else ops.reduce_sum, bags, axes=(1,), keepdims=False)
        counts = b(ops.reduce_sum, marks, axes=(1,), keepdims=False)
        owner = reshape(b, expand(b, reshape(b, b(ops.iota, extent=n, dtype=i64), (n, 1)), (n, step)), (n * step,))
    else:
        starts = slice_axis(b, offsets, 0, 0, n)
        owner = counted(b, starts, b(ops.iota, extent=rows.shape[0], dtype=i64), True)
        owner = b(ops.sub, owner, b.const(1, i64))
        found = _folded(b, rows, owner, n, name, start)
        counts = _folded(b, kept, owner, n, "sum", b.const(0, weight.dtype))
    is_empty = b(ops.eq, counts, b.const(0, weight.dtype))
    if name == "mean":
        found = b(ops.div, found, b(ops.where, is_empty, b.const(1, weight.dtype), counts))
    result = b(ops.where, is_empty, b.const(0, weight.dtype), found)
    if c.name.endswith("forward_only.default"):
        return result, None, None, None
    sizes, places = c.results[2], c.results[3]  # what a backward call takes
    assert sizes is not None and places is not None
    kept_each = cast(b, reshape(b, counts, (n,)), sizes.dtype)
    if name != "amax":
        return result, None, kept_each, None
    return result, None, kept_each, cast(b, _greatest(b, rows, found, indices, owner), places.dtype)


def _greatest(b: Builder, rows: Node, found: Node, indices: Node, owner: Node) -> Node:
    """The row of the table from which each bag's greatest elements come, the first of equals; 0 for an empty bag."""
    n, none = found.shape[0], rows.shape[0]
    is_greatest = b(ops.eq, rows, b(ops.gather, found, owner, axis=0))
    place = reshape(b, b(ops.iota, extent=none, dtype=i64), (none, 1))
    place = b(ops.where, is_greatest, place, as_node(b, none, i64))
    first = _folded(b, place, owner, n, "amin", as_node(b, none, i64))
    padded = b(ops.concat, indices, b(ops.full, value=0, dtype=i64, shape=(1,)), axis=0)
    return b(ops.gather, padded, first, axis=0)


def _embedding_renorm(c: AtenCall) -> Node:
    """Rows that are looked up and longer than allowed, made as long as allowed."""
    b, x, p = c.b, c.tensor("self"), c.static("norm_type")
    indices = c.tensor("indices", i64)
    size = b(ops.abs, x)
    if math.isinf(p):
        norm = b(ops.reduce_max, size, axes=(1,), keepdims=True)
    elif p == 2:
        norm = b(ops.reduce_l2, x, axes=(1,), keepdims=True)
    else:
        total = b(ops.reduce_sum, b(ops.pow, size, b.const(p, x.dtype)), axes=(1,), keepdims=True)
        norm = b(ops.pow, total, b.const(1 / p, x.dtype))
    limit = b.const(c.static("max_norm"), x.dtype)
    scale = b(ops.div, limit, b(ops.add, norm, b.const(1e-7, x.dtype)))
    flat = reshape(b, indices, (indices.type.n_elements,))
    untouched = b(ops.full, value=0.0, dtype=i64, shape=(x.shape[0],))
    ones = b(ops.full, value=1.0, dtype=i64, shape=flat.shape)
    touched = b(ops.scatter_elements, untouched, flat, ones, axis=0, reduction="none")
    is_long = b(ops.logical_and, reshape(b, cast(b, touched, bool_), (x.shape[0], 1)), b(ops.gt, norm, limit))
    return b(ops.where, is_long, b(ops.mul, x, scale), x)


TABLE: Mapping[str, Convert] = {
    "fractional_max_pool2d.default": _fractional_max_pool, "fractional_max_pool3d.default": _fractional_max_pool,
    "grid_sampler_2d.default": _grid_sampler, "grid_sampler_3d.default": _grid_sampler,
    "segment_reduce.default": _segment_reduce,
    "_embedding_bag_forward_only.default": _embedding_bag, "_embedding_bag.default": _embedding_bag,
    "embedding_renorm.default": _embedding_renorm,
}  # fmt: skip
