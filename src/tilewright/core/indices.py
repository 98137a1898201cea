"""What is asked of the parts of an index: do loops decide it or do the data, which symbols does it have?

In: ``IndexLike``, a ``Dim`` or, of gathers and scatters, a ``Value`` of the data. Out: answers, so that callers need
not tell the cases of this union apart. Not its business: what is asked of a ``Dim`` alone (``core.dims``), arithmetic
(``core.expr``).
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.core.compute import IndexLike, Value
from tilewright.core.expr import Atom, Dim, Sym, symbols, terms_of


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
