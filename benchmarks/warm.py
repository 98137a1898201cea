"""A compile that the cache answers, in a fresh process: seconds after NumPy was imported, wall and CPU time.

    python -m benchmarks.warm resnet50 bert_base --folder /tmp/warm

The start of the interpreter and the import of NumPy, which every caller has anyway, come before the clock is started;
the import of the runtime and of llvmlite comes after. The CPU time is the main thread's: checking the weights has a
second thread beside it. A model file that was written in the last minute is digested by every compile, because its
times do not yet tell whether it changed: such a file is left alone for that minute before the clock is started.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import zoo

import tilewright as tw
from tilewright.runtime.cache import Cache

SETTLED_S = 61
"""Seconds after a file was written in which its times do not answer for its content (``runtime.cache``)."""
CHILD = """
import sys, time, numpy
wall, cpu = time.perf_counter(), time.thread_time()
import tilewright
model = tilewright.compile(sys.argv[1])
wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
assert model.report()["from_cache"]
print(wall, cpu)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["resnet50", "bert_base"])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--folder", type=Path, required=True, help="where models are kept between runs")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"cache: {Cache().directory}")
    for name in options.models:
        path = options.folder / f"{name}.onnx"
        if not path.exists():
            path.write_bytes(zoo.to_onnx(zoo.build(name)).SerializeToString())
        tw.compile(path)
        if (left := path.stat().st_ctime + SETTLED_S - time.time()) > 0:
            time.sleep(left)
            tw.compile(path)  # whose digest is kept
        times = [measure(path) for _ in range(options.runs)]
        wall, cpu = (min(column) for column in zip(*times, strict=True))
        print(f"{name}: {wall:.3f} s, {cpu:.3f} s of CPU time")


def measure(path: Path) -> tuple[float, float]:
    """Seconds of wall time and of the main thread's CPU time, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True)
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu


if __name__ == "__main__":
    main()
