"""Channels last: the fewest transposes, attributes permuted, and what must not move."""

import numpy as np
import pytest

from graph.networks import NETWORKS, Net
from graph.showing import assert_same, graph_of, n_of, show
from tilewright import ops
from tilewright.core.passes import run_pipeline
from tilewright.core.types import f32
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.graph.canonical.fold import FoldConstants
from tilewright.graph.decompose import Decompose
from tilewright.graph.forms.affine import FoldAffine
from tilewright.graph.forms.layout import Layout
from tilewright.graph.pipeline import LAID_OUT

CLEAN = (Canonicalize(), FoldConstants())
PASSES = (Canonicalize(), FoldAffine(), Decompose(LAID_OUT), *CLEAN, Layout(), Decompose(), *CLEAN)


def laid_out(build, *types):
    before = graph_of(build, *types)
    after = run_pipeline(before, PASSES)
    assert_same(before, after, rtol=1e-4, atol=1e-5)
    assert all(n.attrs["layout"] == "NHWC" for n in after.nodes() if "layout" in n.attrs)
    return after


@pytest.mark.parametrize(("name", "n_transposes"), [
    ("resnet", 1), ("efficient", 1), ("unet", 2), ("patch_embedding", 1),
])  # fmt: skip
def test_transposes_left(name, n_transposes):
    """One at the input; one at the end where the result itself is N, C, H, W."""
    build, types = NETWORKS[name]
    after = laid_out(build, *types)
    assert n_of(after, ops.transpose) == n_transposes
    assert n_of(after, ops.batch_norm) == 0


def between_convs(middle):
    """``middle`` between two convolutions: all transposes but the outer two should go."""

    def build(b, x):
        net = Net(b)
        return net.conv(middle(b, net.conv(x, 6)), 4)

    return build


def k(b, value):
    return b.const(value, f32)


TURNED = {"strides": (2, 2), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "output_padding": (0, 0)}
MIDDLES = {
    "scale per channel": lambda b, y: b(ops.mul, y, b.const(np.arange(6, dtype=np.float32).reshape(6, 1, 1))),
    "group norm": lambda b, y: b(ops.group_norm, y, *(b.const(np.full(6, v, np.float32)) for v in (2, 1)), groups=3),
    "clamp": lambda b, y: b(ops.clamp, y, k(b, 0), k(b, 6)),
    "pad": lambda b, y: b(ops.pad, y, k(b, 1), pads=((0, 0), (0, 1), (2, 3), (1, 0))),
    "slice": lambda b, y: b(ops.slice, y, starts=(0, 1, 2, 0), stops=(2, 5, 7, 8), steps=(1, 1, 1, 2)),
    "concat": lambda b, y: b(ops.concat, y, b(ops.relu, y), axis=1),
    "mean": lambda b, y: b(ops.sub, y, b(ops.reduce_mean, y, axes=(1,), keepdims=True)),
    "softmax over channels": lambda b, y: b(ops.softmax, y, axis=1),
    "roll": lambda b, y: b(ops.roll, y, axes=(1, 3), shifts=(1, -2)),
    "reverse": lambda b, y: b(ops.reverse, y, axes=(2,)),
    "max pool": lambda b, y: b(ops.max_pool, y, kernel=(3, 2), strides=(2, 1), pads=((1, 0), (0, 1))),
    "average pool": lambda b, y: b(ops.avg_pool, y, kernel=(3, 2), strides=(2, 1), pads=((1, 0), (0, 1))),
    "resize": lambda b, y: b(ops.resize, y, sizes=(2, 6, 4, 16), scales=(1, 1, 0.5, 2), mode="linear"),
}  # fmt: skip


@pytest.mark.parametrize("name", MIDDLES)
def test_transposes_cross(name):
    after = laid_out(between_convs(MIDDLES[name]), "f32[2,3,8,8]")
    assert n_of(after, ops.transpose) == 2


def test_phases_of_a_transposed_convolution_take_turns_channels_last():
    weights = np.ones((6, 6, 4, 4), np.float32)
    after = laid_out(
        between_convs(lambda b, y: b(ops.conv_transpose, y, b.const(weights), layout="NCHW", **TURNED)), "f32[2,3,8,8]"
    )
    perms = [n.attrs["perm"] for n in after.nodes() if n.op is ops.transpose]
    assert sorted(map(len, perms)) == [4, 4, 7]
    assert all(p[-1] == 6 for p in perms if len(p) == 7)


@pytest.mark.parametrize("shape", ["f32[2,3,9]", "f32[1,2,4,5,6]"])
def test_one_and_three_spatial_dimensions(shape):
    after = laid_out(between_convs(lambda b, y: b(ops.relu, y)), shape)
    assert n_of(after, ops.transpose) == 2


def test_a_large_operand_from_elsewhere():
    """Its transpose replaces two: the sum is computed channels-last."""

    def build(b, x, y):
        net = Net(b)
        return net.conv(b(ops.add, net.conv(x, 4), y), 4)

    assert n_of(laid_out(build, "f32[2,3,8,8]", "f32[2,4,8,8]"), ops.transpose) == 3


def test_a_vector_from_elsewhere_is_moved_for_free():
    """As a time embedding joins a UNet: its transpose is a view, and it must not drag the image back."""

    def build(b, x, t):
        net = Net(b)
        return net.conv(b(ops.add, net.conv(x, 4), b(ops.reshape, b(ops.exp, t), shape=(2, 4, 1, 1))), 4)

    assert n_of(laid_out(build, "f32[2,3,8,8]", "f32[2,4]"), ops.transpose) == 2


def test_graphs_without_windows_stay():
    before = graph_of(lambda b, x: b(ops.softmax, x, axis=1), "f32[1,2,8]")
    assert Layout().run(before) is before


def test_other_transposes_of_the_model_are_not_moved():
    before = graph_of(
        lambda b, x, y: b(ops.add, b(ops.exp, b(ops.transpose, y, perm=(2, 1, 0))), Net(b).conv(x, 4)),
        "f32[2,3,8]", "f32[8,4,2]",
    )  # fmt: skip
    after = Layout().run(before)
    assert "exp(transpose(y, perm=(2, 1, 0)))" in show(after)
    assert_same(before, after)


def test_tokens_that_become_an_image():
    """As between the attention and the convolutions of a UNet."""

    def build(b, x):
        net = Net(b)
        y = net.conv(x, 6)
        tokens = b(ops.transpose, b(ops.reshape, y, shape=(2, 6, 64)), perm=(0, 2, 1))
        tokens = b(ops.transpose, net.linear(tokens, 6), perm=(0, 2, 1))
        return net.conv(b(ops.add, b(ops.reshape, tokens, shape=(2, 6, 8, 8)), y), 4)

    assert n_of(laid_out(build, "f32[2,3,8,8]"), ops.transpose) == 2


def test_one_element_under_a_transpose():
    """A transpose of one element must not wait for itself."""

    def build(b, x):
        return b(ops.div, b(ops.reduce_sum, Net(b).conv(x, 1), axes=(2,), keepdims=True), k(b, 3))

    laid_out(build, "f32[1,5,2]")
