"""Bits read as numbers of another dtype, of the same width or another.

In: nodes. Out: nodes; what is narrower comes as parts along a last axis, the lowest bits first, as they lie in memory.
A boolean is one bit. Not its business: shapes as formats have them (``stablehlo``, ``torch.aten``).
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DType, bool_, dtype_named, i64, u8
from tilewright.frontend.nodes import reshape
from tilewright.ops.elementwise import cast_node


def read_as(b: Builder, x: Node, target: DType) -> Node:
    """The bits of ``x`` as ``target``: of a narrower one the parts along a new last axis, of a wider one the last axis
    joined. Neither may be narrower than a byte where the widths differ, but for booleans."""
    if x.dtype.bits == target.bits:
        return _same_width(b, x, target)
    return _parts(b, x, target) if x.dtype.bits > target.bits else _joined(b, x, target)


def _same_width(b: Builder, x: Node, target: DType) -> Node:
    return x if x.dtype is target else b(ops.bitcast, x, dtype=target)


def _parts(b: Builder, x: Node, target: DType) -> Node:
    whole, part = dtype_named(f"u{x.dtype.bits}"), _unsigned(target)
    places = cast_node(b, b(ops.iota, extent=whole.bits // target.bits, dtype=i64), whole)
    shifts = b(ops.mul, places, b.const(target.bits, whole))
    pieces = b(ops.shift_right, reshape(b, _same_width(b, x, whole), (*x.shape, 1)), shifts)
    if target is bool_:
        return cast_node(b, b(ops.bitwise_and, pieces, b.const(1, whole)), bool_)
    return _same_width(b, cast_node(b, pieces, part), target)


def _joined(b: Builder, x: Node, target: DType) -> Node:
    part, whole = _unsigned(x.dtype), dtype_named(f"u{target.bits}")
    bits = cast_node(b, x if x.dtype is bool_ else _same_width(b, x, part), whole)
    places = cast_node(b, b(ops.iota, extent=whole.bits // x.dtype.bits, dtype=i64), whole)
    pieces = b(ops.shift_left, bits, b(ops.mul, places, b.const(x.dtype.bits, whole)))
    # no two pieces have a bit in common, so that their sum is their union
    return _same_width(b, b(ops.reduce_sum, pieces, axes=(len(x.shape) - 1,)), target)


def _unsigned(dtype: DType) -> DType:
    """The integers that hold the bits of ``dtype``."""
    return u8 if dtype is bool_ else dtype_named(f"u{dtype.bits}")
