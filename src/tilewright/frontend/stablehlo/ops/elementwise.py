"""StableHLO's element-wise operations: arithmetic, comparisons, bits, conversions, on real and complex numbers.

In: calls whose operands have one shape, or are 0-d among others. Out: nodes or pairs.
Not its business: functions that CHLO adds (``special``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ml_dtypes

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import WHOLE, DType, bool_, dtype_named, f32, i32, u8
from tilewright.frontend.bits import read_as
from tilewright.frontend.complex_pairs import Pair, from_parts, join_parts, magnitude, real_pair
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.ops import complex_functions
from tilewright.frontend.stablehlo.ops.narrow import decoded, encoded, in_wider, with_bits
from tilewright.frontend.stablehlo.regions import direction_of

Convert = Callable[[Operation], Result]


def one(op: OpDef) -> Convert:
    """An operation on one real operand."""
    return lambda c: c.b(op, c.node(0))


def two(op: OpDef) -> Convert:
    """An operation on two real operands."""
    return lambda c: c.b(op, c.node(0), c.node(1))


def either(real: Convert, of_pairs: Callable[..., Pair | Node]) -> Convert:
    """``real`` on real operands; ``of_pairs(call, *pairs)`` where one is complex."""

    def convert(c: Operation) -> Result:
        if not any(isinstance(x, Pair) for x in c.operands):
            return real(c)
        return of_pairs(c, *(as_pair(c, x) for x in c.operands))

    return convert


def as_pair(c: Operation, x: Value) -> Pair:
    """A real tensor as a complex one."""
    return x if isinstance(x, Pair) else real_pair(c.b, x)


def each_part(op: OpDef) -> Callable[..., Pair]:
    """The real op on both parts."""
    return lambda c, *xs: Pair(c.b(op, *(x.re for x in xs)), c.b(op, *(x.im for x in xs)))


def logical_or_bits(logical: OpDef, bits: OpDef) -> Convert:
    return lambda c: c.b(logical if c.node(0).dtype is bool_ else bits, *c.nodes())


# --- arithmetic -----------------------------------------------------------------------------------------------------


def _divide(c: Operation) -> Node:
    """Integers truncate; as XLA has it, -1 is what a division by 0 gives."""
    a, b = c.nodes()
    made = c.b(ops.div, a, b)
    return made if a.dtype.is_float else _unless_zero(c, b, made, c.b.const(_ones(a.dtype), a.dtype))


def _remainder(c: Operation) -> Node:
    """With the sign of the dividend, which is also what division by 0 leaves."""
    a, b = c.nodes()
    made = c.b(ops.fmod, a, b)
    return made if a.dtype.is_float else _unless_zero(c, b, made, a)


def _ones(dtype: DType) -> int:
    """All bits set."""
    return -1 if dtype.is_signed else int(dtype.max)


def _unless_zero(c: Operation, divisor: Node, made: Node, otherwise: Node) -> Node:
    return c.b(ops.where, c.b(ops.eq, divisor, c.b.const(0, divisor.dtype)), otherwise, made)


def _negate(c: Operation) -> Node:
    x = c.node(0)
    return c.b(ops.neg, x) if x.dtype.is_signed else c.b(ops.sub, c.b.const(0, x.dtype), x)


def _abs(c: Operation) -> Node:
    x = c.operands[0]
    return magnitude(c.b, x) if isinstance(x, Pair) else c.b(ops.abs, x)


def _round_away(c: Operation) -> Node:
    """Half away from zero."""
    x = c.node(0)
    size = c.b(ops.abs, x)
    down = c.b(ops.floor, size)
    up = c.b(ops.ge, c.b(ops.sub, size, down), c.b.const(0.5, x.dtype))
    rounded = c.b(ops.add, down, c.cast(up, x.dtype))
    return c.b(ops.where, c.b(ops.lt, x, c.b.const(0, x.dtype)), c.b(ops.neg, rounded), rounded)


def _cbrt(c: Operation) -> Node:
    """The root of the magnitude, and a step of Newton's, which mends what the power has lost."""
    x = c.node(0)
    size = c.b(ops.abs, x)
    root = c.b(ops.pow, size, c.b.const(1 / 3, x.dtype))
    square = c.b(ops.mul, root, root)
    wrong = c.b(ops.sub, c.b(ops.mul, square, root), size)
    step = c.b(ops.div, wrong, c.b(ops.mul, square, c.b.const(3, x.dtype)))
    is_plain = c.b(ops.logical_and, c.b(ops.gt, root, c.b.const(0, x.dtype)), _is_finite(c, step))
    root = c.b(ops.where, is_plain, c.b(ops.sub, root, step), root)
    return c.b(ops.where, c.b(ops.lt, x, c.b.const(0, x.dtype)), c.b(ops.neg, root), root)


def _is_finite(c: Operation, x: Node) -> Node:
    return c.b(ops.logical_not, c.b(ops.logical_or, c.b(ops.isnan, x), c.b(ops.isinf, x)))


def _clamp(c: Operation) -> Node:
    low, x, high = c.nodes()
    return c.b(ops.clamp, x, low, high)


# --- parts of complex numbers ---------------------------------------------------------------------------------------


def _complex(c: Operation) -> Pair:
    return Pair(c.node(0), c.node(1))


def _real(c: Operation) -> Node:
    x = c.operands[0]
    return x.re if isinstance(x, Pair) else x


def _imag(c: Operation) -> Node:
    x = c.operands[0]
    return x.im if isinstance(x, Pair) else real_pair(c.b, x).im


# --- comparisons and choices ----------------------------------------------------------------------------------------

COMPARISONS: Mapping[str, OpDef] = {
    "EQ": ops.eq, "NE": ops.ne, "LT": ops.lt, "LE": ops.le, "GT": ops.gt, "GE": ops.ge,
}  # fmt: skip


def _compare(c: Operation) -> Node:
    op = COMPARISONS[direction_of(c.op)]
    a, b = c.operands
    if isinstance(a, Pair) or isinstance(b, Pair):
        x, y = as_pair(c, a), as_pair(c, b)
        join = ops.logical_or if op is ops.ne else ops.logical_and
        return c.b(join, c.b(op, x.re, y.re), c.b(op, x.im, y.im))
    if c.has("compare_type") and "TOTALORDER" in c.text("compare_type"):
        a, b = total_order(c, a), total_order(c, b)
    return c.b(op, a, b)


def total_order(c: Operation, x: Node) -> Node:
    """Integers in the order of IEEE 754's totalOrder of floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    if not x.dtype.is_float:
        return x
    dtype = dtype_named(f"i{x.dtype.bits}")
    bits = c.b(ops.bitcast, x, dtype=dtype)
    sign = c.b(ops.shift_right, bits, c.b.const(dtype.bits - 1, dtype))
    return c.b(ops.bitwise_xor, bits, c.b(ops.bitwise_and, sign, c.b.const(dtype.max, dtype)))


def _select(c: Operation) -> Value:
    """One of two values; where the condition is known, that one."""
    condition, a, b = c.node(0), c.operands[1], c.operands[2]
    truth = c.known.truth(condition)
    if truth is not None:
        return a if truth else b
    if isinstance(a, Pair) or isinstance(b, Pair):
        x, y = as_pair(c, a), as_pair(c, b)
        return Pair(c.b(ops.where, condition, x.re, y.re), c.b(ops.where, condition, x.im, y.im))
    return c.b(ops.where, condition, a, b)


# --- bits and conversions -------------------------------------------------------------------------------------------


def _shift_right(to_sign: bool) -> Convert:
    """A shift that keeps the sign, or does not: as of the signed or the unsigned type of that width."""

    def convert(c: Operation) -> Node:
        x, n = c.nodes()
        dtype = dtype_named(f"{'i' if to_sign else 'u'}{x.dtype.bits}")
        if dtype is x.dtype:
            return c.b(ops.shift_right, x, n)
        made = c.b(ops.shift_right, c.b(ops.bitcast, x, dtype=dtype), c.b(ops.bitcast, n, dtype=dtype))
        return c.b(ops.bitcast, made, dtype=x.dtype)

    return convert


def _popcount(c: Operation) -> Node:
    """Sums of bits side by side: of 2, 4, then 8, and of all bytes by a product (Warren, Hacker's Delight)."""
    x = c.node(0)
    dtype = dtype_named(f"u{x.dtype.bits}")
    x = read_as(c.b, x, dtype)

    def mask(byte: int) -> Node:
        return c.b.const(int.from_bytes(bytes([byte]) * dtype.n_bytes, "little"), dtype)

    def right(x: Node, n: int) -> Node:
        return c.b(ops.shift_right, x, c.b.const(n, dtype))

    x = c.b(ops.sub, x, c.b(ops.bitwise_and, right(x, 1), mask(0x55)))
    x = c.b(ops.add, c.b(ops.bitwise_and, x, mask(0x33)), c.b(ops.bitwise_and, right(x, 2), mask(0x33)))
    x = c.b(ops.bitwise_and, c.b(ops.add, x, right(x, 4)), mask(0x0F))
    x = right(c.b(ops.mul, x, mask(0x01)), dtype.bits - 8)
    return c.cast(x, c.node(0).dtype)


def _leading_zeros(c: Operation) -> Node:
    """The bits below the highest one are set, then those that are not set are counted."""
    x = c.node(0)
    dtype = dtype_named(f"u{x.dtype.bits}")
    bits = read_as(c.b, x, dtype)
    count = c.b.const(0, dtype)
    for k in range(dtype.bits):  # a bit at a place shows once everything above it is shifted out
        above = c.b(ops.shift_right, bits, c.b.const(k, dtype))
        count = c.b(ops.add, count, c.cast(c.b(ops.eq, above, c.b.const(0, dtype)), dtype))
    return c.cast(count, c.node(0).dtype)


def convert(c: Operation) -> Value:
    """Another element type."""
    x, target = c.operands[0], c.type()
    if target.is_complex:
        pair = as_pair(c, x)
        return Pair(c.cast(pair.re, target.dtype), c.cast(pair.im, target.dtype))
    if isinstance(x, Pair):
        x = x.re
    if x.dtype is target.dtype:
        return x
    x = decoded(c, x)
    if not target.dtype.is_narrow:
        return c.cast(x, target.dtype)
    if target.dtype not in WHOLE:
        return encoded(c, c.cast(x, f32), target.dtype)
    return encoded(c, _within(c, c.cast(x, i32), target.dtype) if x.dtype.is_float else x, target.dtype)


def _within(c: Operation, x: Node, dtype: DType) -> Node:
    """The nearest number that ``dtype`` has: floats saturate, where integers keep their low bits."""
    return c.b(ops.clamp, x, c.b.const(int(dtype.min), x.dtype), c.b.const(int(dtype.max), x.dtype))


def _bitcast(c: Operation) -> Value:
    """The same bits; of another width, the parts along a last axis. A boolean is one bit."""
    x, target = c.operands[0], c.type()
    if target.is_complex == isinstance(x, Pair) and x.dtype is target.dtype:
        return x
    if isinstance(x, Pair) and target.is_complex:
        return from_parts(c.b, _real_bitcast(c, join_parts(c.b, x), target.dtype))
    if isinstance(x, Pair) or target.is_complex:
        raise NoForm("the bits of complex numbers as real ones", "take them apart with real and imag")
    return _real_bitcast(c, x, target.dtype)


def _real_bitcast(c: Operation, x: Node, target: DType) -> Node:
    if max(x.dtype.bits, target.bits) % min(x.dtype.bits, target.bits):
        raise NoForm(f"bits of {x.dtype} as {target}", "convert them")
    return read_as(c.b, x, target)


def _reduce_precision(c: Operation) -> Node:
    """Round to fewer bits of exponent and mantissa, to even; what is too large becomes infinity, too small zero."""
    x = c.node(0)
    stored = ml_dtypes.finfo(x.dtype.numpy)
    has_exponent, has_mantissa = stored.nexp, stored.nmant
    exponent, mantissa = c.integer("exponent_bits"), c.integer("mantissa_bits")
    dtype = dtype_named(f"u{x.dtype.bits}")
    bits = c.b(ops.bitcast, x, dtype=dtype)

    def number(n: int) -> Node:
        return c.b.const(n, dtype)

    if mantissa < has_mantissa:
        n_lost = has_mantissa - mantissa
        last = c.b(ops.bitwise_and, c.b(ops.shift_right, bits, number(n_lost)), number(1))
        rounded = c.b(ops.add, bits, c.b(ops.add, last, number((1 << (n_lost - 1)) - 1)))
        bits = c.b(ops.bitwise_and, rounded, number(int(dtype.max) ^ ((1 << n_lost) - 1)))
    if exponent < has_exponent:
        bias, least = (1 << (has_exponent - 1)) - 1, (1 << (exponent - 1)) - 1
        all_ones = ((1 << has_exponent) - 1) << has_mantissa
        sign = c.b(ops.bitwise_and, bits, number(1 << (dtype.bits - 1)))
        place = c.b(ops.bitwise_and, bits, number(all_ones))
        is_large = c.b(ops.gt, place, number((bias + least) << has_mantissa))
        is_small = c.b(ops.le, place, number((bias - least) << has_mantissa))
        bits = c.b(ops.where, is_large, c.b(ops.bitwise_or, sign, number(all_ones)), bits)
        bits = c.b(ops.where, is_small, sign, bits)
    return c.b(ops.where, c.b(ops.isnan, x), x, c.b(ops.bitcast, bits, dtype=x.dtype))


def _not(c: Operation) -> Node:
    x = c.node(0)
    return c.b(ops.logical_not if x.dtype is bool_ else ops.bitwise_not, x)


def _bools_as_bytes(real: Convert) -> Convert:
    """Comparisons of booleans are those of bytes."""

    def convert(c: Operation) -> Result:
        if any(isinstance(x, Node) and x.dtype is bool_ for x in c.operands):
            given = tuple(c.cast(x, u8) if isinstance(x, Node) else x for x in c.operands)
            return real(Operation(c.walker, c.b, c.op, given))
        return real(c)

    return convert


def _all_same(c: Operation) -> Result:
    return c.operands


def _map(c: Operation) -> Result:
    return c.walker.apply(c.op.regions[0], c.operands)


_OF_BITS = frozenset({
    "bitcast_convert", "convert", "count_leading_zeros", "map", "optimization_barrier", "popcnt",
    "shift_right_arithmetic", "shift_right_logical",
})  # fmt: skip
"""What depends on how wide a type is, or takes narrow types as they are."""

TABLE: Mapping[str, Convert] = {
    f"stablehlo.{name}": made if name in _OF_BITS else in_wider(made)
    for name, made in {
        "add": either(two(ops.add), each_part(ops.add)),
        "subtract": either(two(ops.sub), each_part(ops.sub)),
        "multiply": either(two(ops.mul), complex_functions.multiply),
        "divide": either(_divide, complex_functions.divide),
        "remainder": _remainder,
        "power": either(two(ops.pow), complex_functions.power),
        "maximum": either(two(ops.maximum), complex_functions.larger(ops.gt)),
        "minimum": either(two(ops.minimum), complex_functions.larger(ops.lt)),
        "atan2": either(two(ops.atan2), complex_functions.atan2),
        "and": logical_or_bits(ops.logical_and, ops.bitwise_and),
        "or": logical_or_bits(ops.logical_or, ops.bitwise_or),
        "xor": logical_or_bits(ops.logical_xor, ops.bitwise_xor),
        "not": _not,
        "shift_left": two(ops.shift_left),
        "shift_right_logical": with_bits(_shift_right(to_sign=False), "unsigned"),
        "shift_right_arithmetic": with_bits(_shift_right(to_sign=True), "signed"),
        "abs": _abs,
        "cbrt": either(_cbrt, complex_functions.cbrt),
        "ceil": one(ops.ceil),
        "floor": one(ops.floor),
        "cosine": either(one(ops.cos), complex_functions.cosine),
        "sine": either(one(ops.sin), complex_functions.sine),
        "tan": either(one(ops.tan), complex_functions.tan),
        "tanh": either(one(ops.tanh), complex_functions.tanh),
        "exponential": either(one(ops.exp), complex_functions.exp),
        "exponential_minus_one": either(one(ops.expm1), complex_functions.expm1),
        "log": either(one(ops.log), complex_functions.log),
        "log_plus_one": either(one(ops.log1p), complex_functions.log1p),
        "logistic": either(one(ops.sigmoid), complex_functions.logistic),
        "negate": either(_negate, each_part(ops.neg)),
        "round_nearest_afz": _round_away,
        "round_nearest_even": one(ops.round),
        "rsqrt": either(one(ops.rsqrt), complex_functions.rsqrt),
        "sqrt": either(one(ops.sqrt), complex_functions.sqrt),
        "sign": either(one(ops.sign), complex_functions.sign),
        "is_finite": lambda c: _is_finite(c, c.node(0)),
        "popcnt": with_bits(_popcount, "unsigned"),
        "count_leading_zeros": with_bits(_leading_zeros, "leading"),
        "clamp": _clamp,
        "complex": _complex,
        "real": _real,
        "imag": _imag,
        "compare": _bools_as_bytes(_compare),
        "select": _select,
        "convert": convert,
        "bitcast_convert": _bitcast,
        "reduce_precision": _reduce_precision,
        "optimization_barrier": _all_same,
        "map": _map,
    }.items()
}
