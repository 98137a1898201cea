"""The sizes that a model is called with, counted: those of most calls are worth code of their own (``specialize``).

In: the values of a model's symbols, call by call. Out: combinations of sizes, most frequent first; a file of counts,
to which later runs add. Not its business: code for these sizes (``build.exact``).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping

from tilewright.runtime.errors import FileError
from tilewright.runtime.fields import FieldError, Fields, decode_json
from tilewright.runtime.files import write_text, writing
from tilewright.runtime.once import ForkLock

FORMAT = "tilewright sizes 1"
GIVEN = 8
"""Combinations that a list has unless another number is asked for: each is a compile of its own."""
_REMEDY = "write one by `tilewright run MODEL --profile-sizes FILE`, or by model.profile_sizes()"


class SeenSizes:
    """Calls by their sizes. Any number of threads may add."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[tuple[str, int], ...]] = Counter()
        self._guard = ForkLock()

    def add(self, sizes: Mapping[str, int], count: int = 1) -> None:
        """Count calls of these sizes; those of a model without symbols are not counted."""
        if sizes:
            with self._guard.lock:
                self._counts[tuple(sorted(sizes.items()))] += count

    @property
    def counts(self) -> list[tuple[dict[str, int], int]]:
        """Combinations of sizes with their number of calls, most frequent first."""
        with self._guard.lock:
            rows = sorted(self._counts.items(), key=lambda row: (-row[1], row[0]))
        return [(dict(sizes), count) for sizes, count in rows]

    def most(self, n: int = GIVEN) -> list[dict[str, int]]:
        """The combinations of most calls, as ``tilewright.compile(specialize=...)`` takes them."""
        return [sizes for sizes, _ in self.counts[:n]]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Add the counts to those of a file, which is made where there is none; ``FileError`` where that fails."""
        total = read_counts(path) if os.path.exists(path) else SeenSizes()
        for sizes, count in self.counts:
            total.add(sizes, count)
        rows = [{"sizes": sizes, "calls": count} for sizes, count in total.counts]
        with writing(path):
            write_text(path, json.dumps({"format": FORMAT, "rows": rows}, indent=1) + "\n")


def read_counts(path: str | os.PathLike[str]) -> SeenSizes:
    """The counts of a file; ``FileError`` where it can't be read or holds something else."""
    found = SeenSizes()
    try:
        with open(path, "rb") as file:
            fields = Fields(decode_json(file.read()), "sizes")
        if fields.text("format") != FORMAT:
            raise FieldError(f"the format is not {FORMAT!r}")
        for row in fields.children("rows"):
            sizes = row.any("sizes")
            if not isinstance(sizes, dict) or not all(type(n) is int and n >= 0 for n in sizes.values()):
                raise FieldError("a row has no sizes by name")
            found.add(sizes, row.integer("calls", 1))
    except OSError as error:
        raise FileError(f"can't read {os.fspath(path)}: {error.strerror or error}", remedy="check the path") from error
    except ValueError as error:
        raise FileError(f"{os.fspath(path)} is no file of sizes: {error}", remedy=_REMEDY) from error
    return found


def read_sizes(path: str | os.PathLike[str], n: int = GIVEN) -> list[dict[str, int]]:
    """The combinations of most calls in a file of counts."""
    return read_counts(path).most(n)
