"""CHLO's functions beyond StableHLO's own: inverse and hyperbolic ones, error and gamma functions.

In: calls on real operands. Out: nodes. Not its business: what JAX writes as arithmetic before we see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import dtype_named, i64, u64
from tilewright.frontend.complex_pairs import Pair, conjugate
from tilewright.frontend.nodes import next_after
from tilewright.frontend.stablehlo.operation import Operation, Result
from tilewright.frontend.stablehlo.ops import complex_functions
from tilewright.frontend.stablehlo.ops.elementwise import as_pair, either, one, two

Convert = Callable[[Operation], Result]


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
        "lgamma": one(ops.lgamma),
        "next_after": _next_after,
        "polygamma": _polygamma,
        "sinh": either(one(ops.sinh), complex_functions.sinh),
        "mulhi": _high_product,
        "square": either(_square, complex_functions.square),
        "tan": either(one(ops.tan), complex_functions.tan),
        "zeta": two(ops.zeta),
    }.items()
}
