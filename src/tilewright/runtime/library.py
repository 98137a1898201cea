"""A model that was exported and linked to a shared library, as a Python callable: the same C functions as C calls.

In: a library's path; per call, arrays. Out: arrays. It needs ctypes and NumPy, neither LLVM nor the compiler.
Not its business: how the library was made (``tilewright.aot``), what the functions do (the generated header says).

A library is a program: load those that you would run.
"""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError, ResourceError, Violation
from tilewright.runtime.manifest import Manifest, SymbolSpec, TargetSpec, TensorSpec
from tilewright.runtime.once import ForkLock, in_forked_child
from tilewright.runtime.plain import dataclass
from tilewright.runtime.plan import OutputPlan, Planner
from tilewright.runtime.python.arguments import ArgumentReader, checked_feeds
from tilewright.runtime.python.memory import ResultPool
from tilewright.runtime.record import check_files
from tilewright.runtime.signature import check_signature
from tilewright.runtime.threads import checked_threads
from tilewright.runtime.values import Array, address_of, aligned_buffer, as_array, dtype_of, front_of

ABI_VERSION = 1
"""Of the C interface that exported models have; ``docs/adr/0009-c-abi.md`` says when it changes."""
KEPT = 4
"""Handles that a model keeps between calls."""

DTYPE_NAMES = (
    "", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
    "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn", "int4", "uint4", "int2", "uint2", "complex64", "complex128",
)  # fmt: skip
"""By number of ``tw_dtype``."""
_KIND_SHAPE, _KIND_MEMORY, _KIND_RUN = 2, 3, 7
_POINTER = ctypes.c_void_p
Item = TypeVar("Item")


class _TensorInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("dims", ctypes.POINTER(ctypes.c_char_p)),
    )  # fmt: skip


class _SymbolInfo(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("lowest", ctypes.c_int64), ("highest", ctypes.c_int64))


class _StateInfo(ctypes.Structure):
    _fields_ = (("input", ctypes.c_int32), ("output", ctypes.c_int32))


class _ModelInfo(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32), ("struct_bytes", ctypes.c_uint32), ("n_inputs", ctypes.c_int32),
        ("n_outputs", ctypes.c_int32), ("n_symbols", ctypes.c_int32), ("max_threads", ctypes.c_int32),
        ("name", ctypes.c_char_p), ("compiler_version", ctypes.c_char_p), ("target", ctypes.c_char_p),
        ("cpu", ctypes.c_char_p), ("fingerprint", ctypes.c_char_p), ("inputs", ctypes.POINTER(_TensorInfo)),
        ("outputs", ctypes.POINTER(_TensorInfo)), ("symbols", ctypes.POINTER(_SymbolInfo)),
        ("alignment", ctypes.c_int64), ("weights_bytes", ctypes.c_int64),
        ("state", ctypes.POINTER(_StateInfo)), ("n_state", ctypes.c_int32),
    )  # fmt: skip


@dataclass(slots=True)
class _Handle:
    """A model's handle in memory of ours, which ``memory`` keeps alive."""

    address: int
    capacity: int
    memory: Array


_open_models: weakref.WeakSet[LibraryModel] = weakref.WeakSet()


@in_forked_child
def _forget_workers() -> None:
    """A library has threads of its own, which a child does not have."""
    for model in _open_models:
        model.after_fork()


class LibraryModel:
    """A model of a shared library, callable from any number of threads at once, as a ``LoadedModel`` is.

    What a module keeps from call to call is kept here too: ``inputs`` and ``outputs`` are those of the caller.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        threads: int | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> None:
        """``name`` is the model's (default: the file's, without ``lib``); ``threads`` the most that a call uses.

        With ``key``, a public key's PEM file, the export's record must lie beside the library, be signed with that key,
        and name the library and the weights as they are.
        A weights file is looked for beside the library. ``ArtifactError`` when the library is not such a model.
        """
        file = Path(path)
        self.name = name or file.name.split(".")[0].removeprefix("lib")
        if key is not None:
            _check_signed(file, self.name, key)  # before loading, which runs the library's constructors
        self._library = self._opened(file)
        self._threads = checked_threads(threads) or 0  # 0: as many as the export allows
        info = self._facts(file)
        self._all_inputs, self._all_outputs = (_tensors(t, n) for t, n in _both(info))
        # libraries of before there were states end earlier
        n_state = info.n_state if info.struct_bytes >= ctypes.sizeof(_ModelInfo) else 0
        self._kept = [(info.state[k].input, info.state[k].output) for k in range(n_state)]
        self.inputs = tuple(_without(self._all_inputs, [i for i, _ in self._kept]))
        self.outputs = tuple(_without(self._all_outputs, [o for _, o in self._kept]))
        self.symbols = tuple(_symbol(info.symbols[k]) for k in range(info.n_symbols))
        # for reading arguments, so without outputs: their shapes are the library's business, and so is whether a size
        # of 0 leaves nothing to compute
        symbols = tuple(replace(s, lo=0) if s.lo == 1 else s for s in self.symbols)
        manifest = Manifest(
            info.compiler_version.decode(), TargetSpec(info.target.decode(), info.cpu.decode()), self._all_inputs, (),
            symbols, n_dims=len(symbols),
        )  # fmt: skip
        try:
            self._reader = ArgumentReader(self.inputs, Planner(manifest), len(self._kept))
        except ValueError as error:
            raise ArtifactError(f"{file.name} contradicts itself: {error}", remedy="export the model again") from error
        self._weights = self._mapped(file.with_name(f"{self.name}.safetensors")) if info.weights_bytes else None
        self._free: deque[_Handle] = deque(maxlen=KEPT)
        self._results = ResultPool()
        self._guard = ForkLock()
        _open_models.add(self)
        self._state: list[Array] = []
        if self._kept:
            self.reset()

    def __repr__(self) -> str:
        signature = " -> ".join(", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"<LibraryModel {self.name} ({signature})>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run, as ``LoadedModel`` does: one output as itself, several as a tuple. Raises ``InputError``."""
        arrays, has_tensors = self._reader.read(args, kwargs)
        shown = self._advance(arrays, has_tensors)
        return shown[0] if len(shown) == 1 else tuple(shown)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run by names: inputs in, all outputs out."""
        results = self._advance(self._reader.read((), checked_feeds(feeds))[0], False)
        return {spec.name: result for spec, result in zip(self.outputs, results, strict=True)}

    @property
    def state(self) -> dict[str, Array]:
        """What the model keeps from call to call, by name: copies. Empty for a model that keeps nothing."""
        with self._guard.lock:
            return {self._all_inputs[i].name: a.copy() for (i, _), a in zip(self._kept, self._state, strict=True)}

    def reset(self, **state: Any) -> None:
        """Let the state be what it was when the model was exported, except for what is given by name.

        ``InputError`` for a name or an array that does not fit.
        """
        specs = [self._all_inputs[i] for i, _ in self._kept]
        if strange := state.keys() - {s.name for s in specs}:
            names = ", ".join(s.name for s in specs) or "nothing"
            raise InputError(f"the model keeps {names}, not {', '.join(sorted(strange))}", remedy="leave it out")
        made = []
        for k, spec in enumerate(specs):
            start = self._start(k, spec)
            given = as_array(state[spec.name], spec) if spec.name in state else start
            if isinstance(given, Violation) or (given.dtype, given.shape) != (start.dtype, start.shape):
                raise InputError(f"{spec} can't be {state[spec.name]!r:.80}", remedy="give an array of that shape")
            made.append(np.array(given, order="C"))
        with self._guard.lock:
            self._state = made

    def _start(self, index: int, spec: TensorSpec) -> Array:
        """A copy of the first value of what the model keeps, which the library has among its weights."""
        dtype, shape = dtype_of(spec.dtype), [d for d in spec.shape if isinstance(d, int)]
        dims = (ctypes.c_int64 * max(len(self.symbols), 1))(*[s.lo for s in self.symbols])
        n_bytes = ctypes.c_int64()
        self._check(self._call("workspace", dims, ctypes.byref(n_bytes)))
        handle = self._handle(n_bytes.value)
        function = self._library[f"{self.name}_initial_state"]
        function.restype = ctypes.c_void_p
        address = function(_POINTER(handle.address), ctypes.c_int32(index))
        self._free.append(handle)
        if not address or len(shape) != len(spec.shape):
            raise ArtifactError(f"the state {spec} has no start in the library", remedy="export the model again")
        raw = ctypes.string_at(address, math.prod(shape) * dtype.itemsize)
        return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> LibraryModel:
        """Itself where it keeps nothing from call to call; else one with a state of its own and the same library."""
        if not self._kept:
            return self
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _guard=ForkLock(), _free=deque(maxlen=KEPT))
        _open_models.add(made)
        made.reset(**self.state)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses to be pickled."""
        raise ArtifactError("a library's model can't be pickled", remedy="make a LibraryModel in the other process")

    # --- a call

    def _advance(self, arrays: Sequence[Array], as_tensors: bool) -> list[Any]:
        """A call with what the model keeps, which moves on where the call succeeds: the caller's outputs."""
        kept = [o for _, o in self._kept]
        tensors = _without(range(len(self._all_outputs)), kept) if as_tensors else []
        if not self._kept:
            return self._execute(arrays, tensors)
        with self._guard.lock:
            given = [*arrays]
            for (i, _), value in sorted(zip(self._kept, self._state, strict=True), key=lambda row: row[0]):
                given.insert(i, value)
            results = self._execute(given, tensors)
            self._state = [results[o] for o in kept]
        return _without(results, kept)

    def _execute(self, arrays: Sequence[Array], tensors: Collection[int]) -> list[Any]:
        """All results of the code; those with the indices ``tensors`` as PyTorch's."""
        dims = self._dims(arrays)
        n_bytes = ctypes.c_int64()
        self._check(self._call("workspace", dims, ctypes.byref(n_bytes)))
        outputs = []
        for k, spec in enumerate(self._all_outputs):
            shape, dtype = self._shape("output_shape", spec, dims, k), dtype_of(spec.dtype)
            outputs.append(OutputPlan(dtype, shape, math.prod(shape) * dtype.itemsize, None))
        try:
            results = self._results.results(outputs, tensors)
        except (MemoryError, ValueError) as error:
            wanted = ", ".join(f"an output of shape {o.shape}" for o in outputs)
            raise ResourceError(f"there is no memory for {wanted}", remedy="use smaller inputs") from error
        handle = self._handle(n_bytes.value)
        try:
            status = self._call("run", _POINTER(handle.address), dims, _table(arrays), _table(results, tensors))
            self._check(status)
            of = _POINTER(handle.address)
            shapes = [self._shape("result_shape", spec, of, k) for k, spec in enumerate(self._all_outputs)]
        finally:
            self._free.append(handle)
        return [front_of(result, shape) for result, shape in zip(results, shapes, strict=True)]

    def _dims(self, arrays: Sequence[Array]) -> Any:
        shapes = [(ctypes.c_int64 * max(a.ndim, 1))(*a.shape) for a in arrays]
        table = (_POINTER * max(len(shapes), 1))(*[ctypes.addressof(s) for s in shapes])
        dims = (ctypes.c_int64 * max(len(self.symbols), 1))()
        self._check(self._call("bind", table, dims))
        return dims

    def _shape(self, function: str, spec: TensorSpec, of: Any, index: int) -> tuple[int, ...]:
        shape = (ctypes.c_int64 * max(len(spec.shape), 1))()
        self._check(self._call(function, of, ctypes.c_int32(index), shape))
        return tuple(shape[: len(spec.shape)])

    def _handle(self, n_bytes: int) -> _Handle:
        """A handle that no other call has, large enough."""
        try:
            handle = self._free.pop()
        except IndexError:
            handle = _Handle(0, -1, np.empty(0, np.uint8))
        if handle.capacity >= n_bytes:
            return handle
        try:
            memory, start = aligned_buffer(n_bytes)
        except (MemoryError, ValueError) as error:
            raise ResourceError(f"there is no memory for {n_bytes} bytes", remedy="use smaller inputs") from error
        made = _POINTER()
        place = _POINTER(memory.ctypes.data + start)
        weights = _POINTER(self._weights)
        arguments = (place, ctypes.c_int64(n_bytes), weights, ctypes.c_int32(self._threads))
        self._check(self._call("create", ctypes.byref(made), *arguments))
        return _Handle(made.value or 0, n_bytes, memory)

    # --- the library

    def _opened(self, file: Path) -> Any:
        """What gives the library's functions by name; ``AttributeError`` for one that it lacks."""
        try:
            return ctypes.CDLL(str(file.absolute()))
        except OSError as error:
            raise ArtifactError(f"can't load {str(file)!r}: {error}", remedy="check the path and the system") from error

    def _facts(self, file: Path) -> _ModelInfo:
        try:
            function = self._library[f"{self.name}_info"]
        except AttributeError as error:
            rule = f"{file.name} has no model {self.name!r}"
            raise ArtifactError(rule, remedy="name the model that was exported: name=...") from error
        function.restype = ctypes.POINTER(_ModelInfo)
        info: _ModelInfo = function().contents
        if info.abi_version != ABI_VERSION:
            rule = f"{file.name} has version {info.abi_version} of the interface, this loader has {ABI_VERSION}"
            raise ArtifactError(rule, remedy="export the model again, or use that version of Tilewright")
        return info

    def _mapped(self, file: Path) -> int | None:
        """The address of weights in a file, where the library has none of its own."""
        try:
            self._library[f"{self.name}_map_weights"]
        except AttributeError:
            return None
        weights = _POINTER()
        status = self._call("map_weights", ctypes.c_char_p(os.fsencode(file)), ctypes.byref(weights))
        if status:
            raise ArtifactError(f"{file}: {self._text(status)}", remedy="keep the exported weights beside the library")
        return weights.value

    def _call(self, function: str, *arguments: Any) -> int:
        return int(self._library[f"{self.name}_{function}"](*arguments))

    def after_fork(self) -> None:
        """Have the library make threads of its own in a forked child, where the model has any."""
        if hasattr(self._library, f"{self.name}_after_fork"):
            self._call("after_fork")

    def _text(self, status: int) -> str:
        function = self._library[f"{self.name}_status_text"]
        function.restype = ctypes.c_char_p
        text: bytes = function(ctypes.c_int32(status))
        return text.decode("utf-8", "replace")

    def _check(self, status: int) -> None:
        if status == 0:
            return
        text, kind = self._text(status), status & 255
        if kind == _KIND_SHAPE:
            raise InputError(text, remedy="pass inputs of those sizes")
        if kind == _KIND_MEMORY:
            raise ResourceError(text, remedy="use smaller inputs, or free memory")
        raise ExecutionError(text, remedy="check the values of the inputs" if kind == _KIND_RUN else "")


def _check_signed(library: Path, name: str, key: str | os.PathLike[str]) -> None:
    """``ArtifactError`` unless a signed record vouches for a library and all that belongs to it."""
    record = library.with_name(f"{name}.json")
    check_signature(record, key)
    if library.name not in {entry.name for entry in check_files(record)}:
        raise ArtifactError(f"{record.name} does not name {library.name}", remedy="export with --shared, and sign that")


def _without(items: Sequence[Item], places: Collection[int]) -> list[Item]:
    """All but those at certain places."""
    return [item for k, item in enumerate(items) if k not in places]


def _both(info: _ModelInfo) -> tuple[tuple[Any, int], tuple[Any, int]]:
    return (info.inputs, info.n_inputs), (info.outputs, info.n_outputs)


def _tensors(infos: Any, n: int) -> tuple[TensorSpec, ...]:
    found = []
    for t in infos[:n] if n else ():
        sizes = tuple(int(t.shape[d]) if t.shape[d] >= 0 else t.dims[d].decode() for d in range(t.rank))
        found.append(TensorSpec(t.name.decode(), DTYPE_NAMES[t.dtype], sizes))
    return tuple(found)


def _symbol(info: _SymbolInfo) -> SymbolSpec:
    return SymbolSpec(info.name.decode(), info.lowest, info.highest if info.highest < (1 << 63) - 1 else None)


def _table(values: Sequence[Any], tensors: Collection[int] = ()) -> Any:
    addresses = [v.data_ptr() if k in tensors else address_of(v) for k, v in enumerate(values)]
    return (_POINTER * max(len(values), 1))(*addresses)
