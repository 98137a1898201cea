"""``tilewright quantize``: a model and samples in, an ONNX model of 8-bit products and a table out.

In: a model's file and a file of samples. Out: an ONNX file, and what happened to each layer. Not its business: how
(``tools.quantize``).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from tilewright.build import texts
from tilewright.build.options import GROUPS
from tilewright.cli import inputs, show
from tilewright.cli.compile_run import Fix, Json, Source
from tilewright.runtime.errors import InputError
from tilewright.runtime.files import check_writable
from tilewright.tools.quantize.measure import CalibrationWarning
from tilewright.tools.quantize.quantize import quantize
from tilewright.tools.quantize.scheme import AUTO, GPTQ, OFFERED, OFFERED_STORED, STATIC, STORED, STORED_WEIGHTS


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command("quantize")(quantize_command)


def _one_of(name: str) -> str:
    return ", ".join(map(str, OFFERED[name]))


def _stored(name: str) -> str:
    return ", ".join(map(str, OFFERED_STORED[name]))


def _exponent(text: str) -> float | str | None:
    """What ``--smooth`` says; ``Scheme`` refuses other words."""
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        return text


def quantize_command(
    model: Source,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", "-d", help="Samples: an .npz file of arrays by input name, or an .npy file; first axis: samples."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write (default: with .int8.onnx, or the kind of weights)."),
    ] = None,
    mode: Annotated[
        str, typer.Option(help=f"Scales of activations by data, by each call, or weights alone: {_one_of('mode')}.")
    ] = STATIC,
    activations: Annotated[str, typer.Option(help=f"Types of activations: {_one_of('activations')}.")] = "u8",
    weights: Annotated[
        str | None,
        typer.Option(help=f"Scales of weights: {_one_of('weights')}; with --mode weights: {_stored('weights')}."),
    ] = None,
    group: Annotated[
        int, typer.Option(help=f"Weights that share a scale, with --mode weights: {_stored('group')}.")
    ] = GROUPS[0],
    weight_bits: Annotated[
        int, typer.Option(help=f"Bits of weights: {_one_of('weight_bits')}; 7 for ONNX Runtime on x86 without VNNI.")
    ] = 8,
    observer: Annotated[str, typer.Option(help=f"How ranges are chosen: {_one_of('observer')}.")] = "minmax",
    bias_correction: Annotated[
        bool, typer.Option("--bias-correction", help="Take each layer's mean error out of its bias.")
    ] = False,
    smooth: Annotated[
        str, typer.Option(help=f"Make channels of operands more equal by this power of their size: 0.5, {AUTO}, none.")
    ] = AUTO,
    rounding: Annotated[str, typer.Option(help=f"How weights are rounded: {_one_of('rounding')}.")] = GPTQ,
    split_outliers: Annotated[
        bool, typer.Option("--split-outliers", help="Read channels larger than the rest in several columns.")
    ] = False,
    equalize: Annotated[
        bool, typer.Option("--equalize", help="Make weights before and behind a channel equal in size.")
    ] = False,
    spare: Annotated[
        list[str], typer.Option("--spare", metavar="LAYER", help="A layer that stays f32. May be repeated.")
    ] = [],  # noqa: B006
    fix: Fix = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Quantise a model to 8 bits by samples, or its weights alone. --mode dynamic needs no samples, but uses them.

    The file is ONNX, with QuantizeLinear and DequantizeLinear, which other runtimes read too. The table says for each
    layer in which type it multiplies, its signal to noise, what share of its operand lies beyond its range, and why one
    stays.
    """
    show.check_model(model)
    if model.suffix == ".tw":
        raise InputError(f"{model} is compiled already", remedy="quantise the model that it was made of")
    kind = (weights or STORED_WEIGHTS) if mode == STORED else "int8"
    path = check_writable(output or model.with_suffix(f".{kind}.onnx"))
    graph = texts.read_graph(model, fix_dims=inputs.parse_sizes(fix, "--fix"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # the report has them
        found = quantize(
            graph, data, mode=mode, activations=activations, weights=weights, weight_bits=weight_bits, group=group,
            observer=observer, bias_correction=bias_correction, smooth=_exponent(smooth), equalize=equalize,
            rounding=rounding, split_outliers=split_outliers, spare=spare,
        )  # fmt: skip
    found.save(path)
    if json:
        show.emit_json({"output": str(path), **found.report.to_dict()})
    else:
        show.line(f"{found.report}\nwrote {path}")
