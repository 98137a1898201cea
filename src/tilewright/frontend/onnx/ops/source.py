"""Converters of ONNX ops that make tensors: constants, shapes, ranges, identity matrices, random numbers.

In: a ``Call``. Out: nodes of the graph IR. Not its business: initializers (``onnx.walk``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

from tilewright import ops
from tilewright.core import expr
from tilewright.core.dims import known_under
from tilewright.core.expr import Dim, Expr
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, dtype_of, f32, f64, i64, product, u64
from tilewright.frontend.onnx.call import Call, Converter, Table


def _constant(c: Call) -> Node:
    forms = ("value", "sparse_value", "value_int", "value_ints", "value_float", "value_floats")
    given = [name for name in forms if c.has(name)]
    if len(given) != 1:
        c.refuse("must have exactly one of " + ", ".join(forms), "string constants are not supported")
    name = given[0]
    if name == "value_int":
        return c.const(c.int_(name), i64)
    if name == "value_float":
        return c.const(c.float_(name), f32)
    if name == "value_ints":
        return c.array(np.array(c.ints(name), np.int64))
    if name == "value_floats":
        return c.array(np.array(c.floats(name), np.float32))
    array = c.tensor(name)
    if array is None:
        c.refuse(f"attribute {name} has no tensor")
    return c.array(array)


def _constant_of_shape(c: Call) -> Node:
    shape = c.sizes(c.x(0), "the shape")
    if any(known_under(d, 0) for d in shape):
        c.refuse(f"shape {shape} has a negative dimension")
    value = c.tensor("value")
    if value is None:
        value = np.zeros(1, np.float32)
    if value.size != 1:
        c.refuse(f"attribute value must have one element, not {value.size}")
    dtype = dtype_of(value.dtype)
    return c.full(value.reshape(())[()], dtype, shape)


def _shape(c: Call) -> Node:
    shape = c.x(0).shape
    start, stop = 0, len(shape)
    if c.opset >= 15:
        start, stop = (max(min(v + len(shape) if v < 0 else v, len(shape)), 0) for v in _bounds(c, len(shape)))
    return c.dim_values(shape[start:stop])


def _bounds(c: Call, rank: int) -> tuple[int, int]:
    return c.int_("start", 0), c.int_("end", rank)


def _size(c: Call) -> Node:
    return c.dim_value(product(c.x(0).shape))


def _range(c: Call) -> Node:
    """start, start + delta, ...; the count must be known, the start may depend on the data."""
    c.ignore("stash_type")
    start, limit, delta = (c.reshape(c.x(i), ()) for i in range(3))
    count = _range_count(c, start, limit, delta)
    wide = f64 if start.dtype.is_float and c.emitter.values(start) is not None else start.dtype
    steps = c(ops.iota, extent=count, dtype=start.dtype if wide is not f64 else i64)
    scaled = c(ops.mul, c.cast(steps, wide), c.cast(delta, wide))
    return c.cast(c(ops.add, scaled, c.cast(start, wide)), start.dtype)


def _range_count(c: Call, start: Node, limit: Node, delta: Node) -> Dim:
    operands = ((start, "start"), (limit, "limit"), (delta, "delta"))
    unknown = [(n, what) for n, what in operands if c.emitter.values(n) is None]
    for n, what in unknown:
        c.decided(n, what)
    if unknown:
        return c.size(_counted(c, start, limit, delta), "the number of elements")
    if start.dtype.is_integer:
        d = c.ints_of(delta, "delta")[0]
        (a,), (b,) = c.dims(start, "start"), c.dims(limit, "limit")
        if d == 0:
            c.refuse("delta is zero")
        return expr.maximum(expr.ceildiv(b - a, d) if d > 0 else expr.ceildiv(a - b, -d), 0)
    found = [c.known(n, what).flat[0] for n, what in ((start, "start"), (limit, "limit"), (delta, "delta"))]
    limit_value = found[1]
    if found[0] == 0 and found[2] == 1 and isinstance(limit_value, Expr):
        return limit_value
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in found) or found[2] == 0:
        c.refuse("start, limit and delta must be finite numbers, delta not zero")
    n_steps = max(math.ceil((found[1] - found[0]) / found[2]), 0)
    if n_steps > 1 << 40:
        c.refuse(f"has {n_steps} elements")
    return int(n_steps)


def _counted(c: Call, start: Node, limit: Node, delta: Node) -> Node:
    """The number of steps, where data decide it."""
    if start.dtype.is_integer:
        first, step = c.emitter.values(start), c.emitter.values(delta)
        if step is not None and step.flat[0] == 1:
            if first is not None and first.flat[0] == 0:
                return limit
            return c(ops.sub, c.cast(limit, i64), c.cast(start, i64))
    a, b, d = (c.cast(n, f64) for n in (start, limit, delta))
    return c.cast(c(ops.ceil, c(ops.div, c(ops.sub, b, a), d)), i64)


def _eye_like(c: Call) -> Node:
    x = c.x(0)
    if len(x.shape) != 2:
        c.refuse(f"the operand must have rank 2, not {len(x.shape)}")
    dtype = c.dtype("dtype", x.dtype)
    n_rows, n_columns = x.shape
    row = c.reshape(c(ops.iota, extent=n_rows, dtype=i64), (n_rows, 1))
    column = c.reshape(c(ops.iota, extent=n_columns, dtype=i64), (1, n_columns))
    return c.cast(c(ops.eq, c(ops.add, row, c.const(c.int_("k", 0), i64)), column), dtype)


# --- random numbers: reproducible, from the node's seed or its place in the model -----------------------------------


def _state(c: Call) -> Node:
    seed = float(c.int_("seed", 0)) if c.op_type == "Dropout" else c.float_("seed", 0.0)
    bits = struct.unpack("<I", struct.pack("<f", seed))[0]
    place = sum(ord(ch) * 31**k % (1 << 32) for k, ch in enumerate(c.loc.text)) % (1 << 32)
    return c.const(np.array([bits, 0 if c.has("seed") else place], np.uint64), u64)


def _random(c: Call, op: OpDef, shape: Sequence[Dim], dtype: DType, scale: float, offset: float) -> Node:
    values = c.results(c(op, _state(c), shape=tuple(shape), dtype=dtype if dtype.is_float else f32))[0]
    scaled = c(ops.mul, values, c.const(scale, values.dtype))
    return c.cast(c(ops.add, scaled, c.const(offset, values.dtype)), dtype)


def uniform(c: Call, shape: Sequence[Dim], dtype: DType, scale: float, offset: float) -> Node:
    """Numbers from ``offset`` to ``offset + scale``, all as likely, by the node's seed."""
    return _random(c, ops.random_uniform, shape, dtype, scale, offset)


def _normal(like: bool) -> Converter:
    def convert(c: Call) -> Node:
        shape = c.x(0).shape if like else c.ints("shape")
        dtype = c.dtype("dtype", c.x(0).dtype if like else f32)
        return _random(c, ops.random_normal, shape, dtype, c.float_("scale", 1.0), c.float_("mean", 0.0))

    return convert


def _uniform(like: bool) -> Converter:
    def convert(c: Call) -> Node:
        shape = c.x(0).shape if like else c.ints("shape")
        dtype = c.dtype("dtype", c.x(0).dtype if like else f32)
        low, high = c.float_("low", 0.0), c.float_("high", 1.0)
        return uniform(c, shape, dtype, high - low, low)

    return convert


def _bernoulli(c: Call) -> Node:
    x = c.x(0)
    drawn = uniform(c, x.shape, x.dtype, 1.0, 0.0)
    return c.cast(c(ops.lt, drawn, x), c.dtype("dtype", x.dtype))


TABLE: Table = {
    "Bernoulli": _bernoulli,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "RandomNormal": _normal(like=False),
    "RandomNormalLike": _normal(like=True),
    "RandomUniform": _uniform(like=False),
    "RandomUniformLike": _uniform(like=True),
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
}
