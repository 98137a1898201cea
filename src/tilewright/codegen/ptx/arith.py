"""Operations that a GPU has in one instruction where ``codegen.llvm.arith`` spells them out.

In: values. Out: values. Not its business: every other operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.types import VALUE_TYPE, vector
from tilewright.codegen.llvm.writer import Val, Writer
from tilewright.codegen.ptx.dialect import Dialect
from tilewright.codegen.ptx.instructions import ThreadInstructions
from tilewright.core import types
from tilewright.core.types import DType

FUNCTIONS = frozenset(["exp2", "exp2_flushed", "reciprocal_flushed"])
"""Functions of f32 that the GPU has: ``ex2.approx`` is within 2 ULP, ``rcp.approx`` within 1. Subnormal results of the
former take three instructions more; a quotient takes a branch to a function."""
_EXTREMES = {"min": "minimum", "max": "maximum"}


class PtxArith(Arith):
    """Operations of one thread, in a maker's ``dialect``."""

    def __init__(self, writer: Writer, target: ThreadInstructions, dialect: Dialect) -> None:
        super().__init__(writer, target)
        self.dialect = dialect
        self.n_lanes = target.gpu.warp_lanes

    def bfloat_bits(self, v: Val) -> Val:
        """``cvt.rn.bf16.f32``, of pairs where there are several; it keeps denormals, unlike that of AVX512."""
        return self.convert("bitcast", self.convert("fptrunc", v, "float", "bfloat"), "bfloat", "i16")

    def _float_unary(self, op: str, dtype: DType, a: Val) -> Val:
        """``ex2.approx.f32``, which is what LLVM makes of its own function, or instructions without subnormals."""
        if op not in FUNCTIONS or dtype is not types.f32:
            return super()._float_unary(op, dtype, a)
        if op == "exp2":
            return self.call("exp2", VALUE_TYPE[dtype], a)
        if not a.lanes:
            return self._flushed(op, a)
        return self.in_lanes([self._flushed(op, self.extract(a, "float", lane)) for lane in range(a.lanes)], "float")

    def any_lane(self, cond: Val) -> Val:
        """The same, bit by bit where there is no instruction for it."""
        if self.dialect.has_masks or not cond.lanes:
            return super().any_lane(cond)
        found = self.extract(cond, "i1", 0)
        for lane in range(1, cond.lanes):
            found = self.instruction("or", "i1", found, self.extract(cond, "i1", lane))
        return found

    def in_lanes(self, elements: Sequence[Val], element: str) -> Val:
        """The elements as the lanes of a vector."""
        ty, made = vector(element, len(elements)), Val("poison", 0, len(elements))
        for lane, one in enumerate(elements):
            level = max(made.level, one.level)
            text = f"insertelement {ty} {made.text}, {element} {one.text}, i32 {lane}"
            made = Val(self.writer.pure(text, level), level, len(elements))
        return made

    def _flushed(self, op: str, a: Val) -> Val:
        return Val(self.writer.pure(f"call float @{self.dialect.functions[op]}(float {a.text})", a.level), a.level, 0)

    def _extreme(self, op: str, element: str, a: Val, b: Val) -> Val:
        """``min.NaN.f32``: NaN if either is. Double precision has no such instruction."""
        has_one = element == "float" and self.dialect.has_extremes
        return self.call(_EXTREMES[op], element, a, b) if has_one else super()._extreme(op, element, a, b)
