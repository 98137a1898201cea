"""Functions and their gradients under ``torch.compile`` beside eager PyTorch, with no call left to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensors = Sequence[torch.Tensor]
Function = Callable[..., torch.Tensor]

BOUNDS = {torch.float64: 1e-11, torch.float32: 3e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""How far results may be apart, by the largest element and relatively."""


def gradients(function: Function, xs: Tensors) -> list[torch.Tensor]:
    """The result, and the gradients by the tensors of ``xs`` that want one."""
    torch.manual_seed(0)
    xs = [x.detach().requires_grad_() if x.requires_grad else x for x in xs]
    y = function(*xs)
    weights = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).cos().reshape(y.shape).to(y.dtype)
    wanted = [x for x in xs if x.requires_grad]
    return [y.detach(), *(torch.autograd.grad(y, wanted, weights) if wanted else ())]


def check_gradients(function: Function, *calls: Tensors, dynamic: bool = False) -> None:
    """Each of ``calls`` on one compiled function, whose own numbers are constants, as those of a module are.

    Half types are held against eager in f64.
    """
    torch._dynamo.reset()
    with torch._dynamo.config.patch(specialize_int=True):
        _check(function, calls, dynamic)


def _check(function: Function, calls: Sequence[Tensors], dynamic: bool) -> None:
    ours = torch.compile(function, backend="tilewright", dynamic=dynamic, options={"fallback": False})
    for xs in calls:
        exact = [x.detach().double().requires_grad_(x.requires_grad) if _is_half(x) else x for x in xs]
        for got, wanted in zip(gradients(ours, xs), gradients(function, exact), strict=True):
            if not _is_half(got):
                assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
            scale = max(1.0, float(wanted.abs().nan_to_num(0, 0).max())) if wanted.numel() else 1.0
            bound = BOUNDS[got.dtype]
            torch.testing.assert_close(got.to(wanted.dtype), wanted, rtol=bound, atol=bound * scale, equal_nan=True)


def _is_half(x: torch.Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)
