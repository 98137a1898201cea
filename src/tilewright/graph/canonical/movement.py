"""Rules of ``canonicalize`` for ops that move elements: no-ops go, chains merge, views are reshapes.

In: one view, copy, reduction or padded window over normal operands. Out: an equal, cheaper or more regular node.
Not its business: arithmetic (``arithmetic``), and moving transposes past other ops (``forms.layout``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known, known_at_most
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim, is_nonneg
from tilewright.core.graph import Node
from tilewright.core.opdef import Trait
from tilewright.core.rewrite import Rewriting, Rule
from tilewright.core.shapes import common_parts
from tilewright.core.types import f32, product
from tilewright.graph.facts import array_of, is_scalar

FOLDS = (ops.reduce_sum, ops.reduce_prod, ops.reduce_max, ops.reduce_min, ops.reduce_any, ops.reduce_all)
REDUCTIONS = (*FOLDS, ops.reduce_mean)


# --- reshape, transpose, expand -------------------------------------------------------------------------------------


def _reshape(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    if x.shape == node.shape:
        return x
    if x.op is ops.reshape:
        return b(ops.reshape, x.inputs[0], shape=node.shape)
    if x.op is ops.expand and product(x.inputs[0].shape) == 1:
        return b(ops.expand, b(ops.reshape, x.inputs[0], shape=()), shape=node.shape)
    return None


def _reshape_of_reduction(b: Rewriting, node: Node) -> Node | None:
    """A reshape that adds or drops exactly the reduced dimensions is ``keepdims``."""
    x = node.inputs[0]
    if x.op not in REDUCTIONS or not b.read_once(x):
        return None
    source, axes, keep = x.inputs[0], x.attrs["axes"], not x.attrs["keepdims"]
    other = tuple(1 if k in axes else d for k, d in enumerate(source.shape) if keep or k not in axes)
    return b(x.op, source, **{**x.attrs, "keepdims": keep}) if other == node.shape else None


def _reshape_of_matmul(b: Rewriting, node: Node) -> Node | None:
    """A product of matrices whose batch dimensions were merged, and are taken apart again, keeps them apart."""
    product_ = node.inputs[0]
    if product_.op is not ops.matmul or node.shape[-2:] != product_.shape[-2:]:
        return None
    x, y = product_.inputs
    if x.op is not ops.reshape or y.op is not ops.reshape:
        return None
    apart = (x.inputs[0], y.inputs[0])
    for whole, merged in zip(apart, (x, y), strict=True):
        if whole.shape[:-2] != node.shape[:-2] or whole.shape[-2:] != merged.shape[-2:]:
            return None
    return b(ops.matmul, *apart, **product_.attrs)


def _reshape_of_transpose(b: Rewriting, node: Node) -> Node | None:
    """Matrices transposed while their batch dimensions were merged are transposed in place."""
    x = node.inputs[0]
    if x.op is not ops.transpose or x.attrs["perm"] != (0, 2, 1) or x.inputs[0].op is not ops.reshape:
        return None
    rank = node.type.rank
    if rank <= x.type.rank or node.shape[-2:] != x.shape[-2:] or not b.read_once(x):
        return None
    apart = b(ops.reshape, x.inputs[0], shape=(*node.shape[:-2], node.shape[-1], node.shape[-2]))
    return b(ops.transpose, apart, perm=(*range(rank - 2), rank - 1, rank - 2))


def composed(b: Rewriting, x: Node, perm: Sequence[int]) -> Node:
    """A permutation of ``x``, which is one itself, as one of what that permutes; nothing where it undoes that one."""
    both = [x.attrs["perm"][p] for p in perm]
    return x.inputs[0] if both == sorted(both) else b(ops.transpose, x.inputs[0], perm=both)


def _transpose(b: Rewriting, node: Node) -> Node | None:
    x, perm = node.inputs[0], node.attrs["perm"]
    if perm == tuple(range(len(perm))):
        return x
    if x.op is ops.transpose:
        return composed(b, x, perm)
    if x.op is ops.expand and product(x.inputs[0].shape) == 1:
        return b(ops.expand, b(ops.reshape, x.inputs[0], shape=()), shape=node.shape)
    moving = [p for p in perm if x.shape[p] != 1]
    return b(ops.reshape, x, shape=node.shape) if moving == sorted(moving) else None


def _transpose_of_reshaped(b: Rewriting, node: Node) -> Node | None:
    """Of two permutations with dimensions joined (heads, then channels) or taken apart between them one does both.

    It permutes parts that make up the dimensions on both sides.
    """
    reshaped = node.inputs[0]
    inner = reshaped.inputs[0] if reshaped.op is ops.reshape else reshaped
    if inner.op is not ops.transpose or inner is reshaped or not b.read_once(reshaped) or not b.read_once(inner):
        return None
    found = None if 0 in inner.shape else common_parts(inner.shape, reshaped.shape)
    if found is None:
        return None
    sizes, *counts = found
    before, after = ([list(range(end - n, end)) for n, end in zip(c, accumulate(c), strict=True)] for c in counts)
    for own in before:
        if not own:  # a dimension of 1, which stays one
            own.append(len(sizes))
            sizes.append(1)
    source, perm = inner.inputs[0], inner.attrs["perm"]
    laid = [part for axis in range(source.type.rank) for part in before[perm.index(axis)]]
    apart = b(ops.reshape, source, shape=tuple(sizes[part] for part in laid))
    order = [laid.index(part) for p in node.attrs["perm"] for part in after[p]]
    order += [k for k in range(len(laid)) if k not in order]
    return b(ops.reshape, b(ops.transpose, apart, perm=order), shape=node.shape)


def _expand(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    if x.shape == node.shape:
        return x
    return b(ops.expand, x.inputs[0], shape=node.shape) if x.op is ops.expand else None


def _full(b: Rewriting, node: Node) -> Node | None:
    one = b.const(node.attrs["value"], node.dtype)
    if node.inputs:
        one = b(ops.with_sizes, one, *node.inputs)
    return b(ops.expand, one, shape=node.shape) if node.shape else one


# --- slice, pad, concat ---------------------------------------------------------------------------------------------


def _slice(b: Rewriting, node: Node) -> Node | None:
    x, a = node.inputs[0], node.attrs
    if x.shape == node.shape and all(s == 0 for s in a["starts"]) and set(a["steps"]) <= {1}:
        return x
    if x.op is ops.slice and all(s > 0 for s in a["steps"]) and all(s > 0 for s in x.attrs["steps"]):
        return _slice_of_slice(b, node, x)
    if x.op is ops.concat:
        return _slice_of_concat(b, node, x)
    if x.op is ops.expand and product(x.inputs[0].shape) == 1:
        return b(ops.expand, b(ops.reshape, x.inputs[0], shape=()), shape=node.shape)
    return None


def _slice_of_slice(b: Rewriting, node: Node, inner: Node) -> Node:
    starts, stops, steps = [], [], []
    for k, (start, step) in enumerate(zip(node.attrs["starts"], node.attrs["steps"], strict=True)):
        first, stride = inner.attrs["starts"][k] + start * inner.attrs["steps"][k], step * inner.attrs["steps"][k]
        n = node.shape[k]
        starts.append(first)
        stops.append(first if n == 0 else first + (n - 1) * stride + 1)
        steps.append(stride)
    return b(ops.slice, inner.inputs[0], starts=starts, stops=stops, steps=steps)


def _slice_of_concat(b: Rewriting, node: Node, joined: Node) -> Node | None:
    """A slice that stays within one operand of a concat reads that operand."""
    axis = joined.attrs["axis"]
    start, stop, step = (node.attrs[k][axis] for k in ("starts", "stops", "steps"))
    offset: Dim = 0
    for x in joined.inputs:
        end = offset + x.shape[axis]
        if step > 0 and is_nonneg(start - offset) and is_nonneg(end - stop):
            starts, stops = list(node.attrs["starts"]), list(node.attrs["stops"])
            starts[axis], stops[axis] = start - offset, stop - offset
            if any(x.shape[k] != d for k, d in enumerate(joined.shape) if k != axis):
                return None
            return b(ops.slice, x, starts=starts, stops=stops, steps=node.attrs["steps"])
        offset = end
    return None


def _slice_of_conv(b: Rewriting, node: Node) -> Node | None:
    """Results that a causal convolution cuts off are not computed: the window's padding shrinks by what read them."""
    x, a = node.inputs[0], node.attrs
    if x.op is not ops.conv or not b.read_once(x) or set(a["steps"]) != {1}:
        return None
    n_spatial = node.type.rank - 2
    first = 1 if x.attrs["layout"] == "NHWC" else 2
    ends = [n - stop for n, stop in zip(x.shape, a["stops"], strict=True)]
    outside = [k for k in range(node.type.rank) if not first <= k < first + n_spatial]
    if any(a["starts"][k] != 0 or ends[k] != 0 for k in outside):
        return None
    cuts = list(zip(a["starts"], ends, strict=True))[first : first + n_spatial]
    if not all(is_known(n) for cut in cuts for n in cut) or 0 in node.shape:
        return None
    pads = [
        (lo - start * s, hi - end * s)
        for (lo, hi), (start, end), s in zip(x.attrs["pads"], cuts, x.attrs["strides"], strict=True)
    ]
    return b(ops.conv, *x.inputs, **{**x.attrs, "pads": pads})


def _slice_of_arithmetic(b: Rewriting, node: Node) -> Node | None:
    """What is cut off is not computed, where one operand alone has elements along the axes that are cut."""
    x, a = node.inputs[0], node.attrs
    if Trait.ELEMENTWISE not in x.op.traits or not b.read_once(x):
        return None
    axes = [k for k, n in enumerate(x.shape) if n != node.shape[k] or a["steps"][k] != 1]
    reaching = [v for v in x.inputs if any(_along(v, x, k) != 1 for k in axes)]
    if not axes or len(reaching) != 1 or reaching[0].shape != x.shape or x.inputs.count(reaching[0]) != 1:
        return None
    part = b(ops.slice, reaching[0], **a)
    return b(x.op, *(part if v is reaching[0] else v for v in x.inputs), **x.attrs)


def _along(operand: Node, node: Node, axis: int) -> Dim:
    """The size of a broadcast operand along an axis of the result."""
    k = axis - (node.type.rank - operand.type.rank)
    return operand.shape[k] if k >= 0 else 1


def _pad(b: Rewriting, node: Node) -> Node | None:
    (x, value), pads = node.inputs, node.attrs["pads"]
    if all(lo == 0 and hi == 0 for lo, hi in pads):
        return x
    constant = node.attrs["mode"] == "constant"
    if constant and all(is_nonneg(lo * -1) and is_nonneg(hi * -1) for lo, hi in pads):
        starts = [lo * -1 for lo, _ in pads]
        stops = [n + hi for n, (_, hi) in zip(x.shape, pads, strict=True)]
        return b(ops.slice, x, starts=starts, stops=stops, steps=[1] * len(pads))
    if constant and x.op is ops.pad and x.attrs["mode"] == "constant" and x.inputs[1] is value:
        inner = x.attrs["pads"]
        if all(is_nonneg(p) for pair in (*pads, *inner) for p in pair):
            both = [(a + c, d + e) for (a, d), (c, e) in zip(pads, inner, strict=True)]
            return b(ops.pad, x.inputs[0], value, pads=both)
    return None


def _pad_into_window(b: Rewriting, node: Node) -> Node | None:
    """Padding before a convolution or a maximum joins the window's own."""
    x, layout = node.inputs[0], node.attrs["layout"]
    if x.op is not ops.pad or x.attrs["mode"] != "constant" or not b.read_once(x):
        return None
    outside = -math.inf if node.op is ops.max_pool else 0
    if not is_scalar(x.inputs[1], outside):
        return None
    n_spatial = node.type.rank - 2
    first = 1 if layout == "NHWC" else 2
    pads = x.attrs["pads"]
    spatial = pads[first : first + n_spatial]
    kept = all(p == (0, 0) for k, p in enumerate(pads) if not first <= k < first + n_spatial)
    if not kept or not all(is_nonneg(v) for p in spatial for v in p):
        return None
    both = [(lo + a, hi + c) for (lo, hi), (a, c) in zip(node.attrs["pads"], spatial, strict=True)]
    return b(node.op, x.inputs[0], *node.inputs[1:], **{**node.attrs, "pads": both})


def _concat(b: Rewriting, node: Node) -> Node | None:
    axis = node.attrs["axis"]
    if len(node.inputs) == 1:
        return node.inputs[0]
    kept = [x for x in node.inputs if x.shape[axis] != 0]
    if 0 < len(kept) < len(node.inputs):
        return b(ops.concat, *kept, axis=axis)
    if any(x.op is ops.concat and x.attrs["axis"] == axis for x in node.inputs):
        flat = [y for x in node.inputs for y in (x.inputs if x.op is ops.concat and x.attrs["axis"] == axis else (x,))]
        if len(flat) <= EFFORT.nodes:  # what is joined with itself many times doubles each time
            return b(ops.concat, *flat, axis=axis)
    return _rolled(b, node, axis) or _concat_of_slices(b, node.inputs, axis, node) or _moved_apart(b, node, axis)


def _rolled(b: Rewriting, node: Node, axis: int) -> Node | None:
    """The end of a tensor before its beginning, nothing left out: it is rolled."""
    if len(node.inputs) != 2 or any(x.op is not ops.slice or set(x.attrs["steps"]) != {1} for x in node.inputs):
        return None
    end, start = node.inputs
    x, at = end.inputs[0], end.attrs["starts"][axis]
    is_split = end.attrs["stops"][axis] == x.shape[axis] and start.attrs["starts"][axis] == 0
    if start.inputs[0] is not x or x.shape != node.shape or not is_split or start.attrs["stops"][axis] != at:
        return None
    return b(ops.roll, x, axes=(axis,), shifts=(x.shape[axis] - at,))


def _concat_of_slices(b: Rewriting, xs: Sequence[Node], axis: int, node: Node) -> Node | None:
    """Two neighbouring slices of one tensor that meet are one slice."""
    for k, (x, y) in enumerate(pairwise(xs)):
        if x.op is not ops.slice or y.op is not ops.slice or x.inputs[0] is not y.inputs[0]:
            continue
        ax, ay = x.attrs, y.attrs
        others = all(
            ax[name][i] == ay[name][i] for name in ("starts", "stops") for i in range(node.type.rank) if i != axis
        )
        if not others or set(ax["steps"] + ay["steps"]) != {1} or ax["stops"][axis] != ay["starts"][axis]:
            continue
        stops = (*ax["stops"][:axis], ay["stops"][axis], *ax["stops"][axis + 1 :])
        whole = b(ops.slice, x.inputs[0], starts=ax["starts"], stops=stops, steps=ax["steps"])
        rest = (*xs[:k], whole, *xs[k + 2 :])
        return b(ops.concat, *rest, axis=axis) if len(rest) > 1 else whole
    return None


class _AxisPlace(NamedTuple):
    """Place ``at`` of an axis of ``x``, and the order in which what is left of its other axes is read."""

    x: Node
    axis: int
    at: Dim
    perm: tuple[int, ...]


def _moved_apart(b: Rewriting, node: Node, axis: int) -> Node | None:
    """Places of an axis, taken apart, each transposed alike, and joined again: all of them transposed.

    So the parts of complex numbers move, which lie next to each other.
    """
    places = [_moved_place(x, axis) for x in node.inputs]
    first = places[0]
    if first is None or first.x.shape[first.axis] != len(places):
        return None
    if any(p != first._replace(at=k) for k, p in enumerate(places)):
        return None
    others = [k for k in range(first.x.type.rank) if k != first.axis]
    moved = [others[k] for k in first.perm]
    return b(ops.transpose, first.x, perm=(*moved[:axis], first.axis, *moved[axis:]))


def _moved_place(node: Node, axis: int) -> _AxisPlace | None:
    """What ``node`` is, whose length along ``axis`` is 1, if it is one place of another node, transposed or not."""
    shape = (*node.shape[:axis], *node.shape[axis + 1 :])
    if node.op is not ops.reshape or node.shape[axis] != 1:
        return None
    x, perm = node.inputs[0], tuple(range(len(shape)))
    if x.op is ops.transpose and x.shape == shape:
        perm, x = x.attrs["perm"], x.inputs[0]
        shape = x.shape
        if x.op is not ops.reshape:
            return None
        x = x.inputs[0]
    if x.op is not ops.slice or set(x.attrs["steps"]) != {1}:
        return None
    source, starts = x.inputs[0], x.attrs["starts"]
    cut = [k for k, (n, left) in enumerate(zip(source.shape, x.shape, strict=True)) if n != left]
    if len(cut) != 1 or x.shape[cut[0]] != 1 or shape != (*x.shape[: cut[0]], *x.shape[cut[0] + 1 :]):
        return None
    return _AxisPlace(source, cut[0], starts[cut[0]], perm)


def _tile(b: Rewriting, node: Node) -> Node | None:
    x, repeats = node.inputs[0], node.attrs["repeats"]
    if all(r == 1 for r in repeats):
        return x
    stretches = all(r == 1 or n == 1 for r, n in zip(repeats, x.shape, strict=True))
    return b(ops.expand, x, shape=node.shape) if stretches else None


def _no_move(b: Rewriting, node: Node) -> Node | None:
    """A reversal or roll of dimensions of size 1, or by nothing."""
    x = node.inputs[0]
    shifts = node.attrs.get("shifts", (1,) * len(node.attrs["axes"]))
    still = all(x.shape[k] == 1 or s == 0 for k, s in zip(node.attrs["axes"], shifts, strict=True))
    return x if still else None


def _gather(b: Rewriting, node: Node) -> Node | None:
    """Known, evenly spaced indices are a slice."""
    x, indices = node.inputs
    found, axis = array_of(indices), node.attrs["axis"]
    n = x.shape[axis]
    if found is None or found.ndim > 1 or found.size == 0 or not (is_known(n) or found.ndim == 0):
        return None
    if is_known(n):
        found = np.where(found < 0, found + n, found)
    flat = [int(i) for i in found.reshape(-1)]
    steps = {c - a for a, c in pairwise(flat)} or {1}
    if len(steps) != 1 or min(steps) < 1:
        return None
    first: Dim = flat[0] if flat[0] >= 0 else n + flat[0]
    if not is_nonneg(first) or not is_nonneg(n - 1 - first):
        return None
    starts: list[Dim] = [0] * x.type.rank
    stops, strides = list(x.shape), [1] * x.type.rank
    starts[axis], stops[axis], strides[axis] = first, first + (flat[-1] - flat[0] + 1), min(steps)
    part = b(ops.slice, x, starts=starts, stops=stops, steps=strides)
    return part if found.ndim else b(ops.reshape, part, shape=node.shape)


# --- reductions -----------------------------------------------------------------------------------------------------


def _reduce(b: Rewriting, node: Node) -> Node | None:
    x, axes = node.inputs[0], node.attrs["axes"]
    if not axes:
        return x
    if all(x.shape[k] == 1 for k in axes):
        return b(ops.reshape, x, shape=node.shape)
    if tuple(sorted(axes)) != axes:
        return b(node.op, x, axes=sorted(axes), keepdims=node.attrs["keepdims"])
    return None


def _reduce_of_reduce(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    if x.op is not node.op or x.attrs["keepdims"] != node.attrs["keepdims"] or not b.read_once(x):
        return None
    if node.dtype.is_float and node.dtype.bits < f32.bits:
        return None
    kept = [k for k in range(x.inputs[0].type.rank) if x.attrs["keepdims"] or k not in x.attrs["axes"]]
    axes = {*x.attrs["axes"], *(kept[k] for k in node.attrs["axes"])}
    return b(node.op, x.inputs[0], axes=sorted(axes), keepdims=node.attrs["keepdims"])


def _of_whole_rows(b: Rewriting, node: Node) -> Node | None:
    """Elements along the first axis whose index is the same for a whole row: rows are read or written at once."""
    x, index = node.inputs[:2]
    if node.attrs["axis"] != 0 or index.op is not ops.expand or index.shape[1:] != x.shape[1:] or index.type.rank < 2:
        return None
    source = index.inputs[0]
    if source.shape != (index.shape[0], *[1] * (index.type.rank - 1)):
        return None
    if node.op is ops.gather_elements:
        return b(ops.gather, x, b(ops.reshape, source, shape=source.shape[:1]), axis=0)
    rows = b(ops.reshape, source, shape=(source.shape[0], 1))
    return b(ops.scatter_nd, x, rows, node.inputs[2], reduction=node.attrs["reduction"])


def _gather_of_arithmetic(b: Rewriting, node: Node) -> Node | None:
    """Of a row of which one element is read the others are not computed, where one operand alone has elements along it.

    Others must be the same for the whole row, and rows those of the indices: a loss, of log-softmax at one class each.
    """
    (x, indices), axis = node.inputs, node.attrs["axis"]
    n = x.shape[axis]
    if Trait.ELEMENTWISE not in x.op.traits or indices.shape[axis] != 1 or known_at_most(n, 1):
        return None
    if any(k != axis and size != indices.shape[k] for k, size in enumerate(x.shape)):
        return None
    reaching = [v for v in x.inputs if _along(v, x, axis) != 1]
    if len(reaching) != 1 or reaching[0].shape != x.shape or x.inputs.count(reaching[0]) != 1:
        return None
    part = b(ops.gather_elements, reaching[0], indices, axis=axis)
    return b(x.op, *(part if v is reaching[0] else v for v in x.inputs), **x.attrs)


RULES = (
    Rule("reshape", (ops.reshape,), _reshape, "the order of elements stays"),
    Rule("reshape-of-reduction", (ops.reshape,), _reshape_of_reduction, "dimensions of size 1 are keepdims"),
    Rule("reshape-of-transpose", (ops.reshape,), _reshape_of_transpose, "batch dimensions may be merged or apart"),
    Rule("transpose", (ops.transpose,), _transpose, "permutations compose; moving only ones keeps the order"),
    Rule("transpose-of-reshaped", (ops.transpose,), _transpose_of_reshaped, "parts of dimensions move together"),
    Rule("expand", (ops.expand,), _expand, "broadcasting twice is broadcasting once"),
    Rule("full", (ops.full,), _full, "one number, broadcast"),
    Rule("slice", (ops.slice,), _slice, "the whole, a slice of a slice, or a slice within one joined operand"),
    Rule("slice-of-conv", (ops.slice,), _slice_of_conv, "a window that is not computed needs no padding"),
    Rule("slice-of-arithmetic", (ops.slice,), _slice_of_arithmetic, "each element depends on its own place only"),
    Rule("pad", (ops.pad,), _pad, "nothing added; only cropped; twice with one value"),
    Rule("pad-into-window", (ops.conv, ops.max_pool), _pad_into_window, "the window pads with the same value"),
    Rule("concat", (ops.concat,), _concat, "joining is associative, nothing is its identity, halves make a whole"),
    Rule("tile", (ops.tile,), _tile, "repeating once, or a dimension of size 1"),
    Rule("no-move", (ops.reverse, ops.roll), _no_move, "one element has no order"),
    Rule("gather", (ops.gather,), _gather, "known indices at even distances"),
    Rule("rows", (ops.gather_elements, ops.scatter_elements), _of_whole_rows, "one index for all elements of a row"),
    Rule("gather-of-arithmetic", (ops.gather_elements,), _gather_of_arithmetic, "each element is of its own place"),
    Rule("reduce", REDUCTIONS, _reduce, "over nothing, or over dimensions of size 1"),
    Rule("reduce-of-reduce", FOLDS, _reduce_of_reduce, "folds of one op merge; f16 and bf16 round in between"),
    Rule("reshape-of-matmul", (ops.reshape,), _reshape_of_matmul, "batch dimensions may be merged or apart"),
)  # fmt: skip
