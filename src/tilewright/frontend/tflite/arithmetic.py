"""TFLite's arithmetic, activations, comparisons and reductions.

In: calls. Out: nodes. Not its business: windows (``windows``), moves and lookups (``moves``).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import f32, i32, i64
from tilewright.frontend.tflite.call import Converter, TfliteCall


def one(op: OpDef) -> Converter:
    return lambda c: c.b(op, c.x())


def two(op: OpDef) -> Converter:
    """An op on two operands, and the activation that is fused into it."""
    return lambda c: c.b(op, c.x(0), c.x(1))


def _then_activated(op: OpDef) -> Converter:
    return lambda c: c.activated(c.b(op, c.x(0), c.x(1)))


def _between(low: float, high: float) -> Converter:
    return lambda c: c.b(ops.clamp, c.x(), c.number(low, c.x()), c.number(high, c.x()))


def _square(c: TfliteCall) -> Node:
    return c.b(ops.mul, c.x(), c.x())


def _squared_difference(c: TfliteCall) -> Node:
    less = c.b(ops.sub, c.x(0), c.x(1))
    return c.b(ops.mul, less, less)


def _softmax(c: TfliteCall) -> Node:
    """Along the last axis, of numbers times ``beta``."""
    x, beta = c.x(), c.option("Beta")
    scaled = x if beta == 1 else c.b(ops.mul, x, c.number(beta, x))
    return c.b(ops.softmax, scaled, axis=len(x.shape) - 1)


def _log_softmax(c: TfliteCall) -> Node:
    return c.b(ops.log_softmax, c.x(), axis=len(c.x().shape) - 1)


def _leaky_relu(c: TfliteCall) -> Node:
    return c.b(ops.leaky_relu, c.x(), alpha=c.option("Alpha"))


def _gelu(c: TfliteCall) -> Node:
    return c.b(ops.gelu, c.x(), approximate="tanh" if c.option("Approximate") else "none")


def _add_n(c: TfliteCall) -> Node:
    total = c.x(0)
    for k in range(1, len(c.inputs)):
        total = c.b(ops.add, total, c.x(k))
    return total


def _select(c: TfliteCall) -> Node:
    """The condition may also be one value for each row."""
    condition, one, _ = (c.x(k) for k in range(3))
    if c.name == "SELECT" and len(condition.shape) == 1 and len(one.shape) > 1:
        condition = c.shaped(condition, (*c.size(condition), *[1] * (len(one.shape) - 1)))
    return c.b(ops.where, condition, c.x(1), c.x(2))


def _cast(c: TfliteCall) -> Node:
    return c.cast(c.x(), c.dtypes[0])


def axes_of(c: TfliteCall) -> tuple[int, ...]:
    """The axes along which an operator reduces, from its second operand."""
    return tuple(sorted({c.axis(k, len(c.x().shape)) for k in c.ints(1)}))


def _reduction(op: OpDef) -> Converter:
    def convert(c: TfliteCall) -> Node:
        if op is ops.reduce_mean and not c.x().dtype.is_float:
            raise OpError("means of integers that are no codes are not read", remedy="cast them to floats")
        return c.b(op, c.x(), axes=axes_of(c), keepdims=bool(c.option("KeepDims")))

    return convert


def _place(op: OpDef) -> Converter:
    def convert(c: TfliteCall) -> Node:
        (axis,) = c.ints(1)
        return c.cast(c.b(op, c.x(), axis=c.axis(axis, len(c.x().shape)), keepdims=False), c.dtypes[0])

    return convert


def _cumsum(c: TfliteCall) -> Node:
    (axis,) = c.ints(1)
    flags = {"exclusive": bool(c.option("Exclusive")), "reverse": bool(c.option("Reverse"))}
    return c.b(ops.cumsum, c.x(), axis=c.axis(axis, len(c.x().shape)), **flags)


def _l2_normalization(c: TfliteCall) -> Node:
    """Along the last axis, of at least 1e-6 in length."""
    x = c.x()
    total = c.b(ops.reduce_sum, c.b(ops.mul, x, x), axes=(len(x.shape) - 1,), keepdims=True)
    length = c.b(ops.maximum, c.b(ops.sqrt, total), c.number(1e-6, x))
    return c.activated(c.b(ops.div, x, length))


def _local_response(c: TfliteCall) -> Node:
    """Over neighbours along the last axis: a sum of squares in a window of channels.

    A window reaches no further than there are channels, because a file may state any reach.
    """
    x, reach = c.x(), c.option("Radius")
    *outer, n = c.size(x)
    if reach < 0:
        raise OpError(f"a reach of {reach} channels must be at least 0")
    reach = min(reach, max(n - 1, 0))
    square = c.shaped(c.b(ops.mul, x, x), (prod(outer), 1, n, 1))
    pads, size = ((reach, reach), (0, 0)), (2 * reach + 1, 1)
    total = c.shaped(c.b(ops.avg_pool, square, kernel=size, strides=(1, 1), pads=pads, divisor=1), c.size(x))
    base = c.b(ops.add, c.b(ops.mul, total, c.number(c.option("Alpha"), x)), c.number(c.option("Bias"), x))
    return c.b(ops.mul, x, c.b(ops.pow, base, c.number(-c.option("Beta"), x)))


def _top_k(c: TfliteCall) -> tuple[Node, ...]:
    (k,) = c.ints(1)
    values, places = c.b.results(c.b(ops.top_k, c.x(), axis=len(c.x().shape) - 1, k=k, largest=True))
    return values, c.cast(places, i32)


def _fake_quant(c: TfliteCall) -> Node:
    """Floats to the nearest of the steps that codes of so many bits would have, whose 0 is a step itself."""
    x, bits = c.x(), c.option("NumBits")
    if not 2 <= bits <= 16 or x.dtype is not f32:
        raise OpError(f"{x.type} is not rounded to codes of {bits} bits")
    if c.option("NarrowRange"):
        raise OpError("a range without the least code is for training alone", remedy="convert without narrow_range")
    least, most = np.float32(0), np.float32((1 << bits) - 1)
    low, high = np.float32(c.option("Min")), np.float32(c.option("Max"))
    if not -np.inf < low <= 0 <= high < np.inf or low == high:
        raise OpError(f"the range {low} to {high} does not hold 0")
    scale = (high - low) / (most - least)
    zero = np.clip(np.floor(least - low / scale + np.float32(0.5)), least, most)
    first, last = (float((end - zero) * scale) for end in (least, most))
    inside = c.b(ops.clamp, x, c.number(first, x), c.number(last, x))
    steps = c.b(ops.mul, c.b(ops.sub, inside, c.number(first, x)), c.number(float(np.float32(1) / scale), x))
    whole = c.b(ops.floor, c.b(ops.add, steps, c.number(0.5, x)))
    return c.b(ops.add, c.b(ops.mul, whole, c.number(float(scale), x)), c.number(first, x))


def _where(c: TfliteCall) -> Node:
    name = f"where_{c.x().serial}"
    rows, _ = c.b.results(c.b(ops.argwhere, c.x(), count=name))
    return c.cast(rows, i64)


_SAME = {
    "ABS": ops.abs, "NEG": ops.neg, "EXP": ops.exp, "LOG": ops.log, "SQRT": ops.sqrt, "RSQRT": ops.rsqrt,
    "SIN": ops.sin, "COS": ops.cos, "FLOOR": ops.floor, "CEIL": ops.ceil, "ROUND": ops.round, "SIGN": ops.sign,
    "TANH": ops.tanh, "LOGISTIC": ops.sigmoid, "RELU": ops.relu, "ELU": ops.elu, "HARD_SWISH": ops.hard_swish,
    "LOGICAL_NOT": ops.logical_not,
}  # fmt: skip
_TWO = {
    "MINIMUM": ops.minimum, "MAXIMUM": ops.maximum, "POW": ops.pow, "FLOOR_DIV": ops.floor_div, "FLOOR_MOD": ops.mod,
    "ATAN2": ops.atan2, "LOGICAL_AND": ops.logical_and, "LOGICAL_OR": ops.logical_or, "EQUAL": ops.eq,
    "NOT_EQUAL": ops.ne, "LESS": ops.lt, "LESS_EQUAL": ops.le, "GREATER": ops.gt, "GREATER_EQUAL": ops.ge,
    "BITWISE_XOR": ops.bitwise_xor, "RIGHT_SHIFT": ops.shift_right, "PRELU": ops.prelu,
}  # fmt: skip
_REDUCED = {
    "SUM": ops.reduce_sum, "MEAN": ops.reduce_mean, "REDUCE_PROD": ops.reduce_prod, "REDUCE_MAX": ops.reduce_max,
    "REDUCE_MIN": ops.reduce_min, "REDUCE_ANY": ops.reduce_any, "REDUCE_ALL": ops.reduce_all,
}  # fmt: skip
TABLE: Mapping[str, Converter] = {
    **{name: one(op) for name, op in _SAME.items()},
    **{name: two(op) for name, op in _TWO.items()},
    **{name: _reduction(op) for name, op in _REDUCED.items()},
    "ADD": _then_activated(ops.add), "SUB": _then_activated(ops.sub), "MUL": _then_activated(ops.mul),
    "DIV": _then_activated(ops.div), "RELU6": _between(0, 6), "RELU_N1_TO_1": _between(-1, 1),
    "RELU_0_TO_1": _between(0, 1), "SQUARE": _square, "SQUARED_DIFFERENCE": _squared_difference, "SOFTMAX": _softmax,
    "LOG_SOFTMAX": _log_softmax, "LEAKY_RELU": _leaky_relu, "GELU": _gelu, "ADD_N": _add_n, "SELECT": _select,
    "SELECT_V2": _select, "CAST": _cast, "ARG_MAX": _place(ops.argmax), "ARG_MIN": _place(ops.argmin),
    "CUMSUM": _cumsum, "L2_NORMALIZATION": _l2_normalization, "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "TOPK_V2": _top_k, "WHERE": _where, "FAKE_QUANT": _fake_quant,
}  # fmt: skip
