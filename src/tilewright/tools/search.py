"""Tuning: other schedules for a model's kernels, measured one kernel at a time, and kept where the model is faster.

In: a graph with fixed sizes, and inputs. Out: ``Tuned``: the text of a file of schedules for the kernels that gained.
Not its business: what is tried, in which order (``tools.search_space``), the process in which candidates run
(``tools.measure``), how a kernel is measured alone (``tools.alone``).

The model is measured once, which says what each kernel takes. Then candidates of one kernel at a time are compiled and
called in turn with the best one so far, alone but with caches as the model leaves them: that costs a compile of one
kernel and not of all. The next kernel is the one with the most time to gain for the time that was spent on it. A
candidate is taken when it is faster by more than ``MARGIN``, by its least and its median time, and is so again in a
second measurement, because of hundreds that are equal some seem faster once. At half of the time and at its end the
model is compiled with all that was taken: a kernel keeps another schedule where it is faster there too, and whole calls
must be shorter than the first one's.

A candidate that crashes, hangs, gives other results or no code costs no other one anything; it is noted and never
tried again. Kernels whose places follow from data are measured within the model.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from tilewright.build.found_schedules import MEASURED, FoundSchedule, FoundSchedules, Trial, machine_key
from tilewright.build.kernels import KernelBuilder, SplitGraph, optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.choose.candidates import candidates
from tilewright.choose.cost.learned import Ranking
from tilewright.choose.default import Scheduled
from tilewright.core.diag import OptionError
from tilewright.core.graph import CONST, Graph
from tilewright.core.types import Array
from tilewright.runtime.errors import ExecutionError
from tilewright.runtime.threads import default_threads
from tilewright.target.target import Target
from tilewright.tile.schedule import Schedule
from tilewright.tile.schedule.book import schedule_text
from tilewright.tile.text import kernel_text
from tilewright.tools.alone import bytes_of, can_stand_alone
from tilewright.tools.bound import least_seconds
from tilewright.tools.guide import Guide
from tilewright.tools.measure import Measurement, Measuring, Ticks, Unmeasured
from tilewright.tools.search_log import SearchLog
from tilewright.tools.search_space import Queue
from tilewright.tools.tell import Tell, silent

MARGIN = 0.02
SMALLEST_SHARE = 0.01
"""Kernels with a smaller part of the time are left alone."""
MOST_ROUNDS = 12
"""About as many as strategies have candidates: the time for measuring is shared among so many trials of each kernel."""
FIRST_SECONDS = 120.0
"""The model itself is measured once whatever the budget is, unless that takes longer."""
PATIENCE = 10.0
"""A trial that takes so many times as long as the longest one before and the start of the process hangs."""
Chosen = Mapping[str, Schedule]
Tried = tuple[str, str]
"""A kernel's name and its steps."""


@dataclass(frozen=True)
class Gain:
    """A kernel that got another schedule: its seconds in one run before and after, measured in turn."""

    name: str
    label: str
    before: float
    after: float


@dataclass(frozen=True)
class Left:
    """A kernel's seconds in one run as it is now, and the least that any schedule of it could take on this machine."""

    name: str
    label: str
    now: float
    least: float


@dataclass(frozen=True)
class Tuned:
    """The schedules that were faster, as a file's text, and the seconds of whole calls before and after.

    ``faults`` are candidates that crashed, hung, gave other results or no code, a line each; ``notes`` what else a
    user should know, as that the database could not be written. ``left`` are the kernels that take a part of the time
    worth a search, longest first, with what is left to gain (``tools.bound``).
    """

    text: str
    gains: tuple[Gain, ...]
    n_candidates: int
    before: float
    after: float
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()

    @property
    def most_gain(self) -> float:
        """How many times as fast other schedules could make these kernels at most; infinite where nothing is known."""
        now, least = sum(x.now for x in self.left), sum(x.least for x in self.left)
        return now / least if least else math.inf


def search(
    graph: Graph,
    inputs: Sequence[Array],
    options: Options,
    *,
    threads: int | None = None,
    seconds: float = 20.0,
    budget: float | None = None,
    seed: int = 0,
    store: FoundSchedules | None = None,
    guide: Guide | None = None,
    tell: Tell = silent,
) -> Tuned:
    """Try other schedules for about ``seconds`` of measuring, compiling not counted.

    With a ``budget`` it goes on after the strategies' own candidates, with others that ``seed`` decides, until so many
    seconds have passed, compiling counted. Ctrl-C ends the search, and what was found till then is kept.
    What ``store`` has for the model's kernels on this machine is tried first, and every measurement goes into it when
    it is made. ``options.schedule`` is where it begins, if there is one. ``guide`` says what is measured first, by
    default the price with what was learned. Raises ``OptionError`` for a graph with
    symbolic sizes and for a target that is not this machine, ``ExecutionError`` where the model can't be measured.
    """
    end = _End(budget)
    _check(graph, options)
    n_threads = threads or default_threads()
    split = optimise_and_split(graph, options, options.machine, Clock())
    kernels, bounds = split.kernels, least_seconds(split, n_threads)
    log = SearchLog(store, machine_key(Target.parse(options.target), n_threads))
    first = guide or Guide(Ranking(kernels.target, n_threads))

    def run(unread: Container[str]) -> Tuned:
        text = _text(kernels.schedules, kernels, unread)
        with Measuring(graph, inputs, replace(options, schedule=text), n_threads) as bench:
            searching = _ScheduleSearch(split, bench, end, log, first, bounds, unread)
            return searching.run(seconds, Random(seed), tell, goes_on=budget is not None)

    try:
        return run(())
    except OptionError:
        # a file's steps are checked for more than a rule's: such a kernel stays the rules' until another one is found
        unread = {n for n, s in kernels.schedules.items() if kernels.read_steps(n, str(s)) is None}
        if not unread:
            raise
    return run(unread)


class _End:
    """When a search has to end, and how long its measurements take, of the model (``longest``) and of lone kernels."""

    def __init__(self, budget: float | None) -> None:
        self.begun = time.perf_counter()
        self.at = None if budget is None else self.begun + budget
        self.longest = self.longest_alone = self.opening = 0.0

    def left(self) -> float:
        return math.inf if self.at is None else max(self.at - time.perf_counter(), 0.0)

    def is_near(self) -> bool:
        """Is there no time for another trial before the model is measured with what was taken?"""
        return self.left() < self.longest + self.longest_alone

    def at_half(self) -> Callable[[], bool]:
        """What says once that half of the time from now on is over."""
        half = [self.left() / 2]

        def is_over() -> bool:
            if not half or self.left() > half[0] or self.at is None:
                return False
            half.clear()
            return True

        return is_over

    def at_most(self, seconds: float) -> float:
        """A part of the time, where as much is left."""
        return min(seconds, self.left() / 4)

    def limit(self, *, alone: bool = False) -> float | None:
        """How long a measurement may take, of a lone kernel in so far as one was measured."""
        longest = self.longest_alone if alone and self.longest_alone else self.longest
        patience = PATIENCE * (longest + self.opening) if self.opening else math.inf
        found = min(self.left(), patience)
        return None if found == math.inf else found


@dataclass
class _ScheduleSearch:
    """A search: the best schedules so far, and the last ones whose whole calls were seen to be shorter."""

    split: SplitGraph
    bench: Measuring
    end: _End
    log: SearchLog
    guide: Guide
    bounds: Mapping[str, float]
    unread: Container[str]
    best: dict[str, Schedule] = field(init=False)
    confirmed: tuple[Chosen, Tuned] | None = None
    faults: list[str] = field(default_factory=list)
    n_tried: int = 0

    def __post_init__(self) -> None:
        self.kernels = self.split.kernels
        self.best = dict(self.kernels.schedules)
        self.first = self._text(self.best)
        self.lone: dict[str, str] = {}
        """The best code so far, as tile IR, of each kernel that is measured alone."""
        self.refuted: set[tuple[str, Schedule]] = set()
        """What was faster alone and not in the model."""

    def run(self, seconds: float, random: Random, tell: Tell, *, goes_on: bool) -> Tuned:
        """Trials until there is nothing to try, or no time; then what was found, as the database has it too."""
        limit = max(self.end.left(), FIRST_SECONDS)
        begun = self.bench.measure([self.first], limit=None if limit == math.inf else limit)
        if isinstance(begun, Unmeasured):
            raise _can_not_run(begun)
        self.end.longest, self.end.opening = max(self.bench.compiling, begun.spent), self.bench.opening
        with suppress(KeyboardInterrupt):  # what was found is kept: a user who is tired of waiting wants it
            self._trials(begun, seconds, random, tell, goes_on=goes_on)
        self._settle(seconds)
        usual = statistics.median(begun.calls[0])
        chosen, found = self.confirmed or ({}, Tuned("", (), 0, usual, usual))
        self.log.found([FoundSchedule(g.name, str(chosen[g.name]), g.before, g.after) for g in found.gains])
        left = tuple(self._left(begun, {g.name: g.after for g in found.gains}))
        faults, notes = tuple(self.faults), tuple(self._notes())
        return replace(found, n_candidates=self.n_tried, faults=faults, notes=notes, left=left)

    def _left(self, begun: Measurement, after: Mapping[str, float]) -> list[Left]:
        """The kernels that are worth a search, by what they take now."""
        rate = _ticks_a_second(begun.ticks[0], begun.calls[0])
        now = {name: after.get(name, min(t) / rate) for name, t in begun.ticks[0].items() if name in self.best}
        worth = sorted((n for n in now if now[n] >= SMALLEST_SHARE * sum(now.values())), key=lambda n: -now[n])
        # What was measured is possible, whatever the machine seemed to be able to do.
        return [Left(n, self.kernels.labels[n], now[n], min(self.bounds.get(n, 0.0), now[n])) for n in worth]

    def _notes(self) -> Iterator[str]:
        if not self.n_tried and self.end.is_near():
            yield f"no schedule was measured: one round takes {self.end.longest:.1f} s here; give more time"
        if self.log.problem:
            yield f"what was measured could not be kept: {self.log.problem}"

    # --- one kernel at a time ---

    def _trials(self, begun: Measurement, seconds: float, random: Random, tell: Tell, *, goes_on: bool) -> None:
        """Candidates of the kernel with the most to gain for the time spent on it, until there are none or no time."""
        worth = self._left(begun, {})  # the others' times are mostly noise, and weigh nothing
        names = [x.name for x in worth]
        known, tried = self.log.known(names), self.log.tried(names)
        self._make_ready(names)
        gain = {x.name: x.now - x.least for x in worth}
        spent, queues = dict.fromkeys(names, 0.0), dict[str, Queue]()
        is_half = self.end.at_half()
        for n_trials in count():
            left = [n for n in names if n in gain]
            if not left or self.end.is_near():
                return
            name = max(left, key=lambda n: gain[n] / spent[n] if spent[n] else math.inf)
            start = time.perf_counter()
            if name not in queues:
                queues[name] = self._queue(name, known.get(name), tried, random, goes_on=goes_on)
            if (one := queues[name].next(self.best[name])) is None:
                del gain[name]
                continue
            if self.end.is_near():
                return
            tell("round", n_trials, 0)
            self._try(name, one, seconds / (MOST_ROUNDS * len(names)))
            spent[name] += time.perf_counter() - start
            if is_half():
                self._settle(seconds)

    def _make_ready(self, names: Sequence[str]) -> None:
        """Tell the process what it needs for kernels that can be measured alone."""
        touched = sum(bytes_of(k) for k in self.kernels.kernels.values())
        for name in names:
            kernel, made = self.kernels.kernels[name], self.kernels.groups[name]
            if can_stand_alone(kernel):
                pairs = zip(made.computation.inputs, made.inputs, strict=True)
                constants = {b.name: n.attrs["data"].array for b, n in pairs if n.op is CONST}
                text = kernel_text(kernel)
                with suppress(OSError):  # a full disk: the model can be measured all the same
                    self.bench.ready(name, text, constants, touched - bytes_of(kernel))
                    self.lone[name] = text

    def _queue(
        self, name: str, known: FoundSchedule | None, tried: Container[Tried], random: Random, *, goes_on: bool
    ) -> Queue:
        def skips(schedule: Schedule) -> bool:
            return (name, str(schedule)) in tried

        stored = None if known is None else self.kernels.read_steps(name, known.steps)
        own = _candidates(self.kernels, name)
        return Queue(self.kernels, name, self.guide, random, stored, skips, own, goes_on, self.end.is_near)

    def _try(self, name: str, one: Scheduled, seconds: float) -> None:
        """Measure a schedule of a kernel in turn with the best one, and take it if it is faster, twice."""
        schedule, best = one.schedule, self.best[name]
        now = self._beside(name, one, seconds)
        if isinstance(now, Unmeasured):
            if now.kind == "hang" and self.end.left() == 0.0:
                return  # it had no time, and may be as good as any
            self.n_tried += 1
            self._blame(name, schedule, now)
            return
        self.n_tried += 1
        new, old = (x[name] for x in now.ticks[:2])
        rate = _ticks_a_second(now.ticks[1], now.calls[1])
        self.log.add([Trial(name, str(schedule), MEASURED, min(new) / rate, min(old) / rate)])
        self.guide.learn(name, schedule, best, max(min(new), 1) / max(min(old), 1))
        if not _is_faster(new, old) or self.kernels.read_steps(name, str(schedule)) is None:
            return
        again = self._beside(name, one, 2 * seconds)
        if isinstance(again, Measurement) and _is_faster(again.ticks[0][name], again.ticks[1][name]):
            self.best[name] = schedule
            if name in self.lone:
                self.lone[name] = kernel_text(one.kernel)

    def _beside(self, name: str, one: Scheduled, seconds: float) -> Measurement | Unmeasured:
        """A schedule of a kernel in turn with the best one: alone where it can be, else in the model."""
        if name not in self.lone:
            texts = [self._text({**self.best, name: one.schedule}), self._text(self.best)]
            return self._measured(texts, self.end.at_most(seconds))
        texts = [kernel_text(one.kernel), self.lone[name]]
        found = self.bench.alone(name, texts, self.end.at_most(seconds), limit=self.end.limit(alone=True))
        if isinstance(found, Measurement):
            self.end.longest_alone = max(self.end.longest_alone, found.spent)
        return found

    def _blame(self, name: str, schedule: Schedule, fault: Unmeasured) -> None:
        self.faults.append(f"{name}: {fault.kind}: {fault.why}")
        self.log.add([Trial(name, str(schedule), fault.kind, 0.0, 0.0)])

    # --- all kernels together ---

    def _settle(self, seconds: float) -> None:
        """Compile the model with what was taken, and keep of it what makes kernels faster there, and whole calls.

        What fails there is tried again in halves, so that one schedule costs the others nothing but time.
        """
        parts, held = [self._changed()], dict[str, Schedule]()
        if self.confirmed is not None and self.confirmed[0] == {**self.kernels.schedules, **parts[0]}:
            return
        while parts and self.end.left():
            part = parts.pop()
            if not part:
                continue
            tried = {**self.kernels.schedules, **held, **part}
            now = self._measured([self._text(tried), self.first], self.end.at_most(seconds / 6))
            if isinstance(now, Measurement):
                slower = [n for n in {**held, **part} if min(now.ticks[0][n]) >= min(now.ticks[1][n])]
                if not slower:
                    held |= part
                    self._confirm(tried, now)
                    continue
                parts.append({n: s for n, s in {**held, **part}.items() if n not in slower})
                held = {}
                self._refute({n: tried[n] for n in slower})
            elif now.kind == "hang" and self.end.left() == 0.0:
                return
            elif len(part) == 1:
                ((name, schedule),) = part.items()
                self._blame(name, schedule, now)
                self._refute(part)
            else:
                names = list(part)
                halves = names[: len(names) // 2], names[len(names) // 2 :]
                parts += [{n: part[n] for n in half} for half in halves]

    def _changed(self) -> Chosen:
        return {n: s for n, s in self.best.items() if s != self.kernels.schedules[n] and (n, s) not in self.refuted}

    def _refute(self, slower: Chosen) -> None:
        """Go on from the first schedules of these kernels."""
        for name, schedule in slower.items():
            self.refuted.add((name, schedule))
            self.best[name] = self.kernels.schedules[name]
            if name in self.lone:
                self.lone[name] = kernel_text(self.kernels.kernels[name])

    def _text(self, chosen: Chosen) -> str:
        """Schedules of all kernels as a file, but those that a file can't have."""
        return _text(
            chosen, self.kernels, [n for n, s in chosen.items() if n in self.unread and s == self.kernels.schedules[n]]
        )

    def _measured(self, texts: Sequence[str], seconds: float) -> Measurement | Unmeasured:
        found = self.bench.measure(texts, seconds, limit=self.end.limit())
        if isinstance(found, Measurement):
            self.end.longest = max(self.end.longest, found.spent)
        return found

    def _confirm(self, chosen: Chosen, now: Measurement) -> None:
        """Note that whole calls with these schedules are shorter than the first ones', if they are."""
        after, before = (statistics.median(now.calls[k]) for k in (0, 1))
        # the usual call and the best one: a busy machine sways either
        if after >= before or min(now.calls[0]) >= min(now.calls[1]):
            return
        rate = _ticks_a_second(now.ticks[1], now.calls[1])
        changed = {n: s for n, s in chosen.items() if s != self.kernels.schedules[n]}
        gains = [
            Gain(n, self.kernels.labels[n], min(now.ticks[1][n]) / rate, min(now.ticks[0][n]) / rate) for n in changed
        ]
        self.confirmed = dict(chosen), Tuned(_text(changed, self.kernels), tuple(gains), 0, before, after)


def _text(chosen: Chosen, kernels: KernelBuilder, without: Container[str] = ()) -> str:
    return "\n".join(schedule_text(n, found, kernels.labels[n]) for n, found in chosen.items() if n not in without)


def _can_not_run(fault: Unmeasured) -> Exception:
    if fault.kind == "refused":
        return OptionError(f"the model can't be tuned: {fault.why}", remedy="compile it without tuning")
    return ExecutionError(
        f"the model can't be measured: {fault.why}", remedy="look for the fault with tilewright compare"
    )


def _ticks_a_second(ticks: Ticks, calls: Sequence[float]) -> float:
    """Near enough to show."""
    return sum(map(min, ticks.values())) / min(calls)


def _check(graph: Graph, options: Options) -> None:
    if symbols := graph.symbols():
        names = ", ".join(f"{s.name!r}: ..." for s in symbols)
        given = " ".join(f"--fix {s.name}=..." for s in symbols)
        remedy = f"give them: fix_dims={{{names}}}, on the command line {given}"
        raise OptionError("only fixed sizes can be measured", remedy=remedy)
    if not Target.parse(options.target).is_native:
        raise OptionError(f"code for {options.target!r} can't be measured here", remedy="tune on that machine")


def _candidates(kernels: KernelBuilder, name: str) -> Iterator[Scheduled]:
    """The schedules that strategies can give a kernel, the rules' own first."""
    made = kernels.groups[name]
    for found in candidates(made.computation, kernels.target, made.constants, name, kernels.checks.on_broken):
        yield found.scheduled


def _is_faster(new: Sequence[float], old: Sequence[float]) -> bool:
    least, middle = min(new) / max(min(old), 1), statistics.median(new) / max(statistics.median(old), 1)
    return max(least, middle) < 1 - MARGIN
