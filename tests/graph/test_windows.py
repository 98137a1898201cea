"""Windows larger than what they slide over: taps that meet only padding go, and nothing else changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.showing import assert_same, graph_of
from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.core.diag import TilewrightError
from tilewright.graph.canonical.canonicalize import Canonicalize

POOLS = (ops.max_pool, ops.max_pool_indices, ops.avg_pool)


def pooled(op, shape, **attrs):
    """The graph of one pool of f32, before and after ``canonicalize``."""
    dims = ",".join(str(n) for n in shape)
    graph = graph_of(lambda b, x: b.results(b(op, x, **attrs))[0], f"f32[{dims}]")
    return graph, Canonicalize().run(graph)


def kernel_of(graph):
    """The window of the only pool; None where it went."""
    return next((n.attrs["kernel"] for n in graph.nodes() if n.op in POOLS), None)


@pytest.mark.parametrize("op", POOLS)
def test_a_window_over_all_there_is_becomes_as_large_as_that(op):
    """EfficientNet's pool of 2560x2560 once read a copy of 33 GB of an image of 2x2."""
    more = {"ceil_pads": (2558, 2557), "count_include_pad": True} if op is ops.avg_pool else {}
    pads = ((0, 0), (0, 0)) if more else ((0, 2558), (0, 2557))
    attrs = {"kernel": (2560, 2560), "strides": (2560, 2560), "pads": pads, **more}
    graph, smaller = pooled(op, (1, 4, 2, 3), **attrs)
    assert kernel_of(smaller) in ((2, 3), None)
    x = np.random.default_rng(0).standard_normal((1, 4, 2, 3)).astype(np.float32)
    if op is not ops.max_pool_indices:
        expected = x.mean((2, 3), keepdims=True) if op is ops.avg_pool else x.max((2, 3), keepdims=True)
        np.testing.assert_allclose(compile_graph(graph)(x), expected, rtol=1e-6)


axis = st.tuples(
    st.integers(1, 4), st.integers(1, 9), st.integers(1, 10), st.integers(0, 4), st.integers(0, 4), st.integers(1, 3)
)


@given(
    axes=st.lists(axis, min_size=1, max_size=2), op=st.sampled_from(POOLS), layout=st.sampled_from(("NCHW", "NHWC")),
    ceil=st.integers(0, 5), counts_pads=st.booleans(), divisor=st.sampled_from((0, 0, 7)),
)  # fmt: skip
def test_large_windows_stay_what_they_are(axes, op, layout, ceil, counts_pads, divisor):
    sizes, kernel, strides, lo, hi, dilations = (tuple(v) for v in zip(*axes, strict=True))
    shape = (2, 3, *sizes) if layout == "NCHW" else (2, *sizes, 3)
    attrs = {
        "kernel": kernel, "strides": strides, "pads": tuple(zip(lo, hi, strict=True)), "dilations": dilations,
        "layout": layout,
    }  # fmt: skip
    if op is ops.avg_pool:
        attrs |= {"count_include_pad": counts_pads, "divisor": divisor, "ceil_pads": (ceil,) * len(sizes)}
    try:
        graph, smaller = pooled(op, shape, **attrs)
    except TilewrightError:  # a window that does not fit
        return
    assert_same(graph, smaller)
