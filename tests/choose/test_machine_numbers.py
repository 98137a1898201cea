"""A machine's own numbers decide: with another latency or cache the same kernel is scheduled otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tile.kernels import WIDE, reduction
from tilewright.choose.default import Scheduled, schedule_with_steps
from tilewright.graph.forms.ahead import ProjectAhead
from tilewright.graph.forms.scan_panels import ScanPanels


def arguments(found: Scheduled, primitive: str) -> list[tuple[object, ...]]:
    """Those of the schedule's steps by one primitive."""
    return [tuple(s.args) for s in found.schedule.steps if s.primitive == primitive]


@pytest.mark.parametrize("latency, n_parts", [(1, 1), (2, 2), (4, 4), (5, 8), (8, 8)])
def test_a_sum_has_as_many_parts_as_an_addition_takes_cycles(latency: float, n_parts: int) -> None:
    machine = replace(WIDE, fma_latency=latency, n_cores=1)
    (parts,) = arguments(schedule_with_steps(reduction((4, 3000), 1, "add"), machine), "rfactor")
    assert n_parts in parts


@pytest.mark.parametrize("factor", [1, 2])
def test_recurrences_read_ahead_what_a_first_level_cache_does_not_hold(factor: int) -> None:
    machine = replace(WIDE, l1_bytes=factor * WIDE.l1_bytes)
    assert ScanPanels.on(machine).least_bytes == factor * ScanPanels.on(WIDE).least_bytes
    assert ProjectAhead.on(machine).least == factor * ProjectAhead.on(WIDE).least


def test_recurrences_multiply_ahead_what_the_last_cache_holds() -> None:
    slow = replace(WIDE, fma_ports=1, llc_bytes=8 << 20)
    assert ProjectAhead.on(replace(slow, llc_bytes=16 << 20)).most == 2 * ProjectAhead.on(slow).most
