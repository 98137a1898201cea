"""Working memory of calls: one frame for each call that is running, a few kept for the next ones.

In: the sizes a call needs. Out: frames with argument tables and memory, for kernels' scratch and the arena.
Not its business: what is in them.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

from tilewright.runtime.values import aligned_buffer

KEPT = 4
"""Frames that a model keeps between calls; more exist only while more calls run at once."""


class Frame:
    """The tables and scratch memory of one running call; ``call`` are the native function's prebuilt arguments."""

    __slots__ = ("_arena", "_fixed", "args", "call", "capacity", "dims")

    def __init__(self, n_args: int, n_dims: int, weights: int, threads: int) -> None:
        self.args = (ctypes.c_uint64 * max(n_args, 1))()
        self.dims: Any = (ctypes.c_int64 * max(n_dims, 1))()
        self._fixed = (
            ctypes.c_void_p(ctypes.addressof(self.args)),
            ctypes.c_void_p(ctypes.addressof(self.dims)),
            ctypes.c_void_p(weights),
            ctypes.c_int32(threads),
        )
        self.capacity = -1
        self.grow(0)

    def grow(self, n_bytes: int) -> None:
        """Replace the arena by one of ``n_bytes``; ``MemoryError`` leaves the frame as it was."""
        arena, start = aligned_buffer(n_bytes)
        args, dims, weights, threads = self._fixed
        self.call = (args, dims, weights, ctypes.c_void_p(arena.ctypes.data + start), threads)
        self._arena, self.capacity = arena, n_bytes


class FramePool:
    """Frames for concurrent calls. Taking and giving back are atomic; no lock is held while code runs."""

    def __init__(self, n_args: int, n_dims: int, weights: int, threads: int) -> None:
        self._shape = (n_args, n_dims, weights, threads)
        self._free: deque[Frame] = deque(maxlen=KEPT)

    def take(self, arena_bytes: int) -> Frame:
        """A frame that no other call has, with an arena of at least ``arena_bytes``."""
        try:
            frame = self._free.pop()
        except IndexError:
            frame = Frame(*self._shape)
        if frame.capacity < arena_bytes:
            frame.grow(arena_bytes)
        return frame

    def give(self, frame: Frame) -> None:
        """Give a frame back; the oldest kept one is dropped when there are enough."""
        self._free.append(frame)

    @property
    def kept_bytes(self) -> int:
        """Arena bytes held between calls."""
        return sum(frame.capacity for frame in list(self._free))
