"""Losses that PyTorch's own decompositions get wrong, against eager PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import Dim

import tilewright as tw
from frontend.test_dynamo_sharing import interpreted
from tilewright.integrations.torch_compile.backend import make_backend


class Margin(torch.nn.Module):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, labels, reduction=self.reduction)


@settings(max_examples=4)
@given(st.sampled_from(["mean", "sum", "none"]), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_trained_losses_count_no_more(reduction: str, n: int, classes: int, is_row: bool) -> None:
    """Under ``torch.compile``, with gradients: PyTorch's decomposition counts labels behind the first negative one."""
    module = Margin(reduction)
    x, labels = torch.randn(n, classes, dtype=torch.float64), labels_of(n, classes)
    x, labels = (x[0], labels[0]) if is_row else (x, labels)
    wanted, given_ = x.clone().requires_grad_(), x.clone().requires_grad_()
    eager = module(wanted, labels)
    torch._dynamo.reset()
    found = torch.compile(module, backend=make_backend(interpreted))(given_, labels)
    torch.testing.assert_close(found, eager)
    (eager.sum() * 3).backward()
    (found.sum() * 3).backward()
    torch.testing.assert_close(given_.grad, wanted.grad)


def labels_of(*shape: int) -> torch.Tensor:
    """Rows whose labels end at any place, with labels behind it that do not count, and repeated ones."""
    return torch.randint(-1, shape[-1], shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_labels_behind_the_first_negative_one_do_not_count(reduction: str) -> None:
    module = Margin(reduction)
    x, labels = torch.randn(6, 5, dtype=torch.float64), labels_of(6, 5)
    n = Dim("n")
    model = tw.compile(module, (x, labels), dynamic_shapes=({0: n}, {0: n}), cache=False)
    for size in (6, 1, 3):
        torch.testing.assert_close(torch.as_tensor(model(x[:size], labels[:size])), module(x[:size], labels[:size]))
    for row in ((x[0], labels[0]), (torch.tensor(0.5), torch.tensor(0))):
        found = torch.as_tensor(tw.compile(module, row, cache=False)(*row))
        # PyTorch's trace says that "none" has a dimension.
        torch.testing.assert_close(found.reshape(()), module(*row))
