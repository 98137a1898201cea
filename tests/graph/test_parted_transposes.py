"""Two permutations are one where a reshape between them takes dimensions apart or joins them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graph.showing import graph_of
from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Dim, Sym
from tilewright.core.shapes import common_parts
from tilewright.core.types import TensorType, f32, product
from tilewright.graph.canonical.canonicalize import Canonicalize


@st.composite
def shapes_of(draw: st.DrawFn, total: int) -> list[int]:
    """A shape of so many elements, with ones here and there."""
    shape = []
    while total > 1:
        shape.append(draw(st.sampled_from([n for n in range(2, total + 1) if total % n == 0])))
        total //= shape[-1]
    return draw(st.permutations([*shape, *[1] * draw(st.integers(0, 2))]))


@given(st.data())
def test_random_permutations(data: st.DataObject) -> None:
    total = data.draw(st.sampled_from([24, 30, 36, 64, 72, 128]))
    shape, between = data.draw(shapes_of(total)), data.draw(shapes_of(total))
    first = data.draw(st.permutations(range(len(shape))))
    second = data.draw(st.permutations(range(len(between))))
    graph = graph_of(
        lambda b, x: b(ops.transpose, b(ops.reshape, b(ops.transpose, x, perm=first), shape=between), perm=second),
        TensorType(f32, tuple(shape)),
    )
    made = Canonicalize().run(graph)
    x = np.arange(total, dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(evaluate_graph(made, [x])[0], evaluate_graph(graph, [x])[0])
    if common_parts([shape[k] for k in first], between) is not None:
        assert sum(n.op is ops.transpose for n in made.nodes()) <= 1


@given(st.data())
def test_parts_make_both_shapes(data: st.DataObject) -> None:
    total = data.draw(st.sampled_from([24, 36, 64]))
    shapes = data.draw(shapes_of(total)), data.draw(shapes_of(total))
    found = common_parts(*shapes)
    if found is None:
        return
    parts, *counts = found
    for shape, of_dims in zip(shapes, counts, strict=True):
        assert sum(of_dims) == len(parts)
        at = 0
        for size, n in zip(shape, of_dims, strict=True):
            assert product(parts[at : at + n]) == size
            at += n


def test_dimensions_that_overlap_have_no_parts_and_names_stay_whole() -> None:
    n: Dim = Sym("n", 1)
    assert common_parts([4, 6], [6, 4]) is None
    assert common_parts([n, 8], [n, 2, 4]) == ([n, 2, 4], [1, 2], [1, 1, 1])
    assert common_parts([n, 8], [8, n]) is None
