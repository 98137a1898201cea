"""Element types and tensor types: the only place where a dtype's facts are written down.

In: names and shapes. Out: interned ``DType`` singletons and frozen ``TensorType`` values.
Not its business: what an op does with a dtype (``ops``), or how a target holds it (``codegen``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.core.diag import OptionError
from tilewright.core.expr import Dim, Sym, is_nonneg, parse, to_text

Kind = Literal["bool", "int", "uint", "float", "narrow"]
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class DType:
    """One element type. Compare with ``is``; there is exactly one object per type.

    ``bits`` is the logical width; ``n_bytes`` the size of one element in memory (bool takes one byte). A ``narrow``
    type is stored and moved, a byte for each element; to compute, ops ``decode`` and ``encode`` it.
    """

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any]

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *shape: int | str) -> TensorType:
        """The type of tensors of it: ``f32("n", 3)``; a text is an expression of sizes, each 1 or more.

        ``OptionError`` for what is no size.
        """
        return TensorType(self, tuple(_dim_of(d) for d in shape))

    @property
    def n_bytes(self) -> int:
        return max(self.bits // 8, 1)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers; bool is not an integer."""
        return self.kind in ("int", "uint")

    @property
    def is_narrow(self) -> bool:
        """True for types of at most 8 bits that are no type of a machine's arithmetic."""
        return self.kind == "narrow"

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    @property
    def min(self) -> int | float:
        """The lowest finite value."""
        if self.kind == "bool":
            return 0
        if self.is_narrow:
            return float(_limits(self).min)
        if self.is_float:
            return float(ml_dtypes.finfo(self.numpy).min)
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def max(self) -> int | float:
        """The highest finite value."""
        if self.kind == "bool":
            return 1
        if self.is_narrow:
            return float(_limits(self).max)
        return float(ml_dtypes.finfo(self.numpy).max) if self.is_float else (1 << (self.bits - self.is_signed)) - 1


def _dim_of(d: object) -> Dim:
    found: Dim | None = None
    if isinstance(d, str):
        with suppress(ValueError):
            found = parse(d, lambda name: Sym(name, 1))
    elif isinstance(d, Integral) and not isinstance(d, bool):
        found = int(d)
    if found is None or is_nonneg(-1 - found):
        remedy = "give an integer that is not negative, or a text such as 'n' or '2*n + 1'"
        raise OptionError(f"{d!r} is no size", remedy=remedy)
    return found


def _limits(dtype: DType) -> Any:
    return (ml_dtypes.iinfo if dtype.name in ("i4", "u4", "i2", "u2") else ml_dtypes.finfo)(dtype.numpy)


bool_ = DType("bool", "bool", 1, np.dtype(np.bool_))
i8 = DType("i8", "int", 8, np.dtype(np.int8))
i16 = DType("i16", "int", 16, np.dtype(np.int16))
i32 = DType("i32", "int", 32, np.dtype(np.int32))
i64 = DType("i64", "int", 64, np.dtype(np.int64))
u8 = DType("u8", "uint", 8, np.dtype(np.uint8))
u16 = DType("u16", "uint", 16, np.dtype(np.uint16))
u32 = DType("u32", "uint", 32, np.dtype(np.uint32))
u64 = DType("u64", "uint", 64, np.dtype(np.uint64))
f16 = DType("f16", "float", 16, np.dtype(np.float16))
bf16 = DType("bf16", "float", 16, np.dtype(ml_dtypes.bfloat16))
f32 = DType("f32", "float", 32, np.dtype(np.float32))
f64 = DType("f64", "float", 64, np.dtype(np.float64))

DTYPES: tuple[DType, ...] = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)
NARROW: tuple[DType, ...] = tuple(
    DType(name, "narrow", bits, np.dtype(numpy_type))
    for name, bits, numpy_type in (
        ("f8e4m3fn", 8, ml_dtypes.float8_e4m3fn), ("f8e4m3fnuz", 8, ml_dtypes.float8_e4m3fnuz),
        ("f8e5m2", 8, ml_dtypes.float8_e5m2), ("f8e5m2fnuz", 8, ml_dtypes.float8_e5m2fnuz),
        ("f8e4m3", 8, ml_dtypes.float8_e4m3), ("f8e3m4", 8, ml_dtypes.float8_e3m4),
        ("f8e4m3b11fnuz", 8, ml_dtypes.float8_e4m3b11fnuz), ("f8e8m0", 8, ml_dtypes.float8_e8m0fnu),
        ("f6e2m3", 6, ml_dtypes.float6_e2m3fn), ("f6e3m2", 6, ml_dtypes.float6_e3m2fn),
        ("f4e2m1", 4, ml_dtypes.float4_e2m1fn),
        ("i4", 4, ml_dtypes.int4), ("u4", 4, ml_dtypes.uint4), ("i2", 2, ml_dtypes.int2), ("u2", 2, ml_dtypes.uint2),
    )
)  # fmt: skip
f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e4m3, f8e3m4, f8e4m3b11fnuz, f8e8m0, *_SIX_OR_FEWER_BITS = NARROW
f6e2m3, f6e3m2, f4e2m1, i4, u4, i2, u2 = _SIX_OR_FEWER_BITS
WHOLE = (i4, u4, i2, u2)
"""Narrow integers."""
INTS: tuple[DType, ...] = tuple(d for d in DTYPES if d.is_integer)
FLOATS: tuple[DType, ...] = tuple(d for d in DTYPES if d.is_float)
i7 = DType("i7", "int", 7, np.dtype(np.int8))
"""A byte that is known to hold 7 bits. Only buffers of kernels have it, of constants; tensors are of i8."""
_BY_NAME = {d.name: d for d in (*DTYPES, *NARROW, i7)}
_BY_NUMPY = {d.numpy: d for d in (*DTYPES, *NARROW)}


def dtype_named(name: str) -> DType:
    """The dtype called ``name``; ``KeyError`` when there is none."""
    return _BY_NAME[name]


def dtype_of(array_dtype: npt.DTypeLike) -> DType:
    """The dtype of a NumPy dtype; ``KeyError`` for one that tensors can't hold."""
    return _BY_NUMPY[np.dtype(array_dtype).newbyteorder("=")]


@dataclass(frozen=True)
class TensorType:
    """A dense row-major tensor: element type and shape; a dimension is an ``int`` or a symbolic ``Expr``."""

    dtype: DType
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(to_text(d) for d in self.shape)}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @property
    def n_elements(self) -> Dim:
        return product(self.shape)

    @property
    def n_bytes(self) -> Dim:
        return self.n_elements * self.dtype.n_bytes

    def with_shape(self, shape: Sequence[Dim]) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)


def product(dims: Sequence[Dim]) -> Dim:
    """The product of dimensions; 1 for none."""
    result: Dim = 1
    for d in dims:
        result = result * d
    return result


def tensor_type_of(array: Array) -> TensorType:
    """The type of a NumPy array."""
    return TensorType(dtype_of(array.dtype), tuple(int(d) for d in array.shape))
