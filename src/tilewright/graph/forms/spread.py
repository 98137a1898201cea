"""Constant weights times constant scales that are spread over groups of them, as exporters spell it.

In: the node that a product reads. Out: the weights as they are stored and a scale for each. Not its business: which
product reads them then (``forms.scaled``, ``forms.coded``).
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

import numpy as np

from tilewright import ops
from tilewright.core.dims import numbers
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.graph.facts import array_of

CARRYING = (ops.reshape, ops.transpose, ops.expand, ops.slice, ops.cast)
"""What stands between a constant and the scales that a product reads: exporters spread scales over blocks."""
Stored = Callable[[Node], Array | None]
"""The stored numbers of a node that widens a constant; None for any other node."""


def spread_of(node: Node, stored: Stored) -> tuple[Array, Array] | None:
    """Weights, and scales f32 or a 1 where there are none, both in the node's shape; also behind reshapes."""
    shape, product = numbers(node.shape), unshaped(node)
    if product.op is not ops.mul:
        found = stored(product)
        return None if found is None else (found.reshape(shape), np.broadcast_to(np.float32(1), shape))
    for at in (0, 1):
        weights = stored(unshaped(product.inputs[at]))
        scales = None if weights is None else known(product.inputs[1 - at])
        # The weights are not spread themselves: each is there once.
        if weights is None or scales is None or scales.dtype != np.float32 or product.inputs[at].shape != product.shape:
            continue
        return weights.reshape(shape), np.broadcast_to(scales, numbers(product.shape)).reshape(shape)
    return None


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
