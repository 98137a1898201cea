"""`tilewright aot`, `sign` and `verify` as a user meets them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

import tilewright as tw
from aot.programs import ROOT
from runtime.test_signature import key_pair
from tilewright.cli.main import main
from tilewright.core.diag import CompileError, OptionError

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command line; gives its exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tilewright", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        seen = capsys.readouterr()
        return int(ended.value.code or 0), seen.out, seen.err

    return run


def test_files_and_sizes(command, tmp_path: Path) -> None:
    code, out, err = command("aot", DIGITS, "-o", tmp_path, "--target", "x86-64", "--bytes")
    assert (code, err) == (0, "") and {p.name for p in tmp_path.iterdir()} == {"digits.o", "digits.h", "digits.json"}
    size = (tmp_path / "digits.o").stat().st_size
    assert str(size) in out.split("in all")[1] and "winograd_conv" not in out.split("\n")[0]


def test_json_and_options(command, tmp_path: Path) -> None:
    options = ["--name", "net", "--weights", "file", "--static", "--fix", "batch=2", "--json"]
    code, out, _ = command("aot", DIGITS, "-o", tmp_path, "--target", "aarch64", *options)
    answer = json.loads(out)
    assert code == 0 and answer["name"] == "net" and len(answer["files"]) == 5
    assert sum(row["n_bytes"] for row in answer["sizes"]) == (tmp_path / "net.o").stat().st_size
    assert "float32[2][1][8][8]" in (tmp_path / "net.h").read_text()


def test_sign_and_verify(command, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path, "ours")
    _, other = key_pair(tmp_path, "other")
    record = tmp_path / "digits.json"
    assert command("aot", DIGITS, "-o", tmp_path, "--target", "x86-64", "--sign", private)[0] == 0
    assert command("verify", record, "--key", public) == (0, "digits.json: undamaged and signed\n", "")
    code, _, err = command("verify", record, "--key", other)
    assert code == 1 and "digits.json is signed with another key" in err
    (tmp_path / "digits.h").write_text("")
    code, _, err = command("verify", record, "--key", public)
    assert code == 1 and "digits.h is not the file that was exported" in err
    tw.compile(DIGITS, cache=False).save(tmp_path / "digits.tw")
    assert command("sign", tmp_path / "digits.tw", "--key", private)[0] == 0
    assert command("verify", tmp_path / "digits.tw", "--key", public)[0] == 0
    assert command("verify", tmp_path / "digits.tw")[1] == "digits.tw: undamaged, its signer is not checked\n"


def test_compiled_models_and_missing_ones(command, tmp_path: Path) -> None:
    tw.compile(DIGITS, cache=False).save(tmp_path / "digits.tw")
    code, _, err = command("aot", tmp_path / "digits.tw", "-o", tmp_path)
    assert code == 1 and "compiled already" in err
    code, _, err = command("aot", tmp_path / "none.onnx", "-o", tmp_path)
    assert code == 1 and "none.onnx" in err


def test_a_structure_that_a_call_decides_is_refused(tmp_path: Path) -> None:
    """The same model compiles for calls in Python; an object holds one structure."""
    inputs = [helper.make_tensor_value_info("x", 1, [1, 3, 1]), helper.make_tensor_value_info("axes", 7, [1])]
    output = [helper.make_tensor_value_info("y", 1, None)]
    graph = helper.make_graph([helper.make_node("Squeeze", ["x", "axes"], ["y"])], "squeeze", inputs, output)
    model: onnx.ModelProto = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    with pytest.raises(CompileError, match="decide the structure"):
        tw.export(model, tmp_path)
    with pytest.raises(OptionError, match="compiled per call"):
        tw.compile(model, cache=False).export(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["x86-64-v3", "cortex-m4"])
def test_the_header_calls_the_machine_what_the_user_calls_it(target: str, tmp_path: Path) -> None:
    """LLVM's name of the first is ``haswell``."""
    header = tw.export(DIGITS, tmp_path, fix_dims={"batch": 1}, target=target).header.read_text()
    assert re.findall(r"CPU (\S+)\.$", header, re.MULTILINE) == [target]
