"""Index arithmetic while a kernel is emitted: what is known about each symbol, proofs, and ``i64`` instructions.

In: index expressions (``core.expr``), symbols bound to numbers or to run-time values, and facts ``e >= 0``.
Out: resolved expressions, answers to "is this never negative?", and values of type ``i64``.
Not its business: which loops exist (``loops``), or memory (``memory``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tilewright.codegen.llvm.digits import CarriedDigits
from tilewright.codegen.llvm.writer import Val, Writer
from tilewright.core import expr
from tilewright.core.expr import Atom, BinaryExpr, Dim, Expr, Interval, Mul, Sym


class Lin(NamedTuple):
    """A sum prepared for fast evaluation: ``const + sum(coef * symbol) + sum(coef * other atom)``."""

    const: int
    terms: tuple[tuple[int, int], ...]
    others: tuple[tuple[Atom, int], ...]
    dim: Dim


class RunTime(NamedTuple):
    """A run-time value: the ``i64`` called ``name`` of a level, a multiple of ``unit``, and the number ``plus``."""

    name: str
    level: int
    plus: int = 0
    unit: int = 1


class _Memo(NamedTuple):
    """What is remembered of equal expressions: their symbols' numbers, and answers by situation.

    ``within`` has bounds by the symbols' intervals alone.
    """

    sids: tuple[int, ...]
    resolved: dict[tuple[object, ...], Dim]
    bounds: dict[tuple[object, ...], Interval]
    proofs: dict[tuple[object, ...], bool | None]
    limits: dict[tuple[object, ...], int | None]
    within: dict[tuple[object, ...], Interval]


class IndexSpace:
    """Bindings of symbols in one function. Symbols are numbered, so that the hot path hashes no expression.

    ``copies`` holds, for variables of loops being unrolled, how many copies of the body there are: all of them run.
    ``plain`` holds those of them whose copies access memory in the same statements, each at its own place.
    Answers are remembered by the intervals of the symbols involved and by the set of facts that hold, and equal
    expressions share them: most that are asked about are made for the question.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.ids: dict[Sym, int] = {}
        self.const: list[int | None] = []
        self.copies: dict[int, int] = {}
        self.plain: set[int] = set()
        self.run: list[RunTime | None] = []
        self.interval: list[Interval] = []
        self.env: dict[Sym, Interval] = {}
        self.values: dict[Sym, Dim] = {}
        self.facts: list[Dim] = []
        self.digits: CarriedDigits | None = None
        """What the innermost loop carries instead of dividing."""
        self._versions: list[int] = [0]
        self._version_of: dict[tuple[object, ...], int] = {}
        self._memos: dict[int, _Memo] = {}
        self._equal: dict[Expr, _Memo] = {}
        self._alive: list[Expr] = []
        """All that ``_memos`` knows by identity."""

    # --- bindings ---------------------------------------------------------------------------------------------------

    def id_of(self, sym: Sym) -> int:
        """The number of a symbol."""
        sid = self.ids.get(sym)
        if sid is None:
            sid = self.ids[sym] = len(self.const)
            self.const.append(None)
            self.run.append(None)
            self.interval.append((sym.lo, sym.hi))
            self._forget(sym)
        return sid

    def _forget(self, sym: Sym) -> None:
        """Whatever number ``sym`` was, but for the only one that it can be: bound or not, its interval is the same."""
        self.values.pop(sym, None)
        if sym.lo is not None and sym.lo == sym.hi:
            self.values[sym] = sym.lo

    def bind_const(self, sym: Sym, value: int) -> None:
        """From here on ``sym`` is a number."""
        sid = self.id_of(sym)
        self.const[sid] = value
        self.interval[sid] = (value, value)
        self.env[sym] = (value, value)
        self.values[sym] = value

    def bind_run(self, sym: Sym, name: str, level: int, interval: Interval, plus: int = 0, unit: int = 1) -> None:
        """From here on ``sym`` is the run-time value ``name`` and ``plus``, within ``interval``."""
        sid = self.id_of(sym)
        self.const[sid] = None
        self.run[sid] = RunTime(name, level, plus, unit)
        self.interval[sid] = interval
        self.env[sym] = interval
        self._forget(sym)

    def bind_lane(self, sym: Sym, interval: Interval) -> None:
        """From here on ``sym`` differs from lane to lane, within ``interval``."""
        self.bind_run(sym, "", 0, interval)
        self.run[self.id_of(sym)] = None

    def unbind(self, sym: Sym) -> None:
        """Forget what ``sym`` was bound to."""
        sid = self.id_of(sym)
        self.const[sid] = None
        self.run[sid] = None
        self.interval[sid] = (sym.lo, sym.hi)
        self.env.pop(sym, None)
        self._forget(sym)

    def changes_at(self, symbols: Iterable[Sym], level: int) -> bool:
        """Is one of the symbols a run-time value of that level?"""
        found = (self.run[self.id_of(s)] for s in symbols)
        return any(x is not None and x.level == level for x in found)

    def assume(self, facts: Iterable[Dim]) -> int:
        """From here on these expressions are >= 0. Returns a mark for :meth:`release`."""
        mark = len(self.facts)
        for fact in facts:
            fact = expr.substitute(fact, self.values)
            if isinstance(fact, int):
                continue
            self.facts.append(fact)
            key = (self._versions[-1], fact, *[self.interval[s] for s in self._memo(fact).sids])
            self._versions.append(self._version_of.setdefault(key, len(self._version_of) + 1))
        return mark

    def release(self, mark: int) -> None:
        """Forget the facts assumed since ``mark``."""
        del self.facts[mark:]
        del self._versions[mark + 1 :]

    # --- proofs -----------------------------------------------------------------------------------------------------

    def _memo(self, e: Expr) -> _Memo:
        memo = self._memos.get(id(e))
        if memo is None:
            memo = self._equal.get(e)
            if memo is None:
                sids = tuple([self.id_of(s) for s in sorted(expr.symbols(e), key=expr.symbol_order)])
                memo = self._equal[e] = _Memo(sids, {}, {}, {}, {}, {})
            self._memos[id(e)] = memo
            self._alive.append(e)
        return memo

    def _situation(self, memo: _Memo) -> tuple[object, ...]:
        interval = self.interval
        return (self._versions[-1], *[interval[s] for s in memo.sids])

    def situation(self, e: Dim) -> tuple[object, ...]:
        """A key: as long as it is the same, so is everything that is known of ``e``."""
        return () if isinstance(e, int) else self._situation(self._memo(e))

    def lin(self, e: Dim) -> Lin:
        """Prepare an expression."""
        if isinstance(e, int):
            return Lin(e, (), (), e)
        terms = tuple((self.id_of(a), c) for a, c in e.terms if isinstance(a, Sym))
        others = tuple((a, c) for a, c in e.terms if not isinstance(a, Sym))
        return Lin(e.const, terms, others, e)

    def status(self, lin: Lin) -> bool | None:
        """Is the expression ``>= 0``: True, False, or None when that depends on the run-time values."""
        lo: int | None = lin.const
        hi: int | None = lin.const
        for sid, coef in lin.terms:
            a, b = self.interval[sid]
            if coef < 0:
                a, b = b, a
            lo = None if lo is None or a is None else lo + coef * a
            hi = None if hi is None or b is None else hi + coef * b
        if not lin.others:
            if lo is not None and lo >= 0:
                return True
            if hi is not None and hi < 0:
                return False
            if not self.facts:
                return None
        return self.proved(lin.dim)

    def proved(self, e: Dim) -> bool | None:
        """As :meth:`status`, for any expression: tries bounds, then bounds after subtracting a known fact."""
        if isinstance(e, int):
            return e >= 0
        memo = self._memo(e)
        situation = self._situation(memo)
        if situation not in memo.proofs:
            memo.proofs[situation] = self._prove(self.resolve(e))
        return memo.proofs[situation]

    def _prove(self, e: Dim) -> bool | None:
        lo, hi = self._within(e)
        if lo is not None and lo >= 0:
            return True
        if hi is not None and hi < 0:
            return False
        mine = expr.symbols(e)
        for fact in self.facts:
            if mine.isdisjoint(expr.symbols(fact)):
                continue
            rest = self._within(e - fact)[0]
            if rest is not None and rest >= 0:
                return True
            rest = self._within(expr.weighted_sum(-1, ((e, -1), (fact, -1))))[0]
            if rest is not None and rest >= 0:
                return False
        return None

    def _within(self, e: Dim) -> Interval:
        """Bounds of ``e`` as it stands, by its symbols' intervals alone; its parts are asked once for each of these."""
        if isinstance(e, int):
            return e, e
        interval = self.interval
        lo: int | None = e.const
        hi: int | None = e.const
        for atom, coef in e.terms:
            if isinstance(atom, Sym):
                a_lo, a_hi = interval[self.id_of(atom)]
            else:
                memo = self._memo(atom)
                key = tuple([interval[s] for s in memo.sids])
                found = memo.within.get(key)
                if found is None:
                    found = memo.within[key] = expr.bounds_by_parts(atom, self._within)
                a_lo, a_hi = found
            if coef < 0:
                a_lo, a_hi = a_hi, a_lo
            lo = None if lo is None or a_lo is None else lo + coef * a_lo
            hi = None if hi is None or a_hi is None else hi + coef * a_hi
        return lo, hi

    def bounds(self, e: Dim) -> Interval:
        """Numeric bounds of ``e`` under the present bindings."""
        if isinstance(e, int):
            return e, e
        memo = self._memo(e)
        situation = self._situation(memo)
        found = memo.bounds.get(situation)
        if found is None:
            found = memo.bounds[situation] = self._within(self.resolve(e))
        return found

    def limit(self, e: Dim) -> int | None:
        """The upper bound of ``e`` as written: facts may replace a minimum by the branch that has no bound."""
        if isinstance(e, int):
            return e
        memo = self._memo(e)
        situation = self._situation(memo)
        if situation not in memo.limits:
            memo.limits[situation] = self._within(expr.substitute(e, self.values))[1]
        return memo.limits[situation]

    def resolve(self, e: Dim) -> Dim:
        """``e`` with numbers put in, and minima and maxima that facts or bounds decide replaced by the winner."""
        if isinstance(e, int):
            return e
        memo = self._memo(e)
        situation = self._situation(memo)
        found = memo.resolved.get(situation)
        if found is None:
            found = memo.resolved[situation] = self._resolve(e)
        return found

    def _resolve(self, e: Expr) -> Dim:
        value = expr.substitute(e, self.values)
        if isinstance(value, int) or all(isinstance(a, Sym) for a, _ in value.terms):
            return value
        total: Dim = value.const
        for atom, coef in value.terms:
            total = total + self._resolve_atom(atom) * coef
        return total

    def _resolve_atom(self, atom: Atom) -> Dim:
        if isinstance(atom, BinaryExpr):
            a, b = self.resolve(atom.a), self.resolve(atom.b)
            if atom.op in ("min", "max"):
                b_wins = self.proved(a - b) if atom.op == "min" else self.proved(b - a)
                if b_wins is not None:
                    return b if b_wins else a
                return expr.minimum(a, b) if atom.op == "min" else expr.maximum(a, b)
            return expr.floordiv(a, b) if atom.op == "floordiv" else expr.mod(a, b)
        if isinstance(atom, Mul):
            total: Dim = 1
            for f in atom.factors:
                total = total * self._resolve_atom(f)
            return total
        return atom

    # --- instructions -----------------------------------------------------------------------------------------------

    def value(self, e: Dim) -> Val:
        """``e`` as an ``i64``; every partial sum is computed at the outermost level where its terms are known."""
        e = self.resolve(e)
        if isinstance(e, int):
            return Val(str(e), 0, 0)
        if isinstance(e, Sym):
            return self._atom(e)
        memo = self._memo(e)
        runs = tuple([self.run[s] for s in memo.sids])
        level = max([r.level for r in runs if r is not None], default=0)
        known = self.writer.scopes[level].indices
        found = known.get((id(e), runs))
        if found is None:
            found = known[id(e), runs] = self._sum(e)
        return found

    def _sum(self, e: Expr) -> Val:
        terms = [(self._atom(a), c) for a, c in e.terms]
        terms.sort(key=lambda t: t[0].level)
        total: Val | None = None
        for term, coef in terms:
            part = self.scaled(term, coef)
            total = part if total is None else self._op("add nsw", total, part)
        assert total is not None
        return total if e.const == 0 else self._op("add nsw", total, Val(str(e.const), 0, 0))

    def scaled(self, v: Val, coef: int) -> Val:
        """``v * coef``; of a number a number, which an address takes in as its scale."""
        if not v.text.startswith("%"):
            return Val(str(int(v.text) * coef), 0, 0)
        return v if coef == 1 else self._op("mul nsw", v, Val(str(coef), 0, 0))

    def _op(self, op: str, a: Val, b: Val) -> Val:
        level = max(a.level, b.level)
        return Val(self.writer.pure(f"{op} i64 {a.text}, {b.text}", level), level, 0)

    def _atom(self, atom: Atom) -> Val:
        if isinstance(atom, Sym):
            run = self.run[self.id_of(atom)]
            if run is None:
                raise KeyError(f"index symbol {atom.name} is not bound here")
            value = Val(run.name, run.level, 0)
            return value if run.plus == 0 else self._op("add nsw", value, Val(str(run.plus), 0, 0))
        if isinstance(atom, Mul):
            factors = sorted((self._atom(f) for f in atom.factors), key=lambda v: v.level)
            total = factors[0]
            for f in factors[1:]:
                total = self._op("mul nsw", total, f)
            return total
        assert isinstance(atom, BinaryExpr)
        if atom.op in ("floordiv", "mod"):
            return self._division(atom)
        a, b = self.value(atom.a), self.value(atom.b)
        level = max(a.level, b.level)
        call = f"call i64 @llvm.s{atom.op}.i64(i64 {a.text}, i64 {b.text})"
        return Val(self.writer.pure(call, level), level, 0)

    def _division(self, atom: BinaryExpr) -> Val:
        """Floor division and remainder by a positive divisor; a run-time divisor of 0 counts as 1."""
        carried = None if self.digits is None else self.digits.value(atom)
        if carried is not None:
            return carried
        a = self.value(atom.a)
        lo = self.bounds(atom.a)[0]
        is_nonneg = lo is not None and lo >= 0
        divisor = self.resolve(atom.b)
        if isinstance(divisor, int) and divisor > 0:
            b = Val(str(divisor), 0, 0)
            # Both round toward minus infinity, as the language does, for negative numbers too.
            if divisor & (divisor - 1) == 0:
                if atom.op == "mod":
                    return self._op("and", a, Val(str(divisor - 1), 0, 0))
                return self._op("ashr", a, Val(str(divisor.bit_length() - 1), 0, 0))
        else:
            b = self.value(divisor)
            b_lo = self.bounds(divisor)[0]
            if b_lo is None or b_lo < 1:
                # A size may be 0 where no iteration runs, and a division by it would end the process all the same.
                b = Val(self.writer.pure(f"call i64 @llvm.smax.i64(i64 {b.text}, i64 1)", b.level), b.level, 0)
        if is_nonneg:
            return self._op("udiv" if atom.op == "floordiv" else "urem", a, b)
        # The machine truncates: a negative remainder is moved up by one divisor, and the quotient down by one.
        r = self._op("srem", a, b)
        level = r.level
        negative = self.writer.pure(f"icmp slt i64 {r.text}, 0", level)
        if atom.op == "mod":
            return Val(
                self.writer.pure(f"select i1 {negative}, i64 {self._op('add', r, b).text}, i64 {r.text}", level),
                level,
                0,
            )
        q = self._op("sdiv", a, b)
        borrow = self.writer.pure(f"sext i1 {negative} to i64", level)
        return self._op("add", q, Val(borrow, level, 0))
