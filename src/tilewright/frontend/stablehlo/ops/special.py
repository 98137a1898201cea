"""CHLO's functions beyond StableHLO's own: inverse and hyperbolic ones, error and gamma functions.

In: calls on real operands. Out: nodes. Not its business: what JAX writes as arithmetic before we see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import dtype_named
from tilewright.frontend.complex_pairs import Pair, conjugate
from tilewright.frontend.stablehlo.operation import Operation, Result
from tilewright.frontend.stablehlo.ops.elementwise import as_pair, one, two

Convert = Callable[[Operation], Result]


def _is_infinite(sign: int) -> Convert:
    return lambda c: c.b(ops.eq, c.node(0), c.b.const(sign * math.inf, c.node(0).dtype))


def _conjugate(c: Operation) -> Pair:
    return conjugate(c.b, as_pair(c, c.operands[0]))


def _polygamma(c: Operation) -> Node:
    """``(-1)**(n+1) n! zeta(n+1, x)``, and the digamma function for n = 0."""
    n, x = c.nodes()
    one_ = c.b.const(1, x.dtype)
    after = c.b(ops.add, n, one_)
    size = c.b(ops.mul, c.b(ops.exp, c.b(ops.lgamma, after)), c.b(ops.zeta, after, x))
    is_odd = c.b(ops.eq, c.b(ops.fmod, n, c.b.const(2, x.dtype)), one_)
    made = c.b(ops.where, is_odd, size, c.b(ops.neg, size))
    return c.b(ops.where, c.b(ops.eq, n, c.b.const(0, x.dtype)), c.b(ops.digamma, x), made)


def _next_after(c: Operation) -> Node:
    """The next float towards another: one step of the bits, outwards where both have a direction."""
    x, y = c.nodes()
    dtype = dtype_named(f"i{x.dtype.bits}")
    bits, zero = c.b(ops.bitcast, x, dtype=dtype), c.b.const(0, x.dtype)
    is_zero = c.b(ops.eq, x, zero)
    outwards = c.b(ops.eq, c.b(ops.gt, y, x), c.b(ops.gt, x, zero))
    step = c.b(ops.where, outwards, c.b.const(1, dtype), c.b.const(-1, dtype))
    moved = c.b(ops.bitcast, c.b(ops.add, bits, step), dtype=x.dtype)
    tiny = c.b(ops.bitcast, c.b.const(1, dtype), dtype=x.dtype)
    moved = c.b(ops.where, is_zero, c.b(ops.where, c.b(ops.gt, y, zero), tiny, c.b(ops.neg, tiny)), moved)
    is_nan = c.b(ops.logical_or, c.b(ops.isnan, x), c.b(ops.isnan, y))
    moved = c.b(ops.where, c.b(ops.eq, x, y), y, moved)
    return c.b(ops.where, is_nan, c.b(ops.add, x, y), moved)


def _square(c: Operation) -> Node:
    return c.b(ops.mul, c.node(0), c.node(0))


TABLE: Mapping[str, Convert] = {
    f"chlo.{name}": made
    for name, made in {
        "acos": one(ops.acos),
        "acosh": one(ops.acosh),
        "asin": one(ops.asin),
        "asinh": one(ops.asinh),
        "atan": one(ops.atan),
        "atanh": one(ops.atanh),
        "bessel_i1e": one(ops.bessel_i1e),
        "conj": _conjugate,
        "cosh": one(ops.cosh),
        "digamma": one(ops.digamma),
        "erf": one(ops.erf),
        "erf_inv": one(ops.erfinv),
        "erfc": one(ops.erfc),
        "is_inf": one(ops.isinf),
        "is_neg_inf": _is_infinite(-1),
        "is_pos_inf": _is_infinite(1),
        "lgamma": one(ops.lgamma),
        "next_after": _next_after,
        "polygamma": _polygamma,
        "sinh": one(ops.sinh),
        "square": _square,
        "tan": one(ops.tan),
        "zeta": two(ops.zeta),
    }.items()
}
