"""Loops that may run in any order, as stages: those have strategies, loops that a user wrote in an order have none.

In: items of a traced kernel. Out: equal items. Not its business: loops around several statements, which stay.

``for i: for j: t[i, j] = v`` becomes a stage over i and j where each element is written once and ``v`` does not read
``t``. ``for i: for j: for k: t[i, j] += v`` is a reduction over k into t. Sums may then be added in another order, as
sums of the language always may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.core.compute import Axis, Reduction, Serial, Stage, buffers_of_value
from tilewright.core.expr import Sym, symbols
from tilewright.core.indices import chosen
from tilewright.language.trace import Traced
from tilewright.tile.schedule.partials import identity_of


def raised_kernel(traced: Traced) -> Traced:
    """The kernel with :func:`raised` items."""
    return replace(traced, computation=replace(traced.computation, items=raised(traced.computation.items)))


def raised(items: Sequence[Stage | Serial]) -> tuple[Stage | Serial, ...]:
    """The items with perfect nests round one store as stages where any order gives the same."""
    return tuple(_raised(x) for x in items)


def _raised(item: Stage | Serial) -> Stage | Serial:
    axes: list[Axis] = []
    inner = item
    while isinstance(inner, Serial) and len(inner.body) == 1:
        axes.append(inner.axis)
        inner = inner.body[0]
    if isinstance(inner, Serial):
        return _around(axes, replace(inner, body=raised(inner.body)))
    return (_as_stage(inner, axes) if axes else None) or item


def _around(axes: Sequence[Axis], item: Stage | Serial) -> Stage | Serial:
    for a in reversed(axes):
        item = Serial(a, (item,))
    return item


def _as_stage(s: Stage, axes: Sequence[Axis]) -> Stage | None:
    """The stage that runs the store for all iterations; None where their order counts."""
    if s.axes or s.reduction is not None or chosen(s.index) or any(s.out in buffers_of_value(v) for v in s.values):
        return None
    placed = [i for i in s.index if isinstance(i, Sym)]
    if len(placed) < len(s.index) or len(set(placed)) < len(placed):
        return None
    own = tuple(a for a in axes if a.sym in placed)
    rest = tuple(a for a in axes if a.sym not in placed)
    if len(own) < len(placed) or any(symbols(a.extent) & {b.sym for b in rest} for a in own):
        return None
    if not rest:
        return replace(s, axes=own)
    if s.update is None:
        return None  # the last iteration's value stays
    start = identity_of(s.update, s.out.dtype)
    return replace(s, axes=own, reduction=Reduction(rest, s.update, (start,)))
