"""The wheel without extras says to every command (``every_command``) what it should, and how to get what is missing.

In: the Pythons that are on this machine; a test of one that is not is skipped, and says so. Making an environment takes
long, so a quick run has the newest Python only compile every file and load what needs no library.
Not its business: Pythons between the oldest and the newest.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import every_command

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Built by the setuptools that PyTorch brings: pip would else install one for this alone.
    code, said = ran(sys.executable, *"-m pip wheel --no-deps --no-build-isolation -q -w".split(), folder, ROOT)
    assert code == 0, said
    (path,) = folder.glob("tilewright-*.whl")
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_the_wheel_without_extras(which: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel in a fresh environment of one of the Pythons that are here, with nothing but what it depends on."""
    for name, value in (("PYTHONPATH", ""), ("OMP_NUM_THREADS", "1"), ("TILEWRIGHT_CACHE", str(tmp_path / "cache"))):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # workers of one command read what the walk compiled
    found = pythons()
    if which == "newest" and len(found) == 1:
        pytest.skip(f"no supported Python is here but {min(found)}")
    version = min(found) if which == "oldest" else max(found)
    home, folder = tmp_path / "venv", tmp_path / "work"
    python, command = home / "bin" / "python", home / "bin" / "tilewright"
    folder.mkdir()
    code, said = ran(found[version], "-m", "venv", "--without-pip", home)
    assert code == 0, said
    code, said = ran(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile", wheel)
    if code and unreachable(said):
        pytest.skip(f"pip finds not all that the wheel needs on Python {version}")
    assert code == 0, said
    code, said = ran(command, "--version", cwd=folder)  # that the wheel installs a command
    assert code == 0 and "tilewright" in said, said
    code, said = ran(python, "-I", every_command.__file__, folder)
    assert code == 0, said


READS = """
    import importlib, pathlib, sys

    sys.path.insert(0, sys.argv[1])
    root, loaded = pathlib.Path(sys.argv[1]), []
    for path in sorted(root.rglob("*.py")):
        compile(path.read_text(), str(path), "exec")
    for folder in ("core", "target", "runtime"):
        for path in sorted((root / "tilewright" / folder).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            try:
                importlib.import_module(name)
                loaded.append(name)
            except ModuleNotFoundError as error:
                if error.name.startswith("tilewright"):
                    raise
    print(*loaded)
"""


def test_the_newest_python_compiles_every_file_and_loads_what_needs_no_library() -> None:
    """It has no library of ours here, so what needs NumPy is only compiled; what the language warns of is an error."""
    found = pythons()
    if len(found) == 1:
        pytest.skip(f"no supported Python is here but {min(found)}")
    newest = found[max(found)]
    strict = ("-W", "error::SyntaxWarning", "-W", "error::DeprecationWarning")
    code, said = ran(newest, "-I", "-B", *strict, "-c", dedent(READS), ROOT / "src")
    assert code == 0, said
    assert {"tilewright.core.expr", "tilewright.target.instructions", "tilewright.runtime.manifest"} <= {*said.split()}


def pythons() -> dict[str, Path]:
    """The Pythons on this machine that the project supports and that can make environments, by their versions."""
    names = [shutil.which(f"python3.{minor}") for minor in range(11, 20)]
    roots = [Path(sys.base_prefix).parent, Path.home() / ".pyenv" / "versions"]
    places = [*(Path(n) for n in names if n), *(p for r in roots if r.is_dir() for p in r.glob("3.*/bin/python3"))]
    found: dict[str, Path] = {}
    for path in [*places, Path(sys.executable)]:
        code, said = ran(path, "-c", "import json, sys, venv; print(json.dumps(sys.version_info[:2]))")
        if code == 0 and (version := tuple(json.loads(said))) >= (3, 11):
            found.setdefault("{}.{}".format(*version), path)
    return found


def ran(*words: object, cwd: Path | None = None) -> tuple[int, str]:
    """A process's exit code and what it said."""
    found = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    return found.returncode, found.stdout + found.stderr


def unreachable(said: str) -> bool:
    """Whether pip failed for want of a network, or of a package for that Python."""
    return "No matching distribution" in said or "Failed to establish a new connection" in said
