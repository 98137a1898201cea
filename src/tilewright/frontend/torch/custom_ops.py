"""Custom ops of ``torch.library``, for which no one but their author knows a form here.

In: an op, and a function of the same arguments that computes it by PyTorch's own calls, or what makes nodes of it. Out:
``DECOMPOSITIONS`` and ``KERNELS``, which ``torch.compile`` and ``tw.compile`` read. Not its business: what those calls
mean (``torch.aten``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

from tilewright.core.diag import CompileError, OptionError
from tilewright.core.expr import Dim, Expr, Sym
from tilewright.core.graph import Builder, Node
from tilewright.core.types import TensorType
from tilewright.core.valued import valued
from tilewright.frontend.torch.aten.call import dtype_from_torch
from tilewright.runtime.once import MAKING

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""What computes each op; its author fills it, as the registry of ``torch.library`` is filled."""


def decompose(op: Any, how: Callable[..., Any]) -> None:
    """Compile calls of a custom op as ``how``: a function of its arguments that calls PyTorch functions.

    ``op`` is an overload, such as ``torch.ops.mine.scale.default``, an op of one overload, or its name
    ``"mine::scale"``. Without this a custom op runs in PyTorch between compiled pieces. Raises ``OptionError`` for
    what is no op, or no function.
    """
    if not callable(how):
        raise OptionError(f"{how!r:.80} can't be called", remedy="pass a function of the op's arguments")
    DECOMPOSITIONS[_overload(op)] = how


def _overload(op: Any) -> Any:
    try:
        with MAKING:
            import torch
    except ModuleNotFoundError as error:
        raise OptionError("custom ops need PyTorch", remedy='pip install "tilewright[torch]"') from error
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


# --- kernels of the language ----------------------------------------------------------------------------------------

AddNodes: TypeAlias = Callable[[Builder, Sequence[Node]], tuple[tuple[Node, ...], tuple[Expr, ...]]]
"""The results over operands, and the relations between sizes that callers have to keep."""
KERNELS: dict[str, AddNodes] = {}
"""What makes nodes of each op that is a kernel of the language, by the name of its overload."""
NAMESPACE = "tilewright_kernels"


def kernel_op(
    name: str,
    n_parameters: int,
    run: Callable[[Sequence[Any]], Any],
    infer: Callable[[Sequence[TensorType]], tuple[TensorType, ...]],
    add: AddNodes,
) -> Any:
    """An op of ``torch.library`` that runs by ``run``; its results' types are ``infer``'s, its nodes those of ``add``.

    All parameters are tensors, and called by their places, because PyTorch takes no name with other letters than those
    of ASCII. Kernels of one name get numbered ops; one whose name is no identifier, as that of a lambda, is called
    ``kernel``.
    """
    import torch

    name = name if name.isascii() and name.isidentifier() else "kernel"
    # PyTorch's ops stay for the life of the process: a second kernel of a name can't replace the first.
    unique, n = name, 1
    while f"{NAMESPACE}.{unique}.default" in KERNELS:
        unique, n = f"{name}_{n}", n + 1

    def called(*tensors: Any) -> list[Any]:
        made = run([t.contiguous() for t in tensors])
        return [torch.as_tensor(x) for x in (made if isinstance(made, tuple) else (made,))]

    def fake(*tensors: Any) -> list[Any]:
        sizes: dict[Sym, Any] = {}
        types = torch_types(tensors, sizes)
        return [
            tensors[0].new_empty([_evaluated(d, sizes) for d in t.shape], dtype=getattr(torch, t.dtype.numpy.name))
            for t in infer(types)
        ]

    schema = f"({', '.join(f'Tensor x{k}' for k in range(n_parameters))}) -> Tensor[]"
    op = torch.library.custom_op(f"{NAMESPACE}::{unique}", called, mutates_args=(), schema=schema)
    op.register_fake(fake)
    KERNELS[f"{NAMESPACE}.{unique}.default"] = add

    def call(*tensors: Any) -> Any:
        made = op(*tensors)
        return made[0] if len(made) == 1 else tuple(made)

    call.__name__ = unique
    return call


class Offer(Protocol):
    """What can be an op of PyTorch, which is made when ``torch`` is first asked for."""

    @property
    def torch(self) -> Any: ...


UNASKED: WeakSet[Offer] = WeakSet()
"""Kernels whose ops nobody may have asked for yet."""


def make_unasked() -> None:
    """Make the ops of all kernels: Dynamo, which traces a module that asks for one, can't trace how it is made."""
    while UNASKED:  # taken one at a time, as another thread may add a kernel or take one meanwhile
        with suppress(CompileError, KeyError):  # a kernel with a mistake tells it where it is used
            _ = UNASKED.pop().torch


def torch_types(tensors: Sequence[Any], sizes: dict[Sym, Any] | None = None) -> list[TensorType]:
    """The types of tensors; for a size that is a symbol of PyTorch's stands one of ours, by which ``sizes`` has it."""
    found = []
    for t in tensors:
        shape: list[Dim] = []
        for d in t.shape:
            if isinstance(d, int):
                shape.append(d)
            else:
                size = Sym(f"size_{d}", 0)
                shape.append(size)
                if sizes is not None:
                    sizes[size] = d
        found.append(TensorType(dtype_from_torch(t.dtype), tuple(shape)))
    return found


def _evaluated(d: Dim, sizes: Mapping[Sym, Any]) -> Any:
    """A size as PyTorch computes with it."""
    import torch

    extremes: dict[str, Any] = {"min": torch.sym_min, "max": torch.sym_max}
    by_op = {"floordiv": operator.floordiv, "mod": operator.mod, **extremes}
    return valued(d, sizes, by_op)
