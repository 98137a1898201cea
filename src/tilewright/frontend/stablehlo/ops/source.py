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
from tilewright.core.types import NARROW, Array, bf16, bool_, i64
from tilewright.frontend.complex_pairs import Pair, real_pair
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result, value_type

Convert = Callable[[Operation], Result]


MOST_STORED = 1 << 24
"""Of more elements than this, all equal, one is stored: a text of a few bytes can ask for any number of them."""


def array_of(op: Any) -> Array:
    """The numbers of a constant operation; complex ones as complex numbers. Equal ones may lie in one place."""
    t = value_type(op.results[0].type)
    shape, dtype = tuple(n for n in t.shape if n is not None), t.dtype.numpy
    if t.is_complex:
        return _of_text(op.get_asm(), shape, np.dtype(np.complex128 if t.dtype.bits == 64 else np.complex64))
    if t.dtype in _IN_TEXT_ONLY:
        return _of_text(op.get_asm(), shape, dtype)
    attribute = op.attributes["value"]
    if getattr(attribute, "is_splat", False):
        return np.broadcast_to(np.asarray(_splat(attribute)).astype(dtype), shape)
    return np.array(attribute).astype(dtype).reshape(shape)


_IN_TEXT_ONLY = (bf16, *NARROW)
"""Types that NumPy has no buffer of: MLIR's bindings give their numbers as text alone, and complex ones too."""


def _of_text(text: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A constant's numbers from its text: those written there, or the bytes of all."""
    if found := _BYTES.search(text):
        array = np.frombuffer(bytes.fromhex(found.group(1)), dtype)
    elif dtype.kind == "c":
        pairs = re.findall(r"\(([^(),]+),\s*([^(),]+)\)", text)
        array = np.array([complex(_float(re_), _float(im)) for re_, im in pairs], dtype)
    else:
        found = re.search(r"dense<(.*?)>", text, re.S)
        array = _numbers(re.findall(r"[-+.\w]+", found.group(1) if found else ""), dtype)
    return np.broadcast_to(array[0], shape) if array.size == 1 else array.reshape(shape)


_BYTES = re.compile(r'dense<"0x([0-9A-Fa-f]+)">')


def _numbers(words: Sequence[str], dtype: np.dtype[Any]) -> Array:
    """Numbers of one type; floats that are not finite are written by their bits."""
    bits = np.dtype(f"u{dtype.itemsize}")
    made = np.empty(len(words), dtype)
    for k, word in enumerate(words):
        is_bits = word.startswith("0x")
        made[k] = np.array(int(word, 16), bits).view(dtype) if is_bits else np.array(float(word)).astype(dtype)
    return made


def _float(text: str) -> float:
    """A part of a complex number, which is written by its bits where it is not finite."""
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
        array = array_of(c.op)
    except (TypeError, ValueError, RuntimeError) as e:
        raise NoForm(f"a constant of type {c.op.results[0].type}: {e}", "compute it from real numbers") from e
    if np.iscomplexobj(array):
        return Pair(_stored(c, array.real), _stored(c, array.imag))
    return _stored(c, array)


def _stored(c: Operation, array: Array) -> Node:
    if array.size > MOST_STORED and not any(array.strides):
        return c.expand(c.b.const(array.reshape(-1)[0]), array.shape)
    return c.b.const(array)


def ramp(c: Operation, shape: Sequence[Dim], axis: int) -> Node | Pair:
    """0, 1, 2, ... along an axis of ``shape``."""
    t = c.type()
    dtype = i64 if t.dtype is bool_ or t.dtype.is_narrow else t.dtype
    line = c.b(ops.iota, extent=shape[axis], dtype=dtype)
    whole = c.cast(c.expand(c.along(line, axis, len(shape)), shape), t.dtype)
    return real_pair(c.b, whole) if t.is_complex else whole


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
