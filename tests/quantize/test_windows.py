"""GPTQ of convolutions: windows are rows, groups have matrices of their own, results on other data are nearer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from small_models import numbers
from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.graph.quantize.places import layers_of
from tilewright.graph.quantize.windows import matrices_of, rows_of, weights_from
from tilewright.tools.quantize.measure import LEAST_ROWS

pytestmark = pytest.mark.usefixtures("shared_kernels")


def convolution(x_shape, weights, **attrs):
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, x_shape))
    return Graph("g", b.pool, (x,), (b(ops.conv, x, b.const(weights), **attrs),), ("y",))


@settings(max_examples=25, derandomize=True)
@given(st.data())
def test_windows_by_matrices_are_the_convolution(data):
    draw = data.draw
    n_axes, groups, depth = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(n_axes))
    attrs = {
        "strides": tuple(draw(st.integers(1, 2)) for _ in kernel),
        "dilations": tuple(draw(st.integers(1, 2)) for _ in kernel),
        "pads": tuple((draw(st.integers(0, 2)), draw(st.integers(0, 1))) for _ in kernel),
        "groups": groups,
        "layout": draw(st.sampled_from(["NCHW", "NHWC"])),
    }
    x = numbers(3, depth * groups, *[9 if n_axes == 2 else 5] * n_axes)
    w = numbers(groups * draw(st.integers(1, 4)), depth, *kernel, seed=1)
    x = x if attrs["layout"] == "NCHW" else np.ascontiguousarray(np.moveaxis(x, 1, -1))
    graph = convolution(x.shape, w, **attrs)
    (layer,) = layers_of(graph)[0]
    matrices = matrices_of(layer, w)
    n_terms = matrices.shape[1]
    rows = rows_of(layer, x, max(n_terms, LEAST_ROWS))
    np.testing.assert_array_equal(weights_from(layer, matrices), w)
    (y,) = evaluate_graph(graph, [x])
    channels_last = np.moveaxis(y, 1, -1) if attrs["layout"] == "NCHW" else y
    wanted = channels_last.reshape(-1, groups, len(w) // groups).transpose(1, 0, 2)
    assert rows.shape == (groups, min(max(n_terms, LEAST_ROWS), wanted.shape[1]), n_terms)
    chosen = np.unique(np.linspace(0, wanted.shape[1] - 1, rows.shape[1]).astype(int))
    np.testing.assert_allclose(rows @ matrices, wanted[:, chosen], rtol=1e-4, atol=1e-4)


def images(seed):
    """Neighbours have much in common, and so have channels."""
    planes = sum(numbers(8, 3, 14, 14, seed=seed)[..., i : i + 12, j : j + 12] for i, j in np.ndindex(3, 3))
    return np.einsum("nchw,cd->ndhw", planes, numbers(3, 6, seed=9)).astype(np.float32)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_results_on_other_data_are_nearer_than_with_the_nearest_weights(weights, groups):
    w = numbers(12, 6 // groups, 3, 3, seed=1)
    graph = convolution((8, 6, 12, 12), w, strides=(1, 1), pads=((1, 1), (1, 1)), dilations=(1, 1), groups=groups)
    (wanted,) = evaluate_graph(graph, [images(1)])
    options = {"weights": weights, "weight_bits": 7, "activations": "u16"}  # whose error is that of the weights
    error = {}
    for rounding in ("nearest", "gptq"):
        made = tw.quantize(graph, images(0), rounding=rounding, **options)
        error[rounding] = float(np.square(evaluate_graph(made, [images(1)])[0] - wanted).sum())
        stored = [x.attrs["data"].array for x in made.nodes() if "data" in x.attrs and x.dtype.name == "i8"]
        assert max(np.abs(a.astype(int)).max(initial=0) for a in stored) <= 63
    assert error["gptq"] < (0.5 if groups < 6 else 0.8) * error["nearest"]  # nine terms leave little to choose
