"""``tilewright export``: a model as a file of another format.

In: a model's file and options. Out: a file. Not its business: how formats are written (``build.convert``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.build import texts
from tilewright.cli import inputs, show
from tilewright.cli.compile_run import Fix, Json, Source, Target
from tilewright.runtime.errors import InputError
from tilewright.runtime.files import check_writable


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command("export")(export_command)


def export_command(
    model: Source,
    to: Annotated[
        str, typer.Option("--to", help="The format: onnx, stablehlo, torch, llvm or c (default: as the output's name).")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write (default: the model's name).")
    ] = None,
    optimized: Annotated[
        bool, typer.Option("--optimized", help="The graph after the passes that hold for every machine.")
    ] = False,
    target: Target = "native",
    fix: Fix = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Write a model in the format of another tool."""
    from tilewright.build import convert

    show.check_model(model)
    if model.suffix == ".tw":
        raise InputError(f"{model} is compiled already", remedy="export the model that it was made of")
    if output is None and not to:
        to = "onnx"
    suffix = next((s for s, kind in convert.SUFFIXES.items() if kind == to), "")
    path = check_writable(output or Path(f"{model.with_suffix('').name}.exported{suffix}"))
    is_text = model.suffix == ".txt"
    made = convert.convert(
        texts.read_graph(model) if is_text else model, path, to=to or None, optimize=optimized,
        fix_dims=inputs.parse_sizes(fix, "--fix"), target=target,
    )  # fmt: skip
    if json:
        show.emit_json({"output": str(made), "bytes": made.stat().st_size})
    else:
        show.line(f"wrote {made} ({made.stat().st_size} bytes)")
