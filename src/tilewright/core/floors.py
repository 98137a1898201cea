"""Sums of rounded quotients with fewer terms: ``n - (n + 1) // 2`` is ``n // 2``.

In: an expression. Out: an equal one, which has fewer terms where one of two identities takes some away. Not its
business: single quotients, and what an operator on expressions simplifies by itself (``expr``); sizes are worth a
closer look where they are computed, index expressions of kernels are not.

Both identities are sums that are 0 for all integers. With ``F = (c*x + d) // b`` for an integer ``b > 0``, and
``q = ceil(c / b)``:

* the other part: ``F + ((q*b - c)*x + b - 1 - d) // b - q*x``, as ``-(r // b)`` is ``-r`` divided and rounded up;
* all parts (Hermite): ``(r + 0) // b + ... + (r + b - 1) // b - r``.

``x`` stands for any number of atoms, each with its own ``c`` and ``q``. Of such a sum as many are added as make a
quotient of the expression vanish, if that leaves fewer terms.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.core.dims import known_over
from tilewright.core.expr import BinaryExpr, Dim, const_of, floordiv, terms_of


def simplest(e: Dim) -> Dim:
    """``e`` with as few terms as these identities give, one at a time."""
    while len(terms_of(e)) > 1:
        shorter = min(_others(e), key=_length, default=e)
        if _length(shorter) >= _length(e):
            break
        e = shorter
    return e


def _length(e: Dim) -> int:
    return len(terms_of(e))


def _others(e: Dim) -> Iterator[Dim]:
    """Expressions equal to ``e``, each without one of its quotients."""
    for atom, coef in terms_of(e):
        if isinstance(atom, BinaryExpr) and atom.op == "floordiv" and known_over(atom.b, 0):
            yield e - coef * (atom + _other_part(atom.a, atom.b))
            if atom.b <= _length(e) + 1 and 0 <= const_of(atom.a) < atom.b:  # else too few are parts of one sum
                yield e - coef * (atom + _other_parts(atom.a, atom.b))


def _other_part(a: Dim, b: int) -> Dim:
    """``-(a // b)``, by the quotient of what is left to a multiple of ``b``."""
    whole = sum((-(-c // b) * x for x, c in terms_of(a)), start=0)
    return floordiv(whole * b - a + (b - 1), b) - whole


def _other_parts(a: Dim, b: int) -> Dim:
    """``-(a // b)`` by the other quotients with the same terms."""
    start = a - const_of(a)
    return sum((floordiv(start + k, b) for k in range(b) if k != const_of(a)), start=0) - start
