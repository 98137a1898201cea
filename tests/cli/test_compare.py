"""`tilewright compare` and `tilewright reduce`: what they print and return, also where native code ends the process."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from cli.models import Cli
from tilewright.frontend.onnx.table import CONVERTERS

# --- compare --------------------------------------------------------------------------------------------------------


def test_compare_agrees_and_says_so(cli: Cli, linear: Path) -> None:
    ran = cli("compare", linear, "--size", "rows=3")
    assert (ran.code, ran.err) == (0, "")
    assert "matmul add maximum" in ran.out and "linear agrees with reference: 1 kernels, 1 outputs." in ran.out
    found = json.loads(cli("compare", linear, "--against", "onnxruntime", "--json").out)
    assert found["agrees"] and [v["name"] for v in found["values"]] == ["p (matmul)", "s (add)", "y (relu)"]


def test_compare_exits_with_3_where_it_finds_a_difference(
    cli: Cli, linear: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONVERTERS, ("", "Add"), CONVERTERS["", "Sub"])
    ran = cli("compare", linear, "--against", "onnxruntime")
    assert ran.code == 3
    assert "stage   import" in ran.out and 'node "shift" (Add)' in ran.out


def test_compare_refuses_what_it_can_not_do(cli: Cli, linear: Path, tmp_path: Path) -> None:
    assert cli("compare", linear, "--against", "torch").code == 2
    assert "no file" in cli("compare", tmp_path / "none.onnx").err
    assert cli("compare", linear, "--against", "nobody").code == 2
    (tmp_path / "a.pt2").write_bytes(b"no program")
    assert "exported program" in cli("compare", tmp_path / "a.pt2").err


# --- reduce, and faults in the process that compares ----------------------------------------------------------------

FLIPPED = """
from tilewright import ops
from tilewright.core.rewrite import Rule, RuleTable
from tilewright.graph.canonical import canonicalize


def wrong(b, node):
    x, y = node.inputs
    return b(ops.sub, x, y) if node.op is ops.add else None


canonicalize.TABLE = RuleTable((Rule("wrong", (ops.add,), wrong, "it is not"),))
"""
ABORTING = """
import os
import tilewright.tools.debug.machine as machine

machine.Native.__call__ = lambda *args: os.abort()
"""


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Code that the processes to come run as they start: a compiler with a mistake."""

    def write(code: str) -> None:
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return write


@pytest.mark.slow
def test_reduce_leaves_the_op_that_goes_wrong(
    cli: Cli, linear: Path, plant: Callable[[str], None], tmp_path: Path
) -> None:
    assert cli("reduce", linear).err.startswith("error: [TW0206] there is nothing to reduce: the model does not fail")
    plant(FLIPPED)
    ran = cli("reduce", linear, "-o", tmp_path / "small", "--size", "rows=3")
    assert (ran.code, ran.err) == (0, "")
    assert "3 ops before, 1 after" in ran.out and 'loc("node \\"shift\\" (Add)")' in ran.out
    command = ran.out.strip().splitlines()[-1].split()
    again = cli(*command[1:])
    assert again.code == 3
    assert "by      canonicalize, rule wrong" in again.out and 'node "shift" (Add)' in again.out
    part = onnx.load(tmp_path / "small" / "model.onnx")
    assert [n.op_type for n in part.graph.node] == ["Add"]


def test_compare_survives_native_code_that_does_not(cli: Cli, linear: Path, plant: Callable[[str], None]) -> None:
    plant(ABORTING)
    found = json.loads(cli("compare", linear, "--json").out)
    assert (found["agrees"], found["fault"]["stage"]) == (False, "crash")
    assert "matmul add maximum" in found["fault"]["name"] and "signal 6" in found["fault"]["difference"]["problem"]
