"""One thread at a time in ``isl``, whose sets share a context with its options and its count of operations.

In: a function that uses ``isl``. Out: the same one, under a lock. Not its business: which functions those are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tilewright.runtime.once import ForkLock

_P = ParamSpec("_P")
_R = TypeVar("_R")
_context = ForkLock()


def alone(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let one thread at a time into all functions that are made so; it may go on into others of them."""

    @wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _context.lock:
            return function(*args, **kwargs)

    return guarded
