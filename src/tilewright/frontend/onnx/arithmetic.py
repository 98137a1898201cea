"""Short spellings for converters that write formulas: operands may be nodes, numbers or dimensions.

In: a ``Call``. Out: nodes, numbers in the dtype of the node beside them. Not its business: any op's meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tilewright import ops
from tilewright.core.expr import Dim, Expr
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, f64, i64
from tilewright.frontend.onnx.call import Call

Operand: TypeAlias = "Node | float | Expr"


class Formula:
    """``m.add(x, 1)`` and so on; the first node of an operation gives the dtype of numbers in it."""

    def __init__(self, c: Call) -> None:
        self.c = c

    def _binary(self, op: OpDef, a: Operand, b: Operand) -> Node:
        dtype = a.dtype if isinstance(a, Node) else b.dtype if isinstance(b, Node) else i64
        return self.c(op, self.node(a, dtype), self.node(b, dtype))

    def node(self, x: Operand, dtype: DType) -> Node:
        """``x`` as a node of ``dtype``, which a node has already."""
        if isinstance(x, Node):
            return x
        if isinstance(x, Expr):
            return self.c.cast(self.c.dim_value(x), dtype)
        return self.c.const(x, dtype)

    def add(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.add, a, b)

    def sub(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.sub, a, b)

    def mul(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.mul, a, b)

    def div(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.div, a, b)

    def mod(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.mod, a, b)

    def min(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.minimum, a, b)

    def max(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.maximum, a, b)

    def clip(self, x: Node, low: Operand, high: Operand) -> Node:
        return self.min(self.max(x, low), high)

    def lt(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.lt, a, b)

    def le(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.le, a, b)

    def gt(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.gt, a, b)

    def ge(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.ge, a, b)

    def eq(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.eq, a, b)

    def ne(self, a: Operand, b: Operand) -> Node:
        return self._binary(ops.ne, a, b)

    def both(self, a: Node, b: Node) -> Node:
        return self.c(ops.logical_and, a, b)

    def where(self, condition: Node, a: Operand, b: Operand) -> Node:
        dtype = a.dtype if isinstance(a, Node) else b.dtype if isinstance(b, Node) else f64
        return self.c(ops.where, condition, self.node(a, dtype), self.node(b, dtype))

    def floor(self, x: Node) -> Node:
        return self.c(ops.floor, x)

    def steps(self, n: Dim, dtype: DType = i64) -> Node:
        """0, 1, ... n-1."""
        return self.c.cast(self.c(ops.iota, extent=n, dtype=i64), dtype)

    def row(self, x: Node, k: int) -> Node:
        """Element ``k`` of the last axis, which goes."""
        last = len(x.shape) - 1
        return self.c.reshape(self.c.slice_axis(x, last, k, k + 1), x.shape[:-1])

    def sum(self, xs: Sequence[Node]) -> Node:
        """The sum of one or more nodes."""
        total = xs[0]
        for x in xs[1:]:
            total = self.add(total, x)
        return total
