"""A graph in groups: what each kernel computes, before anyone decides how.

In: an optimised graph and those of its control flow. Out: their groups, each with the symbols that its data decide and
the computation to schedule. Not its business: which ops go together (``partition.fuse``), schedules (``choose``),
memory and order (``partition.plan``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import PROJ, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.partition.computation import GroupComputation, computation_of
from tilewright.partition.fuse import Group, Partition, partition
from tilewright.partition.inner import data_dims, inner_graphs
from tilewright.target.target import Target

Result = tuple[Node, int]
"""A node and which of its results."""
InnerGraphs = Mapping[Node, tuple[Graph, ...]]
"""The optimised graphs of each control node, at whatever depth: a branch has two, a loop has one."""


@dataclass(frozen=True)
class Grouped:
    """A group with the symbols that its data decide and, unless it is control flow, its computation.

    ``dims`` has the largest value that each symbol can take; ``label`` the names of its ops, for the report.
    """

    group: Group
    dims: tuple[tuple[Sym, Dim], ...]
    label: str = ""
    made: GroupComputation | None = None


@dataclass(frozen=True)
class GroupedGraph:
    """A graph in groups, and those of its own control flow by node; ``order`` has the place of each node."""

    graph: Graph
    parts: Partition
    order: dict[Node, int]
    groups: tuple[Grouped, ...]
    inner: Mapping[Node, tuple[GroupedGraph, ...]]

    def resolve(self, node: Node) -> Result:
        """The node and result whose memory ``node`` is."""
        while node in self.parts.views:
            node = self.parts.views[node]
        return (node.inputs[0], node.attrs.index) if node.op is PROJ else (node, 0)


def optimise_inner(graph: Graph, optimise: Callable[[Graph], Graph]) -> dict[Node, tuple[Graph, ...]]:
    """The graphs of all control flow in a graph over the sizes of their operands, each optimised."""
    found: dict[Node, tuple[Graph, ...]] = {}
    waiting = [graph]
    while waiting:
        for node in waiting.pop().nodes():
            if Trait.CONTROL in node.op.traits and node not in found:
                found[node] = tuple(optimise(g) for _, g in inner_graphs(node))
                waiting += found[node]
    return found


def group_graph(graph: Graph, inner: InnerGraphs, target: Target, *, fuse: bool = True) -> GroupedGraph:
    """Groups of one graph and of its control flow, for one machine."""
    parts = partition(graph, target, fuse=fuse)
    order = {n: k for k, n in enumerate(graph.nodes())}

    def grouped(group: Group) -> Grouped:
        dims = tuple(data_dims(group.root))
        if Trait.CONTROL in group.root.op.traits:
            return Grouped(group, dims)
        label = "_".join(n.op.name for n in sorted(group.members, key=order.__getitem__))
        return Grouped(group, dims, label, computation_of(group, parts.facts, order))

    controls = [g.root for g in parts.groups if Trait.CONTROL in g.root.op.traits]
    deeper = {node: tuple(group_graph(g, inner, target, fuse=fuse) for g in inner[node]) for node in controls}
    return GroupedGraph(graph, parts, order, tuple(map(grouped, parts.groups)), deeper)
