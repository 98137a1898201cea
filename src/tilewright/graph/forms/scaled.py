"""The pass ``scaled-products``: products with small floats that are widened and scaled read them as they are stored.

In: a graph as it is imported, before constants are folded. Out: the same products as ``scaled_matmul``. Not its
business: integers (``forms.integers``, ``forms.coded``), weights in f16 or bf16, which have a type of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from tilewright.graph.forms.spread import group_of, spread_of
from tilewright.ops.scaled import HALVES


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
    w = w.inputs[0] if is_turned else w
    found = spread_of(w, _floats)
    if found is None:
        return None
    floats, scales = (a.T if is_turned else a for a in found)
    group = group_of(scales)
    # A scale for each row of a column would be more than the weights are.
    if not floats.size or (group == 1 and len(scales) > 1):
        return None
    if any(np.isnan(row.astype(np.float32)).any() for row in floats):
        return None
    return scaled_product(b, x, floats.view(np.uint8), scales[::group], types.dtype_of(floats.dtype))


def _floats(node: Node) -> Array | None:
    """A constant in a float of 8 bits that is decoded."""
    return array_of(node.inputs[0]) if node.op is ops.decode and node.inputs[0].dtype in HALVES else None


_TABLE = RuleTable(
    [Rule("scaled-product", (ops.matmul,), _product, "scaled_matmul is the product with the widened, scaled matrix")]
)
