"""What a search tries for a kernel, and in which order: an endless space of which a few hundred points are measured.

In: a kernel of a model, what earlier searches found. Out: the next schedule to measure, with its kernel. Not its
business: how schedules are made (``choose``), the order by expected time (``tools.guide``), measuring
(``tools.search``).

First come an earlier search's find and the strategies' own candidates. Then two sources take turns: schedules made for
machines unlike this one, whose caches, registers and latencies are other powers of two, so that a choice which the
machine's numbers mislead is found again; and schedules near the best one so far, which differ by a factor or two.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from tilewright.build.kernels import KernelBuilder
from tilewright.choose.default import OnBroken, Scheduled, schedule_with_steps
from tilewright.choose.mutations import mutations
from tilewright.choose.strategies.contract_space import Arrangement, TileSpace, cheapest_arrangements
from tilewright.core.compute import Buffer, Computation
from tilewright.core.effort import EFFORT
from tilewright.target.target import Target
from tilewright.tile.schedule import Schedule
from tilewright.tools.guide import Guide, Near

TILES = 4
"""Tiles of each machine's ranking that are tried."""
MOST_DOUBLINGS = 3
_REGISTERS = (8, 12, 14, 16, 24, 28, 32)


@dataclass
class Queue:
    """The schedules of one kernel, the most promising first; ``skips`` are not tried again."""

    kernels: KernelBuilder
    name: str
    guide: Guide
    random: Random
    stored: Scheduled | None
    skips: Callable[[Schedule], bool]
    own: Iterator[Scheduled]
    goes_on: bool
    is_over: Callable[[], bool]
    made: dict[Schedule, Scheduled] = field(default_factory=dict)
    seen: set[Schedule] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.seen.add(self.kernels.schedules[self.name])
        self.first = self._first()
        self.wide = Near(self.name, self.kernels.schedules[self.name], self._kept(self._unlike()))
        self.near: Near | None = None
        self.n = 0

    def next(self, best: Schedule) -> Scheduled | None:
        """What to measure next, beside the ``best`` one so far; None where there is nothing new."""
        found = next(self.first, None)
        if found is None and self.goes_on:
            if self.near is None or self.near.around != best:  # a better one was found: go on from there
                self.near = Near(self.name, best, self._kept(self._mutations(best)))
            self.n += 1
            sources = (self.near, self.wide) if self.n % 2 else (self.wide, self.near)
            found = next((s for s in map(self.guide.best_of, sources) if s is not None), None)
        return None if found is None else self.made.pop(found)

    def _first(self) -> Iterator[Schedule]:
        """What an earlier search found, where it still fits; then the strategies' candidates in order."""
        if self.stored is not None:
            yield from (s.schedule for s in self._kept(iter([self.stored])))
        yield from self.guide.ordered(self.name, self._kept(self.own))

    def _kept(self, found: Iterator[Scheduled]) -> Iterator[Scheduled]:
        """Those that are new, as long as there is time, and until many in turn were none."""
        failed = 0
        for one in found:
            if failed == EFFORT.attempts or self.is_over():
                return
            failed += 1
            if one.schedule not in self.seen and not self.skips(one.schedule):
                self.seen.add(one.schedule)
                self.made[one.schedule] = one
                failed = 0
                yield one

    def _mutations(self, best: Schedule) -> Iterator[Scheduled]:
        made = self.kernels.groups[self.name]
        return mutations(made.computation, self.kernels.target, made.constants, self.name, best, self.random)

    def _unlike(self) -> Iterator[Scheduled]:
        made, target = self.kernels.groups[self.name], self.kernels.target
        return unlike(made.computation, target, made.constants, self.name, self.kernels.checks.on_broken, self.random)


def unlike(
    computation: Computation,
    target: Target,
    constants: Container[Buffer],
    name: str,
    on_broken: OnBroken,
    random: Random,
) -> Iterator[Scheduled]:
    """Schedules as they would be made on machines unlike this one, without an end; the same one may come again."""
    spaces: list[TileSpace] = []
    schedule_with_steps(computation, target, constants, name, on_broken, arrange=spaces.append)
    tried: set[tuple[Arrangement, ...]] = set()
    while True:
        other = another(target, random)
        yield schedule_with_steps(computation, other, constants, name, on_broken)
        ranked = [cheapest_arrangements(space, other, TILES) for space in spaces]
        for rank in range(max(map(len, ranked), default=0)):
            taken = [r[min(rank, len(r) - 1)] for r in ranked]
            key = tuple(replace(a, seconds=0.0) for a in taken)
            if key not in tried:
                tried.add(key)
                arrange = partial(_taken, spaces, taken)
                yield schedule_with_steps(computation, target, constants, name, on_broken, arrange=arrange)


def _taken(spaces: Sequence[TileSpace], taken: Sequence[Arrangement], space: TileSpace) -> Arrangement | None:
    """What was taken for a space; None for one that was not there before."""
    return next((a for s, a in zip(spaces, taken, strict=True) if s == space), None)


def another(target: Target, random: Random) -> Target:
    """A machine like this one, but for sizes of caches, a latency and registers, which are up to some times as many."""
    l2 = _times(target.l2_bytes, random)
    return replace(
        target,
        l1_bytes=min(_times(target.l1_bytes, random), l2),
        l2_bytes=l2,
        fma_latency=max(_times(int(target.fma_latency), random), 1),
        n_vector_registers=random.choice([n for n in _REGISTERS if n <= target.n_vector_registers]),
        load_ports=random.choice([1, target.load_ports]),
    )


def _times(n: int, random: Random) -> int:
    """The number, or it times or over a power of two."""
    return int(n * 2 ** random.randint(-MOST_DOUBLINGS, MOST_DOUBLINGS))
