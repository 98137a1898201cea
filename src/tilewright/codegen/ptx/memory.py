"""Loads and stores of a thread: as wide as their addresses are known to be aligned.

In: addresses, values. Out: instructions. Not its business: which accesses are neighbours (``codegen.llvm.memory``).

A GPU faults on an access of 16 bytes that does not lie at a multiple of 16, so LLVM splits every vector into elements
unless it is told how the address is aligned. That is what strides, offset and the buffer's start have in common.
"""

from __future__ import annotations

import math

from tilewright.codegen.llvm.addresses import Address
from tilewright.codegen.llvm.memory import Memory

BUFFER_ALIGNMENT = 16
"""Bytes that every buffer's start is a multiple of: whoever launches sees to it for parameters."""


class PtxMemory(Memory):
    """Memory access of one thread."""

    def alignment(self, address: Address, offset: int) -> int:
        """The largest power of two that divides the address of an element, at most ``BUFFER_ALIGNMENT``."""
        size = address.buffer.dtype.n_bytes
        if address.step is None:  # what the data choose
            return size
        common = math.gcd(BUFFER_ALIGNMENT, address.step * size, offset)
        return max(common & -common, size)
