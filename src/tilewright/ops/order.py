"""Ordering and selection: sort, top_k, argwhere, nonzero.

In: operand types, arrays or buffers. Out: each op's type rule, NumPy meaning and a kernel of parallel stages.
Not its business: argmax and argmin (``ops.reduce``).

Order: NaN is greater than every number and equal to NaN, -0.0 equals 0.0, and equal elements keep their order in both
directions. Up to ``MAX_COUNTED`` elements an element's rank is counted against all others; beyond that runs of
doubled length are merged: each element finds its place among the sibling run by binary search, so that every pass is
a parallel stage and the whole takes n log^2 n steps. Both work for any size, also a symbolic one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    Load,
    Reduction,
    Select,
    Serial,
    Stage,
    Unary,
    Value,
    axes_for,
    loop_symbol,
    syms,
)
from tilewright.core.diag import OpError
from tilewright.core.expr import Dim, Sym, floordiv, minimum, mod
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.shapes import surely_negative
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import check_axis
from tilewright.ops.movement import transpose
from tilewright.ops.rules import Types, check_not_negative
from tilewright.ops.stages import Items, assign, copy_from, write

MAX_COUNTED = 64
_MAX_BITS = 40  # more elements along one axis than memory holds


def _constant(n: int) -> Const:
    return Const(n, types.i64)


def _less(a: Value, b: Value) -> Value:
    """``a < b`` with NaN greatest."""
    if a.dtype is types.bool_:
        return _less(Cast(a, types.u8), Cast(b, types.u8))
    plain = Binary("lt", a, b)
    if not a.dtype.is_float:
        return plain
    only_b_nan = Binary("and", Unary("isnan", b), Unary("not", Unary("isnan", a)))
    return Binary("or", plain, only_b_nan)


def _before(a: Value, b: Value, descending: bool) -> Value:
    return _less(b, a) if descending else _less(a, b)


def _ref_order(x: Array, axis: int, descending: bool) -> Array:
    """The stable permutation along ``axis`` that sorts ``x``."""
    keys = x.astype(np.float64) if x.dtype.kind in "fV" else x
    if not descending:
        return np.argsort(keys, axis, kind="stable").astype(np.int64)
    backwards = np.argsort(np.flip(keys, axis), axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(backwards, axis), np.int64)


# --- the two algorithms: each leaves the order of every row in a buffer ----------------------------------------------


def _ordered(x: Buffer, axis: int, descending: bool, prefix: str) -> tuple[Items, Buffer, Dim]:
    """Stages that compute, for each row along ``axis``, the positions of its elements in sorted order.

    The result is ``order[slot, others..., rank]``: ``slot`` is the third value returned.
    """
    n = x.shape[axis]
    if isinstance(n, int) and n <= MAX_COUNTED:
        return _order_by_counting(x, axis, descending, prefix)
    return _order_by_merging(x, axis, descending, prefix)


def _rows(x: Buffer, axis: int) -> tuple[Dim, ...]:
    return (*x.shape[:axis], *x.shape[axis + 1 :])


def _at(row: Sequence[Dim], axis: int, i: Dim) -> tuple[Dim, ...]:
    return (*row[:axis], i, *row[axis:])


def _order_by_counting(x: Buffer, axis: int, descending: bool, prefix: str) -> tuple[Items, Buffer, Dim]:
    n, rows = x.shape[axis], _rows(x, axis)
    rank = Buffer(f"{prefix}_rank", types.i64, (*rows, n))
    order = Buffer(f"{prefix}_order", types.i64, (1, *rows, n))
    axes = axes_for((*rows, n))
    *row, i = syms(axes)
    j = Axis(loop_symbol("j", n), n)
    mine, other = Load(x, _at(row, axis, i)), Load(x, _at(row, axis, j.sym))
    tie = Binary("and", Unary("not", _before(mine, other, descending)), Binary("lt", Index(j.sym), Index(i)))
    counted = Cast(Binary("or", _before(other, mine, descending), tie), types.i64)
    count = Stage((rank,), axes, (*row, i), (counted,), Reduction((j,), "add", (_constant(0),)))
    place = write(order, axes, (0, *row, Load(rank, (*row, i))), Index(i))
    return [count, place], order, 0


def _order_by_merging(x: Buffer, axis: int, descending: bool, prefix: str) -> tuple[Items, Buffer, Dim]:
    n, rows = x.shape[axis], _rows(x, axis)
    keys = Buffer(f"{prefix}_keys", x.dtype, (2, *rows, n))
    order = Buffer(f"{prefix}_order", types.i64, (2, *rows, n))
    found = Buffer(f"{prefix}_found", types.i64, (*rows, n))
    n_passes = _bit_length(n - 1)
    p = Axis(loop_symbol("p", n_passes), n_passes)
    s = Axis(Sym("s", 0, _MAX_BITS), p.sym + 1)
    axes = axes_for((*rows, n))
    *row, i = syms(axes)
    old, new = mod(p.sym, 2), mod(p.sym + 1, 2)
    merge = _Merge(Index(i), Index(p.sym), Index(n))
    mine = Load(keys, (old, *row, i))

    step = Binary("shl", _constant(1), Index(p.sym - s.sym))
    pos = Load(found, (*row, i))
    probe = Binary("add", pos, step)
    fits = Binary("le", probe, merge.sibling_length)
    last = Binary("sub", Binary("add", merge.sibling, probe), _constant(1))
    theirs = Load(keys, (old, *row, Select(fits, last, Index(i))))
    goes_first = Select(
        merge.is_left, _before(theirs, mine, descending), Unary("not", _before(mine, theirs, descending))
    )
    search = write(found, axes, (*row, i), Select(Binary("and", fits, goes_first), probe, pos))

    target = Binary("add", merge.target, pos)
    body = (
        write(found, axes, (*row, i), _constant(0)),
        Serial(s, (search,)),
        write(keys, axes, (new, *row, target), mine),
        write(order, axes, (new, *row, target), Load(order, (old, *row, i))),
    )
    start = (
        write(keys, axes, (0, *row, i), Load(x, _at(row, axis, i))),
        write(order, axes, (0, *row, i), Index(i)),
    )
    return [*start, Serial(p, body)], order, mod(n_passes, 2)


class _Merge:
    """Where element ``i`` stands in pass ``p``, which merges neighbours of ``2**p`` elements among ``n``.

    ``sibling`` is where the other run starts, ``target`` where ``i`` goes when nothing of it comes before.
    """

    def __init__(self, i: Value, p: Value, n: Value) -> None:
        one = _constant(1)
        width = Binary("shl", one, p)
        run = Binary("shr", i, p)
        self.is_left = Binary("eq", Binary("and", run, one), _constant(0))
        self.sibling = Binary("shl", Binary("xor", run, one), p)
        room = Binary("sub", n, self.sibling)
        self.sibling_length = Binary("max", Binary("min", width, room), _constant(0))
        self.target = Select(self.is_left, i, Binary("sub", i, width))


def _bit_length(e: Dim) -> Dim:
    """The number of binary digits of ``e >= 0`` (0 for 0, and for the -1 of an empty axis)."""
    if isinstance(e, int):
        return max(e, 0).bit_length()
    total: Dim = 0
    for k in range(_MAX_BITS):
        total = total + minimum(floordiv(e, 1 << k), 1)
    return total


def _select_results(x: Buffer, outs: tuple[Buffer, ...], axis: int, order: Buffer, slot: Dim) -> Items:
    values, indices = outs

    def position(at: Sequence[Dim]) -> Load:
        return Load(order, (slot, *at[:axis], *at[axis + 1 :], at[axis]))

    return [
        *copy_from(values, x, lambda at: (*at[:axis], position(at), *at[axis + 1 :])),
        *assign(indices, position),
    ]


# --- sort, top_k ----------------------------------------------------------------------------------------------------


def _infer_sort(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_axis(a.axis, ts[0].rank)
    return ts[0], ts[0].with_dtype(types.i64)


def _ref_sort(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    order = _ref_order(xs[0], a.axis, a.descending)
    return np.take_along_axis(xs[0], order, a.axis), order


def _sort_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    items, order, slot = _ordered(ins[0], a.axis, a.descending, outs[0].name)
    return items + _select_results(ins[0], outs, a.axis, order, slot)


def _with_specials(x: Array) -> Array:
    x.flat[: 2 * 4] = [np.nan, 1, -0.0, 0, np.inf, -np.inf, 1, np.nan]
    return x


def _sort_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = _with_specials(rng.standard_normal((3, 5)).astype(np.float32))
    for axis, descending in [(0, False), (1, True), (1, False)]:
        yield Sample((x,), {"axis": axis, "descending": descending})
    yield Sample((rng.integers(-3, 3, (2, 67, 2)),), {"axis": 1, "descending": True})
    yield Sample((_with_specials(rng.standard_normal(130).astype(np.float16)),), {"axis": 0})
    yield Sample((np.array([True, False, True]),), {"axis": 0, "descending": False})
    yield Sample((np.zeros((2, 0), np.float32),), {"axis": 1})


sort = OpDef(
    "sort",
    ("x",),
    {"axis": AttrDef("int"), "descending": AttrDef("bool", False), "stable": AttrDef("bool", True)},
    _infer_sort,
    _ref_sort,
    kernel=_sort_kernel,
    samples=_sort_samples,
    doc="Elements along an axis in order, and the positions that they came from. Always stable, whatever is asked.",
)


def _infer_top_k(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_axis(a.axis, ts[0].rank)
    check_not_negative([a.k])
    shape = list(ts[0].shape)
    if surely_negative(shape[a.axis] - a.k):
        raise OpError(f"k = {a.k} is more than {ts[0]} has along axis {a.axis}")
    shape[a.axis] = a.k
    return ts[0].with_shape(shape), TensorType(types.i64, tuple(shape))


def _ref_top_k(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    order = np.take(_ref_order(xs[0], a.axis, a.largest), np.arange(a.k), a.axis)
    return np.take_along_axis(xs[0], order, a.axis), order


def _top_k_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    items, order, slot = _ordered(ins[0], a.axis, a.largest, outs[0].name)
    return items + _select_results(ins[0], outs, a.axis, order, slot)


def _top_k_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = _with_specials(rng.standard_normal((3, 5)).astype(np.float32))
    for k, axis, largest in [(2, 1, True), (3, 0, True), (1, 1, False), (0, 1, True), (5, 1, False)]:
        yield Sample((x,), {"k": k, "axis": axis, "largest": largest})
    yield Sample((rng.integers(0, 9, (2, 90)).astype(np.uint8),), {"k": 4, "axis": 1})
    yield Sample((np.zeros((0, 3), np.float32),), {"k": 2, "axis": 1})


top_k = OpDef(
    "top_k",
    ("x",),
    {
        "k": AttrDef("dim"),
        "axis": AttrDef("int"),
        "largest": AttrDef("bool", True),
        "sorted": AttrDef("bool", True),
    },
    _infer_top_k,
    _ref_top_k,
    kernel=_top_k_kernel,
    samples=_top_k_samples,
    doc="The first k elements along an axis in descending (largest) or ascending order, and their positions. Always "
    "sorted, whatever is asked; of equal elements the earlier comes first.",
)

# --- argwhere, nonzero ----------------------------------------------------------------------------------------------


def _count_symbol(t: TensorType, a: Attrs) -> Sym:
    n = t.n_elements
    return Sym(a.count, 0, n if isinstance(n, int) else None)


def _infer_argwhere(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    if ts[0].rank == 0:
        raise OpError("takes at least one axis", remedy="reshape the scalar to [1]")
    if not a.count.isidentifier():
        raise OpError(f"count {a.count!r} names a symbol and must be an identifier")
    return TensorType(types.i64, (_count_symbol(ts[0], a), ts[0].rank)), TensorType(types.i64, ())


def _ref_argwhere(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    found = np.argwhere(xs[0]).astype(np.int64)
    return found, np.array(len(found), np.int64)


def _argwhere_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    """Every element writes at the place that the next nonzero one takes; the nonzero one writes there last."""
    x, (found, count) = ins[0], outs
    places, at = axes_for(x.shape), tuple(Sym(f"i{k}", 0) for k in range(len(x.shape)))
    is_set = x.dtype is types.bool_
    element = Load(x, at)
    flag = Cast(element if is_set else Binary("ne", element, Const(0, x.dtype)), types.i64)
    body: tuple[Stage | Serial, ...] = (
        *(Stage((found,), (), (count[()], k), (Index(i),)) for k, i in enumerate(at)),
        Stage((count,), (), (), (Binary("add", count[()], flag),)),
    )
    for axis, i in zip(reversed(places), reversed(at), strict=True):
        body = (Serial(Axis(i, axis.extent), body),)
    return [Stage((count,), (), (), (_constant(0),)), *body]


def _argwhere_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x in (
        rng.integers(0, 2, (3, 4)),
        np.array([0.0, -0.0, np.nan, 2], np.float32),
        rng.integers(0, 2, (2, 2, 3)).astype(bool),
        np.zeros((2, 2), np.float32),
        np.ones((3,), np.uint8),
        np.zeros((0, 2), np.int64),
    ):
        yield Sample((x,), {"count": "n"})


_ARGWHERE_ATTRS = {"count": AttrDef("str")}

argwhere = OpDef(
    "argwhere",
    ("x",),
    _ARGWHERE_ATTRS,
    _infer_argwhere,
    _ref_argwhere,
    kernel=_argwhere_kernel,
    samples=_argwhere_samples,
    doc="The indices of elements that are not zero, [n, rank] in row-major order, and how many there are (0-d i64). "
    "n is a fresh symbol: count gives its name, unique in the graph, and x's number of elements bounds it. The kernel "
    "runs with the symbol at that bound and its result has room for as many rows; then the count defines the symbol, "
    "and the first n rows, which are contiguous, are the result.",
)


def _infer_nonzero(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    found, count = _infer_argwhere(ts, a)
    return found.with_shape(found.shape[::-1]), count


def _ref_nonzero(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    found, count = _ref_argwhere(xs, a)
    return found.T.copy(), count


def _decompose_nonzero(b: Builder, xs: tuple[Node, ...], a: Attrs) -> tuple[Node, ...]:
    found, count = b.results(b(argwhere, xs[0], count=a.count))
    return b(transpose, found, perm=(1, 0)), count


nonzero = OpDef(
    "nonzero",
    ("x",),
    _ARGWHERE_ATTRS,
    _infer_nonzero,
    _ref_nonzero,
    decompose=_decompose_nonzero,
    samples=_argwhere_samples,
    doc="The indices of elements that are not zero, [rank, n], and how many there are; see argwhere.",
)
