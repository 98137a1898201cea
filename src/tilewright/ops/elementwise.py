"""Element-wise ops: one line or a short block each, with NumPy meaning and element expression side by side.

In: operands of one dtype that broadcast as in NumPy. Out: one tensor of the broadcast shape.
Not its business: activations (``ops.activations``), which are made of these.

Names of ops equal Python's built-ins in places (``abs``, ``pow``, ``round``); this file does not use the built-ins.
Integer division by zero gives the quotient 0 (rounded down: -1 for negative dividends) and the remainder a.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Binary, Bitcast, Buffer, Const, Fma, Load, Select, Stage, Unary, Value
from tilewright.core.diag import OpError
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, DType, TensorType
from tilewright.ops.common import (
    ANY,
    BOOLS,
    FLOATS,
    INTS,
    LOGICAL,
    NUMERIC,
    assign,
    broadcast_shapes,
    cast_to,
    check,
    check_equal_dtypes,
    convert,
    elementwise,
    wide,
)
from tilewright.ops.samples import Range, binary_samples, edge_values, random, unary_samples

One = Callable[[Value], Value]
Two = Callable[[Value, Value], Value]
WIDE: Range = (-3.0, 3.0)


def _tested(dtypes: Sequence[DType]) -> tuple[DType, ...]:
    """The dtypes that samples are drawn in; tests convert them to the others."""
    return tuple(d for d in (types.f32, types.i32, types.bool_) if d in dtypes) or (types.u64,)


def unary(
    name: str, value: One, numpy: Callable[[Array], Array], dtypes: Sequence[DType], doc: str, within: Range = WIDE
) -> OpDef:
    """An element-wise op on one operand that keeps its dtype."""

    def infer(ts: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_equal_dtypes(ts, dtypes)
        return ts[0]

    return elementwise(
        name, ("x",), lambda vs, a: value(vs[0]), lambda xs, a: numpy(xs[0]), infer,
        partial(unary_samples, dtypes=_tested(dtypes), within=within), doc,
    )  # fmt: skip


def predicate(name: str, value: One, numpy: Callable[[Array], Array], dtypes: Sequence[DType], doc: str) -> OpDef:
    """An element-wise question about one operand; the result is bool."""

    def infer(ts: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_equal_dtypes(ts, dtypes)
        return ts[0].with_dtype(types.bool_)

    return elementwise(
        name, ("x",), lambda vs, a: value(vs[0]), lambda xs, a: numpy(xs[0]), infer,
        partial(unary_samples, dtypes=_tested(dtypes)), doc,
    )  # fmt: skip


def binary(
    name: str,
    value: Two,
    numpy: Callable[[Array, Array], Array],
    dtypes: Sequence[DType],
    doc: str,
    *traits: Trait,
    result: DType | None = None,
    left: Range = WIDE,
    right: Range = WIDE,
    edges: bool = True,
) -> OpDef:
    """An element-wise op on two operands of one dtype; ``result`` where the result has another."""

    def infer(ts: Sequence[TensorType], attrs: Attrs) -> TensorType:
        dtype = check_equal_dtypes(ts, dtypes)
        return TensorType(result or dtype, broadcast_shapes(ts[0].shape, ts[1].shape))

    samples = partial(binary_samples, dtypes=_tested(dtypes), left=left, right=right, edges=edges)
    return elementwise(
        name, ("a", "b"), lambda vs, a: value(vs[0], vs[1]), lambda xs, a: numpy(xs[0], xs[1]), infer, samples, doc,
        *traits,
    )  # fmt: skip


def _plain(op: str) -> One:
    return lambda v: Unary(op, v)


def _plain2(op: str) -> Two:
    return lambda a, b: Binary(op, a, b)


def _logical(op: str, on_bool: str) -> Two:
    """``op``, and on bool the logical operation that it amounts to."""
    return lambda a, b: Binary(on_bool if a.dtype is types.bool_ else op, a, b)


def const_like(number: float, v: Value) -> Const:
    return Const(number, v.dtype)


# --- one operand ----------------------------------------------------------------------------------------------------


def _sign(v: Value) -> Value:
    zero, one = const_like(0, v), const_like(1, v)
    if not v.dtype.is_signed:
        return Select(Binary("gt", v, zero), one, zero)
    # Where the CPU counts denormal numbers as 0 they come here as well, and 0 is what they times 0 are.
    neither = v * zero if v.dtype.is_float else v
    negative = Select(Binary("lt", v, zero), const_like(-1, v), neither)
    return Select(Binary("gt", v, zero), one, negative)


def _sign_of(x: Array) -> Array:
    return np.asarray(np.where(x == 0, x, np.sign(x)))  # NumPy's of -0 is 0


def _isinf(v: Value) -> Value:
    return Binary("eq", Unary("abs", v), const_like(math.inf, v))


def erf_of(x: Array) -> Array:
    """The error function of every element."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype(np.float64))).astype(x.dtype)


def _rsqrt(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x)).astype(x.dtype)


def _absolute(v: Value) -> Value:
    return Unary("abs", v) if v.dtype.is_signed else v


neg = unary("neg", _plain("neg"), np.negative, NUMERIC, "-x; integers wrap.")
abs = unary("abs", _absolute, np.abs, NUMERIC, "The absolute value; the lowest integer stays itself.")
sign = unary("sign", _sign, _sign_of, NUMERIC, "-1, 0 or 1; NaN and zeros stay themselves.")
exp = unary("exp", _plain("exp"), np.exp, FLOATS, "e**x.")
exp2 = unary("exp2", _plain("exp2"), np.exp2, FLOATS, "2**x.")
expm1 = unary("expm1", _plain("expm1"), np.expm1, FLOATS, "e**x - 1, accurate near 0.")
log = unary("log", _plain("log"), np.log, FLOATS, "The natural logarithm.", (0.1, 9))
log2 = unary("log2", _plain("log2"), np.log2, FLOATS, "The logarithm to base 2.", (0.1, 9))
log1p = unary("log1p", _plain("log1p"), np.log1p, FLOATS, "log(1 + x), accurate near 0.", (-0.9, 9))
sqrt = unary("sqrt", _plain("sqrt"), np.sqrt, FLOATS, "The square root.", (0, 9))
rsqrt = unary("rsqrt", _plain("rsqrt"), _rsqrt, FLOATS, "1 / sqrt(x).", (0.1, 9))
reciprocal = unary("reciprocal", lambda v: const_like(1, v) / v, lambda x: 1 / x, FLOATS, "1 / x.")
sin = unary("sin", _plain("sin"), np.sin, FLOATS, "The sine.")
cos = unary("cos", _plain("cos"), np.cos, FLOATS, "The cosine.")
tan = unary("tan", _plain("tan"), np.tan, FLOATS, "The tangent.")
asin = unary("asin", _plain("asin"), np.arcsin, FLOATS, "The inverse of the sine.", (-1, 1))
acos = unary("acos", _plain("acos"), np.arccos, FLOATS, "The inverse of the cosine.", (-1, 1))
atan = unary("atan", _plain("atan"), np.arctan, FLOATS, "The inverse of the tangent.")
sinh = unary("sinh", _plain("sinh"), np.sinh, FLOATS, "The hyperbolic sine.")
cosh = unary("cosh", _plain("cosh"), np.cosh, FLOATS, "The hyperbolic cosine.")
tanh = unary("tanh", _plain("tanh"), np.tanh, FLOATS, "The hyperbolic tangent.")
asinh = unary("asinh", _plain("asinh"), np.arcsinh, FLOATS, "The inverse of sinh.")
acosh = unary("acosh", _plain("acosh"), np.arccosh, FLOATS, "The inverse of cosh.", (1, 9))
atanh = unary("atanh", _plain("atanh"), np.arctanh, FLOATS, "The inverse of tanh.", (-1, 1))
erf = unary("erf", _plain("erf"), erf_of, FLOATS, "The error function.")
floor = unary("floor", _plain("floor"), np.floor, FLOATS, "The greatest integer not above x.")
ceil = unary("ceil", _plain("ceil"), np.ceil, FLOATS, "The least integer not below x.")
round = unary("round", _plain("rint"), np.rint, FLOATS, "The nearest integer, half to even.")
trunc = unary("trunc", _plain("trunc"), np.trunc, FLOATS, "x without its fraction.")
logical_not = unary("logical_not", _plain("not"), np.logical_not, BOOLS, "not x.")
bitwise_not = unary("bitwise_not", _plain("not"), np.invert, LOGICAL, "Every bit flipped; on bool the logical not.")
isnan = predicate("isnan", _plain("isnan"), np.isnan, FLOATS, "Whether x is not a number.")
isinf = predicate("isinf", _isinf, np.isinf, FLOATS, "Whether x is an infinity of either sign.")

# --- two operands ---------------------------------------------------------------------------------------------------

SWAPS = Trait.COMMUTATIVE
MONOID = (Trait.COMMUTATIVE, Trait.ASSOCIATIVE)
NON_ZERO: Range = (1, 3)
SUMMABLE = NUMERIC + BOOLS


def _truncated(a: Array, b: Array) -> Array:
    """Division as C's for integers, true division for floats."""
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    quotient = a // b
    return np.asarray(quotient + ((a % b != 0) & ((a < 0) != (b < 0))).astype(a.dtype))


def _floor_div_of(a: Array, b: Array) -> Array:
    quotient = np.floor_divide(a, b)
    return np.asarray(quotient if a.dtype.kind not in "iu" else np.where((b == 0) & (a < 0), -1, quotient))


def _remainder_of(numpy: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The remainder; of integers by 0 the dividend."""
    return lambda a, b: np.asarray(numpy(a, b) if a.dtype.kind not in "iu" else np.where(b == 0, a, numpy(a, b)))


def _floor_mod_of(a: Array, b: Array) -> Array:
    """The remainder on the divisor's side of 0; of floats a remainder of 0 has the dividend's sign, unlike NumPy's."""
    if a.dtype.kind in "iu":
        return _remainder_of(np.mod)(a, b)
    rem = np.fmod(a, b)
    return np.asarray(np.where((rem != 0) & ((rem < 0) != (b < 0)), rem + b, rem))


def _floor_mod(a: Value, b: Value) -> Value:
    """The remainder with the sign of the divisor."""
    rem = Binary("rem", a, b)
    return Select(_signs_differ(rem, b), rem + b, rem) if a.dtype.is_signed else rem


def _signs_differ(rem: Value, b: Value) -> Value:
    """Whether a remainder is on the other side of 0 than its divisor: the truncated quotient is one too high."""
    zero = const_like(0, b)
    return Binary("and", Binary("ne", rem, zero), Binary("ne", Binary("lt", rem, zero), Binary("lt", b, zero)))


def _floor_div(a: Value, b: Value) -> Value:
    """The quotient rounded down: exact for integers, for floats by way of the remainder as in Python.

    A quotient of 0 has the sign of the one that is not rounded.
    """
    if not a.dtype.is_signed:
        return a / b
    dtype = a.dtype
    a, b = cast_to(a, wide(dtype)), cast_to(b, wide(dtype))
    rem = Binary("rem", a, b)
    quotient = a / b if dtype.is_integer else Unary("rint", (a - rem) / b)
    quotient = Select(_signs_differ(rem, b), quotient - const_like(1, a), quotient)
    if dtype.is_integer:
        return quotient
    zero, plain = const_like(0, a), a / b
    quotient = Select(Binary("eq", quotient, zero), plain * zero, quotient)
    return cast_to(Select(Binary("eq", b, zero), plain, quotient), dtype)


def _power_of(a: Array, b: Array) -> Array:
    """``a ** b``; integers wrap, and negative exponents give 0 except for bases 1 and -1."""
    if a.dtype.kind not in "iu":
        return np.asarray(np.power(a, b))
    negative = b < 0
    power = np.power(a, np.where(negative, 0, b).astype(a.dtype))
    parity = np.where(b % 2 == 0, np.ones_like(power), a)
    return np.asarray(np.where(negative, np.where((a == 1) | (a == -1), parity, 0), power)).astype(a.dtype)


def _shifted(op: str, left_over: One) -> Two:
    """A shift; amounts outside of ``0 .. bits-1`` give ``left_over(a)`` instead of the machine's whim."""

    def value(a: Value, b: Value) -> Value:
        bits = a.dtype.bits
        fits = Binary("lt", b, const_like(bits, b))
        if a.dtype.is_signed:
            fits = Binary("and", fits, Binary("ge", b, const_like(0, b)))
        amount = Binary("and", b, const_like(bits - 1, b))
        return Select(fits, Binary(op, a, amount), left_over(a))

    return value


def _shift_of(numpy: Callable[[Array, Array], Array], *, keeps_sign: bool) -> Callable[[Array, Array], Array]:
    def run(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        fits = (b >= 0) & (b < bits)
        over = np.where(a < 0, -1, 0).astype(a.dtype) if keeps_sign else np.zeros_like(a)
        return np.asarray(np.where(fits, numpy(a, b & np.asarray(bits - 1, b.dtype)), over))

    return run


def _zero(v: Value) -> Value:
    return const_like(0, v)


def _sign_bits(v: Value) -> Value:
    if not v.dtype.is_signed:
        return _zero(v)
    return Select(Binary("lt", v, _zero(v)), const_like(-1, v), _zero(v))


add = binary("add", _logical("add", "or"), np.add, SUMMABLE, "a + b; integers wrap; on bool the or.", *MONOID)
sub = binary("sub", _plain2("sub"), np.subtract, NUMERIC, "a - b; integers wrap.")
mul = binary("mul", _logical("mul", "and"), np.multiply, SUMMABLE, "a * b; integers wrap; on bool the and.", *MONOID)
div = binary("div", _plain2("div"), _truncated, NUMERIC, "a / b; integers truncate towards zero.", right=NON_ZERO)
floor_div = binary("floor_div", _floor_div, _floor_div_of, NUMERIC, "The quotient rounded down.", right=NON_ZERO)
mod = binary("mod", _floor_mod, _floor_mod_of, NUMERIC, "The remainder with the sign of the divisor.", right=NON_ZERO)
fmod = binary(
    "fmod",
    _plain2("rem"),
    _remainder_of(np.fmod),
    NUMERIC,
    "The remainder with the sign of the dividend.",
    right=NON_ZERO,
)
pow = binary(
    "pow", _plain2("pow"), _power_of, NUMERIC, "a ** b; integers wrap.", left=(0, 3), right=(-2, 3), edges=False
)
minimum = binary("minimum", _logical("min", "and"), np.minimum, ANY, "The smaller; NaN propagates.", *MONOID)
maximum = binary("maximum", _logical("max", "or"), np.maximum, ANY, "The larger; NaN propagates.", *MONOID)
atan2 = binary("atan2", _plain2("atan2"), np.arctan2, FLOATS, "The angle of the point (b, a).")
logical_and = binary("logical_and", _plain2("and"), np.logical_and, BOOLS, "a and b.", *MONOID)
logical_or = binary("logical_or", _plain2("or"), np.logical_or, BOOLS, "a or b.", *MONOID)
logical_xor = binary("logical_xor", _plain2("xor"), np.logical_xor, BOOLS, "Exactly one of a and b.", *MONOID)
bitwise_and = binary("bitwise_and", _plain2("and"), np.bitwise_and, LOGICAL, "Bit by bit and.", *MONOID)
bitwise_or = binary("bitwise_or", _plain2("or"), np.bitwise_or, LOGICAL, "Bit by bit or.", *MONOID)
bitwise_xor = binary("bitwise_xor", _plain2("xor"), np.bitwise_xor, LOGICAL, "Bit by bit exclusive or.", *MONOID)
shift_left = binary(
    "shift_left", _shifted("shl", _zero), _shift_of(np.left_shift, keeps_sign=False), INTS,
    "a * 2**b without carry; 0 when b is outside of 0 .. bits-1.", right=(0, 9),
)  # fmt: skip
shift_right = binary(
    "shift_right", _shifted("shr", _sign_bits), _shift_of(np.right_shift, keeps_sign=True), INTS,
    "a / 2**b rounded down; the sign's bits when b is outside of 0 .. bits-1.", left=(-99, 99), right=(0, 9),
)  # fmt: skip
eq = binary("eq", _plain2("eq"), np.equal, ANY, "a == b.", SWAPS, result=types.bool_)
ne = binary("ne", _plain2("ne"), np.not_equal, ANY, "a != b.", SWAPS, result=types.bool_)
lt = binary("lt", _plain2("lt"), np.less, ANY, "a < b.", result=types.bool_)
le = binary("le", _plain2("le"), np.less_equal, ANY, "a <= b.", result=types.bool_)
gt = binary("gt", _plain2("gt"), np.greater, ANY, "a > b.", result=types.bool_)
ge = binary("ge", _plain2("ge"), np.greater_equal, ANY, "a >= b.", result=types.bool_)

# --- three operands -------------------------------------------------------------------------------------------------


def _infer_where(ts: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check(ts[0].dtype is types.bool_, lambda: f"the condition is {ts[0]}, not bool", "compare it with 0")
    dtype = check_equal_dtypes(ts[1:])
    return TensorType(dtype, broadcast_shapes(*(t.shape for t in ts)))


def _infer_broadcast(ts: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(check_equal_dtypes(ts, NUMERIC), broadcast_shapes(*(t.shape for t in ts)))


def _where_samples(rng: np.random.Generator) -> list[Sample]:
    cond, x = random(rng, (2, 1, 3), types.bool_), random(rng, (2, 3))
    return [
        Sample((cond, x, random(rng, (3,)))),
        Sample((cond[0, 0, 0], x, x + 1)),
        Sample((random(rng, (4,), types.bool_), *([np.arange(4, dtype=np.int64)] * 2))),
        Sample((np.array([True, False]), np.array([1.0, np.nan], np.float32), np.array([np.nan, 2.0], np.float32))),
        Sample((random(rng, (0,), types.bool_), random(rng, (0,)), random(rng, (1,)))),
    ]


def _clamp_samples(rng: np.random.Generator) -> list[Sample]:
    lo, hi = np.array(-1, np.float32), np.array(1, np.float32)
    return [
        Sample((random(rng, (2, 3)), lo, hi)),
        Sample((random(rng, (2, 3)), random(rng, (3,)), random(rng, (2, 1)))),
        Sample((edge_values(types.f32), lo, hi)),
        Sample((random(rng, (2,)), hi, lo)),
        Sample((random(rng, (5,), types.i32), np.array(0, np.int32), np.array(2, np.int32))),
    ]


def _prelu_samples(rng: np.random.Generator) -> list[Sample]:
    return [
        Sample((random(rng, (2, 3, 2)), random(rng, (3, 1)))),
        Sample((edge_values(types.f32), np.array(0.25, np.float32))),
        Sample((random(rng, (0, 2)), random(rng, (2,)))),
    ]


where = elementwise(
    "where", ("cond", "a", "b"), lambda vs, a: Select(vs[0], vs[1], vs[2]), lambda xs, a: np.where(*xs),
    _infer_where, _where_samples, "a where cond holds, else b.",
)  # fmt: skip
clamp = elementwise(
    "clamp", ("x", "lo", "hi"), lambda vs, a: Binary("min", Binary("max", vs[0], vs[1]), vs[2]),
    lambda xs, a: np.minimum(np.maximum(xs[0], xs[1]), xs[2]), _infer_broadcast, _clamp_samples,
    "min(max(x, lo), hi); NaN propagates.",
)  # fmt: skip
prelu = elementwise(
    "prelu", ("x", "slope"), lambda vs, a: Select(Binary("lt", vs[0], _zero(vs[0])), vs[0] * vs[1], vs[0]),
    lambda xs, a: np.where(xs[0] < 0, xs[0] * xs[1], xs[0]), _infer_broadcast, _prelu_samples,
    "x, and x * slope where x is negative.",
)  # fmt: skip


def _infer_pair(ts: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(check_equal_dtypes(ts, (types.f32,)), broadcast_shapes(*(t.shape for t in ts)))


def _pair_of(xs: Sequence[Array], attrs: Attrs) -> Array:
    x, high, low = xs
    small = (x * low).astype(np.float64)
    return np.asarray(x.astype(np.float64) * high + small).astype(np.float32)


def _pair_samples(rng: np.random.Generator) -> list[Sample]:
    high, low = np.float32(1 / 3) - np.float32(2**-25), np.float32(2**-25)
    return [
        Sample((random(rng, (2, 3)), np.asarray(high), np.asarray(low))),
        Sample((edge_values(types.f32), np.asarray(high), np.asarray(low))),
        Sample((random(rng, (2, 3)), np.array([1, 2, 3], np.float32), np.asarray(low))),
        Sample((random(rng, (0,)), np.asarray(high), np.asarray(low))),
    ]


mul_pair = elementwise(
    "mul_pair", ("x", "high", "low"), lambda vs, a: Fma(vs[0], vs[1], vs[0] * vs[2]), _pair_of, _infer_pair,
    _pair_samples, "x * high + x * low, the first product not rounded: a factor of twice as many digits.",
)  # fmt: skip

# --- other dtypes ---------------------------------------------------------------------------------------------------


def _infer_cast(ts: Sequence[TensorType], attrs: Attrs) -> TensorType:
    source, target = ts[0].dtype, attrs.dtype
    for t, name in ((source, "decode"), (target, "encode")):
        if source is not target and t.is_narrow and t not in types.WHOLE:
            raise OpError(f"{ts[0]} can't be cast to {target}", remedy=f"write {name}, which converts narrow floats")
    return ts[0].with_dtype(target)


def _infer_bitcast(ts: Sequence[TensorType], attrs: Attrs) -> TensorType:
    source, target = ts[0].dtype, attrs.dtype
    check(
        source.n_bytes == target.n_bytes and types.bool_ not in (source, target),
        lambda: f"{ts[0]} can't be read as {target}: the widths must be equal, and neither may be bool",
    )
    return ts[0].with_dtype(target)


def _compute_cast(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], attrs: Attrs) -> tuple[Stage, ...]:
    return (assign(outs[0], lambda i: cast_to(Load(ins[0], i), attrs.dtype)),)


def _compute_bitcast(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], attrs: Attrs) -> tuple[Stage, ...]:
    return (assign(outs[0], lambda i: Bitcast(Load(ins[0], i), attrs.dtype)),)


def _cast_samples(rng: np.random.Generator) -> list[Sample]:
    extremes = np.array([np.nan, np.inf, -np.inf, 3e10, -3e10, 300.7, -1.5, 0.3], np.float64)
    return [Sample((extremes,), {"dtype": d}) for d in types.DTYPES] + [
        Sample((np.array([0, -1, 300, 2**31], np.int64),), {"dtype": types.i8}),
        Sample((random(rng, (2, 2), types.bool_),), {"dtype": types.f32}),
        Sample((random(rng, (0, 2)),), {"dtype": types.i32}),
    ]


def _bitcast_samples(rng: np.random.Generator) -> list[Sample]:
    return [
        Sample((edge_values(types.f32),), {"dtype": types.u32}),
        Sample((random(rng, (2, 3), types.i64),), {"dtype": types.u64}),
        Sample((np.array([0x3F80, 0x4000], np.uint16),), {"dtype": types.bf16}),
        Sample((random(rng, (0,), types.i8),), {"dtype": types.u8}),
    ]


CAST_ATTRS = {"dtype": AttrDef("dtype")}
POINTWISE = frozenset({Trait.ELEMENTWISE})

cast = OpDef(
    "cast", ("x",), CAST_ATTRS, _infer_cast, lambda xs, a: convert(xs[0], a.dtype),
    _compute_cast, traits=POINTWISE, samples=_cast_samples,
    doc="Another dtype: floats truncate and saturate to integers (NaN gives 0), integers wrap, to bool is != 0. "
    "Narrow floats are for encode and decode.",
)  # fmt: skip
bitcast = OpDef(
    "bitcast", ("x",), CAST_ATTRS, _infer_bitcast, lambda xs, a: np.ascontiguousarray(xs[0]).view(a.dtype.numpy)
    .reshape(xs[0].shape), _compute_bitcast, traits=POINTWISE, samples=_bitcast_samples,
    doc="The same bits read as a dtype of the same width.",
)  # fmt: skip

# --- for decompositions ---------------------------------------------------------------------------------------------


def cast_node(b: Builder, x: Node, dtype: DType) -> Node:
    """``x`` as ``dtype``; the node itself when it already is."""
    return x if x.dtype is dtype else b(cast, x, dtype=dtype)


def in_wide(b: Builder, inputs: Sequence[Node], build: Callable[..., Node]) -> Node:
    """``build`` on the operands in the dtype to compute in, its result back in the first operand's dtype."""
    return cast_node(b, build(*[cast_node(b, x, wide(x.dtype)) for x in inputs]), inputs[0].dtype)
