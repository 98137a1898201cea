"""Narrow element types (float8, float6, float4, 4-bit and 2-bit integers): to and from types that are computed with.

In: operand types or arrays. Out: ``decode`` and ``encode``, by table and by bit arithmetic on f32.
Not its business: scales and zero points (``ops.quant``), storage in files (the frontends unpack to a byte each).

Decoding is exact: a table of 256 values. Encoding a float rounds to the nearest value, ties to even; what is too large
becomes the largest finite value with ``saturate``, else infinity where the type has one and NaN where it has not.
f8e8m0 holds powers of two: ``rounding`` says which one a number between two becomes. Integers take a float's whole part
and keep their lowest bits, as casts between integers do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, DType, TensorType
from tilewright.ops.elementwise import (
    abs as abs_,
)
from tilewright.ops.elementwise import (
    add,
    bitcast,
    bitwise_and,
    bitwise_or,
    cast,
    eq,
    ge,
    gt,
    isnan,
    logical_and,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    shift_left,
    shift_right,
    sub,
    where,
)
from tilewright.ops.elementwise import (
    round as round_,
)
from tilewright.ops.index import gather
from tilewright.ops.rules import Types

ROUNDINGS = ("nearest", "up", "down")


@dataclass(frozen=True)
class FloatFormat:
    """A float format: mantissa bits, exponent bias, the codes of infinity (0 of none) and NaN, whether -0 exists.

    Without NaN the code is that of what NaN becomes, and what is too large becomes the largest value.
    """

    mantissa: int
    bias: int
    infinity: int
    nan: int
    has_negative_zero: bool = True
    has_nan: bool = True


FORMATS = {
    types.f8e4m3fn: FloatFormat(3, 7, 0, 0x7F),
    types.f8e4m3fnuz: FloatFormat(3, 8, 0, 0x80, False),
    types.f8e5m2: FloatFormat(2, 15, 0x7C, 0x7E),
    types.f8e5m2fnuz: FloatFormat(2, 16, 0, 0x80, False),
    types.f8e4m3: FloatFormat(3, 7, 0x78, 0x7C),
    types.f8e3m4: FloatFormat(4, 3, 0x70, 0x78),
    types.f8e4m3b11fnuz: FloatFormat(3, 11, 0, 0x80, False),
    types.f6e2m3: FloatFormat(3, 1, 0, 0x20, has_nan=False),
    types.f6e3m2: FloatFormat(2, 3, 0, 0x20, has_nan=False),
    types.f4e2m1: FloatFormat(1, 1, 0, 0x08, has_nan=False),
}


def computed(dtype: DType) -> DType:
    """The type that a narrow one is decoded to: f32, or the 8-bit integer of its sign."""
    if dtype not in types.WHOLE:
        return types.f32
    return types.i8 if dtype in (types.i4, types.i2) else types.u8


# --- decode ---------------------------------------------------------------------------------------------------------


def _infer_decode(ts: Types, a: Attrs) -> TensorType:
    if not ts[0].dtype.is_narrow:
        raise OpError(f"x must be of a narrow type, not {ts[0].dtype}", remedy="use cast")
    return ts[0].with_dtype(computed(ts[0].dtype))


def _ref_decode(xs: Sequence[Array], a: Attrs) -> Array:
    return xs[0].astype(computed(types.dtype_of(xs[0].dtype)).numpy)


def _decompose_decode(b: Builder, xs: tuple[Node, ...], a: Attrs) -> Node:
    x = xs[0]
    table = np.arange(256, dtype=np.uint8).view(x.dtype.numpy).astype(computed(x.dtype).numpy)
    code = b(cast, b(bitcast, x, dtype=types.u8), dtype=types.i64)
    return b(gather, b.const(table), code, axis=0)


def _decode_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in types.NARROW:
        yield Sample((np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy),))
    yield Sample((np.zeros((0, 2), types.i4.numpy),))


decode = OpDef(
    "decode", ("x",), {}, _infer_decode, _ref_decode, decompose=_decompose_decode, samples=_decode_samples,
    doc="A narrow type's values as f32, or as i8 or u8 where it holds integers.",
)  # fmt: skip

# --- encode ---------------------------------------------------------------------------------------------------------


def _infer_encode(ts: Types, a: Attrs) -> TensorType:
    if not a.dtype.is_narrow:
        raise OpError(f"dtype must be narrow, not {a.dtype}", remedy="use cast")
    if a.rounding not in ROUNDINGS:
        raise OpError(f"rounding {a.rounding!r} is none of {', '.join(ROUNDINGS)}")
    wanted = (types.i32,) if a.dtype in types.WHOLE else (types.f32,)
    if ts[0].dtype not in wanted:
        raise OpError(f"x must be of {wanted[0]} to become {a.dtype}, not {ts[0].dtype}", remedy="cast it")
    return ts[0].with_dtype(a.dtype)


def _ref_encode(xs: Sequence[Array], a: Attrs) -> Array:
    x, target = xs[0], a.dtype.numpy
    if a.dtype in types.WHOLE:
        return np.asarray((x & ((1 << a.dtype.bits) - 1)).astype(np.uint8).view(target))
    if a.dtype is types.f8e8m0:
        return _ref_powers(x, a)
    with np.errstate(all="ignore"):
        if a.saturate:
            x = np.clip(x, a.dtype.min, a.dtype.max)
        return np.asarray(x).astype(target)


def _ref_powers(x: Array, a: Attrs) -> Array:
    bits = np.asarray(x, np.float32).view(np.uint32)
    exponent, rest = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    if a.rounding == "nearest":
        up = (rest > 0x400000) | ((rest == 0x400000) & (exponent > 0))
    else:
        up = rest > 0 if a.rounding == "up" else np.zeros_like(rest, bool)
    if a.saturate:
        up &= exponent != 0xFE
    return np.where(exponent == 0xFF, 0xFF, exponent + up).astype(np.uint8).view(a.dtype.numpy)


def _decompose_encode(b: Builder, xs: tuple[Node, ...], a: Attrs) -> Node:
    if a.dtype in types.WHOLE:
        code = b(bitwise_and, xs[0], b.const((1 << a.dtype.bits) - 1, types.i32))
    elif a.dtype is types.f8e8m0:
        code = _power_code(b, xs[0], a)
    else:
        code = _float_code(b, xs[0], FORMATS[a.dtype], a)
    return b(bitcast, b(cast, code, dtype=types.u8), dtype=a.dtype)


def _power_code(b: Builder, x: Node, a: Attrs) -> Node:
    bits = b(bitcast, x, dtype=types.i32)
    exponent = _field(b, bits, 23, 0xFF)
    rest = b(bitwise_and, bits, _int(b, 0x7FFFFF))
    up = b(gt, rest, _int(b, 0 if a.rounding == "up" else 0x400000))
    if a.rounding == "nearest":
        tie = b(logical_and, b(eq, rest, _int(b, 0x400000)), b(gt, exponent, _int(b, 0)))
        up = b(where, tie, b.const(True, types.bool_), up)
    if a.rounding == "down":
        up = b(lt, rest, _int(b, 0))
    if a.saturate:
        up = b(logical_and, up, b(ne, exponent, _int(b, 0xFE)))
    step = b(where, up, _int(b, 1), _int(b, 0))
    return b(where, b(eq, exponent, _int(b, 0xFF)), exponent, b(add, exponent, step))


def _float_code(b: Builder, x: Node, f: FloatFormat, a: Attrs) -> Node:
    """Round the magnitude to a whole number of the spacing where it lies, then read the code off the f32 bits."""
    bits, size = b(bitcast, x, dtype=types.i32), b(abs_, x)
    least, top = 1 - f.bias, b.const(a.dtype.max, types.f32)
    exponent = b(sub, _field(b, b(bitcast, size, dtype=types.i32), 23, 0xFF), _int(b, 127))
    place = b(sub, b(minimum, b(maximum, exponent, _int(b, least)), _int(b, 100)), _int(b, f.mantissa))
    rounded = b(mul, b(round_, b(mul, size, _power(b, place, -1))), _power(b, place, 1))
    too_big = b(gt, rounded, top)
    rounded = b(minimum, rounded, top)
    normal = b(
        sub, _field(b, b(bitcast, rounded, dtype=types.i32), 23 - f.mantissa), _int(b, (127 - f.bias) << f.mantissa)
    )
    tiny = b(cast, b(mul, rounded, b.const(2.0 ** (f.mantissa - least), types.f32)), dtype=types.i32)
    code = b(where, b(ge, rounded, b.const(2.0**least, types.f32)), normal, tiny)
    if not a.saturate and f.has_nan:
        code = b(where, too_big, _int(b, f.infinity or f.nan & 0x7F), code)
    sign = b(shift_left, _field(b, bits, 31, 1), _int(b, a.dtype.bits - 1))
    signed = b(bitwise_or, code, sign)
    if not f.has_negative_zero:
        signed = b(where, b(eq, code, _int(b, 0)), _int(b, 0), signed)
        if not a.saturate:
            signed = b(where, too_big, _int(b, f.nan), signed)
    nan = b(bitwise_or, _int(b, f.nan), sign) if f.has_negative_zero and f.has_nan else _int(b, f.nan)
    return b(where, b(isnan, x), nan, signed)


def _int(b: Builder, n: int) -> Node:
    return b.const(n, types.i32)


def _field(b: Builder, bits: Node, shift: int, mask: int | None = None) -> Node:
    """Some bits of an i32, the sign bit not spread."""
    moved = b(shift_right, bits, _int(b, shift))
    return moved if mask is None else b(bitwise_and, moved, _int(b, mask))


def _power(b: Builder, exponent: Node, sign: int) -> Node:
    """2 to the power of a small integer, exactly."""
    biased = b(add, b(mul, exponent, _int(b, sign)), _int(b, 127))
    return b(bitcast, b(shift_left, biased, _int(b, 23)), dtype=types.f32)


EDGES = (
    0.0, -0.0, 1e-7, -1e-7, 0.0009, 0.002, -0.003, 0.0151, 0.0624, 0.25, 0.4789, 0.75, 1.25, -1.5, 1.75, 2.5, 3.5, 5.0,
    5.1, 7.0, -239.0, 240.0, 247.9, 250.0, 448.0, 463.9, 464.0, 480.0, 1e6, -1e6, 57344.0, 61439.0, 61440.0, 65536.0,
    3e38, -3e38, np.inf, -np.inf, np.nan,
)  # fmt: skip


def _encode_samples(rng: np.random.Generator) -> Iterator[Sample]:
    edges = np.array(EDGES, np.float32)
    for dtype in types.NARROW:
        if dtype in types.WHOLE:
            yield Sample((np.arange(-9, 17, dtype=np.int32),), {"dtype": dtype})
            continue
        for saturate in (True, False):
            for rounding in ROUNDINGS if dtype is types.f8e8m0 else ("nearest",):
                yield Sample((edges,), {"dtype": dtype, "saturate": saturate, "rounding": rounding})
    yield Sample((np.zeros((0, 2), np.float32),), {"dtype": types.f8e5m2})


encode = OpDef(
    "encode",
    ("x",),
    {"dtype": AttrDef("dtype"), "saturate": AttrDef("bool", True), "rounding": AttrDef("str", "nearest")},
    _infer_encode,
    _ref_encode,
    decompose=_decompose_encode,
    samples=_encode_samples,
    doc="f32 (i32 for integers) as a narrow type; see the module for rounding and what is too large.",
)
