"""Rules of ``canonicalize`` for element-wise ops: identities, operand order, strength reduction, merging.

In: one element-wise node over normal operands. Out: an equal, cheaper or more regular node.
Not its business: views and copies (``movement``), and folding of constants (``fold``).

On floats a rule is exact for every value except where its ``why`` says otherwise: signs of zero are not kept, and NaN
where the plain formula would give NaN only for infinite operands is not kept either.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.effort import EFFORT
from tilewright.core.expr import symbols
from tilewright.core.graph import CONST, Node
from tilewright.core.opdef import OpDef, Trait
from tilewright.core.rewrite import Rewriting, Rule
from tilewright.graph.facts import (
    ELEMENTWISE,
    array_of,
    broadcast_shape,
    is_lossless,
    is_scalar,
    scalar,
    uniform,
)

COMMUTATIVE = tuple(op for op in ELEMENTWISE if Trait.COMMUTATIVE in op.traits and len(op.operands) == 2)
MIRRORED = {ops.lt: ops.gt, ops.gt: ops.lt, ops.le: ops.ge, ops.ge: ops.le}
INVERSE_COMPARE = {ops.eq: ops.ne, ops.ne: ops.eq}
INVERSE_ORDER = {ops.lt: ops.ge, ops.ge: ops.lt, ops.gt: ops.le, ops.le: ops.gt}
LEFT_IDENTITY: dict[OpDef, float] = {
    ops.add: 0, ops.mul: 1, ops.logical_and: True, ops.logical_or: False, ops.logical_xor: False, ops.bitwise_or: 0,
    ops.bitwise_xor: 0,
}  # fmt: skip
RIGHT_IDENTITY: dict[OpDef, float] = {
    **LEFT_IDENTITY, ops.sub: 0, ops.div: 1, ops.pow: 1, ops.shift_left: 0, ops.shift_right: 0,
}  # fmt: skip
ABSORBING: dict[OpDef, float] = {ops.mul: 0, ops.logical_and: False, ops.logical_or: True, ops.bitwise_and: 0}
SHRINKABLE = frozenset({CONST, ops.expand, ops.full})
IDEMPOTENT = (ops.abs, ops.floor, ops.ceil, ops.round, ops.trunc, ops.relu, ops.sign)
SELF_OPS = (
    ops.minimum, ops.maximum, ops.logical_and, ops.logical_or, ops.bitwise_and, ops.bitwise_or,
)  # fmt: skip


def filled(b: Rewriting, value: float, node: Node) -> Node | None:
    """A constant stretched to the type of ``node``; it stays one number in memory. None as for :func:`stretched`."""
    return stretched(b, b.const(value, node.dtype), node)


def stretched(b: Rewriting, x: Node, node: Node) -> Node | None:
    """``x`` broadcast to the shape of ``node``; None where that has a size that other operands' data decide."""
    if x.shape == node.shape:
        return x
    known = b.sizes.union(*map(symbols, x.shape))
    is_known = all(symbols(d) <= known for d in node.shape)
    return b(ops.expand, x, shape=node.shape) if is_known else None


# --- operands -------------------------------------------------------------------------------------------------------


def _const_second(b: Rewriting, node: Node) -> Node | None:
    x, y = node.inputs
    return b(node.op, y, x) if x.op is CONST and y.op is not CONST else None


def _const_second_in_order(b: Rewriting, node: Node) -> Node | None:
    x, y = node.inputs
    return b(MIRRORED[node.op], y, x) if x.op is CONST and y.op is not CONST else None


def _shrink_operands(b: Rewriting, node: Node) -> Node | None:
    """Constants of equal numbers become one number, and expands that broadcasting does anyway go."""
    inputs = node.inputs
    if len(inputs) < 2 and inputs[0].op is not ops.expand:
        return None
    if len(inputs) == 1:
        inner = b(node.op, inputs[0].inputs[0], **node.attrs)
        return b(ops.expand, inner, shape=node.shape)
    if not [i for i in inputs if i.op in SHRINKABLE and i.types[0].shape]:
        return None
    small = [_small_operand(b, i) for i in inputs]
    if all(s is i for s, i in zip(small, inputs, strict=True)):
        return None
    if broadcast_shape([s.shape for s in small]) == node.shape:
        return b(node.op, *small, **node.attrs)
    return _shrink_one(b, node, small)


def _shrink_one(b: Rewriting, node: Node, small: list[Node]) -> Node | None:
    """Not all can shrink at once: the first one that can does."""
    for k, s in enumerate(small):
        if s is not node.inputs[k]:
            some = [*node.inputs[:k], s, *node.inputs[k + 1 :]]
            if broadcast_shape([i.shape for i in some]) == node.shape:
                return b(node.op, *some, **node.attrs)
    return None


def _small_operand(b: Rewriting, x: Node) -> Node:
    if x.op is ops.expand:
        return x.inputs[0]
    if x.op is CONST and x.shape:
        value = uniform(x)
        if value is not None:
            return b.const(value, x.dtype)
    if x.op is ops.full:
        return b.const(x.attrs["value"], x.dtype)
    return x


# --- identities -----------------------------------------------------------------------------------------------------


def _identity(b: Rewriting, node: Node) -> Node | None:
    x, y = node.inputs
    if is_scalar(y, RIGHT_IDENTITY[node.op]) and x.type == node.type:
        return x
    if node.op in LEFT_IDENTITY and is_scalar(x, LEFT_IDENTITY[node.op]) and y.type == node.type:
        return y
    return None


def _absorb(b: Rewriting, node: Node) -> Node | None:
    if node.dtype.is_float or not any(is_scalar(i, ABSORBING[node.op]) for i in node.inputs):
        return None
    return filled(b, ABSORBING[node.op], node)


def _same_operands(b: Rewriting, node: Node) -> Node | None:
    return node.inputs[0] if node.inputs[0] is node.inputs[1] else None


def _sub(b: Rewriting, node: Node) -> Node | None:
    x, y = node.inputs
    if x is y and not node.dtype.is_float:
        return filled(b, 0, node)
    if y.op is ops.neg:
        return b(ops.add, x, y.inputs[0])
    if is_scalar(x, 0) and y.type == node.type and node.dtype.is_signed:
        return b(ops.neg, y)
    array = array_of(y)
    if array is not None and x.op is not CONST and array.size <= EFFORT.elements:
        with np.errstate(all="ignore"):
            return b(ops.add, x, b.const(np.negative(array)))
    return None


def _add_neg(b: Rewriting, node: Node) -> Node | None:
    x, y = node.inputs
    if y.op is ops.neg:
        return b(ops.sub, x, y.inputs[0])
    return b(ops.sub, y, x.inputs[0]) if x.op is ops.neg else None


def _mul_neg(b: Rewriting, node: Node) -> Node | None:
    x, y = node.inputs
    if is_scalar(y, -1) and x.type == node.type and node.dtype.is_signed:
        return b(ops.neg, x)
    if x.op is ops.neg and y.op is ops.neg:
        return b(ops.mul, x.inputs[0], y.inputs[0])
    array = array_of(y)
    if x.op is ops.neg and array is not None and array.size <= EFFORT.elements:
        return b(ops.mul, x.inputs[0], b.const(np.negative(array)))
    return None


def _neg(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    if x.op is ops.neg:
        return x.inputs[0]
    return b(ops.sub, x.inputs[1], x.inputs[0]) if x.op is ops.sub and b.read_once(x) else None


def _idempotent(b: Rewriting, node: Node) -> Node | None:
    return node.inputs[0] if node.inputs[0].op is node.op else None


def _abs_neg(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    return b(ops.abs, x.inputs[0]) if x.op is ops.neg else None


def _not(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    if x.op in (ops.logical_not, ops.bitwise_not) and x.dtype is node.dtype:
        return x.inputs[0]
    inverse = INVERSE_COMPARE.get(x.op)
    if x.op in INVERSE_ORDER and not x.inputs[0].dtype.is_float:
        inverse = INVERSE_ORDER[x.op]
    return b(inverse, *x.inputs) if inverse is not None else None


def _where(b: Rewriting, node: Node) -> Node | None:
    cond, x, y = node.inputs
    if x is y:
        return stretched(b, x, node)
    value = scalar(cond)
    if value is not None:
        return stretched(b, x if value else y, node)
    if cond.op is ops.logical_not:
        return b(ops.where, cond.inputs[0], y, x)
    return None


def _cast(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    if x.dtype is node.dtype:
        return x
    if x.op is not ops.cast or not is_lossless(x.inputs[0].dtype, x.dtype):
        return None
    source = x.inputs[0]
    saturates, wraps = x.dtype.is_float and node.dtype.is_integer, not source.dtype.is_float
    if saturates and wraps and not is_lossless(source.dtype, node.dtype):
        return None
    return b(ops.cast, source, dtype=node.dtype)


def _bitcast(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    if x.dtype is node.dtype:
        return x
    return b(ops.bitcast, x.inputs[0], dtype=node.dtype) if x.op is ops.bitcast else None


# --- strength reduction ---------------------------------------------------------------------------------------------


def _pow(b: Rewriting, node: Node) -> Node | None:
    x, power = node.inputs[0], scalar(node.inputs[1])
    if power is None or x.type != node.type:
        return None
    if power == 0:
        return filled(b, 1, node)
    if power in (2, 3):
        square = b(ops.mul, x, x)
        return square if power == 2 else b(ops.mul, square, x)
    if not node.dtype.is_float:
        return None
    roots = {0.5: ops.sqrt, -1.0: ops.reciprocal, -0.5: ops.rsqrt}
    return b(roots[power], x) if power in roots else None


def _div(b: Rewriting, node: Node) -> Node | None:
    x, y = node.inputs
    if not node.dtype.is_float:
        return None
    if is_scalar(x, 1) and y.type == node.type:
        return b(ops.reciprocal, y)
    array = array_of(y)
    if array is not None and x.op is not CONST and array.size <= EFFORT.elements and _has_exact_reciprocal(array):
        return b(ops.mul, x, b.const((1 / array.astype(np.float64)).astype(array.dtype)))
    return None


def _div_fast(b: Rewriting, node: Node) -> Node | None:
    x, y = node.inputs
    array = array_of(y)
    if not node.dtype.is_float or x.op is CONST:
        return None
    if array is not None and array.size <= EFFORT.elements and array.all():
        return b(ops.mul, x, b.const((1 / array.astype(np.float64)).astype(array.dtype)))
    return b(ops.mul, x, b(ops.rsqrt, y.inputs[0])) if y.op is ops.sqrt else None


def _has_exact_reciprocal(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bool:
    """Powers of two whose reciprocal is a normal number."""
    wide = array.astype(np.float64)
    mantissa, exponent = np.frexp(wide)
    limit = {2: 14, 4: 126, 8: 1022}[array.dtype.itemsize]
    return bool((np.abs(mantissa) == 0.5).all() and (np.abs(exponent) < limit).all())


def _reciprocal(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    if x.op is ops.sqrt:
        return b(ops.rsqrt, x.inputs[0])
    return x.inputs[0] if x.op is ops.reciprocal and b.read_once(x) and scalar(x.inputs[0]) is not None else None


def _const_chain(b: Rewriting, node: Node) -> Node | None:
    """(x op c1) op c2 is x op (c1 op c2) where nothing rounds."""
    exact = _is_chain(node) and _regroups(node, node.inputs[0].inputs[1], node.inputs[1])
    return _regrouped(b, node) if exact else None


def _is_chain(node: Node) -> bool:
    x, c2 = node.inputs
    return x.op is node.op and c2.op is CONST and x.inputs[1].op is CONST and x.inputs[0].op is not CONST


def _regrouped(b: Rewriting, node: Node) -> Node:
    x, c2 = node.inputs
    return b(node.op, x.inputs[0], b(node.op, x.inputs[1], c2))


def _regroups(node: Node, c1: Node, c2: Node) -> bool:
    if not node.dtype.is_float or node.op in (ops.minimum, ops.maximum):
        return True
    powers = (array_of(c) for c in (c1, c2))
    return node.op is ops.mul and any(a is not None and a.size == 1 and _has_exact_reciprocal(a) for a in powers)


def _const_chain_fast(b: Rewriting, node: Node) -> Node | None:
    return _regrouped(b, node) if _is_chain(node) else None


# --- clamps ---------------------------------------------------------------------------------------------------------


def _bounds_of(b: Rewriting, x: Node) -> tuple[Node, float, float] | None:
    """``x`` as ``clamp(inner, lo, hi)`` with numbers lo <= hi; open ends are infinities."""
    lo: float | bool | None
    hi: float | bool | None
    if x.op is ops.relu:
        return x.inputs[0], 0, math.inf
    if x.op is ops.maximum and (lo := scalar(x.inputs[1])) is not None and x.inputs[0].type == x.type:
        return x.inputs[0], lo, math.inf
    if x.op is ops.minimum and (hi := scalar(x.inputs[1])) is not None and x.inputs[0].type == x.type:
        return x.inputs[0], -math.inf, hi
    if x.op is ops.clamp and x.inputs[0].type == x.type:
        lo, hi = scalar(x.inputs[1]), scalar(x.inputs[2])
        if lo is not None and hi is not None and lo <= hi:
            return x.inputs[0], lo, hi
    return None


def _merge_clamps(b: Rewriting, node: Node) -> Node | None:
    """A clamp of a clamp, where minimum, maximum and relu are clamps with an open end."""
    outer = _bounds_of(b, node)
    inner = outer and _bounds_of(b, outer[0])
    if not outer or not inner or node.dtype is types.bool_:
        return None
    _, lo, hi = outer
    x, inner_lo, inner_hi = inner
    return _clamp(b, x, min(max(inner_lo, lo), hi), min(max(inner_hi, lo), hi), node)


def _open_clamp(b: Rewriting, node: Node) -> Node | None:
    """A clamp with an end that no value reaches."""
    found = _bounds_of(b, node)
    if not found:
        return None
    x, lo, hi = found
    lowest, highest = (-math.inf, math.inf) if node.dtype.is_float else (node.dtype.min, node.dtype.max)
    return _clamp(b, x, lo, hi, node) if lo <= lowest or hi >= highest else None


def _clamp(b: Rewriting, x: Node, lo: float, hi: float, node: Node) -> Node | None:
    lowest, highest = (-math.inf, math.inf) if node.dtype.is_float else (node.dtype.min, node.dtype.max)
    if lo <= lowest and hi >= highest:
        return x
    if lo <= lowest:
        return b(ops.minimum, x, b.const(hi, x.dtype))
    if hi < highest:
        return b(ops.clamp, x, b.const(lo, x.dtype), b.const(hi, x.dtype))
    return b(ops.maximum, x, b.const(lo, x.dtype))


RULES = (
    Rule("shrink-operands", ELEMENTWISE, _shrink_operands, "broadcasting gives each element the same operands"),
    Rule("const-second", COMMUTATIVE, _const_second, "the op is commutative"),
    Rule("const-second-in-order", tuple(MIRRORED), _const_second_in_order, "a < b is b > a"),
    Rule("identity", tuple(RIGHT_IDENTITY), _identity, "x + 0, x - 0, x * 1, x / 1, x ** 1; -0 + 0 keeps its sign"),
    Rule("absorb", tuple(ABSORBING), _absorb, "x * 0 and the like; never on floats, whose infinities give NaN"),
    Rule("same-operands", SELF_OPS, _same_operands, "min(x, x) is x, NaN too"),
    Rule("sub", (ops.sub,), _sub, "x - c is x + (-c); x - x is 0 on integers only, as NaN - NaN is NaN"),
    Rule("add-neg", (ops.add,), _add_neg, "x + (-y) is x - y"),
    Rule("mul-neg", (ops.mul,), _mul_neg, "signs multiply"),
    Rule("neg", (ops.neg,), _neg, "-(-x) is x; -(a - b) is b - a but for the sign of zero"),
    Rule("idempotent", IDEMPOTENT, _idempotent, "f(f(x)) is f(x)"),
    Rule("abs-neg", (ops.abs,), _abs_neg, "|-x| is |x|"),
    Rule("not", (ops.logical_not,), _not, "not not x; not (a == b) is a != b; not (a < b) is a >= b, without NaN"),
    Rule("where", (ops.where,), _where, "a known condition, equal branches, or a negated condition"),
    Rule("cast", (ops.cast,), _cast, "to its own dtype, or after a lossless cast; floats saturate, integers wrap"),
    Rule("bitcast", (ops.bitcast,), _bitcast, "the bits stay"),
    Rule("pow", (ops.pow,), _pow, "small powers by multiplication; x ** 0.5 is sqrt(x) but for -inf and -0"),
    Rule("div", (ops.div,), _div, "1 / x; by a power of two the reciprocal is exact"),
    Rule("reciprocal", (ops.reciprocal,), _reciprocal, "1 / sqrt(x) is rsqrt(x)"),
    Rule("const-chain", (ops.add, ops.mul, ops.minimum, ops.maximum), _const_chain, "associative where nothing rounds"),
    Rule(
        "merge-clamps", (ops.minimum, ops.maximum, ops.clamp, ops.relu), _merge_clamps,
        "a monotone clamp of a clamp clamps the bounds",
    ),
    Rule("open-clamp", (ops.clamp,), _open_clamp, "no value lies beyond the bound"),
)  # fmt: skip

FAST_RULES = (
    Rule("div-fast", (ops.div,), _div_fast, "x / c is x * (1 / c) with one more rounding: on request only"),
    Rule("const-chain-fast", (ops.add, ops.mul), _const_chain_fast, "associative but for rounding: on request only"),
)
