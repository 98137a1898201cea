"""Memory of calls: one frame for each call that is running, a few kept for the next ones; and memory of results.

In: the sizes a call needs. Out: frames with argument tables and memory, for kernels' scratch and the arena; arrays for
results. Not its business: what is in them.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import sys
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.once import ForkLock, once
from tilewright.runtime.plan import OutputPlan
from tilewright.runtime.shapes import Shape
from tilewright.runtime.values import Array, aligned_buffer, new_array, to_tensor

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
    """Arrays and tensors for results, on memory of earlier ones that nobody holds any more.

    The system clears every page of new memory when it is first written: for the caches that a step of a decoder
    returns, more time than copying them takes. A result's memory is free when the reference counts of what owns it say
    that only the pool is left, whatever held it in between: arrays, views of them, tensors, other libraries.

    Arrays lie in NumPy's memory and tensors in PyTorch's, so that either library finds what it knows of its own: a
    tensor in NumPy's memory could not be made larger (``Tensor.resize_``, ``out=``).

    A decoder's results are its next call's inputs, so two sets take turns. A call that needs a new buffer leaves no
    more kept than twice what it returns. Sizes are rounded up by up to a sixteenth: a growing sequence seldom needs a
    new buffer.
    """

    def __init__(self) -> None:
        self._guard = ForkLock()
        self._kept: dict[tuple[_Blocks, int], deque[Any]] = {}
        self.kept_bytes = 0

    def results(self, outputs: Sequence[OutputPlan], tensors: Collection[int] = ()) -> list[Any]:
        """An uninitialised result for each output: those with the indices ``tensors`` as such, the others as arrays.

        ``MemoryError`` or ``ValueError`` where there is no memory.
        """
        most = most_kept(outputs)
        return [self.tensor(o, most) if k in tensors else self.array(o, most) for k, o in enumerate(outputs)]

    def array(self, output: OutputPlan, most: int) -> Array:
        """An uninitialised array for one output of a call for which at most ``most`` bytes are kept (``most_kept``)."""
        if output.n_bytes < RECYCLED_FROM:
            return new_array(output.shape, output.dtype, output.n_bytes)
        with self._guard.lock:  # until the result's reference takes the buffer
            return np.ndarray(output.shape, output.dtype, *self._block(_BUFFERS, output, most))

    def tensor(self, output: OutputPlan, most: int) -> Any:
        """The same as a PyTorch tensor."""
        torch, dtype = _torch(), _tensor_dtype(output.dtype)
        if torch is None or dtype is None or torch.n_modes():  # a mode takes part in whatever is done to tensors
            return to_tensor(self.array(output, most))
        try:
            if output.n_bytes < RECYCLED_FROM:
                return torch.empty_strided(output.shape, _dense(output.shape), dtype)
            with self._guard.lock:
                storage = self._block(_STORAGES, output, most)[0]
                return torch.empty_strided((0,), (1,), dtype).set_(storage, 0, output.shape)
        except RuntimeError as error:  # which is how PyTorch says that there is no memory
            raise MemoryError(str(error)) from error

    def _block(self, kind: _Blocks, output: OutputPlan, most: int) -> tuple[Any, int]:
        """Memory for an output that only the pool holds."""
        capacity = _rounded(output.n_bytes)
        kept = self._kept.get((kind, capacity), deque())
        for _ in range(len(kept)):
            block: tuple[Any, int] = kept[0]
            kept.rotate(-1)  # results are let go in the order in which they were made, so the first is likely free
            if sys.getrefcount(block[0]) != _ALONE or not kind.is_free(block):
                continue
            if kind.is_as_made(block, capacity):
                return block
            kept.pop()
            self.kept_bytes -= capacity
        return self._new(kind, capacity, most)

    def _new(self, kind: _Blocks, capacity: int, most: int) -> tuple[Any, int]:
        """A block that is kept; where more than ``most`` bytes would be, the others are left to who holds them."""
        if capacity > sys.maxsize:  # a library has words of its own for a size that is no address any more
            raise MemoryError(f"{capacity} bytes are more than an address can tell apart")
        if self.kept_bytes + capacity > most:
            self._kept.clear()
            self.kept_bytes = 0
        block = kind.make(capacity)
        self._kept.setdefault((kind, capacity), deque()).append(block)
        self.kept_bytes += capacity
        return block


def new_tensor(shape: Shape, dtype: np.dtype[Any]) -> tuple[Callable[..., Any], Shape, Shape, Any] | None:
    """A function of three arguments that makes an uninitialised tensor in this machine's memory, and these; None where
    this PyTorch has no such function."""
    torch = _torch()
    return None if torch is None else (torch.empty_strided, shape, _dense(shape), _tensor_dtype(dtype))


def _dense(shape: Shape) -> Shape:
    """The strides of a dense tensor."""
    return tuple(itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1))[::-1][: len(shape)]


class _TensorFunctions(NamedTuple):
    """Functions of PyTorch: TorchInductor's own for its results, which no mode changes and which takes a third of the
    time of ``torch.empty``; how many modes there are; how many hold a storage, by its address."""

    empty_strided: Callable[..., Any]
    n_modes: Callable[[], int]
    n_holders: Callable[[int], int]


@once
def _torch() -> _TensorFunctions | None:
    """None where this PyTorch lacks one of them: PyTorch promises none."""
    inner = sys.modules["torch"]._C
    try:
        guards = inner._dynamo.guards
        return _TensorFunctions(guards._empty_strided_cpu, inner._len_torch_dispatch_stack, inner._storage_Use_Count)
    except AttributeError:
        return None


_tensor_dtypes: dict[np.dtype[Any], Any] = {}


def _tensor_dtype(dtype: np.dtype[Any]) -> Any:
    """PyTorch's dtype of the same name, or None; looked up once, as NumPy makes up a name each time."""
    try:
        return _tensor_dtypes[dtype]
    except KeyError:
        return _tensor_dtypes.setdefault(dtype, getattr(sys.modules["torch"], dtype.name, None))


def most_kept(outputs: Sequence[OutputPlan]) -> int:
    """Bytes that a pool keeps for calls with these results: twice what one call returns."""
    return 2 * sum(_rounded(o.n_bytes) for o in outputs)


class _Blocks(NamedTuple):
    """A library's memory. ``make`` gives an object that owns so many bytes, and where in it, or at which address, they
    begin; ``is_free`` says of such a block that nothing but that object holds it, and ``is_as_made`` of a free one that
    no earlier holder has left it as something else."""

    make: Callable[[int], tuple[Any, int]]
    is_free: Callable[[tuple[Any, int]], bool]
    is_as_made: Callable[[tuple[Any, int], int], bool]


def _new_storage(n_bytes: int) -> tuple[Any, int]:
    torch = sys.modules["torch"]
    storage = torch.empty(n_bytes, dtype=torch.uint8, device="cpu").untyped_storage()
    return storage, storage.data_ptr()


def _is_free_storage(block: tuple[Any, int]) -> bool:
    """Tensors hold what their storage's object stands for."""
    torch = _torch()
    return torch is not None and torch.n_holders(block[0]._cdata) == 1


def _is_storage_as_made(block: tuple[Any, int], n_bytes: int) -> bool:
    """The owner of a tensor may have had its storage resized, moved to where other processes see it
    (``share_memory_``), or made one that can't be resized any more (``numpy``)."""
    storage, address = block
    return bool(storage.data_ptr() == address and storage.nbytes() == n_bytes and storage.resizable())


_BUFFERS = _Blocks(aligned_buffer, lambda block: True, lambda block, n_bytes: True)
_STORAGES = _Blocks(_new_storage, _is_free_storage, _is_storage_as_made)


def _rounded(n_bytes: int) -> int:
    """The next multiple of a sixteenth of the power of two that is not above ``n_bytes``."""
    step = 1 << max(n_bytes.bit_length() - 5, 0)
    return -(-n_bytes // step) * step


def _count_alone() -> int:
    block = np.empty(0, np.uint8), 0
    return sys.getrefcount(block[0])


_ALONE = _count_alone()
"""The count of an object that only its block holds, as this version of Python counts."""
