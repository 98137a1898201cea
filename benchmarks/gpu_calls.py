"""What a call of many small kernels costs on a GPU: ``python -m benchmarks.gpu_calls``.

In: a GPU. Out: a row for each number of kernels: a call whose kernels are launched one by one, the same call recorded
and replayed as one, and where PyTorch has CUDA, eager PyTorch's and its recorded graph's beside them.
Not its business: kernels that take long (``benchmarks.gpu``).

The kernels are softmaxes along rows and columns by turns, which can't be fused, of so few elements that the time is
that of getting them going. Times are medians of several rounds, each of many calls that are waited for once. It takes
under a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from benchmarks.gpu import seconds_of

from tilewright import ops
from tilewright.build import driver as compiler
from tilewright.core.graph import Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.runtime.cuda.driver import CudaDriver, Driver
from tilewright.runtime.cuda.errors import NoGpuError
from tilewright.runtime.cuda.model import GpuModel

SIZE = 64
COUNTS = (1, 10, 100)


def chain(n: int) -> Graph:
    """``n`` softmaxes of a matrix of ``SIZE`` by ``SIZE``, each along the other axis than the one before it."""
    pool = Pool()
    x = y = pool.input("x", TensorType(f32, (SIZE, SIZE)))
    for k in range(n):
        y = pool.add(ops.softmax, (y,), {"axis": k % 2})
    return Graph("chain", pool, (x,), (y,), ("y",))


def seconds_of_ours(cuda: Driver, n: int) -> tuple[int, float, float]:
    """How many kernels a chain became, and the time of a call: launched one by one, and replayed."""
    compiled = compiler.compile_graph(chain(n), target="cuda")
    model = GpuModel(compiled.manifest, compiled.code, compiled._weights, cuda)
    model(np.zeros((SIZE, SIZE), np.float32))
    again, program = model._last, model.code.program
    assert again is not None
    launched = seconds_of(lambda: again.program(program), model.wait)
    model.repeat_last()
    replayed = seconds_of(model.repeat_last, model.wait)
    model.close()
    return len(program.steps), launched, replayed


def seconds_of_pytorch(n: int) -> tuple[float, float] | None:
    """The time of a call by eager PyTorch, and by its recorded graph; None without PyTorch's CUDA."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    x = torch.zeros(SIZE, SIZE, device="cuda")

    def call() -> None:
        y = x
        for k in range(n):
            y = torch.softmax(y, k % 2)

    call()
    eager = seconds_of(call, torch.cuda.synchronize)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return eager, seconds_of(graph.replay, torch.cuda.synchronize)


def main(open_driver: Callable[[], Driver] = CudaDriver, counts: Sequence[int] = COUNTS) -> int:
    """Print a row for each number of softmaxes; 1 where there is no GPU."""
    try:
        cuda = open_driver()
    except NoGpuError as error:
        print(error)
        return 1
    cuda.enter(0)
    print("| kernels | launched us | replayed us | launched / replayed | PyTorch eager us | PyTorch's graph us |")
    print("|---|---|---|---|---|---|")
    for n in counts:
        kernels, launched, replayed = seconds_of_ours(cuda, n)
        theirs = seconds_of_pytorch(n)
        cuda.enter(0)
        shown = " | ".join(f"{1e6 * s:.1f}" for s in theirs) if theirs else " | "
        print(f"| {kernels} | {1e6 * launched:.1f} | {1e6 * replayed:.1f} | {launched / replayed:.1f} | {shown} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
