"""Sizes of operands that must not be 0, because a call takes an element of them whatever their size is.

In: a graph. Out: the graph with rules for its sizes, so that no call reads or writes an element of a tensor that has
none. Not its business: indices that data choose, which are kept in range (``ops``), and slices of known places
(``frontend.torch.ones``).

A gather keeps an index between 0 and its operand's last place, and there is no such place where the operand is empty:
PyTorch and ONNX Runtime raise there. Where the result, or what is stored, is empty at the same sizes, nothing is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright import ops
from tilewright.core.expr import Dim, Expr, is_nonneg, substitute, symbols
from tilewright.core.graph import Graph, topological

READS = frozenset({
    ops.gather, ops.gather_elements, ops.gather_nd, ops.dynamic_slice, ops.ranked, ops.resize, ops.top_k, ops.pad,
})  # fmt: skip
"""Each element of the result is one of the first operand, or a mean of some; of ``pad``, in all modes but one."""
STORES = {ops.dynamic_update_slice: 1, ops.scatter_elements: 2, ops.scatter_nd: 2}
"""Elements of that operand are stored into the first."""


def with_elements(graph: Graph) -> Graph:
    """The graph with the rules that keep its calls from taking an element where there is none."""
    found: dict[Expr, None] = {}
    for node in topological(graph.outputs):
        if node.op in STORES:
            found |= dict.fromkeys(_missing(node.inputs[0].shape, node.inputs[STORES[node.op]].shape))
        elif node.op in READS and node.attrs.get("mode") != "constant":
            found |= dict.fromkeys(_missing(node.inputs[0].shape, node.types[0].shape))
    given = set(graph.symbols())
    rules = dict.fromkeys([*graph.constraints, *(e for e in found if symbols(e) <= given)])
    return Graph(graph.name, graph.pool, graph.inputs, graph.outputs, graph.output_names, tuple(rules), graph.checks)


def _missing(source: Sequence[Dim], taken: Sequence[Dim]) -> Iterator[Expr]:
    """Of each size of ``source`` that may be 0 while ``taken`` has elements, that it is 1 or more."""
    for size in source:
        least = {s: s.lo or 0 for s in symbols(size)}
        vanishes = [n for n in taken if n == size or substitute(n, least) == substitute(size, least) == 0]
        e = size - 1
        if not vanishes and isinstance(e, Expr) and not is_nonneg(e):
            yield e
