"""Arithmetic of narrow types (int2, int4, float8), which no op computes in: in a wider type, and back.

In: a converter of an element-wise operation. Out: one that takes narrow operands too. Integers are computed in 8 bits
and keep their low ones; floats are computed in f32 and rounded once. Not its business: storing them (``ops.narrow``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import WHOLE, DType, f8e8m0, i32
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.operation import Operation, Result, Value

Convert = Callable[[Operation], Result]


def in_wider(convert: Convert) -> Convert:
    """``convert`` on operands that are decoded; what should be narrow is encoded again."""

    def converted(c: Operation) -> Result:
        narrow = next((x.dtype for x in c.operands if isinstance(x, Node) and x.dtype.is_narrow), None)
        if narrow is None:
            return convert(c)
        made = convert(Operation(c.walker, c.b, c.op, tuple(_wide(c, x) for x in c.operands)))
        return encoded(c, made, narrow) if isinstance(made, Node) and c.type().dtype is narrow else made

    return converted


def all_in_wider(convert: Convert) -> Convert:
    """``convert`` of an operation with regions or several results: each is encoded whose stated type is narrow.

    A reduction is therefore rounded once, not at every step.
    """

    def converted(c: Operation) -> Result:
        if not any(isinstance(x, Node) and x.dtype.is_narrow for x in c.operands):
            return convert(c)
        made = convert(Operation(c.walker, c.b, c.op, tuple(_wide(c, x) for x in c.operands)))
        results = [made] if isinstance(made, Node | Pair) else list(made)
        return [_as_stated(c, x, k) for k, x in enumerate(results)]

    return converted


def _wide(c: Operation, x: Value) -> Value:
    return x if isinstance(x, Pair) else decoded(c, x)


def _as_stated(c: Operation, x: Value, k: int) -> Value:
    dtype = c.type(k).dtype
    return encoded(c, x, dtype) if isinstance(x, Node) and dtype.is_narrow and x.dtype is not dtype else x


def decoded(c: Operation, x: Node) -> Node:
    """The numbers in the type that they are computed in."""
    return c.b(ops.decode, x) if x.dtype.is_narrow else x


def encoded(c: Operation, x: Node, dtype: DType) -> Node:
    """Floats rounded to ``dtype``, or the low bits of integers. Powers of two have neither zero nor a sign: NaN."""
    if dtype in WHOLE:
        return c.b(ops.encode, c.cast(x, i32), dtype=dtype)
    if dtype is f8e8m0:
        x = c.b(ops.where, c.b(ops.gt, x, c.b.const(0, x.dtype)), x, c.b.const(math.nan, x.dtype))
    return c.b(ops.encode, x, dtype=dtype, saturate=False)
