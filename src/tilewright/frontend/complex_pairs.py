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
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, f32, f64
from tilewright.frontend.nodes import with_sign_of

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


def real_pair(b: Builder, re: Node) -> Pair:
    """A real tensor as a complex one: nothing of an infinity or NaN reaches the imaginary part."""
    return Pair(re, b(ops.full, value=0.0, dtype=re.dtype, shape=re.shape))


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


def matrix_product(b: Builder, of: Callable[[Node, Node], Node], x: Pair, y: Pair) -> Pair:
    """The product of complex matrices as one product ``of`` real ones, with the parts side by side, as they are stored.

    An element of ``y`` becomes the block ``[[re, im], [-im, re]]`` of a matrix of twice as many rows and columns, so
    that the rows of ``x`` are read as they lie, and the result's parts come to lie as they will be wanted.
    """
    left = b(ops.reshape, join_parts(b, x), shape=(*x.shape[:-1], 2 * x.shape[-1]))
    is_vector = len(y.shape) == 1
    if is_vector:
        y = Pair(*(b(ops.reshape, part, shape=(*y.shape, 1)) for part in (y.re, y.im)))
    *lead, k, n = y.shape
    rows = [join_parts(b, y), join_parts(b, Pair(b(ops.neg, y.im), y.re))]
    apart = [b(ops.reshape, row, shape=(*lead, k, 1, n, 2)) for row in rows]
    right = b(ops.reshape, b(ops.concat, *apart, axis=len(lead) + 1), shape=(*lead, 2 * k, 2 * n))
    made = of(left, right)
    return from_parts(b, made if is_vector else b(ops.reshape, made, shape=(*made.shape[:-1], n, 2)))


def conjugate(b: Builder, x: Pair) -> Pair:
    """The conjugate."""
    return Pair(x.re, b(ops.neg, x.im))


def added(b: Builder, x: Pair, y: Pair) -> Pair:
    """The sum."""
    return Pair(b(ops.add, x.re, y.re), b(ops.add, x.im, y.im))


def scaled(b: Builder, x: Pair, factor: Node) -> Pair:
    """``x`` times a real number."""
    return Pair(b(ops.mul, x.re, factor), b(ops.mul, x.im, factor))


def quotient(b: Builder, x: Pair, y: Pair) -> Pair:
    """``x / y``, scaled by the larger part of ``y`` so that nothing overflows on the way (Smith 1962).

    By zero each part is divided by zero, whatever the zero's signs are, as PyTorch and NumPy do.
    """
    swap = b(ops.gt, b(ops.abs, y.im), b(ops.abs, y.re))
    large, small = b(ops.where, swap, y.im, y.re), b(ops.where, swap, y.re, y.im)
    zero = b.const(0, y.dtype)
    by_zero = b(ops.logical_and, b(ops.eq, y.re, zero), b(ops.eq, y.im, zero))
    ratio = b(ops.div, small, large)
    scale = b(ops.where, by_zero, zero, b(ops.add, large, b(ops.mul, small, ratio)))
    first = b(ops.where, swap, x.im, x.re)
    second = b(ops.where, swap, x.re, x.im)
    above = b(ops.add, first, b(ops.mul, second, ratio)), b(ops.sub, second, b(ops.mul, first, ratio))
    real, other = (
        b(ops.div, b(ops.where, by_zero, alone, sum_), scale)
        for alone, sum_ in zip((first, second), above, strict=True)
    )
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


def directions(b: Builder, x: Pair) -> Pair:
    """Numbers of size 1 on the way from 0 to each; 0 of 0."""
    size, zero = magnitude(b, x), b.const(0, x.dtype)
    is_zero = b(ops.eq, size, zero)
    safe = b(ops.where, is_zero, b.const(1, x.dtype), size)
    return Pair(*(b(ops.where, is_zero, zero, b(ops.div, part, safe)) for part in (x.re, x.im)))


def polar(b: Builder, size: Node, angle: Node) -> Pair:
    """The number of this magnitude and angle."""
    return Pair(b(ops.mul, size, b(ops.cos, angle)), b(ops.mul, size, b(ops.sin, angle)))


def exponential(b: Builder, x: Pair) -> Pair:
    """``exp(x)``: of minus infinity zero, whatever the angle is; not so where that of a finite number underflows."""
    (size, rest), cosine_ = growing(b, ops.exp, x.re), b(ops.cos, x.im)
    is_zero = b(ops.eq, x.re, b.const(-math.inf, x.dtype))
    re, im = (b(ops.mul, zero_or_product(b, size, part, is_zero), rest) for part in (cosine_, b(ops.sin, x.im)))
    return Pair(infinite_at_no_angle(b, b(ops.eq, x.re, b.const(math.inf, x.dtype)), cosine_, re), im)


def logarithm(b: Builder, x: Pair) -> Pair:
    """The principal logarithm: that of the magnitude, ``log(u) + log1p((v / u)^2) / 2``, and the angle.

    Near magnitude 1 the square of the magnitude less 1 is what keeps its digits: ``(u - 1)(u + 1) + v v`` of the larger
    part ``u`` and the smaller one ``v``.
    """
    u, v = (b(f, b(ops.abs, x.re), b(ops.abs, x.im)) for f in (ops.maximum, ops.minimum))
    one, half, two = (b.const(value, x.dtype) for value in (1, 0.5, 2))
    beyond = b(ops.add, b(ops.mul, b(ops.sub, u, one), b(ops.add, u, one)), b(ops.mul, v, v))
    is_near = b(ops.logical_and, b(ops.gt, u, half), b(ops.lt, u, two))
    zero, infinite = b.const(0, x.dtype), b.const(math.inf, x.dtype)
    near = b(ops.mul, half, b(ops.log1p, b(ops.where, is_near, beyond, zero)))
    ratio = b(ops.div, v, b(ops.where, b(ops.eq, u, zero), one, u))
    far = b(ops.add, b(ops.log, u), b(ops.mul, half, b(ops.log1p, b(ops.mul, ratio, ratio))))
    far = b(ops.where, b(ops.logical_or, b(ops.isinf, x.re), b(ops.isinf, x.im)), infinite, far)
    return Pair(b(ops.where, is_near, near, far), b(ops.atan2, x.im, x.re))


def square_root(b: Builder, x: Pair) -> Pair:
    """The root whose real part is not negative; the larger of its parts is found first, and the other by division.

    It is that of ``x`` times a power of 4, with which neither the magnitude overflows nor a half underflows.
    """
    half, zero, one = (b.const(value, x.dtype) for value in (0.5, 0, 1))
    is_large = b(ops.logical_or, *(b(ops.gt, b(ops.abs, part), one) for part in (x.re, x.im)))
    scale, back = (b(ops.where, is_large, *(b.const(2.0**k, x.dtype) for k in ks)) for ks in ((-2, 60), (1, -30)))
    re, im = b(ops.mul, x.re, scale), b(ops.mul, x.im, scale)
    twice = b(ops.add, magnitude(b, Pair(re, im)), b(ops.abs, re))
    # an infinite imaginary part makes both parts infinite, whatever the real part is
    is_infinite = b(ops.isinf, im)
    large = b(ops.where, is_infinite, b.const(math.inf, x.dtype), b(ops.sqrt, b(ops.mul, half, twice)))
    known = b(ops.logical_or, b(ops.eq, large, zero), is_infinite)
    safe = b(ops.where, known, one, large)
    small = b(ops.where, known, large, b(ops.div, b(ops.mul, half, b(ops.abs, im)), safe))
    is_left = b(ops.lt, re, zero)
    root = Pair(b(ops.where, is_left, small, large), with_sign_of(b, b(ops.where, is_left, large, small), im))
    return scaled(b, root, back)


def growing(b: Builder, f: OpDef, x: Node) -> tuple[Node, Node]:
    """``f(x)`` of ``exp``, ``expm1``, ``cosh`` or ``sinh`` as two factors, the second positive, that are finite.

    By a sine or cosine one part of a result may be finite where ``f(x)`` alone overflows: multiply it by the first
    factor before the second. Up to one below the logarithm of the largest number the second is 1.
    """
    limit, is_even = math.log(x.dtype.max), f in (ops.cosh, ops.sinh)
    size = b(ops.abs, x) if is_even else x
    is_far = b(ops.gt, size, b.const(limit - 1, x.dtype))
    # Twice the limit makes any normal number infinite; a little less, so that rounding makes neither factor so.
    most = b.const(2 * limit * (1 - 2.0**-10), x.dtype)
    half = b(ops.mul, b.const(0.5, x.dtype), b(ops.minimum, size, most))
    made = b(f, b(ops.where, is_far, with_sign_of(b, half, x), x))
    again = b(ops.mul, b.const(2, x.dtype), b(ops.abs, made)) if is_even else made
    return made, b(ops.where, is_far, again, b.const(1, x.dtype))


def zero_or_product(b: Builder, x: Node, y: Node, is_exactly_zero: Node | None = None) -> Node:
    """``x * y``, and zero where one of them is zero, whatever the other one is (C11, annex G).

    A function of one part is zero on an axis, also where that of the other part overflows. ``is_exactly_zero`` says
    where ``x`` is zero, if it is also zero elsewhere by underflow.
    """
    zero, one = b.const(0, x.dtype), b.const(1, x.dtype)
    is_zero = b(ops.logical_or, is_exactly_zero or b(ops.eq, x, zero), b(ops.eq, y, zero))
    nothing = b(ops.mul, with_sign_of(b, zero, x), with_sign_of(b, one, y))
    return b(ops.where, is_zero, nothing, b(ops.mul, x, y))


def infinite_at_no_angle(b: Builder, is_infinite: Node, cosine_: Node, part: Node) -> Node:
    """A part that is a product by a cosine: of an infinite number infinite, also if no angle has that cosine (annex G).

    The number's other part is NaN then, and its magnitude stays infinite.
    """
    is_none = b(ops.logical_and, is_infinite, b(ops.isnan, cosine_))
    return b(ops.where, is_none, b.const(math.inf, part.dtype), part)


def _of_axes(b: Builder, real: tuple[OpDef, OpDef], imaginary: tuple[OpDef, OpDef], x: Pair) -> Pair:
    """A product of one function of the real part and one of the imaginary part, for each part of the result."""

    def part(f: OpDef, g: OpDef) -> Node:
        u, v = b(f, x.re), b(g, x.im)
        if f in (ops.cosh, ops.sinh):
            u, rest = growing(b, f, x.re)
        else:
            v, rest = growing(b, g, x.im)
        made = b(ops.mul, zero_or_product(b, u, v), rest)
        if ops.cos not in (f, g):
            return made
        cosine_, size = (u, x.im) if f is ops.cos else (v, x.re)
        return infinite_at_no_angle(b, b(ops.isinf, size), cosine_, made)

    return Pair(part(*real), part(*imaginary))


def sine(b: Builder, x: Pair) -> Pair:
    """``sin(x)``."""
    return _of_axes(b, (ops.sin, ops.cosh), (ops.cos, ops.sinh), x)


def cosine(b: Builder, x: Pair) -> Pair:
    """``cos(x)``."""
    found = _of_axes(b, (ops.cos, ops.cosh), (ops.sin, ops.sinh), x)
    return conjugate(b, found)


def hyperbolic_sine(b: Builder, x: Pair) -> Pair:
    """``sinh(x)``."""
    return _of_axes(b, (ops.sinh, ops.cos), (ops.cosh, ops.sin), x)


def hyperbolic_cosine(b: Builder, x: Pair) -> Pair:
    """``cosh(x)``."""
    return _of_axes(b, (ops.cosh, ops.cos), (ops.sinh, ops.sin), x)
