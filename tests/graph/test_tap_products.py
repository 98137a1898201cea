"""The pass ``tap-products``: which transposed convolutions are a product and sums of its taps, and the same results."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.showing import assert_same, graph_of, n_of, optimised
from tilewright import ops
from tilewright.core.expr import Sym
from tilewright.core.types import TensorType, f32
from tilewright.graph.forms.tap_products import TapProducts


def transposed(shape, n_out, kernel, strides, pads=None, output_padding=None, groups=1, *, with_bias=False):
    """A transposed convolution of an N, C image by constants, and a bias and an activation behind it."""
    n = len(shape) - 2
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((shape[1], n_out // groups, *kernel)).astype(np.float32)
    attrs = {
        "strides": strides, "pads": pads or ((0, 0),) * n, "dilations": (1,) * n,
        "output_padding": output_padding or (0,) * n, "groups": groups,
    }  # fmt: skip

    def build(b, x):
        y = b(ops.conv_transpose, x, b.const(weights), **attrs)
        if with_bias:
            bias = rng.standard_normal((n_out, *(1,) * n)).astype(np.float32)
            y = b(ops.relu, b(ops.add, y, b.const(bias)))
        return y

    return graph_of(build, TensorType(f32, shape))


def is_product(graph):
    after = optimised(graph)
    return n_of(after, ops.matmul) == 1 and n_of(after, ops.conv) == n_of(after, ops.winograd_conv) == 0


@pytest.mark.parametrize(
    ("shape", "n_out", "kernel", "stride"),
    [((1, 512, 32, 32), 3, 4, 2), ((1, 64, 20, 20), 17, 2, 2), ((Sym("n", 1), 64, 20, 20), 17, 2, 2)],
)
def test_few_channels_are_a_product_and_sums(shape, n_out, kernel, stride):
    assert is_product(transposed(shape, n_out, (kernel,) * 2, (stride,) * 2))


@pytest.mark.parametrize(
    ("shape", "n_out", "kernel", "stride", "groups"),
    [
        ((1, 32, 30, 30), 32, 6, 2, 1),  # the taps of many results pass through memory
        ((1, 16, 20, 20), 32, 6, 3, 1),
        ((1, 64, 20, 20), 64, 2, 2, 4),
        ((1, 64, Sym("h", 2), 20), 17, 2, 2, 1),
    ],
)
def test_others_are_phases(shape, n_out, kernel, stride, groups):
    assert not is_product(transposed(shape, n_out, (kernel,) * 2, (stride,) * 2, groups=groups))


@settings(max_examples=30)
@given(st.data())
def test_the_same_results(data):
    rank = data.draw(st.integers(1, 3), "axes")
    sizes = data.draw(st.lists(st.integers(2, 6), min_size=rank, max_size=rank), "sizes")
    kernel = data.draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank), "kernel")
    strides = data.draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank), "strides")
    pads = [(data.draw(st.integers(-3, k - 1)), data.draw(st.integers(-3, k - 1))) for k in kernel]
    further = [data.draw(st.integers(0, s - 1)) for s in strides]
    reach = [(n - 1) * s + k + f - sum(p) for n, s, k, f, p in zip(sizes, strides, kernel, further, pads, strict=True)]
    if min(reach) < 1:
        pads = [(0, 0)] * rank
    n_in, n_out = data.draw(st.integers(1, 9), "channels"), data.draw(st.integers(1, 3), "results")
    graph = transposed((2, n_in, *sizes), n_out, kernel, strides, tuple(pads), tuple(further))
    after = TapProducts().run(graph)  # in N, C order it always fires
    assert n_of(after, ops.conv_transpose) == 0 and n_of(after, ops.matmul) == 1
    assert_same(graph, after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n_out", "kernel"), [(3, 4), (17, 2)])
def test_bias_and_activation_follow_the_sums(n_out, kernel):
    graph = transposed((2, 512, 16, 16), n_out, (kernel,) * 2, (2, 2), ((1, 1),) * 2, with_bias=True)
    assert is_product(graph)
    assert_same(graph, optimised(graph), rtol=1e-3, atol=1e-3)
