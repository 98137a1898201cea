"""``tw.export``: a source model in, an object file and a C header out, for programs without Python.

In: what ``driver.compile`` takes, and what the files should be. Out: a folder's files. Not its business: kernels
(``kernels``), the files' content (``aot``). Nothing that only compiles and runs imports this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from tilewright.aot.c_file import c_files
from tilewright.aot.dispatch import level_target, merge
from tilewright.aot.export import Exported, ExportOptions, Modules
from tilewright.aot.export import export as write_export
from tilewright.aot.interface import c_name
from tilewright.build.exact import read_exact_sizes
from tilewright.build.kernels import optimise_and_split
from tilewright.build.manifest import manifest_of, with_complex, with_start
from tilewright.build.options import (
    SIZE,
    Clock,
    Level,
    Options,
    Progress,
    check_flags,
    check_sizes_given,
    read_schedule,
)
from tilewright.codegen.c.elements import Helpers
from tilewright.codegen.c.kernel import kernel_text
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph
from tilewright.core.text import SideTable, print_graph
from tilewright.frontend.source import Called, Examples, Source, import_called
from tilewright.runtime.digest import digest_arrays
from tilewright.runtime.files import writing
from tilewright.runtime.threads import checked_threads, default_threads
from tilewright.target.gpu import is_gpu
from tilewright.target.target import Target

_LOC = re.compile(r' loc\("(?:[^"\\]|\\.)*"(?:, "(?:[^"\\]|\\.)*", \d+)?\)')
"""Where a graph's text says that a node comes from: lines of the user's files."""


def export(
    source: Source,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    weights: str = "auto",
    example_inputs: Examples | None = None,
    dynamic_shapes: Any = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix_dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    target: str = "native",
    precision: str = "fp32",
    optimize: Level = 2,
    accuracy: str = "default",
    schedule: str | os.PathLike[str] | None = None,
    specialize: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | None = None,
    shared: bool = False,
    static: bool = False,
    flush_denormals: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Compile a model to an object file and a C header that need no Python; ``docs/deploy.md`` says how to use them.

    Arguments are those of ``compile``, and: ``name``, which begins C symbols and file names (default: the file's).
    ``threads`` is the most that a call may use (default: 1 for a named target and with ``optimize="size"``, for
    "native" what this process may use). ``weights`` is "embedded" in the object, "file" (to be mapped) or "auto":
    embedded up to 64 MiB. ``shared`` also links a library (by the system's ``cc``; for other machines by the extra
    ``aot``), ``static`` also writes an archive. ``target`` may list levels of x86-64, plainest first
    ("x86-64,x86-64-v3,x86-64-v4"): the object then holds code for each and chooses when it first runs. With
    ``flush_denormals`` denormal numbers count as 0 in a call, on x86 and 64-bit Arm.

    Raises as ``compile`` does; ``OptionError`` too for a GPU, and ``CompileError`` for a model whose structure a call
    decides.
    """
    if schedule is not None and "," in target:
        raise OptionError(f"a file of schedules is for one target, not {target!r}", remedy="export each level alone")
    sizes = read_exact_sizes(specialize)
    options = Options(
        target, precision, optimize, accuracy, read_schedule(schedule), sizes, flush_denormals=flush_denormals
    )
    threads = checked_threads(threads)
    check_flags(shared=shared, static=static)
    check_sizes_given(fix_dims, input_shapes)
    if name is not None and not isinstance(name, str):
        raise OptionError(f"name={name!r:.80} is no name", remedy="pass text, as C identifiers are")
    may_thread = target == "native" and optimize != SIZE
    n_threads = threads if threads is not None else default_threads() if may_thread else 1
    if name is None and isinstance(source, str | Path):
        name = c_name(Path(source).stem)
    how = ExportOptions(name, n_threads, weights, shared, static)
    clock = Clock(progress)
    with clock.stage("import"):
        called = import_called(source, example_inputs, dynamic_shapes, input_shapes, fix_dims)
    facts = source_facts(source, called)
    modules = replace(as_called(export_modules(called.graph, options, n_threads, clock), called), source=facts)
    with writing(folder):
        return write_export(modules, Path(folder), how)


def as_called(modules: Modules, called: Called) -> Modules:
    """The modules with complex numbers where the source has them, and with the state that it keeps."""
    return _with_state(replace(modules, manifest=with_complex(modules.manifest, called)), called)


def _with_state(modules: Modules, called: Called) -> Modules:
    """The modules with the values with which what the source keeps begins, behind the weights."""
    if not called.convention.state:
        return modules
    weights, convention = with_start(modules.weights, called)
    rows = [(f"the state {kept.input}", a.nbytes) for kept, a in zip(convention.state, called.start, strict=True)]
    report = modules.manifest.report
    memory = {**report["memory"], "weights_bytes": int(weights.nbytes)}
    manifest = replace(modules.manifest, convention=convention, report={**report, "memory": memory})
    return replace(modules, manifest=manifest, weights=weights, weight_rows=[*modules.weight_rows, *rows])


def export_modules(graph: Graph, options: Options, n_threads: int, clock: Clock) -> Modules:
    """The modules of the target, or of all levels that ``options.target`` lists, for calls with so many threads."""
    names = options.target.split(",")
    _check_cpus(names)
    targets = [replace(options, target=t).machine for t in names]
    targets = [replace(t, n_cores=n_threads) for t in targets]
    if len(targets) == 1:
        return build_modules(graph, options, targets[0], clock)
    return merge([build_modules(graph, options, level_target(t), clock) for t in targets])


def _check_cpus(targets: Sequence[str]) -> None:
    if gpus := [name for name in targets if is_gpu(name)]:
        remedy = "name a CPU, or save what tilewright.compile makes for the GPU as a .tw file"
        raise OptionError(f"code that is exported is for CPUs, and {gpus[0]!r} is a GPU", remedy=remedy)


def build_modules(graph: Graph, options: Options, target: Target, clock: Clock) -> Modules:
    """The whole compiler but LLVM: what ahead-of-time export makes an object of."""
    split = optimise_and_split(graph, options, target, clock, is_export=True)
    kernels = split.kernels.texts()
    texts = {"entry": split.entry(None), **kernels}
    with clock.stage("weights"):
        weights = split.planner.weights.blob()
    manifest = manifest_of(split, options, weights.nbytes, len(split.slots))
    return Modules(manifest, target, texts, weights, split.planner.weights.rows(), {})


def build_c(called: Called, options: Options, header: Path) -> tuple[str, str]:
    """A C file of the whole model, for one thread, and what is to be written to ``header``."""
    _check_cpus([options.target])
    split = optimise_and_split(called.graph, options, replace(options.machine, n_cores=1), Clock(), is_export=True)
    made, helpers, kernels = split.kernels, Helpers(), []
    for symbol, kernel in made.kernels.items():
        written = kernel_text(kernel, helpers, made.labels[symbol])
        made.scratch[symbol] = written.scratch
        kernels.append(written.text)
    weights = split.planner.weights.blob()
    manifest = manifest_of(split, options, weights.nbytes, len(split.slots))
    modules = Modules(manifest, made.target, {"entry": split.entry(None)}, weights, [], {})
    return c_files(as_called(modules, called), header, kernels, helpers)


def source_facts(source: Source, called: Called) -> dict[str, Any]:
    """What an export's record says of the model: digests that depend on its content alone."""
    table = SideTable()
    text = _LOC.sub("", print_graph(called.graph, table))
    content = f"{text}{digest_arrays([*table.arrays.values(), *called.start])}"
    facts = {"model": called.graph.name, "sha256": sha256(content.encode()).hexdigest()}
    if isinstance(source, str | Path):
        with open(source, "rb") as file:
            facts["file_sha256"] = file_digest(file, "sha256").hexdigest()
    return facts


__all__ = ["as_called", "build_c", "export", "export_modules", "source_facts"]
