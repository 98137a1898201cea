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
from tilewright.core.expr import Dim, Expr, Sym, is_nonneg, minimum, substitute, symbols
from tilewright.core.graph import Graph, topological
from tilewright.core.types import product

READS = frozenset({
    ops.gather, ops.gather_elements, ops.gather_nd, ops.dynamic_slice, ops.ranked, ops.resize, ops.top_k, ops.pad,
})  # fmt: skip
"""Each element of the result is one of the first operand, or a mean of some; of ``pad``, in all modes but one."""
STORES = {ops.dynamic_update_slice: 1, ops.scatter_elements: 2, ops.scatter_nd: 2}
"""Elements of that operand are stored into the first."""


def with_elements(graph: Graph) -> Graph:
    """The graph with the rules that keep its calls from taking an element where there is none."""
    found: dict[Expr, None] = {}
    given = frozenset(graph.symbols())
    for node in topological(graph.outputs):
        if node.op in STORES:
            found |= dict.fromkeys(_missing(node.inputs[0].shape, node.inputs[STORES[node.op]].shape, given))
        elif node.op in READS and node.attrs.get("mode") != "constant":
            found |= dict.fromkeys(_missing(node.inputs[0].shape, node.types[0].shape, given))
    rules = dict.fromkeys([*graph.constraints, *(e for e in found if symbols(e) <= given)])
    return Graph(graph.name, graph.pool, graph.inputs, graph.outputs, graph.output_names, tuple(rules), graph.checks)


def _missing(source: Sequence[Dim], taken: Sequence[Dim], given: frozenset[Sym]) -> Iterator[Expr]:
    """Of each size of ``source`` that may be 0 while ``taken`` has elements, that it is 1 or more where it has."""
    least = minimum(product(taken), 1)
    for size in source:
        vanishes = any(n == size or (isinstance(size, Sym) and substitute(n, {size: 0}) == 0) for n in taken)
        e = size - (least if symbols(least) <= given else 1)  # what data decide is no part of a rule
        if not vanishes and isinstance(e, Expr) and not is_nonneg(e):
            yield e
