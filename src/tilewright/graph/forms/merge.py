"""The pass ``merge-matmuls``: products of one matrix with several weights become one product with wider weights.

In: a graph, such as a transformer's whose queries, keys and values are three linear layers of one input. Out: one
product and slices of it. Not its business: biases, which stay additions after the slices.

In no level by default: one wide product reads its input once, but its slices are strided, and a kernel that takes the
next layer's epilogue in does better with three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.graph import CONST, Builder, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Fired, Journal, replace


@dataclass(frozen=True)
class MergeMatmuls(Pass):
    """Joins products that read the same node with constant weights of rank 2.

    It does not fire on a single product, on weights that are computed, or where the joined weight would have more than
    ``max_columns``. Sub-graphs are left alone.
    """

    name: ClassVar[str] = "merge-matmuls"
    max_columns: int = 16384

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        groups: dict[tuple[object, ...], list[Node]] = {}
        for n in graph.nodes():
            if n.op is ops.matmul and n.inputs[1].op is CONST and n.inputs[1].type.rank == 2:
                groups.setdefault((n.inputs[0], n.inputs[1].dtype, n.dtype), []).append(n)
        replacements: dict[Node, Node] = {}
        for group in groups.values():
            if len(group) > 1 and sum(_columns(n) for n in group) <= self.max_columns:
                replacements.update(_merged(graph, group))
                if journal is not None:
                    journal += [Fired(self.name, n.op.name, n.loc) for n in group]
        return replace(graph, replacements) if replacements else graph


def _columns(n: Node) -> int:
    return int(n.inputs[1].attrs["data"].array.shape[1])


def _merged(graph: Graph, group: list[Node]) -> dict[Node, Node]:
    """Each product as a slice of the joined one."""
    b = Builder(graph.pool, group[0].loc)
    weight = b.const(np.concatenate([n.inputs[1].attrs["data"].array for n in group], axis=1))
    joined = b(ops.matmul, group[0].inputs[0], weight, **group[0].attrs)
    result: dict[Node, Node] = {}
    at, rank = 0, joined.type.rank
    for n in group:
        end = at + _columns(n)
        starts, stops = (*[0] * (rank - 1), at), (*joined.shape[:-1], end)
        result[n] = b.at(n.loc)(ops.slice, joined, starts=starts, stops=stops, steps=[1] * rank)
        at = end
    return result
