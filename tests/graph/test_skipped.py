"""The pass ``skip-points``: what a convolution steps over is not brought channels last."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.showing import WIDE, assert_same, graph_of, n_of
from tilewright import ops
from tilewright.core.expr import Sym
from tilewright.core.types import TensorType, f32
from tilewright.graph.forms.skipped import SkipPoints
from tilewright.partition.fuse import partition


def conv(shape, kernel, *, n_out=40, n_readers=1, perm=None, **attrs):
    """A convolution channels last of an image ``shape`` that is transposed by ``perm`` first."""
    n = len(kernel)
    window = {"strides": (1,) * n, "pads": ((0, 0),) * n, "dilations": (1,) * n, **attrs}

    def built(b, x):
        last = b(ops.transpose, x, perm=perm or (0, *range(2, n + 2), 1))
        sizes = (n_readers, n_out, last.shape[-1], *kernel)
        weights = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
        made = [b(ops.conv, last, b.const(w), layout="NHWC", **window) for w in weights]
        return made[0] if n_readers == 1 else b(ops.add, *made)

    return graph_of(built, TensorType(f32, shape))


def brought(graph):
    """The spatial sizes of the image that is brought channels last, and the convolution's window, after the pass."""
    after = SkipPoints().run(graph)
    assert_same(graph, after)
    (node,) = (n for n in after.nodes() if n.op is ops.conv)
    return node.inputs[0].shape[1:-1], node.attrs["strides"], node.attrs["dilations"]


def test_columns_between_taps_are_left_out():
    assert brought(conv((2, 3, 7, 9), (3, 1), strides=(2, 2), pads=((1, 1), (0, 0)))) == ((7, 5), (2, 1), (1, 1))
    assert brought(conv((1, 3, 8, 9), (3, 3), strides=(2, 4), dilations=(2, 2))) == ((4, 5), (1, 2), (1, 1))
    assert brought(conv((1, 3, 20), (3,), strides=(4,), dilations=(8,), pads=((8, 8),))) == ((5,), (1,), (2,))
    assert brought(conv((1, 3, 9), (1,), strides=(3,), pads=((2, 1),))) == ((3,), (1,), (1,)), "from the second on"


@given(
    size=st.integers(1, 12), taps=st.integers(1, 4), stride=st.integers(1, 4), dilation=st.integers(1, 4),
    before=st.integers(-2, 6), behind=st.integers(-2, 6),
)  # fmt: skip
def test_the_sums_stay_the_same(size, taps, stride, dilation, before, behind):
    if size + before + behind >= dilation * (taps - 1) + 1:
        window = {"strides": (stride,), "dilations": (dilation,), "pads": ((before, behind),)}
        graph = conv((1, 2, size), (taps,), **window)
        assert_same(graph, SkipPoints().run(graph))


@pytest.mark.parametrize(
    "graph",
    [
        conv((1, 3, 7, 7), (3, 3), strides=(2, 2), pads=((1, 1), (1, 1))),
        conv((1, 3, 7), (1,)),
        conv((1, 3, Sym("w", 1)), (1,), strides=(2,)),
        conv((1, 3, 7), (1,), strides=(2,), n_readers=2),
        conv((1, 3, 7), (1,), strides=(2,), n_out=13),
    ],
)
def test_images_that_are_read_whole_or_by_few_products_stay(graph):
    assert n_of(SkipPoints().run(graph), ops.slice) == 0


def test_what_is_brought_without_the_points_is_a_kernel_of_its_own():
    """Where the product would read the image through the transpose, there is nothing to leave out."""
    for n_out in (8, 31, 32, 64):
        graph = SkipPoints().run(conv((1, 70, 40, 40), (1, 1), strides=(2, 2), n_out=n_out))
        fired = n_of(graph, ops.slice) == 1
        assert fired == (n_out >= 32), "a quarter of the image, by eight products of each element of the whole"
        kernels = [[n.op for n in g.members] for g in partition(graph, WIDE).groups]
        assert (len(kernels) == 2) == fired, "the slice is part of the transpose"


def test_axes_in_another_order_are_cut_where_they_come_from():
    graph = conv((6, 2, 9, 3), (1, 1), strides=(2, 3), n_out=50, perm=(1, 2, 0, 3))
    assert brought(graph) == ((5, 2), (1, 1), (1, 1))
    (cut,) = (n for n in SkipPoints().run(graph).nodes() if n.op is ops.slice)
    assert cut.attrs["steps"] == (3, 1, 2, 1)
