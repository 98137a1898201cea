"""How fast the machine runs Python just now, so that a bound on processor time means the same on every machine.

In: nothing. Out: seconds of a fixed piece of work. Not its business: what is bounded (``conftest``, ``test_speed``).
"""

import time

LOOP_MS = 13.0
"""What :func:`loop_ms` gives on the machine on which bounds are stated."""
LASTS = 20.0
"""Seconds after which a measurement says no more how fast the machine is: others on the same host come and go."""


STEPS = 250_000
"""A few milliseconds' worth: a run of the tests asks hundreds of times."""


def loop_ms() -> float:
    """Processor time of a million steps of Python, in milliseconds, by fewer of them.

    By as many as a clock that moves in jumps takes to move at all: some virtual machines count whole ticks.
    """
    start, n, spent = time.process_time(), 0, 0.0
    while spent <= 0:
        for _ in range(STEPS):
            pass
        n += STEPS
        spent = time.process_time() - start
    return spent * 1e3 * (1_000_000 / n)


class Pace:
    """How many times as long as on that machine Python takes just now, measured anew every ``LASTS`` seconds."""

    def __init__(self) -> None:
        self._until, self._slowness = 0.0, 1.0

    def now(self) -> float:
        if time.monotonic() >= self._until:
            self._slowness = min(loop_ms() for _ in range(2)) / LOOP_MS
            self._until = time.monotonic() + LASTS
        return self._slowness
