"""Block and thread loops, whose iterations the GPU runs beside each other.

In: ``For`` statements that ``codegen.llvm.loops`` asks about. Out: the body, once, for the thread at hand.
Not its business: which axis a loop has (``launch``), every other loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.lanes import Lanes
from tilewright.codegen.llvm.loops import Loops
from tilewright.codegen.ptx import warps
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.tile.ir import For, Kind

if TYPE_CHECKING:
    from tilewright.codegen.ptx.function import PtxFunction


class PtxLoops(Loops):
    """Emits the loops of one thread."""

    fn: PtxFunction

    def own(self, f: For, extent: Dim, ctx: Lanes) -> bool:
        """A block or thread loop's variable is a number that the GPU gives; its body runs once."""
        if f.loop.kind is Kind.WARP:
            warps.emit(self.fn, f)
            return True
        if f.loop.kind not in (Kind.BLOCK, Kind.THREAD):
            return False
        index = self.fn.indices.get(f.loop.sym)
        if index is None or ctx.syms:
            raise CodegenError(f"{f.loop.sym.name}: a {f.loop.kind.value} loop inside of a thread")
        most = self.fn.space.limit(f.loop.extent)
        self.fn.space.bind_run(f.loop.sym, index.text, index.level, (0, None if most is None else most - 1))
        # No block is launched beyond the extent, and no block is empty, from which guards inside may follow.
        mark = self.fn.space.assume([] if is_known(extent) else [extent - 1 - f.loop.sym])
        self._body(f, ctx)
        self.fn.space.release(mark)
        self.fn.space.unbind(f.loop.sym)
        return True
