"""Arithmetic of narrow types (int2, int4, float8), which no op computes in: in a wider type, and back.

In: a converter of an element-wise operation. Out: one that takes narrow operands too. Integers are computed in 8 bits
and keep their low ones; floats are computed in f32 and rounded once. Not its business: storing them (``ops.narrow``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import WHOLE, DType, f8e8m0, i8, i32, u8
from tilewright.frontend.bits import read_as
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


def with_bits(convert: Convert, name: str) -> Convert:
    """``convert`` of bits on narrow integers: ``name`` says which bits stand around them in the wider type.

    They are the number's sign (``signed``), zeros (``unsigned``), or ones below it (``leading``), which end a count of
    leading zeros. Of the other operands, counts of places, only those below the width matter.
    """

    def converted(c: Operation) -> Result:
        x = c.operands[0]
        if not isinstance(x, Node) or x.dtype not in WHOLE:
            return convert(c)
        room = 8 - x.dtype.bits
        up = c.b(ops.shift_left, read_as(c.b, decoded(c, x), u8), c.b.const(room, u8))
        if name == "leading":
            wide = c.b(ops.bitwise_or, up, c.b.const((1 << room) - 1, u8))
        else:
            dtype = i8 if name == "signed" else u8
            wide = c.b(ops.shift_right, read_as(c.b, up, dtype), c.b.const(room, dtype))
        others = (read_as(c.b, decoded(c, n), wide.dtype) for n in c.operands[1:] if isinstance(n, Node))
        made = convert(Operation(c.walker, c.b, c.op, (wide, *others)))
        assert isinstance(made, Node)
        return encoded(c, made, x.dtype)

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
