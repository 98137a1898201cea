"""``NAME.json``: what an export is made of and for, to be read by people, package tools and loaders.

In: an ``Interface`` and facts about the compile and the files. Out: JSON text, the same for the same input anywhere: no
dates, no paths, no host names. Back: checked values. Not its business: signatures (``sign``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from tilewright.aot.interface import ABI_VERSION, ALIGNMENT, Interface
from tilewright.aot.sizes import SizeRow
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.fields import FieldError, Fields, decode_json

RECORD_VERSION = 1
FORMAT = "tilewright-aot"


@dataclass(frozen=True)
class FileEntry:
    """A file of an export: ``role`` is object, header, weights, library or archive."""

    role: str
    name: str
    size: int
    sha256: str


def record_text(
    of: Interface,
    files: Sequence[FileEntry],
    sizes: Sequence[SizeRow],
    source: Mapping[str, Any],
    options: Mapping[str, Any],
    needed: Sequence[str],
) -> str:
    """The record as JSON, keys in order."""
    m, report = of.manifest, of.manifest.report or {}
    by_kernel = {row.name.split()[0]: row.n_bytes for row in sizes if row.kind == "kernel"}
    rows = report.get("kernels", [])
    return _dumps({
        "format": FORMAT,
        "format_version": RECORD_VERSION,
        "abi_version": ABI_VERSION,
        "name": of.name,
        "target": asdict(m.target),
        "options": dict(options),
        "max_threads": of.max_threads,
        "source": dict(source),
        "files": [asdict(f) for f in files],
        "inputs": [asdict(t) for t in m.inputs],
        "outputs": [asdict(t) for t in m.outputs],
        "symbols": [asdict(s) for s in m.symbols],
        "computed": [asdict(s) for s in m.computed],
        "constraints": [asdict(c) for c in m.constraints],
        "memory": {
            "alignment": ALIGNMENT,
            "handle_bytes": of.arena_at,
            "arena_bytes": of.arena_bytes,
            "weights_bytes": of.weights_bytes,
            "weights_fingerprint": of.fingerprint,
            "weights_embedded": of.embedded,
        },
        "kernels": [
            {"name": k["name"], "ops": k["ops"], "calls": k["calls"], "bytes": by_kernel.get(k["name"])} for k in rows
        ],
        "sizes": [asdict(row) for row in sizes],
        "needed_symbols": list(needed),
        "components": components(source),
    })  # fmt: skip


def components(source: Mapping[str, Any]) -> list[dict[str, str]]:
    """What the files were made with and of: the rows of a software bill of materials."""
    llvm_version = ".".join(map(str, llvm.llvm_version_info))
    return [
        {"name": "tilewright", "version": version("tilewright"), "license": "Apache-2.0",
         "role": "compiler; the thread pool and the C interface in the object are its text"},
        {"name": "llvmlite", "version": llvmlite.__version__, "license": "BSD-2-Clause", "role": "code generator"},
        {"name": "LLVM", "version": llvm_version, "license": "Apache-2.0 WITH LLVM-exception",
         "role": "code generator; none of its libraries is in the object"},
        {"name": "model", "version": str(source.get("sha256", "")), "license": "NOASSERTION",
         "role": "the weights and the computation"},
    ]  # fmt: skip


def entry_of(role: str, path: Path, pieces: Sequence[Any]) -> FileEntry:
    """The row of a file with these pieces."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += memoryview(piece).nbytes
    return FileEntry(role, path.name, size, digest.hexdigest())


def read_record(path: Path) -> tuple[Fields, bytes]:
    """The record and its bytes; ``ArtifactError`` when the file is none of ours or of a later version."""
    remedy = "export the model again"
    try:
        raw = path.read_bytes()
        fields = Fields(decode_json(raw), path.name)
        if fields.any("format") != FORMAT:
            raise FieldError("not the record of an export")
        if fields.integer("format_version", 1) > RECORD_VERSION:
            raise FieldError(f"of a later version; this one reads up to {RECORD_VERSION}")
    except OSError as error:
        raise ArtifactError(f"can't read {str(path)!r}: {error}", remedy="check the path") from error
    except FieldError as error:
        raise ArtifactError(f"{path.name}: {error}", remedy=remedy) from error
    return fields, raw


def check_files(record: Path) -> list[FileEntry]:
    """The files that a record names, all as they were written; else ``ArtifactError`` naming those that differ."""
    fields, _ = read_record(record)
    try:
        entries = [
            FileEntry(f.text("role"), f.text("name"), f.integer("size", 0), f.digest("sha256"))
            for f in fields.children("files")
        ]
    except FieldError as error:
        raise ArtifactError(f"{record.name}: {error}", remedy="export the model again") from error
    wrong = [problem for entry in entries if (problem := _problem(record.parent, entry))]
    if wrong:
        raise ArtifactError(f"{record.name}: " + "; ".join(wrong), remedy="export the model again")
    return entries


def _problem(folder: Path, entry: FileEntry) -> str:
    if Path(entry.name).name != entry.name or entry.name in ("", ".", ".."):
        return f"{entry.name!r} is not the name of a file beside it"
    try:
        with (folder / entry.name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"{entry.name} can't be read ({error.strerror})"
    return "" if digest == entry.sha256 else f"{entry.name} is not the file that was exported"


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
