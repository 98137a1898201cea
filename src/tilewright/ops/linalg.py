"""Dense linear algebra: Cholesky, LU and QR factors, triangular systems, symmetric eigenvalues, singular values.

In: batches of matrices ``[..., m, n]``, f32 or f64. Out: factors in LAPACK's layout and sign conventions.
Not its business: what is made of factors (inverse, determinant, solve, pseudo-inverse), which frontends spell.

Each is a kernel of serial loops: outer-product forms of Cholesky and LU (Golub and Van Loan, 3.2 and 4.2), Householder
reflections as LAPACK's ``geqrf`` has them, Jacobi's rotations for eigenvalues (cyclic) and singular values (one-sided,
Hestenes), ``SWEEPS`` times through all pairs, which is beyond convergence. Right, not fast: no blocking.
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
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, DType, TensorType
from tilewright.ops.common import check_dtype
from tilewright.ops.rules import Types
from tilewright.ops.stages import Items, clamped, index_value, write

SWEEPS = 16


def check_matrices(t: TensorType, what: str, *, square: bool = False) -> None:
    """``OpError`` unless ``t`` is f32 or f64 and a batch of (square) matrices."""
    check_dtype(t, (types.f32, types.f64), what)
    if t.rank < 2:
        raise OpError(f"{what} must be a batch of matrices, not {t}")
    if square and t.shape[-1] != t.shape[-2]:
        raise OpError(f"{what} must be square, not {t}")


def smaller_side(t: TensorType) -> int:
    """The lesser size of matrices, which must be static."""
    m, n = t.shape[-2:]
    if not isinstance(m, int) or not isinstance(n, int):
        raise OpError(f"the matrices of {t} must have static sizes", remedy="fix their dimensions")
    return min(m, n)


# --- writing stages -------------------------------------------------------------------------------------------------


def is_at(a: Dim, b: Dim) -> Value:
    """``a == b``."""
    return Binary("eq", Index(a), index_value(b))


def is_before(a: Dim, b: Dim) -> Value:
    """``a < b``."""
    return Binary("lt", index_value(a), index_value(b))


def _zero(dtype: DType) -> Value:
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


def batched(body: Callable[[tuple[Buffer, ...], tuple[Buffer, ...], Attrs, tuple[Sym, ...]], Items]) -> Callable[
    [tuple[Buffer, ...], tuple[Buffer, ...], Attrs], Items
]:  # fmt: skip
    """Stages for one matrix, at the batch index that is given, inside serial loops over the batch."""

    def kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
        outer = axes_for(ins[0].shape[:-2], "batch")
        items: tuple[Stage | Serial, ...] = tuple(body(ins, outs, a, syms(outer)))
        for axis in reversed(outer):
            items = (Serial(axis, items),)
        return list(items)

    return kernel


def matrices(rng: np.random.Generator, *shape: int) -> Array:
    """Random matrices, f64."""
    return rng.standard_normal(shape)


def _square_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 3), (2, 4, 4), (1, 1), (0, 3, 3), (2, 0, 0)):
        yield Sample((matrices(rng, *shape),))
    yield Sample((matrices(rng, 5, 5).astype(np.float32) + 4 * np.eye(5, dtype=np.float32),))


def rows_of(x: Array) -> Array:
    """A batch as a list of f64 matrices."""
    return x.reshape((int(np.prod(x.shape[:-2])), *x.shape[-2:])).astype(np.float64)


# --- Cholesky -------------------------------------------------------------------------------------------------------


def _infer_cholesky(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix", square=True)
    smaller_side(ts[0])
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
    n, zero = x.shape[-1], _zero(x.dtype)
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
    for sample in _square_samples(rng):
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
    doc="The lower factor of positive definite matrices, from their lower triangle, and for each matrix the order of "
    "the first leading minor that is not positive (0: none; behind it the factor is NaN).",
)

# --- LU -------------------------------------------------------------------------------------------------------------


def _infer_lu(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix")
    k, batch = smaller_side(ts[0]), ts[0].shape[:-2]
    whole = TensorType(types.i32, (*batch, k))
    return ts[0], whole, TensorType(types.i64, (*batch, ts[0].shape[-2])), TensorType(types.i32, batch)


def _ref_lu(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    made = rows_of(xs[0]).copy()
    count, m, n = made.shape
    pivots = np.zeros((count, min(m, n)), np.int32)
    order = np.tile(np.arange(m, dtype=np.int64), (count, 1))
    info = np.zeros(count, np.int32)
    for b in range(count):
        for k in range(min(m, n)):
            p = k + int(np.abs(made[b, k:, k]).argmax())
            pivots[b, k] = p + 1
            made[b, [k, p]] = made[b, [p, k]]
            order[b, [k, p]] = order[b, [p, k]]
            if made[b, k, k] == 0:
                info[b] = info[b] or k + 1
            else:
                made[b, k + 1 :, k] /= made[b, k, k]
            made[b, k + 1 :, k + 1 :] -= np.outer(made[b, k + 1 :, k], made[b, k, k + 1 :])
    batch = xs[0].shape[:-2]
    shapes = ((made, xs[0].shape), (pivots, (*batch, min(m, n))), (order, (*batch, m)), (info, batch))
    first, *rest = (array.reshape(shape) for array, shape in shapes)
    return first.astype(xs[0].dtype), *rest


def _lu_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    x, (lu_, pivots, order, info) = ins[0], outs
    m, n = x.shape[-2:]
    zero, name = _zero(x.dtype), lu_.name
    largest, place = Buffer(f"{name}_largest", x.dtype, ()), Buffer(f"{name}_place", types.i64, ())
    first, second = (Buffer(f"{name}_{r}", x.dtype, (n,)) for r in ("first", "second"))
    moved = Buffer(f"{name}_moved", types.i64, (2,))
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
        fold(place, m, lambda _, r: Select(
            Binary("and", is_before(k.sym - 1, r), Binary("eq", Unary("abs", entry(r, k.sym)), largest[()])),
            Index(r), Const(i64.max, i64)), "min", Const(i64.max, i64)),
        write(place, (), (), Select(Binary("lt", p, index_value(m)), p, Index(k.sym))),
        write(pivots, (), (*at, k.sym), Cast(Binary("add", p, Const(1, i64)), types.i32)),
        over(first, (n,), lambda j: ((j,), entry(k.sym, j))),
        over(second, (n,), lambda j: ((j,), entry(p, j))),
        over(lu_, (n,), lambda j: ((*at, p, j), first[j])),
        over(lu_, (n,), lambda j: ((*at, k.sym, j), second[j])),
        write(moved, (), (0,), Load(order, (*at, k.sym))),
        write(moved, (), (1,), Load(order, (*at, p))),
        write(order, (), (*at, p), moved[0]),
        write(order, (), (*at, k.sym), moved[1]),
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
        over(order, (m,), lambda i: ((*at, i), Index(i))),
        write(info, (), at, Const(0, types.i32)),
        Serial(k, step),
    ]


def _wide_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 3), (2, 4, 3), (3, 5), (1, 1), (0, 3, 2), (2, 3, 0)):
        yield Sample((matrices(rng, *shape),))
    yield Sample((matrices(rng, 2, 5, 4).astype(np.float32),))


lu = OpDef(
    "lu",
    ("x",),
    {},
    _infer_lu,
    _ref_lu,
    kernel=batched(_lu_body),
    samples=_wide_samples,
    doc="LU factors with row pivots, in one matrix; the pivots as LAPACK counts them, from 1; the same as an order of "
    "rows; and the first zero pivot, from 1 (0: none).",
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
    yield Sample((np.zeros((0, 0)), np.zeros((0, 2))), {"upper": True})


solve_triangular = OpDef(
    "solve_triangular",
    ("a", "b"),
    {"upper": AttrDef("bool"), "unit": AttrDef("bool", False)},
    _infer_triangular,
    _ref_triangular,
    kernel=batched(_triangular_body),
    samples=_triangular_samples,
    doc="x with a @ x = b, where only a's lower or upper triangle is read; unit takes its diagonal for ones.",
)

# --- QR -------------------------------------------------------------------------------------------------------------


def _infer_geqrf(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix")
    return ts[0], ts[0].with_shape((*ts[0].shape[:-2], smaller_side(ts[0])))


def _ref_geqrf(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    made = rows_of(xs[0]).copy()
    count, m, n = made.shape
    taus = np.zeros((count, min(m, n)))
    for b in range(count):
        for k in range(min(m, n)):
            alpha, rest = made[b, k, k], float((made[b, k + 1 :, k] ** 2).sum())
            if rest == 0:
                continue
            beta = -np.copysign(np.sqrt(alpha * alpha + rest), alpha)
            taus[b, k] = (beta - alpha) / beta
            v = np.concatenate([[1.0], made[b, k + 1 :, k] / (alpha - beta)])
            made[b, k:, k + 1 :] -= taus[b, k] * np.outer(v, v @ made[b, k:, k + 1 :])
            made[b, k, k], made[b, k + 1 :, k] = beta, v[1:]
    batch = xs[0].shape[:-2]
    return made.reshape(xs[0].shape).astype(xs[0].dtype), taus.reshape((*batch, min(m, n))).astype(xs[0].dtype)


def _geqrf_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    x, (made, taus) = ins[0], outs
    m, n = x.shape[-2:]
    zero, one, name = _zero(x.dtype), Const(1, x.dtype), made.name
    rest, beta, tau, scale = (Buffer(f"{name}_{s}", x.dtype, ()) for s in ("rest", "beta", "tau", "scale"))
    v, w = Buffer(f"{name}_v", x.dtype, (m,)), Buffer(f"{name}_w", x.dtype, (n,))
    k = Axis(loop_symbol("k", taus.shape[-1]), taus.shape[-1])

    def entry(i: IndexLike, j: IndexLike) -> Value:
        return Load(made, (*at, i, j))

    alpha = entry(k.sym, k.sym)
    is_done = Binary("eq", rest[()], zero)
    root = Unary("sqrt", alpha * alpha + rest[()])
    step = (
        fold(rest, m, lambda _, r: Select(is_before(k.sym, r), entry(r, k.sym) * entry(r, k.sym), zero), "add", zero),
        write(beta, (), (), Select(is_done, alpha, Select(Binary("lt", alpha, zero), root, -root))),
        write(tau, (), (), Select(is_done, zero, (beta[()] - alpha) / Select(is_done, one, beta[()]))),
        write(scale, (), (), Select(is_done, zero, one / Select(is_done, one, alpha - beta[()]))),
        write(taus, (), (*at, k.sym), tau[()]),
        over(v, (m,), lambda i: ((i,), Select(
            is_before(k.sym, i), entry(i, k.sym) * scale[()], Select(is_at(i, k.sym), one, zero)))),
        fold(w, m, lambda j, r: v[r] * entry(r, j[0]), "add", zero),
        over(made, (m, n), lambda i, j: ((*at, i, j), Select(
            is_before(k.sym, j), entry(i, j) - tau[()] * v[i] * w[j], entry(i, j)))),
        over(made, (m,), lambda i: ((*at, i, k.sym), Select(
            is_before(k.sym, i), v[i], Select(is_at(i, k.sym), beta[()], entry(i, k.sym))))),
    )  # fmt: skip
    return [over(made, (m, n), lambda i, j: ((*at, i, j), Load(x, (*at, i, j)))), Serial(k, step)]


geqrf = OpDef(
    "geqrf",
    ("x",),
    {},
    _infer_geqrf,
    _ref_geqrf,
    kernel=batched(_geqrf_body),
    samples=_wide_samples,
    doc="QR factors by Householder reflections as LAPACK packs them: R above, the reflections' vectors below, and "
    "their factors tau.",
)


def _infer_reflect(ts: Types, a: Attrs) -> TensorType:
    check_matrices(ts[0], "the vectors")
    check_matrices(ts[2], "the matrix")
    return ts[2]


def _ref_reflect(xs: Sequence[Array], a: Attrs) -> Array:
    vectors, made = rows_of(xs[0]), rows_of(xs[2]).copy()
    taus = xs[1].reshape(len(vectors), -1).astype(np.float64)
    count = taus.shape[1]
    for b in range(len(made)):
        for k in range(count) if a.transposed else range(count - 1, -1, -1):
            v = np.concatenate([np.zeros(k), [1.0], vectors[b, k + 1 :, k]])
            made[b] -= taus[b, k] * np.outer(v, v @ made[b])
    return made.reshape(xs[2].shape).astype(xs[2].dtype)


def _reflect_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    (vectors, taus, x), (made,) = ins, outs
    m, n = x.shape[-2:]
    zero, one, count = _zero(x.dtype), Const(1, x.dtype), taus.shape[-1]
    v, w = Buffer(f"{made.name}_v", x.dtype, (m,)), Buffer(f"{made.name}_w", x.dtype, (n,))
    s = Axis(loop_symbol("s", count), count)
    k: Dim = s.sym if a.transposed else count - 1 - s.sym

    def entry(i: IndexLike, j: IndexLike) -> Value:
        return Load(made, (*at, i, j))

    step = (
        over(v, (m,), lambda i: ((i,), Select(
            is_before(k, i), Load(vectors, (*at, i, k)), Select(is_at(i, k), one, zero)))),
        fold(w, m, lambda j, r: v[r] * entry(r, j[0]), "add", zero),
        over(made, (m, n), lambda i, j: ((*at, i, j), entry(i, j) - Load(taus, (*at, k)) * v[i] * w[j])),
    )  # fmt: skip
    return [over(made, (m, n), lambda i, j: ((*at, i, j), Load(x, (*at, i, j)))), Serial(s, step)]


def _reflect_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for transposed in (False, True):
        packed, taus = _ref_geqrf([matrices(rng, 2, 4, 3)], Attrs({}))
        yield Sample((packed, taus, matrices(rng, 2, 4, 2)), {"transposed": transposed})
    yield Sample((np.zeros((0, 0)), np.zeros((0,)), np.zeros((0, 2))), {})


reflect = OpDef(
    "reflect",
    ("vectors", "taus", "x"),
    {"transposed": AttrDef("bool", False)},
    _infer_reflect,
    _ref_reflect,
    kernel=batched(_reflect_body),
    samples=_reflect_samples,
    doc="Q @ x, or Q.T @ x, where Q is the product of the reflections that geqrf gives.",
)

# --- Jacobi ---------------------------------------------------------------------------------------------------------


def _rotation(p: Value, q: Value, r: Value, is_active: Value) -> tuple[Value, Value]:
    """Cosine and sine of the angle that makes ``[[p, r], [r, q]]`` diagonal; none where there is nothing to do."""
    zero, one, two = (Const(v, p.dtype) for v in (0, 1, 2))
    is_active = Binary("and", is_active, Binary("ne", r, zero))
    theta = (q - p) / Select(is_active, two * r, one)
    root = Unary("sqrt", theta * theta + one)
    t = one / Select(Binary("lt", theta, zero), theta - root, theta + root)
    cosine = one / Unary("sqrt", t * t + one)
    return Select(is_active, cosine, one), Select(is_active, t * cosine, zero)


def _pairs(n: Dim, body: Callable[[Sym, Sym, Value], tuple[Stage, ...]]) -> Serial:
    """``SWEEPS`` times through all pairs ``p < q``; other pairs are not active."""
    s = Axis(loop_symbol("sweep", SWEEPS), SWEEPS)
    p, q = (Axis(loop_symbol(name, n), n) for name in ("p", "q"))
    return Serial(s, (Serial(p, (Serial(q, body(p.sym, q.sym, is_before(p.sym, q.sym))),)),))


def _turn(x: Buffer, at: tuple[Sym, ...], p: Sym, q: Sym, angle: Buffer, columns: bool, n: Dim) -> tuple[Stage, ...]:
    """Turn two rows, or two columns, into each other."""
    first, second = (Buffer(f"{x.name}_{s}{'c' if columns else 'r'}", x.dtype, (n,)) for s in ("one", "two"))

    def place(k: Dim, j: Dim) -> tuple[Dim, ...]:
        return (*at, j, k) if columns else (*at, k, j)

    cosine, sine = angle[0], angle[1]
    return (
        over(first, (n,), lambda j: ((j,), Load(x, place(p, j)))),
        over(second, (n,), lambda j: ((j,), Load(x, place(q, j)))),
        over(x, (n,), lambda j: (place(p, j), cosine * first[j] - sine * second[j])),
        over(x, (n,), lambda j: (place(q, j), Select(
            is_at(p, q), Load(x, place(q, j)), sine * first[j] + cosine * second[j]))),
    )  # fmt: skip


def _identity(out: Buffer, at: tuple[Sym, ...]) -> Stage:
    one, zero = Const(1, out.dtype), _zero(out.dtype)
    return over(out, out.shape[-2:], lambda i, j: ((*at, i, j), Select(is_at(i, j), one, zero)))


def _infer_eigh(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix", square=True)
    smaller_side(ts[0])
    return ts[0].with_shape(ts[0].shape[:-1]), ts[0]


def _ref_eigh(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    vectors = rows_of(xs[0]).copy()
    values = np.zeros(vectors.shape[:-1])
    for b, x in enumerate(rows_of(xs[0])):
        values[b], vectors[b] = _jacobi(np.tril(x) + np.tril(x, -1).T)
    dtype = xs[0].dtype
    return values.reshape(xs[0].shape[:-1]).astype(dtype), vectors.reshape(xs[0].shape).astype(dtype)


def _angle(p: float, q: float, r: float) -> tuple[float, float]:
    if r == 0:
        return 1.0, 0.0
    with np.errstate(over="ignore"):
        theta = np.float64(q - p) / (2 * r)
        root = np.sqrt(theta * theta + 1)
    t = 1 / (theta - root if theta < 0 else theta + root)
    return 1 / np.sqrt(t * t + 1), t / np.sqrt(t * t + 1)


def _jacobi(x: Array) -> tuple[Array, Array]:
    n = len(x)
    vectors = np.eye(n)
    for _ in range(SWEEPS):
        for p in range(n):
            for q in range(p + 1, n):
                c, s = _angle(x[p, p], x[q, q], x[p, q])
                turn = np.array([[c, s], [-s, c]])
                x[[p, q]] = turn.T @ x[[p, q]]
                x[:, [p, q]] = x[:, [p, q]] @ turn
                vectors[:, [p, q]] = vectors[:, [p, q]] @ turn
    return np.diag(x).copy(), vectors


def _eigh_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    x, (values, vectors) = ins[0], outs
    n = x.shape[-1]
    work = Buffer(f"{vectors.name}_work", x.dtype, (n, n))
    angle = Buffer(f"{vectors.name}_angle", x.dtype, (2,))

    def body(p: Sym, q: Sym, is_active: Value) -> tuple[Stage, ...]:
        cosine, sine = _rotation(work[p, p], work[q, q], work[p, q], is_active)
        return (
            write(angle, (), (0,), cosine),
            write(angle, (), (1,), sine),
            *_turn(work, (), p, q, angle, False, n),
            *_turn(work, (), p, q, angle, True, n),
            *_turn(vectors, at, p, q, angle, True, n),
        )

    start = over(work, (n, n), lambda i, j: ((i, j), Select(
        is_before(j, i + 1), Load(x, (*at, i, j)), Load(x, (*at, j, i)))))  # fmt: skip
    end = over(values, (n,), lambda i: ((*at, i), work[i, i]))
    return [start, _identity(vectors, at), _pairs(n, body), end]


eigh = OpDef(
    "eigh",
    ("x",),
    {},
    _infer_eigh,
    _ref_eigh,
    kernel=batched(_eigh_body),
    samples=_square_samples,
    doc="Eigenvalues, in no order, and eigenvectors (columns) of symmetric matrices, from their lower triangle.",
)


def _infer_svd(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix")
    *batch, _, n = ts[0].shape
    if smaller_side(ts[0]) != n:
        raise OpError(f"the matrices of {ts[0]} have more columns than rows", remedy="transpose them")
    return ts[0], ts[0].with_shape((*batch, n, n))


def _ref_svd(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    made = rows_of(xs[0]).copy()
    n = made.shape[-1]
    vectors = np.tile(np.eye(n), (len(made), 1, 1))
    for u, v in zip(made, vectors, strict=True):
        for _ in range(SWEEPS):
            for p in range(n):
                for q in range(p + 1, n):
                    c, s = _angle(u[:, p] @ u[:, p], u[:, q] @ u[:, q], u[:, p] @ u[:, q])
                    turn = np.array([[c, s], [-s, c]])
                    u[:, [p, q]] = u[:, [p, q]] @ turn
                    v[:, [p, q]] = v[:, [p, q]] @ turn
    dtype, batch = xs[0].dtype, xs[0].shape[:-2]
    return made.reshape(xs[0].shape).astype(dtype), vectors.reshape((*batch, n, n)).astype(dtype)


def _tall_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 3), (2, 4, 3), (1, 1), (0, 3, 2), (2, 3, 0)):
        yield Sample((matrices(rng, *shape),))
    yield Sample((matrices(rng, 2, 5, 4).astype(np.float32),))


def _svd_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    x, (made, vectors) = ins[0], outs
    m, n = x.shape[-2:]
    zero = _zero(x.dtype)
    angle = Buffer(f"{made.name}_angle", x.dtype, (2,))
    sums = [Buffer(f"{made.name}_{s}", x.dtype, ()) for s in ("pp", "qq", "pq")]

    def body(p: Sym, q: Sym, is_active: Value) -> tuple[Stage, ...]:
        def dot(out: Buffer, i: Sym, j: Sym) -> Stage:
            return fold(out, m, lambda _, r: Load(made, (*at, r, i)) * Load(made, (*at, r, j)), "add", zero)

        pp, qq, pq = sums
        cosine, sine = _rotation(pp[()], qq[()], pq[()], is_active)
        return (
            dot(pp, p, p),
            dot(qq, q, q),
            dot(pq, p, q),
            write(angle, (), (0,), cosine),
            write(angle, (), (1,), sine),
            *_turn(made, at, p, q, angle, True, m),
            *_turn(vectors, at, p, q, angle, True, n),
        )

    start = over(made, (m, n), lambda i, j: ((*at, i, j), Load(x, (*at, i, j))))
    return [start, _identity(vectors, at), _pairs(n, body)]


svd_columns = OpDef(
    "svd_columns",
    ("x",),
    {},
    _infer_svd,
    _ref_svd,
    kernel=batched(_svd_body),
    samples=_tall_samples,
    doc="x @ v with orthogonal columns, whose lengths are the singular values in no order, and the rotation v.",
)
