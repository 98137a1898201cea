"""The scripts of ``benchmarks/`` can be imported, and those that no other test runs do what they say."""

from __future__ import annotations

import importlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from benchmarks import restricted

SCRIPTS = sorted(p.stem for p in (Path(__file__).parents[1] / "benchmarks").glob("*.py"))


PEERS = ("halide",)
"""Packages of the extra `peers`, which tests do not install."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_is_importable(name: str) -> None:
    try:
        importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as missing:
        if missing.name not in PEERS:
            raise
        pytest.skip(f"{missing.name} is not installed")


def test_compile_times_per_stage(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import compile_time

    compile_time.main(["mlp_micro", "--no-inductor"])
    said = capsys.readouterr().out
    assert "mlp_micro: cold total" in said
    assert "mlp_micro: warm" in said


AVX512 = sum(1 << bit for bit in (16, 17, 21, 26, 27, 28, 30, 31))
"""In register EBX of leaf 7."""
LEAVES = r"""
#include <cpuid.h>
int leaf(int n, unsigned *r) { return __get_cpuid_count(n, 0, r, r + 1, r + 2, r + 3); }
"""


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="hides instructions of x86-64")
@pytest.mark.skipif(bool(restricted.missing_tools()), reason="needs a C compiler and binutils")
def test_a_restricted_package_is_told_that_there_is_no_avx512(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "installed" / "asks"
    package.mkdir(parents=True)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", package / "leaves.so"], input=LEAVES, text=True, check=True
    )
    (package / "__init__.py").write_text(
        "import ctypes, pathlib\n"
        "leaf = ctypes.CDLL(str(pathlib.Path(__file__).parent / 'leaves.so')).leaf\n"
        "def ask(n):\n    r = (ctypes.c_uint * 4)()\n    assert leaf(n, r)\n    return list(r)\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    code = "import asks; print(asks.__file__, asks.ask(1)[0], asks.ask(7)[1])"

    def told(variables: Mapping[str, str]) -> list[str]:
        command = ["env", *[f"{k}={v}" for k, v in variables.items()], sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    _, model, features = told({"PYTHONPATH": str(package.parent)})
    file, model_held, features_held = told(restricted.variables("asks", tmp_path))
    assert str(tmp_path / "asks.avx2") in file
    assert model_held == model
    assert int(features_held) == int(features) & ~AVX512


def test_one_corner_is_measured_and_written_down(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from benchmarks import corners

    name, figures = "complex matmul 32", tmp_path / "figures.json"
    command = ["corners", "--only", name, "--seconds", "0.01", "--json", str(figures)]
    monkeypatch.setattr(sys, "argv", command)
    corners.main()
    assert capsys.readouterr().out.startswith(name)
    (row,) = json.loads(figures.read_text())
    assert row["name"] == name
    assert row["ratio"] == pytest.approx(row["ours_us"] / row["eager_us"])
    monkeypatch.setattr(sys, "argv", ["corners", "--only", "no such corner"])
    with pytest.raises(SystemExit, match="no corner is named 'no such corner'"):
        corners.main()
