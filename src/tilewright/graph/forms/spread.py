"""Constant weights times constant scales that are spread over groups of them, as exporters spell it.

In: the node that a product reads. Out: the weights as they are stored and a scale for each, in two levels where it is
spelled so. Not its business: which product reads them then (``forms.scaled``, ``forms.coded``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd
from typing import NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import numbers
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.graph.facts import array_of

CARRYING = (ops.reshape, ops.transpose, ops.expand, ops.slice, ops.cast)
"""What stands between a constant and the scales that a product reads: exporters spread scales over blocks."""
Stored = Callable[[Node], Array | None]
"""The stored numbers of a node that widens a constant; None for any other node."""


class WholeScales(NamedTuple):
    """Scales i8 times units f32, both in one shape."""

    whole: Array
    units: Array


def whole_scales_of(node: Node) -> WholeScales | None:
    """Scales that whole numbers of bytes count, in a node's shape: widened and multiplied, or dequantised around 0."""
    made = node
    while made.op in (ops.reshape, ops.expand) and made.type.is_static:
        made = made.inputs[0]
    found = (_dequantised(made) or _multiplied(made)) if made.type.is_static else None
    return None if found is None else WholeScales(*(_carried(node, made, a) for a in found))


def _carried(node: Node, made: Node, numbers_of_made: Array) -> Array:
    """What reshapes and expansions between ``made`` and ``node`` make of such numbers."""
    if node is made:
        return numbers_of_made
    return np.asarray(node.op.reference([_carried(node.inputs[0], made, numbers_of_made)], node.attrs))


def _dequantised(node: Node) -> tuple[Array, Array] | None:
    """Bytes with their scales, from ``dequantize_linear`` in blocks along one axis or the other."""
    if node.op is not ops.dequantize_linear or node.inputs[0].dtype is not types.i8 or not node.attrs["block_size"]:
        return None
    codes, units, zeros = (known(x) for x in node.inputs)
    if codes is None or units is None or zeros is None or zeros.any():
        return None
    spread = np.repeat(units.astype(np.float32), node.attrs["block_size"], node.attrs["axis"])
    return (codes, spread) if spread.shape == codes.shape else None


def _multiplied(node: Node) -> tuple[Array, Array] | None:
    """Bytes that are widened and multiplied by constant units."""
    if node.op is not ops.mul or node.dtype is not types.f32:
        return None
    for at in (0, 1):
        wide = unshaped(node.inputs[at])
        is_whole = wide.op is ops.cast and wide.inputs[0].dtype is types.i8
        whole, units = known(node.inputs[at]) if is_whole else None, known(node.inputs[1 - at])
        if whole is not None and units is not None:
            shape = numbers(node.shape)
            return np.broadcast_to(whole, shape).astype(np.int8), np.broadcast_to(units, shape)
    return None


def spread_of(node: Node, stored: Stored) -> tuple[Array, Array] | None:
    """Weights, and scales f32 or a 1 where there are none, both in the node's shape; also behind reshapes."""
    shape, product = numbers(node.shape), unshaped(node)
    if product.op is not ops.mul:
        found = stored(product)
        return None if found is None else (found.reshape(shape), np.broadcast_to(np.float32(1), shape))
    for weights, beside in _factors(product, stored):
        scales = known(beside)
        if scales is not None and scales.dtype == np.float32:
            return weights.reshape(shape), np.broadcast_to(scales, numbers(product.shape)).reshape(shape)
    return None


def spread_whole_of(node: Node, stored: Stored) -> tuple[Array, WholeScales] | None:
    """The same where scales are whole numbers times units: both parts in the node's shape."""
    shape, product = numbers(node.shape), unshaped(node)
    for weights, beside in _factors(product, stored):
        if (found := whole_scales_of(beside)) is not None:
            spread = (np.broadcast_to(a, numbers(product.shape)).reshape(shape) for a in found)
            return weights.reshape(shape), WholeScales(*spread)
    return None


def _factors(product: Node, stored: Stored) -> Iterator[tuple[Array, Node]]:
    """Weights that a node multiplies, each of which is there once, and by what it multiplies them."""
    for at in (0, 1) if product.op is ops.mul else ():
        weights = stored(unshaped(product.inputs[at]))
        if weights is not None and product.inputs[at].shape == product.shape:
            yield weights, product.inputs[1 - at]


def unshaped(node: Node) -> Node:
    """What reshapes pass on."""
    while node.op is ops.reshape:
        node = node.inputs[0]
    return node


def group_of(scales: Array) -> int:
    """The most rows f32[K, N] that share all scales with their neighbours, of a number that divides K; 1 of none."""
    changes = np.flatnonzero((scales[1:] != scales[:-1]).any(1)) + 1
    return max(gcd(len(scales), *map(int, changes)), 1)


def known(node: Node) -> Array | None:
    """The numbers of a constant, or of what only moves, spreads or widens one."""
    if (found := array_of(node)) is not None:
        return found
    if node.op not in CARRYING or not node.type.is_static:
        return None
    operand = known(node.inputs[0])
    return None if operand is None else np.asarray(node.op.reference([operand], node.attrs))
