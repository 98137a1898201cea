"""A graph through the whole compiler beside its reference: passes, kernels, memory, the whole run.

In: a graph, inputs, options. Out: a ``Comparison`` with the first fault. Not its business: where the graph comes from,
and processes (``tools.debug.compare``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tilewright.build.assemble import Parts, assemble, make_parts
from tilewright.build.kernels import Checks, split_graph
from tilewright.build.options import Clock, Options
from tilewright.build.passes import graph_passes, storing_passes
from tilewright.choose.default import refuse
from tilewright.core.diag import UNKNOWN, CompileError
from tilewright.core.graph import Graph
from tilewright.core.passes import Pass, run_pipeline
from tilewright.core.types import Array
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.python.model import LoadedModel
from tilewright.runtime.threads import default_threads
from tilewright.tile.errors import RuleBroke
from tilewright.tools.debug.kernel import BROKEN
from tilewright.tools.debug.machine import POISON
from tilewright.tools.debug.passes import ROOM, check_passes
from tilewright.tools.debug.report import Comparison, Fault, Row
from tilewright.tools.debug.steps import How, judge_run, walk_program
from tilewright.tools.debug.tolerance import Difference
from tilewright.tools.debug.values import NodeValues, values_of
from tilewright.tools.tell import Tell, silent

CHECKS = Checks(on_broken=refuse)
"""A kernel that breaks the specification is found by following it, and the step that broke it with it."""
RUNS = 4
"""Whole runs with several threads: what depends on luck shows in one of them."""


def compare_graph(
    graph: Graph, inputs: Sequence[Array], options: Options, *, threads: int | None = None, tell: Tell = silent
) -> Comparison:
    """Follow ``graph`` from pass to pass and kernel to kernel; raises what its reference raises on ``inputs``."""
    n_threads = threads or default_threads()
    passes = graph_passes(options, options.machine)
    room = ROOM if options.accuracy == "default" else 0.0
    tell("passes", 0, 1)
    graph = run_pipeline(graph, storing_passes(options))  # what the user gave away is no fault
    values_of(graph, inputs)  # inputs that do not fit are the caller's mistake and no fault
    checked = check_passes(graph, inputs, passes, room)
    made = Comparison(graph.name, "reference", passes=checked.passes, fault=checked.fault)
    if made.fault is not None:
        return made
    values = values_of(checked.graph, inputs)
    tell("kernels", 0, 1)
    parts = _parts(checked.graph, passes, options)
    if isinstance(parts, Fault):
        return dataclasses.replace(made, fault=parts)
    walked = walk_program(parts, values, n_threads, How(passes, room), tell)
    made = dataclasses.replace(made, layers=walked.rows, fault=walked.fault)
    if made.fault is not None:
        return made
    tell("the whole run", 0, 1)
    return _whole(made, parts, values, inputs, options, n_threads)


def _parts(graph: Graph, passes: Sequence[Pass], options: Options) -> Parts | Fault:
    """Kernels, program and code; a stage that raises is a fault, unless it refuses the model with its reasons."""
    try:
        clock = Clock()
        return make_parts(split_graph(graph, passes, options, options.machine, clock, CHECKS), clock)
    except CompileError:
        raise
    except RuleBroke as e:
        return _stage_that_raised(e.cause)
    except BROKEN as e:
        return _stage_that_raised(e)


def _stage_that_raised(e: Exception) -> Fault:
    """The part of the compiler that raised: the innermost that is not vocabulary which all parts share."""
    modules = []
    trace = e.__traceback__
    while trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__", "")).removeprefix("tilewright."))
        trace = trace.tb_next
    parts = [m for m in modules if m.startswith(("ops.", "partition.", "tile.", "codegen.", "graph."))]
    problem = Difference(problem=f"{type(e).__name__}: {e}")
    return Fault("compile", parts[-1] if parts else modules[-1], "", UNKNOWN, problem)


def _whole(
    made: Comparison, parts: Parts, values: NodeValues, inputs: Sequence[Array], options: Options, threads: int
) -> Comparison:
    """The entry function with one thread and with several; each kernel was right."""
    graph = parts.split.graph
    try:
        artifact = assemble(parts, options, Clock())
        rows = _run_whole(artifact, values, inputs, 1)
        bad = next((r for r in rows if r.difference.is_bad), None)
        if bad is not None:
            fault = Fault("entry", "tw_run", bad.name, bad.loc, bad.difference, detail="step by step it is right")
            return dataclasses.replace(made, outputs=rows, fault=fault)
        for _ in range(RUNS if threads > 1 else 0):
            rows = _run_whole(artifact, values, inputs, threads)
            bad = next((r for r in rows if r.difference.is_bad), None)
            if bad is not None:
                fault = Fault("threads", "tw_run", bad.name, bad.loc, bad.difference, detail="one thread is right")
                return dataclasses.replace(made, outputs=rows, fault=fault)
    except BROKEN as e:
        problem = Difference(problem=f"{type(e).__name__}: {e}")
        return dataclasses.replace(made, fault=Fault("entry", graph.name, "", UNKNOWN, problem))
    return dataclasses.replace(made, outputs=rows)


def _run_whole(artifact: Artifact, values: NodeValues, inputs: Sequence[Array], threads: int) -> tuple[Row, ...]:
    """A row for each output, and one for each input that the run has changed."""
    model = LoadedModel(artifact.manifest, artifact.objects, artifact.weights, threads=threads)
    graph, want = values.graph, values.outputs()
    given = [np.array(a, order="C", copy=True) for a in inputs]
    got = _answer(model, given, want)
    found = judge_run(graph, inputs, want, got, 0.0)
    rows = [Row(n, o.loc, d) for n, o, d in zip(graph.output_names, graph.outputs, found, strict=True)]
    for node, before, after in zip(graph.inputs, inputs, given, strict=True):
        if before.tobytes() != after.tobytes():
            rows.append(Row(node.attrs["name"], node.loc, Difference(problem="the run changed an input")))
    return tuple(rows)


def _answer(model: LoadedModel, inputs: Sequence[Array], want: Sequence[Array]) -> list[Array]:
    """The outputs; those whose sizes are known before the call are written over poison."""
    known = {s.name for s in model.symbols}
    sized = all(isinstance(d, int) or (d.isidentifier() and d in known) for o in model.outputs for d in o.shape)
    if not sized or not want:
        answer = model(*inputs)
        return list(answer) if isinstance(answer, tuple) else [answer]
    out = [np.full(w.nbytes, POISON, np.uint8).view(w.dtype).reshape(w.shape) for w in want]
    model(*inputs, out=out)
    return out
