"""What a search measures first: schedules in the order of their expected times, which follows what was measured.

In: schedules of kernels, and how long each took beside another. Out: the most promising ones. Not its business: what a
schedule should take (``choose.cost.learned``), how it is measured (``tools.search``).

Times of two rounds can't be compared on a machine that others use, so a schedule's time is kept as its ratio to the one
beside which it was measured, times that one's own ratio, and so on back to the kernel's first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import log

from tilewright.choose.cost.learned import Ranking
from tilewright.choose.default import Scheduled
from tilewright.core.types import Array
from tilewright.tile.schedule import Schedule

WAITING = 8
"""Schedules near the best one among which the next is chosen."""


@dataclass
class Near:
    """The schedules near ``around`` of a kernel: those that wait for a measurement, and where others come from."""

    name: str
    around: Schedule
    source: Iterator[Scheduled]
    waiting: list[Schedule] = field(default_factory=list)


class Guide:
    """Orders the schedules of each kernel by what they should take."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._rows: dict[tuple[str, Schedule], Array] = {}
        self._times: dict[tuple[str, Schedule], float] = {}

    def ordered(self, name: str, found: Iterable[Scheduled]) -> list[Schedule]:
        """All schedules, the one that should be fastest first."""
        seen = [self._see(name, one) for one in found]
        times = self._expect(name, seen)
        return [seen[k] for k in sorted(range(len(seen)), key=lambda k: times[k])]

    def best_of(self, near: Near) -> Schedule | None:
        """Take what should be fastest of those that wait, which are filled up before; None where there are none."""
        new = (one for one in near.source if (near.name, one.schedule) not in self._times)
        near.waiting += (self._see(near.name, one) for one in islice(new, WAITING - len(near.waiting)))
        if not near.waiting:
            return None
        times = self._expect(near.name, near.waiting)
        return near.waiting.pop(min(range(len(times)), key=lambda k: times[k]))

    def learn(self, name: str, schedule: Schedule, beside: Schedule, ratio: float) -> None:
        """``schedule`` took ``ratio`` times as long as ``beside`` in the same round."""
        start = self._times.setdefault((name, beside), 0.0)
        self._times[name, schedule] = start + log(ratio)
        for one in (beside, schedule):
            if (row := self._rows.pop((name, one), None)) is not None:
                self._ranking.learn(name, row, self._times[name, one])

    def _see(self, name: str, found: Scheduled) -> Schedule:
        self._rows[name, found.schedule] = self._ranking.row(found.kernel)
        return found.schedule

    def _expect(self, name: str, found: list[Schedule]) -> list[float]:
        rows = [self._rows[name, one] for one in found]
        return list(self._ranking.expect(rows)) if rows else []
