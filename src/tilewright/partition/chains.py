"""Chains: a product, reductions along its rows with the arithmetic around them, and a product of what comes out.

In: a decomposed graph in order, with facts and readers. Out: for each node between the two products (the first
included), the second. Attention is the best-known one: scores, softmax, weighted sum of values. By structure only.
Not its business: which kernel the second product itself is in (``partition.fuse``), loops
(``choose.strategies.chain``).

A chain is one when every value between the products is read by the chain alone; rows of the first product are rows of
the second, whose reduction walks their elements; at least one reduction along the rows lies between (a plain product of
products shares nothing within a row, and is better off as two); the values that there is one of per row are read by
the chain, or by arithmetic that alone reads the second product's elements; and no other operand is a constant: those
are re-laid for kernels that walk all rows before the next panel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import CONST, Node
from tilewright.partition.facts import Facts, Form, row_space

Readers = Mapping[Node, Sequence[tuple[Node, int]]]


def find_chains(
    order: Sequence[Node], facts: Mapping[Node, Facts], readers: Readers, pinned: Collection[Node]
) -> dict[Node, Node]:
    """The second product of the chain that each node is part of; no node is part of two."""
    found: dict[Node, Node] = {}
    position = {n: k for k, n in enumerate(order)}
    for first in order:
        if facts[first].form is Form.CONTRACT and first not in found:
            members, last = _chain_from(first, facts, readers, position)
            if last is not None and not any(n in pinned or n in found for n in members):
                found.update(dict.fromkeys(members, last))
    return found


def _chain_from(
    first: Node, facts: Mapping[Node, Facts], readers: Readers, position: Mapping[Node, int]
) -> tuple[list[Node], Node | None]:
    """What lies between ``first`` and the product at the end of its chain, and that product; None for no chain."""
    space = first.shape
    if not space or space[-1] == 1 or _has_constant(first):
        return [], None
    kept: tuple[Dim, ...] = (*space[:-1], 1)
    members: dict[Node, None] = {first: None}
    last: Node | None = None
    pending = {r for r, _ in readers[first]}
    while pending:
        # In the graph's order, so that a node's inputs are members before it is looked at.
        node = min(pending, key=position.__getitem__)
        pending.remove(node)
        f = facts[node]
        inside = [i for i in node.inputs if i in members]
        if last is not None and _is_over(node, last, facts):
            # Behind the product only numbers for whole rows are left to read: the rows themselves are gone.
            if any(i.shape != kept for i in inside) or not all(_is_over(r, last, facts) for r, _ in readers[last]):
                return [], None
        elif (f.is_elementwise and node.shape in (space, kept)) or _reduces(f, node, space):
            members[node] = None
            pending |= {r for r, _ in readers[node]}
        elif last is None and f.form is Form.CONTRACT and inside[0].shape == space and _reads_rows(f, node, inside):
            last = node
            if _has_constant(last):
                return [], None
        else:
            return [], None
    return list(members), last if any(_reduces(facts[n], n, space) for n in members) else None


def _reduces(f: Facts, node: Node, space: tuple[Dim, ...]) -> bool:
    """Is it a reduction along the rows of ``space`` that leaves one element of each?"""
    return f.form is Form.ROW and row_space(f) == (space, (len(space) - 1,)) and node.shape == (*space[:-1], 1)


def _has_constant(node: Node) -> bool:
    """Is an operand a constant?"""
    return any(i.op is CONST for i in node.inputs)


def _is_over(node: Node, last: Node, facts: Mapping[Node, Facts]) -> bool:
    """Is it arithmetic over the very elements of ``last``?"""
    if not facts[node].is_elementwise or node.shape != last.shape:
        return False
    return any(i is last or (i.shape == last.shape and _is_over(i, last, facts)) for i in node.inputs)


def _reads_rows(f: Facts, node: Node, inside: Sequence[Node]) -> bool:
    """Does the product walk exactly one operand of the chain by its rows, reducing along them?"""
    operands = [k for k, i in enumerate(node.inputs) if i is inside[0]]
    stage = f.main
    if len(inside) != 1 or len(operands) != 1 or stage.reduction is None or len(stage.reduction.axes) != 1:
        return False
    loads = f.reads(operands[0])
    if len(loads) != 1:
        return False
    *rows, last = loads[0].index
    own = {a.sym for a in stage.axes}
    shape = loads[0].buffer.shape
    plain = all((isinstance(i, Sym) and i in own) or (i == 0 and d == 1) for i, d in zip(rows, shape, strict=False))
    return plain and last == stage.reduction.axes[0].sym
