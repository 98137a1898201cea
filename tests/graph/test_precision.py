"""What `precision` rounds to bf16 and where, and how far results may move."""

import numpy as np
import pytest

from tilewright import ops
from tilewright.build.driver import build, compile_graph
from tilewright.build.options import Clock, Options
from tilewright.core import types
from tilewright.core.diag import OptionError
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType
from tilewright.graph.interp import run as interpret
from tilewright.graph.precision import Precision

TOLERANCE = 2.0**-7
"""Of the largest element: operands are within 2**-9, and errors of a few layers add up."""
RNG = np.random.default_rng(5)


def weights(*shape):
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def graph(b, inputs, *outputs):
    return Graph("g", b.pool, tuple(inputs), outputs, tuple(f"y{k}" for k in range(len(outputs))))


def mlp(rows=20):
    """Two layers, the first one's result also added behind the second one."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (rows, 24)))
    h = b(ops.maximum, b(ops.matmul, x, b.const(weights(24, 40))), b.const(0.0, types.f32))
    y = b(ops.add, b(ops.matmul, h, b.const(weights(40, 40))), h)
    return graph(b, [x], y)


def ops_of(g, op):
    return [n for n in g.nodes() if n.op is op]


def close(got, want):
    np.testing.assert_allclose(got, want, atol=TOLERANCE * np.abs(want).max(), rtol=0)


def test_products_read_bf16_and_give_f32():
    done = Precision().run(mlp())
    products = ops_of(done, ops.matmul)
    assert [[i.dtype for i in n.inputs] for n in products] == [[types.bf16] * 2] * 2
    assert {n.dtype for n in products} == {types.f32}


def test_a_value_is_rounded_once_and_where_it_is_made():
    """The layer's result reaches the next product and the addition as the same bf16."""
    done = Precision().run(mlp())
    (narrow,) = [n for n in ops_of(done, ops.cast) if n.dtype is types.bf16 and n.inputs[0].op is not ops.matmul
                 and n.shape == (20, 40)]  # fmt: skip
    assert narrow.inputs[0].op is ops.maximum
    (wide,) = [n for n in ops_of(done, ops.cast) if n.dtype is types.f32]
    assert wide.inputs[0] is narrow


def test_conversions_are_no_kernels_of_their_own():
    """Two products with their epilogues; only the graph's input is converted by itself."""
    report = build(mlp(), Options(precision="bf16"), Clock()).manifest.report
    assert sorted("matmul" in k["ops"] for k in report["kernels"]) == [False, True, True]


def test_movements_move_bf16():
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (4, 8, 10)))
    moved = b(ops.transpose, b(ops.exp, x), perm=(0, 2, 1))
    done = Precision().run(graph(b, [x], b(ops.matmul, moved, b.const(weights(8, 16)))))
    (turn,) = ops_of(done, ops.transpose)
    assert turn.dtype is types.bf16
    assert turn.inputs[0].op is ops.cast


def test_results_of_the_graph_are_not_rounded():
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (20, 24)))
    e = b(ops.exp, x)
    done = Precision().run(graph(b, [x], e, b(ops.matmul, e, b.const(weights(24, 16)))))
    assert done.outputs[0].op is ops.exp


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize("optimize", [0, 1, 2])
@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
def test_a_small_network(rows, optimize, target):
    g = mlp(rows)
    x = RNG.standard_normal((rows, 24)).astype(np.float32)
    got = compile_graph(g, precision="bf16", optimize=optimize, target=target)(x)
    close(np.asarray(got), interpret(g, [x])[0])


@pytest.mark.parametrize("groups", [1, 2, 12])
def test_convolutions(groups):
    """Depthwise ones stay in f32: they would gain nothing."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (1, 24, 9, 9)))
    attrs = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "layout": "NCHW"}
    kernel = weights(48 if groups < 12 else 24, 24 // groups, 3, 3)
    y = b(ops.maximum, b(ops.conv, x, b.const(kernel), groups=groups, **attrs), b.const(0.0, types.f32))
    y = b(ops.max_pool, y, kernel=(3, 3), strides=(2, 2), pads=((1, 1), (1, 1)), dilations=(1, 1), layout="NCHW")
    y = b(ops.conv, y, b.const(weights(16, kernel.shape[0], 1, 1)), **{**attrs, "pads": ((0, 0), (0, 0))})
    g = graph(b, [x], y)
    array = RNG.standard_normal((1, 24, 9, 9)).astype(np.float32)
    close(np.asarray(compile_graph(g, precision="bf16")(array)), interpret(g, [array])[0])
    assert [n.inputs[0].dtype for n in ops_of(Precision().run(g), ops.conv)] == [
        types.f32 if groups == 12 else types.bf16, types.bf16
    ]  # fmt: skip


def test_a_convolution_by_weights_that_a_call_makes_stays_as_it_is():
    b = Builder(Pool())
    x, w = (b.pool.input(n, TensorType(types.f32, s)) for n, s in (("x", (1, 9, 9, 32)), ("w", (32, 32, 3, 3))))
    attrs = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "layout": "NHWC"}
    (conv,) = ops_of(Precision().run(graph(b, [x, w], b(ops.conv, x, w, **attrs))), ops.conv)
    assert [i.dtype for i in conv.inputs] == [types.f32, types.f32]


@pytest.mark.parametrize(("hidden", "is_constant"), [(24, True), (24, False), (4, True)])
def test_scans(hidden, is_constant):
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (5, 1, hidden)))
    changing = b.pool.input("w", TensorType(types.f32, (hidden, hidden)))
    rt = b.const(weights(hidden, hidden)) if is_constant else changing
    y, _ = b.results(b(ops.rnn_scan, x, rt, b.const(np.zeros((1, hidden), np.float32))))
    (scan,) = ops_of(Precision().run(graph(b, [x, changing], y)), ops.rnn_scan)
    is_narrow = is_constant and hidden > 4
    assert [i.dtype for i in scan.inputs] == [types.f32, types.bf16 if is_narrow else types.f32, types.f32]


def test_a_scan_rounds_its_weights_alone_where_the_state_is_the_same_constant():
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (5, 24, 24)))
    rt = b.const(weights(24, 24))
    y, _ = b.results(b(ops.rnn_scan, x, rt, rt))
    (scan,) = ops_of(Precision().run(graph(b, [x], y)), ops.rnn_scan)
    assert [i.dtype for i in scan.inputs] == [types.f32, types.bf16, types.f32]


@pytest.mark.parametrize(("rows", "is_rounded"), [(1, False), (15, False), (16, True)])
def test_a_few_queries_read_a_cache_as_it_is(rows, is_rounded):
    b = Builder(Pool())
    q, keys = (
        b.pool.input("q", TensorType(types.f32, (2, rows, 32))),
        b.pool.input("k", TensorType(types.f32, (2, 32, 64))),
    )
    (product,) = ops_of(Precision().run(graph(b, [q, keys], b(ops.matmul, q, keys))), ops.matmul)
    assert [i.dtype for i in product.inputs] == [types.bf16 if is_rounded else types.f32] * 2


@pytest.mark.parametrize("length", [1, 5, 37])
def test_attention(length):
    """Both products in bf16, the softmax between them in f32."""
    b = Builder(Pool())
    q, k, v = (b.pool.input(n, TensorType(types.f32, (1, 2, length, 16))) for n in "qkv")
    scaled = b(ops.mul, q, b.const(1.5, types.f32))
    g = graph(b, [q, k, v], b(ops.attention, scaled, k, v, scale=0.1))
    arrays = [RNG.standard_normal((1, 2, length, 16)).astype(np.float32) for _ in range(3)]
    close(np.asarray(compile_graph(g, precision="bf16")(*arrays)), interpret(g, arrays)[0])


def test_models_in_bf16_stay_as_they_are():
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.bf16, (20, 24)))
    g = graph(b, [x], b(ops.matmul, x, b.const(weights(24, 33).astype(types.bf16.numpy))))
    assert Precision().run(g) is g
    array = RNG.standard_normal((20, 24)).astype(types.bf16.numpy)
    for precision in ("fp32", "bf16"):
        got = np.asarray(compile_graph(g, precision=precision)(array)).astype(np.float32)
        close(got, interpret(g, [array])[0].astype(np.float32))


def test_unknown_precision():
    with pytest.raises(OptionError, match="fp7"):
        Options(precision="fp7")
