"""What every node of a graph is worth on given inputs, by the ops' references, and how far rounding may move it.

In: graphs and arrays. Out: arrays per node; other roundings of them. Not its business: judging
(``tools.debug.tolerance``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.evaluate import evaluate_every, evaluate_nodes
from tilewright.core.expr import Sym
from tilewright.core.graph import CONST, INPUT, PROJ, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.types import Array, DType
from tilewright.tools.debug.tolerance import EPSILON, ROUNDINGS, Difference, judge, nudged

SEED = 20
EXACT = frozenset({
    ops.cast, ops.where, ops.maximum, ops.minimum, ops.clamp, ops.relu, ops.neg, ops.abs, ops.eq, ops.ne, ops.lt,
    ops.le, ops.gt, ops.ge, ops.floor, ops.ceil, ops.trunc, ops.reduce_max, ops.reduce_min, ops.max_pool,
})  # fmt: skip
"""Besides what moves elements: ops that have one right result, whoever computes it."""
SUMMED_AS_THEY_ARE = (types.f32, types.f64)
"""Types whose sums round at every term; the error of a sum grows like the square root of their number."""


@dataclass(frozen=True)
class NodeValues:
    """Of every node of ``graph``, as one array per result, and of every symbol."""

    graph: Graph
    found: Mapping[Node, Array | tuple[Array, ...]]
    sizes: Mapping[Sym, int]

    def of(self, node: Node) -> Array:
        """A node's only result."""
        value = self.found[node]
        assert not isinstance(value, tuple)
        return value

    def results(self, node: Node) -> tuple[Array, ...]:
        """All results of a node."""
        value = self.found[node]
        return value if isinstance(value, tuple) else (value,)

    def outputs(self) -> tuple[Array, ...]:
        """The graph's outputs."""
        return tuple(self.of(n) for n in self.graph.outputs)


def values_of(graph: Graph, inputs: Sequence[Array]) -> NodeValues:
    """By the references; raises what they raise."""
    return NodeValues(graph, *evaluate_every(graph, inputs))


def other_values(graph: Graph, inputs: Sequence[Array], epsilon: float = 0.0) -> tuple[NodeValues, NodeValues]:
    """The same for inputs a little away, and with every op rounding otherwise.

    ``epsilon`` is a unit in the last place coarser than the graph's own that the roundings then have.
    """
    rng = np.random.default_rng(SEED)

    def rounded(node: Node, value: Array) -> Array:
        return value if _only_moves(node) and not epsilon else nudged(value, rng, epsilon)

    moved = evaluate_every(graph, [nudged(a, None, epsilon) for a in inputs])
    return NodeValues(graph, *moved), NodeValues(graph, *evaluate_every(graph, inputs, rounded))


def steps_from(
    graph: Graph, inputs: Sequence[Array], given: Mapping[Node, Array]
) -> tuple[NodeValues, list[NodeValues]]:
    """Every node's value of the values ``given`` for what it reads, and the same of those a little away."""
    rng = np.random.default_rng(SEED)
    exact = _steps(graph, inputs, given, lambda a: a)
    return exact, [_steps(graph, inputs, given, way) for way in (nudged, lambda a: nudged(a, rng))]


def _steps(
    graph: Graph, inputs: Sequence[Array], given: Mapping[Node, Array], moved: Callable[[Array], Array]
) -> NodeValues:
    found: dict[Node, Array | tuple[Array, ...]] = dict(zip(graph.inputs, inputs, strict=True))

    def change(node: Node, value: Array) -> Array:
        found[node] = value
        known = given.get(node)
        return moved(known) if known is not None and known.shape == value.shape else value

    _, sizes = evaluate_every(graph, inputs, change)
    return NodeValues(graph, found, sizes)


def _only_moves(node: Node) -> bool:
    return node.op in (CONST, INPUT, PROJ) or Trait.MOVEMENT in node.op.traits or Trait.VIEW in node.op.traits


def is_exact(nodes: Iterable[Node]) -> bool:
    """Do these nodes together leave no room for rounding?"""
    return all(
        _only_moves(n) or n.op in EXACT or not any(t.dtype.is_float for i in (n, *n.inputs) for t in i.types)
        for n in nodes
    )


def coarsest(nodes: Iterable[Node]) -> DType | None:
    """The float type with the fewest digits among results and operands."""
    found = {t.dtype for n in nodes for i in (n, *n.inputs) for t in i.types if t.dtype in EPSILON}
    return max(found, key=lambda d: EPSILON[d], default=None)


def judge_outputs(graph: Graph, want: Sequence[Array], got: Sequence[Array], others: Sequence[Sequence[Array]],
                  room: float = 0.0) -> list[Difference]:  # fmt: skip
    """Each output of a graph; ``room`` is an error in units of the largest element that is allowed besides rounding."""
    if len(got) != len(want):
        return [Difference(problem=f"{len(got)} outputs, expected {len(want)}")]
    dtype = coarsest(graph.nodes())
    if dtype is None:
        return [judge(w, g) for w, g in zip(want, got, strict=True)]
    epsilon, roundings = EPSILON[dtype], ROUNDINGS[dtype]
    epsilon = max(epsilon, room / roundings)
    return [
        judge(w, g, [o[k] for o in others], epsilon=epsilon, roundings=roundings)
        for k, (w, g) in enumerate(zip(want, got, strict=True))
    ]


@dataclass(frozen=True)
class GraphPart:
    """Some nodes of a graph that compute ``root`` from values around them: what one kernel does.

    ``length`` is how many terms its longest sum has.
    """

    root: Node
    members: tuple[Node, ...]
    length: int = 1

    def others(self, values: NodeValues) -> list[tuple[Array, ...]]:
        """The root's results with other roundings, of the operands and of every member."""
        rng = np.random.default_rng(SEED)
        pool = values.graph.pool
        inside = set(self.members)
        around = {i: values.of(i) for n in self.members for i in n.inputs if i not in inside and len(i.types) == 1}
        roots = pool.results(self.root)
        moved = {n: a if n.op is CONST else nudged(a) for n, a in around.items()}
        found = [evaluate_nodes(roots, moved, values.sizes)]
        known = {n: nudged(a, rng) for n, a in around.items()}
        for n in self.members:
            if n is not self.root:
                known[n] = evaluate_nodes((n,), known, values.sizes)[0]
                if not _only_moves(n):
                    known[n] = nudged(known[n], rng)
        found.append(tuple(nudged(a, rng) for a in evaluate_nodes(roots, known, values.sizes)))
        return found

    def judge(self, values: NodeValues, got: Sequence[Array]) -> Difference:
        """The worst of the root's results, computed from the true values around the part."""
        want = values.results(self.root)
        dtype = coarsest(self.members)
        if dtype is None or is_exact(self.members):
            return worst([judge(w, g) for w, g in zip(want, got, strict=True)])
        first = [judge(w, g) for w, g in zip(want, got, strict=True)]
        if not any(d.is_bad for d in first):
            return worst(first)  # equal to the bit: no need to measure the room
        others = self.others(values)
        longer = max(1.0, self.length**0.5 / 8) if dtype in SUMMED_AS_THEY_ARE else 1.0
        return worst([
            judge(w, g, [o[k] for o in others], epsilon=EPSILON[dtype], roundings=ROUNDINGS[dtype] * longer)
            for k, (w, g) in enumerate(zip(want, got, strict=True))
        ])  # fmt: skip


def worst(found: Sequence[Difference]) -> Difference:
    """The one that matters: a bad one before a good one, then the larger."""
    return max(found, key=lambda d: (bool(d.problem), d.is_bad, d.max_abs), default=Difference())
