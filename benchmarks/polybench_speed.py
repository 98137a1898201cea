"""The programs of PolyBench at the suite's own sizes, beside what a C compiler makes of them, one thread.

    python -m benchmarks.polybench_speed                   all thirty, medium sizes
    python -m benchmarks.polybench_speed lu adi --large    programs by name, large sizes
    python -m benchmarks.polybench_speed lu --symbolic     with sizes that only the call knows

In: ``polybench.c``, a C compiler called ``gcc``. Out: a table: best time of either, in turn in one process; the ratio;
the largest difference relative to the largest number; seconds of compiling ours. The C code has its sizes as numbers,
and works in place; ours copies its arguments and makes its results anew, which counts.
Not its business: right answers at other sizes (``tests/language/test_polybench.py``).
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.interleaved import geometric_mean
from benchmarks.polybench import PROGRAMS, arguments

import tilewright as tw
from tilewright.core.expr import Sym
from tilewright.core.types import Array

FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-lm")
SOURCE = Path(__file__).with_name("polybench.c")
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Sized:
    """The suite's medium and large sizes of a program, and which arguments of the C function our results are."""

    medium: Sizes
    large: Sizes
    results: tuple[int, ...] = (0,)

    within: str = ""
    """A size: what lies beyond it along any axis is what rounding makes of zero, and is not compared."""


def _sized(
    names: str, medium: Sequence[int], large: Sequence[int], results: tuple[int, ...] = (0,),
    within: str = "",
) -> Sized:  # fmt: skip
    return Sized(*(dict(zip(names.split(), x, strict=True)) for x in (medium, large)), results, within)


SIZED: Mapping[str, Sized] = {
    "gemm": _sized("m n k", (200, 220, 240), (1000, 1100, 1200)),
    "2mm": _sized("i j k l", (180, 190, 210, 220), (800, 900, 1100, 1200), (3,)),
    "3mm": _sized("i j k l m", (180, 190, 200, 210, 220), (800, 900, 1000, 1100, 1200), (4,)),
    "doitgen": _sized("r q p", (50, 40, 60), (150, 140, 160)),
    "symm": _sized("m n", (200, 240), (1000, 1200)),
    "syrk": _sized("m n", (200, 240), (1000, 1200)),
    "syr2k": _sized("m n", (200, 240), (1000, 1200)),
    "trmm": _sized("m n", (200, 240), (1000, 1200), (1,)),
    "atax": _sized("m n", (390, 410), (1900, 2100), (2,)),
    "bicg": _sized("m n", (390, 410), (1900, 2100), (3, 4)),
    "mvt": _sized("n", (400,), (2000,), (1, 2)),
    "gesummv": _sized("n", (250,), (1300,), (3,)),
    "gemver": _sized("n", (400,), (2000,), (0, 7, 8)),
    "cholesky": _sized("n", (400,), (2000,)),
    "lu": _sized("n", (400,), (2000,)),
    "ludcmp": _sized("n", (400,), (2000,), (2,)),
    "trisolv": _sized("n", (400,), (2000,), (2,)),
    "durbin": _sized("n", (400,), (2000,), (1,)),
    "gramschmidt": _sized("m n", (200, 240), (1000, 1200), (1, 2), "m"),
    "covariance": _sized("m n", (240, 260), (1200, 1400), (1,)),
    "correlation": _sized("m n", (240, 260), (1200, 1400), (1,)),
    "floyd-warshall": _sized("n", (500,), (2800,)),
    "nussinov": _sized("n", (500,), (2500,), (1,)),
    "deriche": _sized("w h", (720, 480), (4096, 2160), (1,)),
    "jacobi-1d": _sized("steps n", (100, 400), (500, 2000)),
    "jacobi-2d": _sized("steps n", (100, 250), (500, 1300)),
    "seidel-2d": _sized("steps n", (100, 400), (500, 2000)),
    "heat-3d": _sized("steps n", (100, 40), (500, 120)),
    "fdtd-2d": _sized("t n m", (100, 200, 240), (500, 1000, 1200), (0, 1, 2)),
    "adi": _sized("steps n", (100, 200), (500, 1000)),
}


def by_gcc(name: str, sizes: Sizes, folder: Path) -> Callable[..., None]:
    """The C program for these sizes."""
    made = folder / f"{name}.so"
    defined = [f"-DPROGRAM_{name.replace('-', '_')}", *(f"-DN_{k}={v}" for k, v in sizes.items())]
    subprocess.run(["gcc", *defined, str(SOURCE), "-o", str(made), *FLAGS], check=True)
    run = ctypes.CDLL(str(made)).run
    run.restype = None
    return lambda *arrays: run(*(ctypes.c_void_p(x.ctypes.data) for x in arrays))


def compiled(name: str, sizes: Sizes, *, is_symbolic: bool = False) -> tw.Model:
    """Our program, whose number of time steps is a constant of it."""
    kernel = PROGRAMS[name].kernel
    steps = {p: sizes[p] for p in kernel.signature.parameters if p == "steps"}
    graph = kernel.graph(**steps)
    fixed = {} if is_symbolic else {k: v for k, v in sizes.items() if k not in steps}
    return tw.compile(graph, fix_dims=fixed, threads=1, cache=False)


def shapes_of(name: str, sizes: Sizes) -> list[tuple[int, ...]]:
    """Of the arguments."""
    types = [p.annotation for p in PROGRAMS[name].kernel.signature.parameters.values()]
    dims = [t.shape for t in types if hasattr(t, "shape")]
    return [tuple(sizes[d.name] if isinstance(d, Sym) else d for d in shape) for shape in dims]


@dataclass(frozen=True)
class Row:
    """Seconds of a call, and of compiling ours; ``apart``: the largest difference by the largest number."""

    name: str
    ours: float
    gcc: float
    apart: float
    compiling: float

    @property
    def ratio(self) -> float:
        return self.gcc / self.ours

    def __str__(self) -> str:
        times = f"{self.ours * 1e3:10.3f} ms {self.gcc * 1e3:10.3f} ms"
        return f"{self.name:16} {times} {self.ratio:7.2f} {self.apart:9.1e} {self.compiling:6.1f} s"


def measured(name: str, sizes: Sizes, seconds: float, folder: Path, *, is_symbolic: bool) -> Row:
    """Both programs in turn, each on fresh arguments, for about so many seconds and at least twice."""
    start = time.perf_counter()
    model = compiled(name, sizes, is_symbolic=is_symbolic)
    compiling = time.perf_counter() - start
    c, given = by_gcc(name, sizes, folder), arguments(name, shapes_of(name, sizes))
    made = model(*given)
    ours = made if isinstance(made, tuple) else (made,)
    best, theirs, n_rounds = [float("inf")] * 2, [], 0
    end = time.perf_counter() + seconds
    while n_rounds < 2 or time.perf_counter() < end:
        n_rounds += 1
        passed = [x.copy() for x in given]
        behind = [x for x, k in zip(ours, SIZED[name].results, strict=True) if k >= len(given)]
        theirs = [*passed, *map(np.zeros_like, behind)]
        for k, call in enumerate((lambda: model(*given), lambda theirs=theirs: c(*theirs))):
            begin = time.perf_counter()
            call()
            best[k] = min(best[k], time.perf_counter() - begin)
    pairs = zip(ours, (theirs[k] for k in SIZED[name].results), strict=True)
    apart = max(_apart(x, y, sizes.get(SIZED[name].within)) for x, y in pairs)
    return Row(name, *best, apart, compiling)


def _apart(x: Array, y: Array, within: int | None) -> float:
    """The largest difference, by the largest number."""
    x, y = (z[tuple(slice(within) for _ in z.shape)] for z in (x, y))
    return float(np.abs(x - y).max() / max(np.abs(y).max(), np.finfo(float).tiny))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="their names; without one all")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--symbolic", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each program, at least two rounds")
    args: Any = parser.parse_args(argv)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.programs or SIZED:
            sizes = SIZED[name].large if args.large else SIZED[name].medium
            rows.append(measured(name, sizes, args.seconds, Path(folder), is_symbolic=args.symbolic))
            print(rows[-1], flush=True)
    print(f"geometric mean of gcc / ours: {geometric_mean([r.ratio for r in rows]):.2f} over {len(rows)} programs")


if __name__ == "__main__":
    main()
