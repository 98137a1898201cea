"""Functions of complex numbers, which are pairs of real nodes, by functions of their parts.

In: a call, for its builder, and pairs. Out: pairs. Not its business: which operation it is (``elementwise``,
``special``).

Inverse functions are Kahan's (Branch Cuts for Complex Elementary Functions, 1987): by square roots of ``1 + z`` and
``1 - z``, so that nothing cancels beside the branch points, and the side of a cut is the sign of a zero. Far from the
origin, where products of these roots overflow, they are the logarithm of ``2 z`` and its angle (``_far``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright import ops
from tilewright.core.graph import Builder, Node
from tilewright.core.opdef import OpDef
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
    return quotient(c.b, x, y)


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
sinh, cosh = of_builder(hyperbolic_sine), of_builder(hyperbolic_cosine)


def exp(c: Operation, x: Pair) -> Pair:
    """NaN where the angle is not finite, also of minus infinity: so XLA and StableHLO's tests have it, but not C."""
    found, nan = exponential(c.b, x), c.b.const(math.nan, x.dtype)
    is_angle = c.b(ops.lt, c.b(ops.abs, x.im), c.b.const(math.inf, x.dtype))
    return Pair(c.b(ops.where, is_angle, found.re, nan), c.b(ops.where, is_angle, found.im, nan))


def rsqrt(c: Operation, x: Pair) -> Pair:
    one_ = Pair(c.b.const(1, x.dtype), c.b.const(0, x.dtype))
    return quotient(c.b, one_, sqrt(c, x))


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
    return exp_or_zero(c, x, Pair(c.b(ops.mul, found.re, third), c.b(ops.mul, found.im, third)))


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
    return _turned_back(c, log(c, quotient(c.b, sum_, root)))


def square(c: Operation, x: Pair) -> Pair:
    """By ``(|re| - |im|) (|re| + |im|)``, which does not cancel."""
    u, v = c.b(ops.abs, x.re), c.b(ops.abs, x.im)
    re = zero_or_product(c.b, c.b(ops.sub, u, v), c.b(ops.add, u, v))
    return Pair(re, c.b(ops.mul, c.b.const(2, x.dtype), c.b(ops.mul, x.re, x.im)))


def tanh(c: Operation, x: Pair) -> Pair:
    """``(sinh a cosh a + i sin b cos b) / (sinh(a) ** 2 + cos(b) ** 2)``, which has no difference to cancel.

    Where the squares would overflow it is one, and ``4 sin b cos b exp(-2 a)``; at infinity one, whatever ``b`` is.
    """
    zero, one, size = c.b.const(0, x.dtype), c.b.const(1, x.dtype), c.b(ops.abs, x.re)
    is_far = c.b(ops.gt, size, c.b.const(math.log(x.dtype.max) / 4, x.dtype))
    sinh_, cosine_ = c.b(ops.sinh, x.re), c.b(ops.cos, x.im)
    below = c.b(ops.add, c.b(ops.mul, sinh_, sinh_), c.b(ops.mul, cosine_, cosine_))
    above = c.b(ops.mul, c.b(ops.sin, x.im), cosine_)
    near = Pair(c.b(ops.div, c.b(ops.mul, sinh_, c.b(ops.cosh, x.re)), below), c.b(ops.div, above, below))
    left = c.b(ops.mul, c.b.const(4, x.dtype), c.b(ops.exp, c.b(ops.mul, c.b.const(-2, x.dtype), size)))
    left = c.b(ops.where, c.b(ops.isinf, size), with_sign_of(c.b, zero, above), c.b(ops.mul, above, left))
    unit = c.b(ops.where, c.b(ops.isnan, left), left, with_sign_of(c.b, one, x.re))
    re, im = c.b(ops.where, is_far, unit, near.re), c.b(ops.where, is_far, left, near.im)
    # on an axis the other part is zero, also beside NaN
    return Pair(*(c.b(ops.where, c.b(ops.eq, of, zero), of, part) for of, part in ((x.re, re), (x.im, im))))


def expm1(c: Operation, x: Pair) -> Pair:
    """``expm1(a) cos(b) - 2 sin(b / 2) ** 2``, which keeps small numbers."""
    half = c.b(ops.sin, c.b(ops.mul, x.im, c.b.const(0.5, x.dtype)))
    lost = c.b(ops.mul, c.b.const(2, x.dtype), c.b(ops.mul, half, half))
    re = c.b(ops.sub, c.b(ops.mul, c.b(ops.expm1, x.re), c.b(ops.cos, x.im)), lost)
    return Pair(re, exp(c, x).im)


def log1p(c: Operation, x: Pair) -> Pair:
    """The real part is half the logarithm of ``1 + re (re + 2) + im im``, where that is not large."""
    after = Pair(c.b(ops.add, x.re, c.b.const(1, x.dtype)), x.im)
    above = c.b(ops.mul, x.re, c.b(ops.add, x.re, c.b.const(2, x.dtype)))
    above = c.b(ops.add, above, c.b(ops.mul, x.im, x.im))
    far, half = log(c, after), c.b.const(0.5, x.dtype)
    is_near = c.b(ops.lt, c.b(ops.abs, above), half)
    return Pair(c.b(ops.where, is_near, c.b(ops.mul, half, c.b(ops.log1p, above)), far.re), far.im)


def logistic(c: Operation, x: Pair) -> Pair:
    one_ = c.b.const(1, x.dtype)
    e = exp(c, Pair(c.b(ops.neg, x.re), c.b(ops.neg, x.im)))
    return quotient(c.b, Pair(one_, c.b.const(0, x.dtype)), Pair(c.b(ops.add, one_, e.re), e.im))


def tan(c: Operation, x: Pair) -> Pair:
    return _turned_back(c, tanh(c, _turned(c, x)))


def _turned(c: Operation, x: Pair) -> Pair:
    """``i x``."""
    return Pair(c.b(ops.neg, x.im), x.re)


def _turned_back(c: Operation, x: Pair) -> Pair:
    """``-i x``."""
    return Pair(x.im, c.b(ops.neg, x.re))


# --- inverse functions ----------------------------------------------------------------------------------------------


def _roots(c: Operation, x: Pair) -> tuple[Pair, Pair]:
    """The square roots of ``1 - x`` and ``1 + x``."""
    one = c.b.const(1, x.dtype)
    minus = Pair(c.b(ops.sub, one, x.re), c.b(ops.neg, x.im))
    return sqrt(c, minus), sqrt(c, Pair(c.b(ops.add, one, x.re), x.im))


def _far(c: Operation, x: Pair, near: Pair, far: Pair) -> Pair:
    """``far`` where one over the square of ``x`` is lost beside 1, ``near`` elsewhere."""
    limit = c.b.const(8 / math.sqrt(np.finfo(x.dtype.numpy).eps), x.dtype)
    is_far = c.b(ops.logical_or, *(c.b(ops.gt, c.b(ops.abs, part), limit) for part in (x.re, x.im)))
    return Pair(c.b(ops.where, is_far, far.re, near.re), c.b(ops.where, is_far, far.im, near.im))


def _log_of_twice(c: Operation, x: Pair) -> Node:
    """``log |2 x|``."""
    return c.b(ops.add, log(c, x).re, c.b.const(math.log(2), x.dtype))


def asin(c: Operation, x: Pair) -> Pair:
    minus, plus = _roots(c, x)
    re = c.b(ops.atan2, x.re, product(c.b, minus, plus).re)
    near = Pair(re, c.b(ops.asinh, product(c.b, conjugate(c.b, minus), plus).im))
    far = Pair(c.b(ops.atan2, x.re, c.b(ops.abs, x.im)), with_sign_of(c.b, _log_of_twice(c, x), x.im))
    return _far(c, x, near, far)


def acos(c: Operation, x: Pair) -> Pair:
    minus, plus = _roots(c, x)
    re = c.b(ops.mul, c.b.const(2, x.dtype), c.b(ops.atan2, minus.re, plus.re))
    near = Pair(re, c.b(ops.asinh, product(c.b, conjugate(c.b, plus), minus).im))
    far = Pair(c.b(ops.atan2, c.b(ops.abs, x.im), x.re), with_sign_of(c.b, _log_of_twice(c, x), c.b(ops.neg, x.im)))
    return _far(c, x, near, far)


def acosh(c: Operation, x: Pair) -> Pair:
    one = c.b.const(1, x.dtype)
    minus, plus = sqrt(c, Pair(c.b(ops.sub, x.re, one), x.im)), sqrt(c, Pair(c.b(ops.add, x.re, one), x.im))
    re = c.b(ops.asinh, product(c.b, conjugate(c.b, minus), plus).re)
    near = Pair(re, c.b(ops.mul, c.b.const(2, x.dtype), c.b(ops.atan2, minus.im, plus.re)))
    return _far(c, x, near, Pair(_log_of_twice(c, x), c.b(ops.atan2, x.im, x.re)))


def asinh(c: Operation, x: Pair) -> Pair:
    return _turned_back(c, asin(c, _turned(c, x)))


def atanh(c: Operation, x: Pair) -> Pair:
    """Far from the origin the real part is that of ``1 / x``, and the imaginary one a quarter of a turn."""
    one, zero, square = c.b.const(1, x.dtype), c.b.const(0, x.dtype), c.b(ops.mul, x.im, x.im)
    size = c.b(ops.abs, x.re)
    minus, plus = c.b(ops.sub, one, size), c.b(ops.add, one, size)
    apart = c.b(ops.add, c.b(ops.mul, minus, minus), square)
    ratio = c.b(ops.div, c.b(ops.mul, c.b.const(4, x.dtype), size), apart)
    re = c.b(ops.mul, c.b.const(0.25, x.dtype), c.b(ops.log1p, ratio))
    im = c.b(ops.atan2, c.b(ops.add, x.im, x.im), c.b(ops.sub, c.b(ops.mul, minus, plus), square))
    im = c.b(ops.mul, c.b.const(0.5, x.dtype), im)
    largest = c.b(ops.maximum, size, c.b(ops.abs, x.im))
    is_far = c.b(ops.gt, largest, c.b.const(math.sqrt(x.dtype.max) / 8, x.dtype))
    u, v = (c.b(ops.div, part, largest) for part in (size, x.im))
    inverse = c.b(ops.div, u, c.b(ops.add, c.b(ops.mul, u, u), c.b(ops.mul, v, v)))
    far = c.b(ops.where, c.b(ops.isinf, largest), zero, c.b(ops.div, inverse, largest))
    turn = with_sign_of(c.b, c.b.const(math.pi / 2, x.dtype), x.im)
    re = with_sign_of(c.b, c.b(ops.where, is_far, far, re), x.re)
    return Pair(re, c.b(ops.where, is_far, turn, im))


def atan(c: Operation, x: Pair) -> Pair:
    return _turned_back(c, atanh(c, _turned(c, x)))
