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
    """Processor time of a million steps of Python, in milliseconds, by fewer of them."""
    start = time.process_time()
    for _ in range(STEPS):
        pass
    return (time.process_time() - start) * 1e3 * (1_000_000 / STEPS)


class Pace:
    """How many times as long as on that machine Python takes just now, measured anew every ``LASTS`` seconds."""

    def __init__(self) -> None:
        self._until, self._slowness = 0.0, 1.0

    def now(self) -> float:
        if time.monotonic() >= self._until:
            self._slowness = min(loop_ms() for _ in range(2)) / LOOP_MS
            self._until = time.monotonic() + LASTS
        return self._slowness
