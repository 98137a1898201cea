"""A DLL runs under Wine: its imports, its calling convention, its threads, its weights in a mapped file."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import small_models
import tilewright as tw

HERE = Path(__file__).parent
KERNEL32 = (
    "LoadLibraryA", "GetProcAddress", "GetStdHandle", "ReadFile", "WriteFile", "DeleteFileA", "ExitProcess",
)  # fmt: skip
WINE = shutil.which("wine64") or shutil.which("wine64", path="/usr/lib/wine") or shutil.which("wine")
"""Debian's package keeps it from the path."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.emulation,
    pytest.mark.skipif(WINE is None or platform.machine() != "x86_64", reason="no wine for x86-64"),
    pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no ziglang"),
]


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command, with a Windows of its own."""
    return ["env", f"WINEPREFIX={tmp_path_factory.mktemp('wine')}", "WINEDEBUG=-all", str(WINE)]


@pytest.mark.parametrize(("threads", "weights"), [(1, "embedded"), (3, "embedded"), (1, "file")])
def test_a_dll_answers_as_here(threads: int, weights: str, tmp_path: Path, wine: list[str]) -> None:
    graph = small_models.convnet()
    options = {"threads": threads, "weights": weights, "shared": True}
    made = tw.export(graph, tmp_path, target="x86-64-windows", name="m", **options)
    assert made.library == tmp_path / "m.dll"
    (tmp_path / "k.def").write_text("\n".join(["LIBRARY kernel32.dll", "EXPORTS", *KERNEL32, ""]))
    zig = [sys.executable, "-m", "ziglang"]
    flags = ["-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fno-sanitize=all", "-O1", "-g0", f"-I{tmp_path}"]
    files = [str(HERE / "emulated" / "windows.c"), "k.a", "-Wl,--entry=mainCRTStartup", "-o", "p.exe"]
    x = small_models.numbers(2, 3, 64, 64)
    y = tw.compile(graph, target="x86-64", cache=False)(x)
    sizes = [f"-DIN_BYTES={x.nbytes}", f"-DOUT_BYTES={y.nbytes}", f"-DTHREADS={threads}"]
    if made.weights is not None:
        sizes.append("-DWEIGHTS")
        data = made.weights.read_bytes()
        (tmp_path / "short").write_bytes(data[:-1])
        (tmp_path / "foreign").write_bytes(data.replace(b'"fingerprint":"', b'"fingerprint":"x', 1)[: len(data)])
    for command in (
        [*zig, "dlltool", "-d", "k.def", "-l", "k.a", "-m", "i386:x86-64"],
        [*zig, "cc", "-target", "x86_64-windows-gnu", *flags, *sizes, *files],
    ):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    (tmp_path / "x").write_bytes(x.tobytes())
    with (tmp_path / "x").open("rb") as given, (tmp_path / "y").open("wb") as answer:
        ran = subprocess.run([*wine, "p.exe"], cwd=tmp_path, stdin=given, stdout=answer, check=False, timeout=600)
    assert ran.returncode == 0
    assert (tmp_path / "y").read_bytes() == y.tobytes()
    assert (weights == "file") == (made.weights is not None and not made.weights.exists())
