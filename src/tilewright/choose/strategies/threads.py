"""Which loops run on all threads: the outermost that may, and with it the next where its iterations are few.

In: a builder and loops in order, outermost first. Out: ``kind`` steps. Not its business: whether threads pay
(``choose.cost.tile``), how iterations are dealt (``codegen.cpu.parallel``).
"""

from __future__ import annotations

from math import ceil

from tilewright.choose.cost.tile import estimate, pays_threads
from tilewright.core.dims import known_under
from tilewright.core.estimates import DOUBT
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, Kind
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop

EVEN_TASKS = ceil(1 / DOUBT)
"""With so many iterations for each core, what a parallel loop leaves uneven is less than prices can tell."""
TASKS_PER_CORE = 2
"""Iterations of a parallel loop for each core, at least."""


def min_tasks(machine: Target) -> int:
    """How many iterations a parallel loop should have at least."""
    return TASKS_PER_CORE * machine.n_cores


def parallel(b: ScheduleBuilder, machine: Target, loops: list[str]) -> None:
    """Run the first of ``loops`` that may on all threads, together with the loop inside of it where that is needed.

    It goes outside of those that may not (the steps of a running sum), or threads would be called at each iteration;
    where it cannot, that has to pay.
    """
    for least in (min_tasks(machine), 2):  # one of fewer gives way to one inside of it, where there is one that may
        for k, name in enumerate(loops):
            mark = b.mark()
            if _is_called_seldom(b, machine, loops[:k], name) and _may(b, name):
                join(b, machine, name)
                if _n_tasks(b, name) >= least:
                    return
            b.back(mark)


def join(b: ScheduleBuilder, machine: Target, name: str) -> None:
    """Where the parallel loop ``name`` has few iterations, the loop that it repeats becomes parallel, too, if it may.

    The two are shared out as one loop, which comes out more even. An innermost loop is left for lanes.
    """
    outer = find_loop(b.kernel, name, "join")
    inner = outer.body[0]
    is_few = known_under(outer.loop.extent, EVEN_TASKS * machine.n_cores)
    if not is_few or len(outer.body) > 1 or not isinstance(inner, For) or inner.loop.kind is not Kind.SERIAL:
        return
    if any(isinstance(s, For) for s in inner.body):
        _may(b, inner.loop.sym.name)


def _is_called_seldom(b: ScheduleBuilder, machine: Target, outer: list[str], name: str) -> bool:
    """Are no loops of ``outer`` around that have to stay serial, once ``name`` has moved; or is there work in each?"""
    mark = b.mark()
    held = [n for n in outer if not _may(b, n)]
    b.back(mark)
    if not held:
        return True
    try:
        b.do("reorder", name, *outer)
        return True
    except ScheduleError:
        b.back(mark)
    loop = find_loop(b.kernel, name, "kind")
    points = estimate([loop.loop.extent, *(x.extent for x in loops_of(loop.body))])
    return pays_threads(points, machine, 1)


def _may(b: ScheduleBuilder, name: str) -> bool:
    if find_loop(b.kernel, name, "kind").loop.kind is Kind.PARALLEL:
        return True
    mark = b.mark()
    try:
        b.do("kind", name, "parallel")
    except ScheduleError:
        b.back(mark)
        return False
    return True


def _n_tasks(b: ScheduleBuilder, name: str) -> float:
    """Iterations of a parallel loop and of the one that was joined to it."""
    outer = find_loop(b.kernel, name, "join")
    inner = outer.body[0]
    joined = [inner.loop.extent] if isinstance(inner, For) and inner.loop.kind is Kind.PARALLEL else []
    return estimate([outer.loop.extent, *joined])
