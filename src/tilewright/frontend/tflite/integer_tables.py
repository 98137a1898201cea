"""Functions of one quantised operand: a table with the code of each code; and the way into codes and out of them.

In: calls. Out: nodes. Not its business: how a table is looked up (``codes``).

Kernels of LiteRT compute some of these functions in floats when they are prepared, and some in fixed point in every
call. Either way a code decides its result, so 256 or 65,536 results, computed at import in the kernels' own
arithmetic, are all there is to know. Where LiteRT itself interpolates a table of 513 numbers, so does this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import erfc

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.frontend.tflite.call import Converter, TfliteCall
from tilewright.frontend.tflite.codes import CODES, coded, looked_up, nearest, of, rescaled, result
from tilewright.frontend.tflite.fixed_point import (
    SHORT,
    high_product,
    inverse_root,
    multiplier_of,
    rounded,
    shifted_down,
)
from tilewright.frontend.tflite.fixed_point import rescaled as rescaled_numbers

Function = Callable[[Array], Array]
STEPS = 512
"""Intervals of a table that is interpolated."""
PART_BITS = 7
"""Bits of a 16-bit code that lie within one of them."""


def _ratio(c: TfliteCall, times: float = 1.0) -> np.float32:
    """The operand's scale over the result's, in f32."""
    found = np.float32(of(c, 0).scale * np.float32(times) / result(c).scale)
    if not np.isfinite(found):
        raise OpError("a scale of 0 divides")
    return found


# --- tables of functions in floats ----------------------------------------------------------------------------------


def _in_floats(f: Function) -> Callable[[TfliteCall], Node]:
    """A function that LiteRT computes in f32 for each code of 8 bits, and interpolates for those of 16."""

    def convert(c: TfliteCall) -> Node:
        return looked_up(c, partial(_interpolated if c.x().dtype is types.i16 else _direct, c, f))

    return convert


def _direct(c: TfliteCall, f: Function, codes: Array) -> Array:
    q, made = of(c, 0), result(c)
    reals = f((q.scale * (codes - q.zero).astype(np.float32)).astype(np.float32))
    return _whole(rounded(reals * (np.float32(1) / made.scale)) + np.float32(made.zero))


def _whole(x: Array) -> Array:
    """Floats as whole numbers that 64 bits hold; what is no number becomes 0."""
    return np.asarray(np.clip(np.nan_to_num(x.astype(np.float64)), -(2.0**40), 2.0**40).astype(np.int64))


def _interpolated(c: TfliteCall, f: Function, codes: Array) -> Array:
    q, made = of(c, 0), result(c)
    return interpolate(sampled(f, q.scale, q.zero, made.scale, made.zero), codes)


def sampled(f: Function, scale: np.floating, zero: int, made_scale: np.floating, made_zero: int) -> Array:
    """513 numbers of ``f`` over all codes of 16 bits, moved by half of what a straight line misses in the middle.

    Arithmetic is that of the scales' type, f32 or f64.
    """
    real = type(scale)
    low, high = np.iinfo(np.int16).min, np.iinfo(np.int16).max
    first, last = scale * real(low - zero), scale * real(high - zero)
    step = (last - first) / real(STEPS)
    least, most = made_scale * real(low - made_zero), made_scale * real(high - made_zero)
    inverse = real(high - low + 1) / (most - least)
    at = np.arange(STEPS).astype(real)
    here, middle, then = (
        f(x) for x in (first + at * step, first + at * step + step / real(2), first + (at + real(1)) * step)
    )
    start = rounded(here * inverse)
    line = rounded((then * inverse + start) / real(2))
    bias = rounded((line - rounded(middle * inverse)) / real(2))
    end = rounded(f(np.array([last], real)) * inverse)
    return _whole(np.clip(np.concatenate([start - bias, end]), low, high))


def interpolate(table: Array, codes: Array) -> Array:
    """Between the two numbers of a table of 513 that are nearest to a code of 16 bits, halves up."""
    place, part = (STEPS // 2) + (codes >> PART_BITS), codes & ((1 << PART_BITS) - 1)
    slope = table[place + 1] - table[place]
    return np.asarray(table[place] + ((slope * part + (1 << (PART_BITS - 1))) >> PART_BITS))


def _exp(x: Array) -> Array:
    """In f32, rounded once, as the C library's is; NumPy's own in f32 is off by one place now and then."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(x.astype(np.float64)).astype(np.float32))


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.float32(1) / (np.float32(1) + _exp(-x)))


def _elu(x: Array) -> Array:
    return np.asarray(np.where(x < 0, np.expm1(x), x))


def _gelu(x: Array) -> Array:
    part = [np.float32(erfc(float(v * np.float32(-np.sqrt(0.5))))) for v in x]
    return np.asarray(np.float32(0.5) * x * np.array(part, np.float32))


def _gelu_by_tanh(x: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + np.tanh(inner)))


def _gelu_of(c: TfliteCall) -> Node:
    return _in_floats(_gelu_by_tanh if c.option("Approximate") else _gelu)(c)


def _log(c: TfliteCall) -> Node:
    """Of what has no logarithm, the least number that the result holds."""
    made = result(c)
    least = np.float32(np.float32(int(c.dtypes[0].min) - made.zero) * made.scale)
    return _in_floats(lambda x: np.where(x <= 0, least, np.log(np.maximum(x, np.float32(1e-38)))).astype(np.float32))(c)


def _sqrt(c: TfliteCall) -> Node:
    """Cut to whole steps; what has no root is an error there and 0 here."""
    q, made = of(c, 0), result(c)

    def root(codes: Array) -> Array:
        reals = np.sqrt(np.maximum(q.scale * (codes - q.zero).astype(np.float32), np.float32(0)))
        return _whole(np.trunc(reals / made.scale)) + made.zero

    return looked_up(c, root)


# --- tables of functions in fixed point -----------------------------------------------------------------------------


def _limited(low: float, high: float) -> Converter:
    """A rectifier; its limits are codes of the result."""

    def convert(c: TfliteCall) -> Node:
        q, made, dtype = of(c, 0), result(c), c.dtypes[0]
        least = made.code(low, dtype)
        most = int(dtype.max) if high == np.inf else made.code(high, dtype)
        factor = float(_ratio(c))
        return looked_up(c, lambda x: np.clip(rescaled_numbers(x - q.zero, factor) + made.zero, least, most))

    return convert


def _leaky_relu(c: TfliteCall) -> Node:
    q, made, alpha = of(c, 0), result(c), float(c.option("Alpha"))
    one, slope = float(_ratio(c)), float(_ratio(c, alpha))

    def leaky(codes: Array) -> Array:
        x = codes - q.zero
        below = np.sign(slope) * rescaled_numbers(x, abs(slope))
        return np.asarray(np.where(x >= 0, rescaled_numbers(x, one), below.astype(np.int64)) + made.zero)

    return looked_up(c, leaky)


def _abs(c: TfliteCall) -> Node:
    q, made, factor = of(c, 0), result(c), float(_ratio(c))
    if factor == 1:
        return looked_up(c, lambda x: np.abs(x - q.zero) + made.zero)
    return looked_up(c, lambda x: rescaled_numbers(np.abs(x - q.zero), factor) + made.zero)


def _rsqrt(c: TfliteCall) -> Node:
    """Of 8 bits; 0 becomes the greatest code, and so does what is below it, an error there."""
    q, made, most, digits = of(c, 0), result(c), int(c.dtypes[0].max), 20
    factor = float(1.0 / np.float64(np.sqrt(q.scale) * made.scale))
    multiplier, exponent = multiplier_of(factor)

    def scaled(x: int, by: int, exponent: int) -> int:
        high = high_product(np.asarray(np.int64(x) << max(exponent, 0)), by)
        return int(shifted_down(high, max(-exponent, 0)))

    def one(x: int) -> int:
        if x <= 0:
            return most
        root, shift = inverse_root(x)
        return scaled(scaled(1, root, shift + digits), multiplier, exponent - digits) + made.zero

    if c.x().dtype is types.i16:
        greatest = np.float32(np.iinfo(np.int16).max) * made.scale
        return looked_up(
            c, partial(_interpolated, c, lambda x: np.where(x <= 0, greatest, np.float32(1) / np.sqrt(np.abs(x))))
        )
    return looked_up(c, lambda codes: np.array([one(int(x)) for x in codes - q.zero]))


def _short(x: Array) -> Array:
    return np.asarray(np.clip(x, -(1 << SHORT), (1 << SHORT) - 1))


def _short_product(a: Array, b: Array | int) -> Array:
    """Of fractions in 16 bits, halves up."""
    nearest: Array = a * b + (1 << (SHORT - 1))
    return _short(nearest >> SHORT)


def _short_multiplier(real: np.float32) -> tuple[int, int]:
    multiplier, exponent = multiplier_of(float(real))
    most = (1 << SHORT) - 1
    return min((multiplier + (1 << SHORT)) >> (SHORT + 1), most), exponent


def _hard_swish(c: TfliteCall) -> Node:
    """``x * relu6(x + 3) / 6`` in fractions of 16 bits, 3 being 1."""
    q, made = of(c, 0), result(c)
    fine = np.float32(1 / 128) * q.scale
    out, out_exponent = _short_multiplier(fine / made.scale)
    inner, exponent = _short_multiplier(fine / np.float32(3 / 32768))
    if out_exponent > 0:
        raise OpError("the result's scale is too small for hard swish")

    def swish(codes: Array) -> Array:
        x = (codes - q.zero) << PART_BITS
        y = _short(x << max(exponent - 1, 0))
        y = _short_product(y, inner)
        y = _short(y << 1) if exponent > 0 else shifted_down(y, -exponent)
        part = (y + (1 << SHORT)) >> 1
        product = part * _short_product(x, out)
        cut = np.where(product < 0, -(-product >> SHORT), product >> SHORT)
        return shifted_down(cut, -out_exponent) + made.zero

    return looked_up(c, swish)


# --- sigmoid and hyperbolic tangent of 16 bits ----------------------------------------------------------------------

ONE_MORE = (
    4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39, 40, 41, 43, 44, 45, 46, 49,
    50, 54, 62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116, 135, 255,
)  # fmt: skip
"""Where LiteRT's table is one step above the number next to the sigmoid."""
SIGMOID = np.minimum(
    rounded(2.0**16 / (1 + np.exp(-np.arange(256) / 24))).astype(np.int64) + np.isin(np.arange(256), ONE_MORE),
    2**16 - 1,
)
"""The sigmoid at multiples of 1/24, up to 10.6, in 16 bits."""
CURVE_BITS = 9
"""Bits of an argument within one step of :data:`SIGMOID`; the tangent has one less, as its argument counts twice."""


def _curve(c: TfliteCall, f: Callable[[Array], Array]) -> Node:
    q, made = of(c, 0), result(c)
    if q.zero or made.zero or made.scale != np.float32(2.0**-SHORT):
        raise OpError("curves of 16 bits have zero points of 0 and a result in steps of 2**-15")
    multiplier, shift = _curve_multiplier(c, q.scale)

    def curve(codes: Array) -> Array:
        return f((codes * multiplier + ((1 << shift) >> 1)) >> shift)

    return looked_up(c, curve)


def _curve_multiplier(c: TfliteCall, scale: np.float32) -> tuple[int, int]:
    """What takes codes to steps of 1 / (3 * 4096) of the argument, as a multiplier and bits to leave out."""
    fraction, exponent = np.frexp(scale)
    left = 12 + int(exponent) - 1
    if fraction == 0.5 and left in ((0,) if c.name == "LOGISTIC" else (0, 1)):
        return 3 << left, 0
    multiplier, shift = float(scale) * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2 and shift <= 30:
        multiplier, shift = multiplier * 2, shift + 1
    return int(multiplier), shift


def _between(x: Array, bits: int, most: int) -> Array:
    """:data:`SIGMOID` between its numbers, in 16 and ``bits`` bits; ``most`` from the last on."""
    size = np.abs(x)
    at, part = size >> bits, size & ((1 << bits) - 1)
    first, second = SIGMOID[np.minimum(at, 254)], SIGMOID[np.minimum(at, 254) + 1]
    return np.asarray(np.where(at >= 255, most, (first << bits) + part * (second - first)))


def _sigmoid_curve(x: Array) -> Array:
    y, one = _between(x, CURVE_BITS, 0x7FFF << (CURVE_BITS + 1)), 1 << CURVE_BITS
    return np.asarray(np.where(x >= 0, y + one, (1 << (16 + CURVE_BITS)) - y + one - 1) >> (CURVE_BITS + 1))


def _tanh_curve(x: Array) -> Array:
    bits = CURVE_BITS - 1
    y, middle, half = _between(x, bits, 0xFFFF << bits), 1 << (14 + CURVE_BITS), 1 << (CURVE_BITS - 2)
    return np.asarray(np.where(x >= 0, y - middle + half, middle - y + half - 1) >> bits)


def _logistic(c: TfliteCall) -> Node:
    return _curve(c, _sigmoid_curve) if c.x().dtype is types.i16 else _in_floats(_sigmoid)(c)


def _tanh(c: TfliteCall) -> Node:
    return _curve(c, _tanh_curve) if c.x().dtype is types.i16 else _in_floats(np.tanh)(c)


# --- into codes and out of them -------------------------------------------------------------------------------------


def quantised(c: TfliteCall, x: Node) -> Node:
    """Floats as codes of the result: divided by the scale, halves away from 0."""
    made, dtype = result(c), c.dtypes[0]
    steps = c.b(ops.div, x, c.b.const(float(made.scale), types.f32))
    y = c.b(ops.add, nearest(c, steps), c.b.const(float(made.zero), types.f32))
    limits = (c.b.const(float(n), types.f32) for n in (dtype.min, dtype.max))
    return c.cast(c.b(ops.clamp, y, *limits), dtype)


def _quantize(c: TfliteCall) -> Node:
    """Of floats, or of codes with another scale."""
    x, made = c.x(), result(c)
    if x.dtype.is_float:
        return quantised(c, c.cast(x, types.f32))
    q = c.quantised[0]
    if q is None:
        raise OpError(f"codes of {x.dtype} have no scale", remedy="convert the model anew")
    factor = float(np.float64(q.scale) / np.float64(made.scale))
    if x.dtype in CODES:
        return looked_up(c, lambda codes: rescaled_numbers(codes - q.zero, factor) + made.zero)
    if x.dtype is not types.i32:
        raise OpError(f"codes of {x.dtype} are not quantised anew")
    less = c.b(ops.sub, x, c.b.const(q.zero, types.i32)) if q.zero else x
    return coded(c, rescaled(c, less, [factor]), (int(c.dtypes[0].min), int(c.dtypes[0].max)))


def dequantised(c: TfliteCall, k: int = 0) -> Node:
    """Codes as f32, of one scale or of one for each channel."""
    q, x = c.quantised[k], c.x(k)
    if q is None:
        raise OpError(f"codes of {x.dtype} have no scale", remedy="convert the model anew")
    scales, zeros = (v[0] if q.scales.size == 1 else v for v in (q.scales, np.broadcast_to(q.zeros, q.scales.shape)))
    zero = c.b.const(np.array(zeros, x.dtype.numpy))
    y = c.b(ops.dequantize_linear, x, c.b.const(np.array(scales, np.float32)), zero, axis=q.axis)
    return c.cast(y, c.dtypes[0])


TABLE: Mapping[str, Converter] = {
    "LOGISTIC": _logistic, "TANH": _tanh, "EXP": _in_floats(_exp), "ELU": _in_floats(_elu), "GELU": _gelu_of,
    "LOG": _log, "SQRT": _sqrt, "RSQRT": _rsqrt, "ABS": _abs, "RELU": _limited(0, np.inf), "RELU6": _limited(0, 6),
    "RELU_N1_TO_1": _limited(-1, 1), "RELU_0_TO_1": _limited(0, 1), "LEAKY_RELU": _leaky_relu,
    "HARD_SWISH": _hard_swish, "QUANTIZE": _quantize, "DEQUANTIZE": dequantised,
}  # fmt: skip
