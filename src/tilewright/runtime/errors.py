"""Typed errors of everything a user can meet while loading or running; the base class of all others.

In: facts about what went wrong. Out: exceptions whose text names the thing, the rule and a remedy.
Not its business: compile-time diagnostics (``tilewright.core.diag`` derives them from the same base).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.runtime.plain import dataclass


class TilewrightError(Exception):
    """Base of every error that Tilewright raises on purpose.

    ``code`` is stable across releases (``TW0101``...) so that scripts can match on it; ``remedy`` is the next step.
    """

    code = "TW0000"

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"[{self.code}] {message}" + (f"\n  remedy: {remedy}" if remedy else ""))


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that a call's arguments break: which input and dimension, what was given, what holds, what to do.

    ``dim`` and ``symbol`` are None where the rule is not about one.
    """

    input: str
    given: str
    rule: str
    remedy: str = ""
    dim: int | None = None
    symbol: str | None = None

    def __str__(self) -> str:
        place = f"input {self.input!r}" if self.input else "inputs"
        if self.dim is not None:
            place += f", dimension {self.dim}"
        if self.symbol is not None:
            place += f" ({self.symbol})"
        return f"{place}: {self.given}; {self.rule}" + (f" -> {self.remedy}" if self.remedy else "")


class InputError(TilewrightError):
    """A call's arguments do not fit the model: wrong count, name, dtype, rank or size.

    ``violations`` lists everything that is wrong with the call, where it came from a loaded model.
    """

    code = "TW0101"

    def __init__(self, message: str, *, remedy: str = "", violations: Sequence[Violation] = ()) -> None:
        self.violations = tuple(violations)
        super().__init__(message, remedy=remedy)


class ArtifactError(TilewrightError):
    """A saved model or cache entry is truncated, corrupted, from another format version or for another CPU."""

    code = "TW0102"


class ExecutionError(TilewrightError):
    """The compiled code itself reported a failure, such as an index out of range."""

    code = "TW0103"


class FileError(TilewrightError):
    """A file can't be read or written: no such folder, no permission, no space."""

    code = "TW0105"


class ResourceError(TilewrightError):
    """Memory or another resource of the machine is exhausted."""

    code = "TW0104"
