"""Rules of ``canonicalize``: what is put in order lies along memory, and rows that are folded stepwise are one axis.

In: a ``sort``, ``top_k`` or ``ranked`` along an axis that others follow; a cumulative fold along the last of three or
more. Out: the same along the last axis, between transposes; the fold of a matrix, between reshapes. Not its
business: how the elements of a row are put in order (``ops.order``) or folded (``ops.reduce``).

The kernels that put in order look at a row many times, at places that the data choose: along another axis each of those
is a cache line. Rows that are folded are lanes, of which each axis would leave some idle at its own end.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core.dims import are_known
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


def _rows_as_one(b: Rewriting, node: Node) -> Node | None:
    """Of known sizes, and not where all axes but one have a single row."""
    (x,), shape = node.inputs, node.inputs[0].shape
    rows = [d for d in shape[:-1] if d != 1]
    if node.attrs["axis"] != len(shape) - 1 or len(rows) < 2 or not are_known(shape):
        return None
    flat = b(ops.reshape, x, shape=(product(shape[:-1]), shape[-1]))
    return b(ops.reshape, b(node.op, flat, **{**node.attrs, "axis": 1}), shape=shape)


CUMULATIVE = (ops.cumsum, ops.cumprod, ops.cummax, ops.cummin)
RULES = (
    Rule("order-along-rows", (ops.sort, ops.top_k, ops.ranked), _along_rows, "the axes of rows are renamed"),
    Rule("rows-as-one", CUMULATIVE, _rows_as_one, "each row is folded by itself"),
)
