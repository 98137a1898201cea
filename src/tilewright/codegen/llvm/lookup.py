"""``Lookup``: levels by codes, within registers.

In: levels that are known, codes as values. Out: the levels as values. Not its business: tables in memory, which are
loads by a run-time index.

Vectors that fill registers take one shuffle of bytes where the machine has one: each lane's lowest byte is its code and
its other bytes are zero, so they give the first level, which a mask takes away where it is not 0. Other vectors and
scalars take the levels out of a number of 64 bits, or of two of them, by a shift.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.types import VALUE_TYPE
from tilewright.codegen.llvm.writer import Val
from tilewright.core import types
from tilewright.core.compute import MOST_LEVEL, MOST_LEVELS
from tilewright.core.types import DType
from tilewright.target.lookups import LOOKUP_OF_AARCH64, LOOKUP_OF_WASM, LOOKUP_OF_X86

SHUFFLES = {
    LOOKUP_OF_X86: {
        16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512",
    },
    LOOKUP_OF_AARCH64: {8: "llvm.aarch64.neon.tbl1.v8i8", 16: "llvm.aarch64.neon.tbl1.v16i8"},
    LOOKUP_OF_WASM: {16: "llvm.wasm.swizzle"},
}  # fmt: skip
"""LLVM's names of the instructions, by the bytes of a vector."""
WORD_BYTES = 8
"""Levels in a number of 64 bits."""


def looked_up(a: Arith, levels: Sequence[int], code: Val, dtype: DType) -> Val:
    """``levels[code]`` in each lane; ``code`` is of the integer type ``dtype``, and so is the result."""
    if code.text.isdigit():
        return Val(str(levels[int(code.text)]), 0, 0)
    name = SHUFFLES.get(a.target.byte_lookup, {}).get(code.lanes * dtype.n_bytes)
    if name is None or code.lanes * dtype.n_bytes > a.target.vector_bytes:
        return _shifted_out(a, levels, code, dtype)
    return _shuffled(a, levels, code, dtype, name)


def _shuffled(a: Arith, levels: Sequence[int], code: Val, dtype: DType, name: str) -> Val:
    n, element, pure = code.lanes * dtype.n_bytes, VALUE_TYPE[dtype], a.writer.pure
    padded = [*levels, *[0] * (MOST_LEVELS - len(levels))] * max(n // MOST_LEVELS, 1)
    table = f"<{len(padded)} x i8> <{', '.join([f'i8 {level}' for level in padded])}>"
    by = pure(f"bitcast <{code.lanes} x {element}> {code.text} to <{n} x i8>", code.level)
    found = pure(f"call <{n} x i8> @{name}({table}, <{n} x i8> {by})", code.level)
    wide = Val(pure(f"bitcast <{n} x i8> {found} to <{code.lanes} x {element}>", code.level), code.level, code.lanes)
    if dtype.n_bytes == 1 or levels[0] == 0:
        return wide
    return a.instruction("and", element, wide, Val(str(MOST_LEVEL), 0, 0))


def _shifted_out(a: Arith, levels: Sequence[int], code: Val, dtype: DType) -> Val:
    """The levels as bytes of one or two numbers, of which a shift by eight times the code brings one down."""
    element = VALUE_TYPE[dtype]
    wide = code if dtype.bits == types.u64.bits else a.convert("zext", code, element, "i64")
    low, high = (
        Val(str(int.from_bytes(bytes(levels[k : k + WORD_BYTES]), "little", signed=True)), 0, 0)
        for k in (0, WORD_BYTES)
    )
    word = low
    if len(levels) > WORD_BYTES:
        is_low = a.instruction("icmp ult", "i64", wide, Val(str(WORD_BYTES), 0, 0))
        word = a.choose(is_low, low, high, "i64")
    place = a.instruction("and", "i64", wide, Val(str(WORD_BYTES - 1), 0, 0))
    down = a.instruction("lshr", "i64", word, a.instruction("shl", "i64", place, Val("3", 0, 0)))
    level = a.instruction("and", "i64", down, Val(str(MOST_LEVEL), 0, 0))
    return level if dtype.bits == types.u64.bits else a.convert("trunc", level, "i64", element)
