"""``tilewright ir`` and ``tilewright passes``: the model at any stage, as text.

In: a model, or a graph's text. Out: text after a pass, or a kernel's tile IR, LLVM or assembly.
Not its business: the stages themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright import driver
from tilewright.cli import inputs, show
from tilewright.cli.compile_run import Fix, Json, Model, Optimize, Target
from tilewright.core.diag import OptionError

STAGES = ("graph", "kernels", "tile", "llvm", "asm", "entry")


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("ir")(ir_command)
    app.command("passes")(passes_command)


def ir_command(
    model: Model,
    stage: Annotated[str, typer.Option(help=f"What to print: {', '.join(STAGES)}.")] = "graph",
    print_after: Annotated[str, typer.Option(help="Print after this pass (a name, or 'all').")] = "",
    pass_pipeline: Annotated[str | None, typer.Option(help="Run these passes: name{option=value},name,...")] = None,
    kernel: Annotated[str, typer.Option(help="Only kernels whose name or ops contain this.")] = "",
    fix: Fix = [],  # noqa: B006
    target: Target = "native",
    optimize: Optimize = 2,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
) -> None:
    """Print the model's IR after any stage or pass. A .txt or .tw.txt file is read as a graph's text."""
    if stage not in STAGES:
        raise OptionError(f"no stage {stage!r}", remedy=f"use one of {', '.join(STAGES)}")
    options = driver.Options(target=target, optimize=optimize)
    graph = driver.read_graph(model, fix_dims=inputs.parse_sizes(fix))
    texts: list[str] = []
    done = driver.optimise(graph, options, pass_pipeline, after=print_after, show=texts.append)
    if stage == "graph":
        texts = texts if print_after else [driver.print_graph(done)]
    else:
        texts = list(driver.kernel_texts(done, options, stage, kernel))
    text = "\n".join(texts)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n")


def passes_command(json: Json = False) -> None:
    """List the graph passes and where the optimisation levels use them."""
    rows = driver.pass_table()
    if json:
        show.emit_json(rows)
    else:
        show.table("passes", ("name", "levels", "what it does"), [list(r.values()) for r in rows])
