"""Fourier transforms: NumPy's bits where ONNX states them, accuracy at lengths of every kind."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from frontend.onnx_build import info, model, node
from tilewright import ops
from tilewright.build import texts
from tilewright.build.options import Options
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32, f64
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.fourier import _factor, transform
from tilewright.frontend.torch.export import import_module


def _dft(x: np.ndarray, inverse: int) -> np.ndarray:
    m = model(
        [node("DFT", ["x", "", "axis"], ["y"], inverse=inverse)], [info("x", x.shape)], ["y"], {"axis": np.array(1)}
    )
    found: np.ndarray = tw.compile(m, cache=False)(x)
    return found


@pytest.mark.one_in(6)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 10, 16, 60, 100, 128, 480])
def test_the_inverse_of_f32_has_numpys_bits(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((2, n, 3, 2)).astype(np.float32)
    wanted = np.fft.ifft(x[..., 0] + 1j * x[..., 1], axis=1)
    assert np.array_equal(_dft(x, 1), np.stack([wanted.real, wanted.imag], -1))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("n", [1, 7, 22, 1000, 1021, 4096])
def test_transforms_of_f32_are_rounded_once(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((1, n, 1)).astype(np.float32)
    wanted = np.fft.fft(x[..., 0].astype(np.float64), axis=1)
    got = _dft(x, 0)
    assert np.abs(got - np.stack([wanted.real, wanted.imag], -1)).max() <= 1.2e-7 * np.abs(wanted).max()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("n", [769, 2053, 2 * 1009])
def test_large_primes(n: int) -> None:
    pool = Pool()
    re, im = (pool.input(name, TensorType(f64, (2, n))) for name in ("re", "im"))
    made = transform(Builder(pool), Pair(re, im), -1)
    x = np.random.default_rng(n).standard_normal((2, 2, n))
    got = tw.compile(Graph("fft", pool, (re, im), (made.re, made.im), ("re", "im")), cache=False)(*x)
    wanted = np.fft.fft(x[0] + 1j * x[1])
    assert np.abs(got[0] + 1j * got[1] - wanted).max() < 1e-12 * np.abs(wanted).max()


KINDS = ("fft", "ifft", "rfft", "irfft", "hfft")


class Transform(torch.nn.Module):
    def __init__(self, kind: str, n: int, axis: int) -> None:
        super().__init__()
        self.kind, self.n, self.axis = kind, n, axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.kind == "rfft" else torch.view_as_complex(x)
        y = getattr(torch.fft, self.kind)(x, self.n, self.axis)
        return torch.view_as_real(y) if y.is_complex() else y


def check_transform(kind: str, n: int, batch: tuple[int, ...], axis: int, dtype: torch.dtype) -> None:
    """Beside NumPy's transform of f64: its rounding alone may differ."""
    is_half = kind in ("irfft", "hfft")
    shape = list(batch)
    shape.insert(axis, n // 2 + 1 if is_half else n)
    rng = np.random.default_rng(n)
    x = rng.standard_normal(shape) if kind == "rfft" else rng.standard_normal((*shape, 2))
    model = Transform(kind, n, axis)
    x = x.astype(np.float32 if dtype is torch.float32 else np.float64)
    got = np.asarray(tw.compile(model, example_inputs=(torch.from_numpy(x),), cache=False)(x))
    exact = x.astype(np.float64)
    wanted = getattr(np.fft, kind)(exact if kind == "rfft" else exact[..., 0] + 1j * exact[..., 1], n, axis)
    wanted = np.stack([wanted.real, wanted.imag], -1) if np.iscomplexobj(wanted) else wanted
    limit = 1e-6 if dtype is torch.float32 else 2e-15
    assert np.abs(got - wanted).max() <= limit * max(np.abs(wanted).max(), 1e-30), (kind, n, batch, axis)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "batch"), [(16, (16,)), (360, ()), (1001, (9,)), (1024, (2,)), (2, (33,)), (13, (8,)), (441, (3, 5))]
)
def test_transforms_in_passes(kind: str, n: int, batch: tuple[int, ...]) -> None:
    check_transform(kind, n, batch, len(batch), torch.float32)


_LENGTHS = st.one_of(
    st.integers(1, 300),
    st.lists(st.sampled_from([2, 3, 4, 5, 7, 11, 13, 17]), max_size=4).map(lambda f: int(np.prod(f))),
)


def _random_transform(kind: str, n: int, batch: list[int], turn: int, is_wide: bool) -> None:
    check_transform(kind, n, tuple(batch), turn % (len(batch) + 1), torch.float64 if is_wide else torch.float32)


_RANDOM = given(
    st.sampled_from(KINDS), _LENGTHS, st.lists(st.integers(1, 17), max_size=2), st.integers(0, 2), st.booleans()
)
test_random_transforms = settings(max_examples=5)(_RANDOM(_random_transform))
test_many_random_transforms = pytest.mark.slow(settings(max_examples=500)(_RANDOM(_random_transform)))


def test_a_batch_of_any_size() -> None:
    model = Transform("rfft", 48, 1)
    batch = torch.export.Dim("batch", min=1)
    compiled = tw.compile(model, example_inputs=(torch.zeros(5, 48),), dynamic_shapes=({0: batch},), cache=False)
    for n in (1, 3, 16, 37):
        x = np.random.default_rng(n).standard_normal((n, 48)).astype(np.float32)
        wanted = np.fft.rfft(x)
        got = np.asarray(compiled(x))
        assert np.abs(got - np.stack([wanted.real, wanted.imag], -1)).max() <= 1e-6 * np.abs(wanted).max()


class OfPlanes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.fft2(torch.view_as_complex(x)))


def test_transforms_of_planes_move_pairs_whole() -> None:
    """Real and imaginary parts are taken apart and joined again nowhere between the transforms of two axes."""
    x = np.random.default_rng(0).standard_normal((32, 48, 2)).astype(np.float32)
    graph = texts.optimise(import_module(OfPlanes(), (torch.from_numpy(x),)), Options(), None)
    assert ops.concat not in {n.op for n in graph.nodes()}
    wanted = np.fft.fft2(x[..., 0] + 1j * x[..., 1].astype(np.float64))
    got = np.asarray(tw.compile(OfPlanes(), example_inputs=(torch.from_numpy(x),), cache=False)(x))
    assert np.abs(got[..., 0] + 1j * got[..., 1] - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_a_pass_computes_all_results_of_a_vector_together() -> None:
    """Each element is loaded once for all the results that it is part of."""
    pool = Pool()
    x = pool.input("x", TensorType(f32, (1, 8, 1, 1, 2, 64)))
    (y,) = pool.results(pool.add(ops.fourier_pass, [x], ops.fourier_pass.complete_attrs({"n": 8, "sign": -1})))
    graph = Graph("g", pool, (x,), (y,), ("y",))
    text = "\n".join(texts.kernel_texts(graph, Options(target="x86-64-v4"), "asm", "fourier"))
    assert len(re.findall(r"\(%rdi,.*%zmm", text)) == 16


class OfImages(torch.nn.Module):
    def __init__(self, kind: str, axes: tuple[int, ...], norm: str) -> None:
        super().__init__()
        self.kind, self.axes, self.norm = kind, axes, norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.kind == "rfftn" else torch.view_as_complex(x)
        y = getattr(torch.fft, self.kind)(x, dim=self.axes, norm=self.norm)
        return torch.view_as_real(y) if y.is_complex() else y


def _random_images(kind: str, shape: list[int], axes: list[int], norm: str, is_wide: bool, threads: int) -> None:
    """Beside NumPy's transforms of f64 over any axes in any order."""
    rank = len(shape)
    axes = list(dict.fromkeys(a % rank for a in axes))
    given = list(shape)
    if kind == "irfftn":
        given[axes[-1]] = given[axes[-1]] // 2 + 1
    x = np.random.default_rng(rank).standard_normal(given if kind == "rfftn" else (*given, 2))
    x = x.astype(np.float64 if is_wide else np.float32)
    model = OfImages(kind, tuple(axes), norm)
    got = np.asarray(tw.compile(model, example_inputs=(torch.from_numpy(x),), threads=threads, cache=False)(x))
    exact = x.astype(np.float64)
    exact = exact if kind == "rfftn" else exact[..., 0] + 1j * exact[..., 1]
    wanted = getattr(np.fft, kind)(exact, axes=axes, norm=norm)
    wanted = np.stack([wanted.real, wanted.imag], -1) if np.iscomplexobj(wanted) else wanted
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= (3e-14 if is_wide else 3e-6) * max(np.abs(wanted).max(), 1e-30)


_IMAGES = given(
    st.sampled_from(("fftn", "ifftn", "rfftn", "irfftn")),
    st.lists(st.sampled_from([2, 3, 5, 8, 12, 16, 30, 32, 37]), min_size=2, max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.sampled_from(("forward", "backward", "ortho")),
    st.booleans(),
    st.sampled_from((1, 2)),
)
test_random_images = settings(max_examples=3)(_IMAGES(_random_images))
test_many_random_images = pytest.mark.slow(settings(max_examples=300)(_IMAGES(_random_images)))


def test_a_large_prime_is_found_at_once() -> None:
    assert _factor(2**31 - 1) == 2**31 - 1
    assert _factor(257 * 263) == 257 and _factor(2 * 65_537) == 2
