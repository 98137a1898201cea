"""Every command of a plain installation, one after the other in one process: its exit code, and no trace.

    python -I tests/every_command.py FOLDER     walk every command with this Python, in that folder

In: a folder that exists. Out: nothing, or an ``AssertionError`` that shows the command and what it said.
Not its business: making the installation (``test_without_extras``), and pytest, which a plain installation lacks.
"""

import io
import os
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import tilewright as tw
from tilewright.cli.main import main

MODEL = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"

GRAPH = """graph "small" {
  %0 = input "x" : f32[2, 4]
  %1 = relu(%0) : f32[2, 4]
  return "y": %1
}
"""

ONNX = 'pip install "tilewright[onnx]"'
TORCH = 'pip install "tilewright[torch]"'
WALK: tuple[tuple[str, int, str], ...] = (
    ("--help", 0, ""),
    ("--version", 0, ""),
    ("compile small.txt -o small.tw", 0, ""),
    ("run small.tw", 0, ""),
    ("run small.txt", 0, ""),
    ("bench small.tw --seconds 0.01", 0, ""),
    ("bench small.txt --kernels --seconds 0.01", 0, ""),
    ("tune small.txt --seconds 0.01", 0, ""),
    ("aot small.txt -o out", 0, ""),
    ("inspect small.tw", 0, ""),
    ("ir small.txt --stage llvm", 0, ""),
    ("compare small.txt", 0, ""),
    ("passes", 0, ""),
    ("ops", 0, ""),
    ("ops --of torch", 0, ""),
    ("cache list", 0, ""),
    ("targets", 0, ""),
    ("doctor", 0, ""),
    ("verify small.tw", 0, ""),
    ("refit small.tw x.safetensors", -1, "compile it with --refit"),
    ("reduce small.txt", -1, "does not fail"),
    ("ops --of onnx", -1, ONNX),
    *((f"{command} model.onnx", -1, ONNX) for command in (
        "compile", "run", "bench", "bench --kernels", "tune", "aot -o out", "inspect", "ir", "compare", "reduce",
        "quantize --data x.npy",
    )),
    *((f"{command} program.pt2", -1, TORCH) for command in ("compile", "run", "aot -o out", "inspect", "compare")),
    ("compare model.onnx --against onnxruntime", -1, "pip install"),
    ("bench small.tw --against onnxruntime", -1, "pip install"),
    ("conformance onnx", -1, "tilewright[onnx]"),
    ("conformance torch", -1, "tilewright[torch]"),
    ("sign small.tw --key key.pem", -1, "tilewright[sign]"),
)  # fmt: skip
"""Commands, their exit codes (-1: the usual ones of an error), and a part of what they say."""


def walk() -> None:
    """Every command, and every way into Python, in the current folder."""
    shutil.copy(MODEL, "model.onnx")
    Path("small.txt").write_text(GRAPH)
    Path("program.pt2").write_bytes(b"PK\x03\x04" + bytes(26) + b"archive_format")
    Path("key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    for line, code, part in WALK:
        found, said = run(*line.split())
        assert "Traceback" not in said, f"{line}\n{said}"
        assert found in ((1, 2) if code == -1 else (code,)), f"{line}: {found}\n{said}"
        assert part in said, f"{line}\n{said}"
        assert code == 0 or re.search(r"error: \[TW\d{4}\]", said), f"{line}\n{said}"
    refuse_all()


def run(*words: str) -> tuple[int, str]:
    """The exit code of ``tilewright WORDS``, and what it said."""
    said, before = io.StringIO(), sys.argv
    sys.argv = ["tilewright", *words]
    try:
        with redirect_stdout(said), redirect_stderr(said):
            main()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    finally:
        sys.argv = before
    return code, said.getvalue()


def refuse_all() -> None:
    """Every way into Python for a model that needs an extra names the extra."""
    for source in ("model.onnx", Path("model.onnx").read_bytes(), "program.pt2"):
        for call in (tw.compile, lambda s: tw.export(s, "out")):
            try:
                call(source)
            except tw.TilewrightError as error:
                assert 'pip install "tilewright[' in str(error), error
            else:
                raise AssertionError(source)


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    walk()
