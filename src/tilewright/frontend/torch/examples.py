"""Why a PyTorch module can't be captured on its example inputs, in words that say what to change.

In: a module and example inputs before ``torch.export`` sees them; or what it raised. Out: an ``OptionError`` or
``ImportFailed`` with a remedy of its own for each mistake. Not its business: capturing (``frontend.torch.export``).
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from tilewright.core.diag import ImportFailed, OptionError

if TYPE_CHECKING:
    import torch

QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.sparse.quantized", "torch.ao.nn.intrinsic.quantized")
"""Packages of PyTorch whose modules hold packed weights."""

_SHAPES_REMEDY = "write dynamic_shapes as torch.export takes it: by the names of forward's arguments, or in their order"


def leaves_of(inputs: Any) -> list[Any]:
    """What arguments are made of, in order or by name, inside of all their containers."""
    from torch.utils import _pytree as pytree

    given = dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs) if isinstance(inputs, Sequence) else inputs
    return pytree.tree_leaves(given)


def have_tensors(inputs: Any) -> bool:
    """Is one of the arguments a tensor, or in one of them?"""
    if "torch" not in sys.modules:
        return False
    import torch

    return any(isinstance(x, torch.Tensor) for x in leaves_of(inputs))


def check_examples(module: torch.nn.Module, inputs: Any) -> None:
    """Raise for what can be told before the module is captured."""
    import torch

    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        remedy = "compile the nn.Module that was scripted or traced; a script has no Python left to capture"
        raise ImportFailed(f"{name} is a TorchScript module", remedy=remedy)
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Sequence | Mapping):
        rule = f"example_inputs is of type {type(inputs).__qualname__}, not a tuple of arguments"
        raise OptionError(rule, remedy="write a tuple, also around one tensor: example_inputs=(x,)")
    quantised = [path for path, m in module.named_modules() if type(m).__module__.startswith(QUANTISED)]
    # of nested ones the outer one says enough
    quantised = [path for path in quantised if path.rpartition(".")[0] not in quantised]
    if quantised:
        remedy = "quantise the float module by tilewright.quantize or torchao, or compile it with precision='bf16'"
        raise ImportFailed(f"{name} has PyTorch's packed quantised weights in {_listed(quantised)}", remedy=remedy)
    _check_names(module, inputs)
    leaves = leaves_of(inputs)
    check_has_elements(name, {**dict(module.named_parameters()), **dict(module.named_buffers())})
    if any(isinstance(x, torch.Tensor) and x.is_meta for x in leaves):
        raise OptionError("example_inputs has a meta tensor", remedy="make the example inputs with device='cpu'")
    if any(isinstance(x, torch.Tensor) and x.layout is not torch.strided for x in leaves):
        raise OptionError("example_inputs has a sparse tensor", remedy="make the example inputs dense: x.to_dense()")
    arrays = [type(x).__qualname__ for x in leaves if hasattr(x, "__array__") and not isinstance(x, torch.Tensor)]
    if arrays:
        rule = f"example_inputs has a {arrays[0]} where PyTorch takes tensors"
        raise OptionError(rule, remedy="write torch.from_numpy(x) or torch.as_tensor(x)")


def check_dynamic_shapes(dynamic_shapes: Any) -> None:
    """``OptionError`` where ``dynamic_shapes`` is of a type that ``torch.export`` does not take.

    It takes dicts, tuples and lists, and collections of its own, which give such ones by a method of that name.
    """
    is_tree = isinstance(dynamic_shapes, Sequence | Mapping) and not isinstance(dynamic_shapes, str | bytes)
    if dynamic_shapes is not None and not is_tree and not hasattr(dynamic_shapes, "dynamic_shapes"):
        rule = f"dynamic_shapes={dynamic_shapes!r:.80} is of type {type(dynamic_shapes).__qualname__}"
        raise OptionError(rule, remedy=f"{_SHAPES_REMEDY}, such as ({{0: torch.export.Dim('batch')}},)")


def check_has_elements(name: str, tensors: Mapping[str, Any]) -> None:
    """``ImportFailed`` where weights are meta tensors, which have shapes alone."""
    if empty := [path for path, tensor in tensors.items() if getattr(tensor, "is_meta", False)]:
        remedy = "give them elements: module.to_empty(device='cpu'), then module.load_state_dict(...)"
        raise ImportFailed(f"{name} has meta tensors, which have no elements: {_listed(empty)}", remedy=remedy)


def capture_failure(module: torch.nn.Module, error: Exception) -> ImportFailed:
    """What to tell of an exception by ``torch.export``."""
    import torch

    text = f"torch.export can't capture {type(module).__name__}: {error}"
    scripts = [path for path, m in module.named_modules() if isinstance(m, torch.jit.ScriptModule)]
    # of nested ones the outer one says enough
    if outer := [path for path in scripts if path.rpartition(".")[0] not in scripts]:
        remedy = f"give the modules that were scripted or traced in place of {_listed(outer)}, which is TorchScript"
        return ImportFailed(text, remedy=remedy)
    called = getattr(error, "func", None)
    if isinstance(called, torch._ops.OpOverload) and (instead := INSTEAD.get(called._overloadpacket.__name__)):
        return ImportFailed(text, remedy=f"{instead}; {OTHERWISE}")
    if _is_in_transform(error):
        return ImportFailed(text, remedy=TRANSFORMS)
    return ImportFailed(text, remedy=_remedy(f"{type(error).__name__} {error}"))


def _is_in_transform(error: Exception) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__") == "torch._functorch.eager_transforms" for frame in frames)


OTHERWISE = "torch.compile(module, backend='tilewright') compiles the parts that it can"

TRANSFORMS = (
    "torch.export follows grad, vjp, jacrev, jacfwd and hessian of torch.func only in part: use torch.compile(module, "
    "backend='tilewright'), which compiles them"
)
"""Of some it takes what they differentiate for constants, of others it fails at tensors of theirs."""

UNROLLED = (
    "nn.LSTM, nn.GRU and nn.RNN take every length of a sequence under torch.compile(module, backend='tilewright') and "
    "from ONNX"
)

INSTEAD: Mapping[str, str] = {
    "equal": "write (a == b).all() for torch.equal, which torch.cov and torch.corrcoef call as well: spell those by "
    "x = x - x.mean(1, keepdim=True) and x @ x.mT / (x.shape[1] - 1)",
    "linalg_lstsq": "write torch.linalg.pinv(a) @ b for torch.linalg.lstsq(a, b)",
    "_ctc_loss": "compute F.ctc_loss outside of the module",
}
"""What to write for calls that PyTorch's tracing can't follow whatever the module does, by their names."""


def _remedy(text: str) -> str:
    words = text.lower()
    if "data-dependent" in words or "datadependent" in words or "control flow" in words:
        return f"keep Python control flow in forward free of data; {OTHERWISE}"
    if "specialized it to be a constant" in words:
        return f"give that size a number, as PyTorch's tracing does; {UNROLLED}"
    if "dynamic_shapes" in words or "constraints violated" in words:
        return _SHAPES_REMEDY
    if "same device" in words:
        return "bring the module and the example inputs to the CPU: module.cpu(), x.cpu()"
    return f"check that module(*example_inputs) runs in PyTorch; {OTHERWISE}"


def _check_names(module: torch.nn.Module, inputs: Any) -> None:
    """``OptionError`` where ``forward`` can't be called with the examples."""
    if module._forward_pre_hooks:  # which may give it other arguments
        return
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # a callable that tells nothing about itself
        return
    try:
        if isinstance(inputs, Mapping):
            signature.bind(**inputs)
        else:
            signature.bind(*inputs)
    except TypeError as error:
        hints = list(_spelled(signature, inputs)) if isinstance(inputs, Mapping) else []
        takes = f"{type(module).__name__}.forward takes {signature}"
        raise OptionError(
            f"example_inputs do not fit the module: {error}", remedy="; ".join([*hints, f"give what {takes}"])
        ) from error


def _spelled(signature: inspect.Signature, inputs: Mapping[Any, Any]) -> Iterator[str]:
    for name in inputs:
        if name not in signature.parameters:
            near = get_close_matches(str(name), signature.parameters, 1)
            yield f"write {near[0]!r} for {name!r}" if near else f"leave out {name!r}"


def _listed(paths: list[str]) -> str:
    shown = [f'"{path}"' if path else "the module itself" for path in paths]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
