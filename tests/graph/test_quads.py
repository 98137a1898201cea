"""Products with matrices that keep two of each four terms: numbers, how much is stored, when they stay whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import tilewright as tw
from graph.test_blocked import product
from tilewright import ops
from tilewright.core.expr import Sym
from tilewright.core.graph import Graph
from tilewright.core.passes import run_pipeline
from tilewright.core.types import Array
from tilewright.graph.forms.quads import QuadProducts, quads_of
from tilewright.graph.pipeline import passes_for
from tilewright.ops.quads import matrix_of
from tilewright.target.target import Target

RNG = np.random.default_rng(3)


@cache
def two_of_four(depth: int, n: int, most: int = 2) -> Array:
    """A matrix f32[depth, n] with ``most`` numbers at most in each four neighbours of a column."""
    ranks = np.argsort(RNG.random((depth // 4, 4, n)), axis=1)
    n_kept = RNG.integers(0, most + 1, (depth // 4, 1, n))
    kept = (ranks < n_kept).reshape(depth, n)
    return np.where(kept, RNG.standard_normal((depth, n)), 0).astype(np.float32)


def forms(graph: Graph, machine: str = "x86-64-v3") -> list[str]:
    made = run_pipeline(graph, passes_for(2, target=Target.parse(machine)), check=True)
    return [n.op.name for n in made.nodes() if n.op in (ops.matmul, ops.quad_matmul)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("n", [1024, 1024 + 16, 1024 + 8])
def test_half_of_the_weights_are_stored_for_one_row(n: int) -> None:
    w = two_of_four(4096, n)
    for is_turned in (False, True):
        graph = product(w, 1, is_turned=is_turned)
        assert forms(graph) == ["quad_matmul"]
    found = quads_of(w, 1, QuadProducts.on(Target.parse("x86-64-v3")).reading(graph))
    assert found is not None
    np.testing.assert_array_equal(matrix_of(*found), w)
    model = tw.compile(graph, target="x86-64-v3", cache=False)
    x = RNG.standard_normal((1, 4096)).astype(np.float32)
    np.testing.assert_allclose(model(x), np.maximum(x @ w + 1, 0), rtol=1e-4, atol=1e-4)
    assert model.weights.nbytes < 0.55 * w.nbytes


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: product(two_of_four(4096, 1024), 64), "many rows share what they read"),
        (lambda: product(two_of_four(4096, 1024), Sym("n", 1, None)), "as many rows as a call brings"),
        (lambda: product(two_of_four(64, 64), 1), "a matrix that is near costs nothing to bring"),
        (lambda: product(two_of_four(4096, 1024, most=3), 1), "three of four"),
        (lambda: product(two_of_four(4096 + 16, 1024), 1), "no whole words of codes"),
        (lambda: product(two_of_four(4096, 1028), 1), "no whole vectors of columns"),
        (lambda: product(two_of_four(4096, 1024).astype(np.float64), 1), "doubles"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_other_products_keep_their_matrix(made: Callable[[], Graph], why: str) -> None:
    assert forms(made()) == ["matmul"], why


def test_a_pruned_layer_is_stored_so() -> None:
    graph = product(RNG.standard_normal((4096, 1024)).astype(np.float32), 1)
    pruned = tw.prune(graph, structure="2:4")
    assert forms(pruned) == ["quad_matmul"]
