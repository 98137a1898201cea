"""Fusion reads as its specification: which ops end up in one kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright import ops
from tilewright.core import types
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import TensorType
from tilewright.graph.decompose import Decompose
from tilewright.partition.fuse import partition
from tilewright.target.target import Target

WIDE = Target.parse("x86-64-v4")
SMALL_CACHE = replace(WIDE, l2_bytes=1 << 19)


class Net:
    """A graph in the making; ``kernels`` lists the ops of each kernel."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.b = Builder(self.pool)
        self.inputs: list[Node] = []

    def input(self, *shape: int | Sym) -> Node:
        self.inputs.append(self.pool.input(f"x{len(self.inputs)}", TensorType(types.f32, shape)))
        return self.inputs[-1]

    def weight(self, *shape: int) -> Node:
        return self.pool.const(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))

    def kernels(self, *outputs: Node, target: Target = WIDE, fuse: bool = True) -> list[list[str]]:
        graph = Graph("g", self.pool, tuple(self.inputs), outputs, tuple(f"y{k}" for k in range(len(outputs))))
        graph = Decompose().run(graph)
        order = graph.nodes()
        return [[n.op.name for n in order if n in g.members] for g in partition(graph, target, fuse=fuse).groups]


def test_epilogue_joins_its_product() -> None:
    n = Net()
    x, w = n.input(Sym("B", 1), 16), n.weight(16, 32)
    y = n.b(ops.relu, n.b(ops.add, n.b(ops.matmul, x, w), n.weight(32)))
    assert n.kernels(y) == [["matmul", "add", "maximum"]]


def test_a_product_for_each_element_of_the_last_axis_reads_copies() -> None:
    """``ikc, jkc -> ijc``; where the axis that walks memory is summed, or a product reads elements few times, none."""
    n = Net()

    def kernels(perm: tuple[int, int, int], rows: int = 32) -> list[list[str]]:
        x, y = n.input(rows, 32, 4), n.input(32, 32, 4)
        x, y = n.b(ops.transpose, x, perm=perm), n.b(ops.transpose, y, perm=(2, 1, 0))
        return n.kernels(n.b(ops.matmul, x, y))

    assert kernels((2, 0, 1)) == [["transpose"], ["transpose"], ["matmul"]]
    assert ["transpose", "matmul"] in kernels((2, 0, 1), rows=4)  # of y each element is read four times
    q, k = (n.b(ops.transpose, n.input(2, 32, 4, 16), perm=(0, 2, 1, 3)) for _ in range(2))
    scores = n.b(ops.matmul, q, n.b(ops.transpose, k, perm=(0, 1, 3, 2)))
    assert n.kernels(scores) == [["transpose", "transpose", "transpose", "matmul"]]


def test_copies_for_a_product_are_seen_through_views() -> None:
    n = Net()
    x, y = (n.b(ops.transpose, n.input(32, 32, 8), perm=(2, 0, 1)) for _ in range(2))
    x, y = (n.b(ops.reshape, v, shape=(2, 4, 32, 32)) for v in (x, y))
    assert n.kernels(n.b(ops.matmul, x, y))[:2] == [["transpose"], ["transpose"]]


def test_rows_that_data_choose_are_turned_apart() -> None:
    """A permutation would walk across them; short ones are not worth a kernel."""
    n = Net()

    def kernels(width: int) -> list[list[str]]:
        at = n.pool.input("at", TensorType(types.i64, (40,)))
        n.inputs.append(at)
        y = n.b(ops.mul, n.b(ops.gather, n.input(30, width), at, axis=0), n.input(40, 1))
        return n.kernels(n.b(ops.transpose, y, perm=(1, 0)))

    assert kernels(32) == [["gather", "mul"], ["transpose"]]
    assert kernels(4) == [["gather", "mul", "transpose"]]


def test_long_chains_are_computed_once_for_all_elements_behind_a_view() -> None:
    n = Net()

    def kernels(width: int) -> list[list[str]]:
        weight = n.b(ops.sigmoid, n.b(ops.tanh, n.input(4096)))
        return n.kernels(n.b(ops.mul, n.input(4096, width), n.b(ops.reshape, weight, shape=(4096, 1))))

    assert len(kernels(32)) == 2
    assert len(kernels(2)) == 1


def test_a_window_reads_along_rows() -> None:
    """What comes as N, C, spatial is written as N, spatial, C before a window loads each element many times."""
    n = Net()
    x = n.b(ops.transpose, n.input(1, 8, 5, 5), perm=(0, 2, 3, 1))
    attrs = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "layout": "NHWC"}
    depthwise = n.b(ops.conv, x, n.weight(8, 1, 3, 3), groups=8, **attrs)
    dense = n.b(ops.conv, x, n.weight(4, 8, 3, 3), groups=1, **attrs)
    assert n.kernels(depthwise) == [["transpose"], ["conv"]]
    assert n.kernels(dense) == [["transpose", "conv"]]


def test_a_padded_convolution_of_many_channels_reads_them_next_to_each_other() -> None:
    """Its padded copy would keep the order N, C, spatial; a few channels (a picture's) are copied as they come."""
    n = Net()
    attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "layout": "NHWC"}

    def kernels(n_channels: int, pad: int) -> list[list[str]]:
        x = n.b(ops.transpose, n.input(1, n_channels, 5, 5), perm=(0, 2, 3, 1))
        return n.kernels(n.b(ops.conv, x, n.weight(4, n_channels, 3, 3), pads=((pad, pad), (pad, pad)), **attrs))

    assert kernels(32, 1) == [["transpose"], ["conv"]]
    assert kernels(32, 0) == kernels(3, 1) == [["transpose", "conv"]]


def test_phases_that_take_turns_are_how_a_product_is_written() -> None:
    """Unless their rows are short."""
    n = Net()
    for channels in (32, 4):
        y = n.b(ops.add, n.b(ops.matmul, n.input(6, 16), n.weight(16, 2 * channels)), n.weight(2 * channels))
        y = n.b(ops.transpose, n.b(ops.reshape, y, shape=(2, 3, 2, channels)), perm=(0, 2, 1, 3))
        wanted = [["matmul", "add", "reshape", "transpose"]]
        assert (n.kernels(y) == wanted) == (channels == 32)


def test_what_a_scatter_begins_with_is_filled_in_by_its_kernel() -> None:
    n = Net()
    index = n.pool.const(np.zeros((4, 2), np.int64))
    zeros = n.b(ops.expand, n.b.const(0.0, types.f32), shape=(4, 9))
    y = n.b(ops.scatter_elements, zeros, index, n.input(4, 2), axis=1, reduction="add")
    assert n.kernels(y) == [["expand", "scatter_elements"]]
    row = n.b(ops.expand, n.input(9), shape=(4, 9))
    assert ["scatter_elements"] in n.kernels(n.b(ops.scatter_elements, row, index, n.weight(4, 2), axis=1))


def test_residual_joins_the_last_product() -> None:
    n = Net()
    x = n.input(4, 32)
    branch = n.b(ops.matmul, n.b(ops.relu, n.b(ops.matmul, x, n.weight(32, 32))), n.weight(32, 32))
    assert n.kernels(n.b(ops.add, branch, x)) == [["matmul", "maximum"], ["matmul", "add"]]


def test_arithmetic_stays_out_of_a_products_operands() -> None:
    n = Net()
    x = n.input(4, 32)
    y = n.b(ops.matmul, n.b(ops.reshape, n.b(ops.exp, x), shape=(4, 32)), n.weight(32, 8))
    assert n.kernels(y) == [["exp"], ["reshape", "matmul"]]


def test_arithmetic_stays_out_of_operands_behind_a_view() -> None:
    n = Net()
    x = n.input(1, 4, 32)
    y = n.b(ops.matmul, n.b(ops.reshape, n.b(ops.exp, x), shape=(4, 32)), n.weight(32, 8))
    assert ["exp"] in n.kernels(y)


def test_transposes_are_read_through() -> None:
    n = Net()
    q, k = n.input(2, 8, 4, 16), n.input(2, 8, 4, 16)
    q, k = n.b(ops.transpose, q, perm=(0, 2, 1, 3)), n.b(ops.transpose, k, perm=(0, 2, 3, 1))
    assert n.kernels(n.b(ops.matmul, q, k)) == [["transpose", "transpose", "matmul"]]


@pytest.mark.parametrize(
    ("channels", "side", "n_out", "apart"),
    [(96, 32, 64, True), (96, 31, 64, False), (48, 32, 64, False), (96, 32, 4, False)],
)
def test_sums_whose_terms_lie_in_as_many_pages_are_read_from_a_copy(
    channels: int, side: int, n_out: int, *, apart: bool
) -> None:
    """A plane of 32x32 fills a page, and a core knows 64; four products of each element don't pay for a copy."""
    n = Net()
    x = n.b(ops.transpose, n.input(1, channels, side, side), perm=(0, 2, 3, 1))
    plain: dict[str, object] = {"strides": (1, 1), "pads": ((0, 0), (0, 0)), "dilations": (1, 1), "layout": "NHWC"}
    y = n.b(ops.conv, x, n.weight(n_out, channels, 1, 1), **plain)
    kernels = n.kernels(y, target=replace(WIDE, page_bytes=4096, n_near_pages=64))
    assert (["transpose"] in kernels) == apart


@pytest.mark.parametrize(("channels", "side", "apart"), [(96, 32, True), (96, 31, False), (48, 32, False)])
def test_padding_reads_a_copy_of_what_lies_in_as_many_pages(channels: int, side: int, *, apart: bool) -> None:
    n = Net()
    x = n.b(ops.transpose, n.input(1, channels, side, side), perm=(0, 2, 3, 1))
    y = n.b(ops.pad, x, n.b.const(np.float32(0)), pads=((0, 0), (1, 1), (1, 1), (0, 0)), mode="constant")
    kernels = n.kernels(y, target=replace(WIDE, page_bytes=4096, n_near_pages=64))
    assert kernels == ([["transpose"], ["pad"]] if apart else [["transpose", "pad"]])


@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax])
def test_softmax_is_one_kernel(op: OpDef) -> None:
    n = Net()
    assert len(n.kernels(n.b(op, n.input(Sym("B", 1), 100), axis=1))) == 1


def test_layer_norm_is_one_kernel() -> None:
    n = Net()
    y = n.b(ops.layer_norm, n.input(8, 64), n.weight(64), n.weight(64), axis=1, epsilon=1e-5)
    assert len(n.kernels(y)) == 1


def test_a_kernel_reduces_rows_so_often_at_most() -> None:
    """A schedule compares each of its reductions with all others: 300 in two kernels took seconds to compile."""
    n = Net()
    x = n.input(4, 8)
    for _ in range(2 * EFFORT.listed):
        x = n.b(ops.sub, x, n.b(ops.reduce_sum, x, axes=(1,), keepdims=True))
    counts = [k.count("reduce_sum") for k in n.kernels(x)]
    assert max(counts) == EFFORT.listed and sum(counts) == 2 * EFFORT.listed and len(counts) < 5


def test_a_value_with_two_readers_is_computed_once() -> None:
    n = Net()
    e = n.b(ops.exp, n.input(4, 32))
    y, z = n.b(ops.matmul, e, n.weight(32, 8)), n.b(ops.matmul, e, n.weight(32, 9))
    assert sum("exp" in k for k in n.kernels(y, z)) == 1


def test_arithmetic_between_a_product_and_a_reduction_stays_with_the_product() -> None:
    n = Net()
    y = n.b(ops.relu, n.b(ops.matmul, n.input(4, 32), n.weight(32, 8)))
    assert n.kernels(n.b(ops.reduce_sum, y, axes=(1,), keepdims=False)) == [["matmul", "maximum"], ["reduce_sum"]]


def test_without_fusion_each_op_is_a_kernel() -> None:
    n = Net()
    y = n.b(ops.relu, n.b(ops.matmul, n.input(4, 32), n.weight(32, 8)))
    assert n.kernels(y, fuse=False) == [["matmul"], ["maximum"]]


def attention(n: Net, x: Node, k: Node, v: Node) -> Node:
    scores = n.b(ops.tanh, n.b(ops.matmul, x, k))
    e = n.b(ops.exp, n.b(ops.sub, scores, n.b(ops.reduce_max, scores, axes=(2,), keepdims=True)))
    total = n.b(ops.reduce_sum, e, axes=(2,), keepdims=True)
    return n.b(ops.div, n.b(ops.matmul, e, v), total)


def test_products_with_row_reductions_between_are_one_kernel() -> None:
    n = Net()
    out = attention(n, n.input(2, 20, 8), n.input(2, 8, 30), n.input(2, 30, 8))
    chain = ["matmul", "tanh", "reduce_max", "sub", "exp", "matmul", "reduce_sum", "div"]
    (kernel,) = n.kernels(n.b(ops.transpose, out, perm=(1, 0, 2)))
    assert sorted(kernel) == sorted([*chain, "transpose"])


def test_weights_that_something_else_reads_end_a_chain() -> None:
    n = Net()
    scores = n.b(ops.matmul, n.input(2, 20, 8), n.input(2, 8, 30))
    weights = n.b(ops.softmax, scores, axis=2)
    assert len(n.kernels(n.b(ops.matmul, weights, n.input(2, 30, 8)), weights)) == 3


def test_products_without_reductions_between_or_with_constants_are_apart() -> None:
    n = Net()
    x, k, v = n.input(2, 20, 8), n.input(2, 8, 30), n.input(2, 30, 8)
    assert len(n.kernels(n.b(ops.matmul, n.b(ops.tanh, n.b(ops.matmul, x, k)), v))) == 2
    assert len(n.kernels(attention(n, x, n.weight(2, 8, 30), v))) > 1


NHWC = {"dilations": (1, 1), "layout": "NHWC"}


def expanded(n: Net, h: Dim, channels: int, batch: Dim = 1) -> Node:
    product = n.b(
        ops.conv, n.input(batch, h, h, 4), n.weight(channels, 4, 1, 1), strides=(1, 1), pads=((0, 0),) * 2, **NHWC
    )
    return n.b(ops.relu, product)


def depthwise(n: Net, x: Node, k: int, stride: int) -> Node:
    how = {"strides": (stride, stride), "pads": ((k // 2, k // 2),) * 2, "groups": x.shape[-1]}
    return n.b(ops.conv, x, n.weight(int(str(x.shape[-1])), 1, k, k), **how, **NHWC)


@pytest.mark.parametrize(("k", "stride"), [(3, 1), (3, 2), (5, 1)])
def test_a_window_over_a_large_map_has_what_makes_the_map(k: int, stride: int) -> None:
    n = Net()
    y = n.b(ops.relu, depthwise(n, expanded(n, 64, 64), k, stride))
    assert n.kernels(y, target=SMALL_CACHE) == [["conv", "maximum", "conv", "maximum"]]


@pytest.mark.parametrize(("h", "k", "stride"), [(16, 3, 1), (64, 2, 2), (64, 1, 1)])
def test_small_maps_and_windows_that_do_not_overlap_are_read_from_memory(h: int, k: int, stride: int) -> None:
    n = Net()
    assert n.kernels(depthwise(n, expanded(n, h, 64), k, stride), target=SMALL_CACHE) == [["conv", "maximum"], ["conv"]]


@pytest.mark.parametrize(("h", "is_one"), [(64, True), (24, True), (4, False), (Sym("h", 3), False)])
def test_a_window_over_images_of_a_run_time_number(h: Dim, is_one: bool) -> None:
    """A mean over batches is large where one image is not; where a call decides more, it is read from memory."""
    n = Net()
    y = n.b(ops.relu, depthwise(n, expanded(n, h, 64, Sym("n", 1)), 3, 1))
    assert (len(n.kernels(y, target=SMALL_CACHE)) == 1) is is_one


def projection(n: Net, h: int, channels: int, out: int, batch: int | Sym = 1) -> tuple[Node, Node]:
    """What a depthwise convolution makes, and a pointwise one of it."""
    made = n.b(ops.relu, depthwise(n, n.input(batch, h, h, channels), 3, 1))
    return made, n.b(ops.conv, made, n.weight(out, channels, 1, 1), strides=(1, 1), pads=((0, 0),) * 2, **NHWC)


@pytest.mark.parametrize(
    ("h", "channels", "out", "batch", "pays"),
    [
        (112, 32, 16, 1, True),
        (256, 32, 16, 1, True),
        (128, 144, 24, 1, True),
        (28, 192, 32, 8, True),
        (256, 32, 16, Sym("n", 1), True),
        (56, 144, 24, 1, False),  # little more than the cache holds
        (28, 192, 32, 1, False),  # less
        (28, 192, 32, Sym("n", 1), True),
        (28, 192, 32, Sym("n", 1, 2), False),
        (112, 32, 128, 8, False),  # memory is fast beside so many products
        (14, 576, 96, 8, False),
        (64, 8192, 16, 1, False),  # weights beside which rows find no place
        (200, 256, 16, 1, False),  # two rows of 200 KB each
    ],
)
def test_a_window_is_made_for_a_product_where_memory_takes_long(
    h: int, channels: int, out: int, batch: int | Sym, pays: bool
) -> None:
    n = Net()
    made, y = projection(n, h, channels, out, batch)
    apart, together = [["conv", "maximum"], ["conv"]], [["conv", "maximum", "conv"]]
    assert n.kernels(y) == (together if pays else apart)
    assert n.kernels(y, n.b(ops.exp, made))[:2] == apart


def test_what_decides_a_projection_is_the_core() -> None:
    n = Net()
    _, y = projection(n, 256, 32, 16)
    assert len(n.kernels(y, target=replace(WIDE, vector_bytes=16))) == 2  # arithmetic takes longer there
    assert len(n.kernels(y, target=replace(WIDE, l2_bytes=1 << 24))) == 2
    _, y = projection(n, 56, 144, 24)
    assert len(n.kernels(y, target=replace(WIDE, l2_bytes=1 << 19))) == 1


def test_a_product_of_other_places_than_its_own_is_apart() -> None:
    n = Net()
    made, _ = projection(n, 256, 32, 16)
    strided = n.b(ops.conv, made, n.weight(16, 32, 1, 1), strides=(2, 2), pads=((0, 0),) * 2, **NHWC)
    wide = n.b(ops.conv, made, n.weight(16, 32, 3, 3), strides=(1, 1), pads=((1, 1),) * 2, **NHWC)
    by_value = n.b(ops.matmul, made, n.input(32, 16))
    for y in (strided, wide, by_value):
        assert len(n.kernels(y)) == 2


@pytest.mark.parametrize(
    ("h", "channels", "stride", "together"), [(256, 32, 1, True), (256, 96, 2, True), (256, 144, 2, False)]
)
def test_an_inverted_residual_over_large_maps_is_one_kernel(h: int, channels: int, stride: int, together: bool) -> None:
    """While the rows of the expanded map that two of the result are made of fit in half of the cache."""
    n = Net()
    made = n.b(ops.relu, depthwise(n, expanded(n, h, channels), 3, stride))
    y = n.b(ops.conv, made, n.weight(16, channels, 1, 1), strides=(1, 1), pads=((0, 0),) * 2, **NHWC)
    parts = [["conv", "maximum", "conv", "maximum"], ["conv"]]
    assert n.kernels(y) == ([[*parts[0], *parts[1]]] if together else parts)


def test_a_map_that_something_else_reads_is_written() -> None:
    n = Net()
    x = expanded(n, 64, 64)
    assert n.kernels(depthwise(n, x, 3, 1), n.b(ops.exp, x), target=SMALL_CACHE)[0] == ["conv", "maximum"]


def test_long_chains_that_would_be_repeated_get_a_kernel() -> None:
    """What all channels share is computed once; short chains and few repetitions stay inside."""

    def n_kernels(steps: int, channels: int, points: int = 4096) -> int:
        net = Net()
        x, y = net.input(channels, points), net.input(1, points)
        for k in range(steps):
            y = net.b(ops.mul, net.b(ops.add, y, net.b.const(float(k), types.f32)), net.b.const(0.5, types.f32))
        return len(net.kernels(net.b(ops.add, x, y)))

    assert n_kernels(12, 64) == 2
    assert n_kernels(3, 64) == n_kernels(12, 2) == n_kernels(12, 64, points=16) == 1


def test_a_widened_residual_is_squared_where_its_norm_sums() -> None:
    """A norm of narrow sums that others read too reads those, and no squares of twice as many bytes."""
    n = Net()
    x = n.pool.input("x", TensorType(types.bf16, (16, 64)))
    w = n.pool.input("w", TensorType(types.bf16, (64, 64)))
    r = n.pool.input("r", TensorType(types.bf16, (16, 64)))
    n.inputs += [x, w, r]
    residual = n.b(ops.add, r, n.b(ops.matmul, x, w))
    wide = n.b(ops.cast, residual, dtype=types.f32)
    mean = n.b(ops.reduce_mean, n.b(ops.mul, wide, wide), axes=(1,), keepdims=True)
    normal = n.b(ops.cast, n.b(ops.mul, wide, n.b(ops.rsqrt, mean)), dtype=types.bf16)
    kernels = n.kernels(residual, normal)
    assert len(kernels) == 2 and "reduce_sum" in kernels[1] and kernels[1].count("mul") >= 2, kernels
