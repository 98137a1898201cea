"""Cases in worker processes, each with a time limit: a crash or a hang is one outcome and not the end.

In: a suite, which is a module with ``cases`` and ``run_case``, and the cases to run. Out: their outcomes, as they come.
Not its business: what a case is or when it is right.
"""

from __future__ import annotations

import multiprocessing
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, cast

from tilewright.core.diag import OptionError
from tilewright.tools.conformance.outcome import Outcome, Status

START_SECONDS = 300.0  # a worker imports the suite's library and may load all of its cases
NATIVE = "native"
CASES_PER_WORKER = 500  # then a fresh process: what native libraries keep does not add up


@dataclass(frozen=True)
class Case:
    """One case before it runs: a name that is unique in the suite, its row in the table, the subsets it counts in."""

    name: str
    group: str
    tags: tuple[str, ...] = ()


class Suite(Protocol):
    """What a suite's module offers; ``run_case`` may raise, which is a failed outcome.

    A suite that can also be run on another machine than this CPU has ``run_case_for(case, target)`` too, which
    ``run_case`` is for the target ``native``.
    """

    NAME: str

    def cases(self) -> Sequence[Case]:
        """Every case, in a fixed order."""

    def run_case(self, case: Case) -> tuple[Status, str]:
        """Run one case in this process: its status, and what differs or why not."""


def load_suite(module: str) -> Suite:
    """The suite in a module."""
    return cast(Suite, import_module(module))


def takes_targets(suite: Suite) -> bool:
    """Can the suite be run for another target than ``native``?"""
    return hasattr(suite, "run_case_for")


def select(cases: Sequence[Case], pattern: str) -> list[Case]:
    """The cases whose name or group a regular expression finds; ``OptionError`` for a bad expression or no case."""
    try:
        wanted = re.compile(pattern)
    except re.error as e:
        raise OptionError(f"--only {pattern!r} is no regular expression: {e}", remedy="escape its signs") from e
    found = [c for c in cases if wanted.search(c.name) or wanted.search(c.group)]
    if not found:
        raise OptionError(f"--only {pattern!r} finds no case", remedy="it is searched for in names and groups")
    return found


def run_cases(
    module: str,
    cases: Sequence[Case],
    *,
    jobs: int = 1,
    seconds: float = 120.0,
    cases_per_worker: int = CASES_PER_WORKER,
    target: str = NATIVE,
) -> Iterator[Outcome]:
    """Outcomes of ``cases`` in the order in which they end; ``seconds`` is the limit of each.

    Another ``target`` than ``native`` is for suites that take targets.
    """
    name = load_suite(module).NAME
    queue = deque(cases)
    workers: list[_Worker] = []
    try:
        while queue or workers:
            while queue and len(workers) < jobs:
                workers.append(_Worker(module, name, cases_per_worker, target))
            for worker in workers:
                if worker.case is None and worker.ready and queue:
                    worker.give(queue.popleft(), seconds)
            # until something answers, or the first limit is over
            nearest = min(w.deadline for w in workers) - time.monotonic()
            wait([w.pipe for w in workers], max(nearest, 0.0))
            for worker in list(workers):
                outcome = worker.collect()
                if outcome is not None:
                    yield outcome
                if worker.ended or (worker.ready and worker.case is None and not queue):
                    if worker.failed_to_start:
                        raise OptionError(f"a worker of {module} can't start: {worker.why}", remedy="see its output")
                    worker.end()
                    workers.remove(worker)
    finally:  # also where the reader of the outcomes stops early
        for worker in workers:
            worker.end()


class _Worker:
    """One process and what it is doing."""

    def __init__(self, module: str, suite: str, n_cases: int, target: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(module, target, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.suite, self.n_left = suite, n_cases
        self.ready = self.ended = self.failed_to_start = False
        self.why = ""
        self.case: Case | None = None
        self.started = time.monotonic()
        self.deadline = self.started + START_SECONDS

    def give(self, case: Case, seconds: float) -> None:
        """Start one case."""
        self.case, self.started = case, time.monotonic()
        self.deadline = self.started + seconds
        try:
            self.pipe.send(case)
        except OSError:
            return  # it died between two cases: collect sees the closed pipe

    def collect(self) -> Outcome | None:
        """The outcome of the running case if it has ended, died or is late."""
        if self.pipe.poll():
            try:
                answer = self.pipe.recv()
            except (EOFError, OSError):
                self.process.join(10)
                return self._lost("crashed", _death(self.process.exitcode))
            if not self.ready:
                self.ready, self.deadline = answer == "ready", float("inf")
                if not self.ready:
                    return self._lost("crashed", str(answer))
                return None
            return self._ended(*answer)
        if time.monotonic() >= self.deadline:
            return self._lost("timeout", f"ran longer than {self.deadline - self.started:.0f} s")
        return None

    def _ended(self, status: Status, detail: str) -> Outcome:
        assert self.case is not None
        case, self.case, self.deadline = self.case, None, float("inf")
        self.n_left -= 1
        # An error may leave the process as it should not be: after one of a GPU nothing runs on it any more.
        self.ended = self.n_left <= 0 or status == "failed"
        return Outcome(
            self.suite, case.name, case.group, status, detail, round(time.monotonic() - self.started, 3), case.tags
        )

    def _lost(self, status: Status, why: str) -> Outcome | None:
        self.failed_to_start, self.why = not self.ready, why
        outcome = self._ended(status, why) if self.case is not None else None
        self.ended = True
        return outcome

    def end(self) -> None:
        """Stop the process, whatever it does."""
        self.pipe.close()
        self.process.join(0.2 if self.ready and self.case is None else 0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _death(code: int | None) -> str:
    return f"the process died of signal {-code}" if code is not None and code < 0 else f"the process ended with {code}"


def _serve(module: str, target: str, pipe: Connection) -> None:
    """A worker's life: load the suite, then run each case that comes."""
    try:
        suite = load_suite(module)
        suite.cases()
        run_case = suite.run_case if target == NATIVE else partial(cast(Any, suite).run_case_for, target=target)
    except Exception as e:
        pipe.send(f"{type(e).__name__}: {e}")
        return
    pipe.send("ready")
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        pipe.send(_run(run_case, case))


def _run(run_case: Callable[[Case], tuple[Status, str]], case: Case) -> tuple[Status, str]:
    try:
        return run_case(case)
    except Exception as e:
        return "failed", f"{type(e).__name__}: {e}"[:2000]
