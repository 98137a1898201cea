"""GGUF files, as llama.cpp writes them: what a file says of its model, and its tensors.

In: a path. Out: metadata as Python values, and tensors that stay in the mapped file until they are asked for.
Not its business: which model that is (``weights.decoders``), products on codes (``ops.coded``).

The package ``gguf`` reads the container and knows how each type's codes become numbers. A file is data from anywhere,
so whatever the package trips over becomes one ``ImportFailed``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tilewright.core.diag import ImportFailed, Loc, OptionError, Problem
from tilewright.core.types import Array
from tilewright.frontend.weights.blocks import Codes, codes_of
from tilewright.runtime.files import map_file, open_regular, reading
from tilewright.runtime.formats import recognise
from tilewright.runtime.once import MAKING

T = TypeVar("T")
MAGIC = b"GGUF"
READ = frozenset("F32 F16 BF16 F64 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL".split())
"""The types of tensors that are read."""
_FAULTS = (
    ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, UnicodeDecodeError, struct.error, EOFError,
)  # fmt: skip
"""What reading a damaged file may raise in the package."""


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of ``shape``, the fastest axis last, whose ``data`` are codes of ``kind`` in the mapped file."""

    path: Path
    name: str
    kind: str
    shape: tuple[int, ...]
    data: Array

    def numbers(self) -> Array:
        """The tensor in f32: of f32 the mapped file itself, of codes what the package ``gguf`` makes of them.

        ``ImportFailed`` for one that is damaged.
        """
        return self._read(self._numbers)

    def codes(self) -> Codes | None:
        """A matrix in whole numbers or halves as the file has it; None of other types and of what is no matrix.

        ``ImportFailed`` for one that is damaged.
        """
        return self._read(lambda: codes_of(self.data, self.kind, self.shape))

    def _numbers(self) -> Array:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        if self.kind == "F32":
            return self.data.reshape(self.shape)
        with np.errstate(all="ignore"):  # codes and scales are anybody's numbers
            if self.kind in ("F16", "F64"):
                return self.data.astype(np.float32).reshape(self.shape)
            return np.asarray(dequantize(self.data, GGMLQuantizationType[self.kind]), np.float32).reshape(self.shape)

    def _read(self, read: Callable[[], T]) -> T:
        from gguf.quants import QuantError

        try:
            return read()
        except (*_FAULTS, QuantError) as error:
            raise broken(self.path, f"{self.name} can't be read: {error}"[:200]) from error


@dataclass(frozen=True)
class GgufFile:
    """What a file holds; ``fields`` are its metadata by key, read when they are asked for."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """A metadatum of one kind; ``ImportFailed`` where it is of another, or missing without a ``default``."""
        try:
            value = self.fields[key].contents() if key in self.fields else default
        except _FAULTS as error:
            raise broken(self.path, f"{key} can't be read: {error}"[:200]) from error
        if isinstance(value, int) and not isinstance(value, bool) and kind is float:
            value = float(value)
        if not isinstance(value, kind):
            raise broken(self.path, f"{key} is {value!r:.60} and must be of type {kind.__name__}")
        return value


def broken(path: Path, rule: str, remedy: str = "download or convert the file anew") -> ImportFailed:
    """That a file is not what it says."""
    problem = Problem(Loc(str(path)), "GGUF", rule, remedy)
    return ImportFailed("the GGUF file can't be read", [problem])


def open_gguf(path: Path) -> GgufFile:
    """Map a file and read what it says; ``ImportFailed`` for a damaged one and for types that are not read.

    ``FileError`` where there is no such file.
    """
    try:
        with MAKING:
            from gguf import GGUFReader
    except ImportError as error:
        raise OptionError("GGUF files need the package gguf", remedy='pip install "tilewright[weights]"') from error
    with reading(path, "pass the path of a GGUF file"), open_regular(path) as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        if found := recognise(map_file(path)[0]):
            raise broken(path, f"it is {found.what}", found.remedy)
        raise broken(path, "it does not begin as a GGUF file does")
    try:
        with np.errstate(all="ignore"):
            reader = GGUFReader(path)
            tensors = {t.name: _tensor(path, t) for t in reader.tensors}
    except _FAULTS as error:
        raise broken(path, f"it is damaged: {type(error).__name__}: {error}"[:200]) from error
    _check_types(path, tensors)
    return GgufFile(path, reader.fields, tensors)


def _tensor(path: Path, t: Any) -> GgufTensor:
    """A tensor of the package; sizes are listed with the fastest first."""
    shape = tuple(int(n) for n in t.shape[::-1])
    if int(t.n_elements) != np.prod(shape, dtype=object):
        raise ValueError(f"{t.name} has {t.n_elements} elements and the shape {shape}")
    return GgufTensor(path, str(t.name), t.tensor_type.name, shape, t.data)


def _check_types(path: Path, tensors: Mapping[str, GgufTensor]) -> None:
    remedy = f"quantise to one of {', '.join(sorted(READ))}"
    problems = [
        Problem(Loc(f"{path}: {t.name}"), "GGUF", f"tensors of type {t.kind} are not read", remedy)
        for t in tensors.values()
        if t.kind not in READ
    ]
    if problems:
        raise ImportFailed(f"{len(problems)} tensors of the GGUF file can't be read", problems)
