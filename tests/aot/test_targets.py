"""Objects for every kind of machine: format, symbols, and instructions that the machine has. No tool takes part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import small_models
import tilewright as tw
from aot import objects
from tilewright.aot.freestanding import freestanding_symbols
from tilewright.build import deploy
from tilewright.build.options import Clock, Options
from tilewright.codegen.cpu.llvm import assembly_of_text
from tilewright.target import x86
from tilewright.target.target import Target

pytestmark = pytest.mark.usefixtures("shared_kernels")

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
HEAP = {"malloc", "free"}
SOFT = {f"__aeabi_{f}" for f in ("fadd", "fsub", "fmul", "fcmpgt", "fcmplt", "fcmpun", "lmul")}
KINDS = {
    "x86-64": ("ELF 64 x86-64", HEAP),
    "x86-64-v4": ("ELF 64 x86-64", HEAP),
    "aarch64": ("ELF 64 AArch64", HEAP),
    "aarch64-dotprod": ("ELF 64 AArch64", HEAP | {"getauxval"}),
    "aarch64-sve": ("ELF 64 AArch64", HEAP | {"getauxval"}),
    "armv7": ("ELF 32 Arm", HEAP | {"getauxval"}),
    "rv64gc": ("ELF 64 RISC-V", HEAP),
    "rv64gcv": ("ELF 64 RISC-V", HEAP | {"getauxval", "syscall"}),
    "wasm32": ("Wasm", {"__stack_pointer", "__linear_memory"}),
    "cortex-m0plus": ("ELF 32 Arm", SOFT),
    "cortex-m3": ("ELF 32 Arm", SOFT),
    "cortex-m4": ("ELF 32 Arm", set()),
    "cortex-m7": ("ELF 32 Arm", set()),
    "cortex-m33": ("ELF 32 Arm", set()),
    "cortex-m55": ("ELF 32 Arm", set()),
    "x86-64-v3-windows": ("COFF x86-64", HEAP | {"__chkstk", "_fltused"}),
    "aarch64-windows": ("COFF AArch64", HEAP | {"__chkstk"}),
    "x86-64-macos": ("Mach-O x86-64", HEAP),
    "apple-m1": ("Mach-O AArch64", HEAP),
}
"""The format, and what else a linker must bring: C's heap where there is one, and what the system's C compiler adds;
Linux's word on the CPU where the code needs more than any CPU of the kind has."""
FUNCTIONS = {"info", "bind", "workspace", "input_shape", "output_shape", "create", "run", "result_shape", "destroy"}


@pytest.mark.one_in(18)
@pytest.mark.parametrize("target", KINDS)
def test_format_and_symbols(target: str, tmp_path: Path) -> None:
    made = tw.export(DIGITS, tmp_path, target=target, fix_dims={"batch": 1}, name="digits")
    found = objects.symbols_of(made.object.read_bytes())
    kind, needs = KINDS[target]
    assert found.kind == kind
    assert {f"digits_{f}" for f in FUNCTIONS} <= found.defined
    merged = ("__real@", "__xmm@", "__ymm@")  # constants by their value, of which COFF linkers keep one
    own = {s for s in found.defined if not s.startswith(("digits_", *merged))}
    assert own <= (set() if needs >= HEAP else set(freestanding_symbols()))
    assert found.undefined <= needs


LACKS = {
    "x86-64": r"\tv[a-z]|\t(pshufb|pmulld|roundps|ptest|blendv|pminsd|pmaxsd|popcnt)",
    "x86-64-v2": r"\tv[a-z]",
    "x86-64-v3": r"%zmm|%xmm(1[6-9]|2\d|3[01])|%k[0-7]",
    "aarch64": r"\t(sdot|udot|usdot|cas|ldadd|fmlal)|\bz\d+\.|\bp\d+/",
    "aarch64-dotprod": r"\bz\d+\.|\bp\d+/|\tusdot",
    "armv7": r"\t(vfma|vfms|sdiv|udiv|vrint|vcvt[bt])",
    "rv64gc": r"\tv(set|le|se|f|add|mul)|\t(sh\dadd|andn|min|max)\b",
    "cortex-m4": r"\.f64|\tv(rint|sel|maxnm|minnm)|\bq\d+\b",
}
"""What a machine must not be given, as patterns of LLVM's assembly."""


@pytest.mark.one_in(18)
@pytest.mark.parametrize("target", LACKS)
@pytest.mark.parametrize("graph", [small_models.convnet, small_models.language_model])
def test_no_instruction_that_the_machine_lacks(target: str, graph: object) -> None:
    options = Options(target=target)
    modules = deploy.export_modules(graph(), options, 1, Clock())  # type: ignore[operator]
    for text in modules.texts.values():
        asm = assembly_of_text(text, Target.parse(target))
        assert not re.search(LACKS[target], asm), re.search(f".*({LACKS[target]}).*", asm)


@pytest.mark.slow
def test_levels_in_one_object(tmp_path: Path) -> None:
    """Wide registers appear in the functions of their level only; equal weights are stored once."""
    made = tw.export(DIGITS, tmp_path, target=",".join(x86.LEVELS), fix_dims={"batch": 1}, name="digits")
    found = objects.symbols_of(made.object.read_bytes())
    assert found.undefined == HEAP
    kernels = {row.name.split()[0] for row in made.sizes if row.kind == "kernel"}
    assert {name.rpartition("_")[2] for name in kernels} == {"0", "1", "2", "3"}
    alone = [
        tw.export(DIGITS, tmp_path / t, target=t, fix_dims={"batch": 1}, name="digits").object.stat().st_size
        for t in x86.LEVELS
    ]
    assert made.object.stat().st_size < sum(alone) - min(alone) / 2  # x86-64 and -v2 share their weights


def test_levels_that_cannot_be_told_apart() -> None:
    with pytest.raises(tw.OptionError, match="no run-time choice of cascadelake"):
        tw.export(DIGITS, "unused", target="x86-64,cascadelake", fix_dims={"batch": 1})


POSIX = {"pthread_create", "pthread_mutex_lock", "pthread_cond_wait", "pthread_cond_broadcast", "clock_gettime"}
WINDOWS = {"CreateThread", "AcquireSRWLockExclusive", "SleepConditionVariableSRW", "WakeAllConditionVariable"}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("target", ["apple-m1", "x86-64-macos", "armv7", "x86-64-v3-windows", "wasm32"])
def test_threads_where_the_system_has_them(target: str, tmp_path: Path) -> None:
    """Without Linux's futex; where there are none, more threads than one are not promised."""
    made = tw.export(small_models.convnet(), tmp_path, target=target, name="net", threads=4)
    found = objects.symbols_of(made.object.read_bytes())
    has_threads, is_windows = target != "wasm32", target.endswith("windows")
    assert (found.undefined >= POSIX) == (has_threads and not is_windows) and "syscall" not in found.undefined
    assert (found.undefined >= WINDOWS) == is_windows
    assert ("net_after_fork" in found.defined) == has_threads
    assert ('"max_threads": 4' in made.record.read_text()) == has_threads


FILES = {
    "aarch64": {"open", "lseek", "mmap", "munmap", "close"},
    "apple-m1": {"open", "lseek", "mmap", "munmap", "close"},
    "x86-64-v3-windows": {
        "CreateFileA", "GetFileSizeEx", "CreateFileMappingW", "MapViewOfFile", "UnmapViewOfFile", "CloseHandle",
    },
    "aarch64-windows": {
        "CreateFileA", "GetFileSizeEx", "CreateFileMappingW", "MapViewOfFile", "UnmapViewOfFile", "CloseHandle",
    },
    "armv7": set(),
    "wasm32": set(),
}  # fmt: skip
"""What an object asks of its system to map weights, where it does so."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", FILES)
def test_weights_files_are_mapped_where_the_system_can(target: str, tmp_path: Path) -> None:
    made = tw.export(DIGITS, tmp_path, target=target, fix_dims={"batch": 1}, name="digits", weights="file")
    found, header = objects.symbols_of(made.object.read_bytes()), made.header.read_text()
    assert found.undefined >= FILES[target]
    maps = {"digits_map_weights", "digits_unmap_weights"}
    assert found.defined & maps == (maps if FILES[target] else set())
    assert all((f"{name}(" in header) == bool(FILES[target]) for name in maps)
    assert ("kernel32" in header) == target.endswith("windows")
