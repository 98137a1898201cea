"""The pass ``scaled-products``: products with small floats that are widened and scaled read them as they are stored.

In: a graph as it is imported, before constants are folded. Out: the same products as ``scaled_matmul``, or as
``coded_matmul`` for floats of 4 bits, which are levels of a code book. Not its business: integers
(``forms.integers``, ``forms.coded``), weights in f16 or bf16, which have a type of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import Builder, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array, DType, product
from tilewright.graph.facts import array_of
from tilewright.graph.forms.coded import half_where_exact
from tilewright.ops.scaled import HALVES

CARRYING = (ops.reshape, ops.transpose, ops.expand, ops.slice, ops.cast)
"""What stands between a constant and the scales that a product reads: exporters spread scales over blocks."""


@dataclass(frozen=True)
class ScaledProducts(Pass):
    """``matmul(x, decode(w) * scales)`` becomes ``scaled_matmul(x, w, scales)``, also behind reshapes and a transpose.

    It does not fire where weights or scales are no constants, x is no f32, scales are not the same for whole groups of
    rows, each weight has a scale of its own, the format is another one than E4M3 and E5M2, or a weight is no number.
    """

    name: ClassVar[str] = "scaled-products"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, _TABLE, journal)


def scaled_product(b: Builder, x: Node, w: Array, scales: Array, dtype: DType) -> Node:
    """``x @ (w * scales)`` over the last axis of x f32[..., K]: w [K, N] as it is stored, scales f32[groups, N]."""
    rows = b(ops.reshape, x, shape=(product(x.shape[:-1]), x.shape[-1]))
    stored = half_where_exact(np.ascontiguousarray(scales))
    y = b(ops.scaled_matmul, rows, b.const(np.ascontiguousarray(w)), b.const(stored), dtype=dtype)
    return b(ops.reshape, y, shape=(*x.shape[:-1], y.shape[-1]))


def _product(b: Rewriting, node: Node) -> Node | None:
    x, w = node.inputs
    if x.dtype is not types.f32 or node.dtype is not types.f32 or w.type.rank != 2 or not w.type.is_static:
        return None
    is_turned = w.op is ops.transpose
    found = _stored(w.inputs[0] if is_turned else w)
    if found is None:
        return None
    (stored, scales), dtype = (a.T if is_turned else a for a in found[:2]), found[2]
    group = _group(scales)
    # A scale for each row of a column would be more than the weights are.
    if not stored.size or (group == 1 and len(scales) > 1):
        return None
    has_nan = any(np.isnan(row.view(dtype.numpy).astype(np.float32)).any() for row in found[0])
    return None if has_nan else scaled_product(b, x, stored, scales[::group], dtype)


def _stored(node: Node) -> tuple[Array, Array, DType] | None:
    """Weights u8 and scales f32, both of the node's shape, and the format that the weights are in."""
    shape = node.shape
    node = _unshaped(node)
    sides = [_unshaped(x) for x in node.inputs] if node.op is ops.mul else [node]
    at = next((k for k, x in enumerate(sides) if x.op is ops.decode and x.inputs[0].dtype in HALVES), None)
    if at is None or (w := array_of(sides[at].inputs[0])) is None:
        return None
    scales = known(node.inputs[1 - at]) if node.op is ops.mul else np.ones((), np.float32)
    if scales is None or scales.dtype != np.float32 or (node.op is ops.mul and node.inputs[at].shape != node.shape):
        return None
    spread = np.broadcast_to(scales, node.shape).reshape(shape)
    return w.view(np.uint8).reshape(shape), spread, sides[at].inputs[0].dtype


def _unshaped(node: Node) -> Node:
    while node.op is ops.reshape:
        node = node.inputs[0]
    return node


def _group(scales: Array) -> int:
    """The most rows f32[K, N] that share all scales with their neighbours, of a number that divides K."""
    changes = np.flatnonzero((scales[1:] != scales[:-1]).any(1)) + 1
    return gcd(len(scales), *map(int, changes))


def known(node: Node) -> Array | None:
    """The numbers of a constant, or of what only moves, spreads or widens one."""
    if (found := array_of(node)) is not None:
        return found
    if node.op not in CARRYING or not node.type.is_static:
        return None
    operand = known(node.inputs[0])
    return None if operand is None else np.asarray(node.op.reference([operand], node.attrs))


_TABLE = RuleTable(
    [Rule("scaled-product", (ops.matmul,), _product, "scaled_matmul is the product with the widened, scaled matrix")]
)
