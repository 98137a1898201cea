"""Arithmetic after a reshaped product moves to the product."""

from __future__ import annotations

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType
from tilewright.graph.decompose import Decompose
from tilewright.graph.forms.hoist import HoistArithmetic
from tilewright.graph.interp import run


def _net(after_product: bool) -> tuple[Graph, list[np.ndarray]]:  # type: ignore[type-arg]
    pool = Pool()
    b = Builder(pool)
    x, r = (pool.input(n, TensorType(types.f32, s)) for n, s in (("x", (6, 4)), ("r", (2, 3, 5))))
    w = pool.const(np.arange(20, dtype=np.float32).reshape(4, 5) / 7)
    p: Node = b(ops.matmul, x, w)
    p = p if after_product else b(ops.reduce_sum, p, axes=(1,), keepdims=False)
    y = b(ops.reshape, p, shape=(2, 3, 5) if after_product else (2, 3, 1))
    y = b(ops.add, y, pool.const(np.arange(5, dtype=np.float32)))
    y = b(ops.mul, b(ops.tanh, y), b.const(0.5, types.f32))
    y = b(ops.add, y, r)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((6, 4), (2, 3, 5))]
    return Graph("g", pool, (x, r), (y,), ("y",)), arrays


def test_arithmetic_moves_above_the_reshape() -> None:
    graph, arrays = _net(after_product=True)
    done = HoistArithmetic().run(graph)
    names = [n.op.name for n in done.nodes() if n.inputs]
    assert names[-1] == "reshape" and names[names.index("matmul") + 1] == "add"
    np.testing.assert_allclose(run(done, arrays)[0], run(graph, arrays)[0], rtol=1e-6)


def test_arithmetic_moves_above_the_reshape_of_a_norm() -> None:
    """Rows of groups of channels, as a group norm has them, and what is computed of their elements behind it."""
    pool = Pool()
    b = Builder(pool)
    x = pool.input("x", TensorType(types.f32, (2, 6, 128)))
    norm = b(ops.group_norm, x, *(b.const(np.full(6, v, np.float32)) for v in (2, 0.5)), groups=3)
    graph = Decompose().run(Graph("g", pool, (x,), (b(ops.silu, norm),), ("y",)))
    done = HoistArithmetic().run(graph)
    assert graph.outputs[0].op is not ops.reshape and done.outputs[0].op is ops.reshape
    arrays = [np.random.default_rng(0).standard_normal((2, 6, 128)).astype(np.float32)]
    np.testing.assert_allclose(run(done, arrays)[0], run(graph, arrays)[0], rtol=1e-6)


def test_arithmetic_on_two_norms_stays_with_the_one_that_has_its_shape() -> None:
    """As a residual of windows and of the whole image: else the reshape would go back and forth between them."""
    pool = Pool()
    b = Builder(pool)
    x = pool.input("x", TensorType(types.f32, (6, 5)))
    scale = b.const(np.full(5, 2, np.float32))
    norm = b(ops.layer_norm, x, scale, axis=1)
    other = b(ops.layer_norm, b(ops.reshape, b(ops.exp, norm), shape=(2, 3, 5)), scale, axis=2)
    y = b(ops.add, b(ops.reshape, norm, shape=(2, 3, 5)), other)
    graph = Decompose().run(Graph("g", pool, (x,), (y,), ("y",)))
    arrays = [np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)]
    np.testing.assert_allclose(run(HoistArithmetic().run(graph), arrays)[0], run(graph, arrays)[0], rtol=1e-6)


def test_it_leaves_other_reshapes_alone() -> None:
    graph, _ = _net(after_product=False)
    assert HoistArithmetic().run(graph) is graph


def test_arithmetic_on_two_products_stays_with_the_one_that_has_its_shape() -> None:
    """Else the reshape would go back and forth between them."""
    pool = Pool()
    b = Builder(pool)
    shapes = ((6, 4), (2, 3, 4))
    inputs = tuple(pool.input(f"x{k}", TensorType(types.f32, s)) for k, s in enumerate(shapes))
    p, q = (b(ops.matmul, x, pool.const(np.full((4, 5), k, np.float32))) for k, x in enumerate(inputs, 1))
    y = b(ops.add, b(ops.exp, p), b(ops.exp, b(ops.reshape, q, shape=(6, 5))))
    graph = Graph("g", pool, inputs, (y,), ("y",))
    done = HoistArithmetic().run(graph)
    arrays = [np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in shapes]
    np.testing.assert_allclose(run(done, arrays)[0], run(graph, arrays)[0], rtol=1e-6)


def test_what_a_net_adds_to_and_others_read_is_reshaped_for_the_product() -> None:
    """It is in memory before, and its own sum is none of its epilogue."""
    pool = Pool()
    b = Builder(pool)
    x, y, v, w = (
        pool.input(n, TensorType(types.f32, s))
        for n, s in zip("xyvw", ((6, 4), (2, 3, 4), (4, 5), (4, 5)), strict=True)
    )
    stream = b(ops.matmul, y, v)
    total = b(ops.add, b(ops.reshape, b(ops.matmul, x, w), shape=(2, 3, 5)), stream)
    graph = Graph("g", pool, (x, y, v, w), (total, b(ops.tanh, stream)), ("total", "other"))
    done = HoistArithmetic().run(graph)
    (added,) = [n for n in done.nodes() if n.op is ops.add]
    assert added.shape == (6, 5) and HoistArithmetic().run(done) is done
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n.shape).astype(np.float32) for n in graph.inputs]
    np.testing.assert_allclose(run(done, arrays)[0], run(graph, arrays)[0], rtol=1e-6)


def test_arithmetic_on_two_rearranged_products_moves_above_neither_reshape() -> None:
    """MaxViT's sum of a bottleneck and of attention: the reshape went back and forth (RewriteError)."""
    pool = Pool()
    b = Builder(pool)
    shapes = ((5, 12, 3), (5, 2, 6, 3))
    inputs = tuple(pool.input(f"x{k}", TensorType(types.f32, s)) for k, s in enumerate(shapes))
    p, q = (b(ops.matmul, x, pool.const(np.full((3, 4), k, np.float32))) for k, x in enumerate(inputs, 1))
    moved = b(ops.transpose, p, perm=(1, 0, 2)), b(ops.transpose, q, perm=(1, 2, 0, 3))
    graph = Graph("g", pool, inputs, (b(ops.add, moved[0], b(ops.reshape, moved[1], shape=(12, 5, 4))),), ("y",))
    done = HoistArithmetic().run(graph)
    arrays = [np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in shapes]
    np.testing.assert_allclose(run(done, arrays)[0], run(graph, arrays)[0], rtol=1e-6)


def test_a_bias_and_a_bound_move_above_phases_that_take_turns() -> None:
    """A transposed convolution's: rearranged and cut, all behind its product."""
    pool = Pool()
    b = Builder(pool)
    x = pool.input("x", TensorType(types.f32, (1, 21, 21, 3)))
    rng = np.random.default_rng(0)
    w = pool.const(rng.standard_normal((3, 5, 4, 4)).astype(np.float32))
    attrs = {"strides": (2, 2), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "output_padding": (0, 0)}
    y = b(ops.conv_transpose, x, w, layout="NHWC", **attrs)
    y = b(ops.add, y, pool.const(rng.standard_normal((5,)).astype(np.float32)))
    y = b(ops.maximum, y, b.const(0, types.f32))
    graph = Decompose().run(Graph("g", pool, (x,), (y,), ("y",)))
    done = HoistArithmetic().run(graph)
    names = [n.op.name for n in done.nodes() if n.inputs]
    assert names[names.index("conv") :] == ["conv", "add", "maximum", "reshape", "transpose", "reshape", "slice"]
    array = rng.standard_normal((1, 21, 21, 3)).astype(np.float32)
    np.testing.assert_allclose(run(done, [array])[0], run(graph, [array])[0], rtol=1e-4, atol=1e-5)


def test_arithmetic_stays_behind_moves_that_others_read_and_cuts_of_much() -> None:
    for is_shared in (False, True):
        pool = Pool()
        b = Builder(pool)
        x = pool.input("x", TensorType(types.f32, (6, 4)))
        p = b(ops.matmul, x, pool.const(np.ones((4, 5), np.float32)))
        moved = (
            b(ops.transpose, p, perm=(1, 0))
            if is_shared
            else b(ops.slice, p, starts=(0, 0), stops=(3, 5), steps=(1, 1))
        )
        outputs = (b(ops.tanh, moved), *([moved] if is_shared else []))
        graph = Graph("g", pool, (x,), outputs, ("y", "z")[: len(outputs)])
        assert HoistArithmetic().run(graph) is graph


def test_what_a_norm_made_is_no_epilogue_of_the_product_before_it() -> None:
    """A net's stream behind a norm of an image goes by sequences, and is added to their own products there."""
    pool = Pool()
    b = Builder(pool)
    x, w, v = (pool.input(n, TensorType(types.f32, s)) for n, s in zip("xwv", ((6, 4), (4, 5), (5, 5)), strict=True))
    y: Node = b(ops.reshape, b(ops.matmul, x, w), shape=(2, 3, 5))
    for _ in range(2):  # the second time all nodes are new ones, made over what the first time became
        z = b(ops.sub, y, b(ops.reduce_mean, y, axes=(0,), keepdims=True))
        stream = b(ops.reshape, z, shape=(6, 5))
        y = b(ops.reshape, b(ops.add, b(ops.matmul, stream, v), stream), shape=(2, 3, 5))
    graph = Graph("g", pool, (x, w, v), (y,), ("y",))
    done = HoistArithmetic().run(graph)
    assert [n.shape for n in done.nodes() if n.op is ops.add] == [(6, 5), (6, 5)]
    assert [n.shape for n in done.nodes() if n.op is ops.sub] == [(2, 3, 5), (2, 3, 5)]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n.shape).astype(np.float32) for n in graph.inputs]
    np.testing.assert_allclose(run(done, arrays)[0], run(graph, arrays)[0], rtol=1e-5)
