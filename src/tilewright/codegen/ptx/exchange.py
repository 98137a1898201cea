"""What lanes of a warp hand to each other without memory: ``shfl.sync``.

In: a value of each lane. Out: that of another lane. Not its business: what is made of both (``warps``).
"""

from __future__ import annotations

from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.writer import Val
from tilewright.target.matrices import WARP

WORD_BITS = 32
"""What lanes exchange at one time."""
ALL_LANES = -1
_BITS = {"double": 64}


def exchanged(arith: Arith, v: Val, element: str, distance: int) -> Val:
    """The value of the lane whose number differs in the bit ``distance``; all lanes of the warp come here."""
    if element == "float":
        return _word(arith, v, distance, element, "f32")
    n_bits = _BITS.get(element) or int(element.removeprefix("i"))
    own, wide = f"i{n_bits}", f"i{max(n_bits, WORD_BITS)}"
    bits = v if element == own else arith.convert("bitcast", v, element, own)
    bits = bits if own == wide else arith.convert("zext", bits, own, wide)
    bits = _words(arith, bits, wide, max(n_bits // WORD_BITS, 1), distance)
    bits = bits if own == wide else arith.convert("trunc", bits, wide, own)
    return bits if element == own else arith.convert("bitcast", bits, own, element)


def _words(arith: Arith, bits: Val, wide: str, n_words: int, distance: int) -> Val:
    """The bits with every word from the other lane."""
    if n_words == 1:
        return _word(arith, bits, distance)
    found = Val("0", 0, 0)
    for k in range(n_words):
        shift = Val(str(k * WORD_BITS), 0, 0)
        part = arith.convert("trunc", arith.instruction("lshr", wide, bits, shift), wide, "i32")
        moved = arith.convert("zext", _word(arith, part, distance), "i32", wide)
        found = arith.instruction("or", wide, found, arith.instruction("shl", wide, moved, shift))
    return found


def _word(arith: Arith, word: Val, distance: int, element: str = "i32", name: str = "i32") -> Val:
    """The word of another lane; ``name`` is what the instruction calls the type ``element``."""
    operands = f"i32 {ALL_LANES}, {element} {word.text}, i32 {distance}, i32 {WARP - 1}"
    text = f"call {element} @llvm.nvvm.shfl.sync.bfly.{name}({operands})"
    return Val(arith.writer.fresh(text), arith.writer.level, 0)
