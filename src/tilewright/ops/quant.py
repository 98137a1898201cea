"""Quantisation: between real numbers and integers with a scale and a zero point.

In: operand types, arrays or buffers. Out: each op's type rule, NumPy meaning and stage.
Not its business: choosing scales (a model has them); where quantised arithmetic replaces real arithmetic (``graph``).

A scale is 0-d (per tensor), 1-D along ``axis`` (per axis), or, with ``block_size`` > 0, of x's rank with one entry per
block of that many elements along ``axis``. A zero point has the scale's shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Cast, Const, Load, Unary, Value
from tilewright.core.diag import OpError
from tilewright.core.expr import Dim, ceildiv, floordiv
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, DType, TensorType
from tilewright.ops.common import cast_to, check_axis, check_dtype, convert, narrowed, wide
from tilewright.ops.elementwise import cast, clamp, div, eq, maximum, minimum, neg, round, sub, where
from tilewright.ops.reduce import reduce_max, reduce_min
from tilewright.ops.rules import Types, check_same_dims
from tilewright.ops.stages import Items, assign

QUANTISED: tuple[DType, ...] = (types.i8, types.u8, types.i16, types.u16)


def _check_scale(x: TensorType, scale: TensorType, zero_point: TensorType, a: Attrs) -> None:
    check_dtype(scale, types.FLOATS, "the scale")
    check_same_dims(scale.shape, zero_point.shape, "scale and zero point")
    if a.block_size < 0:
        raise OpError(f"block_size {a.block_size} is negative")
    if scale.rank == 0:
        return
    check_axis(a.axis, x.rank)
    expected: tuple[Dim, ...] = (x.shape[a.axis],)
    if a.block_size:
        n_blocks = ceildiv(x.shape[a.axis], a.block_size)
        expected = (*x.shape[: a.axis], n_blocks, *x.shape[a.axis + 1 :])
    check_same_dims(scale.shape, expected, "the scale and what x asks for")


def _spread(scale: Array, shape: Sequence[int], a: Attrs) -> Array:
    """A scale or zero point with one entry per element of x, or broadcastable."""
    if scale.ndim == 0:
        return scale
    if a.block_size:
        return np.repeat(scale, a.block_size, a.axis)[tuple(map(slice, shape))]
    return scale.reshape([-1 if k == a.axis else 1 for k in range(len(shape))])


def _load_spread(scale: Buffer, at: Sequence[Dim], a: Attrs) -> Load:
    if not scale.shape:
        return scale[()]
    if a.block_size:
        return Load(scale, (*at[: a.axis], floordiv(at[a.axis], a.block_size), *at[a.axis + 1 :]))
    return scale[at[a.axis]]


# --- quantize_linear ------------------------------------------------------------------------------------------------


def _infer_quantize(ts: Types, a: Attrs) -> TensorType:
    x, scale, zero_point = ts
    check_dtype(x, types.FLOATS, "x")
    if scale.dtype is not x.dtype:
        raise OpError(f"the scale {scale} must have the dtype of x, {x.dtype}", remedy="insert a cast")
    if a.dtype not in QUANTISED or zero_point.dtype is not a.dtype:
        raise OpError(f"the zero point {zero_point} must have the result's dtype, {a.dtype}, an 8- or 16-bit integer")
    _check_scale(x, scale, zero_point, a)
    return x.with_dtype(a.dtype)


def _ref_quantize(xs: Sequence[Array], a: Attrs) -> Array:
    x, scale, zero_point = xs
    real = wide(types.dtype_of(x.dtype)).numpy
    with np.errstate(all="ignore"):
        steps = np.rint(x.astype(real) / _spread(scale, x.shape, a).astype(real))
        return convert(np.asarray(steps + _spread(zero_point, x.shape, a).astype(real), real), a.dtype)


def _quantize_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    x, scale, zero_point = ins
    real = wide(x.dtype)

    def element(at: Sequence[Dim]) -> Value:
        number, step = cast_to(Load(x, tuple(at)), real), cast_to(_load_spread(scale, at, a), real)
        steps = Unary("rint", Binary("div", number, step))
        return Cast(Binary("add", steps, Cast(_load_spread(zero_point, at, a), real)), a.dtype)

    return assign(outs[0], element)


def _quantize_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = (rng.standard_normal((3, 4)) * 50).astype(np.float32)
    x.flat[:3] = [1e9, -1e9, 2.5]
    one = np.array(1, np.float32)
    yield Sample((x, one, np.array(3, np.int8)), {"dtype": types.i8})
    yield Sample((x, np.asarray(one / 7), np.array(128, np.uint8)), {"dtype": types.u8})
    steps = rng.uniform(0.1, 2, 4).astype(np.float32)
    yield Sample((x, steps, np.arange(4, dtype=np.uint16)), {"dtype": types.u16, "axis": 1})
    yield Sample((x, steps[:3], np.zeros(3, np.int16)), {"dtype": types.i16, "axis": 0})
    blocks = rng.uniform(0.1, 2, (3, 2)).astype(np.float32)
    yield Sample((x, blocks, np.ones((3, 2), np.int8)), {"dtype": types.i8, "axis": 1, "block_size": 3})
    yield Sample((x[:0], one, np.array(0, np.int8)), {"dtype": types.i8})


quantize_linear = OpDef(
    "quantize_linear",
    ("x", "scale", "zero_point"),
    {"axis": AttrDef("int", 1), "dtype": AttrDef("dtype"), "block_size": AttrDef("int", 0)},
    _infer_quantize,
    _ref_quantize,
    compute=_quantize_compute,
    samples=_quantize_samples,
    doc="round(x / scale) + zero_point, rounded half to even and saturated to dtype.",
)

# --- dequantize_linear ----------------------------------------------------------------------------------------------


def _infer_dequantize(ts: Types, a: Attrs) -> TensorType:
    x, scale, zero_point = ts
    check_dtype(x, (*QUANTISED, types.i32), "x")
    if zero_point.dtype is not x.dtype:
        raise OpError(f"the zero point {zero_point} must have the dtype of x, {x.dtype}", remedy="insert a cast")
    _check_scale(x, scale, zero_point, a)
    return x.with_dtype(scale.dtype)


def _ref_dequantize(xs: Sequence[Array], a: Attrs) -> Array:
    x, scale, zero_point = xs
    dtype = types.dtype_of(scale.dtype)
    steps = x.astype(np.int32) - _spread(zero_point, x.shape, a).astype(np.int32)
    real = wide(dtype).numpy
    with np.errstate(all="ignore"):
        return narrowed(np.asarray(steps.astype(real) * _spread(scale, x.shape, a).astype(real)), dtype)


def _dequantize_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    x, scale, zero_point = ins
    real = wide(scale.dtype)

    def element(at: Sequence[Dim]) -> Value:
        stored, zero = Load(x, tuple(at)), _load_spread(zero_point, at, a)
        steps = Binary("sub", cast_to(stored, types.i32), cast_to(zero, types.i32))
        number = Binary("mul", Cast(steps, real), cast_to(_load_spread(scale, at, a), real))
        return cast_to(number, scale.dtype)

    return assign(outs[0], element)


def _dequantize_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.integers(-128, 128, (3, 4)).astype(np.int8)
    step = np.array(0.1, np.float32)
    yield Sample((x, step, np.array(3, np.int8)))
    yield Sample((x.view(np.uint8), step, np.array(200, np.uint8)))
    yield Sample((x.astype(np.int32) * 1000, step, np.array(0, np.int32)))
    steps = rng.uniform(0.1, 2, 4).astype(np.float32)
    yield Sample((x, steps, np.arange(4, dtype=np.int8)), {"axis": 1})
    yield Sample((x, steps[:2].reshape(1, 2).repeat(3, 0), np.ones((3, 2), np.int8)), {"axis": 1, "block_size": 3})
    yield Sample((x, step.astype(np.float16), np.array(0, np.int8)))
    yield Sample((x[:, :0], step, np.array(3, np.int8)))


dequantize_linear = OpDef(
    "dequantize_linear",
    ("x", "scale", "zero_point"),
    {"axis": AttrDef("int", 1), "block_size": AttrDef("int", 0)},
    _infer_dequantize,
    _ref_dequantize,
    compute=_dequantize_compute,
    samples=_dequantize_samples,
    doc="(x - zero_point) * scale in the scale's dtype.",
)

# --- rescale --------------------------------------------------------------------------------------------------------

POINT = 31
"""Where the binary point of a multiplier lies: it is a fraction between a half and 1, in steps of 2**-31."""


def _infer_rescale(ts: Types, a: Attrs) -> TensorType:
    x, multiplier, shift = ts
    for t, what in ((x, "x"), (multiplier, "the multiplier"), (shift, "the shift")):
        check_dtype(t, (types.i32,), what)
    check_same_dims(multiplier.shape, shift.shape, "multiplier and shift")
    if multiplier.rank:
        check_axis(a.axis, x.rank)
        check_same_dims(multiplier.shape, (x.shape[a.axis],), "the multiplier and what x asks for")
    return x


def _ref_rescale(xs: Sequence[Array], a: Attrs) -> Array:
    x, multiplier, shift = (v.astype(np.int64) for v in xs)
    along = [-1 if multiplier.ndim and k == a.axis else 1 for k in range(x.ndim)]
    factor, steps = multiplier.reshape(along), shift.reshape(along)
    right = np.maximum(-steps, 0)
    shifted = (x << np.clip(steps, 0, 32)).astype(np.int32).astype(np.int64)
    high = (shifted * factor + (1 << (POINT - 1))) >> POINT
    away = np.where(high < 0, np.minimum(right, 1), 0)  # halves of negative numbers go down
    return np.asarray(((high + ((1 << right) >> 1) - away) >> right).astype(np.int32))


def _rescale_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    x, multiplier, shift = ins
    zero, one = Const(0, types.i64), Const(1, types.i64)

    def number(buffer: Buffer, at: Sequence[Dim]) -> Value:
        return Load(buffer, (at[a.axis],) if buffer.shape else ())

    def high_of(shifted: Value, at: Sequence[Dim]) -> Value:
        product = Cast(shifted, types.i64) * Cast(number(multiplier, at), types.i64)
        return Binary("shr", product + Const(1 << (POINT - 1), types.i64), Const(POINT, types.i64))

    def lowered(at: Sequence[Dim]) -> Value:
        """Halving once more what is a bit short rounds it; one less than a negative number makes its halves go down."""
        high = Cast(high_of(Load(x, tuple(at)), at), types.i32)
        less = high + Binary("shr", high, Const(POINT, types.i32))
        short = Binary("shr", less, Unary("not", number(shift, at)))
        return Binary("shr", short + Const(1, types.i32), Const(1, types.i32))

    def element(at: Sequence[Dim]) -> Value:
        steps = number(shift, at)
        right = Binary("max", -Cast(steps, types.i64), zero)
        shifted = Binary("shl", Load(x, tuple(at)), Binary("max", steps, Const(0, types.i32)))
        high = high_of(shifted, at)
        half = Binary("shr", Binary("shl", one, right), one)
        away = Binary("and", Binary("shr", high, Const(63, types.i64)), Binary("min", right, one))
        return Cast(Binary("shr", high + half - away, right), types.i32)

    return assign(outs[0], lowered if a.lowers else element)


def _rescale_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.integers(-(2**24), 2**24, (3, 4)).astype(np.int32)
    x.flat[:6] = [0, 1, -1, 2**24, -(2**24), 3]

    def numbers(*values: int) -> Array:
        return np.array(values, np.int32)

    half = np.array(1 << 30, np.int32)
    yield Sample((x, half, np.array(-5, np.int32)))  # halves in plenty
    yield Sample((x, np.array(1518500250, np.int32), np.array(0, np.int32)))
    yield Sample((x, np.array(2**31 - 1, np.int32), np.array(3, np.int32)))
    yield Sample((x, half, np.array(-31, np.int32)))
    yield Sample((x, numbers(1 << 30, 1500000001, 2**31 - 1, 1 << 30), numbers(10, 30, 31, 32)), {"axis": 1})  # wraps
    yield Sample((x, numbers(0, 1 << 30, 1500000001, 2**31 - 1), numbers(0, -7, -1, 2)), {"axis": 1})
    yield Sample((x, numbers(1 << 30, 1600000000, 1 << 30), numbers(0, 1, -2)), {"axis": 0})
    yield Sample((x[:0], half, np.array(-1, np.int32)))
    ends = np.array([[2**31 - 1, -(2**31), 2**31 - 1, -(2**31)], [-1, 1, 3, -3], [5, -5, 2**30, 0]], np.int32)
    yield Sample((ends, numbers(2**31 - 1, 2**31 - 1, 1 << 30, 1 << 30), numbers(-1, -31, -1, -2)),
                 {"axis": 1, "lowers": True})  # fmt: skip
    yield Sample((x, half, np.array(-5, np.int32)), {"lowers": True})


rescale = OpDef(
    "rescale",
    ("x", "multiplier", "shift"),
    {"axis": AttrDef("int", 0), "lowers": AttrDef("bool", False)},
    _infer_rescale,
    _ref_rescale,
    compute=_rescale_compute,
    samples=_rescale_samples,
    doc="x * multiplier / 2**31 * 2**shift as gemmlowp and TFLite round it: the product to a whole number, halves up, "
    "and that over 2**-shift to another, halves away from 0. A shift to the left comes first, and wraps to 32 bits. "
    "``lowers`` says that no multiplier and every shift is negative, which takes half the operations.",
)

# --- dynamic_quantize_linear ----------------------------------------------------------------------------------------


def _infer_dynamic(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_dtype(ts[0], (types.f32,), "x")
    if ts[0].n_elements == 0:
        raise OpError(f"{ts[0]} has no elements and so no range")
    return ts[0].with_dtype(types.u8), TensorType(types.f32, ()), TensorType(types.u8, ())


def _ref_dynamic(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    (x,) = xs
    zero, steps = np.float32(0), np.float32(255)
    lo, hi = np.minimum(x.min(), zero), np.maximum(x.max(), zero)
    scale = np.where(lo == hi, np.float32(1), (hi - lo) / steps).astype(np.float32)
    with np.errstate(all="ignore"):
        zero_point = convert(np.asarray(np.clip(np.rint(-lo / scale), zero, steps), np.float32), types.u8)
        y = convert(np.asarray(np.rint(x / scale) + zero_point.astype(np.float32)), types.u8)
    return y, scale, zero_point


def _decompose_dynamic(b: Builder, xs: tuple[Node, ...], a: Attrs) -> tuple[Node, ...]:
    (x,) = xs
    axes = tuple(range(len(x.shape)))
    zero, steps = b.const(0.0, types.f32), b.const(255.0, types.f32)
    lo = b(minimum, b(reduce_min, x, axes=axes, keepdims=False), zero)
    hi = b(maximum, b(reduce_max, x, axes=axes, keepdims=False), zero)
    scale = b(where, b(eq, lo, hi), b.const(1.0, types.f32), b(div, b(sub, hi, lo), steps))
    shift = b(clamp, b(round, b(div, b(neg, lo), scale)), zero, steps)
    zero_point = b(cast, shift, dtype=types.u8)
    return b(quantize_linear, x, scale, zero_point, dtype=types.u8), scale, zero_point


def _dynamic_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((3, 4)).astype(np.float32)
    for case in (x, np.abs(x), -np.abs(x), np.zeros_like(x), x[:1, :1]):
        yield Sample((case,))


dynamic_quantize_linear = OpDef(
    "dynamic_quantize_linear",
    ("x",),
    {},
    _infer_dynamic,
    _ref_dynamic,
    decompose=_decompose_dynamic,
    samples=_dynamic_samples,
    doc="x as u8 over the range of its elements and 0: (quantised, scale, zero point); the scale of all zeros is 1.",
)
