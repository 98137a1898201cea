"""Which symbolic dimensions of a model's inputs must be equal, learnt from the nodes that need it.

In: an op and operand types that break its rule. Out: pairs of dimensions that the rule wants equal, and from those a
value for symbols. Files often leave dimensions unnamed, or name one size differently for each input; the importer
starts again with the symbols replaced, so that callers see the smaller set of names in the inputs' shapes.
Not its business: dimensions that differ for sure, which stay errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, islice
from typing import TypeAlias

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import BinaryExpr, Dim, Expr, Sym, bounds, evaluate, parts_of, substitute, symbols
from tilewright.core.graph import Attrs
from tilewright.core.opdef import OpDef, Trait
from tilewright.core.types import TensorType

Pairs: TypeAlias = list[tuple[Dim, Dim]]
Types: TypeAlias = Sequence[TensorType]


def wanted_equal(op: OpDef, operands: Types, attrs: Mapping[str, object]) -> Pairs:
    """Pairs of different dimensions that ``op`` wants equal, as far as its kind tells."""
    rule = _RULES.get(op)
    pairs = _broadcast([t.shape for t in operands]) if Trait.ELEMENTWISE in op.traits else []
    if rule is not None:
        pairs = rule(operands, Attrs(attrs))
    return [(a, b) for a, b in pairs if a != b and not (is_known(a) and is_known(b))]


MAX_TRIED = 4096
"""Sizes that are tried for a pair that no rearranging solves."""


MOST_SIZE = 1 << 40
"""More than any size is."""


MAX_MULTIPLE = 256
"""Of the numbers that a size may be asked to be a multiple of."""


def solve(pairs: Pairs, free: set[Sym]) -> dict[Sym, Dim]:
    """A value for each symbol of ``free`` that a pair determines; each symbol at most once, and none in a value."""
    return _rearranged(pairs, free) or _tried(pairs, free) or _narrowed(pairs, free)


def _tried(pairs: Pairs, free: set[Sym]) -> dict[Sym, Dim]:
    """The only size that makes the two sides of a pair equal: of ``2*n`` and 2 it is 1."""
    for a, b in pairs:
        over = symbols(a) | symbols(b)
        if len(over) == 1 and over <= free:
            (symbol,) = over
            fits = (n for n in range(max(symbol.lo or 0, 1), MAX_TRIED) if _equal_at(a, b, {symbol: n}))
            found = list(islice(fits, 2))
            if len(found) == 1:
                return {symbol: found[0]}
    return {}


def _narrowed(pairs: Pairs, free: set[Sym]) -> dict[Sym, Dim]:
    """A symbol of fewer sizes, at all of which the two sides of a pair are equal: up to a number, from one on, or
    multiples.

    ``n // 8`` and ``min(n // 8, 9)`` are equal up to 79, ``min(n, 8)`` and 8 from 8 on, ``(n + 1) // 2`` and 1 up to 2,
    ``(h + 15) // 16`` and ``2*((h + 31) // 32)`` for multiples of 32.
    """
    found: dict[Sym, Dim] = {}
    for a, b in pairs:
        for symbol in sorted((symbols(a) | symbols(b)) & (free - found.keys()), key=lambda s: s.name):
            for fewer in _narrower(symbol, (a, b)):
                if bounds(substitute(a, {symbol: fewer}) - substitute(b, {symbol: fewer})) == (0, 0):
                    found[symbol] = fewer
                    break
    return found


def _narrower(symbol: Sym, sides: tuple[Dim, Dim]) -> Iterator[Dim]:
    lo, hi = max(symbol.lo or 0, 1), MOST_SIZE if symbol.hi is None else symbol.hi
    numbers = [(e, n) for e, n in (sides, sides[::-1]) if is_known(n)]
    found = (*(limit for e in sides for limit in _limits(e)), *numbers)
    turns = [limit for limit in found if symbols(limit[0]) == {symbol}]
    for most in sorted({_first_above(e, n, symbol, lo, hi) - 1 for e, n in turns}, reverse=True):
        if lo <= most < hi:
            yield Sym(symbol.name, symbol.lo, most)
    for least in sorted({_first_above(e, n - 1, symbol, lo, hi) for e, n in turns}):
        if lo < least <= hi:
            yield Sym(symbol.name, least, symbol.hi)
    if symbol.hi is None:
        for n in range(2, MAX_MULTIPLE + 1):
            yield n * Sym(f"{symbol.name}_by_{n}", -(-lo // n))


def _limits(e: Dim) -> Iterator[tuple[Expr, int]]:
    """What minima and maxima within ``e`` are taken of, and the number that they are taken with."""
    if isinstance(e, int | Sym):
        return
    parts = tuple(parts_of(e))
    if isinstance(e, BinaryExpr) and e.op in ("min", "max"):
        for a, b in (parts, parts[::-1]):
            if isinstance(a, Expr) and isinstance(b, int):
                yield a, b
    for p in parts:
        yield from _limits(p)


def _first_above(e: Dim, n: int, symbol: Sym, lo: int, hi: int) -> int:
    """The first size from ``lo`` on at which ``e``, which grows with it, is above ``n``; ``hi + 1`` where none is."""
    hi += 1
    while lo < hi:
        middle = (lo + hi) // 2
        if evaluate(e, {symbol: middle}) > n:
            hi = middle
        else:
            lo = middle + 1
    return lo


def _equal_at(a: Dim, b: Dim, sizes: Mapping[Sym, int]) -> bool:
    try:
        return evaluate(a, sizes) == evaluate(b, sizes)
    except ZeroDivisionError:
        return False


def _rearranged(pairs: Pairs, free: set[Sym]) -> dict[Sym, Dim]:
    found: dict[Sym, Dim] = {}
    used: set[Sym] = set()
    for a, b in pairs:
        for symbol, value in ((a, b), (b, a)):
            if (
                not isinstance(symbol, Sym)
                or symbol not in free
                or symbol in used
                or symbols(value) & (used | {symbol})
            ):
                continue
            if symbols(value) <= free:
                found[symbol] = value
                used |= {symbol} | symbols(value)
                break
    return found


def _broadcast(shapes: Sequence[Sequence[Dim]]) -> Pairs:
    pairs: Pairs = []
    for x, y in combinations(shapes, 2):
        pairs += [(a, b) for a, b in zip(reversed(x), reversed(y), strict=False) if a != 1 and b != 1]
    return pairs


def _matmul(ts: Types, attrs: Attrs) -> Pairs:
    a, b = ts[0].shape, ts[1].shape
    return [(a[-1], b[-2]), *_broadcast([a[:-2], b[:-2]])]


def _conv(ts: Types, attrs: Attrs) -> Pairs:
    return [(ts[0].shape[1], ts[1].shape[1] * attrs.groups)]


def _conv_transpose(ts: Types, attrs: Attrs) -> Pairs:
    return [(ts[0].shape[1], ts[1].shape[0])]


def _channels(ts: Types, attrs: Attrs) -> Pairs:
    return [(ts[0].shape[1], p.shape[0]) for p in ts[1:]]


def _last(ts: Types, attrs: Attrs) -> Pairs:
    return [pair for p in ts[1:] for pair in zip(reversed(ts[0].shape), reversed(p.shape), strict=False)]


def _einsum(ts: Types, attrs: Attrs) -> Pairs:
    first: dict[str, Dim] = {}
    pairs: Pairs = []
    for letters, t in zip(str(attrs.equation).split("->")[0].split(","), ts, strict=True):
        for letter, d in zip(letters, t.shape, strict=True):
            pairs.append((first.setdefault(letter, d), d))
    return pairs


def _attention(ts: Types, attrs: Attrs) -> Pairs:
    q, k, v = (t.shape for t in ts[:3])
    masks = [t.shape for t in ts[3:]]
    scores = (q[0], q[1], q[2], k[2])
    return [(q[0], k[0]), (k[0], v[0]), (k[1], v[1]), (k[2], v[2]), (q[3], k[3]), *_broadcast([scores, *masks])]


def _recurrent(gates: int, ts: Types, attrs: Attrs) -> Pairs:
    x, w, r, state = ts[0].shape, ts[1].shape, ts[2].shape, ts[4].shape
    n_directions = 2 if attrs.direction == "bidirectional" else 1
    same = [(x[2], w[2]), (x[1 - attrs.layout], state[1 - attrs.layout])]
    rows = gates * attrs.hidden
    return [*same, (w[0], n_directions), (r[0], n_directions), (w[1], rows), (r[1], rows)]


_RULES: Mapping[OpDef, Callable[[Types, Attrs], Pairs]] = {
    ops.matmul: _matmul,
    ops.conv: _conv,
    ops.conv_transpose: _conv_transpose,
    ops.einsum: _einsum,
    ops.batch_norm: _channels,
    ops.instance_norm: _channels,
    ops.group_norm: _channels,
    ops.layer_norm: _last,
    ops.rms_norm: _last,
    ops.attention: _attention,
    ops.lstm: partial(_recurrent, 4),
    ops.gru: partial(_recurrent, 3),
    ops.rnn: partial(_recurrent, 1),
}
