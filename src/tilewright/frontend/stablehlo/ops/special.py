"""CHLO's functions beyond StableHLO's own: inverse and hyperbolic ones, error and gamma functions.

In: calls on real operands. Out: nodes. Not its business: what JAX writes as arithmetic before we see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import dtype_named, f32, f64, i64, u64
from tilewright.frontend.complex_pairs import Pair, conjugate
from tilewright.frontend.nodes import next_after
from tilewright.frontend.stablehlo.operation import Operation, Result
from tilewright.frontend.stablehlo.ops import complex_functions
from tilewright.frontend.stablehlo.ops.elementwise import as_pair, either, one, two

Convert = Callable[[Operation], Result]
_LANCZOS = (
    676.520368121885098567009190444019, -1259.13921672240287047156078755283, 771.3234287776530788486528258894,
    -176.61502916214059906584551354, 12.507343278686904814458936853, -0.13857109526572011689554707,
    9.984369578019570859563e-6, 1.50563273514931155834e-7,
)  # fmt: skip
"""Coefficients of Lanczos' approximation for ``_LANCZOS_SHIFT`` (Godfrey, 2001), those of CHLO."""
_LANCZOS_SHIFT = 7.0


def _is_infinite(sign: int) -> Convert:
    return lambda c: c.b(ops.eq, c.node(0), c.b.const(sign * math.inf, c.node(0).dtype))


def _conjugate(c: Operation) -> Pair:
    return conjugate(c.b, as_pair(c, c.operands[0]))


def _digamma(c: Operation) -> Node:
    return _digamma_of(c, c.node(0))


def _digamma_of(c: Operation, x: Node) -> Node:
    """NaN at 0, as CHLO has it, where our op has an infinity of the other sign."""
    is_pole = c.b(ops.eq, x, c.b.const(0, x.dtype))
    return c.b(ops.where, is_pole, c.b.const(math.nan, x.dtype), c.b(ops.digamma, x))


def _lgamma(c: Operation) -> Node:
    x = c.node(0)
    return c.b(ops.lgamma, x) if x.dtype is f64 else c.cast(_lanczos(c, c.cast(x, f32)), x.dtype)


def _lanczos(c: Operation, x: Node) -> Node:
    """``log(abs(gamma(x)))`` of f32 by Lanczos' approximation, rounded where XLA rounds on CPUs.

    Our own op is more exact. But random numbers are accepted by it: those of Poisson's distribution by its last bits.
    """

    def number(value: float) -> Node:
        return c.b.const(value, f32)

    size = c.b(ops.abs, x)
    is_reflected = c.b(ops.lt, x, number(0.5))
    z = c.b(ops.where, is_reflected, c.b(ops.neg, x), c.b(ops.sub, x, number(1)))
    total = number(1)
    for k, coefficient in enumerate(_LANCZOS, 1):
        total = c.b(ops.add, total, c.b(ops.div, number(coefficient), c.b(ops.add, z, number(k))))
    shift = _LANCZOS_SHIFT + 0.5
    log = c.b(ops.log1p, c.b(ops.mul, z, number(1 / shift)))
    log = c.b(ops.add, log, number(math.log(shift)))
    factor = c.b(ops.sub, c.b(ops.add, z, number(0.5)), c.b(ops.div, c.b(ops.add, z, number(shift)), log))
    # One rounding of a product and a sum: a product of two f32 is exact in f64.
    wide = c.b(ops.mul, c.cast(factor, f64), c.cast(log, f64))
    constant = float(np.float32(math.log(2 * math.pi) / 2))
    made = c.b(ops.add, c.cast(c.b(ops.add, wide, c.b.const(constant, f64)), f32), c.b(ops.log, total))
    # Below a half: of 1 - x, by the sine of pi times the distance from the nearest whole number.
    rest = c.b(ops.sub, size, c.b(ops.floor, size))
    near = c.b(ops.where, c.b(ops.lt, number(0.5), rest), c.b(ops.sub, number(1), rest), rest)
    sine = c.b(ops.log, c.b(ops.sin, c.b(ops.mul, near, number(math.pi))))
    reflected = c.b(ops.sub, c.b(ops.sub, number(math.log(math.pi)), sine), made)
    is_finite = c.b(ops.lt, c.b(ops.abs, sine), number(math.inf))
    reflected = c.b(ops.where, is_finite, reflected, c.b(ops.neg, sine))
    made = c.b(ops.where, is_reflected, reflected, made)
    return c.b(ops.where, c.b(ops.isinf, x), number(math.inf), made)


def _polygamma(c: Operation) -> Node:
    """``(-1)**(n+1) n! zeta(n+1, x)``, and the digamma function for n = 0."""
    n, x = c.nodes()
    one_ = c.b.const(1, x.dtype)
    after = c.b(ops.add, n, one_)
    size = c.b(ops.mul, c.b(ops.exp, c.b(ops.lgamma, after)), c.b(ops.zeta, after, x))
    is_odd = c.b(ops.eq, c.b(ops.fmod, n, c.b.const(2, x.dtype)), one_)
    made = c.b(ops.where, is_odd, size, c.b(ops.neg, size))
    return c.b(ops.where, c.b(ops.eq, n, c.b.const(0, x.dtype)), _digamma_of(c, x), made)


def _next_after(c: Operation) -> Node:
    return next_after(c.b, *c.nodes())


def _square(c: Operation) -> Node:
    return c.b(ops.mul, c.node(0), c.node(0))


def _high_product(c: Operation) -> Node:
    """The upper half of the product's bits."""
    x, y = c.nodes()
    if x.dtype.bits < 64:
        wide = dtype_named(f"{'i' if x.dtype.is_signed else 'u'}{2 * x.dtype.bits}")
        whole = c.b(ops.mul, c.cast(x, wide), c.cast(y, wide))
        return c.cast(c.b(ops.shift_right, whole, c.b.const(x.dtype.bits, wide)), x.dtype)
    high = _high_of_unsigned(c, *(z if z.dtype is u64 else c.b(ops.bitcast, z, dtype=u64) for z in (x, y)))
    if x.dtype is u64:
        return high
    zero, made = c.b.const(0, i64), c.b(ops.bitcast, high, dtype=i64)
    for a, b in ((x, y), (y, x)):  # a negative factor was read as 2**64 more
        made = c.b(ops.sub, made, c.b(ops.where, c.b(ops.lt, a, zero), b, zero))
    return made


def _high_of_unsigned(c: Operation, x: Node, y: Node) -> Node:
    """By halves of 32 bits, whose products fit."""
    half, low_bits = c.b.const(32, u64), c.b.const(0xFFFFFFFF, u64)
    (a, b), (p, q) = (
        (c.b(ops.shift_right, z, half), c.b(ops.bitwise_and, z, low_bits)) for z in (x, y)
    )  # fmt: skip
    cross, other = c.b(ops.mul, a, q), c.b(ops.mul, b, p)
    carried = c.b(ops.add, c.b(ops.shift_right, c.b(ops.mul, b, q), half), c.b(ops.bitwise_and, cross, low_bits))
    carried = c.b(ops.add, carried, c.b(ops.bitwise_and, other, low_bits))
    high = c.b(ops.add, c.b(ops.mul, a, p), c.b(ops.shift_right, carried, half))
    return c.b(ops.add, high, c.b(ops.add, c.b(ops.shift_right, cross, half), c.b(ops.shift_right, other, half)))


TABLE: Mapping[str, Convert] = {
    f"chlo.{name}": made
    for name, made in {
        "acos": either(one(ops.acos), complex_functions.acos),
        "acosh": either(one(ops.acosh), complex_functions.acosh),
        "asin": either(one(ops.asin), complex_functions.asin),
        "asinh": either(one(ops.asinh), complex_functions.asinh),
        "atan": either(one(ops.atan), complex_functions.atan),
        "atanh": either(one(ops.atanh), complex_functions.atanh),
        "bessel_i1e": one(ops.bessel_i1e),
        "conj": _conjugate,
        "cosh": either(one(ops.cosh), complex_functions.cosh),
        "digamma": _digamma,
        "erf": one(ops.erf),
        "erf_inv": one(ops.erfinv),
        "erfc": one(ops.erfc),
        "is_inf": one(ops.isinf),
        "is_neg_inf": _is_infinite(-1),
        "is_pos_inf": _is_infinite(1),
        "lgamma": _lgamma,
        "next_after": _next_after,
        "polygamma": _polygamma,
        "sinh": either(one(ops.sinh), complex_functions.sinh),
        "mulhi": _high_product,
        "square": either(_square, complex_functions.square),
        "tan": either(one(ops.tan), complex_functions.tan),
        "zeta": two(ops.zeta),
    }.items()
}
