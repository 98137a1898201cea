"""The pass ``winograd``: when it fires, when not, and that what it allows stays within its error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from graph.showing import assert_same, graph_of, n_of
from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.passes import parse_pipeline, print_pipeline, run_pipeline
from tilewright.core.types import TensorType, f32, f64, i8, i32, u8
from tilewright.graph.forms.winograd import Winograd, expected_error, is_exact
from tilewright.graph.pipeline import PASSES, passes_for
from tilewright.ops.winograd import transformed_weights, transforms
from tilewright.target.target import Target

BATCH = Sym("batch", 1)
LAPLACE = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def convolution(w, size=(28, 28), batch=1, dtype=f32, **attrs):
    """A channels-last convolution of constant weights."""
    n = len(size)
    given = {"strides": (1,) * n, "pads": ((1, 1),) * n, "dilations": (1,) * n, "layout": "NHWC", **attrs}
    channels = w.shape[1] * given.get("groups", 1)

    def build(b, x):
        return b(ops.conv, x, b.const(w.astype(dtype.numpy)), **given)

    return graph_of(build, TensorType(dtype, (batch, *size, channels)))


def tile_of(graph, **options):
    """The tile that the pass chose, or None."""
    after = Winograd(**options).run(graph)
    found = [n for n in after.nodes() if n.op is ops.winograd_conv]
    assert len(found) + n_of(after, ops.conv) == 1
    return found[0].attrs["tile"] if found else None


@pytest.mark.parametrize("batch", [1, 3, BATCH])
def test_large_tiles_for_large_images(batch):
    assert tile_of(convolution(random(64, 64, 3, 3), (56, 56), batch)) == 4


@pytest.mark.parametrize("size", [(Sym("h", 1), 28), (28, Sym("w", 1)), (Sym("h", 1), Sym("w", 1))])
def test_images_may_have_symbolic_sizes(size):
    assert tile_of(convolution(random(64, 64, 3, 3), size)) == 4


@pytest.mark.parametrize(("channels", "size"), [(32, 8), (64, 4), (64, 8), (128, 8), (256, 7), (512, 7)])
def test_a_batch_that_only_a_call_knows_gets_the_form_of_several_images(channels, size):
    """One image's form differs, because it waits for weights; a batch known to be one image keeps that."""
    w = random(channels, channels, 3, 3)
    forms = {n: tile_of(convolution(w, (size, size), n), lanes=8) for n in (1, 8, 64)}
    assert tile_of(convolution(w, (size, size), BATCH), lanes=8) == forms[8] == forms[64]
    assert tile_of(convolution(w, (size, size), Sym("one", 1, 1)), lanes=8) == forms[1]


@pytest.mark.parametrize(("size", "tile"), [(9, 3), (17, 5), (36, 4), (37, 5), (56, 4), (57, 5), (113, 5)])
def test_tiles_that_divide_an_image_best(size, tile):
    assert tile_of(convolution(random(96, 96, 3, 3), (size, size), 3)) == tile


def test_small_tiles_where_large_ones_would_be_cut_or_weights_outweigh_images():
    assert tile_of(convolution(random(128, 128, 3, 3), (8, 8))) == 2
    assert tile_of(convolution(random(512, 512, 3, 3), (7, 7))) == 2


@pytest.mark.parametrize(("size", "per_lane", "tile"), [(14, 1, 4), (14, 2, None), (28, 2, 4), (7, 1, None)])
def test_few_channels_of_small_images_stay_direct_where_their_weights_take_longest(size, per_lane, tile):
    assert tile_of(convolution(random(32, 128, 3, 3), (size, size)), per_lane=per_lane) == tile


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((64, 64, 3, 3), {"strides": (2, 2)}),
        ((64, 64, 3, 3), {"strides": (1, 2)}),
        ((64, 64, 3, 3), {"dilations": (12, 12), "pads": ((12, 12), (12, 12))}),
        ((64, 32, 3, 3), {"groups": 8}),  # half a vector of results each
        ((64, 64, 7, 7), {}),
        ((64, 64, 1, 1), {}),
        ((64, 64, 3, 3), {"dtype": f64}),
        ((64, 64, 3, 3), {"size": (2, 28)}),
        ((64, 3, 3, 3), {}),
        ((8, 64, 3, 3), {}),
        ((1, 64, 3, 3), {}),
        ((64, 64, 3, 3), {"layout": "NCHW", "size": (64, 28), "pads": ((1, 1), (1, 1))}),
    ],
)
def test_all_others_stay_direct(shape, attrs):
    if attrs.get("layout") == "NCHW":  # the graph's input is (1, 64, 28, 64) either way
        attrs = {**attrs, "size": (64, 28)}
    assert tile_of(convolution(random(*shape), **attrs)) is None


@pytest.mark.parametrize(
    ("taps", "frames", "attrs", "tile"),
    [
        (3, 8, {}, 4),
        (1, 8, {"pads": ((0, 0), (1, 1), (1, 1))}, 4),
        (5, 9, {"strides": (2, 1, 1), "dilations": (2, 1, 1), "pads": ((0, 0), (1, 1), (1, 1))}, 4),
        (3, 8, {"strides": (1, 2, 2)}, None),
        (3, 8, {"dilations": (1, 1, 2)}, None),
        (3, Sym("frames", 3), {}, None),
    ],
)
def test_of_a_volume_the_last_two_axes_are_the_image(taps, frames, attrs, tile):
    assert tile_of(convolution(random(64, 64, taps, 3, 3), (frames, 28, 28), **attrs)) == tile


@pytest.mark.parametrize(
    ("kernel", "size", "attrs", "tile"),
    [
        ((3,), (28,), {}, 4),
        ((3,), (1000,), {"dilations": (2,), "pads": ((4, 0),)}, 4),
        ((3,), (999,), {"dilations": (7,), "pads": ((5, 11),)}, 4),
        ((5,), (100,), {"pads": ((2, 2),)}, 3),
        ((4,), (101,), {"pads": ((0, 0),)}, 3),
        ((2,), (401,), {"pads": ((0, 0),), "dilations": (2,)}, 5),
        ((7,), (100,), {}, None),
        ((3,), (100,), {"strides": (2,)}, None),
        ((3,), (Sym("time", 3),), {}, None),
        ((1, 3), (1, 28), {"pads": ((0, 0), (1, 1))}, 4),
        ((3, 1), (28, 5), {"pads": ((1, 1), (0, 0))}, 4),
        ((5, 5), (28, 28), {"pads": ((2, 2), (2, 2))}, 3),
        ((3, 5), (28, 28), {}, 3),
        ((3, 3), (32, 32), {"dilations": (2, 2), "pads": ((2, 2), (2, 2))}, 4),
        ((3, 3), (33, 30), {"dilations": (2, 3), "pads": ((1, 2), (0, 4))}, 5),
        ((1, 3), (5, 30), {"dilations": (4, 2), "pads": ((0, 0), (2, 2))}, 4),
    ],
)
def test_sequences_small_kernels_and_dilations(kernel, size, attrs, tile):
    graph = convolution(random(33, 64, *kernel), size, batch=2, **attrs)
    assert tile_of(graph) == tile
    assert_same(graph, Winograd().run(graph), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "size", "groups", "attrs"),
    [
        ((3, 3), (56, 56), 2, {}),
        ((3, 3), (28, Sym("w", 1)), 4, {}),
        ((5, 3), (28, 28), 2, {"pads": ((2, 2), (1, 1))}),
        ((3, 3), (32, 32), 2, {"dilations": (2, 2), "pads": ((2, 2), (2, 2))}),
        ((3,), (1000,), 2, {"dilations": (2,), "pads": ((4, 0),)}),
        ((3, 3, 3), (8, 28, 28), 2, {}),
    ],
)
def test_groups_whose_results_fill_vectors_are_tiled(kernel, size, groups, attrs):
    graph = convolution(random(32 * groups, 40, *kernel), size, batch=2, groups=groups, **attrs)
    assert tile_of(graph)
    assert tile_of(convolution(random(15 * groups, 40, *kernel), size, batch=2, groups=groups, **attrs)) is None
    if isinstance(size[-1], int):
        assert_same(graph, Winograd().run(graph), rtol=1e-5, atol=1e-4)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize(
    ("n_in", "n_out", "groups", "size"), [(17, 40, 3, (1, 28, 26)), (32, 16, 8, (2, 31, 21)), (12, 33, 2, (3, 39, 25))]
)
def test_groups_compiled(n_in, n_out, groups, size, target, threads):
    """Channels that fill no vectors, blocks of tiles that divide no image, several images."""
    batch, *sides = size
    graph = convolution(random(n_out * groups, n_in, 3, 3), tuple(sides), batch, groups=groups)
    x = random(*graph.inputs[0].shape, seed=1)
    model = tilewright.compile(graph, target=target, threads=threads, cache=False)
    (want,) = evaluate_graph(graph, [x])
    np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-4)


def test_weights_known_at_run_time_only_stay_direct():
    def build(b, x, w):
        return b(ops.conv, x, w, strides=(1, 1), pads=((1, 1),) * 2, dilations=(1, 1), layout="NHWC")

    graph = graph_of(build, TensorType(f32, (1, 28, 28, 64)), TensorType(f32, (64, 64, 3, 3)))
    assert Winograd().run(graph) is graph


def test_the_meaning_stays():
    for m, size in ((5, (20, 15)), (4, (24, 16)), (3, (13, 9)), (2, (5, 6))):
        w = random(33, 40, 3, 3)
        graph = convolution(w, size, batch=2, pads=((0, 1), (2, 0)))
        after = Winograd().run(graph)
        assert [n.attrs["tile"] for n in after.nodes() if n.op is ops.winograd_conv] == [m]
        assert_same(graph, after, rtol=1e-5, atol=1e-4)


def test_the_meaning_of_a_volume_stays():
    given = {"strides": (2, 1, 1), "dilations": (2, 1, 1), "pads": ((1, 2), (0, 1), (2, 0))}
    for m, size in ((3, (6, 13, 9)), (5, (6, 20, 15))):
        graph = convolution(random(33, 40, 3, 3, 3), size, batch=2, **given)
        after = Winograd().run(graph)
        assert [n.attrs["tile"] for n in after.nodes() if n.op is ops.winograd_conv] == [m]
        assert_same(graph, after, rtol=1e-5, atol=1e-4)


def test_only_with_a_vector_width_does_a_pipeline_hold_it():
    assert all(p.name != "winograd" for k in (0, 1, 2) for p in passes_for(k))
    passes = passes_for(2, target=Target.parse("x86-64-v3"))
    assert Winograd(lanes=8, pairs=4, block_bytes=1 << 17) in passes
    assert parse_pipeline(print_pipeline(passes), PASSES) == passes
    assert n_of(run_pipeline(convolution(random(64, 64, 3, 3)), passes), ops.winograd_conv) == 1


# --- the error -------------------------------------------------------------------------------------------------------


def in_tiles(x, w, m):
    """A row of tiles in f32 as a kernel computes it, and its exact result."""
    u = transformed_weights(w, m)
    a, r, matrices = u.shape[0], w.shape[-1], transforms(m, w.shape[-1])
    a_t, b_t = matrices.a_t.astype(np.float32), matrices.b_t.astype(np.float32)
    v = np.einsum("vj,tujc->tuvc", b_t, np.einsum("ui,tijc->tujc", b_t, x))
    products = np.matmul(v.transpose(1, 2, 0, 3), u)
    got = np.einsum("jv,tivk->tijk", a_t, np.einsum("iu,uvtk->tivk", a_t, products))
    want = sum(
        np.einsum("tijc,kc->tijk", x[:, p : p + m, q : q + m].astype(np.float64), w[:, :, p, q].astype(np.float64))
        for p in range(r)
        for q in range(r)
    )
    assert x.shape[1] == a
    return got, want


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("m", "r"), [(2, 3), (3, 3), (4, 3), (5, 3), (2, 5), (3, 5), (3, 4), (4, 4), (5, 2)])
@pytest.mark.parametrize(("channels", "mean"), [(3, 0), (64, 0), (64, 2), (512, 0)])
@pytest.mark.parametrize("kind", ["random", "positive", "laplace", "one", "uneven"])
def test_the_expected_error_is_not_exceeded(m, r, channels, mean, kind):
    w = random(16, channels, r, r)
    w = {
        "random": w,
        "positive": np.abs(w),
        "laplace": np.resize(LAPLACE, (r, r)) * w[:, :, :1, :1],
        "one": np.where(np.arange(r * r).reshape(r, r) == r, w, 0),
        "uneven": w * 10.0 ** np.arange(-8, 8).reshape(16, 1, 1, 1),
    }[kind].astype(np.float32)
    x = (random(64, m + r - 1, m + r - 1, channels, seed=1) + mean).astype(np.float32)
    got, want = in_tiles(x, w, m)
    bound = expected_error(transformed_weights(w, m), w, m)
    assert float(np.abs(got - want).max()) <= 4 * bound * float(np.abs(want).max())


def test_a_large_expected_error_keeps_a_convolution_direct():
    graph = convolution(random(64, 64, 3, 3))
    assert n_of(Winograd(max_error=1e-7).run(graph), ops.conv) == 1
    assert tile_of(convolution(np.zeros((64, 64, 3, 3), np.float32))) is None
    assert tile_of(convolution(np.full((64, 64, 3, 3), np.inf, np.float32))) is None


# --- bytes ----------------------------------------------------------------------------------------------------------

PAIRS = Winograd(lanes=8, pairs=4)


def byte_convolution(w, size, dtype=u8, around=0, groups=1, **attrs):
    """A channels-last convolution of bytes that are padded with a zero point; weights are i8."""
    n = len(size)
    given = {"strides": (1,) * n, "pads": ((0, 0),) * n, "dilations": (1,) * n, "layout": "NHWC", **attrs}

    def build(b, x):
        pads = ((0, 0), *((1, 1),) * n, (0, 0))
        padded = b(ops.pad, x, b.const(around, dtype), pads=pads)
        return b(ops.conv, padded, b.const(w.astype(np.int8)), out_dtype=i32, groups=groups, **given)

    return graph_of(build, TensorType(dtype, (1, *size, w.shape[1] * groups)))


def test_bytes_are_transformed_where_machines_multiply_pairs_of_them():
    graph = byte_convolution(np.ones((64, 64, 3, 3)), (56, 56))
    (tiled,) = [n for n in PAIRS.run(graph).nodes() if n.op is ops.winograd_conv]
    assert tiled.attrs["tile"] == 4
    assert n_of(PAIRS.run(graph), ops.pad) == 0
    assert n_of(Winograd(lanes=8).run(graph), ops.winograd_conv) == 0


def test_on_machines():
    assert Winograd.on(Target.parse("x86-64-v3"), 1).pairs > 0
    assert Winograd.on(Target.parse("znver5"), 1).pairs == 0


@pytest.mark.parametrize(("lowest", "dtype"), [(-128, u8), (127, u8), (-128, i8)])
def test_the_largest_bytes_by_the_largest_weights(lowest, dtype):
    graph = byte_convolution(np.full((32, 64, 3, 3), lowest), (17, 20), dtype, around=int(dtype.max))
    after = PAIRS.run(graph)
    assert n_of(after, ops.winograd_conv) == 1
    x = np.full(graph.inputs[0].shape, dtype.min if dtype is i8 else dtype.max, dtype.numpy)
    np.testing.assert_array_equal(evaluate_graph(after, [x])[0], evaluate_graph(graph, [x])[0])


@settings(max_examples=40, derandomize=True)
@given(st.data())
def test_sums_of_bytes_are_the_same_integers(data):
    kernel = data.draw(st.sampled_from([(3, 3), (3,), (2,), (4,), (2, 3), (4, 2), (1, 3), (3, 1)]))
    size = tuple(data.draw(st.integers(9, 14)) for _ in kernel)
    n_in, dtype = data.draw(st.integers(16, 70)), data.draw(st.sampled_from([u8, i8]))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    w = rng.integers(-128, 128, (32, n_in, *kernel))
    around, groups = data.draw(st.integers(int(dtype.min), int(dtype.max))), data.draw(st.sampled_from([1, 1, 2, 4]))
    graph = byte_convolution(w, size, dtype, around, groups)
    x = rng.integers(int(dtype.min), int(dtype.max) + 1, graph.inputs[0].shape).astype(dtype.numpy)
    after = PAIRS.run(graph)
    np.testing.assert_array_equal(evaluate_graph(after, [x])[0], evaluate_graph(graph, [x])[0])


def test_results_that_might_not_fit_with_their_power_of_two_take_smaller_tiles():
    w = np.full((8, 512, 3, 3), 127, np.int8)
    assert not is_exact(transformed_weights(w, 4), w, 4, 256)
    assert is_exact(transformed_weights(w, 2), w, 2, 256)
    few = w[:, :8]
    assert is_exact(transformed_weights(few, 4), few, 4, 256)
