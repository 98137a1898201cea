"""Schedules that searches have found, of all models, in one file: a kernel of equal structure is searched once.

In: what a search measured and found on a machine. Out: the schedules of kernels for that machine; text, to take them
elsewhere. Not its business: searching (``tools.search``), what a schedule may be (``tile.schedule``).

A row is known by the kernel's name, which is a digest of what it computes, and by the machine: the target's numbers,
the number of threads and the version of the compiler. Rows of another machine are kept and never used. The file is
SQLite's with a log that is written ahead, so several processes may use it at one time, and a row that was written stays
when one of them dies.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tilewright.runtime.answers import SEARCHES, compiler_text
from tilewright.runtime.cache import Cache
from tilewright.runtime.errors import InputError
from tilewright.runtime.manifest import Manifest
from tilewright.target.target import Target

WAIT_SECONDS = 30.0
"""For another process that writes."""
COMPILE_WAIT_SECONDS = 1.0
"""A compile goes on without what searches found rather than wait."""
_TABLE = """create table if not exists found (
    kernel text, machine text, steps text, before real, after real, primary key (kernel, machine)
)"""
_TRIED = """create table if not exists tried (
    kernel text, machine text, steps text, outcome text, seconds real, beside real, primary key (kernel, machine, steps)
)"""
_FOUND = "select kernel, machine, steps, before, after from found"
MEASURED = "measured"
FORMAT = "tilewright-schedules 1"
_PUT = """insert into found values (?, ?, ?, ?, ?) on conflict (kernel, machine) do update set
    steps = excluded.steps, before = excluded.before, after = excluded.after
    where excluded.after * found.before < found.after * excluded.before"""


@dataclass(frozen=True)
class FoundSchedule:
    """The steps for a kernel, a line each, and its seconds before and after, measured in turn."""

    kernel: str
    steps: str
    before: float
    after: float


@dataclass(frozen=True)
class Trial:
    """What a candidate came to: ``measured`` with its seconds, and those of the best one in turn with it; or how it
    failed (``tools.measure``)."""

    kernel: str
    steps: str
    outcome: str
    seconds: float
    beside: float


def machine_key(target: Target, threads: int) -> str:
    """What tells machines apart: one text for all whose measurements hold for each other."""
    return sha256(f"{compiler_text()}\n{target}\n{threads}".encode()).hexdigest()[:32]


class FoundSchedules:
    """The file; ``InputError`` where it is no database of schedules, or can't be read or written."""

    def __init__(self, path: str | os.PathLike[str], wait: float = WAIT_SECONDS) -> None:
        self.path, self.wait = os.fspath(path), wait

    def put(self, machine: str, found: Iterable[FoundSchedule]) -> None:
        """Keep what was found; of two schedules for a kernel the one that gained more stays."""
        with self._open() as file:
            file.executemany(_PUT, [(x.kernel, machine, x.steps, x.before, x.after) for x in found])

    def get(self, machine: str, kernels: Iterable[str]) -> dict[str, FoundSchedule]:
        """What was found for these kernels on this machine, by the kernel's name; nothing where there is no file."""
        rows = _sound(self._rows(f"{_FOUND} where machine = ?", machine))
        every = {row[0]: FoundSchedule(row[0], *row[2:]) for row in rows}
        return {name: every[name] for name in kernels if name in every}

    def add(self, machine: str, trials: Iterable[Trial]) -> None:
        """Keep what was tried; the latest measurement of a schedule stays."""
        rows = [(x.kernel, machine, x.steps, x.outcome, x.seconds, x.beside) for x in trials]
        with self._open() as file:
            file.executemany("insert or replace into tried values (?, ?, ?, ?, ?, ?)", rows)

    def trials(self, machine: str, kernels: Iterable[str]) -> list[Trial]:
        """What was tried for these kernels on this machine."""
        wanted = {*kernels}
        rows = self._rows("select kernel, steps, outcome, seconds, beside from tried where machine = ?", machine)
        return [Trial(*row) for row in rows if row[0] in wanted and _is_trial(row)]

    def without_gain(self, machine: str, kernels: Iterable[str]) -> set[tuple[str, str]]:
        """Kernels and steps that failed, or were no faster than what they were measured beside."""
        return {
            (t.kernel, t.steps) for t in self.trials(machine, kernels) if t.outcome != MEASURED or t.seconds >= t.beside
        }

    def all(self) -> list[tuple[str, FoundSchedule]]:
        """What was found, of all machines, each with the machine's key; nothing where there is no file."""
        rows = _sound(self._rows(f"{_FOUND} order by kernel, machine"))
        return [(row[1], FoundSchedule(row[0], *row[2:])) for row in rows]

    def forget(self, kernels: Iterable[str] | None = None) -> int:
        """Forget what was measured and found of these kernels, or of all, on all machines; how many found ones."""
        if not os.path.exists(self.path):
            return 0
        names = sorted({x.kernel for _, x in self.all()} if kernels is None else {*kernels})
        with self._open() as file:
            n = sum(file.execute("delete from found where kernel = ?", (name,)).rowcount for name in names)
            if kernels is None:
                file.execute("delete from tried")
            else:
                file.executemany("delete from tried where kernel = ?", [(name,) for name in names])
            return n

    def every(self, machine: str) -> dict[str, str]:
        """The steps of all kernels that were found for this machine, by name, in the order of names."""
        rows = self._rows("select kernel, steps from found where machine = ? order by kernel", machine)
        # A damaged file may have anything in any column.
        return {name: steps for name, steps in rows if isinstance(name, str) and isinstance(steps, str)}

    def book(self, machine: str) -> str:
        """What was found for this machine as ``Options.found``; nothing where there is none."""
        every = self.every(machine)
        return json.dumps(every) if every else ""

    def exported(self) -> str:
        """All schedules that were found, of all machines, as lines of JSON, which ``take`` reads."""
        with self._open() as file:
            rows = sorted(_sound(file.execute(_FOUND)), key=lambda row: (row[1], row[0]))
        return "\n".join([FORMAT, *(json.dumps(row) for row in rows)]) + "\n"

    def take(self, text: str) -> None:
        """Take over what ``exported`` has written; ``InputError`` for any other text, of which nothing is taken."""
        head, *lines = text.splitlines() or [""]
        try:
            rows = [_row(json.loads(line)) for line in lines]
        except (ValueError, RecursionError) as e:
            raise _no_export(str(e)) from e
        if head != FORMAT:
            raise _no_export(f"it begins with {head!r:.80}")
        with self._open() as file:
            file.executemany(_PUT, rows)

    def others(self, machine: str, kernels: Iterable[str]) -> int:
        """Of how many of these kernels there are schedules for other machines or versions only."""
        rows = self._rows("select distinct kernel from found where machine != ?", machine)
        known = self.get(machine, kernels)
        return len({name for (name,) in rows} & {*kernels} - known.keys())

    def merge(self, other: str | os.PathLike[str]) -> None:
        """Take over what another file has, of all machines; ``InputError`` where there is none."""
        if not os.path.exists(other):
            raise InputError(f"there is no file {os.fspath(other)!r:.200}", remedy="name a database of schedules")
        with FoundSchedules(other)._open() as file:
            rows = [*_sound(file.execute(_FOUND))]
        with self._open() as file:
            file.executemany(_PUT, rows)

    def _rows(self, ask: str, *values: str) -> list[Any]:
        """What the file answers; nothing where there is no file."""
        if not os.path.exists(self.path):
            return []
        with self._open() as file:
            return file.execute(ask, values).fetchall()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is written, or nothing."""
        try:
            connection = sqlite3.connect(self.path, timeout=self.wait)
            try:
                connection.execute("pragma journal_mode = wal")  # where the file system has none, the mode stays
                with connection:
                    connection.execute(_TABLE)
                    connection.execute(_TRIED)
                    yield connection
            finally:
                connection.close()
        except (sqlite3.Error, UnicodeDecodeError) as e:  # what SQLite says may quote the damaged file
            remedy = "name another file, or remove this one"
            raise InputError(f"the schedules in {self.path!r:.200} can't be used: {e}", remedy=remedy) from e


def cached_schedules(cache: Cache, wait: float = WAIT_SECONDS) -> FoundSchedules | None:
    """The database in the cache's folder; None where the cache can't be used."""
    if cache.problem or cache.directory is None:
        return None
    return FoundSchedules(os.path.join(cache.directory, SEARCHES), wait)


def _sound(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[str, str, str, float, float]]:
    """The rows of ``found`` that may have been written here: a damaged file may have anything in any column."""
    for row in rows:
        with suppress(ValueError):
            yield _row([*row])


def _is_trial(row: Sequence[Any]) -> bool:
    """May a row of ``tried`` have been written here?"""
    *texts, seconds, beside = row
    return all(isinstance(x, str) for x in texts) and all(isinstance(x, float) for x in (seconds, beside))


def _row(found: Any) -> tuple[str, str, str, float, float]:
    """A row of ``found``; ``ValueError`` for anything else."""
    if isinstance(found, list) and len(found) == 5:
        kernel, machine, steps, before, after = found
        is_text = all(isinstance(x, str) for x in (kernel, machine, steps))
        if is_text and all(isinstance(x, float) and 0 < x < math.inf for x in (before, after)):
            return kernel, machine, steps, before, after
    raise ValueError(f"{found!r:.80} is no schedule that was found")


def _no_export(why: str) -> InputError:
    return InputError(f"this is no export of schedules: {why}", remedy="give a file that tilewright found export wrote")


@dataclass(frozen=True)
class Searches:
    """What a compile takes from the database: ``Options.found``, or why there is none."""

    store: FoundSchedules
    machine: str
    book: str = ""
    problem: str = ""

    def unused(self, manifest: Manifest) -> dict[str, Any]:
        """What the model's report should say of the database: why nothing of it was used, and what was not."""
        if self.problem:
            return {"searches_problem": self.problem}
        names = [row["name"] for row in (manifest.report or {}).get("kernels", ())]
        with suppress(InputError):
            if n := self.store.others(self.machine, names):
                return {"found_elsewhere": n}
        return {}


def searches_of(cache: Cache, threads: int) -> Searches | None:
    """What searches found for this machine and so many threads; a database that can't be read is no reason to fail."""
    store = cached_schedules(cache, COMPILE_WAIT_SECONDS)
    if store is None:
        return None
    machine = machine_key(Target.parse("native"), threads)
    try:
        return Searches(store, machine, store.book(machine))
    except InputError as e:
        return Searches(store, machine, problem=e.message)
