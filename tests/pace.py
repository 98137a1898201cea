"""How fast the machine runs Python just now, so that a bound on processor time means the same on every machine.

In: nothing. Out: seconds of a fixed piece of work. Not its business: what is bounded (``conftest``, ``test_speed``).
"""

import time

LOOP_MS = 13.0
"""What :func:`loop_ms` gives on the machine on which bounds are stated."""


def loop_ms() -> float:
    """Processor time of a million steps of Python, in milliseconds."""
    start = time.process_time()
    for _ in range(1_000_000):
        pass
    return (time.process_time() - start) * 1e3


def slowness() -> float:
    """How many times as long as on that machine Python takes here: the least of some measurements."""
    return min(loop_ms() for _ in range(7)) / LOOP_MS
