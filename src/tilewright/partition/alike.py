"""Computations that differ only in the numbers at which they read become one, which a call tells those numbers.

In: the computations of a graph's groups. Out: the same; where several with symbolic sizes are alike but for whole
numbers in the indices of what they read, these numbers are symbols, and each says what its own are. So the steps of an
unrolled loop, and the pieces of a split, are one kernel. Kernels of fixed sizes keep their numbers, which are part of
an address there and are quickly compiled.
Not its business: equal computations, which the builder of kernels finds by their texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.core.compute import (
    Computation,
    Load,
    Serial,
    Stage,
    Value,
    buffers_of_value,
    every_stage,
    rewrite_value,
)
from tilewright.core.expr import Dim, Sym, const_of
from tilewright.core.indices import is_chosen
from tilewright.partition.computation import GroupComputation, computation_text, sizes_of
from tilewright.partition.grouped import Grouped


@dataclass(frozen=True)
class _Numbered:
    """The computation of the group at ``at``, with the numbers in its indices, in the order of a walk."""

    at: int
    made: GroupComputation
    numbers: tuple[int, ...]


def share_kernels(groups: Sequence[Grouped]) -> tuple[Grouped, ...]:
    """Each group with symbols for the numbers in which its computation differs from others that are alike.

    Constants keep their indices, because they may be laid out for what reads them; the computations of an op's author
    keep theirs, because the author's steps are written for them.
    """
    alike: dict[tuple[str, int], list[_Numbered]] = {}
    for at, g in enumerate(groups):
        if g.made is not None and g.made.author is None and sizes_of(g.made.computation):
            bare, numbers = _without_numbers(g.made)
            key = computation_text(bare, g.made.constants), len(numbers)
            alike.setdefault(key, []).append(_Numbered(at, g.made, numbers))
    found = list(groups)
    for members in alike.values():
        if any(m.numbers != members[0].numbers for m in members):
            for m, shared in zip(members, _shared(members), strict=True):
                found[m.at] = replace(found[m.at], made=shared)
    return tuple(found)


def _shared(members: Sequence[_Numbered]) -> Iterator[GroupComputation]:
    """One symbol for each number that differs; for several that differ from it by the same in every member, too."""
    taken = {s.name for s in sizes_of(members[0].made.computation)}
    names = (name for k in range(len(taken) + len(members[0].numbers)) if (name := f"at{k}") not in taken)
    places: dict[tuple[int, ...], tuple[Sym, tuple[int, ...]]] = {}
    dims: list[Dim] = []
    for column in zip(*[m.numbers for m in members], strict=True):
        behind = tuple(n - column[0] for n in column)
        if not any(behind):
            dims.append(column[0])
            continue
        if behind not in places:
            places[behind] = Sym(next(names), min(column), max(column)), column
        symbol, values = places[behind]
        dims.append(symbol + (column[0] - values[0]))
    for k, m in enumerate(members):
        computation = _with_numbers(m.made, partial(_next, iter(dims)))
        given = {symbol: values[k] for symbol, values in places.values()}
        bounds = [f"place {s.name} {s.lo} {s.hi}" for s in given]
        text = "\n".join([computation_text(computation, m.made.constants), *bounds])
        yield replace(m.made, computation=computation, text=text, places=given)


def _next(dims: Iterator[Dim], _: int) -> Dim:
    return next(dims)


def _without_numbers(made: GroupComputation) -> tuple[Computation, tuple[int, ...]]:
    numbers: list[int] = []

    def zero(number: int) -> int:
        numbers.append(number)
        return 0

    return _with_numbers(made, zero), tuple(numbers)


def _with_numbers(made: GroupComputation, number: Callable[[int], Dim]) -> Computation:
    """The computation with another number for each in an index of what it reads, asked for in the order of a walk.

    But for what constants have a part in: where that is read is an index of theirs once stages are one expression.
    """
    fixed = set(made.constants)
    for stage in every_stage(made.computation.items):
        if any(not fixed.isdisjoint(buffers_of_value(v)) for v in stage.values):
            fixed.update(stage.outs)

    def leaf(v: Value) -> Value | None:
        if not isinstance(v, Load) or v.buffer in fixed:
            return None
        return Load(v.buffer, tuple(i if is_chosen(i) else i - const_of(i) + number(const_of(i)) for i in v.index))

    def moved(item: Stage | Serial) -> Stage | Serial:
        if isinstance(item, Serial):
            return replace(item, body=tuple(map(moved, item.body)))
        index = tuple(rewrite_value(i, leaf) if is_chosen(i) else i for i in item.index)
        exprs = tuple(rewrite_value(v, leaf) for v in item.exprs)
        fold = item.reduction
        if fold is not None:
            fold = replace(fold, init=tuple(rewrite_value(v, leaf) for v in fold.init))
        return replace(item, index=index, exprs=exprs, reduction=fold)

    return replace(made.computation, items=tuple(map(moved, made.computation.items)))
