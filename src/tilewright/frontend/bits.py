"""Bits read as numbers of another dtype, of the same width or another.

In: nodes. Out: nodes; what is narrower comes as parts along a last axis, the lowest bits first, as they lie in memory.
A boolean is one bit, an int4 four. Not its business: shapes as formats have them (``stablehlo``, ``torch.aten``).
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DType, bool_, dtype_named, i64
from tilewright.frontend.nodes import reshape
from tilewright.ops.elementwise import cast_node

BYTE = 8
"""Bits in which an element of fewer lies in memory."""


def read_as(b: Builder, x: Node, target: DType) -> Node:
    """The bits of ``x`` as ``target``: of a narrower one the parts along a new last axis, of a wider one the last axis
    joined. One width must divide the other."""
    if x.dtype.bits == target.bits:
        return _same_width(b, x, target)
    return _parts(b, x, target) if x.dtype.bits > target.bits else _joined(b, x, target)


def _same_width(b: Builder, x: Node, target: DType) -> Node:
    return x if x.dtype is target else b(ops.bitcast, x, dtype=target)


def _parts(b: Builder, x: Node, target: DType) -> Node:
    whole = _unsigned(x.dtype)
    places = cast_node(b, b(ops.iota, extent=x.dtype.bits // target.bits, dtype=i64), whole)
    shifts = b(ops.mul, places, b.const(target.bits, whole))
    pieces = b(ops.shift_right, reshape(b, _bits(b, x), (*x.shape, 1)), shifts)
    if target.bits < BYTE:
        pieces = b(ops.bitwise_and, pieces, b.const((1 << target.bits) - 1, whole))
    if target is bool_:
        return cast_node(b, pieces, bool_)
    return _same_width(b, cast_node(b, pieces, _unsigned(target)), target)


def _joined(b: Builder, x: Node, target: DType) -> Node:
    whole = _unsigned(target)
    bits = cast_node(b, _bits(b, x), whole)
    places = cast_node(b, b(ops.iota, extent=target.bits // x.dtype.bits, dtype=i64), whole)
    pieces = b(ops.shift_left, bits, b(ops.mul, places, b.const(x.dtype.bits, whole)))
    # no two pieces have a bit in common, so that their sum is their union
    return _same_width(b, b(ops.reduce_sum, pieces, axes=(len(x.shape) - 1,)), target)


def _bits(b: Builder, x: Node) -> Node:
    """The bits of each element as a whole number, 0 where a byte holds more than the element has."""
    whole = _unsigned(x.dtype)
    if x.dtype is bool_:
        return cast_node(b, x, whole)
    bits = _same_width(b, x, whole)
    return b(ops.bitwise_and, bits, b.const((1 << x.dtype.bits) - 1, whole)) if x.dtype.bits < BYTE else bits


def _unsigned(dtype: DType) -> DType:
    """The integers that hold the bits of ``dtype``."""
    return dtype_named(f"u{max(dtype.bits, BYTE)}")
