"""Whether the steps of a loop ask for what later steps use in other pages, and how many steps ahead.

In: a step's cycles, vectors and loads as numbers. Out: steps, and whether there is room for the hints. The rules that
make hints (``choose.strategies.hints``) and the price of a tile, which waits for no page that is asked for, agree by
it.
"""

from __future__ import annotations

from math import ceil

from tilewright.target.target import Target

BUSY = 0.75
"""The part of a step's time for its products at which its loads leave no room for another hint."""


def steps_ahead(n_bytes: float, cycles: float, n_steps: float, target: Target) -> int:
    """After how many steps, of so many ``cycles``, a line comes of what has ``n_bytes`` together; 0 if too late.

    So many at a loop's end ask for what lies behind: there have to be as many others.
    """
    steps = ceil(target.line_ns(n_bytes) * target.ghz / cycles)
    return steps if n_steps >= 2 * steps else 0


def is_busy(n_loads: float, products: float, target: Target, waited: float = 0.0) -> bool:
    """Do a step's loads and hints take most of the time of its products, or ``waited`` cycles where these are more?"""
    return n_loads / target.load_ports >= max(BUSY * products / target.fmas_per_cycle, waited)
