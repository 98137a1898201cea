"""Graphs written as StableHLO mean what they meant: to our own importer, op by op, and to XLA, as networks."""

import jax
import jaxlib
import numpy as np
import pytest

from frontend.test_onnx_writer import graph_of
from small_models import convnet, language_model, numbers, perceptron
from tilewright import ops
from tilewright.core.diag import CompileError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.passes import run_pipeline
from tilewright.core.specialize import fix_symbols
from tilewright.core.types import TensorType, bool_, f32, i64
from tilewright.frontend.stablehlo.importer import import_module, parse
from tilewright.frontend.stablehlo.writer.module import to_stablehlo
from tilewright.graph.pipeline import PORTABLE

NO_FORM = {
    "rescale",
    "random_uniform", "random_normal", "encode", "decode", "fourier_library", "fourier_pass", "winograd_conv",
    "coded_matmul", "block_matmul", "quad_matmul", "scaled_matmul",
    "max_pool_indices", "lu", "pivot_order", "geqrf",
    "reflect", "orthogonal", "eigh", "eigvalsh", "svd", "svdvals", "ldl", "solve_ldl",
    "as_size", "argwhere", "nonzero", "suppress", "mul_pair", "map_parts",
}  # fmt: skip
"""What is not written: random numbers, narrow types, linear algebra, sizes that data decide; and forms
that only passes make."""


def came_back(graph, arrays):
    back = import_module(parse(to_stablehlo(graph).encode(), "text"), "text").graph.unchecked()
    assert back.input_names == graph.input_names
    return evaluate_graph(back, arrays)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("op", ops.ALL, ids=lambda op: op.name)
def test_samples_come_back(op):
    n = 0
    for sample in list(op.samples(np.random.default_rng(0)))[:8]:
        graph = graph_of(op, sample)
        try:
            text = to_stablehlo(graph)
        except CompileError:
            continue
        n += 1
        back = import_module(parse(text.encode(), "text"), "text").graph.unchecked()
        found = evaluate_graph(back, list(sample.arrays))
        for expected, got in zip(evaluate_graph(graph, list(sample.arrays)), found, strict=True):
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            loose = 2e-5 if expected.dtype in (np.float32, np.float64) else 2e-3
            if expected.dtype.kind in "biuf":
                np.testing.assert_allclose(got, expected, rtol=loose, atol=1e-5)
            else:
                np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=2e-2, atol=1e-2)
    assert bool(n) == (op.name not in NO_FORM)


def by_xla(text, *arrays):
    """The results that XLA computes, by the client that JAX uses."""
    client = jax.devices("cpu")[0].client
    run = client.compile_and_load(text.encode(), client.devices()[:1], jaxlib._jax.CompileOptions())
    with jax.enable_x64(True):
        given = [jax.device_put(a) for a in arrays]
    made = run.execute_sharded(given).disassemble_into_single_device_arrays()
    return [np.asarray(shards[0]) for shards in made]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", [convnet, language_model, perceptron], ids=lambda make: make.__name__)
@pytest.mark.parametrize("optimised", [False, True])
def test_networks_are_equal_in_xla(make, optimised):
    graph = make()
    graph = fix_symbols(graph, {s.name: 2 for s in graph.symbols()})
    x = numbers(*graph.inputs[0].shape)
    (expected,) = evaluate_graph(graph, [x])
    if optimised:
        graph = run_pipeline(graph, PORTABLE)
    np.testing.assert_allclose(by_xla(to_stablehlo(graph), x)[0], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(came_back(graph, [x])[0], expected, rtol=1e-4, atol=1e-4)


def _counting_loop():
    """``trips`` times ``total + step``, each total also stacked."""
    pool, inner = Pool(), Pool()
    n = Sym("n", 1)
    vector = TensorType(f32, (n,))
    i, go = inner.input("i", TensorType(i64, ())), inner.input("go", TensorType(bool_, ()))
    total, step = inner.input("total", vector), inner.input("step", vector)
    summed = inner.add(ops.add, (total, step))
    body = Graph("body", inner, (i, go, total, step), (go, summed, summed), ("go", "total", "seen"))
    x = pool.input("x", TensorType(f32, (3,)))
    b = Builder(pool)
    trips, flag = b.const(4, i64), b.const(True, bool_)
    made = pool.add(ops.loop, (trips, flag, x, b(ops.neg, x)), {"body": body, "n_carried": 1, "length": 4})
    return Graph("looped", pool, (x,), pool.results(made), ("total", "seen"))


def test_loops_carry_and_stack():
    graph, x = _counting_loop(), np.array([1, -2, 4], np.float32)
    expected = evaluate_graph(graph, [x])
    np.testing.assert_array_equal(expected[0], -3 * x)
    for found in (by_xla(to_stablehlo(graph), x), came_back(graph, [x])):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_symbolic_sizes_are_named_with_a_remedy():
    with pytest.raises(CompileError, match=r"the sizes rows of 'perceptron' are symbolic[\s\S]*--fix rows=1"):
        to_stablehlo(perceptron())


def test_factors_tell_what_is_not_positive_and_solve():
    pool = Pool()
    x = pool.input("x", TensorType(f32, (2, 3, 3)))
    b = Builder(pool)
    factor, info = pool.results(pool.add(ops.cholesky, (x,)))
    graph = Graph(
        "factored", pool, (x,), (factor, info, b(ops.solve_triangular, factor, x, upper=False, unit=False)), "fis"
    )
    rows = np.array([[4, 2, 1], [2, 5, 3], [1, 3, 6]], np.float32)
    arrays = np.stack([rows, np.where(np.eye(3) * [0, 1, 0] == 1, -5, rows).astype(np.float32)])
    expected = evaluate_graph(graph, [arrays])
    for made in (by_xla(to_stablehlo(graph), arrays), came_back(graph, [arrays])):
        for got, wanted in zip(made, expected, strict=True):
            np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-6)
        assert made[1][1] != 0
