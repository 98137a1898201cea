"""Complex tensors go in and out of compiled modules, files, exports and the command line as they are."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import tilewright as tw
from tilewright.cli.main import main
from tilewright.runtime.errors import InputError
from tilewright.runtime.library import LibraryModel

N = Dim("n")


class Filter(torch.nn.Module):
    """A spectrum times a complex weight, beside something real."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, dtype=torch.complex64), requires_grad=False)

    def forward(self, x: torch.Tensor, gain: torch.Tensor) -> dict[str, torch.Tensor]:
        spectrum = torch.fft.fft(x) * self.weight * gain
        return {"spectrum": spectrum, "size": spectrum.abs(), "wide": spectrum.conj().to(torch.complex128)}


class Product(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def arguments_of(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 7, dtype=torch.complex64), torch.randn(7, n, dtype=torch.complex64)


def arguments(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 8, dtype=torch.complex64), torch.randn(n, 8)


@pytest.fixture(scope="module")
def module() -> Filter:
    return Filter()


@pytest.fixture(scope="module")
def model(module: Filter) -> tw.LoadedModel:
    return tw.compile(module, arguments(2), dynamic_shapes=({0: N}, {0: N}), cache=False)


def same(found: Any, expected: dict[str, torch.Tensor]) -> None:
    values = found.values() if isinstance(found, dict) else found
    for a, b in zip(values, expected.values(), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # in quick runs test_torch_complex_edges has powers of each of these kinds
def test_real_powers_of_complex_numbers() -> None:
    """Powers by squaring: each number of set bits, none, and negative ones; broken ones by the angle."""

    class Powers(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(z**n for n in (0, 1, 2, 3.0, 7, 16, -1, -5, 0.5, 2.5, -1.5))

    z = torch.randn(5, 3, dtype=torch.complex64)
    compiled = tw.compile(Powers(), (z,), cache=False)
    for a, b in zip(compiled(z), Powers()(z), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_calls_that_pytorch_exports_whole() -> None:
    """Movement, products and functions of complex numbers; what only their parts have a form for is taken apart."""

    class Calls(torch.nn.Module):
        def forward(self, z: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
            moved = (
                F.pad(z, (1, 2)), F.pad(z, (1, 2, 1, 0), value=2.0), F.pad(z, (1, 1), mode="circular"),
                F.pad(z, (1, 2, 1, 1), mode="reflect"), z.chunk(2, -1)[1], z.flatten(1), z.unflatten(2, (2, 2)),
                z.tile(2), z.swapaxes(0, 1), v.expand_as(z), F.embedding(torch.tensor([1, 2]), z[0]),
                v.scatter(0, torch.tensor([1]), 2.0),
            )  # fmt: skip
            products = (
                z @ z.mT, z @ v, z[0] @ v, torch.inner(v, v), torch.vdot(v, v), torch.outer(v, v),
                F.linear(z, z[0], v[:3]), F.linear(z, v), torch.einsum("bij,j->bi", z, v), z.square(),
                torch.addcmul(z, z, z, value=2), torch.addcdiv(z, z, z + 3),
            )  # fmt: skip
            functions = z.sqrt(), z.log(), z.sin(), z.cos(), z.sinh(), z.cosh(), torch.linalg.vector_norm(z, dim=-1)
            functions += (
                z.tanh(), z.tan(), z.asin(), z.acos(), z.atan(), z.asinh(), z.acosh(), z.atanh(), F.silu(z),
                z.expm1(), z.log1p(), z.log2(), z.log10(), z.exp2(), z.rsqrt(), z**1j, 2**z, z**z, z.prod(), z.prod(2),
                z.cumprod(1), v[:0].prod(), z.var(1), z.std(), (z * 0).any(), z.all(2), z[0].diagonal(), z.sigmoid(),
            )  # fmt: skip
            made = torch.ones_like(z) + z, torch.eye(4, dtype=z.dtype) @ v, 1 - z, z.new_ones(3), torch.diag_embed(v)
            return moved + products + functions + made

    given = torch.randn(2, 3, 4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64)
    made = tw.compile(Calls(), given, cache=False, threads=1)(*given)
    for a, b in zip(made, Calls()(*given), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), b, rtol=1e-4, atol=1e-4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("x", "y"),
    [((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4,)), ((2, 1, 3, 4), (6, 4, 5)),
     ((3, 0), (0, 5)), ((0, 4), (4, 5)), ((1, 1), (1, 1))],
)  # fmt: skip
def test_products_of_matrices(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Also of vectors, of batches that are broadcast, and of nothing."""
    a, b = torch.randn(x, dtype=torch.complex128), torch.randn(y, dtype=torch.complex128)
    torch.testing.assert_close(tw.compile(Product(), (a, b), cache=False)(a, b), a @ b)


def test_products_of_matrices_of_any_size() -> None:
    model = tw.compile(Product(), arguments_of(5), dynamic_shapes=({0: N}, {1: N}), cache=False)
    for n in (1, 2, 5, 9):
        a, b = arguments_of(n)
        torch.testing.assert_close(model(a, b), a @ b)


def test_roots_and_logarithms_at_the_edges() -> None:
    """Cuts, zeros of both signs, infinities, and magnitudes whose squares no float holds."""

    class Both(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return z.sqrt(), z.log()

    parts = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-30, -1e30, torch.inf, -torch.inf, 0.6, -0.8])
    z = torch.complex(parts.repeat_interleave(len(parts)), parts.repeat(len(parts)))
    for a, b in zip(tw.compile(Both(), (z,), cache=False, threads=1)(z), Both()(z), strict=True):
        for x, y in ((a.real, b.real), (a.imag, b.imag)):
            torch.testing.assert_close(torch.as_tensor(x), y, rtol=2e-6, atol=1e-7)
            assert torch.equal(torch.as_tensor(x).signbit() | y.isnan() | (y == 0), y.signbit() | y.isnan() | (y == 0))


def test_functions_of_parts_that_floats_barely_hold() -> None:
    """Magnitudes that overflow, the least floats, and axes where the function of the other part overflows."""

    class Functions(torch.nn.Module):
        def forward(self, z: torch.Tensor, axes: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return z.sqrt(), z.log(), axes.exp(), axes.sin(), axes.cos(), axes.sinh(), axes.cosh()

    def grid(*parts: float) -> torch.Tensor:
        found = torch.tensor(parts)
        return torch.complex(found.repeat_interleave(len(parts)), found.repeat(len(parts)))

    z, axes = grid(3e38, -3e38, 1e-45, -4e-42, 2.5), grid(0.0, -0.0, 1.5, -1.5, 100.0, -100.0)
    made = tw.compile(Functions(), (z, axes), cache=False, threads=1)(z, axes)
    for a, b in zip(made, Functions()(z.to(torch.complex128), axes.to(torch.complex128)), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), b.to(torch.complex64), rtol=2e-6, atol=1e-44)


def test_an_exponential_that_underflows_keeps_nan() -> None:
    """Minus infinity has a result at any angle, a finite number has none at an infinite one."""

    class Exponential(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return z.exp()

    z = torch.tensor([complex(re, im) for re in (-torch.inf, -3e38, 3e38) for im in (0, 1, torch.inf, torch.nan)])
    found = torch.as_tensor(tw.compile(Exponential(), (z,), cache=False, threads=1)(z))
    torch.testing.assert_close(found, Exponential()(z), equal_nan=True)


def test_tensors_arrays_and_conjugates(module: Filter, model: tw.LoadedModel) -> None:
    assert [spec.dtype for spec in model.inputs] == ["complex64", "float32"]
    assert str(model.outputs[0]) == "spectrum: complex64[n, 8]"
    for n in (3, 3, 3, 1, 5):
        x, gain = arguments(n)
        same(model(x, gain), module(x, gain))
        same(model(x.numpy(), gain.numpy()), module(x, gain))
        same(model(x.conj(), gain), module(x.conj(), gain))
        same(model(x.mT.contiguous().mT, gain), module(x, gain))
    with pytest.raises(InputError, match="complex64"):
        model(gain, gain)


def test_files_and_results_in_place(module: Filter, model: tw.LoadedModel, tmp_path: Path) -> None:
    model.save(tmp_path / "filter.tw")
    loaded = tw.load(tmp_path / "filter.tw")
    x, gain = arguments(4)
    same(loaded(x, gain), module(x, gain))
    out = [np.zeros((4, 8), spec.dtype) for spec in model.outputs]
    loaded(x.numpy(), gain.numpy(), out=out)
    same(out, module(x, gain))


def test_exports(module: Filter, model: tw.LoadedModel, tmp_path: Path) -> None:
    made = model.export(tmp_path, name="filter", shared=True)
    header = (tmp_path / "filter.h").read_text()
    assert "x: complex64[n][8], pairs of float: real part, imaginary part" in header
    x, gain = arguments(3)
    library = LibraryModel(made.library)
    same(library(x.numpy(), gain.numpy()), module(x, gain))
    same(library(x.conj(), gain), module(x.conj(), gain))


def test_states_and_written_inputs() -> None:
    class Adding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3, dtype=torch.complex64))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            y.mul_(1j)
            return self.total * 2

    eager, x, y = Adding(), torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)
    model, mine = tw.compile(Adding(), (x, y), cache=False), y.clone()
    for _ in range(2):
        torch.testing.assert_close(model(x, mine), eager(x, y))
        torch.testing.assert_close(mine, y)
    np.testing.assert_allclose(model.state["total"], eager.total.numpy())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["run"], "complex64"),
        pytest.param(["compare"], "agrees with", marks=pytest.mark.slow),
        pytest.param(["compare", "--against", "torch"], "agrees with", marks=pytest.mark.slow),
    ],
)
def test_command_line(
    module: Filter,
    command: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, given = str(tmp_path / "filter.pt2"), tmp_path / "x.npy"
    torch.export.save(torch.export.export(module, arguments(2)), file)
    np.save(given, arguments(2)[0].numpy())
    monkeypatch.setattr(sys, "argv", ["tilewright", command[0], file, "--input", f"x={given}", *command[1:]])
    with suppress(SystemExit):
        main()
    assert said in capsys.readouterr().out


def test_a_conjugate_dot_product_is_captured() -> None:
    v, w = torch.randn(2, 5, dtype=torch.complex64)
    torch._dynamo.reset()
    made = torch.compile(torch.vdot, backend="tilewright", options={"fallback": False})
    torch.testing.assert_close(made(v, w), torch.vdot(v, w))
