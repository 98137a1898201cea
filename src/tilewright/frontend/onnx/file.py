"""Reads ONNX models and their tensors from untrusted files.

In: a path, bytes or a ``ModelProto``. Out: a parsed ``ModelProto`` and, for each ``TensorProto``, a read-only NumPy
array that views the bytes where they lie (the message's own bytes, or what was read of an external file).
Not its business: what the model's nodes mean.

Everything in a file is checked before it is used: sizes in Python integers against the bytes that are there, so no
claim in a file makes us allocate; external files are opened component by component below the model's folder, without
following links, and must be regular files with one name. Each byte is read once: a file that is overwritten meanwhile
can't be one thing to who digests it and another to who compiles it.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tilewright.core.diag import ImportFailed, Loc, OptionError, Problem
from tilewright.core.types import (
    Array,
    DType,
    bf16,
    bool_,
    f4e2m1,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i16,
    i32,
    i64,
    u2,
    u4,
    u8,
    u16,
    u32,
    u64,
)
from tilewright.frontend.onnx.wire import LARGE_BYTES, Numbers, without_large_tensors
from tilewright.runtime.files import FileContent
from tilewright.runtime.formats import recognise
from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

MAX_PROTO_BYTES = 2**31 - 1
MAX_SPARSE_ELEMENTS = 1 << 24

# TensorProto.DataType, a frozen part of the format
ELEMENT_TYPES: dict[int, DType] = {
    1: f32, 2: u8, 3: i8, 4: u16, 5: i16, 6: i32, 7: i64, 9: bool_, 10: f16, 11: f64, 12: u32, 13: u64, 16: bf16,
    17: f8e4m3fn, 18: f8e4m3fnuz, 19: f8e5m2, 20: f8e5m2fnuz, 21: u4, 22: i4, 23: f4e2m1, 24: f8e8m0, 25: u2, 26: i2,
}  # fmt: skip
ELEMENT_TYPE_NAMES: dict[int, str] = {0: "undefined", 14: "complex64", 15: "complex128"}
_FIELD_OF_TYPE: dict[int, str] = {
    1: "float_data", 2: "int32_data", 3: "int32_data", 4: "int32_data", 5: "int32_data", 6: "int32_data",
    7: "int64_data", 9: "int32_data", 10: "int32_data", 11: "double_data", 12: "uint64_data", 13: "uint64_data",
    16: "int32_data", **dict.fromkeys(range(17, 27), "int32_data"),
}  # fmt: skip


class BadTensor(Exception):
    """A tensor's description contradicts itself or its bytes; the message is the rule that it breaks."""

    def __init__(self, rule: str, remedy: str = "") -> None:
        self.rule, self.remedy = rule, remedy
        super().__init__(rule)


class StringTensor(BadTensor):
    """A tensor of strings, which is well formed and no tensor of numbers."""


STRING = 8
STRINGS_RULE = "holds strings, and tensors hold numbers only"
STRINGS_REMEDY = "map strings to numbers before the model"


def element_type(code: int) -> DType:
    """The dtype of a ``TensorProto.DataType`` code; raises ``BadTensor``."""
    if code in ELEMENT_TYPES:
        return ELEMENT_TYPES[code]
    if code == STRING:
        raise StringTensor(STRINGS_RULE, STRINGS_REMEDY)
    known = ELEMENT_TYPE_NAMES.get(code)
    supported = ", ".join(d.name for d in ELEMENT_TYPES.values())
    rule = f"element type {known} is not supported" if known else f"unknown element type code {code}"
    raise BadTensor(rule, f"convert the tensor to one of {supported}")


@dataclass(frozen=True)
class Source:
    """A parsed model; ``folder`` is where its external tensors may lie (None when it came without a path).

    ``numbers`` has the bytes of large initializers of the main graph, which the message itself lacks.
    """

    model: ModelProto
    folder: Path | None = None
    numbers: Sequence[Numbers] = ()


def read_model(source: str | Path | FileContent | bytes | ModelProto) -> Source:
    """The parsed model; raises ``ImportFailed``, and ``OptionError`` where the package ``onnx`` is missing."""
    found = _recognised(source)
    return _parse(*found) if isinstance(found, tuple) else Source(found)


def whole_model(source: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, Path | None]:
    """A message of its own with all numbers but external ones, and the folder of these; raises as ``read_model``."""
    found = _recognised(source)
    if isinstance(found, tuple):
        return _message(found[0], found[1]), found[2]
    from onnx import ModelProto

    model = ModelProto()
    model.CopyFrom(found)
    return model, None


def _recognised(source: Any) -> ModelProto | tuple[memoryview, str, Path | None]:
    """A message, or ``_bytes_of`` another source that may be ONNX."""
    data = _bytes_of(source)
    if data is not None and (found := recognise(data[0])) is not None:
        raise _failed(data[1], f"is {found.what}", found.remedy)
    try:
        with MAKING:
            from onnx import ModelProto
    except ImportError as error:
        raise OptionError("ONNX models need the package onnx", remedy='pip install "tilewright[onnx]"') from error
    if isinstance(source, ModelProto):
        return source
    if data is None:
        raise _failed("source", f"expected a path, bytes or an onnx ModelProto, got {type(source).__name__}")
    return data


def _bytes_of(source: Any) -> tuple[memoryview, str, Path | None] | None:
    """The bytes of a source that has some, where they are, and the folder that they lie in."""
    if isinstance(source, bytes | bytearray | memoryview):
        return memoryview(bytes(source)), "the given bytes", None
    if isinstance(source, FileContent):
        return memoryview(source.data), str(source.path), Path(source.path).parent
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    return memoryview(_read_regular(path)), str(path), path.parent


def _failed(where: str, rule: str, remedy: str = "") -> ImportFailed:
    return ImportFailed("the ONNX model can't be read", [Problem(Loc(where), "model", rule, remedy)])


def _read_regular(path: Path) -> bytes:
    """The bytes of a regular file."""
    try:
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise _failed(str(path), "is not a regular file")
            if info.st_size > MAX_PROTO_BYTES:
                raise _failed(
                    str(path),
                    f"has {info.st_size} bytes, more than a protobuf message can hold ({MAX_PROTO_BYTES})",
                    "save it with its tensors as external data: onnx.save(model, path, save_as_external_data=True)",
                )
            return file.read()
    except (OSError, ValueError) as e:
        raise _failed(str(path), f"can't be read: {getattr(e, 'strerror', None) or e}", "check the path") from e


def _message(data: memoryview | bytes, where: str) -> ModelProto:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # protobuf ships no types
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(bytes(data))
    except (DecodeError, RuntimeError, ValueError) as e:
        remedy = "the file is truncated, damaged or not ONNX; export or download it again"
        raise _failed(where, "is not a readable ONNX protobuf message", remedy) from e
    return model


def _parse(data: memoryview, where: str, folder: Path | None) -> Source:
    message, numbers = without_large_tensors(data)
    model = _message(message, where)
    if len(numbers) != len(model.graph.initializer):
        numbers = [None] * len(model.graph.initializer)
        model.ParseFromString(bytes(data))
    return Source(model, folder, numbers)


class TensorReader:
    """Turns ``TensorProto`` messages into arrays; opens each external file once."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: dict[str, io.FileIO] = {}

    def read(self, tensor: TensorProto, numbers: Numbers = None) -> Array:
        """The tensor's array; raises ``BadTensor``. Large tensors are views, not copies.

        ``numbers`` are its raw bytes where the message was parsed without them.
        """
        dtype = element_type(tensor.data_type)
        shape = _checked_shape(tensor.dims)
        n = _count(shape)
        if tensor.HasField("segment"):
            raise BadTensor("is stored in segments, which no exporter writes")
        if tensor.data_location == 1:
            return self._external(tensor, dtype, n).reshape(shape)
        if tensor.HasField("raw_data"):
            return _from_bytes(tensor.raw_data if numbers is None else numbers, dtype, n).reshape(shape)
        return _from_field(getattr(tensor, _FIELD_OF_TYPE[tensor.data_type]), dtype, n).reshape(shape)

    def read_sparse(self, sparse: Any) -> Array:
        """A ``SparseTensorProto`` made dense."""
        shape = _checked_shape(sparse.dims)
        if _count(shape) > MAX_SPARSE_ELEMENTS:
            raise BadTensor(f"sparse tensor with {_count(shape)} elements is too large to make dense")
        values, indices = self.read(sparse.values).reshape(-1), self.read(sparse.indices)
        dense = np.zeros(_count(shape), values.dtype)
        if indices.ndim == 2:
            if indices.shape[1] != len(shape) or ((indices < 0) | (indices >= np.array(shape))).any():
                raise BadTensor("sparse indices lie outside the tensor")
            indices = np.ravel_multi_index(tuple(indices.T), shape) if len(shape) else indices[:, 0]
        if indices.shape != values.shape or (indices < 0).any() or (indices >= max(dense.size, 1)).any():
            raise BadTensor("sparse indices don't match the values, or lie outside the tensor")
        dense[indices] = values
        return dense.reshape(shape)

    def _external(self, tensor: TensorProto, dtype: DType, n: int) -> Array:
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        offset, length = _natural(entries, "offset", 0), _natural(entries, "length", _stored_bytes(dtype, n))
        if location not in self._files:
            self._files[location] = self._open(location)
        size = os.fstat(self._files[location].fileno()).st_size
        if offset + length > size:
            raise BadTensor(
                f"needs bytes {offset}..{offset + length} of {location!r}, which has {size}",
                "the external data file is truncated or belongs to another model",
            )
        if dtype.is_narrow and length == _stored_bytes(dtype, n):
            return _from_bytes(_read_part(self._files[location], offset, length).data, dtype, n)
        if length != n * dtype.n_bytes:
            raise BadTensor(f"external data has {length} bytes where {n} {dtype} elements need {n * dtype.n_bytes}")
        return _checked_bool(_read_part(self._files[location], offset, length).view(dtype.numpy), dtype)

    def _open(self, location: str) -> io.FileIO:
        if self._folder is None:
            raise BadTensor(
                "keeps its numbers in an external file, but the model was given without a path",
                "pass the path of the .onnx file instead of its bytes or message",
            )
        parts = location.split("/")
        if not location or "\0" in location or "\\" in location or any(p in ("", ".", "..") for p in parts):
            raise BadTensor(
                f"external data location {location!r} must be a plain relative path inside the model's folder"
            )
        try:
            with _opened_below(self._folder, parts) as fd:
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode):
                    raise BadTensor(f"external data {location!r} is not a regular file")
                if info.st_nlink > 1:
                    raise BadTensor(f"external data {location!r} is a hard link", "copy the file instead of linking it")
                return io.FileIO(os.dup(fd))
        except OSError as e:
            remedy = "keep the data file beside the model; symbolic links are refused"
            raise BadTensor(f"external data {location!r} can't be opened: {e.strerror}", remedy) from e


def _read_part(file: io.FileIO, offset: int, length: int) -> Array:
    """Bytes of a file that was long enough a moment ago."""
    data = np.empty(length, np.uint8)
    done = 0
    while done < length:
        n = os.preadv(file.fileno(), [data[done:].data], offset + done)
        if not n:
            raise BadTensor("lost its end while it was read", "let nobody write to the model's files meanwhile")
        done += n
    data.flags.writeable = False
    return data


@contextmanager
def _opened_below(folder: Path, parts: list[str]) -> Iterator[int]:
    """A descriptor of ``folder/parts...`` reached through directory handles, with links refused at every step."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            kind = os.O_NONBLOCK if last else os.O_DIRECTORY
            deeper = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=fd)
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        os.close(fd)


def _natural(entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadTensor(f"external data {key} {text[:40]!r} is not a natural number")
    return int(text)


def fixed_size(dim: Any) -> int | None:
    """What a declared dimension says that its size is; None for a name, nothing, or a number that is no size."""
    return int(dim.dim_value) if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0 else None


def _checked_shape(dims: Any) -> tuple[int, ...]:
    shape = tuple(int(d) for d in dims)
    if any(d < 0 for d in shape):
        raise BadTensor(f"shape {list(shape)} has a negative dimension")
    if len(shape) > 64:
        raise BadTensor(f"has {len(shape)} dimensions, more than 64")
    return shape


def _count(shape: tuple[int, ...]) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


def _stored_bytes(dtype: DType, n: int) -> int:
    """The bytes of ``n`` elements in a file, where those of 4 and 2 bits share a byte."""
    return -(-n * dtype.bits // 8) if dtype.is_narrow else n * dtype.n_bytes


def _unpacked(raw: bytes | memoryview, dtype: DType, n: int) -> Array:
    """Elements that lie several to a byte, the first in the lowest bits, a byte each."""
    packed = np.frombuffer(raw, np.uint8)
    parts = [(packed >> shift) & ((1 << dtype.bits) - 1) for shift in range(0, 8, dtype.bits)]
    return np.stack(parts, -1).reshape(-1)[:n].copy().view(dtype.numpy)


def _from_bytes(raw: bytes | memoryview, dtype: DType, n: int) -> Array:
    if dtype.is_narrow and len(raw) == _stored_bytes(dtype, n):
        return _unpacked(raw, dtype, n) if dtype.bits < 8 else np.frombuffer(raw, dtype.numpy)
    if len(raw) != n * dtype.n_bytes:
        raise BadTensor(f"has {len(raw)} bytes where {n} {dtype} elements need {_stored_bytes(dtype, n)}")
    return _checked_bool(np.frombuffer(raw, dtype.numpy), dtype)


def _checked_bool(array: Array, dtype: DType) -> Array:
    """Bools must be stored as 0 or 1. Large views may lie at any address; small ones are copied to aligned memory."""
    if dtype is bool_ and array.size and array.view(np.uint8).max() > 1:
        raise BadTensor("has bool elements that are neither 0 nor 1")
    return np.require(array, requirements="A") if array.nbytes < LARGE_BYTES else array


def _from_field(values: Any, dtype: DType, n: int) -> Array:
    if dtype.is_narrow:
        codes = np.array(values, np.int64)
        if codes.size != _stored_bytes(dtype, n) or (codes.size and (codes.min() < 0 or codes.max() > 0xFF)):
            raise BadTensor(f"has elements that are not the bytes of {n} {dtype} elements")
        return _from_bytes(codes.astype(np.uint8).tobytes(), dtype, n)
    if len(values) != n:
        raise BadTensor(f"has {len(values)} elements where its shape needs {n}")
    if dtype in (f16, bf16):
        bits = np.array(values, np.int64)
        if bits.size and (bits.min() < 0 or bits.max() > 0xFFFF):
            raise BadTensor(f"has elements that are not {dtype} bit patterns")
        return bits.astype(np.uint16).view(np.float16 if dtype is f16 else ml_dtypes.bfloat16)
    if dtype.is_float:
        return np.array(values, dtype.numpy)
    wide = np.array(values, np.uint64 if dtype in (u32, u64) else np.int64)
    if wide.size and (int(wide.min()) < dtype.min or int(wide.max()) > dtype.max):
        raise BadTensor(f"has elements outside the range of {dtype}")
    return wide.astype(dtype.numpy)
