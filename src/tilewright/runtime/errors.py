"""Typed errors of everything a user can meet while loading or running; the base class of all others.

In: facts about what went wrong. Out: exceptions whose text names the thing, the rule and a remedy.
Not its business: compile-time diagnostics (``tilewright.core.diag`` derives them from the same base).
"""

from __future__ import annotations


class TilewrightError(Exception):
    """Base of every error that Tilewright raises on purpose.

    ``code`` is stable across releases (``TW0101``...) so that scripts can match on it; ``remedy`` is the next step.
    """

    code = "TW0000"

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"[{self.code}] {message}" + (f"\n  remedy: {remedy}" if remedy else ""))


class InputError(TilewrightError):
    """A call's arguments do not fit the model: wrong count, name, dtype, rank or size."""

    code = "TW0101"


class ArtifactError(TilewrightError):
    """A saved model or cache entry is truncated, corrupted, from another format version or for another CPU."""

    code = "TW0102"


class ExecutionError(TilewrightError):
    """The compiled code itself reported a failure, such as an index out of range."""

    code = "TW0103"


class ResourceError(TilewrightError):
    """Memory or another resource of the machine is exhausted."""

    code = "TW0104"
