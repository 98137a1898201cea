"""Scans, moves, lookups and transforms that some formats have no name for.

In: nodes. Out: plainer ones. Not its business: speed; a scan over ``n`` elements takes ``log2(n)`` steps over all.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import Dim, floordiv
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array, f32, i64, product
from tilewright.frontend.nodes import reshape, slice_axis, transpose
from tilewright.frontend.spellings.spelling import Spelling, number, ramp
from tilewright.ops.common import highest, lowest
from tilewright.ops.contract import einsum_terms
from tilewright.ops.elementwise import in_wide

# --- scans ----------------------------------------------------------------------------------------------------------


def _length(x: Node, axis: int) -> int:
    n = x.shape[axis]
    if not is_known(n):
        raise OpError(f"a scan over {n} elements, a number that each call gives, has no steps that are known")
    return n


def _shifted(b: Builder, x: Node, axis: int, by: int, first: Node) -> Node:
    """``x`` moved ``by`` places towards the end; what is free holds ``first``."""
    shape = tuple(min(by, _length(x, axis)) if k == axis else n for k, n in enumerate(x.shape))
    head = b(ops.expand, first, shape=shape)
    return b(ops.concat, head, slice_axis(b, x, axis, 0, max(_length(x, axis) - by, 0)), axis=axis)


def _cumulative(join: OpDef, first: Callable[[Node], float]) -> Spelling:
    """Each step joins what lies 1, 2, 4 ... places before (Hillis and Steele)."""

    def spell(b: Builder, node: Node) -> Node:
        a, (given,) = node.attrs, node.inputs

        def folded(x: Node) -> Node:
            axis, none = a["axis"], number(b, first(x), x)
            x = b(ops.reverse, x, axes=(axis,)) if a["reverse"] else x
            x = _shifted(b, x, axis, 1, none) if a["exclusive"] else x
            by = 1
            while by < _length(x, axis):
                x = b(join, x, _shifted(b, x, axis, by, none))
                by *= 2
            return b(ops.reverse, x, axes=(axis,)) if a["reverse"] else x

        if a["accumulator"] is None:
            return in_wide(b, (given,), folded)
        return b(ops.cast, folded(b(ops.cast, given, dtype=a["accumulator"])), dtype=given.dtype)

    return spell


def _linear_scan(b: Builder, node: Node) -> Node:
    """Two steps ``y -> f y + t`` are one: ``(f2 f1, f2 t1 + t2)``; so prefixes join as those of a sum do."""
    factors, terms = node.inputs
    by = 1
    while by < _length(terms, 0):
        before = _shifted(b, terms, 0, by, number(b, 0, terms))
        terms = b(ops.add, b(ops.mul, factors, before), terms)
        factors = b(ops.mul, factors, _shifted(b, factors, 0, by, number(b, 1, factors)))
        by *= 2
    return terms


# --- moves ----------------------------------------------------------------------------------------------------------


def _roll(b: Builder, node: Node) -> Node:
    (made,) = node.inputs
    for shift, axis in zip(node.attrs["shifts"], node.attrs["axes"], strict=True):
        n = made.shape[axis]
        if not is_known(n) or not is_known(shift):
            raise OpError(f"a turn by {shift} of {n} elements is not known")
        at = shift % n if n else 0
        if at:
            tail, head = slice_axis(b, made, axis, n - at, at), slice_axis(b, made, axis, 0, n - at)
            made = b(ops.concat, tail, head, axis=axis)
    return made


def _space_to_depth(b: Builder, node: Node) -> Node:
    (x,), k = node.inputs, node.attrs["block"]
    n, c, h, w = x.shape
    split = b(ops.reshape, x, shape=(n, c, floordiv(h, k), k, floordiv(w, k), k))
    order = (0, 3, 5, 1, 2, 4) if node.attrs["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    return b(ops.reshape, b(ops.transpose, split, perm=order), shape=node.shape)


def _depth_to_space(b: Builder, node: Node) -> Node:
    (x,), k = node.inputs, node.attrs["block"]
    n, c, h, w = x.shape
    deep = floordiv(c, k * k)
    dcr = node.attrs["mode"] == "DCR"
    split = b(ops.reshape, x, shape=(n, k, k, deep, h, w) if dcr else (n, deep, k, k, h, w))
    order = (0, 3, 4, 1, 5, 2) if dcr else (0, 1, 4, 2, 5, 3)
    return b(ops.reshape, b(ops.transpose, split, perm=order), shape=node.shape)


def _trilu(b: Builder, node: Node) -> Node:
    """The elements whose column is far enough from their row."""
    (x,), a = node.inputs, node.attrs
    rank = len(x.shape)
    row, column = (ramp(b, x.shape[k], i64, k, rank, x) for k in (rank - 2, rank - 1))
    k = a["k"] if is_known(a["k"]) else None
    if k is None:
        raise OpError(f"a diagonal {a['k']} that each call gives")
    distance = b(ops.sub, column, row)
    kept = b(ops.ge if a["upper"] else ops.le, distance, b.const(k, i64))
    return b(ops.where, kept, x, number(b, a["fill"], x))


def _dynamic_update_slice(b: Builder, node: Node) -> Node:
    """The update scattered to where its window lies, whose starts are moved until it fits.

    Axes behind the last one that the window does not fill are written whole.
    """
    x, update, starts = node.inputs
    partial = [k for k, (n, m) in enumerate(zip(x.shape, update.shape, strict=True)) if n != m]
    if not partial:
        return update
    depth = partial[-1] + 1
    room = b(ops.dim_values, x, update, dims=tuple(n - m for n, m in zip(x.shape, update.shape, strict=True)))
    starts = b(ops.minimum, b(ops.maximum, b(ops.cast, starts, dtype=i64), b.const(0, i64)), room)
    places: list[Node] = []
    for k in range(depth):
        start = b(ops.reshape, slice_axis(b, starts, 0, k, 1), shape=())
        place = b(ops.add, ramp(b, update.shape[k], i64, k, depth + 1, update), start)
        places.append(b(ops.expand, place, shape=(*update.shape[:depth], 1)))
    return b(ops.scatter_nd, x, b(ops.concat, *places, axis=depth), update)


def _one_hot(b: Builder, node: Node) -> Node:
    indices, off_on = node.inputs
    axis, depth = node.attrs["axis"], node.attrs["depth"]
    shape: list[Dim] = list(indices.shape)
    shape.insert(axis, 1)
    at = b(ops.reshape, b(ops.cast, indices, dtype=i64), shape=tuple(shape))
    size = b(ops.reshape, b(ops.dim_values, indices, dims=(depth,)), shape=())
    at = b(ops.where, b(ops.lt, at, b.const(0, i64)), b(ops.add, at, size), at)
    is_there = b(ops.eq, at, ramp(b, depth, i64, axis, len(shape), indices))
    off, on = (b(ops.reshape, slice_axis(b, off_on, 0, k, 1), shape=()) for k in (0, 1))
    return b(ops.where, is_there, on, off)


def _rotary(b: Builder, node: Node) -> Node:
    """Pairs as halves, or as neighbours along an axis of their own."""
    return in_wide(b, node.inputs, lambda x, cos, sin: _turned_pairs(b, x, cos, sin, node.attrs["interleaved"]))


def _turned_pairs(b: Builder, x: Node, cos: Node, sin: Node, interleaved: bool) -> Node:
    last = len(x.shape) - 1
    half = floordiv(x.shape[last], 2)
    if interleaved:
        pairs = b(ops.reshape, x, shape=(*x.shape[:last], half, 2))
        first, second = (b(ops.reshape, slice_axis(b, pairs, last + 1, k, 1), shape=(*x.shape[:last], half))
                         for k in (0, 1))  # fmt: skip
    else:
        first, second = (slice_axis(b, x, last, k * half, half) for k in (0, 1))
    turned = (
        b(ops.sub, b(ops.mul, first, cos), b(ops.mul, second, sin)),
        b(ops.add, b(ops.mul, second, cos), b(ops.mul, first, sin)),
    )
    if not interleaved:
        return b(ops.concat, *turned, axis=last)
    pair = [b(ops.reshape, part, shape=(*x.shape[:last], half, 1)) for part in turned]
    return b(ops.reshape, b(ops.concat, *pair, axis=last + 1), shape=x.shape)


# --- lookups and products -------------------------------------------------------------------------------------------


def _ranked(b: Builder, node: Node) -> tuple[Node, ...]:
    """Of everything in order, the element of that rank."""
    x, rank = node.inputs
    values, places = b.results(b(ops.sort, x, axis=node.attrs["axis"]))
    axis = node.attrs["axis"]
    return tuple(b(ops.gather_elements, of, rank, axis=axis) for of in (values, places))


def _grouped_matmul(b: Builder, node: Node) -> Node:
    """Each row times the matrix that is its own."""
    rows, stack, group = node.inputs
    matrices = b(ops.gather, stack, group, axis=0)
    m, k = rows.shape
    made = b(ops.matmul, b(ops.reshape, rows, shape=(m, 1, k)), matrices)
    return b(ops.reshape, made, shape=node.shape)


def _fourier(b: Builder, node: Node) -> Node:
    """Products with the cosines and sines of the definition: exact to a rounding, slow for long signals."""
    (x,), a = node.inputs, node.attrs
    n, form = a["n"], a["form"]
    if not is_known(n):
        raise OpError("a matrix of roots has a size that is known")  # the op's own definition is left
    half = n // 2 + 1
    read, written = {"complex": (n, n), "real": (n, half), "hermitian": (half, n)}[form]
    angle = a["sign"] * 2 * math.pi * (np.outer(np.arange(read), np.arange(written)) % n) / n
    cos, sin = a["scale"] * np.cos(angle), a["scale"] * np.sin(angle)
    if form == "hermitian":
        # What is not given is the conjugate of what is, so that inner terms count twice and their sines fall out.
        twice = np.array([1 if k in (0, n / 2) else 2 for k in range(half)])[:, None]
        matrix = np.stack([twice * cos, -twice * sin], axis=1).reshape(2 * half, n)
    elif form == "real":
        matrix = np.stack([cos, sin], axis=2).reshape(n, 2 * half)
    else:
        rows = np.stack([np.stack([cos, sin], axis=2), np.stack([-sin, cos], axis=2)], axis=1)
        matrix = rows.reshape(2 * n, 2 * n)
    return _by_matrix(b, x, matrix, node.shape, n_last=1 if form == "real" else 2)


def _by_matrix(b: Builder, x: Node, matrix: Array, shape: tuple[Dim, ...], n_last: int) -> Node:
    flat = b(ops.reshape, x, shape=(*x.shape[: len(x.shape) - n_last], matrix.shape[0]))
    return b(ops.reshape, b(ops.matmul, flat, b.const(matrix, x.dtype)), shape=shape)


def _top_k(b: Builder, node: Node) -> tuple[Node, ...]:
    """The first of everything in order."""
    a, (x,) = node.attrs, node.inputs
    ordered = b.results(b(ops.sort, x, axis=a["axis"], descending=a["largest"]))
    return tuple(slice_axis(b, of, a["axis"], 0, a["k"]) for of in ordered)


def _einsum(b: Builder, node: Node) -> Node:
    """From left to right: two operands are a product of matrices over what both have and nobody needs later."""
    terms, result = einsum_terms(node.attrs["equation"], [len(x.shape) for x in node.inputs])
    if any(len(set(term)) < len(term) for term in terms):
        raise OpError("a diagonal of an operand has no plainer form")
    have, labels = node.inputs[0], terms[0]
    for k, (x, term) in enumerate(zip(node.inputs[1:], terms[1:], strict=True)):
        later = set(result).union(*terms[k + 2 :])
        have, labels = _joined(b, (have, labels), (x, term), later)
    dropped = tuple(k for k, label in enumerate(labels) if label not in result)
    made = b(ops.reduce_sum, have, axes=dropped) if dropped else have
    left = [label for label in labels if label in result]
    return transpose(b, made, [left.index(label) for label in result])


_Labelled = tuple[Node, list[str]]


def _joined(b: Builder, one: _Labelled, two: _Labelled, later: set[str]) -> _Labelled:
    """The product of two operands, summed over what both have and ``later`` lacks."""
    both = [label for label in one[1] if label in two[1]]
    summed = [label for label in both if label not in later]
    batch = [label for label in both if label in later]
    sizes = dict(zip(two[1], two[0].shape, strict=True)) | dict(zip(one[1], one[0].shape, strict=True))
    for x, term in (one, two):
        if any(sizes[label] != n for label, n in zip(term, x.shape, strict=True)):
            raise OpError("an axis of one element that stretches has no plainer form")
    own = [[label for label in term if label not in both] for _, term in (one, two)]
    orders = (batch + own[0] + summed, batch + summed + own[1])
    flat = [transpose(b, x, [t.index(n) for n in order]) for (x, t), order in zip((one, two), orders, strict=True)]
    rows, columns, depth = (product([sizes[n] for n in part]) for part in (own[0], own[1], summed))
    outer = [sizes[n] for n in batch]
    made = b(ops.matmul, reshape(b, flat[0], (*outer, rows, depth)), reshape(b, flat[1], (*outer, depth, columns)))
    labels = [*batch, *own[0], *own[1]]
    return reshape(b, made, [sizes[n] for n in labels]), labels


_REPEATING = {("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"), ("asymmetric", "floor")}
"""Coordinates and roundings by which the nearest elements at a whole multiple of a size are each as often there."""


def _copies(a: Attrs, n: Dim, size: Dim, scale: float | None) -> int | None:
    """How often each of ``n`` elements stands in a row in the result, where the nearest ones are just repeated."""
    times = floordiv(size, n) if n != 0 else 0
    if a["mode"] != "nearest" or (a["coordinate_mode"], a["nearest_mode"]) not in _REPEATING or not is_known(times):
        return None
    return times if times > 1 and size == n * times and scale in (None, times) else None


def _resize(b: Builder, node: Node) -> Node:
    """Elements are repeated, or interpolated by products with matrices: what each makes of an element alone."""
    a, (made,) = node.attrs, node.inputs
    if a["coordinate_mode"] == "tf_crop_and_resize":
        raise OpError("resizing of a cut has no plainer form")
    dtype = made.dtype
    for axis, (n, size) in enumerate(zip(node.inputs[0].shape, a["sizes"], strict=True)):
        scale = a["scales"][axis] if a["scales"] else None
        if n == size and scale in (None, 1):
            continue
        if (times := _copies(a, n, size, scale)) is not None:
            head, tail = made.shape[: axis + 1], made.shape[axis + 1 :]
            apart = b(ops.expand, reshape(b, made, (*head, 1, *tail)), shape=(*head, times, *tail))
            made = reshape(b, apart, (*head[:-1], size, *tail))
            continue
        if not (is_known(n) and is_known(size)):
            raise OpError("resizing to sizes that each call gives, but for whole multiples, has no plainer form")
        made = made if made.dtype.is_float else b(ops.cast, made, dtype=f32)
        scales = () if scale is None else (1.0, scale)
        alone = Attrs({**a, "sizes": (n, size), "scales": scales})
        (matrix,) = (ops.resize.reference((np.eye(n, dtype=np.float32),), alone),)
        last = len(made.shape) - 1
        order = [k for k in range(last + 1) if k != axis] + [axis]
        turned = b(ops.matmul, transpose(b, made, order), b.const(np.asarray(matrix), made.dtype))
        made = transpose(b, turned, [order.index(k) for k in range(last + 1)])
    return made if made.dtype is dtype else b(ops.cast, made, dtype=dtype)


def _pad(b: Builder, node: Node) -> Node:
    """Along each axis the elements that padding repeats, by their places."""
    a, (made, _) = node.attrs, node.inputs
    if a["mode"] == "constant":
        raise OpError("there is no padding with a constant of this form")
    for axis, pads in enumerate(a["pads"]):
        n = made.shape[axis]
        if pads == (0, 0):
            continue
        if not is_known(n) or not are_known(pads):
            raise OpError("padding by sizes that each call gives has no plainer form")
        at = np.asarray(ops.pad.reference((np.arange(n), np.array(0)), Attrs({**a, "pads": (pads,)})))
        made = b(ops.gather, made, b.const(at, i64), axis=axis)
    return made


def _tile(b: Builder, node: Node) -> Node:
    (made,) = node.inputs
    for axis, n in enumerate(node.attrs["repeats"]):
        if not is_known(n) or n < 1:
            raise OpError(f"{n} copies, a number that each call gives, have no plainer form")
        made = b(ops.concat, *[made] * n, axis=axis) if n > 1 else made
    return made


def _prelu(b: Builder, node: Node) -> Node:
    x, slope = node.inputs
    return b(ops.where, b(ops.lt, x, number(b, 0, x)), b(ops.mul, x, slope), x)


def _quantisation(b: Builder, node: Node) -> tuple[Node, Node, Node]:
    """The operand, and its scale and zero point along an axis that they have in common."""
    x, scale, zero = node.inputs
    a, rank = node.attrs, len(node.inputs[0].shape)
    if a["block_size"]:
        raise OpError("scales of blocks have no plainer form")
    if scale.shape:
        shape = tuple(x.shape[k] if k == a["axis"] else 1 for k in range(rank))
        scale, zero = b(ops.reshape, scale, shape=shape), b(ops.reshape, zero, shape=shape)
    return x, scale, zero


def _quantize(b: Builder, node: Node) -> Node:
    """Rounded in f32, and cut to the range of the result's type."""
    x, scale, zero = _quantisation(b, node)
    dtype = node.dtype

    def steps(x: Node, scale: Node) -> Node:
        real = b(ops.add, b(ops.round, b(ops.div, x, scale)), b(ops.cast, zero, dtype=x.dtype))
        return b(ops.clamp, real, number(b, dtype.min, real), number(b, dtype.max, real))

    wide = [b(ops.cast, v, dtype=f32) if v.dtype.bits < 32 else v for v in (x, scale)]
    return b(ops.cast, steps(*wide), dtype=dtype)


def _dequantize(b: Builder, node: Node) -> Node:
    x, scale, zero = _quantisation(b, node)
    if x.dtype.is_narrow:
        x, zero = b(ops.decode, x), b(ops.decode, zero)
    real = f32 if node.dtype.bits < 32 else node.dtype
    less = b(ops.sub, b(ops.cast, x, dtype=real), b(ops.cast, zero, dtype=real))
    made = b(ops.mul, less, b(ops.cast, scale, dtype=real) if scale.dtype is not real else scale)
    return made if made.dtype is node.dtype else b(ops.cast, made, dtype=node.dtype)


SPELLINGS: dict[OpDef, Spelling] = {
    ops.top_k: _top_k, ops.einsum: _einsum, ops.resize: _resize, ops.pad: _pad, ops.tile: _tile, ops.prelu: _prelu,
    ops.quantize_linear: _quantize, ops.dequantize_linear: _dequantize,
    ops.cumsum: _cumulative(ops.add, lambda x: 0), ops.cumprod: _cumulative(ops.mul, lambda x: 1),
    ops.cummax: _cumulative(ops.maximum, lambda x: lowest(x.dtype).value),
    ops.cummin: _cumulative(ops.minimum, lambda x: highest(x.dtype).value), ops.linear_scan: _linear_scan,
    ops.roll: _roll, ops.space_to_depth: _space_to_depth, ops.depth_to_space: _depth_to_space, ops.trilu: _trilu,
    ops.dynamic_update_slice: _dynamic_update_slice, ops.one_hot: _one_hot, ops.rotary: _rotary, ops.ranked: _ranked,
    ops.grouped_matmul: _grouped_matmul, ops.fourier: _fourier,
}  # fmt: skip
