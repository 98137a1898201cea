"""Schedules that searches have found, of all models, in one file: a kernel of equal structure is searched once.

In: what a search found on a machine. Out: the schedules of kernels for that machine. Not its business: searching
(``tools.tune``), what a schedule may be (``tile.schedule``).

A row is known by the kernel's name, which is a digest of what it computes, and by the machine: the target's numbers,
the number of threads and the version of the compiler. Rows of another machine are kept and never used. The file is
SQLite's, so several processes may use it at one time, and a row that was written stays when one of them dies.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256

from tilewright.runtime.answers import compiler_text
from tilewright.runtime.errors import InputError
from tilewright.target.target import Target

WAIT_SECONDS = 30.0
"""For another process that writes."""
_TABLE = """create table if not exists found (
    kernel text, machine text, steps text, before real, after real, primary key (kernel, machine)
)"""
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


def machine_key(target: Target, threads: int) -> str:
    """What tells machines apart: one text for all whose measurements hold for each other."""
    return sha256(f"{compiler_text()}\n{target}\n{threads}".encode()).hexdigest()[:32]


class FoundSchedules:
    """The file; ``InputError`` where it is no database of schedules, or can't be read or written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def put(self, machine: str, found: Iterable[FoundSchedule]) -> None:
        """Keep what was found; of two schedules for a kernel the one that gained more stays."""
        with self._open() as file:
            file.executemany(_PUT, [(x.kernel, machine, x.steps, x.before, x.after) for x in found])

    def get(self, machine: str, kernels: Iterable[str]) -> dict[str, FoundSchedule]:
        """What was found for these kernels on this machine, by the kernel's name; nothing where there is no file."""
        if not os.path.exists(self.path):
            return {}
        with self._open() as file:
            rows = file.execute("select kernel, steps, before, after from found where machine = ?", (machine,))
            every = {row[0]: FoundSchedule(*row) for row in rows}
        return {name: every[name] for name in kernels if name in every}

    def others(self, machine: str, kernels: Iterable[str]) -> int:
        """Of how many of these kernels there are schedules for other machines or versions only."""
        if not os.path.exists(self.path):
            return 0
        with self._open() as file:
            rows = file.execute("select distinct kernel from found where machine != ?", (machine,)).fetchall()
        known = self.get(machine, kernels)
        return len({name for (name,) in rows} & {*kernels} - known.keys())

    def merge(self, other: str | os.PathLike[str]) -> None:
        """Take over what another file has, of all machines; ``InputError`` where there is none."""
        if not os.path.exists(other):
            raise InputError(f"there is no file {os.fspath(other)!r:.200}", remedy="name a database of schedules")
        with FoundSchedules(other)._open() as file:
            rows = file.execute("select kernel, machine, steps, before, after from found").fetchall()
        with self._open() as file:
            file.executemany(_PUT, rows)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is written, or nothing."""
        try:
            connection = sqlite3.connect(self.path, timeout=WAIT_SECONDS)
            try:
                with connection:
                    connection.execute(_TABLE)
                    yield connection
            finally:
                connection.close()
        except sqlite3.Error as e:
            remedy = "name another file, or remove this one"
            raise InputError(f"the schedules in {self.path!r:.200} can't be used: {e}", remedy=remedy) from e
