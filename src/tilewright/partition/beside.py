"""Kernels side by side: which calls that don't need each other run at one time, with one fork and one join.

In: what each call of a program takes, needs and holds in memory, in an order that is right. Out: the calls in runs,
each of one call or of several that may run in any order or at once. Not its business: addresses (``partition.memory``,
which counts a run as one step, so that no memory of one call is another's), threads (``codegen.cpu.beside``).

Alone, a kernel leaves threads idle at its end, where its last iterations come out uneven, or all the time, where it is
too small to share out or works in order; and every kernel costs a fork. A run ends when the work of all its calls is
done by all threads. Later calls are moved up to the one that they join, where that gains time and the memory in use
stays near what the program takes at most anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.core.dims import known
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import ASSUMED_SIZE, EVEN_CHUNKS, Times
from tilewright.core.expr import Dim
from tilewright.target.target import Target


@dataclass(frozen=True)
class Item:
    """A call in the given order: the positions of the calls that it needs, bytes that it writes, bytes of scratch.

    ``times`` is None for what keeps its place: nothing moves across it. What it writes ``is_kept`` to the end, or else
    to its last reader.
    """

    needs: frozenset[int]
    n_bytes: float
    scratch: float
    times: Times | None
    is_kept: bool = False


@dataclass(frozen=True)
class CallGroup:
    """Positions of calls, and, where there are several, how each is shared out (``program.Beside`` says how)."""

    calls: tuple[int, ...]
    members: tuple[tuple[Dim | None, int], ...] = ()
    most_threads: int = 0


def arrange(items: Sequence[Item], target: Target) -> list[CallGroup]:
    """Runs in an order that is right."""
    return _Arrangement(items, target).runs()


@dataclass
class _Arrangement:
    items: Sequence[Item]
    target: Target
    in_use: list[float] = field(default_factory=list)
    moved: dict[int, set[int]] = field(default_factory=dict)
    """What runs early so that two calls can run side by side, and these two: it does not take one of them itself."""

    def runs(self) -> list[CallGroup]:
        apart = [CallGroup((k,)) for k in range(len(self.items))]
        self.in_use = self._memory(apart)
        peak = max(self.in_use, default=0.0)
        peak += min(peak, EFFORT.added_bytes)
        left = list(range(len(self.items)))
        done: set[int] = set()
        found: list[CallGroup] = []
        while left:
            if first := self._to_do_before(left, done, peak):
                left = [*first, *(k for k in left if k not in first)]
                continue
            calls = self._run(left, done, peak)
            found.append(self._shared(calls) if len(calls) > 1 else CallGroup(tuple(calls)))
            done.update(calls)
            left = [k for k in left if k not in done]
        return found if max(self._memory(found), default=0.0) <= peak else apart

    def _memory(self, runs: Sequence[CallGroup]) -> list[float]:
        """Bytes in use at each run."""
        at = {k: t for t, run in enumerate(runs) for k in run.calls}
        last = dict(at)
        for k, item in enumerate(self.items):
            for j in item.needs:
                last[j] = max(last[j], at[k])
        total = [0.0] * len(runs)
        for k, item in enumerate(self.items):
            total[at[k]] += item.scratch
            for t in range(at[k], (len(runs) - 1 if item.is_kept else last[k]) + 1):
                total[t] += item.n_bytes
        return total

    def _ahead(self, left: list[int]) -> list[int]:
        """The next calls, as far as one that keeps its place."""
        most = EFFORT.attempts
        stop = next((n for n, k in enumerate(left[:most]) if self.items[k].times is None), most)
        return left[:stop]

    def _run(self, left: list[int], done: set[int], peak: float) -> list[int]:
        """The next call, and those that are moved up to it, each the one that gains most."""
        calls, ahead = left[:1], self._ahead(left)
        while ahead:
            kept = set().union(*(self.moved.get(c, ()) for c in calls))
            ready = [k for k in ahead if k not in calls and k not in kept and self.items[k].needs <= done]
            gains = {k: self._gain([*calls, k]) - self._gain(calls) for k in ready}
            gains = {k: g for k, g in gains.items() if g > 0 and self._fits(calls[0], [k], peak)}
            if not gains:
                break
            best = max(gains, key=lambda k: gains[k])
            self._move(calls[0], best)
            calls.append(best)
        return calls

    def _to_do_before(self, left: list[int], done: set[int], peak: float) -> list[int]:
        """What a later call needs that gains more beside the next one than any that may run now; often nothing."""
        ahead = self._ahead(left)
        if not ahead or ahead[0] in self.moved:
            return []
        found: dict[int, list[int]] = {}
        for k in ahead[1:]:
            before = self._missing(k, done)
            free = bool(before) and ahead[0] not in before and before <= {*ahead}
            idle = [t.alone - t.work / self.target.n_cores for t in self._times([ahead[0], k])]
            if free and self._gain([ahead[0], k]) > max(idle) and self._fits(ahead[0], [*sorted(before), k], peak):
                found[k] = [j for j in ahead if j in before]
        if not found:
            return []
        best = max(found, key=lambda k: self._gain([ahead[0], k]))
        ready = [k for k in ahead if self.items[k].needs <= done and self._fits(ahead[0], [k], peak)]
        if self._gain([ahead[0], best]) <= max((self._gain([ahead[0], k]) for k in ready[1:]), default=0.0):
            return []
        for j in found[best]:
            self._move(ahead[0], j)
            self.moved[j] = {ahead[0], best}
        return found[best]

    def _missing(self, call: int, done: set[int]) -> set[int]:
        """What must run before the call and has not yet."""
        found: set[int] = set()
        stack = [call]
        while stack:
            more = self.items[stack.pop()].needs - done - found
            found |= more
            stack.extend(sorted(more))
        return found

    def _move(self, start: int, call: int) -> None:
        for t in range(start, call):
            self.in_use[t] += self.items[call].n_bytes
        self.in_use[start] += self.items[call].scratch

    def _fits(self, start: int, calls: Sequence[int], peak: float) -> bool:
        """May the calls move up to ``start``, for all that is in use meanwhile?"""
        in_use = self.in_use[start : max(*calls, start + 1)]
        return max(in_use) + sum(self.items[k].n_bytes + self.items[k].scratch for k in calls) <= peak

    def _times(self, calls: Sequence[int]) -> list[Times]:
        return [t for k in calls if (t := self.items[k].times) is not None]

    def _gain(self, calls: Sequence[int]) -> float:
        """Cycles that the calls save side by side: then what is uneven in one is made up for by finer ones."""
        times = self._times(calls)
        if len(times) < 2:
            return 0.0
        parts = [(t.work / n, n) for t in times if (n := _n_units(t)) > 1]
        longest = max((unit * -(-n // self.target.n_cores) for unit, n in parts), default=0.0)
        threads = [0.0] * self.target.n_cores
        for work in sorted((t.work for t in times if _n_units(t) == 1), reverse=True):
            threads[threads.index(min(threads))] += work
        together = max(sum(t.work for t in times) / self.target.n_cores, longest, *threads)
        together += min((unit for unit, _ in parts), default=0.0) / 2 + self.target.fork_cycles
        return sum(t.alone for t in times) - together

    def _shared(self, calls: Sequence[int]) -> CallGroup:
        """Chunks of about equal cost; calls that are run whole come first, the longest first."""
        times = {k: t for k in calls if (t := self.items[k].times) is not None}
        whole = sorted((k for k in calls if times[k].extent is None), key=lambda k: -times[k].work)
        parts = sorted(
            (k for k in calls if times[k].extent is not None), key=lambda k: -times[k].work / _n_units(times[k])
        )
        total = sum(t.work for t in times.values())
        grain = max(total / (self.target.n_cores * EVEN_CHUNKS), self.target.fork_cycles)
        members: list[tuple[Dim | None, int]] = [(None, 1) for _ in whole]
        for k in parts:
            wanted = round(times[k].work / self.target.n_cores / grain)
            most_chunks = min(EVEN_CHUNKS, -(-_n_units(times[k]) // self.target.n_cores))
            members.append((times[k].extent, min(max(wanted, 1), most_chunks)))
        threaded = [times[k].work for k in whole if times[k].uses_threads]
        most = max(int(total / max(threaded)), 2) if threaded else 0
        return CallGroup((*whole, *parts), tuple(members), most)


def _n_units(t: Times) -> int:
    """The pieces that a call may be cut into; a number known at run time only counts as many."""
    return 1 if t.extent is None else known(t.extent, ASSUMED_SIZE)
