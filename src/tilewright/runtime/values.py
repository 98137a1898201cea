"""Arrays of other libraries as plain memory: what a call gets, and what it gives back.

In: NumPy arrays, PyTorch tensors, JAX's random keys, anything with DLPack or a buffer. Out: NumPy arrays on the same
memory; addresses; tensors on the memory of NumPy arrays. PyTorch and JAX are never imported here: a tensor can only
come from a process that has imported them. Not its business: shapes (``shapes``), what to call (``model``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import addressof, c_char
from operator import mul
from typing import Any

import numpy as np

from tilewright.runtime.errors import ResourceError, Violation
from tilewright.runtime.manifest import TensorSpec
from tilewright.runtime.once import once

Array = np.ndarray[Any, Any]

Places = tuple[list[int], tuple[tuple[int, ...], ...]]
"""Addresses and shapes."""

ALIGNMENT = 64
_FROM_BUFFER: Callable[[Any], c_char] = c_char.from_buffer  # (the stubs do not know that arrays have buffers)
_ARRAY = np.ndarray
_NUMPY = (np.ndarray, np.generic)
_DLPACK_CPU = 1  # kDLCPU of dlpack.h
_ALIGN_FROM = 1024  # bytes; below it, the cache lines that an odd start could split are too few to pay for


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a manifest's dtype name; types that NumPy lacks come from ``ml_dtypes``."""
    return _added_dtype(name) if name in _WIDTHS else np.dtype(name)


@once  # a child forked in the middle of the import would wait for it for ever
def _added_dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    kind: type = getattr(ml_dtypes, name)
    return np.dtype(kind)


def is_tensor(value: Any) -> bool:
    """Is it a PyTorch tensor?"""
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)  # None too while PyTorch is still being imported
    return kind is not None and (type(value) is kind or isinstance(value, kind))


def is_cut_short(tensor: Any) -> bool:
    """Does a PyTorch tensor's storage end before its last element, as after ``untyped_storage().resize_(0)``?

    PyTorch's own kernels read and write what lies there. Tensors that have no storage to ask are not cut short.
    """
    if not tensor.is_cpu or not tensor.numel():
        return False
    try:
        n_bytes = len(tensor.untyped_storage())
    except RuntimeError:  # sparse ones, and those within a transform of torch.func
        return False
    end = tensor.storage_offset() + 1
    for n, stride in zip(tensor.shape, tensor.stride(), strict=True):
        end += (n - 1) * stride
    return bool(n_bytes < end * tensor.itemsize)


def as_array(value: Any, spec: TensorSpec) -> Array | Violation:
    """The value as a NumPy array, on the same memory wherever there is a way; else what is wrong with it."""
    if type(value) is _ARRAY:
        return value
    if isinstance(value, _NUMPY):
        return _masked(spec) if _is_masked(value) else np.asarray(value)
    return read_safely(value, spec, _foreign_to_array)


def memory_of(value: Any, spec: TensorSpec) -> Array | Violation:
    """An array on the value's own memory, never on a copy of it; where the value is a view that negates or conjugates,
    the elements are those that lie there."""
    if isinstance(value, np.generic):
        return Violation(spec.name, "a NumPy scalar", "a scalar has no memory to write to", "pass numpy.array(x)")
    if is_tensor(value):
        return read_safely(value, spec, lambda tensor: _tensor_to_array(_as_it_lies(tensor)))
    found = as_array(value, spec)
    if isinstance(found, np.ndarray) and not isinstance(value, np.ndarray):
        again = as_array(value, spec)  # DLPack lets an exporter hand out a copy, which then has a place of its own
        if isinstance(again, Violation) or address_of(found) != address_of(again):
            return Violation(spec.name, "exports a copy of itself", "it has to be written to", _remedy(value))
    return found


def read_safely(value: Any, spec: TensorSpec, read: Callable[[Any], Array]) -> Array | Violation:
    """``read(value)``; whatever the value's own code raises becomes what is wrong with it."""
    try:
        return read(value)
    except MemoryError as error:
        raise ResourceError(f"there is no memory to read {spec.name}", remedy="use smaller inputs") from error
    except Exception as error:  # methods of any library may run here, and raise anything
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        why = f"a {kind} can't be read ({str(error).strip()[:200] or type(error).__name__})"
        return Violation(spec.name, why, "inputs are arrays in this machine's memory", _remedy(value))


def _foreign_to_array(value: Any) -> Array:
    if is_tensor(value):
        return _tensor_to_array(value)
    if not hasattr(value, "__dlpack__"):
        return np.asarray(_key_data(value) if _is_jax_array(value) else memoryview(value))
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError):  # NumPy's DLPack knows no bfloat16 and its kin; ml_dtypes does
        if value.__dlpack_device__()[0] != _DLPACK_CPU or not hasattr(value, "__array__"):
            raise
        return np.asarray(value)


def _is_jax_array(value: Any) -> bool:
    """Is it an array of JAX? One without DLPack holds random keys."""
    kind = getattr(sys.modules.get("jax"), "Array", None)
    return kind is not None and isinstance(value, kind)


def _key_data(keys: Any) -> Any:
    """The numbers that JAX's random keys are made of, along a last axis."""
    return sys.modules["jax"].random.key_data(keys)


def _is_masked(array: Any) -> bool:
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)  # NumPy imports it with the first one
    return masked is not None and isinstance(array, masked)


def _masked(spec: TensorSpec) -> Violation:
    return Violation(spec.name, "a masked array", "a model knows no masks", "pass x.filled(...), or x.data")


def address_of(array: Array) -> int:
    """Where the elements of a C-contiguous array start."""
    try:
        return addressof(_FROM_BUFFER(array))  # a third of the time of array.ctypes.data
    except (TypeError, ValueError):  # empty or read-only, or of a type of ml_dtypes, which have no code for buffers
        return int(array.ctypes.data)


def array_types(dtypes: Sequence[np.dtype[Any]]) -> list[tuple[np.dtype[Any], int]]:
    """The dtype of each, and the alignment of its elements in bytes, a power of two."""
    return [(dtype, dtype.alignment) for dtype in dtypes]


def plain_arrays(args: Sequence[Any], types: Sequence[tuple[np.dtype[Any], int]]) -> Places | None:
    """Addresses and shapes of the common case: writable NumPy arrays that can be used as they are; else None."""
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
    """What plain tensors in place of arrays of these dtypes have, once PyTorch has been imported.

    None are plain that could be the conjugates of what they hold.
    """
    torch = sys.modules["torch"]
    return [(None if d.kind == "c" else getattr(torch, d.name, None), d.alignment) for d in dtypes]


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
            if not address or address % alignment:  # 0: an empty tensor, or one without memory
                return None
            needed = value.nbytes
            if offset := value.storage_offset():
                needed += offset * value.itemsize
            if len(value.untyped_storage()) < needed:
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
    """A PyTorch tensor on the array's memory, which is no other tensor's view.

    One without elements has memory of PyTorch's, which a function that is given it as ``out=`` can make larger.
    """
    torch = sys.modules["torch"]
    if array.dtype.isbuiltin != 1:  # one of ml_dtypes
        name = array.dtype.name
        tensor = torch.from_numpy(array.view(_WIDTHS[name])).view(getattr(torch, name)).data
    else:
        tensor = torch.from_numpy(array)
    return tensor if array.size else tensor.new_empty(array.shape)


_BYTES = (
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
    "int4", "uint4", "int2", "uint2",
)  # fmt: skip
_WIDTHS: dict[str, type] = {"bfloat16": np.uint16, **dict.fromkeys(_BYTES, np.uint8)}


def front_of(result: Any, shape: tuple[int, ...]) -> Any:
    """The first elements of a dense result, an array or a tensor; a copy where they are less than half of it, so that
    they don't keep a big buffer alive."""
    n = math.prod(shape)
    is_most = 2 * n >= math.prod(result.shape)
    if is_tensor(result):
        return result.resize_(shape) if is_most else result.view(-1)[:n].view(shape).clone()
    front = result.reshape(-1)[:n].reshape(shape)
    return front if is_most else front.copy()


def _as_it_lies(tensor: Any) -> Any:
    """The tensor without the marks by which views are negated or conjugated when they are read."""
    found = tensor.detach()
    if found.is_neg():
        found = sys.modules["torch"]._neg_view(found)
    return found.conj() if found.is_conj() else found


def _tensor_to_array(tensor: Any) -> Array:
    torch = sys.modules["torch"]
    try:  # what most tensors are; those that it refuses (other devices, gradients, bfloat16) go the long way
        return _unwrapped(tensor)
    except (TypeError, RuntimeError):
        pass
    if is_cut_short(tensor):
        raise ValueError(_CUT_SHORT)
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise TypeError(f"it is a {tensor.layout} tensor on {tensor.device}")
    plain = tensor.detach().resolve_conj().resolve_neg()
    name = str(plain.dtype).removeprefix("torch.")
    if name in _WIDTHS:
        width = torch.uint16 if _WIDTHS[name] is np.uint16 else torch.uint8
        return _unwrapped(plain.view(width)).view(dtype_of(name))
    return _unwrapped(plain)


_CUT_SHORT = "it has no memory for all of its elements, as after untyped_storage().resize_(0)"


def _unwrapped(tensor: Any) -> Array:
    """An array on the tensor's memory, with the question of ``is_cut_short`` asked of the array.

    ``TypeError`` or ``RuntimeError`` for a tensor whose elements do not simply lie there.
    """
    array = array_on(tensor)
    if not array.nbytes:
        return array
    end = array.nbytes if array.flags.c_contiguous else _extent(array)
    if len(tensor.untyped_storage()) < tensor.storage_offset() * array.itemsize + end:
        raise ValueError(_CUT_SHORT)
    return array


class TensorMemory:
    """A tensor's elements as version 3 of NumPy's array interface tells of them, in memory that may be moved later."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: Any, typestr: str) -> None:
        size = tensor.element_size()
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": typestr,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple([n * size for n in tensor.stride()]),
        }


def array_on(tensor: Any) -> Array:
    """An array on a tensor's memory, for as long as nobody resizes its storage: ``tensor.numpy()`` would forbid it for
    good. ``TypeError`` for a tensor whose elements do not simply lie there, ``ValueError`` for one without memory."""
    dtype = _array_dtypes().get(tensor.dtype)
    is_plain = type(tensor).__torch_dispatch__ is sys.modules["torch"].Tensor.__torch_dispatch__
    is_plain = is_plain and tensor.is_cpu and not (tensor.is_sparse or tensor._is_zerotensor())
    if dtype is None or not is_plain or tensor.is_neg() or tensor.is_conj():
        raise TypeError(f"NumPy has no array for a tensor of {tensor.dtype} on {tensor.device}")
    if not tensor.data_ptr() and tensor.numel():
        if is_cut_short(tensor):
            raise ValueError(_CUT_SHORT)
        raise ValueError("it has no memory, as within a transform of torch.func or when its storage was resized")
    return np.asarray(TensorMemory(tensor, dtype.str))


@once
def _array_dtypes() -> dict[Any, np.dtype[Any]]:
    """NumPy's dtype of each of PyTorch's that NumPy has."""
    names = (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
    )
    torch = sys.modules["torch"]
    return {getattr(torch, n): np.dtype(n) for n in names if hasattr(torch, n)}


def _extent(array: Array) -> int:
    """The bytes from an array's first element to the end of its last one; strides are not negative."""
    strides = array.strides
    return int(sum(map(mul, array.shape, strides)) - sum(strides) + array.itemsize)


def _remedy(value: Any) -> str:
    if not is_tensor(value):
        return "pass a NumPy array, for example numpy.asarray(x, dtype=...)"
    with suppress(Exception):  # a subclass may refuse any question
        if value.is_meta:
            return "a meta tensor has no elements: make it with device='cpu'"
    return "pass a plain tensor: tensor.cpu(), with .to_dense() or .dequantize() where it is one of those"
