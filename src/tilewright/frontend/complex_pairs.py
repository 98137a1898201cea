"""Complex tensors as pairs of real ones.

In: real nodes. Out: ``Pair`` values, their arithmetic, and their parts along a last axis, as ``view_as_real`` lays them
out. Not its business: the meaning of calls on them (``torch.aten.complex``, ``stablehlo.ops``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DType, f32, f64

COMPLEX_PARTS = (f32, f64)
"""Of which complex arguments and results are made."""

HALF_PARTS = "convert it: x.to(torch.complex64)"
"""What to do about other ones."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A complex tensor: the real and the imaginary part, of one shape and dtype."""

    re: Node
    im: Node

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.re.shape

    @property
    def dtype(self) -> DType:
        """The parts' dtype."""
        return self.re.dtype


def from_parts(b: Builder, x: Node) -> Pair:
    """The pair whose parts lie along the last axis of ``x``, which has length 2."""
    *shape, _ = x.shape
    zeros = (0,) * len(shape)
    ones = (1,) * (len(shape) + 1)
    parts = [
        b(ops.slice, x, starts=(*zeros, k), stops=(*shape, k + 1), steps=ones) for k in range(2)
    ]  # fmt: skip
    re, im = (b(ops.reshape, part, shape=tuple(shape)) for part in parts)
    return Pair(re, im)


def join_parts(b: Builder, x: Pair) -> Node:
    """The parts along a new last axis."""
    parts = [b(ops.reshape, part, shape=(*part.shape, 1)) for part in (x.re, x.im)]
    return b(ops.concat, *parts, axis=len(x.shape))


def bilinear(b: Builder, of: Callable[[Node, Node], Node], x: Pair, y: Pair) -> Pair:
    """A product of complex tensors by ``of``, the product of real ones."""
    real = b(ops.sub, of(x.re, y.re), of(x.im, y.im))
    return Pair(real, b(ops.add, of(x.re, y.im), of(x.im, y.re)))


def product(b: Builder, x: Pair, y: Pair) -> Pair:
    """The complex product, element by element."""
    return bilinear(b, partial(b, ops.mul), x, y)


def quotient(b: Builder, x: Pair, y: Pair) -> Pair:
    """``x / y``, scaled by the larger part of ``y`` so that nothing overflows on the way (Smith 1962)."""
    swap = b(ops.gt, b(ops.abs, y.im), b(ops.abs, y.re))
    large, small = b(ops.where, swap, y.im, y.re), b(ops.where, swap, y.re, y.im)
    ratio = b(ops.div, small, large)
    scale = b(ops.add, large, b(ops.mul, small, ratio))
    first = b(ops.where, swap, x.im, x.re)
    second = b(ops.where, swap, x.re, x.im)
    real = b(ops.div, b(ops.add, first, b(ops.mul, second, ratio)), scale)
    other = b(ops.div, b(ops.sub, second, b(ops.mul, first, ratio)), scale)
    return Pair(real, b(ops.where, swap, b(ops.neg, other), other))


def magnitude(b: Builder, x: Pair) -> Node:
    """``|x|`` without overflow of squares."""
    u, v = b(ops.abs, x.re), b(ops.abs, x.im)
    large, small = b(ops.maximum, u, v), b(ops.minimum, u, v)
    zero, one = b.const(0, x.dtype), b.const(1, x.dtype)
    safe = b(ops.where, b(ops.eq, large, zero), one, large)
    ratio = b(ops.div, small, safe)
    size = b(ops.mul, large, b(ops.sqrt, b(ops.add, one, b(ops.mul, ratio, ratio))))
    infinite = b(ops.logical_or, b(ops.isinf, x.re), b(ops.isinf, x.im))
    return b(ops.where, infinite, b.const(math.inf, x.dtype), size)


def polar(b: Builder, size: Node, angle: Node) -> Pair:
    """The number of this magnitude and angle."""
    return Pair(b(ops.mul, size, b(ops.cos, angle)), b(ops.mul, size, b(ops.sin, angle)))


def exponential(b: Builder, x: Pair) -> Pair:
    """``exp(x)``."""
    return polar(b, b(ops.exp, x.re), x.im)
