"""Whole nets on a GPU beside eager PyTorch and TorchInductor: ``python -m benchmarks.gpu_nets resnet50 -b 16``.

In: names of nets of the zoo, dtypes, batch sizes. Out: a row for each: the errors of eager and of our results against
eager in float64 on the same weights, relative to the largest output; milliseconds of a call of each engine, measured in
turn; with ``--kernels``, our kernels that take longest. Not its business: single kernels (``benchmarks.gpu``).

TF32 is off. A process for each net keeps one's failure, and its memory, from the others; ``--jobs`` of them compile
at one time, of which one measures, and ``--check`` leaves the timings out.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from benchmarks import zoo

from tilewright.integrations.torch_compile.backend import backend

NETS = (
    "resnet50", "bert_base", "gpt2", "gpt2_decode", "vit_b16", "unet", "llama", "llama_decode", "whisper_tiny_encoder",
)  # fmt: skip
"""Those that are shown without a choice."""
ROUNDS = 7
"""Rounds in which the engines take turns."""
ROUND_MS = 30.0
"""How long each engine is called in a round."""


def with_batch(model: zoo.ZooModel, batch: int) -> tuple[torch.Tensor, ...]:
    """The model's inputs for so many samples where the example has one; each sample is another."""
    torch.manual_seed(1)
    return tuple(_repeated(x, batch) if x.shape[:1] == (1,) else x for x in model.inputs)


def _repeated(x: torch.Tensor, batch: int) -> torch.Tensor:
    if x.is_floating_point():
        return torch.randn(batch, *x.shape[1:], dtype=x.dtype)
    return torch.cat([x.roll(k, -1) for k in range(batch)])


def to(value: Any, dtype: torch.dtype) -> Any:
    """The tensor on the GPU, of that dtype where it has a fraction."""
    return value.to("cuda", dtype) if value.is_floating_point() else value.cuda()


def flat(result: Any) -> list[torch.Tensor]:
    """A net's results as a list."""
    return list(result) if isinstance(result, tuple | list) else [result]


def error(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """The largest difference of any output, relative to the largest element of that output; infinite where none."""
    worst = 0.0
    for x, y in zip(got, want, strict=True):
        difference = (x.double() - y.double()).abs().max() / y.double().abs().max()
        worst = max(worst, float("inf") if difference.isnan() else difference.item())
    return worst


def times_in_turn(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The median milliseconds of each call on the GPU, of several rounds in which they take turns."""
    repeats = []
    for call in calls:
        call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        repeats.append(max(1, min(100, int(ROUND_MS / 1e3 / (time.perf_counter() - start)))))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for k, call in enumerate(calls):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeats[k]):
                call()
            torch.cuda.synchronize()
            found[k].append((time.perf_counter() - start) / repeats[k] * 1e3)
    return [statistics.median(x) for x in found]


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Hold the file's lock, so that of processes that compile at one time one measures."""
    with open(path or os.devnull, "w") as file:
        if path:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kernels(call: Callable[[], object]) -> list[tuple[str, int, float]]:
    """Names, counts and microseconds of the kernels of a call, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    events = [(e.key, e.count, e.device_time_total) for e in seen.key_averages()]
    return sorted(events, key=lambda e: -e[2])


def compiled(module: torch.nn.Module, engine: str) -> Any:
    """The module by an engine; ours refuses to leave a call to PyTorch."""
    if engine == "tilewright":
        return torch.compile(module, backend=backend, options={"fallback": False}, dynamic=False)
    return torch.compile(module, mode=engine.partition(":")[2] or None, dynamic=False)


def row(model: zoo.ZooModel, dtype_name: str, batch: int, given: argparse.Namespace) -> dict[str, Any]:
    """One net's figures."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    dtype = getattr(torch, dtype_name)
    module = copy.deepcopy(model.module).cuda().to(dtype)
    inputs = [to(x, dtype) for x in with_batch(model, batch)]
    found: dict[str, Any] = {"net": model.name, "dtype": dtype_name, "batch": batch}
    calls: dict[str, Callable[[], object]] = {}
    with torch.inference_mode():
        eager = flat(module(*inputs))
        want = [x.clone() for x in flat(module.double()(*[to(x, torch.float64) for x in inputs]))]
        module.to(dtype)
        found["eager_error"] = error(eager, want)
        calls["eager"] = partial(module, *inputs)
        for engine in given.engines:
            torch._dynamo.reset()
            made = compiled(module, engine)
            start = time.perf_counter()
            got = flat(made(*inputs))
            torch.cuda.synchronize()
            found[f"{engine}_compile_s"] = time.perf_counter() - start
            found[f"{engine}_error"] = error(got, want)
            for _ in range(3):
                made(*inputs)
            calls[engine] = partial(made, *inputs)
        if not given.check:
            with alone(given.lock):
                times = times_in_turn(list(calls.values()))
            found |= {f"{engine}_ms": ms for engine, ms in zip(calls, times, strict=True)}
        if given.kernels:
            seen = kernels(calls[given.engines[-1]])
            found["n_kernels"] = sum(n for _, n, _ in seen)
            found["kernels_us"] = sum(us for _, _, us in seen)
            found["kernels"] = seen[: given.kernels]
    return found


def shown(found: dict[str, Any]) -> str:
    """A row as text."""
    cells = [f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in found.items() if k != "kernels"]
    lines = [f"    {us:9.1f} us {n:4} x {name}" for name, n, us in found.get("kernels", ())]
    return "\n".join([" ".join(cells), *lines])


def here(given: argparse.Namespace) -> None:
    """The rows of one net in this process, each as soon as it is there."""
    model = zoo.build(given.nets[0], small=given.small)
    for dtype, batch in itertools.product(given.dtypes, given.batches):
        try:
            print(shown(row(model, dtype, batch, given)), flush=True)
        except Exception as error:
            first = str(error).strip().splitlines()[:6]
            print(f"{model.name} {dtype} batch {batch}: {type(error).__name__}", *first, sep="\n    ", flush=True)


def apart(name: str, arguments: Sequence[str], timeout_s: float) -> str:
    """Print the rows of a net by a process of its own; what there is to say of one that died, else nothing."""
    command = [sys.executable, "-m", "benchmarks.gpu_nets", name, "--here", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"{name}: longer than {timeout_s} s"
    return "\n".join([f"{name}: died", *errors.strip().splitlines()[-12:]]) if process.returncode else ""


def main() -> int:
    """Print a row for each net, dtype and batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=NETS)
    parser.add_argument("-d", "--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("-b", "--batches", nargs="*", type=int, default=[1, 16])
    parser.add_argument("-e", "--engines", nargs="*", default=["inductor", "tilewright"])
    parser.add_argument("--check", action="store_true", help="errors only")
    parser.add_argument("--small", action="store_true", help="the small form of each net")
    parser.add_argument("--kernels", type=int, default=0, help="how many of the last engine's kernels to show")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--lock", default="", help="a file that processes lock while they measure")
    parser.add_argument("--here", action="store_true", help="the first net alone, in this process")
    given = parser.parse_args()
    if given.here:
        here(given)
        return 0
    names = list(zoo.MODELS) if given.nets == ["all"] else given.nets
    with TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        options = [*[x for x in sys.argv[1:] if x not in given.nets], "--lock", str(Path(folder, "lock"))]
        for done in as_completed([pool.submit(apart, name, options, given.timeout) for name in names]):
            if said := done.result():
                print(said, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
