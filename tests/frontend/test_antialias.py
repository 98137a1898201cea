"""Antialiased resampling and its gradient: every filter, enlarging and shrinking, for fixed and for symbolic sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.gradients import Function, check_gradients

QUICK, MANY = 2, 500
Case = tuple[Function, list[list[torch.Tensor]]]
FILTERS = ("bilinear", "bicubic", "lanczos")


def resample(
    x: torch.Tensor, mode: str, sizes: list[int] | None, factors: list[float] | None, align: bool
) -> torch.Tensor:
    if mode == "lanczos":
        return torch.ops.aten._upsample_lanczos2d_aa.vec(x, sizes, align, factors)
    return F.interpolate(x, sizes, factors, mode, align, antialias=True)


@st.composite
def resamplings(draw: st.DrawFn, n_calls: int = 1) -> Case:
    """Two or more columns (``test_one_column``). PyTorch 2.13 can't trace a bicubic gradient of symbolic size."""
    mode, align = draw(st.sampled_from(FILTERS)), draw(st.booleans())
    sizes = factors = None
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, 12)), draw(st.integers(2, 12))]
    else:
        factors = [draw(st.sampled_from([0.3, 0.5, 0.75, 1.0, 1.6, 2.0])) for _ in range(2)]
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.float64]))
    is_last = draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    calls = []
    for _ in range(n_calls):
        shape = [draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(4, 14)), draw(st.integers(7, 14))]
        x = torch.randn(*shape, generator=generator, dtype=dtype)
        x = x.to(memory_format=torch.channels_last if is_last else torch.contiguous_format)
        calls.append([x.requires_grad_(n_calls == 1 or mode != "bicubic")])
    return lambda x: resample(x, mode, sizes, factors, align), calls


@given(resamplings())
@settings(max_examples=QUICK)
def test_resamplings(case: Case) -> None:
    check_gradients(case[0], *case[1])


@pytest.mark.slow
@given(resamplings())
@settings(max_examples=MANY)
def test_resamplings_at_length(case: Case) -> None:
    check_gradients(case[0], *case[1])


@pytest.mark.slow
@given(resamplings(n_calls=3))
@settings(max_examples=MANY // 5)
def test_resamplings_of_symbolic_sizes_at_length(case: Case) -> None:
    check_gradients(case[0], *case[1], dynamic=True)


def test_one_column() -> None:
    """PyTorch 2.13 repeats the first row in results of one column, unless the channels lie last."""
    x = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    ours = torch.compile(resample, backend="tilewright", options={"fallback": False})
    arguments = ("bilinear", [4, 1], None, False)
    right = resample(x.to(memory_format=torch.channels_last), *arguments)
    torch.testing.assert_close(ours(x, *arguments), right)
    assert not torch.allclose(resample(x, *arguments), right), "mended there: draw one column above, too"


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", FILTERS)
def test_one_compiled_resampling_takes_every_size(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 2, 12, 10), (2, 3, 5, 19))
    calls = [[torch.randn(*s, generator=generator).requires_grad_(mode != "bicubic")] for s in shapes]
    check_gradients(lambda x: resample(x, mode, [7, 8], None, False), *calls, dynamic=True)


def test_an_infinity_stays_in_its_window() -> None:
    x = torch.zeros(1, 1, 16, 16)
    x[0, 0, 5, 9] = torch.inf
    for dynamic in (False, True):
        torch._dynamo.reset()
        ours = torch.compile(resample, backend="tilewright", dynamic=dynamic, options={"fallback": False})
        arguments = ("bilinear", [6, 24], None, False)
        torch.testing.assert_close(ours(x, *arguments), resample(x, *arguments), equal_nan=True)
