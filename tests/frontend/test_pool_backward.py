"""Gradients of pools of every kind, number of axes, dtype and stride, for fixed and for symbolic sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.gradients import Function, check_gradients

QUICK, MANY = 3, 500
Case = tuple[Function, list[list[torch.Tensor]]]

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16)
KINDS = ("avg", "max", "adaptive_avg", "adaptive_max")


@st.composite
def pools(draw: st.DrawFn, n_calls: int = 1) -> Case:
    """A pool, and an operand for each call: all of one rank, with sizes and strides of their own."""
    n, kind = draw(st.integers(1, 3)), draw(st.sampled_from(KINDS))
    dtype, lead = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 4 if n < 3 else 3)) for _ in range(n)]
    strides = [draw(st.integers(1, 4)) for _ in range(n)]
    pads = [draw(st.integers(0, k // 2)) for k in kernel]
    outs = [draw(st.integers(1, 5)) for _ in range(n)]
    ceil, with_pads = draw(st.booleans()), draw(st.booleans())
    divisor = draw(st.sampled_from([None, None, 3, -2])) if n > 1 else None

    def function(x: torch.Tensor) -> torch.Tensor:
        if kind == "avg":
            more = (divisor,) if n > 1 else ()
            pool = getattr(F, f"avg_pool{n}d")
            return pool(x, kernel, strides, pads, ceil, with_pads, *more)
        if kind == "max":
            return getattr(F, f"max_pool{n}d")(x, kernel, strides, pads, 1, ceil)
        return getattr(F, f"{kind}_pool{n}d")(x, outs)

    axis = draw(st.integers(-n, -1))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    calls = []
    for _ in range(n_calls):
        sizes = [k + draw(st.integers(0, 8 if n < 3 else 3)) for k in kernel]
        shape = [draw(st.integers(1, 3)) for _ in range(lead)] + sizes
        x = torch.rand(*shape, generator=generator, dtype=torch.float64).sub(0.5).mul(8).to(dtype)
        calls.append([x.transpose(0, axis).contiguous().transpose(0, axis).requires_grad_()])
    return function, calls


@given(pools())
@settings(max_examples=QUICK)
def test_pools(case: Case) -> None:
    function, calls = case
    check_gradients(function, *calls)


@pytest.mark.slow
@given(pools())
@settings(max_examples=MANY)
def test_pools_at_length(case: Case) -> None:
    function, calls = case
    check_gradients(function, *calls)


@pytest.mark.slow
@given(pools(n_calls=2))
@settings(max_examples=MANY // 5)
def test_pools_of_symbolic_sizes_at_length(case: Case) -> None:
    function, calls = case
    check_gradients(function, *calls, dynamic=True)


@pytest.mark.slow
def test_compiled_pools_take_every_size() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        means = F.avg_pool1d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
        return torch.cat((means, F.adaptive_avg_pool1d(x, 5), F.adaptive_max_pool1d(x, 3)), -1)

    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 12), (3, 2, 15))
    check_gradients(function, *([torch.randn(*s, generator=generator).requires_grad_()] for s in shapes), dynamic=True)


def test_an_infinite_gradient_stays_in_its_window() -> None:
    """Zeros between gradients are added, never multiplied with."""
    x = torch.zeros(1, 1, 9, 9, requires_grad=True)
    weights = torch.ones(1, 1, 4, 4)
    weights[0, 0, 1, 2] = torch.inf
    for pool in (lambda x: F.avg_pool2d(x, 3, 2), lambda x: F.adaptive_avg_pool2d(x, 4)):
        torch._dynamo.reset()
        ours = torch.compile(pool, backend="tilewright", options={"fallback": False})
        got, wanted = (torch.autograd.grad(f(x), x, weights)[0] for f in (ours, pool))
        torch.testing.assert_close(got, wanted)
