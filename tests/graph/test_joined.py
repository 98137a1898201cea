"""Two parts that are joined for arithmetic are joined where that reads them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import ops
from tilewright.core import types
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType
from tilewright.graph.forms.joined import JoinInReaders
from tilewright.graph.interp import run


def rotated(n_turns: int = 1, dtype: types.DType = types.f32) -> Graph:
    """Halves of rows change places, one of them negated, and are added to the rows: several times over."""
    pool = Pool()
    b = Builder(pool)
    x = pool.input("x", TensorType(dtype, (3, 8)))
    y: Node = x
    for _ in range(n_turns):
        first, second = (b(ops.slice, y, starts=(0, k), stops=(3, k + 4), steps=(1, 1)) for k in (0, 4))
        y = b(ops.add, y, b(ops.concat, b(ops.neg, second), first, axis=1))
    return Graph("g", pool, (x,), (y,), ("y",))


@pytest.mark.parametrize("dtype", [types.f32, types.i64])
def test_halves_that_change_places_are_read_where_they_lie(dtype: types.DType) -> None:
    graph = rotated(3, dtype)
    done = JoinInReaders().run(graph)
    names = [n.op.name for n in done.nodes()]
    assert names.count("where") == 3 and "concat" not in names
    rows = np.arange(24).reshape(3, 8).astype(np.float32 if dtype is types.f32 else np.int64)
    np.testing.assert_array_equal(run(done, [rows])[0], run(graph, [rows])[0])
    assert JoinInReaders().run(done) is done


def test_minus_zero_and_what_is_no_number_stay() -> None:
    rows = np.array([[-0.0, np.nan, np.inf, 1, 0.0, -0.0, -np.inf, 2]] * 3, np.float32)
    pool = Pool()
    b = Builder(pool)
    x, y = (pool.input(n, TensorType(types.f32, (3, 8))) for n in "xy")
    graph = Graph("g", pool, (x, y), (b(ops.neg, b(ops.concat, x, y, axis=0)),), ("z",))
    done = JoinInReaders().run(graph)
    assert done is not graph
    (got,), (want,) = run(done, [rows, rows[::-1]]), run(graph, [rows, rows[::-1]])
    assert got.tobytes() == want.tobytes()


def test_it_leaves_other_joins_alone() -> None:
    n = Sym("n", 1)
    pool = Pool()
    b = Builder(pool)
    x, y, z = (pool.input(k, TensorType(types.f32, s)) for k, s in zip("xyz", ((3, 8), (3, 8), (n, 8)), strict=True))
    joined = b(ops.concat, x, y, axis=1)
    summed = b(ops.reduce_sum, b(ops.concat, y, x, axis=1), axes=(0,), keepdims=False)
    three = b(ops.neg, b(ops.concat, x, y, x, axis=0))
    unknown = b(ops.neg, b(ops.concat, x, z, axis=0))
    both = b(ops.concat, x, b(ops.neg, y), axis=1)
    outs = (joined, b(ops.neg, joined), summed, three, unknown, b(ops.neg, both), b(ops.softmax, both, axis=1))
    graph = Graph("g", pool, (x, y, z), outs, tuple(f"o{k}" for k in range(len(outs))))
    assert JoinInReaders().run(graph) is graph


def test_a_cache_with_what_a_step_adds_is_joined_whoever_reads_it() -> None:
    """Rows stay whole accesses, so that it is one launch: the new rows are read where they were made."""
    pool = Pool()
    b = Builder(pool)
    x, y = (pool.input(k, TensorType(types.f32, s)) for k, s in (("x", (2, 5, 8)), ("y", (2, 9))))
    new = b(ops.reshape, b(ops.slice, y, starts=(0, 1), stops=(2, 9), steps=(1, 1)), shape=(2, 1, 8))
    joined = b(ops.concat, x, new, axis=1)
    graph = Graph("g", pool, (x, y), (joined, b(ops.reduce_sum, joined, axes=(1,), keepdims=False)), ("c", "s"))
    done = JoinInReaders().run(graph)
    assert "concat" not in [n.op.name for n in done.nodes()]
    arrays = [np.arange(80, dtype=np.float32).reshape(2, 5, 8), np.arange(18, dtype=np.float32).reshape(2, 9)]
    for got, want in zip(run(done, arrays), run(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
