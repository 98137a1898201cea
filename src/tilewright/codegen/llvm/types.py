"""How element types are spelled in LLVM: in memory, and as values.

In: dtypes and lane counts. Out: type names and literals. Not its business: operations.

bool is ``i8`` in memory and ``i1`` as a value; f16 and bf16 are ``i16`` in memory and an exactly representable
``float`` as a value. Narrow types are bytes in both.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from tilewright.core import types
from tilewright.core.types import DType

_VALUE = {"bool": "i1", "f16": "float", "bf16": "float", "f32": "float", "f64": "double"}
_MEMORY = {"bool": "i8", "f16": "i16", "bf16": "i16", "f32": "float", "f64": "double"}
_MANGLED = {"float": "f32", "double": "f64", "half": "f16"}

_ALL = (*types.DTYPES, *types.NARROW, types.i7)
VALUE_TYPE: dict[DType, str] = {d: _VALUE.get(d.name, f"i{8 * d.n_bytes}") for d in _ALL}
MEMORY_TYPE: dict[DType, str] = {d: _MEMORY.get(d.name, f"i{8 * d.n_bytes}") for d in _ALL}


def vector(element: str, lanes: int) -> str:
    """``<lanes x element>``, or ``element`` for a scalar (0 lanes)."""
    return f"<{lanes} x {element}>" if lanes else element


def mangled(element: str, lanes: int) -> str:
    """The suffix of an intrinsic's name for the type."""
    name = _MANGLED.get(element, element)
    return f"v{lanes}{name}" if lanes else name


def literal(value: int | float | bool, dtype: DType) -> str:
    """A constant's text as a value of ``dtype``."""
    if dtype is types.bool_:
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    if dtype.is_narrow:
        return str(int(np.asarray(value).astype(dtype.numpy).view(np.uint8)))
    return float_literal(_rounded(float(value), dtype))


def float_literal(value: float) -> str:
    """LLVM's exact form: the bits of the double."""
    if math.isnan(value):
        value = math.copysign(math.nan, value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _rounded(value: float, dtype: DType) -> float:
    if dtype is types.f64:
        return value
    with np.errstate(all="ignore"):
        return float(np.asarray(value, np.float64).astype(dtype.numpy).astype(np.float64))
