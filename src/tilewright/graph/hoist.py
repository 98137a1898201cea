"""The pass ``hoist-arithmetic``: arithmetic and transposes move above a reshape of a product, to be its epilogue.

In: a graph. Out: an equal graph. Not its business: fusion itself (``partition.fuse``), other moves of reshapes
(``graph.canonicalize``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright import ops
from tilewright.core.graph import Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import product

CHAIN = 6
"""How many steps of arithmetic after a product still count as its epilogue."""


@dataclass(frozen=True)
class HoistArithmetic(Pass):
    """``f(reshape(p), q)`` becomes ``reshape(f(p, reshape(q)))`` when ``p`` is a product or arithmetic on one.

    Likewise ``transpose(reshape(p))`` where the reshape merges two dimensions. ``q`` may have the same shape as the
    result, one element, or only the last dimension when the reshape keeps it. It does not fire where ``p`` is something
    else, where an operand is broadcast in another way, or where ``q`` is a product itself: one of two has to be
    reshaped, and the arithmetic stays with ``q``.
    """

    name: ClassVar[str] = "hoist-arithmetic"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, RULES, journal)


def _hoist(b: Rewriting, node: Node) -> Node | None:
    inner = next((i.inputs[0] for i in node.inputs if i.op is ops.reshape and i.shape == node.shape), None)
    if inner is None or inner.shape == node.shape or not _is_product(inner):
        return None
    if any(i.op is not ops.reshape and i.shape == node.shape and _is_product(i) for i in node.inputs):
        return None
    operands = [_as_shape(b, i, node, inner) for i in node.inputs]
    moved = [o for o in operands if o is not None]
    if len(moved) != len(operands):
        return None
    return b(ops.reshape, b(node.op, *moved, **node.attrs), shape=node.shape)


def _is_product(node: Node, depth: int = CHAIN) -> bool:
    """A contraction, or at most ``depth`` steps of arithmetic on one over the same elements."""
    if Trait.CONTRACTION in node.op.traits:
        return True
    if Trait.ELEMENTWISE not in node.op.traits or not depth:
        return False
    return any(_is_product(i, depth - 1) for i in node.inputs if i.shape == node.shape)


def _as_shape(b: Rewriting, operand: Node, node: Node, inner: Node) -> Node | None:
    """``operand`` for the arithmetic over ``inner``'s shape; None where there is no such form."""
    if operand.op is ops.reshape and operand.shape == node.shape and operand.inputs[0].shape == inner.shape:
        return operand.inputs[0]
    if operand.shape == node.shape:
        return b(ops.reshape, operand, shape=inner.shape)
    if product(operand.shape) == 1:
        return operand if not operand.shape else b(ops.reshape, operand, shape=())
    keeps_last = bool(node.shape and inner.shape) and node.shape[-1] == inner.shape[-1]
    if keeps_last and operand.shape[-1:] == node.shape[-1:] and product(operand.shape[:-1]) == 1:
        return operand if len(operand.shape) == 1 else b(ops.reshape, operand, shape=operand.shape[-1:])
    return None


def _transpose(b: Rewriting, node: Node) -> Node | None:
    """A transpose of a product whose two neighbouring dimensions were merged permutes them apart."""
    merged = node.inputs[0]
    if merged.op is not ops.reshape or not b.read_once(merged) or not _is_product(merged.inputs[0]):
        return None
    x = merged.inputs[0]
    at = next((k for k, (d, e) in enumerate(zip(merged.shape, x.shape, strict=False)) if d != e), None)
    if at is None or x.shape != (*merged.shape[:at], *x.shape[at : at + 2], *merged.shape[at + 1 :]):
        return None
    apart = [(k,) if k < at else (k, k + 1) if k == at else (k + 1,) for k in range(merged.type.rank)]
    perm = [p for k in node.attrs["perm"] for p in apart[k]]
    return b(ops.reshape, b(ops.transpose, x, perm=perm), shape=node.shape)


RULES = RuleTable(
    [
        Rule("hoist-transpose", (ops.transpose,), _transpose, "merged dimensions move together"),
        *(
            Rule(
                f"hoist-{op.name}",
                (op,),
                _hoist,
                "a reshape keeps the order of elements, the arithmetic is per element",
            )
            for op in ops.ALL
            if Trait.ELEMENTWISE in op.traits and op.compute is not None
        ),
    ]
)
