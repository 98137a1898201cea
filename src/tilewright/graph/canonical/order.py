"""A rule of ``canonicalize``: what is put in order lies along memory.

In: a ``sort``, ``top_k`` or ``ranked`` along an axis that others follow. Out: the same along the last axis, between
transposes. Not its business: how the elements of a row are put in order (``ops.order``).

The kernels look at a row many times, at places that the data choose: along another axis each of those is a cache line.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.rewrite import Rewriting, Rule
from tilewright.core.types import product


def _along_rows(b: Rewriting, node: Node) -> tuple[Node, ...] | None:
    """Not where only dimensions of 1 follow."""
    axis, rank = node.attrs["axis"], node.inputs[0].type.rank
    if product(node.inputs[0].shape[axis + 1 :]) == 1:
        return None
    to_end = [*(a for a in range(rank) if a != axis), axis]
    back = [to_end.index(a) for a in range(rank)]
    turned = [b(ops.transpose, x, perm=to_end) for x in node.inputs]
    made = b.results(b(node.op, *turned, **{**node.attrs, "axis": rank - 1}))
    return tuple(b(ops.transpose, r, perm=back) for r in made)


RULES = (Rule("order-along-rows", (ops.sort, ops.top_k, ops.ranked), _along_rows, "the axes of rows are renamed"),)
