"""Results of a captured graph that are one tensor in eager PyTorch: an argument itself, or another result.

In: a graph as Dynamo captured it. Out: the same graph without calls of ``dropout`` that drop nothing, and a function
that makes one object of such results after each call. Not its business: results that are several tensors of one memory
(``frontend.torch.fx.views``).

``x.conj()`` of real numbers, ``x.contiguous()`` of a tensor that is so, ``dropout`` that drops nothing and calls in
place return the very tensor that they were given. After a graph break, ``unsqueeze_`` of one name then has to turn what
the other name means, too. Dynamo's trace runs the same calls on fake tensors, and thus knows which results are one;
AOTAutograd makes each result that aliases an argument anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.integrations.torch_compile.arguments import tensor_of

if TYPE_CHECKING:
    from torch.fx import GraphModule


@dataclass(frozen=True)
class OneTensor:
    """Puts tensors in the places of results that are not to be tensors of their own."""

    arguments: Mapping[int, int]
    """The positions of results that are an argument, with the argument's position."""
    results: Mapping[int, int]
    """The positions of results that are an earlier result, with the earlier one's position."""

    def unite(self, compiled: Callable[..., Sequence[Any]], *args: Any) -> list[Any]:
        """Calls ``compiled`` with ``args``."""
        found = list(compiled(*args))
        for k, i in self.arguments.items():
            found[k] = args[i]
        for k, i in self.results.items():
            found[k] = found[i]
        return found


def leave_out_idle_dropout(captured: GraphModule) -> None:
    """Let a call of ``dropout`` outside training, or with a probability of 0, be the tensor that it returns."""
    import torch

    calls = (n for n in captured.graph.nodes if n.op == "call_function")
    dropouts = [n for n in calls if n.target in (torch.nn.functional.dropout, torch.dropout)]
    for node in dropouts:
        if _is_idle(*node.args, **node.kwargs):
            node.replace_all_uses_with(node.all_input_nodes[0])
            captured.graph.erase_node(node)
    if dropouts:
        captured.recompile()


def _is_idle(input: Any, p: Any = 0.5, training: bool = True, inplace: bool = False, train: bool = True) -> bool:
    """Called like either function; ``p`` may be a node that gives a number."""
    return not (training and train) or p == 0


def results_that_are_one(captured: Any) -> OneTensor | None:
    """Which results of a graph of Dynamo's are one tensor with others; None where each is its own."""
    first: dict[int, tuple[bool, int]] = {}  # by the identity of a fake tensor: the argument, or the first result
    arguments = [n for n in captured.graph.nodes if n.op == "placeholder"]
    for i, node in enumerate(arguments):
        if (tensor := tensor_of(node)) is not None:
            first.setdefault(id(tensor), (True, i))
    given = next(n for n in captured.graph.nodes if n.op == "output").args[0]
    found: tuple[dict[int, int], dict[int, int]] = {}, {}
    for k, node in enumerate(given):
        tensor = tensor_of(node)
        if tensor is None or node.op == "placeholder":
            continue
        is_argument, i = first.setdefault(id(tensor), (False, k))
        if is_argument or i != k:
            found[not is_argument][k] = i
    return OneTensor(*found) if any(found) else None
