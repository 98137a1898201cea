"""Nets that are not in the zoo beside ONNX Runtime: nothing was tuned by looking at them.

    python -m benchmarks.other_nets                    every net, 1 thread
    python -m benchmarks.other_nets swin crnn -t 2     some, 2 threads

In: nothing. Out: a line for every net: our milliseconds, ONNX Runtime's time over ours, the largest difference of the
outputs by the largest output, seconds of compiling. Both engines read the same ONNX file and are called in turn in one
process; the shortest call of each counts.
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
import onnxruntime
import torch
from benchmarks import other_nets_misc, other_nets_vision
from benchmarks.interleaved import Tensors, best_times, geometric_mean

import tilewright

NETS = other_nets_vision.NETS | other_nets_misc.NETS


def measure(module: torch.nn.Module, inputs: Tensors, path: Path, threads: int, seconds: float) -> tuple[float, ...]:
    """Our seconds, ONNX Runtime's, the difference of outputs by the largest one, our seconds of compiling."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, str(path), dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    arrays: list[Any] = [x.numpy() for x in inputs]
    feed = {i.name: x for i, x in zip(session.get_inputs(), arrays, strict=True)}
    start = time.perf_counter()
    model = tilewright.compile(path, threads=threads, cache=False)
    took = time.perf_counter() - start
    want, got = session.run(None, feed), model(*arrays)
    got = got if isinstance(got, tuple | list) else [got]
    error = max(float(abs(a - b).max() / max(abs(b).max(), 1e-9)) for a, b in zip(got, want, strict=True))
    ours, theirs = best_times([lambda: model(*arrays), lambda: session.run(None, feed)], seconds)
    return ours, theirs, error, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nets", nargs="*", help="names of nets (default: all)")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each net")
    a = parser.parse_args()
    if unknown := set(a.nets) - NETS.keys():
        parser.error(f"no net {', '.join(sorted(unknown))}; there are {', '.join(NETS)}")
    np.random.seed(0)
    torch.set_num_threads(a.threads)
    ratios: list[float] = []
    print(f"{'net':<16} {'ms':>9} {'ONNX Runtime / ours':>20} {'difference':>11} {'compile s':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for name in a.nets or NETS:
            torch.manual_seed(0)
            with torch.no_grad():
                module, inputs = NETS[name]()
            try:
                ours, theirs, error, took = measure(
                    module.eval(), inputs, Path(folder, "net.onnx"), a.threads, a.seconds
                )
            except Exception as e:
                print(f"{name:<16} fails: {type(e).__name__}: {str(e).splitlines()[0]}", flush=True)
                continue
            ratios.append(theirs / ours)
            mark = " <- slower" if theirs < ours else ""
            print(f"{name:<16} {ours * 1e3:9.3f} {theirs / ours:20.2f} {error:11.1e} {took:10.2f}{mark}", flush=True)
    print(f"geometric mean {geometric_mean(ratios):.2f}, least {min(ratios, default=float('nan')):.2f}")


if __name__ == "__main__":
    main()
