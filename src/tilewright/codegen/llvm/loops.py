"""Loops: run-time loops with their phis, copies, lanes, and pieces of equal status.

In: ``For`` statements. Out: blocks and branches in the function at hand. Not its business: the body's statements
(``function``), where to cut (``split``), kinds of loops that one processor has (``codegen.cpu.loops``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tilewright.codegen.llvm import shared, split
from tilewright.codegen.llvm.analysis import MAX_LANES_PER_BYTE, MAX_UNROLL
from tilewright.codegen.llvm.digits import CarriedDigits
from tilewright.codegen.llvm.lanes import Lanes, Patterns, mask_of
from tilewright.codegen.llvm.registers import Key, NarrowError, Slot
from tilewright.codegen.llvm.types import VALUE_TYPE, vector
from tilewright.codegen.llvm.writer import Val
from tilewright.core import expr
from tilewright.core.dims import is_known, known, known_at_most
from tilewright.core.expr import Dim, Interval, Sym
from tilewright.tile.ir import For, Kind, Stmt, Store, walk
from tilewright.tile.verify import COPIED

if TYPE_CHECKING:
    from tilewright.codegen.llvm.function import KernelFunction

SMALLEST_BYTES = 16
"""Vector registers may be narrower than the widest, down to this."""
MOST_NARROW = (1 << 31) - 1
"""The largest number in 32 bits."""


class Loops:
    """Emits the loops of one function."""

    def __init__(self, fn: KernelFunction) -> None:
        self.fn = fn
        self.windows: dict[int, tuple[Dim, Dim]] = {}
        """Loops of which only a range of iterations is wanted, by identity."""
        self._patterns: dict[tuple[tuple[int, ...], tuple[int, ...]], Patterns] = {}

    def emit(self, f: For, ctx: Lanes) -> None:
        """Emit a loop as its kind says, or one iteration at a time where that is not possible."""
        extent = self.fn.space.resolve(f.loop.extent)
        if known_at_most(extent, 0):
            return
        match f.loop.kind:
            case Kind.VECTOR:
                self._vector(f, extent, ctx)
            case Kind.UNROLL | Kind.STEP | Kind.DOT:
                self._copies(f, extent, ctx)
            case _ if self.own(f, extent, ctx):
                pass
            case _:
                self._unless_empty(f, extent, ctx)

    def own(self, f: For, extent: Dim, ctx: Lanes) -> bool:
        """Emit a loop of a kind that this processor runs in its own way; False, and nothing emitted, for others."""
        return False

    def end_of_turn(self, f: For, turn: str) -> None:
        """Emit what a run-time loop does at the end of each turn, of which ``turn`` is the number."""

    def _unless_empty(self, f: For, extent: Dim, ctx: Lanes) -> None:
        """A loop within others, skipped as a whole where the loops inside of it would find nothing to do each time.

        So tiles of the rows that a call does not leave cost one branch, and not one in every turn of the loops that
        walk panels around them.
        """
        run = partial(self.serial, f, extent, ctx, self.windows.get(id(f)))
        count = self._count_inside(f) if self.fn.writer.level else None
        if count is None:
            run()
            return
        value = self.fn.space.value(count)
        bit = Val(self.fn.writer.pure(f"icmp sgt i64 {value.text}, 0", value.level), value.level, 0)

        def within() -> None:
            mark = self.fn.space.assume([count - 1])
            run()
            self.fn.space.release(mark)

        self.branch(bit, within)

    def _count_inside(self, f: For) -> Dim | None:
        """Iterations of a loop that is all that is in ``f``, as many in each of its turns, perhaps none."""
        turned = {f.loop.sym}
        while len(f.body) == 1 and isinstance(f.body[0], For) and f.body[0].loop.kind not in COPIED:
            f = f.body[0]
            if turned.isdisjoint(expr.symbols(f.loop.extent)):
                extent = self.fn.space.resolve(f.loop.extent)
                if not is_known(extent) and self.fn.space.proved(extent - 1) is not True:
                    return extent
            turned.add(f.loop.sym)
        return None

    # --- pieces of a run-time loop ----------------------------------------------------------------------------------

    def serial(self, f: For, extent: Dim, ctx: Lanes, window: tuple[Dim, Dim] | None = None) -> None:
        """A loop cut where guards and ragged extents of its body change; only iterations in ``window`` where given."""
        fn, sym = self.fn, f.loop.sym
        if extent == 1 and window is None:
            self._once(f, 0, ctx)
            return
        conditions = fn.module.splits.of(f)
        whole = split.RangePiece(0, extent)
        fn.space.bind_run(sym, "", 0, self._interval(f, whole))
        found = split.pieces(fn.space, sym, extent, conditions) if conditions else [whole]
        fn.space.unbind(sym)
        for piece in found:
            self._piece(f, piece, ctx, window)

    def _piece(self, f: For, piece: split.RangePiece, ctx: Lanes, window: tuple[Dim, Dim] | None) -> None:
        lo, hi = piece.lo, piece.hi
        if is_known(lo) and is_known(hi) and hi - lo == 1:
            if window is None:
                self._once(f, lo, ctx)
            else:
                self._once_within(f, lo, window, ctx)
            return
        interval = self._interval(f, piece)
        if window is not None:
            lo, hi = expr.maximum(lo, window[0]), expr.minimum(hi, window[1])
        lo, hi = self.fn.space.resolve(lo), self.fn.space.resolve(hi)
        may_be_empty = self.fn.space.proved(hi - lo - 1) is not True  # before the facts, which hold inside only
        facts = list(piece.facts)
        if not is_known(hi):
            facts.append(hi - 1 - f.loop.sym)
        if not is_known(lo):
            facts.append(f.loop.sym - lo)
        self._run(f, lo, hi, interval, may_be_empty, facts, ctx)

    def _once_within(self, f: For, value: int, window: tuple[Dim, Dim], ctx: Lanes) -> None:
        """One known iteration, run where the window holds it."""
        first, end = (self.fn.space.value(d).text for d in window)
        above = self.fn.writer.fresh(f"icmp sle i64 {first}, {value}")
        below = self.fn.writer.fresh(f"icmp sgt i64 {end}, {value}")
        bit = Val(self.fn.writer.fresh(f"and i1 {above}, {below}"), self.fn.writer.level, 0)
        self.branch(bit, lambda: self._once(f, value, ctx))

    def _once(self, f: For, value: int, ctx: Lanes) -> None:
        self.fn.space.bind_const(f.loop.sym, value)
        self._body(f, ctx)
        self.fn.space.unbind(f.loop.sym)

    def _body(self, f: For, ctx: Lanes) -> None:
        for buffer in self.fn.analysis.homes.get(id(f), ()):
            self.fn.registers.forget(buffer)
        self.fn.body(f.body, ctx)

    def _interval(self, f: For, piece: split.RangePiece) -> Interval:
        """Numeric bounds of the variable in a piece."""
        low, high = self.fn.space.bounds(piece.lo)[0], self.fn.space.bounds(piece.hi)[1]
        limit = self._upper(f)
        high = limit if high is None else high if limit is None else min(high, limit)
        return low, None if high is None else high - 1

    def _upper(self, f: For) -> int | None:
        """The largest extent that the loop can have."""
        return self.fn.space.limit(f.loop.extent)

    def _run(self, f: For, lo: Dim, hi: Dim, interval: Interval, guarded: bool, facts: list[Dim], ctx: Lanes) -> None:
        """The loop itself, tested at the bottom; a test in front where it may run zero times."""
        fn, w = self.fn, self.fn.writer
        start, stop = fn.space.value(lo), fn.space.value(hi)
        enter = Val("", 0, 0)
        if guarded:
            level = max(start.level, stop.level)
            enter = Val(w.pure(f"icmp slt i64 {start.text}, {stop.text}", level), level, 0)
        loop, after = w.label("loop"), w.label("after")
        before, saved = w.block, dict(fn.registers.state)
        w.open_scope()
        w.emit(f"br i1 {enter.text}, label %{loop}, label %{after}" if guarded else f"br label %{loop}")
        w.start_block(loop)
        # What a phi takes from the end of the body is known only when that is written.
        phis = w.placeholder()
        variable, following = w.name(), w.name()
        fn.space.bind_run(f.loop.sym, variable, w.level, interval)
        mark = fn.space.assume(facts)
        carried = self._open_phis(f)
        digits = CarriedDigits(fn.space, f.loop.sym, lo, "i32" if self._has_narrow_addresses else "i64")
        outside, fn.space.digits = fn.space.digits, digits if _is_innermost(f) else None
        self._body(f, ctx)
        fn.space.digits = outside
        self.end_of_turn(f, variable)
        digits.move_on()
        fn.space.release(mark)
        fn.space.unbind(f.loop.sym)
        # The counter may be narrower than what indices are made of.
        counter, kind = (w.name(), "i32") if self._is_narrow(start, interval) else (variable, "i64")
        end = stop.text if kind == "i64" or _is_literal(stop) else w.pure(f"trunc i64 {stop.text} to i32", stop.level)
        w.scopes[-1].out.append(f"  {following} = add nuw nsw {kind} {counter}, 1")
        again = w.fresh(f"icmp slt {kind} {following}, {end}")
        w.emit(f"br i1 {again}, label %{loop}, label %{after}{_weights(lo, hi)}")
        latch = w.block
        phis.append(f"  {counter} = phi {kind} [ {start.text}, %{before} ], [ {following}, %{latch} ]")
        for key, name in carried.items():
            ty, old, new = self._type(key), saved[key].value, fn.registers.state[key].value
            _check_width(old, new)
            phis.append(f"  {name} = phi {ty} [ {old.text}, %{before} ], [ {new.text}, %{latch} ]")
        phis += digits.phis(before, latch)
        phis += digits.widened()
        if counter != variable:
            phis.append(f"  {variable} = zext nneg i32 {counter} to i64")
        w.close_scope()
        w.start_block(after)
        # Register buffers of this loop alone end with it: no phi behind the loop keeps them alive.
        mine = fn.analysis.used.get(id(f), {}).keys() - fn.analysis.outside.get(id(f), set())
        for key in [k for k in fn.registers.state if k[0] in mine]:
            del fn.registers.state[key]
        self._close(saved, before if guarded else None, latch)

    def _is_narrow(self, start: Val, interval: Interval) -> bool:
        """May the loop count in 32 bits? Where addresses have as many: half the registers and instructions there."""
        low, high = interval
        fits = low is not None and high is not None and low >= 0 and high < MOST_NARROW
        return fits and _is_literal(start) and self._has_narrow_addresses

    @property
    def _has_narrow_addresses(self) -> bool:
        return self.fn.module.target.pointer_bytes == 4

    def _open_phis(self, f: For) -> dict[Key, str]:
        """Name a phi for every register that lives across iterations and may change in the body."""
        fn = self.fn
        outside = fn.analysis.outside.get(id(f), set())
        changing = fn.analysis.written.get(id(f), set()) & outside
        carried: dict[Key, str] = {}
        for key, slot in fn.registers.state.items():
            if key[0] in changing:
                name = carried[key] = fn.writer.name()
                value = Val(name, fn.writer.level, slot.value.lanes)
                fn.registers.state[key] = Slot(value, slot.mask)
        return carried

    def _type(self, key: Key) -> str:
        registers = self.fn.registers
        return vector(VALUE_TYPE[registers.dtypes[key[0]]], registers.state[key].value.lanes)

    def _close(self, saved: dict[Key, Slot], skipped: str | None, latch: str) -> None:
        """After a loop or branch: registers that changed get a phi where the construct may have been skipped."""
        fn, w = self.fn, self.fn.writer
        for key, slot in list(fn.registers.state.items()):
            old = saved.get(key)
            if slot.value.level <= w.level and (old is None or old.value == slot.value):
                continue
            name = slot.value.text
            if skipped is not None:
                name = w.name()
                text = old.value.text if old else "poison"
                _check_width(old.value if old else slot.value, slot.value)
                w.emit(f"{name} = phi {self._type(key)} [ {text}, %{skipped} ], [ {slot.value.text}, %{latch} ]")
            fn.registers.state[key] = Slot(Val(name, w.level, slot.value.lanes), slot.mask if old is None else old.mask)

    def branch(self, bit: Val, body: Callable[[], None]) -> None:
        """Run ``body`` only where the bit is set."""
        fn, w = self.fn, self.fn.writer
        then, after = w.label("then"), w.label("after")
        before, saved = w.block, dict(fn.registers.state)
        w.open_scope()
        w.emit(f"br i1 {bit.text}, label %{then}, label %{after}")
        w.start_block(then)
        body()
        w.emit(f"br label %{after}")
        latch = w.block
        w.close_scope()
        w.start_block(after)
        self._close(saved, before, latch)

    # --- copies -----------------------------------------------------------------------------------------------------

    def _copies(self, f: For, extent: Dim, ctx: Lanes) -> None:
        """Unrolled copies; those that may not exist at run time sit behind a branch."""
        if f.loop.kind is Kind.DOT and self.own(f, extent, ctx):
            return
        if f.loop.kind is Kind.UNROLL and shared.emit(self.fn, f, ctx):
            return
        hi = self._upper(f)
        if hi is None or hi > MAX_UNROLL:
            self.serial(f, extent, ctx)
            return
        copies, sid = self.fn.space.copies, self.fn.space.id_of(f.loop.sym)
        if is_known(extent):
            copies[sid] = extent
            if _is_plain(f.body, f.loop.sym):
                self.fn.space.plain.add(sid)
        for n in range(hi):
            if n and f.loop.kind is Kind.STEP:
                self._new_block()
            if self.fn.space.proved(extent - 1 - n) is not False:
                self._where(extent, n, partial(self._once, f, n, ctx))
        copies.pop(sid, None)
        self.fn.space.plain.discard(sid)

    def _where(self, extent: Dim, n: int, action: Callable[[], None]) -> None:
        """Do it only where ``n < extent``, if need be found out at run time."""
        space = self.fn.space
        if space.proved(extent - 1 - n):
            action()
            return
        stop = space.value(extent)
        bit = Val(self.fn.writer.pure(f"icmp sgt i64 {stop.text}, {n}", stop.level), stop.level, 0)
        mark = space.assume([extent - 1 - n])
        self.branch(bit, action)
        space.release(mark)

    def _new_block(self) -> None:
        w = self.fn.writer
        label = w.label("step")
        w.emit(f"br label %{label}")
        w.start_block(label)

    # --- lanes ------------------------------------------------------------------------------------------------------

    def _vector(self, f: For, extent: Dim, ctx: Lanes) -> None:
        """Run the body once with all iterations as lanes; ragged extents become a mask."""
        fn = self.fn
        n = fn.analysis.lane_count(f)
        limit = MAX_LANES_PER_BYTE * fn.module.target.vector_bytes
        if n is None or n * max(ctx.count, 1) > limit:
            self._without_lanes(f, extent, ctx)
            return
        if n == 1 and not ctx.syms:
            self._where(extent, 0, partial(self._once, f, 0, ctx))
            return
        hi = self._upper(f)
        if is_known(extent) and fn.module.has_narrow_tails and not ctx.syms:
            n = self._narrowed(f, extent, n)
        self._where(extent, 0, partial(self._in_lanes, f, extent, n, hi, ctx))

    def _narrowed(self, f: For, extent: int, n: int) -> int:
        """Lanes for a known part of a vector: half or a quarter of it, where a smaller register holds that.

        Not below 16 bytes, the smallest vector register there is; and only of values that stay in registers, where it
        takes a part of the work at every step.
        """
        if len(f.body) == 1 and self.fn.adds_zeros(f.body[0], f.loop.sym, n):
            return n
        is_nested = any(isinstance(s, For) and s.loop.kind is Kind.VECTOR for s in walk(f.body))
        held = any(b in self.fn.registers.groups for b in self.fn.analysis.used.get(id(f), {}))
        if is_nested or not held or n * 4 > self.fn.module.target.vector_bytes:
            return n
        least = max(n * SMALLEST_BYTES // self.fn.module.target.vector_bytes, 1)
        while n % 2 == 0 and n // 2 >= max(extent, least):
            n //= 2
        return n

    def _without_lanes(self, f: For, extent: Dim, ctx: Lanes) -> None:
        used = self.fn.analysis.used.get(id(f), {})
        if any(b in self.fn.registers.groups for b in used):
            self._copies(f, extent, ctx)
        else:
            self.serial(f, extent, ctx)

    def _in_lanes(self, f: For, extent: Dim, n: int, hi: int | None, ctx: Lanes) -> None:
        fn, sym = self.fn, f.loop.sym
        sid = fn.space.id_of(sym)
        fn.space.bind_lane(sym, (0, min(n, hi or n) - 1))
        old = ctx.mask
        if old is not None:
            old = fn.arith.pick(old, "i1", [lane // n for lane in range(ctx.count * n)])
        sids, extents = (*ctx.sids, sid), (*ctx.extents, n)
        patterns = self._patterns.setdefault((sids, extents), {})
        syms = (*ctx.syms, sym)
        live = known(extent, None)
        inner = Lanes(syms, sids, extents, None, ctx.guard, ctx.may_be_empty, live, _patterns=patterns)
        ragged = self._ragged(extent, n, inner)
        if old is not None and ragged is not None:
            ragged = fn.arith.instruction("and", "i1", old, ragged)
        mark = fn.space.assume([] if is_known(extent) else [extent - 1 - sym])
        mask = ragged or old
        self._body(f, inner if mask is None else replace(inner, mask=mask))
        fn.space.release(mark)
        fn.space.unbind(sym)

    def _ragged(self, extent: Dim, n: int, ctx: Lanes) -> Val | None:
        """The mask of lanes below the extent; None when all are."""
        if extent == n:
            return None
        if is_known(extent):
            return mask_of([point[-1] < extent for point in ctx.points()])
        return self.fn.values.is_nonneg(self.fn.space.lin(extent - 1 - ctx.syms[-1]), ctx)


def _is_innermost(f: For) -> bool:
    """Are all loops in it copies, or lanes? What takes a few instructions in another loop is little beside them."""
    return all(s.loop.kind in COPIED for s in walk(f.body) if isinstance(s, For))


def _check_width(before: Val, after: Val) -> None:
    """A register of one width on two ways that meet; one whose life began anew on one of them may have another."""
    if before.lanes != after.lanes:
        raise NarrowError


def _is_plain(body: tuple[Stmt, ...], sym: Sym) -> bool:
    """Do the statements run as often whatever ``sym`` is, and without conditions?"""
    for s in body:
        if isinstance(s, For):
            if sym in expr.symbols(s.loop.extent) or not _is_plain(s.body, sym):
                return False
        elif not isinstance(s, Store):
            return False
    return True


def _is_literal(v: Val) -> bool:
    return not v.text.startswith("%")


def _weights(lo: Dim, hi: Dim) -> str:
    """What tells LLVM how often a loop goes round, and so whose values to keep in registers (its guess: always 32)."""
    if not is_known(lo) or not is_known(hi):
        return ""
    return f', !prof !{{!"branch_weights", i32 {hi - lo - 1}, i32 1}}'
