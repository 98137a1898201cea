"""Linear algebra of complex matrices, by real ops.

In: a builder, pairs of nodes ``[..., m, n]``. Out: pairs and nodes, as LAPACK gives them. Not its business: real
matrices (``matrices``), and which call it is (``stablehlo.ops``).

Two ways lead from real factors to complex ones. A complex number is the block ``[[re, -im], [im, re]]`` of a real
matrix of twice the size (:func:`as_blocks`). Triangular matrices of real diagonals stay triangular so, and therefore
Cholesky's factor and triangular solutions are the real ones of the blocks. The other factorisations go step by step by
complex reflections (LAPACK's ``larfg``) or eliminations, each a few operations on whole matrices whose masks say which
part it changes. Eigenvalues and singular values come after such a reduction from a real matrix of two diagonals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, maximum, minimum
from tilewright.core.graph import Builder, Node
from tilewright.core.types import i64
from tilewright.frontend.complex_pairs import Pair, added, bilinear, conjugate, product, quotient, real_pair
from tilewright.frontend.matrices import eye, solve_triangular, swapped
from tilewright.frontend.nodes import dim_scalar, expand, reshape, slice_axis
from tilewright.ops.loops import repeated

# --- parts ----------------------------------------------------------------------------------------------------------


def each(x: Pair, of: Callable[[Node], Node]) -> Pair:
    """``of`` both parts."""
    return Pair(of(x.re), of(x.im))


def adjoint(b: Builder, x: Pair) -> Pair:
    """The conjugate transposes."""
    return each(conjugate(b, x), partial(swapped, b))


def matmul(b: Builder, x: Pair, y: Pair) -> Pair:
    """The product of complex matrices."""
    return bilinear(b, partial(b, ops.matmul), x, y)


def _minus(b: Builder, x: Pair, y: Pair) -> Pair:
    return Pair(b(ops.sub, x.re, y.re), b(ops.sub, x.im, y.im))


def _where(b: Builder, mask: Node, x: Pair, y: Pair) -> Pair:
    return Pair(b(ops.where, mask, x.re, y.re), b(ops.where, mask, x.im, y.im))


def _kept(b: Builder, mask: Node, x: Pair) -> Pair:
    zero = b.const(0, x.dtype)
    return each(x, lambda part: b(ops.where, mask, part, zero))


def _sum_of_rows(b: Builder, x: Node) -> Node:
    """``[..., 1, n]`` of ``[..., m, n]``."""
    return b(ops.reduce_sum, x, axes=(len(x.shape) - 2,), keepdims=True)


def _rows(b: Builder, m: Dim) -> Node:
    """The number of each row, ``[m, 1]``."""
    return reshape(b, b(ops.iota, extent=m, dtype=i64), (m, 1))


def _columns(b: Builder, n: Dim) -> Node:
    """The number of each column, ``[n]``."""
    return b(ops.iota, extent=n, dtype=i64)


def _column(b: Builder, x: Pair, k: Node) -> Pair:
    """Column ``k``, ``[..., m, 1]``."""
    axis = len(x.shape) - 1
    return each(x, lambda part: reshape(b, b(ops.gather, part, k, axis=axis), (*part.shape[:-1], 1)))


def unit(b: Builder, n: Dim, like: Pair) -> Pair:
    """The identity of ``n`` rows for each matrix of ``like``."""
    return real_pair(b, eye(b, n, n, like.shape[:-2], like.dtype))


def as_blocks(b: Builder, x: Pair) -> Node:
    """Each number as the block ``[[re, -im], [im, re]]``: ``[..., 2 m, 2 n]``."""
    *lead, m, n = x.shape
    parts = [reshape(b, p, (*lead, m, 1, n, 1)) for p in (x.re, b(ops.neg, x.im), x.im)]
    rank = len(lead)
    above = b(ops.concat, parts[0], parts[1], axis=rank + 3)
    below = b(ops.concat, parts[2], parts[0], axis=rank + 3)
    return reshape(b, b(ops.concat, above, below, axis=rank + 1), (*lead, 2 * m, 2 * n))


def from_blocks(b: Builder, x: Node) -> Pair:
    """Of :func:`as_blocks`: the first column of each block."""
    *lead, m, n = x.shape
    rank, half_m, half_n = len(lead), _half(m), _half(n)
    parts = slice_axis(b, reshape(b, x, (*lead, half_m, 2, half_n, 2)), rank + 3, 0, 1)
    apart = [slice_axis(b, parts, rank + 1, k, 1) for k in range(2)]
    return Pair(*(reshape(b, part, (*lead, half_m, half_n)) for part in apart))


def _half(n: Dim) -> Dim:
    assert is_known(n)
    return n // 2


# --- triangles ------------------------------------------------------------------------------------------------------


def solve_complex_triangular(
    b: Builder, a: Pair, right: Pair, upper: bool, *, unit_diagonal: bool, transposed: str, left: bool
) -> Pair:
    """``x`` with ``op(a) @ x = right``, or ``x @ op(a) = right`` if not ``left``; ``transposed`` is LAPACK's letter.

    Rows are divided by their diagonals, so that the blocks on the diagonal are identities.
    """
    if not left:  # x @ op(a) = right is op(a).T @ x.T = right.T; of the adjoint the transpose is the conjugate
        turned = each(right, partial(swapped, b))
        a = conjugate(b, a) if transposed == "C" else a
        other = "N" if transposed in "TC" else "T"
        made = solve_complex_triangular(b, a, turned, upper, unit_diagonal=unit_diagonal, transposed=other, left=True)
        return each(made, partial(swapped, b))
    if transposed != "N":
        a, upper = (adjoint(b, a) if transposed == "C" else each(a, partial(swapped, b))), not upper
    n = a.shape[-1]
    on_diagonal = b(ops.eq, _rows(b, n), _columns(b, n))
    if not unit_diagonal:
        diagonal = each(
            _kept(b, on_diagonal, a), lambda p: b(ops.reduce_sum, p, axes=(len(p.shape) - 1,), keepdims=True)
        )
        a, right = quotient(b, a, diagonal), quotient(b, right, diagonal)
    zero = b.const(0, a.dtype)
    blocks = as_blocks(b, Pair(a.re, b(ops.where, on_diagonal, zero, a.im)))
    *lead, m, count = right.shape
    sides = [reshape(b, part, (*lead, m, 1, count)) for part in (right.re, right.im)]
    stacked = reshape(b, b(ops.concat, *sides, axis=len(lead) + 1), (*lead, 2 * m, count))
    solved = reshape(b, solve_triangular(b, blocks, stacked, upper, unit=True), (*lead, m, 2, count))
    parts = [reshape(b, slice_axis(b, solved, len(lead) + 1, k, 1), (*lead, m, count)) for k in range(2)]
    return Pair(*parts)


def complex_cholesky(b: Builder, x: Pair, *, is_lower: bool) -> tuple[Pair, Node]:
    """The factor, its other triangle 0, and the first minor that is not positive definite, from 1."""
    if not is_lower:
        made, info = complex_cholesky(b, adjoint(b, x), is_lower=True)
        return adjoint(b, made), info
    n = x.shape[-1]
    on_diagonal = b(ops.eq, _rows(b, n), _columns(b, n))
    real = Pair(x.re, b(ops.where, on_diagonal, b.const(0, x.dtype), x.im))
    factor, info = b.results(b(ops.cholesky, as_blocks(b, real)))
    one, two = b.const(1, info.dtype), b.const(2, info.dtype)
    return from_blocks(b, factor), b(ops.div, b(ops.add, info, one), two)


# --- elimination ----------------------------------------------------------------------------------------------------


class PackedFactors(NamedTuple):
    """Both triangular factors in one matrix, the row that each row was exchanged with, and the first zero pivot."""

    packed: Pair
    pivots: Node
    info: Node


def complex_lu(b: Builder, x: Pair) -> PackedFactors:
    """Row by row; a pivot is the first of the largest ``|re| + |im|``. Pivots count from 1, as LAPACK's do."""
    m, n = x.shape[-2:]
    k, batch = minimum(m, n), x.shape[:-2]
    pivots = expand(b, b.const(0, i64), (*batch, k))
    info = expand(b, b.const(0, i64), batch)
    re, im, pivots, info = repeated(b, "eliminate", k, (x.re, x.im, pivots, info), (), _eliminate)
    return PackedFactors(Pair(re, im), pivots, info)


def _eliminate(b: Builder, i: Node, now: Sequence[Node], _: Sequence[Node]) -> Sequence[Node]:
    re, im, pivots, info = now
    x = Pair(re, im)
    *batch, m, n = x.shape
    rows, columns = _rows(b, m), _columns(b, n)
    below = b(ops.ge, rows, i)
    column = _column(b, x, i)
    size = b(ops.add, b(ops.abs, column.re), b(ops.abs, column.im))
    size = b(ops.where, below, size, b.const(-1, x.dtype))
    pivot = b(ops.argmax, size, axis=len(x.shape) - 2, keepdims=True)  # [..., 1, 1]
    order = b(ops.where, b(ops.eq, rows, i), pivot, b(ops.where, b(ops.eq, rows, pivot), i, rows))
    order = expand(b, order, x.shape)
    x = each(x, lambda part: b(ops.gather_elements, part, order, axis=len(x.shape) - 2))
    column, is_row = _column(b, x, i), b(ops.eq, rows, i)
    row = each(_kept(b, is_row, x), partial(_sum_of_rows, b))
    head = each(_kept(b, is_row, column), partial(_sum_of_rows, b))
    zero, one = b.const(0, x.dtype), b.const(1, x.dtype)
    is_zero = b(ops.logical_and, b(ops.eq, head.re, zero), b(ops.eq, head.im, zero))
    safe = Pair(b(ops.where, is_zero, one, head.re), head.im)
    after = b(ops.gt, rows, i)
    scaled = _kept(b, after, quotient(b, column, safe))
    rest = _kept(b, b(ops.gt, columns, i), row)
    x = _minus(b, x, product(b, scaled, rest))
    x = _where(b, b(ops.logical_and, b(ops.eq, columns, i), after), scaled, x)
    found = b(ops.add, reshape(b, pivot, (*batch, 1)), b.const(1, i64))
    pivots = b(ops.where, b(ops.eq, _columns(b, pivots.shape[-1]), i), found, pivots)
    fails = b(ops.logical_and, reshape(b, is_zero, batch), b(ops.eq, info, b.const(0, i64)))
    return x.re, x.im, pivots, b(ops.where, fails, b(ops.add, i, b.const(1, i64)), info)


# --- reflections ----------------------------------------------------------------------------------------------------


class Reflection(NamedTuple):
    """``1 - tau v v^H``, whose adjoint makes a vector zero below its head, where ``beta`` comes to stand."""

    v: Pair
    tau: Pair
    beta: Node


def _reflection(b: Builder, x: Pair, at: Node) -> Reflection:
    """For ``[..., m, 1]`` from row ``at`` on; what is above does not take part."""
    rows = _rows(b, x.shape[-2])
    is_head, is_below = b(ops.eq, rows, at), b(ops.gt, rows, at)
    zero, one = b.const(0, x.dtype), b.const(1, x.dtype)
    head = each(_kept(b, is_head, x), partial(_sum_of_rows, b))
    below = _kept(b, is_below, x)
    is_done = b(ops.eq, b(ops.add, _largest(b, below), b(ops.abs, head.im)), zero)
    part = _kept(b, b(ops.ge, rows, at), x)
    largest = _largest(b, part)
    scale = b(ops.where, b(ops.eq, largest, zero), one, largest)
    squares = [b(ops.mul, p, p) for p in (b(ops.div, q, scale) for q in (part.re, part.im))]
    norm = b(ops.mul, scale, b(ops.sqrt, _sum_of_rows(b, b(ops.add, *squares))))
    beta = b(ops.where, b(ops.lt, head.re, zero), norm, b(ops.neg, norm))
    safe = b(ops.where, is_done, one, beta)
    tau = Pair(b(ops.div, b(ops.sub, safe, head.re), safe), b(ops.neg, b(ops.div, head.im, safe)))
    tau = each(tau, lambda p: b(ops.where, is_done, zero, p))
    less = Pair(b(ops.where, is_done, one, b(ops.sub, head.re, safe)), head.im)
    v = quotient(b, below, less)
    return Reflection(Pair(b(ops.where, is_head, one, v.re), v.im), tau, b(ops.where, is_done, head.re, beta))


def _largest(b: Builder, x: Pair) -> Node:
    size = b(ops.maximum, b(ops.abs, x.re), b(ops.abs, x.im))
    return b(ops.reduce_max, size, axes=(len(size.shape) - 2,), keepdims=True)


def _from_left(b: Builder, r: Reflection, x: Pair, *, is_adjoint: bool) -> Pair:
    """The reflection, or its adjoint, times ``x``."""
    tau = conjugate(b, r.tau) if is_adjoint else r.tau
    return _minus(b, x, product(b, product(b, tau, r.v), matmul(b, adjoint(b, r.v), x)))


def _from_right(b: Builder, x: Pair, r: Reflection) -> Pair:
    """``x`` times the reflection."""
    return _minus(b, x, product(b, product(b, r.tau, matmul(b, x, r.v)), adjoint(b, r.v)))


def complex_geqrf(b: Builder, x: Pair) -> tuple[Pair, Pair]:
    """R above the vectors of reflections, and their factors."""
    m, n = x.shape[-2:]
    k = minimum(m, n)
    none = expand(b, b.const(0, x.dtype), (*x.shape[:-2], k))
    re, im, tau_re, tau_im = repeated(b, "reflect", k, (x.re, x.im, none, none), (), _factor_a_column)
    return Pair(re, im), Pair(tau_re, tau_im)


def _factor_a_column(b: Builder, i: Node, now: Sequence[Node], _: Sequence[Node]) -> Sequence[Node]:
    x, taus = Pair(*now[:2]), Pair(*now[2:])
    rows, columns = _rows(b, x.shape[-2]), _columns(b, x.shape[-1])
    column = _column(b, x, i)
    r = _reflection(b, column, i)
    behind = _where(b, b(ops.gt, columns, i), _from_left(b, r, x, is_adjoint=True), x)
    made = Pair(b(ops.where, b(ops.eq, rows, i), r.beta, r.v.re), _kept(b, b(ops.gt, rows, i), r.v).im)
    made = _where(b, b(ops.lt, rows, i), column, made)
    x = _where(b, b(ops.eq, columns, i), made, behind)
    here = b(ops.eq, _columns(b, taus.shape[-1]), i)
    taus = _where(b, here, each(r.tau, lambda p: reshape(b, p, (*p.shape[:-2], 1))), taus)
    return x.re, x.im, taus.re, taus.im


def complex_orthogonal(b: Builder, packed: Pair, taus: Pair, columns: Dim) -> Pair:
    """The leading columns of the product of reflections, which are applied from the last to the first."""
    m, k = packed.shape[-2], taus.shape[-1]
    whole = unit(b, m, packed)
    start = each(whole, lambda p: slice_axis(b, p, len(p.shape) - 1, 0, columns))

    def step(b: Builder, i: Node, now: Sequence[Node], fixed: Sequence[Node]) -> Sequence[Node]:
        packed, taus, last = Pair(*fixed[:2]), Pair(*fixed[2:4]), fixed[4]
        at, rows = b(ops.sub, last, i), _rows(b, m)
        column = _kept(b, b(ops.gt, rows, at), _column(b, packed, at))
        v = Pair(b(ops.where, b(ops.eq, rows, at), b.const(1, packed.dtype), column.re), column.im)
        axis = len(taus.shape) - 1
        tau = each(taus, lambda p: reshape(b, b(ops.gather, p, at, axis=axis), (*p.shape[:-1], 1, 1)))
        made = _from_left(b, Reflection(v, tau, tau.re), Pair(*now), is_adjoint=False)
        return made.re, made.im

    last = b(ops.sub, dim_scalar(b, k, i64), b.const(1, i64))
    fixed = (packed.re, packed.im, taus.re, taus.im, last)
    return Pair(*repeated(b, "apply_reflections", k, (start.re, start.im), fixed, step))


# --- eigenvalues and singular values --------------------------------------------------------------------------------


def complex_eigh(b: Builder, x: Pair) -> tuple[Node, Pair]:
    """Eigenvalues, rising, and vectors of Hermitian matrices, of which the lower triangles are read."""
    n = x.shape[-1]
    rows, columns = _rows(b, n), _columns(b, n)
    lower = _kept(b, b(ops.ge, rows, columns), x)
    lower = Pair(lower.re, b(ops.where, b(ops.eq, rows, columns), b.const(0, x.dtype), lower.im))
    whole = added(b, lower, adjoint(b, _kept(b, b(ops.gt, rows, columns), x)))
    start = unit(b, n, x)

    def step(b: Builder, i: Node, now: Sequence[Node], _: Sequence[Node]) -> Sequence[Node]:
        x, q = Pair(*now[:2]), Pair(*now[2:])
        r = _reflection(b, _column(b, x, i), b(ops.add, i, b.const(1, i64)))
        x = _from_right(b, _from_left(b, r, x, is_adjoint=True), r)
        q = _from_right(b, q, r)
        return x.re, x.im, q.re, q.im

    re, _, q_re, q_im = repeated(
        b, "to_two_diagonals", maximum(n - 1, 0), (whole.re, whole.im, start.re, start.im), (), step
    )
    apart = b(ops.abs, b(ops.sub, rows, columns))
    banded = b(ops.where, b(ops.le, apart, b.const(1, i64)), re, b.const(0, x.dtype))
    values, vectors = b.results(b(ops.eigh, banded))
    return values, Pair(*(b(ops.matmul, part, vectors) for part in (q_re, q_im)))


def complex_svd(b: Builder, x: Pair, *, full: bool) -> tuple[Pair, Node, Pair]:
    """Left vectors, singular values, falling, and the adjoints of the right vectors."""
    m, n = x.shape[-2:]
    assert is_known(m) and is_known(n)
    if m < n:
        turned = complex_svd(b, adjoint(b, x), full=full)
        return adjoint(b, turned[2]), turned[1], adjoint(b, turned[0])
    starts = (unit(b, m, x), unit(b, n, x))
    carried = (x.re, x.im, *(part for q in starts for part in (q.re, q.im)))
    re, _, u_re, u_im, v_re, v_im = repeated(b, "to_a_diagonal_and_one_above", n, carried, (), _bidiagonal_step)
    beside = b(ops.sub, _columns(b, n), _rows(b, m))
    near = b(ops.logical_or, b(ops.eq, beside, b.const(0, i64)), b(ops.eq, beside, b.const(1, i64)))
    banded = b(ops.where, near, re, b.const(0, x.dtype))
    left, values, right = b.results(b(ops.svd, banded, full=full))
    made = Pair(*(b(ops.matmul, part, left) for part in (u_re, u_im)))
    v = adjoint(b, Pair(v_re, v_im))
    return made, values, each(v, lambda part: b(ops.matmul, right, part))


def _bidiagonal_step(b: Builder, i: Node, now: Sequence[Node], _: Sequence[Node]) -> Sequence[Node]:
    x, u, v = Pair(*now[:2]), Pair(*now[2:4]), Pair(*now[4:])
    r = _reflection(b, _column(b, x, i), i)
    x, u = _from_left(b, r, x, is_adjoint=True), _from_right(b, u, r)
    r = _reflection(b, _column(b, adjoint(b, x), i), b(ops.add, i, b.const(1, i64)))
    x, v = _from_right(b, x, r), _from_right(b, v, r)
    return x.re, x.im, u.re, u.im, v.re, v.im
