"""Operations that a GPU has in one instruction where ``codegen.llvm.arith`` spells them out.

In: values. Out: values. Not its business: every other operation.
"""

from __future__ import annotations

from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.writer import Val

_EXTREMES = {"min": "minimum", "max": "maximum"}


class PtxArith(Arith):
    """Operations of one thread."""

    def bfloat_bits(self, v: Val) -> Val:
        """``cvt.rn.bf16.f32``, of pairs where there are several; it keeps denormals, unlike that of AVX512."""
        return self.convert("bitcast", self.convert("fptrunc", v, "float", "bfloat"), "bfloat", "i16")

    def _extreme(self, op: str, element: str, a: Val, b: Val) -> Val:
        """``min.NaN.f32``: NaN if either is. Double precision has no such instruction."""
        return self.call(_EXTREMES[op], element, a, b) if element == "float" else super()._extreme(op, element, a, b)
