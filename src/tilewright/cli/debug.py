"""``tilewright compare`` and ``tilewright reduce``: where a model goes wrong, and the smallest model that still does.

In: a model file, inputs, options. Out: tables (or JSON), files, and an exit code: 0 all agrees, or the
reduction is done; 3 a difference or a crash was found. Not its business: the search (``debug``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.build import manifest, texts
from tilewright.cli import inputs, show
from tilewright.cli.compile_run import (
    Accuracy,
    Fix,
    InputFile,
    Json,
    Optimize,
    PrecisionOption,
    Seed,
    Size,
    Target,
    Threads,
)
from tilewright.core.graph import Graph
from tilewright.core.specialize import fix_symbols
from tilewright.core.types import Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.manifest import SymbolSpec
from tilewright.tools.debug.compare import compare, import_program
from tilewright.tools.debug.onnx_part import save_onnx
from tilewright.tools.debug.reduce import checker, reduce
from tilewright.tools.debug.report import MEANING, Comparison, Fault, Row
from tilewright.tools.debug.tolerance import Difference
from tilewright.tools.tell import Tell

FOUND = 3
"""The exit code of a difference."""

Source = Annotated[
    Path,
    typer.Argument(
        help="A model: ONNX (.onnx), an exported PyTorch program (.pt2) or a graph's text (.txt).", show_default=False
    ),
]
Seconds = Annotated[float | None, typer.Option(min=1.0, help="Time limit; running longer counts as a crash.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("compare")(compare_command)
    app.command("reduce")(reduce_command)


def compare_command(
    model: Source,
    against: Annotated[
        Literal["reference", "onnxruntime", "torch"],
        typer.Option(help="The other side: every op in NumPy, ONNX Runtime (ONNX models) or PyTorch (.pt2)."),
    ] = "reference",
    input: InputFile = [],  # noqa: B006
    size: Size = [],  # noqa: B006
    seed: Seed = 0,
    fix: Fix = [],  # noqa: B006
    threads: Threads = None,
    target: Target = "native",
    optimize: Optimize = 2,
    precision: PrecisionOption = "fp32",
    accuracy: Accuracy = "default",
    seconds: Seconds = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every layer, not only the worst.")] = False,
    json: Json = False,
) -> None:
    """Find the first op of a model that goes wrong, and why.

    Layer by layer, with the pass or the stage of a kernel that is at fault, and your source line.

    Exit code 0: all differences are within their tolerances; 3: one is not, or native code crashed.
    """
    source, graph = _read(model, inputs.parse_sizes(fix, "--fix"))
    arrays = gather(graph, input, inputs.parse_sizes(size, "--size"), seed)
    with _progress(model.name, quiet=json) as tell:
        found = compare(
            source if against != "reference" else graph,
            arrays,
            against=against,
            threads=threads,
            target=target,
            optimize=optimize,
            precision=precision,
            accuracy=accuracy,
            seconds=seconds,
            progress=tell,
        )
    if json:
        show.emit_json(found.as_json())
    else:
        _print(found, verbose=verbose)
    if not found.agrees:
        raise typer.Exit(FOUND)


def reduce_command(
    model: Source,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder to write (default: the model's name with -reduced)."),
    ] = None,
    input: InputFile = [],  # noqa: B006
    size: Size = [],  # noqa: B006
    seed: Seed = 0,
    fix: Fix = [],  # noqa: B006
    threads: Threads = None,
    target: Target = "native",
    optimize: Optimize = 2,
    precision: PrecisionOption = "fp32",
    accuracy: Accuracy = "default",
    seconds: Annotated[float, typer.Option(min=1.0, help="Time limit of one candidate; longer is a crash.")] = 60.0,
    limit: Annotated[int, typer.Option(min=1, help="The most candidates to run.")] = 500,
    json: Json = False,
) -> None:
    """Shrink a model that fails to the smallest that still does.

    Failures are wrong results, crashes, and errors of the compiler. Writes the graph's text, its inputs, for an ONNX
    model also an ONNX model where one fails in the same way, and prints a command that shows the failure. A model that
    does not fail is an error.
    """
    source, graph = _read(model, inputs.parse_sizes(fix, "--fix"))
    folder = output or model.with_name(f"{model.name.split('.')[0]}-reduced")
    # Before minutes of work, not after them.
    if folder.exists() and not folder.is_dir():
        raise InputError(f"can't write {folder}: it is a file", remedy="name a folder")
    arrays = gather(graph, input, inputs.parse_sizes(size, "--size"), seed)
    with _progress(model.name, quiet=json) as tell:
        found = reduce(
            graph,
            arrays,
            threads=threads,
            target=target,
            optimize=optimize,
            precision=precision,
            accuracy=accuracy,
            seconds=seconds,
            limit=limit,
            progress=tell,
        )
        command = found.save(folder)
        onnx = None
        if model.suffix == ".onnx":
            # The ONNX model must fail in the same way, or it is not written.
            with checker(found.options, threads=threads, isolate=True, seconds=seconds) as test:
                onnx = save_onnx(found, source, arrays, folder, test)
    facts = {
        "failure": found.failure.as_json(),
        "ops_before": found.n_ops_before,
        "ops": found.n_ops,
        "candidates": found.n_tried,
        "folder": str(folder),
        "onnx": None if onnx is None else str(onnx),
        "command": command,
    }
    if json:
        show.emit_json(facts)
        return
    show.line(f"{found.n_ops_before} ops before, {found.n_ops} after {found.n_tried} candidates\n")
    show.line(found.text)
    show.line(f"failure: {found.failure.kind} {found.failure.code} {found.failure.detail}".rstrip())
    show.line(f"wrote {folder}{' with model.onnx' if onnx else ''}; to see it:\n  {command}")


def _read(model: Path, fixed: dict[str, int]) -> tuple[Any, Graph]:
    """What ``compare`` takes, and its graph."""
    show.check_model(model)
    if model.suffix == ".tw":
        raise InputError(f"{model} is machine code", remedy="give the model that it was compiled from")
    if model.suffix == ".pt2":
        program, graph = import_program(model)
        return program, fix_symbols(graph, fixed)
    return model, texts.read_graph(model, fix_dims=fixed).unchecked()


def gather(graph: Graph, files: list[str], sizes: dict[str, int], seed: int) -> dict[str, Array]:
    """Inputs of a graph from files, the rest drawn at random."""
    specs = [manifest.tensor_spec(name, n) for name, n in zip(graph.input_names, graph.inputs, strict=True)]
    symbols = [SymbolSpec(s.name, s.lo or 0, s.hi) for s in graph.symbols()]
    return inputs.gather(files, specs, symbols, sizes, seed)


@contextmanager
def _progress(name: str, *, quiet: bool) -> Iterator[Tell]:
    """A bar on standard error while a terminal watches."""
    err = show.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def tell(stage: str, done: int, total: int) -> None:
            bar.update(task, description=f"{name}: {stage}"[:60], completed=done, total=total)

        yield tell


# --- what a person reads --------------------------------------------------------------------------------------------

COLUMNS = ("", "op", "max abs", "max rel", "ULP", "allowed", "worst element", "source")
SHOWN = 12
"""Layers in a table, unless all are asked for."""


def _print(found: Comparison, *, verbose: bool) -> None:
    for title, rows in (
        (f"values, imported and by {found.against}", found.values),
        ("kernels, each on true operands", found.layers),
        ("outputs of the whole run", found.outputs),
    ):
        if rows:
            chosen = rows if verbose else _worst(rows)
            more = "" if len(chosen) == len(rows) else f", the {len(chosen)} worst of {len(rows)}"
            show.table(title + more, COLUMNS, [_cells(r) for r in chosen])
    bad = [(n, d) for n, d in found.passes if d is not None and d.is_bad]
    if bad:
        looked = [(n, d) for n, d in found.passes if d is not None]
        cells = [("WRONG" if d.is_bad else "ok", n, *_numbers(d)) for n, d in looked]
        show.table("graph passes that were looked at", ("", "after pass", *COLUMNS[2:7]), cells)
    show.line(verdict(found))


def _worst(rows: tuple[Row, ...]) -> list[Row]:
    """The rows nearest to their limits, in running order."""

    def badness(row: Row) -> float:
        d = row.difference
        return float("inf") if d.is_bad else d.max_abs / d.limit if d.limit else d.max_abs

    chosen = set(sorted(range(len(rows)), key=lambda k: -badness(rows[k]))[:SHOWN])
    return [r for k, r in enumerate(rows) if k in chosen]


def _cells(row: Row) -> tuple[object, ...]:
    return ("WRONG" if row.difference.is_bad else "ok", row.name, *_numbers(row.difference), row.loc.text)


def _numbers(d: Difference) -> tuple[object, ...]:
    if d.problem:
        return (None, None, None, None, d.problem)
    return (*(f"{x:.3g}" for x in (d.max_abs, d.max_rel)), "" if d.max_ulp is None else f"{d.max_ulp:.3g}",
            f"{d.limit:.3g}", str(list(d.index)))  # fmt: skip


def verdict(found: Comparison) -> str:
    """The end of a comparison in words."""
    if found.fault is None:
        n = len(found.layers)
        agrees = f"{found.model} agrees with {found.against}: {n} kernels, {len(found.outputs)} outputs."
        return "\n".join([agrees, *_amplified_lines(found)])
    return "\n".join(_fault_lines(found.fault))


def _amplified_lines(found: Comparison) -> Iterator[str]:
    """Where the model makes much of rounding, if it does."""
    if found.amplified:
        first, n = found.amplified[0], len(found.amplified)
        yield f"  but     {n} values differ by more than rounding, each right on {found.against}'s own operands"
        yield f"  first   {first.name} at {first.loc}: {first.difference}"
        yield "  so      the model amplifies rounding there, as a search, a sort or a steep function does"


def _fault_lines(f: Fault) -> Iterator[str]:
    yield f"first difference: {f.op or f.name}"
    yield f"  at      {f.loc}" + (f" ({f.loc.file}:{f.loc.line})" if f.loc.file else "")
    yield f"  stage   {f.stage}: {MEANING[f.stage]}"
    yield f"  by      {f.name}" + (f", rule {f.rule}" if f.rule else "")
    if f.kernel:
        yield f"  kernel  {f.kernel}"
    yield f"  found   {f.difference}"
    if f.detail:
        yield f"  note    {f.detail}"
