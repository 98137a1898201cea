"""Backward graphs under ``torch.compile``: gradients of convolutions and attention beside eager, with no call left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK, MANY = 5, 500
Tensors = list[torch.Tensor]


def gradients(function: Callable[..., torch.Tensor], xs: Tensors) -> Tensors:
    xs = [x.detach().clone().requires_grad_() for x in xs]
    y = function(*xs)
    return [y.detach(), *torch.autograd.grad(y, xs, torch.cos(y.detach()))]


def check(function: Callable[..., torch.Tensor], xs: Tensors) -> None:
    torch._dynamo.reset()
    ours = torch.compile(function, backend="tilewright", dynamic=False, options={"fallback": False})
    for got, wanted in zip(gradients(ours, xs), gradients(function, xs), strict=True):
        scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
        bound = 3e-5 if wanted.dtype == torch.float32 else 1e-11
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        torch.testing.assert_close(got, wanted, rtol=bound, atol=bound * scale)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Callable[..., torch.Tensor], Tensors]:
    n = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    c_in, c_out = (groups * draw(st.integers(1, 6)) for _ in range(2))
    kernel = [draw(st.integers(1, 4 if n < 3 else 2)) for _ in range(n)]
    strides, dilations = ([draw(st.integers(1, 2)) for _ in range(n)] for _ in range(2))
    pads = [draw(st.integers(0, k // 2)) for k in kernel]
    sizes = [(k - 1) * d + draw(st.integers(1, 6)) for k, d in zip(kernel, dilations, strict=True)]
    transposed = draw(st.booleans())
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    w = (c_in, c_out // groups, *kernel) if transposed else (c_out, c_in // groups, *kernel)
    shapes = [(draw(st.integers(1, 3)), c_in, *sizes), w, *([(c_out,)] if draw(st.booleans()) else [])]
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    xs = [torch.randn(*s, generator=generator, dtype=dtype) for s in shapes]

    def function(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.convolution(
            x, w, bias, strides, pads, dilations, transposed, extra if transposed else [0] * n, groups
        )

    return function, xs


@st.composite
def attentions(draw: st.DrawFn) -> tuple[Callable[..., torch.Tensor], Tensors]:
    batch, heads, queries, keys, width = (draw(st.integers(1, n)) for n in (3, 3, 9, 9, 8))
    causal = draw(st.booleans())
    scale = draw(st.sampled_from([None, 0.3]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    shapes = [(batch, heads, n, width) for n in (queries, keys, keys)]
    xs = [torch.randn(*s, generator=generator) for s in shapes]
    mask: Any = None
    if not causal and draw(st.booleans()):
        mask = torch.randn(queries, keys, generator=generator)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)

    return function, xs


@given(convolutions())
@settings(max_examples=QUICK, deadline=None, derandomize=True)
def test_convolutions(case: tuple[Callable[..., torch.Tensor], Tensors]) -> None:
    check(*case)


@given(attentions())
@settings(max_examples=QUICK, deadline=None, derandomize=True)
def test_attention(case: tuple[Callable[..., torch.Tensor], Tensors]) -> None:
    check(*case)


@pytest.mark.slow
@given(st.one_of(convolutions(), attentions()))
@settings(max_examples=MANY, deadline=None)
def test_gradients_at_length(case: tuple[Callable[..., torch.Tensor], Tensors]) -> None:
    check(*case)


def test_a_training_step_leaves_nothing_to_pytorch() -> None:
    """Convolutions, norms, pools, an embedding: every call of the backward graph has a form here."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(20, 12), torch.nn.Unflatten(1, (4, 4)), torch.nn.Conv2d(4, 6, 3, padding=1),
        torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.GroupNorm(3, 6),
        torch.nn.Flatten(), torch.nn.LayerNorm(72), torch.nn.Linear(72, 3),
    )  # fmt: skip
    x = torch.randint(0, 20, (2, 16), generator=torch.Generator().manual_seed(1))
    found = []
    for call in (model, torch.compile(model, backend="tilewright", options={"fallback": False})):
        model.zero_grad()
        F.cross_entropy(call(x), torch.tensor([0, 2])).backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
