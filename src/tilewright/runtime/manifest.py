"""The manifest: everything a loader must know about a compiled model, as frozen dataclasses and as JSON.

In: plain values from the compiler, or JSON text from a file. Out: a ``Manifest`` whose every field has been checked.
Not its business: reading files (``artifact``), meaning of shape expressions (``shapes``), running (``model``).
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.errors import ArtifactError

FORMAT_VERSION = 1
"""Version of manifest and ABI together; a file with another number is refused."""

DTYPE_BYTES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""The dtypes an input or output may have, by NumPy (``ml_dtypes``) name, with their size."""

Dim = int | str
"""A size: a number, or an integer expression over symbol names such as ``"2*n + 1"``."""

MAX_RANK = 64
MAX_DIMS = 65_536
MAX_SIZE = (1 << 63) - 1
"""Sizes are i64 in the compiled code."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HEX64 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output: its name, NumPy dtype name and symbolic shape."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class SymbolSpec:
    """A size known at call time: an inclusive range, open above when ``hi`` is None."""

    name: str
    lo: int = 0
    hi: int | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule between symbols, such as ``n % 8 == 0`` or ``a <= b``; ``reason`` says where it comes from."""

    rule: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The machine the objects are for; ``features`` are the LLVM names of those that the code needs."""

    triple: str
    cpu: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightsSpec:
    """Size of the weights blob and its checksum (empty until the model is saved)."""

    size: int = 0
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class ObjectSpec:
    """One native object; ``sha256`` is of its bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A compiled model without its bytes.

    ``dims`` slots of the ABI are, in order: ``symbols`` (bound by the caller from input shapes), ``computed``
    (data-dependent, written by the code), then scratch up to ``n_dims``. ``failures[code]`` is the message for a
    non-zero return of ``tw_run``; entry 0 is the empty string. ``locations`` is empty or as long as ``failures``.
    ``objects`` and ``weights.checksum`` are filled in when the model is saved.
    """

    tilewright_version: str
    target: TargetSpec
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[SymbolSpec, ...] = ()
    computed: tuple[SymbolSpec, ...] = ()
    n_dims: int = 0
    constraints: tuple[Constraint, ...] = ()
    failures: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()
    weights: WeightsSpec = WeightsSpec()
    objects: tuple[ObjectSpec, ...] = ()
    report: Any = None
    format_version: int = FORMAT_VERSION
