"""Products whose left operand is rounded row by row, or image by image, with scales that each call chooses.

In: a graph in f32, its layers, weights in bytes. Out: a graph whose layers multiply bytes. No data are needed.
Not its business: scales that data chose (``insert``), which instruction multiplies bytes.

A row is what one result sums over, a token of a transformer. Its scale and zero point follow from its least and
greatest number by the formula of ``encoding_of``, so an outlier costs its own row precision and no other. What the
results of a convolution sum over are windows that share numbers, so an image of a batch is the least that can have a
scale of its own; its padding is rounded with it. The product is one of integers from the start, exact on every machine:
``sum (q - zero) w`` is ``sum q w - zero * sum w``, and the last sum is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import is_padded
from tilewright.core.expr import Dim
from tilewright.core.graph import Attrs, AttrValue, Builder, Graph, Node
from tilewright.core.types import Array, DType, product
from tilewright.graph.forms.affine import result_axis, spread
from tilewright.graph.quantize.encoding import ByteWeights
from tilewright.graph.quantize.places import Layer
from tilewright.ops.convolution import spatial_axes
from tilewright.ops.over_time import looped


class _Rows(NamedTuple):
    """Bytes [M, K], and a scale f32[M, 1] and a zero point i32[M, 1] for each row; of images, all in their rank."""

    stored: Node
    scale: Node
    zero: Node


@dataclass(frozen=True)
class RowForm:
    """A graph whose ``layers`` multiply rows of ``dtype`` by the ``weights`` of their nodes.

    ``shifts`` has, of operands whose columns are moved before they are rounded, by which shares of a step.
    """

    graph: Graph
    layers: Sequence[Layer]
    dtype: DType
    weights: Mapping[Node, ByteWeights]
    shifts: Mapping[Node, Array]

    def layer(self, b: Builder, node: Node, of: Layer) -> tuple[Node, ...]:
        """The results of a node in bytes, by the weights of the layer ``of``."""
        if of.is_scan:
            return looped(b, node, partial(self._product_of_states, self.weights[of.node]))
        return (self._multiplied(b, node, of, node.inputs[0], {}),)

    def _multiplied(
        self, b: Builder, node: Node, of: Layer, x: Node, rounded: dict[tuple[Node, AttrValue], _Rows]
    ) -> Node:
        """A product or a convolution of ``x``, which others that read it with equal padding share in bytes."""
        is_window = node.op is ops.conv
        key = (x, node.attrs["pads"] if is_window else ())
        if key not in rounded:
            rounded[key] = (
                _rounded_images(b, x, node.attrs, self.dtype)
                if is_window
                else _rounded(b, x, self.dtype, self.shifts.get(of.operand))
            )
        if is_window:
            return _convolution(b, rounded[key], self.weights[of.node], node)
        return _product(b, rounded[key], self.weights[of.node], node.shape)

    def _product_of_states(self, weights: ByteWeights, b: Builder, state: Node, first: Dim, last: Dim) -> Node:
        """A state, each of its rows rounded, by some columns of weights."""
        shape = (state.shape[0], last - first)
        return _product(b, _rounded(b, state, self.dtype, None), weights.columns(first, last), shape)

    def inserted(self, corrections: Mapping[Node, Array]) -> Graph:
        """The graph with its layers in bytes; ``corrections`` are added to their results, a number for each column."""
        pool, multiplied = self.graph.pool, {layer.node: layer for layer in self.layers}
        made: dict[Node, Node] = {}
        rounded: dict[tuple[Node, AttrValue], _Rows] = {}
        for node in self.graph.nodes():
            if node in made:  # one of the results of a scan
                continue
            b, inputs = Builder(pool, node.loc), tuple(made[x] for x in node.inputs)
            if node not in multiplied:
                made[node] = pool.with_inputs(node, inputs)
                continue
            if multiplied[node].is_scan:
                results = self.layer(b, pool.with_inputs(node, inputs), multiplied[node])
                made.update(zip(pool.results(node), results, strict=True))
                continue
            y = self._multiplied(b, node, multiplied[node], inputs[0], rounded)
            if node in corrections:
                y = b(ops.add, y, b.const(spread(corrections[node].astype(np.float32), result_axis(node), y.type.rank)))
            made[node] = y
        return self.graph.with_outputs([made[n] for n in self.graph.outputs])


def _rounded(b: Builder, x: Node, dtype: DType, shifts: Array | None) -> _Rows:
    """The rows along the last axis of ``x``, each over the range of its numbers and 0, moved by ``shifts`` steps."""
    rows = b(ops.reshape, x, shape=(product(x.shape[:-1]), x.shape[-1]))
    zero, least, most = (b.const(float(n), types.f32) for n in (0, dtype.min, dtype.max))
    low = b(ops.minimum, b(ops.reduce_min, rows, axes=(1,), keepdims=True), zero)
    high = b(ops.maximum, b(ops.reduce_max, rows, axes=(1,), keepdims=True), zero)
    # The range of a finite row may be over the greatest float; half of it is not, and halves divide to the same bits.
    half = b.const(0.5, types.f32)
    reach = b(ops.sub, b(ops.mul, high, half), b(ops.mul, low, half))
    step = b(ops.div, reach, b.const(float(dtype.max - dtype.min) / 2, types.f32))
    scale = b(ops.maximum, step, b.const(float(np.finfo(np.float32).tiny), types.f32))  # a row of zeros has one, too
    inverse = b(ops.reciprocal, scale)
    point = b(ops.clamp, b(ops.round, b(ops.sub, least, b(ops.mul, low, inverse))), least, most)
    exact = b(ops.mul, rows, inverse)
    moved = exact if shifts is None else b(ops.add, exact, b.const(shifts))
    steps = b(ops.add, b(ops.round, moved), point)
    stored = b(ops.cast, b(ops.clamp, steps, least, most), dtype=dtype)
    return _Rows(stored, scale, b(ops.cast, point, dtype=types.i32))


def _rounded_images(b: Builder, x: Node, attrs: Attrs, dtype: DType) -> _Rows:
    """Each image of ``x``, with the padding of a convolution around it, over the range of its numbers and 0."""
    pads: list[Sequence[Dim]] = [(0, 0)] * x.type.rank
    for axis, own in zip(spatial_axes(attrs["layout"], x.type.rank), attrs["pads"], strict=True):
        pads[axis] = own
    padded = b(ops.pad, x, b.const(0.0, types.f32), pads=tuple(pads)) if is_padded(pads) else x
    found = _rounded(b, b(ops.reshape, padded, shape=(x.shape[0], product(padded.shape[1:]))), dtype, None)
    each = (x.shape[0], *[1] * (x.type.rank - 1))
    stored, scale, zero = (
        b(ops.reshape, part, shape=shape) for part, shape in zip(found, (padded.shape, each, each), strict=True)
    )
    return _Rows(stored, scale, zero)


def _convolution(b: Builder, x: _Rows, weights: ByteWeights, node: Node) -> Node:
    """The convolution of ``stored - zero``, which is padded already, by the scales of channels and images."""
    attrs = {**node.attrs, "pads": ((0, 0),) * len(node.attrs["pads"]), "out_dtype": types.i32}
    sums = b(ops.conv, x.stored, b.const(weights.numbers), **attrs)
    axis, rank = result_axis(node), node.type.rank
    others = tuple(range(1, weights.numbers.ndim))
    of_channels = b.const(spread(weights.numbers.sum(axis=others, dtype=np.int32), axis, rank))
    scale = weights.scale if not weights.scale.ndim else spread(weights.scale, axis, rank)
    return _scaled(b, sums, x, of_channels, scale)


def _scaled(b: Builder, sums: Node, x: _Rows, of_columns: Node, scale: Array) -> Node:
    """Sums of ``stored * numbers`` as floats; ``of_columns`` are the sums of numbers, whose scales are ``scale``."""
    steps = b(ops.sub, sums, b(ops.mul, x.zero, of_columns))
    # Weights are no extremes, rows may be: by the column's scale first, what the result can hold is not exceeded.
    of_weights = b(ops.mul, b(ops.cast, steps, dtype=types.f32), b.const(scale))
    return b(ops.mul, of_weights, x.scale)


def _product(b: Builder, x: _Rows, weights: ByteWeights, shape: Sequence[Dim]) -> Node:
    """``(stored - zero) @ numbers``, in integers, by the scales of columns and rows; of so many rows and columns."""
    sums = b(ops.matmul, x.stored, b.const(weights.numbers), out_dtype=types.i32)
    of_columns = b.const(weights.numbers.sum(axis=0, dtype=np.int32))
    return b(ops.reshape, _scaled(b, sums, x, of_columns, weights.scale), shape=tuple(shape))
