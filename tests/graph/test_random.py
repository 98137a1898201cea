"""Random graphs keep their meaning through every pass and every pipeline, and through their text."""

import pytest
from hypothesis import HealthCheck, given, settings

from graphs import RandomGraph, graphs, random_graph
from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.passes import run_pipeline
from tilewright.core.text import SideTable, parse_graph, print_graph
from tilewright.core.verify import verify
from tilewright.graph.pipeline import PASSES, passes_for

few = settings(max_examples=12, suppress_health_check=list(HealthCheck))


def check(case: RandomGraph, passes) -> None:
    after = run_pipeline(case.graph, passes, check=True)
    assert [n.type for n in after.outputs] == [n.type for n in case.graph.outputs]
    case.assert_close(evaluate_graph(after, case.arrays))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("cls", PASSES, ids=lambda cls: cls.name)
@few
@given(case=graphs())
def test_each_pass(cls, case):
    check(case, [cls()])


@pytest.mark.parametrize("optimize", [0, 1, 2])
@few
@given(case=graphs())
def test_each_level(optimize, case):
    check(case, passes_for(optimize))


@few
@given(case=graphs())
def test_text(case):
    verify(case.graph)
    table = SideTable()
    text = print_graph(case.graph, table)
    again = parse_graph(text, ops.by_name, table.arrays)
    assert print_graph(again, SideTable()) == text
    case.assert_close(evaluate_graph(again, case.arrays), factor=0)


@pytest.mark.fuzz
@pytest.mark.parametrize("block", range(100))
def test_many(block):
    for seed in range(200 * block, 200 * (block + 1)):
        check(random_graph(seed, 4 + seed % 30), passes_for(2))
