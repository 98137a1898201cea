"""The pass ``ordering``: which algorithm puts elements in order.

In: a graph with ``sort``, ``top_k`` and ``ranked``. Out: an equal graph whose sorts name their algorithm.
Not its business: the algorithms (``ops.order``), along which axis rows lie (``graph.canonical.order``).

Comparing all with all is work for ``n * n`` lanes without a branch, moving by digits has a price for every byte of
every element, and selecting has one for every element that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright import ops
from tilewright.core.dims import is_known, known, known_at_most
from tilewright.core.estimates import ASSUMED_SIZE
from tilewright.core.expr import Dim
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.ops.order import COUNTING, DIGITS, SELECTING, block_of, can_select

MAX_COUNTED = 64
"""Elements: up to here n^2 comparisons take less time than moving elements digit by digit."""
MOVED_BY_DIGITS, SELECTED = 48, 64
"""Cycles for an element that is moved, and for a result that is selected besides comparing, four keys in a cycle."""


@dataclass(frozen=True)
class Ordering(Pass):
    """Names the algorithm of every ``sort`` and ``top_k``; few elements are sorted for the sake of a ``ranked`` one."""

    name: ClassVar[str] = "ordering"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, RULES, journal)


def _algorithm(x: Node, axis: int, k: Dim) -> str:
    n = x.shape[axis]
    if known_at_most(n, MAX_COUNTED):
        return COUNTING
    return SELECTING if is_known(k) and can_select(x.dtype, k) and _is_few(k, n) else DIGITS


def _is_few(k: int, n: Dim) -> bool:
    """Whether selecting ``k`` takes less time than moving all ``n`` elements about."""
    size = known(n, ASSUMED_SIZE)
    return k * (SELECTED + (block_of(size) + size // block_of(size)) // 4) <= MOVED_BY_DIGITS * size


def _named(b: Rewriting, node: Node) -> tuple[Node, ...] | None:
    x, a = node.inputs[0], node.attrs
    algorithm = _algorithm(x, a["axis"], a["k"] if node.op is ops.top_k else x.shape[a["axis"]])
    if a["algorithm"] == algorithm:
        return None
    return tuple(b.results(b(node.op, x, **{**a, "algorithm": algorithm})))


def _all_ranks(b: Rewriting, node: Node) -> tuple[Node, ...] | None:
    """All ranks at once where that is done by comparing all with all."""
    (x, rank), axis = node.inputs, node.attrs["axis"]
    if _algorithm(x, axis, x.shape[axis]) != COUNTING:
        return None
    parts = b.results(b(ops.sort, x, axis=axis, algorithm=COUNTING))
    return tuple(b(ops.gather_elements, part, rank, axis=axis) for part in parts)


RULES = RuleTable(
    (
        Rule("algorithm-of-order", (ops.sort, ops.top_k), _named, "which algorithm sorts does not change the result"),
        Rule("rank-by-sorting", (ops.ranked,), _all_ranks, "the element of a rank is there in what is sorted"),
    )
)
