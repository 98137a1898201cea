"""Tuning: other schedules for a model's kernels, measured within the model, and kept where they are faster.

In: a graph with fixed sizes, and inputs. Out: ``Tuned``: the text of a file of schedules for the kernels that gained.
Not its business: what a schedule may be (``tile.schedule``), the rules' first choice (``choose.default``).

A kernel's candidates are those of ``choose.candidates``: whole schedules, with their rests and packing. A round
compiles the model with the next candidate of every kernel, and calls it and the best one so far in turn: a kernel is
timed where it runs, with the weights as cold as they are there. A candidate is taken when it is faster by
more than ``MARGIN``, by its least and its median time; at the end the whole model must be faster too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.build.driver import build
from tilewright.build.kernels import KernelBuilder, optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.choose.candidates import candidates
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph
from tilewright.core.types import Array
from tilewright.runtime.python.model import LoadedModel
from tilewright.runtime.threads import default_threads
from tilewright.target.target import Target
from tilewright.tile.schedule import Schedule
from tilewright.tile.schedule.book import schedule_text

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
    tell: Tell = lambda stage, done, total: None,
) -> Tuned:
    """Try other schedules for about ``seconds`` of measuring, compiling not counted.

    ``options.schedule`` is where it begins, if there is one. Raises ``OptionError`` for a graph with symbolic sizes and
    for a target that is not this machine; else what compiling and calling raise.
    """
    _check(graph, options)
    n_threads = threads or default_threads()
    kernels = optimise_and_split(graph, options, Target.parse(options.target).judged(), Clock()).kernels
    best = dict(kernels.schedules)

    def counted(chosen: Mapping[str, Schedule]) -> _Counted:
        return _Counted(graph, replace(options, schedule=_text(chosen, best, kernels)), n_threads)

    current = counted(best)
    ticks = current.minima(inputs, FEWEST_CALLS)
    # the others' times are mostly noise, and weigh nothing
    worth = [name for name in best if ticks[name] >= SMALLEST_SHARE * sum(ticks.values())]
    candidates = {name: list(_candidates(kernels, name)) for name in worth}
    rounds = max((len(c) for c in candidates.values()), default=0)
    for k in range(rounds):
        tell("round", k, rounds)
        tried = {name: found[k] for name, found in candidates.items() if k < len(found)}
        # all kernels change at once, and each is judged by its own ticks
        now, then = _in_turn([current, counted({**best, **tried})], inputs, seconds / (rounds + 2))
        faster = {name: found for name, found in tried.items() if _is_faster(then[name], now[name])}
        if faster:
            best |= faster
            current = counted(best)
    changed = {name: found for name, found in best.items() if found != kernels.schedules[name]}
    text = _text(changed, changed, kernels)
    return _confirmed(graph, inputs, options, n_threads, text, kernels, sum(map(len, candidates.values())), seconds)


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

    def ticks(self, inputs: Sequence[Array]) -> list[int]:
        """Ticks of each kernel in one call."""
        return self.model.counters(inputs, len(self.names))

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
    graph: Graph,
    inputs: Sequence[Array],
    options: Options,
    threads: int,
    text: str,
    kernels: KernelBuilder,
    n_candidates: int,
    seconds: float,
) -> Tuned:
    """What was found beside what there was, both as whole calls; it is dropped unless the calls are shorter too."""
    pair = [_Counted(graph, replace(options, schedule=s), threads) for s in (options.schedule, text)]
    calls: list[list[float]] = [[], []]
    ticks: list[list[list[int]]] = [[], []]
    stop = time.perf_counter() + seconds / 6
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
