"""CPU milliseconds per graph pass on a synthetic graph of 2,000 ops: as imported, and when nothing is left to do.

Run it: ``python -m benchmarks.passes``. In: nothing. Out: a table. Not its business: whole models (their compile time
per stage is measured elsewhere).
"""

from __future__ import annotations

import gc
import time

import numpy as np

from tilewright import ops
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal
from tilewright.core.types import TensorType, f32
from tilewright.graph.pipeline import PASSES

ROUNDS = 7


def layer(b: Builder, x: Node, weight: Node, bias: Node) -> Node:
    """Fourteen ops, a third of which a frontend leaves for the passes to remove or recognise."""
    h = b(ops.add, b(ops.matmul, x, weight), bias)
    h = b(ops.reshape, b(ops.reshape, b(ops.add, b.const(0.0, f32), h), shape=(512,)), shape=(8, 64))
    inner = b(ops.erf, b(ops.div, h, b.const(2**0.5, f32)))
    gelu = b(ops.mul, b(ops.mul, h, b.const(0.5, f32)), b(ops.add, inner, b.const(1.0, f32)))
    return b(ops.add, b(ops.tanh, gelu), b(ops.mul, x, b.const(2.0, f32)))


def synthetic(n_ops: int = 2000) -> Graph:
    rng = np.random.default_rng(0)
    b = Builder(Pool())
    x = y = b.pool.input("x", TensorType(f32, (8, 64)))
    weight, bias = b.const(rng.random((64, 64), np.float32)), b.const(rng.random(64, np.float32))
    for _ in range(n_ops // 14):
        y = layer(b, y, weight, bias)
    return Graph("synthetic", b.pool, (x,), (y,), ("y",))


def timed(graph: Graph, one: Pass, journal: Journal) -> tuple[float, Graph]:
    start = time.process_time()
    after = one.run(graph, journal)
    return (time.process_time() - start) * 1e3, after


def main() -> None:
    print(f"{'pass':<16}{'first run':>12}{'fired':>8}{'nothing to do':>16}   (best of {ROUNDS}, ms of CPU time)")
    gc.disable()  # as the pipeline does
    for cls in PASSES:
        first: list[float] = []
        again: list[float] = []
        for _ in range(ROUNDS):
            journal: Journal = []
            ms, after = timed(synthetic(), cls(), journal)
            first.append(ms)
            again.append(timed(after, cls(), [])[0])
        n_fired = len(journal)
        print(f"{cls.name:<16}{min(first):>12.1f}{n_fired:>8}{min(again):>16.1f}")


if __name__ == "__main__":
    main()
