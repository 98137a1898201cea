"""Tuning: other schedules for a model's kernels, measured within the model, and kept where they are faster.

In: a graph with fixed sizes, and inputs. Out: ``Tuned``: the text of a file of schedules for the kernels that gained.
Not its business: what a schedule may be (``tile.schedule``), the rules' first choice (``choose.default``), the process
in which candidates run (``tools.measure``).

A kernel's candidates are those of ``choose.candidates``: whole schedules, with their rests and packing. A round
compiles the model with the next candidate of every kernel, and calls it, the best one so far and the first one in turn:
a kernel is timed where it runs, with the weights as cold as they are there. A candidate is taken when it is faster by
more than ``MARGIN``, by its least and its median time; at the end whole calls must be shorter than the first one's too.
With a budget of time the search goes on, once those are tried, with schedules near the best one (``choose.mutations``).
Which are measured first says the price, as trees correct it that learn from every measurement (``tools.guide``).

A round that crashes, hangs, gives other results or no code is tried again in halves, so that one candidate costs the
others nothing but time; what is to blame is noted and never tried again.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from typing import TypeVar

from tilewright.build.found_schedules import MEASURED, FoundSchedule, FoundSchedules, Trial, machine_key
from tilewright.build.kernels import KernelBuilder, optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.choose.candidates import candidates
from tilewright.choose.cost.learned import Ranking
from tilewright.choose.default import Scheduled
from tilewright.choose.mutations import mutations
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph
from tilewright.core.types import Array
from tilewright.runtime.errors import ExecutionError, InputError
from tilewright.runtime.threads import default_threads
from tilewright.target.target import Target
from tilewright.tile.schedule import Schedule
from tilewright.tile.schedule.book import schedule_text
from tilewright.tools.bound import least_seconds
from tilewright.tools.guide import Guide, Near
from tilewright.tools.measure import Measurement, Measuring, Ticks, Unmeasured
from tilewright.tools.tell import Tell, silent

MARGIN = 0.03
SMALLEST_SHARE = 0.01
"""Kernels with a smaller part of the time are left alone."""
MOST_ROUNDS = 12
"""About as many as strategies have candidates: the time for measuring is shared among so many rounds."""
FIRST_SECONDS = 120.0
"""The model itself is measured once whatever the budget is, unless that takes longer."""
PATIENCE = 10.0
"""A round that takes so many times as long as the longest one before and the start of the process hangs."""
Chosen = Mapping[str, Schedule]
Read = TypeVar("Read")
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
    text = _text(kernels.schedules, kernels)
    with Measuring(graph, inputs, replace(options, schedule=text), n_threads) as bench:
        log = _Log(store, machine_key(Target.parse(options.target), n_threads))
        first = guide or Guide(Ranking(kernels.target, n_threads))
        return _ScheduleSearch(kernels, bench, end, log, first, bounds).run(
            seconds, Random(seed), tell, goes_on=budget is not None
        )


class _End:
    """When a search has to end, and how long its rounds take."""

    def __init__(self, budget: float | None) -> None:
        self.at = None if budget is None else time.perf_counter() + budget
        self.longest = self.opening = 0.0

    def left(self) -> float:
        return math.inf if self.at is None else max(self.at - time.perf_counter(), 0.0)

    def is_near(self) -> bool:
        """Is there no time for another round?"""
        return self.left() < self.longest

    def at_most(self, seconds: float) -> float:
        """A part of the time, where as much is left."""
        return min(seconds, self.left() / 4)

    def limit(self) -> float | None:
        """How long a round may take."""
        patience = PATIENCE * (self.longest + self.opening) if self.opening else math.inf
        found = min(self.left(), patience)
        return None if found == math.inf else found


class _Log:
    """What is measured, kept in the database at once; while that can't be written it waits here."""

    def __init__(self, store: FoundSchedules | None, machine: str) -> None:
        self.store, self.machine = store, machine
        self.waiting: list[Trial] = []
        self.problem = ""

    def known(self, names: Sequence[str]) -> dict[str, FoundSchedule]:
        """What earlier searches found."""
        return self._read(lambda store: store.get(self.machine, names), {})

    def tried(self, names: Sequence[str]) -> set[tuple[str, str]]:
        """Kernels and steps that earlier searches measured as slower, or could not measure."""
        return self._read(lambda store: store.without_gain(self.machine, names), set())

    def add(self, trials: Sequence[Trial]) -> None:
        self.waiting += trials
        self._write(lambda store: store.add(self.machine, self.waiting), self.waiting.clear)

    def found(self, schedules: Sequence[FoundSchedule]) -> None:
        """What was confirmed, and whatever could not be written before."""
        self.add([])
        self._write(lambda store: store.put(self.machine, schedules), lambda: None)

    def _read(self, ask: Callable[[FoundSchedules], Read], nothing: Read) -> Read:
        try:
            return nothing if self.store is None else ask(self.store)
        except InputError as e:
            self.problem = e.message
            return nothing

    def _write(self, put: Callable[[FoundSchedules], None], then: Callable[[], None]) -> None:
        if self.store is None:
            return
        try:
            put(self.store)
        except InputError as e:
            self.problem = e.message
        else:
            self.problem = ""
            then()


@dataclass
class _ScheduleSearch:
    """A search: the best schedules so far, and the last ones whose whole calls were seen to be shorter."""

    kernels: KernelBuilder
    bench: Measuring
    end: _End
    log: _Log
    guide: Guide
    bounds: Mapping[str, float]
    best: dict[str, Schedule] = field(init=False)
    confirmed: tuple[Chosen, Tuned] | None = None
    faults: list[str] = field(default_factory=list)
    n_tried: int = 0

    def __post_init__(self) -> None:
        self.best = dict(self.kernels.schedules)
        self.first = _text(self.best, self.kernels)

    def run(self, seconds: float, random: Random, tell: Tell, *, goes_on: bool) -> Tuned:
        """Rounds until there is nothing to try, or no time; then what was found, as the database has it too."""
        limit = max(self.end.left(), FIRST_SECONDS)
        begun = self.bench.measure([self.first], limit=None if limit == math.inf else limit)
        if isinstance(begun, Unmeasured):
            raise _can_not_run(begun)
        self.end.longest, self.end.opening = max(self.bench.compiling, begun.spent), self.bench.opening
        with suppress(KeyboardInterrupt):  # what was found is kept: a user who is tired of waiting wants it
            self._rounds(begun, seconds, random, tell, goes_on=goes_on)
        text = _text(self.best, self.kernels)
        if text != self.first and (self.confirmed is None or self.confirmed[0] != self.best):
            now = self._measured([text, self.first], self.end.at_most(seconds / 6))
            if isinstance(now, Measurement):
                self._confirm(self.best, now, 0, 1)
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

    def _rounds(self, begun: Measurement, seconds: float, random: Random, tell: Tell, *, goes_on: bool) -> None:
        ticks = {name: min(t) for name, t in begun.ticks[0].items()}
        # the others' times are mostly noise, and weigh nothing
        worth = [name for name in self.best if ticks[name] >= SMALLEST_SHARE * sum(ticks.values())]
        known, tried = self.log.known(worth), self.log.tried(worth)
        queues = {name: self._own(name, known, tried) for name in worth}
        halves: list[Chosen] = []
        rounds = _each(queues) if not goes_on else chain(_each(queues), self._near(worth, tried, random))
        n_rounds = 0
        while not self.end.is_near() and (chosen := halves.pop() if halves else next(rounds, None)):
            tell("round", n_rounds, 0)
            n_rounds += 1
            self._round(chosen, halves, seconds / (MOST_ROUNDS + 2))

    def _round(self, tried: Chosen, halves: list[Chosen], seconds: float) -> None:
        """Try schedules of several kernels at once: each is judged by its own ticks."""
        best, made = _text(self.best, self.kernels), _text({**self.best, **tried}, self.kernels)
        texts = [made, best] if best == self.first else [made, best, self.first]
        now = self._measured(texts, self.end.at_most(seconds))
        if isinstance(now, Unmeasured):
            if now.kind == "hang" and self.end.left() == 0.0:
                return  # it had no time, and may be as good as any
            if len(tried) > 1:
                names = list(tried)
                half = len(names) // 2
                halves += [{n: tried[n] for n in part} for part in (names[:half], names[half:])]
                return
            ((name, schedule),) = tried.items()
            self.n_tried += 1
            self.faults.append(f"{name}: {now.kind}: {now.why}")
            self.log.add([Trial(name, str(schedule), now.kind, 0.0, 0.0)])
            return
        self.n_tried += len(tried)
        new, old = now.ticks[:2]
        rate = _ticks_a_second(now.ticks[1], now.calls[1])
        self.log.add([Trial(n, str(s), MEASURED, min(new[n]) / rate, min(old[n]) / rate) for n, s in tried.items()])
        for n, s in tried.items():
            self.guide.learn(n, s, self.best[n], max(min(new[n]), 1) / max(min(old[n]), 1))
        faster = {name: found for name, found in tried.items() if _is_faster(new[name], old[name])}
        chosen = {**self.best, **tried}
        self.best |= faster
        if faster and len(faster) == len(tried):
            self._confirm(chosen, now, 0, len(texts) - 1)

    def _measured(self, texts: Sequence[str], seconds: float) -> Measurement | Unmeasured:
        found = self.bench.measure(texts, seconds, limit=self.end.limit())
        if isinstance(found, Measurement):
            self.end.longest = max(self.end.longest, found.spent)
        return found

    def _confirm(self, chosen: Chosen, now: Measurement, new: int, old: int) -> None:
        """Note that whole calls with these schedules are shorter than the first ones', if they are."""
        before, after = (statistics.median(now.calls[k]) for k in (old, new))
        # the usual call and the best one: a busy machine sways either
        if after >= before or min(now.calls[new]) >= min(now.calls[old]):
            return
        rate = _ticks_a_second(now.ticks[old], now.calls[old])
        changed = {n: s for n, s in chosen.items() if s != self.kernels.schedules[n]}
        gains = [
            Gain(n, self.kernels.labels[n], min(now.ticks[old][n]) / rate, min(now.ticks[new][n]) / rate)
            for n in changed
        ]
        self.confirmed = dict(chosen), Tuned(_text(changed, self.kernels), tuple(gains), 0, before, after)

    # --- what is tried ---

    def _own(self, name: str, known: Mapping[str, FoundSchedule], tried: Container[Tried]) -> Iterator[Schedule]:
        """What an earlier search found for a kernel, where it still fits; then the strategies' candidates in order."""
        seen = {self.kernels.schedules[name]}
        # A round tries schedules of all kernels at once, so one without code would cost all of them the round.
        stored = self.kernels.read_steps(name, known[name].steps) if name in known else None
        others = self.guide.ordered(name, _candidates(self.kernels, name))
        for schedule in chain([] if stored is None else [stored], others):
            if schedule not in seen and (name, str(schedule)) not in tried:
                seen.add(schedule)
                yield schedule

    def _near(self, worth: Sequence[str], tried: Container[Tried], random: Random) -> Iterator[Chosen]:
        """For each round, what is near the best schedules so far, until there is nothing new."""
        near: dict[str, Near] = {}
        while True:
            chosen = {}
            for name in worth:
                best = self.best[name]
                if name not in near or near[name].around != best:  # a better one was found: go on from there
                    made = self.kernels.groups[name]
                    parts = (made.computation, self.kernels.target, made.constants, name, best, random)
                    found = mutations(*parts)
                    near[name] = Near(name, best, (s for s in found if (name, str(s.schedule)) not in tried))
                if (one := self.guide.best_of(near[name])) is not None:
                    chosen[name] = one
            if not chosen:
                return
            yield chosen


def _text(chosen: Chosen, kernels: KernelBuilder) -> str:
    return "\n".join(schedule_text(name, found, kernels.labels[name]) for name, found in chosen.items())


def _each(queues: Mapping[str, Iterator[Schedule]]) -> Iterator[Chosen]:
    """For each round the next of every queue, until all are empty."""
    while chosen := {name: found for name, queue in queues.items() if (found := next(queue, None)) is not None}:
        yield chosen


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
