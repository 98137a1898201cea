"""What a plain installation says to every command: never a trace, and how to get what is missing."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.cli.main import main

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "examples" / "digits" / "digits.onnx"
EXTRAS = ("onnx", "torch", "onnxruntime", "openvino", "cryptography", "transformers", "sklearn", "ziglang", "wasmtime")

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
    ("reduce small.txt", -1, "does not fail"),
    ("ops --of onnx", -1, ONNX),
    *((f"{command} model.onnx", -1, ONNX) for command in (
        "compile", "run", "bench", "bench --kernels", "tune", "aot -o out", "inspect", "ir", "compare", "reduce",
    )),
    *((f"{command} program.pt2", -1, TORCH) for command in ("compile", "run", "aot -o out", "inspect", "compare")),
    ("compare model.onnx --against onnxruntime", -1, "pip install"),
    ("bench small.tw --against onnxruntime", -1, "pip install"),
    ("conformance onnx", -1, "tilewright[onnx]"),
    ("conformance torch", -1, "tilewright[torch]"),
    ("sign small.tw --key key.pem", -1, "tilewright[sign]"),
)  # fmt: skip
"""Commands, their exit codes (-1: the usual ones of an error), and a part of what they say."""


def refuse_all() -> None:
    """Every way into Python for a model that needs an extra names the extra."""
    import tilewright as tw

    with open("model.onnx", "rb") as file:
        content = file.read()
    for source in ("model.onnx", content, "program.pt2"):
        for call in (tw.compile, lambda s: tw.export(s, "out")):
            try:
                call(source)
            except tw.TilewrightError as error:
                assert 'pip install "tilewright[' in str(error), error
            else:
                raise AssertionError(source)


def prepare(folder: Path) -> None:
    shutil.copy(MODEL, folder / "model.onnx")
    (folder / "small.txt").write_text(GRAPH)
    (folder / "program.pt2").write_bytes(b"PK\x03\x04" + bytes(26) + b"archive_format")
    (folder / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")


def walk(run: Callable[..., tuple[int, str]]) -> None:
    """Every command; ``run`` gives its exit code and what it said."""
    for line, code, part in WALK:
        found, said = run(*line.split())
        assert "Traceback" not in said, f"{line}\n{said}"
        assert found in ((1, 2) if code == -1 else (code,)), f"{line}: {found}\n{said}"
        assert part in said, f"{line}\n{said}"
        assert code == 0 or re.search(r"error: \[TW\d{4}\]", said), f"{line}\n{said}"


@pytest.mark.timeout(600)
def test_every_command_without_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, where the packages are hidden from ``import``."""
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    for name in [m for m in sys.modules if m.split(".")[0] in EXTRAS]:
        monkeypatch.delitem(sys.modules, name)
    for name in EXTRAS:
        monkeypatch.setitem(sys.modules, name, None)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tilewright", *words])
        try:
            main()
            code = 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        return code, "".join(capsys.readouterr())

    walk(run)
    refuse_all()


# --- the wheel, installed


def pythons() -> list[Path]:
    """The oldest and the newest Python on this machine that the project supports."""
    found: dict[tuple[int, int], Path] = {}
    names = [shutil.which(f"python3.{minor}") for minor in range(11, 20)]
    roots = [Path(sys.base_prefix).parent, Path.home() / ".pyenv" / "versions"]
    places = [*(Path(n) for n in names if n), *(p for r in roots if r.is_dir() for p in r.glob("3.*/bin/python3"))]
    for path in [*places, Path(sys.executable)]:
        question = "import json, sys, venv, ensurepip; print(json.dumps(sys.version_info[:2]))"
        code, said = ran(path, "-c", question)
        if code == 0 and (version := tuple(json.loads(said))) >= (3, 11):
            found.setdefault(version, path)
    return [found[version] for version in sorted({min(found), max(found)})]


def ran(*words: object, cwd: Path | None = None) -> tuple[int, str]:
    """A process's exit code and what it said."""
    found = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    return found.returncode, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_wheel_without_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel in a fresh environment of the oldest and of the newest Python, without what it does not need."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code, said = ran(sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path, ROOT)
    if code and "Could not find" in said:
        pytest.skip("pip can't reach what builds a wheel")
    assert code == 0, said
    (wheel,) = tmp_path.glob("tilewright-*.whl")
    tried = []
    for k, python in enumerate(pythons()):
        home, folder = tmp_path / f"venv{k}", tmp_path / f"work{k}"
        assert ran(python, "-m", "venv", home)[0] == 0
        code, said = ran(home / "bin" / "python", "-m", "pip", "install", "-q", wheel)
        if "No matching distribution" in said or "Failed to establish a new connection" in said:
            continue  # no network, or a Python for which a package has no wheel yet
        assert code == 0, said
        folder.mkdir()
        prepare(folder)
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))
        command = home / "bin" / "tilewright"
        walk(lambda *words, command=command, folder=folder: ran(command, *words, cwd=folder))
        code, said = ran(home / "bin" / "python", "-c", f"{inspect.getsource(refuse_all)}\nrefuse_all()", cwd=folder)
        assert code == 0, said
        tried.append(python)
    if not tried:
        pytest.skip("pip can install the wheel on none of the Pythons here")
