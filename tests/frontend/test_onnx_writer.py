"""Graphs written as ONNX mean what they meant: every op's samples go out and come back through the importer."""

import numpy as np
import onnx
import onnxruntime
import pytest

from small_models import convnet, language_model, numbers, perceptron
from tilewright import ops
from tilewright.core.diag import CompileError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.opdef import Sample
from tilewright.core.passes import run_pipeline
from tilewright.core.types import TensorType, bool_, f8e4m3, f32, i32, i64, tensor_type_of
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.frontend.onnx.writer.model import to_onnx
from tilewright.graph.pipeline import PORTABLE


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


NO_FORM = {
    "random_uniform", "random_normal", "bitcast", "encode", "fourier_library", "fourier_pass", "winograd_conv",
    "coded_matmul", "block_matmul", "quad_matmul", "scaled_matmul", "cholesky", "lu", "pivot_order",
    "solve_triangular", "geqrf",
    "reflect", "orthogonal", "eigh", "eigvalsh", "svd", "svdvals", "ldl", "solve_ldl", "mul_pair", "rescale",
    "map_parts",
}  # fmt: skip
"""What opset 21 can't say: random numbers of a state, the same bits as another type, linear algebra; and forms that
only passes make."""


@pytest.mark.one_in(8)
@pytest.mark.parametrize("op", ops.ALL, ids=lambda op: op.name)
def test_samples_come_back(op):
    n = 0
    for sample in list(op.samples(np.random.default_rng(0)))[:12]:
        graph = graph_of(op, sample)
        try:
            found = came_back(graph, list(sample.arrays))
        except CompileError:
            continue
        n += 1
        for expected, got in zip(evaluate_graph(graph, list(sample.arrays)), found, strict=True):
            loose = 2e-3 if expected.dtype == np.float16 else 1e-5
            assert got.dtype == expected.dtype
            if expected.dtype.kind in "biuf":
                np.testing.assert_allclose(got, expected, rtol=loose, atol=1e-6)
            else:
                np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=2e-2, atol=1e-2)
    assert bool(n) == (op.name not in NO_FORM and op is not ops.as_size)  # a size that data decide is read per call


def test_a_quotient_of_zero_keeps_its_sign():
    a, b = np.float32([-0.0, 0.0, 0.0, -1, 1, 0.0]), np.float32([1, -2, 3, -2, 2, np.inf])
    (found,) = came_back(graph_of(ops.floor_div, Sample((a, b))), [a, b])
    assert np.signbit(found).tolist() == [True, True, False, False, False, False] and not found.any()


def test_a_choice_of_bools_is_logic_that_onnx_runtime_has():
    a, b, c = (np.array(x).reshape(shape) for x, shape in (([1, 0], (2, 1)), ([1, 0, 1], (1, 3)), ([0, 0, 1], (1, 3))))
    arrays = [x.astype(bool) for x in (a, b, c)]
    model = to_onnx(graph_of(ops.where, Sample(tuple(arrays))))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {x.name: y for x, y in zip(session.get_inputs(), arrays, strict=True)}
    np.testing.assert_array_equal(session.run(None, given)[0], np.where(*arrays))


@pytest.mark.parametrize("mode", ["reflect", "wrap"])
def test_what_is_cut_off_is_mirrored_and_repeated_first(mode):
    pool, x = Pool(), np.arange(4, dtype=np.float32)
    source = pool.input("x", TensorType(f32, (4,)))
    y = pool.add(ops.pad, (source, pool.const(0.0, f32)), {"pads": ((-1, 4),), "mode": mode})
    graph = Graph("g", pool, (source,), (y,), ("y",))
    np.testing.assert_array_equal(came_back(graph, [x])[0], evaluate_graph(graph, [x])[0])


def test_sub_graphs_see_what_stands_outside():
    pool, inner = Pool(), Pool()
    x, flag = pool.input("x", TensorType(f32, (3,))), pool.input("flag", TensorType(bool_, ()))
    trips = pool.input("trips", TensorType(i64, ()))
    i, go, total, captured = (
        inner.input(name, t) for name, t in (
            ("i", TensorType(i64, ())), ("go", TensorType(bool_, ())), ("total", x.type), ("captured", x.type)
        )
    )  # fmt: skip
    body = Graph("body", inner, (i, go, total, captured), (go, inner.add(ops.add, (total, captured))), ("go", "total"))
    looped = pool.add(ops.loop, (trips, flag, x, pool.add(ops.neg, (x,))), {"body": body, "n_carried": 1})
    graph = Graph("looped", pool, (x, flag, trips), (looped,), ("y",))
    model = to_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = np.array([1, -2, 4], np.float32)
    for flag_value, n, expected in ((True, 3, -2 * values), (False, 3, values), (True, 0, values)):
        given = {"x": values, "flag": np.array(flag_value), "trips": np.array(n)}
        np.testing.assert_array_equal(session.run(None, given)[0], expected)


@pytest.mark.parametrize("make", [convnet, language_model, perceptron], ids=lambda make: make.__name__)
@pytest.mark.parametrize("optimised", [False, True])
def test_networks_are_equal_in_onnx_runtime(make, optimised):
    graph = make()
    if optimised:
        graph = run_pipeline(graph, PORTABLE)
    model = to_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = numbers(*(d if isinstance(d, int) else 2 for d in graph.inputs[0].shape))
    expected = evaluate_graph(make(), [x])[0]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(came_back(graph, [x])[0], expected, rtol=1e-4, atol=1e-4)


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


def test_numbers_that_onnx_lacks_are_named():
    pool = Pool()
    x = pool.input("x", TensorType(f8e4m3, (4,)))
    graph = Graph("narrow", pool, (x,), (pool.add(ops.decode, (x,)),), ("y",))
    with pytest.raises(CompileError, match="input: ONNX has no numbers of f8e4m3"):
        to_onnx(graph)
