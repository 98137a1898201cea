"""How factors of matrices and systems with triangular ones are written in StableHLO.

In: a node whose operands are written. Out: operations in ``HloLines``. Not its business: other linear algebra, which
StableHLO leaves to calls of libraries.
"""

from __future__ import annotations

from tilewright.core import types
from tilewright.core.graph import Node
from tilewright.core.types import TensorType
from tilewright.frontend.stablehlo.writer.lines import HloLines, array_text
from tilewright.frontend.stablehlo.writer.ops import broadcast, combiner, compared


def cholesky(w: HloLines, node: Node) -> None:
    """StableHLO leaves open what the upper triangle holds, and tells of a matrix that is not positive by its factor.

    So the other triangle is made 0, and the first minor that is not positive is the first place of the diagonal that
    holds no number above 0: from there on the factor means nothing.
    """
    (x,) = w.values(node)
    made = w.one("cholesky", [x], x.type, "lower = true")
    n, places = x.shape[-1], TensorType(types.i32, x.shape)
    rows, columns = (
        w.one("iota", [], places, f"iota_dimension = {axis} : i64") for axis in (x.type.rank - 2, x.type.rank - 1)
    )
    zero = broadcast(w, w.scalar(0, x.type.dtype), x.shape)
    lower = w.one("select", [compared(w, rows, columns, "GE"), made, zero], x.type)
    above = compared(w, made, zero, "GT")
    fails = w.one("and", [compared(w, rows, columns, "EQ"), w.one("not", [above], above.type)], above.type)
    order = w.one("add", [rows, broadcast(w, w.scalar(1, types.i32), x.shape)], places)
    beyond = w.scalar(n + 1, types.i32)
    orders = w.one("select", [fails, order, broadcast(w, beyond, x.shape)], places)
    info = TensorType(types.i32, x.shape[:-2])
    axes = f"<{{dimensions = {array_text([x.type.rank - 2, x.type.rank - 1])}}}>"
    region = combiner(w, "minimum", types.i32)
    (first,) = w.operation("stablehlo.reduce", [orders, beyond], [info], axes, [region])
    is_none = compared(w, first, broadcast(w, beyond, first.shape), "EQ")
    none = broadcast(w, w.scalar(0, types.i32), first.shape)
    w.give(node, lower, w.one("select", [is_none, none, first], info))


def solve_triangular(w: HloLines, node: Node) -> None:
    a, right = w.values(node)
    batch, flag = tuple(right.shape[:-2]), ("false", "true")
    attributes = (
        f"left_side = true, lower = {flag[not node.attrs['upper']]}, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, "
        f"unit_diagonal = {flag[node.attrs['unit']]}"
    )
    a = broadcast(w, a, (*batch, *a.shape[-2:]))
    w.give(node, w.one("triangular_solve", [a, right], node.type, attributes))
