"""Indices that are one number's digits, as in ``T[i // 6, i % 6]``, as that number.

In: indices of accesses. Out: sums of digits, in which quotients have cancelled. Not its business: what loops such a
number decides (``loops.apart``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

from tilewright.core.compute import IndexLike
from tilewright.core.dims import is_known
from tilewright.core.expr import BinaryExpr, Dim, coef_of, floordiv, terms_of
from tilewright.core.indices import is_chosen


def numbers_of_digits(indices: list[tuple[IndexLike, ...]]) -> Iterator[list[IndexLike]]:
    """For every dimension that is a remainder, the number that it is the last digit of, for all accesses.

    Digits decide what a sum of them decides, whatever the weights are.
    """
    first = indices[0]
    for last, digit in enumerate(first):
        weights = {last: 1}
        while (radix := _radix(digit)) and (at := last - len(weights)) >= 0:
            weights[at], digit = weights[at + 1] * radix, first[at]
        if len(weights) > 1 and not any(is_chosen(ix[d]) for ix in indices for d in weights):
            yield [_number([(w, ix[d]) for d, w in weights.items()]) for ix in indices]


def _radix(i: IndexLike) -> int | None:
    """``c * n`` of a term ``c * (x % n)``; a number is no digit of anything, and is passed over."""
    if is_chosen(i):
        return None
    return 1 if is_known(i) else next((coef_of(i, a) * a.b for a in _remainders(i) if is_known(a.b)), None)


def _remainders(d: Dim) -> list[BinaryExpr]:
    return [a for a, _ in terms_of(d) if isinstance(a, BinaryExpr) and a.op == "mod"]


def _number(digits: Sequence[tuple[int, IndexLike]]) -> Dim:
    """The weighted sum of digits, with ``x % n`` as ``x - x // n * n``: other digits cancel the quotients."""
    quotients: Dim = 0
    rest: Dim = 0
    for weight, i in digits:
        assert not is_chosen(i)
        for a in _remainders(i):
            c = coef_of(i, a)
            i = i - c * a
            quotients = quotients - weight * c * a.b * _coarse(_quotient(a.a, a.b))
            rest = rest + weight * c * _coarse(a.a)
        quotients = quotients + weight * _coarse(i)
    return quotients + rest  # only now: before, a sum of both would be a remainder again


def _quotient(a: Dim, n: Dim) -> Dim:
    """``(m + x // k) // n`` as ``(k*m + x) // (k*n)``, which is how the digit before is written."""
    for atom, c in terms_of(a):
        if c == 1 and isinstance(atom, BinaryExpr) and atom.op == "floordiv" and is_known(atom.b):
            return floordiv((a - atom) * atom.b + atom.a, n * atom.b)
    return floordiv(a, n)


def _coarse(d: Dim) -> Dim:
    """Quotients ``(g*x + r) // (g*n)`` as ``x // n`` where ``0 <= r < g``: how a split leaves a digit of its parts."""
    for atom, c in terms_of(d):
        if not isinstance(atom, BinaryExpr) or atom.op != "floordiv" or not is_known(atom.b):
            continue
        for g in sorted({gcd(unit, atom.b) for _, unit in terms_of(atom.a)} - {1}):
            above: Dim = sum(unit * x for x, unit in terms_of(atom.a) if unit % g == 0)
            if above != 0 and floordiv(atom.a - above, g) == 0:
                return _coarse(d - c * atom + c * floordiv(floordiv(above, g), atom.b // g))
    return d
