"""A C compiler as a linker: an object to a shared library, where somebody asks for one.

In: an object, its triple and where the library goes. Out: the library. Nothing else of Tilewright calls a program.

For the computer at hand that is the system's ``cc``; for others ``zig cc`` of the package ziglang (extra ``aot``). A
Linux library made so names no C library: it asks for ``malloc`` and its like, which every program that loads it has,
whichever C library that is (and zig need not build one first, which takes minutes); one for Windows asks ucrtbase.dll
and, for threads and files, kernel32.dll.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tilewright.aot.system import System
from tilewright.core.diag import OptionError
from tilewright.runtime.errors import ResourceError

SECONDS = 600
_SUFFIXES = {"ELF": "lib{}.so", "MachO": "lib{}.dylib", "COFF": "{}.dll"}
_ENTRY = """
int _fltused; /* what a compiler's objects name when they compute with floating point */
int DllMainCRTStartup(void *module, unsigned reason, void *reserved) {
  return (void)module, (void)reason, (void)reserved, 1;
}
"""
_IMPORTS = {
    "ucrtbase.dll": ("free", "malloc", "memcmp", "memcpy", "memmove", "memset"),
    "kernel32.dll": (
        "AcquireSRWLockExclusive", "CloseHandle", "CreateFileA", "CreateFileMappingW", "CreateThread", "GetFileSizeEx",
        "MapViewOfFile", "QueryPerformanceCounter", "QueryPerformanceFrequency", "ReleaseSRWLockExclusive",
        "SleepConditionVariableSRW", "UnmapViewOfFile", "WakeAllConditionVariable",
    ),
}  # fmt: skip
"""What objects may ask of the libraries that every Windows since 10 has."""
_EQUAL_BYTES = ["-s", "-Wl,-Brepro"]
"""A DLL without the identity of debug information, and a digest of its content where the time would be."""
_ELF = ["-Wl,-z,relro,-z,now", "-Wl,--build-id=none", "-Wl,-z,noexecstack"]


def library_name(name: str, triple: str, system: System) -> str:
    """What the system calls a shared library; ``OptionError`` where it has none."""
    if not system.has_libc:
        remedy = "link the object into the program"
        raise OptionError(f"there are no shared libraries for {triple}", remedy=remedy)
    return _SUFFIXES[system.object_format].format(name)


def link_shared(
    object_: Path, library: Path, *, name: str, triple: str, system: System, is_host: bool, has_threads: bool
) -> None:
    """Link a library that exports what the object does; ``ResourceError`` when no linker is there or it fails."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        command = [*(_host_compiler() if is_host else _zig(triple)), "-shared", "-o", str(made), str(object_)]
        if system.object_format == "ELF":
            command += [f"-Wl,-soname,{library.name}", *_ELF]
            command += ["-lm"] if is_host else ["-nostdlib", "-rtlib=compiler-rt"]
            command += ["-Wl,-z,nodelete"] if has_threads else []  # idle workers are in its code
            command += ["-lpthread"] if has_threads and is_host else []
        elif system.object_format == "MachO":
            command += [f"-Wl,-install_name,@rpath/{library.name}"]
        else:
            command += _windows(Path(folder), triple)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=folder)
        if ran.returncode:
            text = ran.stderr.strip()[-2000:]
            raise ResourceError(f"{command[0]} can't link {name}: {text}", remedy="link the object")
        os.replace(made, library)


def _windows(folder: Path, triple: str) -> list[str]:
    """What a DLL needs besides the object: a start that does nothing, and the names of what it imports."""
    (folder / "start.c").write_text(_ENTRY)
    machine = "arm64" if triple.startswith(("aarch64", "arm64")) else "i386:x86-64"
    for dll, names in _IMPORTS.items():
        (folder / "names.def").write_text("\n".join([f"LIBRARY {dll}", "EXPORTS", *names, ""]))
        command = [sys.executable, "-m", "ziglang", "dlltool", "-d", "names.def", "-l", f"{dll}.a", "-m", machine]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=folder)
        if ran.returncode:
            raise ResourceError(f"zig dlltool failed: {ran.stderr.strip()[-2000:]}", remedy="link the object")
    plain = ["-nostdlib", "-rtlib=compiler-rt", "-ffreestanding", "-fno-sanitize=all", "-fno-stack-protector", "-O1"]
    return [*plain, *_EQUAL_BYTES, "start.c", *(f"{dll}.a" for dll in _IMPORTS), "-Wl,--export-all-symbols"]


def _host_compiler() -> list[str]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        remedy = "install a C compiler, or link the object yourself"
        raise ResourceError("a shared library needs a C compiler (cc), and there is none", remedy=remedy)
    return [compiler]


def need_zig(triple: str) -> None:
    """``ResourceError`` where the package that links for other machines is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        remedy = 'pip install "tilewright[aot]", or link the object with a compiler for that machine'
        raise ResourceError(f"a shared library for {triple} needs the package ziglang", remedy=remedy)


def _zig(triple: str) -> list[str]:
    """``zig cc`` for a triple of LLVM's."""
    need_zig(triple)
    return [sys.executable, "-m", "ziglang", "cc", "-target", _zig_triple(triple), "-g0"]


def _zig_triple(triple: str) -> str:
    """zig's name of the machine: instruction set, system, C library."""
    cpu, *rest = triple.split("-")
    cpu = {"arm64": "aarch64", "armv7": "arm"}.get(cpu, cpu)
    if any(p.startswith(("macos", "darwin")) for p in rest):
        return f"{cpu}-macos"
    if "windows" in rest:
        return f"{cpu}-windows-gnu"
    abi = "gnueabihf" if cpu.startswith("arm") else "gnu"
    return f"{cpu}-linux-{abi}"
