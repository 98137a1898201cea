"""What lanes of a warp hand to each other without memory, in words.

In: a value of each lane. Out: that of another lane. Not its business: what is made of both (``warps``).
"""

from __future__ import annotations

from tilewright.codegen.llvm.writer import Val
from tilewright.codegen.ptx.arith import PtxArith
from tilewright.codegen.ptx.dialect import WORD_BITS

_BITS = {"double": 64}


def exchanged(arith: PtxArith, v: Val, element: str, distance: int) -> Val:
    """The value of the lane whose number differs in the bit ``distance``; all lanes of the warp come here."""
    if element == "float":
        return _word(arith, v, distance, element)
    n_bits = _BITS.get(element) or int(element.removeprefix("i"))
    own, wide = f"i{n_bits}", f"i{max(n_bits, WORD_BITS)}"
    bits = v if element == own else arith.convert("bitcast", v, element, own)
    bits = bits if own == wide else arith.convert("zext", bits, own, wide)
    bits = _words(arith, bits, wide, max(n_bits // WORD_BITS, 1), distance)
    bits = bits if own == wide else arith.convert("trunc", bits, wide, own)
    return bits if element == own else arith.convert("bitcast", bits, own, element)


def _words(arith: PtxArith, bits: Val, wide: str, n_words: int, distance: int) -> Val:
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


def _word(arith: PtxArith, word: Val, distance: int, element: str = "i32") -> Val:
    """The word of another lane."""
    text = arith.dialect.exchange(arith.writer, word, element, distance, arith.n_lanes)
    return Val(arith.writer.fresh(text), arith.writer.level, 0)
