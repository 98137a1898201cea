"""Value trees to SSA values.

In: ``core.compute`` values, transcendental functions already expanded. Out: SSA values, in the lanes of the context.
Not its business: statements (``function``), how memory is read (``memory``).

A ``Select`` on an ``Inside`` that the present bindings decide is replaced by its branch; one that stays open guards the
loads of its first branch. Where one side of another ``Select`` takes many operations of its own, it is computed
behind a branch, which is taken when some lane wants it: long ways for rare arguments cost nothing otherwise. So it is
with what is done to a place outside of the buffer that the data choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm import convert, exponents
from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.index import IndexSpace, Lin
from tilewright.codegen.llvm.lanes import Lanes, mask_of
from tilewright.codegen.llvm.lookup import looked_up
from tilewright.codegen.llvm.types import VALUE_TYPE, vector
from tilewright.codegen.llvm.word_products import word_product
from tilewright.codegen.llvm.writer import Val
from tilewright.core import expr, types
from tilewright.core.compute import (
    Binary,
    Bitcast,
    Cast,
    Const,
    Fma,
    Index,
    Inside,
    Load,
    Lookup,
    Param,
    Select,
    Unary,
    Value,
    operands,
    symbols_of_value,
    walk,
)
from tilewright.core.expr import Dim, Sym
from tilewright.ops.stages import wrapped

Memo = dict[Value, Val]

MIN_BRANCHED = 40
"""Operations of one side of a select from which on a branch around them pays: about what a wrong guess costs."""
MAX_BRANCHED, MAX_DEPTH = 1000, 2
"""Values of a side beyond which nobody looks, and branches within branches: what keeps emission linear."""


class Reader(Protocol):
    """Whoever can read a buffer."""

    def load(self, v: Load, ctx: Lanes, memo: Memo) -> Val:
        """The loaded value."""


@dataclass(frozen=True)
class Sides:
    """A select's two sides: whether each gets a branch of its own, and what must be known before."""

    is_branched: tuple[bool, bool]
    before: tuple[Value, ...]


def _is_within(v: Value, n: int) -> bool:
    """Is it an index expression that is known to be from 0 to below ``n``?"""
    while isinstance(v, Cast):
        v = v.a
    lo, hi = expr.bounds(v.expr) if isinstance(v, Index) else (None, None)
    return lo is not None and hi is not None and lo >= 0 and hi < n


class Values:
    """Evaluates values for one function."""

    def __init__(self, arith: Arith, space: IndexSpace, reader: Reader, lane_values: LaneValues) -> None:
        self.arith = arith
        self.space = space
        self.reader = reader
        self.lane_values = lane_values
        self.params: dict[Param, Val] = {}
        self._lins: dict[int, tuple[Value, tuple[Lin, ...]]] = {}
        self._places: dict[str, dict[str, Val]] = {}
        self._depth = 0

    def value(self, v: Value, ctx: Lanes, memo: Memo) -> Val:
        """Evaluate ``v``; ``memo`` holds what the same statement has evaluated under the same guards."""
        done = memo.get(v)
        if done is None:
            done = memo[v] = self._evaluate(v, ctx, memo)
        return done

    def _evaluate(self, v: Value, ctx: Lanes, memo: Memo) -> Val:
        arith = self.arith
        if len(ctx.syms) > 1 and ctx.mask is None and _is_operation(v) and _follows(v, ctx.syms[:-1], ctx.syms[-1]):
            # What only the outer of two vector loops changes is computed in fewer lanes, and then repeated.
            once = self.value(v, ctx.outer(), {})
            lanes = [k // ctx.extents[-1] for k in range(ctx.count)]
            return arith.pick(once, VALUE_TYPE[v.dtype], lanes) if once.lanes else once
        match v:
            case Load():
                return self.reader.load(v, ctx, memo)
            case Const():
                return arith.const(v.value, v.dtype)
            case Binary():
                return self._binary(v, ctx, memo)
            case Fma():
                a, b, c = (self.value(x, ctx, memo) for x in (v.a, v.b, v.c))
                return arith.fma(v.dtype, a, b, c)
            case Select():
                return self._select(v, ctx, memo)
            case Unary():
                return arith.unary(v.op, v.a.dtype, self.value(v.a, ctx, memo))
            case Cast():
                return self._cast(v, ctx, memo)
            case Bitcast():
                return convert.bitcast(arith, self.value(v.a, ctx, memo), v.a.dtype, v.dtype)
            case Lookup():
                return looked_up(arith, v.levels, self.value(v.a, ctx, memo), v.dtype)
            case Index():
                return self._index(v, ctx)
            case Inside():
                return self._inside(v, ctx)
            case Param():
                return self.params[v]
        raise CodegenError(f"unknown value {type(v).__name__}")

    def _cast(self, v: Cast, ctx: Lanes, memo: Memo) -> Val:
        rounded = _rounded_steps(v)
        if rounded is not None:
            found = convert.whole(self.arith, self.value(rounded[0], ctx, memo), rounded[1], v.dtype)
            if found is not None:
                return found
        return convert.cast(self.arith, self.value(v.a, ctx, memo), v.a.dtype, v.dtype)

    def _binary(self, v: Binary, ctx: Lanes, memo: Memo) -> Val:
        places = _places(v)
        if places is not None:
            return self._are_nonneg(v, (places,), ctx)
        made = word_product(self.arith, v, ctx.count, lambda x: self.value(x, ctx, memo))
        if made is not None:
            return made
        chosen = _chosen_place(v)
        return self._operation(v, ctx, memo) if chosen is None else self._place(v, *chosen, ctx, memo)

    def _place(self, v: Binary, i: Value, n: Value, ctx: Lanes, memo: Memo) -> Val:
        """``v``, which is ``i`` where that is from 0 to below ``n``: as nearly all are, the rest is behind a branch.

        Not where ``i`` stays the same while the innermost loop runs: nothing moves a branch out of a loop.
        """
        symbols = symbols_of_value(i)
        may_branch = self.arith.target.guesses_branches and symbols.isdisjoint(ctx.syms)
        if may_branch and self.space.changes_at(symbols, self.arith.writer.level):
            place, end = self.value(i, ctx, memo), self.value(n, ctx, memo)
            outside = self.arith.instruction("icmp uge", "i64", place, end)
            known = self._places.setdefault(self.arith.writer.region, {})
            if outside.text not in known:
                known[outside.text] = self._if_any(outside, place, lambda m: self._operation(v, ctx, m), v, memo)
            return known[outside.text]
        return self._operation(v, ctx, memo)

    def _operation(self, v: Binary, ctx: Lanes, memo: Memo) -> Val:
        a = self.value(v.a, ctx, memo)
        if v.op == "mul" and isinstance(v.b, Unary) and v.b.op == "pow2i" and self._can_scale(v):
            return exponents.scaled(self.arith, v.dtype, a, self.value(v.b.a, ctx, memo))
        b = self.value(v.b, ctx, memo)
        if v.op in ("shl", "shr") and _is_within(v.b, v.dtype.bits):
            return self.arith.shift_within(v.op, v.dtype, a, b)
        return self.arith.binary(v.op, v.a.dtype, a, b)

    def _can_scale(self, v: Binary) -> bool:
        return self.arith.target.has_scalef and v.dtype in (types.f32, types.f64)

    def _select(self, v: Select, ctx: Lanes, memo: Memo) -> Val:
        truth = self.truth(v.cond, ctx)
        if truth is not None:
            return self.value(v.a if truth else v.b, ctx, memo)
        cond = self.value(v.cond, ctx, memo)
        if _guarded_loads(v):
            a = self.value(v.a, self.guarded(ctx, cond), {})
        else:
            is_own = cond.level == self.arith.writer.level and bool(cond.lanes) == bool(ctx.count)
            sides = self._sides(v, memo) if is_own else None
            if sides is not None:
                return self._one_side(v, sides, cond, ctx, memo)
            a = self.value(v.a, ctx, memo)
        return self.arith.choose(cond, a, self.value(v.b, ctx, memo), VALUE_TYPE[v.dtype])

    # --- sides behind branches --------------------------------------------------------------------------------------

    def _sides(self, v: Select, memo: Memo) -> Sides | None:
        """A side is branched around for ``MIN_BRANCHED`` operations that are not known and the other side has not."""
        if self._depth == MAX_DEPTH:
            return None
        a, b = _unknown(v.a, memo), _unknown(v.b, memo)
        if a is None or b is None:
            return None
        is_costly = tuple(
            sum(_is_operation(x) and x not in other for x in side) >= MIN_BRANCHED for side, other in ((a, b), (b, a))
        )
        if not any(is_costly) or any(isinstance(x, Select) and _guarded_loads(x) for x in (*a, *b)):
            return None
        shared = [x for x in a if x in b and _is_operation(x)]
        return Sides((is_costly[0], is_costly[1]), (*shared, *(x for x in (*a, *b) if isinstance(x, Load))))

    def _one_side(self, v: Select, sides: Sides, cond: Val, ctx: Lanes, memo: Memo) -> Val:
        """The select with one or both of its sides computed only where some lane takes it."""
        arith, element = self.arith, VALUE_TYPE[v.dtype]
        for x in sides.before:
            self.value(x, ctx, memo)
        lanes = cond.lanes
        inverse = arith.instruction("xor", "i1", cond, Val("true", 0, 0))
        if not sides.is_branched[0]:
            a = arith.splat(self.value(v.a, ctx, memo), element, lanes)
            return self._if_any(inverse, a, lambda m: arith.choose(cond, a, self.value(v.b, ctx, m), element), v, memo)
        b = Val("poison", 0, lanes)
        if sides.is_branched[1]:
            b = self._if_any(inverse, b, lambda m: arith.splat(self.value(v.b, ctx, m), element, lanes), v, memo)
        else:
            b = arith.splat(self.value(v.b, ctx, memo), element, lanes)
        return self._if_any(cond, b, lambda m: arith.choose(cond, self.value(v.a, ctx, m), b, element), v, memo)

    def _if_any(self, cond: Val, other: Val, compute: Callable[[Memo], Val], v: Value, memo: Memo) -> Val:
        """What ``compute`` gives where some lane of ``cond`` is set, else ``other``. Its values stay in the branch."""
        w, arith = self.arith.writer, self.arith
        some = arith.any_lane(cond)
        then, after, before, region = w.label("some"), w.label("after"), w.block, w.region
        w.open_scope()
        w.emit(f"br i1 {some.text}, label %{then}, label %{after}")
        w.start_block(then)
        inner = {x: Val(y.text, w.level, y.lanes) if y.text[0] == "%" else y for x, y in memo.items()}
        self._depth += 1
        result = compute(inner)
        self._depth -= 1
        w.emit(f"br label %{after}")
        latch = w.block
        w.close_scope()
        w.start_block(after, region)
        ty = vector(VALUE_TYPE[v.dtype], other.lanes)
        name = w.fresh(f"phi {ty} [ {other.text}, %{before} ], [ {result.text}, %{latch} ]")
        return Val(name, w.level, other.lanes)

    def guarded(self, ctx: Lanes, cond: Val) -> Lanes:
        """``ctx`` where only points with ``cond`` may touch memory."""
        if cond.lanes:
            mask = cond if ctx.mask is None else self.arith.both(ctx.mask, cond)
            return replace(ctx, mask=mask, may_be_empty=True)
        guard = cond if ctx.guard is None else self.arith.instruction("and", "i1", ctx.guard, cond)
        return replace(ctx, guard=guard)

    # --- conditions on indices --------------------------------------------------------------------------------------

    def truth(self, cond: Value, ctx: Lanes) -> bool | None:
        """Whether a condition on indices is decided by the present bindings."""
        match cond:
            case Const() if cond.dtype is types.bool_:
                return bool(cond.value)
            case Inside():
                found = [self.space.status(lin) for lin in self._prepared(cond, cond.exprs)]
                return False if False in found else None if None in found else True
            case Binary() if cond.op in ("and", "or") and cond.dtype is types.bool_:
                x, y = self.truth(cond.a, ctx), self.truth(cond.b, ctx)
                decisive = cond.op == "or"
                return decisive if decisive in (x, y) else None if None in (x, y) else not decisive
            case Unary() if cond.op == "not" and cond.dtype is types.bool_:
                x = self.truth(cond.a, ctx)
                return None if x is None else not x
        return None

    def vanishes(self, v: Value, ctx: Lanes) -> bool:
        """Is ``v`` the constant 0, or a product with what stands for an element outside, once guards are decided?"""
        match v:
            case Const():
                return v.value == 0
            case Select():
                truth = self.truth(v.cond, ctx)
                return truth is not None and self.vanishes(v.a if truth else v.b, ctx)
            case Binary():
                return v.op == "mul" and (self._annihilates(v.a, ctx) or self._annihilates(v.b, ctx))
            case Cast():
                return self.vanishes(v.a, ctx)
        return False

    def _annihilates(self, v: Value, ctx: Lanes) -> bool:
        """Is a product with ``v`` left out? With the 0 of padding it is; a 0 of the model's own times NaN is NaN."""
        if isinstance(v, Const) and v.dtype.is_float:
            return False
        return self._annihilates(v.a, ctx) if isinstance(v, Cast) else self.vanishes(v, ctx)

    def settled(self, v: Value, ctx: Lanes) -> Value:
        """``v`` without outer selects that are decided."""
        while isinstance(v, Select):
            truth = self.truth(v.cond, ctx)
            if truth is None:
                break
            v = v.a if truth else v.b
        return v

    def _prepared(self, v: Value, exprs: tuple[Dim, ...]) -> tuple[Lin, ...]:
        found = self._lins.get(id(v))
        if found is None:
            found = self._lins[id(v)] = (v, tuple([self.space.lin(e) for e in exprs]))
        return found[1]

    def _index(self, v: Index, ctx: Lanes) -> Val:
        (lin,) = self._prepared(v, (v.expr,))
        if not self.varies(lin, ctx):
            return self.space.value(lin.dim)
        return self.lane_values.lane_values(lin.dim, ctx)

    def varies(self, lin: Lin, ctx: Lanes) -> bool:
        """Does the expression differ between lanes?"""
        return bool(ctx.syms) and (not ctx.is_regular(lin) or ctx.pattern(lin) is not None)

    def _inside(self, v: Inside, ctx: Lanes) -> Val:
        return self._are_nonneg(v, v.exprs, ctx)

    def _are_nonneg(self, v: Value, exprs: tuple[Dim, ...], ctx: Lanes) -> Val:
        """Are all these expressions, the conditions of ``v``, at least 0?"""
        result = Val("true", 0, 0)
        for lin in self._prepared(v, exprs):
            status = self.space.status(lin)
            if status is False:
                return Val("false", 0, 0)
            if status is None:
                part = self.is_nonneg(lin, ctx)
                result = part if result.text == "true" else self.arith.both(result, part)
        return result

    def is_nonneg(self, lin: Lin, ctx: Lanes) -> Val:
        """``e >= 0`` as a bit, or one bit a lane."""
        zero = Val("0", 0, 0)
        if not self.varies(lin, ctx):
            return self.arith.instruction("icmp sge", "i64", self.space.value(lin.dim), zero)
        pattern = ctx.pattern(lin)
        if not ctx.is_regular(lin) or pattern is None:
            return self.arith.instruction("icmp sge", "i64", self.lane_values.lane_values(lin.dim, ctx), zero)
        first = self.space.value(expr.substitute(lin.dim, dict.fromkeys(ctx.syms, 0)))
        limit = 1 << 30
        lo, hi = self.space.bounds(expr.substitute(lin.dim, dict.fromkeys(ctx.syms, 0)))
        if lo is None or hi is None or lo < -limit or hi > limit:
            first = self.arith.call("smax", "i64", first, Val(str(-limit), 0, 0))
            first = self.arith.call("smin", "i64", first, Val(str(limit), 0, 0))
        if first.text[0] != "%":
            return mask_of([int(first.text) + p >= 0 for p in pattern])
        narrow = self.arith.convert("trunc", first, "i64", "i32")
        numbers = Val(f"<{', '.join([f'i32 {-p}' for p in pattern])}>", 0, len(pattern))
        return self.arith.instruction("icmp sge", "i32", narrow, numbers)


class LaneValues(Protocol):
    """Whoever can compute an index expression in every lane."""

    def lane_values(self, e: Dim, ctx: Lanes) -> Val:
        """One ``i64`` a lane."""


def _rounded_steps(v: Cast) -> tuple[Value, int] | None:
    """What a conversion to integers rounds first, and the whole number that it adds then."""
    rounded, more = v.a, 0
    if isinstance(rounded, Binary) and rounded.op == "add" and isinstance(rounded.b, Const):
        number = rounded.b.value
        if not abs(number) <= types.u16.max or number != int(number):
            return None
        rounded, more = rounded.a, int(number)
    if isinstance(rounded, Unary) and rounded.op == "rint" and rounded.dtype is types.f32 and not v.dtype.is_float:
        return rounded.a, more
    return None


def _places(v: Binary) -> Dim | None:
    """What is at least 0 where the order of two places holds, which lanes can tell in half the bits of an index."""
    if v.op not in ("lt", "le", "gt", "ge") or not isinstance(v.a, Index) or not isinstance(v.b, Index):
        return None
    apart = v.b.expr - v.a.expr if v.op in ("lt", "le") else v.a.expr - v.b.expr
    return apart - 1 if v.op in ("lt", "gt") else apart


def _chosen_place(v: Binary) -> tuple[Value, Value] | None:
    """``i`` and ``n`` where ``v`` is a place among ``n`` that the data choose: ``wrapped(i, n)``."""
    match v:
        case Binary(op="max", a=Binary(op="min", a=Select(a=Binary(op="add", a=i, b=Const() | Index() as n)))):
            extent = n.expr if isinstance(n, Index) else int(n.value)
            return (i, n) if i.dtype is types.i64 and v == wrapped(i, extent) else None
    return None


def _unknown(v: Value, memo: Memo) -> dict[Value, None] | None:
    """``v`` and what is below it, as far as ``memo`` lacks it; None when that is too much."""
    found: dict[Value, None] = {}
    stack = [v]
    while stack:
        x = stack.pop()
        if x not in found and x not in memo:
            found[x] = None
            stack.extend(operands(x))
            if len(found) > MAX_BRANCHED:
                return None
    return found


def _follows(v: Value, outer: Sequence[Sym], last: Sym) -> bool:
    """Does the value differ along ``outer`` lanes and not along the last ones, as what a row has once does?"""
    used = symbols_of_value(v)
    return last not in used and not used.isdisjoint(outer)


def _is_operation(x: Value) -> bool:
    return isinstance(x, Unary | Binary | Fma | Select | Cast)


def _guarded_loads(v: Select) -> bool:
    """Does the condition say which loads of the first side may happen?"""
    return _guards(v.cond) and any(isinstance(x, Load) for x in walk(v.a))


def _guards(cond: Value) -> bool:
    """Is the condition an ``Inside``, or a conjunction with one?"""
    if isinstance(cond, Binary) and cond.op == "and":
        return _guards(cond.a) or _guards(cond.b)
    return isinstance(cond, Inside)
