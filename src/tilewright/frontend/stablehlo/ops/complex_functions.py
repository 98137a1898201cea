"""Functions of complex numbers, which are pairs of real nodes, by functions of their parts.

In: a call, for its builder, and pairs. Out: pairs. Not its business: which operation it is (``elementwise``,
``special``).

Inverse functions are Kahan's (Branch Cuts for Complex Elementary Functions, 1987): by square roots of ``1 + z`` and
``1 - z``, so that nothing cancels beside the branch points, and the side of a cut is the sign of a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright import ops
from tilewright.core.graph import Builder
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


exp, log, sqrt = of_builder(exponential), of_builder(logarithm), of_builder(square_root)
sine, cosine = of_builder(trigonometric_sine), of_builder(trigonometric_cosine)
sinh, cosh = of_builder(hyperbolic_sine), of_builder(hyperbolic_cosine)


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


def tanh(c: Operation, x: Pair) -> Pair:
    """``(tanh a + i tan b) / (1 + i tanh a tan b)``."""
    a, t = c.b(ops.tanh, x.re), c.b(ops.tan, x.im)
    return quotient(c.b, Pair(a, t), Pair(c.b.const(1, x.dtype), c.b(ops.mul, a, t)))


def expm1(c: Operation, x: Pair) -> Pair:
    """``expm1(a) cos(b) - 2 sin(b / 2) ** 2``, which keeps small numbers."""
    half = c.b(ops.sin, c.b(ops.mul, x.im, c.b.const(0.5, x.dtype)))
    lost = c.b(ops.mul, c.b.const(2, x.dtype), c.b(ops.mul, half, half))
    re = c.b(ops.sub, c.b(ops.mul, c.b(ops.expm1, x.re), c.b(ops.cos, x.im)), lost)
    return Pair(re, c.b(ops.mul, c.b(ops.exp, x.re), c.b(ops.sin, x.im)))


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


def asin(c: Operation, x: Pair) -> Pair:
    minus, plus = _roots(c, x)
    re = c.b(ops.atan2, x.re, product(c.b, minus, plus).re)
    return Pair(re, c.b(ops.asinh, product(c.b, conjugate(c.b, minus), plus).im))


def acos(c: Operation, x: Pair) -> Pair:
    minus, plus = _roots(c, x)
    re = c.b(ops.mul, c.b.const(2, x.dtype), c.b(ops.atan2, minus.re, plus.re))
    return Pair(re, c.b(ops.asinh, product(c.b, conjugate(c.b, plus), minus).im))


def acosh(c: Operation, x: Pair) -> Pair:
    one = c.b.const(1, x.dtype)
    minus, plus = sqrt(c, Pair(c.b(ops.sub, x.re, one), x.im)), sqrt(c, Pair(c.b(ops.add, x.re, one), x.im))
    re = c.b(ops.asinh, product(c.b, conjugate(c.b, minus), plus).re)
    return Pair(re, c.b(ops.mul, c.b.const(2, x.dtype), c.b(ops.atan2, minus.im, plus.re)))


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
    far = c.b(ops.where, c.b(ops.isinf, largest), zero, quotient(c.b, Pair(one, zero), Pair(size, x.im)).re)
    turn = with_sign_of(c.b, c.b.const(math.pi / 2, x.dtype), x.im)
    re = with_sign_of(c.b, c.b(ops.where, is_far, far, re), x.re)
    return Pair(re, c.b(ops.where, is_far, turn, im))


def atan(c: Operation, x: Pair) -> Pair:
    return _turned_back(c, atanh(c, _turned(c, x)))
