"""Custom ops of ``torch.library``, for which no one but their author knows a form here.

In: an op, and a function of the same arguments that computes it by PyTorch's own calls. Out: ``DECOMPOSITIONS``, which
``torch.compile`` and ``tw.compile`` read. Not its business: what those calls mean (``torch.aten``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.core.diag import OptionError

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""What computes each op; its author fills it, as the registry of ``torch.library`` is filled."""


def decompose(op: Any, how: Callable[..., Any]) -> None:
    """Compile calls of a custom op as ``how``: a function of its arguments that calls PyTorch functions.

    ``op`` is an overload, such as ``torch.ops.mine.scale.default``, an op of one overload, or its name
    ``"mine::scale"``. Without this a custom op runs in PyTorch between compiled pieces. Raises ``OptionError`` for
    what is no op.
    """
    DECOMPOSITIONS[_overload(op)] = how


def _overload(op: Any) -> Any:
    import torch

    found = op
    if isinstance(op, str):
        namespace, _, name = op.partition("::")
        packet, _, overload = name.partition(".")
        found = getattr(getattr(torch.ops, namespace), packet, None) if name.isprintable() and name else None
        found = getattr(found, overload or "default", None)
    elif isinstance(op, torch._ops.OpOverloadPacket):
        found = getattr(op, "default", None)
    elif hasattr(op, "_opoverload"):  # what ``torch.library.custom_op`` gives
        found = op._opoverload
    if not isinstance(found, torch._ops.OpOverload):
        remedy = 'give an overload such as torch.ops.mine.scale.default, or its name "mine::scale"'
        raise OptionError(f"{op!r} is no op of torch.library", remedy=remedy)
    return found
