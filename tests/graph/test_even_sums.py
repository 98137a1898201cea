"""Sums that matrix registers don't take whole are filled up where that pays, and give the same numbers."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType
from tilewright.core.verify import verify
from tilewright.graph.forms.even_sums import EvenSums
from tilewright.graph.interp import run
from tilewright.target.target import Target

(PASS,) = EvenSums.on(Target.parse("sapphirerapids-amx"))
BF16 = types.bf16.numpy


def convolution(n_in, n_out, kernel, side=56, groups=1):
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.bf16, (1, side, side, n_in)))
    rng = np.random.default_rng(1)
    w = rng.integers(-3, 4, (n_out, n_in // groups, kernel, kernel)).astype(BF16)
    attrs = {"strides": [1, 1], "pads": [(1, 1), (1, 1)], "dilations": [1, 1], "groups": groups}
    y = b(ops.conv, x, b.const(w), layout="NHWC", out_dtype=types.f32, **attrs)
    return Graph("g", b.pool, (x,), (y,), ("y",))


def product(rows, terms, columns):
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.bf16, (rows, terms)))
    w = np.random.default_rng(2).integers(-3, 4, (terms, columns)).astype(BF16)
    return Graph("g", b.pool, (x,), (b(ops.matmul, x, b.const(w), out_dtype=types.f32),), ("y",))


def terms_of(graph: Graph) -> int:
    """Terms of the only contraction, as its left operand has them."""
    (node,) = [n for n in graph.nodes() if n.op in (ops.conv, ops.matmul)]
    return node.inputs[0].shape[-1]


@pytest.mark.parametrize(
    ("graph", "terms"),
    [
        (convolution(3, 64, 7), 4),  # seven columns of four channels are 28 terms
        (convolution(64, 64, 3), 64),  # whole already
        (convolution(67, 64, 3), 70),  # seven steps of 30
        (product(256, 100, 64), 100),  # five steps of 20, or four of 26 and a copy
        (product(1024, 1021, 1024), 1024),  # a prime: no step but single ones
        (product(1, 1021, 1024), 1021),  # one row is quicker by vectors
        (convolution(6, 63, 3, groups=3), 6),
    ],
)
def test_terms_that_are_added(graph, terms):
    """As many as make the whole take the fewest cycles, the copy with zeros included."""
    made = PASS.run(graph)
    verify(made)
    assert terms_of(made) == terms
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 4, graph.inputs[0].shape).astype(BF16)
    np.testing.assert_array_equal(run(made, [x])[0], run(graph, [x])[0])


def test_bytes_come_in_fours():
    """Zeros of the weights make what stands beside them nothing, whatever the bytes' zero point is."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.u8, (1, 112, 112, 3)))
    rng = np.random.default_rng(1)
    w = b.const(rng.integers(-128, 128, (64, 3, 7, 7)).astype(np.int8))
    attrs = {"strides": [2, 2], "pads": [(3, 3), (3, 3)], "dilations": [1, 1], "groups": 1}
    graph = Graph("g", b.pool, (x,), (b(ops.conv, x, w, layout="NHWC", out_dtype=types.i32, **attrs),), ("y",))
    made = PASS.run(graph)
    verify(made)
    assert terms_of(made) == 4
    numbers = rng.integers(0, 256, graph.inputs[0].shape).astype(np.uint8)
    np.testing.assert_array_equal(run(made, [numbers])[0], run(graph, [numbers])[0])


def test_not_a_number_stays_in_its_window():
    """The zeros that are added lie beside nothing but zeros."""
    graph = convolution(3, 16, 3, side=24)
    made = PASS.run(graph)
    assert terms_of(made) != 3
    x = np.zeros(graph.inputs[0].shape, BF16)
    x[0, 10, 10, 0] = np.nan
    found = np.isnan(run(made, [x])[0])
    np.testing.assert_array_equal(found, np.isnan(run(graph, [x])[0]))
    assert found.any() and not found.all()


def test_nothing_is_filled_up_where_vectors_are_faster():
    assert terms_of(replace(PASS, groups=1e4).run(convolution(3, 64, 7))) == 3


def test_a_machine_without_registers_has_no_such_pass():
    assert EvenSums.on(Target.parse("x86-64-v4")) == ()
