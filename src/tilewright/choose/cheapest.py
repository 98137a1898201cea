"""The schedule that the price takes: of all candidates of a kernel, the one that should take the least time.

In: the candidates of a kernel, its machine. Out: what was scheduled. Not its business: which schedules there are
(``choose.candidates``), what one costs (``choose.cost.price``).

A call may use one thread or all of them, and the code is the same: what counts is the geometric mean of both prices. A
price is off by some per cent, so the default schedule, which was measured on many kernels, stays unless another is
cheaper by more than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from types import MappingProxyType

from tilewright.choose.candidates import ScheduleCandidate
from tilewright.choose.cost.price import cheapest_of, price_of
from tilewright.choose.default import Scheduled
from tilewright.core.expr import Sym
from tilewright.target.target import Target
from tilewright.tile.ir import Kernel


def cheapest(found: Iterable[ScheduleCandidate], machine: Target) -> Scheduled:
    """Of the candidates of a kernel, the default one first, that with the least price by the numbers of ``machine``.

    A kernel with symbolic sizes keeps the default, and no other candidate is asked for: what its schedules cost is
    another question for every size.
    """
    others = (c.scheduled for c in found)
    default = next(others)
    if default.kernel.sizes:
        return default
    made = [default, *others]
    return made[cheapest_of([seconds_of(x.kernel, machine) for x in made])]


def seconds_of(kernel: Kernel, machine: Target, sizes: Mapping[Sym, int] = MappingProxyType({})) -> float:
    """The price of a call with one thread or all of them; ``sizes`` has a number for each of the symbolic sizes."""
    counts = sorted({1, machine.n_cores})
    return prod(price_of(kernel, machine, sizes, n).seconds for n in counts) ** (1 / len(counts))
