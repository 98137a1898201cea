"""Kernels on a GPU beside its own limits and beside PyTorch: ``python -m benchmarks.gpu``.

In: a GPU. Out: a row for each kernel (``gpu_cases``): the time of a replayed call, its share of the bandwidth of a copy
of as many bytes in the same run, multiply-adds per second, and where there is PyTorch with CUDA, how many times as long
that takes, eager and, with ``--inductor``, compiled. Not its business: whether results are right (``make test-gpu``).

Times are the host's clock around many replays of recorded calls on arrays that stay on the GPU, medians of several
rounds, after a warm-up. PyTorch's calls are recorded too. Without ``--inductor`` it takes under a minute.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.gpu_cases import Case, cases

from tilewright.build import driver as compiler
from tilewright.runtime.cuda.driver import CudaDriver, Driver
from tilewright.runtime.cuda.errors import NoGpuError
from tilewright.runtime.cuda.model import GpuModel
from tilewright.target.gpu import Gpu

ROUNDS, CALLS = 5, 10
COPIED_BYTES = 256 << 20
"""More than any cache of a GPU holds."""


def seconds_of(call: Callable[[], object], wait: Callable[[], object]) -> float:
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


def copy_seconds(cuda: Driver, n_bytes: int) -> float:
    """How long a copy within the GPU's memory takes that reads and writes so many bytes, half of them each."""
    stream, source, target = cuda.new_stream(), cuda.allocate(n_bytes // 2), cuda.allocate(n_bytes // 2)
    seconds = seconds_of(lambda: cuda.on_device(target, source, n_bytes // 2, stream), lambda: cuda.wait(stream))
    cuda.free(source)
    cuda.free(target)
    return seconds


def kernel_seconds(model: GpuModel, inputs: list[Any]) -> float:
    """Of a program on arrays that stay where they are: what a replay takes, without copies from and to the host."""
    result = model(*inputs)
    again = model.repeat_last
    again()
    seconds = seconds_of(again, model.wait)
    del result  # until here it is what the replays write to
    return seconds


def torch_seconds(torch: Any, call: Callable[[], Any]) -> float:
    """What PyTorch takes for the same, recorded too."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return seconds_of(graph.replay, torch.cuda.synchronize)


def _torch() -> Any:
    """PyTorch where it has a GPU, else None."""
    try:
        import torch
    except ImportError:
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch if torch.cuda.is_available() else None


def _inputs(case: Case, torch: Any) -> list[Any]:
    """Random numbers: where PyTorch has a GPU, tensors on it."""
    if torch is not None:
        torch.manual_seed(0)
        kind = getattr(torch, {"f32": "float32", "bf16": "bfloat16"}[case.dtype.name])
        return [torch.randn(s, device="cuda", dtype=kind) for s in case.shapes]
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(case.dtype.numpy) for s in case.shapes]


def _row(case: Case, cuda: Driver, target: str, torch: Any, *, inductor: bool) -> str:
    copied = copy_seconds(cuda, case.n_bytes)
    compiled = compiler.compile_graph(case.graph(), target=target)
    model = GpuModel(compiled.manifest, compiled.code, compiled._weights, cuda)
    inputs = _inputs(case, torch)
    seconds = kernel_seconds(model, inputs)
    share = copied / seconds
    fmas = f"{case.n_fmas / seconds / 1e9:.0f}" if case.n_fmas else ""
    others = ["", ""]
    if torch is not None:
        others[0] = f"{torch_seconds(torch, lambda: case.eager(torch, *inputs)) / seconds:.2f}"
        if inductor:
            made = torch.compile(lambda *xs: case.eager(torch, *xs), dynamic=False)
            others[1] = f"{torch_seconds(torch, lambda: made(*inputs)) / seconds:.2f}"
            torch.compiler.reset()
    model.close()
    return f"| {case.name} | {seconds * 1e6:.1f} | {share:.2f} | {fmas} | {others[0]} | {others[1]} |"


def main(
    open_driver: Callable[[], Driver] = CudaDriver, target: str = "", scale: int = 1, only: str = "", *,
    inductor: bool = False,
) -> int:  # fmt: skip
    """Print a row for each kernel whose name holds ``only``; 1 where there is no GPU."""
    try:
        cuda = open_driver()
    except NoGpuError as error:
        print(error)
        return 1
    torch = _torch()
    cuda.enter(0)
    facts = cuda.facts(0)
    gpu = Gpu.parse(target or "cuda")
    rate = COPIED_BYTES // scale / copy_seconds(cuda, COPIED_BYTES // scale)
    print(f"{facts.name}, compute capability {'.'.join(map(str, facts.capability))}, code for {gpu.arch}")
    print(f"a copy moves {rate / 1e9:.0f} GB/s\n")
    print("| kernel | us | copy / kernel | GFMA/s | eager / kernel | inductor / kernel |\n|---|---|---|---|---|---|")
    for case in cases(scale):
        if only in case.name:
            print(_row(case, cuda, gpu.name, torch, inductor=inductor), flush=True)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="", help="cuda-sm90a, ...: code of one generation; else what all run")
    parser.add_argument("--only", default="", help="kernels whose names hold this")
    parser.add_argument("--inductor", action="store_true", help="beside PyTorch's compiler too")
    given = parser.parse_args()
    raise SystemExit(main(target=given.target, only=given.only, inductor=given.inductor))
