"""Every schedule that the strategies can give a computation: what is to choose from.

In: a ``Computation``, a ``Target``, its constants. Out: ``ScheduleCandidate``s that differ, the default one first.
Not its business: which is the fastest (``choose.cost.price``, or a measurement).

A strategy that fits may not be the one that the default takes, so each of a cluster's strategies comes first once. And
within a strategy, sizes of tiles and blocks follow from the machine's numbers: machines a little unlike this one (of
fewer registers, other caches, another latency) weigh them otherwise. Every candidate is a whole schedule, with its
rests and packing, and legal.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from tilewright.choose.default import OnBroken, Scheduled, refuse, schedule_with_steps
from tilewright.core.compute import Buffer, Computation
from tilewright.target.target import Target


@dataclass(frozen=True)
class ScheduleCandidate:
    """A schedule and how it came about: ``made`` names the strategy that came first, or the machine's difference."""

    made: str
    scheduled: Scheduled


def candidates(
    computation: Computation,
    target: Target,
    constants: Container[Buffer],
    name: str = "kernel",
    on_broken: OnBroken = refuse,
) -> Iterator[ScheduleCandidate]:
    """The schedules of a computation that differ from each other, one at a time."""
    default = schedule_with_steps(computation, target, constants, name, on_broken)
    seen = {default.schedule}
    yield ScheduleCandidate("default", default)
    for tried in default.tried:
        for strategy in tried.strategies:
            if strategy != tried.taken:
                first = {tried.root: strategy}
                found = schedule_with_steps(computation, target, constants, name, on_broken, first)
                if found.schedule not in seen:
                    seen.add(found.schedule)
                    yield ScheduleCandidate(strategy, found)
    for label, machine in variants(target):
        found = schedule_with_steps(computation, machine, constants, name, on_broken)
        if found.schedule not in seen:
            seen.add(found.schedule)
            yield ScheduleCandidate(label, found)


def variants(m: Target) -> Iterator[tuple[str, Target]]:
    """Machines a little unlike ``m``, on which tiles and blocks are weighed otherwise."""
    n = m.n_vector_registers
    for registers in (n * 7 // 8, n * 3 // 4, n // 2):
        yield f"{registers} registers", replace(m, n_vector_registers=registers)
    for latency in (m.fma_latency * 2, m.fma_latency // 2):
        yield f"latency {latency:g}", replace(m, fma_latency=latency)
    yield "1 load port", replace(m, load_ports=1)
    for factor in (4, 2):
        yield f"L2 / {factor}", replace(m, l2_bytes=m.l2_bytes // factor)
        yield f"L2 x {factor}", replace(m, l2_bytes=m.l2_bytes * factor)
    yield "L1 / 2", replace(m, l1_bytes=m.l1_bytes // 2)
