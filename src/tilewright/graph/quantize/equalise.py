"""Cross-layer equalisation: channels get a size at which both layers' weights share a range (Nagel et al., 2019).

In: a graph and its layers. Out: a graph that is equal but for rounding, in which a channel's weights before it and
behind it are of one size. Not its business: quantising, and channels of activations (``smooth``).

Between a layer and the next, a channel may be divided by any positive number and its weights in the next layer be
multiplied by it, if what lies between is positively homogeneous: ``f(a x) = a f(x)`` for ``a > 0``. With the number
``sqrt(r1 / r2)``, where ``r1`` and ``r2`` are the greatest weights that make the channel and that read it, both have
the range ``sqrt(r1 r2)`` (Data-Free Quantization, section 4.1). Then one scale for all channels of a tensor, and one
for all weights of a layer, leaves no channel with few steps. A chain of layers is gone through until nothing changes.

A bias counts as a weight, of an input that is 1. Else a channel that is hardly more than its bias, as batch norms leave
some, would be made so large that its tensor's scale leaves all other channels few steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.effort import EFFORT
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.types import Array, product
from tilewright.graph.facts import array_of
from tilewright.graph.forms.affine import along, result_axis, spread
from tilewright.graph.quantize.places import Layer
from tilewright.ops.convolution import channel_axis

PASSED = (ops.relu, ops.leaky_relu, ops.avg_pool, ops.max_pool)
"""Each element of the result is made of one channel, and grows with it by any positive factor."""


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two layers and the biases between them, by the axis of the channels; nothing else reads what is between.

    The second layer reads ``repeat`` numbers of each channel as channels of its own, where they were laid out flat.
    """

    first: Layer
    second: Layer
    biases: Mapping[Node, int]
    repeat: int


def equalised(graph: Graph, layers: Sequence[Layer]) -> Graph:
    """The graph with channels between its layers divided by positive numbers, and their readers' weights multiplied."""
    chained = {x.node: x for x in layers if x.node.op is ops.conv or (x.is_matrix and not x.is_scan)}
    pairs = _pairs(graph, chained)
    weights = {node: np.array(x.weights, np.float64, order="C") for node, x in chained.items()}
    added = {pair: _added(pair) for pair in pairs}
    divisors = {pair: np.ones(pair.first.weights.shape[pair.first.axis]) for pair in pairs}
    for _ in range(EFFORT.attempts):
        change = 0.0
        for pair in pairs:
            first, second = pair.first.node, pair.second.node
            made = np.maximum(_sizes(weights[first], pair.first.axis), added[pair] / divisors[pair])
            readers = _by_input(pair.second, weights[second])
            read = np.abs(readers).max(axis=(1, 3)).reshape(-1, pair.repeat).max(axis=1)
            found = _divisors(made, read)
            weights[first] /= spread(found, pair.first.axis, weights[first].ndim)
            readers *= np.repeat(found, pair.repeat).reshape(len(readers), 1, -1, 1)
            divisors[pair] *= found
            change = max(change, float(np.abs(np.log(found)).max(initial=0)))
        if change < np.finfo(np.float32).eps:
            break
    return _rebuilt(graph, pairs, weights, divisors)


def _sizes(weights: Array, axis: int) -> Array:
    """The greatest magnitude at each place of an axis."""
    found: Array = np.abs(weights).max(axis=tuple(k for k in range(weights.ndim) if k != axis), initial=0)
    return found


def _added(pair: _Pair) -> Array:
    """The greatest magnitude that a bias adds to each channel."""
    found = np.zeros(pair.first.weights.shape[pair.first.axis])
    for node, axis in pair.biases.items():
        vectors = (along(c, node.type.rank, axis) for c in node.inputs)
        found = np.maximum(found, *(np.abs(v) for v in vectors if v is not None))
    return found


def _by_input(layer: Layer, weights: Array) -> Array:
    """The weights themselves as [groups, results of a group, channels read of a group, taps]."""
    if layer.node.op is ops.matmul:
        return weights.T[None, :, :, None]
    groups = layer.node.attrs["groups"]
    return weights.reshape(groups, weights.shape[0] // groups, weights.shape[1], -1)


def _divisors(made: Array, read: Array) -> Array:
    """``sqrt(made / read)``; 1 for channels that nothing makes or nothing reads."""
    with np.errstate(all="ignore"):
        root = np.sqrt(made / read)
    found: Array = np.where(np.isfinite(root) & (root > 0), root, 1.0)
    return found


def _pairs(graph: Graph, layers: Mapping[Node, Layer]) -> list[_Pair]:
    """Every two layers with nothing but what is homogeneous between them, in order of the second."""
    nodes = graph.nodes()
    readers = Counter(x for node in nodes for x in node.inputs) + Counter(graph.outputs)
    found = [_pair_before(layer, layers, readers) for layer in layers.values()]
    return [pair for pair in found if pair is not None]


def _pair_before(second: Layer, layers: Mapping[Node, Layer], readers: Mapping[Node, int]) -> _Pair | None:
    """The pair that a layer ends, or None."""
    last, biases, repeat = second.node, dict[Node, int](), 1
    node = last.inputs[0]
    axis = node.type.rank - 1 if last.op is ops.matmul else channel_axis(last.attrs["layout"], node.type.rank)
    while readers[node] == 1 and node.inputs:
        if node in layers:
            return _Pair(layers[node], second, biases, repeat) if result_axis(node) == axis else None
        x = node.inputs[0]
        if node.op is ops.add:
            constants = [k for k, c in enumerate(node.inputs) if along(c, node.type.rank, axis) is not None]
            x = node.inputs[1 - constants[0]] if constants else x
            if len(constants) != 1 or x.shape != node.shape:
                return None
            biases[node] = axis
        elif node.op is ops.reshape:
            side_by_side = _repeated(x, node, axis)
            if side_by_side is None or repeat != 1 or biases:
                return None
            repeat = side_by_side
        elif not _passes(node, axis):
            return None
        node = x
    return None


def _passes(node: Node, axis: int) -> bool:
    """Has the op channels along the axis, and does it scale with them?"""
    layout = node.attrs.get("layout")  # of pools
    return node.op in PASSED and (layout is None or channel_axis(layout, node.type.rank) == axis)


def _repeated(x: Node, node: Node, axis: int) -> int | None:
    """How many numbers of each channel lie side by side where a reshape lays all behind channels into the last axis."""
    rest = x.shape[axis:]
    if axis != node.type.rank - 1 or x.shape[:axis] != node.shape[:-1] or not all(map(is_known, rest)):
        return None
    found = product(rest[1:])
    return found if is_known(found) and product(rest) == node.shape[axis] else None


def _rebuilt(
    graph: Graph, pairs: Sequence[_Pair], weights: Mapping[Node, Array], divisors: Mapping[_Pair, Array]
) -> Graph:
    """The graph with these weights, and with biases divided as what they are added to."""
    pool = graph.pool
    changed = {x.node for pair in pairs for x in (pair.first, pair.second)}
    biases = {node: (pair, axis) for pair in pairs for node, axis in pair.biases.items()}
    made: dict[Node, Node] = {}
    for node in graph.nodes():
        inputs = [made[x] for x in node.inputs]
        if node in changed:
            inputs[1] = pool.const(weights[node].astype(np.float32))
        elif node in biases:
            pair, axis = biases[node]
            (k,) = [k for k, c in enumerate(node.inputs) if c.op is CONST]
            bias = array_of(node.inputs[k])
            assert bias is not None
            inputs[k] = pool.const((bias / spread(divisors[pair], axis, node.type.rank)).astype(np.float32))
        made[node] = pool.with_inputs(node, tuple(inputs))
    return graph.with_outputs([made[n] for n in graph.outputs])
