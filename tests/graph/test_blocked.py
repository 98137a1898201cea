"""Products with matrices of few blocks: numbers, how much is stored, when they stay whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.passes import run_pipeline
from tilewright.core.types import Array, TensorType, dtype_of, f32
from tilewright.graph.forms.blocked import BlockProducts, blocks_of
from tilewright.graph.pipeline import passes_for
from tilewright.ops.blocked import matrix_of
from tilewright.target.target import Target

MACHINES = ("x86-64-v3", "x86-64-v4", "native")


def sparse(depth: int, n: int, share: float, block: tuple[int, int] = (4, 16), dtype: type = np.float32) -> Array:
    """A matrix [depth, n] of which this share of blocks is not zero, by chance."""
    rng = np.random.default_rng(depth + n)
    kept = rng.random((depth // block[0], n // block[1])) < share
    mask = np.repeat(np.repeat(kept, block[0], axis=0), block[1], axis=1)
    return np.where(mask, rng.standard_normal((depth, n)), 0).astype(dtype)


def product(w: Array, *rows: int | Sym, is_turned: bool = False) -> Graph:
    """``relu(x @ w + 1)`` for x [*rows, K]."""
    b, dtype = Builder(Pool()), dtype_of(w.dtype)
    x = b.pool.input("x", TensorType(dtype, (*rows, len(w))))
    weights = b(ops.transpose, b.const(np.ascontiguousarray(w.T)), perm=(1, 0)) if is_turned else b.const(w)
    y = b(ops.relu, b(ops.add, b(ops.matmul, x, weights), b.const(np.ones(w.shape[1], w.dtype))))
    return Graph("g", b.pool, (x,), (y,), ("y",))


def forms(graph: Graph, machine: str) -> list[str]:
    made = run_pipeline(graph, passes_for(2, target=Target.parse(machine)), check=True)
    return [n.op.name for n in made.nodes() if n.op in (ops.matmul, ops.block_matmul)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rows", [(4,), (40,), (2, 3)])
def test_few_blocks_are_stored_and_read_alone(machine: str, rows: tuple[int, ...]) -> None:
    w = sparse(128, 96, 0.15)
    for is_turned in (False, True):
        graph = product(w, *rows, is_turned=is_turned)
        assert forms(graph, machine) == ["block_matmul"]
    if machine == "native":
        x = np.random.default_rng(1).standard_normal((*rows, 128)).astype(np.float32)
        model = tw.compile(graph, cache=False)
        np.testing.assert_allclose(model(x), np.maximum(x @ w + 1, 0), rtol=1e-4, atol=1e-5)
        assert model.weights.nbytes < 0.4 * w.nbytes  # a panel has as many blocks as the one that has most


@pytest.mark.parametrize("shape", [(24, 40), (40, 40), (64, 24), (33, 8), (7, 56), (128, 16)])
def test_a_matrix_without_blocks_of_zeros_stays_whole(shape: tuple[int, int]) -> None:
    """Also where its columns do not fill the panels of a product."""
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for machine in MACHINES:
        for rows in (1, 20, 200, Sym("n", 0, None)):
            assert forms(product(w, rows), machine) == ["matmul"]


def test_sizes_that_only_a_call_knows() -> None:
    w = sparse(64, 64, 0.2)
    model = tw.compile(product(w, Sym("n", 0, None)), cache=False)
    for n in (0, 1, 7, 33):
        x = np.random.default_rng(n).standard_normal((n, 64)).astype(np.float32)
        np.testing.assert_allclose(model(x), np.maximum(x @ w + 1, 0), rtol=1e-4, atol=1e-5)


def test_doubles_have_panels_of_fewer_columns() -> None:
    w = sparse(64, 64, 0.2, (2, 8), np.float64)
    assert forms(product(w, 5), "x86-64-v3") == ["block_matmul"]
    x = np.random.default_rng(1).standard_normal((5, 64))
    np.testing.assert_allclose(tw.compile(product(w, 5), cache=False)(x), np.maximum(x @ w + 1, 0), rtol=1e-9)


def test_weights_come_from_memory_where_others_share_the_last_cache() -> None:
    target = replace(Target.parse("x86-64-v4"), llc_bytes=480 << 20, llc_core_bytes=16 << 20, n_cores=2)
    machine = BlockProducts.on(target)
    speeds = [machine.reading(product(np.zeros((1024, n), np.float32), 1)).cache_speed for n in (4096, 16384)]
    assert speeds == [machine.cache_speed, machine.memory_speed]  # 16 and 64 MiB


@pytest.mark.parametrize("block", [(1, 8), (2, 16), (8, 32), (4, 64)])
@pytest.mark.parametrize("n_rows", [1, 16, None])
def test_blocks_of_any_size_are_found(block: tuple[int, int], n_rows: int | None) -> None:
    w = sparse(128, 128, 0.1, block)
    found = blocks_of(w, n_rows, BlockProducts.on(Target.parse("x86-64-v3")))
    assert found is not None
    np.testing.assert_array_equal(matrix_of(*found, 128), w)


@pytest.mark.parametrize(
    "w",
    [
        sparse(64, 64, 1.0),
        sparse(64, 64, 0.2, (1, 1)),  # as few numbers, in every block
        sparse(64, 60, 0.2, (4, 4)),  # columns that are no whole vectors
        np.zeros((64, 64), np.float32),  # nothing to multiply: no business of this pass
    ],
    ids=["dense", "scattered", "ragged", "zeros"],
)
def test_other_matrices_stay_whole(w: Array) -> None:
    assert "block_matmul" not in forms(product(w, 8), "x86-64-v3")


def test_results_of_plain_sums_are_plain_sums() -> None:
    made = run_pipeline(product(sparse(64, 64, 0.2), 8), passes_for(2))
    assert ops.block_matmul not in {n.op for n in made.nodes()}


def test_pruned_blocks_are_left_out(tmp_path: object) -> None:
    rng = np.random.default_rng(0)
    graph = product(rng.standard_normal((256, 128)).astype(np.float32), 4)
    model = tw.compile(tw.prune(graph, 0.75, structure="blocks"), cache=False)
    assert model.weights.nbytes < 0.3 * 256 * 128 * f32.n_bytes
