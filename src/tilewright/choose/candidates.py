"""Every schedule that the strategies can give a computation: what is to choose from.

In: a ``Computation``, a ``Target``, its constants. Out: ``ScheduleCandidate``s that differ, the default one first.
Not its business: which is the fastest (``choose.cost.price``, or a measurement).

A strategy that fits may not be the one that the default takes, so each of a cluster's strategies comes first once. And
a contraction has other tiles and orders of loops than the rules take: all of them are priced by sketches, before
anything is scheduled, and the cheapest become candidates. Of what is no contraction alone there is no sketch yet: there
sizes of tiles and blocks follow from the machine's numbers, and machines a little unlike this one (of fewer registers,
other caches, another latency) weigh them otherwise. Every candidate is a whole schedule, with its rests and packing,
and legal.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from functools import partial

from tilewright.choose.default import OnBroken, Scheduled, refuse, schedule_with_steps
from tilewright.choose.strategies.contract_space import Arrangement, TileSpace, cheapest_arrangements
from tilewright.core.compute import Buffer, Computation
from tilewright.target.target import Target

MOST_TILES = 3
"""Tiles of a contraction that are scheduled: sketches that differ by some per cent are as often wrong as right."""


@dataclass(frozen=True)
class ScheduleCandidate:
    """A schedule and how it came about: ``made`` names the strategy that came first, the rank of the tile, or the
    machine's difference."""

    made: str
    scheduled: Scheduled


def candidates(
    computation: Computation,
    target: Target,
    constants: Container[Buffer],
    name: str = "kernel",
    on_broken: OnBroken = refuse,
    machine: Target | None = None,
) -> Iterator[ScheduleCandidate]:
    """The schedules of a computation that differ from each other, one at a time.

    Sketches are priced by the numbers of ``machine``, the target's own if it is not given.
    """
    tiles = RankedTiles(machine or target)
    default = schedule_with_steps(computation, target, constants, name, on_broken, arrange=tiles.see)
    # Different choices often end in the same steps; to price or time those twice would tell nothing.
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
    for rank in range(tiles.count()):
        arrange = partial(tiles.of_rank, rank)
        found = schedule_with_steps(computation, target, constants, name, on_broken, arrange=arrange)
        if found.schedule not in seen:
            seen.add(found.schedule)
            yield ScheduleCandidate(f"tile {rank + 1} by sketch", found)
    # Without tiles to rank, how the rules weigh is all that can vary: a machine a little unlike makes them weigh anew.
    for label, unlike in variants(target) if tiles.count() == 0 else ():
        found = schedule_with_steps(computation, unlike, constants, name, on_broken)
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


class RankedTiles:
    """The cheapest arrangements of each contraction of a computation that was scheduled once."""

    def __init__(self, machine: Target) -> None:
        self.machine = machine
        self.found: list[tuple[TileSpace, list[Arrangement]]] = []

    def see(self, space: TileSpace) -> None:
        """Rank what there is to choose, and leave this choice to the rules."""
        self.found.append((space, cheapest_arrangements(space, self.machine, MOST_TILES)))

    def count(self) -> int:
        """How many ranks there are."""
        return max((len(ranked) for _, ranked in self.found), default=0)

    def of_rank(self, rank: int, space: TileSpace) -> Arrangement | None:
        """The arrangement of a rank, 0 the cheapest; None where there are not so many."""
        ranked = next((r for s, r in self.found if s == space), [])
        return ranked[rank] if rank < len(ranked) else None
