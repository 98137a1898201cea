"""Backward graphs under ``torch.compile``: gradients of convolutions and attention beside eager, with no call left."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.gradients import Function, check_gradients

QUICK, MANY = 2, 500
Case = tuple[Function, list[list[torch.Tensor]]]
"""A function, and operands for each call: of one rank, and sizes of their own."""


def check(case: Case, dynamic: bool = False) -> None:
    check_gradients(case[0], *case[1], dynamic=dynamic)


@st.composite
def convolutions(draw: st.DrawFn, n_calls: int = 1) -> Case:
    n = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3])) if n_calls == 1 else 1  # groups are refused where channels vary
    c_in, c_out = (groups * draw(st.integers(1, 6)) for _ in range(2))
    kernel = [draw(st.integers(1, 4 if n < 3 else 2)) for _ in range(n)]
    strides, dilations = ([draw(st.integers(1, 2)) for _ in range(n)] for _ in range(2))
    pads = [draw(st.integers(0, k // 2)) for k in kernel]
    least = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    transposed = draw(st.booleans())
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    w = (c_in, c_out // groups, *kernel) if transposed else (c_out, c_in // groups, *kernel)
    weights = [w, *([(c_out,)] if draw(st.booleans()) else [])]
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    calls = [
        [torch.randn(*s, generator=generator, dtype=dtype).requires_grad_() for s in ((batch, c_in, *sizes), *weights)]
        for batch, sizes in (
            (draw(st.integers(1, 3)), [n + draw(st.integers(1, 6)) for n in least]) for _ in range(n_calls)
        )
    ]

    def function(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.convolution(
            x, w, bias, strides, pads, dilations, transposed, extra if transposed else [0] * n, groups
        )

    return function, calls


@st.composite
def attentions(draw: st.DrawFn, n_calls: int = 1) -> Case:
    """Of any mask, with dropout or without, and with heads that share keys."""
    heads, shared = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    causal = draw(st.booleans())
    scale = draw(st.sampled_from([None, 0.3]))
    dropout = draw(st.sampled_from([0.0, 0.0, 0.4]))
    dtypes = [torch.float32, torch.float64] + ([] if dropout else [torch.bfloat16])
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    mask: Any = None
    if not causal and n_calls == 1 and draw(st.booleans()):
        mask = draw(st.sampled_from(["numbers", "truths"]))
    calls = []
    for _ in range(n_calls):
        batch, queries, keys, width = (draw(st.integers(1, n)) for n in (3, 9, 9, 8))
        shapes = ((batch, heads * shared, queries, width), *((batch, heads, keys, width),) * 2)
        calls.append([torch.randn(*s, generator=generator).to(dtype).requires_grad_() for s in shapes])
    if mask is not None:
        mask = torch.randn(queries, keys, generator=generator) if mask == "numbers" else torch.ones(queries, keys) > 0
    if mask is not None and mask.dtype is torch.bool:
        mask[:, 1:] = torch.rand(queries, keys - 1, generator=generator) > 0.5

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        given = mask if mask is None or mask.dtype is torch.bool else mask.to(q.dtype)
        return F.scaled_dot_product_attention(
            q, k, v, given, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=shared > 1
        )

    return function, calls


@given(convolutions())
@settings(max_examples=QUICK, derandomize=True)
def test_convolutions(case: Case) -> None:
    check(case)


@given(attentions())
@settings(max_examples=QUICK, derandomize=True)
def test_attention(case: Case) -> None:
    check(case)


@pytest.mark.slow
@given(st.one_of(convolutions(), attentions()))
@settings(max_examples=MANY)
def test_gradients_at_length(case: Case) -> None:
    check(case)


@pytest.mark.slow
@given(st.one_of(convolutions(n_calls=2), attentions(n_calls=2)))
@settings(max_examples=MANY // 5)
def test_gradients_of_symbolic_sizes_at_length(case: Case) -> None:
    check(case, dynamic=True)


def random(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*s, generator=generator).requires_grad_() for s in shapes]


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("is_grouped", [True, False])
def test_a_convolution_of_symbolic_size(is_grouped: bool) -> None:
    """Whatever its stride leaves over; a run-time weight may have any size too, but for channels in groups."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if is_grouped:
            torch._check(x.shape[1] == 6 and w.shape[:2] == (4, 3))
        return F.conv1d(x, w, padding=1, stride=2, groups=2 if is_grouped else 1)

    calls = [random((b, 6, n), (4, 3 if is_grouped else 6, k)) for b, n, k in ((2, 12, 3), (3, 15, 5))]
    check_gradients(function, *calls, dynamic=True)


@pytest.mark.slow
def test_attention_of_symbolic_width_and_lengths() -> None:
    calls = [random(*((b, 4, n, e) for n in (q, k, k))) for b, q, k, e in ((2, 5, 6, 8), (3, 7, 9, 12))]
    check_gradients(F.scaled_dot_product_attention, *calls, dynamic=True)


def test_values_are_as_many_as_keys() -> None:
    """Lengths that happen to differ between calls are equal within one; heads that share keys are a number."""
    torch._dynamo.reset()
    ours = torch.compile(
        F.scaled_dot_product_attention, backend="tilewright", dynamic=True, options={"fallback": False}
    )
    for b, q, k in ((2, 5, 6), (4, 4, 5)):
        xs = [x.detach() for x in random((b, 4, q, 8), (b, 2, k, 8), (b, 2, k, 8))]
        torch.testing.assert_close(ours(*xs, enable_gqa=True), F.scaled_dot_product_attention(*xs, enable_gqa=True))


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
