"""Functions of complex numbers, which are pairs of real nodes, by functions of their parts.

In: a call, for its builder, and pairs. Out: pairs. Not its business: which operation it is (``elementwise``,
``special``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright import ops
from tilewright.core.graph import Builder
from tilewright.core.opdef import OpDef
from tilewright.frontend.complex_functions import (
    arc_cosine,
    arc_sine,
    arc_tangent,
    area_cosine,
    area_sine,
    area_tangent,
    exponential_less_one,
    hyperbolic_tangent,
    inverse,
    logarithm_of_one_more,
    tangent,
    turned_back,
)
from tilewright.frontend.complex_pairs import (
    Pair,
    conjugate,
    exponential,
    hyperbolic_cosine,
    hyperbolic_sine,
    logarithm,
    magnitude,
    product,
    quotient,
    scaled,
    square_root,
    zero_or_product,
)
from tilewright.frontend.complex_pairs import cosine as trigonometric_cosine
from tilewright.frontend.complex_pairs import sine as trigonometric_sine
from tilewright.frontend.nodes import with_sign_of
from tilewright.frontend.stablehlo.operation import Operation


def multiply(c: Operation, x: Pair, y: Pair) -> Pair:
    return product(c.b, x, y)


def divide(c: Operation, x: Pair, y: Pair) -> Pair:
    """A finite number divided by an infinite one is zero, as in XLA and C11's annex G."""
    made, (zero, one, infinite) = quotient(c.b, x, y), (c.b.const(n, x.dtype) for n in (0, 1, math.inf))
    ends = [with_sign_of(c.b, c.b(ops.where, c.b(ops.isinf, part), one, zero), part) for part in (y.re, y.im)]
    nothing = scaled(c.b, product(c.b, x, conjugate(c.b, Pair(*ends))), zero)
    is_far = c.b(ops.logical_or, c.b(ops.isinf, y.re), c.b(ops.isinf, y.im))
    is_finite = c.b(ops.lt, c.b(ops.maximum, c.b(ops.abs, x.re), c.b(ops.abs, x.im)), infinite)
    is_gone = c.b(ops.logical_and, is_far, is_finite)
    return Pair(c.b(ops.where, is_gone, nothing.re, made.re), c.b(ops.where, is_gone, nothing.im, made.im))


def larger(is_before: OpDef) -> Callable[[Operation, Pair, Pair], Pair]:
    """The extreme of two numbers in the order of their real parts, then of their imaginary ones, as the spec has it."""

    def choose(c: Operation, x: Pair, y: Pair) -> Pair:
        by_imaginary = c.b(ops.logical_and, c.b(ops.eq, x.re, y.re), c.b(is_before, x.im, y.im))
        first = c.b(ops.logical_or, c.b(is_before, x.re, y.re), by_imaginary)
        is_nan = c.b(ops.logical_or, c.b(ops.isnan, x.re), c.b(ops.isnan, x.im))
        first = c.b(ops.logical_or, first, is_nan)
        return Pair(c.b(ops.where, first, x.re, y.re), c.b(ops.where, first, x.im, y.im))

    return choose


def sign(c: Operation, x: Pair) -> Pair:
    size = magnitude(c.b, x)
    zero = c.b(ops.eq, size, c.b.const(0, x.dtype))
    safe = c.b(ops.where, zero, c.b.const(1, x.dtype), size)
    return Pair(c.b(ops.div, x.re, safe), c.b(ops.div, x.im, safe))


def of_builder(of: Callable[[Builder, Pair], Pair]) -> Callable[[Operation, Pair], Pair]:
    """A function that needs no more of the call than its builder."""
    return lambda c, x: of(c.b, x)


log, sqrt = of_builder(logarithm), of_builder(square_root)
sine, cosine = of_builder(trigonometric_sine), of_builder(trigonometric_cosine)
sinh, cosh, tanh = of_builder(hyperbolic_sine), of_builder(hyperbolic_cosine), of_builder(hyperbolic_tangent)
tan, log1p = of_builder(tangent), of_builder(logarithm_of_one_more)
asin, acos, atan = of_builder(arc_sine), of_builder(arc_cosine), of_builder(arc_tangent)
asinh, acosh, atanh = of_builder(area_sine), of_builder(area_cosine), of_builder(area_tangent)


def exp(c: Operation, x: Pair) -> Pair:
    """NaN where the angle is not finite, also of minus infinity: so XLA and StableHLO's tests have it, but not C."""
    found, nan = exponential(c.b, x), c.b.const(math.nan, x.dtype)
    is_angle = c.b(ops.lt, c.b(ops.abs, x.im), c.b.const(math.inf, x.dtype))
    return Pair(c.b(ops.where, is_angle, found.re, nan), c.b(ops.where, is_angle, found.im, nan))


def rsqrt(c: Operation, x: Pair) -> Pair:
    return inverse(c.b, sqrt(c, x))


def power(c: Operation, x: Pair, y: Pair) -> Pair:
    made = exp(c, product(c.b, log(c, x), y))
    zero = c.b(ops.eq, magnitude(c.b, x), c.b.const(0, x.dtype))
    none = c.b.const(0, x.dtype)
    is_one = c.b(ops.eq, magnitude(c.b, y), none)
    at_zero = c.b(ops.where, is_one, c.b.const(1, x.dtype), none)
    return Pair(c.b(ops.where, zero, at_zero, made.re), c.b(ops.where, zero, none, made.im))


def cbrt(c: Operation, x: Pair) -> Pair:
    """The root whose angle is a third of that of ``x``."""
    third = c.b.const(1 / 3, x.dtype)
    found = log(c, x)
    return exp_or_zero(c, x, scaled(c.b, found, third))


def exp_or_zero(c: Operation, x: Pair, power_: Pair) -> Pair:
    """``exp(power_)``, and 0 where ``x`` is 0, of which the logarithm is no number."""
    made, zero = exp(c, power_), c.b.const(0, x.dtype)
    is_zero = c.b(ops.logical_and, c.b(ops.eq, x.re, zero), c.b(ops.eq, x.im, zero))
    return Pair(c.b(ops.where, is_zero, zero, made.re), c.b(ops.where, is_zero, zero, made.im))


def atan2(c: Operation, y: Pair, x: Pair) -> Pair:
    """``-i log((x + i y) / sqrt(x x + y y))``."""
    sum_ = Pair(c.b(ops.sub, x.re, y.im), c.b(ops.add, x.im, y.re))
    squares = (product(c.b, x, x), product(c.b, y, y))
    root = sqrt(c, Pair(c.b(ops.add, squares[0].re, squares[1].re), c.b(ops.add, squares[0].im, squares[1].im)))
    return turned_back(c.b, log(c, quotient(c.b, sum_, root)))


def square(c: Operation, x: Pair) -> Pair:
    """By ``(|re| - |im|) (|re| + |im|)``, which does not cancel."""
    u, v = c.b(ops.abs, x.re), c.b(ops.abs, x.im)
    re = zero_or_product(c.b, c.b(ops.sub, u, v), c.b(ops.add, u, v))
    return Pair(re, c.b(ops.mul, c.b.const(2, x.dtype), c.b(ops.mul, x.re, x.im)))


def logistic(c: Operation, x: Pair) -> Pair:
    e = exp(c, Pair(c.b(ops.neg, x.re), c.b(ops.neg, x.im)))
    one, none = c.b.const(1, x.dtype), c.b.const(0, x.dtype)
    return divide(c, Pair(one, none), Pair(c.b(ops.add, one, e.re), e.im))


def expm1(c: Operation, x: Pair) -> Pair:
    """NaN where the angle is not finite, as ``exp``."""
    return Pair(exponential_less_one(c.b, x).re, exp(c, x).im)
