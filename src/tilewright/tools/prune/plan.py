"""What pruning took away, apart from the weights that are left: to mask a module by, and to repeat.

In: a coupling of a graph and what goes. Out: a ``PruningPlan``. Not its business: choosing what goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright import ops
from tilewright.core.diag import OptionError
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.graph.prune.coupling import ChannelGroup, Coupling, WeightedProduct
from tilewright.graph.prune.cut import kept_of


@dataclass(frozen=True)
class Gone:
    """Of one group of channels: its name, how many there were, and the places of those that go."""

    group: str
    n: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class PruningPlan:
    """What goes: whole channels or heads (``gone``), or single weights of layers (``kept``, bool by layer)."""

    structure: str
    gone: tuple[Gone, ...] = ()
    kept: Mapping[str, Array] = field(default_factory=dict)
    ambiguous: frozenset[str] = frozenset()
    """Layers that have one name, or one small tensor, and not one mask."""

    def masks(self) -> dict[str, Array]:
        """For each layer that loses something: False where its weights go, bool in the shape that the model has them.

        The names are those that the model gives its weights, ``torch.nn.Module.named_parameters`` for instance. A model
        whose weights are zero there gives the results of the pruned one. ``OptionError`` where a name stands for
        weights of several layers, whose masks differ.
        """
        if self.ambiguous:
            name = min(self.ambiguous)
            raise OptionError(f"{name!r} stands for weights of several layers", remedy="give them names of their own")
        return dict(self.kept)

    def removed_from(self, groups: Sequence[ChannelGroup]) -> list[tuple[int, ...]]:
        """The places that go of each of these groups; ``OptionError`` where they are not those of the plan."""
        mine = [(g.group, g.n) for g in self.gone]
        others = [(g.name, len(g.labels)) for g in groups]
        if mine != others:
            name = min(f"{name} ({n} channels)" for name, n in set(mine) ^ set(others) or {*mine, *others})
            raise OptionError(f"the plan is of another model: {name}", remedy="prune the model that it was made of")
        return [g.places for g in self.gone]


def plan_of_channels(
    coupling: Coupling,
    structure: str,
    groups: Sequence[ChannelGroup],
    places: Sequence[tuple[int, ...]],
    removed: set[int],
) -> PruningPlan:
    """The plan by which these channels of each group go."""
    gone = tuple([Gone(g.name, len(g.labels), p) for g, p in zip(groups, places, strict=True)])
    kept = kept_of(coupling, removed)
    masks: dict[str, Array] = {}
    ambiguous: set[str] = set()
    for product in coupling.products:
        leaf = product.weights.constant()
        if leaf is None:
            continue
        mask = np.zeros([len(a) for a in leaf.axes], bool)
        mask[np.ix_(*kept[leaf])] = True
        if product.name in masks and not np.array_equal(masks[product.name], mask):
            ambiguous.add(product.name)
        masks[product.name] = mask
    masks = {name: mask for name, mask in masks.items() if not mask.all()}
    return PruningPlan(structure, gone, masks, frozenset(ambiguous))


def plan_of_weights(structure: str, found: Mapping[WeightedProduct, Array]) -> PruningPlan:
    """The plan by which single weights go: ``found`` has which stay of each layer, in the shape that its op reads."""
    return PruningPlan(structure, (), {product.name: as_stored(product, mask) for product, mask in found.items()})


def as_stored(product: WeightedProduct, array: Array) -> Array:
    """What is in the shape that an op reads its weights in, in the shape that the model has them."""
    at = product.weights
    while at.inputs:
        node, at = at.node, at.inputs[0]
        is_turned, shape = node.op is ops.transpose, [len(a) for a in at.axes]
        array = array.transpose(np.argsort(node.attrs["perm"])) if is_turned else array.reshape(shape)
    return array


def leaf_node(product: WeightedProduct) -> Node | None:
    """The constant of the model that a layer's weights are."""
    leaf = product.weights.constant()
    return None if leaf is None else leaf.node
