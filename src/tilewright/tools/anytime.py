"""A model that runs at once and gets faster while it is used: ``tilewright.compile(..., anytime=SECONDS)``.

In: a source, and the first call's inputs. Out: a model that is called like any other. The first call starts a search in
a process of its own (``tools.search``), which leaves its finding as a file; the model loads it, and calls take turns
between the old code and the new one until it is known which is faster here, beside whatever else the machine does.
Not its business: the search, loading, what a call does.

A call never waits for the search. Nothing that happens to the search reaches a call: the model goes on with the code
that it has, and its report says why.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.build import driver
from tilewright.build.driver import build
from tilewright.build.found_schedules import cached_schedules
from tilewright.build.later import Later
from tilewright.build.manifest import with_convention
from tilewright.build.options import Clock, Options, read_schedule
from tilewright.codegen.errors import CodegenError
from tilewright.core.diag import CompileError, OptionError, ParseError
from tilewright.core.types import Array
from tilewright.frontend.onnx.given import NeedsCall
from tilewright.frontend.source import Called, import_called
from tilewright.runtime import artifact as artifacts
from tilewright.runtime.cache import Cache
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.once import ForkLock
from tilewright.runtime.python.model import CompiledModel, LoadedModel
from tilewright.runtime.python.report import Report
from tilewright.tools.apart import Answer, Apart, Died, module_command, read_case, serve, write_case
from tilewright.tools.search import search

BUDGET = 60.0
"""Seconds of search where nobody says how many."""
CLOSING = 300.0
"""Seconds beyond those: for the first measurement, and for the whole model compiled once more, on a busy machine."""
TURNS = 20
"""Calls of the old code and of the new one, each, before one of them is kept."""
COMMAND = module_command("tilewright.tools.anytime")
FOUND = "found.tw"
FACTS = ("candidates", "faults", "notes")
"""Of an answer, what the report has, too."""
NICE = 19
"""The search's priority, the lowest: calls come first."""
Call = Callable[[LoadedModel], Any]


def compile_anytime(
    source: Any,
    example_inputs: Any = None,
    *,
    anytime: float,
    dynamic_shapes: Any = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix_dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    cache: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
    **options: Any,
) -> AnytimeModel:
    """``tilewright.compile`` with ``anytime``, seconds, or True for ``BUDGET``.

    Raises ``OptionError`` where there is nothing to measure: for sizes that are not fixed, another machine's code,
    a model that is compiled per call; what ``compile`` raises, too.
    """
    seconds = checked_seconds(anytime)
    if options["specialize"] is not None or options["emulate"] or options["target"] != "native":
        remedy = "fix sizes with fix_dims, leave out specialize and emulate, and compile for this machine"
        raise OptionError("anytime measures one model of fixed sizes on this machine", remedy=remedy)
    try:
        called = import_called(source, example_inputs, dynamic_shapes, input_shapes, fix_dims)
    except NeedsCall as e:
        raise OptionError(
            "anytime is not for a model that is compiled per call", remedy="make what it depends on constants"
        ) from e
    if symbols := called.graph.symbols():
        names = ", ".join(f"{s.name!r}: ..." for s in symbols)
        raise OptionError(
            "anytime needs fixed sizes: only they can be measured", remedy=f"give them: fix_dims={{{names}}}"
        )
    model = driver.compile(called, threads=threads, cache=cache, progress=progress, **options)
    assert isinstance(model, LoadedModel)  # of this machine
    chosen = Options(
        "native", options["precision"], options["optimize"], options["accuracy"], read_schedule(options["schedule"])
    )
    imported = {
        "example_inputs": example_inputs, "dynamic_shapes": dynamic_shapes, "input_shapes": input_shapes,
        "fix_dims": fix_dims,
    }  # fmt: skip
    # of what the user gave: other weights are found by the names there
    model.origin = Later(source, imported, {**asdict(chosen), "schedule": options["schedule"]})
    case = AnytimeCase(called, chosen, model.threads, seconds, cache)
    return AnytimeModel(model, case)


def checked_seconds(anytime: object) -> float:
    """The seconds that a user asks for; ``OptionError`` for what is no time."""
    if anytime is True:
        return BUDGET
    if not isinstance(anytime, int | float) or not 0 < anytime < float("inf"):
        raise OptionError(f"anytime={anytime!r:.80} is no time to search", remedy="give seconds, or True for a minute")
    return float(anytime)


@dataclass(frozen=True)
class AnytimeCase:
    """What is searched for, and how: the source's graph, the options and threads of its compile, for how many seconds,
    and whether the database of the cache folder takes part."""

    called: Called
    options: Options
    threads: int
    seconds: float
    keeps: bool


class AnytimeModel(CompiledModel):
    """A compiled model that its own search replaces between two calls, if at all.

    What a loaded model has, this one has as well. While code takes turns, results may differ from call to call by what
    rounding explains. ``wait`` waits for the search, ``stop`` ends it, and so does dropping the model.
    """

    def __init__(self, model: LoadedModel, case: AnytimeCase) -> None:
        self._now = model
        self.exporter, self.origin = model.exporter, model.origin
        self._case = case
        self._search: _Searching | None = None
        self._turns: Turns | None = None
        self._direct: LoadedModel | None = None
        """What takes calls as they are: nothing before the first one, nor while code takes turns."""
        self._facts: dict[str, Any] = {"state": "waiting for a call"}
        self._guard = ForkLock()
        self._keeps_state = bool(model.manifest.convention.state)

    def __getattr__(self, name: str) -> Any:
        # only for what stands nowhere else: the manifest, the code and all that a loaded model can do
        if name == "_now":
            raise AttributeError(name)
        return getattr(self._now, name)

    def __repr__(self) -> str:
        return f"<AnytimeModel ({self._signature()}), {self._facts['state']}>"

    @property
    def copies(self) -> int:
        """Inputs so far that could not be used where they lay, by the code in use."""
        return self._now.copies

    def report(self) -> Report:
        """The report of the code in use; ``anytime`` says what the search is at, and what it found."""
        found = self._now.report()
        found["anytime"] = dict(self._facts)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of a loaded model."""
        if (direct := self._direct) is not None:
            return direct(*args, **kwargs)
        inputs = {name: x for name, x in kwargs.items() if name != "out"}
        return self._called(lambda model: model(*args, **kwargs), args, inputs)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """As of a loaded model."""
        found: dict[str, Any] = self._called(lambda model: model.run(feeds), (feeds,), {})
        return found

    def refit(self, weights: Any) -> CompiledModel:
        """The code in use with other weights and without a search; schedules that the search found may forbid it."""
        return self._now.refit(weights)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the search has ended, at most so many seconds; has it? False where no call has started it."""
        if self._search is None:
            return False
        self._search.thread.join(seconds)
        return not self._search.thread.is_alive()

    def stop(self) -> None:
        """End the search, if it runs; the code that is in use stays."""
        if self._search is not None:
            self._search.end()

    def _twin(self) -> Any:
        """The code in use, with a state of its own and without a search."""
        return self._now._twin()

    def _called(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        # calls that keep a state come one after the other, so that none is left behind in code that is replaced
        with self._guard.lock if self._keeps_state else nullcontext():
            if self._search is None:
                return self._first_call(call, args, kwargs)
            turns = self._turns
            if turns is None:
                return call(self._now)
            model = turns.next()
            if self._keeps_state:
                self._go_on_with(model)
            result = turns.timed(model, call)
            if turns.are_over:
                self._settle(turns)
            return result

    def _first_call(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call, and start the search with what was given, as it was before the call could write to it."""
        arrays = None
        with suppress(TilewrightError):  # of wrong arguments, of which the call itself tells
            kept = self._now.state.values()
            arrays = [_parts(a) for a in (*self._now.arrays_of(args, kwargs), *kept)]
        result = call(self._now)
        with self._guard.lock:
            if arrays is not None and self._search is None:
                self._facts = {"state": "searching"}
                # with a state, a call that is about to begin could miss what others leave when turns begin
                self._direct = None if self._keeps_state else self._now
                self._search = _Searching(self, self._case, arrays)
        return result

    def _take(self, found: SearchEnd) -> None:
        """What the search came to: from now on calls take turns, if there is other code."""
        self._facts = {**found.facts, "state": "taking turns" if found.model else found.why}
        if found.model is None:
            self._direct = self._now
        else:
            found.model.exporter, found.model.origin = self.exporter, self.origin
            self._turns, self._direct = Turns(self._now, found.model), None

    def _settle(self, turns: Turns) -> None:
        with self._guard.lock:
            if self._turns is not turns:
                return  # another thread was quicker
            self._go_on_with(turns.better)
            state = "faster code was found" if turns.better is turns.new else "what was found is not faster here"
            self._facts = {**self._facts, "state": state, "seconds": turns.seconds}
            self._turns, self._direct = None, self._now

    def _go_on_with(self, model: LoadedModel) -> None:
        if model is not self._now:
            model.go_on_from(self._now)
            self._now = model


class Turns:
    """Calls of the code in use and of what was found, in turn, until it is known which is faster."""

    def __init__(self, old: LoadedModel, new: LoadedModel) -> None:
        self.old, self.new = old, new
        self._numbers = itertools.count()
        self._spent: dict[LoadedModel, list[float]] = {old: [], new: []}

    def next(self) -> LoadedModel:
        """Whose turn it is."""
        return (self.old, self.new)[next(self._numbers) % 2]

    def timed(self, model: LoadedModel, call: Call) -> Any:
        """A call of this one, whose time counts unless it raises."""
        start = time.perf_counter()
        result = call(model)
        self._spent[model].append(time.perf_counter() - start)
        return result

    @property
    def are_over(self) -> bool:
        """Has each had enough of them?"""
        return all(len(spent) >= TURNS for spent in self._spent.values())

    @property
    def better(self) -> LoadedModel:
        """The new one if both its usual and its best call were shorter: a busy machine sways either."""
        old, new = self._spent[self.old], self._spent[self.new]
        return self.new if statistics.median(new) < statistics.median(old) and min(new) < min(old) else self.old

    @property
    def seconds(self) -> dict[str, float]:
        """The usual call before and after."""
        before, after = (statistics.median(self._spent[m]) for m in (self.old, self.new))
        return {"before": before, "after": after}


@dataclass(frozen=True)
class SearchEnd:
    """What a search came to: other code, or why there is none; ``facts`` for the report."""

    model: LoadedModel | None
    why: str
    facts: Mapping[str, Any]


class _Searching:
    """The search of one model, which it does not keep alive: a process, and a thread that waits for it."""

    def __init__(self, model: AnytimeModel, case: AnytimeCase, arrays: Sequence[Array]) -> None:
        self._apart, self._owner = Apart(COMMAND), os.getpid()
        self._folder = Path(tempfile.mkdtemp(prefix="tilewright-"))
        # also where the interpreter ends: the process ends with it, the folder has to be removed
        weakref.finalize(model, self.end)
        self.thread = threading.Thread(
            target=self._run, args=(weakref.ref(model), case, arrays), name="tilewright-anytime", daemon=True
        )
        self.thread.start()

    def end(self) -> None:
        """Stop it, whatever it does. A forked child leaves its parent's alone."""
        if os.getpid() == self._owner:
            self._apart.interrupt()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, model: weakref.ref[AnytimeModel], case: AnytimeCase, arrays: Sequence[Array]) -> None:
        try:
            found = self._found(case, arrays)
        except (Died, TilewrightError, OSError) as e:
            found = SearchEnd(None, f"the search failed: {e}", {})
        finally:
            self._apart.end()
            shutil.rmtree(self._folder, ignore_errors=True)
        if (waiting := model()) is not None:
            waiting._take(found)

    def _found(self, case: AnytimeCase, arrays: Sequence[Array]) -> SearchEnd:
        write_case(self._folder, case.called.graph, arrays)
        request = {
            "folder": str(self._folder), "options": asdict(case.options), "threads": case.threads,
            "seconds": case.seconds, "keeps": case.keeps, "nice": NICE,
        }  # fmt: skip
        answer = self._apart.ask(json.dumps(request), case.seconds + CLOSING)
        facts = {k: v for k, v in answer.items() if k in FACTS}
        if not answer.get("found"):
            none = "nothing was faster" if facts.get("candidates") else "there was no time to try anything"
            return SearchEnd(None, str(answer.get("why") or none), facts)
        made = with_convention(artifacts.load(self._folder / FOUND, copy=True), case.called)
        model = LoadedModel(made.manifest, made.objects, made.weights, threads=case.threads)
        return SearchEnd(model, "", facts)


def _parts(array: Array) -> Array:
    """A copy as the graph has it: complex numbers are their parts along a last axis."""
    array = np.array(array, order="C")
    return array if array.dtype.kind != "c" else array.view(array.real.dtype).reshape(*array.shape, 2)


# --- the other side -------------------------------------------------------------------------------------------------


def _answer(line: str, write: Answer) -> None:
    """Search, and leave the model with what was found in the folder; errors on purpose are answers too."""
    request = json.loads(line)
    folder, options = Path(request["folder"]), Options(**request["options"])
    os.nice(request["nice"])
    tempfile.tempdir = str(folder)  # what is left when this process is ended goes with the folder
    try:
        graph, inputs = read_case(folder)
        store = cached_schedules(Cache()) if request["keeps"] else None
        found = search(
            graph.unchecked(), inputs, options, threads=request["threads"], budget=request["seconds"], store=store
        )
        if found.text:
            clock = Clock()
            made = build(graph, replace(options, schedule=found.text), clock)
            manifest = made.manifest.with_facts(seconds=clock.seconds, from_cache=False)
            artifacts.save(folder / FOUND, manifest, made.objects, made.weights)
    except (CompileError, CodegenError, OptionError, ParseError, MemoryError, TilewrightError) as e:
        write({"why": f"the search failed: {e}"})
        return
    write(
        {
            "found": bool(found.text),
            "candidates": found.n_candidates,
            "faults": found.faults,
            "notes": found.notes,
        }
    )


if __name__ == "__main__":
    serve(_answer)
