"""Kernels of a model for a GPU: schedules of grids, what the CPU runs in their place, and their text.

In: computations, a ``Gpu``. Out: ``Scheduled`` kernels in their flat form, or turned into what the CPU runs; text of a
kernel. Not its business: which kernels a model has (``kernels``), the program around them (``gpu``).

Most compiles are for CPUs, so this file and all that it needs are loaded only where a GPU is the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.choose.default import OnBroken, Scheduled
from tilewright.choose.gpu import schedule_for_gpu, schedule_for_gpu_by
from tilewright.codegen.gpu import compile_kernel, emit
from tilewright.partition.computation import GroupComputation
from tilewright.target.gpu import Gpu
from tilewright.tile.emulate import emulated
from tilewright.tile.flatten import flatten
from tilewright.tile.ir import Kernel
from tilewright.tile.schedule.book import Line
from tilewright.tile.verify import verify


@dataclass(frozen=True)
class GpuKernels:
    """How a builder makes kernels for ``gpu``; where it ``emulates``, the CPU runs them."""

    gpu: Gpu
    emulates: bool
    on_broken: OnBroken
    verifies: bool

    def scheduled(self, made: GroupComputation, name: str) -> Scheduled:
        """The default schedule."""
        return self._ready(schedule_for_gpu(made.computation, self.gpu, made.constants, name, self.on_broken))

    def scheduled_by(self, made: GroupComputation, name: str, lines: Sequence[Line]) -> Scheduled:
        """A file's schedule; ``ScheduleFileError`` names the step that is not legal."""
        return self._ready(schedule_for_gpu_by(made.computation, self.gpu, made.constants, name, lines))

    def llvm_text(self, kernel: Kernel) -> str:
        """LLVM text of a flat kernel; raises what code generation says of one that somebody scheduled by hand."""
        return emit(kernel, self.gpu).text

    def assembly(self, kernel: Kernel) -> str:
        """PTX of a flat kernel, or what its maker has in place of that."""
        return compile_kernel(kernel, self.gpu).assembly

    def _ready(self, found: Scheduled) -> Scheduled:
        """The same in the form that runs, checked on the way: few look at these forms otherwise."""
        flat = flatten(found.kernel)
        if self.verifies:
            verify(found.kernel)
            verify(flat)
        return replace(found, kernel=emulated(flat) if self.emulates else flat)
