"""Loads, stores and prefetches: addresses, lane patterns, guards, and reuse of what is already in a register.

In: accesses prepared as :class:`Plan`. Out: values and effects. Not its business: what is computed from them.

A load's lanes decide its form: all equal, one scalar load; neighbours, one vector load, masked where lanes are off
or no power of two; within a vector's reach, one or two loads and a shuffle; a column, where the copies of an unrolled
loop read its neighbours, by loading rows and transposing them; otherwise a gather or scalar loads. Inside one basic
block a load of what was loaded or stored before is that value. An address is base, plus stride times variable at that
variable's level, plus the constant at the use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.codegen.cpu import convert
from tilewright.codegen.cpu.arith import Arith
from tilewright.codegen.cpu.index import IndexSpace, Lin
from tilewright.codegen.cpu.lanes import Lanes, bits_of
from tilewright.codegen.cpu.refusals import USE_GATHERED
from tilewright.codegen.cpu.types import MEMORY_TYPE, VALUE_TYPE, literal, mangled, vector
from tilewright.codegen.cpu.writer import Val
from tilewright.core import expr, types
from tilewright.core.compute import Buffer, Value
from tilewright.core.expr import Dim
from tilewright.core.types import Array


@dataclass(frozen=True, eq=False)
class Plan:
    """One mention of a buffer: its position as a sum, and run-time indices with their strides."""

    buffer: Buffer
    lin: Lin
    dynamic: tuple[tuple[Value, Dim], ...]


TRIPLE = 3
"""Copies which read neighbours three apart share one load of all of them; fewer or more are columns of rows."""
Row = tuple[str, int]
"""A pointer and a distance from it in bytes."""


@dataclass(frozen=True)
class Known:
    """A value that memory is known to hold, and the bytes it covers from ``pointer``."""

    value: Val
    pointer: str
    start: int
    stop: int


@dataclass(frozen=True)
class Place:
    """An address: ``pointer + offset`` bytes for lane 0; ``pattern`` gives the other lanes in elements, ``lanes``
    each lane's own element distance where that is not constant (an ``i64`` vector). ``fits``: every lane, running or
    not, lies inside the buffer. ``pointer`` is a multiple of ``unit`` elements from the buffer's start, and so is the
    buffer's size (0: unknown). ``column``: this is copy ``column[0]`` of ``column[1]`` copies of a loop body which
    read neighbours, all inside the buffer. ``spare``: the lanes that do not run lie behind the buffer's last element,
    in memory of its own, so that they may be read and written too. ``rows``: of a column whose ``lanes`` are so many
    run-time elements apart, those distances one by one."""

    buffer: Buffer
    pointer: Val
    offset: int
    pattern: tuple[int, ...] | None = None
    lanes: Val | None = None
    fits: bool = False
    unit: int = 0
    column: tuple[int, int] | None = None
    spare: bool = False
    rows: tuple[Val, ...] = ()


class Memory:
    """Memory access of one function. ``rooms`` has the elements that a local buffer's memory really holds."""

    def __init__(
        self, arith: Arith, space: IndexSpace, base_of: Callable[[Buffer], Val], zeros: Callable[[int], str]
    ) -> None:
        self.arith = arith
        self.space = space
        self.writer = arith.writer
        self.base_of = base_of
        self.zeros = zeros
        self.rooms: dict[Buffer, int] = {}
        self.known: dict[int, dict[object, Known]] = {}
        self._addresses: dict[tuple[str, int], str] = {}
        self._parts: dict[tuple[object, ...], tuple[Dim, tuple[Dim, ...]]] = {}
        self._block = ""

    # --- public -----------------------------------------------------------------------------------------------------

    def load(self, place: Place, ctx: Lanes) -> Val:
        """The element at ``place``, or one element a lane; zero or anything where a guard or mask forbids reading."""
        self._enter_block()
        if place.spare:
            ctx = replace(ctx, mask=None)
        key = self._key(place, ctx)
        held = self.known.get(id(place.buffer), {}).get(key)
        if held is not None:
            return held.value
        if (inside := self._within(place, ctx)) is not None:
            return inside
        value = convert.from_memory(self.arith, place.buffer.dtype, self._load(place, ctx))
        self._remember(place, key, value)
        return value

    def _within(self, place: Place, ctx: Lanes) -> Val | None:
        """A shuffle of a vector in a register, where that holds all elements of a pattern that is no run of them."""
        pattern, size = place.pattern, place.buffer.dtype.n_bytes
        if pattern is None or ctx.mask is not None or ctx.guard is not None or pattern == tuple(range(len(pattern))):
            return None
        start, stop = place.offset + min(pattern) * size, place.offset + (max(pattern) + 1) * size
        for key, known in self.known.get(id(place.buffer), {}).items():
            n = known.value.lanes
            is_run = n > 0 and key == (place.pointer.text, known.start, tuple(range(n)), None, None)
            if is_run and known.start <= start and stop <= known.stop:
                lanes = [(place.offset - known.start) // size + p for p in pattern]
                return self.arith.pick(known.value, VALUE_TYPE[place.buffer.dtype], lanes)
        return None

    def load_words(self, place: Place, n: int, ctx: Lanes) -> Val:
        """``n`` 32-bit words (0: one scalar) from ``place`` on, whatever their elements are."""
        self._enter_block()
        masked = ctx.mask is not None and n > 0
        key = ("words", place.pointer.text, place.offset, n, ctx.mask.text if ctx.mask and masked else None)
        known = self.known.setdefault(id(place.buffer), {})
        if key not in known:
            ty, pointer = vector("i32", n), self._pointer(place, place.offset)
            if ctx.mask is not None and masked:
                operands = f"ptr align 1 {pointer}, <{n} x i1> {ctx.mask.text}, {ty} zeroinitializer"
                value = self._here(f"call {ty} @llvm.masked.load.v{n}i32.p0({operands})", n)
            else:
                value = self._here(f"load {ty}, ptr {pointer}, align 1", n)
            known[key] = Known(value, place.pointer.text, place.offset, place.offset + 4 * max(n, 1))
        return known[key].value

    def load_part(self, place: Place, n_bytes: int) -> Val:
        """The first ``n_bytes`` (1 to 3) from ``place`` on as a 32-bit word, zeros above."""
        word = Val("0", 0, 0)
        for start, bits in ((0, 16), (2, 8)) if n_bytes > 1 else ((0, 8),):
            if start < n_bytes:
                part = self._here(f"load i{bits}, ptr {self._pointer(place, place.offset + start)}, align 1", 0)
                wide = self.arith.convert("zext", part, f"i{bits}", "i32")
                shifted = self.arith.instruction("shl", "i32", wide, Val(str(8 * start), 0, 0))
                word = self.arith.instruction("or", "i32", word, shifted)
        return word

    def store(self, place: Place, value: Val, ctx: Lanes) -> None:
        """Write ``value`` to ``place`` where guard and mask allow."""
        self._enter_block()
        if place.spare:
            ctx = replace(ctx, mask=None)
        dtype = place.buffer.dtype
        value = self.arith.splat(value, VALUE_TYPE[dtype], self._n_lanes(place))
        raw = convert.to_memory(self.arith, dtype, value)
        self._forget_overlap(place)
        element = MEMORY_TYPE[dtype]
        if raw.lanes and place.lanes is None and place.pattern == tuple(range(raw.lanes)):
            self._store_vector(place, raw, element, ctx)
        elif raw.lanes:
            self._scatter(place, raw, element, ctx)
        else:
            self.writer.emit(f"store {element} {raw.text}, ptr {self._pointer(place, place.offset)}")
        if ctx.mask is None or not raw.lanes:
            self._remember(place, self._key(place, ctx), value)

    def prefetch(self, place: Place) -> None:
        """Ask for the cache line at ``place``."""
        self.writer.emit(f"call void @llvm.prefetch.p0(ptr {self._pointer(place, place.offset)}, i32 0, i32 3, i32 1)")

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

    # --- addresses --------------------------------------------------------------------------------------------------

    def locate(self, plan: Plan, ctx: Lanes, index_value: Callable[[Value], Val]) -> Place:
        """The address of an access under the present bindings; lane variables count as 0 in its pointer."""
        lin, size = plan.lin, plan.buffer.dtype.n_bytes
        pointer, offset = self.base_of(plan.buffer), lin.const
        regular = ctx.is_regular(lin)
        runs: list[tuple[int, str, int]] = []
        for sid, coef in lin.terms:
            number = self.space.const[sid]
            if number is not None:
                offset += coef * number
            elif sid not in ctx.sids:
                run = self.space.run[sid]
                assert run is not None, f"a loop variable of {plan.buffer.name}'s index is not open"
                runs.append((run[1], run[0], coef))
        pattern = ctx.pattern(lin) if ctx.syms else None
        distances: tuple[Dim, ...] = ()
        if regular:
            for atom, coef in lin.others:
                offset += self._other(atom, coef, runs)
        else:
            first, distances = self._lane_parts(plan, ctx)
            offset += self._other(first, 1, runs)
            numbers = tuple([d for d in distances if isinstance(d, int)])
            regular = len(numbers) == len(distances)
            pattern = numbers if regular and any(numbers) else None
        runs.sort()
        for level, name, coef in runs:
            step = self.space.scaled(Val(name, level, 0), coef * size)
            pointer = self._advance(pointer, step)
        lanes = None if regular else self._lane_vector(distances)
        if plan.dynamic:
            return self._dynamic(plan, Place(plan.buffer, pointer, offset * size, pattern, lanes), index_value)
        fits = ctx.mask is not None and not ctx.zeroed and regular and self._fits(plan, ctx)
        unit = math.gcd(*[coef for _, _, coef in runs], _n_elements(plan.buffer)) if pattern else 0
        is_spread = lanes is not None or (pattern is not None and max(pattern) >= 2 * len(pattern))
        column = self._column(plan, ctx, None if lanes else pattern) if is_spread else None
        rows = tuple([self.space.value(d) for d in distances]) if lanes is not None and column is not None else ()
        spare = not runs and self._ends_here(plan.buffer, offset, pattern, ctx)
        pattern = None if lanes else pattern
        return Place(plan.buffer, pointer, offset * size, pattern, lanes, fits, unit, column, spare, rows)

    def _ends_here(self, buffer: Buffer, offset: int, pattern: tuple[int, ...] | None, ctx: Lanes) -> bool:
        """Is the buffer's last element the last lane that runs, with room for the others behind it?"""
        if ctx.mask is None or ctx.zeroed or not self._all_live_run(ctx) or ctx.guard is not None or len(ctx.syms) > 1:
            return False
        return (
            pattern == tuple(range(ctx.count))
            and offset + (ctx.live or 0) == _n_elements(buffer)
            and offset + ctx.count <= self.rooms.get(buffer, 0)
        )

    def _column(self, plan: Plan, ctx: Lanes, pattern: tuple[int, ...] | None) -> tuple[int, int] | None:
        """Which copy of how many, where an unrolled loop walks along memory and every copy's place is in the buffer."""
        if ctx.guard is not None or (ctx.mask is not None and not (self._all_live_run(ctx) and len(ctx.syms) == 1)):
            return None
        if ctx.count & (ctx.count - 1):
            return None
        is_triple = ctx.mask is None and pattern == tuple(range(0, 3 * ctx.count, 3))
        for sid, coef in plan.lin.terms:
            n, at = self.space.copies.get(sid, 0), self.space.const[sid]
            is_power = n > 1 and n & (n - 1) == 0 and ctx.count % n == 0
            if coef == 1 and at is not None and (is_power or (n == TRIPLE and is_triple)):
                is_read = sid in self.space.plain and ctx.mask is None
                return (at, n) if is_read or self._fits(plan, ctx, sid) else None
        return None

    def _fits(self, plan: Plan, ctx: Lanes, copied: int | None = None) -> bool:
        """Do all lanes (and all copies of ``copied``) lie in the buffer, as far as intervals tell?

        With a first dimension that is known at run time only: do they lie where the other dimensions' first place does?
        """
        size = _n_elements(plan.buffer)
        row = 0 if size else types.product(plan.buffer.shape[1:])
        if not isinstance(row, int) or not (size or row):
            return False
        low = high = plan.lin.const
        for sid, coef in plan.lin.terms:
            lane = ctx.sids.index(sid) if sid in ctx.sids else -1
            if row and coef % row == 0 and lane < 0 and sid != copied:
                continue
            a, b = self.space.interval[sid] if lane < 0 else (0, ctx.extents[lane] - 1)
            if sid == copied:
                a, b = 0, self.space.copies[sid] - 1
            elif copied is not None and lane >= 0 and ctx.live:
                b = ctx.live - 1
            if a is None or b is None:
                return False
            low, high = low + min(coef * a, coef * b), high + max(coef * a, coef * b)
        for atom, coef in plan.lin.others:
            a, b = self.space.bounds(atom * coef)
            if a is None or b is None or not expr.symbols(atom).isdisjoint(ctx.syms):
                return False
            low, high = low + a, high + b
        return low >= 0 and high < (size or row)

    def _other(self, atom: Dim, coef: int, runs: list[tuple[int, str, int]]) -> int:
        resolved = self.space.resolve(atom)
        for a, c in expr.terms_of(resolved):
            v = self.space.value(a)
            runs.append((v.level, v.text, c * coef))
        return expr.const_of(resolved) * coef

    def _advance(self, pointer: Val, n_bytes: Val) -> Val:
        level = max(pointer.level, n_bytes.level)
        text = f"getelementptr i8, ptr {pointer.text}, i64 {n_bytes.text}"
        return Val(self.writer.pure(text, level), level, 0)

    def _pointer(self, place: Place, offset: int) -> str:
        return self._address(place.pointer.text, offset)

    def _address(self, pointer: str, offset: int) -> str:
        if not offset:
            return pointer
        self._enter_block()
        key = (pointer, offset)
        name = self._addresses.get(key)
        if name is None:
            name = self._addresses[key] = self.writer.fresh(f"getelementptr i8, ptr {key[0]}, i64 {offset}")
        return name

    def _lane_parts(self, plan: Plan, ctx: Lanes) -> tuple[Dim, tuple[Dim, ...]]:
        """For an index that is not linear in the lanes: what the lanes decide in lane 0, and each lane's distance."""
        key = (id(plan), self.space.situation(plan.lin.dim), ctx.extents, ctx.live)
        if key not in self._parts:
            parts = self._per_lane(expr_sum(plan.lin.others, plan.lin.terms, ctx), ctx)
            self._parts[key] = (parts[0], tuple([p - parts[0] for p in parts]))
        return self._parts[key]

    def _per_lane(self, e: Dim, ctx: Lanes) -> list[Dim]:
        points = [dict(zip(ctx.syms, point, strict=True)) for point in ctx.live_points()]
        return [self.space.resolve(expr.substitute(e, point)) for point in points]

    def lane_values(self, e: Dim, ctx: Lanes) -> Val:
        """An index expression of the lane variables as an ``i64`` vector."""
        parts = self._per_lane(e, ctx)
        numbers = [d for d in [p - parts[0] for p in parts] if isinstance(d, int)]
        if len(numbers) < len(parts):
            return self._lane_vector(tuple(parts))
        first = self.arith.splat(self.space.value(parts[0]), "i64", len(parts))
        if not any(numbers):
            return first
        steps = Val(f"<{', '.join([f'i64 {n}' for n in numbers])}>", 0, len(parts))
        return self.arith.instruction("add", "i64", first, steps)

    def _lane_vector(self, parts: tuple[Dim, ...]) -> Val:
        """One computed number a lane."""
        result, ty = Val("poison", 0, len(parts)), f"<{len(parts)} x i64>"
        for lane, p in enumerate(parts):
            v = self.space.value(p)
            level = max(result.level, v.level)
            name = self.writer.pure(f"insertelement {ty} {result.text}, i64 {v.text}, i64 {lane}", level)
            result = Val(name, level, len(parts))
        return result

    def _dynamic(self, plan: Plan, place: Place, index_value: Callable[[Value], Val]) -> Place:
        """Add run-time indices: to the pointer when all lanes agree, else to each lane's distance."""
        pointer, lanes = place.pointer, place.lanes
        for value, stride in plan.dynamic:
            index = index_value(value)
            step = self.space.value(stride)
            if not index.lanes:
                n = self.arith.instruction("mul", "i64", index, self.space.scaled(step, plan.buffer.dtype.n_bytes))
                pointer = self._advance(pointer, n)
                continue
            part = self.arith.instruction("mul", "i64", index, step)
            lanes = part if lanes is None else self.arith.instruction("add", "i64", lanes, part)
        if lanes is not None and place.pattern is not None:
            steps = Val(f"<{', '.join([f'i64 {n}' for n in place.pattern])}>", 0, len(place.pattern))
            lanes = self.arith.instruction("add", "i64", lanes, steps)
        return Place(place.buffer, pointer, place.offset, None if lanes else place.pattern, lanes)

    def _n_lanes(self, place: Place) -> int:
        return place.lanes.lanes if place.lanes else len(place.pattern) if place.pattern else 0

    # --- loads ------------------------------------------------------------------------------------------------------

    def _load(self, place: Place, ctx: Lanes) -> Val:
        element = MEMORY_TYPE[place.buffer.dtype]
        if place.lanes is not None and place.rows and place.column:
            at, width = place.column
            return self._transposed(place, element, self._far_rows(place), at, 1, width)
        if place.lanes is not None:
            return self._gather(place, place.lanes, element, ctx)
        pattern = place.pattern
        if pattern is None:
            return self._here(f"load {element}, ptr {self._readable(place, ctx, place.offset)}", 0)
        n, size = len(pattern), place.buffer.dtype.n_bytes
        if pattern == tuple(range(n)):
            return self._load_vector(place, element, n, ctx)
        if place.column and place.column[1] == TRIPLE and element == VALUE_TYPE[place.buffer.dtype]:
            at = place.column[0]
            run = replace(place, offset=place.offset - at * size, pattern=tuple(range(TRIPLE * n)), column=None)
            return self.arith.pick(self.load(run, ctx), element, [at + p for p in pattern])
        bits = self._running(ctx, n)
        running = [p for p, runs in zip(pattern, bits, strict=True) if runs] if bits else []
        low, high = min(running, default=0), max(running, default=0)
        if bits and running and high - low < 3 * n:
            lanes = [p - low if runs else 0 for p, runs in zip(pattern, bits, strict=True)]
            return self._load_shuffled(place, lanes, element, place.offset + low * size, ctx)
        if ctx.mask is None and (runs := _equal_runs(pattern)):
            return self._load_runs(place, runs, pattern, element, ctx)
        if ctx.mask is None and self._are_pairs(pattern, size):
            return self._load_pairs(place, pattern, ctx)
        if place.column and len(set(pattern)) == n:
            at, width = place.column
            live = pattern[: ctx.live] if ctx.mask is not None else pattern
            start = place.offset - at * size
            rows = tuple([(place.pointer.text, start + r * size) for r in (*live, *live[-1:] * (n - len(live)))])
            return self._transposed(place, element, rows, at, 1, width)
        distances = Val(f"<{', '.join([f'i64 {p}' for p in pattern])}>", 0, n)
        if ctx.mask is None and not (self.arith.target.has_gather and size >= 4):
            return self._load_each(place, pattern, element, ctx)
        return self._gather(place, distances, element, ctx)

    def _running(self, ctx: Lanes, n: int) -> tuple[bool, ...] | None:
        """Which of ``n`` lanes run, where that is known."""
        if ctx.mask is None:
            return (True,) * n
        if self._all_live_run(ctx) and len(ctx.syms) == 1:
            return tuple([k < (ctx.live or 0) for k in range(n)])
        return bits_of(ctx.mask)

    def _all_live_run(self, ctx: Lanes) -> bool:
        """Is the mask no more than the lanes from ``live`` on?"""
        return ctx.live is not None and not ctx.may_be_empty

    def _here(self, rhs: str, lanes: int) -> Val:
        return Val(self.writer.fresh(rhs), self.writer.level, lanes)

    def _readable(self, place: Place, ctx: Lanes, offset: int, lanes: int = 1) -> str:
        """The address, or that of zeros where the guard does not hold."""
        pointer = self._pointer(place, offset)
        guard = ctx.guard
        if ctx.mask is not None and ctx.may_be_empty and place.pattern is None and place.lanes is None:
            guard = self._any_lane(ctx)
        if guard is None:
            return pointer
        zeros = self.zeros(max(lanes, 1) * place.buffer.dtype.n_bytes)
        return self.writer.fresh(f"select i1 {guard.text}, ptr {pointer}, ptr {zeros}")

    def _any_lane(self, ctx: Lanes) -> Val:
        n = ctx.count
        mask = Val(self._mask(ctx, n), self.writer.level, n)
        return self._here(f"call i1 @llvm.vector.reduce.or.v{n}i1(<{n} x i1> {mask.text})", 0)

    def _load_vector(self, place: Place, element: str, n: int, ctx: Lanes) -> Val:
        ty = vector(element, n)
        align = f"align {place.buffer.dtype.n_bytes}"
        pointer = self._readable(place, ctx, place.offset, n)
        if ctx.mask is None or place.fits:
            if self._is_odd(n, place):
                whole = self._load_front(place, element, place.offset, n, _room(n), ctx)
                return self.arith.pick(whole, element, list(range(n)))
            return self._here(f"load {ty}, ptr {pointer}, {align}", n)
        name = f"llvm.masked.load.{mangled(element, n)}.p0"
        return self._here(
            f"call {ty} @{name}(ptr {align} {pointer}, <{n} x i1> {ctx.mask.text}, {ty} zeroinitializer)", n
        )

    def _load_shuffled(self, place: Place, lanes: list[int], element: str, offset: int, ctx: Lanes) -> Val:
        """Everything the lanes touch in one to three vector loads that read no byte beyond, then shuffles.

        When one aligned vector holds it all, that one is read: neighbours want other elements of the same vector.
        """
        n, size = len(lanes), place.buffer.dtype.n_bytes
        span = max(lanes) + 1
        first = offset // size % n
        is_plain = element == VALUE_TYPE[place.buffer.dtype]
        if is_plain and first + span <= n and place.unit and place.unit % n == 0:
            whole = replace(place, offset=offset - first * size, pattern=tuple(range(n)))
            return self.arith.pick(self.load(whole, replace(ctx, mask=None)), element, [first + p for p in lanes])
        align = f"align {size}"
        if span <= n:
            if span < n and self.arith.target.has_masks:
                return self.arith.pick(self._load_front(place, element, offset, span, n, ctx), element, lanes)
            wide = self._here(
                f"load {vector(element, span)}, ptr {self._readable(place, ctx, offset, span)}, {align}", span
            )
            return self.arith.pick(wide, element, lanes)
        ty, start = vector(element, n), span - n
        low = self._here(f"load {ty}, ptr {self._readable(place, ctx, offset, n)}, {align}", n)
        high = self._here(f"load {ty}, ptr {self._readable(place, ctx, offset + start * size, n)}, {align}", n)
        if span <= 2 * n:
            return self.arith.pick(low, element, [p if p < n else n + p - start for p in lanes], high)
        middle = self._here(f"load {ty}, ptr {self._readable(place, ctx, offset + n * size, n)}, {align}", n)
        both = list(range(2 * n))
        parts = [self.arith.pick(low, element, both, middle), self.arith.pick(high, element, both, high)]
        return self.arith.pick(parts[0], element, [p if p < 2 * n else 2 * n + p - start for p in lanes], parts[1])

    def _load_front(self, place: Place, element: str, offset: int, count: int, n: int, ctx: Lanes) -> Val:
        """A vector of ``n`` of which only the first ``count`` elements are read."""
        ty, name = vector(element, n), f"llvm.masked.load.{mangled(element, n)}.p0"
        pointer = self._readable(place, ctx, offset, n)
        align = f"align {place.buffer.dtype.n_bytes}"
        return self._here(f"call {ty} @{name}(ptr {align} {pointer}, {_front(count, n)}, {ty} zeroinitializer)", n)

    def _is_odd(self, n: int, place: Place) -> bool:
        """Would a run go in parts that are powers of two, 15 elements as 8, 4, 2, 1, where a masked one goes whole?"""
        fits = n * place.buffer.dtype.n_bytes <= self.arith.target.vector_bytes
        return n & (n - 1) != 0 and fits and self.arith.target.has_masks

    def _load_runs(
        self, place: Place, starts: Sequence[int], pattern: tuple[int, ...], element: str, ctx: Lanes
    ) -> Val:
        """Runs of neighbours, equally long, in any order of lanes: a load for each, and shuffles of two at a time."""
        length, size = len(pattern) // len(starts), place.buffer.dtype.n_bytes
        ty, align = vector(element, length), f"align {size}"
        addresses = [self._readable(place, ctx, place.offset + start * size, length) for start in starts]
        parts = [self._here(f"load {ty}, ptr {address}, {align}", length) for address in addresses]
        lanes = [next(k * length + p - at for k, at in enumerate(starts) if at <= p < at + length) for p in pattern]
        if len(parts) > 2:
            both = list(range(2 * length))
            parts = [self.arith.pick(a, element, both, b) for a, b in (parts[:2], (parts[2], parts[-1]))]
        return self.arith.pick(parts[0], element, lanes, parts[1])

    def _far_rows(self, place: Place) -> tuple[Row, ...]:
        """Where the rows of a column begin that lie at run-time distances."""
        assert place.column is not None
        size = place.buffer.dtype.n_bytes
        far = [self._advance(place.pointer, self.space.scaled(r, size)) for r in place.rows]
        return tuple([(p.text, place.offset - place.column[0] * size) for p in far])

    def _transposed(self, place: Place, element: str, rows: tuple[Row, ...], first: int, count: int, width: int) -> Val:
        """Columns ``first`` to ``first + count`` of rows of ``width`` elements, row after row in one vector.

        Made of twice as many columns of half the rows each, so that all columns of n rows take n log n shuffles.
        """
        size, n = place.buffer.dtype.n_bytes, len(rows)
        key = ("transposed", rows, first, count)
        known = self.known.setdefault(id(place.buffer), {})
        if key not in known:
            if n == 1:
                pointer, start = rows[0]
                address = self._address(pointer, start)
                value = self._here(f"load {vector(element, width)}, ptr {address}, align {size}", width)
            else:
                given = min(2 * count, width)
                base = first - first % given
                parts = (rows[: n // 2], rows[n // 2 :])
                halves = [self._transposed(place, element, part, base, given, width) for part in parts]
                lanes = [r * given + first - base + c for r in range(n) for c in range(count)]
                value = self.arith.pick(halves[0], element, lanes, halves[1])
            starts, pointers = [start for _, start in rows], {pointer for pointer, _ in rows}
            pointer = pointers.pop() if len(pointers) == 1 else ""  # several: any store ends what is known
            known[key] = Known(value, pointer, min(starts), max(starts) + width * size)
        return known[key].value

    def _are_pairs(self, pattern: tuple[int, ...], size: int) -> bool:
        """Elements of two bytes, each even lane followed by its neighbour: words, where gathers of words are fast."""
        even, odd = pattern[::2], pattern[1::2]
        neighbours = len(even) == len(odd) and all(b == a + 1 for a, b in zip(even, odd, strict=True))
        return size == 2 and neighbours and self.arith.target.has_gather

    def _load_pairs(self, place: Place, pattern: tuple[int, ...], ctx: Lanes) -> Val:
        n = len(pattern) // 2
        distances = Val(f"<{', '.join([f'i64 {p}' for p in pattern[::2]])}>", 0, n)
        found = self._gathered(self._addresses_of(place, distances), self._mask(ctx, n), "i32", n, align=2)
        name = self.writer.pure(f"bitcast <{n} x i32> {found.text} to <{2 * n} x i16>", found.level)
        return Val(name, found.level, 2 * n)

    def _load_each(self, place: Place, pattern: tuple[int, ...], element: str, ctx: Lanes) -> Val:
        n, size = len(pattern), place.buffer.dtype.n_bytes
        result, ty = "poison", vector(element, n)
        for lane, p in enumerate(pattern):
            one = self.writer.fresh(f"load {element}, ptr {self._readable(place, ctx, place.offset + p * size)}")
            result = self.writer.fresh(f"insertelement {ty} {result}, {element} {one}, i64 {lane}")
        return Val(result, self.writer.level, n)

    def _gather(self, place: Place, distances: Val, element: str, ctx: Lanes) -> Val:
        addresses, n = self._addresses_of(place, distances), distances.lanes
        return self._gathered(addresses, self._mask(ctx, n), element, n, place.buffer.dtype.n_bytes)

    def _gathered(self, addresses: str, mask: str, element: str, n: int, align: int) -> Val:
        ty, name = vector(element, n), f"llvm.masked.gather.{mangled(element, n)}.v{n}p0"
        operands = f"<{n} x ptr> align {align} {addresses}, <{n} x i1> {mask}, {ty} zeroinitializer"
        found = self._here(f"call {ty} @{name}({operands})", n)
        if self.arith.target.loses_gathers:
            self.writer.emit(f"{USE_GATHERED}({ty} {found.text})")
        return found

    def _addresses_of(self, place: Place, distances: Val) -> str:
        pointer = self._pointer(place, place.offset)
        element, index = MEMORY_TYPE[place.buffer.dtype], "i64"
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

    def _store_vector(self, place: Place, raw: Val, element: str, ctx: Lanes) -> None:
        n, ty = raw.lanes, vector(element, raw.lanes)
        align = f"align {place.buffer.dtype.n_bytes}"
        pointer = self._pointer(place, place.offset)
        if ctx.mask is None and self._is_odd(n, place):
            room = _room(n)
            whole = self.arith.pick(raw, element, [k if k < n else -1 for k in range(room)])
            name, ty = f"llvm.masked.store.{mangled(element, room)}.p0", vector(element, room)
            self.writer.emit(f"call void @{name}({ty} {whole.text}, ptr {align} {pointer}, {_front(n, room)})")
            return
        if ctx.mask is None:
            self.writer.emit(f"store {ty} {raw.text}, ptr {pointer}, {align}")
            return
        if (lane := _only_lane(ctx.mask)) is not None:
            # Of a vector that was narrowed, LLVM 22 for AVX-512 stores a lone element as wide as it was before.
            one = self.arith.extract(raw, element, lane)
            address = self._pointer(place, place.offset + lane * place.buffer.dtype.n_bytes)
            self.writer.emit(f"store {element} {one.text}, ptr {address}, {align}")
            return
        name = f"llvm.masked.store.{mangled(element, n)}.p0"
        self.writer.emit(f"call void @{name}({ty} {raw.text}, ptr {align} {pointer}, <{n} x i1> {ctx.mask.text})")

    def _scatter(self, place: Place, raw: Val, element: str, ctx: Lanes) -> None:
        n, size = raw.lanes, place.buffer.dtype.n_bytes
        use_scatter = ctx.mask is not None or place.lanes is not None or (self.arith.target.has_gather and size >= 4)
        if not use_scatter and place.pattern is not None:
            for lane, p in enumerate(place.pattern):
                one = self.arith.extract(raw, element, lane)
                self.writer.emit(f"store {element} {one.text}, ptr {self._pointer(place, place.offset + p * size)}")
            return
        distances = place.lanes or Val(f"<{', '.join([f'i64 {p}' for p in place.pattern or ()])}>", 0, n)
        addresses, ty = self._addresses_of(place, distances), vector(element, n)
        name = f"llvm.masked.scatter.{mangled(element, n)}.v{n}p0"
        mask = self._mask(ctx, n)
        self.writer.emit(f"call void @{name}({ty} {raw.text}, <{n} x ptr> align {size} {addresses}, <{n} x i1> {mask})")

    # --- reuse ------------------------------------------------------------------------------------------------------

    def _enter_block(self) -> None:
        if self._block != self.writer.block:
            self._block = self.writer.block
            self.known.clear()
            self._addresses.clear()

    def _key(self, place: Place, ctx: Lanes) -> object:
        lanes = place.lanes.text if place.lanes else place.pattern
        uniform = lanes is None
        mask = (ctx.mask.text, ctx.zeroed) if ctx.mask and not uniform else None
        return place.pointer.text, place.offset, lanes, mask, ctx.guard.text if ctx.guard else None

    def _remember(self, place: Place, key: object, value: Val) -> None:
        size = place.buffer.dtype.n_bytes
        if place.lanes is not None:
            return
        pattern = place.pattern or (0,)
        start, stop = place.offset + min(pattern) * size, place.offset + (max(pattern) + 1) * size
        self.known.setdefault(id(place.buffer), {})[key] = Known(value, place.pointer.text, start, stop)

    def _forget_overlap(self, place: Place) -> None:
        known = self.known.get(id(place.buffer))
        if not known:
            return
        if place.lanes is not None:
            known.clear()
            return
        size, pattern = place.buffer.dtype.n_bytes, place.pattern or (0,)
        start, stop = place.offset + min(pattern) * size, place.offset + (max(pattern) + 1) * size
        pointer = place.pointer.text
        gone = [k for k, v in known.items() if v.pointer != pointer or (v.start < stop and start < v.stop)]
        for k in gone:
            del known[k]


def _n_elements(buffer: Buffer) -> int:
    """The size of a buffer, 0 when it is known at run time only."""
    size = types.product(buffer.shape)
    return size if isinstance(size, int) else 0


def _equal_runs(pattern: tuple[int, ...]) -> list[int]:
    """The starts of two to four runs of neighbours, equally many lanes each; none for anything else."""
    order, n = sorted(pattern), len(pattern)
    for count in (2, 3, 4):
        length = n // count
        starts = order[::length] if length > 1 and length * count == n else []
        if starts and all(order[k] == starts[k // length] + k % length for k in range(n)):
            return starts
    return []


def expr_sum(others: tuple[tuple[expr.Atom, int], ...], terms: tuple[tuple[int, int], ...], ctx: Lanes) -> Dim:
    """The part of a sum that the lanes change, as an expression of the lane variables and others."""
    total: Dim = 0
    for atom, coef in others:
        total = total + atom * coef
    for sid, coef in terms:
        if sid in ctx.sids:
            total = total + ctx.syms[ctx.sids.index(sid)] * coef
    return total


def _room(n: int) -> int:
    """The lanes of the register that holds ``n``: the next power of two."""
    return 1 << (n - 1).bit_length()


def _front(count: int, n: int) -> str:
    """The mask of the first ``count`` of ``n`` lanes."""
    return f"<{n} x i1> <{', '.join([f'i1 {int(k < count)}' for k in range(n)])}>"


def _only_lane(mask: Val) -> int | None:
    """The lane of a constant mask in which alone it holds."""
    lanes = [k for k, runs in enumerate(bits_of(mask) or ()) if runs]
    return lanes[0] if len(lanes) == 1 else None
