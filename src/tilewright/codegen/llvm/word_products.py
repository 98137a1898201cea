"""Products of narrow integers by the instruction that widens what it multiplies.

In: a product in 32 bits of two numbers that are widened from 8 or 16. Out: its value, or None where the machine has no
such instruction. Not its business: dot products, which add several of them (``codegen.cpu.dot``).

Widened to 32 bits first, each operand takes twice the registers, bytes one more instruction, and the product is
slower on most cores. LLVM makes the instruction of a product and an addition where it adds to a sum.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.codegen.llvm import convert
from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.types import VALUE_TYPE
from tilewright.codegen.llvm.writer import Val
from tilewright.core import types
from tilewright.core.compute import Binary, Cast, Value
from tilewright.target.products import PRODUCT_OF_ARM

NARROW = (types.i8, types.u8, types.i16)
"""What 16 bits with a sign hold."""
CALLS = {PRODUCT_OF_ARM: ("llvm.arm.neon.vmulls.v4i32", 4)}
"""LLVM's names of the instructions, and how many products each makes."""


def word_product(a: Arith, v: Binary, n: int, value: Callable[[Value], Val]) -> Val | None:
    """``cast.i32(x) * cast.i32(y)`` in ``n`` lanes; ``value`` gives those of ``x`` and ``y``."""
    name, lanes = CALLS.get(a.target.word_product, ("", 0))
    if v.op != "mul" or v.dtype is not types.i32 or n != lanes or not name:
        return None
    if not isinstance(v.a, Cast) or not isinstance(v.b, Cast) or not {v.a.a.dtype, v.b.a.dtype} <= set(NARROW):
        return None
    words = [convert.cast(a, value(side.a), side.a.dtype, types.i16) for side in (v.a, v.b)]
    if not any(x.lanes for x in words):
        return None
    x, y = (a.splat(word, VALUE_TYPE[types.i16], n) for word in words)
    level = max(x.level, y.level)
    text = f"call <{n} x i32> @{name}(<{n} x i16> {x.text}, <{n} x i16> {y.text})"
    return Val(a.writer.pure(text, level), level, n)
