"""Element-wise ATen: arithmetic, comparisons, logic, activations, conversions.

In: calls. Out: nodes. Operands are cast to the dtype in which ATen computes: the result's, or for comparisons the
promoted one. Not its business: ops that move or reduce elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, TensorType, bool_, f16, f32, f64, i32, i64
from tilewright.frontend.nodes import expand, is_negative, next_after, reshape, slice_axis, with_sign_of
from tilewright.frontend.torch.aten.call import AtenCall, Result, SymFloat, Unsupported, as_node, cast, promote
from tilewright.frontend.torch.aten.random import dropped
from tilewright.ops.common import wide

Convert = Callable[[AtenCall], Result]


def _unary(op: OpDef) -> Convert:
    return lambda c: c.b(op, c.tensor("self", c.dtype))


def _sign(c: AtenCall) -> Node:
    """True is its own sign; NaN and zeros of either sign give 0."""
    x = c.tensor("self")
    if c.dtype is bool_:
        return x
    if not c.dtype.is_float:
        return c.b(ops.sign, x)
    zero = c.b.const(0.0, x.dtype)
    above, below = (cast(c.b, c.b(op, x, zero), x.dtype) for op in (ops.gt, ops.lt))
    return c.b(ops.sub, above, below)


def _rounding(op: OpDef) -> Convert:
    """Integers are already round."""
    return lambda c: c.b(op, c.tensor("self")) if c.dtype.is_float else c.tensor("self")


def _binary(op: OpDef, left: str = "self", right: str = "other") -> Convert:
    return lambda c: c.b(op, c.tensor(left, c.dtype), c.tensor(right, c.dtype))


def _in(c: AtenCall, op: OpDef, dtype: DType) -> Node:
    """The call computed in a type and rounded once to its own: a step in half a precision may be infinite."""
    return cast(c.b, c.b(op, c.tensor("self", dtype), c.tensor("other", dtype)), c.dtype)


def _multiplied(op: OpDef) -> Convert:
    """A product or a quotient. A number that half a precision does not hold is one of f32, as in PyTorch.

    A mask times -1e9 is 0 where the mask is, which -infinity would make NaN, and a number over 70,000 is not 0 in f16.
    """

    return lambda c: _in(c, op, wide(c.dtype) if _is_rounded(c["other"], c.dtype) else c.dtype)


def _floor_divided(c: AtenCall) -> Node:
    """By a number of f32, as in PyTorch: a quotient next to a whole number depends on every digit."""
    return _in(c, ops.floor_div, wide(c.dtype) if isinstance(c["other"], float) else c.dtype)


def _is_rounded(number: object, dtype: DType) -> bool:
    """Would half a precision hold a finite number, or a 0-d tensor of another type, with fewer digits or not at all?"""
    if wide(dtype) is dtype:
        return False
    if isinstance(number, Node):
        return not number.shape and number.dtype is not dtype
    if isinstance(number, SymFloat):
        return True
    if not isinstance(number, int | float) or not math.isfinite(number):
        return False
    return number != 0 and float(np.float64(number).astype(dtype.numpy)) != number


def _compare(op: OpDef) -> Convert:
    def convert(c: AtenCall) -> Node:
        dtype = promote(c["self"], c["other"])
        return c.b(op, c.tensor("self", dtype), c.tensor("other", dtype))

    return convert


def _logical(op: OpDef) -> Convert:
    return lambda c: c.b(op, c.tensor("self", bool_), c.tensor("other", bool_))


def _sum(op: OpDef, left: str = "self", right: str = "other") -> Convert:
    """``left + alpha * right`` and its relatives, rounded once; ``alpha`` itself has the digits of the call's type."""

    def convert(c: AtenCall) -> Node:
        if c["alpha"] == 1:
            return c.b(op, c.tensor(left, c.dtype), c.tensor(right, c.dtype))
        dtype = wide(c.dtype)
        x, y, alpha = (cast(c.b, c.tensor(name, c.dtype), dtype) for name in (left, right, "alpha"))
        return cast(c.b, c.b(op, x, c.b(ops.mul, y, alpha)), c.dtype)

    return convert


def _div_mode(c: AtenCall) -> Node:
    """By a number of f32, as in PyTorch."""
    mode, dtype = c["rounding_mode"], wide(c.dtype) if _is_rounded(c["other"], c.dtype) else c.dtype
    if mode == "floor":
        return _in(c, ops.floor_div, dtype)
    if mode is None or not c.dtype.is_float:
        return _in(c, ops.div, dtype)
    x, y = c.tensor("self", dtype), c.tensor("other", dtype)
    return cast(c.b, c.b(ops.trunc, c.b(ops.div, x, y)), c.dtype)


def _square(c: AtenCall) -> Node:
    x = c.tensor("self", c.dtype)
    return c.b(ops.mul, x, x)


def _pow_scalar(c: AtenCall) -> Node:
    """As PyTorch's kernels: a product of products is rounded after each, but in f16, where a power is one of f32.

    The exponent has the digits of the call's type.
    """
    b, exponent = c.b, c["exponent"]
    if exponent == 2:
        return _square(c)
    if exponent == -2 and c.dtype is not f16:
        return b(ops.reciprocal, _square(c))
    if c.dtype is not f16:
        return b(ops.pow, c.tensor("self", c.dtype), c.tensor("exponent", c.dtype))
    x = c.tensor("self", f32)
    if exponent in (0.5, -0.5):  # a root, which is NaN of -infinity where the power is not
        size = b(ops.abs, x)
        is_end = b(ops.logical_or, b(ops.eq, size, b.const(0, f32)), b(ops.eq, size, b.const(math.inf, f32)))
        x = b(ops.where, is_end, size, x)
    return cast(b, b(ops.pow, x, cast(b, c.tensor("exponent", f16), f32)), f16)


def _sign_bit(c: AtenCall) -> Node:
    return is_negative(c.b, c.tensor("self"))


def _log10(c: AtenCall) -> Node:
    x = cast(c.b, c.tensor("self", c.dtype), wide(c.dtype))
    return cast(c.b, c.b(ops.div, c.b(ops.log, x), c.b.const(math.log(10), x.dtype)), c.dtype)


def _round(c: AtenCall) -> Node:
    if not c.dtype.is_float:
        return c.tensor("self")
    digits = c.args.get("decimals", 0)
    if digits == 0:
        return c.b(ops.round, c.tensor("self"))
    wide = f32 if c.dtype.bits == 16 else c.dtype  # in 16 bits what is scaled up may not fit
    scale = c.b.const(10.0 ** abs(digits), wide)
    up, down = (ops.mul, ops.div) if digits > 0 else (ops.div, ops.mul)
    return cast(c.b, c.b(down, c.b(ops.round, c.b(up, c.tensor("self", wide), scale)), scale), c.dtype)


def _predicate(op: OpDef) -> Convert:
    """A question about floats; no integer is NaN or infinite."""

    def convert(c: AtenCall) -> Node:
        x = c.tensor("self")
        return c.b(op, x) if x.dtype.is_float else expand(c.b, c.b.const(False, bool_), x.shape)

    return convert


def _isfinite(c: AtenCall) -> Node:
    x = c.tensor("self")
    if not x.dtype.is_float:
        return expand(c.b, c.b.const(True, bool_), x.shape)
    return c.b(ops.lt, c.b(ops.abs, x), c.b.const(math.inf, x.dtype))


def _bitwise(op: OpDef, on_bool: OpDef) -> Convert:
    return lambda c: c.b(on_bool if c.dtype is bool_ else op, c.tensor("self", c.dtype), c.tensor("other", c.dtype))


def _clamp(c: AtenCall) -> Node:
    x, lo, hi = c.tensor("self", c.dtype), c.optional("min", c.dtype), c.optional("max", c.dtype)
    if lo is not None and hi is not None:
        return c.b(ops.clamp, x, lo, hi)
    if lo is not None:
        return c.b(ops.maximum, x, lo)
    return x if hi is None else c.b(ops.minimum, x, hi)


def _hardtanh(c: AtenCall) -> Node:
    return c.b(ops.clamp, c.tensor("self"), c.tensor("min_val", c.dtype), c.tensor("max_val", c.dtype))


def _relu6(c: AtenCall) -> Node:
    return c.b(ops.clamp, c.tensor("self"), c.b.const(0, c.dtype), c.b.const(6, c.dtype))


def _where(c: AtenCall) -> Node:
    return c.b(ops.where, c.tensor("condition", bool_), c.tensor("self", c.dtype), c.tensor("other", c.dtype))


def _masked_fill(c: AtenCall) -> Node:
    return c.b(ops.where, c.tensor("mask", bool_), c.tensor("value", c.dtype), c.tensor("self"))


def _lerp(c: AtenCall) -> Node:
    """From the nearer end, as PyTorch does: at weight 1 the result is ``end`` itself."""
    b, dtype = c.b, wide(c.dtype)
    x, y, w = (c.tensor(name, dtype) for name in ("self", "end", "weight"))
    step = b(ops.sub, y, x)
    from_start = b(ops.add, x, b(ops.mul, w, step))
    from_end = b(ops.sub, y, b(ops.mul, step, b(ops.sub, b.const(1, dtype), w)))
    if isinstance(c["weight"], int | float):
        return cast(b, from_start if abs(c["weight"]) < 0.5 else from_end, c.dtype)
    is_low = b(ops.lt, b(ops.abs, w), b.const(0.5, dtype))
    return cast(b, b(ops.where, is_low, from_start, from_end), c.dtype)


def _addcmul(op: OpDef) -> Convert:
    """``self + (value * tensor1) op tensor2``, in this order as in PyTorch: it decides what overflows."""

    def convert(c: AtenCall) -> Node:
        dtype = wide(c.dtype)
        first = c.tensor("tensor1", dtype)
        if c["value"] != 1:
            first = c.b(ops.mul, c.tensor("value", dtype), first)
        term = c.b(op, first, c.tensor("tensor2", dtype))
        return cast(c.b, c.b(ops.add, c.tensor("self", dtype), term), c.dtype)

    return convert


def _dropout(c: AtenCall) -> Result:
    """Dropout outside of training is the identity."""
    x = c.tensor("self" if "self" in c.args else "input")  # ``dropout_`` names it otherwise
    if c["train"] and c["p"] != 0:
        made = dropped(c, x, float(c["p"]))
        return made[0] if len(c.results) == 1 else made
    return x if len(c.results) == 1 else (x, None)


def _to(c: AtenCall) -> Node:
    """A conversion; device and memory format do not exist here."""
    return c.tensor("self", c.dtype)


def _truth(c: AtenCall) -> Node:
    return c.b(ops.logical_not, c.tensor("self", bool_))


# --- activations ----------------------------------------------------------------------------------------------------


def _gelu(c: AtenCall) -> Node:
    return c.b(ops.gelu, c.tensor("self"), approximate=c["approximate"])


def _leaky_relu(c: AtenCall) -> Node:
    return c.b(ops.leaky_relu, c.tensor("self"), alpha=float(c.static("negative_slope")))


def _rrelu(c: AtenCall) -> Result:
    """Outside of training the slope is the middle of its range, and the noise is handed on."""
    if c["training"]:
        raise Unsupported("a slope drawn at random in training mode", "call module.eval() before compiling")
    slope = (float(c.static("lower")) + float(c.static("upper"))) / 2
    y = c.b(ops.leaky_relu, c.tensor("self"), alpha=slope)
    return y if len(c.results) == 1 else (y, c.tensor("noise"))


def _elu(c: AtenCall) -> Node:
    """``scale * (x or alpha * (exp(x * input_scale) - 1))``."""
    b, x, alpha, scale, inner = c.b, c.tensor("self"), c.static("alpha"), c.static("scale"), c.static("input_scale")
    if inner == scale == 1:
        return b(ops.elu, x, alpha=float(alpha))
    x = cast(b, x, wide(c.dtype))
    below = b(ops.expm1, x if inner == 1 else b(ops.mul, x, b.const(inner, x.dtype)))
    below = b(ops.mul, below, b.const(alpha * scale, x.dtype))
    above = b(ops.mul, x, b.const(scale, x.dtype))
    return cast(b, b(ops.where, b(ops.le, x, b.const(0, x.dtype)), below, above), c.dtype)


def _celu(c: AtenCall) -> Node:
    return c.b(ops.celu, c.tensor("self"), alpha=float(c.static("alpha")))


def _hardsigmoid(c: AtenCall) -> Node:
    return c.b(ops.hard_sigmoid, c.tensor("self"), alpha=1 / 6, beta=0.5)


LINEAR_SOFTPLUS = 20
"""From here on softplus is its operand in f32 (and differs by 2e-9 in f64), so that PyTorch's default means nothing."""


def _softplus(c: AtenCall) -> Node:
    x, beta, threshold = c.tensor("self"), c.static("beta"), c.static("threshold")
    if beta == 1 and threshold >= LINEAR_SOFTPLUS:
        return c.b(ops.softplus, x)
    x = cast(c.b, x, wide(c.dtype))
    scale = c.b.const(beta, x.dtype)
    scaled = c.b(ops.mul, x, scale)
    y = c.b(ops.div, c.b(ops.softplus, scaled), scale)
    if threshold < LINEAR_SOFTPLUS:
        y = c.b(ops.where, c.b(ops.gt, scaled, c.b.const(threshold, x.dtype)), x, y)
    return cast(c.b, y, c.dtype)


def _log_sigmoid(c: AtenCall) -> Result:
    """``min(x, 0) - log(1 + exp(-|x|))``, which is 0 without a sign of large operands.

    A forward call keeps the exponential for the backward call, where that has a use for it, and nothing elsewhere.
    """
    b, x = c.b, cast(c.b, c.tensor("self"), wide(c.dtype))
    small = b(ops.exp, b(ops.neg, b(ops.abs, x)))
    y = cast(b, b(ops.sub, b(ops.minimum, x, b.const(0, x.dtype)), b(ops.log1p, small)), c.dtype)
    if len(c.results) == 1:
        return y
    kept = c.results[1]
    assert kept is not None
    if kept.shape == x.shape:
        return y, cast(b, small, kept.dtype)
    return y, b(ops.full, value=0.0, dtype=kept.dtype, shape=kept.shape)


def _prelu(c: AtenCall) -> Node:
    x, slope = c.tensor("self"), c.tensor("weight")
    if slope.shape and len(slope.shape) == 1 and slope.shape[0] != 1 and len(x.shape) > 1:
        ones: tuple[Dim, ...] = (1,) * (len(x.shape) - 2)
        slope = reshape(c.b, slope, (slope.shape[0], *ones))
    return c.b(ops.prelu, x, slope)


def _glu(c: AtenCall) -> Node:
    x = c.tensor("self")
    axis = c.axis(len(x.shape))
    size = c.shape[axis]
    halves = [slice_axis(c.b, x, axis, start, size) for start in (0, size)]
    return c.b(ops.mul, halves[0], c.b(ops.sigmoid, halves[1]))


def _threshold(c: AtenCall) -> Node:
    x = c.tensor("self")
    dtype = wide(c.dtype) if _is_rounded(c["threshold"], c.dtype) else c.dtype
    is_low = c.b(ops.le, cast(c.b, x, dtype), c.tensor("threshold", dtype))
    return c.b(ops.where, is_low, c.tensor("value", c.dtype), x)


def _relu_like(c: AtenCall) -> Node:
    x = c.tensor("self")
    return c.b(ops.relu, x) if x.dtype.is_float else c.b(ops.maximum, x, c.b.const(0, x.dtype))


def _threshold_backward(c: AtenCall) -> Node:
    x, grad = c.tensor("self"), c.tensor("grad_output")
    below = c.b(ops.le, x, c.tensor("threshold", x.dtype))
    return c.b(ops.where, below, c.b.const(0, grad.dtype), grad)


def _scalar_tensor(c: AtenCall) -> Node:
    return as_node(c.b, c["s"], c.dtype)


def _logit(c: AtenCall) -> Node:
    x = c.tensor("self", c.dtype)
    if c["eps"] is not None:
        eps = c.static("eps")
        x = c.b(ops.clamp, x, c.b.const(eps, c.dtype), c.b.const(1 - eps, c.dtype))
    return c.b(ops.log, c.b(ops.div, x, c.b(ops.sub, c.b.const(1, c.dtype), x)))


def _times_log(log: OpDef) -> Convert:
    """``self * log(other)``, 0 where ``self`` is; the logarithm is rounded to the call's type, as in PyTorch."""

    def convert(c: AtenCall) -> Node:
        x, y = c.tensor("self", c.dtype), c.tensor("other", c.dtype)
        zero = c.b.const(0, c.dtype)
        product = c.b(ops.where, c.b(ops.eq, x, zero), zero, c.b(ops.mul, x, c.b(log, y)))
        return c.b(ops.where, c.b(ops.isnan, y), y, product)

    return convert


def _entropy(c: AtenCall) -> Node:
    """``-x * log(x)``, 0 of 0 and -infinity of what is below; the logarithm is rounded, as in PyTorch."""
    b, x = c.b, c.tensor("self", c.dtype)
    zero = b.const(0, c.dtype)
    product = b(ops.mul, b(ops.neg, x), b(ops.log, x))
    rest = b(ops.where, b(ops.lt, x, zero), b.const(-math.inf, c.dtype), product)
    return b(ops.where, b(ops.eq, x, zero), zero, rest)


def _nan_ignoring(op: OpDef, beyond: OpDef) -> Convert:
    """The other operand where one is NaN; of equal ones, such as zeros of both signs, the first."""

    def convert(c: AtenCall) -> Node:
        x, y = c.tensor("self", c.dtype), c.tensor("other", c.dtype)
        if not c.dtype.is_float:
            return c.b(op, x, y)
        return c.b(ops.where, c.b(ops.logical_or, c.b(ops.isnan, x), c.b(beyond, y, x)), y, x)

    return convert


def _angle(c: AtenCall) -> Node:
    """0 or pi by the sign; NaN of NaN."""
    x = c.tensor("self", c.dtype)
    y = c.b(ops.where, c.b(ops.lt, x, c.b.const(0, c.dtype)), c.b.const(math.pi, c.dtype), c.b.const(0, c.dtype))
    return c.b(ops.where, c.b(ops.isnan, x), x, y)


def _hypot(c: AtenCall) -> Node:
    """Scaled by the larger operand, so that no square overflows."""
    dtype = wide(c.dtype)
    x, y = (c.b(ops.abs, c.tensor(n, dtype)) for n in ("self", "other"))
    large, small = c.b(ops.maximum, x, y), c.b(ops.minimum, x, y)
    zero, one, infinity = (c.b.const(v, dtype) for v in (0, 1, math.inf))
    ratio = c.b(ops.div, small, c.b(ops.where, c.b(ops.eq, large, zero), one, large))
    size = c.b(ops.mul, large, c.b(ops.sqrt, c.b(ops.add, one, c.b(ops.mul, ratio, ratio))))
    infinite = c.b(ops.logical_or, c.b(ops.eq, x, infinity), c.b(ops.eq, y, infinity))
    return cast(c.b, c.b(ops.where, infinite, infinity, size), c.dtype)


def _nextafter(c: AtenCall) -> Node:
    x, y = (expand(c.b, c.tensor(name, c.dtype), c.shape) for name in ("self", "other"))
    return next_after(c.b, x, y)


def _frexp(c: AtenCall) -> Result:
    """Mantissa in 0.5 .. 1 and exponent, from the bits in f64, where only f64's own subnormals need scaling."""
    b, x = c.b, cast(c.b, c.tensor("self"), f64)
    size = b(ops.abs, x)
    is_tiny = b(ops.lt, size, b.const(2.0**-1022, f64))
    bits = b(ops.bitcast, b(ops.where, is_tiny, b(ops.mul, x, b.const(2.0**54, f64)), x), dtype=i64)
    mask = 0x7FF << 52
    exponent = b(ops.bitwise_and, b(ops.shift_right, bits, b.const(52, i64)), b.const(0x7FF, i64))
    exponent = b(ops.sub, exponent, b(ops.where, is_tiny, b.const(1022 + 54, i64), b.const(1022, i64)))
    kept = b(ops.bitwise_and, bits, b.const(~mask, i64))
    mantissa = b(ops.bitcast, b(ops.bitwise_or, kept, b.const(1022 << 52, i64)), dtype=f64)
    plain = b(ops.logical_and, b(ops.gt, size, b.const(0, f64)), b(ops.lt, size, b.const(math.inf, f64)))
    exponent = b(ops.where, plain, exponent, b.const(0, i64))
    return cast(b, b(ops.where, plain, mantissa, x), c.dtype), cast(b, exponent, i32)


def _divisor(c: AtenCall) -> Node:
    """The greatest common divisor by Euclid's algorithm, until no element has a remainder."""
    b = c.b
    x, y = (b(ops.abs, expand(b, c.tensor(n, c.dtype), c.shape)) for n in ("self", "other"))
    pool = Pool()
    inner = Builder(pool, b.loc)
    i, going = pool.input("i", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    large, small = pool.input("large", x.type), pool.input("small", y.type)
    zero, one = inner.const(0, c.dtype), inner.const(1, c.dtype)
    is_moving = inner(ops.ne, small, zero)
    rest = inner(ops.mod, large, inner(ops.where, is_moving, small, one))
    after = inner(ops.where, is_moving, small, large), inner(ops.where, is_moving, rest, zero)
    axes = tuple(range(len(c.shape)))
    remains = inner(ops.ne, after[1], zero)
    again = inner(ops.reduce_any, remains, axes=axes, keepdims=False) if axes else remains
    body = Graph("euclid", pool, (i, going, large, small), (again, *after), ("again", "new_large", "new_small"))
    limit = b.const(2 * c.dtype.bits, i64)  # Fibonacci numbers take the longest, 1.44 steps a bit
    return b.results(b(ops.loop, limit, b.const(True, bool_), x, y, body=body, n_carried=2))[0]


def _multiple(c: AtenCall) -> Node:
    """The least common multiple; 0 where both are 0."""
    b = c.b
    x, y = (expand(b, c.tensor(n, c.dtype), c.shape) for n in ("self", "other"))
    divisor = _divisor(c)
    none = b(ops.eq, divisor, b.const(0, c.dtype))
    part = b(ops.div, x, b(ops.where, none, b.const(1, c.dtype), divisor))
    return b(ops.abs, b(ops.mul, part, y))


def _copysign(c: AtenCall) -> Node:
    return with_sign_of(c.b, c.b(ops.abs, c.tensor("self", c.dtype)), c.tensor("other", c.dtype))


_UNARY: Mapping[str, OpDef] = {
    "abs": ops.abs, "neg": ops.neg, "_neg_view": ops.neg, "exp": ops.exp, "exp2": ops.exp2,
    "expm1": ops.expm1, "log": ops.log, "log2": ops.log2, "log1p": ops.log1p, "sqrt": ops.sqrt, "rsqrt": ops.rsqrt,
    "reciprocal": ops.reciprocal, "sin": ops.sin, "cos": ops.cos, "tan": ops.tan, "asin": ops.asin, "acos": ops.acos,
    "atan": ops.atan, "sinh": ops.sinh, "cosh": ops.cosh, "tanh": ops.tanh, "asinh": ops.asinh, "acosh": ops.acosh,
    "atanh": ops.atanh, "erf": ops.erf, "bitwise_not": ops.bitwise_not, "sigmoid": ops.sigmoid, "silu": ops.silu,
    "mish": ops.mish, "hardswish": ops.hard_swish, "softsign": ops.softsign,
}  # fmt: skip
_BINARY: Mapping[str, OpDef] = {
    "remainder.Tensor": ops.mod, "remainder.Scalar": ops.mod, "fmod.Tensor": ops.fmod, "fmod.Scalar": ops.fmod,
    "max.other": ops.maximum, "min.other": ops.minimum,
    "maximum.default": ops.maximum, "minimum.default": ops.minimum, "atan2.default": ops.atan2,
    "bitwise_left_shift.Tensor": ops.shift_left, "bitwise_right_shift.Tensor": ops.shift_right,
    "bitwise_left_shift.Tensor_Scalar": ops.shift_left, "bitwise_right_shift.Tensor_Scalar": ops.shift_right,
    "__lshift__.Scalar": ops.shift_left, "__rshift__.Scalar": ops.shift_right,
    "__lshift__.Tensor": ops.shift_left, "__rshift__.Tensor": ops.shift_right,
}  # fmt: skip
_MULTIPLIED: Mapping[str, OpDef] = {
    "mul.Tensor": ops.mul, "mul.Scalar": ops.mul, "div.Tensor": ops.div, "div.Scalar": ops.div,
    "true_divide.Tensor": ops.div,
}  # fmt: skip
_COMPARE: Mapping[str, OpDef] = {
    "eq": ops.eq, "ne": ops.ne, "lt": ops.lt, "le": ops.le, "gt": ops.gt, "ge": ops.ge,
}  # fmt: skip
_LOGIC: Mapping[str, OpDef] = {
    "logical_and": ops.logical_and,
    "logical_or": ops.logical_or,
    "logical_xor": ops.logical_xor,
}
_BITS: Mapping[str, tuple[OpDef, OpDef]] = {
    "bitwise_and": (ops.bitwise_and, ops.logical_and),
    "bitwise_or": (ops.bitwise_or, ops.logical_or),
    "bitwise_xor": (ops.bitwise_xor, ops.logical_xor),
}
_ROUNDING: Mapping[str, OpDef] = {"floor": ops.floor, "ceil": ops.ceil, "trunc": ops.trunc}

TABLE: Mapping[str, Convert] = {
    **{f"{name}.default": _unary(op) for name, op in _UNARY.items()},
    **{f"{name}.default": _rounding(op) for name, op in _ROUNDING.items()},
    **{name: _binary(op) for name, op in _BINARY.items()},
    **{name: _multiplied(op) for name, op in _MULTIPLIED.items()},
    **dict.fromkeys(("floor_divide.default", "floor_divide.Scalar"), _floor_divided),
    **{f"{name}.{kind}": _compare(op) for name, op in _COMPARE.items() for kind in ("Tensor", "Scalar")},
    **{f"{name}.default": _logical(op) for name, op in _LOGIC.items()},
    **{f"{name}.{kind}": _bitwise(*pair) for name, pair in _BITS.items() for kind in ("Tensor", "Scalar")},
    **{f"__{name.removeprefix('bitwise_')}__.{kind}": _bitwise(*pair)
       for name, pair in _BITS.items() for kind in ("Tensor", "Scalar")},
    "add.Tensor": _sum(ops.add), "add.Scalar": _sum(ops.add), "sub.Tensor": _sum(ops.sub),
    "sub.Scalar": _sum(ops.sub), **dict.fromkeys(("rsub.Tensor", "rsub.Scalar"), _sum(ops.sub, "other", "self")),
    "div.Tensor_mode": _div_mode, "div.Scalar_mode": _div_mode,
    "pow.Tensor_Tensor": _binary(ops.pow, right="exponent"), "pow.Scalar": _binary(ops.pow, right="exponent"),
    "pow.Tensor_Scalar": _pow_scalar, "square.default": _square,
    "sign.default": _sign, "sgn.default": _sign,
    "log10.default": _log10, "round.default": _round, "round.decimals": _round, "signbit.default": _sign_bit,
    "isnan.default": _predicate(ops.isnan), "isinf.default": _predicate(ops.isinf), "isfinite.default": _isfinite,
    "logical_not.default": _truth, "logit.default": _logit,
    **dict.fromkeys(("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self"), _times_log(ops.log)),
    **{f"special_xlog1py.{kind}": _times_log(ops.log1p) for kind in ("default", "other_scalar", "self_scalar")},
    "special_entr.default": _entropy,
    "gcd.default": _divisor, "lcm.default": _multiple, "frexp.Tensor": _frexp,
    "nextafter.default": _nextafter, "angle.default": _angle, "hypot.default": _hypot,
    "fmax.default": _nan_ignoring(ops.maximum, ops.gt),
    "fmin.default": _nan_ignoring(ops.minimum, ops.lt), "prims.fmax.default": _nan_ignoring(ops.maximum, ops.gt),
    "prims.fmin.default": _nan_ignoring(ops.minimum, ops.lt),
    "copysign.Tensor": _copysign, "copysign.Scalar": _copysign,
    "clamp.default": _clamp, "clamp.Tensor": _clamp, "clamp_min.default": lambda c: c.b(
        ops.maximum, c.tensor("self", c.dtype), c.tensor("min", c.dtype)
    ), "clamp_max.default": lambda c: c.b(ops.minimum, c.tensor("self", c.dtype), c.tensor("max", c.dtype)),
    "hardtanh.default": _hardtanh, "relu6.default": _relu6, "relu.default": _relu_like,
    "where.self": _where, "where.ScalarOther": _where, "where.ScalarSelf": _where, "where.Scalar": _where,
    "masked_fill.Scalar": _masked_fill, "masked_fill.Tensor": _masked_fill,
    "lerp.Scalar": _lerp, "lerp.Tensor": _lerp, "addcmul.default": _addcmul(ops.mul),
    "addcdiv.default": _addcmul(ops.div),
    "_to_copy.default": _to, "to.dtype": _to, "to.device": _to, "to.dtype_layout": _to, "to.other": _to,
    "clone.default": _to, "contiguous.default": _to, "alias.default": _to, "detach.default": _to,
    "detach_copy.default": _to, "alias_copy.default": _to, "lift_fresh_copy.default": _to, "lift_fresh.default": _to,
    "lift.default": _to, "dropout.default": _dropout, "native_dropout.default": _dropout,
    "type_as.default": _to, "positive.default": _to, "real.default": _to, "conj.default": _to, "_conj.default": _to,
    "_conj_physical.default": _to, "conj_physical.default": _to, "resolve_conj.default": _to,
    "resolve_neg.default": _to,
    "rrelu.default": _rrelu, "rrelu_with_noise.default": _rrelu, "rrelu_with_noise_functional.default": _rrelu,
    "gelu.default": _gelu, "leaky_relu.default": _leaky_relu, "elu.default": _elu, "celu.default": _celu,
    "hardsigmoid.default": _hardsigmoid, "softplus.default": _softplus, "log_sigmoid.default": _log_sigmoid,
    "log_sigmoid_forward.default": _log_sigmoid, "prelu.default": _prelu, "_prelu_kernel.default": _prelu,
    "glu.default": _glu, "threshold.default": _threshold, "threshold_backward.default": _threshold_backward,
    "scalar_tensor.default": _scalar_tensor, "prims.convert_element_type.default": lambda c: c.tensor("a", c.dtype),
}  # fmt: skip
