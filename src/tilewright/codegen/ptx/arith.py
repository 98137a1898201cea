"""Operations that a GPU has in one instruction where ``codegen.llvm.arith`` spells them out.

In: values. Out: values. Not its business: every other operation.
"""

from __future__ import annotations

from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.types import VALUE_TYPE
from tilewright.codegen.llvm.writer import Val
from tilewright.core import types
from tilewright.core.types import DType

FUNCTIONS = frozenset(["exp2", "exp2_flushed"])
"""Functions of f32 that the GPU has: ``ex2.approx`` is within 2 ULP. Subnormal results take three instructions more."""
_EXTREMES = {"min": "minimum", "max": "maximum"}


class PtxArith(Arith):
    """Operations of one thread."""

    def bfloat_bits(self, v: Val) -> Val:
        """``cvt.rn.bf16.f32``, of pairs where there are several; it keeps denormals, unlike that of AVX512."""
        return self.convert("bitcast", self.convert("fptrunc", v, "float", "bfloat"), "bfloat", "i16")

    def _float_unary(self, op: str, dtype: DType, a: Val) -> Val:
        """``ex2.approx.f32``, which is what LLVM makes of its own function, or ``ex2.approx.ftz.f32``."""
        if op not in FUNCTIONS or dtype is not types.f32:
            return super()._float_unary(op, dtype, a)
        if op == "exp2" or a.lanes:
            return self.call("exp2", VALUE_TYPE[dtype], a)
        return Val(self.writer.pure(f"call float @llvm.nvvm.ex2.approx.ftz.f(float {a.text})", a.level), a.level, 0)

    def _extreme(self, op: str, element: str, a: Val, b: Val) -> Val:
        """``min.NaN.f32``: NaN if either is. Double precision has no such instruction."""
        return self.call(_EXTREMES[op], element, a, b) if element == "float" else super()._extreme(op, element, a, b)
