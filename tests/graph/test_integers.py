"""Products of quantised tensors multiply the bytes that are stored; what is no such product stays as it is."""

import numpy as np
import pytest

from graph.showing import assert_same, graph_of, n_of
from tilewright import ops
from tilewright.core import types
from tilewright.core.passes import run_pipeline
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.graph.canonical.fold import FoldConstants
from tilewright.graph.forms.integers import IntegerProducts

WINDOW = {"strides": (1, 1), "pads": ((1, 2), (0, 1)), "dilations": (1, 1)}


def rewritten(build, *inputs, **options):
    before = graph_of(build, *inputs)
    after = run_pipeline(before, (Canonicalize(), IntegerProducts(**options)))
    assert_same(before, after, rtol=1e-5, atol=1e-4)
    return after


def products(graph):
    """What each product and convolution reads and makes."""
    found = [n for n in graph.nodes() if n.op in (ops.matmul, ops.conv)]
    return [" ".join(str(t.dtype) for t in (*(i.type for i in n.inputs), n.type)) for n in found]


def constant(b, *shape, dtype=np.int8, low=-128, high=128):
    return b.const(np.random.default_rng(1).integers(low, high, shape).astype(dtype))


def dequantised(b, x, scale=0.25, zero=0, axis=0):
    zeros = np.full(np.shape(scale), zero, x.dtype.numpy)
    return b(ops.dequantize_linear, x, b.const(np.asarray(scale, np.float32)), b.const(zeros), axis=axis)


def centred(b, x, zero):
    return b(ops.sub, b(ops.cast, x, dtype=types.i32), b.const(zero, types.i32))


@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize("zero", [0, 3, 200])
def test_dequantised_product(zero, flips):
    scales = [0.5, 0.25, 2, 1, 3]

    def build(b, x):
        return b(ops.matmul, dequantised(b, x, 0.5, zero), dequantised(b, constant(b, 7, 5), scales, axis=1))

    assert products(rewritten(build, "u8[3,7]", flips=flips)) == ["u8 i8 i32"]


def test_left_operand_is_flipped_for_machines_that_multiply_unsigned_bytes():
    def build(b, x):
        return b(ops.matmul, dequantised(b, x, 0.5, -7), dequantised(b, constant(b, 7, 5)))

    assert products(rewritten(build, "i8[3,7]")) == ["i8 i8 i32"]
    assert products(rewritten(build, "i8[3,7]", flips=True)) == ["u8 i8 i32"]


@pytest.mark.parametrize(("kind", "zero"), [("u16", 0), ("u16", 40000), ("i16", 0), ("i16", -300)])
def test_sixteen_bits_are_two_digits(kind, zero):
    """Each with a zero point of its own, which a convolution pads with; of one with groups the numbers stay floats."""
    scales = np.linspace(1, 2, 6) / 1000

    def build(b, x, image):
        x, image = (dequantised(b, v, 0.001, zero) for v in (x, image))
        weights, grouped = (dequantised(b, constant(b, 6, n, 3, 2), scales) for n in (4, 2))
        window = (b(ops.conv, image, w, groups=n, **WINDOW) for w, n in ((weights, 1), (grouped, 2)))
        return b(ops.matmul, x, dequantised(b, constant(b, 300, 6), scales, axis=1)), *window

    def price(graph):  # bytes are better here
        return float(sum(text == "f32 f32 f32" for text in products(graph)))

    inputs = (f"{kind}[5,300]", f"{kind}[2,4,5,6]")
    assert products(rewritten(build, *inputs, digits=True)) == ["f32 f32 f32"] * 3
    assert sorted(products(rewritten(build, *inputs, digits=True, price=price))) == ["f32 f32 f32", *["u8 i8 i32"] * 4]
    assert products(rewritten(build, *inputs)) == ["f32 f32 f32"] * 3


@pytest.mark.parametrize(("low", "stored"), [(0, "i16"), (20, "i8")])
def test_zero_point_of_weights_is_taken_off_in_as_few_bits_as_hold_them(low, stored):
    def build(b, x):
        weights = b.const(np.linspace(low, 255, 35).astype(np.uint8).reshape(7, 5))
        return b(ops.matmul, centred(b, x, 5), centred(b, weights, 140))

    assert products(rewritten(build, "u8[3,7]")) == [f"u8 {stored} i32"]


@pytest.mark.parametrize("flips", [False, True])
def test_both_known_at_run_time(flips):
    def build(b, x, y):
        return b(ops.matmul, centred(b, x, 5), centred(b, y, 7))

    assert products(rewritten(build, "u8[3,4]", "i8[4,6]", flips=flips)) == ["u8 i8 i32"]


def test_zero_points_by_row_and_by_column():
    def build(b, x):
        rows, columns = b.const(np.array([[1], [2], [3]], np.int32)), b.const(np.arange(5, dtype=np.int32) + 1)
        weights = b(ops.sub, b(ops.cast, constant(b, 7, 5, low=-9, high=9), dtype=types.i32), columns)
        return b(ops.matmul, b(ops.sub, b(ops.cast, x, dtype=types.i32), rows), weights)

    assert products(rewritten(build, "u8[3,7]")) == ["u8 i8 i32"]


@pytest.mark.parametrize("zero", [0, 128])
def test_convolution_pads_with_the_zero_point(zero):
    def build(b, x):
        weights = dequantised(b, constant(b, 6, 2, 3, 2), np.linspace(1, 2, 6))
        return b(ops.conv, dequantised(b, x, 0.5, zero), weights, groups=2, **WINDOW)

    after = rewritten(build, "u8[2,4,5,6]")
    assert products(after) == ["u8 i8 i32"]
    assert n_of(after, ops.pad) == (zero != 0)


def test_transposed_weights():
    def build(b, x):
        weights = dequantised(b, constant(b, 5, 7), np.linspace(1, 2, 5), axis=0)
        return b(ops.matmul, dequantised(b, x), b(ops.transpose, weights, perm=(1, 0)))

    assert products(rewritten(build, "u8[3,7]")) == ["u8 i8 i32"]


def test_scales_along_the_sum_stay_floats():
    def build(b, x):
        return b(ops.matmul, dequantised(b, x), dequantised(b, constant(b, 7, 5), np.linspace(1, 2, 7), axis=0))

    assert products(rewritten(build, "u8[3,7]")) == ["f32 f32 f32"]


def test_floats_stay_where_sums_must_be_those_of_floats():
    def build(b, x):
        return b(ops.matmul, dequantised(b, x), dequantised(b, constant(b, 7, 5)))

    assert products(rewritten(build, "u8[3,7]", floats=False)) == ["f32 f32 f32"]


def test_sums_that_might_not_fit_stay_floats():
    depth = (1 << 31) // (255 * 128) + 300

    def build(b, x):
        return b(ops.matmul, dequantised(b, x, 0.5, 1), dequantised(b, constant(b, depth, 1), axis=0))

    assert products(rewritten(build, f"u8[1,{depth}]")) == ["f32 f32 f32"]


def test_what_a_deep_net_is_made_of_is_looked_at_once():
    """Each block reads the one before it twice, so a look at all that an operand is made of takes 2**60 steps."""

    def build(b, x):
        s, zero = b.const(np.float32(0.5)), b.const(np.uint8(3))
        w = constant(b, 4, 4)
        for _ in range(60):
            y = b(
                ops.matmul,
                dequantised(b, b(ops.quantize_linear, x, s, zero, dtype=types.u8, axis=0), 0.5, 3),
                dequantised(b, w, 2),
            )
            x = b(ops.add, y, x)
        return x

    graph = graph_of(build, "f32[4,4]")
    after = run_pipeline(graph, (Canonicalize(), IntegerProducts()))
    assert products(after) == ["u8 i8 i32"] * 60


def test_weights_that_the_graph_quantises_and_turns_are_constants():
    def build(b, x):
        w = b.const(np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32))
        stored = b(ops.quantize_linear, w, b.const(np.float32(0.05)), b.const(np.int8(0)), dtype=types.i8, axis=0)
        turned = b(ops.transpose, dequantised(b, stored, 0.05), perm=(1, 0))
        return b(ops.matmul, dequantised(b, x, 0.5, 3), turned)

    before = graph_of(build, "u8[3,7]")
    after = run_pipeline(before, (Canonicalize(), FoldConstants(kept=(ops.dequantize_linear.name,)), IntegerProducts()))
    assert_same(before, after, rtol=1e-5, atol=1e-4)
    assert products(after) == ["u8 i8 i32"] and n_of(after, ops.quantize_linear) == 0


@pytest.mark.parametrize("op", [ops.reduce_sum, ops.reduce_mean])
@pytest.mark.parametrize("zero", [0, 130])
def test_a_sum_of_dequantised_bytes_is_one_of_bytes(op, zero):
    def build(b, x):
        return b(op, dequantised(b, x, 0.3, zero), axes=(1, 2))

    after = rewritten(build, "u8[2,5,7,3]")
    assert [n.inputs[0].op for n in after.nodes() if n.op is ops.reduce_sum] == [ops.cast]
    assert n_of(after, ops.dequantize_linear) == n_of(after, ops.reduce_mean) == 0
    assert n_of(rewritten(build, "u8[2,5,7,3]", floats=False), ops.dequantize_linear) == 1
