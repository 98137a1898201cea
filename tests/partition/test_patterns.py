"""What the planner joins for a pattern, the chooser sees as that pattern: both read it off the same structure.

The planner finds chains, windows and projections among nodes, the chooser clusters among a kernel's stages, which may
as well come from a text (decision 0014). Were one to see what the other does not, a kernel would hold loops that send
through memory what they were joined to keep, and no result would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import test_projections
import test_rings
from nests import NESTS
from networks import network
from tilewright.build import texts
from tilewright.build.options import Options
from tilewright.choose.default import schedule_with_steps
from tilewright.core.graph import Graph, Node
from tilewright.partition import fuse, projections
from tilewright.partition.grouped import Grouped, group_graph
from tilewright.target.target import Target

TARGETS = ("x86-64-v4", "x86-64-v3", "aarch64")
STRATEGIES = {
    "find_chains": {"chain"},
    "find_windows": {"ring", "plane", "projected"},
    "find_projections": {"projected"},
}
"""What the chooser calls that which each function of the planner finds; a projection may begin with a ring."""
N_NETWORKS = 16


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> dict[Node, str]:
    """By node the function that joined it to what reads it, in every graph that is split from here on."""
    monkeypatch.setattr(projections, "_is_long", lambda *_: True)
    monkeypatch.setattr(projections, "_fits", lambda *_: True)
    monkeypatch.setattr(projections, "_pays", lambda *_: True)
    monkeypatch.setattr(Target, "large_bytes", 0)
    found: dict[Node, str] = {}
    for name in STRATEGIES:
        monkeypatch.setattr(fuse, name, _noted(name, getattr(fuse, name), found))
    return found


def _noted(name: str, find: Callable[..., dict[Node, Node]], found: dict[Node, str]) -> Callable[..., dict[Node, Node]]:
    def noted(*args: Any) -> dict[Node, Node]:
        made = find(*args)
        found.update(dict.fromkeys(made, name))
        return made

    return noted


def nets() -> Iterator[tuple[str, Graph]]:
    yield "attention", NESTS["attention"]()
    for kind, k, stride in (("depthwise", 3, 1), ("depthwise", 5, 2), ("max", 3, 2), ("avg", 3, 1)):
        yield f"ring {kind}", test_rings.net(kind, 1, 17, 14, 33, k, stride)
    for expand in (0, 24):
        for stride in (1, 2):
            yield f"block {expand} {stride}", test_projections.block((1, 12, 13, 16), 16, stride=stride, expand=expand)
    for seed in range(N_NETWORKS):
        yield f"network {seed}", network(seed).graph


@pytest.mark.one_in(6)
@pytest.mark.parametrize("target", TARGETS)
def test_the_chooser_sees_what_the_planner_joined(target: str, joined: dict[Node, str]) -> None:
    seen = dict.fromkeys(STRATEGIES, 0)
    for name, graph in nets():
        options = Options(target=target)
        grouped = group_graph(texts.optimise(graph, options, None), {}, options.machine)
        for group in grouped.groups:
            finders = {joined[n] for n in group.group.members if n in joined}
            strategies = _tried(group, options.machine) if finders else set()
            for finder in finders:
                seen[finder] += 1
                assert strategies & STRATEGIES[finder], (name, group.label, finder, strategies)
    assert all(seen.values()), seen


def _tried(group: Grouped, machine: Target) -> set[str]:
    made = group.made
    assert made is not None
    scheduled = schedule_with_steps(made.computation, machine, made.constants)
    return {name for tried in scheduled.tried for name in tried.strategies}
