"""Products of elements that lie apart in memory, such as the parts of complex numbers: they are copied first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw

QUICK, MANY = 3, 500


class Product(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x) @ torch.view_as_complex(y))


@st.composite
def operands(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    m, k, n = (draw(st.integers(1, 40)) for _ in range(3))
    batch = draw(st.sampled_from([(), (2,), (3,)]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    return tuple(torch.randn(*batch, *s, 2, generator=generator, dtype=dtype) for s in ((m, k), (k, n)))


def check(x: torch.Tensor, y: torch.Tensor) -> None:
    got = tw.compile(Product(), (x, y), cache=False)(x, y)
    torch.testing.assert_close(got, Product()(x, y), rtol=1e-5, atol=1e-4 if x.dtype == torch.float32 else 1e-12)


@given(operands())
@settings(max_examples=QUICK, derandomize=True)
def test_complex_products(xy: tuple[torch.Tensor, torch.Tensor]) -> None:
    check(*xy)


@pytest.mark.slow
@given(operands())
@settings(max_examples=MANY)
def test_complex_products_at_length(xy: tuple[torch.Tensor, torch.Tensor]) -> None:
    check(*xy)


def test_no_product_reads_every_other_element() -> None:
    """The products gathered single elements: 84 times eager's time for 256x256."""
    x = torch.from_numpy(np.zeros((64, 64, 2), np.float32))
    model = tw.compile(Product(), (x, x), cache=False)
    products = [k["ops"] for k in model.report()["kernels"] if "matmul" in k["ops"]]
    assert products and not any("slice" in names for names in products)
