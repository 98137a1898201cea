"""Tables and JSON on the terminal.

In: plain records. Out: text for a person or for a program. Not its business: what is shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

OUT = Console()
ERR = Console(stderr=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a title; numbers are right-aligned."""
    texts = [[str(c) for c in row] for row in rows]
    t = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for k, name in enumerate(columns):
        numeric = bool(texts) and all(_is_number(r[k]) for r in texts)
        t.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for line in texts:
        t.add_row(*line)
    OUT.print(t)


def _is_number(text: str) -> bool:
    return text.replace(".", "").replace(",", "").replace("-", "").replace("x", "").strip().isdigit()


def emit_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2, default=str))


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
