"""What is wrong with a kernel that a user wrote, with the line that says it.

In: the rule broken, and the frames of the user's program. Out: ``KernelError``; locations.
Not its business: steps of schedules that are not legal (``tile.errors``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dis import get_instructions
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.core.diag import CompileError, Loc, Problem, loc_of_frame, users_frame

HERE = (str(Path(__file__).parent), str(Path(np.__file__).parent))
"""Where functions stand that call each other on the way from the user's line."""
READ: ContextVar[Loc | None] = ContextVar("line of a program that is read and not run", default=None)
TRACED: ContextVar[str] = ContextVar("name of the kernel that is traced", default="")


class KernelError(CompileError):
    """A kernel says something that has no meaning; names the user's line, the rule and a remedy."""

    code = "TW0207"

    def __init__(self, kernel: str, rule: str, remedy: str = "", loc: Loc | None = None) -> None:
        where = here() if loc is None else loc
        super().__init__(f"the kernel {kernel} is not right", [Problem(where, kernel, rule, remedy)])


def refused(rule: str, remedy: str = "", loc: Loc | None = None) -> KernelError:
    """The error of the kernel that is traced, at the user's line that runs where ``loc`` names no other."""
    return KernelError(TRACED.get(), rule, remedy, loc)


def here() -> Loc:
    """The line of the user's program that is being read, where one is, else the innermost one that is running.

    That is of the first frame outside of this folder and NumPy's.
    """
    return READ.get() or loc_of_frame(users_frame(HERE))


def loc_of(function: Callable[..., Any]) -> Loc:
    """Where a function begins."""
    code = function.__code__
    return Loc(f"{Path(code.co_filename).name}:{code.co_firstlineno}", code.co_filename, code.co_firstlineno)


def assigned() -> list[str]:
    """The names that the user's program gives to what it is computing now: ``y, x`` of ``for y, x in grid(h, w)``.

    They are what the instructions after the running one store to, so that no source text is needed.
    """
    frame = users_frame(HERE)
    names: list[str] = []
    n_values = 1
    for step in get_instructions(frame.f_code):
        if step.offset <= frame.f_lasti or step.opname == "CACHE":
            continue
        if step.opname == "UNPACK_SEQUENCE":
            n_values = step.argval
        elif step.opname.startswith("STORE_") and len(names) < n_values:
            # newer versions store two at once, or store and load
            names += step.argval if isinstance(step.argval, tuple) else [step.argval]
        else:
            break
    return names[:n_values]
