"""Calls on lists of tensors, as fused optimisers make them, against eager PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from frontend.test_dynamo_sharing import interpreted
from tilewright.frontend.torch.foreach import decompositions
from tilewright.integrations.torch_compile.backend import make_backend

CALLS = sorted(decompositions(), key=str)
NUMBER = st.sampled_from([0.5, 2.0, -1.5])


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """A call, and arguments for its schema."""
    call = draw(st.sampled_from(CALLS))
    n = draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    shapes = [draw(st.lists(st.integers(1, 3), max_size=2)) for _ in range(n)]
    arguments: list[Any] = []
    for argument in call._schema.arguments:
        kind = str(argument.type)
        if kind == "List[Tensor]":
            arguments.append([torch.rand(s, generator=generator, dtype=dtype) / 2 + 0.25 for s in shapes])
        elif kind == "List[number]":
            arguments.append([draw(NUMBER) for _ in range(n)])
        elif kind == "Tensor":
            arguments.append(torch.rand([], generator=generator, dtype=dtype))
        elif kind == "number" and not argument.has_default_value():
            arguments.append(draw(NUMBER))
        else:
            break
    return call, arguments


@pytest.mark.one_in(2)
@given(calls())
@settings(max_examples=8)
def test_calls_on_lists(drawn: tuple[Any, list[Any]]) -> None:
    call, arguments = drawn
    torch._dynamo.reset()
    fast = torch.compile(call, backend=make_backend(interpreted), options={"fallback": False})
    torch.testing.assert_close(fast(*arguments), call(*arguments), rtol=1e-5, atol=1e-6, equal_nan=True)


class Averaged(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = [x.clone(), y.clone()]
        torch._foreach_lerp_(kept, [y, x], 0.25)
        return torch.stack(torch._foreach_norm(kept))


def test_lists_that_are_written() -> None:
    x, y = torch.randn(3), torch.randn(3)
    expected = Averaged()(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tw.FallbackWarning)
        torch.testing.assert_close(torch.compile(Averaged(), backend="tilewright")(x, y), expected)
    torch.testing.assert_close(torch.as_tensor(tw.compile(Averaged(), (x, y), cache=False)(x, y)), expected)
