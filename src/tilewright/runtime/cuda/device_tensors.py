"""Arrays in a GPU's memory, shared with other libraries by DLPack, without copies.

In: anything with ``__dlpack__`` (PyTorch, JAX, CuPy), or memory of our own. Out: its address, shape and dtype; or an
object that others take by ``from_dlpack``. Not its business: arrays in the host's memory (``runtime.values``).

The structures are those of DLPack 0.x, which every library still hands out and takes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CUDA = 2
"""DLPack's number of NVIDIA's GPUs."""
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_CODES = {name: code for code, name in _KINDS.items()}
_NEW, _USED = b"dltensor", b"used_dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _Device), ("rank", ctypes.c_int32), ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))

_python = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _python)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _python))
_has_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_raw_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_raw_has_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))


@dataclass
class DeviceTensor:
    """An array that another library lent: it stays alive as long as this object."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    device: int
    is_contiguous: bool
    capsule: Any
    _managed: Any

    def __del__(self) -> None:
        """Tell the lender that we are done."""
        if self._managed.deleter:
            self._managed.deleter(ctypes.byref(self._managed))


def is_on_gpu(value: Any) -> bool:
    """Does the value say by DLPack that it lies in a GPU's memory?"""
    where = getattr(value, "__dlpack_device__", None)
    return where is not None and int(where()[0]) == CUDA


def borrow(value: Any, stream: int) -> DeviceTensor:
    """The array's memory, ready to be read on ``stream``; ``ValueError`` for what is no plain array."""
    capsule = value.__dlpack__(stream=stream)
    if not _has_name(capsule, _NEW):
        raise ValueError("it hands out no DLPack capsule that was not used yet")
    managed = _Managed.from_address(_pointer_of(capsule, _NEW))
    _rename(capsule, _USED)  # so that the capsule's own destructor leaves the memory to us
    t = managed.tensor
    shape = tuple(t.shape[k] for k in range(t.rank))
    strides = tuple(t.strides[k] for k in range(t.rank)) if t.strides else None
    dtype = dtype_name(t.dtype.code, t.dtype.bits)
    if dtype is None or t.dtype.lanes != 1:
        raise ValueError(f"it has elements of DLPack's type {t.dtype.code} with {t.dtype.bits} bits")
    address = (t.data or 0) + t.byte_offset
    return DeviceTensor(address, shape, dtype, t.device.number, _is_dense(shape, strides), capsule, managed)


def dtype_name(code: int, bits: int) -> str | None:
    """The manifest's name of DLPack's type; None for others."""
    kind = _KINDS.get(code)
    if kind is None:
        return None
    return "bool" if kind == "bool" else f"{kind}{bits}"


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Do the elements lie one behind the other, the last dimension fastest?"""
    if strides is None or 0 in shape:
        return True
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != step:
            return False
        step *= n
    return True


class GpuArray:
    """A result in a GPU's memory. ``torch.from_dlpack`` and its like take it without a copy.

    ``release`` is called when neither this object nor anybody who took it is alive.
    """

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: str, device: int, release: Callable[[], None]
    ) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self._memory = _Owned(release)

    def __repr__(self) -> str:
        return f"<GpuArray {self.dtype}{list(self.shape)} on GPU {self.device}>"

    @property
    def n_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * int(_type_of(self.dtype).bits) // 8

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind and number of the device, as DLPack numbers them."""
        return CUDA, self.device

    def __dlpack__(self, stream: int | None = None, **_: Any) -> Any:
        """A capsule of the memory. The work that writes it has run: calls wait for their stream before they return."""
        lent = _Lent(self)
        _LENT[ctypes.addressof(lent.managed)] = lent
        return _new_capsule(ctypes.addressof(lent.managed), _NEW, ctypes.cast(_drop_unused, ctypes.c_void_p))


class _Owned:
    """What keeps an array's memory alive."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release

    def __del__(self) -> None:
        self._release()


class _Lent:
    """An array in the hands of another library: the structures that it reads, which must not move."""

    def __init__(self, array: GpuArray) -> None:
        rank = len(array.shape)
        self.memory = array._memory
        self.shape = (ctypes.c_int64 * max(rank, 1))(*array.shape)
        tensor = _Tensor(
            array.address, _Device(CUDA, array.device), rank, _type_of(array.dtype),
            ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64)), None, 0,
        )  # fmt: skip
        self.managed = _Managed(tensor, None, _give_back)


_LENT: dict[int, _Lent] = {}
"""What others hold, by the address of its structure; an entry goes when its deleter is called."""


def _end_loan(managed: Any) -> None:
    _LENT.pop(ctypes.addressof(managed.contents), None)


def _end_unused(capsule: int) -> None:
    """A capsule dies that nobody took: its name is still the first one."""
    if _raw_has_name(capsule, _NEW):
        _LENT.pop(_raw_pointer_of(capsule, _NEW), None)


_give_back, _drop_unused = _DELETER(_end_loan), _DESTRUCTOR(_end_unused)


def _type_of(dtype: str) -> _DType:
    if dtype == "bool":
        return _DType(_CODES["bool"], 8, 1)
    kind = dtype.rstrip("0123456789")
    if kind not in _CODES:
        return _DType(_CODES["uint"], 8, 1)  # eight bits that DLPack 0.x has no number for
    return _DType(_CODES[kind], int(dtype[len(kind) :]), 1)
