"""The pass ``few-taps``: taps that never see the image go, kernels of one tap are multiplications."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.showing import assert_same, graph_of, n_of
from tilewright import ops
from tilewright.core.expr import Sym
from tilewright.core.types import TensorType, f32, i8, i32
from tilewright.graph.forms.taps import FewTaps


def conv(shape, n_out, kernel, groups=1, dtype=f32, **attrs):
    """A convolution with constant weights, of stride 1 and without padding but for ``attrs``."""
    n = len(kernel)
    given = {"strides": (1,) * n, "pads": ((0, 0),) * n, "dilations": (1,) * n, "groups": groups, **attrs}
    channel = -1 if given.get("layout") == "NHWC" else 1
    w = np.random.default_rng(0).standard_normal((n_out, shape[channel] // groups, *kernel)).astype(dtype.numpy)
    return graph_of(lambda b, x: b(ops.conv, x, b.const(w), **given), TensorType(dtype, shape))


def kernel_left(graph):
    """The kernel after the pass, None where no convolution is left."""
    after = FewTaps().run(graph)
    assert_same(graph, after)
    return next((n.inputs[1].shape[2:] for n in after.nodes() if n.op is ops.conv), None)


def test_taps_that_lie_in_the_padding_always_are_dropped():
    assert kernel_left(conv((2, 3, 1, 1), 4, (3, 3), pads=((1, 1), (1, 1)))) == (1, 1)
    assert kernel_left(conv((2, 3, 1, 6), 4, (3, 3), pads=((1, 1), (1, 1)))) == (1, 3)
    assert kernel_left(conv((1, 3, 4, 4), 4, (3, 3), pads=((6, 6), (6, 6)), dilations=(6, 6))) == (1, 1)
    assert kernel_left(conv((1, 3, 2), 4, (7,), pads=((3, 3),))) == (3,)
    assert kernel_left(conv((1, 2, 3), 4, (3,), pads=((1, 1),), strides=(2,), layout="NHWC")) == (2,)
    assert kernel_left(conv((1, 2, 3), 4, (3,), pads=((2, 0),), strides=(2,), layout="NHWC")) == (1,)


def test_where_no_tap_meets_the_image_the_results_are_zeros():
    """A dilation of some millions, as a damaged file has it, took a padded image of gigabytes."""
    graph = conv((1, 3, 4), 4, (2,), pads=((1 << 23, 1 << 23),), dilations=(1 << 24,))
    after = FewTaps().run(graph)
    assert_same(conv((1, 3, 4), 4, (2,), pads=((5, 5),), dilations=(10,)), after)
    assert n_of(after, ops.conv) == 0


def test_one_tap_of_a_channel_is_a_multiplication():
    for attrs in ({}, {"layout": "NHWC"}, {"strides": (2,)}, {"strides": (3,), "layout": "NHWC"}):
        channels = 5 if attrs.get("layout") else 6
        assert kernel_left(conv((2, 6, 5), channels, (1,), groups=channels, **attrs)) is None
    assert kernel_left(conv((2, 1, 3, 4, 2), 5, (1, 1, 1))) is None
    assert kernel_left(conv((2, 3, 1, 1), 3, (3, 3), groups=3, pads=((1, 1), (1, 1)))) is None
    symbolic = FewTaps().run(conv((Sym("n", 1), 3, Sym("w", 1)), 3, (1,), groups=3))
    assert n_of(symbolic, ops.conv) == 0
    assert n_of(symbolic, ops.mul) == 1


@pytest.mark.parametrize(
    "graph",
    [
        conv((1, 2, 5), 4, (1,)),
        conv((1, 2, 5), 4, (1,), groups=2),
        conv((1, 2, 5), 2, (1,), groups=2, pads=((1, 0),)),
        conv((1, 2, 5), 2, (3,), pads=((1, 1),)),
        conv((1, 2, Sym("w", 1)), 2, (3,), pads=((1, 1),)),
        conv((1, 2, 5), 2, (1,), groups=2, dtype=i8, out_dtype=i32),
    ],
)
def test_others_stay(graph):
    assert FewTaps().run(graph) is graph


@settings(max_examples=30)
@given(st.data())
def test_convolutions_are_the_same(data):
    size, taps = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    pads = data.draw(st.tuples(st.integers(0, 7), st.integers(0, 7)))
    stride, dilation = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    if size + sum(pads) < dilation * (taps - 1) + 1:
        return
    groups = data.draw(st.sampled_from([1, 3]))
    graph = conv((2, 3, size), 6, (taps,), groups, pads=(pads,), strides=(stride,), dilations=(dilation,))
    assert_same(graph, FewTaps().run(graph))
