"""Where the programs of a grid read and store, as plain loops: ``program * BLOCK + lane`` is one index again.

In: index expressions over programs and lanes, masks. Out: axes that replace programs and lanes; folds and stores over
them. Not its business: what users write (``blocks``), whether accesses are inside (``inside``).

Two loops are one where every expression has them together, as ``c * outer + inner`` with ``c`` iterations of the inner
one. A mask of a fold or of a store is a limit of its loop then, so that a ragged last block costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.core.compute import (
    Axis,
    Binary,
    Const,
    Index,
    Inside,
    Load,
    Select,
    Value,
    rewrite_value,
    substitute_value,
    walk,
)
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, ceildiv, floordiv, maximum, minimum, substitute, symbols
from tilewright.core.indices import placed
from tilewright.tile.affine import coefficient, never_negative


@dataclass
class Joined:
    """Axes, some of which are pairs of others: ``to`` has what the symbols of those are now."""

    axes: list[Axis]
    to: dict[Sym, Dim] = field(default_factory=dict)

    def join(self, outer: Axis, inner: Axis, made: Axis) -> None:
        """Let ``made`` be the axis in the place of two, with as many iterations; the inner one's are a number."""
        self.axes[self.axes.index(outer)] = made
        if inner in self.axes:
            self.axes.remove(inner)
        at = floordiv(made.sym, inner.extent)
        self.to |= {outer.sym: at, inner.sym: made.sym - inner.extent * at}


def dims_of(v: Value) -> Iterator[Dim]:
    """Every index expression of a value."""
    for x in walk(v):
        match x:
            case Load():
                yield from placed(x.index)
            case Index():
                yield x.expr
            case Inside():
                yield from x.exprs


def partner(inner: Axis, outers: Iterable[Axis], dims: Sequence[Dim]) -> Axis | None:
    """The axis with which ``inner`` is one: all expressions with either have ``c * outer + inner``; None for none."""
    if not is_known(inner.extent) or not any(inner.sym in symbols(e) for e in dims):
        return None
    return next((outer for outer in outers if _are_one(outer, inner, dims)), None)


def _are_one(outer: Axis, inner: Axis, dims: Sequence[Dim]) -> bool:
    for e in dims:
        if symbols(e) & {outer.sym, inner.sym}:
            step = coefficient(e, inner.sym)
            if step is None or step == 0 or coefficient(e, outer.sym) != step * inner.extent:
                return False
    return True


def smaller(extent: Dim, limit: Dim, block: Dim, around: Sequence[Axis]) -> Dim:
    """The smaller of a loop's extent and a limit, never below 0; whole blocks that cover the limit are never fewer.

    ``around`` are the loops that the limit may depend on, outer ones first.
    """
    counted = limit if _is_count(limit, around) else maximum(limit, 0)
    if extent == ceildiv(limit, block) * block or never_negative(extent - limit, {}):
        return counted
    return minimum(extent, counted)


def _is_count(limit: Dim, around: Sequence[Axis]) -> bool:
    """Is a limit at least 0? What a block has of ``n`` elements is, where as many blocks are as cover them."""
    if never_negative(limit, {a.sym: a.extent for a in around}):
        return True
    for a in around:
        step = coefficient(limit, a.sym)
        if is_known(step) and step < 0 and a.extent == ceildiv(limit - step * a.sym, -step):
            return True
    return False


def limit_of(e: Dim, sym: Sym, loops: Iterable[Sym]) -> Dim | None:
    """How many iterations of a loop from 0 on have ``e >= 0``, where that is all it says."""
    rest = e + sym
    if coefficient(e, sym) != -1 or symbols(rest) & {*loops}:
        return None
    return rest + 1


def simplified(v: Value, extents: Mapping[Sym, Dim]) -> Value:
    """The value without guards that always hold in loops of these extents."""

    def leaf(x: Value) -> Value | None:
        if isinstance(x, Inside):
            left = tuple(e for e in x.exprs if not never_negative(e, extents))
            return Inside(left) if len(left) < len(x.exprs) else None
        if isinstance(x, Select) and isinstance(x.cond, Inside) and not x.cond.exprs:
            return x.a
        return None

    return rewrite_value(v, leaf)


def outside(v: Value, guard: Dim) -> Value:
    """What the value is where ``guard`` is below 0; zeros of products and sums are worked out."""

    def leaf(x: Value) -> Value | None:
        if isinstance(x, Select) and isinstance(x.cond, Inside) and guard in x.cond.exprs:
            return x.b
        if isinstance(x, Binary) and isinstance(x.a, Const) and isinstance(x.b, Const):
            if x.op == "mul" and x.a.value == x.b.value == 0:
                return Const(0, x.dtype)
            if x.op == "add" and x.a.value == x.b.value == 0:
                return x.a
        return None

    return rewrite_value(v, leaf)


def shortened(axis: Axis, v: Value, identity: Const, loops: Sequence[Axis], block: Dim, around: Sequence[Axis]) -> Axis:
    """A fold's axis without the iterations that a mask leaves out, where those add nothing to the fold.

    A limit may depend on the loops ``around`` the stage and on none of ``loops``, the stage's own.
    """
    for e in dict.fromkeys(e for x in walk(v) if isinstance(x, Inside) for e in x.exprs):
        limit = limit_of(e, axis.sym, [a.sym for a in loops])
        if limit is not None and _is_same(outside(v, e), identity):
            return Axis(axis.sym, smaller(axis.extent, limit, block, around))
    return axis


def _is_same(v: Value, identity: Const) -> bool:
    return isinstance(v, Const) and v.value == identity.value


def moved(v: Value, to: Mapping[Sym, Dim]) -> Value:
    """The value with symbols replaced."""
    return substitute_value(v, to) if to else v


def moved_dims(dims: Iterable[Dim], to: Mapping[Sym, Dim]) -> tuple[Dim, ...]:
    """Index expressions with symbols replaced."""
    return tuple(substitute(d, to) for d in dims)
