"""Arguments of a captured graph by the names that the program has for them, and those that nobody may read.

In: the graph as Dynamo captured it, the functional graph that AOTAutograd made of it, values. Out: names beside the
functional graph's inputs; sizes that the captured graph reads where they are given; ``InputError`` for a tensor without
memory; why one is left to PyTorch. Not its business: what else can be wrong with an argument, of which compiled code
tells (``runtime.values``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tilewright.frontend.torch.tensors import CUT_SHORT, GIVE_MEMORY
from tilewright.runtime.errors import InputError
from tilewright.runtime.values import is_cut_short

_NAME = "tilewright_argument"


def argument_names(captured: Any) -> list[str]:
    """The program's expression for each input of a graph of Dynamo's, which writes ``L['x']`` for a local ``x``."""
    found = []
    for node in captured.graph.nodes:
        if node.op == "placeholder":
            source = getattr(node, "_dynamo_source", None)
            name = str(getattr(source, "name", None) or node.name)
            found.append(re.sub(r"\b[LG]\['(\w+)'\]", r"\1", name))
    return found


def name_arguments(functional: Any, names: Sequence[str]) -> dict[str, str]:
    """Note the names at the inputs of a functional graph, as far as these are inputs of the captured one.

    Returns what the graph calls its inputs, by these names.
    """
    found = {}
    for node in functional.graph.nodes:
        index = getattr(node.meta.get("desc"), "idx", None)
        if node.op == "placeholder" and isinstance(index, int) and index < len(names):
            node.meta[_NAME] = names[index]
            found[names[index]] = node.name
    return found


def name_of(node: Any) -> str:
    """What the user calls the argument that an input of a functional graph takes."""
    name: str = node.meta.get(_NAME, node.name)
    return name


def tensor_of(argument: Any) -> Any:
    """The tensor that an argument of a captured graph's node was; None for anything else."""
    import torch

    value = getattr(argument, "meta", {}).get("example_value")
    return value if isinstance(value, torch.Tensor) else None


def read_sizes_as_given(captured: Any) -> None:
    """Let a graph of Dynamo's have its symbolic sizes from the arguments that are those numbers.

    Where data decide sizes, Dynamo reads the others off tensors, in their first use. It takes for a tensor's size what
    that is in the end: another one, where the graph turns the tensor or gives it other memory (``x.data = y``).
    """
    import torch

    reading = [n for n in captured.graph.nodes if n.target is torch.ops.aten.sym_size.int]
    if not reading:
        return
    arguments = [n for n in captured.graph.nodes if n.op == "placeholder"]
    numbers = {str(_value_of(n)): n for n in arguments if isinstance(_value_of(n), torch.SymInt)}
    for node in reading:
        if (number := numbers.get(str(_value_of(node)))) is not None:
            node.replace_all_uses_with(number)
            captured.graph.erase_node(node)
    captured.recompile()


def _value_of(node: Any) -> Any:
    """What a node of a captured graph was in the trace."""
    return node.meta.get("example_value")


def refuse_cut_short(value: Any, node: Any) -> None:
    """Raise ``InputError`` where the value of an input is a tensor that is larger than its memory."""
    if hasattr(value, "untyped_storage") and is_cut_short(value):
        name = name_of(node)
        raise InputError(f"argument {name} of shape {list(value.shape)} {CUT_SHORT}", remedy=GIVE_MEMORY) from None


def only_pytorch_reads(values: Sequence[Any], nodes: Sequence[Any]) -> str | None:
    """Names an argument that stands for zeros without having any, which PyTorch alone knows; None where none does."""
    for value, node in zip(values, nodes, strict=True):
        if hasattr(value, "_is_zerotensor") and value._is_zerotensor():
            return f"argument {name_of(node)} is a tensor of zeros without memory"
    return None
