"""Ensembles of trees beside ONNX Runtime: one thread each, CPU time, in turn in one process.

    python -m benchmarks.forests                  the forests of docs/layers.md
    python -m benchmarks.forests --rounds 20

In: nothing. Out: for each forest its size and compile time, and for each batch our microseconds and ONNX Runtime's time
over ours. Every call has other rows: a row that comes again has its branches predicted by the processor.
Not its business: models of other kinds (``benchmarks/latency.py``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from benchmarks.interleaved import onnxruntime_session
from onnx import TensorProto, helper

import tilewright as tw

FORESTS = ((100, 6, 20, 1.0), (100, 10, 20, 0.8), (500, 10, 30, 0.9))
BATCHES = (1, 4, 16, 256, 4096)
N_INPUTS = {1: 256, 4: 128, 16: 64, 256: 8, 4096: 2}


def forest(n_trees: int, depth: int, n_features: int, grows: float, seed: int = 0) -> onnx.ModelProto:
    """A regressor of random trees; below the second level each node is a test with probability ``grows``."""
    rng = np.random.default_rng(seed)
    nodes: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "modes", "truenodeids", "falsenodeids")}
    leaves: list[tuple[int, int]] = []
    for tree in range(n_trees):
        level = [0]
        k = 0
        while k < len(level):
            is_test = level[k] < depth and (level[k] < 2 or rng.random() < grows)
            children = (len(level), len(level) + 1) if is_test else (0, 0)
            level += [level[k] + 1] * 2 if is_test else []
            leaves += [] if is_test else [(tree, k)]
            row = (tree, k, "BRANCH_LEQ" if is_test else "LEAF", *children)
            for column, v in zip(nodes.values(), row, strict=True):
                column.append(v)
            k += 1
    n = len(nodes["modes"])
    attributes = {f"nodes_{k}": v for k, v in nodes.items()} | {
        "nodes_featureids": rng.integers(0, n_features, n).tolist(),
        "nodes_values": rng.standard_normal(n).tolist(),
        "target_treeids": [t for t, _ in leaves],
        "target_nodeids": [k for _, k in leaves],
        "target_ids": [0] * len(leaves),
        "target_weights": rng.standard_normal(len(leaves)).tolist(),
    }
    made = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **attributes)
    x, y = (helper.make_tensor_value_info(k, TensorProto.FLOAT, ["n", w]) for k, w in (("x", n_features), ("y", 1)))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([made], "forest", [x], [y]), opset_imports=opsets, ir_version=10)


def seconds_a_call(run: Callable[[Any], Any], inputs: Sequence[Any]) -> float:
    start = time.process_time()
    for x in inputs:
        run(x)
    return (time.process_time() - start) / len(inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    for n_trees, depth, n_features, grows in FORESTS:
        m = forest(n_trees, depth, n_features, grows)
        start = time.process_time()
        ours = tw.compile(m, cache=False, threads=1)
        spent = time.process_time() - start
        session = onnxruntime_session(m.SerializeToString())
        runs: tuple[Callable[[Any], Any], ...] = (ours, lambda x, s=session: s.run(None, {"x": x}))
        print(f"{n_trees} trees of depth {depth}: {m.ByteSize() / 1e6:.1f} MB, compiled in {spent:.2f} s of CPU time")
        for n in BATCHES:
            rng = np.random.default_rng(n)
            inputs = [rng.standard_normal((n, n_features)).astype(np.float32) for _ in range(N_INPUTS[n])]
            np.testing.assert_allclose(runs[0](inputs[0]), runs[1](inputs[0])[0], rtol=1e-3, atol=1e-3)
            best = np.min([[seconds_a_call(run, inputs) for run in runs] for _ in range(rounds)], axis=0)
            print(f"  {n:5} rows: {best[0] * 1e6:9.0f} us, ONNX Runtime / ours {best[1] / best[0]:.2f}", flush=True)


if __name__ == "__main__":
    main()
