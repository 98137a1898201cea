"""Tuning: other schedules for a model's kernels, measured within the model, and kept where they are faster.

In: a graph with fixed sizes, and inputs. Out: ``Tuned``: the text of a file of schedules for the kernels that gained.
Not its business: what a schedule may be (``tile.schedule``), the rules' first choice (``choose.default``).

A kernel's candidates are those of ``choose.candidates``: whole schedules, with their rests and packing. A round
compiles the model with the next candidate of every kernel, and calls it and the best one so far in turn: a kernel is
timed where it runs, with the weights as cold as they are there. A candidate is taken when it is faster by
more than ``MARGIN``, by its least and its median time; at the end the whole model must be faster too. With a budget of
time the search goes on, once those are tried, with schedules near the best one (``choose.mutations``).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random

from tilewright.build.driver import build
from tilewright.build.kernels import KernelBuilder, optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.choose.candidates import candidates
from tilewright.choose.mutations import mutations
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph
from tilewright.core.types import Array
from tilewright.runtime.python.model import LoadedModel
from tilewright.runtime.threads import default_threads
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleFileError
from tilewright.tile.schedule import Schedule
from tilewright.tile.schedule.book import schedule_text
from tilewright.tools.found_schedules import FoundSchedule, FoundSchedules, machine_key

MARGIN = 0.03
SMALLEST_SHARE = 0.01
"""Kernels with a smaller part of the time are left alone."""
FEWEST_CALLS = 5
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Gain:
    """A kernel that got another schedule: its seconds in one run before and after, measured in turn."""

    name: str
    label: str
    before: float
    after: float


@dataclass(frozen=True)
class Tuned:
    """The schedules that were faster, as a file's text, and the seconds of whole calls before and after."""

    text: str
    gains: tuple[Gain, ...]
    n_candidates: int
    before: float
    after: float


def tune(
    graph: Graph,
    inputs: Sequence[Array],
    options: Options,
    *,
    threads: int | None = None,
    seconds: float = 20.0,
    budget: float | None = None,
    seed: int = 0,
    store: FoundSchedules | None = None,
    tell: Tell = lambda stage, done, total: None,
) -> Tuned:
    """Try other schedules for about ``seconds`` of measuring, compiling not counted.

    With a ``budget`` it goes on after the strategies' own candidates, with others that ``seed`` decides, until so many
    seconds have passed, compiling counted. Ctrl-C ends the search, and what was found till then is kept.
    What ``store`` has for the model's kernels on this machine is tried first, and what is found goes into it.
    ``options.schedule`` is where it begins, if there is one. Raises ``OptionError`` for a graph with symbolic sizes and
    for a target that is not this machine; else what compiling and calling raise.
    """
    end = _End(budget)
    _check(graph, options)
    n_threads = threads or default_threads()
    kernels = optimise_and_split(graph, options, Target.parse(options.target).judged(), Clock()).kernels
    best = dict(kernels.schedules)
    machine = machine_key(Target.parse(options.target), n_threads)

    def counted(chosen: Mapping[str, Schedule]) -> _Counted:
        with end.compiling():
            return _Counted(graph, replace(options, schedule=_text(chosen, best, kernels)), n_threads)

    first = current = counted(best)
    n_tried = 0
    try:
        ticks = current.minima(inputs, FEWEST_CALLS)
        # the others' times are mostly noise, and weigh nothing
        worth = [name for name in best if ticks[name] >= SMALLEST_SHARE * sum(ticks.values())]
        known = store.get(machine, worth) if store else {}
        candidates = {name: [*_stored(known, name, best, kernels), *_candidates(kernels, name)] for name in worth}
        rounds = max((len(c) for c in candidates.values()), default=0)
        for k, tried in enumerate(_tried(kernels, best, candidates, Random(seed), searches=budget is not None)):
            if end.is_near(reserve=2 * FEWEST_CALLS * current.seconds):
                break
            tell("round", k, rounds)
            # all kernels change at once, and each is judged by its own ticks
            try:
                made = counted({**best, **tried})
            except ScheduleFileError:  # no code can be made of one of them; the next round has others
                continue
            time_now = seconds / (rounds + 2)
            n_tried += len(tried)
            now, then = _in_turn([current, made], inputs, end.at_most(time_now))
            faster = {name: found for name, found in tried.items() if _is_faster(then[name], now[name])}
            if faster:
                best |= faster
                # what did not gain goes back to what it was, which is another model
                current = made if len(faster) == len(tried) else counted(best)
    except KeyboardInterrupt:  # what was found is kept: a user who is tired of waiting wants it
        current = first if best == kernels.schedules else counted(best)
    changed = {name: found for name, found in best.items() if found != kernels.schedules[name]}
    text = _text(changed, changed, kernels)
    found = _confirmed((first, current), inputs, text, kernels, n_tried, end.at_most(seconds / 6))
    if store and found.gains:
        store.put(machine, [FoundSchedule(g.name, str(changed[g.name]), g.before, g.after) for g in found.gains])
    return found


def _stored(
    known: Mapping[str, FoundSchedule], name: str, best: Mapping[str, Schedule], kernels: KernelBuilder
) -> Iterator[Schedule]:
    """What an earlier search found for the kernel, unless this one begins with that, or it fits no more."""
    schedule = kernels.read_steps(name, known[name].steps) if name in known else None
    # A round tries schedules of all kernels at once, so one without code would cost all of them the round.
    if schedule is not None and schedule != best[name]:
        yield schedule


class _End:
    """When a search has to end, and how long its compiles take."""

    def __init__(self, budget: float | None) -> None:
        self.at = None if budget is None else time.perf_counter() + budget
        self.longest = 0.0

    @contextmanager
    def compiling(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.longest = max(self.longest, time.perf_counter() - start)

    def left(self) -> float:
        return math.inf if self.at is None else self.at - time.perf_counter()

    def is_near(self, reserve: float) -> bool:
        """Is there no time for two more compiles, and for measuring twice?"""
        return self.left() < 2 * self.longest + 2 * reserve

    def at_most(self, seconds: float) -> float:
        """A part of the time, where as much is left."""
        return max(0.0, min(seconds, self.left() / 2))


def _tried(
    kernels: KernelBuilder,
    best: Mapping[str, Schedule],
    candidates: Mapping[str, Sequence[Schedule]],
    random: Random,
    *,
    searches: bool,
) -> Iterator[dict[str, Schedule]]:
    """What each round tries: the strategies' candidates, then, if it ``searches``, what is near the best so far."""
    for k in range(max((len(c) for c in candidates.values()), default=0)):
        yield {name: found[k] for name, found in candidates.items() if k < len(found)}
    near: dict[str, tuple[Schedule, Iterator[Schedule]]] = {}
    while searches:
        tried = {}
        for name in candidates:
            if name not in near or near[name][0] != best[name]:  # a better one was found: go on from there
                made = kernels.groups[name]
                parts = (made.computation, kernels.target, made.constants, name, best[name], random)
                near[name] = best[name], mutations(*parts)
            if (found := next(near[name][1], None)) is not None:
                tried[name] = found
        if not tried:
            return
        yield tried


def _check(graph: Graph, options: Options) -> None:
    if symbols := graph.symbols():
        names = " ".join(f"--fix {s.name}=..." for s in symbols)
        raise OptionError("only fixed sizes can be measured", remedy=f"give them: {names}")
    if not Target.parse(options.target).is_native:
        raise OptionError(f"code for {options.target!r} can't be measured here", remedy="tune on that machine")


def _candidates(kernels: KernelBuilder, name: str) -> Iterator[Schedule]:
    """Schedules of a kernel that differ from the one it has, and from each other."""
    made = kernels.groups[name]
    for found in candidates(made.computation, kernels.target, made.constants, name, kernels.checks.on_broken):
        if found.scheduled.schedule != kernels.schedules[name]:
            yield found.scheduled.schedule


def _text(chosen: Mapping[str, Schedule], of: Mapping[str, Schedule], kernels: KernelBuilder) -> str:
    return "\n".join(schedule_text(name, chosen[name], kernels.labels[name]) for name in of)


class _Counted:
    """A model whose kernels count their ticks."""

    def __init__(self, graph: Graph, options: Options, threads: int) -> None:
        artifact = build(graph, options, Clock(), profile=True)
        self.names = [row["name"] for row in artifact.manifest.report["kernels"]]
        self.model = LoadedModel(artifact.manifest, artifact.objects, artifact.weights, threads=threads)
        self.seconds = 0.0
        """Of a call, the longest so far."""

    def ticks(self, inputs: Sequence[Array]) -> list[int]:
        """Ticks of each kernel in one call."""
        start = time.perf_counter()
        found = self.model.counters(inputs, len(self.names))
        self.seconds = max(self.seconds, time.perf_counter() - start)
        return found

    def minima(self, inputs: Sequence[Array], calls: int) -> dict[str, int]:
        """The least ticks of each kernel."""
        counts = [self.ticks(inputs) for _ in range(calls)]
        return {name: min(c) for name, c in zip(self.names, zip(*counts, strict=True), strict=True)}


def _in_turn(pair: Sequence[_Counted], inputs: Sequence[Array], seconds: float) -> list[dict[str, list[int]]]:
    """Every kernel's ticks in calls of both models, one after the other."""
    found: list[list[list[int]]] = [[], []]
    stop = time.perf_counter() + seconds
    while len(found[1]) < FEWEST_CALLS or time.perf_counter() < stop:
        for counts, model in zip(found, pair, strict=True):
            counts.append(model.ticks(inputs))
    return [
        {name: list(c) for name, c in zip(model.names, zip(*counts, strict=True), strict=True)}
        for counts, model in zip(found, pair, strict=True)
    ]


def _is_faster(new: Sequence[float], old: Sequence[float]) -> bool:
    least, middle = min(new) / max(min(old), 1), statistics.median(new) / max(statistics.median(old), 1)
    return max(least, middle) < 1 - MARGIN


def _confirmed(
    pair: Sequence[_Counted],
    inputs: Sequence[Array],
    text: str,
    kernels: KernelBuilder,
    n_candidates: int,
    seconds: float,
) -> Tuned:
    """What was found beside what there was, both as whole calls; it is dropped unless the calls are shorter too."""
    calls: list[list[float]] = [[], []]
    ticks: list[list[list[int]]] = [[], []]
    stop = time.perf_counter() + seconds
    while len(calls[1]) < FEWEST_CALLS or time.perf_counter() < stop:
        for k, model in enumerate(pair):
            start = time.perf_counter()
            ticks[k].append(model.ticks(inputs))
            calls[k].append(time.perf_counter() - start)
    before, after = (statistics.median(c) for c in calls)
    # the usual call and the best one: a busy machine sways either
    if not text or after >= before or min(calls[1]) >= min(calls[0]):
        return Tuned("", (), n_candidates, before, before)
    least = [[min(c) for c in zip(*t, strict=True)] for t in ticks]
    rate = sum(least[0]) / min(calls[0])  # ticks a second, near enough to show
    rows = zip(pair[0].names, *least, strict=True)
    changed = [r for r in rows if f"schedule {r[0]} " in text]
    gains = [Gain(name, kernels.labels[name], old / rate, new / rate) for name, old, new in changed]
    return Tuned(text, tuple(gains), n_candidates, before, after)
