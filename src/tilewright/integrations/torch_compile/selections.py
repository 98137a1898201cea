"""``masked_select`` of a tensor that is smaller than its mask: how many elements it may select.

In: nothing. Out: PyTorch's rule for tracing it, which in frames of ours sees both operands in their common shape. Not
its business: what is selected (``frontend.torch.aten.places``).

PyTorch's own rule bounds the result by the elements of the tensor alone, which is wrong where the mask is larger: the
graph asserts a size that the data exceed, and a call ends in an error where eager PyTorch has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def bound_selections_by_both(is_ours: Callable[[], bool]) -> None:
    """While ``is_ours()``, trace a selection as one of the tensor expanded to the shape that it has with the mask."""
    import torch
    from torch._subclasses import fake_impls

    call = torch.ops.aten.masked_select.default
    before = fake_impls.op_implementations_dict[call]

    def of_both(fake_mode: Any, func: Any, x: Any, mask: Any) -> Any:
        if is_ours():
            with fake_mode:
                x, mask = torch.broadcast_tensors(x, mask)
        return before(fake_mode, func, x, mask)

    fake_impls.op_implementations_dict[call] = of_both
