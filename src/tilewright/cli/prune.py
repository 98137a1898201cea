"""``tilewright prune``: a model in, an ONNX model with fewer channels or weights and a table out.

In: a model's file. Out: an ONNX file, masks where they are asked for, and what happened to each layer. Not its
business: how (``tools.prune``).
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Annotated
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import typer

from tilewright.build import texts
from tilewright.cli import inputs, show
from tilewright.cli.compile_run import Fix, Json, Source
from tilewright.graph.prune.importance import POWERS
from tilewright.runtime.errors import InputError
from tilewright.runtime.files import check_writable, replacing, writing
from tilewright.tools.prune.prune import CHANNELS, LAYER, SCOPES, STRUCTURES, prune


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command("prune")(prune_command)


def prune_command(
    model: Source,
    amount: Annotated[
        float | None, typer.Option(help="The part that goes, from 0 to below 1 (of 2:4 always 0.5).")
    ] = None,
    structure: Annotated[str, typer.Option(help=f"What goes: {', '.join(STRUCTURES)}.")] = CHANNELS,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write (default: with .pruned.onnx).")
    ] = None,
    norm: Annotated[str, typer.Option(help=f"How the size of weights is measured: {', '.join(POWERS)}.")] = "l1",
    scope: Annotated[str, typer.Option(help=f"What is compared: each layer, or all: {', '.join(SCOPES)}.")] = LAYER,
    round_to: Annotated[int, typer.Option(help="What is left of channels is a multiple of this.")] = 8,
    block: Annotated[str, typer.Option(help="Of blocks: terms of a sum by columns.")] = "4x16",
    spare: Annotated[
        list[str], typer.Option("--spare", metavar="LAYER", help="A layer that loses nothing. May be repeated.")
    ] = [],  # noqa: B006
    masks: Annotated[
        Path | None, typer.Option(help="An .npz file to write: for each layer that loses weights, which stay.")
    ] = None,
    fix: Fix = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Take away the channels, heads or weights that matter least.

    The file is ONNX. The table has the weights of each layer before and after, and why one keeps all. Results change:
    train what is left with the framework that the model comes from.
    """
    show.check_model(model)
    if model.suffix == ".tw":
        raise InputError(f"{model} is compiled already", remedy="prune the model that it was made of")
    path = check_writable(output or model.with_suffix(".pruned.onnx"))
    graph = texts.read_graph(model, fix_dims=inputs.parse_sizes(fix, "--fix"))
    high, _, wide = block.partition("x")
    found = prune(
        graph, amount, structure=structure, norm=norm, scope=scope, round_to=round_to,
        block=(_size(high), _size(wide)), spare=spare,
    )  # fmt: skip
    kept = found.plan.masks() if masks is not None else {}
    found.save(path)
    if masks is not None:
        with writing(masks), replacing(masks) as file, ZipFile(file, "w", ZIP_DEFLATED) as archive:
            for name, mask in kept.items():  # names of weights may be anything, and np.savez takes them as keywords
                member = BytesIO()
                np.lib.format.write_array(member, mask)
                archive.writestr(f"{name}.npy", member.getvalue())
    if json:
        show.emit_json({"output": str(path), **found.report.to_dict()})
    else:
        show.line(f"{found.report}\nwrote {path}")


def _size(text: str) -> int:
    """0, which is no size, for what is no number."""
    return int(text) if text.isdecimal() else 0
