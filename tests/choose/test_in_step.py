"""Vectors whose functions go in step: lanes of several registers, so that a core works on several rows of waiting."""

import numpy as np
import pytest

import tilewright
from graph.showing import graph_of
from tilewright import ops
from tilewright.build.kernels import optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.core.types import TensorType, bf16, f16, f32
from tilewright.tile.ir import For, Kind, walk


def lanes(graph, target):
    """The extents of all loops of lanes in the graph's kernels."""
    options = Options(target=target)
    made = optimise_and_split(graph, options, options.machine, Clock()).kernels
    loops = [s for k in made.kernels.values() for s in walk(k.body) if isinstance(s, For)]
    return {s.loop.extent for s in loops if s.loop.kind is Kind.VECTOR}


def test_registers_say_how_many_functions_go_in_step():
    graph = graph_of(lambda b, x: b(ops.exp, x), TensorType(f32, (1280,)))
    assert lanes(graph, "x86-64-v3") == {4 * 8} and lanes(graph, "x86-64-v4") == {8 * 16}


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_functions_of_16_bits_fill_as_many_registers_as_those_of_32(dtype):
    """Twice as many lanes did not fit into registers, and LLVM's back end for WebAssembly ended the process."""
    graph = graph_of(lambda b, x: b(ops.pow, x, b(ops.exp, x)), TensorType(dtype, (1280,)))
    assert lanes(graph, "x86-64-v3") == {4 * 8} and lanes(graph, "wasm32") == {4 * 4}
    assert tilewright.compile(graph, target="wasm32", cache=False)


def test_what_is_computed_once_or_in_few_steps_does_not():
    once = graph_of(lambda b, x, y: b(ops.mul, x, b(ops.exp, y)), TensorType(f32, (3, 1280)), TensorType(f32, (3, 1)))
    few = graph_of(lambda b, x: b(ops.mul, x, b(ops.add, x, x)), TensorType(f32, (1280,)))
    assert 8 in lanes(once, "x86-64-v3") and lanes(few, "x86-64-v3") == {8}


@pytest.mark.parametrize("shape", [(1280,), (37,), (3, 101), (5, 7, 9), (2, 8)])
def test_the_rest_of_a_row_is_right(shape):
    graph = graph_of(lambda b, x: b(ops.tanh, b(ops.exp, x)), TensorType(f32, shape))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = tilewright.compile(graph, cache=False)(x)
    np.testing.assert_allclose(y, np.tanh(np.exp(x)), rtol=1e-5)
