"""The pipelines of ``pictures.py`` beside the same ones in Halide, as its autoschedulers schedule them.

    python -m benchmarks.halide_apps                              all, one thread and two
    python -m benchmarks.halide_apps harris blur --threads 1      some
    python -m benchmarks.halide_apps --height 480 --width 640     another size

In: PyPI's ``halide`` (``pip install halide``). Out: a table: best time of either, in turn in one process; Halide's time
over ours; the largest difference of the results by the largest number; seconds of compiling either. Last the geometric
mean over pipelines of Halide's faster scheduler over ours.
Not its business: the pipelines, right answers at other sizes (``tests/language/test_pictures.py``).

Each pair of pipeline and scheduler is a process of its own, since Halide reads its number of threads once, and a
scheduler that searches for longer than ``--limit`` seconds is ended and left out. Both compile for the size alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from benchmarks.interleaved import best_times, geometric_mean
from benchmarks.pictures import PIPELINES, arguments

import tilewright as tw
from tilewright.core.expr import Sym
from tilewright.core.types import Array

SIZE = 1536, 2560
"""Rows and columns of Halide's own pictures for these apps."""
PRODUCT = 1024, 1024
SCHEDULERS = ("Mullapudi2016", "Adams2019")
"""Those that ship with the package and schedule for CPUs; Li2018 is for gradients, Anderson2021 for GPUs."""


@dataclass(frozen=True)
class Row:
    """Seconds of a call, and of compiling; ``apart``: the largest difference by the largest number."""

    name: str
    scheduler: str
    threads: int
    ours: float
    halide: float
    apart: float
    compiling: float
    halide_compiling: float

    @property
    def ratio(self) -> float:
        return self.halide / self.ours

    def __str__(self) -> str:
        times = f"{self.ours * 1e3:9.3f} ms {self.halide * 1e3:9.3f} ms {self.ratio:6.2f} {self.apart:8.1e}"
        compiling = f"{self.compiling:5.1f} s {self.halide_compiling:5.1f} s"
        return f"{self.threads} {self.name:16} {self.scheduler:14} {times} {compiling}"


def compiled(name: str, arrays: Sequence[Array], threads: int) -> tw.Model:
    """Our pipeline for arrays of these sizes."""
    kernel = PIPELINES[name]
    types = [p.annotation for p in kernel.signature.parameters.values()]
    fixed = {
        d.name: n
        for t, array in zip(types, arrays, strict=True)
        for d, n in zip(t.shape, array.shape, strict=True)
        if isinstance(d, Sym)
    }
    return tw.compile(kernel.graph(), fix_dims=fixed, threads=threads, cache=False)


def measured(name: str, scheduler: str, threads: int, size: tuple[int, int], seconds: float) -> Row:
    """Both in turn in this process, whose ``HL_NUM_THREADS`` says as many threads to Halide."""
    from benchmarks.halide_pipelines import HalideCall

    arrays = arguments(name, *size)
    start = time.perf_counter()
    model = compiled(name, arrays, threads)
    between = time.perf_counter()
    theirs = HalideCall(name, *size, scheduler, threads)
    end = time.perf_counter()
    theirs.set(*arrays)
    want, got = (np.asarray(x, np.float64) for x in (theirs(), model(*arrays)))
    ours, halide = best_times([lambda: model(*arrays), theirs], seconds)
    apart = float(np.abs(want - got).max() / np.abs(want).max())
    return Row(name, scheduler, threads, ours, halide, apart, between - start, end - between)


def measured_apart(name: str, scheduler: str, threads: int, args: Any) -> Row | None:
    """:func:`measured` in a process of its own; None where it takes too long."""
    command = ["env", f"HL_NUM_THREADS={threads}", sys.executable, "-m", "benchmarks.halide_apps", name, "--alone"]
    size = PRODUCT if name == "matmul" else (args.height, args.width)
    command += [scheduler, "--threads", str(threads), "--seconds", str(args.seconds)]
    command += ["--height", str(size[0]), "--width", str(size[1])]
    try:
        made = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=args.limit, check=True)
    except subprocess.TimeoutExpired:
        print(f"{threads} {name:16} {scheduler:14} no schedule within {args.limit:.0f} s", flush=True)
        return None
    return Row(**json.loads(made.stdout.splitlines()[-1]))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipelines", nargs="*", help="their names; without one all")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--height", type=int, default=SIZE[0])
    parser.add_argument("--width", type=int, default=SIZE[1])
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring for each pair, at least three rounds")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds until a pair is given up")
    parser.add_argument("--schedulers", nargs="*", default=SCHEDULERS)
    parser.add_argument("--alone", metavar="SCHEDULER", help="measure in this process, and print JSON")
    args: Any = parser.parse_args(argv)
    if args.alone:
        size = args.height, args.width
        print(json.dumps(asdict(measured(args.pipelines[0], args.alone, args.threads[0], size, args.seconds))))
        return
    for threads in args.threads:
        best: dict[str, float] = {}
        for name in args.pipelines or PIPELINES:
            for scheduler in args.schedulers:
                row = measured_apart(name, scheduler, threads, args)
                if row is not None:
                    print(row, flush=True)
                    best[name] = min(best.get(name, row.ratio), row.ratio)
        mean = geometric_mean(list(best.values()))
        print(f"geometric mean of Halide / ours, {threads} threads: {mean:.2f} over {len(best)} pipelines", flush=True)


if __name__ == "__main__":
    main()
