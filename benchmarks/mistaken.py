"""This machine with wrong numbers, for choices alone: what a search makes up for.

    python -m benchmarks.mistaken      ``tilewright.tools.measure`` on such a machine, for ``benchmarks/tuned.py``

In: nothing. Out: ``mistaken``, within which targets called ``native`` have caches of other sizes and another latency.
Not its business: what is measured (``benchmarks/tuned.py``).
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tilewright.runtime.once import once
from tilewright.target import target
from tilewright.tools import apart, measure

LARGER, SMALLER, SLOWER = 8, 8, 3
"""How many times the first cache is too large, those behind it are too small, and a multiply-add is too slow."""


@contextmanager
def mistaken() -> Iterator[None]:
    """Choices are made for such a machine, here and in the process in which a search measures."""
    real, command, judged = target._host, measure.COMMAND, target.Target.host().judged()
    wrong = replace(
        judged,
        l1_bytes=judged.l1_bytes * LARGER,
        l2_bytes=judged.l2_bytes // SMALLER,
        llc_bytes=judged.llc_bytes // SMALLER,
        fma_latency=judged.fma_latency * SLOWER,
    )
    target._host, measure.COMMAND = once(lambda: wrong), apart.module_command("benchmarks.mistaken")
    try:
        yield
    finally:
        target._host, measure.COMMAND = real, command


if __name__ == "__main__":
    with mistaken():
        runpy.run_module("tilewright.tools.measure", run_name="__main__")
