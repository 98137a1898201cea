"""Arrays of other libraries as plain memory: what a call gets, and what it gives back.

In: NumPy arrays, PyTorch tensors, anything with DLPack or a buffer. Out: NumPy arrays on the same memory; addresses;
tensors on the memory of NumPy arrays. PyTorch is never imported here: a tensor can only come from a process that has
imported it. Not its business: shapes (``shapes``), what to call (``model``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.runtime.errors import InputError, Violation
from tilewright.runtime.manifest import TensorSpec

Array = np.ndarray[Any, Any]

Places = tuple[list[int], tuple[tuple[int, ...], ...]]
"""Addresses and shapes."""

ALIGNMENT = 64
_FROM_BUFFER: Callable[[Any], c_char] = c_char.from_buffer  # (the stubs do not know that arrays have buffers)
_ARRAY = np.ndarray
_NUMPY = (np.ndarray, np.generic)
_ALIGN_FROM = 1024  # bytes; below it, the cache lines that an odd start could split are too few to pay for


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a manifest's dtype name; types that NumPy lacks come from ``ml_dtypes``."""
    if name in _WIDTHS:
        kind: type = getattr(ml_dtypes, name)
        return np.dtype(kind)
    return np.dtype(name)


def is_tensor(value: Any) -> bool:
    """Is it a PyTorch tensor?"""
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)  # None too while PyTorch is still being imported
    return kind is not None and (type(value) is kind or isinstance(value, kind))


def as_array(value: Any, spec: TensorSpec) -> Array | Violation:
    """The value as a NumPy array, on the same memory wherever there is a way; else what is wrong with it."""
    if isinstance(value, _NUMPY):
        return np.asarray(value)
    try:
        if is_tensor(value):
            return _tensor_to_array(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return Violation(
            spec.name, f"a {kind} can't be read ({error})", "inputs are arrays in this machine's memory", _remedy(value)
        )


def address_of(array: Array) -> int:
    """Where the elements of a C-contiguous array start."""
    try:
        return addressof(_FROM_BUFFER(array))  # a third of the time of array.ctypes.data
    except (TypeError, ValueError):  # empty or read-only, or of a type of ml_dtypes, which have no code for buffers
        return int(array.ctypes.data)


def plain_arrays(args: Sequence[Any], types: Sequence[tuple[np.dtype[Any], int]]) -> Places | None:
    """Addresses and shapes of the common case: writable NumPy arrays that can be used as they are; else None.

    ``types``: the dtype of each, and the alignment of its elements in bytes, a power of two.
    """
    addresses, shapes = [], []
    try:
        for value, (dtype, alignment) in zip(args, types):  # noqa: B905 - `strict` costs a tenth of the call here
            if type(value) is not _ARRAY:
                return None
            found = value.dtype
            if found is not dtype and found != dtype:  # `is` holds for most, and is the faster question
                return None
            address = addressof(_FROM_BUFFER(value))  # which takes no array but a contiguous one
            if address & (alignment - 1):
                return None
            addresses.append(address)
            shapes.append(value.shape)
    except (TypeError, ValueError):  # empty, read-only, with gaps, or of a type of ml_dtypes
        return None
    return addresses, tuple(shapes)


TensorType = tuple[Any, int]
"""A dtype of PyTorch, and the alignment of its elements in bytes."""


def tensor_types(dtypes: Sequence[np.dtype[Any]]) -> list[TensorType]:
    """What plain tensors in place of arrays of these dtypes have, once PyTorch has been imported."""
    torch = sys.modules["torch"]
    return [(getattr(torch, d.name, None), d.alignment) for d in dtypes]


def plain_tensors(args: Sequence[Any], types: Sequence[TensorType]) -> Places | None:
    """The same for PyTorch tensors in this machine's memory."""
    torch = sys.modules["torch"]
    plain, parameter = torch.Tensor, torch.nn.Parameter
    addresses, shapes = [], []
    try:
        for value, (dtype, alignment) in zip(args, types):  # noqa: B905
            kind = type(value)
            if (kind is not plain and kind is not parameter) or value.dtype is not dtype:
                return None
            if not value.is_cpu or not value.is_contiguous() or value.is_neg():
                return None
            address = value.data_ptr()
            if address % alignment:
                return None
            addresses.append(address)
            shapes.append(value.shape)
    except RuntimeError:  # a layout or a kind of tensor without memory
        return None
    return addresses, tuple(shapes)


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any], n_bytes: int) -> Array:
    """An uninitialised array; all but small ones start on a cache line."""
    if n_bytes < _ALIGN_FROM:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, *aligned_buffer(n_bytes))


def aligned_buffer(n_bytes: int) -> tuple[Array, int]:
    """Uninitialised bytes, and the offset in them of ``n_bytes`` that start on a cache line."""
    buffer = np.empty(n_bytes + ALIGNMENT, np.uint8)
    return buffer, -address_of(buffer) % ALIGNMENT


def aligned_bytes(data: Any) -> Array:
    """A buffer as a uint8 array that starts on a cache line: itself where it does, else a copy."""
    view = memoryview(data)
    if view.nbytes == 0:
        return np.empty(0, np.uint8)
    flat = np.frombuffer(view.cast("B"), np.uint8)
    if flat.ctypes.data % ALIGNMENT == 0:
        return flat
    buffer, start = aligned_buffer(flat.nbytes)
    buffer[start : start + flat.nbytes] = flat
    return buffer[start : start + flat.nbytes]


def to_tensor(array: Array) -> Any:
    """A PyTorch tensor on the array's memory."""
    torch = sys.modules["torch"]
    if array.dtype.isbuiltin != 1:  # one of ml_dtypes
        name = array.dtype.name
        return torch.from_numpy(array.view(_WIDTHS[name])).view(getattr(torch, name))
    return torch.from_numpy(array)


_BYTES = (
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
    "int4", "uint4", "int2", "uint2",
)  # fmt: skip
_WIDTHS: dict[str, type] = {"bfloat16": np.uint16, **dict.fromkeys(_BYTES, np.uint8)}


def write_back(target: Any, value: Array, spec: TensorSpec) -> None:
    """Give an argument of a call the elements that the call computed for it; ``InputError`` where it is read-only."""
    if is_tensor(target):
        with sys.modules["torch"].no_grad():
            target.copy_(to_tensor(value))
        return
    array = as_array(target, spec)
    if isinstance(array, Violation) or not array.flags.writeable:
        remedy = "pass an array that can be written"
        raise InputError(f"the model writes to {spec.name}, which is read-only here", remedy=remedy)
    array[...] = value


def _tensor_to_array(tensor: Any) -> Array:
    torch = sys.modules["torch"]
    try:  # what most tensors are; those that it refuses (other devices, gradients, bfloat16) go the long way
        return _unwrapped(tensor)
    except (TypeError, RuntimeError):
        pass
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise TypeError(f"it is a {tensor.layout} tensor on {tensor.device}")
    plain = tensor.detach().resolve_neg()
    name = str(plain.dtype).removeprefix("torch.")
    if name in _WIDTHS:
        width = torch.uint16 if _WIDTHS[name] is np.uint16 else torch.uint8
        return _unwrapped(plain.view(width)).view(dtype_of(name))
    return _unwrapped(plain)


def _unwrapped(tensor: Any) -> Array:
    array = tensor.numpy()
    assert isinstance(array, np.ndarray)
    return array


def _remedy(value: Any) -> str:
    if is_tensor(value):
        return "pass tensor.cpu().to_dense()"
    return "pass a NumPy array, for example numpy.asarray(x, dtype=...)"
