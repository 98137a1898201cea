"""Which pages of this process's memory were written, where Linux tells: version 6.7 and newer, by userfaultfd.

In: ranges of addresses. Out: those parts of them that were written since they were asked for last. Not its business:
what lies there (``watch``).

Pages are write-protected without anybody noticing: the kernel takes a first write's fault itself (asynchronous
protection) and remembers the page, ``PAGEMAP_SCAN`` reads what it remembers. Nothing waits, no thread and no signal is
involved, and writes by the kernel itself (``read`` into a weight) count. Containers often forbid userfaultfd, and then
there is no tracking.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.runtime.env import read_environment
from tilewright.runtime.once import once
from tilewright.runtime.values import Array

Range = tuple[int, int]
"""Addresses of the first byte, and of the one after the last."""

_SYSCALLS = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = 1
_API, _WP_UNPOPULATED, _WP_ASYNC = 0xAA, 1 << 13, 1 << 15
_UFFDIO_API, _UFFDIO_REGISTER, _USERFAULTFD_IOC_NEW = 0xC018AA3F, 0xC020AA00, 0xAA00
_MODE_WP = 2

PAGEMAP_SCAN = 0xC0606610
SCAN_WORDS = 12
"""Of ``struct pm_scan_arg`` (``linux/fs.h``)."""
_PROTECT = 1
_IS_WRITTEN = 2
_FOUND_AT_ONCE = 64


class PageTracker:
    """The process's record of written pages; ``OSError`` where there can be none."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self._faults = _userfaultfd(self.libc)
        try:
            fcntl.ioctl(self._faults, _UFFDIO_API, bytearray(struct.pack("3Q", _API, _WP_ASYNC | _WP_UNPOPULATED, 0)))
            self.file = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._faults)
            raise
        self._found = (ctypes.c_uint64 * (3 * _FOUND_AT_ONCE))()

    def register(self, wanted: Range) -> bool:
        """Let the kernel remember writes to pages; False where it can't, as in memory of a device."""
        start, end = wanted
        try:
            fcntl.ioctl(self._faults, _UFFDIO_REGISTER, bytearray(struct.pack("4Q", start, end - start, _MODE_WP, 0)))
        except OSError:
            return False
        return True

    def written(self, of: Range) -> Array:
        """The written parts of a range, as rows of their ends and of a constant: what ``PAGEMAP_SCAN`` answers."""
        room = _FOUND_AT_ONCE
        while True:
            found = np.empty((room, 3), np.uint64)
            asked = np.array(question(of, found), np.uint64)
            n = self.libc.ioctl(self.file, ctypes.c_ulong(PAGEMAP_SCAN), ctypes.c_void_p(asked.ctypes.data))
            if n < 0:
                raise OSError(ctypes.get_errno(), "PAGEMAP_SCAN")
            if n < room:
                return found[:n]
            room *= 4

    def take(self, of: Range) -> list[Range]:
        """The written parts of a range, which count as not written from now on."""
        taken: list[Range] = []
        start, end = of
        at = ctypes.addressof(self._found)
        while start < end:
            words = (8 * SCAN_WORDS, _PROTECT, start, end, 0, at, _FOUND_AT_ONCE, 0, 0, _IS_WRITTEN, 0, _IS_WRITTEN)
            asked = (ctypes.c_uint64 * SCAN_WORDS)(*words)
            n = self.libc.ioctl(self.file, ctypes.c_ulong(PAGEMAP_SCAN), asked)
            if n < 0:
                return [of]  # a page of it is gone, say: nothing is known
            taken += [(self._found[3 * k], self._found[3 * k + 1]) for k in range(n)]
            walked_to = asked[4]
            start = walked_to if n == _FOUND_AT_ONCE and walked_to > start else end
        return taken

    def close(self) -> None:
        """Forget everything, in a child process: these files are about the parent's memory."""
        os.close(self._faults)
        os.close(self.file)


def question(of: Range, answer: Array) -> list[int]:
    """The words of a ``pm_scan_arg`` that asks what was written and changes nothing; ``answer`` is room for regions."""
    at, room = answer.ctypes.data, len(answer)
    return [8 * SCAN_WORDS, 0, *of, 0, at, room, 0, 0, _IS_WRITTEN, 0, _IS_WRITTEN]


def _userfaultfd(libc: ctypes.CDLL) -> int:
    """A new userfaultfd, by the device where the system call could be forbidden on pain of death."""
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    try:
        device = os.open("/dev/userfaultfd", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        number = _SYSCALLS.get(platform.machine())
        if number is None or _is_filtered():
            raise
        made = libc.syscall(ctypes.c_long(number), ctypes.c_int(flags | _USER_MODE_ONLY))
        if made < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd") from None
        return int(made)
    try:
        return int(fcntl.ioctl(device, _USERFAULTFD_IOC_NEW, flags))
    finally:
        os.close(device)


def _is_filtered() -> bool:
    """Does a filter of system calls (seccomp) stand over this process?"""
    return "Seccomp:\t2" in Path("/proc/self/status").read_text()


@once
def page_tracker() -> PageTracker | None:
    """The tracker of this process; None where the system has none, or ``TILEWRIGHT_PAGES`` forbids it."""
    if sys.platform != "linux" or not read_environment().pages:
        return None
    try:
        return PageTracker()
    except OSError:
        return None


def forget_pages() -> None:
    """In a forked child: the next one who asks gets a tracker of the child's own memory."""
    for tracker in page_tracker.made.values():
        if tracker is not None:
            tracker.close()
    page_tracker.made.clear()


def page_ranges(spans: Sequence[Range], page_bytes: int, gap_bytes: int = 0) -> list[Range]:
    """The whole pages that hold ``spans``; those that lie no farther apart than ``gap_bytes`` are one range."""
    ranges: list[Range] = []
    for start, end in sorted((a - a % page_bytes, -(-b // page_bytes) * page_bytes) for a, b in spans):
        if ranges and start <= ranges[-1][1] + gap_bytes:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((start, end))
    return ranges
