"""Dense linear algebra: Cholesky and LU factors, triangular systems.

In: batches of matrices ``[..., m, n]``, f32 or f64. Out: factors in LAPACK's layout and sign conventions.
Not its business: what is made of factors (inverse, determinant, solve), which frontends spell; QR (``qr``),
eigenvalues (``eigen``).

Where the process has LAPACK it is called for large matrices (``runtime.cpu.routines``). The kernels are for small ones,
and for where it is not: outer-product forms of Cholesky and LU (Golub and Van Loan, 3.2 and 4.2), without blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    IndexLike,
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
from tilewright.core.dims import known_at_most
from tilewright.core.expr import Dim, Sym, minimum
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, DType, TensorType, product
from tilewright.ops.common import check_dtype
from tilewright.ops.lanes import Body, Buffers, fill_lanes, one_by_one, side_by_side
from tilewright.ops.rules import Types
from tilewright.ops.stages import Items, clamped, index_value, write

SMALL_SIDE = 64
"""Rows of matrices up to which our QR factors and triangular systems are faster than a call of LAPACK with its copies
(``docs/choices.md``, "Small matrices"). Cholesky's and LU's routines are no slower for matrices one by one."""


def where_large(name: str, first: TensorType, *further: Dim) -> tuple[str, tuple[Dim, ...]] | None:
    """A routine for matrices that are not small; it is told the first one's batch and sizes, and further sizes."""
    m, n = first.shape[-2:]
    is_small = known_at_most(m, SMALL_SIDE)
    return None if is_small else for_batch(name, first, m, n, *further)


def unless_in_lanes(name: str, t: TensorType, *sizes: Dim) -> tuple[str, tuple[Dim, ...]] | None:
    """A routine for matrices that do not run side by side, which is faster than a call of LAPACK with its copies."""
    return None if fill_lanes(t.shape[:-2], t.shape[-1]) else for_batch(name, t, *sizes)


def for_batch(name: str, t: TensorType, *sizes: Dim) -> tuple[str, tuple[Dim, ...]]:
    """A routine for a batch of matrices: it is told how many there are, and sizes."""
    return name, (product(t.shape[:-2]), *sizes)


def check_matrices(t: TensorType, what: str, *, square: bool = False) -> None:
    """``OpError`` unless ``t`` is f32 or f64 and a batch of (square) matrices."""
    check_dtype(t, (types.f32, types.f64), what)
    if t.rank < 2:
        raise OpError(f"{what} must be a batch of matrices, not {t}")
    if square and t.shape[-1] != t.shape[-2]:
        raise OpError(f"{what} must be square, not {t}")


def smaller_side(t: TensorType) -> Dim:
    """The lesser size of matrices."""
    return minimum(*t.shape[-2:])


# --- writing stages -------------------------------------------------------------------------------------------------


def is_at(a: Dim, b: Dim) -> Value:
    """``a == b``."""
    return Binary("eq", Index(a), index_value(b))


def is_before(a: Dim, b: Dim) -> Value:
    """``a < b``."""
    return Binary("lt", index_value(a), index_value(b))


def zero_of(dtype: DType) -> Value:
    return Const(0, dtype)


def over(out: Buffer, shape: Sequence[Dim], at: Callable[..., tuple[Sequence[IndexLike], Value]]) -> Stage:
    """``out[index] = value`` over a domain."""
    axes = axes_for(shape)
    index, value = at(*syms(axes))
    return write(out, axes, index, value)


def fold(out: Buffer, n: Dim, term: Callable[[tuple[Sym, ...], Sym], Value], op: str, init: Value) -> Stage:
    """``out[at] = fold over r < n of term(at, r)``."""
    axes = axes_for(out.shape)
    r = Axis(loop_symbol("r", n), n)
    return Stage((out,), axes, syms(axes), (term(syms(axes), r.sym),), Reduction((r,), op, (init,)))


def batched(body: Body) -> Callable[[Buffers, Buffers, Attrs], Items]:
    """A kernel from the stages for one matrix."""

    def kernel(ins: Buffers, outs: Buffers, a: Attrs) -> Items:
        batch = ins[0].shape[:-2]
        run = side_by_side if fill_lanes(batch, outs[0].shape[-1]) else one_by_one
        return run(body, ins, outs, a, batch)

    return kernel


def matrices(rng: np.random.Generator, *shape: int) -> Array:
    """Random matrices, f64."""
    return rng.standard_normal(shape)


def square_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 3), (2, 4, 4), (1, 1), (0, 3, 3), (2, 0, 0), (3, 7, 3, 3)):
        yield Sample((matrices(rng, *shape),))
    yield Sample((matrices(rng, 5, 5).astype(np.float32) + 4 * np.eye(5, dtype=np.float32),))


def rows_of(x: Array) -> Array:
    """A batch as a list of f64 matrices."""
    return x.reshape((int(np.prod(x.shape[:-2])), *x.shape[-2:])).astype(np.float64)


# --- Cholesky -------------------------------------------------------------------------------------------------------


def _infer_cholesky(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix", square=True)
    return ts[0], TensorType(types.i32, ts[0].shape[:-2])


def _ref_cholesky(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    x = rows_of(xs[0])
    n = x.shape[-1]
    lower, info = np.tril(x), np.zeros(len(x), np.int32)
    with np.errstate(all="ignore"):
        for b in range(len(x)):
            for k in range(n):
                pivot = lower[b, k, k]
                if not pivot > 0 and info[b] == 0:
                    info[b] = k + 1
                lower[b, k, k] = np.sqrt(pivot)
                lower[b, k + 1 :, k] /= lower[b, k, k]
                column = lower[b, k + 1 :, k]
                lower[b, k + 1 :, k + 1 :] -= np.tril(np.outer(column, column))
    return lower.reshape(xs[0].shape).astype(xs[0].dtype), info.reshape(xs[0].shape[:-2])


def _cholesky_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    x, (lower, info) = ins[0], outs
    n, zero = x.shape[-1], zero_of(x.dtype)
    root = Buffer(f"{lower.name}_root", x.dtype, ())
    column = Buffer(f"{lower.name}_column", x.dtype, (n,))
    k = Axis(loop_symbol("k", n), n)
    pivot = Load(lower, (*at, k.sym, k.sym))
    failed = Binary("and", Unary("not", Binary("gt", pivot, zero)), Binary("eq", Load(info, at), Const(0, types.i32)))
    step = (
        write(info, (), at, Select(failed, Cast(Index(k.sym + 1), types.i32), Load(info, at))),
        write(root, (), (), Unary("sqrt", pivot)),
        over(column, (n,), lambda i: ((i,), Select(
            is_before(k.sym, i), Load(lower, (*at, i, k.sym)) / root[()], Select(is_at(i, k.sym), root[()], zero)))),
        over(lower, (n,), lambda i: ((*at, i, k.sym), column[i])),
        over(lower, (n, n), lambda i, j: ((*at, i, j), Select(
            Binary("and", is_before(k.sym, j), is_before(j, i + 1)),
            Load(lower, (*at, i, j)) - column[i] * column[j], Load(lower, (*at, i, j))))),
    )  # fmt: skip
    start = over(lower, (n, n), lambda i, j: ((*at, i, j), Select(is_before(j, i + 1), Load(x, (*at, i, j)), zero)))
    return [start, write(info, (), at, Const(0, types.i32)), Serial(k, step)]


def _positive_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in square_samples(rng):
        (x,) = sample.arrays
        yield Sample((x @ np.swapaxes(x, -1, -2) + np.eye(x.shape[-1], dtype=x.dtype),))


cholesky = OpDef(
    "cholesky",
    ("x",),
    {},
    _infer_cholesky,
    _ref_cholesky,
    kernel=batched(_cholesky_body),
    samples=_positive_samples,
    routine=lambda ts, a: unless_in_lanes("cholesky", ts[0], ts[0].shape[-1]),
    doc="The lower factor of positive definite matrices, from their lower triangle, and for each matrix the order of "
    "the first leading minor that is not positive (0: none; from it on the factor means nothing).",
)

# --- LU -------------------------------------------------------------------------------------------------------------


def _infer_lu(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix")
    k, batch = smaller_side(ts[0]), ts[0].shape[:-2]
    return ts[0], TensorType(types.i32, (*batch, k)), TensorType(types.i32, batch)


def _ref_lu(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    made = rows_of(xs[0]).copy()
    count, m, n = made.shape
    pivots = np.zeros((count, min(m, n)), np.int32)
    info = np.zeros(count, np.int32)
    for b in range(count):
        for k in range(min(m, n)):
            p = k + int(np.abs(made[b, k:, k]).argmax())
            pivots[b, k] = p + 1
            made[b, [k, p]] = made[b, [p, k]]
            if made[b, k, k] == 0:
                info[b] = info[b] or k + 1
            else:
                made[b, k + 1 :, k] /= made[b, k, k]
            made[b, k + 1 :, k + 1 :] -= np.outer(made[b, k + 1 :, k], made[b, k, k + 1 :])
    batch = xs[0].shape[:-2]
    shapes = ((made, xs[0].shape), (pivots, (*batch, min(m, n))), (info, batch))
    first, *rest = (array.reshape(shape) for array, shape in shapes)
    return first.astype(xs[0].dtype), *rest


def _lu_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    x, (lu_, pivots, info) = ins[0], outs
    m, n = x.shape[-2:]
    zero, name = zero_of(x.dtype), lu_.name
    largest, place = Buffer(f"{name}_largest", x.dtype, ()), Buffer(f"{name}_place", types.i64, ())
    first, second = (Buffer(f"{name}_{r}", x.dtype, (n,)) for r in ("first", "second"))
    column = Buffer(f"{name}_column", x.dtype, (m,))
    steps = pivots.shape[-1]
    k = Axis(loop_symbol("k", steps), steps)
    i64 = types.i64

    def entry(i: IndexLike, j: IndexLike) -> Value:
        return Load(lu_, (*at, i, j))

    p: Value = place[()]
    pivot = entry(k.sym, k.sym)
    singular = Binary("eq", pivot, zero)
    is_first = Binary("and", singular, Binary("eq", Load(info, at), Const(0, types.i32)))
    step = (
        fold(largest, m, lambda _, r: Select(
            is_before(k.sym - 1, r), Unary("abs", entry(r, k.sym)), Const(-1, x.dtype)), "max", Const(-1, x.dtype)),
        # The first of equal pivots, as LAPACK's idamax takes it.
        fold(place, m, lambda _, r: Select(
            Binary("and", is_before(k.sym - 1, r), Binary("eq", Unary("abs", entry(r, k.sym)), largest[()])),
            Index(r), Const(i64.max, i64)), "min", Const(i64.max, i64)),
        # NaN equals nothing, so that no place was found: the row stays.
        write(place, (), (), Select(Binary("lt", p, index_value(m)), p, Index(k.sym))),
        write(pivots, (), (*at, k.sym), Cast(Binary("add", p, Const(1, i64)), types.i32)),
        over(first, (n,), lambda j: ((j,), entry(k.sym, j))),
        over(second, (n,), lambda j: ((j,), entry(p, j))),
        over(lu_, (n,), lambda j: ((*at, p, j), first[j])),
        over(lu_, (n,), lambda j: ((*at, k.sym, j), second[j])),
        # LAPACK reports the first zero pivot, and goes on with the other columns.
        write(info, (), at, Select(is_first, Cast(Index(k.sym + 1), types.i32), Load(info, at))),
        over(column, (m,), lambda i: ((i,), Select(
            is_before(k.sym, i), Select(singular, entry(i, k.sym), entry(i, k.sym) / pivot), zero))),
        over(lu_, (m,), lambda i: ((*at, i, k.sym), Select(is_before(k.sym, i), column[i], entry(i, k.sym)))),
        over(lu_, (m, n), lambda i, j: ((*at, i, j), Select(
            Binary("and", is_before(k.sym, i), is_before(k.sym, j)),
            entry(i, j) - column[i] * second[j], entry(i, j)))),
    )  # fmt: skip
    return [
        over(lu_, (m, n), lambda i, j: ((*at, i, j), Load(x, (*at, i, j)))),
        write(info, (), at, Const(0, types.i32)),
        Serial(k, step),
    ]


def wide_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 3), (2, 4, 3), (3, 5), (1, 1), (0, 3, 2), (2, 3, 0), (17, 4, 3), (2, 9, 2, 5)):
        yield Sample((matrices(rng, *shape),))
    yield Sample((matrices(rng, 2, 5, 4).astype(np.float32),))


lu = OpDef(
    "lu",
    ("x",),
    {},
    _infer_lu,
    _ref_lu,
    kernel=batched(_lu_body),
    samples=wide_samples,
    routine=lambda ts, a: unless_in_lanes("lu", ts[0], *ts[0].shape[-2:], smaller_side(ts[0])),
    doc="LU factors with row pivots, in one matrix; the pivots as LAPACK counts them, from 1; and the first zero "
    "pivot, from 1 (0: none).",
)

# --- orders of rows -------------------------------------------------------------------------------------------------


def _infer_pivot_order(ts: Types, a: Attrs) -> TensorType:
    check_dtype(ts[0], (types.i32,), "the pivots")
    return TensorType(types.i64, (*ts[0].shape[:-1], a.rows))


def _ref_pivot_order(xs: Sequence[Array], a: Attrs) -> Array:
    pivots = xs[0].reshape(int(np.prod(xs[0].shape[:-1])), xs[0].shape[-1])
    order = np.tile(np.arange(a.rows, dtype=np.int64), (len(pivots), 1))
    for b, row in enumerate(pivots):
        for k, p in enumerate(np.clip(row - 1, 0, a.rows - 1)):
            order[b, [k, p]] = order[b, [p, k]]
    return order.reshape((*xs[0].shape[:-1], a.rows))


def _pivot_order_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    (pivots,), (order,) = ins, outs
    outer = axes_for(pivots.shape[:-1], "batch")
    at = syms(outer)
    moved = Buffer(f"{order.name}_moved", types.i64, (2,))
    k = Axis(loop_symbol("k", pivots.shape[-1]), pivots.shape[-1])
    p = clamped(
        Binary("sub", Cast(Load(pivots, (*at, k.sym)), types.i64), Const(1, types.i64)),
        Const(0, types.i64),
        index_value(a.rows - 1),
    )
    step = (
        write(moved, (), (0,), Load(order, (*at, k.sym))),
        write(moved, (), (1,), Load(order, (*at, p))),
        write(order, (), (*at, p), moved[0]),
        write(order, (), (*at, k.sym), moved[1]),
    )
    start = over(order, (a.rows,), lambda i: ((*at, i), Index(i)))
    items: tuple[Stage | Serial, ...] = (start, Serial(k, step))
    for axis in reversed(outer):
        items = (Serial(axis, items),)
    return list(items)


def _pivot_order_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((np.array([[3, 3, 3], [1, 2, 3]], np.int32),), {"rows": 4})
    yield Sample((np.array([2, 2], np.int32),), {"rows": 2})
    yield Sample((np.zeros((2, 0), np.int32),), {"rows": 3})


pivot_order = OpDef(
    "pivot_order",
    ("pivots",),
    {"rows": AttrDef("dim")},
    _infer_pivot_order,
    _ref_pivot_order,
    kernel=_pivot_order_kernel,
    samples=_pivot_order_samples,
    doc="The order of rows that LAPACK's pivots, counted from 1, make of 0, 1, 2...",
)

# --- triangular systems ---------------------------------------------------------------------------------------------


def _infer_triangular(ts: Types, a: Attrs) -> TensorType:
    check_matrices(ts[0], "the matrix", square=True)
    check_matrices(ts[1], "the right side")
    if ts[0].shape[:-2] != ts[1].shape[:-2] or ts[0].shape[-1] != ts[1].shape[-2] or ts[0].dtype is not ts[1].dtype:
        raise OpError(f"{ts[0]} and {ts[1]} are no triangular system", remedy="broadcast and cast before")
    return ts[1]


def _ref_triangular(xs: Sequence[Array], a: Attrs) -> Array:
    matrix, made = rows_of(xs[0]), rows_of(xs[1]).copy()
    n = matrix.shape[-1]
    with np.errstate(all="ignore"):
        for k in range(n - 1, -1, -1) if a.upper else range(n):
            if not a.unit:
                made[:, k] /= matrix[:, k, k, None]
            rest = slice(0, k) if a.upper else slice(k + 1, n)
            made[:, rest] -= matrix[:, rest, k, None] * made[:, k, None]
    return made.reshape(xs[1].shape).astype(xs[1].dtype)


def _triangular_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    (matrix, right), (out,) = ins, outs
    n, width = right.shape[-2:]
    row = Buffer(f"{out.name}_row", out.dtype, (width,))
    k = Axis(loop_symbol("k", n), n)
    here: Dim = n - 1 - k.sym if a.upper else k.sym

    def rest(i: Dim) -> Value:
        return is_before(i, here) if a.upper else is_before(here, i)

    def entry(i: IndexLike, j: IndexLike) -> Value:
        return Load(out, (*at, i, j))

    step = (
        over(row, (width,), lambda j: ((j,), entry(here, j) if a.unit else entry(here, j) / Load(
            matrix, (*at, here, here)))),
        over(out, (width,), lambda j: ((*at, here, j), row[j])),
        over(out, (n, width), lambda i, j: ((*at, i, j), Select(
            rest(i), entry(i, j) - Load(matrix, (*at, i, here)) * row[j], entry(i, j)))),
    )  # fmt: skip
    return [over(out, (n, width), lambda i, j: ((*at, i, j), Load(right, (*at, i, j)))), Serial(k, step)]


def _triangular_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for upper in (False, True):
        for unit in (False, True):
            x = matrices(rng, 2, 3, 3) + 3 * np.eye(3)
            yield Sample((x, matrices(rng, 2, 3, 2)), {"upper": upper, "unit": unit})
            many = matrices(rng, 3, 6, 4, 4) + 4 * np.eye(4)
            yield Sample((many, matrices(rng, 3, 6, 4, 3)), {"upper": upper, "unit": unit})
    yield Sample((np.zeros((0, 0)), np.zeros((0, 2))), {"upper": True})


solve_triangular = OpDef(
    "solve_triangular",
    ("a", "b"),
    {"upper": AttrDef("bool"), "unit": AttrDef("bool", False)},
    _infer_triangular,
    _ref_triangular,
    kernel=batched(_triangular_body),
    samples=_triangular_samples,
    routine=lambda ts, a: where_large(
        f"solve_{'upper' if a.upper else 'lower'}{'_unit' if a.unit else ''}", ts[0], ts[1].shape[-1]
    ),
    doc="x with a @ x = b, where only a's lower or upper triangle is read; unit takes its diagonal for ones.",
)
