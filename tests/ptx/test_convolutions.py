"""Convolutions on GPUs: channels last, by matrix units, factors copied by whole accesses; right by the emulation."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.functional import conv2d

import tilewright


class Convolution(torch.nn.Module):
    """Twice a convolution, so that there is something between two of them."""

    def __init__(self, kernel: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride, self.groups = kernel, stride, groups

    def forward(self, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        y = torch.relu(conv2d(x, first, None, self.stride, self.kernel // 2, groups=self.groups))
        return conv2d(y, second, None, 1, self.kernel // 2)


def example(c_in: int, c: int, kernel: int, dtype: torch.dtype, groups: int = 1, size: int = 9) -> list[torch.Tensor]:
    """An image with two weights; the second keeps the channels."""
    torch.manual_seed(0)
    x = torch.randn(2, c_in, size, size)
    first = torch.randn(c, c_in // groups, kernel, kernel) / (c_in // groups * kernel**2) ** 0.5
    second = torch.randn(c, c, kernel, kernel) / (c * kernel**2) ** 0.5
    return [t.to(dtype) for t in (x, first, second)]


@pytest.mark.parametrize(
    ("c_in", "c", "kernel", "stride", "groups", "dtype", "bound"),
    [
        pytest.param(64, 32, 3, 1, 1, torch.bfloat16, 2e-2, marks=pytest.mark.slow),  # whole steps of channels
        pytest.param(32, 40, 3, 2, 1, torch.float16, 2e-3, marks=pytest.mark.slow),  # columns that are no whole tile
        pytest.param(24, 32, 3, 1, 1, torch.bfloat16, 2e-2, marks=pytest.mark.slow),  # channels that are no whole step
        pytest.param(3, 16, 5, 2, 1, torch.float16, 2e-3, marks=pytest.mark.slow),  # an image's three channels
        pytest.param(64, 32, 1, 1, 1, torch.bfloat16, 2e-2, marks=pytest.mark.slow),
        pytest.param(32, 32, 3, 1, 4, torch.bfloat16, 2e-2, marks=pytest.mark.slow),
        pytest.param(32, 32, 3, 1, 32, torch.float32, 1e-5, marks=pytest.mark.slow),
        (16, 32, 3, 2, 1, torch.float32, 1e-5),
    ],
)
def test_results(c_in: int, c: int, kernel: int, stride: int, groups: int, dtype: torch.dtype, bound: float) -> None:
    inputs = example(c_in, c, kernel, dtype, groups)
    module = Convolution(kernel, stride, groups)
    model = tilewright.compile(module, tuple(inputs), target="cuda-sm90a", emulate=True, cache=False)
    got = torch.as_tensor(model(*inputs)).double()
    want = module(*[x.double() for x in inputs])
    assert ((got - want).abs().max() / want.abs().max()).item() < bound


def test_both_factors_come_by_whole_accesses() -> None:
    inputs = example(64, 64, 3, torch.bfloat16, size=16)
    ptx = tilewright.compile(Convolution(3, 1), tuple(inputs), target="cuda-sm90a", cache=False).ptx
    products = [text for text in ptx.values() if "mma.sync" in text or "wgmma" in text]
    assert len(products) == 2
    for text in products:
        # nothing is read element by element but the weight, where it is laid out by an entry of its own
        (entry,) = [e for e in text.split(".entry") if "mma.sync" in e or "wgmma" in e]
        assert "cp.async.cg" in entry and not re.search(r"ld\.global\S*\.[bu]16", entry)


def test_two_transposes_are_left_of_a_chain() -> None:
    inputs = example(64, 64, 3, torch.bfloat16, size=16)
    ptx = tilewright.compile(Convolution(3, 1), tuple(inputs), target="cuda-sm90a", cache=False).ptx
    assert len([text for text in ptx.values() if "mma.sync" not in text]) == 2  # of the image and of the result
