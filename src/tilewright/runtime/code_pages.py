"""Memory for machine code: written, then made executable, never both at a time.

In: a size, bytes, which parts run and which are written by the code. Out: addresses. Not its business: what the code
is (``runtime/cpu/placed.py`` links objects, ``cpuid`` has a function of a few bytes).

For Linux on x86-64 alone, where written code may run at once. Other CPUs want their caches of instructions emptied
first, other systems have calls of their own; there LLVM places code.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

PAGE = mmap.PAGESIZE

_FAILED = ctypes.c_void_p(-1).value


def is_supported() -> bool:
    """Is this process one of x86-64 under Linux?"""
    return sys.platform == "linux" and os.uname().machine == "x86_64" and ctypes.sizeof(ctypes.c_void_p) == 8


class CodePages:
    """Pages of this process at ``address``; given back when this object dies, unless they are kept.

    ``OSError`` where the system gives none, or lets no memory that was written be executed.
    """

    __slots__ = ("_is_kept", "_libc", "address", "n_bytes")

    def __init__(self, n_bytes: int) -> None:
        self._is_kept = True  # nothing to give back yet
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self.n_bytes = n_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        found = self._libc.mmap(
            None, ctypes.c_size_t(n_bytes), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0)
        )
        if found is None or found == _FAILED:
            raise OSError(ctypes.get_errno(), f"no {n_bytes} bytes of memory for code")
        self.address: int = found
        self._is_kept = False

    def write(self, data: bytes | bytearray) -> None:
        """Fill the pages from their start, before any of them is sealed."""
        assert len(data) <= self.n_bytes
        ctypes.memmove(self.address, bytes(data), len(data))

    def seal(self, start: int, end: int, *, is_code: bool) -> None:
        """From now on nobody writes the pages from offset ``start`` to ``end``; code may be executed."""
        if start == end:
            return
        allowed = mmap.PROT_READ | (mmap.PROT_EXEC if is_code else 0)
        if self._libc.mprotect(ctypes.c_void_p(self.address + start), ctypes.c_size_t(end - start), allowed):
            raise OSError(ctypes.get_errno(), "memory for code can't be protected")

    def keep(self) -> None:
        """Never give the pages back: for code that other threads may still be inside of."""
        self._is_kept = True

    def __del__(self) -> None:
        if not self._is_kept:
            self._libc.munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.n_bytes))
