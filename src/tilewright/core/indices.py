"""What is asked of sizes and of indices: is it a number, do loops decide it or do the data, which symbols does it have.

In: ``Dim``, a number or an expression; ``IndexLike``, a ``Dim`` or, of gathers and scatters, a ``Value`` of the data.
Out: answers, so that callers need not tell the cases of these unions apart. Not its business: arithmetic (``expr``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tilewright.core.compute import IndexLike, Value
from tilewright.core.expr import Atom, Dim, Sym, symbols, terms_of

T = TypeVar("T")


def known(d: Dim | None, otherwise: T) -> int | T:
    """A size that is a number; ``otherwise`` where it is known at run time only, or not at all."""
    return d if isinstance(d, int) else otherwise


def are_known(dims: Iterable[Dim | None]) -> bool:
    """Are all sizes numbers?"""
    return all([isinstance(d, int) for d in dims])


def placed(index: Iterable[IndexLike]) -> tuple[Dim, ...]:
    """The parts of an index that loops decide."""
    return tuple([i for i in index if not isinstance(i, Value)])


def chosen(index: Iterable[IndexLike]) -> tuple[Value, ...]:
    """The parts of an index that the data choose, in gathers and scatters."""
    return tuple([i for i in index if isinstance(i, Value)])


def symbols_at(i: IndexLike) -> frozenset[Sym]:
    """The symbols of one part of an index; none of one that the data choose, whatever that is computed from."""
    return frozenset() if isinstance(i, Value) else symbols(i)


def symbols_in(index: Iterable[IndexLike]) -> set[Sym]:
    """:func:`symbols_at` of all parts."""
    return set().union(*[symbols_at(i) for i in index])


def terms_at(i: IndexLike) -> tuple[tuple[Atom, int], ...]:
    """The terms of one part of an index; none of one that the data choose."""
    return () if isinstance(i, Value) else terms_of(i)
