"""Nets that are not in the zoo beside ONNX Runtime and OpenVINO: nothing was tuned by looking at them.

    python -m benchmarks.other_nets                           every net, 1 thread, fp32
    python -m benchmarks.other_nets swin crnn -t 2            some, 2 threads
    python -m benchmarks.other_nets --precision bf16          beside OpenVINO in bf16 (ONNX Runtime has none)

In: nothing. Out: a line for every net: our milliseconds, each engine's time over ours, the largest difference of our
outputs from ONNX Runtime's in fp32 by the largest output, seconds of compiling. All engines read the same ONNX file and
are called in turn in one process, each for a while; the shortest call of each counts.
Not its business: other engines and medians (``benchmarks/latency.py``), what the nets are (``other_nets_*.py``).
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks import (
    other_nets_misc,
    other_nets_more,
    other_nets_sizes,
    other_nets_unseen,
    other_nets_unseen_misc,
    other_nets_unseen_vision,
    other_nets_vision,
)
from benchmarks.engines import BOTH, ENGINES, Task, make_runner
from benchmarks.interleaved import Tensors, best_times, geometric_mean

import tilewright

NETS = (
    other_nets_vision.NETS
    | other_nets_misc.NETS
    | other_nets_more.NETS
    | other_nets_sizes.NETS
    | other_nets_unseen_vision.NETS
    | other_nets_unseen.NETS
    | other_nets_unseen_misc.NETS
)
PEERS = ("onnxruntime", "openvino")
TURN = 0.15
"""Seconds of one engine's turn: threads that spin after a call have gone to sleep when most of the next are timed.

On a busy machine a thread that slept wakes beside the caller's, and tens of milliseconds pass until Linux moves it.
"""


def measure(
    module: torch.nn.Module, inputs: Tensors, path: Path, threads: int, precision: str, seconds: float
) -> tuple[float, dict[str, float], float, float]:
    """Our seconds, each peer's, the difference of outputs by the largest one, our seconds of compiling."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, str(path), dynamo=True, verbose=False)
    arrays: list[Any] = [x.numpy() for x in inputs]
    np.savez(path.with_suffix(".npz"), *arrays)
    start = time.perf_counter()
    model = tilewright.compile(path, threads=threads, precision=precision, cache=False)
    took = time.perf_counter() - start
    want = make_runner("onnxruntime", Task(path, path.stem, False, threads, "fp32"))()
    got = model(*arrays)
    got = got if isinstance(got, tuple | list) else [got]
    error = max(float(abs(a - b).max() / max(abs(b).max(), 1e-9)) for a, b in zip(got, want, strict=True))
    task = Task(path, path.stem, False, threads, precision)
    peers = {name: make_runner(name, task) for name in PEERS if ENGINES[name].unfit(task) is None}
    ours, *theirs = best_times([lambda: model(*arrays), *peers.values()], seconds, TURN)
    return ours, dict(zip(peers, theirs, strict=True)), error, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nets", nargs="*", help="names of nets (default: all)")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--precision", choices=BOTH, default="fp32")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each net")
    a = parser.parse_args()
    if unknown := set(a.nets) - NETS.keys():
        parser.error(f"no net {', '.join(sorted(unknown))}; there are {', '.join(NETS)}")
    np.random.seed(0)
    torch.set_num_threads(a.threads)
    ratios: list[float] = []
    titles = "".join(f" {ENGINES[name].title + ' / ours':>20}" for name in PEERS)
    print(f"{'net':<24} {'ms':>9}{titles} {'difference':>11} {'compile s':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for name in a.nets or NETS:
            torch.manual_seed(0)
            with torch.no_grad():
                module, inputs = NETS[name]()
            path = Path(folder, f"{name}.onnx")
            try:
                ours, peers, error, took = measure(module.eval(), inputs, path, a.threads, a.precision, a.seconds)
            except Exception as e:
                print(f"{name:<24} fails: {type(e).__name__}: {str(e).splitlines()[0]}", flush=True)
                continue
            ratios.append(min(peers.values()) / ours)
            mark = " <- slower" if ratios[-1] < 1 else ""
            cells = "".join(f" {peers[p] / ours:20.2f}" if p in peers else f" {'-':>20}" for p in PEERS)
            print(f"{name:<24} {ours * 1e3:9.3f}{cells} {error:11.1e} {took:10.2f}{mark}", flush=True)
    least = min(ratios, default=float("nan"))
    print(f"best peer / ours: geometric mean {geometric_mean(ratios):.2f}, least {least:.2f}")


if __name__ == "__main__":
    main()
