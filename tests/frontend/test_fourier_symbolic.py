"""Fourier transforms of a length that each call decides: one compiled model beside NumPy, and calls of PyTorch."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from frontend.gradients import check_gradients
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32, f64
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.fourier import transform
from tilewright.frontend.torch.aten.fft import SlowWarning

QUICK, MANY = 5, 500


@cache
def compiled(is_wide: bool, sign: int) -> Any:
    pool, n = Pool(), Sym("n", 1)
    re, im = (pool.input(name, TensorType(f64 if is_wide else f32, (2, n))) for name in ("re", "im"))
    made = transform(Builder(pool), Pair(re, im), sign)
    return tw.compile(Graph("fft", pool, (re, im), (made.re, made.im), ("re", "im")), cache=False)


def check(n: int, is_wide: bool, sign: int) -> None:
    x = np.random.default_rng(n).standard_normal((2, 2, n))
    got = compiled(is_wide, sign)(*(x if is_wide else x.astype(np.float32)))
    wanted = np.fft.fft(x[0] + 1j * x[1]) if sign < 0 else np.fft.ifft(x[0] + 1j * x[1]) * n
    bound = 1e-13 if is_wide else 1.5e-6
    assert np.abs(got[0] + 1j * got[1] - wanted).max() <= bound * np.abs(wanted).max()


LENGTHS = st.one_of(st.integers(1, 200), st.integers(1, 3000))


@given(LENGTHS)
@settings(max_examples=QUICK)
def test_lengths(n: int) -> None:
    """One width in one direction, because a compile of each takes seconds; the long test has all four."""
    check(n, is_wide=False, sign=-1)


@pytest.mark.slow
@given(LENGTHS, st.booleans(), st.sampled_from([-1, 1]))
@settings(max_examples=MANY)
def test_lengths_at_length(n: int, is_wide: bool, sign: int) -> None:
    check(n, is_wide, sign)


@pytest.mark.slow
def test_a_call_of_pytorch_takes_every_length() -> None:
    """Halves of symmetric spectra, of even and odd lengths, along an axis that is not the last, scaled."""

    def function(x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x, dim=1, norm="ortho")
        back = torch.fft.irfft(spectrum * 2, n=x.shape[1], dim=1)
        return torch.cat((back, torch.fft.fft(x, dim=1).imag, spectrum.real), 1)

    generator = torch.Generator().manual_seed(0)
    calls = [[torch.randn(b, n, 3, generator=generator)] for b, n in ((2, 12), (4, 37))]
    with pytest.warns(SlowWarning, match="fix that length"):
        check_gradients(function, *calls, dynamic=True)


def test_pytorch_keeps_what_it_does_faster() -> None:
    """A symbolic length falls back by name unless nothing may; a fixed one beside a symbolic batch never does."""
    torch._dynamo.reset()
    x = torch.randn(3, 20)
    ours = torch.compile(lambda x: torch.fft.rfft(x + 1).abs(), backend="tilewright", dynamic=True)
    with pytest.warns(tw.FallbackWarning, match="_fft_r2c.*symbolic length"):
        torch.testing.assert_close(ours(x), torch.fft.rfft(x + 1).abs())

    def batches(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x.reshape(-1, 8)).abs()

    compiled = torch.compile(batches, backend="tilewright", dynamic=True, options={"fallback": False})
    for n in (16, 40):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), batches(x))
