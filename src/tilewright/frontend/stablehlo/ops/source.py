"""Operations that read nothing: constants and ramps.

In: calls. Out: nodes. Not its business: sizes as values (``movement``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import Array, bool_, i64
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result, ValueType, value_type

Convert = Callable[[Operation], Result]


def array_of(attribute: Any) -> Array:
    """The numbers of an elements attribute; complex ones as complex numbers."""
    t = value_type(attribute.type)
    shape, dtype = tuple(n for n in t.shape if n is not None), t.dtype.numpy
    if getattr(attribute, "is_splat", False):
        return np.full(shape, _splat(attribute), dtype)
    try:
        found = np.array(attribute)
    except (TypeError, ValueError, RuntimeError):  # elements that NumPy has no buffer of
        found = np.array(list(attribute))
    return np.asarray(found).astype(dtype).reshape(shape)


def _complex_array(text: str, t: ValueType) -> Array:
    """Complex numbers from a constant's text, pairs or the bytes of all; MLIR's bindings give them no other way."""
    dtype = np.complex128 if t.dtype.bits == 64 else np.complex64
    shape = tuple(n for n in t.shape if n is not None)
    if found := re.search(r'dense<"0x([0-9A-Fa-f]+)">', text):
        array = np.frombuffer(bytes.fromhex(found.group(1)), dtype)
    else:
        pairs = re.findall(r"\(([^(),]+),\s*([^(),]+)\)", text)
        array = np.array([complex(_float(re_), _float(im)) for re_, im in pairs], dtype)
    return np.full(shape, array[0]) if array.size == 1 else array.reshape(shape)


def _float(text: str) -> float:
    """A number of an attribute's text, which writes what is not finite by its bits."""
    if not text.strip().startswith("0x"):
        return float(text)
    bits = bytes.fromhex(text.strip()[2:])
    return float(np.frombuffer(bits[::-1], np.float32 if len(bits) == 4 else np.float64)[0])


def _splat(attribute: Any) -> Any:
    value = attribute.get_splat_value()
    return getattr(value, "value", value)


def constant(c: Operation) -> Node | Pair:
    """Numbers that the program holds."""
    try:
        t = c.type()
        array = _complex_array(c.op.get_asm(), t) if t.is_complex else array_of(c.attribute("value"))
    except (TypeError, ValueError, RuntimeError) as e:
        raise NoForm(f"a constant of type {c.op.results[0].type}: {e}", "compute it from real numbers") from e
    if np.iscomplexobj(array):
        return Pair(c.b.const(array.real.copy()), c.b.const(array.imag.copy()))
    return c.b.const(array)


def ramp(c: Operation, shape: Sequence[Dim], axis: int) -> Node | Pair:
    """0, 1, 2, ... along an axis of ``shape``."""
    t = c.type()
    dtype = i64 if t.dtype is bool_ or t.dtype.is_narrow else t.dtype
    line = c.b(ops.iota, extent=shape[axis], dtype=dtype)
    whole = c.cast(c.expand(c.along(line, axis, len(shape)), shape), t.dtype)
    return Pair(whole, c.expand(c.b.const(0, whole.dtype), shape)) if t.is_complex else whole


def _iota(c: Operation) -> Node | Pair:
    return ramp(c, c.walker.static_shape(c), c.integer("iota_dimension"))


def _dynamic_iota(c: Operation) -> Node | Pair:
    return ramp(c, c.sizes(0), c.integer("iota_dimension"))


TABLE: Mapping[str, Convert] = {
    "stablehlo.constant": constant,
    "chlo.constant": constant,
    "stablehlo.iota": _iota,
    "stablehlo.dynamic_iota": _dynamic_iota,
}
