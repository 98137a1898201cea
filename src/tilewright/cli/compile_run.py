"""``tilewright compile`` and ``tilewright run``.

In: a model file and options. Out: a ``.tw`` file, or outputs. Not its business: how compiling works (``driver``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright import driver
from tilewright.cli import inputs, show
from tilewright.core.types import Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.model import LoadedModel, load

Model = Annotated[Path, typer.Argument(help="An ONNX model (.onnx) or a compiled one (.tw).", show_default=False)]
Target = Annotated[str, typer.Option(help="The CPU to make code for; see `tilewright doctor`.")]
Threads = Annotated[int | None, typer.Option(min=1, help="The most threads a call uses (default: what is allowed).")]
Optimize = Annotated[int, typer.Option("--optimize", "-O", min=0, max=2, help="0: a kernel per op; 1, 2: more.")]
PrecisionOption = Annotated[str, typer.Option("--precision", help="The precision of computations: fp32.")]
Fix = Annotated[list[str], typer.Option("--fix", help="Fix a symbolic dimension while compiling: NAME=NUMBER.")]
Size = Annotated[list[str], typer.Option("--size", help="A symbolic dimension of random inputs: NAME=NUMBER.")]
InputFile = Annotated[list[str], typer.Option("--input", "-i", help="NAME=file.npy, or file.npz by names.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the disk cache.")]
Seed = Annotated[int, typer.Option(help="Seed of random inputs.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("compile")(compile_command)
    app.command("run")(run_command)


def obtain(
    path: Path,
    *,
    target: str = "native",
    threads: int | None = None,
    optimize: int = 2,
    precision: str = "fp32",
    cache: bool = True,
    fix: dict[str, int] | None = None,
    quiet: bool = False,
) -> LoadedModel:
    """The compiled model of a path: loaded from ``.tw``, else compiled with a progress bar."""
    if not path.exists():
        raise InputError(f"there is no file {path}", remedy="check the path")
    if path.suffix == ".tw":
        return load(path, threads=threads)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=show.ERR, transient=True, disable=quiet) as bar:
        task = bar.add_task(f"compiling {path.name}", total=None)

        def tell(stage: str, done: int, total: int) -> None:
            bar.update(task, description=f"{path.name}: {stage}", completed=done, total=total)

        return driver.compile(
            path,
            target=target,
            threads=threads,
            optimize=optimize,
            precision=precision,
            cache=cache,
            fix_dims=fix,
            progress=tell,
        )


def compile_command(
    model: Model,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the .tw file.")] = None,
    target: Target = "native",
    threads: Threads = None,
    optimize: Optimize = 2,
    precision: PrecisionOption = "fp32",
    fix: Fix = [],  # noqa: B006
    no_cache: NoCache = False,
    json: Json = False,
) -> None:
    """Compile a model and write it as one file that `run` and `tw.load` take."""
    fixed = inputs.parse_sizes(fix)
    made = obtain(
        model,
        target=target,
        threads=threads,
        optimize=optimize,
        precision=precision,
        cache=not no_cache,
        fix=fixed,
        quiet=json,
    )
    path = output or model.with_suffix(".tw")
    made.save(path)
    if json:
        show.emit_json({"output": str(path), "report": made.report()})
        return
    show.OUT.print(str(made.report()), markup=False, highlight=False)
    show.OUT.print(f"wrote {path} ({show.human_bytes(path.stat().st_size)})", markup=False, highlight=False)


def run_command(
    model: Model,
    input: InputFile = [],  # noqa: B006
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write outputs to this .npz file.")] = None,
    size: Size = [],  # noqa: B006
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Run a model on arrays from files, or on random ones, and show or save its outputs."""
    made = obtain(model, threads=threads, quiet=json)
    arrays = inputs.gather(input, made.inputs, made.symbols, inputs.parse_sizes(size), seed)
    results = made.run(arrays)
    if output is not None:
        np.savez(output, **results)
    rows = [
        (name, str(x.dtype), list(x.shape), *(_statistic(f, x) for f in (np.min, np.mean, np.max)))
        for name, x in results.items()
    ]
    if json:
        keys = ("name", "dtype", "shape", "min", "mean", "max")
        show.emit_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        show.table("outputs", ("name", "dtype", "shape", "min", "mean", "max"), rows)


def _statistic(f: Callable[[Array], Any], x: Array) -> float | None:
    return float(f(x.astype(np.float64))) if x.size else None
