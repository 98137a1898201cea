"""Instructions that choose bytes of one register by those of another: tables of 16 bytes without memory.

In: nothing. Out: their names. Not its business: which a machine has (``target.target``), how they are called
(``codegen.llvm.lookup``).
"""

from __future__ import annotations

LOOKUP_OF_X86 = "pshufb"
LOOKUP_OF_AARCH64 = "tbl"
LOOKUP_OF_WASM = "i8x16.swizzle"
