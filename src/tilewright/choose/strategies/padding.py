"""The rule for reductions that read padding: taps of a window that lie in it as a whole are left out.

In: a builder whose stages all have their loops, before any is walked back and forth (``constants``). Out: steps. Not
its business: how padding is made (``normalize``).

A tile's loop over the channels of a tap reads nothing but zeros where the tap's row, or all of the columns that the
tile reads, lie beyond the image. That is a small part of a window of neighbours, and most of one whose dilation comes
near the image's size: of 3x3 taps 18 apart over 28x28 pixels two thirds, of taps next to each other over 7x7 pixels a
tenth.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.choose.cost.tile import estimate
from tilewright.choose.strategies.hints import MIN_STEPS
from tilewright.choose.strategies.steps import attempt
from tilewright.core.dims import are_known
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim, symbols
from tilewright.tile.affine import coefficient, without
from tilewright.tile.ir import For, Kind, Loop, walk
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.trim import Guarded


def skip_padding(b: ScheduleBuilder) -> None:
    """Innermost serial loops of reductions run only where they read more than padding, if enough of them don't."""
    loops, guarded = {x.sym: x for x in loops_of(b.kernel.body)}, Guarded(b.kernel)
    for s in list(walk(b.kernel.body)):
        if isinstance(s, For) and s.loop.kind is Kind.SERIAL and estimate([s.loop.extent]) >= MIN_STEPS:
            if any(x.kind is Kind.SERIAL for x in loops_of(s.body)):
                continue
            guards = guarded.skipped_below(s)
            shares = [_share_hidden(g, [x for a, x in loops.items() if a in symbols(g)]) for g in guards]
            if max(shares, default=0) * estimate([s.loop.extent]) > 1:  # asking takes about as long as a step
                attempt(b, partial(b.do, "skip", s.loop.sym.name))  # which leaves what is stored as it was


def _share_hidden(guard: Dim, loops: list[Loop]) -> float:
    """At which share of the loops' iterations a guard is below 0; 0 where that is not known."""
    steps, sizes = [coefficient(guard, x.sym) for x in loops], [x.extent for x in loops]
    base = without(guard, [x.sym for x in loops])
    if not are_known((base, *steps, *sizes)) or estimate(sizes) > EFFORT.elements:
        return 0.0
    at = sum(np.ogrid[tuple(slice(n) for n in sizes)][k] * c for k, c in enumerate(steps))
    return float(np.mean(np.asarray(at) + base < 0))
