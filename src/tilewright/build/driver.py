"""The one place that wires the stages: a source model in, a callable native model out.

In: what the user wrote and options. Out: a ``LoadedModel``. Each pipeline reads top to bottom here.
Not its business: what a stage does.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.build.kernels import STRICT, Checks, KernelBuilder, default_checks
from tilewright.build.options import Clock, Level, Options, Progress, check_sizes_given, graph_passes, read_schedule
from tilewright.build.specialize import SpecializedModel
from tilewright.codegen.cpu.llvm import assembly, compile_text, emit_kernel
from tilewright.codegen.cpu.program import emit_program, poll_slots
from tilewright.core.diag import OptionError
from tilewright.core.expr import Dim, Sym, largest, symbol_order, symbols, to_text
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import Pass, PassReport, parse_pipeline, print_pipeline, run_pipeline
from tilewright.core.relations import rules_of
from tilewright.core.specialize import fix_symbols
from tilewright.core.text import SideTable, load_graph, print_graph
from tilewright.core.types import Array
from tilewright.core.verify import verify
from tilewright.frontend.onnx.file import read_model
from tilewright.frontend.onnx.given import NeedsCall
from tilewright.frontend.source import Called, Examples, Source, import_called, import_source
from tilewright.graph.limits import check_sizes
from tilewright.graph.pipeline import PASSES
from tilewright.partition.plan import Planner
from tilewright.partition.program import Branch, Call, LetDim, Program, Repeat, SetDim
from tilewright.partition.work import points_of
from tilewright.runtime.answers import Keyed, compiler_text, keyed_source, question, remember_answer
from tilewright.runtime.artifact import ALIGNMENT, Artifact, ObjectImage
from tilewright.runtime.cache import Cache
from tilewright.runtime.digest import digest_arrays
from tilewright.runtime.env import read_environment
from tilewright.runtime.files import write_text
from tilewright.runtime.host import misfit
from tilewright.runtime.manifest import (
    COMPLEX_OF,
    Constraint,
    Manifest,
    ScratchSpec,
    SymbolSpec,
    TargetSpec,
    TensorSpec,
)
from tilewright.runtime.python.model import CompiledModel, LoadedModel
from tilewright.runtime.structure import Convention
from tilewright.runtime.threads import checked_threads, default_threads
from tilewright.runtime.version import __version__
from tilewright.target.target import Target
from tilewright.tile.schedule.book import schedule_text
from tilewright.tile.text import kernel_text

COMMENT = {"llvm": ";", "asm": "#"}
"""What begins a comment, where a stage's own language has them; the others are ours, with ``//``."""
DUMPED = {
    "kernels": "kernels.txt", "schedule": "schedules.txt", "tile": "tile.txt", "llvm": "kernels.ll",
    "asm": "kernels.s", "entry": "entry.ll",
}  # fmt: skip


def compile(
    source: Source,
    example_inputs: Examples | None = None,
    *,
    dynamic_shapes: Any = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix_dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    target: str = "native",
    precision: str = "fp32",
    optimize: Level = 2,
    accuracy: str = "default",
    schedule: str | os.PathLike[str] | None = None,
    cache: bool = True,
    progress: Progress | None = None,
    keyed: Keyed | None = None,
    verify: bool = False,
) -> CompiledModel:
    """``tilewright.compile``, by the compiler; ``keyed`` is what is known of the source already.

    With ``verify`` the model is compiled anew, and checked after every pass.
    """
    options = Options(target, precision, optimize, accuracy, read_schedule(schedule))
    threads = checked_threads(threads)
    check_sizes_given(fix_dims, input_shapes)
    clock = Clock(progress)
    store = Cache() if cache and not verify else None
    keyed, artifact = _look_up(keyed or Keyed(source), store, input_shapes, fix_dims, options, clock)
    key, found = keyed.key, artifact
    called: Called | None = None
    if artifact is None:
        try:
            with clock.stage("import"):
                called = import_called(keyed.source, example_inputs, dynamic_shapes, input_shapes, fix_dims)
                graph = called.graph
        except NeedsCall as needs:
            return _per_call(keyed.source, needs, options, input_shapes, fix_dims, threads)
        if store and key is None:
            with clock.stage("key"):
                key = graph_key(graph)
            found = artifact = _cached(store, key, options, clock)
        if artifact is None:
            _dump_if_asked(graph, options)
            artifact = build(graph, options, clock, checks=STRICT if verify else None)
            if store and key:
                with clock.stage("store"):
                    store.put_artifact_soon(_cache_key(key, options), artifact)
    if store and keyed.key and not options.schedule:
        asked = question(keyed.key, target, precision, optimize, accuracy)
        remember_answer(store, asked, _cache_key(keyed.key, options))
    made = _ready(with_convention(artifact, called), threads, clock, from_cache=found is not None)
    made.exporter = partial(
        _export, source, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes, input_shapes=input_shapes,
        fix_dims=fix_dims, threads=threads, **{**asdict(options), "schedule": schedule},
    )  # fmt: skip
    return made


def _export(source: Source, folder: str | os.PathLike[str], **options: Any) -> Any:
    """:func:`tilewright.build.deploy.export`, loaded by the first export."""
    from tilewright.build.deploy import export

    return export(source, folder, **options)


def _per_call(
    source: Source,
    needs: NeedsCall,
    options: Options,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    fix_dims: Mapping[str, int] | None,
    threads: int | None,
) -> CompiledModel:
    """A model that compiles when a call says what its structure depends on."""

    def compile_one(graph: Graph) -> CompiledModel:
        return compile_graph(graph, threads=threads, **asdict(options))

    n_threads = threads or default_threads()
    return SpecializedModel(read_model(source), needs, compile_one, input_shapes, fix_dims, n_threads)


def _look_up(
    keyed: Keyed,
    store: Cache | None,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    fix_dims: Mapping[str, int] | None,
    options: Options,
    clock: Clock,
) -> tuple[Keyed, Artifact | None]:
    """The compiled model of a source, or what to import: a file's bytes as its key was made of them."""
    if store is None:
        return keyed, None
    source = keyed.source
    for read in (False, True):
        if keyed.key is None or read:
            with clock.stage("key"):
                keyed = keyed_source(source, store, input_shapes, fix_dims, read=read)
        artifact = _cached(store, keyed.key, options, clock)
        if artifact is not None or not keyed.is_remembered:
            break
    return keyed, artifact


def _cached(store: Cache | None, key: str | None, options: Options, clock: Clock) -> Artifact | None:
    """The compiled model of a key, checked, or None."""
    if store is None or key is None:
        return None
    with clock.stage("cache"):
        return store.get_artifact(_cache_key(key, options))


def graph_key(graph: Graph) -> str:
    """A text that changes whenever the graph or a number in it does."""
    table = SideTable()
    text = print_graph(graph, table)
    return f"graph {sha256(text.encode()).hexdigest()} {digest_arrays(table.arrays.values())}"


def with_convention(artifact: Artifact, called: Called | None) -> Artifact:
    """A compiled graph with how its source is called; the start of what it keeps stands behind the weights."""
    if called is None:
        return artifact
    artifact = replace(artifact, manifest=with_complex(artifact.manifest, called))
    if not called.convention:
        return artifact
    weights, convention = with_start(artifact.weights, called)
    return replace(artifact, manifest=replace(artifact.manifest, convention=convention), weights=weights)


def with_start(weights: Array, called: Called) -> tuple[Array, Convention]:
    """The weights with the start of what a source keeps behind them, and its convention with the places there."""
    offset = -(-weights.nbytes // ALIGNMENT) * ALIGNMENT
    pieces, rows = [weights, np.zeros(offset - weights.nbytes, np.uint8)], []
    for row, array in zip(called.convention.state, called.start, strict=True):
        rows.append(replace(row, offset=offset))
        raw = np.frombuffer(array.tobytes(), np.uint8)
        pieces += [raw, np.zeros(-raw.nbytes % ALIGNMENT, np.uint8)]
        offset += raw.nbytes + pieces[-1].nbytes
    return np.concatenate(pieces) if rows else weights, replace(called.convention, state=tuple(rows))


OFFERED = (*(f.name for f in fields(Options)), "threads")
"""The options of ``compile_graph``."""


def with_complex(manifest: Manifest, called: Called) -> Manifest:
    """The manifest with complex numbers where the graph has their parts along a last axis: one and the same memory."""
    if not (called.complex_inputs or called.complex_outputs):
        return manifest
    inputs, outputs = (
        tuple(replace(t, dtype=COMPLEX_OF[t.dtype], shape=t.shape[:-1]) if t.name in names else t for t in tensors)
        for tensors, names in ((manifest.inputs, called.complex_inputs), (manifest.outputs, called.complex_outputs))
    )
    return replace(manifest, inputs=inputs, outputs=outputs)


def compile_graph(graph: Graph, *, threads: int | None = None, **options: Any) -> CompiledModel:
    """Compile a graph; ``options`` are the fields of :class:`Options`, and others an ``OptionError``."""
    if unknown := sorted(options.keys() - set(OFFERED)):
        raise OptionError(f"there is no option {unknown[0]!r} here", remedy=f"use one of {list(OFFERED)}")
    chosen, clock, threads = Options(**options), Clock(), checked_threads(threads)
    _dump_if_asked(graph, chosen)
    return _ready(build(graph, chosen, clock), threads, clock, from_cache=False)


def _ready(artifact: Artifact, threads: int | None, clock: Clock, *, from_cache: bool) -> CompiledModel:
    """The model, loaded where this machine can run it; its report says what this compile spent, stage by stage."""
    model: CompiledModel
    with clock.stage("link"):
        if misfit(artifact.manifest.target) is None:
            model = LoadedModel(artifact.manifest, artifact.objects, artifact.weights, threads=threads)
        else:
            model = CompiledModel(artifact.manifest, artifact.objects, artifact.weights)
    seconds = {name: round(spent, 6) for name, spent in clock.seconds.items()}
    model.manifest.report.update(seconds=seconds, from_cache=from_cache)
    return model


def build(
    graph: Graph, options: Options, clock: Clock, *, profile: bool = False, checks: Checks | None = None
) -> Artifact:
    """The whole compiler on a graph: optimise, split into kernels, schedule, emit, lay out weights.

    With ``profile``, each kernel's ticks are added up behind the dimensions, in the order of the report's kernels.
    """
    target = options.machine
    parts = make_parts(optimise_and_split(graph, options, target, clock, checks), clock)
    return assemble(parts, options, clock, profile=profile)


@dataclass
class SplitGraph:
    """A graph as a program of kernels: everything that is decided before LLVM."""

    graph: Graph
    program: Program
    kernels: KernelBuilder
    planner: Planner
    slots: dict[str, int]

    @property
    def routines(self) -> tuple[str, ...]:
        """The routines of libraries that the program would call."""
        calls = (s for s in walk_steps(self.program) if isinstance(s, Call))
        return tuple(sorted({c.routine.symbol for c in calls if c.routine is not None}))

    def entry(
        self, cycles: Mapping[str, int] | None, routines: Sequence[str] = (), *, is_stoppable: bool = False
    ) -> str:
        """The entry's module, once the kernels are emitted; it calls those ``routines`` that the loader offers.

        ``is_stoppable``: for a Python process, where a signal can stop it.
        """
        shapes = [[largest(d, self.planner.caps) for d in n.shape] for _, n in self.graph.results()]
        made = self.kernels
        points = {name: points_of(group) for name, group in made.groups.items()} if is_stoppable else None
        return emit_program(
            self.program, self.slots, shapes, made.target, made.parameter_counts(), made.most_scratch(), cycles,
            routines, points,
        )  # fmt: skip

    def manifest(self, options: Options, weights_bytes: int, n_dims: int) -> Manifest:
        """What a loader must know."""
        report = make_report(self.graph, self.program, self.kernels, options, weights_bytes)
        made = self.kernels
        return make_manifest(
            self.graph, self.slots, n_dims, self.planner.caps, made.target, report, made.most_scratch()
        )


def optimise_and_split(
    graph: Graph, options: Options, target: Target, clock: Clock, checks: Checks | None = None
) -> SplitGraph:
    """Optimise, split into kernels and schedule them; the graph that comes in is verified whatever the ``checks``."""
    checks = checks or default_checks()
    passes = graph_passes(options, target)
    with clock.stage("graph"):
        verify(graph)
        check_sizes(graph)
        graph = run_pipeline(graph, passes, check=checks.verify)
        check_sizes(graph)
    return split_graph(graph, passes, options, target, clock, checks)


def split_graph(
    graph: Graph, passes: Sequence[Pass], options: Options, target: Target, clock: Clock, checks: Checks
) -> SplitGraph:
    """Split a graph that is optimised already; sub-graphs of its control flow still go through ``passes``."""
    kernels = KernelBuilder(target, clock, options.schedule, checks)
    with clock.stage("partition"):
        program, planner = kernels.plan(graph, passes, options)
    return SplitGraph(graph, program, kernels, planner, dimension_slots(graph, program))


@dataclass(frozen=True)
class Parts:
    """What an artefact is made of, for those who look inside: each kernel's machine code and the constants it reads."""

    split: SplitGraph
    objects: tuple[ObjectImage, ...]
    weights: Array


def make_parts(split: SplitGraph, clock: Clock) -> Parts:
    """Compile the kernels and lay out the weights."""
    pending = split.kernels.start()
    with clock.stage("weights"):  # beside LLVM, which works in a thread of its own
        weights = split.planner.weights.blob()
    return Parts(split, tuple(split.kernels.finish(pending)), weights)


def assemble(parts: Parts, options: Options, clock: Clock, *, profile: bool = False) -> Artifact:
    """Parts with the entry function that runs them, a manifest and a report."""
    split = parts.split
    kernels, target = split.kernels, split.kernels.target
    with clock.stage("entry"):
        cycles = {name: len(split.slots) + k for k, name in enumerate(kernels.kernels)} if profile else None
        text = split.entry(cycles, split.routines, is_stoppable=not profile)
        entry = ObjectImage("entry", compile_text(text, target))
    n_dims = len(split.slots) + (len(kernels.kernels) if profile else poll_slots(text, len(split.slots)))
    manifest = replace(split.manifest(options, parts.weights.nbytes, n_dims), routines=split.routines)
    return Artifact(manifest, (entry, *parts.objects), parts.weights)


# --- symbols, manifest, report --------------------------------------------------------------------------------------


def dimension_slots(graph: Graph, program: Program) -> dict[str, int]:
    """Places in the table of dimensions: symbols of the inputs first, then those that the data decide."""
    names = dict.fromkeys(s.name for s in graph.symbols())
    for n in graph.outputs:  # the loader reads these back, right behind the inputs'
        names.update(dict.fromkeys(sorted(s.name for d in n.shape for s in symbols(d))))
    for n in graph.nodes():
        for t in n.types:
            names.update(dict.fromkeys(s.name for d in t.shape for s in sorted(symbols(d), key=symbol_order)))
    for step in walk_steps(program):
        if isinstance(step, Call):
            names.update(dict.fromkeys(s.name for s in step.sizes))
        if isinstance(step, LetDim | SetDim):
            names.setdefault(step.symbol.name)
    return {name: k for k, name in enumerate(names)}


def walk_steps(program: Program) -> Iterator[Any]:
    """Every step, those of sub-programs included."""
    for step in program.steps:
        yield step
        match step:
            case Branch():
                yield from walk_steps(step.then_program)
                yield from walk_steps(step.else_program)
            case Repeat():
                yield from walk_steps(step.body)


def make_manifest(
    graph: Graph,
    slots: Mapping[str, int],
    n_dims: int,
    caps: Mapping[Sym, Dim],
    target: Target,
    report: dict[str, Any],
    scratch: ScratchSpec,
) -> Manifest:
    """What the loader needs to know."""
    given = graph.symbols()
    known = {s.name for s in given}
    found = (d for _, n in graph.results() for d in n.shape)
    computed = {s.name: s for d in found for s in sorted(symbols(d), key=symbol_order)}
    by_slot = sorted((s for s in computed.values() if s.name not in known), key=lambda s: slots[s.name])
    return Manifest(
        tilewright_version=__version__,
        target=TargetSpec(target.triple, target.cpu, _features(target)),
        inputs=tuple(tensor_spec(name, n) for name, n in zip(graph.input_names, graph.inputs, strict=True)),
        outputs=tuple(tensor_spec(name, n) for name, n in graph.results()),
        symbols=tuple(SymbolSpec(s.name, s.lo or 0, s.hi) for s in given),
        computed=tuple(SymbolSpec(s.name, s.lo or 0, _size(caps.get(s, s.hi))) for s in by_slot),
        n_dims=n_dims,
        scratch=scratch,
        constraints=tuple(Constraint(rule) for rule in rules_of(graph.constraints)),
        failures=("", *graph.checks) if graph.checks else (),
        report=report,
    )


def tensor_spec(name: str, node: Node) -> TensorSpec:
    """What a caller must know of a graph's input or output."""
    return TensorSpec(name, node.dtype.numpy.name, tuple(d if isinstance(d, int) else to_text(d) for d in node.shape))


def _size(d: Dim | None) -> int | str | None:
    return d if d is None or isinstance(d, int) else to_text(d)


def _features(target: Target) -> tuple[str, ...]:
    return tuple(f[1:] for f in target.features.split(",") if f.startswith("+"))


def make_report(
    graph: Graph, program: Program, kernels: KernelBuilder, options: Options, weights_bytes: int
) -> dict[str, Any]:
    """What a person may want to know of the compile, as JSON values."""
    calls = [s for s in walk_steps(program) if isinstance(s, Call)]
    loops = [s.body for s in walk_steps(program) if isinstance(s, Repeat)]
    repeated = {s.kernel for body in loops for s in walk_steps(body) if isinstance(s, Call)}
    rows = []
    for name, kernel in kernels.kernels.items():
        mine = [c for c in calls if c.kernel == name]
        work = None if name in repeated else kernels.work[name]
        rows.append({
            "name": name,
            "ops": list(mine[0].ops) if mine else [],
            "calls": len(mine),
            "object_bytes": kernels.sizes.get(name, 0),
            "locations": [c.loc.text for c in mine],
            "products": list(kernels.products[name]),
            "notes": list(kernel.notes),
            "work": None if work is None else asdict(work),
        })  # fmt: skip
    arena = program.arena_bytes
    scratch = kernels.most_scratch()
    return {
        "model": graph.name,
        "options": options.shown(),
        "target": kernels.target.cpu if kernels.target.is_native else kernels.target.name,
        "n_ops": len(graph.nodes()),
        "n_kernel_calls": len(calls),
        "n_kernels": len(rows),
        "kernels": rows,
        "memory": {
            "arena_bytes": arena if isinstance(arena, int) else to_text(arena),
            "lower_bound_bytes": program.lower_bound,
            "scratch_bytes": scratch.fixed,
            "scratch_bytes_per_thread": scratch.per_thread,
            "weights_bytes": weights_bytes,
        },
    }


# --- looking inside -------------------------------------------------------------------------------------------------


def read_graph(path: Path, *, fix_dims: Mapping[str, int] | None = None) -> Graph:
    """The graph of an ONNX model, an exported program (``.pt2``) or a graph's text (``.txt``), before any pass."""
    if path.suffix == ".txt":
        return fix_symbols(load_graph(path, ops.by_name), fix_dims or {})
    return import_source(path, fix_dims=fix_dims)


def chosen_passes(options: Options, passes: str | None) -> tuple[Pass, ...]:
    """The level's passes, or those that the text ``passes`` spells."""
    return graph_passes(options, options.machine) if passes is None else parse_pipeline(passes, PASSES)


def optimise(
    graph: Graph, options: Options, passes: str | None, *, after: str = "", show: Callable[[str], None] = print
) -> Graph:
    """Run the level's pipeline, or the one that ``passes`` spells; ``show`` gets the text after the pass ``after``."""
    chosen = chosen_passes(options, passes)
    if after and after != "all" and after not in {p.name for p in chosen}:
        raise OptionError(f"no pass {after!r} in this pipeline", remedy=f"it runs {print_pipeline(chosen)}")

    def on_pass(report: PassReport) -> None:
        if after in ("all", report.of.name):
            show(f"# after {report.of}\n{print_graph(report.after)}")

    return run_pipeline(graph, chosen, on_pass=on_pass, check=True)


def kernel_texts(graph: Graph, options: Options, stage: str, only: str) -> Iterator[str]:
    """The text of each kernel at a stage: ``kernels``, ``schedule``, ``tile``, ``llvm``, ``asm``; or the entry's."""
    target = options.machine
    made = KernelBuilder(target, Clock(), options.schedule, default_checks())
    program, _ = made.plan(graph, graph_passes(options, target), options)
    if stage == "entry":
        slots, shapes = dimension_slots(graph, program), [n.shape for _, n in graph.results()]
        made.texts()
        yield emit_program(program, slots, shapes, target, made.parameter_counts(), made.most_scratch())
        return
    texts = {spec.name: text for text, spec in made.specs.items()}
    for name, kernel in made.kernels.items():
        if only not in name and only not in made.labels[name]:
            continue
        if stage != "schedule":
            yield f"{COMMENT.get(stage, '//')} {name}: {made.labels[name]}"
        match stage:
            case "kernels":
                yield texts[name]
            case "tile":
                yield kernel_text(kernel)
            case "schedule":
                yield schedule_text(name, made.schedules[name], made.labels[name])
            case "llvm":
                yield emit_kernel(kernel, target)
            case "asm":
                yield assembly(kernel, target)


def schedules(graph: Graph, options: Options) -> str:
    """The file of schedules (``docs/schedules.md``) by which the kernels of a graph, before any pass, are made."""
    done = optimise(graph, options, None)
    return "\n".join(text.rstrip("\n") for text in kernel_texts(done, options, "schedule", "")) + "\n"


def dump_stages(graph: Graph, options: Options, folder: Path, passes: str | None = None) -> None:
    """Write a numbered graph per pass, with what fired at its end, and a file for each stage of the kernels.

    ``passes`` spells a pipeline other than the level's.
    """
    done = run_pipeline(graph, chosen_passes(options, passes), check=True, dump=folder)
    for stage, name in DUMPED.items():
        texts = [text.rstrip("\n") for text in kernel_texts(done, options, stage, "")]
        write_text(folder / name, "\n".join(texts) + "\n")


def _dump_if_asked(graph: Graph, options: Options) -> None:
    """``TILEWRIGHT_DUMP``: every compile that the cache does not answer gets a numbered folder there."""
    root = read_environment().dump
    if root is None:
        return
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", graph.name)[:80]
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{len(os.listdir(root)):03d}-{name}-", dir=root))
        dump_stages(graph, options, folder)
    except OSError as error:
        remedy = "make the folder writable, or unset the variable"
        raise OptionError(f"TILEWRIGHT_DUMP={root!r} can't be written: {error.strerror}", remedy=remedy) from error


def pass_table() -> list[dict[str, str]]:
    """Every pass with the optimisation levels that use it and the first line of its docstring."""
    levels = {k: {p.name for p in graph_passes(Options(optimize=k), Target.host())} for k in (0, 1, 2)}
    return [
        {
            "name": cls.name,
            "levels": " ".join(str(k) for k, names in levels.items() if cls.name in names),
            "what": (cls.__doc__ or "").strip().splitlines()[0],
        }
        for cls in PASSES
    ]


def _cache_key(source: str, options: Options) -> str:
    target = options.machine
    return f"{compiler_text()}\n{source}\n{options}\n{target}"


__all__ = [
    "build",
    "compile",
    "compile_graph",
    "kernel_texts",
    "optimise",
    "pass_table",
    "print_graph",
    "read_graph",
    "schedules",
]
