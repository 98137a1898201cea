"""Every access of a scheduled kernel stays inside of its buffer: what the last step of somebody's own schedule owes.

In: a kernel before and after its schedule. Out: nothing, or a ``ScheduleError`` that names an access. Not its business:
races (``schedule.grids``), what a kernel may read before it is scheduled (``language.inside``).

Single steps cannot ask for this: a box that ``compute_at`` makes may reach beyond what a guard lets through, and a
later step may cut it. What cannot be proved of the plain loops, relations of sizes that a caller keeps for example, is
not asked of the schedule either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.core.compute import Buffer, IndexLike, Inside, Load, index_text
from tilewright.core.expr import Dim
from tilewright.core.indices import is_chosen
from tilewright.core.ranges import range_of, under_guards
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Fold, For, If, Kernel, Store, Update
from tilewright.tile.proof import Where
from tilewright.tile.rewrite import Body, values_of


def check_reach(plain: Kernel, scheduled: Kernel, relations: Sequence[Dim] = ()) -> None:
    """Raise ``ScheduleError`` for the first access of ``scheduled`` that may be outside of its buffer.

    ``relations`` of sizes are never negative. Only buffers of which ``plain`` has accesses, all proved, are looked at
    where something there is not.
    """
    beyond = list(outside(scheduled, relations))
    if not beyond:  # as nearly always, so the plain loops are looked at last
        return
    unproved = {a.buffer for a in outside(plain, relations)}
    own = {p.buffer for p in plain.places}
    for a in beyond:
        if a.buffer not in unproved and (not unproved or a.buffer in own):
            rule = f"{a} may be outside of {a.buffer.name}, whose shape is {a.buffer.shape}"
            remedy = "compute or copy it at a loop that no guard stands in, or split with the tail 'min'"
            raise ScheduleError("schedule", a.buffer.name, rule, remedy=remedy)


@dataclass(frozen=True)
class Accessed:
    """An element that is read or written, and where that happens."""

    buffer: Buffer
    index: tuple[IndexLike, ...]
    where: Where

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(index_text, self.index))}]"

    @property
    def is_inside(self) -> bool:
        """Is it proved that every part of the index is within the buffer's shape?"""
        for i, size in zip(self.index, self.buffer.shape, strict=True):
            low, high = range_of(i) if is_chosen(i) else (i, i)
            if low is None or high is None or not all(map(self.where.never_negative, (low, size - 1 - high))):
                return False
        return True


def outside(kernel: Kernel, relations: Sequence[Dim] = ()) -> Iterator[Accessed]:
    """Every access that may be outside of its buffer; ``relations`` of sizes are never negative."""
    return (a for a in _accesses(kernel.body, Where((), tuple(relations))) if not a.is_inside)


def _accesses(body: Body, where: Where) -> Iterator[Accessed]:
    for s in body:
        match s:
            case For():
                yield from _accesses(s.body, replace(where, loops=(*where.loops, s.loop)))
                continue
            case If():
                known = s.cond.exprs if isinstance(s.cond, Inside) else ()
                yield from _accesses(s.body, replace(where, guards=(*where.guards, *known)))
            case Fold():
                yield from (Accessed(b, s.index, where) for b in s.buffers)
            case Store() | Update():
                yield Accessed(s.buffer, s.index, where)
        for v in values_of(s):
            for x, guards in under_guards(v, where.guards):
                if isinstance(x, Load):
                    yield Accessed(x.buffer, x.index, replace(where, guards=guards))
