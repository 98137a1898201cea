"""Where things come from and what went wrong: source locations and compile-time errors.

In: facts from frontends, ops and passes. Out: ``Loc`` values that ride on every node, and typed exceptions that list
every problem at once. Not its business: errors of loading and running (``runtime.errors``), which share the base class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tilewright.runtime.errors import ResourceError, TilewrightError


@dataclass(frozen=True)
class Loc:
    """Where a node comes from: the user's source line or the name of a model's node.

    ``text`` is what a person should see, such as ``model.py:31 in forward`` or ``node "conv1" (Conv)``.
    """

    text: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return self.text


UNKNOWN = Loc("unknown location")


def users_frame(passed: tuple[str, ...]) -> FrameType:
    """The innermost line of the user's program that is running.

    ``passed`` are beginnings of paths of files that call each other on the way from it.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    return frame


def loc_of_frame(frame: FrameType) -> Loc:
    """The line that runs."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Loc(f"{Path(file).name}:{line} in {frame.f_code.co_name}", file, line)


def name_of(function: Any) -> str:
    """What something that is called is known by: a partial by its function, an object with ``__call__`` by its type."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(function).__name__))


def join_locs(locs: Sequence[Loc]) -> Loc:
    """One location for a node made of several: their texts in order, each once."""
    seen = dict.fromkeys(loc for loc in locs if loc is not UNKNOWN)
    if len(seen) == 1:
        return next(iter(seen))
    return Loc(" + ".join(loc.text for loc in seen)) if seen else UNKNOWN


@dataclass(frozen=True)
class Problem:
    """One thing that stops a compile: where, which op, the rule broken, and what the user can do."""

    loc: Loc
    op: str
    rule: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.loc}: {self.op}: {self.rule}"
        return f"{text}\n    remedy: {self.remedy}" if self.remedy else text


class CompileError(TilewrightError):
    """A model can't be compiled; ``problems`` lists every blocker that was found, not only the first."""

    code = "TW0201"

    def __init__(self, summary: str, problems: Sequence[Problem] = (), *, remedy: str = "") -> None:
        self.problems = tuple(problems)
        shown = "".join(f"\n  - {p}" for p in self.problems[:50])
        more = f"\n  ... and {len(self.problems) - 50} more" if len(self.problems) > 50 else ""
        super().__init__(summary + shown + more, remedy=remedy)


class ImportFailed(CompileError):
    """The model file or program can't be read, or holds something that no op expresses."""

    code = "TW0202"


class OpError(TilewrightError):
    """An op's operands or attributes break its rule; raised by ``OpDef.infer``, located by whoever adds the node."""

    code = "TW0203"


class VerifyError(CompileError):
    """An IR breaks its level's spec: a bug in a pass or an edited text, never a user's model."""

    code = "TW0204"


class ParseError(TilewrightError):
    """IR text can't be read; names the line and what was expected there."""

    code = "TW0205"


class OptionError(TilewrightError):
    """An option's name or value is not one of those offered."""

    code = "TW0206"


@contextmanager
def within_memory(what: str) -> Iterator[None]:
    """``ResourceError`` where there is no memory for ``what``, as for a model whose sizes are damaged."""
    try:
        yield
    except MemoryError as error:
        reason = f": {error}" if str(error) else ""
        remedy = "check the model's sizes, or free memory"
        raise ResourceError(f"there is no memory for {what}{reason}", remedy=remedy) from error
