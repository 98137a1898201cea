"""Instructions that multiply 16-bit integers lane by lane into 32 bits.

In: nothing. Out: their names. Not its business: which a machine has (``target.target``), how they are called
(``codegen.llvm.word_products``).
"""

from __future__ import annotations

PRODUCT_OF_ARM = "vmull.s16"
