"""Loads and stores of a thread: as wide as their addresses are known to be aligned.

In: addresses, values. Out: instructions. Not its business: which accesses are neighbours (``codegen.llvm.memory``).

A GPU faults on an access of 16 bytes that does not lie at a multiple of 16, so LLVM splits every vector into elements
unless it is told how the address is aligned. That is what strides, offset and the buffer's start have in common.
"""

from __future__ import annotations

import math

from tilewright.codegen.llvm.addresses import Address
from tilewright.codegen.llvm.lanes import Lanes
from tilewright.codegen.llvm.memory import Memory

ASYNC_BYTES = {4: "ca", 8: "ca", 16: "cg"}
"""What one asynchronous copy of a thread moves, and which caches it goes through: 16 bytes pass by the first one."""
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

    def copy_ahead(self, target: Address, source: Address, ctx: Lanes) -> bool:
        """Copy neighbours to shared memory without registers; False, and nothing emitted, where no instruction does.

        ``ctx`` has the guard of the source, which is the same for all lanes; zeros are copied where it does not hold.
        """
        n, size = ctx.count, ctx.count * target.buffer.dtype.n_bytes
        is_run = target.pattern == source.pattern == tuple(range(n)) and target.lanes is None and source.lanes is None
        if not is_run or ctx.mask is not None or size not in ASYNC_BYTES:
            return False
        if any(self.alignment(a, a.offset) < size for a in (target, source)):
            return False
        self._enter_block()
        self._forget_overlap(target)
        to = self.writer.fresh(f"addrspacecast ptr {self.addresses.pointer(target)} to ptr addrspace(3)")
        of = self.writer.fresh(f"addrspacecast ptr {self._readable(source, ctx, source.offset, n)} to ptr addrspace(1)")
        name = f"llvm.nvvm.cp.async.{ASYNC_BYTES[size]}.shared.global.{size}"
        self.writer.emit(f"call void @{name}(ptr addrspace(3) {to}, ptr addrspace(1) {of})")
        return True
