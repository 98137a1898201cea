"""``torch.linalg`` on complex matrices is eager PyTorch's: factors where they are unique, else what products give."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, linalg

import tilewright as tw
from frontend.torch_compare import check_functions
from tilewright.core.diag import ImportFailed

Function = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def hermitian(a: Tensor) -> Tensor:
    return a + a.mH


def systems(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    solved = linalg.solve(a, tall), linalg.solve(a, wide, left=False), linalg.solve(a, tall[..., 0])
    return (*solved, *linalg.inv_ex(a), linalg.matrix_power(a, -2))


def determinants(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    return linalg.det(a), *linalg.slogdet(a)


def eliminated(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    """The right sides on both sides of the matrix, with it and its adjoint."""
    made, pivots = linalg.lu_factor(a)
    ways = [linalg.lu_solve(made, pivots, tall, adjoint=adjoint) for adjoint in (False, True)]
    ways += [linalg.lu_solve(made, pivots, wide, left=False, adjoint=adjoint) for adjoint in (False, True)]
    return made, pivots, *ways, *linalg.lu(a), *linalg.lu(tall), *torch.lu_unpack(*linalg.lu_factor(wide))


def triangular(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    a = a + 3 * torch.eye(a.shape[-1], dtype=a.dtype)
    return (
        linalg.solve_triangular(a, tall, upper=True), linalg.solve_triangular(a, tall, upper=False, unitriangular=True),
        linalg.solve_triangular(a, wide, upper=True, left=False), torch.triangular_solve(tall, a, transpose=True)[0],
    )  # fmt: skip


def definite(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    a = a @ a.mH + torch.eye(a.shape[-1], dtype=a.dtype)
    lower, upper = linalg.cholesky(a), linalg.cholesky(a, upper=True)
    solved = torch.cholesky_solve(tall, lower), torch.cholesky_solve(tall, upper, upper=True)
    return lower, upper, *solved, torch.cholesky_inverse(lower), torch.cholesky_inverse(upper, upper=True)


def orthogonal(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    made = [part for x in (a, tall, wide) for part in (*linalg.qr(x), *linalg.qr(x, mode="complete"))]
    reflections = torch.geqrf(a)
    return *made, linalg.qr(a, mode="r")[1], *reflections, linalg.householder_product(*reflections)


def reflected(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    packed, taus = torch.geqrf(tall)
    sides = itertools.product((True, False), (True, False))
    return tuple(torch.ormqr(packed, taus, a, left=left, transpose=transpose) for left, transpose in sides)


def eigenvalues(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    values, vectors = linalg.eigh(hermitian(a))
    whole = (vectors * values.unsqueeze(-2)) @ vectors.mH, vectors.mH @ vectors
    return values, *whole, linalg.eigvalsh(a, UPLO="U"), linalg.eigvalsh(a)


def singular_values(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for x in (a, tall, wide):
        left, values, right = linalg.svd(x, full_matrices=False)
        full = linalg.svd(x)
        found += [values, (left * values.unsqueeze(-2)) @ right, full[0].mH @ full[0], full[2] @ full[2].mH]
    return (*found, linalg.svdvals(tall), linalg.matrix_norm(a, "nuc"))


def inverses(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    plain = linalg.pinv(a), linalg.pinv(tall), linalg.pinv(wide), linalg.pinv(tall, rtol=0.3)
    return (*plain, linalg.pinv(a, hermitian=True))


def series(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    return linalg.matrix_exp(a), linalg.matrix_exp(a * 5)


def between(a: Tensor, tall: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    """From both ends, and by a weight for each element."""
    ends = torch.lerp(a, a * 2j, 0.3), torch.lerp(a, a * 2j, 0.7), torch.lerp(a, a.mT, a)
    return (*ends, torch.logsumexp(a * 50, -1), torch.logsumexp(tall, (-1, -2), keepdim=True))


FUNCTIONS: list[Function] = [
    systems, determinants, eliminated, triangular, definite, orthogonal, reflected, eigenvalues, singular_values,
    inverses, series, between,
]  # fmt: skip


def matrices(batch: tuple[int, ...], n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(n)
    shapes = ((*batch, n, n), (*batch, n, k), (*batch, k, n))
    return tuple(torch.randn(shape, dtype=dtype, generator=draw) for shape in shapes)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=["c64", "c128"])
@pytest.mark.parametrize(("batch", "n", "k"), [((), 3, 2), ((2,), 1, 1), ((0,), 2, 1), ((2, 1), 2, 3)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_matrices(function: Function, batch: tuple[int, ...], n: int, k: int, dtype: torch.dtype) -> None:
    rtol = 1e-3 if dtype is torch.complex64 else 1e-9
    check_functions({"f": function}, *matrices(batch, n, k, dtype), rtol=rtol)


def test_rows_to_exchange_and_matrices_without_an_inverse() -> None:
    """The first pivot is 0 there, and no pivot is left for the last row here."""
    a = torch.tensor(
        [[[0, 1j, 2], [3, 4j, 5], [1, 1, 1]], [[1, 1j, 0], [1j, -1, 0], [0, 0, 2]]], dtype=torch.complex128
    )
    found = {"factors": linalg.lu, "det": linalg.det, "info": lambda x: linalg.inv_ex(x)[1], "rank": linalg.matrix_rank}
    check_functions(found, a, rtol=1e-9)


def determinant(a: Tensor) -> Tensor:
    return linalg.det(a)


def test_native_code_for_any_batch() -> None:
    x = matrices((3,), 2, 1, torch.complex64)[0]
    model = tw.compile(determinant, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},), cache=False, threads=1)
    for n in (0, 1, 3):
        torch.testing.assert_close(torch.as_tensor(model(x[:n])), linalg.det(x[:n]), rtol=1e-4, atol=1e-4)


def test_factors_that_there_are_not_have_a_remedy() -> None:
    with pytest.raises(ImportFailed, match=r"ldl_factor.*complex matrices have no(?s:.*)remedy: solve by torch.linalg"):
        tw.compile(linalg.ldl_factor, matrices((), 2, 1, torch.complex64)[:1], cache=False)


def test_symbolic_rows_are_refused_by_name() -> None:
    x, n = matrices((), 4, 1, torch.complex64)[0], torch.export.Dim("n", min=2)
    with pytest.raises(ImportFailed, match=r"det.*complex matrices take fixed sizes(?s:.*)remedy"):
        tw.compile(determinant, (x,), dynamic_shapes=({0: n, 1: n},), cache=False)
