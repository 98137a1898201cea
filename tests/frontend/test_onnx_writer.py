"""Graphs written as ONNX mean what they meant: every op's samples go out and come back through the importer."""

import numpy as np
import pytest

from tilewright import ops
from tilewright.core.diag import CompileError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32, i32, tensor_type_of
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.frontend.onnx.writer.model import to_onnx
from tilewright.frontend.onnx.writer.ops import WRITERS


def graph_of(op, sample):
    pool = Pool()
    inputs = [pool.input(f"x{k}", tensor_type_of(a)) for k, a in enumerate(sample.arrays)]
    node = pool.add(op, inputs, sample.attrs)
    results = pool.results(node)
    return Graph(op.name, pool, tuple(inputs), results, tuple(f"y{k}" for k in range(len(results))))


def came_back(graph, arrays):
    made = to_onnx(graph)
    back = import_onnx(made.SerializeToString())
    assert back.input_names == graph.input_names
    back = back.unchecked()
    assert back.output_names == graph.output_names
    return evaluate_graph(back, arrays)


@pytest.mark.parametrize("op", [op for op in ops.ALL if op in WRITERS], ids=lambda op: op.name)
def test_samples_come_back(op):
    n = 0
    for sample in op.samples(np.random.default_rng(0)):
        graph = graph_of(op, sample)
        try:
            found = came_back(graph, list(sample.arrays))
        except CompileError:
            continue
        n += 1
        for expected, got in zip(evaluate_graph(graph, list(sample.arrays)), found, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert n


def test_symbolic_sizes_are_computed_from_the_inputs():
    n, pool = Sym("n", 1), Pool()
    b = Builder(pool)
    x = pool.input("x", TensorType(f32, (n, 4)))
    y = b(ops.expand, b(ops.reshape, x, shape=(2 * n, 2)), shape=(3, 2 * n, 2))
    z = b(ops.slice, y, starts=(0, n, 0), stops=(3, 2 * n, 2), steps=(1, 1, 1))
    graph = Graph("sizes", pool, (x,), (z,), ("z",))
    array = np.arange(20, dtype=np.float32).reshape(5, 4)
    (found,) = came_back(graph, [array])
    np.testing.assert_array_equal(found, evaluate_graph(graph, [array])[0])


def test_a_number_for_each_channel_is_the_bias_of_what_it_is_added_to():
    pool = Pool()
    b = Builder(pool)
    x = pool.input("x", TensorType(f32, (1, 2, 4, 4)))
    kernel, bias = np.ones((3, 2, 1, 1), np.float32), np.arange(3, dtype=np.float32)
    plain = {"strides": (1, 1), "pads": ((0, 0),) * 2, "dilations": (1, 1)}
    y = b(ops.add, b(ops.conv, x, b.const(kernel), **plain), b(ops.reshape, b.const(bias), shape=(3, 1, 1)))
    z = b(
        ops.add, b(ops.matmul, b(ops.reshape, y, shape=(3, 16)), b.const(np.ones((16, 3), np.float32))), b.const(bias)
    )
    graph = Graph("biases", pool, (x,), (z,), ("z",))
    assert [n.op_type for n in to_onnx(graph).graph.node] == ["Reshape", "Conv", "Reshape", "Gemm"]
    array = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
    np.testing.assert_allclose(came_back(graph, [array])[0], evaluate_graph(graph, [array])[0])


def test_what_has_no_counterpart_is_named():
    pool = Pool()
    x = pool.input("x", TensorType(f32, (4,)))
    graph = Graph("special", pool, (x,), (pool.add(ops.bitcast, (x,), {"dtype": i32}),), ("y",))
    with pytest.raises(CompileError, match="bitcast: no op of ONNX's means this"):
        to_onnx(graph)
