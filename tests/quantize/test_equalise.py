"""Cross-layer equalisation: an equal function, whose weights are of one size before and behind each channel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from small_models import numbers
from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.graph.facts import array_of
from tilewright.graph.quantize.equalise import equalised
from tilewright.graph.quantize.places import layers_of

pytestmark = pytest.mark.usefixtures("shared_kernels")


def unequal(n, seed):
    """Factors of channels, a hundred times apart."""
    return np.exp(np.random.default_rng(seed).uniform(-2.3, 2.3, n)).astype(np.float32)


def net(kinds, layout="NCHW", seed=0):
    """Convolutions of these kinds with what scales along between them, then a flat product."""
    b, rng = Builder(Pool()), np.random.default_rng(seed)
    channels, size = 4, 8
    shape = (Sym("n", 1), channels, size, size) if layout == "NCHW" else (Sym("n", 1), size, size, channels)
    x = b.pool.input("x", TensorType(f32, shape))
    y = x
    for k, kind in enumerate(kinds):
        groups = {"dense": 1, "depthwise": channels, "grouped": 2}[kind]
        result = channels if kind == "depthwise" else 6
        scale = unequal(result, seed + k).reshape(-1, 1, 1, 1)
        w = rng.standard_normal((result, channels // groups, 3, 3)).astype(np.float32) * scale
        y = b(
            ops.conv, y, b.const(w), strides=(1, 1), pads=((1, 1),) * 2, dilations=(1, 1), groups=groups, layout=layout
        )
        spread = (result, 1, 1) if layout == "NCHW" else (result,)
        y = b(ops.add, y, b.const((0.1 * scale.reshape(-1)).reshape(spread).astype(np.float32)))
        channels = result
        y = b(ops.relu, y) if k % 2 == 0 else b(ops.leaky_relu, y, alpha=0.1)
    y = b(ops.max_pool, y, kernel=(2, 2), strides=(2, 2), pads=((0, 0),) * 2, layout=layout)
    width = channels * (size // 2) ** 2
    y = b(ops.matmul, b(ops.reshape, y, shape=(shape[0], width)), b.const(numbers(width, 5, seed=seed)))
    return Graph("net", b.pool, (x,), (y,), ("y",)), tuple(d if isinstance(d, int) else 3 for d in shape)


def sqnr(graph, quantised, x):
    want, got = (evaluate_graph(g, [x])[0] for g in (graph, quantised))
    return 10 * np.log10((want**2).sum() / ((want - got) ** 2).sum())


def sizes(layer):
    """The greatest weight of each channel that a layer makes."""
    return np.abs(layer.weights).reshape(len(layer.weights), -1).max(1)


@given(st.lists(st.sampled_from(["dense", "depthwise", "grouped"]), min_size=1, max_size=3), st.integers(0, 99))
def test_the_function_is_the_same(kinds, seed):
    for layout in ("NCHW", "NHWC"):
        graph, shape = net(kinds, layout, seed)
        x = numbers(*shape, seed=seed)
        after = equalised(graph, layers_of(graph)[0])
        want = evaluate_graph(graph, [x])[0]
        np.testing.assert_allclose(evaluate_graph(after, [x])[0], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_weights_of_a_channel_get_one_size_in_every_layer():
    graph, _ = net(["dense", "depthwise", "dense"])
    first, second, third, last = layers_of(equalised(graph, layers_of(graph)[0]))[0]
    np.testing.assert_allclose(sizes(first), sizes(second), rtol=1e-4)
    np.testing.assert_allclose(sizes(second), np.abs(third.weights).max(axis=(0, 2, 3)), rtol=1e-4)
    flat = np.abs(last.weights).reshape(6, -1).max(1)
    np.testing.assert_allclose(sizes(third), flat, rtol=1e-4)


@pytest.mark.slow
def test_one_scale_for_a_tensor_then_serves_all_channels():
    graph, shape = net(["dense", "depthwise", "dense"])
    x = numbers(16, *shape[1:])
    plain, better = (tw.quantize(graph, x, weights="per-tensor", equalize=e) for e in (False, True))
    assert sqnr(graph, better, x) > sqnr(graph, plain, x) + 10
    made = np.asarray(tw.compile(better, cache=False)(x))
    np.testing.assert_allclose(made, evaluate_graph(better, [x])[0], rtol=1e-3, atol=0.05 * np.abs(made).max())


def test_a_channel_of_little_but_its_bias_does_not_become_the_greatest():
    b, w = Builder(Pool()), numbers(4, 6)
    w[:, 0] *= 1e-6
    x = b.pool.input("x", TensorType(f32, (3, 4)))
    y = b(ops.relu, b(ops.add, b(ops.matmul, x, b.const(w)), b.const(np.full(6, 0.5, np.float32))))
    graph = Graph("net", b.pool, (x,), (b(ops.matmul, y, b.const(numbers(6, 2))),), ("y",))
    (added,) = [n for n in equalised(graph, layers_of(graph)[0]).nodes() if n.op is ops.add]
    assert np.abs(array_of(added.inputs[1])).max() < 2


@pytest.mark.parametrize("between", ["sigmoid", "two readers", "result", "clipped"])
def test_channels_stay_where_another_number_would_be_seen(between):
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (3, 4)))
    y = b(ops.matmul, x, b.const(numbers(4, 6)))
    y = b(ops.sigmoid, y) if between == "sigmoid" else y
    y = b(ops.minimum, y, b.const(np.float32(0.5))) if between == "clipped" else y
    z = b(ops.matmul, y, b.const(numbers(6, 2)))
    outputs = {"two readers": (b(ops.add, z, b(ops.reduce_sum, y, axes=(1,), keepdims=True)),), "result": (z, y)}
    found = outputs.get(between, (z,))
    graph = Graph("net", b.pool, (x,), found, tuple(f"y{k}" for k in range(len(found))))
    assert equalised(graph, layers_of(graph)[0]).outputs == graph.outputs
