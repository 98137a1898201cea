"""A graph's tensors with a number for each position along each axis.

In: a graph. Out: ``AxedTensor`` objects in its order. Not its business: which positions belong together (``rules``).

A constant is another tensor for each reader, because equal small constants are one node of a graph, and channels of
layers that have nothing else in common would have to go together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.evaluate import evaluate_nodes
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.types import Array
from tilewright.graph.prune.links import UNKNOWN_SIZE, Ids, Links


@dataclass(frozen=True, eq=False)
class AxedTensor:
    """A node's result, or a constant as one reader sees it; ``axes`` has the positions along each axis.

    Nodes with several results have no axes. ``is_constant`` says that no call changes it.
    """

    node: Node
    inputs: tuple[AxedTensor, ...]
    axes: tuple[Ids, ...]
    is_constant: bool = False

    @property
    def rank(self) -> int:
        return len(self.axes)

    def constant(self) -> AxedTensor | None:
        """The constant that this is, or is one with other axes of or in another type; None for anything else."""
        found = self
        while found.node.op in (ops.transpose, ops.reshape, ops.cast):
            found = found.inputs[0]
        return found if found.node.op is CONST else None

    def array(self) -> Array:
        """A constant tensor's numbers."""
        array: Array = evaluate_nodes((self.node,), {}, {})[0]
        return array


class Tensors:
    """The tensors of ``graph``, operands before readers, over positions of ``links``."""

    def __init__(self, graph: Graph, links: Links) -> None:
        self.links = links
        self.order: list[AxedTensor] = []
        self._constants: set[Node] = set()
        self._made: dict[Node, AxedTensor] = {}
        for node in graph.nodes():
            if _is_chain(node, self._constants):
                self._constants.add(node)
            else:
                self._made[node] = self._add(node, False)
        self.inputs = [self._made[n] for n in graph.inputs if n in self._made]
        self.outputs = [self._of(n) for n in graph.outputs]

    def _of(self, node: Node) -> AxedTensor:
        """The tensor that a reader of ``node`` reads."""
        return self._add(node, True) if node in self._constants else self._made[node]

    def _add(self, node: Node, is_constant: bool) -> AxedTensor:
        inputs = tuple(self._of(x) for x in node.inputs)
        shape: Sequence[Dim] = node.shape if len(node.types) == 1 else ()
        axes = tuple(self.links.fresh(d) if is_known(d) else UNKNOWN_SIZE for d in shape)
        self.order.append(made := AxedTensor(node, inputs, axes, is_constant))
        return made


def _is_chain(node: Node, constants: Iterable[Node]) -> bool:
    """Is it a constant, or made of one alone? What is made of two stays shared, or copies would multiply."""
    if len(node.types) != 1 or node.attrs.keys() & {"homes"}:
        return False
    if not node.inputs:
        return node.op in (CONST, ops.full)
    return len(node.inputs) == 1 and node.inputs[0] in constants


def kept_positions(axis: Ids, labels: Ids, removed: Ids) -> Ids:
    """Which of an axis's positions, counted from 0, are left without those of the labels ``removed``."""
    return np.flatnonzero(~np.isin(labels, removed)) if len(axis) else np.zeros(0, np.int64)
