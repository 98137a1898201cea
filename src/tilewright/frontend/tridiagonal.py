"""Systems of equations by matrices of three diagonals.

In: a builder, the diagonals ``[..., n]`` and right sides ``[..., n, k]``. Out: the solutions, and LAPACK's report
of a zero pivot. Not its business: which call it is (``stablehlo.ops.custom``).

Elimination with exchange of neighbouring rows, as LAPACK's ``gtsv`` has it: the row that goes down meets the next one,
and the one of the larger head stays, with up to two elements behind it. Then rows are solved from the last one up.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.types import i32, i64
from tilewright.frontend.nodes import dim_scalar, expand, reshape
from tilewright.ops.loops import stacked


def solve_tridiagonal(b: Builder, lower: Node, diagonal: Node, upper: Node, right: Node) -> tuple[Node, Node]:
    """``x``, and the first row, from 1, whose pivot is zero, or 0. The first of ``lower`` and the last of ``upper`` are
    beside the matrix.
    """
    n: Dim = diagonal.shape[-1]
    axis = len(diagonal.shape) - 1
    zero, last = b.const(0, diagonal.dtype), b(ops.sub, dim_scalar(b, n, i64), b.const(1, i64))
    inside = b(ops.lt, b(ops.iota, extent=n, dtype=i64), last)
    upper = b(ops.where, inside, upper, zero)
    first = [_at(b, x, b.const(0, i64), axis) for x in (diagonal, upper, right)]

    def down(b: Builder, i: Node, carried: Sequence[Node], fixed: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        head, behind, side = carried
        *rest, last = fixed
        next_ = b(ops.minimum, b(ops.add, i, b.const(1, i64)), last)
        below, next_head, next_behind, next_side = (_at(b, x, next_, axis) for x in rest)
        none = b.const(0, head.dtype)
        below = b(ops.where, b(ops.lt, i, last), below, none)
        stays = b(ops.ge, b(ops.abs, head), b(ops.abs, below))
        pivot, other = b(ops.where, stays, head, below), b(ops.where, stays, below, head)
        factor = b(ops.div, other, b(ops.where, b(ops.eq, pivot, none), b.const(1, head.dtype), pivot))

        def chosen(x: Node, y: Node) -> tuple[Node, Node]:
            """Of the row that stays and of the other one, whose multiple is taken away."""
            flag, by = (reshape(b, v, (*v.shape, *[1] * (len(x.shape) - axis))) for v in (stays, factor))
            kept, left = b(ops.where, flag, x, y), b(ops.where, flag, y, x)
            return kept, b(ops.sub, left, b(ops.mul, by, kept))

        second, after_head = chosen(behind, next_head)
        third, after_behind = chosen(expand(b, none, behind.shape), next_behind)
        row_side, after_side = chosen(side, next_side)
        return [after_head, after_behind, after_side], [pivot, second, third, row_side]

    _, rows = stacked(b, "eliminate_down", n, first, (lower, diagonal, upper, right, last), down)
    none = expand(b, zero, first[2].shape)

    def up(b: Builder, i: Node, carried: Sequence[Node], fixed: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        *rest, last = fixed
        pivot, second, third, side = (b(ops.gather, x, b(ops.sub, last, i), axis=0) for x in rest)
        pivot, second, third = (reshape(b, v, (*v.shape, 1)) for v in (pivot, second, third))
        for factor, x in zip((second, third), carried, strict=True):
            side = b(ops.sub, side, b(ops.mul, factor, x))
        x = b(ops.div, side, pivot)
        return [x, carried[0]], [x]

    _, (found,) = stacked(b, "solve_up", n, (none, none), (*rows, last), up)
    rank = len(found.shape)
    found = b(ops.transpose, b(ops.reverse, found, axes=(0,)), perm=(*range(1, rank - 1), 0, rank - 1))
    is_zero = b(ops.cast, b(ops.eq, rows[0], zero), dtype=i32)
    place = b(ops.add, b(ops.cast, b(ops.argmax, is_zero, axis=0), dtype=i32), b.const(1, i32))
    any_ = b(ops.reduce_max, is_zero, axes=(0,), keepdims=False)
    return found, b(ops.mul, place, expand(b, any_, place.shape))


def _at(b: Builder, x: Node, k: Node, axis: int) -> Node:
    return b(ops.gather, x, k, axis=axis)
