"""Nodes that every frontend makes, and does without where they would change nothing.

In: a builder at the location of the call that is converted. Out: a node of ours.
Not its business: what an operand of PyTorch's or ONNX's means (``torch.aten.call``, ``onnx.call``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DTYPES, DType, i64


def dim_scalar(b: Builder, dim: Dim, dtype: DType) -> Node:
    """A dimension as a 0-d tensor."""
    if is_known(dim):
        return b.const(dim, dtype)
    number = b(ops.reshape, b(ops.dim_values, dims=(dim,)), shape=())
    return number if number.dtype is dtype else b(ops.cast, number, dtype=dtype)


def reshape(b: Builder, x: Node, shape: Sequence[Dim]) -> Node:
    return x if x.shape == tuple(shape) else b(ops.reshape, x, shape=tuple(shape))


def expand(b: Builder, x: Node, shape: Sequence[Dim]) -> Node:
    return x if x.shape == tuple(shape) else b(ops.expand, x, shape=tuple(shape))


def transpose(b: Builder, x: Node, perm: Sequence[int]) -> Node:
    return x if list(perm) == list(range(len(perm))) else b(ops.transpose, x, perm=tuple(perm))


def slice_axis(b: Builder, x: Node, axis: int, start: Dim, length: Dim, step: int = 1) -> Node:
    """``length`` elements along one axis from ``start``, which lies inside."""
    if start == 0 and step == 1 and length == x.shape[axis]:
        return x
    starts: list[Dim] = [0] * len(x.shape)
    stops, steps = list(x.shape), [1] * len(x.shape)
    starts[axis], steps[axis] = start, step
    stops[axis] = start if length == 0 else start + (length - 1) * step + 1
    return b(ops.slice, x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def is_negative(b: Builder, x: Node) -> Node:
    """The sign's bit, which zeros and NaN have too."""
    if not x.dtype.is_float:
        return b(ops.lt, x, b.const(0, x.dtype))
    integer = next(d for d in DTYPES if d.kind == "int" and d.bits == x.dtype.bits)
    return b(ops.lt, b(ops.bitcast, x, dtype=integer), b.const(0, integer))


def next_after(b: Builder, x: Node, y: Node) -> Node:
    """The next float from ``x`` towards ``y``, of one shape or scalars; NaN where either is.

    Read as integers, floats of one sign ascend with their size, so the next one is one integer further.
    """
    whole = next(d for d in DTYPES if d.kind == "int" and d.bits == x.dtype.bits)
    zero, one = b.const(0, x.dtype), b.const(1, whole)
    bits, least = b(ops.bitcast, x, dtype=whole), b(ops.bitcast, one, dtype=x.dtype)
    is_outward = b(ops.eq, b(ops.gt, y, x), b(ops.gt, x, zero))
    moved = b(ops.bitcast, b(ops.where, is_outward, b(ops.add, bits, one), b(ops.sub, bits, one)), dtype=x.dtype)
    from_zero = b(ops.where, b(ops.gt, y, zero), least, b(ops.neg, least))
    moved = b(ops.where, b(ops.eq, x, zero), from_zero, moved)
    moved = b(ops.where, b(ops.eq, x, y), y, moved)
    return b(ops.where, b(ops.logical_or, b(ops.isnan, x), b(ops.isnan, y)), b(ops.add, x, y), moved)


def count_passed(b: Builder, n: int, shape: Sequence[Dim], is_passed: Callable[[Node], Node]) -> Node:
    """How many of ``n`` elements in order are passed by each of ``shape``, i64; ``is_passed`` tells of one place each.

    Bit by bit, from the top: a bit belongs to the number when the last element of so many is passed.
    """
    found = b(ops.full, value=0, dtype=i64, shape=tuple(shape))
    for bit in reversed(range(n.bit_length())):
        most = b(ops.add, found, b.const(1 << bit, i64))
        last = b(ops.minimum, b(ops.sub, most, b.const(1, i64)), b.const(n - 1, i64))
        is_one = b(ops.logical_and, is_passed(last), b(ops.le, most, b.const(n, i64)))
        found = b(ops.where, is_one, most, found)
    return found


def with_sign_of(b: Builder, size: Node, x: Node) -> Node:
    """``size``, which is not negative, with the sign of ``x``."""
    return b(ops.where, is_negative(b, x), b(ops.neg, size), size)
