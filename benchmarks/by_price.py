"""Nets whose schedules are chosen by price (``optimize=3``) beside those that the rules schedule, in one process.

    python -m benchmarks.by_price resnet50 bert_base -t 1 --folder /tmp/nets
    python -m benchmarks.by_price --folder /tmp/nets --compile-only      all nets of the zoo, to be timed later

In: names from ``benchmarks.zoo``; a folder that keeps ONNX files, inputs and both compiled forms. Out: for each net the
shortest milliseconds of both, called in turn, and how many CPU seconds each took to compile.
Not its business: other engines (``benchmarks.latency``), single kernels (``benchmarks.regret``).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from benchmarks.interleaved import best_times, geometric_mean
from benchmarks.latency import prepare

import tilewright

LEVELS = (2, 3)


def compiled(name: str, folder: Path) -> dict[int, float]:
    """CPU seconds of a compile at each level; the models are kept in the folder."""
    kept = folder / f"{name}.seconds"
    if not kept.exists():
        path, _ = prepare(name, False, folder)
        seconds = {}
        for level in (LEVELS[0], *LEVELS):  # what the first one takes to import counts for nobody
            start = time.process_time()
            model = tilewright.compile(path, optimize=level, cache=False)
            seconds[level] = time.process_time() - start
            model.save(folder / f"{name}.{level}.tw")
        kept.write_text(json.dumps(seconds))
    return {int(level): s for level, s in json.loads(kept.read_text()).items()}


def timed(name: str, folder: Path, threads: int, seconds: float) -> list[float]:
    """Shortest seconds of a call at each level."""
    models = [tilewright.load(folder / f"{name}.{level}.tw", threads=threads) for level in LEVELS]
    with np.load(folder / f"{name}.npz") as file:
        inputs = [file[k] for k in file.files]
    return best_times([lambda m=m: m(*inputs) for m in models], seconds)


def main() -> None:
    from benchmarks.zoo import MODELS

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("nets", nargs="*", help="names from benchmarks.zoo (default: all)")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="of calls for each net")
    parser.add_argument("--compile-only", action="store_true")
    a = parser.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    ratios = []
    for name in a.nets or MODELS:
        rules, price = compiled(name, a.folder).values()
        line = f"{name:22s} compile {rules:5.2f} s, by price {price:5.2f} s"
        if not a.compile_only:
            before, after = timed(name, a.folder, a.threads, a.seconds)
            ratios.append(before / after)
            line += f"   call {before * 1e3:8.2f} ms, by price {after * 1e3:8.2f} ms, {ratios[-1]:.3f} times as fast"
        print(line, flush=True)
    if ratios:
        print(f"geometric mean {geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
