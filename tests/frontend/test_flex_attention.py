"""``flex_attention``: the user's functions of scores and masks, heads that share keys, and sums of exponentials."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

QUICK, MANY = 2, 500

SCORES: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "relative": lambda score, b, h, i, j: score + (i - j) * 0.1,
    "capped": lambda score, b, h, i, j: 2.0 * torch.tanh(score / 2.0),
    "by_head": lambda score, b, h, i, j: score * torch.exp2(-h - 1.0),
}
MASKS: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i - j).abs() <= 3,
    "blind": lambda b, h, i, j: (j < i) & (b != 1),
}


def check(
    score: str, mask: str, calls: list[list[torch.Tensor]], scale: float | None = None,
    backend: Any = "tilewright", **options: bool,
) -> None:  # fmt: skip
    """The attended values and the logarithms of the sums, for each call; nothing is left to PyTorch."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        blocks, allowed = None, MASKS[mask]
        if allowed is not None:
            blocks = create_block_mask(allowed, q.shape[0], None, q.shape[2], k.shape[2], device="cpu")
        is_shared = q.shape[1] != k.shape[1]
        return flex_attention(q, k, v, SCORES[score], blocks, scale, is_shared, return_lse=True)

    torch._dynamo.reset()
    ours = torch.compile(function, backend=backend, options={"fallback": False}, **options)
    with torch.no_grad():
        for xs in calls:
            for got, wanted in zip(ours(*xs), function(*xs), strict=True):
                bound = 1e-11 if xs[0].dtype == torch.float64 else 3e-5 if xs[0].dtype == torch.float32 else 1.6e-2
                torch.testing.assert_close(got, wanted, rtol=bound, atol=bound)


def operands(batch: int, heads: int, shared: int, n: int, m: int, width: int, dtype: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    shapes = ((batch, heads * shared, n, width), *((batch, heads, m, width),) * 2)
    return [torch.randn(*s, generator=generator).to(dtype) for s in shapes]


def check_seed(seed: int, backend: Any = "tilewright") -> None:
    """A function, a mask, a scale and operands that the seed chooses."""
    r = random.Random(seed)
    sizes = [r.randint(1, most) for most in (3, 2, 2, 20, 20, 9)]
    xs = operands(*sizes, r.choice([torch.float32, torch.float64, torch.bfloat16]))
    check(r.choice(sorted(SCORES)), r.choice(sorted(MASKS)), [xs], r.choice([None, 0.5]), backend)


CASES = st.tuples(
    st.sampled_from(sorted(SCORES)), st.sampled_from(sorted(MASKS)),
    st.builds(
        operands, st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(1, 20), st.integers(1, 20),
        st.integers(1, 9), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    ),
    st.sampled_from([None, 0.5]),
)  # fmt: skip


@given(CASES)
@example(("none", "blind", operands(1, 1, 1, 1, 1, 1, torch.float32), None))  # a mask that joins two conditions
@settings(max_examples=QUICK)
def test_flex_attention(case: Any) -> None:
    score, mask, xs, scale = case
    check(score, mask, [xs], scale)


@pytest.mark.slow
@given(CASES)
@settings(max_examples=MANY)
def test_flex_attention_at_length(case: Any) -> None:
    score, mask, xs, scale = case
    check(score, mask, [xs], scale)


@pytest.mark.slow
def test_symbolic_lengths() -> None:
    calls = [operands(b, 2, 1, n, n, 8, torch.float32) for b, n in ((3, 12), (4, 19))]
    check("relative", "none", calls, dynamic=True)
