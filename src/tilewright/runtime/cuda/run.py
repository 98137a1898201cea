"""A program's steps, one after the other, on a stream.

In: a program, addresses, sizes. Out: work on the stream, and sizes that the data decided. Not its business: where
arguments come from (``model``), recording (``replay``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate

from tilewright.runtime.cuda.driver import Driver, DriverError, Extents
from tilewright.runtime.cuda.errors import GpuError
from tilewright.runtime.cuda.memory import ARGUMENT_ALIGNMENT, allocate, rounded
from tilewright.runtime.cuda.program import (
    CheckSizeStep,
    CheckStep,
    ChooseStep,
    CopyStep,
    DevicePlace,
    GpuEntry,
    GpuKernel,
    GpuProgram,
    GpuStep,
    LaunchStep,
    LoopStep,
    PartsStep,
    ReadSizeStep,
    Size,
    SizeStep,
)
from tilewright.runtime.errors import InputError

MAX_GRID: Extents = ((1 << 31) - 1, 65535, 65535)
"""Blocks along x, y and z that every NVIDIA GPU takes."""


class CheckFailed(Exception):
    """A check of the program does not hold; ``failure`` is its number."""

    def __init__(self, failure: int) -> None:
        self.failure = failure
        super().__init__(failure)


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel with the driver's handles of its entries."""

    kernel: GpuKernel
    functions: tuple[int, ...]


@dataclass
class DeviceRun:
    """One call: where everything lies, and what the symbols are. ``sizes`` grows as the data decide."""

    driver: Driver
    kernels: Sequence[LoadedKernel]
    stream: int
    args: Sequence[int]
    weights: int
    arena: int
    sizes: dict[str, int] = field(default_factory=dict)

    def program(self, program: GpuProgram) -> None:
        """Every step. ``GpuError`` names the kernel that the driver refused, ``CheckFailed`` a check."""
        for step in program.steps:
            self.step(step)

    def step(self, step: GpuStep) -> None:
        """One step."""
        match step:
            case LaunchStep():
                self._launch(step)
            case CopyStep():
                self._copy(step.source, step.target, self.size(step.n_bytes))
            case ReadSizeStep():
                self.sizes[step.symbol] = self._read_int(step.source)
            case SizeStep():
                self.sizes[step.symbol] = self.size(step.value)
            case ChooseStep():
                self._choose(step)
            case LoopStep():
                self._loop(step)
            case PartsStep():
                self._parts(step)
            case CheckStep():
                if not self._read_bool(self.at(step.cond)):
                    raise CheckFailed(step.failure)
            case CheckSizeStep():
                if self.size(step.value) < 0:
                    raise CheckFailed(step.failure)

    def size(self, size: Size) -> int:
        """A size under what the symbols are."""
        return size if isinstance(size, int) else evaluate_size(size, self.sizes)

    def at(self, place: DevicePlace) -> int:
        """The address of a place."""
        offset = self.size(place.offset)
        if place.base == "arg":
            return self.args[offset]
        return (self.weights if place.base == "weights" else self.arena) + offset

    # --- kernels and copies -----------------------------------------------------------------------------------------

    def _launch(self, step: LaunchStep) -> None:
        loaded = self.kernels[step.kernel]
        arguments = [self.at(p) for p in step.args] + [self.sizes[name] for name in loaded.kernel.sizes]
        for entry, function in zip(loaded.kernel.entries, loaded.functions, strict=True):
            x, y, z = (self.size(n) for n in entry.grid)
            if x > 0 and y > 0 and z > 0:  # there is nothing to do for an empty grid, which the driver refuses
                self._launch_entry(loaded.kernel, entry, function, (x, y, z), arguments)

    def _launch_entry(
        self, kernel: GpuKernel, entry: GpuEntry, function: int, grid: Extents, arguments: Sequence[int]
    ) -> None:
        if any(n > most for n, most in zip(grid, MAX_GRID, strict=True)):
            text = f"kernel {kernel.name} ({kernel.ops}) would need {grid} blocks, of which a GPU takes {MAX_GRID}"
            raise GpuError(text, remedy="use smaller inputs")
        try:
            self.driver.launch(function, grid, entry.block, entry.dynamic_shared_bytes, self.stream, arguments)
        except DriverError as error:
            text = f"kernel {kernel.name} ({kernel.ops}), {grid} blocks of {entry.block} threads: {error}"
            raise GpuError(text, call=error.call, status=error.status) from error

    def _copy(self, source: DevicePlace, target: DevicePlace, n_bytes: int) -> None:
        self._copy_at(self.at(source), self.at(target), n_bytes)

    def _copy_at(self, source: int, target: int, n_bytes: int) -> None:
        if n_bytes and source != target:
            self.driver.on_device(target, source, n_bytes, self.stream)

    # --- what the host looks at -------------------------------------------------------------------------------------

    def _read(self, address: int, n_bytes: int) -> bytes:
        room = ctypes.create_string_buffer(n_bytes)
        self.driver.to_host(ctypes.addressof(room), address, n_bytes, self.stream)
        self.driver.wait(self.stream)
        return room.raw

    def _read_int(self, place: DevicePlace) -> int:
        return int.from_bytes(self._read(self.at(place), 8), "little", signed=True)

    def _read_bool(self, address: int) -> bool:
        return self._read(address, 1) != b"\0"

    def _write_int(self, address: int, value: int) -> None:
        room = ctypes.create_string_buffer(value.to_bytes(8, "little", signed=True), 8)
        self.driver.to_device(address, ctypes.addressof(room), 8, self.stream)

    # --- control flow -----------------------------------------------------------------------------------------------

    def _sub(self, program: GpuProgram, args: Sequence[int], scratch: int) -> None:
        """A program within: its arena is a part of this one's, its sizes are the same table."""
        replace(self, args=args, arena=scratch).program(program)

    def _choose(self, step: ChooseStep) -> None:
        which = 0 if self._read_bool(self.at(step.cond)) else 1
        self._sub(step.programs[which], [self.at(p) for p in step.args], self.at(step.scratch))
        for size in step.sizes[which]:
            self.step(size)

    def _loop(self, step: LoopStep) -> None:
        """Carried values ping-pong between two buffers, of which one is read and the other written."""
        for c in step.carried:
            self._copy(c.start, c.buffers[0], self.size(c.n_bytes))
        self._copy(step.cond, step.cond_buffers[0], 1)
        pairs = [step.cond_buffers, *(c.buffers for c in step.carried)]
        read, written = [self.at(p[0]) for p in pairs], [self.at(p[1]) for p in pairs]
        captures = [self.at(p) for p in step.captures]
        # What a turn decides must not move what lies outside of it.
        scanned = [(self.at(p), self.size(n)) for p, n in step.scanned]
        ends = [(self.at(c.result), self.size(c.n_bytes)) for c in step.carried]
        iteration, scratch, count = self.at(step.iteration), self.at(step.scratch), self.at(step.count)
        trips, turn = self._read_int(step.trips), 0
        self._write_int(iteration, 0)
        with self._aligned([n_bytes for _, n_bytes in scanned]) as rooms:
            while turn < trips and self._read_bool(read[0]):
                parts = [start + turn * n_bytes for start, n_bytes in scanned]
                self._sub(step.body, [iteration, *read, *captures, *written, *(rooms or parts)], scratch)
                for room, part, (_, n_bytes) in zip(rooms, parts, scanned, strict=False):
                    self._copy_at(room, part, n_bytes)
                read, written = written, read
                turn += 1
                self._write_int(iteration, turn)
        for (result, n_bytes), last in zip(ends, read[1:], strict=True):
            self._copy_at(last, result, n_bytes)
        self._write_int(count, turn)

    def _parts(self, step: PartsStep) -> None:
        firsts, sizes = [self.at(p) for p, _ in step.args], [self.size(n) for _, n in step.args]
        scratch, n = self.at(step.scratch), step.n_operands
        with self._aligned(sizes) as rooms:
            for turn in range(step.n_parts):
                parts = [first + turn * n_bytes for first, n_bytes in zip(firsts, sizes, strict=True)]
                own = [room if size else part for room, part, size in zip(rooms or parts, parts, sizes, strict=True)]
                for part, room, size in zip(parts[:n], own[:n], sizes[:n], strict=True):
                    self._copy_at(part, room, size)
                self._sub(step.body, own, scratch)
                for room, part, size in zip(own[n:], parts[n:], sizes[n:], strict=True):
                    self._copy_at(room, part, size)

    @contextmanager
    def _aligned(self, n_bytes: Sequence[int]) -> Iterator[list[int]]:
        """Rooms for what each turn has a part of, where kernels could not take that in its place.

        A turn's part may begin anywhere, and kernels rely on alignment. None where all parts are aligned.
        """
        if all(n % ARGUMENT_ALIGNMENT == 0 for n in n_bytes):
            yield []
            return
        offsets = list(accumulate(map(rounded, n_bytes), initial=0))
        start = allocate(self.driver, max(offsets[-1], 1), "the parts of a loop")
        try:
            yield [start + at for at in offsets[:-1]]
        finally:
            self.driver.wait(self.stream)
            self.driver.free(start)


def evaluate_size(size: Size, sizes: Mapping[str, int]) -> int:
    """A size's value."""
    if isinstance(size, int):
        return size
    try:
        return size.value(sizes)
    except ZeroDivisionError as e:
        given = ", ".join(f"{name} is {sizes[name]}" for name in sorted(size.symbols))
        raise InputError(f"{given}: the size {size.text} divides by 0", remedy="pass other sizes") from e
