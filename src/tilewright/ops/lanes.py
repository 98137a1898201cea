"""Algorithms for one matrix, run for a batch: one matrix after the other, or as many at a time as lanes are asked for.

In: stages for one matrix. Out: stages for all of a batch. Not its business: what the stages compute (``linalg``,
``qr``, ``eigen``, ``ldl``), or how wide a vector is: lanes are an axis like others, which schedules cut.

The loops of such an algorithm run over rows and columns, so that a matrix of three columns uses three lanes of a
vector. Where columns are few and matrices many, ``LANES`` matrices are copied side by side, the matrix's number last,
and every stage gets that axis innermost. Batched BLAS libraries call the layout "compact" (Kim et al., "Designing
vector-friendly compact BLAS and LAPACK kernels", SC 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tilewright.core.compute import (
    Axis,
    Buffer,
    Load,
    Reduction,
    Serial,
    Stage,
    Value,
    axes_for,
    loop_symbol,
    rewrite_value,
    syms,
)
from tilewright.core.dims import are_known, known_at_most, known_over
from tilewright.core.expr import Dim, Sym, ceildiv, floordiv, minimum, mod
from tilewright.core.graph import Attrs
from tilewright.core.indices import is_chosen
from tilewright.core.types import product
from tilewright.ops.stages import Items

Buffers: TypeAlias = tuple[Buffer, ...]
Body: TypeAlias = Callable[[Buffers, Buffers, Attrs, tuple[Sym, ...]], Items]
"""Stages for one matrix, at the batch index that is given."""

LANES = 16
"""Matrices side by side: a line of memory of f32, whole vectors of every machine."""


def fill_lanes(batch: Sequence[Dim], columns: Dim) -> bool:
    """Whether matrices fill lanes better than their columns do."""
    return are_known((*batch, columns)) and known_at_most(columns, LANES - 1) and known_over(product(batch), LANES - 1)


def one_by_one(body: Body, ins: Buffers, outs: Buffers, a: Attrs, batch: Sequence[Dim]) -> Items:
    """Serial loops over the batch."""
    outer = axes_for(batch, "batch")
    items: tuple[Stage | Serial, ...] = tuple(body(ins, outs, a, syms(outer)))
    for axis in reversed(outer):
        items = (Serial(axis, items),)
    return list(items)


def side_by_side(body: Body, ins: Buffers, outs: Buffers, a: Attrs, batch: Sequence[Dim]) -> Items:
    """A serial loop over chunks of ``LANES`` matrices; the last ones may be computed twice."""
    count = product(batch)
    n_chunks = ceildiv(count, LANES)
    chunk = Axis(loop_symbol("chunk", n_chunks), n_chunks)
    first = minimum(chunk.sym * LANES, count - LANES)

    def one_matrix(x: Buffer) -> Buffer:
        return Buffer(f"{x.name}_one", x.dtype, x.shape[len(batch) :])

    own_ins, own_outs = tuple(map(one_matrix, ins)), tuple(map(one_matrix, outs))
    lanes = _Lanes()
    copies = [_copy(lanes.of(own), x, first, batch, gather=True) for own, x in zip(own_ins, ins, strict=True)]
    items = lanes.widened(body(own_ins, own_outs, a, ()))
    results = [_copy(lanes.of(own), x, first, batch, gather=False) for own, x in zip(own_outs, outs, strict=True)]
    return [Serial(chunk, (*copies, *items, *results))]


def _copy(lanes: Buffer, x: Buffer, first: Dim, batch: Sequence[Dim], *, gather: bool) -> Stage:
    """Matrices from ``first`` on, copied from a batch into lanes, or back."""
    axes = axes_for(lanes.shape)
    *at, lane = syms(axes)
    there = (*_unravelled(first + lane, batch), *at)
    here = (*at, lane)
    if gather:
        return Stage((lanes,), axes, here, (Load(x, there),))
    return Stage((x,), (axes[-1], *axes[:-1]), there, (Load(lanes, here),))


def _unravelled(place: Dim, batch: Sequence[Dim]) -> tuple[Dim, ...]:
    """The index of a batch whose number in row-major order is ``place``."""
    at: list[Dim] = []
    for extent in reversed(batch[1:]):
        at.append(mod(place, extent))
        place = floordiv(place, extent)
    return (place, *reversed(at)) if batch else ()


class _Lanes:
    """Stages for one matrix, made stages for ``LANES`` of them; each buffer gets the lane as its last axis."""

    def __init__(self) -> None:
        self._lane = Axis(loop_symbol("lane", LANES), LANES)
        self._wide: dict[Buffer, Buffer] = {}

    def of(self, x: Buffer) -> Buffer:
        if x not in self._wide:
            self._wide[x] = Buffer(f"{x.name}_lanes", x.dtype, (*x.shape, LANES))
        return self._wide[x]

    def widened(self, items: Iterable[Stage | Serial]) -> Items:
        return [self._stage(x) if isinstance(x, Stage) else Serial(x.axis, tuple(self.widened(x.body))) for x in items]

    def _stage(self, stage: Stage) -> Stage:
        index = tuple(self._value(i) if is_chosen(i) else i for i in stage.index)
        fold = stage.reduction
        if fold is not None:
            fold = Reduction(fold.axes, fold.op, tuple(map(self._value, fold.init)))
        return Stage(
            tuple(map(self.of, stage.outs)),
            (*stage.axes, self._lane),
            (*index, self._lane.sym),
            tuple(map(self._value, stage.exprs)),
            fold,
            stage.update,
        )

    def _value(self, v: Value) -> Value:
        return rewrite_value(v, self._leaf)

    def _leaf(self, v: Value) -> Value | None:
        return Load(self.of(v.buffer), (*v.index, self._lane.sym)) if isinstance(v, Load) else None
