"""``interpolate`` in one piece: PyTorch's tracing makes gathers and arithmetic of it, of which no resize can be told.

In: nothing. Out: PyTorch's kernels for tracing such calls, which keep them whole in frames of ours that need no
gradient. Not its business: antialiased resampling, which PyTorch keeps whole by itself; gradients, which are those of
PyTorch's arithmetic.

Taken apart, a bilinear resampling costs 25 times what PyTorch's own kernel does, and an infinity beside a finite number
is NaN: the arithmetic is ``a + (b - a) * t``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Kernel = Callable[..., Any]

KINDS = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip


@functools.cache
def keep_resamplings_whole(is_ours: Callable[[], bool]) -> None:
    """While ``is_ours()``, let a call be traced as one of the op that has sizes and scales, and that stay whole."""
    import torch
    from torch._C import DispatchKey

    for kind in KINDS:
        packet = getattr(torch.ops.aten, kind)
        replaced: dict[Any, dict[Any, Kernel]] = {
            packet.vec: {
                DispatchKey.CompositeImplicitAutograd: functools.partial(_by_sizes, packet.default),
                DispatchKey.Autograd: functools.partial(_by_sizes, packet.default),
            },
            packet.default: {
                DispatchKey.CompositeImplicitAutograd: _as_it_is,
                DispatchKey.Autograd: functools.partial(_below_autograd, packet.default),
            },
        }
        for call, kernels in replaced.items():
            for key, kernel in kernels.items():
                if key in call.py_kernels:
                    call.py_kernels[key] = _whole(kernel, call.py_kernels[key], is_ours)
            call._dispatch_cache.clear()


def _whole(kernel: Kernel, otherwise: Kernel, is_ours: Callable[[], bool]) -> Kernel:
    import torch

    def call(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_trained = torch.is_grad_enabled() and x.requires_grad
        return otherwise(x, *args, **kwargs) if is_trained or not is_ours() else kernel(x, *args, **kwargs)

    return call


def _by_sizes(default: Any, x: Any, output_size: Any, *args: Any) -> Any:
    """``x, output_size or None, [align_corners], scale_factors or None`` as a call of the other overload."""
    from torch._decomp.decompositions import upsample_compute_output_size

    *align, factors = args
    sizes = upsample_compute_output_size(x.size(), output_size, factors)
    return default(x, sizes, *align, *(factors or [None] * len(sizes)))


def _as_it_is(*_: Any, **__: Any) -> Any:
    return NotImplemented


def _below_autograd(default: Any, *args: Any, **kwargs: Any) -> Any:
    import torch

    with torch._C._AutoDispatchBelowAutograd():
        return default(*args, **kwargs)
