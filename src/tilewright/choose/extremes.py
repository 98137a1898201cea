"""Cheaper operations in a softmax: maxima that need not carry NaN, and weights that need not be denormal.

In: the stages of a computation. Out: the same with other operations. Not its business: how a row is scheduled.

``max`` becomes ``larger``, one instruction where ``max`` takes three.

A softmax takes the maximum ``m`` of a row off every element of it and divides by a sum over the row of what becomes of
the differences. An element that is NaN makes its own difference NaN, with it the sum, and with the sum the whole row,
whatever ``m`` is. So ``m`` may be any number there.

``exp2`` becomes ``exp2_flushed``, which gives 0 for what is below the least normal number. The largest weight of a row
is 1, and beside it such a weight is nothing in a sum. A CPU takes 100 times as long for a product with a denormal
number, and a mask of -100, as attention within windows has it, makes all that it hides denormal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Computation,
    Const,
    Fma,
    IndexLike,
    Load,
    Select,
    Stage,
    Unary,
    Value,
    loads,
    substitute_value,
    walk,
)
from tilewright.core.expr import Sym
from tilewright.core.indices import lies_at, symbols_at

_OF_ONE = frozenset("neg abs sqrt rsqrt exp exp2 expm1 log log2 log1p".split())
_OF_EITHER = frozenset("add sub mul div min max".split())


def free_maxima(computation: Computation) -> Computation:
    """``m[row] = max(x[row, j])`` becomes ``larger`` when a NaN of a row of ``x`` makes all that ``m`` reaches NaN.

    For every maximum of floats along one axis into a temporary. Not when: ``m`` reaches an output by a way that a sum
    of all the row's differences ``x - m`` is no factor or term of; or a stage on the way mixes rows, writes several
    buffers or a part of one, updates or scatters.
    """
    items = list(computation.items)
    for k, s in enumerate(items):
        if isinstance(s, Stage) and _is_maximum(s, computation) and _is_drowned(s, items[k + 1 :], computation):
            assert s.reduction is not None
            items[k] = replace(s, reduction=replace(s.reduction, op="larger"))
    return replace(computation, items=tuple(items))


def flush_weights(computation: Computation) -> Computation:
    """``exp2((x - m) * c)`` of elements ``x`` of a row with the maximum ``m`` is flushed where only sums read it.

    For temporaries of f32, also rounded ones, and sums along the row: of weights alone, or of weights times values that
    have an axis of their own, as those that attention averages. Of each product a sum loses less than 1.2e-38 times the
    value. Not where a row has factors of its own: a mask may leave one weight, whose logarithm is asked for.
    """
    stages = [s for s in computation.items if isinstance(s, Stage)]
    maxima = {s.out: s for s in stages if _is_maximum(s, computation)}
    items = list(computation.items)
    for k, s in enumerate(items):
        if isinstance(s, Stage) and s.out in computation.temps:
            column = _column_of_weights(s, maxima)
            if column is not None and _only_sums_read(s, column, stages):
                items[k] = replace(s, exprs=(_flushed(s.expr),))
    return replace(computation, items=tuple(items))


def _column_of_weights(s: Stage, maxima: Mapping[Buffer, Stage]) -> Sym | None:
    """The symbol along a row where each element is 2 to the power of what its own is below the row's maximum."""
    if len(s.outs) != 1 or s.reduction is not None or s.update is not None:
        return None
    power = _without_casts(s.expr)
    match power:
        case Unary(op="exp2", a=Binary(op="mul", a=Binary(op="sub", b=Load() as top) as below, b=Const() as c)):
            if power.dtype is types.f32 and top.buffer in maxima and 0 < c.value < math.inf:
                return _column(below.a, top, maxima[top.buffer], s)
    return None


def _column(element: Value, top: Load, maximum: Stage, s: Stage) -> Sym | None:
    """The axis of the stage along which ``element`` is each one of those that ``top`` is the maximum of."""
    assert maximum.reduction is not None
    (over,) = maximum.reduction.axes
    row = lies_at(maximum.index, top.index)
    columns = (a.sym for a in s.axes if a.extent == over.extent and all(a.sym not in symbols_at(i) for i in top.index))
    return next((c for c in columns if element == substitute_value(maximum.expr, {**row, over.sym: c})), None)


def _only_sums_read(weights: Stage, column: Sym, stages: Sequence[Stage]) -> bool:
    """Are weights read, and by sums along their rows alone, of themselves or times values with an axis of their own?"""
    readers = [s for s in stages if any(x.buffer is weights.out for v in s.exprs for x in loads(v))]
    return bool(readers) and all(_sums_rows(s, weights, column) for s in readers)


def _sums_rows(s: Stage, weights: Stage, column: Sym) -> bool:
    if s.reduction is None or s.reduction.op != "add" or len(s.exprs) != 1:
        return False
    terms = _without_casts(s.expr)
    found = [x for x in loads(s.expr) if x.buffer is weights.out]
    if len(found) != 1 or weights.index.count(column) != 1:
        return False
    at = weights.index.index(column)
    whole = {a.sym for a in s.reduction.axes if a.extent == weights.out.shape[at]}
    summed = {a.sym for a in s.reduction.axes}
    rows = [symbols_at(i) for k, i in enumerate(found[0].index) if k != at]
    if found[0].index[at] not in whole or any(summed & symbols for symbols in rows):
        return False
    own = any(all(a.sym not in symbols for symbols in rows) for a in s.axes)
    return isinstance(terms, Load) or (own and _is_multiple(terms, weights.out))


def _is_multiple(v: Value, buffer: Buffer) -> bool:
    """Is ``v`` an element of the buffer times what is not made of one?"""
    v = _without_casts(v)
    if isinstance(v, Binary) and v.op == "mul":
        here, there = (any(x.buffer is buffer for x in loads(a)) for a in (v.a, v.b))
        return here != there and _is_multiple(v.a if here else v.b, buffer)
    return isinstance(v, Load) and v.buffer is buffer


def _without_casts(v: Value) -> Value:
    while isinstance(v, Cast):
        v = v.a
    return v


def _flushed(v: Value) -> Value:
    """The power under casts, flushed."""
    if isinstance(v, Cast):
        return Cast(_flushed(v.a), v.dtype)
    assert isinstance(v, Unary)
    return Unary("exp2_flushed", v.a)


def _is_maximum(s: Stage, computation: Computation) -> bool:
    red = s.reduction
    plain = len(s.outs) == 1 and s.update is None and s.out in computation.temps and s.out.dtype.is_float
    if red is None or red.op not in ("max", "larger") or len(red.axes) != 1 or not plain:
        return False
    return [i for i in s.index if i != 0] == [a.sym for a in s.axes]


@dataclass
class _Row:
    """What a NaN among the elements of a row of ``maximum`` does to other buffers.

    ``reached``: they depend on the maximum. ``whole``: all of their row is NaN. ``same``: their element of the same
    column is.
    """

    maximum: Stage
    reached: set[Buffer]
    whole: set[Buffer] = field(default_factory=set)
    same: set[Buffer] = field(default_factory=set)

    @property
    def depth(self) -> int:
        """How many indices name a row: all of the maximum's up to the last that is not 0."""
        return max((d + 1 for d, i in enumerate(self.maximum.index) if i != 0), default=0)

    def of(self, index: Sequence[IndexLike]) -> tuple[IndexLike, ...]:
        """The row of an element."""
        return tuple(index[: self.depth])


def _is_drowned(maximum: Stage, later: Sequence[object], computation: Computation) -> bool:
    """Is every output that the maximum reaches NaN along a row that has one?"""
    row = _Row(maximum, {maximum.out})
    written = [t for s in computation.items if isinstance(s, Stage) for t in s.outs]
    for s in later:
        if not isinstance(s, Stage):
            return False
        read = [x for v in s.exprs for x in walk(v) if isinstance(x, Load) and x.buffer in row.reached]
        if not read:
            continue
        rows, is_last = {row.of(x.index) for x in read}, s.out not in computation.temps
        if (
            len(s.outs) != 1
            or written.count(s.out) != 1
            or s.update is not None
            or len(rows) != 1
            or (not is_last and rows != {row.of(s.index)})
        ):
            return False
        _follow(s, rows.pop(), row)
        if is_last and s.out not in row.whole:
            return False
    return True


def _follow(s: Stage, at: tuple[IndexLike, ...], row: _Row) -> None:
    """Note what the stage's result is when the row ``at`` has a NaN."""
    row.reached.add(s.out)
    if s.reduction is None:
        if _keeps(s.expr, lambda v: isinstance(v, Load) and v.buffer in row.whole):
            row.whole.add(s.out)
        elif len(s.index) == row.depth + 1 and _keeps(s.expr, lambda v: _is_same(v, s.index, row)):
            row.same.add(s.out)
    elif s.reduction.op == "add" and len(s.reduction.axes) == 1 and row.maximum.reduction is not None:
        (axis,), (all_of_it,) = s.reduction.axes, row.maximum.reduction.axes
        element = (*at, axis.sym)
        if axis.extent == all_of_it.extent and _keeps(s.expr, lambda v: _is_same(v, element, row)):
            row.whole.add(s.out)


def _is_same(v: Value, element: tuple[IndexLike, ...], row: _Row) -> bool:
    """Is ``v`` NaN where the element (row and column) of what the maximum is taken of is?"""
    if isinstance(v, Load):
        return v.buffer in row.same and tuple(v.index) == element
    if not isinstance(v, Binary) or v.op != "sub" or not isinstance(v.b, Load) or v.b.buffer is not row.maximum.out:
        return False
    assert row.maximum.reduction is not None
    walked = (*row.of(row.maximum.index), row.maximum.reduction.axes[0].sym)
    dims = lies_at(walked, element)
    is_whole = all(s in dims or s == i for s, i in zip(walked, element, strict=True))
    return is_whole and v.a == substitute_value(row.maximum.expr, dims)


def _keeps(v: Value, found: Callable[[Value], bool]) -> bool:
    """Is ``v`` NaN where what is ``found`` in it is?"""
    if found(v):
        return True
    match v:
        case Unary():
            return v.op in _OF_ONE and _keeps(v.a, found)
        case Binary():
            return v.op in _OF_EITHER and (_keeps(v.a, found) or _keeps(v.b, found))
        case Fma():
            return any(_keeps(x, found) for x in (v.a, v.b, v.c))
        case Cast():
            return v.dtype.is_float and v.a.dtype.is_float and _keeps(v.a, found)
        case Select():
            return _keeps(v.a, found) and _keeps(v.b, found)
    return False
