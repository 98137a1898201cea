"""An engine held to AVX2 that has no switch for it: a copy of its package in which ``cpuid`` instructions trap.

In: a Python package with shared libraries for x86-64, and a folder. Out: environment variables of a process that
imports the copy. Its libraries ask ``cpuid`` what the CPU can do; in the copy each of these instructions (two bytes) is
a breakpoint, and the handler in a preloaded library answers for it, without AVX-512, AMX and AVX-VNNI (leaf 7 of
Intel's Software Developer's Manual, volume 2A, CPUID). Needs Linux, ``objdump`` and a C compiler.
Not its business: engines that have a switch (``engines.py``).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

TOOLS = ("objdump", "readelf", "cc")
CPUID, BREAKPOINT = b"\x0f\xa2", b"\xcc\x90"
HANDLER = r"""
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>

static const unsigned hidden_b = 0xdc230000u, hidden_c = 0x5842u, hidden_d = 0x3c0010cu; /* leaf 7.0: AVX-512, AMX */
static const unsigned hidden_a = 0x200030u;                                   /* leaf 7.1: AVX-VNNI, bf16, AMX-fp16 */

static void answer(int number, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned leaf = r[REG_RAX], part = r[REG_RCX], a, b, c, d;
    __cpuid_count(leaf, part, a, b, c, d);
    if (leaf == 7 && part == 0) { b &= ~hidden_b; c &= ~hidden_c; d &= ~hidden_d; }
    if (leaf == 7 && part == 1) a &= ~hidden_a;
    r[REG_RAX] = a; r[REG_RBX] = b; r[REG_RCX] = c; r[REG_RDX] = d;
    r[REG_RIP] += 1; /* behind the second byte */
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGTRAP, &action, 0);
}
"""


def missing_tools() -> list[str]:
    """The tools that making a copy needs and this machine lacks."""
    return [x for x in TOOLS if shutil.which(x) is None]


def variables(package: str, folder: Path) -> Mapping[str, str]:
    """Make the copy of ``package`` in ``folder`` unless it is there; the variables with which Python imports it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    folder = folder.resolve()
    site, handler = folder / f"{package}.avx2", folder / "avx2.so"
    if not site.exists():
        making = folder / f"{package}.making"
        shutil.rmtree(making, ignore_errors=True)
        shutil.copytree(Path(spec.origin).parent, making / package)
        for library in making.rglob("*.so*"):
            _trap(library)
        making.rename(site)
    if not handler.exists():
        command = ["cc", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", str(handler)]
        subprocess.run(command, input=HANDLER, text=True, check=True)
    return {"LD_PRELOAD": str(handler), "PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)])}


def _trap(library: Path) -> None:
    """Write a breakpoint over every ``cpuid`` of the library."""
    content = bytearray(library.read_bytes())
    for at in _places(library):
        assert content[at : at + 2] == CPUID
        content[at : at + 2] = BREAKPOINT
    library.write_bytes(content)


def _places(library: Path) -> Iterator[int]:
    """Where in the file its ``cpuid`` instructions are."""
    table = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True, check=True).stdout
    texts = [[int(x, 16) for x in found] for found in re.findall(r"PROGBITS +(\w+) (\w+) (\w+) \w+ +AX", table)]
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True
    ).stdout
    for digits in re.findall(r"^ *(\w+):\tcpuid", listing, re.MULTILINE):
        address = int(digits, 16)
        yield next(address - start + offset for start, offset, size in texts if start <= address < start + size)
