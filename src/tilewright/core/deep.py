"""Work on expressions that are deeper than the interpreter's limit of recursion allows for.

In: a function that walks expressions by recursion, and may be called twice. Out: what it returns. Not its business: how
deep an expression may be, which fusion bounds by the operations of one kernel (``core.effort``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from tilewright.runtime.once import ForkLock

_deeply = ForkLock()
"""Whose holder has changed the interpreter's limit of recursion."""
_DEEP = 100_000

T = TypeVar("T")


def deeply(work: Callable[[], T]) -> T:
    """What ``work`` returns; where it recurses too deep, it is called again with a limit that does not matter.

    An expression of hundreds of operations one behind the other is rare, and no reason to refuse it. The limit belongs
    to the whole process, so it is raised for as long as it is needed only.
    """
    try:
        return work()
    except RecursionError:
        with _deeply.lock:
            limit = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_DEEP, limit))
            try:
                return work()
            finally:
                sys.setrecursionlimit(limit)
