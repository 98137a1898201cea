"""LDL factors of symmetric indefinite matrices, and systems solved by them.

In: batches of symmetric matrices ``[..., n, n]``, f32 or f64. Out: factors and pivots as LAPACK's ``sytf2`` packs them
for a lower triangle, and solutions as ``sytrs`` finds them.
Not its business: Hermitian matrices; what is made of factors.

Bunch and Kaufman's diagonal pivoting (Golub and Van Loan, 4.4.4): a step takes one column, or two whose pivot is a
block of two by two. Here each step is an iteration of a serial loop; the one after a block does nothing.
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
    IndexLike,
    Load,
    Select,
    Serial,
    Unary,
    Value,
    loop_symbol,
)
from tilewright.core.expr import Dim, Sym, maximum, minimum
from tilewright.core.graph import Attrs
from tilewright.core.opdef import OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import check_dtype
from tilewright.ops.linalg import batched, check_matrices, fold, is_before, matrices, over, rows_of
from tilewright.ops.rules import Types
from tilewright.ops.stages import Items, clamped, index_value, write

ALPHA = (1 + 17**0.5) / 8
"""How large a diagonal element must be beside its column: it bounds the growth of elements best."""


def _both(a: Value, b: Value) -> Value:
    return Binary("and", a, b)


def _magnitude(x: Value) -> Value:
    return Unary("abs", x)


def _infer_ldl(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix", square=True)
    *batch, n, _ = ts[0].shape
    return ts[0], TensorType(types.i32, (*batch, n)), TensorType(types.i32, tuple(batch))


def _choose(x: Array, k: int) -> tuple[int, int]:
    """The row that becomes the pivot, and how many columns the step takes."""
    n = len(x)
    own, column = abs(x[k, k]), np.abs(x[k + 1 :, k])
    if k == n - 1 or own >= ALPHA * column.max():
        return k, 1
    most = k + 1 + int(column.argmax())
    row = max(abs(x[most, j]) for j in range(k, n) if j != most)
    if own >= ALPHA * column.max() * (column.max() / row):
        return k, 1
    return most, 1 if abs(x[most, most]) >= ALPHA * row else 2


def _ref_ldl(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    made = rows_of(xs[0])
    n = made.shape[-1]
    made = np.tril(made) + np.swapaxes(np.tril(made, -1), -1, -2)
    pivots, info = np.zeros(made.shape[:-1], np.int32), np.zeros(len(made), np.int32)
    for b, x in enumerate(made):
        k = 0
        while k < n:
            p, size = _choose(x, k)
            last = k + size - 1
            x[[last, p], k:] = x[[p, last], k:]
            x[k:, [last, p]] = x[k:, [p, last]]
            pivots[b, k : last + 1] = p + 1 if size == 1 else -(p + 1)
            block = x[k : last + 1, k : last + 1].copy()
            if size == 1 and block[0, 0] == 0:
                info[b] = info[b] or k + 1
            else:
                column = x[last + 1 :, k : last + 1].copy()
                x[last + 1 :, k : last + 1] = column @ np.linalg.inv(block)
                x[last + 1 :, last + 1 :] -= x[last + 1 :, k : last + 1] @ column.T
            k += size
    batch = xs[0].shape[:-2]
    lower = np.tril(made).reshape(xs[0].shape).astype(xs[0].dtype)
    return lower, pivots.reshape((*batch, n)), info.reshape(batch)


def _ldl_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    x, (lower, pivots, info) = ins[0], outs
    n, t, name = x.shape[-1], x.dtype, lower.name
    zero, one, alpha, i64, i32 = Const(0, t), Const(1, t), Const(ALPHA, t), types.i64, types.i32
    work = Buffer(f"{name}_work", t, (n, n))
    place, kind = Buffer(f"{name}_place", i64, ()), Buffer(f"{name}_kind", i64, ())
    pivot, largest, row = (
        Buffer(f"{name}_pivot", i64, ()),
        Buffer(f"{name}_largest", t, ()),
        Buffer(f"{name}_row", t, ()),
    )
    first, second = (Buffer(f"{name}_{s}", t, (n,)) for s in ("first", "second"))
    u, v = (Buffer(f"{name}_{s}", t, (n,)) for s in ("u", "v"))
    d = Buffer(f"{name}_d", t, (3,))
    axis = Axis(loop_symbol("k", n), n)
    k: Dim = axis.sym
    after = minimum(k + 1, n - 1)
    # kind: 0 this step does nothing, 1 it takes one column, 2 two; before it is chosen, 2 means that the last took two
    goes = Binary("ne", kind[()], Const(0, i64))
    is_block = Binary("eq", kind[()], Const(2, i64))
    own = _magnitude(work[k, k])
    is_small = Binary("lt", own, alpha * largest[()])
    safe_row = Select(Binary("gt", row[()], zero), row[()], one)
    is_small_beside = Binary("lt", own, alpha * largest[()] * (largest[()] / safe_row))
    at_place = Load(work, (place[()], place[()]))
    moves = _both(is_small, is_small_beside)
    is_single = Binary("ge", _magnitude(at_place), alpha * row[()])
    chosen = Select(_both(moves, Unary("not", is_single)), Const(2, i64), Const(1, i64))
    last = Select(is_block, index_value(after), Index(k))

    def swapped(by_rows: bool) -> Items:
        """Exchange two rows, or columns, of what is left of the matrix."""

        def entry(i: IndexLike, j: IndexLike) -> tuple[IndexLike, IndexLike]:
            return (i, j) if by_rows else (j, i)

        return [
            over(first, (n,), lambda j: ((j,), Load(work, entry(last, j)))),
            over(second, (n,), lambda j: ((j,), Load(work, entry(pivot[()], j)))),
            over(work, (n,), lambda j: (entry(pivot[()], j), Select(is_before(j, k), second[j], first[j]))),
            over(work, (n,), lambda j: (entry(last, j), Select(
                is_before(j, k), Load(work, entry(last, j)), second[j]))),
        ]  # fmt: skip

    fails = _both(_both(goes, Binary("eq", work[k, k], zero)), _both(
        Unary("not", is_block), Binary("eq", Load(info, at), Const(0, i32))))  # fmt: skip
    single = Select(Binary("eq", work[k, k], zero), zero, one / Select(Binary("eq", work[k, k], zero), one, work[k, k]))
    side = Select(is_block, work[after, k], one)
    d11, d22 = work[after, after] / side, work[k, k] / side
    scale = one / Select(is_block, (d11 * d22 - one) * side, one)
    number = Cast(Binary("add", pivot[()], Const(1, i64)), i32)

    def left(i: Dim) -> Value:
        """Is a row behind the columns that the step takes?"""
        return _both(goes, Binary("lt", last, index_value(i)))

    def less(i: Dim, j: Dim) -> Value:
        """What the step takes off the lower triangle's element."""
        return work[i, k] * u[j] + Select(is_block, work[i, after], zero) * v[j]

    step = (
        write(kind, (), (), Select(is_block, Const(0, i64), Const(1, i64))),
        fold(largest, n, lambda _, r: Select(is_before(k, r), _magnitude(work[r, k]), zero), "max", zero),
        fold(place, n, lambda _, r: Select(
            _both(is_before(k, r), Binary("eq", _magnitude(work[r, k]), largest[()])),
            Index(r), Const(i64.max, i64)), "min", Const(i64.max, i64)),
        write(place, (), (), clamped(place[()], Const(0, i64), index_value(n - 1))),
        fold(row, n, lambda _, r: Select(
            _both(is_before(k - 1, r), Binary("ne", Index(r), place[()])),
            _magnitude(Load(work, (place[()], r))), zero), "max", zero),
        write(pivot, (), (), Select(_both(goes, moves), place[()], Index(k))),
        write(kind, (), (), Select(goes, chosen, Const(0, i64))),
        *swapped(True),
        *swapped(False),
        write(info, (), at, Select(fails, Cast(Index(k + 1), i32), Load(info, at))),
        write(pivots, (), (*at, k), Select(
            goes, Select(is_block, Const(0, i32) - number, number), Load(pivots, (*at, k)))),
        write(pivots, (), (*at, after), Select(is_block, Const(0, i32) - number, Load(pivots, (*at, after)))),
        write(d, (), (0,), d11),
        write(d, (), (1,), d22),
        write(d, (), (2,), Select(is_block, scale, single)),
        over(u, (n,), lambda i: ((i,), Select(left(i), Select(
            is_block, d[2] * (d[0] * work[i, k] - work[i, after]), d[2] * work[i, k]), zero))),
        over(v, (n,), lambda i: ((i,), Select(
            _both(left(i), is_block), d[2] * (d[1] * work[i, after] - work[i, k]), zero))),
        over(work, (n, n), lambda i, j: ((i, j), Select(
            _both(left(i), left(j)), work[i, j] - Select(is_before(i, j), less(j, i), less(i, j)), work[i, j]))),
        over(work, (n,), lambda i: ((i, k), Select(left(i), u[i], work[i, k]))),
        over(work, (n,), lambda i: ((i, after), Select(_both(left(i), is_block), v[i], work[i, after]))),
    )  # fmt: skip
    start = over(work, (n, n), lambda i, j: ((i, j), Select(
        is_before(i, j), Load(x, (*at, j, i)), Load(x, (*at, i, j)))))  # fmt: skip
    end = over(lower, (n, n), lambda i, j: ((*at, i, j), Select(is_before(i, j), zero, work[i, j])))
    nothing = over(pivots, (n,), lambda i: ((*at, i), Const(0, i32)))
    begin = write(kind, (), (), Const(1, i64))
    return [start, nothing, begin, write(info, (), at, Const(0, i32)), Serial(axis, step), end]


def _symmetric_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 3), (2, 6, 6), (1, 1), (0, 3, 3), (2, 0, 0), (2, 9, 4, 4)):
        x = matrices(rng, *shape)
        yield Sample((x + np.swapaxes(x, -1, -2),))
    yield Sample((np.array([[0.0, 1, 2], [1, 0, 3], [2, 3, 0]]),))
    yield Sample((np.zeros((3, 3)),))


ldl = OpDef(
    "ldl",
    ("x",),
    {},
    _infer_ldl,
    _ref_ldl,
    kernel=batched(_ldl_body),
    samples=_symmetric_samples,
    doc="LDL factors of symmetric matrices, from their lower triangle, in one matrix; pivots as LAPACK counts them "
    "(negative pairs: blocks of two by two); and the first zero pivot, from 1 (0: none).",
)

# --- systems --------------------------------------------------------------------------------------------------------


def _infer_solve(ts: Types, a: Attrs) -> TensorType:
    check_matrices(ts[0], "the factors", square=True)
    check_dtype(ts[1], (types.i32,), "the pivots")
    return ts[2]


def _ref_solve(xs: Sequence[Array], a: Attrs) -> Array:
    factors, made = rows_of(xs[0]), rows_of(xs[2]).copy()
    n = factors.shape[-1]
    pivots = xs[1].reshape(len(factors), n)
    for x, p, y in zip(factors, pivots, made, strict=True):
        starts, k = [], 0
        while k < n:
            size = 1 if p[k] > 0 else 2
            starts.append((k, size))
            k += size
        for k, size in starts:
            last, other = k + size - 1, abs(int(p[k])) - 1
            y[[last, other]] = y[[other, last]]
            y[last + 1 :] -= x[last + 1 :, k : last + 1] @ y[k : last + 1]
            block = np.tril(x[k : last + 1, k : last + 1])
            y[k : last + 1] = np.linalg.solve(block + np.tril(block, -1).T, y[k : last + 1])
        for k, size in reversed(starts):
            last, other = k + size - 1, abs(int(p[k])) - 1
            y[k : last + 1] -= x[last + 1 :, k : last + 1].T @ y[last + 1 :]
            y[[last, other]] = y[[other, last]]
    return made.reshape(xs[2].shape).astype(xs[2].dtype)


def _solve_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    (factors, pivots, right), (made,) = ins, outs
    n, width = right.shape[-2:]
    t, name, i32 = made.dtype, made.name, types.i32
    zero, one = Const(0, t), Const(1, t)
    kind = Buffer(f"{name}_kind", i32, (n,))
    first, second = (Buffer(f"{name}_{s}", t, (width,)) for s in ("first", "second"))
    down, up = (Axis(loop_symbol(s, n), n) for s in ("down", "up"))

    def x(i: IndexLike, j: IndexLike) -> Value:
        return Load(factors, (*at, i, j))

    def y(i: IndexLike, j: IndexLike) -> Value:
        return Load(made, (*at, i, j))

    def parts(k: Dim) -> tuple[Dim, Value, Value, Value, Value]:
        """The next column, whether the step does anything, takes two columns, its last column and its other row."""
        after = minimum(k + 1, n - 1)
        goes, is_block = Binary("ne", kind[k], Const(0, i32)), Binary("eq", kind[k], Const(2, i32))
        last = Select(is_block, index_value(after), Index(k))
        other: Value = Binary("sub", Cast(_magnitude(Load(pivots, (*at, k))), types.i64), Const(1, types.i64))
        other = clamped(other, Const(0, types.i64), index_value(n - 1))
        return after, goes, is_block, last, Select(goes, other, Index(k))

    def swap(k: Dim) -> Items:
        *_, last, other = parts(k)
        return [
            over(first, (width,), lambda j: ((j,), y(last, j))),
            over(second, (width,), lambda j: ((j,), y(other, j))),
            over(made, (width,), lambda j: ((*at, other, j), first[j])),
            over(made, (width,), lambda j: ((*at, last, j), second[j])),
        ]

    def forward(k: Dim) -> Items:
        after, goes, is_block, last, _ = parts(k)

        def less(i: Dim, j: Dim) -> Value:
            return x(i, k) * y(k, j) + Select(is_block, x(i, after) * y(after, j), zero)

        # The block's inverse, scaled by its off-diagonal element as in sytrs: no product of two pivots overflows.
        side = Select(is_block, x(after, k), one)
        d22, d11 = x(k, k) / side, x(after, after) / side
        scale = one / Select(is_block, d11 * d22 - one, one)

        def solved(d: Value, i: Dim, other: Dim, j: Dim) -> Value:
            """A row of the solution of the block's system."""
            return scale * (d * (y(i, j) / side) - y(other, j) / side)

        return [
            *swap(k),
            over(made, (n, width), lambda i, j: ((*at, i, j), Select(
                _both(goes, Binary("lt", last, index_value(i))), y(i, j) - less(i, j), y(i, j)))),
            # Both rows of a block before either is written: each needs the other as it was.
            over(first, (width,), lambda j: ((j,), Select(
                is_block, solved(d11, k, after, j), y(k, j) / x(k, k)))),
            over(second, (width,), lambda j: ((j,), Select(
                is_block, solved(d22, after, k, j), y(after, j)))),
            over(made, (width,), lambda j: ((*at, k, j), Select(goes, first[j], y(k, j)))),
            over(made, (width,), lambda j: ((*at, after, j), Select(is_block, second[j], y(after, j)))),
        ]  # fmt: skip

    def backward(k: Dim) -> Items:
        after, goes, is_block, last, _ = parts(k)

        def dot(out: Buffer, column: Dim) -> Items:
            return [fold(out, n, lambda j, r: Select(
                Binary("lt", last, index_value(r)), x(r, column) * y(r, j[0]), zero), "add", zero)]  # fmt: skip

        return [
            *dot(first, k),
            *dot(second, after),
            over(made, (width,), lambda j: ((*at, k, j), y(k, j) - Select(goes, first[j], zero))),
            over(made, (width,), lambda j: ((*at, after, j), y(after, j) - Select(is_block, second[j], zero))),
            *swap(k),
        ]

    before = Axis(loop_symbol("before", n), n)
    k = before.sym
    # A negative pivot stands twice, once for each column of its block: the second one does nothing.
    was_block = _both(is_before(0, k), Binary("eq", kind[maximum(k - 1, 0)], Const(2, i32)))
    taken = Select(Binary("lt", Load(pivots, (*at, k)), Const(0, i32)), Const(2, i32), Const(1, i32))
    return [
        over(made, (n, width), lambda i, j: ((*at, i, j), Load(right, (*at, i, j)))),
        over(kind, (n,), lambda i: ((i,), Const(0, i32))),
        Serial(before, (write(kind, (), (k,), Select(was_block, Const(0, i32), taken)),)),
        Serial(down, tuple(forward(down.sym))),
        # Backward the swaps are undone after a step, forward they are done before it.
        Serial(up, tuple(backward(n - 1 - up.sym))),
    ]


def _solve_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in _symmetric_samples(rng):
        (x,) = sample.arrays
        if x.any():
            factors, pivots, _ = _ref_ldl([x], Attrs({}))
            yield Sample((factors, pivots, matrices(rng, *x.shape[:-1], 2)))
    yield Sample((np.zeros((0, 0)), np.zeros((0,), np.int32), np.zeros((0, 2))))


solve_ldl = OpDef(
    "solve_ldl",
    ("factors", "pivots", "b"),
    {},
    _infer_solve,
    _ref_solve,
    kernel=batched(_solve_body),
    samples=_solve_samples,
    doc="x with a @ x = b, by the factors and pivots that ldl gives for a.",
)
