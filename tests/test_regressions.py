"""The smallest form of every failure that random graphs and damaged files have found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import Array, tensor_type_of
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
