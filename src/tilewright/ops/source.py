"""Ops that read nothing: ramps, sizes and filled tensors.

In: attributes, whose dimensions may be symbolic. Out: tensors. Not its business: constants (``core.graph.CONST``).
Operands (``homes``) are not read: they bring in symbols that only data decide, as ``with_sizes`` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Index, Inside, Select, Stage, Value
from tilewright.core.dims import known_under
from tilewright.core.expr import Dim
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import NUMERIC, assign, cast_to, check, check_dtype
from tilewright.ops.stages import index_value

ANYWHERE: frozenset[Trait] = frozenset()


def check_sizes(shape: Sequence[Dim]) -> None:
    """Raise ``OpError`` for a negative size."""
    check(not any(known_under(d, 0) for d in shape), lambda: f"the sizes {tuple(shape)} include a negative one")


def _infer_iota(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    result = TensorType(a.dtype, (a.extent,))
    check_dtype(result, NUMERIC, "the result")
    check_sizes((a.extent,))
    return result


def _compute_iota(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    return (assign(outs[0], lambda i: cast_to(Index(i[0]), a.dtype)),)


def _infer_full(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    check_sizes(a.shape)
    fits = a.dtype.is_float or a.value == int(a.value) if np.isfinite(a.value) else a.dtype.is_float
    check(
        fits and (a.dtype.is_float or a.dtype.min <= a.value <= a.dtype.max),
        lambda: f"{a.value} is not a value of {a.dtype}",
    )
    return TensorType(a.dtype, a.shape)


def _full_of(xs: Sequence[Array], a: Attrs) -> Array:
    value = a.value if a.dtype.is_float else int(a.value)
    with np.errstate(over="ignore"):
        return np.full(a.shape, np.asarray(value).astype(a.dtype.numpy))


def _compute_full(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    return (assign(outs[0], lambda i: Const(a.value, a.dtype)),)


def _compute_dim_values(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    def value(i: tuple[Dim, ...]) -> Value:
        result = index_value(a.dims[-1])
        for k in range(len(a.dims) - 2, -1, -1):
            result = Select(Inside((k - i[0],)), index_value(a.dims[k]), result)
        return result

    return (assign(outs[0], value),) if a.dims else ()


iota = OpDef(
    "iota", ("*homes",), {"extent": AttrDef("dim"), "dtype": AttrDef("dtype")}, _infer_iota,
    lambda xs, a: np.arange(a.extent).astype(a.dtype.numpy), _compute_iota, traits=ANYWHERE,
    samples=lambda rng: [Sample((), {"extent": n, "dtype": d}) for n, d in zip((0, 1, 5, 9) * 3, NUMERIC)],  # noqa: B905
    doc="0, 1, ... extent - 1.",
)  # fmt: skip
dim_values = OpDef(
    "dim_values", ("*homes",), {"dims": AttrDef("dims")}, lambda ts, a: TensorType(types.i64, (len(a.dims),)),
    lambda xs, a: np.array(a.dims, np.int64), _compute_dim_values, traits=ANYWHERE,
    samples=lambda rng: [Sample((), {"dims": d}) for d in ((3,), (1, 2, 3), (), (-1, 4))],
    doc="Dimensions as numbers: a symbolic shape as a tensor.",
)  # fmt: skip
full = OpDef(
    "full", ("*homes",), {"value": AttrDef("float"), "dtype": AttrDef("dtype"), "shape": AttrDef("dims")}, _infer_full,
    _full_of, _compute_full, traits=ANYWHERE,
    samples=lambda rng: [
        Sample((), {"value": 1.0, "dtype": d, "shape": s})
        for d, s in zip(types.DTYPES, ((2, 3), (), (0, 2)) * 5)  # noqa: B905
    ] + [Sample((), {"value": float("-inf"), "dtype": types.bf16, "shape": (2,)})],
    doc="One number everywhere.",
)  # fmt: skip
