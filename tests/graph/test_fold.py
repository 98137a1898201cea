"""Constant folding computes what only constants decide, and never makes a model larger."""

import numpy as np

from graph.showing import assert_same, graph_of, n_of, show
from tilewright import ops
from tilewright.core.types import f32, i64
from tilewright.graph.canonical.fold import FoldConstants, transposed


def folded(build, *types, **options):
    before = graph_of(build, *types)
    after = FoldConstants(**options).run(before)
    assert_same(before, after)
    return show(after)


def test_chains_of_constants_fold():
    assert folded(lambda b, x: b(ops.mul, x, b(ops.sqrt, b(ops.add, b.const(3.0, f32), b.const(1.0, f32)))), "f32[4]") \
        == "mul(x, 2.0)"  # fmt: skip
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert folded(lambda b, x: b(ops.matmul, x, b(ops.transpose, b.const(weight), perm=(1, 0))), "f32[1,3]") \
        == "matmul(x, f32[3, 2])"  # fmt: skip


def test_what_is_read_from_a_table_folds_but_not_a_large_one():
    table = np.ones((8, 64), np.float32)

    def read(n):
        rows = np.arange(n, dtype=np.int64) % 8
        return folded(lambda b, x: b(ops.add, x, b(ops.gather, b.const(table), b.const(rows), axis=0)), f"f32[{n},64]")

    assert read(512) == "add(x, f32[512, 64])"
    assert read(8192) == "add(x, gather(f32[8, 64], i64[8192]))"


def test_large_matrices_are_transposed_by_blocks():
    matrix = np.arange(130 * 300).reshape(130, 300)
    assert np.array_equal(transposed(matrix), matrix.T)


def test_small_ramps_and_expansions_fold_large_ones_do_not():
    assert folded(lambda b: b(ops.iota, extent=9, dtype=i64)) == "i64[9]"
    assert folded(lambda b: b(ops.iota, extent=9000, dtype=i64)) == "iota(extent=9000, dtype=i64)"
    assert folded(lambda b: b(ops.expand, b.const(1.0, f32), shape=(3,))) == "f32[3]"
    assert folded(lambda b: b(ops.expand, b.const(1.0, f32), shape=(99, 99))) == "expand(1.0, shape=(99, 99))"


def test_weights_do_not_grow():
    weight = np.ones((400, 400), np.int8)
    assert folded(lambda b: b(ops.cast, b.const(weight), dtype=f32)) == "cast(i8[400, 400], dtype=f32)"


def test_weights_are_filled_up():
    """As for a strided transposed convolution: the product should know them, though they grow."""
    weight = np.ones((100, 50, 3, 3), np.float32)
    pads = ((0, 0), (0, 0), (0, 1), (0, 1))
    assert folded(lambda b: b(ops.pad, b.const(weight), b.const(0.0, f32), pads=pads)) == "f32[100, 50, 4, 4]"


def test_the_limit_is_an_option():
    assert folded(lambda b: b(ops.exp, b.const(np.ones(9, np.float32))), max_bytes=8) == "exp(f32[9])"


def test_nodes_without_constants_stay():
    before = graph_of(lambda b, x: b(ops.exp, x), "f32[4]")
    assert FoldConstants().run(before) is before
    assert n_of(before, ops.exp) == 1
