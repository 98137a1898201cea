"""Ops that write at indices which are data: scatter in its forms, dynamic_update_slice.

In: operand types, arrays or buffers. Out: each op's type rule, NumPy meaning and two stages: a copy, then the writes.
Not its business: reading at such indices (``ops.index``, which also says what happens to indices out of range).

Writes happen in row-major order of the updates, so the last of equal indices wins; with a reduction every update
counts, rounded to the dtype one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.core.compute import Axis, Buffer, IndexLike, Load, Stage, axes_for, syms
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, minimum
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.shapes import surely_negative
from tilewright.core.types import Array, TensorType, product
from tilewright.ops.common import check_axis
from tilewright.ops.index import check_window, clamp_starts, depth_of, nd_index, window_index, wrap_array
from tilewright.ops.rules import Types, check_integers, check_same_dims
from tilewright.ops.stages import Items, copy_from, wrapped, write

UPDATES = {"none": None, "add": "add", "mul": "mul", "min": "min", "max": "max"}
_UFUNCS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _check_updates(x: TensorType, indices: TensorType, updates: TensorType, a: Attrs) -> None:
    check_integers(indices, "indices")
    if updates.dtype is not x.dtype:
        raise OpError(f"updates {updates} must have the dtype of {x}", remedy="insert a cast")
    if a.reduction not in UPDATES:
        raise OpError(f"reduction {a.reduction!r} is none of {', '.join(UPDATES)}")


def _check_room(n: Dim, count: Dim) -> None:
    if n == 0 and count != 0:
        raise OpError("nothing can be written along a dimension of size 0")


def _only_if_room(axes: tuple[Axis, ...], targets: Sequence[Dim]) -> tuple[Axis, ...]:
    """The axes with no iterations when a dimension that is written at run-time indices has turned out empty."""
    room = product([minimum(n, 1) for n in targets])
    return axes if room == 1 or not axes else (Axis(axes[0].sym, axes[0].extent * room), *axes[1:])


def _put(out: Array, at: Any, updates: Array, reduction: str) -> None:
    if reduction == "none":
        out[at] = updates
    else:
        _UFUNCS[reduction].at(out, at, updates)


# --- scatter_elements -----------------------------------------------------------------------------------------------


def _infer_scatter_elements(ts: Types, a: Attrs) -> TensorType:
    x, indices, updates = ts
    _check_updates(x, indices, updates, a)
    check_axis(a.axis, x.rank)
    check_same_dims(indices.shape, updates.shape, "indices and updates")
    if indices.rank != x.rank:
        raise OpError(f"indices {indices} must have the rank of {x}")
    for k, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if k != a.axis and surely_negative(n - m):
            raise OpError(f"indices {indices} reach beyond {x} along axis {k}")
    _check_room(x.shape[a.axis], indices.n_elements)
    return x


def _ref_scatter_elements(xs: Sequence[Array], a: Attrs) -> Array:
    x, indices, updates = xs
    out = x.copy()
    if out.size == 0:
        return out
    at: list[Array] = list(np.indices(indices.shape, sparse=True))
    at[a.axis] = wrap_array(indices, x.shape[a.axis])
    _put(out, tuple(np.broadcast_to(i, indices.shape).ravel() for i in at), updates.ravel(), a.reduction)
    return out


def _scatter_elements_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    x, indices, updates = ins
    axes = _only_if_room(axes_for(indices.shape), [x.shape[a.axis]])
    at = syms(axes)
    i = wrapped(Load(indices, at), x.shape[a.axis])
    index: tuple[IndexLike, ...] = (*at[: a.axis], i, *at[a.axis + 1 :])
    writes = Stage((outs[0],), axes, index, (Load(updates, at),), update=UPDATES[a.reduction])
    return [*copy_from(outs[0], x, lambda i: i), writes]


def _scatter_elements_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((3, 4)).astype(np.float32)
    u = rng.standard_normal((2, 4)).astype(np.float32)
    for reduction in UPDATES:
        yield Sample((x, rng.integers(-3, 3, (2, 4)), u), {"axis": 0, "reduction": reduction})
    yield Sample((x, np.array([[9], [-9]]), u[:, :1]), {"axis": 1, "reduction": "add"})
    yield Sample((np.arange(5), np.array([1, 1, 1], np.int32), np.array([7, 8, 9])), {"axis": 0})
    yield Sample((x, np.zeros((0, 4), np.int64), u[:0]), {"axis": 0})


scatter_elements = OpDef(
    "scatter_elements",
    ("x", "indices", "updates"),
    {"axis": AttrDef("int", 0), "reduction": AttrDef("str", "none")},
    _infer_scatter_elements,
    _ref_scatter_elements,
    compute=_scatter_elements_compute,
    samples=_scatter_elements_samples,
    doc="x with result[indices[i, j], j] = updates[i, j] for axis 0, and so on; or folded in by add, mul, min or max.",
)

# --- scatter_nd -----------------------------------------------------------------------------------------------------


def _infer_scatter_nd(ts: Types, a: Attrs) -> TensorType:
    x, indices, updates = ts
    _check_updates(x, indices, updates, a)
    depth = depth_of(indices)
    if depth > x.rank:
        raise OpError(f"{depth} indices a row are too many for {x}")
    check_same_dims(updates.shape, (*indices.shape[:-1], *x.shape[depth:]), "updates and what the indices name")
    for n in x.shape[:depth]:
        _check_room(n, indices.n_elements)
    return x


def _ref_scatter_nd(xs: Sequence[Array], a: Attrs) -> Array:
    x, indices, updates = xs
    out = x.copy()
    depth = indices.shape[-1]
    if out.size == 0 or updates.size == 0:
        return out
    n_rows = indices.size // depth if depth else int(np.prod(indices.shape[:-1]))
    rows, values = indices.reshape(n_rows, depth), updates.reshape(n_rows, *x.shape[depth:])
    if depth == 0:
        for value in values:
            _put(out, (...,), value, a.reduction)
        return out
    _put(out, tuple(wrap_array(rows[:, k], x.shape[k]) for k in range(depth)), values, a.reduction)
    return out


def _scatter_nd_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    x, indices, updates = ins
    depth, n_lead = indices.shape[-1], len(indices.shape) - 1
    assert is_known(depth)
    axes = _only_if_room(axes_for(updates.shape), x.shape[:depth])
    at = syms(axes)
    index: tuple[IndexLike, ...] = (*nd_index(indices, at[:n_lead], x.shape, depth), *at[n_lead:])
    writes = Stage((outs[0],), axes, index, (Load(updates, at),), update=UPDATES[a.reduction])
    return [*copy_from(outs[0], x, lambda i: i), writes]


def _scatter_nd_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((4, 3)).astype(np.float32)
    for reduction in UPDATES:
        yield Sample((x, np.array([[1], [-1], [1]]), x[:3] + 1), {"reduction": reduction})
    yield Sample((x, np.array([[[1, 2], [0, 0]]], np.int32), x[:1, :2]), {})
    yield Sample((x, np.array([[9, -9]]), np.array([5], np.float32)), {})
    yield Sample((x, np.zeros((0, 2), np.int64), np.zeros((0,), np.float32)), {})
    yield Sample((x, np.zeros((1, 0), np.int64), x[None]), {"reduction": "add"})


scatter_nd = OpDef(
    "scatter_nd",
    ("x", "indices", "updates"),
    {"reduction": AttrDef("str", "none")},
    _infer_scatter_nd,
    _ref_scatter_nd,
    compute=_scatter_nd_compute,
    samples=_scatter_nd_samples,
    doc="x with the element, or slice, that each row of indices' last axis names set to, or folded with, updates.",
)

# --- dynamic_update_slice -------------------------------------------------------------------------------------------


def _infer_dynamic_update_slice(ts: Types, a: Attrs) -> TensorType:
    x, update, starts = ts
    if update.dtype is not x.dtype or update.rank != x.rank:
        raise OpError(f"update {update} must have the dtype and rank of {x}")
    check_window(x, update.shape, starts)
    return x


def _ref_dynamic_update_slice(xs: Sequence[Array], a: Attrs) -> Array:
    x, update, starts = xs
    out = x.copy()
    at = clamp_starts(starts, x.shape, update.shape)
    out[tuple(slice(s, s + n) for s, n in zip(at, update.shape, strict=True))] = update
    return out


def _dynamic_update_slice_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    x, update, starts = ins
    axes = axes_for(update.shape)
    at = syms(axes)
    index = window_index(starts, at, x.shape, update.shape)
    return [*copy_from(outs[0], x, lambda i: i), write(outs[0], axes, index, Load(update, at))]


def _dynamic_update_slice_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((4, 5)).astype(np.float32)
    for starts, shape in [((1, 2), (2, 3)), ((-7, 9), (2, 3)), ((3, 0), (4, 5)), ((1, 1), (0, 2)), ((2, 2), (1, 1))]:
        yield Sample((x, rng.standard_normal(shape).astype(np.float32), np.array(starts)))


dynamic_update_slice = OpDef(
    "dynamic_update_slice",
    ("x", "update", "starts"),
    {},
    _infer_dynamic_update_slice,
    _ref_dynamic_update_slice,
    compute=_dynamic_update_slice_compute,
    samples=_dynamic_update_slice_samples,
    doc="x with a window replaced by update, at starts that are data, one per axis, clamped so that the window fits.",
)
