"""Where a graph is quantised: which products multiply bytes, and which tensors are bytes between them.

In: a graph in f32. Out: its layers with the reasons of those that stay, and groups of tensors that share a scale.
Not its business: scales (``encoding``), and writing the quantised graph (``insert``).

A tensor is stored in bytes where a layer multiplies it. Where an op only moves numbers or takes the greatest of them,
its operand has the same scale as its result, so that the op works on bytes; a sum or a mean between quantised tensors
reads bytes of their own scale. Whoever else reads such a tensor still reads the numbers that were not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import known_at_least
from tilewright.core.estimates import COPIED_ROWS
from tilewright.core.graph import CONST, PROJ, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.types import Array
from tilewright.graph.facts import array_of, nodes_inside
from tilewright.graph.forms.affine import result_axis
from tilewright.graph.forms.scans import SCANS
from tilewright.graph.quantize.recurrent import RECURRENT, state_weights, why_whole

MOVING = (
    ops.reshape, ops.transpose, ops.slice, ops.concat, ops.reverse, ops.roll, ops.tile, ops.expand,
    ops.depth_to_space, ops.space_to_depth, ops.gather, ops.pad,
)  # fmt: skip
"""Ops whose results are numbers of their operands; ``pad`` adds zeros."""
MOST_PRODUCT = (int(types.u8.max) + 1) * -int(types.i8.min)
"""No product of two bytes is larger, with a zero point taken off."""
PRODUCTS = (ops.matmul, ops.conv, ops.conv_transpose, ops.einsum, ops.grouped_matmul, *SCANS, *RECURRENT)


@dataclass(frozen=True)
class Layer:
    """A product with constant weights; ``axis`` is their axis of output channels.

    ``operand`` is what it multiplies, ``result`` what it gives. Of a scan over time both are its states.
    """

    node: Node
    weights: Array
    axis: int
    operand: Node
    result: Node

    @property
    def name(self) -> str:
        """Where it comes from."""
        return str(self.node.loc)

    @property
    def is_scan(self) -> bool:
        """Does it multiply what it made in the step before?"""
        return self.node.op in SCANS

    @property
    def is_matrix(self) -> bool:
        """Does it multiply rows of its operand by one matrix?"""
        return self.is_scan or (self.node.op is ops.matmul and self.weights.ndim == 2)

    @property
    def result_axis(self) -> int:
        """The axis of its result along which its weights have a number each."""
        return self.result.type.rank - 1 if self.is_scan else result_axis(self.node)


def kept_reason(node: Node) -> str | None:
    """Why a product can't multiply bytes; None for one that can."""
    if node.op in RECURRENT:
        return why_whole(node) or "it was not taken apart"
    if node.op in SCANS:
        return None if state_weights(node) is not None else "it multiplies no f32 by constant weights"
    if node.op not in (ops.matmul, ops.conv):
        return f"{node.op.name} has no form in integers"
    x, w = node.inputs
    if {x.dtype, w.dtype, node.dtype} != {types.f32}:
        return f"it computes in {node.dtype}, and only f32 is quantised"
    if w.op is not CONST:
        return "both operands are made by the call: there are no weights"
    if x.op is CONST:
        return "both operands are constants"
    return None


def layers_of(graph: Graph) -> tuple[list[Layer], list[tuple[Node, str]]]:
    """The layers that can be quantised, in order, and the products that can't with the reason."""
    layers, kept, outside = [], [], set(graph.nodes())
    for node in nodes_inside(graph):
        if node.op not in PRODUCTS:
            continue
        reason = kept_reason(node) if node in outside else "it stands inside a loop or a branch of the model"
        if reason is not None:
            kept.append((node, reason))
            continue
        weights = array_of(node.inputs[1])
        assert weights is not None
        x, y = node.inputs[0], node
        if node.op in SCANS:
            x = y = graph.pool.results(node)[0]
        layers.append(Layer(node, weights, 0 if node.op is ops.conv else weights.ndim - 1, x, y))
    return layers, kept


def kept_by_calls(layer: Layer) -> str | None:
    """Why a layer can't multiply rows or images whose scales the call chooses; None for one that can."""
    is_window = layer.node.op is ops.conv
    if not is_window and layer.weights.ndim != 2:
        return "its weights are a batch of matrices, and only rows of one matrix are rounded by a call"
    if is_window and any(not known_at_least(n, 0) for pair in layer.node.attrs["pads"] for n in pair):
        return "its padding crops, or is decided by the call"
    n_terms = layer.weights.size // layer.weights.shape[layer.axis] if layer.weights.size else 0
    if is_window and not _pays_rounding(layer):
        return "rounding what it reads costs more than so few products of each number save"
    if n_terms * MOST_PRODUCT > types.i32.max:
        return f"sums of {n_terms} products of bytes might not fit 32 bits"
    return None


def _pays_rounding(layer: Layer) -> bool:
    """Does a convolution multiply each number often enough, and sum over several channels, as groups of bytes do?"""
    groups: int = layer.node.attrs["groups"]
    per_group = layer.weights.shape[1]
    n_reading = layer.weights.size // max(groups * per_group, 1)
    return bool((groups == 1 or per_group > 1) and n_reading >= COPIED_ROWS)


def shares_scale(node: Node) -> bool:
    """Is the byte of each element of the result a byte of an operand, when both have one scale?"""
    if node.op is ops.pad:
        value = array_of(node.inputs[1])
        return node.attrs["mode"] != "constant" or (value is not None and not value.any())
    if node.op is ops.resize:
        inside = node.attrs["coordinate_mode"] != "tf_crop_and_resize"
        return bool(node.attrs["mode"] == "nearest" and inside)
    return node.op is ops.max_pool or node.op in MOVING


def _averages(node: Node) -> bool:
    """Does the op compute means or sums of operands that should be stored in bytes, like its result?"""
    if node.op is ops.add:
        return all(x.op is not CONST and x.shape == node.shape for x in node.inputs)
    return node.op in (ops.avg_pool, ops.reduce_mean) or node.op is ops.resize


@dataclass
class ByteTensors:
    """Groups of tensors that have one scale: ``group[tensor]`` is the last tensor of its group.

    ``readers`` are the nodes that read the bytes of tensors which are stored in bytes.
    """

    group: dict[Node, Node] = field(default_factory=dict)
    readers: set[Node] = field(default_factory=set)

    def members(self) -> dict[Node, list[Node]]:
        """The tensors of each group, by its last tensor."""
        found: dict[Node, list[Node]] = {}
        for tensor in self.group:
            found.setdefault(self.group_of(tensor), []).append(tensor)
        return found

    def group_of(self, tensor: Node) -> Node:
        """The tensor that names the group of a tensor."""
        while self.group[tensor] is not tensor:
            tensor = self.group[tensor]
        return tensor

    def add(self, tensor: Node) -> None:
        """A tensor with a scale of its own, unless it has one already."""
        self.group.setdefault(tensor, tensor)

    def join(self, tensor: Node, other: Node) -> None:
        """``tensor`` gets the scale of ``other``, with whatever shares it already."""
        if tensor in self.group:
            self.group[self.group_of(tensor)] = self.group_of(other)
        else:
            self.group[tensor] = self.group_of(other)


def _share_states(places: ByteTensors, scan: Node, states: Node) -> None:
    """States have one scale, those that the scan begins with, too: zeros have a byte at any scale."""
    places.add(states)
    first = scan.inputs[scan.op.operands.index("h0")]
    numbers = array_of(first)
    if numbers is None or numbers.any():
        places.join(first, states)


def places_of(graph: Graph, layers: Sequence[Layer]) -> ByteTensors:
    """The tensors of ``graph`` that are stored in bytes when these layers multiply bytes."""
    places = ByteTensors()
    multiplied = {layer.node: layer for layer in layers}
    stored: set[Node] = set()  # tensors in bytes, and what a function of one operand makes them of
    for node in reversed(graph.nodes()):  # readers before what they read
        if node in multiplied and multiplied[node].is_scan:
            _share_states(places, node, multiplied[node].operand)
        if len(node.types) > 1 or node.op is PROJ:
            continue  # several results: recurrences, top-k; what they read stays as it is
        is_stored = node in places.group or node in stored
        real = [x for x in node.inputs if x.dtype is types.f32 and x.op is not CONST]
        if node in multiplied:
            places.add(node.inputs[0])
        elif node in places.group and shares_scale(node):
            for x in real:
                places.join(x, node)
        elif is_stored and _averages(node):
            for x in real:
                places.add(x)
        elif is_stored and Trait.ELEMENTWISE in node.op.traits:
            stored.update(real[: len(real) == 1])
        else:
            continue
        places.readers.add(node)
    return places
