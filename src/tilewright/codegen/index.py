"""Index arithmetic while a kernel is emitted: what is known about each symbol, proofs, and ``i64`` instructions.

In: index expressions (``core.expr``), symbols bound to numbers or to run-time values, and facts ``e >= 0``.
Out: resolved expressions, answers to "is this never negative?", and values of type ``i64``.
Not its business: which loops exist (``loops``), or memory (``memory``).
"""

from __future__ import annotations

from typing import NamedTuple

from tilewright.codegen.writer import Val, Writer
from tilewright.core import expr
from tilewright.core.expr import Atom, Binary, Dim, Expr, Interval, Mul, Sym


class Lin(NamedTuple):
    """A sum prepared for fast evaluation: ``const + sum(coef * symbol) + sum(coef * other atom)``."""

    const: int
    terms: tuple[tuple[int, int], ...]
    others: tuple[tuple[Atom, int], ...]
    dim: Dim


class IndexSpace:
    """Bindings of symbols in one function. Symbols are numbered, so that the hot path hashes no expression."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.ids: dict[Sym, int] = {}
        self.const: list[int | None] = []
        self.run: list[tuple[str, int] | None] = []
        self.interval: list[Interval] = []
        self.env: dict[Sym, Interval] = {}
        self.values: dict[Sym, Dim] = {}
        self.facts: list[Dim] = []

    # --- bindings ---------------------------------------------------------------------------------------------------

    def id_of(self, sym: Sym) -> int:
        """The number of a symbol."""
        sid = self.ids.get(sym)
        if sid is None:
            sid = self.ids[sym] = len(self.const)
            self.const.append(None)
            self.run.append(None)
            self.interval.append((sym.lo, sym.hi))
        return sid

    def bind_const(self, sym: Sym, value: int) -> None:
        """From here on ``sym`` is a number."""
        sid = self.id_of(sym)
        self.const[sid] = value
        self.interval[sid] = (value, value)
        self.env[sym] = (value, value)
        self.values[sym] = value

    def bind_run(self, sym: Sym, name: str, level: int, interval: Interval) -> None:
        """From here on ``sym`` is the run-time value ``name``, within ``interval``."""
        sid = self.id_of(sym)
        self.const[sid] = None
        self.run[sid] = (name, level)
        self.interval[sid] = interval
        self.env[sym] = interval
        self.values.pop(sym, None)

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
        self.values.pop(sym, None)

    # --- proofs -----------------------------------------------------------------------------------------------------

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
        e = self.resolve(e)
        lo, hi = expr.bounds(e, self.env)
        if lo is not None and lo >= 0:
            return True
        if hi is not None and hi < 0:
            return False
        for fact in self.facts:
            fact = expr.substitute(fact, self.values)
            rest = expr.bounds(e - fact, self.env)[0]
            if rest is not None and rest >= 0:
                return True
            rest = expr.bounds(-1 - e - fact, self.env)[0]
            if rest is not None and rest >= 0:
                return False
        return None

    def bounds(self, e: Dim) -> Interval:
        """Numeric bounds of ``e`` under the present bindings."""
        return expr.bounds(self.resolve(e), self.env)

    def resolve(self, e: Dim) -> Dim:
        """``e`` with numbers put in, and minima and maxima that facts or bounds decide replaced by the winner."""
        if isinstance(e, int):
            return e
        e = expr.substitute(e, self.values)
        if isinstance(e, int) or all(isinstance(a, Sym) for a, _ in e.terms):
            return e
        total: Dim = e.const
        for atom, coef in e.terms:
            total = total + self._resolve_atom(atom) * coef
        return total

    def _resolve_atom(self, atom: Atom) -> Dim:
        if isinstance(atom, Binary):
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
        terms = [(self._atom(a), c) for a, c in e.terms]
        terms.sort(key=lambda t: t[0].level)
        total: Val | None = None
        for term, coef in terms:
            part = self.scaled(term, coef)
            total = part if total is None else self._op("add nsw", total, part)
        assert total is not None
        return total if e.const == 0 else self._op("add nsw", total, Val(str(e.const), 0, 0))

    def scaled(self, v: Val, coef: int) -> Val:
        """``v * coef``."""
        return v if coef == 1 else self._op("mul nsw", v, Val(str(coef), 0, 0))

    def _op(self, op: str, a: Val, b: Val) -> Val:
        level = max(a.level, b.level)
        return Val(self.writer.pure(f"{op} i64 {a.text}, {b.text}", level), level, 0)

    def _atom(self, atom: Atom) -> Val:
        if isinstance(atom, Sym):
            run = self.run[self.id_of(atom)]
            if run is None:
                raise KeyError(f"index symbol {atom.name} is not bound here")
            return Val(run[0], run[1], 0)
        if isinstance(atom, Mul):
            factors = sorted((self._atom(f) for f in atom.factors), key=lambda v: v.level)
            total = factors[0]
            for f in factors[1:]:
                total = self._op("mul nsw", total, f)
            return total
        assert isinstance(atom, Binary)
        if atom.op in ("floordiv", "mod"):
            return self._division(atom)
        a, b = self.value(atom.a), self.value(atom.b)
        level = max(a.level, b.level)
        call = f"call i64 @llvm.s{atom.op}.i64(i64 {a.text}, i64 {b.text})"
        return Val(self.writer.pure(call, level), level, 0)

    def _division(self, atom: Binary) -> Val:
        """Floor division and remainder by a positive divisor; a run-time divisor of 0 counts as 1."""
        a = self.value(atom.a)
        lo = self.bounds(atom.a)[0]
        is_nonneg = lo is not None and lo >= 0
        divisor = self.resolve(atom.b)
        if isinstance(divisor, int) and divisor > 0:
            b = Val(str(divisor), 0, 0)
            if divisor & (divisor - 1) == 0:
                if atom.op == "mod":
                    return self._op("and", a, Val(str(divisor - 1), 0, 0))
                return self._op("ashr", a, Val(str(divisor.bit_length() - 1), 0, 0))
        else:
            b = self.value(divisor)
            b_lo = self.bounds(divisor)[0]
            if b_lo is None or b_lo < 1:
                b = Val(self.writer.pure(f"call i64 @llvm.smax.i64(i64 {b.text}, i64 1)", b.level), b.level, 0)
        if is_nonneg:
            return self._op("udiv" if atom.op == "floordiv" else "urem", a, b)
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


def depends_on(e: Expr | int, syms: frozenset[Sym]) -> bool:
    """Does any of ``syms`` occur in ``e``, at any depth?"""
    return not isinstance(e, int) and not syms.isdisjoint(expr.symbols(e))
