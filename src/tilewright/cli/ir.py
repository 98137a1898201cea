"""``tilewright ir`` and ``tilewright passes``: the model at any stage, as text.

In: a model, or the text of a graph or of kernels. Out: text after a pass, or a kernel's tile IR, LLVM or assembly.
Not its business: the stages themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from tilewright.build import texts
from tilewright.build.options import Options, read_schedule
from tilewright.cli import inputs, show
from tilewright.cli.compile_run import Accuracy, Fix, Json, Optimize, PrecisionOption, ScheduleFile, Source, Target
from tilewright.codegen.cpu.llvm import assembly, emit_kernel
from tilewright.codegen.gpu import compile_kernel, emit
from tilewright.core.diag import OptionError
from tilewright.core.text import print_graph, save_graph
from tilewright.runtime.errors import InputError
from tilewright.runtime.files import check_writable, write_text
from tilewright.target import target as targets
from tilewright.target.gpu import Gpu, is_gpu
from tilewright.tile.flatten import flatten
from tilewright.tile.text import kernel_text, parse_kernel
from tilewright.tile.verify import verify

Stage = Literal["graph", "kernels", "schedule", "tile", "llvm", "asm", "entry"]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("ir")(ir_command)
    app.command("passes")(passes_command)


def ir_command(
    model: Source,
    stage: Annotated[Stage, typer.Option(help="What to print.")] = "graph",
    print_after: Annotated[str, typer.Option(metavar="PASS", help="Print the graph after this pass, or 'all'.")] = "",
    pass_pipeline: Annotated[
        str | None,
        typer.Option(metavar="PASSES", help="Passes to run instead of the level's: name{option=value},name,..."),
    ] = None,
    kernel: Annotated[str, typer.Option(metavar="TEXT", help="Only kernels whose name or ops contain this.")] = "",
    fix: Fix = [],  # noqa: B006
    target: Target = "native",
    optimize: Optimize = 2,
    precision: PrecisionOption = "fp32",
    accuracy: Accuracy = "default",
    schedule: ScheduleFile = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file; a graph's large constants go beside it (.npz)."),
    ] = None,
    dump: Annotated[Path | None, typer.Option(help="Write every pass and stage to this folder, a file each.")] = None,
) -> None:
    """Print the model's IR after any stage or pass.

    Text goes in again: a .txt file that was written with -o, edited or not, takes the model's place; a graph goes
    through the passes (--pass-pipeline "" for none), kernels in tile form go on to --stage llvm or asm.
    """
    options = Options(target, precision, optimize, accuracy, read_schedule(schedule))
    if print_after and stage != "graph":
        raise typer.BadParameter(f"prints graphs; it does not go with --stage {stage}", param_hint="'--print-after'")
    if output is not None:
        check_writable(output)
    if model.suffix == ".tw":
        raise InputError(f"{model} is machine code", remedy="give the model that it was compiled from")
    # A text may be a graph or kernels; kernels have left the graph behind and go on from there.
    if model.suffix == ".txt" and (text := _tile_text(model)):
        _write(list(_kernel_forms(text, stage, target)), output)
        return
    graph = texts.read_graph(model, fix_dims=inputs.parse_sizes(fix, "--fix"))
    if dump is not None:
        texts.dump_stages(graph, options, dump, pass_pipeline)
        show.line(f"wrote {len(list(dump.iterdir()))} files to {dump}")
        return
    shown: list[str] = []
    done = texts.optimise(graph, options, pass_pipeline, after=print_after, show=shown.append)
    if stage != "graph":
        shown = list(texts.kernel_texts(done, options, stage, kernel))
        if not shown:
            raise OptionError(f"no kernel's name or ops contain {kernel!r}", remedy="see --stage kernels without it")
    elif not print_after and output is not None:
        save_graph(done, output)
        return
    elif not print_after:
        shown = [print_graph(done)]
    _write(shown, output)


def passes_command(json: Json = False) -> None:
    """List the graph passes and the levels that use them."""
    rows = texts.pass_table()
    if json:
        show.emit_json(rows)
    else:
        show.table("passes", ("name", "levels", "what it does"), [list(r.values()) for r in rows])


def _write(texts: list[str], output: Path | None) -> None:
    text = "\n".join(t.rstrip("\n") for t in texts)
    if output is None:
        typer.echo(text)
    else:
        write_text(output, text + "\n")


def _tile_text(path: Path) -> str:
    """The text of a file of kernels; "" of another file. (A graph's text begins with ``graph``.)"""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    first = next((x for x in text.split("\n") if x.strip() and not x.startswith("//")), "")
    return text if first.startswith("kernel ") else ""


def _kernel_forms(text: str, stage: Stage, target_name: str) -> Iterator[str]:
    """Each kernel of a text in tile form, checked, in the form of a later stage."""
    if stage not in ("tile", "llvm", "asm"):
        raise typer.BadParameter(
            f"kernels in tile form have no stage {stage}; use tile, llvm, asm", param_hint="'--stage'"
        )
    gpu = Gpu.parse(target_name) if is_gpu(target_name) else None
    target = None if gpu is not None else targets.Target.parse(target_name)
    for part in _split_kernels(text):
        made = parse_kernel(part)
        verify(made)
        if stage == "tile":
            yield kernel_text(made)
        elif target is not None:
            yield (emit_kernel if stage == "llvm" else assembly)(made, target)
        elif gpu is not None:
            flat = flatten(made)
            yield emit(flat, gpu).text if stage == "llvm" else compile_kernel(flat, gpu).assembly


def _split_kernels(text: str) -> Iterator[str]:
    """The text of each kernel, behind as many empty lines as stand before it: errors name the file's lines."""
    lines = ["" if x.startswith("//") else x for x in text.split("\n")]
    starts = [k for k, x in enumerate(lines) if x.startswith("kernel ")]
    for first, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield "\n".join([""] * first + lines[first:end])
