"""Smaller graphs made of a graph: the moves of a reduction.

In: a graph with an array for each input. Out: others, with fewer nodes, outputs or elements, that are as valid. What
they compute may be anything. Not its business: which of them still fail (``tools.debug.reduce``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core.dims import is_known
from tilewright.core.expr import Expr, symbols
from tilewright.core.graph import CONST, INPUT, PROJ, Data, Graph, Node, Pool
from tilewright.core.opdef import AttrKind
from tilewright.core.rewrite import replace
from tilewright.core.types import Array, TensorType, tensor_type_of
from tilewright.tools.debug.passes import prefix
from tilewright.tools.debug.values import NodeValues, values_of

SIZES: frozenset[AttrKind] = frozenset({"dim", "dims", "int", "ints", "pads"})
"""Kinds of attributes in which a size may stand."""


@dataclass(frozen=True)
class Candidate:
    """A graph and the arrays of its inputs, in order."""

    graph: Graph
    inputs: tuple[Array, ...]

    @property
    def n_ops(self) -> int:
        """Nodes that compute something."""
        return sum(n.op not in (INPUT, CONST, PROJ) for n in self.graph.nodes())

    @property
    def n_elements(self) -> int:
        """Elements of all inputs and constants."""
        constants = (n.attrs["data"].array.size for n in self.graph.nodes() if n.op is CONST)
        return sum(int(a.size) for a in self.inputs) + sum(map(int, constants))

    def values(self) -> NodeValues:
        """Every node's value by the references."""
        return values_of(self.graph, self.inputs)

    def over(self, outputs: Sequence[Node], feeds: Mapping[Node, Array] | None = None) -> Candidate | None:
        """The graph of ``outputs`` over the inputs that they need; None when nothing is computed."""
        known = {**dict(zip(self.graph.inputs, self.inputs, strict=True)), **(feeds or {})}
        g = self.graph
        kept = Graph(g.name, g.pool, (), tuple(outputs), tuple(f"y{k}" for k in range(len(outputs))))
        used = [n for n in kept.nodes() if n.op is INPUT]
        named = {s for n in used for d in n.shape for s in symbols(d)}
        constraints = tuple(c for c in g.constraints if symbols(c) <= named)
        if not outputs or all(n.op in (INPUT, CONST) for n in outputs):
            return None
        graph = Graph(g.name, g.pool, tuple(used), kept.outputs, kept.output_names, constraints)
        return Candidate(graph, tuple(known[n] for n in used))

    def front(self, n_nodes: int) -> Candidate | None:
        """The first nodes only."""
        part = prefix(self.graph, self.graph.nodes()[:n_nodes])
        return None if part is None else self.over(part.outputs)

    def back(self, n_cut: int, values: NodeValues) -> Candidate | None:
        """Without the first nodes: what later ones read of them becomes inputs."""
        nodes = self.graph.nodes()
        cut = {n for n in nodes[:n_cut] if n.op not in (INPUT, CONST)}
        read = {i for n in nodes[n_cut:] for i in n.inputs if i in cut}
        return self.fed([n for n in nodes if n in read and len(n.types) == 1], values)

    def fed(self, nodes: Sequence[Node], values: NodeValues) -> Candidate | None:
        """The values of ``nodes`` come in as inputs."""
        fresh: dict[Node, Node] = {}
        taken = {n.attrs["name"] for n in self.graph.inputs}
        given = set(self.graph.symbols())
        for n in sorted(nodes, key=lambda n: n.serial):
            array = values.of(n)
            plain = all(symbols(d) <= given for d in n.shape)
            name = next(f"v{k}" for k in range(len(taken) + 1) if f"v{k}" not in taken)
            taken.add(name)
            type_ = n.type if plain else TensorType(n.dtype, array.shape)
            fresh[n] = self.graph.pool.input(name, type_, n.loc)
        if not fresh or any(n in fresh for n in self.graph.outputs):
            return None
        feeds = {new: np.ascontiguousarray(values.of(n)).reshape(values.of(n).shape) for n, new in fresh.items()}
        return self.over(replace(self.graph, fresh).outputs, feeds)

    def bypassed(self, node: Node, operand: Node) -> Candidate | None:
        """An operand takes the node's place."""
        return self.over(replace(self.graph, {node: operand}).outputs)

    def resized(self, old: int, new: int) -> Candidate:
        """Every size ``old`` of an input, constant or attribute is ``new``; arrays keep their front parts.

        Raises ``CompileError`` where an op does not allow it.
        """
        pool = Pool()
        made: dict[Node, Node] = {}
        feeds: dict[Node, Array] = {}
        for n, a in zip(self.graph.inputs, self.inputs, strict=True):
            array = _front(a, old, new)
            shape = tuple(new if d == old else d for d in n.shape)
            made[n] = pool.input(n.attrs["name"], TensorType(n.dtype, shape), n.loc)
            feeds[made[n]] = array
        for n in self.graph.nodes():
            if n in made:
                continue
            if n.op is CONST:
                made[n] = pool.add(CONST, (), {"data": Data(_front(n.attrs["data"].array, old, new))}, n.loc)
            else:
                # an axis that happens to be `old` changes too: a candidate has to be valid, not to mean the same
                attrs = {k: _resized(v, old, new) if n.op.attrs[k].kind in SIZES else v for k, v in n.attrs.items()}
                made[n] = pool.add(n.op, [made[i] for i in n.inputs], attrs, n.loc)
        g = self.graph
        inputs = tuple(made[n] for n in g.inputs)
        outputs = tuple(made[n] for n in g.outputs)
        graph = Graph(g.name, pool, inputs, outputs, g.output_names, g.constraints)
        return Candidate(graph, tuple(feeds[n] for n in inputs))

    def sizes(self) -> list[int]:
        """Sizes above 1 of inputs and constants, largest first."""
        shapes = [n.shape for n in self.graph.inputs]
        shapes += [tensor_type_of(n.attrs["data"].array).shape for n in self.graph.nodes() if n.op is CONST]
        return sorted({d for s in shapes for d in s if is_known(d) and d > 1}, reverse=True)

    def interior(self) -> Iterator[Node]:
        """Nodes that compute something and are no output, last first."""
        for n in reversed(self.graph.nodes()):
            if n.op not in (INPUT, CONST) and n not in self.graph.outputs and len(n.types) == 1:
                yield n


def _front(a: Array, old: int, new: int) -> Array:
    part = a[tuple(slice(new) if d == old else slice(None) for d in a.shape)]
    return np.ascontiguousarray(part).reshape(part.shape)


def _resized(value: Any, old: int, new: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_resized(v, old, new) for v in value)
    if isinstance(value, Expr | bool):
        return value
    return new if value == old else value
