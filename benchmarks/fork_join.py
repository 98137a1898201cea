"""What the thread pool costs: forks while workers spin, forks that wake sleeping workers, and idling.

    python benchmarks/fork_join.py [--threads 2] [--forks 200000] [--busy 0] [--json]

In: nothing. Out: for each case the least, median and 99th-percentile time of one ``tw_parallel_for`` (``--json`` for a
record). Not its business: how well kernels scale.

Three bodies. *empty*: the caller often finishes all tasks before a worker arrives, as it should. *meeting*: every task
waits until all have begun, so each fork needs every thread and the time is the whole round trip to all of them.
*asleep*: meeting, after a pause in which the workers went to sleep. ``--busy`` keeps that many other processes running,
to see the pool on a machine that is shared.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import time

import numpy as np

from tilewright.codegen.cpu.calibrate import MEETING
from tilewright.runtime.cpu.linker import LinkedLibrary, link
from tilewright.runtime.cpu.llvm import compile_ir

IR = (
    MEETING
    + """
declare void @tw_parallel_for(ptr, ptr, i64, i32)
declare i32 @clock_gettime(i32, ptr)

define internal i64 @now() noinline {
  %ts = alloca { i64, i64 }
  call i32 @clock_gettime(i32 1, ptr %ts)
  %s = load i64, ptr %ts
  %at = getelementptr i64, ptr %ts, i64 1
  %ns = load i64, ptr %at
  %s_ns = mul i64 %s, 1000000000
  %t = add i64 %s_ns, %ns
  ret i64 %t
}

define internal void @empty(ptr %ctx, i64 %task) {
  ret void
}

define void @time_forks(ptr %times, i64 %forks, i32 %threads, ptr %body) {
entry:
  %ctx = alloca [128 x i8], align 64
  %at = getelementptr i64, ptr %ctx, i64 8
  %n = sext i32 %threads to i64
  store i64 %n, ptr %at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  store i64 0, ptr %ctx
  %start = call i64 @now()
  call void @tw_parallel_for(ptr %body, ptr %ctx, i64 %n, i32 %threads)
  %end = call i64 @now()
  %spent = sub i64 %end, %start
  %to = getelementptr i64, ptr %times, i64 %i
  store i64 %spent, ptr %to
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %forks
  br i1 %more, label %loop, label %out
out:
  ret void
}

define void @time_empty(ptr %times, i64 %forks, i32 %threads) {
  call void @time_forks(ptr %times, i64 %forks, i32 %threads, ptr @empty)
  ret void
}

define void @time_meeting(ptr %times, i64 %forks, i32 %threads) {
  call void @time_forks(ptr %times, i64 %forks, i32 %threads, ptr @meeting)
  ret void
}
"""
)


def timed(library: LinkedLibrary, body: str, forks: int, threads: int, pause: float = 0.0) -> dict[str, float]:
    """Microseconds of single forks: least, median, 99th percentile. The cost of reading the clock is taken off."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
    run = kind(library.addresses[f"time_{body}"])
    times, clock = np.zeros(forks, np.int64), np.zeros(10_000, np.int64)
    kind(library.addresses["time_empty"])(clock.ctypes.data, len(clock), 1)  # one thread: one inline call
    if pause:
        for i in range(forks):
            time.sleep(pause)
            run(times[i:].ctypes.data, 1, threads)
    else:
        run(times.ctypes.data, forks, threads)
    us = (times - np.median(clock)).clip(0) / 1000
    return {"min": float(us.min()), "median": float(np.median(us)), "p99": float(np.percentile(us, 99))}


def idle_cpu_share(seconds: float = 0.5) -> float:
    """CPU time of the whole process while nothing is called, as a share of one core."""
    time.sleep(0.05)
    start = time.process_time()
    time.sleep(seconds)
    return (time.process_time() - start) / seconds


def burn() -> None:
    """Keep one core busy."""
    while True:
        pass


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--forks", type=int, default=200_000)
    parser.add_argument("--busy", type=int, default=0, help="other processes that keep a core busy")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    others = [multiprocessing.Process(target=burn, daemon=True) for _ in range(options.busy)]
    for other in others:
        other.start()
    library = link([compile_ir(IR)], ("time_empty", "time_meeting"))
    timed(library, "meeting", 1000, options.threads)
    rows = {
        "empty": timed(library, "empty", options.forks, options.threads),
        "meeting": timed(library, "meeting", options.forks, options.threads),
        "asleep": timed(library, "meeting", 300, options.threads, pause=0.002),
    }
    idle = idle_cpu_share()
    for other in others:
        other.terminate()
    if options.json:
        print(json.dumps({"threads": options.threads, "busy": options.busy, "us": rows, "idle_cpu_share": idle}))
        return
    print(f"fork-join, {options.threads} threads, microseconds")
    for name, row in rows.items():
        print(f"  {name:8s} " + "  ".join(f"{k} {v:8.2f}" for k, v in row.items()))
    print(f"  idle     {100 * idle:.3f} % of a core")


if __name__ == "__main__":
    main()
