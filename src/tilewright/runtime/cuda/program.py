"""A model for a GPU as plain records: kernels, the steps that launch them, sizes as expressions.

In: what the compiler made. Out: records that ``run`` goes through.
Not its business: manifests (``runtime.manifest``), which are the same for every kind of processor.

It is ``partition.program`` without the compiler: places and sizes are evaluated by ``runtime.expressions``. A program's
own arguments are its inputs, then its outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.runtime.expressions import ParsedExpr

Size: TypeAlias = int | ParsedExpr


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """An address: argument number ``offset``, or ``offset`` bytes into the weights or the arena."""

    base: Literal["arg", "weights", "arena"]
    offset: Size


@dataclass(frozen=True, slots=True)
class GpuEntry:
    """One grid of a kernel: its name in the PTX, the extents of grid and block, shared memory to ask for."""

    name: str
    grid: tuple[Size, Size, Size]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """A kernel: PTX with an entry for each of its grids, which run in order on the same arguments.

    ``ops`` says of the model's nodes what it computes, for errors. ``sizes`` are the symbols behind the addresses.
    """

    name: str
    ops: str
    ptx: str
    entries: tuple[GpuEntry, ...]
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """Run a kernel, by its number."""

    kernel: int
    args: tuple[DevicePlace, ...]


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Copy bytes between two places that do not overlap."""

    source: DevicePlace
    target: DevicePlace
    n_bytes: Size


@dataclass(frozen=True, slots=True)
class ReadSizeStep:
    """A symbol that the data decided: the ``i64`` at a place."""

    symbol: str
    source: DevicePlace


@dataclass(frozen=True, slots=True)
class SizeStep:
    """A symbol that others decide."""

    symbol: str
    value: Size


@dataclass(frozen=True, slots=True)
class ChooseStep:
    """Run one of two programs, by the bool at ``cond``; each with sizes that it decides."""

    cond: DevicePlace
    programs: tuple[GpuProgram, GpuProgram]
    sizes: tuple[tuple[SizeStep, ...], tuple[SizeStep, ...]]
    args: tuple[DevicePlace, ...]
    scratch: DevicePlace


@dataclass(frozen=True, slots=True)
class CarriedValue:
    """A value that one turn hands to the next: its start, two buffers that swap, its end, its size."""

    start: DevicePlace
    buffers: tuple[DevicePlace, DevicePlace]
    result: DevicePlace
    n_bytes: Size


@dataclass(frozen=True, slots=True)
class LoopStep:
    """Run a program while its number is below ``trips`` and the bool at ``cond`` holds.

    Its arguments: number, bool, carried values, captures; then bool, carried values, and for each of ``scanned`` (a
    place, and bytes for each turn) where this turn's part lies. ``count`` receives the number of turns.
    """

    trips: DevicePlace
    cond: DevicePlace
    cond_buffers: tuple[DevicePlace, DevicePlace]
    body: GpuProgram
    carried: tuple[CarriedValue, ...]
    captures: tuple[DevicePlace, ...]
    scanned: tuple[tuple[DevicePlace, Size], ...]
    iteration: DevicePlace
    count: DevicePlace
    scratch: DevicePlace


@dataclass(frozen=True, slots=True)
class PartsStep:
    """Run a program ``n_parts`` times; of each of ``args`` a turn has the part so many bytes behind the last turn's.

    The first ``n_operands`` are read, the others written; with 0 bytes every turn has the same.
    """

    n_parts: int
    body: GpuProgram
    args: tuple[tuple[DevicePlace, Size], ...]
    n_operands: int
    scratch: DevicePlace


@dataclass(frozen=True, slots=True)
class CheckStep:
    """End the call with a failure's number unless the bool at ``cond`` holds."""

    cond: DevicePlace
    failure: int


@dataclass(frozen=True, slots=True)
class CheckSizeStep:
    """End the call with a failure's number unless ``value`` is 0 or more."""

    value: Size
    failure: int


GpuStep: TypeAlias = (
    "LaunchStep | CopyStep | ReadSizeStep | SizeStep | ChooseStep | LoopStep | PartsStep | CheckStep | CheckSizeStep"
)
WAITS = (ReadSizeStep, ChooseStep, LoopStep, PartsStep, CheckStep)
"""Steps for which the host must see what the GPU has written, or may take memory and give it back."""


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """Steps in order."""

    steps: tuple[GpuStep, ...]

    @property
    def waits(self) -> bool:
        """Does the host have to look at results on the way? Such a program can't be recorded."""
        return any(isinstance(step, WAITS) for step in self.steps)


@dataclass(frozen=True, slots=True)
class GpuCode:
    """A whole model's code: its kernels, the program, the arena's bytes, which instruction set it is for."""

    arch: str
    kernels: tuple[GpuKernel, ...]
    program: GpuProgram
    arena_bytes: Size

    def entries(self) -> Iterator[tuple[GpuKernel, GpuEntry]]:
        """Every grid with its kernel."""
        for kernel in self.kernels:
            for entry in kernel.entries:
                yield kernel, entry
