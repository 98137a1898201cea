"""Machines that this one can imitate: how to link for them, what runs the program, and what is missing here for that.

In: nothing. Out: ``PLATFORMS`` by name. Not its business: models (``many``).

A program is linked without any C library (``zig cc`` would build one first, for minutes). ``zig`` is the compiler
of the package ziglang (extra ``aot``).
"""

from __future__ import annotations

import importlib.util
import platform as host
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.target import x86

HERE = Path(__file__).parent
NATIVE = "env"  # runs a program as it is
ZIG = [sys.executable, "-m", "ziglang"]
_ELF = ("-static", "-ffreestanding", "-nostdlib", "-fno-stack-protector", "-Wl,-z,norelro")


@dataclass(frozen=True)
class Platform:
    """``target`` is Tilewright's name of the machine, ``triple`` zig's. ``emulator`` runs PROGRAM; its versions below
    ``since`` can't, for the reason ``why``."""

    target: str
    triple: str
    flags: tuple[str, ...]
    source: str
    emulator: tuple[str, ...]
    since: int = 0
    why: str = ""

    def missing(self) -> str:
        """Which tool is not here; empty when all are."""
        if importlib.util.find_spec("ziglang") is None:
            return "no ziglang"
        if self.emulator[0] == NATIVE and (host.machine(), host.system()) != ("x86_64", "Linux"):
            return "this machine is not an x86-64 with Linux"
        if shutil.which(self.emulator[0]) is None:
            return f"no {self.emulator[0]}"
        if self.since and _version(self.emulator[0]) < self.since:
            return f"{self.emulator[0]} is older than {self.since}: {self.why}"
        return ""

    def link(self, objects: Sequence[Path], folder: Path, main: str = "program.c", given: Sequence[str] = ()) -> Path:
        """The program of ``main`` and these objects; ``folder`` has the headers, ``given`` are more options."""
        program, listed = folder / "program", folder / "objects.txt"
        listed.write_text("\n".join(map(str, objects)))
        sources = [HERE / main, *([HERE / self.source] if self.source.endswith(".c") else [])]
        flags = [f.replace("HERE", str(HERE)) for f in self.flags]
        command = [*ZIG, "cc", "-target", self.triple, "-O1", "-g0", "-fno-builtin", "-fno-sanitize=all", *flags]
        command += [*given, f"-I{folder}", *map(str, sources), f"@{listed}", "-o", str(program)]
        linked = subprocess.run(command, check=False, capture_output=True, text=True)
        assert linked.returncode == 0, linked.stderr[-4000:]
        return program

    def run(self, program: Path, request: bytes, plugin: Path | None = None) -> bytes:
        """What the program answers. A plugin of QEMU's may watch it, and leave files in the program's folder."""
        emulator, *how = self.emulator
        watched = [emulator, *(("-plugin", str(plugin)) if plugin else ()), *how]
        command = [part.replace("HERE", str(HERE)).replace("PROGRAM", str(program)) for part in watched]
        (program.parent / "request.bin").write_bytes(request)
        answer = program.parent / "answer.bin"
        answer.unlink(missing_ok=True)
        ran = subprocess.run(command, input=request, check=False, capture_output=True, cwd=program.parent, timeout=900)
        assert ran.returncode == 0, (
            f"{command[0]} ended with {ran.returncode}: {ran.stderr[-2000:].decode(errors='replace')}"
        )
        return answer.read_bytes() if answer.exists() else ran.stdout


@cache
def _version(emulator: str) -> int:
    text = subprocess.run([emulator, "--version"], check=False, capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)", text)
    return int(found[1]) if found else 0


def _linux(target: str, triple: str, emulator: str, *flags: str, since: int = 0, why: str = "") -> Platform:
    return Platform(target, triple, (*_ELF, *flags), "linux.c", (*emulator.split(), "PROGRAM"), since, why)


_SEMIHOSTING = "-nographic -monitor none -serial none -semihosting-config enable=on,target=native -kernel PROGRAM"
_CORTEX_M = (
    "-ffreestanding", "-nostdlib", "-rtlib=compiler-rt",
    f"-DREQUEST_BYTES={1 << 20}", f"-DANSWER_BYTES={1 << 20}", f"-DMEMORY_BYTES={3 << 19}",
)  # fmt: skip


def _cortex_m(cpu: str, abi: str, board: str, memories: str = "cortex_m.ld") -> Platform:
    flags = (f"-mcpu={cpu.replace('-', '_')}", *_CORTEX_M, "-T", f"HERE/{memories}")
    emulator = ("qemu-system-arm", "-M", board, *_SEMIHOSTING.split())
    return Platform(cpu, f"thumb-freestanding-{abi}", flags, "cortex_m.c", emulator)


_WASM = (
    "-nostdlib", "-rtlib=compiler-rt", "-Wl,--no-entry",
    "-Wl,--export=tw_request", "-Wl,--export=tw_answer", "-Wl,--export=tw_answer_all",
    "-Wl,--strip-all",
)  # fmt: skip

PLATFORMS: dict[str, Platform] = {
    "aarch64": _linux("aarch64", "aarch64-linux-none", "qemu-aarch64 -cpu cortex-a53"),
    "aarch64-dotprod": _linux("aarch64-dotprod", "aarch64-linux-none", "qemu-aarch64 -cpu neoverse-n1"),
    "aarch64-i8mm": _linux("aarch64-i8mm", "aarch64-linux-none", "qemu-aarch64 -cpu max"),
    "aarch64-sve": _linux("aarch64-sve", "aarch64-linux-none", "qemu-aarch64 -cpu max"),
    "x86-64": _linux("x86-64", "x86_64-linux-none", "qemu-x86_64 -cpu core2duo"),
    "x86-64-v2": _linux("x86-64-v2", "x86_64-linux-none", "qemu-x86_64 -cpu Nehalem"),
    "x86-64-v3": _linux("x86-64-v3", "x86_64-linux-none", "qemu-x86_64 -cpu Haswell", since=7, why="it lacks AVX2"),
    "x86-64-dispatch": _linux(",".join(x86.LEVELS), "x86_64-linux-none", "qemu-x86_64 -cpu Nehalem"),
    "x86-64-dispatch-native": _linux(",".join(x86.LEVELS), "x86_64-linux-none", NATIVE),
    "wasm32": Platform("wasm32", "wasm32-freestanding", _WASM, "wasm.mjs", ("node", "HERE/wasm.mjs", "PROGRAM")),
    "rv64gc": _linux("rv64gc", "riscv64-linux-none", "qemu-riscv64 -cpu rv64,v=false"),
    "rv64gcv": _linux(
        "rv64gcv",
        "riscv64-linux-none",
        "qemu-riscv64 -cpu rv64,v=true,vlen=128",
        since=8,
        why="it ends at a vector conversion with its own rounding mode",
    ),
    "armv7": _linux("armv7", "arm-linux-eabihf", "qemu-arm -cpu cortex-a9", "-mcpu=cortex_a9", "-rtlib=compiler-rt"),
    "cortex-m3": _cortex_m("cortex-m3", "eabi", "mps2-an385"),
    "cortex-m4": _cortex_m("cortex-m4", "eabihf", "mps2-an386"),
    "cortex-m7": _cortex_m("cortex-m7", "eabihf", "mps2-an500", "cortex_m_high.ld"),
    "cortex-m55": _cortex_m("cortex-m55", "eabihf", "mps3-an547", "cortex_m_high.ld"),
}
