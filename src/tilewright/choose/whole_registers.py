"""Rows between two products, lengthened to whole matrix registers.

In: a normalised ``Computation`` whose products read run-time operands in groups (``relayout``). Out: an equal one in
which the columns of a first product, what is computed of them, and the terms of a second are as many as fill registers.
Not its business: which instructions multiply (``strategies.tiles``).

``S[i, j] = sum_k Q[i, k] * K[k, j]; P[i, j] = f(S[i, j]); O[i, d] = sum_j P[i, j] * V[j, d]`` over ``j < m`` becomes
the same over the next multiple of what an instruction adds up, with zeros in K, P and V behind ``m``. No instruction
masks its terms, so that an odd number of them would be left to vectors, and so would numbers that a call decides or,
where keys after a query are hidden, a block of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from tilewright.choose.cost.tile import estimate
from tilewright.choose.relayout import dot_operands
from tilewright.core.compute import (
    Axis,
    Buffer,
    Computation,
    Const,
    Inside,
    Load,
    Select,
    Stage,
    Value,
    loads,
    loop_symbol,
    map_stage,
    rewrite_value,
)
from tilewright.core.dims import divisor, is_known
from tilewright.core.expr import Dim, Sym, ceildiv
from tilewright.core.indices import symbols_at
from tilewright.target.target import Target
from tilewright.target.tiles import TileUnit, unit_for

Makers = Mapping[Buffer, Stage]
"""The stages that alone write a temporary."""


@dataclass(frozen=True)
class _RowsBetween:
    """Rows of ``extent`` columns: the product that begins them, what is computed of it up to what the ``second`` one
    reads, and the copies in groups of both products' other operands.
    """

    first: Stage
    between: tuple[Stage, ...]
    second: Stage
    keys: Stage
    values: Stage
    extent: Dim
    unit: TileUnit
    read: Buffer


def fill_registers(computation: Computation, machine: Target) -> Computation:
    """Lengthen all rows that would not fill the matrix registers of ``machine`` evenly."""
    if not machine.tile_units:
        return computation
    for k, stage in enumerate(computation.items):
        if isinstance(stage, Stage):
            makers = _makers(computation)
            rows = _rows_before(computation.items[k], makers, machine)
            computation = computation if rows is None else _lengthened(computation, rows)
    return computation


def _makers(computation: Computation) -> Makers:
    found: dict[Buffer, list[Stage]] = {}
    for s in [x for x in computation.items if isinstance(x, Stage)]:
        for out in s.outs:
            found.setdefault(out, []).append(s)
    lone = {b: x[0] for b, x in found.items() if len(x) == 1 and b in computation.temps}
    return {b: s for b, s in lone.items() if len(s.outs) == 1}


def _rows_before(second: object, makers: Makers, machine: Target) -> _RowsBetween | None:
    """The rows that a product walks as its terms, if registers would not be full and are worth filling."""
    operands = _operands(second, machine) if isinstance(second, Stage) else None
    if operands is None or not isinstance(second, Stage) or second.reduction is None or len(second.reduction.axes) != 1:
        return None
    (values, row, unit), (along,) = operands, second.reduction.axes
    m, at_once = along.extent, unit.steps_at_once(divisor(along.extent))
    is_even = at_once == unit.depth or (at_once and is_known(m) and m // at_once <= -(-m // unit.depth))
    are_few = estimate([a.extent for a in second.axes if a.sym in _symbols(row)]) < unit.rows
    if is_even or are_few or row.index[-1] != along.sym or values.buffer not in makers:
        return None
    stages = _made_of(row.buffer, makers)
    firsts = [s for s in stages if s.reduction is not None]
    before = _operands(firsts[0], machine) if len(firsts) == 1 else None
    if before is None or before[0].buffer not in makers or not all(_ends_in_columns(s, m) for s in stages):
        return None
    between = tuple(s for s in stages if s.reduction is None)
    copies = makers[before[0].buffer], makers[values.buffer]
    return _RowsBetween(firsts[0], between, second, *copies, m, unit, row.buffer) if between else None


def _made_of(buffer: Buffer, makers: Makers) -> list[Stage]:
    """The stage that makes a temporary, and those that make what it reads of the same shape, up to reductions."""
    found: list[Stage] = []
    left = [buffer]
    while left:
        stage = makers.get(left.pop())
        if stage is not None and not any(stage is s for s in found):
            found.append(stage)
            if stage.reduction is None:
                left += [x.buffer for v in stage.exprs for x in loads(v) if x.buffer.shape == buffer.shape]
    return found


def _operands(stage: Stage, machine: Target) -> tuple[Load, Load, TileUnit] | None:
    """Of a product of narrow elements: what lanes walk, what they share, and the instruction for their types."""
    found = dot_operands(stage)
    unit = None if found is None else unit_for(machine.tile_units, found[1].buffer.dtype, found[0].buffer.dtype)
    return None if found is None or unit is None else (*found, unit)


def _symbols(x: Load) -> set[Sym]:
    return {s for i in x.index for s in symbols_at(i)}


def _ends_in_columns(s: Stage, extent: Dim) -> bool:
    """Does the last of its axes walk so many columns, in order?"""
    return bool(s.axes) and s.axes[-1].extent == extent and s.index[-1] == s.axes[-1].sym


def _lengthened(computation: Computation, rows: _RowsBetween) -> Computation:
    """All stages over the rows with whole registers of columns."""
    m, whole = rows.extent, rows.unit.depth * ceildiv(rows.extent, rows.unit.depth)
    made = [rows.first, *rows.between]
    buffers = {s.out: replace(s.out, shape=(*s.out.shape[:-1], whole)) for s in made}
    # Copies in groups end in the lanes and a group's members; groups of terms stand before those.
    keys, values = rows.keys.out, rows.values.out
    *lead, _, lanes, group = values.shape
    buffers[keys] = replace(keys, shape=(*keys.shape[:-2], whole, keys.shape[-1]))
    buffers[values] = replace(values, shape=(*lead, ceildiv(whole, group), lanes, group))

    def of_whole(s: Stage) -> Stage:
        if s is rows.keys:
            lane = _axis_at(s, -2)
            return _over(s, lane, whole, m - 1 - lane.sym)
        if s is rows.values:
            at, member = _axis_at(s, -3), _axis_at(s, -1)
            is_guarded = isinstance(s.expr, Select)  # where the last group was not full
            return _over(s, at, ceildiv(whole, group), None if is_guarded else m - 1 - at.sym * group - member.sym)
        if any(s is x for x in made):
            column = s.axes[-1]
            others = [x for v in s.exprs for x in loads(v) if x.buffer not in buffers]
            # The product's own columns are zero for zeros in its operand; what else is read has none behind the last.
            is_end = s is not rows.first and (s.out is rows.read or any(column.sym in _symbols(x) for x in others))
            return _over(s, column, whole, m - 1 - column.sym if is_end else None)
        if s.reduction is not None and (s is rows.second or _sums_rows(s, rows.read)):
            return _over(s, s.reduction.axes[0], whole)
        return s

    def settled(s: Stage) -> Stage:
        longer = of_whole(s)
        exprs = tuple(rewrite_value(v, partial(_moved, buffers)) for v in longer.exprs)
        return replace(longer, outs=tuple(buffers.get(b, b) for b in longer.outs), exprs=exprs)

    items = tuple(settled(s) if isinstance(s, Stage) else s for s in computation.items)
    return replace(computation, items=items, temps=tuple(buffers.get(b, b) for b in computation.temps))


def _moved(buffers: Mapping[Buffer, Buffer], v: Value) -> Value | None:
    return Load(buffers[v.buffer], v.index) if isinstance(v, Load) and v.buffer in buffers else None


def _axis_at(s: Stage, place: int) -> Axis:
    """The axis that walks a dimension of what the stage writes."""
    return next(a for a in s.axes if a.sym == s.index[place])


def _sums_rows(s: Stage, read: Buffer) -> bool:
    """Does it add up the rows that the second product reads? Zeros change nothing, and both walk the same places."""
    red = s.reduction
    if red is None or red.op != "add" or len(red.axes) != 1:
        return False
    found = [x for v in s.exprs for x in loads(v)]
    return bool(found) and all(x.buffer is read and x.index[-1] == red.axes[0].sym for x in found)


def _over(s: Stage, axis: Axis, extent: Dim, guard: Dim | None = None) -> Stage:
    """The stage with another extent of an axis, and zero where ``guard`` is below 0."""
    sym = loop_symbol(axis.sym.name, extent)
    if guard is not None:
        s = replace(s, exprs=tuple(Select(Inside((guard,)), v, Const(0, v.dtype)) for v in s.exprs))

    def changed(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(sym, extent) if a is axis else a for a in axes)

    return map_stage(s, {axis.sym: sym}, changed(s.axes), changed(s.reduction.axes) if s.reduction else None)
