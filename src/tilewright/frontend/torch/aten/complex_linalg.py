"""ATen's linear algebra on complex matrices, by the factors of ``frontend.complex_matrices``.

In: calls whose matrices are pairs. Out: pairs, and nodes where a result is real. Not its business: real matrices
(``linalg``), eigenvalues of general matrices, which PyTorch keeps.

Factors that the definitions leave open up to a number of size 1, vectors of ``eigh`` and ``svd``, are not those that
LAPACK finds; what is made of them is the same. Under ``torch.compile`` PyTorch keeps all of these calls, because its
LAPACK is faster than factoring step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tilewright import ops
from tilewright.core.expr import Dim, minimum
from tilewright.core.graph import Builder, Node
from tilewright.core.types import i32, i64
from tilewright.frontend.complex_functions import product_along
from tilewright.frontend.complex_matrices import (
    PackedFactors,
    adjoint,
    as_blocks,
    complex_cholesky,
    complex_eigh,
    complex_geqrf,
    complex_lu,
    complex_orthogonal,
    complex_svd,
    each,
    from_blocks,
    matmul,
    solve_complex_triangular,
    unit,
)
from tilewright.frontend.complex_pairs import Pair, added, conjugate, directions, magnitude, real_pair, scaled
from tilewright.frontend.matrices import eye, swapped
from tilewright.frontend.nodes import expand, reshape, slice_axis
from tilewright.frontend.torch.aten import linalg
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast

Convert = Callable[[AtenCall], Result]


def _matrix(c: AtenCall, name: str) -> Pair:
    """An operand of known sizes; beside complex ones a real one is complex, too."""
    x = c[name]
    x = x if isinstance(x, Pair) else real_pair(c.b, x)
    if any(not isinstance(d, int) for d in x.shape[-2:]):
        raise Unsupported("complex matrices take fixed sizes", "give their rows and columns fixed sizes")
    return x


def _batched(b: Builder, x: Pair, batch: Sequence[Dim]) -> Pair:
    return each(x, lambda part: expand(b, part, (*batch, *part.shape[-2:])))


def _blank(c: AtenCall, k: int) -> Pair:
    """A result that nobody asked for."""
    t = c.results[k]
    assert t is not None
    zero = c.b(ops.full, value=0.0, dtype=t.dtype, shape=t.shape)
    return Pair(zero, zero)


def _triangle(b: Builder, x: Pair, *, upper: bool, k: int = 0) -> Pair:
    return each(x, lambda part: b(ops.trilu, part, k=k, upper=upper))


# --- Cholesky -------------------------------------------------------------------------------------------------------


def _cholesky_ex(c: AtenCall) -> Sequence[Pair | Node]:
    factor, info = complex_cholesky(c.b, _matrix(c, "self"), is_lower=not c["upper"])
    return factor, cast(c.b, info, i32)


def _by_factor(b: Builder, factor: Pair, right: Pair, upper: bool) -> Pair:
    solve = partial(solve_complex_triangular, b, factor, upper=upper, unit_diagonal=False, left=True)
    first, second = ("C", "N") if upper else ("N", "C")
    return solve(solve(right, transposed=first), transposed=second)


def _cholesky_solve(c: AtenCall) -> Pair:
    factor, right = (_batched(c.b, _matrix(c, name), c.shape[:-2]) for name in ("input2", "self"))
    return _by_factor(c.b, factor, right, bool(c["upper"]))


def _cholesky_inverse(c: AtenCall) -> Pair:
    x = _matrix(c, "self")
    return _by_factor(c.b, x, unit(c.b, x.shape[-1], x), bool(c["upper"]))


# --- LU -------------------------------------------------------------------------------------------------------------


def _lu(c: AtenCall) -> PackedFactors:
    if not c.args.get("pivot", True):
        raise Unsupported("LU without pivots", "PyTorch has it on GPUs only")
    made = complex_lu(c.b, _matrix(c, "A"))
    return PackedFactors(made.packed, cast(c.b, made.pivots, i32), cast(c.b, made.info, i32))


def _lu_factor_ex(c: AtenCall) -> Result:
    return _lu(c)


def _unpacked(b: Builder, made: Pair, pivots: Node) -> tuple[Pair, Pair, Pair]:
    """The order of rows as a matrix, and both factors."""
    m, n = made.shape[-2:]
    k, rank, batch = minimum(m, n), len(made.shape), made.shape[:-2]
    rows = reshape(b, b(ops.iota, extent=m, dtype=i64), (m, 1))
    same = cast(b, b(ops.eq, rows, reshape(b, _order(b, made, pivots), (*batch, 1, m))), made.dtype)
    lower = _triangle(b, each(made, lambda part: slice_axis(b, part, rank - 1, 0, k)), upper=False, k=-1)
    lower = Pair(b(ops.add, lower.re, eye(b, m, k, batch, made.dtype)), lower.im)
    upper = _triangle(b, each(made, lambda part: slice_axis(b, part, rank - 2, 0, k)), upper=True)
    return real_pair(b, same), lower, upper


def _order(b: Builder, made: Pair, pivots: Node) -> Node:
    return b(ops.pivot_order, pivots, rows=made.shape[-2])


def _linalg_lu(c: AtenCall) -> Result:
    made = _lu(c)
    return _unpacked(c.b, made.packed, made.pivots)


def _lu_unpack(c: AtenCall) -> Result:
    wanted = (c["unpack_pivots"], c["unpack_data"], c["unpack_data"])
    parts = _unpacked(c.b, _matrix(c, "LU_data"), c.tensor("LU_pivots"))
    return [part if is_wanted else _blank(c, k) for k, (part, is_wanted) in enumerate(zip(parts, wanted, strict=True))]


def _by_lu(b: Builder, made: Pair, order: Node, right: Pair, *, left: bool = True, of: str = "N") -> Pair:
    """``op(a) @ x = right``, or ``x @ op(a) = right`` if not ``left``; ``of`` is LAPACK's letter."""
    if not left:  # as solve_complex_triangular has it
        made = conjugate(b, made) if of == "C" else made
        turned = each(right, partial(swapped, b))
        return each(_by_lu(b, made, order, turned, of="T" if of == "N" else "N"), partial(swapped, b))

    def solve(right: Pair, *, upper: bool) -> Pair:
        return solve_complex_triangular(b, made, right, upper, unit_diagonal=not upper, transposed=of, left=True)

    if of == "N":
        moved = each(right, lambda part: linalg.rows_in_order(b, part, order))
        return solve(solve(moved, upper=False), upper=True)
    found = solve(solve(right, upper=True), upper=False)
    _, back = b.results(b(ops.sort, order, axis=len(order.shape) - 1))
    return each(found, lambda part: linalg.rows_in_order(b, part, back))


def _shared(b: Builder, made: Pair, pivots: Node, batch: Sequence[Dim]) -> tuple[Pair, Node]:
    """The factors and the order of rows, once for each matrix of a batch."""
    order = _order(b, made, pivots)
    return _batched(b, made, batch), expand(b, order, (*batch, order.shape[-1]))


def _solve_ex(c: AtenCall) -> Result:
    made, right, is_vector = _lu(c), c["B"], len(c.shape) == len(c["A"].shape) - 1
    right = right if isinstance(right, Pair) else real_pair(c.b, right)
    if is_vector:
        right = each(right, lambda part: reshape(c.b, part, (*part.shape, 1)))
    batch = c.shape[:-1] if is_vector else c.shape[:-2]
    factors, order = _shared(c.b, made.packed, made.pivots, batch)
    x = _by_lu(c.b, factors, order, _batched(c.b, right, batch), left=bool(c["left"]) or is_vector)
    return each(x, lambda part: reshape(c.b, part, c.shape)), *made


def _lu_solve(c: AtenCall) -> Result:
    batch = c.shape[:-2]
    factors, order = _shared(c.b, _matrix(c, "LU"), c.tensor("pivots"), batch)
    right = _batched(c.b, _matrix(c, "B"), batch)
    return _by_lu(c.b, factors, order, right, left=bool(c["left"]), of="C" if c["adjoint"] else "N")


def _inv_ex(c: AtenCall) -> Result:
    made = _lu(c)
    one = unit(c.b, made.packed.shape[-1], made.packed)
    return _by_lu(c.b, made.packed, _order(c.b, made.packed, made.pivots), one), made.info


def _along_diagonal(b: Builder, diagonal: Pair, pivots: Node) -> Pair:
    """The product, with the sign that the exchanges of rows have."""
    made = product_along(b, diagonal, len(diagonal.shape) - 1)
    made = each(made, lambda part: reshape(b, part, part.shape[:-1]))
    return scaled(b, made, linalg.parity(b, pivots, made.dtype))


def _det(c: AtenCall) -> Result:
    made, pivots, _ = _lu(c)
    return _along_diagonal(c.b, each(made, partial(linalg.main_diagonal, c.b)), pivots), made, pivots


def _slogdet(c: AtenCall) -> Result:
    b = c.b
    made, pivots, _ = _lu(c)
    diagonal = each(made, partial(linalg.main_diagonal, b))
    logs = b(ops.log, magnitude(b, diagonal))
    size = b(ops.reduce_sum, logs, axes=(len(logs.shape) - 1,), keepdims=False)
    return _along_diagonal(b, directions(b, diagonal), pivots), size, made, pivots


# --- triangular systems ---------------------------------------------------------------------------------------------


def _triangular(c: AtenCall, a: Pair, right: Pair, transposed: str, left: bool) -> Pair:
    unit_diagonal = bool(c["unitriangular"])
    return solve_complex_triangular(
        c.b, a, right, bool(c["upper"]), unit_diagonal=unit_diagonal, transposed=transposed, left=left
    )


def _linalg_solve_triangular(c: AtenCall) -> Result:
    a, right = (_batched(c.b, _matrix(c, name), c.shape[:-2]) for name in ("self", "B"))
    return _triangular(c, a, right, "N", bool(c["left"]))


def _triangular_solve(c: AtenCall) -> Result:
    a, right = (_batched(c.b, _matrix(c, name), c.shape[:-2]) for name in ("A", "self"))
    return _triangular(c, a, right, "T" if c["transpose"] else "N", True), a


# --- QR -------------------------------------------------------------------------------------------------------------


def _geqrf(c: AtenCall) -> Result:
    return complex_geqrf(c.b, _matrix(c, "self"))


def _qr(c: AtenCall) -> Result:
    packed, taus = complex_geqrf(c.b, _matrix(c, "A"))
    rows = packed.shape[-2] if c["mode"] == "complete" else taus.shape[-1]
    above = each(packed, lambda part: slice_axis(c.b, part, len(part.shape) - 2, 0, rows))
    upper = _triangle(c.b, above, upper=True)
    return (_blank(c, 0) if c["mode"] == "r" else complex_orthogonal(c.b, packed, taus, rows)), upper


def _householder_product(c: AtenCall) -> Result:
    x = _matrix(c, "input")
    return complex_orthogonal(c.b, x, c["tau"], x.shape[-1])


def _ormqr(c: AtenCall) -> Result:
    b, packed, other = c.b, _matrix(c, "self"), _matrix(c, "input3")
    q = complex_orthogonal(b, packed, c["input2"], packed.shape[-2])
    q = adjoint(b, q) if c["transpose"] else q
    return matmul(b, q, other) if c["left"] else matmul(b, other, q)


# --- eigenvalues, singular values and what they give -----------------------------------------------------------------


def _eigh(c: AtenCall) -> Result:
    x = _matrix(c, "A")
    values, vectors = complex_eigh(c.b, adjoint(c.b, x) if c["UPLO"].upper() == "U" else x)
    return values, vectors if c["compute_v"] else _blank(c, 1)


def _svd(c: AtenCall) -> Result:
    left, values, right = complex_svd(c.b, _matrix(c, "A"), full=bool(c["full_matrices"]))
    return (left, values, right) if c["compute_uv"] else (_blank(c, 0), values, _blank(c, 2))


def _pinv(c: AtenCall) -> Result:
    b, x = c.b, _matrix(c, "self")
    if x.re.type.n_elements == 0:
        return _blank(c, 0)
    if c["hermitian"]:  # only the lower triangle is read, and of the diagonal the real parts
        below = _triangle(b, x, upper=False, k=-1)
        x = added(b, Pair(b(ops.trilu, x.re, k=0, upper=False), below.im), adjoint(b, below))
    left, values, right = complex_svd(b, x, full=False)
    inverses = linalg.kept_inverses(c, x.re, values)
    row = reshape(b, inverses, (*inverses.shape[:-1], 1, inverses.shape[-1]))
    return matmul(b, scaled(b, adjoint(b, right), row), adjoint(b, left))


def _matrix_exp(c: AtenCall) -> Result:
    x = _matrix(c, "self")
    return from_blocks(c.b, linalg.exponential(c.b, as_blocks(c.b, x)))


def _ldl(c: AtenCall) -> Result:
    raise Unsupported("complex matrices have no factors L D L^T here", "solve by torch.linalg.solve or lu_factor")


def _left_to_pytorch(convert: Convert) -> Convert:
    """Where PyTorch runs what is refused, its own LAPACK is the faster way."""

    def of(c: AtenCall) -> Result:
        if c.has_peer:
            raise Unsupported("complex matrices are factored by PyTorch's own library", "")
        return convert(c)

    return of


_FACTORS: Mapping[str, Convert] = {
    "linalg_cholesky_ex.default": _cholesky_ex, "cholesky.default": lambda c: _cholesky_ex(c)[0],
    "cholesky_solve.default": _cholesky_solve, "cholesky_inverse.default": _cholesky_inverse,
    "linalg_lu_factor_ex.default": _lu_factor_ex, "linalg_lu.default": _linalg_lu, "lu_unpack.default": _lu_unpack,
    "_linalg_solve_ex.default": _solve_ex, "linalg_lu_solve.default": _lu_solve, "linalg_inv_ex.default": _inv_ex,
    "_linalg_det.default": _det, "_linalg_slogdet.default": _slogdet,
    "linalg_solve_triangular.default": _linalg_solve_triangular, "triangular_solve.default": _triangular_solve,
    "geqrf.default": _geqrf, "linalg_qr.default": _qr, "linalg_householder_product.default": _householder_product,
    "_linalg_eigh.default": _eigh, "_linalg_svd.default": _svd, "linalg_pinv.atol_rtol_tensor": _pinv,
    "linalg_matrix_exp.default": _matrix_exp, "ormqr.default": _ormqr,
    "linalg_ldl_factor_ex.default": _ldl, "linalg_ldl_solve.default": _ldl,
}  # fmt: skip
TABLE: Mapping[str, Convert] = {name: _left_to_pytorch(convert) for name, convert in _FACTORS.items()}
