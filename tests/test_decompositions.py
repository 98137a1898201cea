"""Decompositions of matrices by LAPACK, and by our own kernels where it is missing, beside eager PyTorch.

Vectors are checked by what they are for: signs, and vectors of equal values, are open. With PyTorch's own LAPACK they
are eager's to the last bit.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.build.deploy import export_modules
from tilewright.build.options import Clock, Options
from tilewright.frontend.source import import_source
from tilewright.runtime.cpu import routines
from tilewright.runtime.cpu.linker import link_text
from tilewright.runtime.errors import ArtifactError

QUICK, MANY = 3, 500


class Lambda(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *xs: torch.Tensor) -> Any:
        return self.function(*xs)


def run(function: Callable[..., Any], *xs: torch.Tensor) -> Any:
    return tw.compile(Lambda(function), xs, cache=False)(*xs)


def symmetric(x: torch.Tensor) -> torch.Tensor:
    return x + x.mT


def positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + x.shape[-1] * torch.eye(x.shape[-1], dtype=x.dtype)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """As near as the dtype lets a decomposition be, measured by the largest element and the size."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if wanted.numel():
        bound = 200 * max(wanted.shape) * torch.finfo(wanted.dtype).eps * max(1.0, float(wanted.abs().max()))
        assert float((got - wanted).abs().max()) <= bound


def check_eigh(x: torch.Tensor) -> None:
    s = symmetric(x)
    values, vectors, alone = run(lambda s: (*torch.linalg.eigh(s), torch.linalg.eigvalsh(s)), s)
    close(values, torch.linalg.eigvalsh(s))
    close(vectors @ torch.diag_embed(values) @ vectors.mT, s)
    close(vectors.mT @ vectors, torch.eye(s.shape[-1], dtype=s.dtype).expand(s.shape))
    close(alone, values)


def check_svd(x: torch.Tensor) -> None:
    def all_forms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        short, whole = (torch.linalg.svd(x, full_matrices=full) for full in (False, True))
        return (*short, *whole, torch.linalg.svdvals(x), torch.linalg.pinv(x))

    *batch, m, n = x.shape
    k = min(m, n)
    *factors, alone, inverse = run(all_forms, x)
    for (u, s, vh), p, q in ((factors[:3], k, k), (factors[3:], m, n)):
        close(s, torch.linalg.svdvals(x))
        close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x)
        close(u.mT @ u, torch.eye(p, dtype=x.dtype).expand(*batch, -1, -1))
        close(vh @ vh.mT, torch.eye(q, dtype=x.dtype).expand(*batch, -1, -1))
    close(alone, torch.linalg.svdvals(x))
    close(x @ inverse @ x, x)


def check_factors(x: torch.Tensor) -> None:
    """Cholesky, LU and what they solve; QR."""

    def all_forms(x: torch.Tensor, square: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
        lower, upper = (torch.linalg.cholesky(square, upper=upper) for upper in (False, True))
        solved = [torch.linalg.solve_triangular(lower, right, upper=False),
                  torch.linalg.solve_triangular(upper, right, upper=True),
                  torch.linalg.solve_triangular(square, right, upper=True, unitriangular=True),
                  torch.linalg.solve(square, right)]  # fmt: skip
        return (*torch.linalg.qr(x), *torch.linalg.lu_factor_ex(x)[:2], lower, upper, *solved)

    square, right = positive(x), x[..., :1] + 1
    square = square / square.abs().max()
    q, r, made, pivots, lower, upper, *solved = run(all_forms, x, square, right)
    close(q @ r, x)
    # Which rows are swapped where little but rounding is left is open: of a matrix of low rank.
    swapped, unit_lower, eliminated = torch.lu_unpack(made, pivots)
    close(swapped @ unit_lower @ eliminated, x)
    assert unit_lower.abs().max() <= 1 + 4 * torch.finfo(x.dtype).eps
    close(lower, torch.linalg.cholesky(square))
    close(upper, lower.mT)
    unit = square.triu(1) + torch.eye(square.shape[-1], dtype=x.dtype)
    for a, found in zip((lower, upper, unit, square), solved, strict=True):
        close(a @ found, right)


CHECKS = (check_eigh, check_svd, check_factors)


@st.composite
def matrices(draw: st.DrawFn, largest: int = 40) -> torch.Tensor:
    """Batches of random matrices, some of low rank, some with many zeros."""
    batch = draw(st.sampled_from([(), (3,), (2, 2), (1,), (19,), (3, 7)]))
    m, n = (draw(st.integers(1, largest)) for _ in range(2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    x = torch.randn(*batch, m, n, generator=generator, dtype=dtype)
    if draw(st.booleans()):
        rank = draw(st.integers(1, max(m, n)))
        x = x[..., :rank] @ torch.randn(*batch, x[..., :rank].shape[-1], n, generator=generator, dtype=dtype)
    return torch.where(x > draw(st.sampled_from([-9.0, 0.0])), x, 0.0)


def check(x: torch.Tensor, of: Callable[[torch.Tensor], None]) -> None:
    m, n = x.shape[-2:]
    if of is check_svd:
        of(x)
    else:
        of(x[..., : min(m, n), : min(m, n)].contiguous())


@given(matrices(), st.sampled_from(CHECKS))
@settings(max_examples=QUICK, derandomize=True)
def test_lapack(x: torch.Tensor, of: Callable[[torch.Tensor], None]) -> None:
    check(x, of)


@given(matrices(8), st.sampled_from(CHECKS))
@settings(max_examples=QUICK, derandomize=True)
def test_our_own_kernels(x: torch.Tensor, of: Callable[[torch.Tensor], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_LAPACK", "off")
        check(x, of)


@pytest.mark.slow
@given(matrices(100), st.sampled_from(CHECKS))
@settings(max_examples=MANY)
def test_lapack_at_length(x: torch.Tensor, of: Callable[[torch.Tensor], None]) -> None:
    check(x, of)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("of", CHECKS)
@pytest.mark.parametrize("shape", [(2, 70, 70)])
def test_matrices_that_are_not_small(of: Callable[[torch.Tensor], None], shape: tuple[int, ...]) -> None:
    check(torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64), of)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 0)])
@pytest.mark.parametrize("function", [torch.linalg.eigh, torch.linalg.eigvalsh, torch.linalg.svdvals, torch.linalg.qr])
def test_nothing_to_decompose(shape: tuple[int, ...], function: Callable[..., Any]) -> None:
    x = torch.zeros(shape)
    got, wanted = run(function, x), function(x)
    shapes = [[y.shape for y in (r if isinstance(r, tuple) else (r,))] for r in (got, wanted)]
    assert shapes[0] == shapes[1]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", [torch.linalg.eigh, torch.linalg.svd, torch.linalg.svdvals])
def test_nan_gives_nan(function: Callable[..., Any]) -> None:
    """LAPACK declines; our own kernel computes with NaN."""
    got = run(function, torch.full((5, 5), torch.nan))
    values = got if isinstance(got, torch.Tensor) else got[0]
    assert values.isnan().any()


@pytest.mark.one_in(4)
@pytest.mark.skipif(not routines._of_torch(), reason="this PyTorch offers no LAPACK")
@pytest.mark.parametrize("shape", [(6, 6), (3, 20, 20), (5, 37, 37), (4, 71, 71)])
def test_results_are_eagers_to_the_last_bit(shape: tuple[int, ...]) -> None:
    """Matrices of a batch begin at odd places, on which a library's order of adding depends."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    of_rank_1 = x[..., :1] @ x[..., :1, :]
    for function, y in (
        (torch.linalg.eigh, symmetric(x)), (torch.linalg.svd, x), (torch.linalg.lu_factor, x),
        # Of a matrix without an inverse, lu_factor is an error where a pivot is exactly zero, as some processors find.
        (torch.linalg.lu_factor_ex, of_rank_1),
    ):  # fmt: skip
        for got, wanted in zip(run(function, y), function(y), strict=True):
            assert torch.equal(got, wanted), function


def test_scipys_lapack_is_found_where_pytorchs_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    monkeypatch.setattr(routines, "_of_torch", lambda: None)
    monkeypatch.setattr(routines._made, "made", {})
    for of in CHECKS:
        check(torch.randn(66, 66, generator=torch.Generator().manual_seed(1)), of)
    assert all(routines._find(r.of, "s" + r.name) for r in routines.ROUTINES.values())


def test_a_saved_model_runs_with_and_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = symmetric(torch.randn(9, 9, generator=torch.Generator().manual_seed(2)))
    tw.compile(Lambda(torch.linalg.eigvalsh), (x,), cache=False).save(tmp_path / "m.tw")
    close(tw.load(tmp_path / "m.tw")(x), torch.linalg.eigvalsh(x))
    monkeypatch.setattr(routines, "_find", lambda kind, name: 0)
    monkeypatch.setattr(routines._made, "made", {})
    close(tw.load(tmp_path / "m.tw")(x), torch.linalg.eigvalsh(x))


def test_an_export_calls_no_library() -> None:
    graph = import_source(Lambda(torch.linalg.eigh), (torch.eye(5),))
    modules = export_modules(graph, Options(), 1, Clock())
    assert not re.search(rf"@{routines.PREFIX}eigh", modules.texts["entry"])
    assert modules.manifest.routines == ()


def test_an_unknown_routine_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ArtifactError, match="tw_schur_f32, which is unknown"):
        routines.addresses(["tw_schur_f32"], link_text)


def test_the_largest_size_is_fortrans() -> None:
    """Sizes that no 32-bit integer holds are declined before anything is touched."""
    at = routines.addresses(["tw_eigvalsh_f32"], link_text)["tw_eigvalsh_f32"]
    call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(at)
    for sizes in ((1, 1 << 31), (0, 3), (1, -1), (1, 0)):
        assert call(None, np.array(sizes, np.int64).ctypes.data) == 1


def whole(factors: Any) -> torch.Tensor:
    """The product of some factors, whose signs are open."""
    first, second, *rest = factors
    return first @ (second.unsqueeze(-1) * rest[0] if rest else second)


def product_of_lu(x: torch.Tensor) -> torch.Tensor:
    p, lower, upper = torch.linalg.lu(x)
    return p @ lower @ upper


SQUARE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "inv": lambda x: torch.linalg.inv(positive(x)),
    "solve": lambda x: torch.linalg.solve(positive(x), x),
    "cholesky": lambda x: torch.linalg.cholesky(positive(x)),
    "cholesky_solve": lambda x: torch.cholesky_solve(x, torch.linalg.cholesky(positive(x))),
    "det": lambda x: torch.linalg.det(x / x.shape[-1]),
    "lu": product_of_lu,
    "ldl": lambda x: torch.linalg.ldl_factor(symmetric(x))[0],
    "qr": lambda x: whole(torch.linalg.qr(x)),
    "eigh": lambda x: torch.linalg.eigh(symmetric(x))[0],
    "eigvalsh": lambda x: torch.linalg.eigvalsh(symmetric(x)),
    "svd": lambda x: whole(torch.linalg.svd(x, full_matrices=False)),
    "svdvals": torch.linalg.svdvals,
    "pinv": lambda x: torch.linalg.pinv(positive(x)),
    "matrix_rank": lambda x: torch.linalg.matrix_rank(x[..., :1] * x[..., :1, :]).to(x.dtype),
}


@pytest.mark.one_in(10)
@pytest.mark.parametrize("name", SQUARE)
def test_sides_and_batches_of_the_call(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One compile for all sizes: LAPACK is told those of the call, and our own kernels loop to them."""
    batch, side = torch.export.Dim("batch", min=2), torch.export.Dim("side", min=2)
    compiled = tw.compile(
        Lambda(SQUARE[name]), (torch.rand(3, 5, 5),), dynamic_shapes=(({0: batch, 1: side, 2: side},),), cache=False
    )
    compiled.save(tmp_path / "m.tw")
    by_lapack = [(x, compiled(x)) for x in _of_several_sizes()]
    monkeypatch.setattr(routines, "_find", lambda kind, name: 0)
    monkeypatch.setattr(routines._made, "made", {})
    without = tw.load(tmp_path / "m.tw")
    for x, got in by_lapack:
        close(got, SQUARE[name](x))
        close(without(x), SQUARE[name](x))


def _of_several_sizes() -> Iterator[torch.Tensor]:
    for n_matrices, n in ((3, 5), (2, 2), (20, 3), (2, 17), (2, 66)):
        torch.manual_seed(n)
        yield torch.rand(n_matrices, n, n)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["qr", "lu"])
def test_matrices_of_two_sides_of_the_call(name: str) -> None:
    rows, columns = torch.export.Dim("rows", min=2), torch.export.Dim("columns", min=2)
    compiled = tw.compile(
        Lambda(SQUARE[name]), (torch.rand(3, 5, 4),), dynamic_shapes=(({1: rows, 2: columns},),), cache=False
    )
    for shape in ((3, 5, 4), (3, 4, 9), (3, 70, 3), (3, 3, 3)):
        x = torch.rand(shape)
        close(compiled(x), SQUARE[name](x))


@pytest.mark.parametrize("name", ["svd", "svdvals"])
def test_singular_values_need_the_longer_side(name: str) -> None:
    rows, columns = torch.export.Dim("rows"), torch.export.Dim("columns")
    with pytest.raises(tw.CompileError, match="rows by columns need to know which side is longer"):
        tw.compile(
            Lambda(SQUARE[name]), (torch.rand(3, 5, 4),), dynamic_shapes=(({1: rows, 2: columns},),), cache=False
        )
