"""Readers behind guards: where a box that is computed for them may reach beyond what they read.

In: the body that reads a buffer, and the box that would be computed before it. Out: a box that stays inside, or a
``ScheduleError``.
Not its business: moving the nests that fill the box (``stages``).
"""

from __future__ import annotations

from tilewright.core.compute import Buffer, Inside, Load, Select
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, bounds, symbols
from tilewright.core.indices import placed_by_dimension
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kernel, walk
from tilewright.tile.rewrite import Body, loops_of, values_of
from tilewright.tile.schedule.region import Side
from tilewright.tile.schedule.tree import new_loop


def guarded_sides(kernel: Kernel, body: Body, buffer: Buffer, sides: list[Side], where: str) -> list[Side]:
    """The box's sides; where guards keep reads inside of one that reaches beyond the buffer, that side in full."""
    try:
        check_guarded(kernel, body, buffer, sides, where)
    except ScheduleError:
        sides = [_cut(side, extent) for side, extent in zip(sides, buffer.shape, strict=True)]
        check_guarded(kernel, body, buffer, sides, where)
    return sides


def _cut(side: Side, extent: Dim) -> Side:
    """The whole buffer in place of a box from its start to beyond its end: only guarded reads go there."""
    if side.base != 0 or not is_known(side.size) or not is_known(extent) or side.size <= extent or not side.loops:
        return side
    walker = new_loop(side.loops[0].sym.name, extent)
    return Side(0, (walker,), walker.sym, extent)


def check_guarded(kernel: Kernel, body: Body, buffer: Buffer, sides: list[Side], where: str) -> None:
    """Refuse a box that may reach beyond the buffer because a reader's guard, and not its index, keeps it inside."""
    exact = {x.sym for x in loops_of(kernel.body) if is_known(x.extent)}
    values = (y for s in walk(body) for v in values_of(s) for y in walk_value(v))
    guards = (y for y in values if isinstance(y, Select) and isinstance(y.cond, Inside))
    for d in sorted({d for y in guards for d in _kept_inside(y, buffer, exact)}):
        side, extent = sides[d], buffer.shape[d]
        low = bounds(side.base)[0]
        high = bounds(extent - 1 - side.base - side.offset)[0]
        ends = [x.extent for x in side.loops]
        is_cut = len(ends) == 1 and bounds(extent - side.base - ends[0])[0] == 0 and side.offset == side.loops[0].sym
        if low is None or low < 0 or not (is_cut or (high is not None and high >= 0)):
            raise ScheduleError("compute_at", where, "a guard keeps its reads inside of it: the box may reach beyond")


def _kept_inside(guarded: Select, buffer: Buffer, exact: set[Sym]) -> set[int]:
    """The dimensions that move with a guard which keeps reads behind it in the buffer. (A causal mask's does not.)

    It speaks of a place that is read, or an index would leave the buffer without it: beyond its end, when all loops
    in it are of ``exact`` extents.
    """
    assert isinstance(guarded.cond, Inside)
    said = set(guarded.cond.exprs)
    loads = [x for x in walk_value(guarded) if isinstance(x, Load) and x.buffer is buffer]
    places = [(d, i, buffer.shape[d] - 1 - i) for x in loads for d, i in placed_by_dimension(x.index)]

    def leaves(i: Dim, rest: Dim) -> bool:
        lo, hi = bounds(i)[0], bounds(rest)[0] if symbols(rest) <= exact else 0
        return (lo is not None and lo < 0) or (hi is not None and hi < 0)

    if not any(i in said or rest in said or leaves(i, rest) for _, i, rest in places):
        return set()
    moving = frozenset[Sym]().union(*(symbols(e) for e in said))
    return {d for d, i, _ in places if symbols(i) & moving}
