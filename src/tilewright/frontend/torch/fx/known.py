"""Tensors that a program makes of numbers alone, such as a window or the frequencies of a Fourier transform.

In: an fx node. Out: the tensor, which PyTorch computes now; it becomes a constant. Not its business: calls that have a
form here (``torch.aten.source``), random numbers, and sizes that only a call knows.
"""

from __future__ import annotations

from typing import Any

from tilewright.frontend.torch.fx.forms import is_symbolic


def made_of_numbers(node: Any) -> Any:
    """The result of a call without tensors among its arguments; None for other calls."""
    import torch

    given = [*node.args, *node.kwargs.values()]
    is_plain = isinstance(node.target, torch._ops.OpOverload) and not node.all_input_nodes
    if not is_plain or torch.Tag.nondeterministic_seeded in node.target.tags or any(map(_has_symbolic, given)):
        return None
    named = {k: v for k, v in node.kwargs.items() if k != "device"}  # constants lie in the CPU's memory
    with torch._subclasses.fake_tensor.unset_fake_temporarily(), torch.no_grad():
        made = node.target(*node.args, **named)
    return made if isinstance(made, torch.Tensor) and not made.is_sparse else None


def _has_symbolic(x: Any) -> bool:
    if isinstance(x, tuple | list):
        return any(map(_has_symbolic, x))
    return is_symbolic(x)
