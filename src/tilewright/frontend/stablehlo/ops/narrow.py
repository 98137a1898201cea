"""Arithmetic of narrow types (int2, int4, float8), which no op computes in: in a wider type, and back.

In: a converter of an element-wise operation. Out: one that takes narrow operands too. Integers are computed in 8 bits
and keep their low ones; floats are computed in f32 and rounded once. Not its business: storing them (``ops.narrow``).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import WHOLE, DType, i32
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.operation import Operation, Result, Value

Convert = Callable[[Operation], Result]


def in_wider(convert: Convert) -> Convert:
    """``convert`` on operands that are decoded; what should be narrow is encoded again."""

    def converted(c: Operation) -> Result:
        narrow = next((x.dtype for x in c.operands if isinstance(x, Node) and x.dtype.is_narrow), None)
        if narrow is None:
            return convert(c)
        made = convert(Operation(c.walker, c.b, c.op, tuple(_decoded(c, x) for x in c.operands)))
        return encoded(c, made, narrow) if isinstance(made, Node) and c.type().dtype is narrow else made

    return converted


def _decoded(c: Operation, x: Value) -> Value:
    return x if isinstance(x, Pair) or not x.dtype.is_narrow else c.b(ops.decode, x)


def encoded(c: Operation, x: Node, dtype: DType) -> Node:
    """Floats rounded to ``dtype``, or the low bits of integers."""
    if dtype in WHOLE:
        return c.b(ops.encode, c.cast(x, i32), dtype=dtype)
    return c.b(ops.encode, x, dtype=dtype, saturate=False)
