"""Measured figures as data, and the blocks of the pages that show them.

    python -m benchmarks.figures            write every block and plot anew from docs/figures/*.json
    python -m benchmarks.figures --check    say which page or plot is not what the data give, and exit with 1

In: ``docs/figures/NAME.json``, one measurement each, and ``docs/figures/machines.json``. Out: in the pages of ``docs/``
what stands between ``<!-- figure NAME -->`` and ``<!-- end -->``: what to conclude, the table, and how it was measured;
beside the data, for measurements that ask for one, a plot.
Not its business: measuring (the command that every figure names), and the prose between the blocks.

A figure is one JSON object:

- ``title`` and ``conclude``: what was measured, and one sentence on what it says;
- ``command``: what repeats it, a list of lines; empty where a script of the day measured it, as ``notes`` then say;
- ``machine`` (a name in ``machines.json``), ``load`` (what else ran), ``commit`` (of the code), ``date``
  (``YYYY-MM-DD``), and optionally ``before``, the commit that the columns called so were measured at;
- ``columns``: objects with a ``name``, and optionally a ``unit`` (``"x"`` for a ratio), ``digits`` after the point, and
  ``least_of``, the names of the columns whose least value it shows;
- ``rows``: lists of numbers, texts and nulls, one for each column that is not computed;
- optionally ``mean``, a list of row names for each geometric mean of the ratios, which that mean leaves out; ``notes``;
  ``plot``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, nan
from pathlib import Path
from typing import Any

from benchmarks import plots

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "figures"
MACHINES = "machines.json"
BLOCK = re.compile(r"(<!-- figure (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
RATIO = "x"
WIDTH = 118

Cell = str | int | float | None


@dataclass(frozen=True)
class Column:
    """What one column of a figure holds."""

    name: str
    unit: str = ""
    digits: int | None = None
    least_of: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit and self.unit != RATIO else self.name

    def shown(self, cell: Cell) -> str:
        """A cell as the table has it: numbers with the column's digits, nothing for what was not measured."""
        match cell:
            case None:
                return ""
            case str():
                return cell
            case _ if self.digits is not None:
                return f"{cell:,.{self.digits}f}"
            case int():
                return f"{cell:,}"
        return f"{cell:.4g}"


@dataclass(frozen=True)
class Figure:
    """One measurement; the fields are those of its file."""

    title: str
    conclude: str
    command: tuple[str, ...]
    machine: str
    load: str
    commit: str
    date: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    before: str | None = None
    notes: str = ""
    mean: tuple[tuple[str, ...], ...] = ()
    plot: str = ""

    def table(self) -> list[list[Cell]]:
        """The rows with the columns that are computed, and the geometric means."""
        stored = [c.name for c in self.columns if not c.least_of]
        whole = [self._whole(dict(zip(stored, row, strict=True))) for row in self.rows]
        return [*whole, *(self._mean(whole, left_out) for left_out in self.mean)]

    def _whole(self, row: Mapping[str, Cell]) -> list[Cell]:
        return [least([row[x] for x in c.least_of]) if c.least_of else row[c.name] for c in self.columns]

    def _mean(self, rows: Sequence[Sequence[Cell]], left_out: Sequence[str]) -> list[Cell]:
        name = f"geometric mean without {', '.join(left_out)}" if left_out else "geometric mean"
        kept = [row for row in rows if row[0] not in left_out]
        return [name, *(geometric_mean(numbers(kept, k)) if c.unit == RATIO else None for k, c in self._others())]

    def _others(self) -> Iterator[tuple[int, Column]]:
        return ((k, c) for k, c in enumerate(self.columns) if k)

    def column(self, name: str) -> list[Cell]:
        """A column of the table, computed ones too, without the means."""
        (k,) = [k for k, c in enumerate(self.columns) if c.name == name]
        return [row[k] for row in self.table()[: len(self.rows)]]


@dataclass
class Stale:
    """What would be written: files whose text is not what the data give."""

    texts: dict[Path, str] = field(default_factory=dict)

    def add(self, path: Path, text: str) -> None:
        if not path.exists() or path.read_text() != text:
            self.texts[path] = text


def numbers(rows: Sequence[Sequence[Cell]], k: int) -> list[float]:
    return [x for row in rows if isinstance(x := row[k], int | float)]


def least(cells: Sequence[Cell]) -> float | None:
    return min((x for x in cells if isinstance(x, int | float)), default=None)


def geometric_mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else nan


def read(path: Path) -> Figure:
    """One file; a KeyError or TypeError names the field that is missing or unknown."""
    found: dict[str, Any] = json.loads(path.read_text())
    columns = tuple(Column(**{**c, "least_of": tuple(c.get("least_of", ()))}) for c in found.pop("columns"))
    rows = tuple(tuple(row) for row in found.pop("rows"))
    tuples = {"command": tuple(found.pop("command")), "mean": tuple(tuple(x) for x in found.pop("mean", ()))}
    return Figure(columns=columns, rows=rows, **tuples, **found)


def write(path: Path, figure: Mapping[str, Any]) -> None:
    """The file of a figure, one row a line, so that a change of one row is a change of one line."""
    lines = []
    for key, value in figure.items():
        if key in ("columns", "rows"):
            inner = ",\n".join(f"  {json.dumps(x, ensure_ascii=False)}" for x in value)
            lines.append(f' "{key}": [\n{inner}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def figures(folder: Path = FOLDER) -> dict[str, Figure]:
    """Every figure by its name."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json")) if path.name != MACHINES}


def machines(folder: Path = FOLDER) -> dict[str, str]:
    """A phrase for each machine that figures name."""
    found: dict[str, str] = json.loads((folder / MACHINES).read_text())
    return found


def block(name: str, figure: Figure, known: Mapping[str, str]) -> str:
    """The Markdown of a figure."""
    head = [c.head for c in figure.columns]
    rows = [[c.shown(cell) for c, cell in zip(figure.columns, row, strict=True)] for row in figure.table()]
    table = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    plot = ["", f"![{figure.title}]({FOLDER.name}/{name}.svg)"] if figure.plot else []
    commits = f"commits {figure.before} (before) and {figure.commit}" if figure.before else f"commit {figure.commit}"
    where = f"Measured on {known[figure.machine]}, {figure.load}, {figure.date}, {commits}."
    command = ["", "```", *figure.command, "```"] if figure.command else []
    return "\n".join([filled(figure.conclude), "", *table, *plot, "", filled(f"{where} {figure.notes}"), *command, ""])


def filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def page(text: str, found: Mapping[str, Figure], known: Mapping[str, str]) -> str:
    """The text of a page with every block as the data have it; a KeyError names a figure that is not there."""
    return BLOCK.sub(lambda m: f"{m[1]}{block(m[2], found[m[2]], known)}{m[4]}", text)


def shown_in(docs: Path) -> dict[str, list[Path]]:
    """The pages on which each figure stands."""
    pages: dict[str, list[Path]] = {}
    for path in sorted(docs.glob("*.md")):
        for _, name, _, _ in BLOCK.findall(path.read_text()):
            pages.setdefault(name, []).append(path)
    return pages


def drawn(figure: Figure) -> str:
    """The plot of a figure whose columns are a name, our time, peers' ratios and a share."""
    peers = {c.name: c.name.removesuffix(" / ours") for c in figure.columns if c.unit == RATIO and not c.least_of}
    ratios = {name: figure.column(name) for name in peers}
    shares = figure.column("share of FMA peak")
    rows = []
    for k, net in enumerate(figure.column(figure.columns[0].name)):
        found = {name: float(x) for name in peers if (x := ratios[name][k]) is not None}
        share = shares[k]
        rows.append((str(net), found, None if share is None else float(share)))
    return plots.ratios(rows, peers)


def stale(docs: Path = DOCS) -> dict[Path, str]:
    """Pages and plots that are not what the data give, and what they should be."""
    found, known = figures(docs / FOLDER.name), machines(docs / FOLDER.name)
    wrong = Stale()
    for path in sorted(docs.glob("*.md")):
        wrong.add(path, page(path.read_text(), found, known))
    for name, figure in found.items():
        if figure.plot:
            wrong.add(docs / FOLDER.name / f"{name}.svg", drawn(figure))
    return wrong.texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 where something is out of date"
    )
    check = parser.parse_args().check
    wrong = stale()
    for path, text in wrong.items():
        print(path.relative_to(DOCS.parent))
        if not check:
            path.write_text(text)
    sys.exit(bool(check and wrong))


if __name__ == "__main__":
    main()
