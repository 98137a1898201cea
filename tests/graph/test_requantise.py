"""The passes `move-bytes` and `requantise`: the same bytes from fewer operations and narrower tensors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import ops
from tilewright.core.diag import Loc
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.passes import run_pipeline
from tilewright.core.types import TensorType, f32, i8, i32, u8
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.graph.forms.depthwise import DepthwiseFloats
from tilewright.graph.forms.integers import IntegerProducts
from tilewright.graph.forms.move_bytes import MoveBytes
from tilewright.graph.forms.requantise import Requantise, exact_factors

SCALES = st.floats(2.0**-20, 2.0**20, width=32)


def small(body, *inputs):
    b = Builder(Pool())
    nodes = [b.pool.input(f"x{k}", t, Loc(f'input "x{k}"')) for k, t in enumerate(inputs)]
    return Graph("small", b.pool, tuple(nodes), (body(b, *nodes),), ("y",))


def steps(b, scale=0.1, zero=3, dtype=u8):
    return b.const(scale, f32), b.const(zero, dtype)


def dequantised(b, x, scale=0.1, zero=3):
    return b(ops.dequantize_linear, x, *steps(b, scale, zero, x.dtype), axis=0)


def quantised(b, x, scale=0.1, zero=3, dtype=u8):
    return b(ops.quantize_linear, x, *steps(b, scale, zero, dtype), axis=0, dtype=dtype)


def used(graph):
    return {n.op.name for n in graph.nodes()} - {"input", "const"}


def same(before, after, *arrays):
    np.testing.assert_array_equal(evaluate_graph(after, arrays)[0], evaluate_graph(before, arrays)[0])


def bytes_of(*shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return np.random.default_rng(0).integers(info.min, info.max + 1, shape).astype(dtype)


POOL = {"kernel": (2, 2), "strides": (1, 1), "pads": ((1, 0), (0, 1))}
MOVES = {
    "pool": lambda b, x: b(ops.max_pool, x, **POOL),
    "slice": lambda b, x: b(ops.slice, x, starts=(0, 1, 0, 0), stops=(1, 3, 4, 4), steps=(1, 1, 2, 1)),
    "resize": lambda b, x: b(ops.resize, x, sizes=(1, 3, 8, 8)),
    "pad": lambda b, x: b(ops.pad, x, b.const(0.0, f32), pads=((0, 0), (0, 0), (1, 1), (2, 0))),
    "reshape": lambda b, x: b(ops.reshape, x, shape=(3, 16)),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_numbers_moves_bytes(name):
    graph = small(lambda b, x: quantised(b, MOVES[name](b, dequantised(b, x))), TensorType(u8, (1, 3, 4, 4)))
    after = MoveBytes().run(graph)
    assert used(after) <= {"max_pool", "slice", "resize", "pad", "reshape"}
    same(graph, after, bytes_of(1, 3, 4, 4))


def test_bytes_of_one_scale_are_joined_and_those_of_two_are_not():
    def joined(scale):
        t = TensorType(i8, (2, 3))
        return small(
            lambda b, x, y: b(ops.concat, dequantised(b, x), dequantised(b, y, scale), axis=1), t, t
        )  # fmt: skip

    assert used(MoveBytes().run(joined(0.1))) == {"concat", "dequantize_linear"}
    assert MoveBytes().run(joined(0.1)).outputs[0].op is ops.dequantize_linear
    assert MoveBytes().run(joined(0.2)).outputs[0].op is ops.concat


@pytest.mark.parametrize(
    "body",
    [
        lambda b, x: b(ops.max_pool, x, kernel=(2, 2), strides=(1, 1), pads=((1, 1), (1, 1)), dilations=(4, 4)),
        lambda b, x: b(ops.pad, x, b.const(0.123, f32), pads=((0, 0), (0, 0), (1, 1), (2, 0))),
        lambda b, x: b(ops.resize, x, sizes=(1, 3, 8, 8), mode="linear"),
    ],
    ids=["a window in the padding", "a number without a byte", "interpolation"],
)
def test_what_bytes_can_not_say_stays_in_floats(body):
    graph = small(lambda b, x: body(b, dequantised(b, x)), TensorType(u8, (1, 3, 4, 4)))
    assert MoveBytes().run(graph) is graph


# --- requantise -----------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(SCALES, st.integers(0, 255), st.sampled_from([u8, i8]), st.integers(0, 1 << 30))
def test_a_product_gives_every_float_the_byte_of_the_division(scale, zero, dtype, seed):
    zero = zero if dtype is u8 else zero - 128
    factors = exact_factors(scale, zero, dtype)
    if factors is None:
        return
    rng = np.random.default_rng(seed)
    steps = rng.integers(int(dtype.min) - zero - 2, int(dtype.max) - zero + 2, 2000)
    x = ((steps + rng.choice([0.5, 0.5, 0.49, 0.1], 2000)) * scale).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.array([np.inf, -np.inf, np.nan, 0], np.float32)])
    graph = small(lambda b, x: quantised(b, x, scale, zero, dtype), TensorType(f32, x.shape))
    after = Requantise().run(graph)
    assert "quantize_linear" not in used(after)
    same(graph, after, x)


def test_a_product_is_found_for_nearly_every_scale():
    scales = np.random.default_rng(0).uniform(1e-3, 1, 300).astype(np.float32)
    assert sum(exact_factors(float(s), 128, u8) is not None for s in scales) > 290


@pytest.mark.parametrize("scale", [1e-38, 3e38, 2.0**-126])
def test_scales_at_the_ends_of_floats_keep_the_division(scale):
    assert exact_factors(scale, 0, u8) is None


def layer(b, x, bias, function, scale=2.0**-4, zero=6, step=2.0**-5):
    weights = b.const(bytes_of(4, 5, dtype=np.int8))
    each = (b.const(2.0 ** -np.array([5, 6, 7, 5, 6]).astype(np.float32)), b.const(np.zeros(5, np.int8)))
    y = b(ops.matmul, dequantised(b, x, step, 2), b(ops.dequantize_linear, weights, *each, axis=1))
    return quantised(b, function(b, b(ops.add, y, b.const(bias.astype(np.float32)))), scale, zero)


FUNCTIONS = {
    "relu": lambda b, x: b(ops.relu, x),
    "clip": lambda b, x: b(ops.clamp, x, b.const(-0.25, f32), b.const(6.0, f32)),
    "nothing": lambda b, x: x,
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("bias", [np.arange(-2, 3) * 0.5, np.arange(-2, 3) * 2.0**-14], ids=["steps", "between steps"])
def test_scales_of_a_sum_and_of_its_result_are_one_factor(function, bias):
    """Scales are powers of two, and so both ways are exact."""
    graph = small(lambda b, x: layer(b, x, bias, FUNCTIONS[function]), TensorType(u8, (7, 4)))
    products = IntegerProducts().run(graph)
    after = Requantise().run(products)
    assert "quantize_linear" not in used(after)
    assert sum(n.op is ops.mul and n.dtype is f32 for n in after.nodes()) == 1
    same(graph, after, bytes_of(7, 4))


def test_a_relu_that_saturation_is_costs_nothing():
    def body(b, x):
        return layer(b, x, np.arange(-2, 3) * 0.5, FUNCTIONS["relu"], zero=0)

    passes = (IntegerProducts(), Canonicalize(), Requantise())
    after = run_pipeline(small(body, TensorType(u8, (7, 4))), passes)
    assert used(after) == {"matmul", "add", "cast", "mul", "round"}
    adds = [n for n in after.nodes() if n.op is ops.add]
    assert {n.dtype for n in adds} == {i32}


@pytest.mark.parametrize(
    ("limit", "number", "zero", "goes"),
    [("maximum", 0.0, 0, True), ("maximum", -3.0, 10, True), ("maximum", 0.0, 3, False), ("maximum", 0.5, 0, False),
     ("minimum", 100.0, 3, True), ("minimum", 10.0, 3, False), ("maximum", np.nan, 0, False)],
)  # fmt: skip
def test_limits_that_saturation_has_go_where_nothing_else_reads_them(limit, number, zero, goes):
    op, x = getattr(ops, limit), np.array([-np.inf, -40, -0.2, 0.3, 0.55, 9, 24, 30, np.inf, np.nan], np.float32)

    def body(b, x, is_read=False):
        y = b(op, x, b.const(number, f32))
        bytes_ = quantised(b, y, 0.1, zero)
        return b(ops.add, dequantised(b, bytes_, 0.1, zero), y) if is_read else bytes_

    graph = small(body, TensorType(f32, (10,)))
    after = Requantise().run(graph)
    assert (limit in used(after)) != goes
    same(graph, after, x)
    assert limit in used(Requantise().run(small(lambda b, x: body(b, x, True), TensorType(f32, (10,)))))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rounding_by_a_reciprocal_is_one_factor_too(function):
    def body(b, x):
        y = layer(b, x, np.arange(-2, 3) * 0.5, FUNCTIONS[function]).inputs[0]
        return b(ops.round, b(ops.mul, y, b.const(16.0, f32)))

    graph = small(body, TensorType(u8, (7, 4)))
    after = Requantise().run(IntegerProducts().run(graph))
    assert sum(n.op is ops.mul and n.dtype is f32 for n in after.nodes()) == 1
    same(graph, after, bytes_of(7, 4))


def residual(operand):
    def body(b, x, other):
        y = layer(b, x, np.arange(-2, 3) * 0.5, FUNCTIONS["clip"])
        return quantised(b, b(ops.add, dequantised(b, y, 2.0**-4, 6), operand(b, other)), 2.0**-3, 7)

    return small(body, TensorType(u8, (7, 4)), TensorType(u8, (7, 5)))


def test_a_product_that_is_only_added_to_another_tensor_stays_a_float():
    graph = residual(lambda b, other: dequantised(b, other, 2.0**-3, 1))
    after = Requantise().run(run_pipeline(graph, (IntegerProducts(), Canonicalize())))
    assert sum(n.op is ops.dequantize_linear for n in after.nodes()) == 1
    assert [n.op for n in after.nodes() if n.dtype is u8 and n.inputs] == [ops.cast]
    same(graph, after, bytes_of(7, 4), bytes_of(7, 5))


# --- depthwise convolutions -----------------------------------------------------------------------------------------


def depthwise(greatest, kernel):
    """A depthwise convolution of bytes with a zero point, whose weights are all ``greatest``."""

    def body(b, x):
        w = b.const(np.full((3, 1, kernel, kernel), greatest, np.int8))
        sums = b(ops.conv, x, w, groups=3, dilations=(1, 1), pads=((1, 1), (0, 0)), strides=(1, 1), out_dtype=i32)
        sums = b(ops.add, sums, b.const(np.array([1, -5, 7], np.int32).reshape(1, 3, 1, 1)))
        return b(ops.mul, b(ops.cast, sums, dtype=f32), b.const(0.5, f32))

    return small(body, TensorType(u8, (2, 3, 12, 12)))


def test_sums_of_few_bytes_are_exact_in_floats():
    graph = depthwise(-127, 5)
    after = DepthwiseFloats().run(graph)
    assert {n.dtype for n in after.nodes() if n.op is ops.conv} == {f32}
    same(graph, after, bytes_of(2, 3, 12, 12))


def test_sums_that_floats_can_not_hold_stay_integers():
    graph = depthwise(-128, 12)
    assert DepthwiseFloats(exact_below=1 << 22).run(graph) is graph
