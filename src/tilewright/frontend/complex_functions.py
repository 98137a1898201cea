"""Functions of complex numbers, which are pairs of real nodes, by functions of their parts.

In: a builder, and pairs. Out: pairs. Not its business: arithmetic, powers, and what a call's language asks for at
infinity (``complex_pairs``, ``stablehlo.ops``, ``torch.aten.complex``).

Inverse functions are Kahan's (Branch Cuts for Complex Elementary Functions, 1987): by square roots of ``1 + z`` and
``1 - z``, so that nothing cancels beside the branch points, and the side of a cut is the sign of a zero. Far from the
origin, where products of these roots overflow, they are the logarithm of ``2 z`` and its angle (``_far``).
"""

from __future__ import annotations

import math

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Builder, Node
from tilewright.frontend.complex_pairs import (
    Pair,
    conjugate,
    exponential,
    growing,
    logarithm,
    product,
    quotient,
    scaled,
    square_root,
)
from tilewright.frontend.nodes import slice_axis, with_sign_of


def hyperbolic_tangent(b: Builder, x: Pair) -> Pair:
    """``tanh(x)``, ``(sinh a cosh a + i sin b cos b) / (sinh(a) ** 2 + cos(b) ** 2)``: nothing cancels.

    Where the squares would overflow it is one, and ``4 sin b cos b exp(-2 a)``; at infinity one, whatever ``b`` is.
    """
    zero, one, size = b.const(0, x.dtype), b.const(1, x.dtype), b(ops.abs, x.re)
    is_far = b(ops.gt, size, b.const(math.log(x.dtype.max) / 4, x.dtype))
    sinh_, cosine_ = b(ops.sinh, x.re), b(ops.cos, x.im)
    below = b(ops.add, b(ops.mul, sinh_, sinh_), b(ops.mul, cosine_, cosine_))
    above = b(ops.mul, b(ops.sin, x.im), cosine_)
    near = Pair(b(ops.div, b(ops.mul, sinh_, b(ops.cosh, x.re)), below), b(ops.div, above, below))
    left = b(ops.mul, b.const(4, x.dtype), b(ops.exp, b(ops.mul, b.const(-2, x.dtype), size)))
    left = b(ops.where, b(ops.isinf, size), with_sign_of(b, zero, above), b(ops.mul, above, left))
    unit = b(ops.where, b(ops.isnan, left), left, with_sign_of(b, one, x.re))
    re, im = b(ops.where, is_far, unit, near.re), b(ops.where, is_far, left, near.im)
    # on an axis the other part is zero, also beside NaN
    return Pair(*(b(ops.where, b(ops.eq, of, zero), of, part) for of, part in ((x.re, re), (x.im, im))))


def tangent(b: Builder, x: Pair) -> Pair:
    """``tan(x)``."""
    return turned_back(b, hyperbolic_tangent(b, _turned(b, x)))


def exponential_less_one(b: Builder, x: Pair) -> Pair:
    """``exp(x) - 1``: ``expm1(a) cos(b) - 2 sin(b / 2) ** 2``, which keeps small numbers."""
    half = b(ops.sin, b(ops.mul, x.im, b.const(0.5, x.dtype)))
    lost = b(ops.mul, b.const(2, x.dtype), b(ops.mul, half, half))
    size, rest = growing(b, ops.expm1, x.re)
    re = b(ops.sub, b(ops.mul, b(ops.mul, size, b(ops.cos, x.im)), rest), lost)
    return Pair(re, exponential(b, x).im)


def logarithm_of_one_more(b: Builder, x: Pair) -> Pair:
    """``log(1 + x)``. The real part is half the logarithm of ``1 + re (re + 2) + im im``, where that is not large."""
    after = Pair(b(ops.add, x.re, b.const(1, x.dtype)), x.im)
    above = b(ops.mul, x.re, b(ops.add, x.re, b.const(2, x.dtype)))
    above = b(ops.add, above, b(ops.mul, x.im, x.im))
    far, half = logarithm(b, after), b.const(0.5, x.dtype)
    is_near = b(ops.lt, b(ops.abs, above), half)
    return Pair(b(ops.where, is_near, b(ops.mul, half, b(ops.log1p, above)), far.re), far.im)


def _turned(b: Builder, x: Pair) -> Pair:
    """``i x``."""
    return Pair(b(ops.neg, x.im), x.re)


def turned_back(b: Builder, x: Pair) -> Pair:
    """``-i x``."""
    return Pair(x.im, b(ops.neg, x.re))


# --- inverse functions ----------------------------------------------------------------------------------------------


def _roots(b: Builder, x: Pair) -> tuple[Pair, Pair]:
    """The square roots of ``1 - x`` and ``1 + x``."""
    one = b.const(1, x.dtype)
    minus = Pair(b(ops.sub, one, x.re), b(ops.neg, x.im))
    return square_root(b, minus), square_root(b, Pair(b(ops.add, one, x.re), x.im))


def _far(b: Builder, x: Pair, near: Pair, far: Pair) -> Pair:
    """``far`` where one over the square of ``x`` is lost beside 1, ``near`` elsewhere."""
    limit = b.const(8 / math.sqrt(np.finfo(x.dtype.numpy).eps), x.dtype)
    is_far = b(ops.logical_or, *(b(ops.gt, b(ops.abs, part), limit) for part in (x.re, x.im)))
    return Pair(b(ops.where, is_far, far.re, near.re), b(ops.where, is_far, far.im, near.im))


def _log_of_twice(b: Builder, x: Pair) -> Node:
    """``log |2 x|``."""
    return b(ops.add, logarithm(b, x).re, b.const(math.log(2), x.dtype))


def arc_sine(b: Builder, x: Pair) -> Pair:
    """``asin(x)``."""
    minus, plus = _roots(b, x)
    re = b(ops.atan2, x.re, product(b, minus, plus).re)
    near = Pair(re, b(ops.asinh, product(b, conjugate(b, minus), plus).im))
    far = Pair(b(ops.atan2, x.re, b(ops.abs, x.im)), with_sign_of(b, _log_of_twice(b, x), x.im))
    return _far(b, x, near, far)


def arc_cosine(b: Builder, x: Pair) -> Pair:
    """``acos(x)``."""
    minus, plus = _roots(b, x)
    re = b(ops.mul, b.const(2, x.dtype), b(ops.atan2, minus.re, plus.re))
    near = Pair(re, b(ops.asinh, product(b, conjugate(b, plus), minus).im))
    far = Pair(b(ops.atan2, b(ops.abs, x.im), x.re), with_sign_of(b, _log_of_twice(b, x), b(ops.neg, x.im)))
    return _far(b, x, near, far)


def area_cosine(b: Builder, x: Pair) -> Pair:
    """``acosh(x)``."""
    one = b.const(1, x.dtype)
    minus, plus = square_root(b, Pair(b(ops.sub, x.re, one), x.im)), square_root(b, Pair(b(ops.add, x.re, one), x.im))
    re = b(ops.asinh, product(b, conjugate(b, minus), plus).re)
    near = Pair(re, b(ops.mul, b.const(2, x.dtype), b(ops.atan2, minus.im, plus.re)))
    return _far(b, x, near, Pair(_log_of_twice(b, x), b(ops.atan2, x.im, x.re)))


def area_sine(b: Builder, x: Pair) -> Pair:
    """``asinh(x)``."""
    return turned_back(b, arc_sine(b, _turned(b, x)))


def area_tangent(b: Builder, x: Pair) -> Pair:
    """``atanh(x)``: far from the origin the real part is that of ``1 / x``, the imaginary one a quarter of a turn.

    Right above and below 1 and -1, where the square of the imaginary part may underflow, it is ``log(2 / |im|) / 2``.
    """
    one, zero, square = b.const(1, x.dtype), b.const(0, x.dtype), b(ops.mul, x.im, x.im)
    size = b(ops.abs, x.re)
    minus, plus = b(ops.sub, one, size), b(ops.add, one, size)
    apart = b(ops.add, b(ops.mul, minus, minus), square)
    ratio = b(ops.div, b(ops.mul, b.const(4, x.dtype), size), apart)
    re = b(ops.mul, b.const(0.25, x.dtype), b(ops.log1p, ratio))
    aside = b(ops.abs, x.im)
    is_aside = b(ops.lt, aside, b.const(math.sqrt(np.finfo(x.dtype.numpy).eps), x.dtype))
    is_pole = b(ops.logical_and, b(ops.eq, minus, zero), is_aside)
    at_pole = b(ops.sub, b.const(math.log(2), x.dtype), b(ops.log, aside))
    re = b(ops.where, is_pole, b(ops.mul, b.const(0.5, x.dtype), at_pole), re)
    im = b(ops.atan2, b(ops.add, x.im, x.im), b(ops.sub, b(ops.mul, minus, plus), square))
    im = b(ops.mul, b.const(0.5, x.dtype), im)
    largest = b(ops.maximum, size, b(ops.abs, x.im))
    is_far = b(ops.gt, largest, b.const(math.sqrt(x.dtype.max) / 8, x.dtype))
    u, v = (b(ops.div, part, largest) for part in (size, x.im))
    inverse = b(ops.div, u, b(ops.add, b(ops.mul, u, u), b(ops.mul, v, v)))
    far = b(ops.where, b(ops.isinf, largest), zero, b(ops.div, inverse, largest))
    turn = with_sign_of(b, b.const(math.pi / 2, x.dtype), x.im)
    re = with_sign_of(b, b(ops.where, is_far, far, re), x.re)
    return Pair(re, b(ops.where, is_far, turn, im))


def arc_tangent(b: Builder, x: Pair) -> Pair:
    """``atan(x)``."""
    return turned_back(b, area_tangent(b, _turned(b, x)))


# --- powers ---------------------------------------------------------------------------------------------------------


def power(b: Builder, x: Pair, y: Pair) -> Pair:
    """``exp(y log x)``, as C and PyTorch have it: of zero zero, where the real part of ``y`` is greater than zero."""
    return exponential(b, product_with_infinities(b, logarithm(b, x), y))


def product_with_infinities(b: Builder, x: Pair, y: Pair) -> Pair:
    """The product, which is infinite where a factor is and both of its parts would be NaN (C11, annex G)."""
    made = product(b, x, y)
    zero, one, infinite = (b.const(value, x.dtype) for value in (0, 1, math.inf))
    far = [b(ops.logical_or, b(ops.isinf, z.re), b(ops.isinf, z.im)) for z in (x, y)]

    def boxed(part: Node, is_far: Node) -> Node:
        size = b(ops.where, is_far, b(ops.where, b(ops.isinf, part), one, zero), b(ops.abs, part))
        return with_sign_of(b, b(ops.where, b(ops.isnan, part), zero, size), part)

    ends = [Pair(boxed(z.re, is_far), boxed(z.im, is_far)) for z, is_far in zip((x, y), far, strict=True)]
    recovered = scaled(b, product(b, *ends), infinite)
    is_lost = b(ops.logical_and, b(ops.isnan, made.re), b(ops.isnan, made.im))
    is_lost = b(ops.logical_and, is_lost, b(ops.logical_or, *far))
    return Pair(b(ops.where, is_lost, recovered.re, made.re), b(ops.where, is_lost, recovered.im, made.im))


def logistic(b: Builder, x: Pair) -> Pair:
    """``1 / (1 + exp(-x))``."""
    e = exponential(b, Pair(b(ops.neg, x.re), b(ops.neg, x.im)))
    return inverse(b, Pair(b(ops.add, b.const(1, x.dtype), e.re), e.im))


def inverse(b: Builder, x: Pair) -> Pair:
    """``1 / x``."""
    return quotient(b, Pair(b.const(1, x.dtype), b.const(0, x.dtype)), x)


# --- along an axis --------------------------------------------------------------------------------------------------


def product_along(b: Builder, x: Pair, axis: int) -> Pair:
    """The product along an axis of known length, which stays with length 1: of halves, so that rounding stays small."""
    n = x.shape[axis]
    assert is_known(n)
    if n == 0:
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        return Pair(*(b(ops.full, value=value, dtype=x.dtype, shape=shape) for value in (1.0, 0.0)))
    while n > 1:
        half = n // 2
        first, second, odd = (_part(b, x, axis, k * half, m) for k, m in ((0, half), (1, half), (2, n - 2 * half)))
        x = product(b, first, second)
        if n % 2:
            x = Pair(*(b(ops.concat, u, v, axis=axis) for u, v in ((x.re, odd.re), (x.im, odd.im))))
        n = half + n % 2
    return x


def running_product(b: Builder, x: Pair, axis: int) -> Pair:
    """Products of what stands up to each place along an axis of known length, in as many steps as it has bits."""
    n = x.shape[axis]
    assert is_known(n)
    reach = 1
    while reach < n:
        made = product(b, _part(b, x, axis, reach, n - reach), _part(b, x, axis, 0, n - reach))
        before = _part(b, x, axis, 0, reach)
        x = Pair(*(b(ops.concat, u, v, axis=axis) for u, v in ((before.re, made.re), (before.im, made.im))))
        reach *= 2
    return x


def _part(b: Builder, x: Pair, axis: int, start: int, length: int) -> Pair:
    return Pair(*(slice_axis(b, part, axis, start, length) for part in (x.re, x.im)))
