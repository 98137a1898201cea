"""A rule of ``canonicalize``: sums of products in index notation that are products of matrices become ``matmul``.

In: an ``einsum`` of two operands. Out: a ``matmul`` of what transposes and reshapes make of them, and the way back. Not
its business: what those cost (index maps join the kernels that read through them), and other einsums.

Every label of two operands is one of four: in both and in the result (a batch), in one and in the result (rows,
columns), in both alone (the sum). All other rules, of attention and of precision, then see one form.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import Node
from tilewright.core.rewrite import Rewriting, Rule
from tilewright.core.types import product
from tilewright.ops.contract import einsum_extents, einsum_terms


def _as_matmul(b: Rewriting, node: Node) -> Node | None:
    """Not where an operand is alone in having a label that is summed, has one twice, or stretches; nor for a product
    by a vector or without a sum.
    """
    if len(node.inputs) != 2 or node.dtype not in (types.f32, types.f64):
        return None
    terms, result = einsum_terms(node.attrs["equation"], [x.type.rank for x in node.inputs])
    left, right = terms
    sizes = einsum_extents(terms, [x.shape for x in node.inputs])
    batch = [a for a in result if a in left and a in right]
    rows = [a for a in result if a in left and a not in right]
    columns = [a for a in result if a in right and a not in left]
    summed = [a for a in left if a in right and a not in result]
    is_plain = len(left) == len({*batch, *rows, *summed}) and len(right) == len({*batch, *columns, *summed})
    whole = all(x.shape == tuple(sizes[a] for a in term) for x, term in zip(node.inputs, terms, strict=True))
    if not (rows and columns and summed and is_plain and whole) or 0 in sizes.values():
        return None

    def laid(x: Node, term: Sequence[str], *runs: Sequence[str]) -> Node:
        """The axes of each run as one, in this order."""
        turned = b(ops.transpose, x, perm=[term.index(a) for run in runs for a in run])
        return b(ops.reshape, turned, shape=[product([sizes[a] for a in run]) for run in runs])

    apart = [[a] for a in batch]
    high = [rows] if batch else [[a] for a in rows]  # rows of a product by one matrix may be of any rank
    x, y = laid(node.inputs[0], left, *apart, *high, summed), laid(node.inputs[1], right, *apart, summed, columns)
    made = b(ops.matmul, x, y)
    order = [*batch, *rows, *columns]
    in_order = b(ops.reshape, made, shape=[sizes[a] for a in order])
    return b(ops.transpose, in_order, perm=[order.index(a) for a in result])


RULES = (Rule("einsum-as-matmul", (ops.einsum,), _as_matmul, "one sum of products, its axes named otherwise"),)
