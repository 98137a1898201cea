"""Tables, JSON and files: how the commands answer.

In: plain records. Out: text for a person or for a program. Not its business: what is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.core.types import DTYPES, NARROW
from tilewright.runtime.errors import InputError

UNBOUNDED = 10_000
"""Columns of an output that is not a terminal: nothing there is cut or wrapped."""


def console(*, stderr: bool = False) -> Console:
    """Where a person reads: as wide as the terminal, unbounded in a pipe or a file."""
    found = Console(stderr=stderr, highlight=False, markup=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, markup=False, width=UNBOUNDED)


def line(text: str) -> None:
    """Print a line as it is."""
    typer.echo(text)


_TYPE_NAMES = {d.numpy.name: d.name for d in (*DTYPES, *NARROW)}


def element_type(dtype: str) -> str:
    """How tables and graphs call what NumPy calls ``dtype``: ``f32`` for ``float32``. Complex names are NumPy's."""
    return _TYPE_NAMES.get(dtype, dtype)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a title, and an empty line; numbers are right-aligned, floats have six digits."""
    values = [list(row) for row in rows]
    made = Table(header_style="bold", box=None, pad_edge=False)
    for k, name in enumerate(columns):
        numeric = bool(values) and all(isinstance(row[k], int | float) for row in values)
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in values:
        made.add_row(*(Text(cell(c)) for c in row))
    out = console()
    with out.capture() as captured:
        out.print(Text(title, style="italic"))
        out.print(made)
    typer.echo("\n".join(x.rstrip() for x in captured.get().splitlines()) + "\n")


def cell(value: object) -> str:
    """A value in a table: floats with six significant digits, nothing for ``None``."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def emit_json(value: Any) -> None:
    """Print one JSON document; numbers that JSON does not have are written as text: ``"nan"``, ``"inf"``."""
    typer.echo(json.dumps(_finite(value), indent=2, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def check_model(path: Path, what: str = "a model's file") -> Path:
    """``path``, where there is a file; else ``InputError``, whose remedy is ``what`` to give."""
    if not path.exists():
        raise InputError(f"there is no file {path}", remedy="check the path")
    if path.is_dir():
        raise InputError(f"{path} is a folder", remedy=f"give {what}")
    return path


def human_bytes(n: int | str) -> str:
    """``1536`` -> ``1.5 KiB``; expressions stay as they are."""
    if isinstance(n, str):
        return n
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
