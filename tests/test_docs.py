"""The documentation runs: Python blocks as one program per page, `tilewright ir` blocks against their excerpts.

Run as a program, this file writes the excerpts anew: ``python tests/test_docs.py``.
"""

import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from itertools import takewhile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from typer.testing import CliRunner

from tilewright.cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")
SOURCE = re.compile(r"`((?:src/tilewright/)?(?:[a-z_]+/)*[a-z_]+\.py)`")
EXACT_STAGES = ("graph", "kernels", "entry")
"""Excerpts of later stages change with every better schedule, so only their commands are checked."""


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(page.read_text()) if kind == language]


def run_python(page: Path, **names: object) -> dict[str, object]:
    """The Python blocks of a page, in the current folder, as one program with the page's line numbers.

    ``names`` are there at the start; the program's names come back.
    """
    program: list[str] = []
    language = ""
    for line in page.read_text().split("\n"):
        if line.startswith("```"):
            language = "" if language else line[3:] or "none"
            line = ""
        program.append(line if language == "python" else "")
    space: dict[str, object] = {"__name__": page.stem, **names}
    exec(compile("\n".join(program), str(page), "exec"), space)  # noqa: S102
    return space


def output_of(command: str) -> str:
    """What a ``tilewright ... | filter | filter`` prints."""
    first, *filters = [list(shlex.split(part)) for part in command.split("|")]
    ran = CliRunner().invoke(app, first[1:])
    assert first[0] == "tilewright" and ran.exit_code == 0, f"{command}: {ran.output or ran.exception!r}"
    lines = ran.stdout.rstrip("\n").split("\n")
    for name, *args in filters:
        lines = list({"sed": sed, "cut": cut, "grep": grep}[name](lines, args))
    return "\n".join(x.rstrip() for x in lines)


def sed(lines: list[str], args: list[str]) -> Iterator[str]:
    """``sed -n A,Bp``."""
    first, last = map(int, args[1].removesuffix("p").split(","))
    yield from lines[first - 1 : last]


def cut(lines: list[str], args: list[str]) -> Iterator[str]:
    """``cut -c1-N``."""
    yield from (x[: int(args[0].removeprefix("-c1-"))] for x in lines)


def grep(lines: list[str], args: list[str]) -> Iterator[str]:
    """``grep -m N [-A K] TEXT``, without the lines between groups that grep draws."""
    n, after = int(args[1]), int(args[3]) if args[2] == "-A" else 0
    shown: dict[int, None] = {}
    for at in [k for k, x in enumerate(lines) if args[-1] in x][:n]:
        shown.update(dict.fromkeys(range(at, min(at + after + 1, len(lines)))))
    yield from (lines[k] for k in sorted(shown))


def stage_of(command: str) -> str:
    found = re.search(r"--stage (\w+)", command)
    return found[1] if found else "graph"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_code_runs_and_excerpts_are_real(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    run_python(page)
    for block in blocks(page, "console"):
        command, _, shown = block.removeprefix("$ ").partition("\n")
        printed = output_of(command)
        assert printed
        if stage_of(command) in EXACT_STAGES:
            assert shown.rstrip("\n") == printed, f"{page.name} is out of date: python tests/test_docs.py"


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y + 1


def test_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    x, y, z = (helper.make_tensor_value_info(k, TensorProto.FLOAT, ["batch", 3]) for k in "xyz")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "y"], ["z"])], "product", [x, y], [z])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), "model.onnx")
    a, b = np.full((2, 3), 3, np.float32), np.full((2, 3), 5, np.float32)
    made = run_python(README, x=torch.tensor(a), y=torch.tensor(b), module=Scaled())
    assert isinstance(made["out"], torch.Tensor)  # torch in, torch out
    np.testing.assert_array_equal(made["out"], a * b)
    np.testing.assert_array_equal(made["m"](a, b), a * b)  # type: ignore[operator]
    np.testing.assert_array_equal(made["fast"](torch.tensor(a), torch.tensor(b)), a * b + 1)  # type: ignore[operator]


WRITTEN = {"fx.py"}
"""Files that the tools write."""


@pytest.mark.parametrize("page", [README, *PAGES, *sorted((DOCS / "adr").glob("*.md"))], ids=lambda p: p.name)
def test_what_pages_point_to_exists(page: Path) -> None:
    package = ROOT / "src" / "tilewright"
    text = page.read_text()
    assert [x for x in LINK.findall(text) if not (page.parent / x).exists()] == []
    roots = [ROOT, package, *(p for p in package.rglob("*") if p.is_dir())]
    named = set(SOURCE.findall(text)) - WRITTEN
    assert [x for x in named if not any((root / x).exists() for root in roots)] == []


def test_decision_records_have_their_form() -> None:
    records = sorted((DOCS / "adr").glob("*.md"))
    numbers = [int(p.name[:4]) for p in records]
    assert len(set(numbers)) == len(numbers) > 20  # a number is taken before its record is written, so some may be free
    for record in records:
        lines = record.read_text().split("\n")
        assert lines[0].startswith(f"# {record.name[:4]}: ")
        headings = [x[3:] for x in lines if x.startswith("## ")]
        assert headings == ["Status", "Context", "Decision", "Consequences"], record.name


def test_filters_do_what_the_tools_do() -> None:
    lines = ["a1", "b2", "c3", "b4", "d5"]
    assert list(sed(lines, ["-n", "2,3p"])) == ["b2", "c3"]
    assert list(cut(lines, ["-c1-1"])) == ["a", "b", "c", "b", "d"]
    assert list(grep(lines, ["-m", "2", "-A", "1", "b"])) == ["b2", "c3", "b4", "d5"]
    assert list(takewhile(bool, grep(lines, ["-m", "1", "b"]))) == ["b2"]


def rewrite_excerpts() -> None:
    """Put what the commands print now into every page."""
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            run_python(page)
            text = BLOCK.sub(renewed, page.read_text())
        page.write_text(text)


def renewed(block: re.Match[str]) -> str:
    if block[1] != "console":
        return block[0]
    command = block[2].removeprefix("$ ").split("\n")[0]
    return f"```console\n$ {command}\n{output_of(command)}\n```"


if __name__ == "__main__":
    sys.exit(rewrite_excerpts())
