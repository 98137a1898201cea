"""Converters of ``quantized_decomposed`` overloads, the form in which PyTorch 2 exports a quantised module (PT2E), and
of ``fake_quantize``, by which a module is trained for it.

In: an ``AtenCall``. Out: nodes of the graph IR, with the bits that PyTorch computes.
Not its business: products of what is dequantised (``graph.forms.integers``).

PyTorch multiplies by the reciprocal of a scale, rounded to the scale's type, where ONNX divides; so quantising is
arithmetic here and no ``quantize_linear``. The reciprocal of a scale that is a Python number is rounded from f64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import DType, f32, f64, i64, u8
from tilewright.frontend.nodes import reshape
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, dtype_from_torch, norm_axis
from tilewright.ops.quant import QUANTISED

EPSILON = float(np.finfo(np.float32).eps)
"""The least scale that PyTorch chooses for a row."""
LEAST_OF_ROW = 1e-5
"""The least greatest magnitude of a row that PyTorch takes for one with a sign."""


def _number(c: AtenCall, name: str, dtype: DType) -> Node:
    """A scale or zero point that stands for a whole tensor, 0-d: a Python number, or a tensor of one element."""
    return reshape(c.b, c.tensor(name, dtype), ())


def _limits(c: AtenCall, dtype: DType) -> tuple[Node, Node]:
    return _number(c, "quant_min", dtype), _number(c, "quant_max", dtype)


def _by_channel(c: AtenCall, p: Node, rank: int) -> Node:
    """A number for each channel in a shape that broadcasts with the operand."""
    axis = norm_axis(c["axis"], rank)
    return reshape(c.b, p, (*[1] * axis, p.shape[0], *[1] * (rank - axis - 1)))


def _in_steps(c: AtenCall, x: Node, inverse: Node, zero: Node) -> Node:
    """``clamp(round(x * inverse) + zero)`` in the type of ``inverse``, as integers."""
    b, real = c.b, inverse.dtype
    steps = b(ops.round, b(ops.mul, x if x.dtype is real else b(ops.cast, x, dtype=real), inverse))
    return _clamped(c, b(ops.add, steps, zero))


def _clamped(c: AtenCall, steps: Node) -> Node:
    kept = c.b(ops.clamp, steps, *_limits(c, steps.dtype))
    return c.b(ops.cast, kept, dtype=dtype_from_torch(c["dtype"]))


def _quantize_per_tensor(c: AtenCall) -> Node:
    one = c.b.const(1.0, f64)
    inverse = c.b(ops.cast, c.b(ops.div, one, _number(c, "scale", f64)), dtype=f32)
    return _in_steps(c, c.tensor("input", f32), inverse, _number(c, "zero_point", f32))


def _quantize_per_channel(c: AtenCall) -> Node:
    x, scales = c.tensor("input", f32), c.tensor("scales")
    inverse = c.b(ops.div, c.b.const(1.0, scales.dtype), scales)
    zeros = c.tensor("zero_points", scales.dtype)
    return _in_steps(c, x, *(_by_channel(c, p, x.type.rank) for p in (inverse, zeros)))


def _quantize_per_token(c: AtenCall) -> Node:
    """Rounded after the zero point is added, unlike the other forms."""
    b, scales = c.b, c.tensor("scales")
    inverse = b(ops.div, b.const(1.0, scales.dtype), scales)
    steps = b(ops.mul, c.tensor("input", scales.dtype), inverse)
    return _clamped(c, b(ops.round, b(ops.add, steps, c.tensor("zero_points", scales.dtype))))


def _dequantize_per_tensor(c: AtenCall) -> Node:
    x, zero = c.tensor("input"), _number(c, "zero_point", i64)
    scale = _number(c, "scale", f32)
    if c.dtype is f32 and x.dtype in QUANTISED and _has_zero(c, x.dtype):
        return c.b(ops.dequantize_linear, x, scale, c.b(ops.cast, zero, dtype=x.dtype), axis=0)
    real = c.dtype
    apart = c.b(ops.sub, c.b(ops.cast, x, dtype=real), c.b(ops.cast, zero, dtype=real))
    return c.b(ops.mul, apart, c.b(ops.cast, scale, dtype=real))


def _has_zero(c: AtenCall, dtype: DType) -> bool:
    """Can the type hold the zero point? One that the call computes is chosen within the type's limits."""
    zero = c["zero_point"]
    return not isinstance(zero, int) or bool(dtype.min <= zero <= dtype.max)


def _dequantize_per_channel(c: AtenCall) -> Node:
    b, x, scales, zeros = c.b, c.tensor("input"), c.tensor("scales"), c.optional("zero_points", i64)
    rank = x.type.rank
    if scales.dtype is f32 and c.dtype is f32 and x.dtype in QUANTISED:
        point = b(ops.full, value=0, dtype=x.dtype, shape=scales.shape) if zeros is None else b(
            ops.cast, zeros, dtype=x.dtype
        )  # fmt: skip
        return b(ops.dequantize_linear, x, scales, point, axis=norm_axis(c["axis"], rank))
    apart = b(ops.cast, x, dtype=i64)
    if zeros is not None:
        apart = b(ops.sub, apart, _by_channel(c, zeros, rank))
    y = b(ops.mul, b(ops.cast, apart, dtype=scales.dtype), _by_channel(c, scales, rank))
    return b(ops.cast, y, dtype=c.dtype)


def _dequantize_per_token(c: AtenCall) -> Node:
    b, scales = c.b, c.tensor("scales")
    apart = b(ops.sub, c.tensor("input", scales.dtype), c.tensor("zero_points", scales.dtype))
    return b(ops.cast, b(ops.mul, apart, scales), dtype=c.dtype)


# --- quantised and back in one call ---------------------------------------------------------------------------------


def _fake(c: AtenCall, scale: Node, zero: Node, of: DType, most_steps: float = np.inf) -> list[Node]:
    """The nearest number that the type has, and whether that lies within the limits: what a gradient passes.

    The last product is rounded to ``of``. NaN becomes the least number, as in PyTorch, and so does every count of
    ``most_steps`` and beyond.
    """
    b, x = c.b, c.tensor("self")
    real = f64 if x.dtype is f64 else f32
    inverse = b(ops.cast, b(ops.div, b.const(1.0, f32), scale), dtype=real)
    least, most = _limits(c, real)
    steps = b(ops.round, b(ops.mul, b(ops.cast, x, dtype=real), inverse))
    steps = b(ops.add, b(ops.cast, zero, dtype=real), steps)
    is_within = b(ops.logical_and, b(ops.ge, steps, least), b(ops.le, steps, most))
    is_number = b(ops.le if most_steps == np.inf else ops.lt, b(ops.abs, steps), b.const(most_steps, real))
    kept = b(ops.clamp, b(ops.where, is_number, steps, least), least, most)
    value = b(
        ops.mul, b(ops.sub, b(ops.cast, kept, dtype=of), b(ops.cast, zero, dtype=of)), b(ops.cast, scale, dtype=of)
    )
    return [b(ops.cast, value, dtype=c.dtype), is_within]


def _fake_per_tensor(c: AtenCall) -> list[Node]:
    return _fake(c, _number(c, "scale", f32), _number(c, "zero_point", f32), f32)


def _fake_where_enabled(c: AtenCall) -> list[Node]:
    """As it is, and all within the limits, where ``fake_quant_enabled`` is 0."""
    b = c.b
    value, is_within = _fake_per_tensor(c)
    enabled = b(ops.ne, _number(c, "fake_quant_enabled", i64), b.const(0, i64))
    return [b(ops.where, enabled, value, c.tensor("self")), b(ops.logical_or, is_within, b(ops.logical_not, enabled))]


def _fake_per_channel(c: AtenCall) -> list[Node]:
    """PyTorch counts these steps as i64, where what is too large becomes the least number."""
    if c.tensor("zero_point").dtype.kind == "float":
        raise Unsupported("zero points that are no integers", "round them, and pass them as torch.int32")
    rank = c.tensor("self").type.rank
    scale, zero = (_by_channel(c, c.tensor(name, f32), rank) for name in ("scale", "zero_point"))
    return _fake(c, scale, zero, f64 if c.dtype is f64 else f32, most_steps=2.0**63)


# --- scales that the call chooses -----------------------------------------------------------------------------------


def _ends(c: AtenCall, axes: Sequence[int], keepdims: bool) -> tuple[Node, Node]:
    """The least and the greatest number, 0 among them."""
    x, zero = c.tensor("input", f32), c.b.const(0.0, f32)
    low = c.b(ops.reduce_min, x, axes=tuple(axes), keepdims=keepdims)
    high = c.b(ops.reduce_max, x, axes=tuple(axes), keepdims=keepdims)
    return c.b(ops.minimum, low, zero), c.b(ops.maximum, high, zero)


def _chosen(c: AtenCall, scale: Node, zero: Node) -> list[Node]:
    """Both as tensors of one element."""
    return [reshape(c.b, c.b(ops.cast, x, dtype=t), (1,)) for x, t in ((scale, f64), (zero, i64))]


def _choose_for_tensor(c: AtenCall) -> list[Node]:
    b = c.b
    low, high = _ends(c, range(c.tensor("input").type.rank), keepdims=False)
    least, most = int(c["quant_min"]), int(c["quant_max"])
    scale = b(ops.div, b(ops.sub, high, low), b.const(float(most - least), f32))
    scale = b(ops.maximum, scale, b.const(c["eps"], f32))
    zero = b(ops.sub, b.const(float(least), f32), b(ops.round, b(ops.div, low, scale)))
    return _chosen(c, scale, b(ops.clamp, zero, b.const(float(least), f32), b.const(float(most), f32)))


def _choose_symmetric(c: AtenCall) -> list[Node]:
    b = c.b
    low, high = _ends(c, range(c.tensor("input").type.rank), keepdims=False)
    half = (int(c["quant_max"]) - int(c["quant_min"])) / 2
    scale = b(ops.div, b(ops.maximum, b(ops.neg, low), high), b.const(half, f32))
    middle = 128.0 if dtype_from_torch(c["dtype"]) is u8 else 0.0
    return _chosen(c, b(ops.maximum, scale, b.const(c["eps"], f32)), b.const(middle, f32))


def _choose_for_rows(c: AtenCall) -> list[Node]:
    """A scale for each row of i8, with a zero point of 0; both in the types that PyTorch's own propagation says."""
    if dtype_from_torch(c["dtype"]) is u8:
        raise Unsupported("scales of rows of u8", "choose scales of rows for int8, as PyTorch does")
    b, x = c.b, c.tensor("input", f32)
    most = b(ops.reduce_max, b(ops.abs, x), axes=(x.type.rank - 1,), keepdims=True)
    scale = b(ops.div, b(ops.maximum, most, b.const(LEAST_OF_ROW, f32)), b.const(127.0, f32))
    zero = b(ops.full, value=0.0, dtype=f32, shape=scale.shape)
    return [b(ops.cast, y, dtype=t.dtype) for y, t in zip((scale, zero), c.results, strict=True) if t is not None]


def _choose_for_rows_with_zero(c: AtenCall) -> list[Node]:
    """A scale and a zero point of i8 for each row: of the two ends, the one that rounds to less error decides."""
    b = c.b

    def number(x: float) -> Node:
        return b.const(x, f32)

    low, high = _ends(c, (c.tensor("input").type.rank - 1,), keepdims=True)
    scale = b(ops.maximum, b(ops.div, b(ops.sub, high, low), number(255.0)), number(EPSILON))
    low, high = b(ops.div, low, scale), b(ops.div, high, scale)
    errors = b(ops.add, b(ops.add, low, number(-128.0)), b(ops.add, high, number(127.0)))
    by_low, by_high = b(ops.sub, number(-128.0), low), b(ops.sub, number(127.0), high)
    zero = b(ops.where, b(ops.gt, errors, number(0.0)), by_low, by_high)
    zero = b(ops.round, b(ops.clamp, zero, number(-128.0), number(127.0)))
    return [b(ops.cast, scale, dtype=f64), b(ops.cast, zero, dtype=i64)]


def _overloads(
    name: str, convert: Callable[[AtenCall], Result], *kinds: str
) -> dict[str, Callable[[AtenCall], Result]]:
    return {f"quantized_decomposed.{name}.{kind}": convert for kind in kinds}


TABLE: Mapping[str, Callable[[AtenCall], Result]] = {
    **_overloads("quantize_per_tensor", _quantize_per_tensor, "default", "tensor", "tensor2"),
    **_overloads("dequantize_per_tensor", _dequantize_per_tensor, "default", "tensor", "tensor2"),
    **_overloads("quantize_per_channel", _quantize_per_channel, "default"),
    **_overloads("dequantize_per_channel", _dequantize_per_channel, "default"),
    **_overloads("quantize_per_token", _quantize_per_token, "default"),
    **_overloads("dequantize_per_token", _dequantize_per_token, "default"),
    "fake_quantize_per_tensor_affine_cachemask.default": _fake_per_tensor,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _fake_where_enabled,
    "fake_quantize_per_channel_affine_cachemask.default": _fake_per_channel,
    **_overloads("choose_qparams", _choose_for_tensor, "tensor"),
    **_overloads("choose_qparams_symmetric", _choose_symmetric, "tensor"),
    **_overloads("choose_qparams_per_token", _choose_for_rows, "default"),
    **_overloads("choose_qparams_per_token_asymmetric", _choose_for_rows_with_zero, "default"),
    **_overloads("_choose_qparams_per_token_asymmetric_impl", _choose_for_rows_with_zero, "default"),
}
