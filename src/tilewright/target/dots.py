"""Dot products of narrow elements, as patterns: what schedules lay operands out for, and code is emitted for.

In: nothing. Out: ``Dot`` and those that there are. Not its business: which a machine has (``target.target``), its
instruction (``codegen.cpu.dot``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.core import types
from tilewright.core.types import DType


@dataclass(frozen=True)
class Dot:
    """A dot product inside lanes: ``group`` products of narrow elements added to one ``result``.

    ``left`` is the element type of the operand that all lanes share, ``right`` of the one that walks along the lanes.
    ``registers`` is how many an operand's group takes while it is multiplied: 1 with an instruction for the group.
    ``instructions``: where more than one, the first does not add to the sums, and a register stands between them.
    """

    left: DType
    right: DType
    result: DType
    group: int
    registers: int = 1
    instructions: int = 1

    @property
    def adds_apart(self) -> bool:
        """Are the products added to the sums by an instruction of its own?"""
        return self.instructions > 1

    @property
    def widens(self) -> bool:
        """Is the walking operand narrower than what is multiplied, and widened when it is read?"""
        return self.right.n_bytes < self.left.n_bytes


BYTES = Dot(types.u8, types.i8, types.i32, 4)
BYTE_PAIRS = Dot(types.u8, types.i7, types.i32, 4, instructions=3)
"""Sums of two products in 16 bits, which hold them because one of the bytes has 7: ``2 * 255 * 64 < 2**15``. Then these
are added in pairs, and to the sums."""
HALVES = Dot(types.u8, types.i8, types.i32, 4, registers=2)
"""Four bytes become two pairs of 16 bits in general registers, and an instruction multiplies two pairs and adds both
products to a sum: Arm's ``smlad``, on processors without vectors."""
WORDS = Dot(types.i16, types.i16, types.i32, 2, instructions=2)
WORDS_BY_BYTES = tuple([replace(WORDS, right=narrow) for narrow in (types.i8, types.u8, types.i7)])
"""Each byte of the walking operand becomes 16 bits in a register: no product is too large, as pairs of bytes can be."""
PAIRS_OF_X86 = "vpmaddwd"
PAIRS_OF_WASM = "i32x4.dot_i16x8_s"
"""The instructions for ``WORDS``: the same sums, in vectors of several sizes on x86 and of 128 bits on WebAssembly."""
BF16_PAIRS = Dot(types.bf16, types.bf16, types.f32, 2)
BF16_BY_SHIFTS = replace(BF16_PAIRS, registers=2)
