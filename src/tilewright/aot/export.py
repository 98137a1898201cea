"""A compiled model as files that need no Python: ``NAME.o``, ``NAME.h``, weights, ``NAME.json``.

In: the modules of a compile and options. Out: a folder's files, and what they are.
Not its business: compiling a model to modules (``driver``), linking programs (``cc``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.aot.embed import as_constant, embed
from tilewright.aot.glue import glue_text
from tilewright.aot.header import header_text
from tilewright.aot.interface import Interface, c_name, checked_name
from tilewright.aot.link import link_modules
from tilewright.aot.pool import POOL_SYMBOLS, pool_text
from tilewright.aot.system import system_of
from tilewright.aot.weights_file import weights_header
from tilewright.codegen.target import Target
from tilewright.core.diag import OptionError
from tilewright.core.types import Array
from tilewright.runtime.digest import digest_bytes
from tilewright.runtime.files import write_atomically
from tilewright.runtime.manifest import Manifest

WEIGHTS = ("auto", "embedded", "file")
EMBED_LIMIT = 64 << 20
"""Bytes of weights beyond which ``weights="auto"`` takes a file."""


@dataclass(frozen=True)
class Modules:
    """A compiled model before LLVM: ``texts`` are the entry's and the kernels' modules by name."""

    manifest: Manifest
    target: Target
    texts: dict[str, str]
    weights: Array


@dataclass(frozen=True)
class ExportOptions:
    """``name`` begins every C symbol (default: the model's own). ``threads`` is the most that a call may use."""

    name: str | None = None
    threads: int = 1
    weights: str = "auto"

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise OptionError(f"weights={self.weights!r} is not offered", remedy=f"use one of {list(WEIGHTS)}")
        if self.threads < 1:
            raise OptionError(f"threads={self.threads} is not a number of threads", remedy="use 1 or more")
        if self.name is not None:
            checked_name(self.name)


@dataclass(frozen=True)
class Exported:
    """What an export wrote. ``weights`` is None where they are in the object."""

    name: str
    object: Path
    header: Path
    weights: Path | None

    @property
    def files(self) -> list[Path]:
        """Everything that was written."""
        return [self.object, self.header, *([] if self.weights is None else [self.weights])]


def export(modules: Modules, folder: Path, options: ExportOptions) -> Exported:
    """Write a model's files. ``OSError`` when the folder can't be written."""
    manifest, target = modules.manifest, modules.target
    system = system_of(target.triple)
    weights = modules.weights.data
    interface = Interface(
        name=options.name or c_name((manifest.report or {}).get("model", "model")),
        manifest=manifest,
        max_threads=options.threads if system.pool else 1,
        weights_bytes=weights.nbytes,
        embedded=_is_embedded(options.weights, weights.nbytes),
        arena_bytes=manifest.report["memory"]["arena_bytes"],
        fingerprint=digest_bytes(weights),
    )
    has_data = interface.embedded and weights.nbytes > 0
    through_llvm = has_data and system.object_format != "ELF"
    glue = glue_text(interface, system, as_constant(weights) if through_llvm else "")
    threads = pool_text(system, interface.max_threads, interface.name)
    exported = {*_public(interface.name), *POOL_SYMBOLS}
    features = system.pool.features if system.pool else ""
    data = link_modules([glue, threads, *modules.texts.values()], target, exported, features=features)
    pieces: list[Any] = embed(data, weights) if has_data and not through_llvm else [data]
    folder.mkdir(parents=True, exist_ok=True)
    name = interface.name
    has_file = not interface.embedded and weights.nbytes > 0
    file = folder / f"{name}.safetensors" if has_file else None
    made = Exported(name, folder / f"{name}.o", folder / f"{name}.h", file)
    if file is not None:
        write_atomically(file, [weights_header(weights.nbytes, interface.fingerprint), weights], durable=False)
    write_atomically(made.object, pieces, durable=False)
    write_atomically(made.header, [header_text(interface, system).encode()], durable=False)
    return made


def _is_embedded(choice: str, n_bytes: int) -> bool:
    return choice == "embedded" or (choice == "auto" and n_bytes <= EMBED_LIMIT)


def _public(name: str) -> list[str]:
    functions = (
        "info", "bind", "workspace", "input_shape", "output_shape", "create", "run", "result_shape", "destroy",
        "status_text", "map_weights", "unmap_weights", "after_fork",
    )  # fmt: skip
    return [f"{name}_{f}" for f in functions]
