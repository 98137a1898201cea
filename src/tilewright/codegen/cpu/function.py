"""A kernel's function for CPUs: what it adds to ``codegen.llvm.function``.

In: statements of the tile IR. Out: a ``define`` with its body, tasks of the thread pool beside it.
Not its business: what all processors do alike (``codegen.llvm``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.cpu.loops import CpuLoops
from tilewright.codegen.cpu.scratch import Locals
from tilewright.codegen.cpu.tiles import Tiles
from tilewright.codegen.llvm.function import KernelFunction, KernelModule
from tilewright.codegen.llvm.lanes import Lanes
from tilewright.core.compute import Buffer
from tilewright.target.target import Target
from tilewright.tile.ir import Fold, Stmt, Store, Update


@dataclass
class CpuModule(KernelModule):
    """What the functions of one kernel share: those of the kernel, of its tasks, and of parts of it."""

    target: Target
    n_tasks: int = 0
    task_bytes: int = 0
    """Scratch that a task needs, at most."""
    has_part: bool = False
    """Is a function for parts of the kernel still to be made, to run beside other kernels?"""


class CpuFunction(KernelFunction):
    """Emits statements into one function: a kernel's, or in a task a part of it that runs on one thread."""

    module: CpuModule

    def __init__(self, module: CpuModule, in_task: bool = False, has_polls: bool = False) -> None:
        self.in_task = in_task
        self.has_polls = has_polls
        self.locals = Locals()
        super().__init__(module)
        self.tiles = Tiles(self)

    def new_loops(self) -> CpuLoops:
        """Loops with threads and dot products."""
        return CpuLoops(self)

    def statement(self, s: Stmt, ctx: Lanes) -> None:
        """Emit one statement; what it writes, no matrix register holds any more."""
        if isinstance(s, Store | Update | Fold):
            self.tiles.forget()
        super().statement(s, ctx)

    def allocate(self, buffer: Buffer, name: str, n_elements: int) -> None:
        """Memory on the stack, or in the scratch that the caller brings."""
        offset = self.locals.place(n_elements * buffer.dtype.n_bytes)
        if offset is None:
            super().allocate(buffer, name, n_elements)
        else:
            self.writer.entry.append(f"  {name} = getelementptr i8, ptr %scratch, i64 {offset}")
