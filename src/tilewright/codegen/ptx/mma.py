"""Matrix instructions of a warp: ``mma.sync`` of NVIDIA's GPUs since compute capability 8.0.

In: a shape of ``target.matrices``. Out: how LLVM calls its instruction.
Not its business: emitting it (``warps``), blocks, tiles and shared memory (the schedule's), ``wgmma`` of later GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.codegen.llvm.writer import Val
from tilewright.core import types
from tilewright.core.types import DType

if TYPE_CHECKING:
    from tilewright.codegen.ptx.arith import PtxArith


@dataclass(frozen=True)
class MatrixInstruction:
    """An instruction's template. ``operand`` is the type of a register of the two matrices, of two elements."""

    name: str
    dtype: DType
    operand: str

    def operands(self, arith: PtxArith, words: list[Val]) -> list[str]:
        """The registers of a factor as the call has them, of words of two elements."""
        if self.operand == "i32":
            return [w.text for w in words]
        return [arith.convert("bitcast", w, "i32", self.operand).text for w in words]

    def multiply(self, arith: PtxArith, left: list[str], right: list[str], sums: list[Val]) -> list[Val]:
        """Emit LLVM's call on registers, whose result is a structure of four f32: the new sums."""
        arguments = [f"{self.operand} {v}" for v in (*left, *right)] + [f"float {v.text}" for v in sums]
        kind, writer = "{float, float, float, float}", arith.writer
        done = writer.fresh(f"call {kind} @llvm.nvvm.mma.{self.name}({', '.join(arguments)})")
        return [Val(writer.fresh(f"extractvalue {kind} {done}, {k}"), writer.level, 0) for k in range(len(sums))]


INSTRUCTIONS = (
    MatrixInstruction("m16n8k16.row.col.bf16", types.bf16, "i32"),
    MatrixInstruction("m16n8k16.row.col.f32.f32", types.f16, "<2 x half>"),
)
