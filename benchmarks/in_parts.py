"""Nets on batches that go through them part by part, beside the same nets on whole batches, in one process.

    python -m benchmarks.in_parts resnet50:16 mobilenet_v2:8 --precision bf16

In: names from ``benchmarks.zoo``, each with a number of copies of its inputs. Out: for each the shortest milliseconds
of a call in both forms, called in turn, and what each took to compile and takes of memory.
Not its business: other engines (``benchmarks.latency``).
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.interleaved import best_times, geometric_mean
from benchmarks.zoo import build

import tilewright
from tilewright.graph.forms.in_parts import InParts

HEAD = ("net", "batch", "whole, ms", "in parts, ms", "whole / parts", "arena, MB", "compile, s")


def compiled(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], a: argparse.Namespace) -> tuple[Any, float]:
    """A model, and the CPU seconds that its compile took."""
    start = time.process_time()
    model = tilewright.compile(module, inputs, precision=a.precision, threads=a.threads, cache=False)
    return model, time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("nets", nargs="+", metavar="NAME:BATCH")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="of calls for each net")
    a = parser.parse_args()
    ratios = []
    print("| " + " | ".join(HEAD) + " |")
    for name, _, copies in (net.partition(":") for net in a.nets):
        net, n = build(name), int(copies or 1)
        inputs = tuple(torch.cat([x] * n) if x.ndim else x for x in net.inputs)
        with patch.object(InParts, "run", lambda self, graph, journal=None: graph):  # no batch is cut
            compiled(net.module, inputs, a)  # what the first one takes to import counts for nobody
            whole, before = compiled(net.module, inputs, a)
        parts, after = compiled(net.module, inputs, a)
        times = best_times([partial(m, *inputs) for m in (whole, parts)], a.seconds)
        ratios.append(times[0] / times[1])
        arenas = [m.report()["memory"]["arena_bytes"] / 1e6 for m in (whole, parts)]
        shown = (name, n, f"{times[0] * 1e3:.2f}", f"{times[1] * 1e3:.2f}", f"{ratios[-1]:.3f}")
        memory, seconds = ("{:.1f} -> {:.1f}".format(*pair) for pair in (arenas, (before, after)))
        print("| " + " | ".join(map(str, (*shown, memory, seconds))) + " |", flush=True)
    print(f"geometric mean {geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
