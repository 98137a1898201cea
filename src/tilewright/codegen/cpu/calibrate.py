"""The numbers of a machine's record, measured: a core's cycles, what caches and memory give, what a fork costs.

In: the record of this machine. Out: numbers by name; those that are fields of the record have their names and units.
Not its business: keeping them (``target.calibration``), what a model reaches (``tilewright.tools.profile``).

Every loop is written so that one thing bounds it. The clock: a chain of additions and exclusive ors, a cycle each on
every CPU that we know. Rates are bytes or operations per second, the best of many rounds as a shared machine can only
make them worse, divided by that clock. A fork among waiting threads is a median: the best of many finds every thread
at hand by chance.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tilewright.codegen.cpu.llvm import compile_text
from tilewright.codegen.cpu.peak import PeakMeter, best_seconds
from tilewright.core.diag import OptionError
from tilewright.core.types import Array, f32
from tilewright.runtime.cpu.linker import LinkedLibrary, link
from tilewright.target.calibration import RATES
from tilewright.target.target import Target

STEPS = 16
"""Of a chain, in one iteration."""
VECTORS = 8
"""That one iteration reads or writes."""
MIN_MEMORY_BYTES, MAX_MEMORY_BYTES = 1 << 26, 1 << 30
TIMES_CACHE = 8
"""What a thread reads as memory is so many times the last cache, within these: of twice as much, half is still kept.

Measured on Zen 5 (32 MiB for each of two cores): 68, 55, 50.5 and 48.7 GB/s from 64, 128, 256 and 512 MiB."""
ROUND_BYTES = 1 << 22
"""What one call reads or writes, again and again where it is less: the call itself takes no time beside it."""
LINE = 64
FORKS, WAKES, ASLEEP_S, ROUNDS = 4000, 100, 0.002, 24

MEETING = """
define internal void @meeting(ptr %ctx, i64 %task) {
entry:
  %at = getelementptr i64, ptr %ctx, i64 8
  %n = load i64, ptr %at
  atomicrmw add ptr %ctx, i64 1 seq_cst
  br label %wait
wait:
  %begun = load atomic i64, ptr %ctx seq_cst, align 8
  %all = icmp sge i64 %begun, %n
  br i1 %all, label %end, label %wait
end:
  ret void
}
"""
"""A task that waits until all have begun: word 0 of its context counts them, word 8 (the next line) holds how many."""
SHARED = """
define void @tw_calibrate_fork(ptr %ctx, i64 %n) {
  %at = getelementptr i64, ptr %ctx, i64 8
  store i64 %n, ptr %at
  store i64 0, ptr %ctx
  %threads = trunc i64 %n to i32
  call void @tw_parallel_for(ptr @meeting, ptr %ctx, i64 %n, i32 %threads)
  ret void
}
define void @tw_calibrate_forks(ptr %ctx, i64 %n, i64 %times) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  call void @tw_calibrate_fork(ptr %ctx, i64 %n)
  %j = add i64 %i, 1
  %c = icmp slt i64 %j, %times
  br i1 %c, label %loop, label %done
done:
  ret void
}
declare void @tw_parallel_for(ptr, ptr, i64, i32)
"""
"""With these tasks a fork needs every thread, and takes the whole way to all of them and back."""
CLOCK = "define i64 @tw_calibrate_clock(i64 %n, i64 %a, i64 %b) {{\n{head}\n{body}\n{tail}\n  ret i64 %x{last}\n}}"
HEAD = """entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]"""
TAIL = """  %j = add i64 %i, 1
  %c = icmp slt i64 %j, %n
  br i1 %c, label %loop, label %done
done:"""


def calibrate(target: Target, seconds: float = 0.08) -> dict[str, float]:
    """Every number of ``RATES`` that this machine has, each in about ``seconds``; ``OptionError`` for another one."""
    if not target.is_native:
        raise OptionError(f"{target.name} can't be measured here", remedy="calibrate on that machine")
    meter = Calibrator(target, seconds)
    numbers = meter.core()
    numbers |= meter.caches()
    if target.n_cores > 1:
        numbers |= meter.threads()
    return {name: float(f"{numbers[name]:.4g}") for name in RATES if name in numbers}


class Calibrator:
    """Compiled once; each method measures some of the numbers. ``seconds`` is what each of them takes."""

    def __init__(self, target: Target, seconds: float) -> None:
        self.target, self.seconds = target, seconds
        self.peak = PeakMeter(target)
        names = ("clock", "chain", "read", "write", "fork", "forks")
        self._library = _compiled(target, tuple(f"tw_calibrate_{name}" for name in names))
        self._ghz = 0.0

    def core(self) -> dict[str, float]:
        """The clock, and multiply-adds: how many at once, and how long a sum waits for one."""
        ghz, n = self.ghz(), 20_000
        seed = np.ones(self.target.lanes(f32), np.float32)
        chain = self._function("chain", ctypes.c_void_p, ctypes.c_int64)
        latency = best_seconds(lambda: chain(seed.ctypes.data, n), self.seconds) * ghz * 1e9 / (n * STEPS)
        rate = self.peak.fma_gflops(self.seconds) / (2 * self.target.lanes(f32) * ghz)
        return {"ghz": ghz, "fma_latency": latency, "fmas_per_cycle": rate}

    def ghz(self) -> float:
        """Thousand millions of cycles in a second, measured once."""
        if not self._ghz:
            n = 20_000
            clock = self._function("clock", ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
            self._ghz = 2 * STEPS * n / best_seconds(lambda: clock(n, 3, 5), self.seconds) / 1e9
        return self._ghz

    def caches(self) -> dict[str, float]:
        """What one core reads and writes: in each cache's own share of data, and far beyond all of them."""
        t, ghz = self.target, self.ghz()
        found: dict[str, float] = {}
        levels = {"": t.l1_bytes // 2, "l2_": (t.l1_bytes + t.l2_bytes) // 2}
        if t.llc_bytes > 2 * t.l2_bytes:
            levels["llc_"] = min(4 * t.l2_bytes, (t.l2_bytes + t.llc_bytes) // 2)
        for level, n_bytes in levels.items():
            read = "load_bytes_per_cycle" if not level else f"{level}bytes_per_cycle"
            data = _aligned(n_bytes)
            found[read] = self._gb_per_s("read", data) / ghz
            found[f"{level}store_bytes_per_cycle"] = self._gb_per_s("write", data) / ghz
        found["memory_gb_per_s"] = self.memory_gb_per_s(1)
        data = _aligned(self._memory_bytes())
        found["memory_store_gb_per_s"] = self._gb_per_s("write", data)
        return found

    def threads(self) -> dict[str, float]:
        """What all cores read from memory at once, and what it takes to share a loop among their threads."""
        n, context = self.target.n_cores, np.zeros(32, np.int64)
        fork = self._function("fork", ctypes.c_void_p, ctypes.c_int64)
        forks = self._function("forks", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        address, batch = -(-context.ctypes.data // LINE) * LINE, 20
        forks(address, n, FORKS)
        hot = [_seconds(lambda: forks(address, n, batch)) / batch for _ in range(FORKS // batch)]
        cold = []
        for _ in range(WAKES):
            time.sleep(ASLEEP_S)
            cold.append(_seconds(lambda: fork(address, n)))
        return {
            "memory_gb_per_s_all": self._all_gb_per_s(n),
            "fork_cycles": float(np.median(hot)) * self.ghz() * 1e9,
            "wake_us": min(cold) * 1e6,
        }

    def memory_gb_per_s(self, n_threads: int) -> float:
        """What one thread, or several at once, read from memory."""
        if n_threads > 1:
            return self._all_gb_per_s(n_threads)
        return self._gb_per_s("read", _aligned(self._memory_bytes()))

    def _memory_bytes(self) -> int:
        return min(max(TIMES_CACHE * self.target.llc_bytes, MIN_MEMORY_BYTES), MAX_MEMORY_BYTES)

    def _gb_per_s(self, what: str, data: Array) -> float:
        run, n_blocks, again = self._pass_over(what, data)
        n_bytes = n_blocks * VECTORS * self.target.vector_bytes * again
        return n_bytes / best_seconds(run, self.seconds) / 1e9

    def _pass_over(self, what: str, data: Array) -> tuple[Callable[[], object], int, int]:
        function = self._function(what, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        n_blocks = max(data.nbytes // (VECTORS * self.target.vector_bytes), 1)
        again = max(ROUND_BYTES // data.nbytes, 1)
        return lambda: function(data.ctypes.data, n_blocks, again), n_blocks, again

    def _all_gb_per_s(self, n: int) -> float:
        """Each thread reads its own part, without Python's lock; from the first one's start to the last one's end."""
        parts = [_aligned(max(self._memory_bytes(), ROUND_BYTES)) for _ in range(n)]
        runs = [self._pass_over("read", part)[0] for part in parts]
        together = threading.Barrier(n)

        def work(run: Callable[[], object]) -> list[tuple[float, float]]:
            times = []
            for _ in range(ROUNDS):
                together.wait()
                start = time.perf_counter()
                run()
                times.append((start, time.perf_counter()))
            return times

        with ThreadPoolExecutor(n) as pool:
            rounds = zip(*pool.map(work, runs), strict=True)
            best: float = min(max(end for _, end in r) - min(start for start, _ in r) for r in rounds)
        n_bytes = sum(p.nbytes for p in parts)
        return n_bytes / best / 1e9

    def _function(self, name: str, *types: Any) -> Callable[..., object]:
        found: Callable[..., object] = ctypes.CFUNCTYPE(None, *types)(self._library.addresses[f"tw_calibrate_{name}"])
        return found


def _compiled(target: Target, exports: tuple[str, ...]) -> LinkedLibrary:
    texts = [f'target triple = "{target.triple}"', _clock(), _chain(target), *_passes(target), MEETING, SHARED]
    return link([compile_text("\n".join(texts), target)], exports)


def _clock() -> str:
    lines = [f"  %x0 = phi i64 [ %a, %entry ], [ %x{2 * STEPS}, %loop ]"]
    for k in range(STEPS):
        lines.append(f"  %x{2 * k + 1} = add i64 %x{2 * k}, %a\n  %x{2 * k + 2} = xor i64 %x{2 * k + 1}, %b")
    return CLOCK.format(head=HEAD, body="\n".join(lines), tail=TAIL, last=2 * STEPS)


def _chain(target: Target) -> str:
    """One sum of multiply-adds, or of additions where there is no fused one: then products don't wait for the sum."""
    n = target.lanes(f32)
    ty = f"<{n} x float>"
    lines = [f"  %x0 = phi {ty} [ %s, %entry ], [ %x{STEPS}, %loop ]"]
    for k in range(STEPS):
        fused = f"call {ty} @llvm.fma.v{n}f32({ty} %s, {ty} %s, {ty} %x{k})"
        lines.append(f"  %x{k + 1} = " + (fused if target.has_fma else f"fadd {ty} %x{k}, %s"))
    head = HEAD.replace("entry:", f"entry:\n  %s = load {ty}, ptr %p, align 4")
    return "\n".join(
        ["define void @tw_calibrate_chain(ptr %p, i64 %n) {", head, *lines, TAIL,
         f"  store {ty} %x{STEPS}, ptr %p, align 4", "  ret void", "}"]
    )  # fmt: skip


def _passes(target: Target) -> tuple[str, str]:
    """Reading and writing ``%n`` blocks in order, ``%times`` times."""
    ty, width = f"<{target.vector_bytes // 4} x i32>", target.vector_bytes
    sums = [f"  %a{k} = phi {ty} [ zeroinitializer, %again ], [ %b{k}, %loop ]" for k in range(VECTORS)]
    places = [f"  %q{k} = getelementptr i8, ptr %q, i64 {k * width}" for k in range(VECTORS)]
    reads = [f"  %x{k} = load {ty}, ptr %q{k}, align {width}\n  %b{k} = add {ty} %a{k}, %x{k}" for k in range(VECTORS)]
    writes = [f"  store {ty} splat (i32 1), ptr %q{k}, align {width}" for k in range(VECTORS)]
    totals = [f"  %t{k + 1} = add {ty} %{'b0' if not k else f't{k}'}, %b{k + 1}" for k in range(VECTORS - 1)]
    kept = [*totals, f"  store {ty} %t{VECTORS - 1}, ptr %to, align 4"]
    return _pass("read", [*sums, *places, *reads], kept, ty), _pass("write", [*places, *writes], [], ty)


def _pass(name: str, body: list[str], kept: list[str], ty: str) -> str:
    step = VECTORS * int(ty.split(maxsplit=1)[0][1:]) * 4
    return "\n".join(
        [f"define void @tw_calibrate_{name}(ptr %p, i64 %n, i64 %times) {{", "entry:", f"  %to = alloca {ty}",
         "  br label %again", "again:", "  %r = phi i64 [ 0, %entry ], [ %r1, %end ]", "  br label %loop", "loop:",
         "  %i = phi i64 [ 0, %again ], [ %j, %loop ]", "  %q = phi ptr [ %p, %again ], [ %next, %loop ]",
         *[x for x in body if " phi " in x], *[x for x in body if " phi " not in x],
         f"  %next = getelementptr i8, ptr %q, i64 {step}", "  %j = add i64 %i, 1", "  %c = icmp slt i64 %j, %n",
         "  br i1 %c, label %loop, label %end", "end:", *kept, "  %r1 = add i64 %r, 1",
         "  %more = icmp slt i64 %r1, %times", "  br i1 %more, label %again, label %done", "done:", "  ret void", "}"]
    )  # fmt: skip


def _aligned(n_bytes: int) -> Array:
    room = np.ones(n_bytes + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    return room[start : start + n_bytes]


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
