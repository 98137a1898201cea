"""``tilewright aot``: a model as an object file and a C header.

In: a model file and options. Out: files in a folder. Not its business: how they are made (``deploy``, ``aot``).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tilewright.build import texts
from tilewright.cli import inputs, show
from tilewright.cli.compile_run import (
    Accuracy,
    Fix,
    Json,
    Optimize,
    PrecisionOption,
    ScheduleFile,
    Source,
    Specialize,
    Target,
)
from tilewright.core.diag import OptionError
from tilewright.runtime.errors import InputError
from tilewright.runtime.signature import sign_file
from tilewright.target.target import Target as Machine

Output = Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")]
Name = Annotated[str | None, typer.Option("--name", help="Begins C names and file names (default: the file's).")]
AtMost = Annotated[
    int | None, typer.Option(min=1, help="The most threads a call may use (default: 1; native: what is allowed).")
]
Shared = Annotated[bool, typer.Option("--shared", help="Also link a shared library: cc, or the extra aot.")]
Sign = Annotated[Path | None, typer.Option("--sign", help="Sign the record with this Ed25519 private key (PEM).")]
Static = Annotated[bool, typer.Option("--static", help="Also write a static archive.")]
ByteTable = Annotated[bool, typer.Option("--bytes", help="Show what the object's bytes are spent on.")]
WeightsOption = Annotated[str, typer.Option("--weights", help="embedded, file, or auto: embedded up to 64 MiB.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("aot")(aot_command)


def aot_command(
    model: Source,
    output: Output = Path("."),
    name: Name = None,
    target: Target = "native",
    threads: AtMost = None,
    weights: WeightsOption = "auto",
    optimize: Optimize = 2,
    precision: PrecisionOption = "fp32",
    accuracy: Accuracy = "default",
    schedule: ScheduleFile = None,
    fix: Fix = [],  # noqa: B006
    specialize: Specialize = [],  # noqa: B006
    shared: Shared = False,
    static: Static = False,
    byte_table: ByteTable = False,
    sign: Sign = None,
    json: Json = False,
) -> None:
    """Compile a model to an object file and a C header."""
    from tilewright.aot.interface import c_name
    from tilewright.build import deploy

    if model.suffix == ".tw":
        raise InputError(f"{model} is compiled already", remedy="export the model that it was made of")
    # Bare metal and WebAssembly without threads: asking for two would be answered by one.
    alone = [t for t in target.split(",") if not Machine.parse(t).has_threads]
    if threads is not None and threads > 1 and alone:
        raise OptionError(f"code for {', '.join(alone)} has no threads, not {threads}", remedy="leave out --threads")
    is_text = model.suffix == ".txt"
    made = deploy.export(
        texts.read_graph(model) if is_text else model,
        output,
        name=c_name(model.stem) if name is None and is_text else name,
        target=target,
        threads=threads,
        weights=weights,
        optimize=optimize,
        precision=precision,
        accuracy=accuracy,
        schedule=schedule,
        fix_dims=inputs.parse_sizes(fix, "--fix"),
        specialize=inputs.parse_specialize(specialize),
        shared=shared,
        static=static,
    )
    signature = [] if sign is None else [sign_file(made.record, sign)]
    rows = [(str(path), path.stat().st_size) for path in [*made.files, *signature]]
    if json:
        show.emit_json({"name": made.name, "files": dict(rows), "sizes": [asdict(row) for row in made.sizes]})
        return
    show.table("files", ("file", "bytes"), rows)
    if byte_table:
        parts = [(row.kind, row.name, row.n_bytes) for row in made.sizes]
        show.table(made.object.name, ("part", "what", "bytes"), [*parts, ("", "in all", sum(p[2] for p in parts))])
