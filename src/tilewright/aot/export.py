"""A compiled model as files that need no Python: ``NAME.o``, ``NAME.h``, weights, ``NAME.json``.

In: the modules of a compile and options. Out: a folder's files, and what they are.
Not its business: compiling a model to modules (``driver``), linking programs (``cc``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.aot.archive import archive_pieces
from tilewright.aot.cc import library_name, link_shared, need_zig
from tilewright.aot.embed import as_constant, embed
from tilewright.aot.freestanding import freestanding_symbols, freestanding_text
from tilewright.aot.glue import glue_text
from tilewright.aot.header import header_text
from tilewright.aot.interface import Interface, c_name, checked_name
from tilewright.aot.link import link_modules, merged_text
from tilewright.aot.pool import POOL_SYMBOLS, pool_text
from tilewright.aot.record import entry_of, record_text
from tilewright.aot.sizes import SizeRow, size_rows
from tilewright.aot.stack import stack_of
from tilewright.aot.system import System, system_of
from tilewright.aot.weights_file import weights_header
from tilewright.core.diag import OptionError
from tilewright.core.types import Array
from tilewright.runtime.cpu.pool import MAX_THREADS
from tilewright.runtime.digest import digest_bytes
from tilewright.runtime.elf import ElfObject
from tilewright.runtime.files import write_atomically
from tilewright.runtime.host import misfit
from tilewright.runtime.manifest import Manifest, TargetSpec
from tilewright.target.target import Target

WEIGHTS = ("auto", "embedded", "file")
EMBED_LIMIT = 64 << 20
"""Bytes of weights beyond which ``weights="auto"`` takes a file."""
MOST_EMBEDDED = (2 << 30) - (64 << 20)


@dataclass(frozen=True)
class Modules:
    """A compiled model before LLVM: ``texts`` are the entry's and the kernels' modules by name.

    ``weight_rows`` are the constants' labels and bytes, ``source`` facts about what was compiled, as JSON values.
    """

    manifest: Manifest
    target: Target
    texts: dict[str, str]
    weights: Array
    weight_rows: list[tuple[str, int]]
    source: dict[str, Any]


@dataclass(frozen=True)
class ExportOptions:
    """``name`` begins every C symbol (default: the model's own). ``threads`` is the most that a call may use.

    ``weights`` is "embedded", "file" or "auto"; ``shared`` and ``static`` ask for libraries too.
    """

    name: str | None = None
    threads: int = 1
    weights: str = "auto"
    shared: bool = False
    static: bool = False

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise OptionError(f"weights={self.weights!r} is not offered", remedy=f"use one of {list(WEIGHTS)}")
        if self.threads < 1:
            raise OptionError(f"threads={self.threads} is not a number of threads", remedy="use 1 or more")
        if self.name is not None:
            checked_name(self.name)


@dataclass(frozen=True)
class Exported:
    """What an export wrote. ``weights`` is None where they are in the object; ``sizes`` add up to the object."""

    name: str
    object: Path
    header: Path
    record: Path
    weights: Path | None
    library: Path | None
    archive: Path | None
    sizes: tuple[SizeRow, ...]

    @property
    def files(self) -> list[Path]:
        """Everything that was written."""
        found = [self.object, self.header, self.record, self.weights, self.library, self.archive]
        return [path for path in found if path is not None]


def export(modules: Modules, folder: Path, options: ExportOptions) -> Exported:
    """Write a model's files. ``OSError`` when the folder can't be written."""
    system = system_of(modules.target.triple)
    _check_libraries(options, modules.target, system)
    of = _interface(modules, options, system)
    weights = modules.weights.data
    data, pieces, of = _object(modules, of, system)
    # a second piece is weights, which stand behind the object and are not in `data`
    sizes = size_rows(data, of.name, _labels(modules.manifest), modules.weight_rows, len(weights) * (len(pieces) - 1))
    header = header_text(of, system).encode()
    elf = ElfObject(data) if system.object_format == "ELF" else None
    folder.mkdir(parents=True, exist_ok=True)
    named = {"object": f"{of.name}.o", "header": f"{of.name}.h", "weights": f"{of.name}.safetensors"}
    contents: dict[str, list[Any]] = {"object": pieces, "header": [header]}
    if not of.embedded and of.weights_bytes:
        contents["weights"] = [weights_header(of.weights_bytes, of.fingerprint), weights]
    if options.static and elf:
        named["archive"] = f"lib{of.name}.a"
        contents["archive"] = archive_pieces(named["object"], pieces, elf.defined())
    paths = {role: folder / named[role] for role in contents}
    # not durable: after a loss of power one can export again
    for role, content in contents.items():
        write_atomically(paths[role], content, durable=False)
    entries = [entry_of(role, paths[role], content) for role, content in contents.items()]
    if options.shared:  # here, as the linker reads the object from the disk
        library = paths["library"] = folder / library_name(of.name, modules.target.triple, system)
        link_shared(
            paths["object"].resolve(), library.resolve(), name=of.name, triple=modules.target.triple, system=system,
            is_host=_is_host(modules.target), has_threads=of.max_threads > 1,
        )  # fmt: skip
        entries.append(entry_of("library", library, [library.read_bytes()]))
    report = modules.manifest.report
    needed = elf.undefined() if elf else []
    record = record_text(of, entries, sizes, modules.source, report["options"], needed)
    paths["record"] = folder / f"{of.name}.json"  # last, as it holds the digests of all other files
    write_atomically(paths["record"], [record.encode()], durable=False)
    return Exported(
        of.name, paths["object"], paths["header"], paths["record"], paths.get("weights"), paths.get("library"),
        paths.get("archive"), tuple(sizes),
    )  # fmt: skip


def _interface(modules: Modules, options: ExportOptions, system: System) -> Interface:
    report = modules.manifest.report
    return Interface(
        name=options.name or c_name(report["model"]),
        manifest=modules.manifest,
        max_threads=min(options.threads, MAX_THREADS) if system.pool else 1,
        weights_bytes=modules.weights.nbytes,
        embedded=_is_embedded(options.weights, modules.weights.nbytes),
        arena_bytes=report["memory"]["arena_bytes"],
        fingerprint=digest_bytes(modules.weights.data),
    )


def _object(modules: Modules, of: Interface, system: System) -> tuple[bytes, list[Any], Interface]:
    """The object without weights, the pieces of the whole one, and what is known of it now."""
    has_data = of.embedded and of.weights_bytes > 0
    through_llvm = has_data and system.object_format != "ELF"
    made = link_modules(**_parts(modules, of, system, through_llvm))
    stack = stack_of(made.assembly, modules.target.triple)
    of = replace(of, stack_bytes=stack.most(public_names(of.name)), stack_foreign=tuple(sorted(stack.foreign)))
    if not has_data or through_llvm:
        return made.data, [made.data], of
    pieces = embed(made.data, modules.weights.data)
    return pieces[0], pieces, of


def _parts(modules: Modules, of: Interface, system: System, through_llvm: bool) -> dict[str, Any]:
    """What is linked: the model's modules and all around them; with the weights where they go ``through_llvm``."""
    glue = glue_text(of, system, modules.target, as_constant(modules.weights.data) if through_llvm else "")
    texts = [glue, pool_text(system, of.max_threads, of.name), *modules.texts.values()]
    texts.append(freestanding_text(system, modules.target.triple))
    return {
        "texts": texts,
        "target": modules.target,
        "exported": {*public_names(of.name), *POOL_SYMBOLS, *freestanding_symbols()},
        "features": system.pool.features if system.pool else "",
    }


def llvm_files(modules: Modules, options: ExportOptions) -> tuple[str, str]:
    """The whole model as the text of one LLVM module, weights inside, and the C header of its functions."""
    system = system_of(modules.target.triple)
    of = _interface(modules, replace(options, weights="embedded"), system)
    return merged_text(**_parts(modules, of, system, of.weights_bytes > 0)), header_text(of, system)


def _labels(manifest: Manifest) -> dict[str, str]:
    """What each kernel computes, by its symbol."""
    return {k["name"]: " ".join(k["ops"]) for k in manifest.report["kernels"]}


def _check_libraries(options: ExportOptions, target: Target, system: System) -> None:
    if options.shared:
        library_name("", target.triple, system)
        if not _is_host(target):
            need_zig(target.triple)
    if options.static and system.object_format != "ELF":
        remedy = "link the object, which is all that the archive would hold"
        raise OptionError(f"static archives are made of ELF objects, not of {system.object_format}", remedy=remedy)


def _is_host(target: Target) -> bool:
    """Does the system's own linker make files for the target's kind of machine?"""
    return misfit(TargetSpec(target.triple, target.cpu)) is None


def _is_embedded(choice: str, n_bytes: int) -> bool:
    if choice == "embedded" and n_bytes > MOST_EMBEDDED:
        rule = f"{n_bytes} bytes of weights are too many to embed: code reaches 2 GiB at most"
        raise OptionError(rule, remedy='use weights="file"')
    return choice == "embedded" or (choice == "auto" and n_bytes <= EMBED_LIMIT)


def public_names(name: str) -> list[str]:
    """Every function that an export may define."""
    functions = (
        "info", "bind", "workspace", "input_shape", "output_shape", "create", "run", "result_shape", "destroy",
        "status_text", "initial_state", "map_weights", "unmap_weights", "after_fork",
    )  # fmt: skip
    return [f"{name}_{f}" for f in functions]
