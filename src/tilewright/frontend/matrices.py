"""Matrices along the last two axes, as every frontend with linear algebra needs them.

In: a builder, nodes. Out: a node. Not its business: the meaning of calls (``torch.aten.linalg``,
``stablehlo.ops.linalg``).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DType, i64
from tilewright.frontend.nodes import expand, reshape, slice_axis


def swapped(b: Builder, x: Node) -> Node:
    """The transposed matrices."""
    rank = len(x.shape)
    return b(ops.transpose, x, perm=(*range(rank - 2), rank - 1, rank - 2))


def eye(b: Builder, rows: Dim, columns: Dim, batch: Sequence[Dim], dtype: DType) -> Node:
    """Ones on the diagonal, zeros elsewhere."""
    i, j = (b(ops.iota, extent=n, dtype=i64) for n in (rows, columns))
    same = b(ops.cast, b(ops.eq, reshape(b, i, (rows, 1)), j), dtype=dtype)
    return expand(b, same, (*batch, rows, columns))


def solve_triangular(
    b: Builder, a: Node, right: Node, upper: bool, *, unit: bool = False, transposed: bool = False, left: bool = True
) -> Node:
    """``x`` with ``op(a) @ x = right``, or ``x @ op(a) = right`` if not ``left``."""
    if not left:
        turned = solve_triangular(b, a, swapped(b, right), upper, unit=unit, transposed=not transposed)
        return swapped(b, turned)
    if transposed:
        a, upper = swapped(b, a), not upper
    return b(ops.solve_triangular, a, right, upper=upper, unit=unit)


def orthogonal(b: Builder, packed: Node, taus: Node, columns: Dim) -> Node:
    """The leading columns of the product of reflections."""
    if columns == taus.shape[-1]:
        return b(ops.orthogonal, slice_axis(b, packed, len(packed.shape) - 1, 0, columns), taus)
    vectors = slice_axis(b, packed, len(packed.shape) - 1, 0, taus.shape[-1])
    return b(ops.reflect, vectors, taus, eye(b, packed.shape[-2], columns, packed.shape[:-2], packed.dtype))
