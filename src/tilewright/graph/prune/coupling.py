"""Which channels of a graph are removed together, and which must stay.

In: a graph. Out: its tensors, products and groups of channels. Not its business: what ops mean for this (``rules``,
``splits``), which channels go (``importance``), the graph without them (``cut``).

Every position along every axis is joined to those that must go with it (Fang et al., DepGraph, 2023, do so for whole
layers). Inputs and outputs of the graph stay, and with them all that is joined to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import CONST, INPUT, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.graph.prune.links import STAYS, Ids, Links
from tilewright.graph.prune.rules import RULES
from tilewright.graph.prune.splits import Split, choose, reshaped
from tilewright.graph.prune.tensors import AxedTensor, Tensors

PRODUCTS = (ops.matmul, ops.conv, ops.conv_transpose, ops.einsum)

NAMED = re.compile('(?:weight|initializer) "(.*)"', re.DOTALL)
"""Where weights come from that have a name in the model."""


@dataclass(frozen=True, eq=False)
class WeightedProduct:
    """A layer: a product of what the call brings and of constant weights.

    ``name`` is that of its weights in the model, or where it comes from, with a number where others come from there.
    """

    tensor: AxedTensor
    weights: AxedTensor
    name: str


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that lie side by side in the same tensors; each is removed alone, from all of them.

    ``labels`` has one for each channel, and for several that only go together; ``width`` is how many these are on the
    axis that has most. ``makers`` are the products whose results have them; others read them. ``is_heads`` says that
    products of two tensors, attention's, have them side by side.
    """

    labels: tuple[int, ...]
    width: int
    makers: tuple[WeightedProduct, ...]
    is_heads: bool

    @property
    def name(self) -> str:
        return " + ".join(dict.fromkeys(x.name for x in self.makers))


class Coupling:
    """The tensors of ``graph`` and how their positions hang together."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.links = graph, Links()
        self.tensors = Tensors(graph, self.links)
        self.products = _products(self.tensors.order)
        for axis in self.ends():
            self.links.keep(axis)
        splits: list[Split] = []
        for tensor in self.tensors.order:
            self._join(tensor, splits)
        for split in splits:  # when all else is known that stays or goes together
            choose(split, self.links)
        self._labels = self.links.all_labels()

    def ends(self) -> list[Ids]:
        """The axes that callers see."""
        return [a for t in (*self.tensors.inputs, *self.tensors.outputs) for a in t.axes]

    def _join(self, t: AxedTensor, splits: list[Split]) -> None:
        """Join what the op's rule says; all that it does not name stays."""
        named: list[Ids] = []
        if t.node.op is ops.reshape:
            found = reshaped(t, self.links)
            for a, b in found.same:
                self.links.join(a, b)
            splits += found.splits
            named += found.named()
        elif t.node.op in RULES and len(t.node.types) == 1 and not _reads_twice(t):
            for a, b in RULES[t.node.op](t):
                self.links.join(a, b)
                named += (a, b)
        known = np.unique(np.concatenate(named)) if named else np.zeros(0, np.int64)
        for axis in [a for x in (t, *t.inputs) for a in x.axes] if t.node.op not in (CONST, INPUT) else ():
            self.links.keep(axis[~np.isin(axis, known)])

    def labels(self, axis: Ids) -> Ids:
        """The label of each position of an axis."""
        found: Ids = self._labels[axis]
        return found

    def groups(self) -> list[ChannelGroup]:
        """All that can be removed, in the order of the graph."""
        axes: dict[int, dict[tuple[int, int], None]] = {}
        makers: dict[int, dict[WeightedProduct, None]] = {}
        widths: dict[int, int] = {}
        heads: set[int] = set()
        products = {p.tensor: p for p in self.products}
        for place, t in enumerate(self.tensors.order):
            for k, axis in enumerate(t.axes):
                found, counts = np.unique(self.labels(axis), return_counts=True)
                for label, n in zip(found.tolist(), counts.tolist(), strict=True):
                    widths[label] = max(n, widths.get(label, 0))
                    axes.setdefault(label, {})[place, k] = None
                    if t in products:
                        makers.setdefault(label, {})[products[t]] = None
            heads |= self._heads_of(t)
        by_axes: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for label, places in axes.items():
            if label != STAYS and label in makers:
                by_axes.setdefault(tuple(places), []).append(label)
        return [
            ChannelGroup(tuple(g), max(widths[n] for n in g), tuple(makers[g[0]]), not heads.isdisjoint(g))
            for g in by_axes.values()
        ]

    def _heads_of(self, t: AxedTensor) -> set[int]:
        """The labels along which a product of two tensors of the call has matrices side by side."""
        if any(x.is_constant for x in t.inputs):
            return set()
        if t.node.op is ops.attention:
            return set(self.labels(t.axes[1]).tolist())
        batch = t.axes[:-2] if t.node.op is ops.matmul else ()
        return {n for a in batch for n in self.labels(a).tolist()}


def _products(tensors: Iterable[AxedTensor]) -> list[WeightedProduct]:
    """The layers among a graph's tensors, each set of weights under a name of its own."""
    found: list[WeightedProduct] = []
    taken: dict[str, Node] = {}
    for t in tensors:
        weights = [x for x in t.inputs if x.is_constant]
        if t.node.op not in PRODUCTS or len(t.inputs) != 2 or len(weights) != 1 or t.node.dtype not in types.FLOATS:
            continue
        leaf = weights[0].constant() or t
        named = NAMED.fullmatch(str(leaf.node.loc))
        first = name = named[1] if named else str(t.node.loc)
        n = 1
        while taken.setdefault(name, leaf.node) is not leaf.node:
            name = f"{first} #{(n := n + 1)}"
        found.append(WeightedProduct(t, weights[0], name))
    return found


def _reads_twice(t: AxedTensor) -> bool:
    """Does an op other than an elementwise one read a tensor as two operands? Its axes then have two meanings."""
    return len(set(map(id, t.inputs))) < len(t.inputs) and not _is_elementwise(t)


def _is_elementwise(t: AxedTensor) -> bool:
    return Trait.ELEMENTWISE in t.node.op.traits
