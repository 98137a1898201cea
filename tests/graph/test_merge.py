"""Products of one matrix become one, on request."""

from graph.networks import NETWORKS, Net
from graph.showing import assert_same, graph_of, n_of, show
from tilewright import ops
from tilewright.graph.forms.merge import MergeMatmuls
from tilewright.graph.pipeline import passes_for


def test_products_of_one_matrix():
    def build(b, x):
        net = Net(b)
        return tuple(b(ops.matmul, x, net.weight(4, n)) for n in (3, 5))

    before = graph_of(build, "f32[2,4]")
    after = MergeMatmuls().run(before)
    assert show(after) == (
        "slice(matmul(x, f32[4, 8]), starts=(0, 0), stops=(2, 3), steps=(1, 1)); "
        "slice(matmul(x, f32[4, 8]), starts=(0, 3), stops=(2, 8), steps=(1, 1))"
    )
    assert_same(before, after)
    assert MergeMatmuls(max_columns=7).run(before) is before


def test_queries_keys_and_values():
    build, types = NETWORKS["transformer"]
    before = graph_of(build, *types)
    after = MergeMatmuls().run(before)
    assert n_of(before, ops.matmul) - n_of(after, ops.matmul) == 2
    assert_same(before, after, rtol=1e-4, atol=1e-5)
    assert all(p.name != "merge-matmuls" for k in (0, 1, 2) for p in passes_for(k))
