"""Arithmetic that some formats have no name for, on elements.

In: nodes of element-wise ops. Out: plainer ones. Not its business: accuracy beyond a few roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright import ops
from tilewright.core.graph import Builder, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import i64
from tilewright.frontend.spellings.spelling import Spelling, number
from tilewright.ops.elementwise import in_wide


def _of_one(build: Callable[[Builder, Node], Node]) -> Spelling:
    """A function of one operand, computed in f32 where that is narrower."""
    return lambda b, node: in_wide(b, node.inputs, lambda x: build(b, x))


def _expm1(b: Builder, x: Node) -> Node:
    """``(e - 1) * x / log(e)`` with ``e = exp(x)``: the error of ``e`` is in both factors and falls out (Kahan)."""
    e = b(ops.exp, x)
    less = b(ops.sub, e, number(b, 1, x))
    made = b(ops.div, b(ops.mul, less, x), b(ops.log, e))
    # Where e is 1 the result is x itself; where nothing is left of it beside 1, or it is infinite, nothing is to mend.
    is_end = b(ops.logical_or, b(ops.eq, less, number(b, -1, x)), b(ops.isinf, e))
    made = b(ops.where, is_end, less, made)
    return b(ops.where, b(ops.eq, e, number(b, 1, x)), x, made)


def _log1p(b: Builder, x: Node) -> Node:
    """``log(u) * x / (u - 1)`` with ``u = 1 + x``: the rounding of ``u`` is in both and falls out (Kahan)."""
    u = b(ops.add, x, number(b, 1, x))
    logarithm = b(ops.log, u)
    made = b(ops.div, b(ops.mul, logarithm, x), b(ops.sub, u, number(b, 1, x)))
    made = b(ops.where, b(ops.isinf, u), logarithm, made)
    return b(ops.where, b(ops.eq, u, number(b, 1, x)), x, made)


def _log2(b: Builder, x: Node) -> Node:
    return b(ops.mul, b(ops.log, x), number(b, 1 / math.log(2), x))


def _exp2(b: Builder, x: Node) -> Node:
    return b(ops.pow, number(b, 2, x), x)


def _trunc(b: Builder, x: Node) -> Node:
    return b(ops.where, b(ops.lt, x, number(b, 0, x)), b(ops.ceil, x), b(ops.floor, x))


def _sinh(b: Builder, x: Node) -> Node:
    """By ``m = exp(|x|) - 1``, which keeps small arguments exact: ``(m + m / (m + 1)) / 2`` with the sign of ``x``."""
    m = b(ops.expm1, b(ops.abs, x))
    part = b(ops.div, m, b(ops.add, m, number(b, 1, x)))
    # Of an infinite m the quotient is NaN; it would add at most 1.
    part = b(ops.where, b(ops.isinf, m), number(b, 1, x), part)
    size = b(ops.mul, b(ops.add, m, part), number(b, 0.5, x))
    return b(ops.where, b(ops.lt, x, number(b, 0, x)), b(ops.neg, size), size)


def _cosh(b: Builder, x: Node) -> Node:
    half = number(b, 0.5, x)
    return b(ops.add, b(ops.mul, half, b(ops.exp, x)), b(ops.mul, half, b(ops.exp, b(ops.neg, x))))


def _polynomial(b: Builder, node: Node) -> Node:
    """Horner's rule from the highest power down."""
    (x,) = node.inputs
    *lower, highest = node.attrs["coefficients"]
    made = b(ops.expand, number(b, highest, x), shape=x.shape)
    for c in reversed(lower):
        made = b(ops.add, b(ops.mul, made, x), number(b, c, x))
    return made


def _floor_div(b: Builder, node: Node) -> Node:
    """What divides without rest, and one less where the rest has the sign that the divisor has not; signed if 0."""
    x, y = node.inputs
    if not x.dtype.is_float:
        return b(ops.div, b(ops.sub, x, b(ops.mod, x, y)), y)

    def quotient(x: Node, y: Node) -> Node:
        rest, differs = _rest(b, x, y)
        whole = b(ops.div, b(ops.sub, x, rest), y)
        rounded = b(ops.round, b(ops.where, differs, b(ops.sub, whole, number(b, 1, x)), whole))
        zero, plain = number(b, 0, y), b(ops.div, x, y)
        rounded = b(ops.where, b(ops.eq, rounded, zero), b(ops.mul, plain, zero), rounded)
        return b(ops.where, b(ops.eq, y, zero), plain, rounded)

    return in_wide(b, (x, y), quotient)


def _rest(b: Builder, x: Node, y: Node) -> tuple[Node, Node]:
    """The rest with the dividend's sign, and whether the divisor's is another."""
    rest = b(ops.fmod, x, y)
    zero = number(b, 0, rest)
    differs = b(ops.ne, b(ops.lt, rest, zero), b(ops.lt, y, zero))
    return rest, b(ops.logical_and, differs, b(ops.ne, rest, zero))


def _mod(b: Builder, node: Node) -> Node:
    """The rest with the dividend's sign, and once the divisor where that is the other sign."""
    rest, differs = _rest(b, *node.inputs)
    return b(ops.where, differs, b(ops.add, rest, node.inputs[1]), rest)


def _atan2(b: Builder, node: Node) -> Node:
    return in_wide(b, node.inputs, lambda y, x: _angle(b, y, x))


def _angle(b: Builder, y: Node, x: Node) -> Node:
    """``atan(y / x)`` moved into the half plane of ``x``; the sign of a zero is that of its reciprocal."""
    zero, pi = number(b, 0, x), number(b, math.pi, x)
    is_negative = [_is_negative(b, v) for v in (y, x)]
    signed_pi = b(ops.where, is_negative[0], b(ops.neg, pi), pi)
    both_infinite = b(ops.logical_and, b(ops.isinf, x), b(ops.isinf, y))
    both_zero = b(ops.logical_and, b(ops.eq, x, zero), b(ops.eq, y, zero))
    # Of two infinities or zeros only the signs count: as if both were 1, or the quotient 0 with the sign of y.
    quotient = b(ops.div, b(ops.where, both_infinite, b(ops.sign, y), y),
                 b(ops.where, both_infinite, b(ops.sign, x), x))  # fmt: skip
    quotient = b(ops.where, both_zero, b(ops.where, is_negative[1], b(ops.neg, y), y), quotient)
    made = b(ops.atan, quotient)
    made = b(ops.where, is_negative[1], b(ops.add, made, signed_pi), made)
    unknown = b(ops.logical_or, b(ops.isnan, x), b(ops.isnan, y))
    return b(ops.where, unknown, number(b, math.nan, x), made)


def _is_negative(b: Builder, x: Node) -> Node:
    """Does ``x`` have a sign, -0 too?"""
    zero = number(b, 0, x)
    minus_zero = b(ops.logical_and, b(ops.eq, x, zero), b(ops.lt, b(ops.reciprocal, x), zero))
    return b(ops.logical_or, b(ops.lt, x, zero), minus_zero)


def _shift_left(b: Builder, node: Node) -> Node:
    x, amount = node.inputs
    return b(ops.where, _fits(b, x, amount), b(ops.mul, x, _power(b, x, amount)), number(b, 0, x))


def _shift_right(b: Builder, node: Node) -> Node:
    """Rounding down keeps the sign; the top bit of a signed type is no divisor, but only the sign is left of it."""
    x, amount = node.inputs
    zero = number(b, 0, x)
    rest = b(ops.where, b(ops.lt, x, zero), number(b, -1, x), zero) if x.dtype.is_signed else zero
    last = b(ops.lt, amount, number(b, x.dtype.bits - x.dtype.is_signed, amount))
    inside = b(ops.logical_and, _fits(b, x, amount), last)
    # An amount that does not fit has no power of two that does, and 1 divides without a rest.
    power = b(ops.where, inside, _power(b, x, amount), number(b, 1, x))
    return b(ops.where, inside, b(ops.floor_div, x, power), rest)


def _fits(b: Builder, x: Node, amount: Node) -> Node:
    below = b(ops.lt, amount, number(b, x.dtype.bits, amount))
    return b(ops.logical_and, b(ops.ge, amount, number(b, 0, amount)), below)


def _power(b: Builder, x: Node, amount: Node) -> Node:
    """2 to the power of an amount, from a table: no format has exact powers of all integer types."""
    powers = [1 << k for k in range(x.dtype.bits)]
    if x.dtype.is_signed:
        powers[-1] = -powers[-1]
    table = b.const(np.array(powers).astype(x.dtype.numpy))
    top = number(b, x.dtype.bits - 1, amount)
    at = b(ops.minimum, b(ops.maximum, amount, number(b, 0, amount)), top)
    return b(ops.gather, table, b(ops.cast, at, dtype=i64), axis=0)


SPELLINGS: dict[OpDef, Spelling] = {
    ops.expm1: _of_one(_expm1), ops.log1p: _of_one(_log1p), ops.log2: _of_one(_log2), ops.exp2: _of_one(_exp2),
    ops.trunc: _of_one(_trunc), ops.sinh: _of_one(_sinh), ops.cosh: _of_one(_cosh), ops.polynomial: _polynomial,
    ops.floor_div: _floor_div, ops.mod: _mod, ops.atan2: _atan2, ops.shift_left: _shift_left,
    ops.shift_right: _shift_right,
}  # fmt: skip
