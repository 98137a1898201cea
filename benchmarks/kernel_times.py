"""Kernels of random layers, each by several schedules, timed alone: what a price is fitted to and judged by.

    python -m benchmarks.kernel_times --seed 1 --seconds 600 -o benchmarks/measured/znver3.jsonl.xz
    python -m benchmarks.kernel_times convolution pool --seed 2 --seconds 60 -t 2 -o more.jsonl.xz
    python -m benchmarks.kernel_times --target haswell --seed 3 -o avx2.jsonl.xz   code of an older CPU, on this one

In: nothing. Out: a compressed file with a line for each kernel: its layer, and for each candidate how it came about,
the tile IR's text and the shortest seconds of a call. The first line has the machine's numbers, measured in that run.
Candidates of a kernel are called in turn, so that what else runs on the machine touches all of them alike.
Not its business: whole nets (``benchmarks.latency``), what follows (``benchmarks.fit_price``, ``benchmarks.regret``).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import lzma
import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.kernels import aligned, numbers
from benchmarks.random_layers import FAMILIES, drawn

from tilewright.build.kernels import optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.choose.candidates import ScheduleCandidate, candidates
from tilewright.codegen.cpu.calibrate import calibrate
from tilewright.codegen.cpu.llvm import compile_text, emit
from tilewright.codegen.cpu.scratch import start_of
from tilewright.codegen.errors import CodegenError
from tilewright.core.compute import Value
from tilewright.core.graph import Graph
from tilewright.frontend.torch.export import import_module
from tilewright.partition.computation import GroupComputation
from tilewright.runtime.cpu.linker import link
from tilewright.target.target import Target
from tilewright.tile.ir import Fold, Kernel, Role, Space, Store, Update, walk
from tilewright.tile.pack import packed_array
from tilewright.tile.rewrite import loads_of
from tilewright.tile.text import kernel_text

TURN_SECONDS = 1e-3
"""Of one candidate's turn: short beside what disturbs a machine, long beside a clock's resolution."""
ROUNDS = 15
MOST_SECONDS = 0.01
"""Kernels that take longer are left out: the others' time is better spent."""
HOPELESS = 20.0
"""Candidates that take so many times the default one's time are left out, too."""
MOST_BYTES = 512 << 20


def callable_of(kernel: Kernel, target: Target, threads: int, arrays: dict[str, Any]) -> Callable[[], None]:
    """A call of the kernel's machine code on random numbers; ``arrays`` has what inputs hold, and gets the rest."""
    made = emit(kernel, target)
    library = link([compile_text(made.text, target)], [kernel.name])
    rng = np.random.default_rng(0)
    packed = {p.param: p for p in kernel.packed}
    given: list[Any] = []
    for place in (p for p in kernel.places if p.space is Space.GLOBAL):
        b = place.buffer
        source = packed[b].source if b in packed else b
        if place.role in (Role.OUT, Role.TMP):  # candidates call temporaries alike that have other shapes
            given.append(aligned(numbers(rng, b)))
            continue
        if source.name not in arrays:
            arrays[source.name] = numbers(rng, source)
        given.append(aligned(packed_array(packed[b], arrays[source.name]) if b in packed else arrays[source.name]))
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(given), ctypes.c_int32, ctypes.c_void_p)
    function: Any = signature(library.addresses[kernel.name])
    scratch = aligned(np.zeros(made.scratch.n_bytes(threads), np.uint8))
    pointers = [a.ctypes.data for a in given]
    at = scratch.ctypes.data + start_of(made.scratch, threads)
    keep = (library, given, scratch)

    def call() -> None:
        assert keep
        function(*pointers, threads, at)

    return call


def shortest(calls: list[Callable[[], None]], rounds: int = ROUNDS) -> list[float]:
    """Shortest seconds of each call, in turns."""
    counts, best = [], []
    for call in calls:
        once = seconds_of(call)
        counts.append(max(int(TURN_SECONDS / max(once, 1e-7)), 1))
        best.append(once)
    for _ in range(rounds):
        for k, (call, n) in enumerate(zip(calls, counts, strict=True)):
            start = time.perf_counter()
            for _ in range(n):
                call()
            best[k] = min(best[k], (time.perf_counter() - start) / n)
    return best


def kernels_of(graph: Graph, options: Options) -> Iterator[GroupComputation]:
    """The computations of a graph's kernels, those of fixed sizes whose indices no data decide."""
    made = optimise_and_split(graph, options, options.machine, Clock()).kernels
    for name, kernel in made.kernels.items():
        n_bytes = sum(int(np.prod([int(str(d)) for d in b.shape] or [1])) * b.dtype.n_bytes for b in kernel.params)
        if not kernel.sizes and n_bytes < MOST_BYTES and not is_led_by_data(kernel):
            yield made.groups[name]


def is_led_by_data(kernel: Kernel) -> bool:
    """Do places that the kernel touches follow from its data? Random numbers would lead it astray."""
    accesses = [s.index for s in walk(kernel.body) if isinstance(s, Store | Update | Fold)]
    accesses += [x.index for s in walk(kernel.body) for x in loads_of(s)]
    return any(isinstance(i, Value) for index in accesses for i in index)


def measured(
    made: GroupComputation, target: Target, threads: int, empty: Nothing
) -> list[tuple[ScheduleCandidate, float]]:
    """The candidates of a computation with their times; those that LLVM takes no code for are left out."""
    arrays: dict[str, Any] = {}
    found: list[tuple[ScheduleCandidate, Callable[[], None]]] = []
    for c in candidates(made.computation, target, made.constants, "row"):
        try:
            found.append((c, callable_of(c.scheduled.kernel, target, threads, arrays)))
        except CodegenError:
            continue
    if not found:
        return []
    once = [seconds_of(call) for _, call in found]
    if once[0] > MOST_SECONDS:
        return []
    found = [pair for pair, t in zip(found, once, strict=True) if t < HOPELESS * once[0]]
    n_pointers = [len(c.scheduled.kernel.params) for c, _ in found]
    times = shortest([*(call for _, call in found), *map(empty.call, n_pointers)])
    own, calls = times[: len(found)], times[len(found) :]
    return [(c, max(t - call, 1e-9)) for (c, _), t, call in zip(found, own, calls, strict=True)]


def seconds_of(call: Callable[[], None]) -> float:
    """Seconds of the shorter of two calls."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


class Nothing:
    """Calls from Python that do nothing, with as many arguments as a kernel takes: to be taken off its times."""

    def __init__(self, target: Target) -> None:
        text = f'target triple = "{target.triple}"\ndefine void @nothing() {{\n  ret void\n}}\n'
        self.library = link([compile_text(text, target)], ["nothing"])

    def call(self, n_pointers: int) -> Callable[[], None]:
        """A call that looks as a kernel's does; who is called does not look at what it gets."""
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_pointers, ctypes.c_int32, ctypes.c_void_p)
        function: Any = signature(self.library.addresses["nothing"])
        pointers = [ctypes.addressof(ctypes.c_int64())] * n_pointers
        return lambda: function(*pointers, 1, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", help=f"of {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--target", default="native", help="a CPU whose code this one runs")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    a = parser.parse_args()
    options = Options(precision=a.precision, target=a.target)
    target = options.machine
    empty, seen = Nothing(target), set[str]()
    with lzma.open(a.output, "wt") as file:
        head = {"cpu": target.cpu, "threads": a.threads, "seed": a.seed, "numbers": calibrate(Target.host())}
        print(json.dumps(head), file=file)
        n = 0
        for family, (label, module, inputs) in drawn(a.families or list(FAMILIES), a.seed, a.seconds):
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph = import_module(module.eval(), inputs)
            for made in kernels_of(graph, options):
                if made.text in seen:
                    continue
                seen.add(made.text)
                rows = [
                    {"made": c.made, "seconds": t, "kernel": kernel_text(c.scheduled.kernel)}
                    for c, t in measured(made, target, a.threads, empty)
                ]
                if rows:
                    print(json.dumps({"family": family, "layer": label, "candidates": rows}), file=file)
                    n += len(rows)
        print(f"{len(seen)} kernels, {n} candidates")


if __name__ == "__main__":
    random.seed(0)
    main()
