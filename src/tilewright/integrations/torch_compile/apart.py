"""Captured graphs that write to an argument: compiled for arguments that lie apart, and PyTorch's for others.

In: what AOTAutograd found out about a captured graph, and the tensors of a call. Out: ``ArgumentsOverlap`` while the
graph is compiled, and before a call the names of two arguments that share an element that the graph writes to;
``WritesLost`` before AOTAutograd sees a graph whose writes it loses.
Not its business: PyTorch running the graph in their place (``torch_compile.backend``).

A functional graph computes everything from its arguments as they came, and stores what was written to them in the end.
That is the program's meaning only where nobody else reads the written memory. For other arguments AOTAutograd puts a
base in the place of all that share memory, but makes results that are views of it wrongly (in most programs), takes
some arguments that overlap for separate ones, and looks at a call's arguments no more once a graph is compiled.

A module's parameters and buffers stay where they are between calls, and may be hundreds: asking where each lies takes
longer than a small model. They are looked at again only when another argument lies elsewhere than in the last call.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core.types import Array
from tilewright.frontend.torch.fx.strided import lies_within, writes_beside
from tilewright.frontend.torch.fx.views import OfArgument, calls_upon, hint
from tilewright.integrations.torch_compile.arguments import name_of, tensor_of
from tilewright.runtime.python.written import has_places_of_its_own, overlapping
from tilewright.runtime.values import TensorMemory

REMEDY = "pass a copy of one of them, or write to a new tensor"


_OPERATORS_THAT_WRITE = frozenset(
    ("setitem", "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub",
     "itruediv", "ixor")
)  # fmt: skip
"""Functions of ``operator`` that ``x[0] = 1`` and ``x += 1`` call."""


class ArgumentsOverlap(Exception):
    """The graph writes to one of two arguments, of these names, that share memory. Never reaches a user."""


class WritesLost(Exception):
    """AOTAutograd would lose what the graph does to a tensor, as the text says. Never reaches a user."""

    def __init__(self, text: str, remedy: str = "write to a new tensor") -> None:
        super().__init__(text)
        self.remedy = remedy


def found_out() -> Any:
    """What AOTAutograd has found out about the graph that it is compiling; None where nothing is known."""
    import torch

    context = torch._guards.TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def refuse_writes_that_are_lost(captured: Any) -> None:
    """Raises ``WritesLost`` for programs that AOTAutograd of PyTorch 2.13 makes another one of.

    It finds no write to a view in which elements lie on each other (``x.expand(2, 3).zero_()``,
    ``x.unfold(0, 2, 1).add_(1)``), and forgets all writes to a tensor that is given the memory of another
    (``x.data = y``), of which it also makes the views that were made of the tensor before. And once an argument is
    written, its new value has no memory beside its elements, which ``as_strided`` may read all the same.
    """
    writing = [n for n in captured.graph.nodes if n.args and hasattr(n.args[0], "meta") and writes(n.target)]
    moved = [n for n in writing if _name_of(n.target) == "set_"]
    if moved and len(moved) < len(writing):
        raise WritesLost(f"{moved[0].args[0].name} is given other memory, and the graph writes to a tensor")
    for node in moved:
        if any(_is_view(reader) and reader < node for reader in node.args[0].users):
            raise WritesLost(f"{node.args[0].name} is given other memory, and the graph has a view of what it had")
    for node in writing:
        written = node.args[0].meta.get("example_value")
        if _lies_in_memory(written) and _may_lie_on_itself(written):
            raise WritesLost(f"{node.args[0].name}, whose elements share memory, is written")
    changed = {memory for node in writing if (memory := _memory_of(node.args[0])) is not None}
    for node in captured.graph.nodes:
        argument = _argument_with(_memory_of(node), captured) if _name_of(node.target) == "as_strided" else None
        if argument is None or _memory_of(argument) not in changed:
            continue
        view, own = tensor_of(node), tensor_of(argument)
        # Of an example of a batch (``vmap``) it is not told which part of the memory it has.
        if view is not _unwrapped(view) or not lies_within(own, view.shape, view.stride(), view.storage_offset()):
            raise WritesLost(f"{argument.name} is written, and what lies beside its elements is read by as_strided")


def _memory_of(node: Any) -> Any:
    """What tells whose memory a node of a captured graph gives a view of; None where it gives no tensor of memory."""
    value = _unwrapped(tensor_of(node))
    return value.untyped_storage()._cdata if _lies_in_memory(value) else None


def _unwrapped(value: Any) -> Any:
    """The tensor within those that stand for it in transforms of functions (``torch.func``)."""
    from torch._C import _functorch

    while value is not None and _functorch.is_functorch_wrapped_tensor(value):
        value = _functorch.get_unwrapped(value)
    return value


def _argument_with(memory: Any, captured: Any) -> Any:
    arguments = (node for node in captured.graph.nodes if node.op in ("placeholder", "get_attr"))
    return next((node for node in arguments if memory is not None and _memory_of(node) == memory), None)


def refuse_writes_beside_elements(functional: Any) -> None:
    """Raises ``WritesLost`` where a functional graph writes by strides to an argument's memory beside its elements.

    AOTAutograd stores the new elements of an argument in the end, and nothing of what lies between or behind them.
    """
    if (meta := found_out()) is None:
        return
    (given,) = (n.args[0] for n in functional.graph.nodes if n.op == "output")
    argument = writes_beside(given[: meta.num_mutated_inp_runtime_indices])
    if argument is not None:
        raise WritesLost(f"what lies beside the elements of {name_of(argument)} is written by as_strided")


def views_of_arguments(functional: Any) -> dict[int, OfArgument]:
    """The results of a functional graph, by their positions, of which AOTAutograd asks where in an argument they lie.

    Those are views of an argument by a call that takes symbolic sizes: AOTAutograd makes them anew of the argument,
    with the strides and the offset of what the graph gives for them. Of a written argument the graph gives views of the
    new value, which begins where its memory does and has no gaps. And of a view that reads elements as another type
    AOTAutograd may forget the type, unless what the graph gives is nobody's view. Raises ``WritesLost`` for a result of
    which the graph does not tell by which calls it views an argument, and for types that it makes wrongly.
    """
    if (meta := found_out()) is None:
        return {}
    (given,) = (n.args[0] for n in functional.graph.nodes if n.op == "output")
    arguments = [n for n in functional.graph.nodes if n.op == "placeholder"]
    new_values = dict(zip(meta.mutated_inp_runtime_indices, given, strict=False))
    found = {}
    for position, info in enumerate(meta.output_info, meta.num_mutated_inp_runtime_indices):
        i, node = info.base_idx, given[position]
        if info.output_type.name != "alias_of_input" or not hasattr(node, "op"):
            continue
        if meta.input_info[i].mutates_metadata or _is_replayed(info.view_meta_sequence):
            continue
        is_another_type = node.meta["val"].dtype != arguments[i].meta["val"].dtype
        if i not in new_values and not is_another_type:
            continue
        calls = calls_upon(node, new_values.get(i, arguments[i]))
        name = name_of(arguments[i])
        if calls is None and not is_another_type:
            raise WritesLost(f"{name} is written, and a result is a view of it by strides")
        is_read_anew = is_another_type and any("view.dtype" in str(call.target) for call in calls or ())
        is_right = not is_another_type or _is_made_rightly(arguments[i].meta["val"], node.meta["val"], is_read_anew)
        if calls is None or not is_right:
            raise WritesLost(f"a result reads {name} as another type", "return a copy by clone()")
        if i in new_values or is_read_anew:
            found[position] = OfArgument(i, calls, is_bare=is_read_anew)
    return found


def _is_made_rightly(argument: Any, result: Any, is_read_anew: bool) -> bool:
    """Does AOTAutograd find the place of a view of another type, of which it knows sizes, strides and offset?

    It counts them in elements of the argument, or in the real parts of those that are complex.
    """
    of, to = argument.dtype, result.dtype
    if of.is_complex and not to.is_complex and (argument.is_conj() or argument.is_neg()):
        return False
    if not is_read_anew:
        return True
    return bool(to.to_real() == of) if to.is_complex else bool(of.to_real().itemsize == to.itemsize)


def _is_replayed(views: Any) -> bool:
    """Does AOTAutograd make a result again by the calls that it has recorded, whatever the graph gives for it?"""
    return views is not None and not any(view.has_symbolic_inputs for view in views.sequence)


def writes(target: Any) -> bool:
    """May what a node of a captured graph calls write to its first argument?

    PyTorch's names of what does end in an underline, and so do Python's ``and_`` and ``or_``, which do not.
    """
    name, is_operator = _name_of(target), getattr(target, "__module__", None) == operator.and_.__module__
    return name in _OPERATORS_THAT_WRITE or (name.endswith("_") and not name.endswith("__") and not is_operator)


def _is_view(node: Any) -> bool:
    value = tensor_of(node)
    return value is not None and value._base is not None


def _name_of(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _may_lie_on_itself(tensor: Any) -> bool:
    """Has a tensor of these sizes an axis along which a step is no longer than all steps of the finer axes together?"""
    steps = [(hint(s), hint(n)) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    reach = 0
    for stride, size in sorted((s, n) for s, n in steps if s is not None and n is not None and n > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


@dataclass
class WrittenArguments:
    """The arguments of a captured graph that it writes to; none before ``find`` was called."""

    names: Sequence[str]
    """Of all its arguments."""

    written: frozenset[int] = frozenset()
    _moved: frozenset[int] = frozenset()
    """Those that it gives the memory of another; it writes nothing then, and may find them where they are to go."""
    _seen: tuple[int, ...] = ()
    """Those whose new values AOTAutograd stores in autograd's sight, also where the program wrote out of it."""
    _tensors: tuple[int, ...] = ()
    _moving: tuple[int, ...] = ()
    """Those of the tensors that are no parameters or buffers of a module; all where the graph itself moves one."""
    _numbers: tuple[int, ...] = ()
    _apart: list[int] | None = None
    """Where the moving arguments of the last call lay, of which none overlapped; None before the first."""

    def find(self, captured: Any, examples: Sequence[Any]) -> None:
        """Ask AOTAutograd, while it compiles the graph; raises ``ArgumentsOverlap`` where that is told of ``examples``.

        AOTAutograd knows the graph's own weights as arguments before the others, and fewer arguments than there are
        where it has put a base in the place of some.
        """
        import torch

        meta = found_out()
        if meta is None:
            return
        n_own = sum(1 for _ in captured.named_parameters(remove_duplicate=False))
        n_own += sum(1 for _ in captured.named_buffers(remove_duplicate=False))
        is_merged = len(meta.input_info) < n_own + len(examples)
        infos = meta.input_info[n_own:]
        self._moved = _given_other_memory(captured)
        indices = range(len(examples))
        self.written = self._moved | {i for i in indices if is_merged or infos[i].mutates_data}
        self._seen = tuple(i for i in indices if not is_merged and _is_seen_by_autograd(infos[i]))
        self._tensors = tuple(i for i, x in enumerate(examples) if _lies_in_memory(x))
        static = {i - n_own for i in meta.static_input_indices or ()}
        self._moving = tuple(i for i in self._tensors if self._moved or i not in static)
        self._numbers = tuple(i for i, x in enumerate(examples) if isinstance(x, int | torch.SymInt))
        found = self.overlap(examples)
        self._apart = None  # examples have symbols for sizes
        if found is not None or is_merged:
            raise ArgumentsOverlap(found or "arguments")

    def overlap(self, args: Sequence[Any]) -> str | None:
        """The names of two arguments that share an element that is written to; None where all lie apart.

        Sizes that change between calls are arguments, too: equal numbers and addresses mean equal places.
        """
        for i in self._seen:
            if _is_part_of_leaf(args[i]):
                return f"{self.names[i]} and the parameter that it is a view of"
        places = [args[i].data_ptr() for i in self._moving]
        places += [args[i] for i in self._numbers]
        if places == self._apart:
            return None
        arrays = {i: (self.names[i], _places_of(args[i])) for i in self._tensors if args[i].data_ptr()}
        for i in self.written & arrays.keys():
            if not has_places_of_its_own(arrays[i][1]):
                return f"elements of {self.names[i]}"
        for one, other in overlapping(arrays, set(self.written)):
            if not (self._moved & {one, other} and _is_same_place(arrays[one][1], arrays[other][1])):
                return f"{self.names[one]} and {self.names[other]}"
        self._apart = places
        return None


def _given_other_memory(captured: Any) -> frozenset[int]:
    """The arguments of a captured graph that are given the memory of another tensor (``x.data = y``).

    AOTAutograd sees no change where both have been in one memory before, though x has other sizes or strides then.
    """
    arguments = [node for node in captured.graph.nodes if node.op == "placeholder"]
    calls = [node for node in captured.graph.nodes if _name_of(node.target) == "set_"]
    return frozenset(i for i, argument in enumerate(arguments) if any(call.args[0] is argument for call in calls))


def _lies_in_memory(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type in ("cpu", "cuda")


def _is_seen_by_autograd(info: Any) -> bool:
    """Does AOTAutograd store what was written to an argument as a call that autograd knows of?"""
    return bool(info.mutates_data and not info.mutations_hidden_from_autograd)


def _is_part_of_leaf(tensor: Any) -> bool:
    """Does PyTorch refuse writes to it, which ``detach()`` and ``.data`` allow?"""
    import torch

    base = tensor._base
    return base is not None and base.is_leaf and base.requires_grad and torch.is_grad_enabled()


def _is_same_place(one: Array, other: Array) -> bool:
    return (one.ctypes.data, one.shape, one.strides) == (other.ctypes.data, other.shape, other.strides)


def _places_of(tensor: Any) -> Array:
    """The places of a tensor's elements as an array, whatever their dtype, also of one that needs a gradient."""
    return np.asarray(TensorMemory(tensor, f"|V{tensor.element_size()}"))
