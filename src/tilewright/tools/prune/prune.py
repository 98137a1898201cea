"""``tilewright.prune``: a model in, a graph with fewer weights and a report out.

In: what the user wrote. Out: a ``PrunedGraph``. Not its business: which channels belong together and which weights are
small (``graph.prune``), training what is left.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph, Node
from tilewright.core.rewrite import replace
from tilewright.core.types import Array
from tilewright.frontend.onnx.writer.model import save_onnx
from tilewright.frontend.source import import_called
from tilewright.graph.prune.coupling import ChannelGroup, Coupling, WeightedProduct
from tilewright.graph.prune.cut import cut, kept_of, shape_of
from tilewright.graph.prune.importance import POWERS, scores_of, smallest, smallest_of_all
from tilewright.graph.prune.masks import PATTERNS, TWO_OF_FOUR, ZeroPattern
from tilewright.runtime.files import writing
from tilewright.tools.prune.plan import PruningPlan, leaf_node, plan_of_channels, plan_of_weights
from tilewright.tools.prune.report import PrunedLayer, PruneReport, layer_report

CHANNELS, HEADS = "channels", "heads"
STRUCTURES = (CHANNELS, HEADS, *PATTERNS)
LAYER, GLOBAL = "layer", "global"
SCOPES = (LAYER, GLOBAL)
SPARED = "spared as asked"


def _is_part(x: object) -> bool:
    return isinstance(x, int | float) and 0 <= x < 1


def _are_sizes(x: object, n: int) -> bool:
    return isinstance(x, Sequence) and len(x) == n and all(isinstance(size, int) and size >= 1 for size in x)


@dataclass(frozen=True)
class Wish:
    """How a model is pruned; raises ``OptionError`` for what is not offered."""

    amount: float
    structure: str = CHANNELS
    norm: str = "l1"
    scope: str = LAYER
    round_to: int = 8
    block: tuple[int, int] = (4, 16)
    spare: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        offered = {"structure": STRUCTURES, "norm": tuple(POWERS), "scope": SCOPES}
        for name, values in offered.items():
            if (value := getattr(self, name)) not in values:
                raise OptionError(f"{name}={value!r:.40} is not offered", remedy=f"use one of {', '.join(values)}")
        if not _is_part(self.amount):
            raise OptionError(f"amount={self.amount!r:.40} is no part", remedy="use a number from 0 to below 1")
        if self.structure == TWO_OF_FOUR and self.amount != 0.5:
            raise OptionError("2:4 takes half of the weights", remedy="leave amount out, or pass 0.5")
        if not _are_sizes((self.round_to,), 1) or not _are_sizes(self.block, 2):
            raise OptionError("round_to and block are whole numbers from 1 on", remedy="use 8 and (4, 16)")


@dataclass(frozen=True, eq=False)
class PrunedGraph(Graph):
    """A graph like any other, with a report and a plan, by which the model can be masked and pruned again."""

    report: PruneReport = field(default=PruneReport(()))
    plan: PruningPlan = field(default=PruningPlan(CHANNELS))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph as an ONNX model.

        Raises ``CompileError`` naming nodes that ONNX has no op for, ``FileError`` where the file can't be written.
        """
        with writing(path):
            save_onnx(self, Path(path))


def prune(
    source: Any,
    amount: float | None = None,
    *,
    structure: str = CHANNELS,
    norm: str = "l1",
    scope: str = LAYER,
    round_to: int = 8,
    block: tuple[int, int] = (4, 16),
    spare: Collection[str] = (),
    plan: PruningPlan | None = None,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix_dims: Mapping[str, int] | None = None,
) -> PrunedGraph:
    """Take away the part ``amount`` of a model's channels, heads or weights, those with the smallest weights.

    ``source`` and the last four options are those of ``tilewright.compile``. ``structure``:

    - ``"channels"``: channels of products and convolutions, with all that belongs to them in residual, depthwise,
      concatenated and grouped layers. Shapes shrink. The results are those of the model whose weights that read these
      channels are zero.
    - ``"heads"``: heads of attention likewise.
    - ``"elements"``, ``"2:4"``, ``"blocks"``: weights become zero and shapes stay. ``"2:4"`` takes two of each four
      neighbours that a product sums over (``amount`` is 0.5), ``"blocks"`` whole blocks of ``block``: terms of the sum
      by columns. These two are for matrix products.

    Importance is the sum of the weights' sizes (``norm="l1"``) or of their squares (``"l2"``), over the weights that
    make and that read a channel. With ``scope="layer"`` each group of channels, or layer, loses the part ``amount``;
    with ``"global"`` all are compared, channels by their importance over the mean of their group. What is left of
    channels is a multiple of ``round_to``, as vectors have it. Layers named in ``spare``, by the name of their weights
    as the report has it, keep their channels or weights.

    With ``plan``, that of a graph pruned before, the same goes from this model: one that was trained with
    ``plan.masks()``. Returns a graph to compile, export or save, with ``report`` and ``plan``. Raises ``OptionError``
    for options, and a plan of another model; ``CompileError`` for the model.
    """
    called = import_called(source, example_inputs, dynamic_shapes, input_shapes, fix_dims)
    if called.convention.state or called.convention.written:
        raise OptionError("a model that keeps state can't be pruned", remedy="prune a function of its inputs")
    if plan is None:
        chosen = amount if amount is not None else 0.5 if structure == TWO_OF_FOUR else None
        if chosen is None:
            raise OptionError("how much to prune is not said", remedy="pass amount, from 0 to below 1, or a plan")
        wish = Wish(chosen, structure, norm, scope, round_to, block, tuple(spare))
    elif amount is not None:
        raise OptionError("amount and plan exclude each other", remedy="pass one of them")
    else:
        wish = Wish(0.5, plan.structure)
    coupling = Coupling(called.graph)
    _check_spared(wish.spare, coupling.products)
    if wish.structure in PATTERNS:
        made, layers, plan = _masked(coupling, wish, plan)
    else:
        made, layers, plan = _smaller(coupling, wish, plan)
    report = PruneReport(tuple(layers), asdict(wish))
    return PrunedGraph(
        made.name, made.pool, made.inputs, made.outputs, made.output_names, made.constraints, made.checks, report, plan
    )


Pruned = tuple[Graph, list[PrunedLayer], PruningPlan]


def _check_spared(names: Sequence[str], products: Sequence[WeightedProduct]) -> None:
    unknown = sorted(set(names) - {p.name for p in products})
    if unknown:
        shown = ", ".join(repr(p.name) for p in products[:20])
        raise OptionError(f"there is no layer {unknown[0]!r} to spare", remedy=f"the layers are {shown}")


def _smaller(coupling: Coupling, wish: Wish, plan: PruningPlan | None) -> Pruned:
    """Without channels or heads."""
    groups = [g for g in coupling.groups() if g.is_heads == (wish.structure == HEADS)]
    if plan is not None:
        places = plan.removed_from(groups)
    else:
        free = [not any(p.name in wish.spare for p in g.makers) for g in groups]
        mine = list(compress(groups, free))
        scores, is_global = scores_of(coupling, mine, wish.norm), wish.scope == GLOBAL
        found = iter(smallest(mine, scores, wish.amount, is_global, wish.round_to))
        places = [next(found) if is_free else () for is_free in free]
    removed = {g.labels[k] for g, gone in zip(groups, places, strict=True) for k in gone}
    return (
        cut(coupling, removed),
        _reports_of_channels(coupling, groups, removed, wish),
        plan_of_channels(coupling, wish.structure, groups, places, removed),
    )


def _reports_of_channels(
    coupling: Coupling, groups: Sequence[ChannelGroup], removed: set[int], wish: Wish
) -> list[PrunedLayer]:
    kept = kept_of(coupling, removed)
    making = {p for g in groups for p in g.makers}
    reports = []
    for p in coupling.products:
        t, leaf = p.tensor, p.weights.constant() or p.weights
        sizes = [len(k) for k in kept[leaf]]
        after = [shape_of(x, kept[x]) for x in (*t.inputs, t)]
        is_smaller = sizes != [len(a) for a in leaf.axes]
        why = "" if p in making or is_smaller else f"none of its {wish.structure} may go"
        reports.append(layer_report(p, sizes, after, int(np.prod(sizes)), SPARED if p.name in wish.spare else why))
    return reports


def _masked(coupling: Coupling, wish: Wish, plan: PruningPlan | None) -> Pruned:
    """With zeros."""
    pattern = ZeroPattern(wish.structure, wish.amount, wish.norm, wish.block)
    reasons = {p: SPARED if p.name in wish.spare else pattern.why_not(p) for p in coupling.products}
    if plan is None:
        # Weights that several products read have the zeros that suit the first that can have them.
        mine = list({leaf_node(p): p for p in reversed(coupling.products) if not reasons[p]}.values())[::-1]
        gone: Sequence[Array | None] = [None] * len(mine)
        if wish.scope == GLOBAL and wish.structure != TWO_OF_FOUR:
            gone = smallest_of_all([pattern.sizes(p, p.weights.array()) for p in mine], wish.amount)
        plan = plan_of_weights(wish.structure, {p: pattern.kept(p, g) for p, g in zip(mine, gone, strict=True)})
    masks = plan.kept
    # Layers that lose all are equal then, and where they are small the graph has one name for them.
    unknown = sorted({name for name, mask in masks.items() if mask.any()} - {p.name for p in coupling.products})
    if unknown:
        raise OptionError(f"the plan has a layer {unknown[0]!r}", remedy="prune the model that it was made of")
    replaced: dict[Node, Node] = {}
    for p in coupling.products:
        node = leaf_node(p)
        if node is not None and p.name in masks:
            replaced[node] = _zeroed(coupling.graph, node, masks[p.name])
    layers = []
    for p in coupling.products:
        leaf = p.weights.constant() or p.weights
        n_left = int(masks[p.name].sum()) if p.name in masks else int(np.prod([len(a) for a in leaf.axes]))
        shapes = [*(x.node.shape for x in p.tensor.inputs), p.tensor.node.shape]
        why = "" if p.name in masks else reasons[p]
        layers.append(layer_report(p, [len(a) for a in leaf.axes], shapes, n_left, why))
    return replace(coupling.graph, replaced), layers, plan


def _zeroed(graph: Graph, node: Node, mask: Array) -> Node:
    array: Array = node.attrs["data"].array
    if mask.shape != array.shape:
        raise OptionError(f"the plan has {node.loc} as {mask.shape}", remedy="prune the model that it was made of")
    return graph.pool.const(np.where(mask, array, array.dtype.type(0)), loc=node.loc)
