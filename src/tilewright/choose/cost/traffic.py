"""Where the bytes of a kernel come from: what each cache has to get from behind it in one call.

In: the accesses of a kernel with the loops around them. Out: bytes per call that each loop's own statements bring from
behind the first-level cache, the second-level one, the last one. Not its business: instructions
(``choose.cost.operations``), how long it takes (``choose.cost.price``).

A loop's body touches so many different lines in one iteration. Where a cache holds all of them, the next iteration
finds what it touches again, and the loop brings each line once; where it does not, every iteration brings its own
again. This is the reuse distance of a cache that throws out what was used longest ago (Mattson, Gecsei, Slutz and
Traiger, Evaluation techniques for storage hierarchies, 1970), taken for a loop at once instead of access by access.
Lines that lie in few sets of a cache need as much of it as if they had filled all sets alike; from what lies in the
other sets they take no more than their own bytes. A call is one more loop around the kernel: what a cache can hold of
the whole is there when the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from tilewright.choose.cost.nest import RunTimeLoop
from tilewright.core.compute import Buffer
from tilewright.core.expr import Sym
from tilewright.target.target import Target


@dataclass(frozen=True)
class CacheLevel:
    """``n_bytes`` that it holds; addresses ``span`` bytes apart fall into the same set; ``line`` bytes move at once.

    ``keeps_part``: of what is walked again and does not fit it keeps as much as it holds, where others keep the last
    of it, which is gone when its turn comes (Jaleel et al., High performance cache replacement using re-reference
    interval prediction, 2010).
    """

    n_bytes: int
    span: int
    line: int
    keeps_part: bool = False

    def kept(self, n_bytes: float) -> float:
        """The part of so many bytes that is still there when they are touched again."""
        if n_bytes <= self.n_bytes:
            return 1.0
        return self.n_bytes / n_bytes if self.keeps_part else 0.0


def levels_of(target: Target, n_threads: int = 1) -> tuple[CacheLevel, ...]:
    """First-level, second-level and last cache of one core; threads, and cores that others use, share the last one."""
    line = target.line_bytes
    return (
        CacheLevel(target.l1_bytes, target.set_span, line),
        CacheLevel(target.l2_bytes, max(target.l2_bytes // target.l2_ways, line), line),
        CacheLevel(
            min(target.llc_bytes // n_threads, target.llc_core_bytes),
            max(target.llc_bytes // target.llc_ways, line), line, keeps_part=True,
        ),
    )  # fmt: skip


class Area:
    """The places that an access touches: elements of ``n_bytes`` at sums of multiples of ``steps``.

    ``steps`` has distances in bytes, the least first, each with how many places there are of it; ``size`` is the whole
    buffer's bytes. Places form ``n_runs`` runs of neighbours, which lie multiples of ``apart`` bytes from each other;
    ``lines`` of a cache hold them, of which the last ``beyond`` of every run come unasked. ``reach`` is how far the end
    of the last place is from the first.
    """

    __slots__ = ("apart", "beyond", "lines", "n_bytes", "n_runs", "reach", "size", "steps")

    def __init__(
        self, n_bytes: int, size: float, line: int, steps: tuple[tuple[int, float], ...] = (), beyond: int = 0
    ) -> None:
        self.n_bytes, self.size, self.steps, self.beyond = n_bytes, size, steps, beyond
        run, reach = float(n_bytes), float(n_bytes)
        self.n_runs, self.apart = 1.0, 0
        for step, count in different(steps):
            reach += step * (count - 1)
            if step <= run or step <= line:
                run += step * (count - 1)
            else:
                self.n_runs *= count
                self.apart = gcd(self.apart, step)
        run, self.reach = min(run, size), min(reach, size)
        # A run that begins anywhere in a line reaches into one more than its bytes fill.
        each = -(-run // line) if self.apart % line == 0 else (run - n_bytes) / line + 1
        self.lines = float(min(self.n_runs * (max(each, 1.0) + beyond), size // line + 1))

    def over(self, step: int, count: float, line: int) -> Area:
        """What ``count`` iterations touch, each ``step`` bytes behind the one before."""
        if step == 0 or count <= 1:
            return self
        return Area(self.n_bytes, self.size, line, tuple(sorted((*self.steps, (abs(step), count)))), self.beyond)

    def room(self, level: CacheLevel) -> float:
        """Bytes of a cache that holding the lines takes."""
        lines = self.lines
        if self.n_runs > 1 and self.apart >= level.line:
            starts = level.span // gcd(self.apart, level.span)  # sets that runs begin in, if there are enough runs
            sets = min(min(starts, self.n_runs) * (lines / self.n_runs), level.span / level.line)
            if lines > sets:
                return lines * level.span / sets
        return lines * level.line


def different(steps: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The same places by steps none of which leads where others have been; ``steps`` are in order, the least first.

    A window slides: seven taps of seven neighbours touch thirteen places and not forty-nine. Places at 0, s .. (n-1)s,
    each moved on by up to m-1 times a multiple of s that is at most n of it, are the multiples of s up to the last.
    """
    found: list[tuple[int, float]] = []
    for step, count in steps:
        for k, (other, n) in enumerate(found):
            if step % other == 0 and step // other <= n:
                found[k] = other, n + step // other * (count - 1)
                break
        else:
            found.append((step, count))
    return found


@dataclass
class Touch:
    """One mention of a buffer, in the body of the loop ``node``.

    ``walks`` has how many bytes an iteration of each loop around moves on (None: to where the data say), ``start`` is
    where it begins. ``moved`` has the bytes that it brings from behind each cache, in all loops looked at so far, and
    ``loops`` how far each of these moves on, and how often, from the innermost.
    """

    buffer: Buffer
    node: RunTimeLoop
    area: Area
    walks: Mapping[Sym, int | None]
    start: int
    is_write: bool
    moved: list[float] = field(default_factory=list)
    loops: list[tuple[int | None, float]] = field(default_factory=list)


def together(accesses: Sequence[Touch], levels: Sequence[CacheLevel]) -> None:
    """Statements one after the other: the later finds what the earlier touched, where a cache holds all of them."""
    if len(accesses) < 2:
        return
    for k, level in enumerate(levels):
        for group, kept in _kept(accesses, level):
            had = 0.0
            for a in group:
                lines = a.area.lines
                a.moved[k] *= 1 - kept * min(had / lines, 1.0)
                had = max(had, lines)


def repeated(accesses: Sequence[Touch], sym: Sym, count: float, levels: Sequence[CacheLevel]) -> None:
    """A loop of ``count`` iterations over ``sym`` around the accesses."""
    parts, line = [kept_parts(accesses, level) for level in levels], levels[0].line
    for a in accesses:
        step = a.walks.get(sym, 0)
        a.loops.append((step, count))
        # Places that the data decide are other lines each time, until the buffer has no more.
        wider = a.area.over(max(line, a.area.n_bytes) if step is None else step, count, line)
        for k in range(len(levels)):
            every_time = a.moved[k] * count
            kept = parts[k][id(a)]
            once = min(every_time, a.moved[k] * max(wider.lines / a.area.lines, 1.0))
            a.moved[k] = kept * once + (1 - kept) * every_time
        a.area = wider


def settle(accesses: Sequence[Touch], levels: Sequence[CacheLevel], target: Target) -> None:
    """Calls follow each other, and a cache that can hold the whole brings nothing; add the rest up in the loops."""
    times = [times_written(a.buffer.dtype.n_bytes, a.loops, target) if a.is_write else 1.0 for a in accesses]
    for k, level in enumerate(levels):
        kept = kept_parts(accesses, level)
        for a, n in zip(accesses, times, strict=True):
            a.node.moved[k] += (1 - kept[id(a)]) * a.moved[k] * n


def times_written(n_bytes: int, loops: Iterable[tuple[int | None, float]], target: Target) -> float:
    """How often a byte moves of results of ``n_bytes`` each; ``loops`` move on by so many bytes, so often, from the
    innermost.

    A line is read before it is written, and written back later. Where a loop goes on behind the runs that were written
    inside of it, caches look ahead along ``n_streams`` of the pages that these lie in. Lines that begin a run in more
    pages are waited for, as if they moved twice.
    """
    run, apart, n_pages = n_bytes, 0, 1.0
    for step, count in loops:
        if step is None:  # wherever the data say
            break
        step = abs(step)
        if count <= 1 or not step:
            continue
        if apart and step < apart:
            waited = min(apart / target.page_bytes, 1) * (1 - min(target.n_streams / n_pages, 1))
            return 2.0 * (1 + waited)
        if not apart and step <= run:
            run += int(step * (count - 1))
        else:
            apart = apart or step
            n_pages *= max(count * min(step / target.page_bytes, 1), 1)
    return 2.0


def kept_parts(accesses: Sequence[Touch], level: CacheLevel) -> dict[int, float]:
    """By the identity of each access, the part of what it touches that a cache keeps until it is touched again."""
    return {id(a): kept for group, kept in _kept(accesses, level) for a in group}


def _kept(accesses: Sequence[Touch], level: CacheLevel) -> list[tuple[list[Touch], float]]:
    """Accesses that touch the same part of a buffer, and the part of it that a cache keeps.

    What falls into few sets fills those alone: it takes no more from the others than the lines that it has.
    """
    groups = _groups(accesses, level)
    own = [max(a.area.lines for a in group) * level.line for group, _ in groups]
    every = sum(own)
    return [(g, level.kept(room + every - lines)) for (g, room), lines in zip(groups, own, strict=True)]


def _groups(accesses: Sequence[Touch], level: CacheLevel) -> list[tuple[list[Touch], float]]:
    """Accesses that touch the same part of a buffer, with the room that the largest of them takes."""
    found: list[tuple[list[Touch], float]] = []
    by_buffer: dict[Buffer, list[int]] = {}
    for a in accesses:
        room = a.area.room(level)
        for at in by_buffer.setdefault(a.buffer, []):
            group, most = found[at]
            first = group[0]
            if abs(first.start - a.start) < max(first.area.reach, a.area.reach, level.line):
                group.append(a)
                found[at] = group, max(most, room)
                break
        else:
            by_buffer[a.buffer].append(len(found))
            found.append(([a], room))
    return found
