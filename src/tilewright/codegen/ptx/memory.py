"""Loads and stores of a thread: as wide as their addresses are known to be aligned.

In: addresses, values. Out: instructions. Not its business: which accesses are neighbours (``codegen.llvm.memory``).

A GPU faults on an access of 16 bytes that does not lie at a multiple of 16, so LLVM splits every vector into elements
unless it is told how the address is aligned. That is what strides, offset and the buffer's start have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.addresses import Address, Addresses, Mention, Run
from tilewright.codegen.llvm.lanes import Lanes
from tilewright.codegen.llvm.memory import Memory
from tilewright.codegen.llvm.types import MEMORY_TYPE
from tilewright.codegen.llvm.writer import Val
from tilewright.codegen.ptx.arith import PtxArith
from tilewright.core.compute import Buffer, Value
from tilewright.target.matrices import CHUNK_BYTES, PERIOD_BYTES

ASYNC_BYTES = {4: "ca", 8: "ca", 16: "cg"}
"""What one asynchronous copy of a thread moves, and which caches it goes through: 16 bytes pass by the first one."""
BUFFER_ALIGNMENT = 16
"""Bytes that every buffer's start is a multiple of: whoever launches sees to it for parameters."""


class PtxAddresses(Addresses):
    """Addresses with those of swizzled buffers, whose mentions count in panels (``tile.swizzle``)."""

    swizzled: frozenset[Buffer] = frozenset()

    def locate(self, mention: Mention, ctx: Lanes, index_value: Callable[[Value], Val]) -> Address:
        """The address; ``CodegenError`` for neighbours in a swizzled buffer that may not lie in one chunk."""
        found = super().locate(mention, ctx, index_value)
        if mention.buffer in self.swizzled and found.n_lanes:
            size, n_lanes = mention.buffer.dtype.n_bytes, found.n_lanes
            is_run = found.pattern == tuple(range(n_lanes)) and n_lanes * size <= CHUNK_BYTES
            if not is_run or math.gcd(CHUNK_BYTES, (found.step or 0) * size, found.offset) < n_lanes * size:
                raise CodegenError(f"{mention.buffer.name}: {n_lanes} elements that lie in no one chunk of it")
        return found

    def _start(self, buffer: Buffer, runs: list[Run], offset: int) -> tuple[Val, int]:
        """What moves by whole periods of the exchange is added behind it, so that loops add a number to an address."""
        if buffer not in self.swizzled:
            return super()._start(buffer, runs, offset)
        size = buffer.dtype.n_bytes
        near, far = ([r for r in runs if (r[2] * size % PERIOD_BYTES == 0) is whole] for whole in (False, True))
        in_period = offset * size % PERIOD_BYTES
        place = Val(str(in_period), 0, 0)
        for level, name, coef in near:
            part = self.space.scaled(Val(name, level, 0), coef * size)
            place = self.arith.instruction("add", "i64", part, place)
        by = self.arith.instruction("lshr", "i64", place, Val("3", 0, 0))
        by = self.arith.instruction("and", "i64", by, Val(str(7 * CHUNK_BYTES), 0, 0))
        place = self.arith.instruction("xor", "i64", place, by)
        pointer = self.advance(self.base_of(buffer), place)
        return self.moved(pointer, far, size), offset * size - in_period


class PtxMemory(Memory):
    """Memory access of one thread."""

    arith: PtxArith

    def alignment(self, address: Address, offset: int) -> int:
        """The largest power of two that divides the address of an element, at most ``BUFFER_ALIGNMENT``."""
        size = address.buffer.dtype.n_bytes
        if address.step is None:  # what the data choose
            return size
        common = math.gcd(BUFFER_ALIGNMENT, address.step * size, offset)
        return max(common & -common, size)

    def said_of(self, address: Address) -> str:
        """Its alignment, where neighbours may become one access."""
        known = self.alignment(address, address.offset)
        return f", align {known}" if known > address.buffer.dtype.n_bytes else ""

    def _load_vector(self, address: Address, element: str, n: int, ctx: Lanes) -> Val:
        """Lane by lane where there are no masks: what must not be read comes from zeros."""
        if self.arith.dialect.has_masks or ctx.mask is None or address.fits:
            return super()._load_vector(address, element, n, ctx)
        size, pointer = address.buffer.dtype.n_bytes, self.addresses.pointer
        return self._by_lanes([pointer(address, address.offset + k * size) for k in range(n)], size, element, ctx)

    def _gather(self, address: Address, distances: Val, element: str, ctx: Lanes) -> Val:
        """The same of elements that are no neighbours."""
        if self.arith.dialect.has_masks:
            return super()._gather(address, distances, element, ctx)
        base, kind = self.addresses.pointer(address), MEMORY_TYPE[address.buffer.dtype]
        apart = [self.arith.extract(distances, "i64", k).text for k in range(distances.lanes)]
        pointers = [self.writer.fresh(f"getelementptr {kind}, ptr {base}, i64 {n}") for n in apart]
        return self._by_lanes(pointers, address.buffer.dtype.n_bytes, element, ctx)

    def _by_lanes(self, pointers: Sequence[str], size: int, element: str, ctx: Lanes) -> Val:
        """The elements of the lanes that run, and zeros for the others."""
        n, found = len(pointers), list[Val]()
        mask = Val(self._mask(ctx, n), self.writer.level, n)
        for lane, pointer in enumerate(pointers):
            bit = self.arith.extract(mask, "i1", lane)
            safe = self.writer.fresh(f"select i1 {bit.text}, ptr {pointer}, ptr {self.zeros(size)}")
            found.append(self._here(f"load {element}, ptr {safe}, align {size}", 0))
        return self.arith.in_lanes(found, element)

    def copy_ahead(self, target: Address, source: Address, ctx: Lanes) -> bool:
        """Copy neighbours to shared memory without registers; False, and nothing emitted, where no instruction does.

        ``ctx`` has the guard of the source, which is the same for all lanes; where it does not hold nothing is read,
        and zeros are stored.
        """
        n, size = ctx.count, ctx.count * target.buffer.dtype.n_bytes
        is_run = target.pattern == source.pattern == tuple(range(n)) and target.lanes is None and source.lanes is None
        if not is_run or ctx.mask is not None or size not in ASYNC_BYTES:
            return False
        if any(self.alignment(a, a.offset) < size for a in (target, source)):
            return False
        self._enter_region()
        self._forget_overlap(target)
        to = self.writer.fresh(f"addrspacecast ptr {self.addresses.pointer(target)} to ptr addrspace(3)")
        of = self.writer.fresh(f"addrspacecast ptr {self.addresses.pointer(source)} to ptr addrspace(1)")
        name, operands = f"llvm.nvvm.cp.async.{ASYNC_BYTES[size]}.shared.global.{size}", ""
        if ctx.guard is not None:  # zeros that are read come from one place, for which everybody waits
            n_bytes = self.writer.fresh(f"select i1 {ctx.guard.text}, i32 {size}, i32 0")
            name, operands = f"{name}.s", f", i32 {n_bytes}"
        self.writer.emit(f"call void @{name}(ptr addrspace(3) {to}, ptr addrspace(1) {of}{operands})")
        return True
