"""Tensors that no machine holds: refused before anything is planned for them.

In: a graph. Out: nothing, or a ``CompileError`` that lists every such tensor. Not its business: whether this machine
has the memory (the runtime says so per call).
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.core.diag import CompileError, Problem
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, bounds
from tilewright.core.graph import Graph


def check_sizes(graph: Graph, most: int) -> None:
    """Raise ``CompileError`` when a tensor takes over ``most`` bytes even with every symbol at its least."""
    problems = list(_problems(graph, most))
    if problems:
        raise CompileError(f"{graph.name}: tensors are larger than any memory", problems)


def _problems(graph: Graph, most: int) -> Iterator[Problem]:
    for node in graph.nodes():
        for t in node.types:
            least = _least(t.shape) * t.dtype.n_bytes
            if least > most:
                yield Problem(node.loc, node.op.name, f"gives {t}, {least:.2g} bytes", "use smaller sizes")
        for value in node.attrs.values():
            if isinstance(value, Graph):
                yield from _problems(value, most)


def _least(shape: tuple[Dim, ...]) -> int:
    """The fewest elements besides none: a dimension that may be 0 or is unbounded below counts as 1."""
    n = 1
    for d in shape:
        n *= d if is_known(d) else max(bounds(d)[0] or 1, 1)
    return n
