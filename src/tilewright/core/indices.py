"""What is asked of the parts of an index: do loops decide it or do the data, which symbols does it have?

In: ``IndexLike``, a ``Dim`` or, of gathers and scatters, a ``Value`` of the data. Out: answers, so that callers need
not tell the cases of this union apart. Not its business: what is asked of a ``Dim`` alone (``core.dims``), arithmetic
(``core.expr``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilewright.core.compute import IndexLike, Value, symbols_of_value
from tilewright.core.expr import Atom, Dim, Sym, symbols, terms_of

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # in `typing` from Python 3.13 on; type checkers bring its types along


def is_chosen(i: IndexLike | None) -> TypeIs[Value]:
    """Do the data choose it, in a gather or a scatter? Where they don't, loops decide it."""
    return isinstance(i, Value)


def placed(index: Iterable[IndexLike]) -> tuple[Dim, ...]:
    """The parts of an index that loops decide."""
    return tuple([i for i in index if not isinstance(i, Value)])


def chosen(index: Iterable[IndexLike]) -> tuple[Value, ...]:
    """The parts of an index that the data choose, in gathers and scatters."""
    return tuple([i for i in index if isinstance(i, Value)])


def placed_by_dimension(index: Iterable[IndexLike]) -> Iterator[tuple[int, Dim]]:
    """The parts of an index that loops decide, each behind the dimension that it is of."""
    return ((d, i) for d, i in enumerate(index) if not isinstance(i, Value))


def at_first(index: Iterable[IndexLike]) -> tuple[Dim, ...]:
    """The index as if the data chose the first element along every dimension in which they choose."""
    return tuple([0 if isinstance(i, Value) else i for i in index])


def lies_at(own: Iterable[IndexLike], other: Iterable[IndexLike]) -> dict[Sym, Dim]:
    """What each symbol that is a part of the index ``own`` is in ``other``, where loops decide that."""
    pairs = zip(own, other, strict=True)
    return {s: i for s, i in pairs if isinstance(s, Sym) and not isinstance(i, Value)}


def symbols_at(i: IndexLike) -> frozenset[Sym]:
    """The symbols of one part of an index; none of one that the data choose, whatever that is computed from."""
    return frozenset() if isinstance(i, Value) else symbols(i)


def mentioned_at(i: IndexLike) -> frozenset[Sym]:
    """The symbols of one part of an index, those that a choice by the data is computed from among them."""
    return symbols_of_value(i) if isinstance(i, Value) else symbols(i)


def symbols_in(index: Iterable[IndexLike]) -> set[Sym]:
    """:func:`symbols_at` of all parts."""
    return set().union(*[symbols_at(i) for i in index])


def terms_at(i: IndexLike) -> tuple[tuple[Atom, int], ...]:
    """The terms of one part of an index; none of one that the data choose."""
    return () if isinstance(i, Value) else terms_of(i)
