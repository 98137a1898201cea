"""Ops that read at indices which are data: gather in its forms, dynamic_slice, one_hot.

In: operand types, arrays or buffers. Out: each op's type rule, NumPy meaning and stage.
Not its business: writing at such indices (``ops.scatter``), ordering (``ops.order``).

An index counts from the end when negative. What is then still outside is clamped to the nearest element, in the
reference and in the machine code alike, so no index can read out of bounds; frontends may check where they promise
an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Const, IndexLike, Inside, Load, Select, Value
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, is_nonneg
from tilewright.core.graph import Attrs
from tilewright.core.indices import is_chosen
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.shapes import surely_differ, surely_negative
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import check_axis
from tilewright.ops.rules import MOVEMENT, Types, check_integers, check_not_negative, check_same_dims
from tilewright.ops.stages import Items, as_i64, assign, clamped, index_value, wrapped


def wrap_array(indices: Array, n: int) -> Array:
    """Indices into ``n`` elements as ``ops.stages.wrapped`` computes them."""
    i = indices.astype(np.int64)
    return np.clip(np.where(i < 0, i + n, i), 0, max(n - 1, 0))


def guarded(x: Buffer, index: Sequence[IndexLike]) -> Value:
    """``x[index]``, or 0 where a dimension read at a run-time index has turned out empty."""
    empty = tuple(n - 1 for n, i in zip(x.shape, index, strict=True) if is_chosen(i) and not is_nonneg(n - 1))
    load = Load(x, tuple(index))
    return Select(Inside(empty), load, Const(0, x.dtype)) if empty else load


def _check_not_empty(n: Dim, count: Dim) -> None:
    """A count that may be 0, as one that data decide, may read nothing of nothing."""
    if n == 0 and is_nonneg(count - 1):
        raise OpError("nothing can be read along a dimension of size 0")


# --- gather ---------------------------------------------------------------------------------------------------------


def _infer_gather(ts: Types, a: Attrs) -> TensorType:
    x, indices = ts
    check_axis(a.axis, x.rank)
    check_integers(indices, "indices")
    _check_not_empty(x.shape[a.axis], indices.n_elements)
    return x.with_shape((*x.shape[: a.axis], *indices.shape, *x.shape[a.axis + 1 :]))


def _ref_gather(xs: Sequence[Array], a: Attrs) -> Array:
    x, indices = xs
    if x.shape[a.axis] == 0:
        return np.zeros((*x.shape[: a.axis], *indices.shape, *x.shape[a.axis + 1 :]), x.dtype)
    return np.take(x, wrap_array(indices, x.shape[a.axis]), a.axis)


def _gather_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    x, indices = ins
    end = a.axis + len(indices.shape)

    def element(at: Sequence[Dim]) -> Value:
        i = wrapped(Load(indices, tuple(at[a.axis : end])), x.shape[a.axis])
        return guarded(x, (*at[: a.axis], i, *at[end:]))

    return assign(outs[0], element)


def _gather_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((4, 3, 2)).astype(np.float32)
    yield Sample((x, rng.integers(-4, 4, (2, 3))), {"axis": 0})
    yield Sample((x, np.array(-1, np.int32)), {"axis": 1})
    yield Sample((x, np.array([1, 0], np.uint8)), {"axis": 2})
    yield Sample((x, np.array([9, -9, 3])), {"axis": 0})
    yield Sample((x, np.zeros((0, 2), np.int64)), {"axis": 1})
    yield Sample((np.zeros((0, 2), np.float32), np.array([1])), {"axis": 1})


gather = OpDef(
    "gather",
    ("x", "indices"),
    {"axis": AttrDef("int", 0)},
    _infer_gather,
    _ref_gather,
    compute=_gather_compute,
    traits=MOVEMENT,
    samples=_gather_samples,
    doc="NumPy's take: the slices of x along an axis that the indices name. See the module for indices out of range.",
)


def _infer_gather_elements(ts: Types, a: Attrs) -> TensorType:
    x, indices = ts
    check_axis(a.axis, x.rank)
    check_integers(indices, "indices")
    if indices.rank != x.rank:
        raise OpError(f"indices {indices} must have the rank of {x}")
    for k, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if k != a.axis and surely_negative(n - m):
            raise OpError(f"indices {indices} reach beyond {x} along axis {k}")
    _check_not_empty(x.shape[a.axis], indices.n_elements)
    return x.with_shape(indices.shape)


def _ref_gather_elements(xs: Sequence[Array], a: Attrs) -> Array:
    x, indices = xs
    box = tuple(slice(None) if k == a.axis else slice(m) for k, m in enumerate(indices.shape))
    if x.shape[a.axis] == 0:
        return np.zeros(indices.shape, x.dtype)
    return np.take_along_axis(x[box], wrap_array(indices, x.shape[a.axis]), a.axis)


def _gather_elements_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    x, indices = ins

    def element(at: Sequence[Dim]) -> Value:
        i = wrapped(Load(indices, tuple(at)), x.shape[a.axis])
        return guarded(x, (*at[: a.axis], i, *at[a.axis + 1 :]))

    return assign(outs[0], element)


def _gather_elements_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((3, 4)).astype(np.float32)
    yield Sample((x, rng.integers(-3, 3, (2, 4))), {"axis": 0})
    yield Sample((x, rng.integers(-4, 4, (3, 6)).astype(np.int32)), {"axis": 1})
    yield Sample((x, np.array([[7, -9]])), {"axis": 1})
    yield Sample((x, np.zeros((0, 4), np.int64)), {"axis": 0})
    yield Sample((np.arange(3), np.array([0])), {"axis": 0})


gather_elements = OpDef(
    "gather_elements",
    ("x", "indices"),
    {"axis": AttrDef("int", 0)},
    _infer_gather_elements,
    _ref_gather_elements,
    compute=_gather_elements_compute,
    traits=MOVEMENT,
    samples=_gather_elements_samples,
    doc="result[i, j] = x[indices[i, j], j] for axis 0, and so on; indices may be smaller than x along other axes.",
)


def depth_of(indices: TensorType) -> int:
    """How many indices each row of an ``nd`` op's indices holds; must be a number."""
    depth = indices.shape[-1] if indices.rank else None
    if not is_known(depth):
        raise OpError(f"the last dimension of indices {indices} must be a number", remedy="reshape it to a fixed size")
    return depth


def _infer_gather_nd(ts: Types, a: Attrs) -> TensorType:
    x, indices = ts
    check_integers(indices, "indices")
    depth = depth_of(indices)
    if not 0 <= a.batch_dims < indices.rank or a.batch_dims + depth > x.rank:
        raise OpError(f"{depth} indices after {a.batch_dims} batch dimensions do not fit {x} and {indices}")
    check_same_dims(x.shape[: a.batch_dims], indices.shape[: a.batch_dims], "batch dimensions")
    for n in x.shape[a.batch_dims : a.batch_dims + depth]:
        _check_not_empty(n, indices.n_elements)
    return x.with_shape((*indices.shape[:-1], *x.shape[a.batch_dims + depth :]))


def _ref_gather_nd(xs: Sequence[Array], a: Attrs) -> Array:
    x, indices = xs
    b, depth = a.batch_dims, indices.shape[-1]
    if x.size == 0:
        return np.zeros((*indices.shape[:-1], *x.shape[b + depth :]), x.dtype)
    lead = indices.shape[:-1]
    batch = [np.arange(lead[k]).reshape([-1 if j == k else 1 for j in range(len(lead))]) for k in range(b)]
    parts = [wrap_array(indices[..., k], x.shape[b + k]) for k in range(depth)]
    at = tuple(np.broadcast_to(p, lead) for p in (*batch, *parts))
    return np.asarray(x[at]) if at else np.broadcast_to(x, (*lead, *x.shape)).copy()


def nd_index(indices: Buffer, at: Sequence[Dim], shape: Sequence[Dim], depth: int) -> list[Value]:
    """The wrapped run-time indices at row ``at`` of ``indices`` into dimensions ``shape``."""
    return [wrapped(Load(indices, (*at, k)), shape[k]) for k in range(depth)]


def _gather_nd_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    x, indices = ins
    b, n_lead = a.batch_dims, len(indices.shape) - 1
    depth = indices.shape[-1]
    assert is_known(depth)

    def element(at: Sequence[Dim]) -> Value:
        found = nd_index(indices, at[:n_lead], x.shape[b : b + depth], depth)
        return guarded(x, (*at[:b], *found, *at[n_lead:]))

    return assign(outs[0], element)


def _gather_nd_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    yield Sample((x, np.array([[0, 1], [1, -1]])), {})
    yield Sample((x, np.array([[[0, 1, 2]], [[-1, 0, 3]]])), {})
    yield Sample((x, np.array([[1], [-3]])), {"batch_dims": 1})
    yield Sample((x, np.array([[[2, 0]], [[9, -9]]], np.int32)), {"batch_dims": 1})
    yield Sample((x, np.zeros((0, 2), np.int64)), {})
    yield Sample((x, np.zeros((2, 0), np.int64)), {})


gather_nd = OpDef(
    "gather_nd",
    ("x", "indices"),
    {"batch_dims": AttrDef("int", 0)},
    _infer_gather_nd,
    _ref_gather_nd,
    compute=_gather_nd_compute,
    traits=MOVEMENT,
    samples=_gather_nd_samples,
    doc="Each row of the last axis of indices names an element, or a slice, of x after the batch dimensions.",
)

# --- dynamic_slice --------------------------------------------------------------------------------------------------


def check_window(x: TensorType, sizes: Sequence[Dim], starts: TensorType) -> None:
    """Raise ``OpError`` unless a window of ``sizes`` with one start per axis can fit ``x``."""
    check_integers(starts, "starts")
    check_not_negative(sizes)
    if starts.rank != 1 or surely_differ(starts.shape[0], x.rank) or len(sizes) != x.rank:
        raise OpError(f"starts {starts} and the window of {len(sizes)} sizes need one entry per axis of {x}")
    if any(surely_negative(n - s) for n, s in zip(x.shape, sizes, strict=True)):
        raise OpError(f"a window of {tuple(sizes)} does not fit {x}")


def clamp_starts(starts: Array, shape: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Starts moved so that the window fits."""
    return [max(min(int(s), n - size), 0) for s, n, size in zip(starts, shape, sizes, strict=True)]


def window_index(starts: Buffer, at: Sequence[Dim], shape: Sequence[Dim], sizes: Sequence[Dim]) -> list[IndexLike]:
    """Where position ``at`` of the window lies in the whole."""
    index: list[IndexLike] = []
    for k, (i, n, size) in enumerate(zip(at, shape, sizes, strict=True)):
        if n - size == 0:
            index.append(i)
            continue
        start = clamped(as_i64(starts[k]), Const(0, types.i64), index_value(n - size))
        index.append(Binary("add", start, index_value(i)))
    return index


def _infer_dynamic_slice(ts: Types, a: Attrs) -> TensorType:
    check_window(ts[0], a.sizes, ts[1])
    return ts[0].with_shape(a.sizes)


def _ref_dynamic_slice(xs: Sequence[Array], a: Attrs) -> Array:
    starts = clamp_starts(xs[1], xs[0].shape, a.sizes)
    return xs[0][tuple(slice(s, s + n) for s, n in zip(starts, a.sizes, strict=True))].copy()


def _dynamic_slice_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((4, 5)).astype(np.float32)
    for starts, sizes in [((1, 2), (2, 3)), ((-7, 9), (2, 3)), ((3, 0), (4, 5)), ((1, 1), (0, 2)), ((2, 2), (1, 1))]:
        yield Sample((x, np.array(starts)), {"sizes": sizes})


dynamic_slice = OpDef(
    "dynamic_slice",
    ("x", "starts"),
    {"sizes": AttrDef("dims")},
    _infer_dynamic_slice,
    _ref_dynamic_slice,
    compute=lambda ins, outs, a: assign(
        outs[0], lambda at: Load(ins[0], tuple(window_index(ins[1], at, ins[0].shape, a.sizes)))
    ),
    traits=MOVEMENT,
    samples=_dynamic_slice_samples,
    doc="A window of fixed sizes at starts that are data, one per axis, clamped so that the window fits.",
)

# --- one_hot --------------------------------------------------------------------------------------------------------


def _infer_one_hot(ts: Types, a: Attrs) -> TensorType:
    indices, off_on = ts
    check_integers(indices, "indices")
    if off_on.rank != 1 or off_on.shape[0] != 2:
        raise OpError(f"off_on holds two values, not {off_on}")
    check_axis(a.axis, indices.rank + 1)
    check_not_negative([a.depth])
    return off_on.with_shape((*indices.shape[: a.axis], a.depth, *indices.shape[a.axis :]))


def _ref_one_hot(xs: Sequence[Array], a: Attrs) -> Array:
    indices, (off, on) = xs[0].astype(np.int64), xs[1]
    wrapped_ = np.expand_dims(np.where(indices < 0, indices + a.depth, indices), a.axis)
    line = np.arange(a.depth).reshape([-1 if k == a.axis else 1 for k in range(wrapped_.ndim)])
    return np.asarray(np.where(wrapped_ == line, on, off), xs[1].dtype)


def _one_hot_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    indices, off_on = ins

    def element(at: Sequence[Dim]) -> Value:
        i = as_i64(Load(indices, (*at[: a.axis], *at[a.axis + 1 :])))
        negative = Binary("lt", i, Const(0, types.i64))
        i = Select(negative, Binary("add", i, index_value(a.depth)), i)
        return Select(Binary("eq", i, index_value(at[a.axis])), off_on[1], off_on[0])

    return assign(outs[0], element)


def _one_hot_samples(rng: np.random.Generator) -> Iterator[Sample]:
    off_on = np.array([-1, 2], np.float32)
    yield Sample((rng.integers(-3, 3, (2, 3)), off_on), {"depth": 3, "axis": 2})
    yield Sample((np.array([0, 5, -4, 1], np.int32), off_on), {"depth": 3, "axis": 0})
    yield Sample((np.array(1, np.uint8), np.array([0, 1])), {"depth": 2, "axis": 0})
    yield Sample((np.zeros((0,), np.int64), off_on), {"depth": 3, "axis": 1})


one_hot = OpDef(
    "one_hot",
    ("indices", "off_on"),
    {"depth": AttrDef("dim"), "axis": AttrDef("int")},
    _infer_one_hot,
    _ref_one_hot,
    compute=_one_hot_compute,
    samples=_one_hot_samples,
    doc="A new axis of size depth that is on at the index (-depth .. depth-1), off elsewhere; other indices: all off.",
)
