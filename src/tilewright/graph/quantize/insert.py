"""Quantised graphs: tensors are rounded to integers where ``places`` says, and weights are stored as bytes.

In: a graph in f32, its layers, places and encodings. Out: a graph with ``quantize_linear`` and ``dequantize_linear``
around what is stored in integers. Not its business: how those become integer products (``graph.forms.integers``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Builder, Graph, Node
from tilewright.core.types import Array
from tilewright.graph.forms.affine import along, result_axis, spread
from tilewright.graph.quantize.encoding import ByteWeights, Encoding
from tilewright.graph.quantize.places import ByteTensors, Layer
from tilewright.ops.over_time import looped


def dequantised(b: Builder, x: Node, encoding: Encoding) -> Node:
    """``x`` rounded to the integers of an encoding."""
    scale, zero = b.const(encoding.scale, types.f32), b.const(encoding.zero, encoding.dtype)
    stored = b(ops.quantize_linear, x, scale, zero, dtype=encoding.dtype, axis=0)
    return b(ops.dequantize_linear, stored, scale, zero, axis=0)


def dequantised_weights(b: Builder, weights: ByteWeights) -> Node:
    """Stored bytes of weights as f32."""
    return _dequantised(b, weights.numbers, weights.scale, weights.axis)


def _dequantised(b: Builder, numbers: Array, scale: Array, axis: int = 0) -> Node:
    zero = b.const(np.zeros(scale.shape, numbers.dtype))
    return b(ops.dequantize_linear, b.const(numbers), b.const(scale), zero, axis=axis)


@dataclass(frozen=True)
class ByteForm:
    """A graph with what its layers and tensors are in bytes.

    ``encodings`` has one for each group of tensors, ``weights`` those of each layer by its node.
    """

    graph: Graph
    layers: Sequence[Layer]
    places: ByteTensors
    encodings: Mapping[Node, Encoding]
    weights: Mapping[Node, ByteWeights]

    def encoding_of(self, tensor: Node) -> Encoding:
        """How a tensor is stored that is stored in bytes."""
        return self.encodings[self.places.group_of(tensor)]

    def layer(self, b: Builder, node: Node, of: Layer) -> tuple[Node, ...]:
        """The results of a node over a rounded operand and rounded weights, those of the layer ``of``."""
        encoding, weights = self.encoding_of(of.operand), self.weights[of.node]
        if of.is_scan:
            return looped(b, node, partial(_product_of_states, encoding, weights))
        x = dequantised(b, node.inputs[0], encoding)
        return (b(node.op, x, dequantised_weights(b, weights), **node.attrs),)

    def inserted(self, corrections: Mapping[Node, Array]) -> Graph:
        """The graph with its layers in bytes; ``corrections`` are added to their biases, a number for each channel."""
        return _inserted(self, corrections)


def _product_of_states(
    encoding: Encoding, weights: ByteWeights, b: Builder, state: Node, first: Dim, last: Dim
) -> Node:
    """A rounded state by some columns of rounded weights."""
    return b(ops.matmul, dequantised(b, state, encoding), dequantised_weights(b, weights.columns(first, last)))


def _inserted(form: ByteForm, corrections: Mapping[Node, Array]) -> Graph:
    graph, pool = form.graph, form.graph.pool
    real: dict[Node, Node] = {}
    rounded: dict[Node, Node] = {}
    multiplied = {layer.node: layer for layer in form.layers}

    def operand(reader: Node, x: Node) -> Node:
        if x not in form.places.group or reader not in form.places.readers:
            return real[x]
        if x not in rounded:  # all readers share one rounding, as they will share the bytes
            rounded[x] = dequantised(Builder(pool, x.loc), real[x], form.encoding_of(x))
        return rounded[x]

    nodes = graph.nodes()
    biases = {n: found for n in nodes if (found := _biased(n, multiplied)) is not None}
    with_bias = {layer.node for layer, _ in biases.values()}
    for node in nodes:
        if node in real:  # one of the results of a scan
            continue
        inputs = [operand(node, x) for x in node.inputs]
        b = Builder(pool, node.loc)
        if node in multiplied and multiplied[node].is_scan:
            results = form.layer(b, pool.with_inputs(node, tuple(inputs)), multiplied[node])
            real.update(zip(pool.results(node), results, strict=True))
            continue
        if node in multiplied:
            inputs[1] = dequantised_weights(b, form.weights[node])
        elif node in biases:
            layer, position = biases[node]
            product = layer.node
            scale = np.float32(form.encoding_of(layer.operand).scale) * form.weights[product].scale
            inputs[position] = _bias(b, node.inputs[position], product, scale, corrections.get(product))
        made = pool.with_inputs(node, tuple(inputs))
        # A layer without a bias has nowhere to hide its correction, which becomes an addition of its own.
        lost = node in multiplied and node in corrections and node not in with_bias
        real[node] = b(ops.add, made, b.const(_spread(node, corrections[node]))) if lost else made
    return graph.with_outputs([real[n] for n in graph.outputs])


def _biased(node: Node, layers: Mapping[Node, Layer]) -> tuple[Layer, int] | None:
    """The layer that a sum adds a constant for each channel to, and the position of the constant."""
    if node.op is not ops.add:
        return None
    for position, other in ((1, 0), (0, 1)):
        product, bias = node.inputs[other], node.inputs[position]
        if product in layers and bias.op is CONST and _vector(product, bias) is not None:
            return layers[product], position
    return None


def _vector(product: Node, bias: Node) -> Array | None:
    """A bias as one number for each channel."""
    found = along(bias, product.type.rank, result_axis(product))
    n = product.shape[result_axis(product)]
    return found if found is not None and found.shape == (n,) else None


def _spread(product: Node, vector: Array) -> Array:
    """A number for each channel in a shape that broadcasts with the product."""
    return spread(vector.astype(np.float32), result_axis(product), product.type.rank)


def _bias(b: Builder, bias: Node, product: Node, scale: Array, correction: Array | None) -> Node:
    """A bias in i32 steps of the sums that it is added to; in f32 where such a number of steps is no i32."""
    vector = _vector(product, bias)
    assert vector is not None
    if correction is not None:
        vector = vector + correction
    steps = np.rint(vector / scale.astype(np.float64))
    if np.abs(steps).max(initial=0) > types.i32.max:
        return b.const(_spread(product, vector))
    each = np.broadcast_to(scale, vector.shape).astype(np.float32)
    found = _dequantised(b, steps.astype(np.int32), each if scale.ndim else scale)
    shape = _spread(product, vector).shape
    return found if found.shape == shape else b(ops.reshape, found, shape=shape)
