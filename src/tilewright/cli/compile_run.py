"""``tilewright compile`` and ``tilewright run``.

In: a model file and options. Out: a ``.tw`` file, or outputs. Not its business: how compiling works (``driver``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from tilewright.build import driver, texts
from tilewright.build.options import Level
from tilewright.cli import inputs, show
from tilewright.core.diag import OptionError
from tilewright.core.types import Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.files import check_writable, replacing
from tilewright.runtime.models import load
from tilewright.runtime.python.model import CompiledModel, LoadedModel

_KINDS = "A model: ONNX (.onnx), PyTorch's export (.pt2), StableHLO (.mlir), TFLite (.tflite), a graph's text (.txt)"
Model = Annotated[Path, typer.Argument(help=f"{_KINDS} or compiled (.tw).", show_default=False)]
Source = Annotated[Path, typer.Argument(help=f"{_KINDS}.", show_default=False)]
Target = Annotated[
    str, typer.Option(help="The CPU or GPU to make code for: native, or a name that `tilewright targets` lists.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="The most threads a call uses (default: what is allowed).")]
Optimize = Annotated[
    Any,
    typer.Option(
        "--optimize", "-O", parser=inputs.parse_level, metavar="LEVEL",
        help="0: a kernel per op; 1: fused; 2: all; 3: all, schedules by price (compiles for longer); "
        "size: all, with the smallest code and weights.",
    ),
]  # fmt: skip
PrecisionOption = Annotated[
    str, typer.Option("--precision", help="What products read: fp32, bf16, fp16, int8, fp8, int4, nf4, fp4...")
]
Accuracy = Annotated[
    str, typer.Option("--accuracy", help="default: forms with an error within 1e-4 are allowed; exact: plain sums.")
]
Fix = Annotated[
    list[str], typer.Option("--fix", metavar="NAME=NUMBER", help="Fix a symbolic dimension. May be repeated.")
]
Size = Annotated[
    list[str],
    typer.Option("--size", metavar="NAME=NUMBER", help="A symbolic dimension of random inputs. May be repeated."),
]
InputFile = Annotated[
    list[str],
    typer.Option("--input", "-i", metavar="[NAME=]FILE", help="An .npy file, or an .npz by names. May be repeated."),
]
ScheduleFile = Annotated[
    Path | None,
    typer.Option("--schedule", metavar="FILE", help="Schedules of kernels, as `ir --stage schedule` prints them."),
]
Specialize = Annotated[
    list[str],
    typer.Option(
        "--specialize", metavar="NAME=NUMBER,...",
        help="Sizes that get code of their own beside the code for all: batch=1,8, or @FILE of `run --profile-sizes`. "
        "Of several names every combination.",
    ),
]  # fmt: skip
ProfileSizes = Annotated[
    Path | None,
    typer.Option("--profile-sizes", metavar="FILE", help="Add this run's sizes to a file for --specialize @FILE."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Verify = Annotated[bool, typer.Option("--verify", help="Compile anew, and check the model after every pass.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the disk cache.")]
Seed = Annotated[int, typer.Option(help="Seed of random inputs.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("compile")(compile_command)
    app.command("run")(run_command)
    app.command("refit")(refit_command)


def obtain(
    path: Path,
    *,
    target: str = "native",
    threads: int | None = None,
    optimize: Level = 2,
    precision: str = "fp32",
    accuracy: str = "default",
    schedule: Path | None = None,
    cache: bool = True,
    fix: dict[str, int] | None = None,
    specialize: Any = None,
    quiet: bool = False,
    verify: bool = False,
) -> CompiledModel:
    """The compiled model of a path: loaded from ``.tw``, else compiled with a progress bar."""
    show.check_model(path)
    if path.suffix == ".tw":
        if schedule is not None:
            raise OptionError(f"{path} is compiled already: its schedules are fixed", remedy="give its source model")
        if fix:
            raise OptionError(f"{path} is compiled already: its sizes are fixed", remedy="give its source model")
        if specialize or (target, optimize, precision, accuracy) != ("native", 2, "fp32", "default"):
            raise OptionError(f"{path} is compiled already: its code is made", remedy="give its source model")
        return load(path, threads=threads)
    source = texts.read_graph(path) if path.suffix == ".txt" else path
    err = show.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    # On standard error, and only where somebody looks, so that output can be piped.
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(f"compiling {path.name}", total=None)

        def tell(stage: str, done: int, total: int) -> None:
            bar.update(task, description=f"{path.name}: {stage}", completed=done, total=total or None)

        return driver.compile(
            source,
            target=target,
            threads=threads,
            optimize=optimize,
            precision=precision,
            accuracy=accuracy,
            schedule=schedule,
            specialize=specialize,
            cache=cache,
            fix_dims=fix,
            progress=tell,
            verify=verify,
        )


def refit_command(
    model: Annotated[Path, typer.Argument(help="A compiled model (.tw), with its .refit beside it.")],
    weights: Annotated[Path, typer.Argument(help="Its new weights: a safetensors or GGUF file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write (default: in place of the model).")
    ] = None,
) -> None:
    """Put new weights into a compiled model, without compiling."""
    from tilewright.build.refit import refit

    if model.suffix != ".tw":
        raise InputError(f"{model} is not compiled", remedy="compile it with --refit first")
    path = check_writable(output or show.check_model(model))
    refit(model, weights, path)
    show.line(f"wrote {path} ({show.human_bytes(path.stat().st_size)})")


def compile_command(
    model: Source,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write (default: the model's name with .tw).")
    ] = None,
    target: Target = "native",
    threads: Threads = None,
    optimize: Optimize = 2,
    precision: PrecisionOption = "fp32",
    accuracy: Accuracy = "default",
    schedule: ScheduleFile = None,
    fix: Fix = [],  # noqa: B006
    specialize: Specialize = [],  # noqa: B006
    no_cache: NoCache = False,
    verify: Verify = False,
    refit: Annotated[
        bool, typer.Option("--refit", help="Write beside it how weights are made, for `tilewright refit`.")
    ] = False,
    json: Json = False,
) -> None:
    """Compile a model to one file, for `run` and `tw.load`."""
    if model.suffix == ".tw":
        raise InputError(f"{model} is compiled already", remedy="run it, or compile the model that it was made of")
    fixed = inputs.parse_sizes(fix, "--fix")
    path = check_writable(output or show.check_model(model).with_suffix(".tw"))
    made = obtain(
        model,
        target=target,
        threads=threads,
        optimize=optimize,
        precision=precision,
        accuracy=accuracy,
        schedule=schedule,
        cache=not no_cache,
        fix=fixed,
        specialize=inputs.parse_specialize(specialize),
        quiet=json,
        verify=verify,
    )
    made.save(path, refit=refit)
    if json:
        show.emit_json({"output": str(path), "report": made.report()})
        return
    show.line(f"{made.report()}\n\nwrote {path} ({show.human_bytes(path.stat().st_size)})")


def run_command(
    model: Model,
    input: InputFile = [],  # noqa: B006
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the outputs to this .npz file.")] = None,
    size: Size = [],  # noqa: B006
    seed: Seed = 0,
    threads: Threads = None,
    precision: PrecisionOption = "fp32",
    profile_sizes: ProfileSizes = None,
    json: Json = False,
) -> None:
    """Run a model on arrays from files or on random ones."""
    if output is not None:
        check_writable(output)
    sizes = inputs.parse_sizes(size, "--size")
    made = obtain(model, threads=threads, precision=precision, quiet=json)
    arrays = inputs.gather(input, made.inputs, made.symbols, sizes, seed)
    results = _counted(made, arrays, profile_sizes)
    if output is not None:
        with replacing(output if output.suffix == ".npz" else Path(f"{output}.npz")) as file:
            np.savez(file, **results)
    rows = [{"name": name, "dtype": str(x.dtype), "shape": list(x.shape), **_range(x)} for name, x in results.items()]
    if json:
        show.emit_json(rows)
    else:
        shown = [(name, show.element_type(str(dtype)), *rest) for name, dtype, *rest in (r.values() for r in rows)]
        show.table("outputs", ("name", "dtype", "shape", "min", "mean", "max"), shown)


def _counted(model: CompiledModel, arrays: dict[str, Array], path: Path | None) -> dict[str, Any]:
    """The outputs; the sizes of the call are added to a file where there is to be one."""
    if path is None or not isinstance(model, LoadedModel):
        return model.run(arrays)
    with model.profile_sizes() as seen:
        results = model.run(arrays)
    seen.write(path)
    return results


def _range(x: Array) -> dict[str, float | int | None]:
    """The least, mean and largest element; none for an empty array. Integers stay exact, complex numbers are as large
    as their absolute value."""
    if x.size == 0:
        return dict.fromkeys(("min", "mean", "max"))
    x = np.abs(x) if x.dtype.kind == "c" else x
    wide = x if x.dtype.kind in "iu" else x.astype(np.float64)
    return {"min": wide.min().item(), "mean": float(wide.mean(dtype=np.float64)), "max": wide.max().item()}
