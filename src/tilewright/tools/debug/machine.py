"""A program run step by step from Python: the same steps and native kernels as the entry function's, one at a time.

In: the parts of a build and a call's sizes. Out: memory as the kernels leave it, to look at between any two steps.
Not its business: what should be there (``tools.debug.steps``).

Whoever runs a program's steps here and gets what is right, and something else from the entry function, has an entry
function that is wrong.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.codegen.cpu.scratch import start_of
from tilewright.core.expr import Dim, Sym, evaluate, to_text
from tilewright.core.types import Array
from tilewright.partition.program import (
    Branch,
    Choice,
    Copy,
    ForParts,
    KernelCall,
    LetDim,
    Pointer,
    Program,
    Repeat,
    RequireSize,
    SetDim,
    Step,
)
from tilewright.runtime.artifact import ObjectImage
from tilewright.runtime.cpu.linker import link
from tilewright.runtime.errors import ExecutionError
from tilewright.runtime.manifest import ScratchSpec
from tilewright.runtime.values import aligned_buffer
from tilewright.tile.ir import Kernel

GUARD = 512
"""Bytes before and behind memory of our own that a kernel must not touch."""
POISON = 0xFF
"""What memory holds before it is written: NaN in every float, -1 or the largest in every integer."""


class GuardedMemory:
    """``n_bytes`` on a cache line between two guards, all poison."""

    def __init__(self, n_bytes: int) -> None:
        self._buffer, start = aligned_buffer(n_bytes + 2 * GUARD)
        self._buffer[:] = POISON
        self.bytes = self._buffer[start + GUARD : start + GUARD + n_bytes]
        self._guards = self._buffer[: start + GUARD], self._buffer[start + GUARD + n_bytes :]
        self.address = int(self._buffer.ctypes.data) + start + GUARD

    @staticmethod
    def of(array: Array) -> GuardedMemory:
        """A copy of an array's elements."""
        made = GuardedMemory(array.nbytes)
        made.bytes[:] = bytes_of(array)
        return made

    @property
    def is_intact(self) -> bool:
        """Has nobody written to the guards?"""
        return all(bool((g == POISON).all()) for g in self._guards)

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """The first elements, copied."""
        n = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self.bytes[:n].copy().view(dtype).reshape(shape)


def bytes_of(array: Array) -> Array:
    """An array's elements as a row of bytes."""
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def bytes_at(address: int, n_bytes: int) -> Array:
    """The bytes at an address, to read and to write."""
    if not n_bytes:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address))


class Native:
    """Kernels as callables: addresses of parameters, sizes, threads. ``is_intact``: none left its scratch so far."""

    def __init__(
        self, kernels: Mapping[str, Kernel], objects: Sequence[ObjectImage], scratch: Mapping[str, ScratchSpec]
    ) -> None:
        self._scratch = scratch
        self.is_intact = True
        self._library = link([o.data for o in objects], [o.name for o in objects])
        self._functions = {
            name: _signature(len(k.params), len(k.sizes))(self._library.addresses[name]) for name, k in kernels.items()
        }

    def __call__(self, name: str, addresses: Sequence[int], sizes: Sequence[int], threads: int) -> None:
        needs = self._scratch[name]
        memory, start = GuardedMemory(needs.n_bytes(threads)), start_of(needs, threads)
        memory.bytes[:start] = 0
        self._functions[name](*addresses, *sizes, threads, memory.address + start)
        self.is_intact &= memory.is_intact


def _signature(n_params: int, n_sizes: int) -> Any:
    sizes = [ctypes.c_int64] * n_sizes
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_params, *sizes, ctypes.c_int32, ctypes.c_void_p)


@dataclass(frozen=True)
class ProgramMemory:
    """Where a program's arguments and its arena are."""

    arguments: tuple[int, ...]
    arena: int


class Machine:
    """Runs steps; ``sizes`` are the dimensions known so far, which steps add to."""

    def __init__(self, native: Native, weights: Array, sizes: Mapping[Sym, int], threads: int) -> None:
        self.native, self.threads = native, threads
        self.weights = GuardedMemory.of(weights)
        self.sizes = dict(sizes)

    def size(self, d: Dim) -> int:
        """A dimension's value."""
        return evaluate(d, self.sizes)

    def address(self, p: Pointer, frame: ProgramMemory) -> int:
        """Where a pointer of a program points."""
        if p.base == "arg":
            return frame.arguments[self.size(p.offset)]
        return (self.weights.address if p.base == "weights" else frame.arena) + self.size(p.offset)

    def run(self, program: Program, frame: ProgramMemory) -> None:
        """All steps of a program."""
        for step in program.steps:
            self.step(step, frame)

    def step(self, step: Step, frame: ProgramMemory) -> None:
        """One step, those of its sub-programs included."""
        match step:
            case KernelCall():
                addresses = [self.address(p, frame) for p in step.args]
                self.native(step.kernel, addresses, [self.size(s) for s in step.sizes], self.threads)
            case Choice():
                self.step(step.taken(self.sizes), frame)
            case Copy():
                self._copy(self.address(step.source, frame), self.address(step.target, frame), self.size(step.n_bytes))
            case SetDim():
                self.sizes[step.symbol] = _integer_at(self.address(step.source, frame))
            case LetDim():
                self.sizes[step.symbol] = self.size(step.value)
            case Branch():
                self._branch(step, frame)
            case Repeat():
                self._repeat(step, frame)
            case ForParts():
                self._for_parts(step, frame)
            case RequireSize():
                if self.size(step.value) < 0:
                    raise ExecutionError(f"{to_text(step.value)} is below 0", remedy="check the values of the inputs")

    def _copy(self, source: int, target: int, n_bytes: int) -> None:
        bytes_at(target, n_bytes)[:] = bytes_at(source, n_bytes)

    def _branch(self, step: Branch, frame: ProgramMemory) -> None:
        is_true = bool(bytes_at(self.address(step.cond, frame), 1)[0])
        arguments = tuple(self.address(p, frame) for p in step.args)
        inner = ProgramMemory(arguments, self.address(step.scratch, frame))
        self.run(step.then_program if is_true else step.else_program, inner)
        for let in step.then_dims if is_true else step.else_dims:
            self.step(let, inner)

    def _repeat(self, step: Repeat, frame: ProgramMemory) -> None:
        """Carried values go to and fro between two buffers, as the entry function does it."""
        sizes = [self.size(c.n_bytes) for c in step.carried]
        pairs = [[self.address(p, frame) for p in c] for c in (step.cond_buffers, *(c.buffers for c in step.carried))]
        for c, (first, _), n in zip(step.carried, pairs[1:], sizes, strict=True):
            self._copy(self.address(c.start, frame), first, n)
        self._copy(self.address(step.cond, frame), pairs[0][0], 1)
        captures = [self.address(p, frame) for p in step.captures]
        scanned = [(self.address(p.place, frame), self.size(p.n_bytes)) for p in step.scanned]
        trips = _integer_at(self.address(step.trips, frame))
        iteration, scratch = self.address(step.iteration, frame), self.address(step.scratch, frame)
        i = 0
        while i < trips and bytes_at(pairs[0][0], 1)[0]:
            bytes_at(iteration, 8).view(np.int64)[0] = i
            firsts, seconds = [p[0] for p in pairs], [p[1] for p in pairs]
            appended = [address + i * n for address, n in scanned]
            self.run(step.body, ProgramMemory((iteration, *firsts, *captures, *seconds, *appended), scratch))
            pairs = [p[::-1] for p in pairs]
            i += 1
        for c, (first, _), n in zip(step.carried, pairs[1:], sizes, strict=True):
            self._copy(first, self.address(c.result, frame), n)
        bytes_at(self.address(step.count, frame), 8).view(np.int64)[0] = i

    def _for_parts(self, step: ForParts, frame: ProgramMemory) -> None:
        firsts = [(self.address(p.place, frame), self.size(p.n_bytes)) for p in step.args]
        scratch = self.address(step.scratch, frame)
        for i in range(step.n_parts):
            self.run(step.body, ProgramMemory(tuple(first + i * n for first, n in firsts), scratch))


def _integer_at(address: int) -> int:
    return int(bytes_at(address, 8).view(np.int64)[0])
