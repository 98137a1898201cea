"""The manifest: everything a loader must know about a compiled model, as frozen dataclasses and as JSON.

In: plain values from the compiler, or JSON text from a file. Out: a ``Manifest`` whose every field has been checked.
Not its business: reading files (``artifact``), meaning of shape expressions (``shapes``), running (``model``).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.fields import FieldError, Fields, decode_json
from tilewright.runtime.plain import dataclass
from tilewright.runtime.structure import FLAT, Convention

FORMAT_VERSION = 2
"""Version of manifest and ABI together, as it is written. A change that an older reader would take for something else
raises it, and ``artifact`` keeps a reader for each number before it; a higher one is refused."""

DTYPE_BYTES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn": 1,
    "int4": 1, "uint4": 1, "int2": 1, "uint2": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""The dtypes an input or output may have, by NumPy (``ml_dtypes``) name, with their size."""

COMPLEX_OF = {"float32": "complex64", "float64": "complex128"}
"""Complex dtypes by that of their parts. The code knows their tensors as parts along a last axis of length 2, and
``tw_plan`` gives that length too."""

COMPLEX = frozenset(COMPLEX_OF.values())

Dim = int | str
"""A size: a number, or an integer expression over symbol names such as ``"2*n + 1"``."""

MAX_RANK = 64
"""NumPy's own limit."""

MAX_DIMS = 65_536
"""Most slots of the dimension table."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output: its name, NumPy dtype name and symbolic shape."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    @property
    def n_planned(self) -> int:
        """How many sizes ``tw_plan`` gives for an output like this."""
        return len(self.shape) + (self.dtype in COMPLEX)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class SymbolSpec:
    """A size known at call time: an inclusive range, open above when ``hi`` is None.

    For a computed size ``hi`` may be an expression over the inputs' symbols; it is what ``tw_plan`` finds in the slot.
    """

    name: str
    lo: int = 0
    hi: Dim | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule between symbols, such as ``n % 8 == 0`` or ``a <= b``; ``reason`` says where it comes from."""

    rule: str
    reason: str = ""


GPU_ARCHITECTURES = ("nvptx", "amdgcn", "spirv")
"""How triples of GPUs begin."""


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The machine the objects are for; ``features`` are the LLVM names of those that the code needs."""

    triple: str
    cpu: str
    features: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Are the objects for a GPU, which a driver runs, and no machine code of a host?"""
        return self.triple.startswith(GPU_ARCHITECTURES)


@dataclass(frozen=True, slots=True)
class WeightsSpec:
    """Size of the weights blob and its checksum (empty until the model is saved)."""

    size: int = 0
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class ScratchSpec:
    """Bytes that kernels need beside their parameters: ``fixed`` ones, and ``per_thread`` for each thread of the call.

    Of a model they lie in front of the arena; a thread's include its flag (``codegen.cpu.scratch``).
    """

    fixed: int = 0
    per_thread: int = 0

    @staticmethod
    def most(of: Iterable[ScratchSpec]) -> ScratchSpec:
        """Enough for each of several that are not needed at one time."""
        found = list(of)
        return ScratchSpec(max((s.fixed for s in found), default=0), max((s.per_thread for s in found), default=0))

    def n_bytes(self, threads: int) -> int:
        """Bytes in all."""
        return self.fixed + self.per_thread * threads


@dataclass(frozen=True, slots=True)
class DecodingSpec:
    """Of a step of a language model (``python.decoder``): tokens that a prompt is read by, and that its cache holds."""

    chunk: int
    max_length: int


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
    ``routines`` are those of libraries that the code calls where they are there (``routines``). ``decoding`` is there
    where the model is a step of a decoder. ``text`` is the part that Python runs on text before the code
    (``texts.TextPart`` as JSON), empty for other models; the other fields tell of the code alone.
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
    scratch: ScratchSpec = ScratchSpec()
    weights: WeightsSpec = WeightsSpec()
    objects: tuple[ObjectSpec, ...] = ()
    report: Any = None
    convention: Convention = FLAT
    routines: tuple[str, ...] = ()
    decoding: DecodingSpec | None = None
    text: str = ""
    format_version: int = FORMAT_VERSION

    def with_facts(self, **facts: Any) -> Manifest:
        """The same with facts added to a copy of the report: a thread may be writing this one to disk meanwhile."""
        return dataclasses.replace(self, report={**(self.report or {}), **facts})

    def to_json(self) -> str:
        """The manifest as canonical JSON: equal manifests give equal text."""
        fields = dataclasses.asdict(dataclasses.replace(self, convention=FLAT))
        del fields["convention"]
        if self.scratch == ScratchSpec():  # models without some are files that releases before it read
            del fields["scratch"]
        if not self.routines:
            del fields["routines"]
        if self.decoding is None:
            del fields["decoding"]
        if not self.text:
            del fields["text"]
        if self.convention:  # the same
            fields["convention"] = self.convention.to_json()
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Parse and check every field; ``ArtifactError`` names the first one that is wrong."""
        try:
            fields = Fields(decode_json(text), "manifest")
            version = fields.integer("format_version", 1)
            if version > FORMAT_VERSION:
                what = f"format version {version} is newer than {FORMAT_VERSION}, the last one that this release reads"
                raise ArtifactError(what, remedy="load it with the release that wrote it, or with a newer one")
            return _manifest(fields)
        except FieldError as error:
            raise ArtifactError(str(error), remedy="compile the model again with this release") from error


def _manifest(f: Fields) -> Manifest:
    inputs, outputs = (tuple(_tensor(c) for c in f.children(kind)) for kind in ("inputs", "outputs"))
    names = [[t.name for t in tensors] for tensors in (inputs, outputs)]
    made = Manifest(
        format_version=f.integer("format_version", 1),
        tilewright_version=f.text("tilewright_version"),
        target=_target(f.child("target")),
        inputs=inputs,
        outputs=outputs,
        symbols=tuple(_symbol(c) for c in f.children("symbols")),
        computed=tuple(_symbol(c) for c in f.children("computed")),
        n_dims=f.integer("n_dims", 0, MAX_DIMS),
        constraints=tuple(_constraint(c) for c in f.children("constraints")),
        failures=f.texts("failures"),
        locations=f.texts("locations"),
        scratch=_scratch(f.child("scratch")) if f.has("scratch") else ScratchSpec(),
        weights=_weights(f.child("weights")),
        objects=tuple(_object(c) for c in f.children("objects")),
        report=f.any("report"),
        convention=Convention.from_json(f.child("convention"), *names) if f.has("convention") else FLAT,
        routines=f.texts("routines") if f.has("routines") else (),
        decoding=_decoding(f.child("decoding")) if f.has("decoding") else None,
        text=f.text("text") if f.has("text") else "",
    )
    f.finish()
    return made


def _target(f: Fields) -> TargetSpec:
    made = TargetSpec(f.text("triple"), f.text("cpu"), f.texts("features"))
    f.finish()
    return made


def _tensor(f: Fields) -> TensorSpec:
    made = TensorSpec(f.text("name"), f.choice("dtype", DTYPE_BYTES), f.sizes("shape", MAX_RANK))
    f.finish()
    return made


def _symbol(f: Fields) -> SymbolSpec:
    made = SymbolSpec(f.identifier("name"), f.integer("lo"), f.optional_size("hi"))
    f.finish()
    return made


def _constraint(f: Fields) -> Constraint:
    made = Constraint(f.text("rule"), f.text("reason"))
    f.finish()
    return made


def _scratch(f: Fields) -> ScratchSpec:
    made = ScratchSpec(f.integer("fixed", 0), f.integer("per_thread", 0))
    f.finish()
    return made


def _decoding(f: Fields) -> DecodingSpec:
    made = DecodingSpec(f.integer("chunk", 1), f.integer("max_length", 1))
    f.finish()
    return made


def _weights(f: Fields) -> WeightsSpec:
    made = WeightsSpec(f.integer("size", 0), f.text("checksum"))
    f.finish()
    return made


def _object(f: Fields) -> ObjectSpec:
    made = ObjectSpec(f.text("name"), f.integer("size", 1), f.digest("sha256"))
    f.finish()
    return made
