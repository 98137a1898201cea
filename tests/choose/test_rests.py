"""Products whose number of rows a call brings: right for every number, and few rows read the weights once."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import computations
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.choose.cost.features import features_of
from tilewright.choose.default import schedule_with_steps
from tilewright.core.expr import Sym
from tilewright.target.target import Target

ROWS = Sym("rows", 1)


def passes(target: Target, n_rows: int) -> float:
    """How often a product of so many rows by 64x32 weights walks all its weights, in code for any number of rows."""
    depth, columns = 64, 32
    computation = computations.matmul(ROWS, columns, depth)
    scheduled = schedule_with_steps(computation, target, [b for b in computation.inputs if b.name == "B"])
    found = features_of(scheduled.kernel, target, {ROWS: n_rows})
    loops = [r.iterations for r in found.rows if r.counts.get("multiply")]
    n_blocks = columns / (2 * target.vector_bytes / 4)  # a tile has two vectors
    return sum(loops) / depth / n_blocks


@pytest.mark.parametrize("target", ["haswell", "x86-64-v4"])
@pytest.mark.parametrize("n_rows", [2, 3, 4])
def test_a_few_rows_walk_the_weights_once(target: str, n_rows: int) -> None:
    assert passes(Target.parse(target), n_rows) == 1


@pytest.mark.parametrize("n_threads", [1, 2])
def test_every_number_of_rows_is_right(n_threads: int) -> None:
    """Two layers whose tiles leave every rest, with lanes that fill no vector."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(shape).astype(np.float32) for shape in ((24, 40), (40, 13)))
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "rests",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 13])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    compiled = tw.compile(model, threads=n_threads, cache=False)
    for n_rows in range(1, 41):
        x = rng.standard_normal((n_rows, 24)).astype(np.float32)
        np.testing.assert_allclose(compiled(x), np.maximum(x @ first, 0) @ second, rtol=1e-4, atol=1e-4)
