"""``tilewright tune``: other schedules, measured; those that are faster go into a file for ``--schedule``.

In: a model. Out: a file of schedules if any was faster, and a table of what was gained.
Not its business: how they are found (``tune``).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tilewright.build import manifest, texts
from tilewright.build.found_schedules import FoundSchedules, cached_schedules
from tilewright.build.options import Options, read_schedule
from tilewright.cli import inputs, show
from tilewright.cli.compile_run import (
    Accuracy,
    Fix,
    InputFile,
    Json,
    Optimize,
    PrecisionOption,
    ScheduleFile,
    Seed,
    Source,
    Threads,
)
from tilewright.runtime.cache import Cache
from tilewright.runtime.errors import InputError
from tilewright.runtime.files import check_writable, write_atomically
from tilewright.tools.search import search


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command("tune")(tune_command)


def tune_command(
    model: Source,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write (default: the model's name with .schedule)."),
    ] = None,
    input: InputFile = [],  # noqa: B006
    fix: Fix = [],  # noqa: B006
    seed: Seed = 0,
    threads: Threads = None,
    optimize: Optimize = 2,
    precision: PrecisionOption = "fp32",
    accuracy: Accuracy = "default",
    schedule: ScheduleFile = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time for measuring; compiling comes on top.")] = 20.0,
    budget: Annotated[
        float | None,
        typer.Option(min=1.0, help="Search on until so many seconds have passed, compiling counted."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="The database for what is measured and found (default: the one that compile reads)."),
    ] = None,
    json: Json = False,
) -> None:
    """Find faster schedules for a model's kernels by measuring.

    Other schedules than the rules' are measured within the model, in a process of their own, and those that are faster
    are written to a file; none is written where none is faster. The file is for this machine, these sizes and these
    options; give it to compile, bench or aot with --schedule. They go into a database too, from which compile takes
    them by itself. Ctrl-C ends the search and keeps what was found.
    """
    show.check_model(model)
    if model.suffix == ".tw":
        raise InputError(f"{model} is compiled already", remedy="tune the model that it was made of")
    path = check_writable(output or model.with_suffix(".schedule"))
    graph = texts.read_graph(model, fix_dims=inputs.parse_sizes(fix, "--fix"))
    specs = [manifest.tensor_spec(name, n) for name, n in zip(graph.input_names, graph.inputs, strict=True)]
    options = Options("native", precision, optimize, accuracy, read_schedule(schedule))
    arrays = [] if graph.symbols() else list(inputs.gather(input, specs, (), {}, seed).values())
    database = FoundSchedules(store) if store else cached_schedules(Cache())
    found = search(graph, arrays, options, threads=threads, seconds=seconds, budget=budget, seed=seed, store=database)
    if found.text:
        write_atomically(path, [found.text.encode()], durable=False)
    if json:
        show.emit_json({"output": str(path) if found.text else None, **asdict(found)})
        return
    rows = [(g.name, g.before * 1e6, g.after * 1e6, g.before / g.after, g.label) for g in found.gains]
    if rows:
        show.table("kernels with another schedule", ("kernel", "us before", "us now", "gain", "ops"), rows)
    whole = f"{found.before * 1e3:.4g} ms a call before, {found.after * 1e3:.4g} ms now"
    kept = f"{len(rows)} kernels gained" if rows else "nothing was faster, the rules' schedules stay"
    written = f"wrote {path}" if found.text else f"{path} was not written"
    show.line(f"{found.n_candidates} candidates, {kept}; {whole}\n{written}")
    if found.left:
        left = [(x.now * 1e6, x.least * 1e6, x.now / x.least if x.least else None, x.label) for x in found.left]
        title = "at most so many times as fast by other schedules"
        show.table(title, ("us now", "us at least", "at most", "ops"), left)
    for line in (*found.faults, *found.notes):
        show.line(line)
