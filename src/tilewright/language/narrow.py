"""Blocks that no program needs as a whole: what lies beyond every reader's last element is not computed.

In: the stages of programs. Out: equal ones, over fewer elements of the blocks between them. Not its business: limits of
stores and folds (``places``), of which those of the blocks follow.

A block that is made by one stage and read at a reader's own axes needs as many elements as those have. A ragged last
block of a product has as many rows as the result, then, and the masks of its rows hold everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from tilewright.core.compute import Axis, Buffer, Load, Serial, Stage, Value, loads, rewrite_value
from tilewright.core.expr import BinaryExpr, Dim, Sym, symbols
from tilewright.language.places import simplified

Item = Stage | Serial


def narrowed(items: Sequence[Item], temps: Mapping[str, Buffer]) -> tuple[list[Item], dict[Buffer, Buffer]]:
    """The items with narrow blocks, and the buffers that take others' places; readers come after what they read."""
    made, to = list(items), dict[Buffer, Buffer]()
    for k in reversed(range(len(made))):
        s = made[k]
        if not isinstance(s, Stage) or len(s.outs) != 1 or temps.get(s.out.name) is not s.out or s.reduction is None:
            continue
        shape = [_needed(s.out, d, made) for d in range(len(s.axes))]
        if None in shape or tuple(shape) == s.out.shape:
            continue
        sizes = tuple(n for n in shape if n is not None)
        axes = tuple(Axis(a.sym, n) for a, n in zip(s.axes, sizes, strict=True))
        folds = s.reduction.axes
        value = simplified(s.expr, {a.sym: a.extent for a in (*axes, *folds)})
        out = Buffer(s.out.name, s.out.dtype, sizes)
        to[s.out] = out
        made[k] = replace(s, axes=axes, exprs=(value,))
    return [_moved(x, to) for x in made], to


def _needed(b: Buffer, d: int, items: Sequence[Item]) -> Dim | None:
    """How far readers go along a dimension; None where they don't go along an axis of theirs, or not equally far."""
    found: set[Dim] = set()
    for s, extents in _stages(items, {}):
        for x in (x for v in s.values for x in loads(v) if x.buffer is b):
            at = x.index[d]
            bound = _bound(extents[at], extents.keys()) if isinstance(at, Sym) and at in extents else None
            if bound is None:
                return None
            found.add(bound)
    return found.pop() if len(found) == 1 else None


def _bound(extent: Dim, loops: Set[Sym]) -> Dim | None:
    """What an extent is never over whatever the loops are: itself, or what it is the minimum of; None for neither."""
    if not symbols(extent) & loops:
        return extent
    if not isinstance(extent, BinaryExpr) or extent.op != "min":
        return None
    return next((b for x in (extent.a, extent.b) if (b := _bound(x, loops)) is not None), None)


def _stages(items: Sequence[Item], extents: Mapping[Sym, Dim]) -> Iterator[tuple[Stage, dict[Sym, Dim]]]:
    for x in items:
        if isinstance(x, Serial):
            yield from _stages(x.body, {**extents, x.axis.sym: x.axis.extent})
        else:
            folds = x.reduction.axes if x.reduction else ()
            yield x, {**extents, **{a.sym: a.extent for a in (*x.axes, *folds)}}


def _moved(x: Item, to: Mapping[Buffer, Buffer]) -> Item:
    if not to:
        return x
    if isinstance(x, Serial):
        return replace(x, body=tuple(_moved(y, to) for y in x.body))

    def leaf(v: Value) -> Value | None:
        return Load(to[v.buffer], v.index) if isinstance(v, Load) and v.buffer in to else None

    return replace(x, outs=tuple(to.get(b, b) for b in x.outs), exprs=tuple(rewrite_value(v, leaf) for v in x.exprs))
