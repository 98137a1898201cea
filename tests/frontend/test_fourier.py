"""Fourier transforms: NumPy's bits where ONNX states them, accuracy at lengths of every kind."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from frontend.onnx_build import info, model, node
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f64
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.fourier import transform


def _dft(x: np.ndarray, inverse: int) -> np.ndarray:
    m = model(
        [node("DFT", ["x", "", "axis"], ["y"], inverse=inverse)], [info("x", x.shape)], ["y"], {"axis": np.array(1)}
    )
    found: np.ndarray = tw.compile(m, cache=False)(x)
    return found


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 10, 16, 60, 100, 128, 480])
def test_the_inverse_of_f32_has_numpys_bits(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((2, n, 3, 2)).astype(np.float32)
    wanted = np.fft.ifft(x[..., 0] + 1j * x[..., 1], axis=1)
    assert np.array_equal(_dft(x, 1), np.stack([wanted.real, wanted.imag], -1))


@pytest.mark.parametrize("n", [1, 7, 22, 1000, 1021, 4096])
def test_transforms_of_f32_are_rounded_once(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((1, n, 1)).astype(np.float32)
    wanted = np.fft.fft(x[..., 0].astype(np.float64), axis=1)
    got = _dft(x, 0)
    assert np.abs(got - np.stack([wanted.real, wanted.imag], -1)).max() <= 1.2e-7 * np.abs(wanted).max()


@pytest.mark.parametrize("n", [769, 2053, 2 * 1009])
def test_large_primes(n: int) -> None:
    pool = Pool()
    re, im = (pool.input(name, TensorType(f64, (2, n))) for name in ("re", "im"))
    made = transform(Builder(pool), Pair(re, im), -1)
    x = np.random.default_rng(n).standard_normal((2, 2, n))
    got = tw.compile(Graph("fft", pool, (re, im), (made.re, made.im), ("re", "im")), cache=False)(*x)
    wanted = np.fft.fft(x[0] + 1j * x[1])
    assert np.abs(got[0] + 1j * got[1] - wanted).max() < 1e-12 * np.abs(wanted).max()
