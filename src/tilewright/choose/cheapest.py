"""The schedule that the price takes: of all candidates of a kernel, the one that should take the least time.

In: a ``Computation``, two records of its machine. Out: what was scheduled. Not its business: which schedules there are
(``choose.candidates``), what one costs (``choose.cost.price``).

A call may use one thread or all of them, and the code is the same: what counts is the geometric mean of both prices. A
price is off by some per cent, so the default schedule, which was measured on many kernels, stays unless another is
cheaper by more than that.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod

from tilewright.choose.candidates import candidates
from tilewright.choose.cost.price import DOUBT, price_of
from tilewright.choose.default import OnBroken, Scheduled, refuse
from tilewright.core.compute import Buffer, Computation
from tilewright.target.target import Target
from tilewright.tile.ir import Kernel


def cheapest(
    computation: Computation,
    target: Target,
    constants: Container[Buffer],
    name: str = "kernel",
    on_broken: OnBroken = refuse,
    *,
    machine: Target | None = None,
) -> Scheduled:
    """The candidate with the least price by the numbers of ``machine`` (default: ``target``, which schedules go by).

    A computation with symbolic sizes keeps the default: what its schedules cost is another question for every size.
    """
    found = (c.scheduled for c in candidates(computation, target, constants, name, on_broken))
    default = next(found)
    if default.kernel.sizes:
        return default
    prices = {of: _seconds(of.kernel, machine or target) for of in (default, *found)}
    best = min(prices, key=lambda of: prices[of])
    return best if prices[best] < prices[default] * (1 - DOUBT) else default


def _seconds(kernel: Kernel, machine: Target) -> float:
    counts = sorted({1, machine.n_cores})
    return prod(price_of(kernel, machine, {}, n).seconds for n in counts) ** (1 / len(counts))
