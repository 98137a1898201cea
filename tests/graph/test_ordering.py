"""The pass ``ordering``: the algorithm of a sort follows from its size, and the results stay what they were."""

import numpy as np
import pytest

from graph.showing import graph_of
from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.types import TensorType, f32, f64, i64
from tilewright.graph.forms.ordering import Ordering

N = Sym("n", 1)


def of(op, shape, dtype=f32, **attrs):
    return graph_of(lambda b, x: b.results(b(op, x, **attrs))[1], TensorType(dtype, shape))


def algorithms(graph):
    return [n.attrs["algorithm"] for n in Ordering().run(graph).nodes() if "algorithm" in n.attrs]


@pytest.mark.parametrize(
    ("n", "dtype", "attrs", "algorithm"),
    [
        (64, f32, {}, "counting"),
        (65, f32, {}, "digits"),
        (N, f32, {}, "digits"),
        (64, f64, {"k": 2}, "counting"),
        (500, f32, {"k": 5}, "selecting"),
        (500, f64, {"k": 5}, "digits"),
        (500, f32, {"k": 400}, "digits"),
        (N, f32, {"k": 64}, "selecting"),
        (N, f32, {"k": 65}, "selecting"),
        (N, f32, {"k": 400}, "digits"),
        (500, f32, {"k": N}, "digits"),
    ],
)
def test_an_algorithm_follows_from_its_size(n, dtype, attrs, algorithm) -> None:
    op = ops.top_k if attrs else ops.sort
    assert algorithms(of(op, (3, n), dtype, axis=1, **attrs)) == [algorithm]


@pytest.mark.parametrize(("n", "left"), [(64, "sort"), (65, "ranked"), (N, "ranked")])
def test_the_element_of_a_rank_is_there_where_all_are_compared(n, left) -> None:
    def median(b, x, rank):
        return b.results(b(ops.ranked, x, rank, axis=1))[0]

    graph = graph_of(median, TensorType(f32, (3, n)), TensorType(i64, (3, 1)))
    made = Ordering().run(graph)
    assert left in [node.op.name for node in made.nodes()]
    x = np.random.default_rng(0).integers(0, 9, (3, n if isinstance(n, int) else 7)).astype(np.float32)
    arrays = [x, np.array([[0], [3], [6]])]
    (before,), (after,) = evaluate_graph(graph, arrays), evaluate_graph(made, arrays)
    assert np.array_equal(before, after)
