"""ATen in half a precision: what is computed with more digits is rounded once, where eager PyTorch does so."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.torch_compare import check_functions


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_steps_in_between_have_more_than_half_a_precision(dtype: torch.dtype) -> None:
    """The steps are beyond f16's 65,504 where results are not; each result is rounded once."""
    x, y = (120_000 * torch.rand(20, 30, generator=torch.Generator().manual_seed(k)) - 60_000 for k in range(2))
    functions = {
        "std": lambda x, y: (x.std(1), x.std()),
        "norm": lambda x, y: (x / 8).norm(3, 1),
        "distance": lambda x, y: torch.dist(x[:3, :3] / 8, y[:3, :3] / 8, 4),
        "lerp": lambda x, y: torch.lerp(x, -y, 0.7),
        "lerp by a tensor": lambda x, y: torch.lerp(x, y, x.gt(0).to(x.dtype) / 4),
        "a mask": lambda x, y: (x > 0).to(x.dtype) * -1e9,
        "a large number": lambda x, y: (x / 70_000, x * -70_000, 0 * y * 1e300),
        "a small number": lambda x, y: (x * 1e-6, y / 1e-7),
        "addcmul": lambda x, y: torch.addcmul(-x.abs(), x, x, value=1 / 60_000),
        "addcdiv": lambda x, y: torch.addcdiv(x, y, y.abs(), value=3.3),
        "softplus": lambda x, y: torch.nn.functional.softplus(x / 8192, 0.3),
        "softplus of a threshold": lambda x, y: torch.nn.functional.softplus(x / 8192, 1.7, 3),
        "floor": lambda x, y: (x / 4096) // 0.7,
        "hypot": lambda x, y: torch.hypot(x / 4, y / 4),
        "terms": lambda x, y: torch.addmm(x[:9, :9], x[:9, :9] / 99, y[:9, :9] / 999, alpha=0.3, beta=0.1),
    }
    check_functions(functions, x.to(dtype), y.to(dtype), rtol=0.6 * torch.finfo(dtype).eps)


ROUNDED_ONCE = {
    "product": lambda x, y, n: (x * n, n * x, x * torch.tensor(n), torch.tensor(n) * x),
    "quotient": lambda x, y, n: (x / n, n / x, x / torch.tensor(n), torch.tensor(n) / x),
    "sum": lambda x, y, n: (x + n, n - x, x + torch.tensor(n), torch.tensor(n) - x),
    "alpha": lambda x, y, n: (torch.add(x, y, alpha=n), torch.sub(x, n, alpha=n), torch.rsub(x, y, alpha=n)),
    "whole": lambda x, y, n: (*(torch.div(x, n, rounding_mode=m) for m in ("floor", "trunc", None)), x // n),
    "power": lambda x, y, n: (x.abs() ** n, n**x),
    "bound": lambda x, y, n: (x.clamp(min=n), x > n, x == n, torch.where(x > 0, y, n), x % n, torch.fmod(x, n)),
}  # fmt: skip


@settings(max_examples=10)
@given(
    st.sampled_from(list(ROUNDED_ONCE)),
    st.sampled_from([torch.float16, torch.bfloat16]),
    st.floats(1 / 64, 64) | st.integers(1, 5000),
    st.integers(0, 1 << 30),
)
def test_numbers_have_more_digits_than_half_a_precision(name: str, dtype: torch.dtype, n: float, seed: int) -> None:
    """Bit for bit as in eager PyTorch, which rounds some numbers to the tensor's type, and others not.

    Behind the last whole vector PyTorch rounds between steps as well.
    """
    draws = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(256, generator=draws).to(dtype) for _ in range(2))
    check_functions({name: lambda x, y: ROUNDED_ONCE[name](x, y, n)}, x, y, rtol=0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_quotient_rounded_down_to_zero_has_the_sign_of_the_exact_one(dtype: torch.dtype) -> None:
    """Of all numbers of 16 bits by all others in some order; arithmetic of bf16 flushes subnormal numbers."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    every = every.view(torch.bfloat16 if dtype is torch.bfloat16 else torch.float16).to(dtype)
    every = every[(every == 0) | (every.abs() >= torch.finfo(torch.float32).tiny)]
    compiled = torch.compile(lambda x, y: torch.div(x, y, rounding_mode="floor"), backend="tilewright")
    for seed in range(8):
        other = every[torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))]
        got, wanted = compiled(every, other), torch.div(every, other, rounding_mode="floor")
        is_zero = (got == 0) & (wanted == 0)
        assert int(is_zero.sum()) > len(every) // 8
        assert torch.equal(got[is_zero].signbit(), wanted[is_zero].signbit())


def test_a_scaled_product_overflows_no_sooner_than_in_eager() -> None:
    """Its operands' product alone is beyond f32, in which the call is computed; their quotient as well."""
    huge, tiny = torch.full((64,), 2.0**100), torch.full((64,), 2.0**-100)
    for dtype in (torch.bfloat16, torch.float32):
        functions = {
            "product": lambda x, y: torch.addcmul(x, x, x, value=2.0**-90),
            "quotient": lambda x, y: x.clone().addcdiv_(x, y, value=2.0**-90),
        }
        check_functions(functions, huge.to(dtype), tiny.to(dtype), rtol=0)
