"""What the planner of kernels and their schedules must estimate alike: times of a call, shares of its cache.

In: nothing. Out: ``Times``, and constants. Not its business: a machine's own sizes
(``target.target``), the estimates (``partition.beside``, ``partition.projections``, ``choose.shares``,
``choose.strategies``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.expr import Dim

BLOCK_SHARE, RING_SHARE = 6, 2
"""A block of a window's rows that one kernel projects, and a ring of the rows that it is made of, take at most these
parts of the second-level cache."""


@dataclass(frozen=True)
class Times:
    """Estimates for one kernel, in cycles: ``work`` on one thread; ``alone`` on all threads of the machine.

    ``extent`` is how many iterations all threads can share, None for a kernel that is run as a whole by one thread.
    ``uses_threads`` says that ``alone`` has several threads at work.
    """

    work: float
    alone: float
    extent: Dim | None = None
    uses_threads: bool = False
