"""The smallest form of every failure that random graphs and damaged files have found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright import ops
from tilewright.core import types
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import Array, TensorType, tensor_type_of
from tilewright.driver import compile_graph


def inputs(*arrays: Array) -> tuple[Builder, tuple[Node, ...]]:
    pool = Pool()
    return Builder(pool), tuple(pool.input(f"x{k}", tensor_type_of(a)) for k, a in enumerate(arrays))


def check(b: Builder, given: Sequence[Node], outputs: Sequence[Node], arrays: Sequence[Array], **how: object) -> None:
    """Native code gives what the reference interpreter gives."""
    graph = Graph("g", b.pool, tuple(given), tuple(outputs), tuple(f"y{k}" for k in range(len(outputs))))
    result = compile_graph(graph, **how)(*arrays)
    got = result if isinstance(result, tuple) else (result,)
    for g, want in zip(got, evaluate_graph(graph, arrays), strict=True):
        assert g.dtype == want.dtype and g.shape == want.shape
        np.testing.assert_allclose(g.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-6)


def test_a_constant_that_a_kernel_reads_in_two_layouts() -> None:
    """The vectorised part and the rest of a dot product packed its weights twice; programs knew of one layout."""
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    b, (n,) = inputs(x)
    weights = b.const(np.array([[3.0], [1.0], [4.0], [1.0], [5.0]], np.float32))
    check(b, (n,), [b(ops.matmul, n, weights)], [x], target="x86-64")


def test_tiling_nothing() -> None:
    """The position in the source was taken modulo its size, zero."""
    x = np.zeros((0, 3), np.float32)
    b, (n,) = inputs(x)
    check(b, (n,), [b(ops.tile, n, repeats=(2, 2))], [x])


@pytest.mark.parametrize(
    "extent", [lambda n: n + 1, lambda n: n * 128, lambda n: n * 128 + 5], ids=["few", "even", "odd"]
)
@pytest.mark.parametrize("most", [7, 64, None])
def test_sizes_whose_full_tiles_or_rests_never_happen(extent, most: int | None) -> None:
    """Dividing a loop into full tiles and a rest leaves out what is known to be empty; the rules asked for both."""
    n = Sym("n", 1, most)
    size: Dim = extent(n)
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (3, size)))
    sized = b.pool.input("sized", TensorType(types.f32, (n,)))
    w = b.const(np.linspace(-1, 1, 21, dtype=np.float32).reshape(7, 3))
    product = b(ops.matmul, w, x)
    flipped = b(ops.matmul, b(ops.transpose, x, perm=(1, 0)), b.const(np.ones((3, 70), np.float32)))
    for given in (1, 3, 7):
        arrays = [np.random.default_rng(0).random((3, extent(given)), np.float32), np.zeros(given, np.float32)]
        check(b, (x, sized), [b(ops.exp, x), product, flipped, b(ops.neg, sized)], arrays)
