"""What the planner of kernels and their schedules must estimate alike: times of a call, shares of its cache.

In: nothing. Out: ``Times``, means over batches, and constants. Not its business: a machine's own sizes
(``target.target``), the estimates (``partition.beside``, ``partition.projections``, ``choose.shares``,
``choose.strategies``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from statistics import geometric_mean

from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, bounds, evaluate, symbols

BLOCK_SHARE, RING_SHARE = 6, 2
"""A block of a window's rows that one kernel projects, and a ring of the rows that it is made of, take at most these
parts of the second-level cache."""

COPIED_ROWS, COPIED_LANES = 16, 8
"""Results in rows and in columns that share each element of what a call brings, from where on a copy of it in another
order or type costs less than it saves."""
SHORT_RUN = 128
"""Elements that share a factor: of fewer, a loop that ends with each run costs more than reading the whole once less.
Group norms of 49 places a channel lost by it, those of 196 were even (AVX-512 and AVX2)."""
MOST_GROWTH = 4
"""How many times as large a constant may become in a form that kernels want: filled up to whole steps, or packed."""
SHUFFLED_STRIDE = 3
"""Elements of a row so far apart, a vector of them, are brought together by two shuffles."""
EVEN_CHUNKS = 8
"""Parts for each core, all of about equal cost, that leave little uneven at the end of what threads share."""
DOUBT = 0.05
"""The part of a price by which two prices must differ to be told apart: nearer ones are as often wrong as right."""
IDLE = 1.15
"""How many times as many lanes one order of axes must leave idle as another, before lanes alone decide between them;
and by what factor cycles must differ that count arithmetic alone in one form and other work in another."""
WAITED_FOR = 0.3
"""The part of reading a product's constants that no multiplication hides: every product begins with its own."""
ASSUMED_SIZE = 512
"""What a size counts as that only a call knows: a few hundred rows, where neither one alone nor many decide."""
ASSUMED_SIDE = 32
"""The same of a side of an image: whole tiles of most sizes fill it, as they nearly fill all large ones."""
PASSED_CYCLES = 4
"""In which a vector goes from one kernel to the next: it is written and read again, and a loop turns."""
OUTWEIGHING = ceil(PASSED_CYCLES / DOUBT)
"""Products of each element beside which moving it cannot be told from not moving it."""


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


LOG_MOST_IMAGES = 6
"""Of the largest batch, as a power of 2, that is thought of where only a call knows the batch. In larger ones choices
fall as in this: so many images share the weights that reading these no longer counts."""


def over_batches(batch: Dim, cost: Callable[[int], float]) -> float:
    """The cost of a batch; where only a call knows it, the geometric mean over powers of 2 that it may be.

    The form with the least mean is best over all of these batches by its factor over the others, small batches and
    large ones counting alike: one image of small planes waits for its weights, and many images share them. What costs
    nothing in some batch, as images without an element do, costs nothing.
    """
    if is_known(batch):
        return cost(batch)
    sizes = [{s: nearest_size(s, 1 << k) for s in symbols(batch)} for k in range(LOG_MOST_IMAGES + 1)]
    costs = [cost(n) for n in dict.fromkeys(max(size_at(batch, known_as), 1) for known_as in sizes)]
    return geometric_mean(costs) if min(costs) > 0 else 0.0


def size_at(size: Dim, sizes: Mapping[Sym, int]) -> int:
    """What a size counts as where those that only a call knows are taken to be ``sizes``.

    It is 0 where these go together in no call: ``n // (a - b)`` has no value where all of them are taken to be equal.
    """
    try:
        return max(evaluate(size, sizes), 0)
    except ZeroDivisionError:
        return 0


def nearest_size(d: Dim, size: int) -> int:
    """The size within the bounds of a symbol, or of an expression, that is nearest."""
    least, most = bounds(d)
    size = max(size, least or 0)
    return size if most is None else min(size, most)
