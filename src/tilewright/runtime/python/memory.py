"""Memory of calls: one frame for each call that is running, a few kept for the next ones; and memory of results.

In: the sizes a call needs. Out: frames with argument tables and memory, for kernels' scratch and the arena; arrays for
results. Not its business: what is in them.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.once import ForkLock
from tilewright.runtime.plan import OutputPlan
from tilewright.runtime.values import Array, aligned_buffer, new_array

KEPT = 4
"""Frames that a model keeps between calls; more exist only while more calls run at once."""

RECYCLED_FROM = 32 << 10
"""Bytes from which a result's memory is used again: smaller blocks stay with the allocator between calls anyway."""


class CallMemory:
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
        self._free: deque[CallMemory] = deque(maxlen=KEPT)

    def take(self, arena_bytes: int) -> CallMemory:
        """A frame that no other call has, with an arena of at least ``arena_bytes``."""
        try:
            frame = self._free.pop()
        except IndexError:
            frame = CallMemory(*self._shape)
        if frame.capacity < arena_bytes:
            frame.grow(arena_bytes)
        return frame

    def give(self, frame: CallMemory) -> None:
        """Give a frame back; the oldest kept one is dropped when there are enough."""
        self._free.append(frame)

    @property
    def kept_bytes(self) -> int:
        """Arena bytes held between calls."""
        return sum(frame.capacity for frame in list(self._free))


class ResultPool:
    """Arrays for results, on memory of earlier ones that nobody holds any more.

    The system clears every page of new memory when it is first written: for the caches that a step of a decoder
    returns, more time than copying them takes. An array's memory is free when its buffer's reference count says that
    only the pool is left, whatever held it in between: arrays, views of them, tensors, other libraries.

    A decoder's results are its next call's inputs, so two sets take turns. A call that needs a new buffer leaves no
    more kept than twice what it returns. Sizes are rounded up by up to a sixteenth: a growing sequence seldom needs a
    new buffer.
    """

    def __init__(self) -> None:
        self._guard = ForkLock()
        self._kept: dict[int, deque[_Buffer]] = {}
        self.kept_bytes = 0

    def arrays(self, outputs: Sequence[OutputPlan]) -> list[Array]:
        """An uninitialised array for each output; ``MemoryError`` or ``ValueError`` where there is no memory."""
        most = most_kept(outputs)
        return [self.array(o, most) for o in outputs]

    def array(self, output: OutputPlan, most: int) -> Array:
        """An uninitialised array for one output of a call for which at most ``most`` bytes are kept (``most_kept``)."""
        if output.n_bytes < RECYCLED_FROM:
            return new_array(output.shape, output.dtype, output.n_bytes)
        capacity = _rounded(output.n_bytes)
        with self._guard.lock:
            kept = self._kept.get(capacity, deque())
            for _ in range(len(kept)):
                buffer = kept[0]
                kept.rotate(-1)  # results are let go in the order in which they were made, so the first is likely free
                if _references(buffer) == _ALONE:
                    break
            else:
                buffer = self._new(capacity, most)
            return np.ndarray(output.shape, output.dtype, *buffer)  # while locked: its reference takes the buffer

    def _new(self, capacity: int, most: int) -> _Buffer:
        """A buffer that is kept; where more than ``most`` bytes would be, the others are left to who holds them."""
        if self.kept_bytes + capacity > most:
            self._kept.clear()
            self.kept_bytes = 0
        buffer = aligned_buffer(capacity)
        self._kept.setdefault(capacity, deque()).append(buffer)
        self.kept_bytes += capacity
        return buffer


def most_kept(outputs: Sequence[OutputPlan]) -> int:
    """Bytes that a pool keeps for calls with these results: twice what one call returns."""
    return 2 * sum(_rounded(o.n_bytes) for o in outputs)


_Buffer = tuple[Array, int]
"""Bytes, and where in them an array begins."""


def _rounded(n_bytes: int) -> int:
    """The next multiple of a sixteenth of the power of two that is not above ``n_bytes``."""
    step = 1 << max(n_bytes.bit_length() - 5, 0)
    return -(-n_bytes // step) * step


def _references(buffer: _Buffer) -> int:
    return sys.getrefcount(buffer[0])


_ALONE = _references((np.empty(0, np.uint8), 0))
"""The count of an array that only its tuple holds, as this version of Python counts."""
