"""``tilewright poly``: dependences and orders of loop programs, C of them, and Python beside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.models import Cli

pytest.importorskip("islpy")

PROGRAMS = """
def relax(a, steps):
    n = len(a)
    for t in range(steps):
        for i in range(1, n - 1):
            a[i] = (a[i - 1] + a[i] + a[i + 1]) / 3


def wrong(a):
    for i in range(len(a)):
        a[i] = a[i + 1]


def named(a):
    for i in range(len(a)):
        a[i] = i
    a[0] = float(__name__ == "loops")
"""


@pytest.fixture
def loops(tmp_path: Path) -> Path:
    path = tmp_path / "loops.py"
    path.write_text(PROGRAMS)
    return path


def test_what_is_known_of_a_program(cli: Cli, loops: Path) -> None:
    ran = cli("poly", loops, "relax")
    assert ran.code == 0, ran.err
    assert "S0  line 6: a[i] = (a[i - 1] + a[i] + a[i + 1]) / 3" in ran.out
    assert "flow   on a: S0(t=0, i=1) -> S0(t=0, i=2)  with n=4, steps=1" in ran.out
    assert "resequence(t, " in ran.out


def test_c_code_knows_every_size(cli: Cli, loops: Path, tmp_path: Path) -> None:
    made = tmp_path / "relax.c"
    ran = cli("poly", loops, "relax", "-o", made)
    assert ran.code == 2 and "--size steps=NUMBER" in ran.err and not made.exists()
    ran = cli("poly", loops, "relax", "--size", "steps=5", "-o", made)
    assert ran.code == 0, ran.err
    assert "relax" in made.read_text() and made.with_suffix(".h").exists()


def test_beside_python(cli: Cli, loops: Path) -> None:
    ran = cli("poly", loops, "relax", "--run", "--size", "n=50", "--size", "steps=7", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["run"]["equal"] and found["run"]["largest_difference"] <= 1e-12 and found["run"]["python_seconds"] > 0
    assert {d["kind"] for d in found["dependences"]} == {"flow", "anti", "output"}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("relax", "--size", "m=4"), 2, "relax has no size m"),
        (("relax", "--size", "n=-3"), 2, "'n=-3' is not NAME=NUMBER, with digits alone"),
        (("absent",), 2, "relax, wrong, named"),
        ((), 2, "3 functions"),
        (("wrong",), 1, "loops.py:11 in wrong: wrong: a[i + 1]"),
        (("relax", "-o", "made.o"), 2, "end its name in .c"),
        (("named", "--run"), 1, "loops.py:17 in named"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_what_is_refused(cli: Cli, loops: Path, arguments: tuple[str, ...], code: int, text: str) -> None:
    ran = cli("poly", loops, *arguments)
    assert ran.code == code and text in ran.err


def test_a_folder_is_no_python_file(cli: Cli, tmp_path: Path) -> None:
    """What poly takes is no model's file."""
    assert "give a Python file" in cli("poly", tmp_path).err


def test_a_difference_to_python_is_told(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text("abs = max\n\n\ndef f(a):\n    for i in range(len(a)):\n        a[i] = abs(-2.0, a[i])\n")
    assert cli("poly", path, "--run").code == 1  # abs of two is none of the language
    path.write_text("sqrt = abs\n\n\ndef f(a):\n    for i in range(len(a)):\n        a[i] = sqrt(a[i])\n")
    assert cli("poly", path, "--run").code == 3
