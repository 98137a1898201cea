"""LLVM in forked children: whole, or out of use with a typed error.

In: nothing; importing this module does it. Out: ``check_llvm``. Not its business: what LLVM is asked to do.

llvmlite has one lock around LLVM. It is taken before every fork, so that no other thread is inside LLVM at that moment;
a fork waits for at most one call of LLVM, which seldom takes more than a few milliseconds. Where one takes longer than
``PATIENCE_S`` the child gets a new lock, so that it can end in peace, and whatever needs LLVM there says so.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import llvmlite.binding.ffi as ffi

from tilewright.runtime.errors import ResourceError
from tilewright.runtime.once import hold_across_fork

PATIENCE_S = 30.0


class _Guard:
    """llvmlite's lock, and whether LLVM is usable here."""

    def __init__(self, wrapper: Any) -> None:
        """``wrapper`` is llvmlite's own, around an ``RLock`` called ``_lock``."""
        self.wrapper = wrapper
        self.is_whole = True
        self.forking = threading.local()

    def take(self) -> None:
        self.forking.lock = self.wrapper._lock
        self.forking.is_taken = self.wrapper._lock.acquire(timeout=PATIENCE_S)

    def give_back(self) -> None:
        if self.forking.is_taken:
            self.forking.lock.release()

    def after_in_child(self) -> None:
        self.give_back()
        if not self.forking.is_taken:
            self.is_whole = False
            self.wrapper._lock = threading.RLock()  # throwing objects of LLVM's away takes it


_guard = _Guard(getattr(ffi.lib, "_lock", None))
if hasattr(_guard.wrapper, "_lock"):  # a part of llvmlite without a promise; a test says when it is gone
    hold_across_fork(_guard.take, _guard.give_back, _guard.after_in_child)


def check_llvm() -> None:
    """Raise ``ResourceError`` in a child that was forked while another thread was inside LLVM."""
    if not _guard.is_whole:
        raise ResourceError(
            f"process {os.getpid()} was forked while another thread compiled, so it can't compile or load models",
            remedy="fork before compiling, or start processes by multiprocessing's 'spawn' or 'forkserver'",
        )
