"""The pass ``in-planes``: lone 1x1 convolutions in N, C order become products, narrow ones on sequences stay in it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from graph.showing import WIDE, assert_same, graph_of, n_of, optimised
from tilewright import ops
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.passes import run_pipeline
from tilewright.core.types import TensorType, f32
from tilewright.graph.forms.planes import InPlanes
from tilewright.graph.pipeline import passes_for


def lone(shape, n_out, groups=1, activation=None, **attrs):
    """A convolution in N, C order, with a bias for each channel."""
    rank, rng = len(shape), np.random.default_rng(0)
    kernel = attrs.pop("kernel", (1,) * (rank - 2))
    given = {"strides": (1,) * (rank - 2), "pads": ((0, 0),) * (rank - 2), "dilations": (1,) * (rank - 2), **attrs}
    w = rng.standard_normal((n_out, shape[1] // groups, *kernel)).astype(np.float32)
    bias = rng.standard_normal((n_out,) + (1,) * (rank - 2)).astype(np.float32)

    def build(b, x):
        y = b(ops.add, b(ops.conv, x, b.const(w), groups=groups, **given), b.const(bias))
        return b(activation, y) if activation else y

    return graph_of(build, TensorType(f32, shape))


def is_product(graph):
    after = optimised(graph)
    return n_of(after, ops.matmul) == 1 and n_of(after, ops.conv) == n_of(after, ops.transpose) == 0


def test_1x1_convolutions_are_products_of_planes():
    assert is_product(lone((1, 256, 37, 37), 64))
    assert is_product(lone((1, 257, 37, 37), 17))
    assert is_product(lone((3, 16, 36, 36), 64, activation=ops.tanh))
    assert is_product(lone((1, 102, 12, 12), 102, groups=6))
    assert is_product(lone((1, 64, 12, 12), 64, groups=16))
    assert is_product(lone((1, 128, 12, 12), 3))
    assert is_product(lone((1, 20, 200), 17))
    assert is_product(lone((Sym("n", 1), 20, 2, 5, 20), 17))
    assert is_product(lone((1, 20, 12, 12), 17, strides=(2, 1))), "of every other row"


@pytest.mark.parametrize(
    ("shape", "n_out", "attrs"),
    [
        ((1, 512, 7, 7), 2048, {}),  # 49 of 64 lanes
        ((8, 256, 2, 2), 64, {}),
        ((1, 20, 12, 12), 17, {"pads": ((1, 0), (0, 0))}),
        ((1, 20, 12, 12), 17, {"kernel": (1, 2)}),
        ((1, 20, Sym("h", 1), 12), 17, {}),
    ],
)
def test_others_stay_convolutions(shape, n_out, attrs):
    assert n_of(optimised(lone(shape, n_out, **attrs)), ops.matmul) == 0


def is_in_planes(graph):
    after = optimised(graph)
    return n_of(after, ops.conv) == 1 and n_of(after, ops.transpose) == 0


@pytest.mark.parametrize(
    ("shape", "n_out", "kernel", "attrs", "stays"),
    [
        ((1, 17, 1000), 17, 3, {"pads": ((1, 1),)}, True),
        ((Sym("n", 1), 257, 1000), 20, 3, {"pads": ((4, 0),), "dilations": (2,)}, True),
        ((3, 1, 1000), 32, 9, {}, True),
        ((1, 64, 20), 64, 3, {}, False),
        ((1, 17, 20), 17, 3, {}, True),
        ((1, 32, 1000), 32, 3, {"pads": ((1, 1),)}, False),
        ((1, 100, 1000), 100, 3, {"pads": ((1, 1),)}, False),
        ((1, 17, 1000), 17, 3, {"strides": (2,)}, True),
        ((1, 34, 1000), 34, 3, {"groups": 2}, True),
        ((1, 17, Sym("t", 3)), 17, 3, {}, False),
    ],
)
def test_narrow_convolutions_on_sequences_keep_their_order(shape, n_out, kernel, attrs, stays):
    assert is_in_planes(lone(shape, n_out, kernel=(kernel,), activation=ops.tanh, **attrs)) == stays


@pytest.mark.parametrize(
    ("shape", "n_out", "kernel", "attrs", "stays"),
    [
        ((1, 3, 64, 64), 3, (5, 5), {"pads": ((2, 2), (2, 2))}, True),
        ((1, 3, 57, 57), 17, (3, 3), {"pads": ((1, 1), (1, 1))}, True),
        ((1, 1, 64, 64), 100, (3, 3), {"pads": ((1, 1), (1, 1))}, True),
        ((1, 1, 28, 28, 28), 100, (3, 3, 3), {"pads": ((1, 1), (1, 1), (1, 1))}, True),
        ((1, 4, 16, 16, 16), 100, (3, 3, 3), {}, False),
        ((1, 36, 37, 37), 36, (3, 3), {"groups": 12}, True),
        ((1, 512, 56, 56), 512, (3, 3), {"groups": 64, "pads": ((1, 1), (1, 1))}, True),
        ((1, 512, 56, 56), 512, (3, 3), {"groups": 32, "pads": ((1, 1), (1, 1))}, False),  # 4.4 ms, in planes 4.8
        ((1, 32, 56, 56), 512, (3, 3), {"groups": 16, "pads": ((1, 1), (1, 1))}, True),  # 2 planes for 32
        ((1, 256, 28, 28), 256, (3, 3), {"groups": 4, "pads": ((1, 1), (1, 1))}, False),
        ((Sym("n", 1), 100, 57, 57), 100, (3, 3), {"groups": 25}, True),
        ((1, 3, 17, 17), 16, (3, 3), {"pads": ((1, 1), (1, 1))}, False),  # rows fill vectors worse
        ((1, 12, 57, 57), 64, (3, 3), {}, False),  # too many channels read all planes
        ((1, 16, 57, 57), 16, (3, 3), {}, True),
        ((1, 32, 32, 32), 32, (7, 7), {"groups": 8}, True),
        ((1, 3, 57, 57), 8, (1, 7), {}, True),
        ((1, 32, 28, 28), 64, (1, 3), {"pads": ((0, 0), (1, 1))}, False),
        ((1, 36, 37, 37), 36, (3, 3), {"groups": 12, "strides": (2, 2)}, True),
        ((1, 36, 37, 37), 36, (3, 3), {"groups": 12, "strides": (4, 4)}, False),
    ],
)
def test_narrow_convolutions_on_images_keep_their_order(shape, n_out, kernel, attrs, stays):
    assert (n_of(optimised(lone(shape, n_out, kernel=kernel, **attrs)), ops.transpose) == 0) == stays


def test_of_narrow_products_windows_alone_are_in_planes():
    def narrow(graph):
        after = run_pipeline(graph, passes_for(2, target=WIDE, per_lane=2))
        return n_of(after, ops.transpose) > 0

    shape, pads = (1, 64, 56, 56), ((1, 1), (1, 1))
    assert not narrow(lone(shape, 64, groups=64, kernel=(3, 3), pads=pads))
    assert narrow(lone((1, 257, 37, 37), 17))
    assert narrow(lone((1, 17, 1000), 17, kernel=(3,), pads=((1, 1),)))


def test_a_convolution_between_others_stays_channels_last():
    def build(b, x):
        w = [b.const(np.ones(s, np.float32)) for s in ((17, 17, 3, 3), (17, 17, 1, 1))]
        plain = {"strides": (1, 1), "dilations": (1, 1)}
        y = b(ops.conv, x, w[0], pads=((1, 1), (1, 1)), **plain)
        return b(ops.conv, y, w[1], pads=((0, 0), (0, 0)), **plain)

    assert n_of(optimised(graph_of(build, TensorType(f32, (1, 17, 12, 12)))), ops.matmul) == 0


def test_a_result_that_is_read_in_both_orders_stays():
    rng = np.random.default_rng(0)

    def build(b, x):
        w = b.const(rng.standard_normal((17, 20, 1, 1)).astype(np.float32))
        last = b(ops.transpose, x, perm=(0, 2, 3, 1))
        attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": ((0, 0), (0, 0)), "layout": "NHWC"}
        y = b(ops.tanh, b(ops.conv, last, w, **attrs))
        return b(ops.transpose, y, perm=(0, 3, 1, 2)), y

    graph = graph_of(build, TensorType(f32, (1, 20, 12, 12)))
    assert InPlanes().run(graph) is graph


@settings(max_examples=7)
@given(st.data())
def test_any_such_convolution_gives_the_same(data):
    groups, sides = data.draw(st.integers(1, 3)), data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    n_in, n_out = groups * data.draw(st.integers(1, 20)), groups * data.draw(st.integers(1, 20))
    activation = data.draw(st.sampled_from([None, ops.tanh, ops.silu]))
    graph = lone((data.draw(st.integers(1, 3)), n_in, *sides), n_out, groups, activation)
    assert_same(graph, optimised(graph), rtol=1e-4, atol=1e-4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("shape", "n_out", "attrs"),
    [
        ((2, 37, 13, 13), 17, {}),
        ((1, 51, 5, 7), 51, {"groups": 3}),
        ((2, 30, 5, 7), 20, {"groups": 10}),
        ((2, 100, 9, 7), 3, {}),
        ((2, 36, 5, 15), 36, {"kernel": (3, 3), "pads": ((1, 1), (1, 1)), "groups": 12, "activation": ops.tanh}),
        ((2, 6, 17, 31), 18, {"kernel": (3, 2), "pads": ((1, 0), (2, -1)), "dilations": (2, 1)}),
        ((2, 37, 45), 17, {"kernel": (5,), "pads": ((2, 3),), "dilations": (2,)}),
        ((3, 3, 101), 37, {"kernel": (4,), "pads": ((3, -1),)}),
    ],
)
def test_compiled(shape, n_out, attrs):
    graph = lone(shape, n_out, **attrs)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    plain = tilewright.compile(graph, optimize=0, cache=False)
    for target in (None, "x86-64-v3"):
        model = tilewright.compile(graph, cache=False, **({"target": target} if target else {}))
        np.testing.assert_allclose(model(x), plain(x), rtol=1e-4, atol=1e-4)


def window(shape, *windows, kernel=3, stride=1, pad=None):
    """Pools and depthwise convolutions (``conv``), one behind the other, with bounds between them."""
    rank = len(shape) - 2
    attrs = {"strides": (stride,) * rank, "pads": ((kernel // 2 if pad is None else pad,) * 2,) * rank}

    def build(b, x):
        for op in windows:
            if op is ops.conv:
                w = np.random.default_rng(0).standard_normal((shape[1], 1, *(kernel,) * rank)).astype(np.float32)
                x = b(op, x, b.const(w), groups=shape[1], dilations=(1,) * rank, **attrs)
                x = b(ops.mul, x, b.const(np.arange(shape[1], dtype=np.float32).reshape(-1, *(1,) * rank)))
            else:
                x = b(op, x, kernel=(kernel,) * rank, **attrs)
            x = b(ops.maximum, x, b.const(-0.5, f32))
        return x

    return graph_of(build, TensorType(f32, shape))


@pytest.mark.parametrize(
    ("shape", "windows"),
    [
        ((1, 128, 30, 32), (ops.conv,)),
        ((2, 64, 45, 48), (ops.max_pool, ops.avg_pool)),
        ((1, 512, 14, 14), (ops.conv, ops.avg_pool)),
        ((1, 256, 600), (ops.conv,)),
        ((Sym("n", 1), 128, 30, 32), (ops.max_pool, ops.conv)),
        ((1, 16, 20, 30, 40), (ops.max_pool,)),
    ],
)
def test_windows_stay_as_they_came(shape, windows):
    graph = window(shape, *windows, kernel=3 if len(shape) < 5 else 2)
    after = optimised(graph)
    assert n_of(after, ops.transpose) == 0
    assert_same(graph, after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", [ops.conv, ops.max_pool])
def test_a_size_beyond_all_memory_is_no_longer_to_decide_about(op):
    """A damaged file may say any size: which taps lie inside of an image was asked of each of its places."""
    assert n_of(optimised(window((1, 3, 2**31 - 1, 8), op, kernel=2)), op) == 1


def correlation(shape, kernel):
    """A depthwise convolution whose weights are an input, as in trackers that compare an image with a template."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, shape))
    w = b.pool.input("w", TensorType(f32, (shape[1], 1, kernel, kernel)))
    ones, zeros = (1, 1), ((0, 0),) * 2
    y = b(ops.conv, x, w, strides=ones, pads=zeros, dilations=ones, groups=shape[1])
    return Graph("g", b.pool, (x, w), (y,), ("y",))


@pytest.mark.parametrize(
    ("shape", "kernel", "stays"),
    [((1, 256, 29, 29), 5, True), ((1, 256, 10, 10), 3, True), ((1, 9, 40, 40), 7, True), ((1, 64, 9, 9), 7, False)],
)
def test_weights_known_at_run_time_stay_as_they_came_too(shape, kernel, stays):
    """The image was transposed there and back around them, which took longer than the windows."""
    graph = correlation(shape, kernel)
    after = optimised(graph)
    assert (n_of(after, ops.transpose) == 0) is stays
    assert_same(graph, after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "windows", "kernel"),
    [
        ((1, 1152, 7, 7), (ops.conv,), 5),
        ((1, 480, 7, 7), (ops.conv,), 7),
        ((1, 512, 7, 7), (ops.conv,), 7),
        ((1, 32, 4, 4), (ops.max_pool,), 3),
        ((1, 128, 30, Sym("w", 1)), (ops.max_pool,), 3),
    ],
)
def test_windows_that_channels_serve_better_are_channels_last(shape, windows, kernel):
    assert n_of(optimised(window(shape, *windows, kernel=kernel)), ops.transpose) == 2


@pytest.mark.parametrize(
    ("shape", "op", "kernel", "stride", "stays"),
    [
        ((1, 64, 56, 56), ops.max_pool, 3, 2, True),
        ((1, 32, 28, 28), ops.max_pool, 3, 2, True),
        ((1, 64, 7, 7), ops.avg_pool, 2, 2, True),
        ((1, 16, 9, 9, 9), ops.max_pool, 3, 3, False),
        ((1, 16, 20, 20, 20), ops.max_pool, 2, 2, True),
        ((1, 64, 56, 56), ops.avg_pool, 4, 4, False),
        ((1, 144, 56, 56), ops.conv, 3, 2, True),
        ((1, 144, 56, 56), ops.conv, 7, 2, False),
        ((1, 64, 1000), ops.conv, 9, 3, False),
        ((1, 64, 1000), ops.conv, 3, 2, True),
        ((1, 257, 17, 17), ops.conv, 3, 1, True),
    ],
)
def test_windows_some_elements_apart(shape, op, kernel, stride, stays):
    graph = window(shape, op, kernel=kernel, stride=stride, pad=0 if kernel == stride else None)
    assert (n_of(optimised(graph), ops.transpose) == 0) is stays


@pytest.mark.parametrize(
    ("shape", "op", "kernel", "stride", "pad", "windows"),
    [
        ((1, 64, 56, 56), ops.avg_pool, 7, 7, 0, [(7, 1), (1, 7)]),
        ((2, 48, 33, 30), ops.max_pool, 5, 5, 0, [(5, 1), (1, 5)]),
        ((1, 16, 20, 20, 20), ops.avg_pool, 4, 4, 1, [(4, 4, 1), (1, 1, 4)]),
        ((1, 2048, 7, 7), ops.avg_pool, 7, 7, 0, [(7, 7)]),  # one result a channel: a sum of its row
    ],
)
def test_pools_of_large_strides_go_along_rows_first(shape, op, kernel, stride, pad, windows):
    """What is brought channels last for the columns is an image of fewer rows."""
    graph = window(shape, op, kernel=kernel, stride=stride, pad=pad)
    after = optimised(graph)
    assert [n.attrs["kernel"] for n in after.nodes() if n.op is op] == windows
    assert_same(graph, after, rtol=1e-5, atol=1e-5)


def test_channels_a_power_of_two_apart_fall_into_few_sets_of_a_cache():
    """What a window's neighbours read again is no longer there, channels last."""
    spread, crowded = (window((1, n, 7, 7), ops.conv, kernel=5) for n in (500, 512))
    assert n_of(optimised(spread), ops.transpose) == 2 and n_of(optimised(crowded), ops.transpose) == 0


def test_a_tile_reads_more_lines_than_two_of_its_results():
    """With a stride, results of a tile have few taps in common: 147 lines where sets hold 64."""
    spread, crowded = (window((1, n, 56, 56), ops.conv, kernel=7, stride=2) for n in (120, 128))
    assert n_of(optimised(spread), ops.transpose) == 2 and n_of(optimised(crowded), ops.transpose) == 0


@settings(max_examples=5)
@given(st.data())
def test_windows_in_planes_compiled(data):
    op = data.draw(st.sampled_from([ops.conv, ops.max_pool, ops.avg_pool]))
    kernel, stride = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3))
    sides = data.draw(st.lists(st.integers(18, 50), min_size=1, max_size=2))
    shape = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 9)), *sides)
    graph = window(shape, op, kernel=kernel, stride=stride, pad=data.draw(st.integers(0, kernel - 1)))
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    plain = tilewright.compile(graph, optimize=0, cache=False)
    for target in (None, "x86-64-v3"):
        model = tilewright.compile(graph, cache=False, threads=2, **({"target": target} if target else {}))
        np.testing.assert_allclose(model(x), plain(x), rtol=1e-4, atol=1e-5)


def test_arithmetic_on_constants_alone_is_no_window():
    def build(b, x):
        both = b(ops.add, *[b.const(np.full((1, 4, 4, 4), k, np.float32)) for k in (1, 2)])
        return b(ops.add, x, b(ops.transpose, both, perm=(0, 3, 1, 2)))

    graph = graph_of(build, TensorType(f32, (1, 4, 4, 4)))
    assert InPlanes().run(graph) is graph


@settings(max_examples=7)
@given(
    perm=st.permutations(range(4)),
    sizes=st.tuples(*[st.integers(1, 7)] * 2),
    mode=st.sampled_from(["linear", "nearest"]),
    twice=st.booleans(),
    scaled=st.booleans(),
)
def test_what_is_enlarged_is_transposed_before(perm, sizes, mode, twice, scaled):
    def build(b, x):
        scales = (1.0, sizes[0] / 3, sizes[1] / 4, 1.0) if scaled else ()
        y = b(ops.resize, x, sizes=(2, *sizes, 3), scales=scales, mode=mode)
        return (b(ops.transpose, y, perm=perm), y) if twice else b(ops.transpose, y, perm=perm)

    before = graph_of(build, TensorType(f32, (2, 3, 4, 3)))
    after = InPlanes().run(before)
    assert_same(before, after)
    moves = sizes[0] * sizes[1] > 3 * 4 and not twice
    assert (after.outputs[0].op is ops.resize) == moves


def test_a_region_that_is_enlarged_stays_where_it_is():
    """Its numbers are all starts and then all ends, of axes in the order of before."""

    def build(b, x):
        region = {"coordinate_mode": "tf_crop_and_resize", "roi": (0, 0.1, 0.2, 0, 1, 0.8, 0.9, 1)}
        y = b(ops.resize, x, sizes=(2, 7, 9, 3), mode="linear", **region)
        return b(ops.transpose, y, perm=(0, 3, 1, 2))

    graph = graph_of(build, TensorType(f32, (2, 3, 4, 3)))
    after = InPlanes().run(graph)
    assert_same(graph, after)
    assert after is graph
