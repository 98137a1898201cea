"""Figures in the docs: each says where it is from, and the pages are what the data give."""

import ast
import json
import re
from datetime import date
from pathlib import Path

import pytest
from benchmarks import figures

from sources import PACKAGE, ROOT, nodes

FOUND = figures.figures()
COMMAND = re.compile(r"(?:PYTHONPATH=tests:\. )?python -m (benchmarks\.\w+)|tilewright (\w+)")


def test_pages_and_plots_are_what_the_data_give() -> None:
    assert [str(path.relative_to(ROOT)) for path in figures.stale()] == [], "python -m benchmarks.figures"


def test_every_figure_stands_on_one_page() -> None:
    shown = figures.shown_in(ROOT / "docs")
    assert {name: len(shown.get(name, [])) for name in FOUND} == dict.fromkeys(FOUND, 1)
    assert shown.keys() == FOUND.keys()


@pytest.mark.parametrize("name", FOUND)
def test_a_figure_says_what_it_is_and_where_it_is_from(name: str) -> None:
    figure = FOUND[name]
    assert figure.title and figure.conclude.endswith(".")
    assert figure.machine in figures.machines() and figure.load
    assert all(re.fullmatch("[0-9a-f]{7}", commit) for commit in (figure.commit, figure.before) if commit is not None)
    assert date.fromisoformat(figure.date)
    names = [column.name for column in figure.columns]
    assert len(set(names)) == len(names), "rows are read by the names of columns"
    assert figure.rows and {len(row) for row in figure.table()} == {len(figure.columns)}
    assert [command for command in figure.command if not COMMAND.match(command)] == []
    assert figure.command or figure.notes


def test_a_page_whose_table_was_edited_by_hand_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / figures.MACHINES).write_text(json.dumps({"m": "a machine"}))
    said = {"title": "t", "conclude": "So.", "command": [], "machine": "m", "load": "idle", "commit": "abcdef0"}
    columns = [{"name": "what"}, {"name": "time", "unit": "us"}, {"name": "gain", "unit": "x", "digits": 2}]
    rows = [["a", 1234, 2.0], ["b", None, 8.0]]
    mean: dict[str, list[list[str]]] = {"mean": [[]]}
    figures.write(folder / "one.json", {**said, "date": "2026-11-23", **mean, "columns": columns, "rows": rows})
    page = tmp_path / "page.md"
    page.write_text("Before\n<!-- figure one -->\n<!-- end -->\nafter\n")
    (text,) = figures.stale(tmp_path).values()
    assert "| what | time, us | gain |" in text and "| a | 1,234 | 2.00 |" in text and "| b |  | 8.00 |" in text
    assert "| geometric mean |  | 4.00 |" in text and text.startswith("Before\n") and text.endswith("-->\nafter\n")
    page.write_text(text)
    assert figures.stale(tmp_path) == {}
    page.write_text(text.replace("1,234", "1,233"))
    assert figures.stale(tmp_path) == {page: text}


def test_the_first_page_quotes_the_data() -> None:
    """Its two numbers are the geometric means of the best peer's time over ours, in fp32 without the net of a call."""
    text = (ROOT / "README.md").read_text()
    for name in ("fp32_1_thread", "fp32_2_threads"):
        figure = FOUND[name]
        nets, best = figure.column("net"), figure.column("best peer / ours")
        mean = figures.geometric_mean([float(x) for net, x in zip(nets, best, strict=True) if x and net != "mlp_micro"])
        assert f"{mean:.2f} times" in text, name


TIMING = re.compile(r"\b\d+\.\d+\b|\b\d+ us\b|\b\d+ ms\b")
ARGUED = {"pool.py": "when a worker sleeps follows from these times alone"}
CITED = re.compile(r'``docs/(\w+\.md)``\s*\("([^"]+)"')


@pytest.mark.parametrize("folder", sorted(p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"))
def test_docstrings_give_the_idea_and_pages_the_timings(folder: str) -> None:
    """A page that a docstring cites has the heading that it names."""
    wrong = []
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for node in nodes(path):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    if len(TIMING.findall(text)) > 5 and path.name not in ARGUED:
                        wrong.append(f"{path.name}:{node.lineno}: a table of timings belongs into docs/figures")
                    for page, heading in CITED.findall(text):
                        if f"## {' '.join(heading.split())}\n" not in (ROOT / "docs" / page).read_text():
                            wrong.append(f"{path.name}:{node.lineno}: {page} has no heading {heading!r}")
    assert wrong == []
