"""Graphs of many types as code for every machine (``fuzz_machines``): no abort and no untyped error."""

from __future__ import annotations

from collections import Counter

import pytest

import fuzz_machines
from tilewright.tools.conformance.workers import run_cases

FIRST = 1_000_000  # apart from the seeds that `make fuzz` draws


def failures(n: int) -> list[str]:
    found = list(run_cases("fuzz_machines", fuzz_machines.cases(FIRST, FIRST + n), seconds=240.0))
    assert len(found) == n
    return [f"{o.name}: {o.status}: {o.detail}" for o in found if o.is_bad]


def test_a_few_graphs() -> None:
    assert failures(3) == []


@pytest.mark.slow
def test_500_graphs() -> None:
    assert failures(500) == []


def test_every_machine_and_type_comes_up() -> None:
    machines = Counter(t for seed in range(60) for t in fuzz_machines.targets(seed))
    assert set(fuzz_machines.MACHINES) <= machines.keys()
    graphs = [fuzz_machines.mixed_graph(seed).graph for seed in range(60)]
    dtypes = {t.dtype for g in graphs for n in g.nodes() for t in n.types}
    assert set(fuzz_machines.TYPES) <= dtypes and any(d.is_narrow for d in dtypes)
