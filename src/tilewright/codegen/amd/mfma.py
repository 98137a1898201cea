"""Matrix instructions of AMD's GPUs: ``v_mfma`` of wavefronts of 64 lanes, ``v_wmma`` of those of 32.

In: words of two elements, f32 sums. Out: LLVM's calls. Not its business: which lane holds what (``target.matrices``),
emitting loads of the operands (``codegen.ptx.warps``).

By the LLVM project's tests of its intrinsics: operands and sums are vectors, a lane's elements in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.codegen.llvm.writer import Val
from tilewright.core import types
from tilewright.target.matrices import MFMA_SHAPES, WMMA_SHAPES, MatrixShape

if TYPE_CHECKING:
    from tilewright.codegen.ptx.arith import PtxArith


@dataclass(frozen=True)
class VectorInstruction:
    """An instruction's template: the element of its operands, and what follows them in the call."""

    name: str
    element: str
    last: str = ""

    def operands(self, arith: PtxArith, words: list[Val]) -> list[str]:
        """A factor's words as one vector, with its type."""
        packed, n = arith.in_lanes(words, "i32"), len(words)
        kind = f"<{2 * n} x {self.element}>"
        return [f"{kind} {arith.writer.pure(f'bitcast <{n} x i32> {packed.text} to {kind}', packed.level)}"]

    def multiply(self, arith: PtxArith, left: list[str], right: list[str], sums: list[Val]) -> list[Val]:
        """Emit the call: the new sums."""
        writer, n = arith.writer, len(sums)
        old = arith.in_lanes(sums, "float")
        operands = ", ".join([*left, *right, f"<{n} x float> {old.text}"]) + self.last
        made = Val(writer.fresh(f"call <{n} x float> @llvm.amdgcn.{self.name}({operands})"), writer.level, n)
        return [arith.extract(made, "float", k) for k in range(n)]


_MODIFIERS = ", i32 0, i32 0, i32 0"
"""No broadcast of blocks, and no exchange of lanes."""
_MFMA = {
    types.bf16: VectorInstruction("mfma.f32.16x16x16bf16.1k", "i16", _MODIFIERS),
    types.f16: VectorInstruction("mfma.f32.16x16x16f16", "half", _MODIFIERS),
}
_WMMA = {
    types.bf16: VectorInstruction("wmma.f32.16x16x16.bf16.v8f32.v16i16", "i16"),
    types.f16: VectorInstruction("wmma.f32.16x16x16.f16.v8f32.v16f16", "half"),
}
INSTRUCTIONS: Mapping[MatrixShape, VectorInstruction] = {
    **{shape: _MFMA[shape.dtype] for shape in MFMA_SHAPES},
    **{shape: _WMMA[shape.dtype] for shape in WMMA_SHAPES},
}
