"""Converters of ONNX ops that work element by element: arithmetic, comparisons, activations, casts, selection.

In: a ``Call``. Out: nodes of the graph IR. Not its business: dtype rules of the ops themselves (``ops``).
"""

from __future__ import annotations

from functools import reduce

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, bool_, f32, f64
from tilewright.frontend.onnx.call import Call, Converter, Results, Table, Value
from tilewright.frontend.onnx.ops.source import uniform
from tilewright.ops.narrow import ROUNDINGS

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _unary(op: OpDef) -> Converter:
    return lambda c: c(op, c.x(0))


def _binary(op: OpDef) -> Converter:
    return lambda c: c(op, *_aligned(c))


def _aligned(c: Call) -> tuple[Node, Node]:
    """Two operands; before opset 7 the second is spread only when ``broadcast`` says so, its axes from ``axis`` on."""
    a, b = c.x(0), c.x(1)
    if c.opset >= 7:
        return a, b
    c.ignore("consumed_inputs")
    if c.flag("broadcast") and c.has("axis") and b.shape:
        axis = c.axis(c.int_("axis"), len(a.shape))
        b = c.reshape(b, (*b.shape, *(1,) * (len(a.shape) - axis - len(b.shape))))
    return a, b


def _with_floats(op: OpDef, **defaults: float) -> Converter:
    """A unary op whose float attributes have the same names in ONNX."""
    return lambda c: c(op, c.x(0), **{name: c.float_(name, default) for name, default in defaults.items()})


def _variadic(op: OpDef) -> Converter:
    return lambda c: reduce(lambda a, b: c(op, a, b), c.nodes())


def _mean(c: Call) -> Node:
    xs = c.nodes()
    total = reduce(lambda a, b: c(ops.add, a, b), xs)
    return c(ops.div, total, c.const(len(xs), total.dtype))


def _pow(c: Call) -> Node:
    base, exponent = _aligned(c)
    if base.dtype is exponent.dtype:
        return c(ops.pow, base, exponent)
    if base.dtype.is_float:
        return c(ops.pow, base, c.cast(exponent, base.dtype))
    if exponent.dtype.is_integer:
        return c(ops.pow, base, c.cast(exponent, base.dtype))
    return c.cast(c(ops.pow, c.cast(base, f64), c.cast(exponent, f64)), base.dtype)


def _mod(c: Call) -> Node:
    op = ops.fmod if c.flag("fmod") else ops.mod
    return c(op, c.x(0), c.x(1))


def _bit_shift(c: Call) -> Node:
    left = c.choice("direction", ("LEFT", "RIGHT")) == "LEFT"
    return c(ops.shift_left if left else ops.shift_right, c.x(0), c.x(1))


def _clip(c: Call) -> Node:
    """A bound that is not given is the type's largest finite number (from opset 6 on; f32's before 11), so that
    infinities are cut."""
    x = c.x(0)
    low, high = (_bound(c, k, name, x.dtype) for k, name in ((1, "min"), (2, "max")))
    if low is not None and high is not None:
        return c(ops.minimum, c(ops.maximum, x, low), high) if _rank(low) or _rank(high) else c(ops.clamp, x, low, high)
    if low is not None:
        return c(ops.maximum, x, low)
    return x if high is None else c(ops.minimum, x, high)


def _bound(c: Call, k: int, name: str, dtype: DType) -> Node | None:
    """An attribute before opset 11, then operand ``k``; None for one that changes nothing."""
    given = c.const(c.float_(name), dtype) if c.opset < 11 and c.has(name) else c.opt(k) if c.opset >= 11 else None
    if given is not None or c.opset < 6 or not dtype.is_float:
        return given
    widest = dtype if c.opset >= 11 else f32  # of which the largest number is infinity in a type of 16 bits
    if dtype.bits < widest.bits:
        return None
    return c.const(widest.min if name == "min" else widest.max, dtype)


def _rank(x: Node) -> int:
    return len(x.shape)


def _cast(c: Call) -> Node:
    return _converted(c, c.dtype("to"))


def _cast_like(c: Call) -> Node:
    return _converted(c, c.x(1).dtype)


def _converted(c: Call, dtype: DType) -> Node:
    saturate, rounding = c.flag("saturate", True), c.choice("round_mode", ROUNDINGS, "up")
    return c.cast(c.x(0), dtype, saturate=saturate, rounding=rounding)


def _isinf(c: Call) -> Node:
    x = c.x(0)
    negative, positive = c.flag("detect_negative", True), c.flag("detect_positive", True)
    infinite = c(ops.isinf, x)
    if negative and positive:
        return infinite
    if not negative and not positive:
        return c.full(False, bool_, x.shape)
    side = c(ops.lt if negative else ops.gt, x, c.const(0, x.dtype))
    return c(ops.logical_and, infinite, side)


def _gelu(c: Call) -> Node:
    return c(ops.gelu, c.x(0), approximate=c.choice("approximate", ("none", "tanh"), "none"))


def _prelu(c: Call) -> Node:
    x, slope = c.x(0), c.x(1)
    if len(slope.shape) > len(x.shape):
        c.refuse(f"the slope's rank {len(slope.shape)} exceeds the rank {len(x.shape)} of the operand")
    if c.opset < 7 and len(slope.shape) == 1 and len(x.shape) > 1:
        c.ignore("consumed_inputs")
        slope = c.reshape(slope, (slope.shape[0], *(1,) * (len(x.shape) - 2)))  # one per channel
    return c(ops.prelu, x, slope)


def _thresholded_relu(c: Call) -> Node:
    x = c.x(0)
    above = c(ops.gt, x, c.const(c.float_("alpha", 1.0), x.dtype))
    return c(ops.where, above, x, c.const(0, x.dtype))


def _shrink(c: Call) -> Node:
    x = c.x(0)
    bias, limit = c.float_("bias", 0.0), c.float_("lambd", 0.5)
    wide = x if x.dtype.is_float else c.cast(x, f32)
    low = c(ops.lt, wide, c.const(-limit, wide.dtype))
    high = c(ops.gt, wide, c.const(limit, wide.dtype))
    moved_up, moved_down = (c(ops.add, wide, c.const(b, wide.dtype)) for b in (bias, -bias))
    inner = c(ops.where, high, moved_down, c.const(0, wide.dtype))
    return c.cast(c(ops.where, low, moved_up, inner), x.dtype)


def _swish(c: Call) -> Node:
    x, alpha = c.x(0), c.float_("alpha", 1.0)
    if alpha == 1.0:
        return c(ops.silu, x)
    return c(ops.mul, x, c(ops.sigmoid, c(ops.mul, x, c.const(alpha, x.dtype))))


def _identity(c: Call) -> Value:
    value = c.value(0)
    return c.x(0) if value is None else value


def _dropout(c: Call) -> Results:
    """In inference: the operand, and a mask of ones (of zeros before opset 12, as ONNX Runtime gives it)."""
    c.ignore("ratio", "is_test")
    x, training = c.x(0), c.opt(2) if c.opset >= 12 else None
    if training is not None and c.number(training, "training_mode"):
        ratio = float(c.number(c.x(1), "ratio")) if c.opt(1) is not None else 0.5
        if not 0 <= ratio < 1:
            c.refuse(f"ratio {ratio} is outside of 0 to 1")
        mask = c(ops.ge, uniform(c, x.shape, f32, 1.0, 0.0), c.const(ratio, f32))
        kept = c(ops.div, x, c.const(1 - ratio, x.dtype))
        return c(ops.where, mask, kept, c.const(0, x.dtype)), mask
    c.ignore("seed")
    return (x, c.full(c.opset >= 12, bool_, x.shape) if c.wants(1) else None)


def _where(c: Call) -> Node:
    return c(ops.where, c.x(0), c.x(1), c.x(2))


def _bit_cast(c: Call) -> Node:
    x, dtype = c.x(0), c.dtype("to")
    if bool_ in (x.dtype, dtype):  # one byte that holds 0 or 1
        return c.cast(x, dtype)
    return c(ops.bitcast, x, dtype=dtype)


TABLE: Table = {
    "Abs": _unary(ops.abs),
    "Acos": _unary(ops.acos),
    "Acosh": _unary(ops.acosh),
    "Add": _binary(ops.add),
    "And": _binary(ops.logical_and),
    "Asin": _unary(ops.asin),
    "Asinh": _unary(ops.asinh),
    "Atan": _unary(ops.atan),
    "Atanh": _unary(ops.atanh),
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "BitwiseAnd": _binary(ops.bitwise_and),
    "BitwiseNot": _unary(ops.bitwise_not),
    "BitwiseOr": _binary(ops.bitwise_or),
    "BitwiseXor": _binary(ops.bitwise_xor),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _unary(ops.ceil),
    "Celu": _with_floats(ops.celu, alpha=1.0),
    "Clip": _clip,
    "Cos": _unary(ops.cos),
    "Cosh": _unary(ops.cosh),
    "Div": _binary(ops.div),
    "Dropout": _dropout,
    "Elu": _with_floats(ops.elu, alpha=1.0),
    "Equal": _binary(ops.eq),
    "Erf": _unary(ops.erf),
    "Exp": _unary(ops.exp),
    "Floor": _unary(ops.floor),
    "Gelu": _gelu,
    "Greater": _binary(ops.gt),
    "GreaterOrEqual": _binary(ops.ge),
    "HardSigmoid": _with_floats(ops.hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": _unary(ops.hard_swish),
    "Identity": _identity,
    "IsInf": _isinf,
    "IsNaN": _unary(ops.isnan),
    "LeakyRelu": _with_floats(ops.leaky_relu, alpha=0.01),
    "Less": _binary(ops.lt),
    "LessOrEqual": _binary(ops.le),
    "Log": _unary(ops.log),
    "Max": _variadic(ops.maximum),
    "Mean": _mean,
    "Min": _variadic(ops.minimum),
    "Mish": _unary(ops.mish),
    "Mod": _mod,
    "Mul": _binary(ops.mul),
    "Neg": _unary(ops.neg),
    "Not": _unary(ops.logical_not),
    "Or": _binary(ops.logical_or),
    "PRelu": _prelu,
    "Pow": _pow,
    "Reciprocal": _unary(ops.reciprocal),
    "Relu": _unary(ops.relu),
    "Round": _unary(ops.round),
    "Selu": _with_floats(ops.selu, alpha=SELU_ALPHA, gamma=SELU_GAMMA),
    "Shrink": _shrink,
    "Sigmoid": _unary(ops.sigmoid),
    "Sign": _unary(ops.sign),
    "Sin": _unary(ops.sin),
    "Sinh": _unary(ops.sinh),
    "Softplus": _unary(ops.softplus),
    "Softsign": _unary(ops.softsign),
    "Sqrt": _unary(ops.sqrt),
    "Sub": _binary(ops.sub),
    "Sum": _variadic(ops.add),
    "Swish": _swish,
    "Tan": _unary(ops.tan),
    "Tanh": _unary(ops.tanh),
    "ThresholdedRelu": _thresholded_relu,
    "Where": _where,
    "Xor": _binary(ops.logical_xor),
}
