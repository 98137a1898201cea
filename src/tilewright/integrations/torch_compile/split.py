"""A functional fx graph in pieces: what is compiled, and single calls that PyTorch runs between.

In: an fx graph and the calls that are to stay with PyTorch. Out: pieces in the order in which to run them.
Not its business: which calls those are, and running or compiling a piece (``torch_compile``).

Calls are put into stages, compiled ones into even stages and PyTorch's own into odd ones; a call's stage is the least
one of its kind that does not come before the stage of anything it reads. What lies in one stage is one piece, so that
there are as few of them as alternate along any path. Sizes belong to every piece that reads them, but for those that
PyTorch computes: floats of the data, and what is in ``eager``. Their numbers are inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.torch.fx.forms import is_symbolic
from tilewright.frontend.torch.fx.symbols import is_found_in_data, is_found_in_floats

FIRST_STAGE = -1  # odd: calls of PyTorch that read no result come before anything that is compiled


@dataclass(frozen=True)
class Piece:
    """Calls of one stage, the values that they read from outside, and those of theirs that are read outside."""

    is_compiled: bool
    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def split(graph: Any, eager: Collection[Any], ordered: Collection[Any] = ()) -> list[Piece]:
    """The pieces of ``graph``; calls of ``ordered`` (also in ``eager``) keep their order among each other."""
    eager = {*eager, *(n for n in graph.nodes if _is_float_of_data(n))}
    stages = _stages(graph, eager, ordered)
    output = next(n for n in graph.nodes if n.op == "output")
    sizes = {n for n in graph.nodes if is_size(n) and n not in eager}
    found_in_data = {n for n in sizes if is_found_in_data(n.meta["val"])}
    wanted = set(output.all_input_nodes)
    pieces: list[Piece] = []
    for stage in sorted(set(stages.values()), reverse=True):  # later stages say what they read of earlier ones
        nodes = [n for n in graph.nodes if stages.get(n) == stage]
        is_compiled = stage % 2 == 0
        if is_compiled:
            # sizes are cheap: each piece computes them for itself
            nodes = [n for n in graph.nodes if n in sizes or stages.get(n) == stage]
        mine = set(nodes)
        read = _read([n for n in nodes if stages.get(n) == stage], found_in_data if is_compiled else ())
        if not is_compiled:  # PyTorch's calls take attributes, which may be graphs, by name
            read = {x: None for x in read if x.op != "get_attr"}
        inputs = [x for x in read if x not in mine]
        if is_compiled:
            # shapes may speak of a number that no call reads
            numbers = (n for n in graph.nodes if _is_symbolic(n) and n not in read)
            inputs += [n for n in numbers if n.op == "placeholder" or (n in eager and stages[n] < stage)]
        outputs = [n for n in nodes if n in wanted and stages.get(n) == stage]
        wanted |= set(inputs)
        pieces.append(Piece(is_compiled, tuple(nodes), tuple(inputs), tuple(outputs)))
    return pieces[::-1]


def _read(nodes: Sequence[Any], found_in_data: Collection[Any]) -> dict[Any, None]:
    """What calls read, and what the sizes of data among it are read of: a check may read such a size and no tensor."""
    read = dict.fromkeys(x for n in nodes for x in n.all_input_nodes)
    waiting = [x for x in read if x in found_in_data]
    while waiting:
        more = [x for x in waiting.pop().all_input_nodes if x not in read]
        read |= dict.fromkeys(more)
        waiting += (x for x in more if x in found_in_data)
    return read


def _stages(graph: Any, eager: Collection[Any], ordered: Collection[Any]) -> dict[Any, int]:
    """The stage of every call; sizes are PyTorch's where PyTorch or the caller needs their values."""
    stages: dict[Any, int] = {}
    known: dict[Any, int] = {}  # the stage that a size, which each piece computes for itself, has to wait for
    latest = FIRST_STAGE
    needed = _needed_sizes(graph, eager)
    for node in graph.nodes:
        if is_size(node) and node not in eager:
            waits = [known.get(x, stages.get(x, FIRST_STAGE)) for x in node.all_input_nodes]
            known[node] = max(waits, default=FIRST_STAGE) if is_found_in_data(node.meta["val"]) else FIRST_STAGE
        if node.op in ("placeholder", "output") or (is_size(node) and node not in needed):
            continue
        if node.target is operator.getitem and node.args[0] in stages:
            stages[node] = stages[node.args[0]]
            continue
        is_eager = node in eager or node in needed
        before = [x for x in node.all_input_nodes if x in stages or x in known]
        stage = max([known[x] if x in known and not is_eager else stages[x] for x in before], default=FIRST_STAGE)
        if node in ordered:
            stage = max(stage, latest)
        stage += (stage % 2 == 0) == is_eager
        stages[node] = stage
        if node in ordered:
            latest = stage
    return stages


def _needed_sizes(graph: Any, eager: Collection[Any]) -> set[Any]:
    """Sizes whose numbers PyTorch's calls or the caller read, and those that PyTorch computes."""
    needed = {n for n in eager if is_size(n)}
    for node in reversed(list(graph.nodes)):
        if node.op == "output" or node in eager or node in needed:
            needed.update(x for x in node.all_input_nodes if is_size(x))
    return needed


def is_size(node: Any) -> bool:
    """Is it a call that computes with sizes, and not with data?"""
    return node.op == "call_function" and _is_symbolic(node) and "_local_scalar_dense" not in str(node.target)


def _is_float_of_data(node: Any) -> bool:
    """Is it a float element of a tensor, or a number computed of data by way of floats?"""
    value = node.meta.get("val")
    is_float = type(value).__name__ == "SymFloat" and is_found_in_data(value)
    return node.op == "call_function" and _is_symbolic(node) and (is_float or is_found_in_floats(value))


def _is_symbolic(node: Any) -> bool:
    return is_symbolic(node.meta.get("val"))


def calls(nodes: Sequence[Any]) -> list[Any]:
    """The calls among nodes that give tensors."""
    return [n for n in nodes if n.op == "call_function" and n.target is not operator.getitem and not is_size(n)]
