"""Native ways into a model: calls with the shapes of earlier ones, without a line of Python between argument and code.

In: the addresses of a model's code and weights; the arguments of a call that went the long way, and its plan. Out: a
built-in function that does the same for such arguments and answers None to any others. Not its business: what is wrong
with those (``model``), the native code itself (``entry_ir``).

A function owns the memory that its calls work in, so only models with little of it have any: for others a call's few
microseconds are nothing.
"""

from __future__ import annotations

import ctypes
import math
import platform
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.cpu.entry_ir import PYTHON_SYMBOLS, entry_ir
from tilewright.runtime.cpu.linker import link_text, pool, python_symbols
from tilewright.runtime.once import ForkLock, in_forked_child, once
from tilewright.runtime.plan import OutputPlan, Plan
from tilewright.runtime.python.built_in import FASTCALL, MethodDef, built_in
from tilewright.runtime.python.memory import RECYCLED_FROM, ResultPool, most_kept, new_tensor
from tilewright.runtime.python.tensor_layout import tensor_layout
from tilewright.runtime.shapes import Shape
from tilewright.runtime.values import aligned_buffer

Entry = Callable[..., Any]
"""Takes a model's arguments in order. The result or a tuple of results; None where it is not for these arguments."""

MOST_BYTES = 256 << 10
"""Of memory that a model with native entries works in, and of a tensor that PyTorch's allocator makes: it keeps so many
bytes for the next one."""
KEPT = 8
"""Shapes that a model has native entries for."""

_POINTER = ctypes.c_void_p
_CPU = 1
_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "bfloat16": 4, "b": 6}
"""``DLDataTypeCode`` by NumPy's kind or name; not of complex tensors, which could be conjugates of what they hold."""


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", _POINTER), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_uint32), ("shape", _POINTER), ("strides", _POINTER), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _TensorFields(ctypes.Structure):
    """``%tensor_t`` of ``entry_ir``."""

    _fields_ = (
        ("type", _POINTER), ("other_type", _POINTER), ("dtype", _POINTER), ("mask", ctypes.c_int64),
        ("maker", _POINTER), ("maker_args", _POINTER * 3), ("like", _DLTensor), ("n_bytes", ctypes.c_int64),
    )  # fmt: skip


class _CallFields(ctypes.Structure):
    """``%call_t`` of ``entry_ir``."""

    _fields_ = (
        *((name, _POINTER) for name in (
            "run", "weights", "arena", "table", "dims", "start", "inputs", "outputs", "results", "is_neg",
            "from_object",
        )),
        *((name, ctypes.c_int64) for name in ("n_inputs", "n_outputs", "n_dims")),
        ("threads", ctypes.c_int32), ("busy", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("impl_at", "storage_at", "data_at", "n_bytes_at")),
    )  # fmt: skip


class _NativeCall(bytearray):
    """Memory of ``_CallFields``, with all that the addresses in it belong to."""

    owned: tuple[Any, ...] = ()
    fields: _CallFields

    __eq__ = object.__eq__  # a place and not its bytes, so that a set can hold it
    __hash__ = object.__hash__  # type: ignore[assignment]


_calls: weakref.WeakSet[_NativeCall] = weakref.WeakSet()


@in_forked_child
def _free_calls() -> None:
    """Those that other threads were in at the fork have nobody left to end them."""
    for call in _calls:
        call.fields.busy = 0


class Entries:
    """The native entries of one model."""

    def __init__(self, run: int, weights: int, threads: int, dtypes: Sequence[np.dtype[Any]], pool: ResultPool) -> None:
        """``run`` and ``weights`` are addresses, ``dtypes`` those of the inputs, ``pool`` makes large results."""
        self._fixed = {"run": run, "weights": weights, "threads": threads}
        self._dtypes = dtypes
        self._pool = pool
        self._guard = ForkLock()
        self._found: dict[tuple[bool, tuple[Shape, ...]], Entry | None] = {}

    def find(self, is_tensor: bool, shapes: tuple[Shape, ...], plan: Plan, work_bytes: int) -> Entry | None:
        """The entry for NumPy arrays or PyTorch tensors of these shapes; None where there is none."""
        key = is_tensor, tuple(shapes)
        try:
            return self._found[key]
        except KeyError:
            pass
        with self._guard.lock:
            if key not in self._found:
                made = self._made(is_tensor, shapes, plan, work_bytes)
                if len(self._found) == KEPT:
                    del self._found[next(iter(self._found))]
                self._found[key] = made
            return self._found[key]

    def _made(self, is_tensor: bool, shapes: Sequence[Shape], plan: Plan, work_bytes: int) -> Entry | None:
        kinds = [*zip(self._dtypes, shapes, strict=True), *((o.dtype, o.shape) for o in plan.outputs)]
        usable = work_bytes <= MOST_BYTES and not plan.is_dynamic and _code() is not None
        if is_tensor:
            usable = usable and _exchange() is not None and all(_dlpack_dtype(dtype) is not None for dtype, _ in kinds)
        return self._make(is_tensor, shapes, plan, work_bytes) if usable else None

    def _make(self, is_tensor: bool, shapes: Sequence[Shape], plan: Plan, work_bytes: int) -> Entry:
        inputs = [_tensor(is_tensor, d, s) for d, s in zip(self._dtypes, shapes, strict=True)]
        outputs = [_tensor(is_tensor, o.dtype, o.shape) for o in plan.outputs]
        owned, most = list[Any]([self._pool]), most_kept(plan.outputs)
        for (fields, _), output in zip(outputs, plan.outputs, strict=True):
            maker = self._maker(is_tensor, output, most)
            owned.append(maker)
            # CPython's ids are addresses; `owned` keeps what they point to
            fields.maker, fields.maker_args[:] = id(maker[0]), [id(x) for x in maker[1:]]
        arena, offset = aligned_buffer(work_bytes)  # one for all calls: the code declines a second while one runs
        tables: dict[str, ctypes.Array[Any]] = {
            "table": (ctypes.c_int64 * max(len(inputs) + len(outputs), 1))(),
            "dims": (ctypes.c_int64 * max(len(plan.dims), 1))(),
            # what each call fills `dims` with, which the model writes to
            "start": (ctypes.c_int64 * max(len(plan.dims), 1))(*plan.dims),
            "inputs": (_TensorFields * max(len(inputs), 1))(*(fields for fields, _ in inputs)),
            "outputs": (_TensorFields * max(len(outputs), 1))(*(fields for fields, _ in outputs)),
            "results": (_POINTER * max(len(outputs), 1))(),
        }
        call = _NativeCall(ctypes.sizeof(_CallFields))
        call.fields = _CallFields.from_buffer(call)
        values: dict[str, int] = {name: ctypes.addressof(table) for name, table in tables.items()}
        values |= self._fixed | {"arena": arena.ctypes.data + offset, "is_neg": id(_IS_NEG)}
        values |= {"n_inputs": len(inputs), "n_outputs": len(outputs), "n_dims": len(plan.dims)}
        if is_tensor:
            values |= _exchange() or {}
        for name, value in values.items():
            setattr(call.fields, name, value)
        call.owned = (arena, tables, inputs, outputs, owned)
        _calls.add(call)
        code = _code()
        assert code is not None, "entries are made where there is code"
        made: Entry = built_in(code, call)
        return made

    def _maker(self, is_tensor: bool, output: OutputPlan, most: int) -> tuple[Callable[..., Any], Any, Any, Any]:
        """A function of three arguments that makes a result, and these."""
        if is_tensor and output.n_bytes < MOST_BYTES and (made := new_tensor(output.shape, output.dtype)) is not None:
            return made
        if not is_tensor and output.n_bytes < RECYCLED_FROM:  # to start on a cache line is not worth the time
            return np.empty, output.shape, output.dtype, "C"
        return ResultPool.tensor if is_tensor else ResultPool.array, self._pool, output, most


def _tensor(is_tensor: bool, dtype: np.dtype[Any], shape: Shape) -> tuple[_TensorFields, Any]:
    """What a tensor is to be like, and the memory of its shape."""
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    like = _DLTensor(device=_CPU, rank=len(shape), shape=ctypes.addressof(sizes))
    if not is_tensor:
        return _TensorFields(id(np.ndarray), None, id(dtype), dtype.alignment - 1, like=like), (sizes, dtype)
    torch = sys.modules["torch"]
    like.dtype = _dlpack_dtype(dtype) or 0
    types = id(torch.Tensor), id(torch.nn.Parameter)
    n_bytes = math.prod(shape) * dtype.itemsize
    return _TensorFields(*types, None, dtype.alignment - 1, like=like, n_bytes=n_bytes), sizes


def _dlpack_dtype(dtype: np.dtype[Any]) -> int | None:
    """``DLDataType`` (code, bits, lanes) as the number that its bytes are."""
    code = _DLPACK_CODES.get(dtype.name, _DLPACK_CODES.get(dtype.kind))
    if code is None or (dtype.isbuiltin != 1 and dtype.name not in _DLPACK_CODES):
        return None
    lanes = 1
    return code | dtype.itemsize * 8 << 8 | lanes << 16


@once
def _exchange() -> dict[str, int] | None:
    """The function of ``torch.Tensor``'s ``DLPackExchangeAPI`` that tells of a tensor, and where it keeps what this
    doesn't tell; None where this PyTorch has none that we know."""
    capsule = getattr(sys.modules["torch"].Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = _POINTER, (ctypes.py_object, ctypes.c_char_p)
    table = pointer(capsule, b"dlpack_exchange_api")
    major, layout = ctypes.c_uint32.from_address(table).value, tensor_layout()
    from_object = (ctypes.c_uint64 * 6).from_address(table)[5]
    if major != 1 or not from_object or layout is None:
        return None
    places = {"impl_at": layout.impl, "storage_at": layout.storage, "data_at": layout.data}
    return places | {"n_bytes_at": layout.n_bytes, "from_object": from_object}


_IS_NEG = "is_neg"


@once
def _code() -> MethodDef | None:
    """The native function; None for an interpreter that works otherwise than its text supposes."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    if platform.python_implementation() != "CPython" or not has_lock or not _arrays_are_known():
        return None
    imports = python_symbols(PYTHON_SYMBOLS) | {"tw_stopped": pool().addresses["tw_stopped"]}
    library = link_text("entry", entry_ir(object.__basicsize__), ("tw_call",), imports)
    library.keep_forever()
    return MethodDef(b"tw_call", library.addresses["tw_call"], FASTCALL, None)


def _arrays_are_known() -> bool:
    """Do NumPy's arrays have the fields that ``entry_ir`` reads?"""

    class ArrayFields(ctypes.Structure):
        _fields_ = (
            ("head", ctypes.c_char * object.__basicsize__), ("data", _POINTER), ("rank", ctypes.c_int),
            ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", _POINTER), ("base", _POINTER), ("dtype", _POINTER),
            ("flags", ctypes.c_int),
        )  # fmt: skip

    probe = np.zeros((2, 3, 5), np.float32)
    if np.ndarray.__basicsize__ < ctypes.sizeof(ArrayFields) or ctypes.sizeof(_POINTER) != 8:
        return False
    found = ArrayFields.from_address(id(probe))
    if (found.data, found.rank, found.dtype) != (probe.ctypes.data, 3, id(probe.dtype)):
        return False
    return tuple(found.shape[:3]) == probe.shape and found.flags == probe.flags.num
