"""Parts that threads take: each has memory of its own, and results are the same."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tilewright import ops
from tilewright.build import driver
from tilewright.core import types
from tilewright.core.diag import CompileError
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType

SIDE = 48


@pytest.fixture(autouse=True)
def _several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for a machine of one core takes parts in turn."""
    monkeypatch.setattr("tilewright.target.target.available_cpus", lambda: 4)


def parts(n_parts: int, n_threads: int, rows: int = 1, batch: int | Sym = 12) -> Graph:
    """Products and a softmax of each of a batch's matrices, in parts: results on the way need memory."""
    inner = Pool()
    b, x = Builder(inner), inner.input("x", TensorType(types.f32, (rows, SIDE, SIDE)))
    y = b(ops.softmax, b(ops.matmul, x, x), axis=2)
    made = b(ops.matmul, y, x), b(ops.reduce_sum, y, axes=(2,), keepdims=False)
    body = Graph("part", inner, (x,), made, ("y", "s"))
    pool = Pool()
    outer = pool.input("x", TensorType(types.f32, (batch, SIDE, SIDE)))
    node = Builder(pool)(ops.map_parts, outer, body=body, n_parts=n_parts, n_cut=1, n_threads=n_threads)
    return Graph("parts", pool, (outer,), pool.results(node), ("y", "s"))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("n_parts", "n_threads"), [(12, 2), (12, 5), (3, 3), (4, 2), (12, 12)])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_results_do_not_depend_on_who_computes_a_part(n_parts: int, n_threads: int, threads: int) -> None:
    x = np.random.default_rng(0).standard_normal((12, SIDE, SIDE)).astype(np.float32)
    rows = 12 // n_parts
    want = driver.compile_graph(parts(n_parts, 1, rows), threads=1)(x)
    model = driver.compile_graph(parts(n_parts, n_threads, rows), threads=threads)
    for _ in range(50):
        for found, right in zip(model(x), want, strict=True):
            np.testing.assert_array_equal(found, right)


def test_an_arena_for_each_thread() -> None:
    one, three = (driver.compile_graph(parts(12, n)).report()["memory"] for n in (1, 3))
    assert three["arena_bytes"] == 3 * one["arena_bytes"]
    assert three["scratch_bytes_per_thread"] > one["scratch_bytes_per_thread"]


def test_a_machine_of_one_core_has_one_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.target.target.available_cpus", lambda: 1)
    one, three = (driver.compile_graph(parts(12, n), threads=1).report()["memory"] for n in (1, 3))
    assert three == one


def test_more_threads_than_parts_at_one_time_are_refused() -> None:
    with pytest.raises(CompileError, match="13 threads can't have 12 parts"):
        parts(12, 13)


def test_calls_of_many_parts_are_counted_and_not_listed() -> None:
    """A file of 356 bytes may state a batch of 2^40 rows; a list of every part's calls took a GiB, and 16 s."""
    n_parts = 1 << 24
    tracemalloc.start()
    report = driver.compile_graph(parts(n_parts, 1, batch=n_parts), threads=1).report()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report["n_kernel_calls"] == sum(k["calls"] for k in report["kernels"]) >= n_parts
    assert all(k["calls"] % n_parts == 0 for k in report["kernels"])
    assert peak_bytes < 8 * n_parts  # a pointer for each
