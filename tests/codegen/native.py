"""Run kernels in this process: LLJIT, ctypes, and a serial stand-in for the thread pool."""

import ctypes
import platform
import re
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest

from tilewright.build.manifest import machine_of
from tilewright.codegen.cpu import llvm as codegen
from tilewright.codegen.cpu.scratch import start_of
from tilewright.core.compute import Buffer
from tilewright.runtime.host import misfit
from tilewright.runtime.values import aligned_buffer
from tilewright.target.target import Target
from tilewright.tile.ir import Kernel, Place, Role, Space

POOL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
HOST = Target.host()
LEFT_OVER = 0x00345678
"""What scratch holds before a call, in each word: bits of a denormal number."""
UNDERFLOW = {"x86_64": 0x10, "aarch64": 8, "riscv64": 2}[platform.machine()]
"""The flag of C's ``fenv.h``."""
WITHOUT_TILES = {"has_amx_bf16": False, "has_amx_int8": False}
calls = []


@POOL
def _pool(task, context, n_tasks, threads):
    run = TASK(task)
    calls.append((n_tasks, threads))
    for i in reversed(range(n_tasks)):
        run(context, i)


def runs_here(target: Target) -> bool:
    """Whether this CPU has the registers and instructions that code for ``target`` uses."""
    has = [name for name in dir(target) if name.startswith("has_") and getattr(target, name)]
    is_known = target.vector_bytes <= HOST.vector_bytes and all(getattr(HOST, name) for name in has)
    return is_known and misfit(machine_of(target)) is None  # LLVM takes instructions that no field stands for, too


def clear_underflow() -> None:
    """Forget that a result was denormal or rounded to 0, which takes many CPUs 150 cycles."""
    ctypes.CDLL(None).feclearexcept(UNDERFLOW)


def has_underflowed() -> bool:
    """Was a result of this thread's denormal, or rounded to 0, since it was forgotten?"""
    return bool(ctypes.CDLL(None).fetestexcept(UNDERFLOW) & UNDERFLOW)


class Native:
    """A compiled kernel; call it with arrays in the order of its parameters, then sizes.

    ``tiles``: what stands in for the CPU's matrix registers (``codegen.software_tiles``).

    What is said of the code holds for every target; a call skips the test where this CPU can't run it. Scratch holds
    ``left_over`` in each word when a call begins.
    """

    def __init__(self, kernel, target=HOST, object_bytes=None, tiles=None):
        self.kernel, self.target, self.tiles = kernel, target, tiles
        made = codegen.emit(kernel, target)
        self.scratch = made.scratch
        self.code = object_bytes or codegen.compile_text(tiles.text(made.text) if tiles else made.text, target)
        self.jit = llvm.create_lljit_compiler(codegen.target_machine(HOST), use_jit_link=True)
        builder = llvm.JITLibraryBuilder().add_object_img(self.code)
        builder.import_symbol("tw_parallel_for", ctypes.cast(_pool, ctypes.c_void_p).value)
        for name, address in (tiles.symbols() if tiles else {}).items():
            builder.import_symbol(name, address)
        self.library = builder.export_symbol(kernel.name).link(self.jit, kernel.name)
        n_params, n_sizes = len(kernel.params), len(kernel.sizes)
        types = [ctypes.c_void_p] * n_params + [ctypes.c_int64] * n_sizes + [ctypes.c_int32, ctypes.c_void_p]
        self.function = ctypes.CFUNCTYPE(None, *types)(self.library[kernel.name])

    def __call__(self, *arrays, sizes=(), threads=1, left_over=LEFT_OVER):
        if not runs_here(replace(self.target, **WITHOUT_TILES) if self.tiles else self.target):
            pytest.skip(f"this CPU can't run code for {self.target.name}")
        for a, b in zip(arrays, self.kernel.params, strict=True):
            assert a.flags.c_contiguous and a.dtype == b.dtype.numpy, b
        scratch, start = aligned_buffer(self.scratch.n_bytes(threads))
        flags = start_of(self.scratch, threads)
        scratch[:] = 0
        scratch[start + flags :][: (self.scratch.n_bytes(threads) - flags) // 4 * 4].view(np.uint32)[:] = left_over
        self.function(*[a.ctypes.data for a in arrays], *sizes, threads, scratch.ctypes.data + start + flags)


def kernel(body, *places, sizes=(), name="k"):
    """A kernel with the places given as ``Place`` or as parameters' buffers."""
    return Kernel(name, tuple(p if isinstance(p, Place) else param(p) for p in places), tuple(sizes), tuple(body))


def param(buffer: Buffer, role=Role.IN) -> Place:
    return Place(buffer, Space.GLOBAL, role)


def reg(buffer: Buffer) -> Place:
    return Place(buffer, Space.REG)


def local(buffer: Buffer) -> Place:
    return Place(buffer, Space.LOCAL)


def innermost_loop_spills(asm: str) -> int:
    """References to the stack in the smallest loops (``rbp`` is the frame's pointer only where it is set to be).

    A block that moves no vector and lies before the loop's head only looks like one: the latch of a loop outside.
    """
    frame = r"|\(%rbp" if "movq\t%rsp, %rbp" in asm else ""
    stack, lanes = re.compile(rf"\(%rsp{frame}|\[sp"), re.compile(r"[xyz]mm\d|\b[vz]\d+\.")
    loops = [loop for loop in innermost_loops(asm) if any(lanes.search(line) for line in loop)]
    return sum(bool(stack.search(line)) for loop in loops for line in loop)


def innermost_loops(asm: str) -> list[list[str]]:
    """Blocks from a label to a jump back to it, with no loop inside."""
    lines = asm.splitlines()
    labels = {m[1]: n for n, line in enumerate(lines) if (m := re.match(r"^(\.\w+):", line))}
    loops = []
    for n, line in enumerate(lines):
        m = re.match(r"^\s+(?:j\w+|b(?:\.\w+)?|cbn?z|tbn?z)\s.*?(\.\w+)\s*$", line)
        if m and labels.get(m[1], n + 1) <= n:
            loops.append((labels[m[1]], n))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return [lines[a : b + 1] for a, b in inner]


def random_array(rng, shape, dtype):
    """Numbers that a dtype holds exactly enough for comparisons."""
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return rng.integers(max(dtype.min, -100), 100, shape).astype(dtype.numpy)
    return rng.standard_normal(shape).astype(np.float32).astype(dtype.numpy)
