"""Loops that only CPUs run in their own way: the thread pool's, and dot products; and questions whether to go on.

In: ``For`` statements that ``codegen.llvm.loops`` asks about. Out: calls of the pool, instructions, polls.
Not its business: every other loop.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from tilewright.codegen.cpu import dot, parallel, polls
from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.lanes import Lanes
from tilewright.codegen.llvm.loops import Loops
from tilewright.core.expr import Dim
from tilewright.tile.ir import For, Kind

if TYPE_CHECKING:
    from tilewright.codegen.cpu.function import CpuFunction


class CpuLoops(Loops):
    """Emits the loops of one function for a CPU."""

    fn: CpuFunction

    def own(self, f: For, extent: Dim, ctx: Lanes) -> bool:
        """Share a parallel loop out among threads; put a group of products into one instruction.

        Raises :class:`CodegenError` for loops of a GPU's grid, which as serial ones would hide that a schedule is for
        another machine.
        """
        match f.loop.kind:
            case Kind.PARALLEL if self.fn.module.target.has_threads and not self.fn.in_task and not ctx.syms:
                parallel.emit(self.fn, f, extent)
                return True
            case Kind.DOT:
                return dot.emit(self.fn, f, extent, ctx)
            case Kind.MATRIX if self.fn.tiles.matrices:
                self.fn.tiles.emit(f)
                return True
            case Kind.BLOCK | Kind.THREAD | Kind.WARP as kind:
                rule = f"{f.loop.sym} is a {kind.value} loop, of a GPU's grid, and a CPU has none"
                raise CodegenError(rule, remedy="make it parallel or serial, or compile for a GPU")
        return False

    def serial(self, f: For, extent: Dim, ctx: Lanes, window: tuple[Dim, Dim] | None = None) -> None:
        """A loop as others have it, with the matrix registers that it needs."""
        with self.fn.tiles.around(f) if self.fn.tiles.matrices else nullcontext():
            super().serial(f, extent, ctx, window)

    def _body(self, f: For, ctx: Lanes) -> None:
        with self.fn.tiles.within(f) if self.fn.tiles.matrices else nullcontext():
            super()._body(f, ctx)

    def end_of_turn(self, f: For, turn: str) -> None:
        """Ask whether to go on."""
        # The loop's body is open here, so the outermost loop's level is 1; joined loops are shared as if they were one.
        is_inner = self.fn.writer.level > 1 and f.loop.kind is not Kind.PARALLEL
        if self.fn.has_polls and polls.asks(self.fn, f, is_inner=is_inner):
            polls.emit(self.fn, f, turn)
