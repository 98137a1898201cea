"""The pass ``pad-first``: convolutions channels last that read their image from a padded copy in N, C order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.showing import WIDE, assert_same, graph_of, n_of
from tilewright import ops
from tilewright.build.passes import FormPrices
from tilewright.core.expr import Sym
from tilewright.core.types import TensorType, f32
from tilewright.graph.forms.pad_first import PadFirst
from tilewright.partition.fuse import partition


def n_padded(graph):
    """A price: the less, the more images are padded by themselves."""
    return -float(n_of(graph, ops.pad))


ALWAYS = PadFirst(price=n_padded)


def conv(shape, kernel, *, n_out=16, groups=1, is_read_again=False, **attrs):
    """A convolution channels last of an image in N, C order, with half of its window around the image."""
    n = len(kernel)
    around = tuple((k // 2, k // 2) for k in kernel)
    window = {"strides": (1,) * n, "pads": around, "dilations": (1,) * n, "groups": groups, **attrs}
    weights = np.random.default_rng(0).standard_normal((n_out, shape[1] // groups, *kernel)).astype(np.float32)

    def built(b, x):
        moved = b(ops.transpose, x, perm=(0, *range(2, n + 2), 1))
        y = b(ops.conv, moved, b.const(weights), layout="NHWC", **window)
        return (y, b(ops.neg, moved)) if is_read_again else y

    return graph_of(built, TensorType(f32, shape))


@given(
    batch=st.integers(1, 2), groups=st.integers(1, 3), per_group=st.integers(2, 4), taps=st.integers(1, 4),
    stride=st.integers(1, 3), dilation=st.integers(1, 2), before=st.integers(0, 2), behind=st.integers(0, 2),
)  # fmt: skip
@settings(max_examples=40)
def test_the_sums_stay_the_same(batch, groups, per_group, taps, stride, dilation, before, behind):
    window = {"strides": (stride, 1), "dilations": (dilation, 1), "pads": ((before, behind), (1, 0))}
    graph = conv((batch, groups * per_group, 9, 5), (taps, 2), n_out=2 * groups, groups=groups, **window)
    after = ALWAYS.run(graph)
    assert_same(graph, after)
    assert n_of(after, ops.pad) == 1


@pytest.mark.parametrize(
    "graph",
    [
        conv((1, 8, 9, 9), (1, 1)),
        conv((1, 8, 9, 9), (3, 3), is_read_again=True),
        conv((1, 8, Sym("h", 1), 9), (3, 3)),
        conv((1, 8, Sym("h", 1), 9), (3, 3), pads=((0, -Sym("h", 1) % 4), (1, 1))),
        conv((1, 8, 9, 9), (3, 3), n_out=8, groups=8),
    ],
    ids=["no padding", "another reader", "a size that a call knows", "pads that a call knows", "depthwise"],
)
def test_others_stay_as_they_are(graph):
    assert n_of(ALWAYS.run(graph), ops.pad) == 0
    assert n_of(PadFirst().run(conv((1, 8, 9, 9), (3, 3))), ops.pad) == 0, "nobody told a price"


def test_the_padded_copy_is_made_by_the_convolution_s_kernel():
    """One kernel pads and reads channels where they lie; it was a transpose and a kernel that copied its result."""
    graph = conv((1, 128, 56, 56), (3, 3), n_out=256, groups=16, strides=(2, 2))
    after = PadFirst(price=FormPrices.on(WIDE).behind(())).run(graph)
    kernels = [[n.op for n in g.members] for g in partition(after, WIDE).groups]
    assert [sorted(op.name for op in ops_) for ops_ in kernels] == [["conv", "pad", "transpose"]]
    assert len(partition(graph, WIDE).groups) == 2
