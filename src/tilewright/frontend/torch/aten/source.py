"""ATen calls that make tensors from nothing: filled, counting, identity.

In: calls. Out: nodes. Not its business: random numbers (``torch.aten.random``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilewright import ops
from tilewright.core.expr import Expr
from tilewright.core.graph import Node
from tilewright.core.types import bool_, f64, i64
from tilewright.frontend.nodes import expand, reshape
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, as_node, cast

Convert = Callable[[AtenCall], Result]


def _filled(c: AtenCall, value: object) -> Node:
    if isinstance(value, bool | int | float) and not (isinstance(value, int) and abs(value) > 2**53):
        number = float(bool(value)) if c.dtype is bool_ else float(value)
        return c.b(ops.full, value=number, dtype=c.dtype, shape=c.shape)
    return expand(c.b, as_node(c.b, value, c.dtype), c.shape)


def _full(name: str) -> Convert:
    return lambda c: _filled(c, c[name])


def _constant(value: float) -> Convert:
    """A tensor of one value; uninitialised memory is zeros."""
    return lambda c: _filled(c, value)


def _arange(c: AtenCall) -> Node:
    """``start + i * step``, in f64 where the result is a float as PyTorch does."""
    start, step = c.args.get("start", 0), c.args.get("step", 1)
    if c.dtype.is_integer and start == 0 and step == 1:
        return c.b(ops.iota, extent=c.shape[0], dtype=c.dtype)
    wide = i64 if c.dtype.is_integer else f64
    x = c.b(ops.iota, extent=c.shape[0], dtype=wide)
    if step != 1:
        x = c.b(ops.mul, x, as_node(c.b, step, wide))
    if start != 0:
        x = c.b(ops.add, x, as_node(c.b, start, wide))
    return cast(c.b, x, c.dtype)


def _linspace(c: AtenCall) -> Node:
    """Counted from both ends, so that the last value is exact; the ends of a range of integers are integers."""
    n = c.shape[0]
    if isinstance(n, Expr):
        raise Unsupported("linspace with a symbolic number of steps", "use torch.arange")
    ends = (as_node(c.b, c[name], f64) for name in ("start", "end"))
    start, end = (c.b(ops.trunc, e) if c.dtype.is_integer else e for e in ends)
    i = c.b(ops.iota, extent=n, dtype=f64)
    step = c.b(ops.div, c.b(ops.sub, end, start), c.b.const(max(n - 1, 1), f64))
    rising = c.b(ops.add, start, c.b(ops.mul, i, step))
    falling = c.b(ops.sub, end, c.b(ops.mul, c.b(ops.sub, c.b.const(n - 1, f64), i), step))
    return cast(c.b, c.b(ops.where, c.b(ops.lt, i, c.b.const(n / 2, f64)), rising, falling), c.dtype)


def _eye(c: AtenCall) -> Node:
    rows, columns = (c.b(ops.iota, extent=d, dtype=i64) for d in c.shape)
    same = c.b(ops.eq, reshape(c.b, rows, (c.shape[0], 1)), columns)
    return cast(c.b, same, c.dtype)


def _tri_indices(upper: bool) -> Convert:
    """Rows and columns of a triangle's places, row by row."""
    indices = np.triu_indices if upper else np.tril_indices

    def convert(c: AtenCall) -> Node:
        places = indices(c.static("row"), c.static("offset"), c.static("col"))
        return c.b.const(np.stack(places).astype(c.dtype.numpy))

    return convert


_FULL = {
    "full.default": "fill_value", "full_like.default": "fill_value", "new_full.default": "fill_value",
    "fill.Scalar": "value", "fill.Tensor": "value",
}  # fmt: skip
_ZERO = (
    "zeros.default", "zeros_like.default", "new_zeros.default", "zero.default", "empty.memory_format",
    "empty_like.default", "new_empty.default", "empty_strided.default", "new_empty_strided.default",
    "empty_permuted.default",
)  # fmt: skip

TABLE: Mapping[str, Convert] = {
    **{name: _full(argument) for name, argument in _FULL.items()},
    **dict.fromkeys(_ZERO, _constant(0)),
    **dict.fromkeys(("ones.default", "ones_like.default", "new_ones.default"), _constant(1)),
    "arange.default": _arange, "arange.start": _arange, "arange.start_step": _arange,
    "linspace.default": _linspace, "linspace.Tensor_Tensor": _linspace, "linspace.Tensor_Scalar": _linspace,
    "linspace.Scalar_Tensor": _linspace, "eye.default": _eye, "eye.m": _eye,
    "tril_indices.default": _tri_indices(False), "triu_indices.default": _tri_indices(True),
}  # fmt: skip
