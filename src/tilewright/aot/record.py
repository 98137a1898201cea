"""``NAME.json``: what an export is made of and for, to be read by people, package tools and loaders.

In: an ``Interface`` and facts about the compile and the files. Out: JSON text, the same for the same input anywhere: no
dates, no paths, no host names. Not its business: reading it (``runtime.record``), signatures (``runtime.signature``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from tilewright.aot.interface import ABI_VERSION, ALIGNMENT, Interface
from tilewright.aot.sizes import SizeRow
from tilewright.runtime.record import FORMAT, RECORD_VERSION, FileEntry


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
    # a row's name is the kernel's symbol, then its ops
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
            "handle_bytes": of.scratch_at,
            "scratch_bytes": of.scratch_bytes,
            "stack_bytes": of.stack_bytes,
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


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
