"""Fixtures of the tests of the command line: the command in this process, and files of models for it.

In: nothing. Out: ``cli``, ``linear``, ``pair``. Not its business: what the models are (``models``).
"""

import sys
from pathlib import Path

import onnx
import pytest

from cli.models import Cli, Ran, linear_model, pair_model
from tilewright.cli.main import main


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """``tilewright ARGUMENTS`` in this process, with a disk cache of its own."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))

    def run(*args: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["tilewright", *map(str, args)])
        try:
            main()
            code = 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    path = tmp_path / "linear.onnx"
    onnx.save(linear_model(), path)
    return path


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    path = tmp_path / "pair.onnx"
    onnx.save(pair_model(), path)
    return path
