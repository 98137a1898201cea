"""The scripts of ``benchmarks/`` can be imported, and those that no other test runs do what they say."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted(p.stem for p in (Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_is_importable(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")


def test_compile_times_per_stage(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import compile_time

    compile_time.main(["mlp_micro", "--no-inductor"])
    said = capsys.readouterr().out
    assert "mlp_micro: cold total" in said
    assert "mlp_micro: warm" in said
