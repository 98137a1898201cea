"""Kernels on a GPU beside its own limits: ``python -m benchmarks.gpu``.

In: a GPU. Out: a row for each kernel: time of a replayed call, its share of the bandwidth of a copy that the same run
measures, and multiply-adds per second. Not its business: results (``make test-gpu``).

It has not met a GPU yet. Times are the host's clock around many replays on arrays that stay on the GPU, medians of
several rounds, after a warm-up. It takes under a minute.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.build import driver as compiler
from tilewright.core.graph import Graph, Node, Pool
from tilewright.core.types import TensorType, f32
from tilewright.runtime.cuda.driver import CudaDriver, Driver
from tilewright.runtime.cuda.errors import NoGpuError
from tilewright.runtime.cuda.model import GpuModel
from tilewright.target.gpu import Gpu

ROUNDS, CALLS = 7, 20
COPIED_BYTES = 256 << 20
"""More than any cache of a GPU holds."""


@dataclass(frozen=True)
class Case:
    """A graph of one op on inputs of these shapes; ``n_bytes`` it must move, ``n_fmas`` it must do."""

    name: str
    build: Callable[[Pool, Sequence[Node]], Node]
    shapes: tuple[tuple[int, ...], ...]
    n_bytes: int
    n_fmas: int = 0

    def graph(self) -> Graph:
        """The graph, of f32."""
        pool = Pool()
        inputs = tuple(pool.input(f"x{k}", TensorType(f32, s)) for k, s in enumerate(self.shapes))
        return Graph("case", pool, inputs, (self.build(pool, inputs),), ("y",))


def cases(scale: int) -> list[Case]:
    """Kernels at a size; ``scale`` 1 fills a large GPU."""
    rows, n = 16384 // scale, 4096 // scale
    wide = (rows, 4096 // scale)
    moved = 2 * 4 * wide[0] * wide[1]
    return [
        Case("exp", lambda p, x: p.add(ops.exp, x, {}), (wide,), moved),
        Case("softmax", lambda p, x: p.add(ops.softmax, x, {"axis": 1}), (wide,), moved),
        Case("add", lambda p, x: p.add(ops.add, x, {}), (wide, wide), moved * 3 // 2),
        Case("matmul", lambda p, x: p.add(ops.matmul, x, {"out_dtype": None}), ((n, n), (n, n)), 12 * n * n, n**3),
    ]


def seconds_of(call: Callable[[], None], wait: Callable[[], None]) -> float:
    """The median time of a call, of several rounds of many."""
    found = []
    for _ in range(ROUNDS):
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        wait()
        found.append((time.perf_counter() - start) / CALLS)
    return statistics.median(found)


def copy_bytes_per_s(cuda: Driver, n_bytes: int) -> float:
    """What a copy within the GPU's memory reads and writes in a second."""
    stream, source, target = cuda.new_stream(), cuda.allocate(n_bytes), cuda.allocate(n_bytes)
    seconds = seconds_of(lambda: cuda.on_device(target, source, n_bytes, stream), lambda: cuda.wait(stream))
    cuda.free(source)
    cuda.free(target)
    return 2 * n_bytes / seconds


def kernel_seconds(model: GpuModel, shapes: Sequence[tuple[int, ...]]) -> float:
    """Of a program on arrays that stay where they are: what a replay takes, without copies from and to the host."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    model(*arrays)  # the arrays lie in the model's own memory now
    again = model.repeat_last
    again()
    return seconds_of(again, model.wait)


def main(open_driver: Callable[[], Driver] = CudaDriver, target: str = "", scale: int = 1) -> int:
    """Print a row for each kernel; 1 where there is no GPU."""
    try:
        cuda = open_driver()
    except NoGpuError as error:
        print(error)
        return 1
    cuda.enter(0)
    facts = cuda.facts(0)
    gpu = Gpu.parse(target or "cuda")
    rate = copy_bytes_per_s(cuda, COPIED_BYTES // scale)
    print(f"{facts.name}, compute capability {'.'.join(map(str, facts.capability))}, code for {gpu.arch}")
    print(
        f"a copy moves {rate / 1e9:.0f} GB/s\n\n| kernel | us | of the copy's bandwidth | GFMA/s |\n|---|---|---|---|"
    )
    for case in cases(scale):
        compiled = compiler.compile_graph(case.graph(), target=gpu.name)
        model = GpuModel(compiled.manifest, compiled.code, compiled._weights, cuda)
        seconds = kernel_seconds(model, case.shapes)
        share = case.n_bytes / seconds / rate
        fmas = f"{case.n_fmas / seconds / 1e9:.0f}" if case.n_fmas else ""
        print(f"| {case.name} | {seconds * 1e6:.1f} | {share:.2f} | {fmas} |")
        model.close()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="", help="cuda-sm90a, ...: code of one generation; else what all run")
    raise SystemExit(main(target=parser.parse_args().target))
