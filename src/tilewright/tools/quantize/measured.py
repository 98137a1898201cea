"""A graph with all that was measured of it, and the quantised graphs that follow from that.

In: a graph, its layers, histograms of its tensors. Out: the quantised graph without the layers that are spared, which
layers those should be, and what the report says. Not its business: running over data (``measure``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.build.driver import compile_graph
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph, Node
from tilewright.core.types import Array
from tilewright.graph.facts import nodes_inside
from tilewright.graph.quantize.encoding import ByteWeights, Encoding, decibels, encoding_of, weights_of
from tilewright.graph.quantize.gptq import Inputs, gptq_layer
from tilewright.graph.quantize.insert import ByteForm
from tilewright.graph.quantize.observe import OBSERVERS, Histogram
from tilewright.graph.quantize.places import ByteTensors, Layer, places_of
from tilewright.graph.quantize.rows import RowForm
from tilewright.graph.quantize.windows import has_matrices
from tilewright.runtime.once import computed
from tilewright.tools.quantize.batches import Batch
from tilewright.tools.quantize.measure import LayerError, Moments, layer_errors, model_errors, says_nothing
from tilewright.tools.quantize.report import LayerReport
from tilewright.tools.quantize.scheme import GPTQ, Scheme
from tilewright.tools.tell import Tell

Evaluate = Callable[[Any], float]
SPARED = "spared: it disturbs the model's results most"


@dataclass
class Measured:
    """``seen`` has a histogram of every tensor that is stored in bytes when all layers are quantised.

    Where calls choose scales it may be empty, as may what else is measured; ``shifts`` are those of rows' columns.
    """

    graph: Graph
    layers: Sequence[Layer]
    scheme: Scheme
    shifts: Mapping[Node, Array] = field(default_factory=dict)
    seen: Mapping[Node, Histogram] = field(default_factory=dict)
    moments: dict[Node, Moments] = field(init=False)
    errors: Mapping[Node, LayerError] = field(default_factory=dict)
    model_sqnr_db: Mapping[Node, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """What layers sum over gets sums of products, for choosing weights; matrices of one operand share theirs."""
        self.moments, shared = {}, dict[Node, Moments]()
        for layer in filter(self._is_chosen, self.layers):
            seen = Moments(layer)
            self.moments[layer.node] = shared.setdefault(layer.operand, seen) if layer.is_matrix else seen

    def _is_chosen(self, layer: Layer) -> bool:
        """Are a layer's bytes chosen for its results on the data?"""
        return has_matrices(layer) and self.scheme.rounding == GPTQ

    def watched(self) -> dict[Node, dict[Moments, None]]:
        """The moments to which each operand is added, each once."""
        found: dict[Node, dict[Moments, None]] = {}
        for layer in self.layers:
            if layer.node in self.moments:
                found.setdefault(layer.operand, {})[self.moments[layer.node]] = None
        return found

    @computed
    def places(self) -> ByteTensors:
        """The tensors that are stored in bytes when all layers are quantised."""
        return places_of(self.graph, self.layers)

    @computed
    def form(self) -> ByteForm | RowForm:
        """All layers in bytes, by what was seen."""
        weights = self._weights[0]
        if self.scheme.is_dynamic:
            return RowForm(self.graph, self.layers, self.scheme.dtype, weights, self.shifts)
        return ByteForm(self.graph, self.layers, self.places, self._encodings, weights)

    def measure(self, batches: Sequence[Batch], seen: Mapping[Node, Histogram], tell: Tell) -> None:
        """Each layer's own error, with the ranges of what was seen."""
        self.seen = seen
        other = replace(self.form, weights=self._weights[-1]) if self.scheme.per_channel else None
        self.errors = layer_errors(self.form, batches, tell, other)

    def rank(self, batches: Sequence[Batch], tell: Tell) -> None:
        """What each layer alone does to the model's results."""
        self.model_sqnr_db = model_errors(self.form, batches, tell)

    @computed
    def _weights(self) -> list[dict[Node, ByteWeights]]:
        """Each layer's weights as the scheme has them; behind them with one scale, where channels have their own."""
        found = {x.node: self._weights_of(x) for x in self.layers}
        n_forms = 2 if self.scheme.per_channel else 1
        return [{node: each[k] for node, each in found.items()} for k in range(n_forms)]

    def _weights_of(self, layer: Layer) -> list[ByteWeights]:
        axes = [layer.axis, None] if self.scheme.per_channel else [None]
        nearest = [weights_of(layer.weights, axis, self.scheme.weight_bits) for axis in axes]
        if not self._is_chosen(layer):
            return nearest
        x = layer.operand
        seen = self.moments[layer.node]
        if self.scheme.is_dynamic:
            step = seen.row_reach / self.scheme.rounded.n_steps
        else:
            step = self._encodings[self.places.group_of(x)].scale
        return gptq_layer(layer, [Inputs(sums, seen.n_rows, step) for sums in seen.sums], nearest)

    @computed
    def _encodings(self) -> dict[Node, Encoding]:
        return self._encodings_of(self.places)

    def _encodings_of(self, places: ByteTensors) -> dict[Node, Encoding]:
        """An encoding for each group of tensors, of what was seen of all."""
        return {last: self._encoding(members) for last, members in places.members().items()}

    def _form_of(self, layers: Sequence[Layer]) -> ByteForm | RowForm:
        """The graph with these layers in bytes."""
        form = self.form
        if len(layers) == len(self.layers):
            return form
        if isinstance(form, RowForm):
            return replace(form, layers=layers)
        places = places_of(self.graph, layers)
        return replace(form, layers=layers, places=places, encodings=self._encodings_of(places))

    def _encoding(self, members: Sequence[Node]) -> Encoding:
        together = Histogram()
        for x in members:
            together.merge(self.seen[x])
        return encoding_of(OBSERVERS[self.scheme.observer](together, self.scheme.dtype), self.scheme.dtype)

    def graph_without(self, spared: Collection[Node]) -> Graph:
        """The quantised graph, in which the spared layers compute in f32."""
        layers = [x for x in self.layers if x.node not in spared]
        corrected = [x for x in layers if not x.is_scan] if self.scheme.bias_correction else []
        corrections = {x.node: np.asarray(self.errors[x.node].shift) for x in corrected}
        return self._form_of(layers).inserted(corrections)

    def spare_until(
        self, spared: Mapping[Node, str], max_drop: float, evaluate: Evaluate, tell: Tell
    ) -> tuple[dict[Node, str], float, float]:
        """The layers to spare, with the scores of the f32 model and of the quantised one.

        The number of layers doubles until the drop holds, and is then narrowed down by halves.
        """
        order = [x.node for x in self.layers if x.node not in spared]
        order.sort(key=self.model_sqnr_db.__getitem__)
        before = _score(evaluate, self.graph)
        scores: dict[int, float] = {}

        def holds(n: int) -> bool:
            made = self.graph_without({*spared, *order[:n]})
            scores[n] = _score(evaluate, made)
            tell("spare layers", n, len(order))
            return before - scores[n] <= max_drop

        too_few, enough = -1, 0
        while not holds(enough) and enough < len(order):
            too_few, enough = enough, min(max(2 * enough, 1), len(order))
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if holds(middle):
                enough = middle
            else:
                too_few = middle
        return {**spared, **dict.fromkeys(order[:enough], SPARED)}, before, scores[enough]

    def warnings(self) -> tuple[str, ...]:
        """Tensors of which the data say nothing."""
        return tuple(says_nothing(x, h.low) for x, h in self.seen.items() if h.low == h.high)

    def reports(self, spared: Mapping[Node, str], kept: Sequence[tuple[Node, str]]) -> tuple[LayerReport, ...]:
        """Every product of the graph in order."""
        by_node = {x.node: x for x in self.layers}
        reasons = dict(kept)
        return tuple(
            self._report(by_node[n], spared.get(n))
            if n in by_node
            else LayerReport(str(n.loc), n.op.name, str(n.types[0].dtype), reasons[n])
            for n in nodes_inside(self.graph)
            if n in by_node or n in reasons
        )

    def _report(self, layer: Layer, why_spared: str | None) -> LayerReport:
        node = layer.node
        error, form, x = self.errors.get(node), self.form, layer.operand
        beyond = self.seen[x].outside(form.encoding_of(x).covered) if isinstance(form, ByteForm) else None
        kind = f"{self.scheme.dtype} x i8" if why_spared is None else str(layer.result.dtype)
        why = self._note(layer) if why_spared is None else why_spared
        return LayerReport(
            layer.name, node.op.name, kind, why, None if error is None else error.sqnr_db, beyond,
            self.model_sqnr_db.get(node),
        )  # fmt: skip

    def _note(self, layer: Layer) -> str:
        """Says so where one scale for all weights would have been better than one for each channel.

        For the result on the data; where there are none, for the weights themselves.
        """
        error = self.errors.get(layer.node)
        if error is not None and error.other_noise is not None:
            other_db = decibels(error.signal, error.other_noise)
            return "" if error.sqnr_db >= other_db else f"one scale for all weights would have {other_db:.1f} dB"
        power = _squares(layer.weights)
        each_db, one_db = (
            decibels(power, _squares(found[layer.node].rounded() - layer.weights))
            for found in (self._weights[0], self._weights[-1])
        )
        if each_db >= one_db:
            return ""
        return f"weights: {each_db:.1f} dB per channel, {one_db:.1f} dB with one scale"


def _score(evaluate: Evaluate, graph: Graph) -> float:
    """What ``evaluate`` gives for the compiled graph; ``OptionError`` where that is no number."""
    found: Any = evaluate(compile_graph(graph))
    try:
        score = float(found)
    except (TypeError, ValueError):
        score = np.nan
    if np.isnan(score):
        raise OptionError(f"evaluate gave {found!r:.80}, which is no score", remedy="give a number, greater is better")
    return score


def _squares(x: Array) -> float:
    return float(np.square(x, dtype=np.float64).sum())
