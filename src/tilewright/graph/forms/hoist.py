"""The pass ``hoist-arithmetic``: arithmetic moves above what rearranges a product or a norm, to be its epilogue.

In: a graph. Out: an equal graph. Not its business: fusion itself (``partition.fuse``), other moves of reshapes
(``canonical.canonicalize``).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known, numbers
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import IDLE
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.shapes import reshape_groups
from tilewright.core.types import Array, product
from tilewright.graph.canonical.movement import REDUCTIONS
from tilewright.graph.facts import array_of, inverse

MOVES = (ops.transpose, ops.slice, ops.reshape)


@dataclass(frozen=True)
class HoistArithmetic(Pass):
    """``f(reshape(p), q)`` becomes ``reshape(f(p, reshape(q)))`` when ``p`` is a product or arithmetic on one.

    So it does when ``p`` is a norm: arithmetic on elements and on what is reduced along their rows. Likewise
    ``transpose(reshape(p))`` where the reshape merges two dimensions of a product. ``q`` may have the same shape as the
    result, one element, only the last dimension when the reshape keeps it, or be a constant that varies along some
    dimensions. With such a ``q`` alone (a bias, a bound) arithmetic moves above a transpose and a slice of most
    elements, too, that nothing else reads: those by which the phases of a transposed convolution take turns. It does
    not fire where ``p`` is something else, where an operand is broadcast in another way, or where ``q`` is a product,
    or one rearranged, itself: one of two has to be reshaped, and the arithmetic stays with ``q``; but for a ``q`` that
    others read as well, as the sum that a net's layers add to: it is in memory before, and can't take the arithmetic.
    Nor does it where ``p`` is arithmetic on what more than arithmetic reads, as a norm of a product: it is no epilogue.
    """

    name: ClassVar[str] = "hoist-arithmetic"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        written = _written_before(graph)
        return rewrite(graph, _rules(written), journal, written)


def _written_before(graph: Graph) -> set[Node]:
    """What other nodes than arithmetic on the same elements read, or moves of them: arithmetic is no epilogue of it."""
    return set(
        i for n in graph.nodes() if n.op not in MOVES
        for i in n.inputs if Trait.ELEMENTWISE not in n.op.traits or i.shape != n.shape
    )  # fmt: skip


def _hoist(written: Container[Node], b: Rewriting, node: Node) -> Node | None:
    reshaped = [i.inputs[0] for i in node.inputs if i.op is ops.reshape and i.shape == node.shape]
    is_product = partial(_is_product, written)
    is_rearranged = partial(_is_rearranged, written, b)
    inner = next((x for x in reshaped if x.shape != node.shape and (is_product(x) or is_rearranged(x))), None)
    others = [i for i in node.inputs if i.op is not ops.reshape and i.shape == node.shape]
    if inner is None and not any(is_product(i) or is_rearranged(i) or _is_norm(i) for i in others):
        inner = next((x for x in reshaped if x.shape != node.shape and _is_norm(x)), None)
    if inner is None:
        return _above_move(written, b, node)
    if any(is_rearranged(i) or (is_product(i) and (b.read_once(i) or not b.read_once(inner))) for i in others):
        return None
    operands = [_as_shape(b, i, node, inner) for i in node.inputs]
    moved = [o for o in operands if o is not None]
    if len(moved) != len(operands):
        return None
    return b(ops.reshape, b(node.op, *moved, **node.attrs), shape=node.shape)


def _above_move(written: Container[Node], b: Rewriting, node: Node) -> Node | None:
    """``f(move(p), c)`` as ``move(f(p, c'))``, for a transpose or a slice that leaves little out."""
    move = next((i for i in node.inputs if i.op in (ops.transpose, ops.slice) and i.shape == node.shape), None)
    if move is None or not _is_rearranged(written, b, move):
        return None
    operands = [move.inputs[0] if i is move else _before(b, i, move) for i in node.inputs]
    moved = [o for o in operands if o is not None]
    if len(moved) != len(operands):
        return None
    return b(move.op, b(node.op, *moved, **node.attrs), **move.attrs)


def _is_rearranged(written: Container[Node], b: Rewriting, node: Node) -> bool:
    """Is it a product whose elements were only moved, for this one reader?"""
    at, moves = node, 0
    while at.op in MOVES and b.read_once(at) and _keeps_most(at):
        moves += at.op is not ops.reshape
        at = at.inputs[0]
    return moves > 0 and _is_product(written, at) and b.read_once(at)


def _keeps_most(node: Node) -> bool:
    kept, whole = node.type.n_elements, node.inputs[0].type.n_elements
    if node.op is not ops.slice:
        return True
    return set(node.attrs["steps"]) == {1} and is_known(kept) and is_known(whole) and kept * IDLE >= whole


def _before(b: Rewriting, operand: Node, move: Node) -> Node | None:
    """A constant beside the result of a move, for what was moved; None where it has no such form."""
    array = array_of(operand)
    if array is None:
        return None
    if array.size == 1:
        return operand if not operand.shape else b.const(array.reshape(()))
    rank = move.type.rank
    wide = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if move.op is ops.transpose:
        return b.const(np.ascontiguousarray(np.transpose(wide, inverse(move.attrs["perm"]))))
    cut = [n != m for n, m in zip(move.shape, move.inputs[0].shape, strict=True)]
    return None if any(d != 1 and c for d, c in zip(wide.shape, cut, strict=True)) else operand


def _is_product(written: Container[Node], node: Node) -> bool:
    """A contraction, or a chain of arithmetic on one over the same elements, none of them ``written``: its epilogue."""
    found = [node] if node not in written else []
    for at in found:
        if Trait.CONTRACTION in at.op.traits:
            return True
        if Trait.ELEMENTWISE in at.op.traits:
            found += [i for i in at.inputs if i.shape == node.shape and i not in found and i not in written]
        if len(found) > EFFORT.listed:
            return False
    return False


def _is_norm(node: Node) -> bool:
    """Is it arithmetic on elements and on what is reduced of as many, with one result for each row of them?"""
    found = [node]
    for at in found:
        if Trait.ELEMENTWISE not in at.op.traits or len(found) > EFFORT.listed:
            return False
        if any(_is_of_rows(i, node) for i in at.inputs):
            return True
        found += [i for i in at.inputs if i.shape == node.shape and i not in found]
    return False


def _is_of_rows(value: Node, whole: Node) -> bool:
    """Is ``value`` a reduction of what has the shape of ``whole``, or arithmetic on one and on numbers?"""
    while Trait.ELEMENTWISE in value.op.traits:
        rows = [i for i in value.inputs if product(i.shape) != 1 or i.op is not CONST]
        if len(rows) != 1 or rows[0].shape != value.shape:
            return False
        value = rows[0]
    return value.op in REDUCTIONS and value.inputs[0].shape == whole.shape and value.type.rank == whole.type.rank


def _as_shape(b: Rewriting, operand: Node, node: Node, inner: Node) -> Node | None:
    """``operand`` for the arithmetic over ``inner``'s shape; None where there is no such form."""
    if operand.op is ops.reshape and operand.shape == node.shape and operand.inputs[0].shape == inner.shape:
        return operand.inputs[0]
    if operand.shape == node.shape:
        return b(ops.reshape, operand, shape=inner.shape)
    if product(operand.shape) == 1:
        return operand if not operand.shape else b(ops.reshape, operand, shape=())
    array = array_of(operand)
    if array is not None:
        return _reshaped_constant(b, array, node.shape, inner.shape)
    keeps_last = bool(node.shape and inner.shape) and node.shape[-1] == inner.shape[-1]
    if keeps_last and operand.shape[-1:] == node.shape[-1:] and product(operand.shape[:-1]) == 1:
        return operand if len(operand.shape) == 1 else b(ops.reshape, operand, shape=operand.shape[-1:])
    return None


def _reshaped_constant(b: Rewriting, array: Array, shape: Sequence[Dim], inner: Sequence[Dim]) -> Node | None:
    """A constant that is broadcast to ``shape``, for the same elements in the shape ``inner``.

    It is repeated only along dimensions that the reshape merges, or takes apart, with one along which it varies.
    """
    wide = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    whole: dict[int, Dim] = dict(enumerate(wide.shape))
    made: dict[int, Dim] = dict.fromkeys(range(len(inner)), 1)
    for outs, ins in reshape_groups(shape, inner):
        if any(wide.shape[k] != 1 for k in outs):
            whole |= {k: shape[k] for k in outs}
            made |= {k: inner[k] for k in ins}
    before, after = (numbers(d.values()) for d in (whole, made))
    if len(before) < len(whole) or len(after) < len(made):
        return None
    return b.const(np.ascontiguousarray(np.broadcast_to(wide, before)).reshape(after))


def _transpose(written: Container[Node], b: Rewriting, node: Node) -> Node | None:
    """A transpose of a product whose two neighbouring dimensions were merged permutes them apart."""
    merged = node.inputs[0]
    if merged.op is not ops.reshape or not b.read_once(merged) or not _is_product(written, merged.inputs[0]):
        return None
    x = merged.inputs[0]
    at = next((k for k, (d, e) in enumerate(zip(merged.shape, x.shape, strict=False)) if d != e), None)
    if at is None or x.shape != (*merged.shape[:at], *x.shape[at : at + 2], *merged.shape[at + 1 :]):
        return None
    apart = [(k,) if k < at else (k, k + 1) if k == at else (k + 1,) for k in range(merged.type.rank)]
    perm = [p for k in node.attrs["perm"] for p in apart[k]]
    return b(ops.reshape, b(ops.transpose, x, perm=perm), shape=node.shape)


def _rules(written: Container[Node]) -> RuleTable:
    """The rules for a graph in which those nodes are in memory before arithmetic on them."""
    of_arithmetic = [op for op in ops.ALL if Trait.ELEMENTWISE in op.traits and op.compute is not None]
    why = "a reshape keeps the order of elements, the arithmetic is per element"
    return RuleTable(
        [
            Rule("hoist-transpose", (ops.transpose,), partial(_transpose, written), "merged dimensions move together"),
            *(Rule(f"hoist-{op.name}", (op,), partial(_hoist, written), why) for op in of_arithmetic),
        ]
    )
