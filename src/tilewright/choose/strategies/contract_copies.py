"""What a call brings to a product, copied into the order in which tiles walk it, where the price says so.

In: a contraction in numbers, its tile, the order that the rules give it. Out: which operands to copy, and the order
of loops with the copies. Not its business: constants (``constants``), operands that lie badly for lanes (``relayout``),
prices (``choose.cost.sketch``), steps (``contract_tile``).

Before: ``for panel: for row: for k: .. A[row, k] * B[k, panel]``. After: ``A_s[row, k] = A[row, k] for all rows; for
panel: (for k: B_s[k] = B[k, panel]; for row: for k: .. A_s[row, k] * B_s[k])``. The rows of a wide matrix lie a page
or more apart, and often a power of two: what one block of lanes reads of them falls into few sets of a cache, and is
gone before the next rows need it. A panel of the copy is one run, and so are a tile's rows, also of a matrix that lies
by columns. This is how products are blocked for caches (Goto and van de Geijn, Anatomy of high-performance matrix
multiplication, 2008).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

from tilewright.choose.cost.sketch import (
    Contraction,
    NestAccess,
    Walk,
    copy_seconds,
    sketch,
    sketch_tile,
    whole_copy_seconds,
)
from tilewright.choose.cost.tile import Tile
from tilewright.choose.strategies.contract_space import Order, TileSpace, orders, walks_of
from tilewright.choose.strategies.threads import min_tasks
from tilewright.core.estimates import DOUBT
from tilewright.core.expr import Sym
from tilewright.target.target import Target


@dataclass(frozen=True)
class OrderWithCopies:
    """The order of loops outside of a tile, and the numbers of the operands that are copied."""

    order: Order
    copied: tuple[int, ...]


def order_with_copies(
    space: TileSpace, brought: Sequence[int], turned: Sequence[int], tile: Tile, order: Order, machine: Target
) -> OrderWithCopies:
    """The copies of ``brought`` operands, and the order, that make a tile cheapest; none if in doubt.

    ``turned`` operands are copies already, and some orders let them be filled panel by panel (``copies``).

    A price is off by some per cent, so an order has to save more than it can tell. Of those that it can't tell apart
    the one with the most copies, since it counts the lines that come from behind a cache, but not that those of a run
    come before they are asked for; then the one with the fewest parts, since all that comes for the first time comes at
    once when a part begins, where the price spreads it over the whole.
    """
    sizes = tile.rows, tile.rows2, tile.vectors
    # Where runs are short, the next line comes with each of them for nothing: copies have runs as long as a panel.
    scattered = [replace(x, beyond=int(k in brought)) for k, x in enumerate(space.of.operands)]
    space = replace(space, of=replace(space.of, operands=tuple(scattered)))
    outside, is_shared = space.outside, space.outside.is_shared
    plain = sketch_tile(space.of, machine, *sizes)
    walks = walks_of(plain, outside, order, machine)
    lies = sketch(plain, walks, order.depth or 0, machine, is_shared=is_shared)
    lies += _turned_seconds(space, turned, walks, machine)
    found: list[tuple[float, OrderWithCopies]] = []
    for copied in _subsets([k for k in brought if _may_copy(space, k, machine)]):
        operands = (_copy(space.of, k) if k in copied else x for k, x in enumerate(space.of.operands))
        packed = sketch_tile(replace(space.of, operands=tuple(operands)), machine, *sizes)
        for o in orders(packed, outside):
            walks = walks_of(packed, outside, o, machine)
            copies = [(k, _n_copies(space, k, walks)) for k in copied]
            if all(n > 0 for _, n in copies):
                seconds = sketch(packed, walks, o.depth or 0, machine, is_shared=is_shared)
                seconds += sum(copy_seconds(space.of, k, n, tile.vectors, machine) for k, n in copies)
                seconds += _turned_seconds(space, turned, walks, machine)
                found.append((seconds, OrderWithCopies(o, copied)))
    found = [(seconds, x) for seconds, x in found if seconds < lies * (1 - DOUBT)]
    if not found:
        return OrderWithCopies(order, ())
    least = min(seconds for seconds, _ in found)
    alike = [(seconds, x) for seconds, x in found if seconds * (1 - DOUBT) <= least]
    return min(alike, key=lambda x: (-len(x[1].copied), _n_parts(space.of, x[1].order), x[0]))[1]


def _turned_seconds(space: TileSpace, turned: Sequence[int], walks: Sequence[Walk], machine: Target) -> float:
    """What copies of turned operands take besides filling them: the way to memory and back of those filled as a whole.

    One is filled panel by panel (``copies``) where every loop down to the one over panels moves it, so that a panel is
    read in one go, and that loop runs on all threads together with one around it.
    """
    last = max((k for k, w in enumerate(walks[:-1]) if w.sym is space.of.lanes), default=0)
    operands = (space.of.operands[k] for k in turned)
    whole = (x for x in operands if last == 0 or not all(_moves(space.of, x, w) for w in walks[: last + 1]))
    return sum(whole_copy_seconds(x.size, machine) for x in whole)


def _moves(of: Contraction, x: NestAccess, walk: Walk) -> bool:
    return walk.sym is of.lanes or bool(x.steps.get(walk.sym))


def _n_parts(of: Contraction, order: Order) -> int:
    """Into how many chunks of rows, or parts of the reduction, the work is cut."""
    return order.n_chunks * of.n_parts(order.depth or 0)


def _is_panel(of: Contraction, operand: int) -> bool:
    """Do the lanes walk it, so that all rows share a panel of it? Else all panels share its rows."""
    return bool(of.operands[operand].steps.get(of.lanes))


def _subsets(found: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for n in range(len(found) + 1):
        yield from combinations(found, n)


def _may_copy(space: TileSpace, operand: int, machine: Target) -> bool:
    """Is there a place for a copy, and is it no larger than the operand, as one of windows that overlap would be?

    Panels are copied inside of their loop. All rows of a batch are copied by the thread that has this batch.
    """
    x, of = space.of.operands[operand], space.of
    walked = [n for s, n in (*of.outer.items(), *of.reduced) if x.steps.get(s)]
    lanes = of.n_lanes if x.steps.get(of.lanes) else 1
    if prod(walked) * lanes * x.n_bytes > x.size:
        return False
    if _is_panel(space.of, operand) or not space.outside.is_shared:
        return True
    n_batches = prod(space.of.outer[s] for s in space.outside.batch)
    return n_batches == 1 or n_batches >= min_tasks(machine)


def _copy(of: Contraction, operand: int) -> NestAccess:
    """The access to a copy: panels lie as constants do when they are packed, rows one behind the other."""
    x = of.operands[operand]
    if _is_panel(of, operand):
        return replace(x, is_packed=True, beyond=0)
    steps: dict[Sym, int] = {}
    step = x.n_bytes
    for sym, n in (*reversed(of.reduced), *reversed(tuple(of.outer.items()))):
        if x.steps.get(sym):
            steps[sym] = step
            step *= n
    return replace(x, steps=steps, beyond=0)


def _n_copies(space: TileSpace, operand: int, walks: Sequence[Walk]) -> int:
    """How often each element is copied: once for each iteration of the loops around its copy that don't move it.

    0 where the order has no place for the copy: one block of lanes, or no rows inside of it to share a panel.
    """
    x, of = space.of.operands[operand], space.of
    if _is_panel(of, operand):
        blocks = [k for k, w in enumerate(walks[:-1]) if w.sym is of.lanes]
        if not blocks:
            return 0
        around: Sequence[Walk] = walks[: blocks[-1]]
    else:
        around = [w for w in walks if w.sym in space.outside.batch]
        if list(walks[: len(around)]) != around:
            return 0
    return prod(w.count for w in around if not x.steps.get(w.sym))
