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
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

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
    ("found list --store found.db", 0, ""),
    ("found export found.txt --store found.db", 0, ""),
    ("found import found.txt --store found.db", 0, ""),
    ("found merge found.db --store other.db", 0, ""),
    ("found forget --all --store found.db", 0, ""),
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
    ("poly loops.py", -1, 'pip install "tilewright[poly]"'),
    ("refit small.tw x.safetensors", -1, "compile it with --refit"),
    ("reduce small.txt", -1, "does not fail"),
    ("ops --of onnx", -1, ONNX),
    *((f"{command} model.onnx", -1, ONNX) for command in (
        "compile", "run", "bench", "bench --kernels", "tune", "aot -o out", "inspect", "ir", "compare", "reduce",
        "quantize --data x.npy", "prune --amount 0.5",
    )),
    *((f"{command} program.pt2", -1, TORCH) for command in ("compile", "run", "aot -o out", "inspect", "compare")),
    ("compare model.onnx --against onnxruntime", -1, "pip install"),
    ("bench small.tw --against onnxruntime", -1, "pip install"),
    ("conformance onnx", -1, "tilewright[onnx]"),
    ("conformance torch", -1, "tilewright[torch]"),
    ("sign small.tw --key key.pem", -1, "tilewright[sign]"),
    ("conformance hf", -1, "pip install"),
    ("export small.txt --to llvm -o written", 0, ""),
    ("export small.txt --to onnx -o written.onnx", -1, ONNX),
    ("export small.txt --to stablehlo -o written.mlir", 0, ""),
    ("export small.txt --to torch -o written.pt2", -1, "tilewright[torch]"),
    ("explain small.txt", 0, ""),
    ("explain model.onnx", -1, ONNX),
    ("compile program.mlir", -1, "tilewright[jax]"),
    ("compile model.tflite", -1, "tilewright[tflite]"),
    ("compile broken.txt", 1, "line 1"),
    ("run broken.tw", 1, "truncated"),
    ("run small.tw -i broken.npy", 1, "not a NumPy file"),
)  # fmt: skip
"""Commands, their exit codes (-1: the usual ones of an error), and a part of what they say."""
OF_FILES = {
    *("compile", "run", "aot", "export", "bench", "tune", "explain", "ir", "inspect", "compare", "reduce", "quantize"),
    *("prune", "sign", "verify", "refit"),
}
"""The commands that read a file."""
MORE = {
    "quantize": "--data x.npy",
    "prune": "--amount 0.5",
    "sign": "--key key.pem",
    "refit": "x.safetensors",
    "aot": "-o out",
}
"""What such a command asks for beside it."""


def walk() -> None:
    """Every command, and every way into Python, in the current folder."""
    shutil.copy(MODEL, "model.onnx")
    Path("small.txt").write_text(GRAPH)
    Path("loops.py").write_text("def f(a):\n    for i in range(len(a)):\n        a[i] = 0.0\n")
    Path("program.pt2").write_bytes(b"PK\x03\x04" + bytes(26) + b"archive_format")
    Path("key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    Path("program.mlir").write_text("module {}")
    Path("model.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(60))
    for suffix in ("txt", "tw", "npy"):
        Path(f"broken.{suffix}").write_text("no such thing, at some length, so that it is not too short for a header\n")
    for line, code, part in WALK:
        found, said = run(*line.split())
        assert "Traceback" not in said, f"{line}\n{said}"
        assert found in ((1, 2) if code == -1 else (code,)), f"{line}: {found}\n{said}"
        assert part in said, f"{line}\n{said}"
        assert code == 0 or re.search(r"error: \[TW\d{4}\]", said), f"{line}\n{said}"
    names = set(command_names())
    assert names <= {line.split()[0] for line, _, _ in WALK}, "a command is not walked"
    for name in sorted(names):
        code, said = run(name, "--help")
        assert code == 0 and "Usage" in said, f"{name}\n{said}"
        code, said = run(name, "--nonsense")
        assert code == 2 and "Traceback" not in said, f"{name}: {code}\n{said}"
    for name in sorted(OF_FILES):
        for file in ("missing.onnx", "missing.tw", "missing.txt", "."):
            code, said = run(name, file, *MORE.get(name, "").split())
            assert code in (1, 2) and re.search(r"error: \[TW\d{4}\]", said), f"{name} {file}: {code}\n{said}"
            assert "remedy" in said and "Traceback" not in said, f"{name} {file}\n{said}"
    refuse_all()


def command_names() -> list[str]:
    """The commands that ``tilewright --help`` lists."""
    _, said = run("--help")
    return re.findall(r"^  ([a-z]+)  ", said.split("Commands:")[1], re.MULTILINE)


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


EXTRAS: tuple[tuple[str, Callable[[], object], str], ...] = (
    ("compile", lambda: tw.compile("model.onnx"), "onnx"),
    ("compile of bytes", lambda: tw.compile(Path("model.onnx").read_bytes()), "onnx"),
    ("compile of a program", lambda: tw.compile("program.pt2"), "torch"),
    ("compile of StableHLO", lambda: tw.compile("program.mlir"), "jax"),
    ("compile of TFLite", lambda: tw.compile("model.tflite"), "tflite"),
    ("export", lambda: tw.export("model.onnx", "out"), "onnx"),
    ("export of a program", lambda: tw.export("program.pt2", "out"), "torch"),
    ("convert", lambda: tw.convert("model.onnx", "again.onnx"), "onnx"),
    ("compare", lambda: tw.compare("model.onnx", (X,)), "onnx"),
    ("reduce", lambda: tw.reduce("model.onnx", (X,)), "onnx"),
    ("quantize", lambda: tw.quantize("model.onnx", (X,)), "onnx"),
    ("prune", lambda: tw.prune("model.onnx", 0.5), "onnx"),
    ("quantize_weights", lambda: tw.quantize_weights("model.onnx", (X,)), "onnx"),
    ("decoder", lambda: tw.decoder("model.gguf"), "weights"),
    ("with_weights", lambda: tw.with_weights("model.onnx", "model.gguf"), "weights"),
    ("from_sklearn", lambda: tw.from_sklearn(object()), "sklearn"),
    ("from_xgboost", lambda: tw.from_xgboost(object()), "boosted"),
    ("from_lightgbm", lambda: tw.from_lightgbm(object()), "boosted"),
    ("jax", lambda: tw.jax, "jax"),
    ("decompose", lambda: tw.decompose("mine::scale", len), "torch"),
)
"""Ways into Python that need an extra, and its name."""
PLAIN: tuple[tuple[str, Callable[[], object]], ...] = (
    ("decoder of what is none", lambda: tw.decoder(object())),
    ("refresh of what is no module", lambda: tw.refresh(3)),
    ("schedule of what is no kernel", lambda: tw.schedule("matmul")),
    ("kernel of what is no function", lambda: tw.kernel(3)),
    ("jit of what is no function", lambda: tw.jit(3)),
    ("load", lambda: tw.load("missing.tw")),
    ("load_decoder", lambda: tw.load_decoder("missing")),
    ("refit", lambda: tw.refit("missing.tw", "x.safetensors", "out.tw")),
)
"""Ways into Python that need no extra, asked for what they refuse."""
X = np.zeros((1, 1, 8, 8), np.float32)


def refuse_all() -> None:
    """Every way into Python refuses what it cannot do by a typed error; what needs an extra names it."""
    Path("model.gguf").write_bytes(b"GGUF" + bytes(60))
    for name in tw.__all__:
        assert getattr(tw, name) is not None, name
    for name, call in (*((n, c) for n, c, _ in EXTRAS), *PLAIN):
        try:
            call()
        except tw.TilewrightError as error:
            extra = next((e for n, _, e in EXTRAS if n == name), "")
            part = f'pip install "tilewright[{extra}]"' if extra else "remedy"
            assert part in str(error), f"{name}\n{error}"
        else:
            raise AssertionError(name)


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    walk()
