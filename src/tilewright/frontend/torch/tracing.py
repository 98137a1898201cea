"""Whose turn it is to trace: PyTorch's tracing works in one thread of a process at a time.

In: nothing. Out: ``tracing``, which ``torch.export``, its files and its decompositions are called in. Not its business:
what is traced (``export.py``), and ``torch.compile``, which takes the same lock by itself.

While it traces, PyTorch replaces functions, modes and a module's parameters for the whole process, and only
``torch.compile`` has a lock for that. Two threads in ``torch.export`` break one another off ("Trying to pop empty mode
stack"), as does one there and one in ``torch.compile``.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from tilewright.runtime.once import ForkLock, in_forked_child

_OURS = ForkLock()
"""For a release of PyTorch without a lock of that name."""


def tracing() -> Any:
    """A context in which this thread alone traces; Dynamo's own lock where it has one."""
    from torch._dynamo import convert_frame

    return getattr(convert_frame, "compile_lock", _OURS.lock)


@in_forked_child
def _renew() -> None:
    """A child has no thread that could let go of the lock which one of the parent's held."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if hasattr(frames, "compile_lock"):
        frames.compile_lock = threading.RLock()  # type: ignore[union-attr]
