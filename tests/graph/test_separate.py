"""The pass ``separate-windows``: pools over large windows axis by axis, and which pools stay whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from graph.showing import assert_same, graph_of, n_of
from tilewright import ops
from tilewright.core.expr import Sym
from tilewright.core.types import TensorType, bf16, f32, i32
from tilewright.graph.forms.separate import SeparateWindows


def pool(op, shape, dtype=f32, **attrs):
    """A pool over the spatial axes of ``shape``: 5 elements of each, stride 1, without padding, but for ``attrs``."""
    n = len(shape) - 2
    given = {"kernel": (5,) * n, "strides": (1,) * n, "pads": ((0, 0),) * n, **attrs}
    return graph_of(lambda b, x: b(op, x, **given), TensorType(dtype, shape))


def kernels_of(graph):
    """The windows that are left, in order."""
    return [n.attrs["kernel"] for n in SeparateWindows().run(graph).nodes() if "kernel" in n.attrs]


@pytest.mark.parametrize("op", [ops.max_pool, ops.avg_pool])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_large_windows_go_axis_by_axis(op, layout):
    assert kernels_of(pool(op, (1, 9, 9, 9), layout=layout)) == [(5, 1), (1, 5)]
    assert kernels_of(pool(op, (1, 2, 9, 9, 9), layout="NCHW")) == [(5, 1, 1), (1, 5, 1), (1, 1, 5)]
    assert kernels_of(pool(op, (1, Sym("c", 1), Sym("h", 9), Sym("w", 9)), layout=layout)) == [(5, 1), (1, 5)]


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        (ops.max_pool, {"kernel": (2, 2)}),
        (ops.avg_pool, {"kernel": (3, 3)}),
        (ops.avg_pool, {"kernel": (1, 5)}),
        (ops.max_pool, {"kernel": (5, 1)}),
        (ops.max_pool, {"strides": (1, 3)}),
        (ops.avg_pool, {"dtype": bf16}),
        (ops.max_pool_indices, {}),
    ],
)
def test_other_pools_stay_whole(op, attrs):
    graph = pool(op, (1, 3, 9, 9), **attrs)
    assert SeparateWindows().run(graph) is graph


def test_maxima_of_floats_take_longer_than_means():
    """Each step asks for NaN, too."""
    assert kernels_of(pool(ops.max_pool, (1, 3, 9, 9), kernel=(3, 3))) == [(3, 1), (1, 3)]
    assert kernels_of(pool(ops.max_pool, (1, 3, 9, 9), kernel=(3, 3), dtype=i32)) == [(3, 3)]


def test_maxima_of_any_dtype_are_the_same():
    for dtype in (bf16, i32):
        graph = pool(ops.max_pool, (1, 3, 9, 9), dtype, pads=((2, 2), (2, 2)))
        after = SeparateWindows().run(graph)
        assert n_of(after, ops.max_pool) == 2
        assert_same(graph, after, rtol=0, atol=0)


@settings(max_examples=40)
@given(st.data())
def test_any_window_gives_the_same(data):
    """Strides, dilations, padding that counts or not, and rounding up, on two axes or three."""
    n = data.draw(st.integers(2, 3))

    def per_axis(low, high):
        return tuple(data.draw(st.integers(low, high)) for _ in range(n))

    kernel, dilations = (data.draw(st.integers(4, 7)), *per_axis(1, 6)[1:]), per_axis(1, 2)
    pads = tuple((data.draw(st.integers(0, k // 2)), data.draw(st.integers(0, k // 2))) for k in kernel)
    sizes = [(k - 1) * d + 1 + data.draw(st.integers(0, 4)) for k, d in zip(kernel, dilations, strict=True)]
    attrs = {"kernel": kernel, "dilations": dilations, "pads": pads, "strides": per_axis(1, 2)}
    op = data.draw(st.sampled_from([ops.max_pool, ops.avg_pool]))
    if op is ops.avg_pool:
        attrs |= {"count_include_pad": data.draw(st.booleans()), "divisor": data.draw(st.sampled_from([0, 3]))}
        attrs |= {"ceil_pads": per_axis(0, 1)}
    layout = data.draw(st.sampled_from(["NCHW", "NHWC"]))
    graph = pool(op, (2, 3, *sizes) if layout == "NCHW" else (2, *sizes, 3), layout=layout, **attrs)
    assert_same(graph, SeparateWindows().run(graph), atol=1e-4)


def test_a_compiled_pool_with_nan_and_infinity_is_as_it_was():
    x = np.random.default_rng(0).standard_normal((1, 37, 13, 13)).astype(np.float32)
    x[0, 1, 4, 4], x[0, 2, 5, 6], x[0, 3, 7, 8] = np.nan, np.inf, -np.inf
    for op in (ops.max_pool, ops.avg_pool):
        graph = pool(op, x.shape, pads=((2, 2), (2, 2)))
        model = tilewright.compile(graph, cache=False)
        expected = op.reference([x], graph.outputs[0].attrs)
        np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-6)
