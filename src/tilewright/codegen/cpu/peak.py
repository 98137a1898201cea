"""What one core can do at most, measured: multiply-adds from registers, and bytes read from memory.

In: a target that runs here. Out: GFLOP/s and GB/s.
Not its business: what a model reaches (``tilewright.tools.profile``).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tilewright.codegen.cpu.llvm import compile_text, target_machine
from tilewright.core.types import f32
from tilewright.target.target import Target

_ITERATIONS = 20_000
_READ_BYTES = 128 << 20
_TICKS = """define i64 @tw_peak_ticks() {
  %t = call i64 @llvm.readcyclecounter()
  ret i64 %t
}
declare i64 @llvm.readcyclecounter()"""


@dataclass(frozen=True)
class Peak:
    """Rates of one core. ``read_gb_per_s`` is for data far larger than the caches."""

    fma_gflops: float
    read_gb_per_s: float


class PeakMeter:
    """Compiled once, read often: frequency drifts, so measure beside whatever is compared."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.lanes = target.lanes(f32)
        self.accumulators = min(20, target.n_vector_registers - 4)
        machine = target_machine(target)
        self._jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
        image = compile_text(
            "\n".join([f'target triple = "{target.triple}"', self._fma_loop(), self._read_loop(), _TICKS]), target
        )
        builder = llvm.JITLibraryBuilder().add_object_img(image)
        for name in ("tw_peak_fma", "tw_peak_read", "tw_peak_ticks"):
            builder.export_symbol(name)
        self._library = builder.link(self._jit, "tw_peak")
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        self._fma = signature(self._library["tw_peak_fma"])
        self._read = signature(self._library["tw_peak_read"])
        self._ticks = ctypes.CFUNCTYPE(ctypes.c_int64)(self._library["tw_peak_ticks"])
        self._seed = np.full(self.lanes, 1.0, np.float32)

    def fma_gflops(self, seconds: float = 0.02) -> float:
        """fp32 multiply-adds on registers, two operations each (multiply and add where there is no fused one)."""
        flops = 2.0 * self.accumulators * self.lanes * _ITERATIONS
        return flops / best_seconds(lambda: self._fma(self._seed.ctypes.data, _ITERATIONS), seconds) / 1e9

    def read_gb_per_s(self, n_bytes: int = _READ_BYTES, seconds: float = 0.1) -> float:
        """Reading ``n_bytes`` in order, again and again: from memory when they exceed the caches."""
        data: np.ndarray[Any, np.dtype[np.uint8]] = np.ones(n_bytes + 64, np.uint8)
        start, block = -(-data.ctypes.data // 64) * 64, 8 * self.target.vector_bytes
        return n_bytes / best_seconds(lambda: self._read(start, n_bytes // block), seconds) / 1e9

    def ticks_per_second(self, seconds: float = 0.02) -> float:
        """The rate of the counter that profiling code reads (on x86 the time-stamp counter)."""
        start, ticks = time.perf_counter(), self._ticks()
        time.sleep(seconds)
        return float(self._ticks() - ticks) / (time.perf_counter() - start)

    def measure(self) -> Peak:
        """Both rates."""
        return Peak(self.fma_gflops(), self.read_gb_per_s())

    def _fma_loop(self) -> str:
        ty = f"<{self.lanes} x float>"
        n = range(self.accumulators)
        lines = ["define void @tw_peak_fma(ptr %p, i64 %n) {", "entry:", f"  %x = load {ty}, ptr %p, align 4"]
        lines += ["  br label %loop", "loop:", "  %i = phi i64 [ 0, %entry ], [ %j, %loop ]"]
        lines += [f"  %a{k} = phi {ty} [ zeroinitializer, %entry ], [ %b{k}, %loop ]" for k in n]
        for k in n:
            if self.target.has_fma:
                name = f"llvm.fma.v{self.lanes}f32"
                lines.append(f"  %b{k} = call {ty} @{name}({ty} %x, {ty} %x, {ty} %a{k})")
            else:
                lines += [f"  %m{k} = fmul {ty} %a{k}, %x", f"  %b{k} = fadd {ty} %m{k}, %x"]
        lines += ["  %j = add i64 %i, 1", "  %c = icmp slt i64 %j, %n", "  br i1 %c, label %loop, label %done", "done:"]
        total = "zeroinitializer"
        for k in n:
            lines.append(f"  %s{k} = fadd {ty} {total}, %b{k}")
            total = f"%s{k}"
        return "\n".join([*lines, f"  store {ty} {total}, ptr %p, align 4", "  ret void", "}"])

    def _read_loop(self) -> str:
        words = self.target.vector_bytes // 4
        ty, n = f"<{words} x i32>", range(8)
        lines = ["define void @tw_peak_read(ptr %p, i64 %n) {", "entry:", "  br label %loop", "loop:"]
        lines += ["  %i = phi i64 [ 0, %entry ], [ %j, %loop ]", "  %q = phi ptr [ %p, %entry ], [ %r, %loop ]"]
        lines += [f"  %a{k} = phi {ty} [ zeroinitializer, %entry ], [ %b{k}, %loop ]" for k in n]
        for k in n:
            lines.append(f"  %q{k} = getelementptr i8, ptr %q, i64 {k * self.target.vector_bytes}")
            lines += [f"  %x{k} = load {ty}, ptr %q{k}, align 4", f"  %b{k} = or {ty} %a{k}, %x{k}"]
        lines.append(f"  %r = getelementptr i8, ptr %q, i64 {8 * self.target.vector_bytes}")
        lines += ["  %j = add i64 %i, 1", "  %c = icmp slt i64 %j, %n", "  br i1 %c, label %loop, label %done", "done:"]
        total = "zeroinitializer"
        for k in n:
            lines.append(f"  %s{k} = or {ty} {total}, %b{k}")
            total = f"%s{k}"
        return "\n".join([*lines, f"  store {ty} {total}, ptr %p, align 4", "  ret void", "}"])


def measure_peak(target: Target | None = None) -> Peak:
    """The host's rates, or those that code for ``target`` can reach on it."""
    return PeakMeter(target or Target.host()).measure()


def best_seconds(run: Callable[[], object], seconds: float) -> float:
    """The least time of a call, of as many as begin within ``seconds``; at least one, besides the first."""
    run()
    best, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop or best == float("inf"):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
