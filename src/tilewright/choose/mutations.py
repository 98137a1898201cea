"""Schedules that differ from a given one by a number or two: what a search goes on with.

In: a computation and a schedule that is legal for it. Out: other legal ones. Not its business: which is the fastest.

Only factors change, those of tiles and of blocks, by halves, doubles and neighbours; the steps stay, so that whatever
they make has the same names. Each is replayed from the plain loops, where every step is checked again, and is left out
where one does not fit.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from random import Random

from tilewright.choose.default import Scheduled, schedule_by
from tilewright.core.compute import Buffer, Computation
from tilewright.core.effort import EFFORT
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleFileError
from tilewright.tile.schedule import Schedule, Step
from tilewright.tile.schedule.book import Line

FACTORS = ("split", "divide")
"""Primitives whose number is how many iterations go together."""


def mutations(
    computation: Computation,
    target: Target,
    constants: Container[Buffer],
    name: str,
    schedule: Schedule,
    random: Random,
) -> Iterator[Scheduled]:
    """Legal schedules that differ from ``schedule`` and from each other, in an order that ``random`` decides."""
    seen = {schedule}
    failed = 0
    while failed < EFFORT.attempts:  # so many draws without a new one leave nothing to try
        made = _changed(schedule, random)
        failed += 1
        if made is None:
            return
        if made in seen:
            continue
        seen.add(made)
        lines = [Line(k, step) for k, step in enumerate(made.steps, 1)]
        try:
            scheduled = schedule_by(computation, target, constants, name, lines)
        except ScheduleFileError:
            continue
        failed = 0
        yield scheduled


def _changed(schedule: Schedule, random: Random) -> Schedule | None:
    """The schedule with another number in one step or two; None where none of its steps has one."""
    places = [k for k, step in enumerate(schedule.steps) if step.primitive in FACTORS]
    if not places:
        return None
    steps = list(schedule.steps)
    for k in random.sample(places, min(len(places), random.choice((1, 1, 2)))):
        loop, factor, *rest = steps[k].args
        assert isinstance(factor, int)
        other = random.choice([f for f in (2 * factor, factor // 2, factor + 1, factor - 1) if f > 0])
        steps[k] = Step(steps[k].primitive, (loop, other, *rest))
    return Schedule(tuple(steps))
