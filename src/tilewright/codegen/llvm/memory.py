"""Loads, stores and prefetches: lane patterns, guards, and reuse of what is already in a register.

In: addresses, values. Out: values and effects. Not its business: where an access lies (``addresses``), what is
computed from what is read.

A load's lanes decide its form: all equal, one scalar load; neighbours, one vector load, masked where lanes are off
or no power of two; within a vector's reach, one or two loads and a shuffle; a column, where the copies of an unrolled
loop read its neighbours, by loading rows and transposing them; otherwise a gather or scalar loads. Inside one region
(``Writer.start_block``) a load of what was loaded or stored before is that value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.codegen.llvm import convert
from tilewright.codegen.llvm.addresses import TRIPLE, Address, Addresses, Column
from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.lanes import Lanes, bits_of, lanes_of_register
from tilewright.codegen.llvm.refusals import USE_GATHERED
from tilewright.codegen.llvm.types import MEMORY_TYPE, VALUE_TYPE, literal, mangled, vector
from tilewright.codegen.llvm.writer import Val
from tilewright.core.compute import Buffer
from tilewright.core.estimates import SHUFFLED_STRIDE
from tilewright.core.types import Array

Row = tuple[str, int]
"""A pointer and a distance from it in bytes."""


@dataclass(frozen=True)
class Held:
    """A value that memory is known to hold, and the bytes it covers from ``pointer``."""

    value: Val
    pointer: str
    start: int
    stop: int


class Memory:
    """Memory access of one function; ``zeros`` gives the address of so many bytes of zeros."""

    def __init__(self, arith: Arith, addresses: Addresses, zeros: Callable[[int], str]) -> None:
        self.arith = arith
        self.addresses = addresses
        self.writer = arith.writer
        self.zeros = zeros
        self.known: dict[int, dict[object, Held]] = {}
        self._region = ""

    # --- public -----------------------------------------------------------------------------------------------------

    def load(self, address: Address, ctx: Lanes) -> Val:
        """The element at ``address``, or one element a lane; zero or anything where a guard or mask forbids reading."""
        self._enter_region()
        if address.spare:
            ctx = replace(ctx, mask=None)
        key = self._key(address, ctx)
        held = self.known.get(id(address.buffer), {}).get(key)
        if held is not None:
            return held.value
        if (inside := self._within(address, ctx)) is not None:
            return inside
        value = convert.from_memory(self.arith, address.buffer.dtype, self._load(address, ctx))
        self._remember(address, key, value)
        return value

    def _within(self, address: Address, ctx: Lanes) -> Val | None:
        """A shuffle of a vector in a register, where that holds all elements of a pattern that is no run of them."""
        pattern, size = address.pattern, address.buffer.dtype.n_bytes
        if pattern is None or ctx.mask is not None or ctx.guard is not None or pattern == tuple(range(len(pattern))):
            return None
        start, stop = address.offset + min(pattern) * size, address.offset + (max(pattern) + 1) * size
        for key, known in self.known.get(id(address.buffer), {}).items():
            n = known.value.lanes
            is_run = n > 0 and key == (address.pointer.text, known.start, tuple(range(n)), None, None)
            if is_run and known.start <= start and stop <= known.stop:
                lanes = [(address.offset - known.start) // size + p for p in pattern]
                return self.arith.pick(known.value, VALUE_TYPE[address.buffer.dtype], lanes)
        return None

    def load_words(self, address: Address, n: int, ctx: Lanes, bits: int = 32) -> Val:
        """``n`` words of ``bits`` bits (0: one scalar) from ``address`` on, whatever their elements are."""
        self._enter_region()
        masked = ctx.mask is not None and n > 0
        key = ("words", bits, address.pointer.text, address.offset, n, ctx.mask.text if ctx.mask and masked else None)
        known = self.known.setdefault(id(address.buffer), {})
        if key not in known:
            ty, pointer = vector(f"i{bits}", n), self.addresses.pointer(address)
            if ctx.mask is not None and masked:
                operands = f"ptr align 1 {pointer}, <{n} x i1> {ctx.mask.text}, {ty} zeroinitializer"
                value = self._here(f"call {ty} @llvm.masked.load.v{n}i{bits}.p0({operands})", n)
            else:
                value = self._here(f"load {ty}, ptr {pointer}, align 1", n)
            known[key] = Held(value, address.pointer.text, address.offset, address.offset + bits // 8 * max(n, 1))
        return known[key].value

    def load_part(self, address: Address, n_bytes: int) -> Val:
        """The first ``n_bytes`` (1 to 3) from ``address`` on as a 32-bit word, zeros above."""
        word = Val("0", 0, 0)
        for start, bits in ((0, 16), (2, 8)) if n_bytes > 1 else ((0, 8),):
            if start < n_bytes:
                part = self._here(
                    f"load i{bits}, ptr {self.addresses.pointer(address, address.offset + start)}, align 1", 0
                )
                wide = self.arith.convert("zext", part, f"i{bits}", "i32")
                shifted = self.arith.instruction("shl", "i32", wide, Val(str(8 * start), 0, 0))
                word = self.arith.instruction("or", "i32", word, shifted)
        return word

    def store(self, address: Address, value: Val, ctx: Lanes) -> None:
        """Write ``value`` to ``address`` where guard and mask allow."""
        self._enter_region()
        if address.spare:
            ctx = replace(ctx, mask=None)
        dtype = address.buffer.dtype
        value = self.arith.splat(value, VALUE_TYPE[dtype], address.n_lanes)
        raw = convert.to_memory(self.arith, dtype, value)
        self._forget_overlap(address)
        element = MEMORY_TYPE[dtype]
        if raw.lanes and address.lanes is None and address.pattern == tuple(range(raw.lanes)):
            self._store_vector(address, raw, element, ctx)
        elif raw.lanes:
            self._scatter(address, raw, element, ctx)
        else:
            self.writer.emit(
                f"store {element} {raw.text}, ptr {self.addresses.pointer(address)}{self.said_of(address)}"
            )
        if ctx.mask is None or not raw.lanes:
            self._remember(address, self._key(address, ctx), value)

    def prefetch(self, address: Address, *, is_written: bool) -> None:
        """Ask for the cache line at ``address``, alone among all cores where it will be written."""
        pointer = self.addresses.pointer(address)
        self.writer.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(is_written)}, i32 3, i32 1)")

    def alignment(self, address: Address, offset: int) -> int:
        """Bytes that divide the address ``offset`` bytes from the pointer: as a CPU asks for no more, an element's."""
        return address.buffer.dtype.n_bytes

    def said_of(self, address: Address) -> str:
        """What a store of one element says of its address, beyond what is true of any."""
        return ""

    def _align(self, address: Address, offset: int) -> str:
        return f"align {self.alignment(address, offset)}"

    def forget(self) -> None:
        """Memory may have changed in unknown ways."""
        self.known.clear()

    def literal(self, table: Array, dtype_of: Buffer, offset: int, pattern: tuple[int, ...] | None) -> Val:
        """Numbers of a table as a constant."""
        flat = table.reshape(-1)
        if pattern is None:
            return self.arith.const(flat[offset].item(), dtype_of.dtype)
        element = VALUE_TYPE[dtype_of.dtype]
        numbers = [f"{element} {literal(flat[offset + p].item(), dtype_of.dtype)}" for p in pattern]
        return Val(f"<{', '.join(numbers)}>", 0, len(pattern))

    # --- loads ------------------------------------------------------------------------------------------------------

    def _load(self, address: Address, ctx: Lanes) -> Val:
        element = MEMORY_TYPE[address.buffer.dtype]
        if address.lanes is not None and address.rows and address.column:
            return self._one_column(address, element, self._far_rows(address), address.column)
        if address.lanes is not None:
            return self._gather(address, address.lanes, element, ctx)
        pattern = address.pattern
        if pattern is None:
            return self._here(f"load {element}, ptr {self._readable(address, ctx, address.offset)}", 0)
        n, size = len(pattern), address.buffer.dtype.n_bytes
        if pattern == tuple(range(n)):
            return self._load_vector(address, element, n, ctx)
        # Copies three apart read interleaved elements, of pixels for example: one wide load serves all three.
        if address.column and address.column.n == TRIPLE and element == VALUE_TYPE[address.buffer.dtype]:
            at = address.column.start
            run = address._replace(offset=address.offset - at * size, pattern=tuple(range(TRIPLE * n)), column=None)
            return self.arith.pick(self.load(run, ctx), element, [at + p for p in pattern])
        bits = self._running(ctx, n)
        running = [p for p, runs in zip(pattern, bits, strict=True) if runs] if bits else []
        low, high = min(running, default=0), max(running, default=0)
        # Up to three vectors and shuffles take less than a load for each lane.
        if bits and running and high - low < SHUFFLED_STRIDE * n:
            lanes = [p - low if runs else 0 for p, runs in zip(pattern, bits, strict=True)]
            return self._load_shuffled(address, lanes, element, address.offset + low * size, ctx)
        if ctx.mask is None and (runs := _equal_runs(pattern)):
            return self._load_runs(address, runs, pattern, element, ctx)
        if ctx.mask is None and self._are_pairs(pattern, size):
            return self._load_pairs(address, pattern, ctx)
        if address.column and len(set(pattern)) == n:
            # Lanes that never run read the last row again, which is there.
            live = pattern[: ctx.live] if ctx.mask is not None else pattern
            start = address.offset - address.column.start * size
            rows = tuple([(address.pointer.text, start + r * size) for r in (*live, *live[-1:] * (n - len(live)))])
            return self._one_column(address, element, rows, address.column)
        distances = Val(f"<{', '.join([f'i64 {p}' for p in pattern])}>", 0, n)
        # There are gathers of words and of what is larger alone.
        if not (self.arith.target.has_gather and size >= 4):
            if ctx.mask is None:
                return self._load_each(address, pattern, element, ctx)
            if not ctx.zeroed and _is_repeated(pattern, ctx.extents[-1]):
                return self._load_once(address, pattern, element, ctx)
        return self._gather(address, distances, element, ctx)

    def _running(self, ctx: Lanes, n: int) -> tuple[bool, ...] | None:
        """Which of ``n`` lanes run, where that is known."""
        if ctx.mask is None:
            return (True,) * n
        if ctx.all_live_run and len(ctx.syms) == 1:
            return tuple([k < (ctx.live or 0) for k in range(n)])
        return bits_of(ctx.mask)

    def _here(self, rhs: str, lanes: int) -> Val:
        return Val(self.writer.fresh(rhs), self.writer.level, lanes)

    def _readable(self, address: Address, ctx: Lanes, offset: int, lanes: int = 1) -> str:
        """The address, or that of zeros where the guard does not hold."""
        pointer = self.addresses.pointer(address, offset)
        guard = ctx.guard
        if ctx.mask is not None and ctx.may_be_empty and address.pattern is None and address.lanes is None:
            guard = self._any_lane(ctx)
        if guard is None:
            return pointer
        zeros = self.zeros(max(lanes, 1) * address.buffer.dtype.n_bytes)
        return self.writer.fresh(f"select i1 {guard.text}, ptr {pointer}, ptr {zeros}")

    def _any_lane(self, ctx: Lanes) -> Val:
        n = ctx.count
        mask = Val(self._mask(ctx, n), self.writer.level, n)
        return self._here(f"call i1 @llvm.vector.reduce.or.v{n}i1(<{n} x i1> {mask.text})", 0)

    def _load_vector(self, address: Address, element: str, n: int, ctx: Lanes) -> Val:
        ty = vector(element, n)
        align = self._align(address, address.offset)
        pointer = self._readable(address, ctx, address.offset, n)
        if ctx.mask is None or address.fits:
            if self._is_odd(n, address):
                whole = self._load_front(address, element, address.offset, n, lanes_of_register(n), ctx)
                return self.arith.pick(whole, element, list(range(n)))
            return self._here(f"load {ty}, ptr {pointer}, {align}", n)
        name = f"llvm.masked.load.{mangled(element, n)}.p0"
        return self._here(
            f"call {ty} @{name}(ptr {align} {pointer}, <{n} x i1> {ctx.mask.text}, {ty} zeroinitializer)", n
        )

    def _load_shuffled(self, address: Address, lanes: list[int], element: str, offset: int, ctx: Lanes) -> Val:
        """Everything the lanes touch in one to three vector loads that read no byte beyond, then shuffles.

        When one aligned vector holds it all, that one is read: neighbours want other elements of the same vector.
        """
        n, size = len(lanes), address.buffer.dtype.n_bytes
        span = max(lanes) + 1
        first = offset // size % n
        is_plain = element == VALUE_TYPE[address.buffer.dtype]
        if is_plain and first + span <= n and address.unit and address.unit % n == 0:
            whole = address._replace(offset=offset - first * size, pattern=tuple(range(n)))
            return self.arith.pick(self.load(whole, replace(ctx, mask=None)), element, [first + p for p in lanes])
        align = self._align(address, offset)
        n = lanes_of_register(n) if self._is_odd(n, address) else n
        # A vector of just the span reads no byte beyond; an odd one is loaded in parts, which masks spare.
        if span <= n:
            if span < n and self.arith.target.has_masks:
                return self.arith.pick(self._load_front(address, element, offset, span, n, ctx), element, lanes)
            wide = self._here(
                f"load {vector(element, span)}, ptr {self._readable(address, ctx, offset, span)}, {align}", span
            )
            return self.arith.pick(wide, element, lanes)
        # Two vectors, the second up to the last element; between them a third where they don't meet.
        ty, start = vector(element, n), span - n
        low = self._here(f"load {ty}, ptr {self._readable(address, ctx, offset, n)}, {align}", n)
        at_end = self._align(address, offset + start * size)
        high = self._here(f"load {ty}, ptr {self._readable(address, ctx, offset + start * size, n)}, {at_end}", n)
        if span <= 2 * n:
            return self.arith.pick(low, element, [p if p < n else n + p - start for p in lanes], high)
        inside = self._align(address, offset + n * size)
        middle = self._here(f"load {ty}, ptr {self._readable(address, ctx, offset + n * size, n)}, {inside}", n)
        both = list(range(2 * n))
        parts = [self.arith.pick(low, element, both, middle), self.arith.pick(high, element, both, high)]
        return self.arith.pick(parts[0], element, [p if p < 2 * n else 2 * n + p - start for p in lanes], parts[1])

    def _load_front(self, address: Address, element: str, offset: int, count: int, n: int, ctx: Lanes) -> Val:
        """A vector of ``n`` of which only the first ``count`` elements are read."""
        ty, name = vector(element, n), f"llvm.masked.load.{mangled(element, n)}.p0"
        pointer = self._readable(address, ctx, offset, n)
        align = f"align {address.buffer.dtype.n_bytes}"
        return self._here(f"call {ty} @{name}(ptr {align} {pointer}, {_front(count, n)}, {ty} zeroinitializer)", n)

    def _is_odd(self, n: int, address: Address) -> bool:
        """Would a run go in parts that are powers of two, 15 elements as 8, 4, 2, 1, where a masked one goes whole?"""
        fits = n * address.buffer.dtype.n_bytes <= self.arith.target.vector_bytes
        return n & (n - 1) != 0 and fits and self.arith.target.has_masks

    def _load_runs(
        self, address: Address, starts: Sequence[int], pattern: tuple[int, ...], element: str, ctx: Lanes
    ) -> Val:
        """Runs of neighbours, equally long, in any order of lanes: a load for each, and shuffles of two at a time."""
        length, size = len(pattern) // len(starts), address.buffer.dtype.n_bytes
        ty, offsets = vector(element, length), [address.offset + start * size for start in starts]
        addresses = [(self._readable(address, ctx, at, length), self._align(address, at)) for at in offsets]
        parts = [self._here(f"load {ty}, ptr {pointer}, {align}", length) for pointer, align in addresses]
        lanes = [next(k * length + p - at for k, at in enumerate(starts) if at <= p < at + length) for p in pattern]
        if len(parts) > 2:
            both = list(range(2 * length))
            parts = [self.arith.pick(a, element, both, b) for a, b in (parts[:2], (parts[2], parts[-1]))]
        return self.arith.pick(parts[0], element, lanes, parts[1])

    def _far_rows(self, address: Address) -> tuple[Row, ...]:
        """Where the rows of a column begin that lie at run-time distances."""
        assert address.column is not None
        size = address.buffer.dtype.n_bytes
        far = [self.addresses.advance(address.pointer, self.addresses.space.scaled(r, size)) for r in address.rows]
        return tuple([(p.text, address.offset - address.column.start * size) for p in far])

    def _one_column(self, address: Address, element: str, rows: tuple[Row, ...], column: Column) -> Val:
        """An element of each row; of an odd number the last row stands in for those that fill a register."""
        n = len(rows)
        found = self._transposed(address, element, (*rows, *rows[-1:] * (lanes_of_register(n) - n)), column, 1)
        return self.arith.pick(found, element, list(range(n)))

    def _transposed(self, address: Address, element: str, rows: tuple[Row, ...], first: Column, count: int) -> Val:
        """``count`` columns from ``first`` on of some rows, row after row in one vector.

        Made of twice as many columns of half the rows each, so that all columns of n rows take n log n shuffles.
        """
        size, n = address.buffer.dtype.n_bytes, len(rows)
        key = ("transposed", rows, first, count)
        known = self.known.setdefault(id(address.buffer), {})
        if key not in known:
            if n == 1:
                value = self._row(address, element, rows[0], first)
            else:
                given = min(2 * count, first.n)
                base = first.copy - first.copy % given
                parts = (rows[: n // 2], rows[n // 2 :])
                halves = [self._transposed(address, element, part, first._replace(copy=base), given) for part in parts]
                lanes = [r * given + first.copy - base + c for r in range(n) for c in range(count)]
                value = self.arith.pick(halves[0], element, lanes, halves[1])
            starts, pointers = [start for _, start in rows], {pointer for pointer, _ in rows}
            pointer = pointers.pop() if len(pointers) == 1 else ""  # several: any store ends what is known
            known[key] = Held(value, pointer, min(starts), max(starts) + first.n * first.step * size)
        return known[key].value

    def _row(self, address: Address, element: str, row: Row, column: Column) -> Val:
        """What all copies read of a row."""
        pointer, start = row
        if column.step == 1:
            at = self.addresses.at(pointer, start)
            return self._here(
                f"load {vector(element, column.n)}, ptr {at}, align {address.buffer.dtype.n_bytes}", column.n
            )
        lanes = [k * column.step for k in range(column.n)]
        place = address._replace(pointer=address.pointer._replace(text=pointer), unit=0, step=None)
        return self._load_shuffled(place, lanes, element, start, Lanes())

    def _are_pairs(self, pattern: tuple[int, ...], size: int) -> bool:
        """Elements of two bytes, each even lane followed by its neighbour: words, where gathers of words are fast."""
        even, odd = pattern[::2], pattern[1::2]
        neighbours = len(even) == len(odd) and all(b == a + 1 for a, b in zip(even, odd, strict=True))
        return size == 2 and neighbours and self.arith.target.has_gather

    def _load_pairs(self, address: Address, pattern: tuple[int, ...], ctx: Lanes) -> Val:
        n = len(pattern) // 2
        distances = Val(f"<{', '.join([f'i64 {p}' for p in pattern[::2]])}>", 0, n)
        found = self._gathered(self._addresses_of(address, distances), self._mask(ctx, n), "i32", n, align=2)
        name = self.writer.pure(f"bitcast <{n} x i32> {found.text} to <{2 * n} x i16>", found.level)
        return Val(name, found.level, 2 * n)

    def _load_each(self, address: Address, pattern: tuple[int, ...], element: str, ctx: Lanes) -> Val:
        n, size = len(pattern), address.buffer.dtype.n_bytes
        result, ty = "poison", vector(element, n)
        for lane, p in enumerate(pattern):
            one = self.writer.fresh(f"load {element}, ptr {self._readable(address, ctx, address.offset + p * size)}")
            result = self.writer.fresh(f"insertelement {ty} {result}, {element} {one}, i64 {lane}")
        return Val(result, self.writer.level, n)

    def _load_once(self, address: Address, pattern: tuple[int, ...], element: str, ctx: Lanes) -> Val:
        """What the innermost loop does not enter: each element once, where any of its lanes runs, then to all of them.

        A gather that the machine does not have is a branch for each lane, of which LLVM makes blocks.
        """
        n, each = len(pattern), ctx.extents[-1]
        assert ctx.mask is not None
        any_runs = self.arith.pick(ctx.mask, "i1", list(range(0, n, each)))
        for k in range(1, each):
            more = self.arith.pick(ctx.mask, "i1", list(range(k, n, each)))
            any_runs = self.arith.instruction("or", "i1", any_runs, more)
        once = address._replace(pattern=pattern[::each], column=None)
        found = self._load(once, replace(ctx.outer(), mask=any_runs))
        return self.arith.pick(found, element, [k // each for k in range(n)])

    def _gather(self, address: Address, distances: Val, element: str, ctx: Lanes) -> Val:
        addresses, n = self._addresses_of(address, distances), distances.lanes
        return self._gathered(addresses, self._mask(ctx, n), element, n, address.buffer.dtype.n_bytes)

    def _gathered(self, addresses: str, mask: str, element: str, n: int, align: int) -> Val:
        ty, name = vector(element, n), f"llvm.masked.gather.{mangled(element, n)}.v{n}p0"
        operands = f"<{n} x ptr> align {align} {addresses}, <{n} x i1> {mask}, {ty} zeroinitializer"
        found = self._here(f"call {ty} @{name}({operands})", n)
        if self.arith.target.loses_gathers:
            self.writer.emit(f"{USE_GATHERED}({ty} {found.text})")
        return found

    def _addresses_of(self, address: Address, distances: Val) -> str:
        pointer = self.addresses.pointer(address)
        element, index = MEMORY_TYPE[address.buffer.dtype], "i64"
        if self.arith.target.pointer_bytes == 4:  # LLVM's lowering of gathers wants indices of a pointer's size
            index, literal = "i32", distances.text.startswith("<")
            distances = (
                distances._replace(text=distances.text.replace("i64", index))
                if literal
                else self.arith.convert("trunc", distances, "i64", index)
            )
        return self.writer.fresh(
            f"getelementptr {element}, ptr {pointer}, <{distances.lanes} x {index}> {distances.text}"
        )

    def _mask(self, ctx: Lanes, n: int) -> str:
        """Lane mask and guard as one mask."""
        mask = ctx.mask or Val("splat (i1 true)", 0, n)
        if ctx.guard is not None:
            mask = self.arith.instruction("and", "i1", mask, ctx.guard)
        return mask.text

    # --- stores -----------------------------------------------------------------------------------------------------

    def _store_vector(self, address: Address, raw: Val, element: str, ctx: Lanes) -> None:
        n, ty = raw.lanes, vector(element, raw.lanes)
        align = self._align(address, address.offset)
        pointer = self.addresses.pointer(address)
        if ctx.mask is None and self._is_odd(n, address):
            room = lanes_of_register(n)
            whole = self.arith.pick(raw, element, [k if k < n else -1 for k in range(room)])
            name, ty = f"llvm.masked.store.{mangled(element, room)}.p0", vector(element, room)
            self.writer.emit(f"call void @{name}({ty} {whole.text}, ptr {align} {pointer}, {_front(n, room)})")
            return
        if ctx.mask is None:
            self.writer.emit(f"store {ty} {raw.text}, ptr {pointer}, {align}")
            return
        if (lane := _only_lane(ctx.mask)) is not None:
            # Of a vector that was narrowed, LLVM 22 for AVX-512 stores a lone element as wide as it was before.
            self._store_part(address, raw, element, lane, 1)
            return
        if not self.arith.target.has_masks and (count := _front_lanes(ctx.mask)):
            # AVX2 on Zen takes a masked store apart into dozens of operations, and others have none.
            start = 0
            while start < count:
                part = 1 << (count - start).bit_length() - 1
                self._store_part(address, raw, element, start, part)
                start += part
            return
        name = f"llvm.masked.store.{mangled(element, n)}.p0"
        self.writer.emit(f"call void @{name}({ty} {raw.text}, ptr {align} {pointer}, <{n} x i1> {ctx.mask.text})")

    def _store_part(self, address: Address, raw: Val, element: str, start: int, count: int) -> None:
        """Lanes ``start`` to ``start + count`` alone."""
        size = address.buffer.dtype.n_bytes
        at = address.offset + start * size
        if count == 1:
            part, ty = self.arith.extract(raw, element, start), element
        else:
            part, ty = self.arith.pick(raw, element, list(range(start, start + count))), vector(element, count)
        self.writer.emit(f"store {ty} {part.text}, ptr {self.addresses.pointer(address, at)}, align {size}")

    def _scatter(self, address: Address, raw: Val, element: str, ctx: Lanes) -> None:
        n, size = raw.lanes, address.buffer.dtype.n_bytes
        use_scatter = ctx.mask is not None or address.lanes is not None or (self.arith.target.has_gather and size >= 4)
        if not use_scatter and address.pattern is not None:
            for lane, p in enumerate(address.pattern):
                one = self.arith.extract(raw, element, lane)
                self.writer.emit(
                    f"store {element} {one.text}, ptr {self.addresses.pointer(address, address.offset + p * size)}"
                )
            return
        distances = address.lanes or Val(f"<{', '.join([f'i64 {p}' for p in address.pattern or ()])}>", 0, n)
        addresses, ty = self._addresses_of(address, distances), vector(element, n)
        name = f"llvm.masked.scatter.{mangled(element, n)}.v{n}p0"
        mask = self._mask(ctx, n)
        self.writer.emit(f"call void @{name}({ty} {raw.text}, <{n} x ptr> align {size} {addresses}, <{n} x i1> {mask})")

    # --- reuse ------------------------------------------------------------------------------------------------------

    def _enter_region(self) -> None:
        if self._region != self.writer.region:
            self._region = self.writer.region
            self.known.clear()

    def _key(self, address: Address, ctx: Lanes) -> object:
        lanes = address.lanes.text if address.lanes else address.pattern
        # One element for all lanes is read whatever runs, but by a mask that may be empty: it may be no place to read.
        is_masked = lanes is not None or ctx.may_be_empty
        mask = (ctx.mask.text, ctx.zeroed) if ctx.mask and is_masked else None
        return address.pointer.text, address.offset, lanes, mask, ctx.guard.text if ctx.guard else None

    def _remember(self, address: Address, key: object, value: Val) -> None:
        size = address.buffer.dtype.n_bytes
        if address.lanes is not None:
            return
        pattern = address.pattern or (0,)
        start, stop = address.offset + min(pattern) * size, address.offset + (max(pattern) + 1) * size
        self.known.setdefault(id(address.buffer), {})[key] = Held(value, address.pointer.text, start, stop)

    def _forget_overlap(self, address: Address) -> None:
        known = self.known.get(id(address.buffer))
        if not known:
            return
        if address.lanes is not None:
            known.clear()
            return
        size, pattern = address.buffer.dtype.n_bytes, address.pattern or (0,)
        start, stop = address.offset + min(pattern) * size, address.offset + (max(pattern) + 1) * size
        pointer = address.pointer.text
        gone = [k for k, v in known.items() if v.pointer != pointer or (v.start < stop and start < v.stop)]
        for k in gone:
            del known[k]


def _equal_runs(pattern: tuple[int, ...]) -> list[int]:
    """The starts of two to four runs of neighbours, equally many lanes each; none for anything else."""
    order, n = sorted(pattern), len(pattern)
    for count in (2, 3, 4):
        length = n // count
        starts = order[::length] if length > 1 and length * count == n else []
        if starts and all(order[k] == starts[k // length] + k % length for k in range(n)):
            return starts
    return []


def _is_repeated(pattern: tuple[int, ...], each: int) -> bool:
    """Do lanes that the innermost of several loops tells apart, ``each`` of them, all have one element?"""
    return 1 < each < len(pattern) and all(p == pattern[k - k % each] for k, p in enumerate(pattern))


def _front(count: int, n: int) -> str:
    """The mask of the first ``count`` of ``n`` lanes."""
    return f"<{n} x i1> <{', '.join([f'i1 {int(k < count)}' for k in range(n)])}>"


def _front_lanes(mask: Val) -> int:
    """How many lanes a constant mask runs, where those are the first ones; 0 of any other mask."""
    bits = bits_of(mask) or ()
    return sum(bits) if bits == tuple(sorted(bits, reverse=True)) else 0


def _only_lane(mask: Val) -> int | None:
    """The lane of a constant mask in which alone it holds."""
    lanes = [k for k, runs in enumerate(bits_of(mask) or ()) if runs]
    return lanes[0] if len(lanes) == 1 else None
