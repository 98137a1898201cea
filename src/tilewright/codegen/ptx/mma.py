"""Matrix instructions of a warp: ``mma.sync`` of NVIDIA's GPUs since compute capability 8.0.

In: a shape of ``target.matrices``. Out: how LLVM calls its instruction.
Not its business: emitting it (``warps``), blocks, tiles and shared memory (the schedule's), ``wgmma`` of later GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core import types
from tilewright.core.types import DType
from tilewright.target.matrices import MatrixShape, shape_for


@dataclass(frozen=True)
class MatrixInstruction:
    """An instruction's template. ``operand`` is the type of a register of the two matrices, of two elements."""

    name: str
    dtype: DType
    operand: str

    def call(self, left: list[str], right: list[str], sums: list[str]) -> str:
        """LLVM's call on registers; its result is a structure of four f32."""
        arguments = [f"{self.operand} {v}" for v in (*left, *right)] + [f"float {v}" for v in sums]
        return f"call {{float, float, float, float}} @llvm.nvvm.mma.{self.name}({', '.join(arguments)})"


INSTRUCTIONS = (
    MatrixInstruction("m16n8k16.row.col.bf16", types.bf16, "i32"),
    MatrixInstruction("m16n8k16.row.col.f32.f32", types.f16, "<2 x half>"),
)


def instruction_for(dtype: DType, extents: tuple[int, ...]) -> tuple[MatrixShape, MatrixInstruction] | None:
    """The shape and the instruction for operands of a dtype and loops of these extents."""
    shape = shape_for(dtype, extents)
    found = next((x for x in INSTRUCTIONS if x.dtype is dtype), None)
    return (shape, found) if shape is not None and found is not None else None
