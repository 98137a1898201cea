"""Whole pipelines keep a network's meaning, in text form too, and every pass leaves a graph that keeps the spec."""

import pytest

from graph.networks import NETWORKS
from graph.showing import assert_same, graph_of, n_of
from tilewright import ops
from tilewright.core.passes import parse_pipeline, print_pipeline, run_pipeline
from tilewright.core.text import SideTable, parse_graph, print_graph
from tilewright.graph.pipeline import PASSES, passes_for

KEEP = ("attention", "softmax", "layer_norm", "rms_norm", "gelu")


@pytest.mark.parametrize("optimize", [0, 1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_keep_their_meaning(name, optimize):
    build, types = NETWORKS[name]
    before = graph_of(build, *types)
    after = run_pipeline(before, passes_for(optimize), check=True)
    assert_same(before, after, rtol=2e-4, atol=2e-5)
    assert all(n.op.decompose is None for n in after.nodes())


def test_pipelines_round_trip_as_text():
    for optimize in (0, 1, 2):
        passes = passes_for(optimize, KEEP)
        assert parse_pipeline(print_pipeline(passes), PASSES) == passes


def test_composites_that_are_kept():
    build, types = NETWORKS["transformer"]
    after = run_pipeline(graph_of(build, *types), passes_for(2, KEEP))
    counts = {op.name: n_of(after, op) for op in (ops.attention, ops.softmax, ops.layer_norm, ops.gelu, ops.matmul)}
    assert counts == {"attention": 1, "softmax": 0, "layer_norm": 2, "gelu": 1, "matmul": 6}


def test_a_pipeline_resumes_from_text():
    build, types = NETWORKS["resnet"]
    before = graph_of(build, *types)
    passes = passes_for(2)
    half = run_pipeline(before, passes[:5])
    table = SideTable()
    again = parse_graph(print_graph(half, table), ops.by_name, table.arrays)
    assert_same(before, run_pipeline(again, passes[5:], check=True), rtol=2e-4, atol=2e-5)


def test_a_second_run_changes_nothing():
    for build, types in NETWORKS.values():
        after = run_pipeline(graph_of(build, *types), passes_for(2))
        assert run_pipeline(after, passes_for(2)).outputs == after.outputs
