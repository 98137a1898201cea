"""Scales and shifts by constants end up in weights and biases, and only where that is exact but for rounding."""

import numpy as np
import pytest

from graph.networks import Net
from graph.showing import assert_same, graph_of, n_of, show
from tilewright import ops
from tilewright.core.passes import run_pipeline
from tilewright.core.types import f32
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.graph.canonical.fold import FoldConstants
from tilewright.graph.forms.affine import FoldAffine

X = "f32[2,4,6,6]"


def folded(build, *types):
    before = graph_of(build, *types)
    after = run_pipeline(before, (Canonicalize(), FoldAffine(), FoldConstants(), FoldAffine(), FoldConstants()))
    assert_same(before, after, rtol=2e-4, atol=2e-5)
    return [n.op.name for n in after.nodes() if n.inputs], after


def channel(b, n=8, shape=(-1, 1, 1)):
    return b.const((np.arange(n, dtype=np.float32) - 2.5).reshape(shape))


CASES = {
    "conv, batch norm": (lambda b, net, x: net.batch_norm(net.conv(x, 8)), ["conv", "add"]),
    "conv, bias, batch norm": (lambda b, net, x: net.batch_norm(net.bias(net.conv(x, 8))), ["conv", "add"]),
    "grouped": (lambda b, net, x: net.batch_norm(net.conv(x, 8, groups=2)), ["conv", "add"]),
    "depthwise": (lambda b, net, x: net.batch_norm(net.conv(x, 4, groups=4)), ["conv", "add"]),
    "conv, scale": (lambda b, net, x: b(ops.mul, net.conv(x, 8), channel(b)), ["conv"]),
    "conv, division": (lambda b, net, x: b(ops.div, net.conv(x, 8), channel(b)), ["conv"]),
    "conv, number": (lambda b, net, x: b(ops.mul, net.conv(x, 8), b.const(3.0, f32)), ["conv"]),
    "conv, two shifts": (lambda b, net, x: b(ops.add, net.bias(net.conv(x, 8)), channel(b)), ["conv", "add"]),
    "scale, conv": (lambda b, net, x: net.conv(b(ops.mul, x, channel(b, 4)), 8), ["conv"]),
    "scale, grouped conv": (lambda b, net, x: net.conv(b(ops.mul, x, channel(b, 4)), 8, groups=2), ["conv"]),
    "number, conv": (lambda b, net, x: net.conv(b(ops.mul, x, b.const(3.0, f32)), 8), ["conv"]),
    "shift, conv": (lambda b, net, x: net.conv(b(ops.add, x, channel(b, 4)), 8), ["add", "conv"]),
    "scale by column": (
        lambda b, net, x: b(ops.mul, net.conv(x, 8), channel(b, 6, (6,))), ["conv", "mul"],
    ),
    "scale of a tensor": (lambda b, net, x: b(ops.mul, net.conv(x, 4), x), ["conv", "mul"]),
    "linear": (lambda b, net, x: b(ops.mul, net.linear(x, 8), channel(b, 8, (8,))), ["matmul", "add"]),
    "scale, linear": (lambda b, net, x: net.linear(b(ops.mul, x, channel(b, 6, (6,))), 8), ["matmul", "add"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_rule(case):
    build, expected = case
    assert folded(lambda b, x: build(b, Net(b), x), X)[0] == expected


def test_transposed_convolution():
    def build(b, x):
        w = Net(b).weight(4, 8, 3, 3)
        y = b(ops.conv_transpose, x, w, strides=(2, 2), pads=((1, 1), (1, 1)), dilations=(1, 1), output_padding=(0, 0))
        return b(ops.mul, y, channel(b))

    assert folded(build, X)[0] == ["conv_transpose"]


def test_a_convolution_that_is_read_twice_stays():
    def build(b, x):
        y = Net(b).conv(x, 8)
        return b(ops.mul, y, channel(b)), y

    names, after = folded(build, X)
    assert names == ["conv", "mul"]
    assert n_of(after, ops.mul) == 1, show(after)
