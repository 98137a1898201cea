"""What a scheduled kernel costs: seconds from its features, by one model with the machine's numbers.

In: a kernel's ``Features``, a ``Target``, the number of threads. Out: seconds, and what they are spent on.
Not its business: what a kernel asks for (``choose.cost.features``), which schedules there are (``choose.candidates``).

An iteration of a loop keeps several resources busy at once: the units that multiply, add and divide, the ports of loads
and of stores, the instructions that a core can begin, and the chain of results that wait for each other. Meanwhile the
caches bring what the loop reads. So a loop takes as long as its busiest resource, and a little longer because they
never overlap perfectly: a norm of the single times whose power is a coefficient. Loops add up.

What an instruction class costs beside a multiply-add, how well resources overlap, what a loop's turn and its end cost:
these are the coefficients, fitted to measured kernels by ``benchmarks/fit_price.py``. All else is the machine's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil
from types import MappingProxyType
from typing import Any

from tilewright.choose.cost.features import Features, features_of
from tilewright.choose.cost.nest import RunTimeLoop
from tilewright.core.estimates import DOUBT
from tilewright.core.expr import Sym
from tilewright.target.target import Target
from tilewright.tile.ir import Kernel


@dataclass(frozen=True)
class Coefficients:
    """The model's own numbers; the machine's stand in its ``Target``.

    Slots of a unit that multiplies, for one register: ``simple``, ``divide``, ``convert``, ``shuffle``, ``scalar``.
    Slots of the load or store port: ``element`` that moves alone, ``partial`` store of a part of a vector.
    ``turn`` instructions of a loop's own in every iteration, ``end`` cycles when it ends, since no processor foresees
    when, ``call`` cycles of the whole. ``waiting``: the part of a chain's latency that neither other work nor the
    window (``waited``) hides. ``overlap`` is the power of the norm by which times that overlap are joined; ``near``,
    ``far`` and ``beyond`` the part of the bandwidth behind the first-level, second-level and last cache that loops
    reach.
    """

    simple: float = 0.761
    divide: float = 6.85
    convert: float = 2.27
    shuffle: float = 0.0159
    scalar: float = 7.98
    element: float = 1.05
    partial: float = 3.97
    turn: float = 1.81
    end: float = 1.0
    call: float = 177.0
    waiting: float = 0.15
    overlap: float = 2.62
    near: float = 1.45
    far: float = 1.13
    beyond: float = 1.5


FITTED = Coefficients()


@dataclass(frozen=True)
class Price:
    """``seconds`` of a call. ``by_resource`` has what each resource alone would take, by name, in seconds."""

    seconds: float
    by_resource: Mapping[str, float]

    @property
    def bound(self) -> str:
        """The resource that takes longest."""
        return max(self.by_resource, key=lambda k: self.by_resource[k])


RESOURCES = ("arithmetic", "loads", "stores", "issue", "chains", "L2", "last cache", "memory", "loops", "forks")


def price_of(
    kernel: Kernel,
    target: Target,
    sizes: Mapping[Sym, int] = MappingProxyType({}),
    n_threads: int = 1,
    coefficients: Coefficients = FITTED,
) -> Price:
    """What one call of a kernel costs; ``sizes`` has a number for each of its symbolic sizes."""
    return price(features_of(kernel, target, sizes, n_threads), target, n_threads, coefficients)


def price(features: Features, target: Target, n_threads: int = 1, c: Coefficients = FITTED) -> Price:
    """Seconds of one call with these features."""
    cycles = c.call
    spent = dict.fromkeys(RESOURCES, 0.0)
    shares = speed_up(features, n_threads)
    for row in features.rows:
        part = 1.0 / shares if is_shared(row) else 1.0
        resources = row_cycles(row, target, c)
        loops = row.entries * c.end if row.loop is not None else 0.0
        cycles += (joined(resources, c) + loops) * part
        for name, value in resources.items():
            spent[name] += value * part
        spent["loops"] += loops * part
    if n_threads > 1 and features.forks:
        spent["forks"] = features.forks * target.fork_cycles
        cycles += spent["forks"]
    hertz = target.ghz * 1e9
    return Price(cycles / hertz, {name: value / hertz for name, value in spent.items()})


def cheapest_of(prices: Sequence[float]) -> int:
    """Which of a kernel's candidates a choice by price takes. The first, the default one, stays if in doubt."""
    least = min(range(len(prices)), key=lambda k: prices[k])
    return least if prices[least] < prices[0] * (1 - DOUBT) else 0


def row_cycles(row: RunTimeLoop, target: Target, c: Coefficients) -> dict[str, Any]:
    """Cycles that each resource is busy with a loop's own body in one call; arrays for a row of arrays."""
    n, counts = row.iterations, row.counts

    def weighed(**weights: float) -> float:
        return sum(counts.get(kind, 0.0) * weight for kind, weight in weights.items())

    slots = weighed(
        multiply=1.0, simple=c.simple, divide=c.divide, convert=c.convert, shuffle=c.shuffle, scalar=c.scalar
    )
    turn = c.turn if row.loop is not None else 0.0
    return {
        "arithmetic": n * slots / target.fmas_per_cycle,
        "loads": n * weighed(load=1.0, element=c.element) * target.load_cycles / target.load_ports,
        "stores": n * weighed(store=1.0, partial=c.partial) * target.store_cycles / target.store_ports,
        "issue": n * (sum(counts.values()) + turn) / target.issue_width,
        "chains": n * row.chain * c.waiting * waited(row, target),
        **dict(zip(("L2", "last cache", "memory"), memory_cycles(row.moved, target, c), strict=True)),
    }


def waited(row: RunTimeLoop, target: Target) -> Any:
    """The part of a loop's chains that the core waits for, while it has so many instructions in flight.

    What enters the loop next does not wait for what left it. With N instructions from entry to end, a core that looks W
    instructions ahead works on 1 + W / N entries at once.
    """
    each = row.iterations / row.entries * sum(row.counts.values())
    return each / (each + target.window)


def memory_cycles(moved: Sequence[Any], target: Target, c: Coefficients) -> tuple[Any, Any, Any]:
    """Cycles that bytes from behind each cache take, the nearest cache first."""
    near = moved[0] / (target.l2_bytes_per_cycle * c.near)
    far = moved[1] / (target.llc_bytes_per_cycle * c.far)
    return near, far, moved[2] / (target.memory_bytes_per_cycle * c.beyond)


def joined(resources: Mapping[str, Any], c: Coefficients) -> Any:
    """Cycles of resources that are busy at the same time."""
    return sum(v**c.overlap for v in resources.values()) ** (1 / c.overlap)


def speed_up(features: Features, n_threads: int) -> float:
    """How many times as fast threads together are as one: the last of them ends when its iterations do."""
    if n_threads == 1 or not features.forks:
        return 1.0
    n = max(features.n_shares, 1.0)
    return n / ceil(n / n_threads)


def is_shared(row: RunTimeLoop | None) -> bool:
    """Does a loop run in a parallel one, or is it one?"""
    while row is not None:
        if row.is_parallel:
            return True
        row = row.outer
    return False


def names() -> tuple[str, ...]:
    """The coefficients' names, in order."""
    return tuple(f.name for f in fields(Coefficients))
