"""Where an access lies: its address for lane 0, and how far every other lane is from that.

In: accesses prepared as :class:`Mention`, the open lanes. Out: an :class:`Address`. Not its business: reading and
writing (``memory``).

An address is base, plus stride times variable at that variable's level, plus the constant at the use, so that what a
loop does not change is computed outside of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tilewright.codegen.llvm.analysis import Analysis
from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.index import IndexSpace, Lin
from tilewright.codegen.llvm.lanes import Lanes, lanes_of_register
from tilewright.codegen.llvm.padding import Beyond
from tilewright.codegen.llvm.writer import Val
from tilewright.core import expr, types
from tilewright.core.compute import Buffer, Value
from tilewright.core.dims import is_known, known, numbers
from tilewright.core.estimates import SHUFFLED_STRIDE
from tilewright.core.expr import Dim


@dataclass(frozen=True, eq=False)
class Mention:
    """One mention of a buffer: its position as a sum, and run-time indices with their strides."""

    buffer: Buffer
    lin: Lin
    dynamic: tuple[tuple[Value, Dim], ...]


Run: TypeAlias = tuple[int, str, int]
"""A term of a sum: its level, its value's name, and the factor."""
TRIPLE = 3
"""Copies which read neighbours three apart share one load of all of them; fewer or more are columns of rows."""


class Column(NamedTuple):
    """What copy ``copy`` of ``n`` copies of a loop body reads, each ``step`` elements behind the one before."""

    copy: int
    n: int
    step: int

    @property
    def start(self) -> int:
        """Elements between what the first copy reads and what this one does."""
        return self.copy * self.step


class Address(NamedTuple):
    """``pointer + offset`` bytes for lane 0; ``pattern`` gives the other lanes in elements, ``lanes`` each lane's own
    element distance where that is not constant (an ``i64`` vector).

    ``fits``: every lane, running or not, lies inside the buffer, and may be read. ``pointer`` is a multiple of ``unit``
    elements from the buffer's start, and so is the buffer's size (0: unknown). ``column``: this is one of the copies of
    a loop body which all read inside the buffer. ``spare``: the lanes that do not run lie in memory of the buffer's own
    where it keeps nothing, so that they may be read and written too. ``rows``: of a column whose ``lanes`` are so many
    run-time elements apart, those distances one by one. ``step``: ``pointer`` is a multiple of so many elements from
    the buffer's start (0: it is the start; None: unknown).
    """

    buffer: Buffer
    pointer: Val
    offset: int
    pattern: tuple[int, ...] | None = None
    lanes: Val | None = None
    fits: bool = False
    unit: int = 0
    column: Column | None = None
    spare: bool = False
    rows: tuple[Val, ...] = ()
    step: int | None = None

    @property
    def n_lanes(self) -> int:
        """0 for one element that all lanes share."""
        return self.lanes.lanes if self.lanes else len(self.pattern) if self.pattern else 0


class Addresses:
    """Addresses in one function. ``rooms`` has the elements that a local buffer's memory really holds.

    ``analysis`` tells which temporaries have room for whole vectors; without it none has.
    """

    def __init__(
        self, arith: Arith, space: IndexSpace, base_of: Callable[[Buffer], Val], analysis: Analysis | None = None
    ) -> None:
        self.arith = arith
        self.space = space
        self.writer = arith.writer
        self.base_of = base_of
        self.analysis = analysis
        self.rooms: dict[Buffer, int] = {}
        self._known: dict[tuple[str, int], str] = {}
        self._parts: dict[tuple[object, ...], tuple[Dim, tuple[Dim, ...]]] = {}
        self._region = ""

    def locate(self, mention: Mention, ctx: Lanes, index_value: Callable[[Value], Val]) -> Address:
        """The address of an access under the present bindings; lane variables count as 0 in its pointer."""
        lin = mention.lin
        offset = lin.const
        regular = ctx.is_regular(lin)
        runs: list[Run] = []
        units: list[int] = []
        for sid, coef in lin.terms:
            # A copy of an unrolled loop is a number: it goes into the instruction's displacement, and costs nothing.
            number = self.space.const[sid]
            if number is not None:
                offset += coef * number
            elif sid not in ctx.sids:
                run = self.space.run[sid]
                assert run is not None, f"a loop variable of {mention.buffer.name}'s index is not open"
                runs.append((run.level, run.name, coef))
                units.append(coef * run.unit)
                offset += coef * run.plus
        pattern = ctx.pattern(lin) if ctx.syms else None
        distances: tuple[Dim, ...] = ()
        if regular:
            for atom, coef in lin.others:
                offset += self._other(atom, coef, runs, units)
        else:
            # Lanes that a quotient or a remainder places are each a distance from the first, which alone moves the
            # pointer.
            first, distances = self._lane_parts(mention, ctx)
            offset += self._other(first, 1, runs, units)
            fixed = tuple(numbers(distances))
            regular = len(fixed) == len(distances)
            pattern = fixed if regular and any(fixed) else None
        runs.sort()  # what the outer loops decide is added first, so that an inner loop adds only its own part
        pointer, n_bytes = self._start(mention.buffer, runs, offset)
        lanes = None if regular else self._lane_vector(distances)
        common = math.gcd(*units)
        if mention.dynamic:
            start = Address(mention.buffer, pointer, n_bytes, pattern, lanes, step=common)
            return self._dynamic(mention, start, index_value)
        fits = ctx.mask is not None and not ctx.zeroed and regular and self._fits(mention, ctx)
        # Where each part of the place and the buffer's size are multiples of a unit, an aligned unit is inside as a
        # whole.
        unit = math.gcd(common, _n_elements(mention.buffer)) if pattern else 0
        is_spread = lanes is not None or (pattern is not None and max(pattern) >= 2 * len(pattern))
        column = self._column(mention, ctx, None if lanes else pattern) if is_spread else None
        rows = tuple([self.space.value(d) for d in distances]) if lanes is not None and column is not None else ()
        spare = (fits and self._has_room(mention.buffer, pattern, ctx)) or (
            not runs and self._ends_here(mention.buffer, offset, pattern, ctx)
        )
        fits = fits and (spare or not self._may_be_unset(mention.buffer))
        pattern = None if lanes else pattern
        return Address(mention.buffer, pointer, n_bytes, pattern, lanes, fits, unit, column, spare, rows, common)

    def _start(self, buffer: Buffer, runs: list[Run], offset: int) -> tuple[Val, int]:
        """The buffer's pointer moved by what is known at run time, and the bytes from there to the access.

        ``offset`` and the factors of ``runs`` count elements from the buffer's start.
        """
        size = buffer.dtype.n_bytes
        return self.moved(self.base_of(buffer), runs, size), offset * size

    def moved(self, pointer: Val, runs: list[Run], size: int) -> Val:
        """A pointer moved by a sum of elements of ``size`` bytes.

        Accesses beside each other move it by the same sum. It is known as long as the innermost loop that decides it is
        open.
        """
        if not runs:
            return pointer
        known = self.writer.scopes[max(pointer.level, max(runs)[0])].indices
        key = (pointer.text, size, *runs)
        found = known.get(key)
        if found is None:
            found = pointer
            for level, name, coef in runs:
                found = self.advance(found, self.space.scaled(Val(name, level, 0), coef * size))
            known[key] = found
        return found

    def _has_room(self, buffer: Buffer, pattern: tuple[int, ...] | None, ctx: Lanes) -> bool:
        """Are the lanes a run of neighbours, of which those that do not run lie in room of the buffer's own?"""
        beyond = self.analysis.beyond.get(id(buffer)) if self.analysis is not None else None
        return beyond is Beyond.ROOM and _is_front_of_run(pattern, ctx)

    def _may_be_unset(self, buffer: Buffer) -> bool:
        """May a lane that does not run read what nobody wrote, where a mask would spare it at no cost?"""
        if self.analysis is None or not self.arith.target.has_masks:
            return False
        return self.analysis.beyond.get(id(buffer), Beyond.KEPT) is None

    def _ends_here(self, buffer: Buffer, offset: int, pattern: tuple[int, ...] | None, ctx: Lanes) -> bool:
        """Is the buffer's last element the last lane that runs, with room for the others behind it?"""
        return (
            _is_front_of_run(pattern, ctx)
            and offset + (ctx.live or 0) == _n_elements(buffer)
            and offset + ctx.count <= self.rooms.get(buffer, 0)
        )

    def _column(self, mention: Mention, ctx: Lanes, pattern: tuple[int, ...] | None) -> Column | None:
        """Which copy of how many, where an unrolled loop walks along memory and every copy's place is in the buffer."""
        # Rows are read whole: a lane that must not be read would be.
        if ctx.guard is not None or (ctx.mask is not None and not (ctx.all_live_run and len(ctx.syms) == 1)):
            return None
        n_rows = lanes_of_register(ctx.count)  # with those that stand in for others
        is_triple = n_rows == ctx.count and ctx.mask is None and pattern == tuple(range(0, TRIPLE * ctx.count, TRIPLE))
        for sid, coef in mention.lin.terms:
            n, at = self.space.copies.get(sid, 0), self.space.const[sid]
            is_power = n > 1 and n & (n - 1) == 0 and n_rows % n == 0
            is_row = 1 <= coef <= SHUFFLED_STRIDE and is_power
            if at is not None and (is_row or (coef == 1 and n == TRIPLE and is_triple)):
                is_read = sid in self.space.plain and ctx.mask is None
                return Column(at, n, coef) if is_read or self._fits(mention, ctx, sid) else None
        return None

    def _fits(self, mention: Mention, ctx: Lanes, copied: int | None = None) -> bool:
        """Do all lanes (and all copies of ``copied``) lie in the buffer, as far as intervals tell?

        With a first dimension that is known at run time only: do they lie where the other dimensions' first place does?
        """
        size = _n_elements(mention.buffer)
        row = 0 if size else types.product(mention.buffer.shape[1:])
        if not is_known(row) or not (size or row):
            return False
        low = high = mention.lin.const
        for sid, coef in mention.lin.terms:
            lane = ctx.sids.index(sid) if sid in ctx.sids else -1
            if row and coef % row == 0 and lane < 0 and sid != copied:
                continue  # it moves whole rows, of which there are as many as the caller says
            a, b = self.space.interval[sid] if lane < 0 else (0, ctx.extents[lane] - 1)
            if sid == copied:
                a, b = 0, self.space.copies[sid] - 1
            elif copied is not None and lane >= 0 and ctx.live:
                b = ctx.live - 1
            if a is None or b is None:
                return False
            low, high = low + min(coef * a, coef * b), high + max(coef * a, coef * b)
        for atom, coef in mention.lin.others:
            a, b = self.space.bounds(atom * coef)
            if a is None or b is None or not expr.symbols(atom).isdisjoint(ctx.syms):
                return False
            low, high = low + a, high + b
        return low >= 0 and high < (size or row)

    def _other(self, atom: Dim, coef: int, runs: list[Run], units: list[int]) -> int:
        resolved = self.space.resolve(atom)
        for a, c in expr.terms_of(resolved):
            v = self.space.value(a)
            runs.append((v.level, v.text, c * coef))
            units.append(c * coef)
        return expr.const_of(resolved) * coef

    def at(self, pointer: str, offset: int) -> str:
        """A pointer so many bytes behind another."""
        if not offset:
            return pointer
        if self._region != self.writer.region:  # what one computed need not have run where another does
            self._region = self.writer.region
            self._known.clear()
        key = (pointer, offset)
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = self.writer.fresh(f"getelementptr i8, ptr {key[0]}, i64 {offset}")
        return name

    def pointer(self, address: Address, offset: int | None = None) -> str:
        """A pointer to lane 0's element, or ``offset`` bytes from the address's own pointer."""
        return self.at(address.pointer.text, address.offset if offset is None else offset)

    def advance(self, pointer: Val, n_bytes: Val) -> Val:
        """The same by a number of bytes that is known at run time, computed in the outermost loop that knows it."""
        level = max(pointer.level, n_bytes.level)
        text = f"getelementptr i8, ptr {pointer.text}, i64 {n_bytes.text}"
        return Val(self.writer.pure(text, level), level, 0)

    def _lane_parts(self, mention: Mention, ctx: Lanes) -> tuple[Dim, tuple[Dim, ...]]:
        """For an index that is not linear in the lanes: what the lanes decide in lane 0, and each lane's distance."""
        key = (id(mention), self.space.situation(mention.lin.dim), ctx.extents, ctx.live)
        if key not in self._parts:
            parts = self._per_lane(_lanes_part(mention.lin.others, mention.lin.terms, ctx), ctx)
            self._parts[key] = (parts[0], tuple([p - parts[0] for p in parts]))
        return self._parts[key]

    def _per_lane(self, e: Dim, ctx: Lanes) -> list[Dim]:
        points = [dict(zip(ctx.syms, point, strict=True)) for point in ctx.live_points()]
        return [self.space.resolve(expr.substitute(e, point)) for point in points]

    def lane_values(self, e: Dim, ctx: Lanes) -> Val:
        """An index expression of the lane variables as an ``i64`` vector."""
        parts = self._per_lane(e, ctx)
        apart = numbers([p - parts[0] for p in parts])
        if len(apart) < len(parts):
            return self._lane_vector(tuple(parts))
        first = self.arith.splat(self.space.value(parts[0]), "i64", len(parts))
        if not any(apart):
            return first
        steps = Val(f"<{', '.join([f'i64 {n}' for n in apart])}>", 0, len(parts))
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

    def _dynamic(self, mention: Mention, address: Address, index_value: Callable[[Value], Val]) -> Address:
        """Add run-time indices: to the pointer when all lanes agree, else to each lane's distance."""
        pointer, lanes, step_of_all = address.pointer, address.lanes, address.step
        for value, stride in mention.dynamic:
            index = index_value(value)
            step = self.space.value(stride)
            if not index.lanes:
                n = self.arith.instruction("mul", "i64", index, self.space.scaled(step, mention.buffer.dtype.n_bytes))
                pointer = self.advance(pointer, n)
                step_of_all = math.gcd(step_of_all or 0, stride) if is_known(stride) else 1
                continue
            part = self.arith.instruction("mul", "i64", index, step)
            lanes = part if lanes is None else self.arith.instruction("add", "i64", lanes, part)
        if lanes is not None and address.pattern is not None:
            steps = Val(f"<{', '.join([f'i64 {n}' for n in address.pattern])}>", 0, len(address.pattern))
            lanes = self.arith.instruction("add", "i64", lanes, steps)
        pattern = None if lanes else address.pattern
        return Address(address.buffer, pointer, address.offset, pattern, lanes, step=step_of_all)


def _is_front_of_run(pattern: tuple[int, ...] | None, ctx: Lanes) -> bool:
    """Do the first lanes of a run of neighbours run, and the others never?"""
    if ctx.mask is None or ctx.zeroed or not ctx.all_live_run or ctx.guard is not None or len(ctx.syms) > 1:
        return False
    return pattern == tuple(range(ctx.count))


def _n_elements(buffer: Buffer) -> int:
    """The size of a buffer, 0 when it is known at run time only."""
    size = types.product(buffer.shape)
    return known(size, 0)


def _lanes_part(others: tuple[tuple[expr.Atom, int], ...], terms: tuple[tuple[int, int], ...], ctx: Lanes) -> Dim:
    """The part of a sum that the lanes change, as an expression of the lane variables and others."""
    total: Dim = 0
    for atom, coef in others:
        total = total + atom * coef
    for sid, coef in terms:
        if sid in ctx.sids:
            total = total + ctx.syms[ctx.sids.index(sid)] * coef
    return total
