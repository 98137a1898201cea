"""``tilewright sign`` and ``tilewright verify``: files with Ed25519 signatures.

In: a ``.tw`` file or an export's ``.json`` record, and a key. Out: a ``.sig`` file, or a verdict.
Not its business: cryptography (``runtime.signature``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import show
from tilewright.runtime import artifact
from tilewright.runtime.record import check_files
from tilewright.runtime.signature import check_signature, sign_file

File = Annotated[Path, typer.Argument(help="A .tw file, or the .json record of an export.", show_default=False)]
PrivateKey = Annotated[Path, typer.Option("--key", help="An Ed25519 private key in PEM.", show_default=False)]
PublicKey = Annotated[
    Path | None, typer.Option("--key", help="The signer's public key in PEM: without it, only damage is looked for.")
]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("sign")(sign_command)
    app.command("verify")(verify_command)


def sign_command(file: File, key: PrivateKey) -> None:
    """Sign a compiled model or an export's record."""
    verify(file, None)
    show.line(f"wrote {sign_file(file, key)}")


def verify_command(file: File, key: PublicKey = None) -> None:
    """Check a compiled model or an export: damage, and signature."""
    verify(file, key)
    show.line(f"{file.name}: " + ("undamaged, its signer is not checked" if key is None else "undamaged and signed"))


def verify(file: Path, key: Path | None) -> None:
    """Raise ``ArtifactError`` unless a file, and what it names, is as it was written and signed."""
    if key is not None:
        check_signature(file, key)
    if file.suffix == ".json":
        check_files(file)
    else:
        artifact.load(file)
