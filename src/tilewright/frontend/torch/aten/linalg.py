"""ATen's linear algebra by the factors of ``ops.linalg``.

In: calls on real matrices. Out: nodes. Not its business: complex matrices and eigenvalues of general matrices, which
PyTorch keeps.

Signs of eigenvectors and singular vectors, which the definitions leave open, are those of the LAPACK that is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.expr import Dim, maximum, minimum
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import DType, TensorType, bool_, f64, i64
from tilewright.frontend.matrices import eye, orthogonal, solve_triangular, swapped
from tilewright.frontend.nodes import dim_scalar, expand, reshape, slice_axis
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, as_node, cast

Convert = Callable[[AtenCall], Result]


def _batched(b: Builder, x: Node, batch: Sequence[Dim]) -> Node:
    return expand(b, x, (*batch, *x.shape[-2:]))


def main_diagonal(b: Builder, x: Node) -> Node:
    """The main diagonal: rows of the product with the identity, summed."""
    m, n = x.shape[-2:]
    k = minimum(m, n)
    square = slice_axis(b, slice_axis(b, x, len(x.shape) - 2, 0, k), len(x.shape) - 1, 0, k)
    mask = cast(b, eye(b, k, k, x.shape[:-2], i64), bool_)
    kept = b(ops.where, mask, square, b.const(0, x.dtype))
    return b(ops.reduce_sum, kept, axes=(len(x.shape) - 1,), keepdims=False)


def rows_in_order(b: Builder, x: Node, order: Node) -> Node:
    at = expand(b, reshape(b, order, (*order.shape, 1)), (*order.shape, x.shape[-1]))
    return b(ops.gather_elements, x, at, axis=len(x.shape) - 2)


def _triangle(b: Builder, x: Node, upper: bool) -> Node:
    return b(ops.trilu, x, k=0, upper=upper)


# --- Cholesky -------------------------------------------------------------------------------------------------------


def _factor(c: AtenCall, x: Node, upper: bool) -> tuple[Node, Node]:
    lower, info = c.b.results(c.b(ops.cholesky, swapped(c.b, x) if upper else x))
    return (swapped(c.b, lower) if upper else lower), info


def _cholesky_ex(c: AtenCall) -> Result:
    return _factor(c, c.tensor("self"), bool(c["upper"]))


def _cholesky(c: AtenCall) -> Result:
    return _factor(c, c.tensor("self"), bool(c["upper"]))[0]


def _by_factor(c: AtenCall, factor: Node, right: Node, upper: bool) -> Node:
    first = solve_triangular(c.b, factor, right, upper, transposed=upper)
    return solve_triangular(c.b, factor, first, upper, transposed=not upper)


def _cholesky_solve(c: AtenCall) -> Result:
    batch = c.shape[:-2]
    factor, right = _batched(c.b, c.tensor("input2"), batch), _batched(c.b, c.tensor("self"), batch)
    return _by_factor(c, factor, right, bool(c["upper"]))


def _cholesky_inverse(c: AtenCall) -> Result:
    x = c.tensor("self")
    one = eye(c.b, x.shape[-1], x.shape[-1], x.shape[:-2], x.dtype)
    return _by_factor(c, x, one, bool(c["upper"]))


# --- LU -------------------------------------------------------------------------------------------------------------


def _lu(c: AtenCall, x: Node) -> tuple[Node, ...]:
    """The factors, the pivots, and the first zero pivot."""
    if not c.args.get("pivot", True):
        raise Unsupported("LU without pivots", "PyTorch has it on GPUs only")
    return c.b.results(c.b(ops.lu, x))


def _lu_factor_ex(c: AtenCall) -> Result:
    return _lu(c, c.tensor("A"))


def _order(b: Builder, made: Node, pivots: Node) -> Node:
    """The order of rows that pivots make."""
    return b(ops.pivot_order, pivots, rows=made.shape[-2])


def _unpacked(b: Builder, made: Node, order: Node) -> tuple[Node, Node, Node]:
    m, n = made.shape[-2:]
    k, rank, batch = minimum(m, n), len(made.shape), made.shape[:-2]
    left = slice_axis(b, made, rank - 1, 0, k)
    one = eye(b, m, k, batch, made.dtype)
    lower = b(ops.add, b(ops.trilu, left, k=-1, upper=False), one)
    upper = _triangle(b, slice_axis(b, made, rank - 2, 0, k), True)
    rows = reshape(b, b(ops.iota, extent=m, dtype=i64), (m, 1))
    same = b(ops.eq, rows, reshape(b, order, (*batch, 1, m)))
    return cast(b, same, made.dtype), lower, upper


def _linalg_lu(c: AtenCall) -> Result:
    made, pivots, _ = _lu(c, c.tensor("A"))
    return _unpacked(c.b, made, _order(c.b, made, pivots))


def _lu_unpack(c: AtenCall) -> Result:
    made = c.tensor("LU_data")
    parts: list[Node] = list(_unpacked(c.b, made, _order(c.b, made, c.tensor("LU_pivots"))))
    wanted = (c["unpack_pivots"], c["unpack_data"], c["unpack_data"])
    return [
        part if is_wanted else c.b(ops.full, value=0.0, dtype=t.dtype, shape=t.shape)
        for part, is_wanted, t in zip(parts, wanted, c.results, strict=True)
        if t is not None
    ]


def _by_lu(b: Builder, made: Node, order: Node, right: Node, *, transposed: bool = False) -> Node:
    """``a @ x = right``, or with ``a``'s transpose."""
    if not transposed:
        moved = rows_in_order(b, right, order)
        first = solve_triangular(b, made, moved, False, unit=True)
        return solve_triangular(b, made, first, True)
    first = solve_triangular(b, made, right, True, transposed=True)
    second = solve_triangular(b, made, first, False, unit=True, transposed=True)
    _, back = b.results(b(ops.sort, order, axis=len(order.shape) - 1))
    return rows_in_order(b, second, back)


def _solution(b: Builder, made: Node, order: Node, right: Node, left: bool, adjoint: bool = False) -> Node:
    if left:
        return _by_lu(b, made, order, right, transposed=adjoint)
    return swapped(b, _by_lu(b, made, order, swapped(b, right), transposed=not adjoint))


def _solve_ex(c: AtenCall) -> Result:
    a, right = c.tensor("A"), c.tensor("B")
    made, pivots, info = _lu(c, a)
    is_vector = len(c.shape) == len(a.shape) - 1
    if is_vector:
        right = reshape(c.b, right, (*right.shape, 1))
    batch = c.shape[:-1] if is_vector else c.shape[:-2]
    order = _order(c.b, made, pivots)
    shared = expand(c.b, order, (*batch, order.shape[-1]))
    x = _solution(c.b, _batched(c.b, made, batch), shared, _batched(c.b, right, batch), bool(c["left"]) or is_vector)
    return reshape(c.b, x, c.shape), made, pivots, info


def _lu_solve(c: AtenCall) -> Result:
    made, pivots, right = c.tensor("LU"), c.tensor("pivots"), c.tensor("B")
    batch = c.shape[:-2]
    order = _order(c.b, made, pivots)
    order = expand(c.b, order, (*batch, order.shape[-1]))
    made, right = _batched(c.b, made, batch), _batched(c.b, right, batch)
    return _solution(c.b, made, order, right, bool(c["left"]), bool(c["adjoint"]))


def _inv_ex(c: AtenCall) -> Result:
    a = c.tensor("A")
    made, pivots, info = _lu(c, a)
    one = eye(c.b, a.shape[-1], a.shape[-1], a.shape[:-2], a.dtype)
    return _by_lu(c.b, made, _order(c.b, made, pivots), one), info


def parity(b: Builder, pivots: Node, dtype: DType) -> Node:
    """1 or -1 by the number of rows that were swapped."""
    n = pivots.shape[-1]
    own = b(ops.add, b(ops.iota, extent=n, dtype=pivots.dtype), b.const(1, pivots.dtype))
    signs = b(ops.where, b(ops.eq, pivots, own), b.const(1, dtype), b.const(-1, dtype))
    return b(ops.reduce_prod, signs, axes=(len(pivots.shape) - 1,), keepdims=False)


def _det(c: AtenCall) -> Result:
    made, pivots, _ = _lu(c, c.tensor("A"))
    diagonal = main_diagonal(c.b, made)
    size = c.b(ops.reduce_prod, diagonal, axes=(len(diagonal.shape) - 1,), keepdims=False)
    return c.b(ops.mul, size, parity(c.b, pivots, made.dtype)), made, pivots


def _slogdet(c: AtenCall) -> Result:
    made, pivots, _ = _lu(c, c.tensor("A"))
    diagonal = main_diagonal(c.b, made)
    last = (len(diagonal.shape) - 1,)
    signs = c.b(ops.reduce_prod, c.b(ops.sign, diagonal), axes=last, keepdims=False)
    logs = c.b(ops.log, c.b(ops.abs, diagonal))
    size = c.b(ops.reduce_sum, logs, axes=last, keepdims=False)
    return c.b(ops.mul, signs, parity(c.b, pivots, made.dtype)), size, made, pivots


# --- LDL ------------------------------------------------------------------------------------------------------------


def _ldl_factor_ex(c: AtenCall) -> Result:
    x = c.tensor("self")
    factors, pivots, info = c.b.results(c.b(ops.ldl, cast(c.b, x, f64)))
    return cast(c.b, factors, x.dtype), pivots, info


def _ldl_solve(c: AtenCall) -> Result:
    batch, pivots = c.shape[:-2], c.tensor("pivots")
    factors, right = (_batched(c.b, cast(c.b, c.tensor(name), f64), batch) for name in ("LD", "B"))
    return cast(c.b, c.b(ops.solve_ldl, factors, expand(c.b, pivots, (*batch, pivots.shape[-1])), right), c.dtype)


# --- triangular systems ---------------------------------------------------------------------------------------------


def _linalg_solve_triangular(c: AtenCall) -> Result:
    batch = c.shape[:-2]
    a, right = _batched(c.b, c.tensor("self"), batch), _batched(c.b, c.tensor("B"), batch)
    upper, unit = bool(c["upper"]), bool(c["unitriangular"])
    return solve_triangular(c.b, a, right, upper, unit=unit, left=bool(c["left"]))


def _triangular_solve(c: AtenCall) -> Result:
    batch = c.shape[:-2]
    a, right = _batched(c.b, c.tensor("A"), batch), _batched(c.b, c.tensor("self"), batch)
    options = {"unit": bool(c["unitriangular"]), "transposed": bool(c["transpose"])}
    return solve_triangular(c.b, a, right, bool(c["upper"]), **options), a


# --- QR -------------------------------------------------------------------------------------------------------------


def _geqrf(c: AtenCall) -> Result:
    return c.b.results(c.b(ops.geqrf, c.tensor("self")))


def _qr(c: AtenCall) -> Result:
    b, x = c.b, c.tensor("A")
    packed, taus = b.results(b(ops.geqrf, x))
    k, rank = taus.shape[-1], len(x.shape)
    rows = x.shape[-2] if c["mode"] == "complete" else k
    upper = _triangle(b, slice_axis(b, packed, rank - 2, 0, rows), True)
    if c["mode"] == "r":
        return b(ops.full, value=0.0, dtype=x.dtype, shape=c.shape), upper
    return orthogonal(b, packed, taus, rows), upper


def _householder_product(c: AtenCall) -> Result:
    x, taus = c.tensor("input"), c.tensor("tau")
    return orthogonal(c.b, x, taus, x.shape[-1])


def _ormqr(c: AtenCall) -> Result:
    packed, taus, other = c.tensor("self"), c.tensor("input2"), c.tensor("input3")
    left, transposed = bool(c["left"]), bool(c["transpose"])
    if left:
        return c.b(ops.reflect, packed, taus, other, transposed=transposed)
    return swapped(c.b, c.b(ops.reflect, packed, taus, swapped(c.b, other), transposed=not transposed))


# --- eigenvalues and singular values --------------------------------------------------------------------------------


def _eigh(c: AtenCall) -> Result:
    b, x = c.b, c.tensor("A")
    lower = swapped(b, x) if c["UPLO"].upper() == "U" else x
    if c["compute_v"]:
        return b.results(b(ops.eigh, lower))
    return b(ops.eigvalsh, lower), b(ops.full, value=0.0, dtype=x.dtype, shape=_shape(c, 1))


def _shape(c: AtenCall, k: int) -> tuple[Dim, ...]:
    t = c.results[k]
    assert t is not None
    return t.shape


def _svd(c: AtenCall) -> Result:
    b, x = c.b, c.tensor("A")
    if c["compute_uv"]:
        return b.results(b(ops.svd, x, full=bool(c["full_matrices"])))
    u, vh = (b(ops.full, value=0.0, dtype=x.dtype, shape=_shape(c, k)) for k in (0, 2))
    return u, b(ops.svdvals, x), vh


def _pinv(c: AtenCall) -> Result:
    b, x = c.b, c.tensor("self")
    if x.type.n_elements == 0:
        return b(ops.full, value=0.0, dtype=c.dtype, shape=c.shape)
    if c["hermitian"]:  # only the lower triangle is read
        x = b(ops.add, _triangle(b, x, False), swapped(b, b(ops.trilu, x, k=-1, upper=False)))
    u, s, vh = b.results(b(ops.svd, x))
    inverse = kept_inverses(c, x, s)
    scaled = b(ops.mul, swapped(b, vh), reshape(b, inverse, (*inverse.shape[:-1], 1, inverse.shape[-1])))
    return b(ops.matmul, scaled, swapped(b, u))


def kept_inverses(c: AtenCall, x: Node, s: Node) -> Node:
    """Of the singular values of ``x`` the inverses, and 0 of those that count as 0."""
    b = c.b
    largest = b(ops.reduce_max, s, axes=(len(s.shape) - 1,), keepdims=True)
    atol, rtol = _tolerances(c, x)
    low = b(ops.maximum, atol, b(ops.mul, rtol, largest))
    zero, one = b.const(0, x.dtype), b.const(1, x.dtype)
    kept = b(ops.gt, s, low)
    return b(ops.where, kept, b(ops.div, one, b(ops.where, kept, s, one)), zero)


def _tolerances(c: AtenCall, x: Node) -> tuple[Node, Node]:
    """Absolute and relative, with an axis for the singular values; a relative one is the default only without both."""
    b = c.b

    def column(value: Any) -> Node:
        node = as_node(b, value, x.dtype)
        return reshape(b, node, (*node.shape, 1)) if node.shape else node

    longer = dim_scalar(b, maximum(*x.shape[-2:]), x.dtype)
    default = b(ops.mul, longer, b.const(float(np.finfo(x.dtype.numpy).eps), x.dtype))
    atol = column(c["atol"]) if c["atol"] is not None else b.const(0, x.dtype)
    if c["rtol"] is not None:
        return atol, column(c["rtol"])
    return atol, b(ops.where, b(ops.gt, atol, b.const(0, x.dtype)), b.const(0, x.dtype), default)


SERIES_ROWS = 4
"""Of matrices with a norm of 1/2 the rest of the series behind ``SERIES_ROWS ** 2`` terms is below 1e-18."""


def _matrix_exp(c: AtenCall) -> Result:
    return exponential(c.b, c.tensor("self"))


def exponential(b: Builder, x: Node) -> Node:
    """Taylor's series of a matrix scaled to norm 1/2 at most, squared as often as it was halved: of a batch, each
    matrix by its own norm. One that is not finite gives NaN."""
    if x.type.n_elements == 0:
        return x
    wide = cast(b, x, f64)
    sums = b(ops.reduce_sum, b(ops.abs, wide), axes=(len(x.shape) - 1,), keepdims=True)
    norm = b(ops.reduce_max, sums, axes=(len(x.shape) - 2,), keepdims=True)
    is_finite = b(ops.lt, norm, b.const(float("inf"), f64))
    doubled = b(ops.where, is_finite, b(ops.mul, norm, b.const(2, f64)), b.const(1, f64))
    halvings = b(ops.ceil, b(ops.log2, b(ops.maximum, doubled, b.const(1, f64))))
    scaled = b(ops.mul, wide, b(ops.exp2, b(ops.neg, halvings)))
    small = b(ops.where, is_finite, scaled, b.const(float("nan"), f64))
    return cast(b, _squared(b, _exp_series(b, small), cast(b, halvings, i64)), x.dtype)


def _exp_series(b: Builder, x: Node) -> Node:
    """The sum of x**k / k!, by rows of powers that Horner's rule joins (Paterson and Stockmeyer, 1973)."""
    n = SERIES_ROWS
    powers = [eye(b, x.shape[-1], x.shape[-1], x.shape[:-2], x.dtype), x]
    while len(powers) <= n:
        half = len(powers) // 2
        powers.append(b(ops.matmul, powers[half], powers[len(powers) - half]))

    def row(first: int) -> Node:
        terms = [b(ops.mul, p, b.const(1 / math.factorial(first + k), x.dtype)) for k, p in enumerate(powers[:n])]
        return reduce(lambda so_far, term: b(ops.add, so_far, term), terms)

    total = row(n * (n - 1))
    for k in range(n - 2, -1, -1):
        total = b(ops.add, row(n * k), b(ops.matmul, powers[n], total))
    return total


def _squared(b: Builder, x: Node, times: Node) -> Node:
    """Each matrix squared as often as ``times``, [..., 1, 1], says."""
    pool = Pool()
    inner = Builder(pool, b.loc)
    i, going = pool.input("i", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    now, wanted = pool.input("now", x.type), pool.input("times", times.type)
    after = inner(ops.where, inner(ops.lt, i, wanted), inner(ops.matmul, now, now), now)
    body = Graph("square", pool, (i, going, now, wanted), (going, after), ("going_on", "squared"))
    most = b(ops.reduce_max, times, axes=tuple(range(len(times.shape))), keepdims=False)
    return b.results(b(ops.loop, most, b.const(True, bool_), x, times, body=body, n_carried=1))[0]


TABLE: Mapping[str, Convert] = {
    "linalg_cholesky_ex.default": _cholesky_ex, "cholesky.default": _cholesky,
    "cholesky_solve.default": _cholesky_solve, "cholesky_inverse.default": _cholesky_inverse,
    "linalg_lu_factor_ex.default": _lu_factor_ex, "linalg_lu.default": _linalg_lu, "lu_unpack.default": _lu_unpack,
    "_linalg_solve_ex.default": _solve_ex, "linalg_lu_solve.default": _lu_solve, "linalg_inv_ex.default": _inv_ex,
    "_linalg_det.default": _det, "_linalg_slogdet.default": _slogdet,
    "linalg_ldl_factor_ex.default": _ldl_factor_ex, "linalg_ldl_solve.default": _ldl_solve,
    "linalg_solve_triangular.default": _linalg_solve_triangular, "triangular_solve.default": _triangular_solve,
    "geqrf.default": _geqrf, "linalg_qr.default": _qr, "linalg_householder_product.default": _householder_product,
    "ormqr.default": _ormqr, "_linalg_eigh.default": _eigh, "_linalg_svd.default": _svd,
    "linalg_pinv.atol_rtol_tensor": _pinv, "linalg_matrix_exp.default": _matrix_exp,
}  # fmt: skip
