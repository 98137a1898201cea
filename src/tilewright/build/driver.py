"""The one place that wires the stages: a source model in, a callable native model out.

In: what the user wrote and options. Out: a ``LoadedModel``. A compile reads top to bottom here: what the cache has,
import, kernels (``kernels``), the artefact (``assemble``), loading.
Not its business: what a stage does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tilewright.build.assemble import assemble, make_parts
from tilewright.build.exact import fitting, read_exact_sizes
from tilewright.build.kernels import STRICT, Checks, optimise_and_split
from tilewright.build.keys import cache_key, graph_key
from tilewright.build.later import Later
from tilewright.build.manifest import with_convention
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
from tilewright.build.specialize import SpecializedModel
from tilewright.build.texts import dump_if_asked
from tilewright.core.diag import ImportFailed, OptionError
from tilewright.core.graph import Graph
from tilewright.frontend.onnx.file import Source as ParsedModel
from tilewright.frontend.onnx.file import read_model
from tilewright.frontend.onnx.given import NeedsCall
from tilewright.frontend.onnx.text_edge import text_edge_of
from tilewright.frontend.source import Called, Examples, Source, import_called, is_onnx
from tilewright.runtime.answers import Keyed, asked_sizes, keyed_source, question, remember_answer, searches_text
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.cache import Cache
from tilewright.runtime.models import model_of
from tilewright.runtime.once import MAKING
from tilewright.runtime.python.model import CompiledModel
from tilewright.runtime.threads import checked_threads, default_threads

if TYPE_CHECKING:
    from tilewright.build.found_schedules import Searches


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
    specialize: Any = None,
    emulate: bool = False,
    flush_denormals: bool = False,
    tuned: bool = True,
    cache: bool = True,
    progress: Progress | None = None,
    keyed: Keyed | None = None,
    verify: bool = False,
) -> CompiledModel:
    """``tilewright.compile``, by the compiler; ``keyed`` is what is known of the source already.

    With ``flush_denormals`` denormal numbers count as 0, as they do for XLA.
    With ``verify`` the model is compiled anew, and checked after every pass.
    """
    check_flags(cache=cache, tuned=tuned)
    sizes = read_exact_sizes(specialize)
    options = Options(
        target, precision, optimize, accuracy, read_schedule(schedule), sizes, emulate, flush_denormals=flush_denormals
    )
    threads = checked_threads(threads)
    check_sizes_given(fix_dims, input_shapes)
    clock = Clock(progress)
    # A model from the cache was not checked now.
    store = Cache() if cache and not verify else None
    gpu = options.alone_on_gpu
    asked_first = searches_text(store, threads) if store and tuned and schedule is None else ()
    searches = _searches(store, options, threads) if store and asked_first else None
    if searches is not None:
        options = replace(options, found=searches.book)
    keyed, artifact = _look_up(keyed or Keyed(source), store, input_shapes, fix_dims, options, clock)
    key, found = keyed.key, artifact
    called: Called | None = None
    if artifact is None:
        try:
            with clock.stage("import"):
                called = import_called(keyed.source, example_inputs, dynamic_shapes, input_shapes, fix_dims)
                graph = called.graph
        except NeedsCall as needs:
            return _per_call(read_model(keyed.source), needs, options, input_shapes, fix_dims, threads)
        except ImportFailed:
            if (made := _with_text(keyed.source, options, input_shapes, fix_dims, threads)) is None:
                raise
            return made
        if gpu is not None:
            _check_for_gpu(called)
        # A source that has no digest, a module in memory, is known by its graph once that is read.
        if store and key is None:
            with clock.stage("key"):
                key = graph_key(graph)
            found = artifact = _cached(store, key, options, clock)
        if artifact is None:
            dump_if_asked(graph, options)
            checks = STRICT if verify else None
            make = build if gpu is None else _build_for_gpu
            artifact = make(graph, options, clock, checks=checks)
            if store and key:
                with clock.stage("store"):
                    store.put_artifact_soon(cache_key(key, options), artifact)
    unused = searches.unused(artifact.manifest) if searches is not None else {}
    # What was not used is told by this way alone, so the next process has to come here again.
    if store and keyed.key and not options.schedule and not options.emulate and not flush_denormals and not unused:
        # The next process finds the artefact by this question, without loading the compiler.
        asked = question(keyed.key, target, precision, optimize, accuracy, *asked_sizes(specialize), *asked_first)
        remember_answer(store, asked, cache_key(keyed.key, options))
    made = _ready(with_convention(artifact, called), threads, clock, from_cache=found is not None, **unused)
    if made.manifest.target.is_gpu:
        return made  # it has no exports, and no other weights
    made.exporter = partial(
        _export, source, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes, input_shapes=input_shapes,
        fix_dims=fix_dims, threads=threads, **{**asdict(options), "schedule": schedule},
    )  # fmt: skip
    imported = {
        "example_inputs": example_inputs, "dynamic_shapes": dynamic_shapes, "input_shapes": input_shapes,
        "fix_dims": fix_dims,
    }  # fmt: skip
    made.origin = Later(source, imported, {**asdict(options), "schedule": schedule})
    return made


def _searches(store: Cache, options: Options, threads: int | None) -> Searches | None:
    """What searches found for this machine, where that is asked for; SQLite is loaded only then."""
    if options.target != "native" or options.optimize == SIZE or options.emulate:
        return None
    with MAKING:
        from tilewright.build.found_schedules import searches_of

    return searches_of(store, threads or default_threads())


def _build_for_gpu(graph: Graph, options: Options, clock: Clock, *, checks: Checks | None = None) -> Artifact:
    """:func:`tilewright.build.gpu.build_for_gpu`, loaded by the first model for a GPU."""
    with MAKING:
        from tilewright.build.gpu import build_for_gpu

    return build_for_gpu(graph, options, clock, checks=checks)


def _check_for_gpu(called: Called) -> None:
    """``OptionError`` for a source that writes to its inputs."""
    if called.convention.written:
        remedy = "compile it for a CPU, or a module that returns what it would write"
        raise OptionError("a model for a GPU writes no inputs yet", remedy=remedy)


def _export(source: Source, folder: str | os.PathLike[str], *, emulate: bool, found: str, **options: Any) -> Any:
    """:func:`tilewright.build.deploy.export`, loaded by the first export; a GPU that the CPU emulates has no export.

    What searches ``found`` on this machine stays here: an export gets it as a file of schedules, or the rules' ones.
    """
    with MAKING:
        from tilewright.build.deploy import export

    if emulate:
        remedy = "compile it without emulate=True, for a CPU"
        raise OptionError("a model in which the CPU emulates a GPU can't be exported", remedy=remedy)

    return export(source, folder, **options)


def _with_text(
    source: Source,
    options: Options,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    fix_dims: Mapping[str, int] | None,
    threads: int | None,
) -> CompiledModel | None:
    """A model that reads text at its edge, where Python works on it; None for any other model."""
    if not is_onnx(source):
        return None
    with MAKING:
        from tilewright.runtime.python.text_model import TextModel
    edge = text_edge_of(read_model(source))
    if edge is None:
        return None
    needs = NeedsCall([], ())
    rest = None if edge.rest is None else _per_call(edge.rest, needs, options, input_shapes, fix_dims, threads)
    return TextModel(edge.part, rest, threads or default_threads())


def _per_call(
    source: ParsedModel,
    needs: NeedsCall,
    options: Options,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    fix_dims: Mapping[str, int] | None,
    threads: int | None,
) -> SpecializedModel:
    """A model that compiles when a call says what its structure depends on."""

    def compile_one(graph: Graph) -> CompiledModel:
        fitted = {**asdict(options), "specialize": fitting(graph, options.specialize)}
        return compile_graph(graph, threads=threads, **fitted)

    n_threads = threads or default_threads()
    return SpecializedModel(source, needs, compile_one, input_shapes, fix_dims, n_threads)


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
        return store.get_artifact(cache_key(key, options))


OFFERED = (*(f.name for f in fields(Options)), "threads")
"""The options of ``compile_graph``."""


def compile_graph(graph: Graph, *, threads: int | None = None, **options: Any) -> CompiledModel:
    """Compile a graph; ``options`` are the fields of :class:`Options`, and others an ``OptionError``."""
    if unknown := sorted(options.keys() - set(OFFERED)):
        raise OptionError(f"there is no option {unknown[0]!r} here", remedy=f"use one of {list(OFFERED)}")
    chosen, clock, threads = Options(**options), Clock(), checked_threads(threads)
    dump_if_asked(graph, chosen)
    make = build if chosen.alone_on_gpu is None else _build_for_gpu
    return _ready(make(graph, chosen, clock), threads, clock, from_cache=False)


def _ready(artifact: Artifact, threads: int | None, clock: Clock, *, from_cache: bool, **facts: Any) -> CompiledModel:
    """The model, loaded where this machine can run it; its report says what this compile spent, stage by stage.

    ``facts`` go into the report too.
    """
    with clock.stage("link"):
        model = model_of(artifact, threads=threads)
    seconds = {name: round(spent, 6) for name, spent in clock.seconds.items()}
    model.manifest = model.manifest.with_facts(seconds=seconds, from_cache=from_cache, **facts)
    return model


def build(
    graph: Graph, options: Options, clock: Clock, *, profile: bool = False, checks: Checks | None = None
) -> Artifact:
    """The whole compiler on a graph: optimise, split into kernels, schedule, emit, lay out weights.

    With ``profile``, each kernel's ticks are added up behind the dimensions, in the order of the report's kernels.
    """
    if options.alone_on_gpu is not None:
        remedy = "name a CPU, or compile with emulate=True"
        raise OptionError(f"there is no machine code for the host in a model for {options.target}", remedy=remedy)
    target = options.machine
    parts = make_parts(optimise_and_split(graph, options, target, clock, checks), clock)
    return assemble(parts, options, clock, profile=profile)
