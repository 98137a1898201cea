"""Index-set splitting: cutting a loop where the status of guards and ragged extents changes.

In: a loop's variable and range, its body, and what is known. Out: pieces with the facts that hold in each.
Not its business: emitting the pieces (``loops``).

A condition ``e >= 0`` under the loop holds always, never, or sometimes for a value ``v`` of the variable, once the
inner variables run over their intervals. With ``e = c*v + rest`` both changes are at a quotient of ``rest``'s bounds,
which may be symbolic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.codegen.llvm.analysis import COPIED, MAX_UNROLL, statement_values
from tilewright.codegen.llvm.index import IndexSpace
from tilewright.core import expr
from tilewright.core.compute import Index as IndexValue
from tilewright.core.compute import IndexLike, Inside, Load, Value, walk
from tilewright.core.dims import is_known, known
from tilewright.core.expr import Atom, BinaryExpr, Dim, Interval, Mul, Sym
from tilewright.core.indices import placed
from tilewright.tile.ir import Fold, For, If, Kind, Prefetch, Stmt, Store, Update

MAX_PIECES = 9
MAX_STATEMENTS = 1500
MAX_STATEMENTS_OF_SIZES = 250
"""The same where sizes decide places: then every piece is code, while numbers leave out those that are empty."""
MIN_SHARE = 0.25
"""The part of a loop's statements that depend on it, below which it is not cut."""
_CUT = frozenset({Kind.SERIAL, Kind.PARALLEL, Kind.VECTOR})


@dataclass(frozen=True)
class Condition:
    """``e >= 0`` decides something in the body; ``inner`` bounds the variables of loops below."""

    e: Dim
    inner: tuple[tuple[Sym, Interval], ...]
    is_guard: bool = False


@dataclass(frozen=True)
class Cut:
    """The condition's status changes from ``at - 1`` to ``at``; ``below`` and ``above`` are >= 0 on either side."""

    at: Dim
    below: Dim
    above: Dim


@dataclass(frozen=True)
class RangePiece:
    """Part of a loop's range, and expressions that are >= 0 in it."""

    lo: Dim
    hi: Dim
    facts: tuple[Dim, ...] = ()


def pieces(space: IndexSpace, sym: Sym, extent: Dim, conditions: list[Condition]) -> list[RangePiece]:
    """Cut ``0 <= sym < extent``; one piece when nothing is gained or the pieces would be too many."""
    lo, hi = 0, extent
    cuts = _cuts(space, sym, lo, hi, conditions)
    if not cuts or len(cuts) >= MAX_PIECES:
        return [RangePiece(lo, hi)]
    result: list[RangePiece] = []
    start: Dim = lo
    for n in range(len(cuts) + 1):
        stop = hi if n == len(cuts) else expr.maximum(start, expr.minimum(cuts[n].at, hi))
        facts = [c.above for c in cuts[:n]]
        facts += [c.below for m, c in enumerate(cuts[n:]) if m == 0 or space.proved(c.at - cuts[n].at)]
        if not (is_known(start) and is_known(stop) and start >= stop):
            result.append(RangePiece(start, stop, tuple([f for f in facts if not is_known(f)])))
        start = stop
    return result


def _cuts(space: IndexSpace, sym: Sym, lo: Dim, hi: Dim, conditions: list[Condition]) -> list[Cut]:
    by_place: dict[Dim, Cut] = {}
    for c in conditions:
        for cut in _condition_cuts(space.resolve(c.e), c.inner, space.env, sym):
            if space.proved(lo - cut.at) is not True and space.proved(cut.at - hi) is not True:
                by_place.setdefault(cut.at, cut)
    ordered: list[Cut] = sorted((c for c in by_place.values() if is_known(c.at)), key=lambda c: expr.const_of(c.at))
    for cut in by_place.values():
        if is_known(cut.at):
            continue
        place = next((n for n, other in enumerate(ordered) if space.proved(other.at - cut.at)), len(ordered))
        ordered.insert(place, cut)
    return ordered


def _condition_cuts(
    e: Dim, inner: tuple[tuple[Sym, Interval], ...], outer: Mapping[Sym, Interval], sym: Sym
) -> Iterator[Cut]:
    """Where the status of ``e >= 0`` changes: over all values of ``inner``, each of ``outer`` and ``sym``."""
    linear = _linear_in(e, sym)
    if linear is None:
        return
    coef = expr.coef_of(linear, sym)
    if not coef:
        return
    low, high = _extremes(linear - coef * sym, dict(inner), outer)
    for rest in (low,) if low == high else (low, high):
        if rest is None:
            continue
        whole = coef * sym + rest
        at = expr.ceildiv(-1 * rest, coef) if coef > 0 else expr.floordiv(rest, -coef) + 1
        yield Cut(at, -1 - whole, whole) if coef > 0 else Cut(at, whole, -1 - whole)


def _linear_in(e: Dim, sym: Sym) -> Dim | None:
    """``e``, or an expression of the same sign that is linear in ``sym``; None when there is none in sight.

    ``floor(x / k) >= n`` is ``x - n*k >= 0``, and ``n >= floor(x / k)`` is ``n*k + k - 1 - x >= 0``.
    """
    inside = [(a, c) for a, c in expr.terms_of(e) if not isinstance(a, Sym) and sym in expr.symbols(a)]
    if not inside:
        return e
    (atom, coef), *more = inside
    divides = isinstance(atom, BinaryExpr) and atom.op == "floordiv" and is_known(atom.b) and abs(coef) == 1
    if more or not divides or not isinstance(atom, BinaryExpr) or not is_known(atom.b):
        return None
    rest = e - coef * atom
    if coef == 1:
        return _linear_in(atom.a + rest * atom.b, sym)
    return _linear_in(rest * atom.b + (atom.b - 1) - atom.a, sym)


def _extremes(rest: Dim, inner: Mapping[Sym, Interval], outer: Mapping[Sym, Interval]) -> tuple[Dim | None, Dim | None]:
    """Bounds of ``rest`` over the inner variables, symbolic in everything else."""
    low: Dim | None = expr.const_of(rest)
    high: Dim | None = low
    for atom, coef in expr.terms_of(rest):
        a, b = _atom_extremes(atom, inner, outer)
        if coef < 0:
            a, b = b, a
        low = None if low is None or a is None else low + a * coef
        high = None if high is None or b is None else high + b * coef
    return low, high


def _atom_extremes(
    atom: Atom, inner: Mapping[Sym, Interval], outer: Mapping[Sym, Interval]
) -> tuple[Dim | None, Dim | None]:
    if expr.symbols(atom).isdisjoint(inner):
        return atom, atom
    return expr.bounds(atom, {**outer, **inner})


# --- what a body depends on -----------------------------------------------------------------------------------------


class Splits:
    """The conditions by which each loop of a kernel may be cut, within a limit on the size of the code.

    A loop is cut only for a good part of its body (``MIN_SHARE``): the rest would be repeated for nothing. When the
    pieces of nested loops would multiply to more than ``MAX_STATEMENTS`` statements (``MAX_STATEMENTS_OF_SIZES``
    where symbolic sizes decide places), outer loops are no longer cut at guards, then no longer at ragged extents:
    inner loops still are, at places computed when they are met, and what stays open becomes masks and branches.
    """

    def __init__(self, body: tuple[Stmt, ...], sizes: tuple[Sym, ...]) -> None:
        self._found: dict[int, list[Condition]] = {}
        self._pieces: dict[tuple[int, int], int] = {}
        order: list[For] = []
        self._collect(body, order)
        for f in order:
            if self._found[id(f)] and _weight(f.body, f.loop.sym) < MIN_SHARE * _weight(f.body):
                self._found[id(f)] = []
        known = all(expr.symbols(c.e).isdisjoint(sizes) for found in self._found.values() for c in found)
        most = MAX_STATEMENTS if known else MAX_STATEMENTS_OF_SIZES
        size = self._size(body)
        for guards_only in (True, False):
            for f in order:
                if size <= most:
                    return
                kept = self._found[id(f)]
                fewer = [c for c in kept if not c.is_guard] if guards_only else []
                if len(fewer) < len(kept):
                    self._found[id(f)] = fewer
                    size = self._size(body)

    def of(self, f: For) -> list[Condition]:
        """The conditions that may cut ``f``."""
        return self._found[id(f)]

    def _collect(self, body: tuple[Stmt, ...], order: list[For]) -> None:
        for s in body:
            if isinstance(s, For):
                order.append(s)
                if id(s) not in self._found and s.loop.kind in _CUT:
                    sym = s.loop.sym
                    self._found[id(s)] = [c for c in conditions(s.body) if sym in expr.symbols(c.e)]
                self._found.setdefault(id(s), [])
            if isinstance(s, For | If):
                self._collect(s.body, order)

    def _size(self, body: tuple[Stmt, ...]) -> int:
        total = 0
        for s in body:
            if isinstance(s, For):
                total += max(self._size(s.body), 1) * self._copies(s)
            else:
                total += self._size(s.body) if isinstance(s, If) else 1
        return total

    def _copies(self, f: For) -> int:
        hi = expr.bounds(f.loop.extent)[1]
        if f.loop.kind in COPIED and hi is not None and hi <= MAX_UNROLL:
            return max(hi, 1)
        return min(self._n_pieces(f, hi), MAX_PIECES, MAX_PIECES if hi is None else max(hi, 1))

    def _n_pieces(self, f: For, hi: int | None) -> int:
        """Pieces of a loop: many conditions change at one place, or at none that it comes to.

        A loop's conditions only become fewer, so that their number tells whether the answer is still that of before.
        """
        found = self._found[id(f)]
        key = id(f), len(found)
        if key not in self._pieces:
            cuts = (cut for c in found for cut in _condition_cuts(c.e, c.inner, {}, f.loop.sym))
            places = {cut.at for cut in cuts if not is_known(cut.at) or 0 < cut.at < known(hi, cut.at + 1)}
            self._pieces[key] = len(places) + 1
        return self._pieces[key]


def _weight(body: tuple[Stmt, ...], sym: Sym | None = None) -> int:
    """Statements, copies counted; with ``sym`` only those whose guards, or a loop around them, depend on it."""
    total = 0
    for s in body:
        if isinstance(s, For):
            around = sym is None or any(sym in expr.symbols(e) for e in _choices(s.loop.extent))
            hi = expr.bounds(s.loop.extent)[1]
            copies = hi if s.loop.kind in COPIED and hi is not None and hi <= MAX_UNROLL else 1
            total += max(copies, 1) * _weight(s.body, None if around else sym)
        elif isinstance(s, If):
            total += _weight(s.body, sym)
        elif sym is None or any(sym in expr.symbols(e) for e, _, _ in _body_conditions((s,), {})):
            total += 1
    return total


def conditions(body: tuple[Stmt, ...]) -> list[Condition]:
    """Every condition in a body that index-set splitting could settle."""
    found: dict[tuple[Dim, tuple[tuple[Sym, Interval], ...]], Condition] = {}
    for e, inner, is_guard in _body_conditions(body, {}):
        mentioned = expr.symbols(e)
        key = (e, tuple([(s, i) for s, i in inner.items() if s in mentioned]))
        if key not in found or (found[key].is_guard and not is_guard):
            found[key] = Condition(*key, is_guard)
    return list(found.values())


def _body_conditions(
    body: tuple[Stmt, ...], inner: dict[Sym, Interval]
) -> Iterator[tuple[Dim, dict[Sym, Interval], bool]]:
    for s in body:
        match s:
            case For(loop, below):
                yield from ((e, inner, False) for e in _choices(loop.extent))
                hi = expr.bounds(loop.extent, inner)[1]
                yield from _body_conditions(below, {**inner, loop.sym: (0, None if hi is None else max(hi - 1, 0))})
            case If(_, below):
                yield from _body_conditions(below, inner)
            case Store() | Update() | Fold() | Prefetch():
                yield from ((e, inner, True) for e in _index_choices(s.index))
        for v in statement_values(s):
            yield from ((e, inner, True) for e in _value_conditions(v))


def _value_conditions(v: Value) -> Iterator[Dim]:
    for x in walk(v):
        match x:
            case Inside():
                for e in x.exprs:
                    yield e
                    yield from _choices(e)
            case Load():
                yield from _index_choices(x.index)
            case IndexValue():
                yield from _choices(x.expr)


def _index_choices(index: tuple[IndexLike, ...]) -> Iterator[Dim]:
    for i in placed(index):
        yield from _choices(i)


def _choices(e: Dim) -> Iterator[Dim]:
    """``a - b`` for every minimum or maximum of ``a`` and ``b`` inside ``e``."""
    for atom, _ in expr.terms_of(e):
        if isinstance(atom, BinaryExpr):
            yield from _choices(atom.a)
            yield from _choices(atom.b)
            if atom.op == "min":
                yield atom.a - atom.b
            elif atom.op == "max":
                yield atom.b - atom.a
        elif isinstance(atom, Mul):
            for f in atom.factors:
                yield from _choices(f)
