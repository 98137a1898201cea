"""Integer index expressions: symbolic dimensions of the graph IR, index maps and loop bounds of the tile IR.

In: symbols and Python integers combined by ``+ - * // %`` and ``minimum``/``maximum``. Out: expressions in one
canonical form, ``constant + sum(coefficient * atom)``, so that equal sums compare equal; a constant is always a
plain ``int``. Division and remainder floor, as Python's do.
Not its business: values of tensor elements (``core.compute``).

Two symbols are one when name and bounds agree; a symbol's bounds are inclusive and may be unknown (``None``).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import gcd
from typing import TypeAlias, Union

from tilewright.runtime.syntax import parse_expression

Dim: TypeAlias = Union[int, "Expr"]
Interval: TypeAlias = tuple[int | None, int | None]


class Expr:
    """``const + sum(coef * atom)`` with the atoms in a fixed order. Immutable; build it with operators."""

    __slots__ = ("_bounds", "_hash", "_symbols", "_text", "const", "terms")
    _text: str | None
    _symbols: frozenset[Sym] | None
    _bounds: Interval | None
    const: int
    terms: tuple[tuple[Atom, int], ...]

    def __init__(self, const: int, terms: tuple[tuple[Atom, int], ...]) -> None:
        self.const = const
        self.terms = terms
        self._text = self._symbols = self._bounds = None
        self._hash = hash((const, terms))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expr) or self._hash != other._hash or isinstance(other, Atom):
            return False
        return self.const == other.const and self.terms == other.terms

    def __repr__(self) -> str:
        return to_text(self)

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            return self if other == 0 else _of_terms(self.const + other, self.terms)
        if not isinstance(other, Expr):
            return NotImplemented
        coefs = dict(self.terms)
        for atom, coef in other.terms:
            coefs[atom] = coefs.get(atom, 0) + coef
        total = _linear(self.const + other.const, coefs)
        return _without_remainders(total) if len(coefs) > 1 else total

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            if other == 1:
                return self
            return _of_terms(self.const * other, tuple([(a, c * other) for a, c in self.terms])) if other else 0
        if not isinstance(other, Expr):
            return NotImplemented
        total: Dim = other * self.const
        for a, ca in self.terms:
            total = total + other.const * ca * a
            for b, cb in other.terms:
                total = total + ca * cb * _product(a, b)
        return total

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return weighted_sum(0, ((self, 1), (other, -1))) if isinstance(other, Expr) else self + other * -1

    def __rsub__(self, other: int) -> Dim:
        return (self * -1) + other

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: int) -> Dim:
        return mod(other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic expression {self} is unknown; ask is_nonneg or compare with ==")


class Atom(Expr):
    """An expression that a sum can't look into: a symbol, product, quotient, remainder, minimum or maximum."""

    __slots__ = ("_order", "key")
    key: tuple[object, ...]
    _order: tuple[str, ...] | None

    def __init__(self, key: tuple[object, ...]) -> None:
        self.key = key
        self._text = self._symbols = self._bounds = self._order = None
        self.const = 0
        self.terms = ((self, 1),)
        self._hash = hash(key)

    __hash__ = Expr.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self._hash == other._hash and self.key == other.key)


class Sym(Atom):
    """A named integer: a symbolic dimension or a loop variable, with inclusive bounds where known."""

    __slots__ = ("hi", "lo", "name")

    def __init__(self, name: str, lo: int | None = 0, hi: int | None = None) -> None:
        self.name, self.lo, self.hi = name, lo, hi
        super().__init__(("sym", name, lo, hi))

    def __reduce__(self) -> tuple[type[Sym], tuple[str, int | None, int | None]]:
        """A copy is made anew: the set of its symbols holds itself, which would be hashed before there is a key."""
        return Sym, (self.name, self.lo, self.hi)


class Mul(Atom):
    """A product of at least two atoms."""

    __slots__ = ("factors",)

    def __init__(self, factors: tuple[Atom, ...]) -> None:
        self.factors = factors
        super().__init__(("mul", *factors))


class BinaryExpr(Atom):
    """``op(a, b)`` for op in ``floordiv``, ``mod``, ``min``, ``max``."""

    __slots__ = ("a", "b", "op")

    def __init__(self, op: str, a: Dim, b: Dim) -> None:
        self.op, self.a, self.b = op, a, b
        super().__init__((op, a, b))


def _order(atom: Atom) -> tuple[str, ...]:
    found = atom._order
    if found is None:
        found = atom._order = (atom.name,) if isinstance(atom, Sym) else ("~", to_text(atom))
    return found


def _order_of_term(term: tuple[Atom, int]) -> tuple[str, ...]:
    return term[0]._order or _order(term[0])


def _linear(const: int, coefs: dict[Atom, int]) -> Dim:
    terms = [(a, c) for a, c in coefs.items() if c]
    if not terms:
        return const
    if len(terms) > 1:
        terms.sort(key=_order_of_term)
    return _of_terms(const, tuple(terms))


def _of_terms(const: int, terms: tuple[tuple[Atom, int], ...]) -> Dim:
    """The sum of terms that are in their order already, none of them of coefficient 0, and at least one."""
    if const == 0 and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    return Expr(const, terms)


def _without_remainders(e: Dim) -> Dim:
    """``a - a % n`` is ``a // n * n``, which is how sizes rounded up to a multiple are written: ``s + -s % n``."""
    for atom, coef in terms_of(e):
        if isinstance(atom, BinaryExpr) and atom.op == "mod":
            whole = terms_of(atom.a)
            if whole and const_of(atom.a) == 0 and all(coef_of(e, x) == -coef * c for x, c in whole):
                rest = _linear(const_of(e), {x: c for x, c in terms_of(e) if x != atom and not coef_of(atom.a, x)})
                return rest + floordiv(atom.a, atom.b) * atom.b * -coef
    return e


def _product(a: Atom, b: Atom) -> Atom:
    factors = [f for x in (a, b) for f in (x.factors if isinstance(x, Mul) else (x,))]
    return Mul(tuple(sorted(factors, key=_order)))


def terms_of(e: Dim) -> tuple[tuple[Atom, int], ...]:
    """The ``(atom, coefficient)`` pairs of the sum; none for a constant."""
    return () if isinstance(e, int) else e.terms


def const_of(e: Dim) -> int:
    """The constant part of the sum."""
    return e if isinstance(e, int) else e.const


def coef_of(e: Dim, atom: Atom) -> int:
    """The coefficient of ``atom`` in the sum (0 when absent); atoms inside other atoms do not count."""
    return next((c for a, c in terms_of(e) if a == atom), 0)


# --- bounds ---------------------------------------------------------------------------------------------------------


def bounds(e: Dim, env: Mapping[Sym, Interval] | None = None) -> Interval:
    """An interval that holds ``e``; ``env`` narrows symbols. Sound, and exact for sums of distinct symbols."""
    if isinstance(e, int):
        return e, e
    if env:
        return _bounds_in(e, env)
    # Asked again and again of the same index; what symbols say of themselves never changes.
    found = e._bounds
    if found is None:
        found = e._bounds = _bounds_in(e, None)
    return found


def _bounds_in(e: Expr, env: Mapping[Sym, Interval] | None) -> Interval:
    if isinstance(e, Sym):
        return (env.get(e) if env else None) or (e.lo, e.hi)
    if isinstance(e, Atom):
        return bounds_by_parts(e, lambda x: bounds(x, env))
    lo: int | None = e.const
    hi: int | None = e.const
    for atom, coef in e.terms:
        if isinstance(atom, Sym):  # most are: asked for here, the answer takes a third of the time
            a_lo, a_hi = (env.get(atom) if env else None) or (atom.lo, atom.hi)
        else:
            a_lo, a_hi = bounds(atom, env)
        if coef < 0:
            a_lo, a_hi = a_hi, a_lo
        lo = None if lo is None or a_lo is None else lo + coef * a_lo
        hi = None if hi is None or a_hi is None else hi + coef * a_hi
    return lo, hi


def bounds_by_parts(atom: Atom, of: Callable[[Dim], Interval]) -> Interval:
    """Bounds of an atom that is made of other expressions, by those that ``of`` gives of these."""
    if isinstance(atom, Mul):
        return _mul_bounds(atom.factors, of)
    assert isinstance(atom, BinaryExpr)
    (a_lo, a_hi), (b_lo, b_hi) = of(atom.a), of(atom.b)
    if atom.op == "mod":
        if b_lo is None or b_lo <= 0:
            return None, None
        hi = None if b_hi is None else b_hi - 1
        if a_lo is not None and a_lo >= 0:
            hi = a_hi if hi is None else hi if a_hi is None else min(hi, a_hi)
        return 0, hi
    if atom.op == "floordiv":
        return _div_bounds(a_lo, a_hi, b_lo, b_hi)
    if atom.op == "min":
        known = [h for h in (a_hi, b_hi) if h is not None]
        return (None if a_lo is None or b_lo is None else min(a_lo, b_lo)), (min(known) if known else None)
    known = [v for v in (a_lo, b_lo) if v is not None]
    return (max(known) if known else None), (None if a_hi is None or b_hi is None else max(a_hi, b_hi))


def _mul_bounds(factors: Iterable[Atom], of: Callable[[Dim], Interval]) -> Interval:
    lo: int | None = 1
    hi: int | None = 1
    for f in factors:
        f_lo, f_hi = of(f)
        if lo is None or f_lo is None or lo < 0 or f_lo < 0:
            if None in (lo, hi, f_lo, f_hi):
                return None, None
            corners = [x * y for x in (lo, hi) for y in (f_lo, f_hi) if x is not None and y is not None]
            lo, hi = min(corners), max(corners)
            continue
        lo, hi = lo * f_lo, (None if hi is None or f_hi is None else hi * f_hi)
    return lo, hi


def _div_bounds(a_lo: int | None, a_hi: int | None, b_lo: int | None, b_hi: int | None) -> Interval:
    if b_lo is None or b_lo <= 0:
        return None, None
    lo = hi = None
    if a_lo is not None:
        lo = a_lo // b_lo if a_lo < 0 else (0 if b_hi is None else a_lo // b_hi)
    if a_hi is not None:
        hi = a_hi // b_lo if a_hi >= 0 else (-1 if b_hi is None else a_hi // b_hi)
    return lo, hi


def is_nonneg(e: Dim, env: Mapping[Sym, Interval] | None = None) -> bool:
    """True when ``e >= 0`` is proved; False means unknown."""
    lo = bounds(e, env)[0]
    return lo is not None and lo >= 0


# --- division, minimum, maximum -------------------------------------------------------------------------------------


def _split_multiple(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """``(q, r)`` with ``a == q * b + r``, where ``q`` takes every term that ``b`` divides without remainder."""
    if isinstance(b, int):
        q_const = const_of(a) // b
        q: Dim = q_const + sum((c // b) * x for x, c in terms_of(a) if c % b == 0)
        return q, a - q * b
    quotient: Dim = 0
    if len(b.terms) == 1 and b.const == 0:
        (divisor, unit) = b.terms[0]
        need = divisor.factors if isinstance(divisor, Mul) else (divisor,)
        for x, c in terms_of(a):
            have = list(x.factors) if isinstance(x, Mul) else [x]
            if c % unit == 0 and all(have.count(f) >= need.count(f) for f in need):
                for f in need:
                    have.remove(f)
                rest: Dim = c // unit
                for f in have:
                    rest = rest * f
                quotient = quotient + rest
    else:
        quotient = _quotient_of_polynomials(a, b)
    return quotient, a - quotient * b


def _quotient_of_polynomials(a: Dim, b: Expr) -> Dim:
    """``a / b`` where that is a polynomial in the atoms with integer coefficients, else 0: long division by the leading
    term in a graded order of monomials (Cox, Little and O'Shea, Ideals, Varieties, and Algorithms, section 2.3)."""
    divisor, unit = max(b.terms, key=_rank)
    quotient: Dim = 0
    rest, last = a, None
    while terms_of(rest):
        term = max(terms_of(rest), key=_rank)
        step, left = _split_multiple(term[0] * term[1], divisor * unit)
        if left != 0 or (last is not None and _rank(term) >= last):
            return 0
        quotient, rest, last = quotient + step, rest - step * b, _rank(term)
    return quotient if rest == 0 else 0


def _rank(term: tuple[Atom, int]) -> tuple[int, list[str]]:
    """A monomial's place in an order that products keep: by degree, then by its factors."""
    factors = term[0].factors if isinstance(term[0], Mul) else (term[0],)
    return len(factors), sorted(map(to_text, factors))


def _inside(r: Dim, b: Dim) -> bool:
    """Is ``0 <= r < b`` proved?"""
    return is_nonneg(r) and is_nonneg(b - r - 1)


def floordiv(a: Dim, b: Dim) -> Dim:
    """``a // b`` rounded down; ``b`` must not be zero. Raises ``ZeroDivisionError`` for a literal zero."""
    if isinstance(b, int) and b == 0:
        raise ZeroDivisionError(f"({a}) // 0")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(b, int) and b < 0:
        return floordiv(a * -1, -b)
    q, r = _split_multiple(a, b)
    if r == 0 or _inside(r, b):
        return q
    if isinstance(b, int):
        g = _run(r, b)
        if g > 1:
            return q + floordiv(_floor_terms(r, g), b // g)
        if len(terms_of(r)) == 1:
            atom, c = terms_of(r)[0]
            if c == 1 and isinstance(atom, BinaryExpr) and atom.op == "floordiv" and isinstance(atom.b, int):
                return q + floordiv(atom.a + const_of(r) * atom.b, atom.b * b)
    return q + BinaryExpr("floordiv", r, b)


def _run(r: Dim, b: int) -> int:
    """The longest divisor of ``b`` of which ``r`` is a multiple and a place below it; 1 where there is none."""
    found = sorted({gcd(b, c) for _, c in terms_of(r)} | {gcd(b, *(c for _, c in terms_of(r)))}, reverse=True)
    return next((g for g in found if g == 1 or _inside(r - g * _floor_terms(r, g), g)), 1)


def _floor_terms(r: Dim, g: int) -> Dim:
    """``floor(r / g)`` when the terms that are no multiples of ``g`` are a place below it."""
    return const_of(r) // g + sum((c // g) * x for x, c in terms_of(r) if c % g == 0)


def mod(a: Dim, b: Dim) -> Dim:
    """``a % b`` with the sign of ``b``; the same rules as :func:`floordiv`."""
    if isinstance(a, int) and isinstance(b, int) and b != 0:
        return a % b
    if isinstance(b, int) and b <= 0:
        return a - floordiv(a, b) * b
    _, r = _split_multiple(a, b)
    if r == 0 or _inside(r, b):
        return r
    if isinstance(b, int):
        for atom, c in terms_of(r):
            if isinstance(atom, BinaryExpr) and atom.op == "mod" and isinstance(atom.b, int) and c * atom.b % b == 0:
                return mod(r - c * atom + c * atom.a, b)
        g = _run(r, b)
        place = r - g * _floor_terms(r, g)
        if symbols(place):
            return g * mod(_floor_terms(r, g), b // g) + place
    return BinaryExpr("mod", r, b)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded up, for positive ``b``."""
    return floordiv(a + (b - 1), b)


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of two expressions, resolved where their bounds decide it."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if is_nonneg(b - a):
        return a
    if is_nonneg(a - b):
        return b
    return BinaryExpr("min", *_commuted(a, b))


def maximum(a: Dim, b: Dim) -> Dim:
    """The larger of two expressions, resolved where their bounds decide it."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if is_nonneg(b - a):
        return b
    if is_nonneg(a - b):
        return a
    return BinaryExpr("max", *_commuted(a, b))


def _commuted(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    return (a, b) if to_text(a) <= to_text(b) else (b, a)


OPERATIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
}
"""What each ``op`` of a ``BinaryExpr`` makes of two expressions."""

# --- walking --------------------------------------------------------------------------------------------------------


def symbol_order(s: Sym) -> tuple[str, str]:
    """A key that puts symbols in one order in every process: a set of them has the order of its hashes."""
    return s.name, f"{s.lo} {s.hi}"


def symbols(e: Dim) -> frozenset[Sym]:
    """Every symbol that ``e`` depends on."""
    if isinstance(e, int):
        return _NO_SYMBOLS
    found = e._symbols
    if found is None:
        found = e._symbols = frozenset((e,)) if isinstance(e, Sym) else _NO_SYMBOLS.union(*map(symbols, parts_of(e)))
    return found


_NO_SYMBOLS: frozenset[Sym] = frozenset()


def parts_of(e: Expr) -> Iterable[Dim]:
    """What it is made of: the factors, both sides, or the atoms of a sum, of which a symbol is its own."""
    if isinstance(e, Mul):
        return e.factors
    return (e.a, e.b) if isinstance(e, BinaryExpr) else [atom for atom, _ in e.terms]


def substitute(e: Dim, values: Mapping[Sym, Dim]) -> Dim:
    """``e`` with symbols replaced, simplified again."""
    if isinstance(e, int):
        return e
    if isinstance(e, Sym):
        return values.get(e, e)
    if symbols(e).isdisjoint(values):
        return e
    return weighted_sum(e.const, [(_substitute_atom(atom, values), coef) for atom, coef in e.terms])


def weighted_sum(const: int, parts: Sequence[tuple[Dim, int]]) -> Dim:
    """``const + sum(coef * part)``, put in order once; one after the other where a remainder may meet its dividend."""
    first, coefs = const, dict[Atom, int]()
    for part, coef in parts:
        if isinstance(part, int):
            const += coef * part
        else:
            const += coef * part.const
            for atom, c in part.terms:
                coefs[atom] = coefs.get(atom, 0) + coef * c
    if len(coefs) < 2 or not any([isinstance(atom, BinaryExpr) and atom.op == "mod" for atom in coefs]):
        return _linear(const, coefs)
    total: Dim = first
    for part, coef in parts:
        total = total + part * coef
    return total


def _substitute_atom(atom: Atom, values: Mapping[Sym, Dim]) -> Dim:
    if isinstance(atom, Sym):
        return values.get(atom, atom)
    if isinstance(atom, Mul):
        total: Dim = 1
        for f in atom.factors:
            total = total * _substitute_atom(f, values)
        return total
    assert isinstance(atom, BinaryExpr)
    return OPERATIONS[atom.op](substitute(atom.a, values), substitute(atom.b, values))


def evaluate(e: Dim, values: Mapping[Sym, int]) -> int:
    """The integer value of ``e``; ``KeyError`` names a symbol without a value."""
    missing = symbols(e) - values.keys()
    if missing:
        raise KeyError(f"no value for {sorted(s.name for s in missing)} in {e}")
    result = substitute(e, values)
    assert isinstance(result, int)
    return result


# --- text -----------------------------------------------------------------------------------------------------------


def to_text(e: Dim) -> str:
    """Python syntax; ``parse`` reads it back to an equal expression."""
    if isinstance(e, int):
        return str(e)
    if e._text is None:
        e._text = _text_of(e)
    return e._text


def _text_of(e: Expr) -> str:
    if isinstance(e, Sym):
        return e.name
    if isinstance(e, Mul):
        return "*".join(_operand(f) for f in e.factors)
    if isinstance(e, BinaryExpr):
        if e.op in ("min", "max"):
            return f"{e.op}({to_text(e.a)}, {to_text(e.b)})"
        return f"{_operand(e.a)} {'//' if e.op == 'floordiv' else '%'} {_operand(e.b)}"
    parts = [_term(a, c) for a, c in e.terms]
    if e.const:
        parts.append(str(e.const))
    return " + ".join(parts).replace("+ -", "- ")


def _operand(e: Dim) -> str:
    bare = (
        isinstance(e, Sym) or (isinstance(e, int) and e >= 0) or (isinstance(e, BinaryExpr) and e.op in ("min", "max"))
    )
    return to_text(e) if bare else f"({to_text(e)})"


def _term(atom: Atom, coef: int) -> str:
    text = _operand(atom) if isinstance(atom, BinaryExpr) else to_text(atom)
    return text if coef == 1 else f"-{text}" if coef == -1 else f"{coef}*{text}"


def parse(text: str, symbol: Callable[[str], Dim]) -> Dim:
    """Read Python integer-expression syntax; ``symbol`` maps a name to its value. ``ValueError`` on anything else."""
    try:
        tree = parse_expression(text)
        return _from_ast(tree, symbol)
    except (SyntaxError, RecursionError, ZeroDivisionError) as e:
        raise ValueError(f"not an integer expression: {text!r}") from e


_AST_OPS: Mapping[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}


def _from_ast(node: ast.expr, symbol: Callable[[str], Dim]) -> Dim:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return _from_ast(x, symbol) * -1
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _AST_OPS:
            return _AST_OPS[type(op)](_from_ast(left, symbol), _from_ast(right, symbol))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[a, b], keywords=[]):
            return OPERATIONS[name](_from_ast(a, symbol), _from_ast(b, symbol))
    raise ValueError(f"not allowed in an integer expression: {ast.dump(node)[:80]}")
