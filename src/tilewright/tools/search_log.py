"""What a search measures, kept in the database as soon as it is known.

In: trials and finds. Out: rows of ``build.found_schedules``; what earlier searches left there. Not its business: the
file (``build.found_schedules``), what is tried (``tools.search_space``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.build.found_schedules import FoundSchedule, FoundSchedules, Trial
from tilewright.runtime.errors import InputError

Read = TypeVar("Read")


class SearchLog:
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
