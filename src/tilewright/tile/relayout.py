"""Run-time operands of a product that lie the wrong way round for lanes: copied once, transposed.

In: a normalised ``Computation``. Out: an equal one in which such an operand is read from a transposed copy.
Not its business: constants (``schedule.pack`` re-lays them at compile time), padding (``normalize``).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from functools import partial

from tilewright.core.compute import (
    Axis,
    Buffer,
    Computation,
    Load,
    Serial,
    Stage,
    Value,
    loop_symbol,
    rewrite_value,
    walk,
)
from tilewright.core.expr import Dim, Sym
from tilewright.tile.affine import stride_along
from tilewright.tile.cost import estimate

MIN_ROWS = 16
MIN_LANES = 8


def transpose_operands(computation: Computation, constants: Container[Buffer] = ()) -> Computation:
    """``sum_k A[i, k] * B[j, k]`` -> ``B_t[k, j] = B[j, k]; sum_k A[i, k] * B_t[k, j]``.

    So that the last output axis can be lanes. Not when: B is a constant; fewer than ``MIN_ROWS`` results share an
    element of B, or there are fewer than ``MIN_LANES`` lanes (the copy would not pay); B's indices are not plain loops;
    every operand depends on the last axis.
    """
    items: list[Stage | Serial] = []
    temps = list(computation.temps)
    for item in computation.items:
        load = _lane_operand(item, constants) if isinstance(item, Stage) else None
        if load is not None and isinstance(item, Stage):
            copy, there = _copied(item, load, len(temps))
            items.append(copy)
            temps.append(copy.out)
            item = replace(item, exprs=tuple(rewrite_value(v, partial(_swap, load, there)) for v in item.exprs))
        items.append(item)
    return replace(computation, items=tuple(items), temps=tuple(temps))


def _swap(load: Load, there: Load, x: Value) -> Value | None:
    return there if x == load else None


def _lane_operand(stage: Stage, constants: Container[Buffer]) -> Load | None:
    """The one load to be transposed."""
    if stage.reduction is None or stage.reduction.op != "add" or len(stage.axes) < 2 or stage.update is not None:
        return None
    last = stage.axes[-1]
    loads = {x for v in stage.exprs for x in walk(v) if isinstance(x, Load)}
    turned = [x for x in loads if _depends(x, last.sym)]
    if len(turned) != 1 or len(loads) != 2 or estimate([last.extent]) < MIN_LANES:
        return None
    load = turned[0]
    plain = [i for i in load.index if isinstance(i, Sym)]
    if load.buffer in constants or len(set(plain)) != len(plain) or len(plain) + _ints(load) != len(load.index):
        return None
    along = [stride_along(load.buffer, load.index, a.sym) for a in stage.reduction.axes]
    rows = [a.extent for a in stage.axes if a.sym not in plain]
    if 1 not in along or stride_along(load.buffer, load.index, last.sym) == 1 or estimate(rows) < MIN_ROWS:
        return None
    known = {a.sym for a in (*stage.axes, *stage.reduction.axes)}
    return load if set(plain) <= known else None


def _depends(x: Load, sym: Sym) -> bool:
    return stride_along(x.buffer, x.index, sym) != 0


def _ints(load: Load) -> int:
    return sum(isinstance(i, int) for i in load.index)


def _copied(stage: Stage, load: Load, serial: int) -> tuple[Stage, Load]:
    """The stage that copies with the lanes' dimension last, and the load that replaces ``load``."""
    reduced = stage.reduction.axes if stage.reduction else ()
    extents = {a.sym: a.extent for a in (*stage.axes, *reduced)}
    last = stage.axes[-1].sym
    walked = [i for i in load.index if isinstance(i, Sym) and i != last] + [last]
    axes = tuple(Axis(loop_symbol(f"t{d}", extents[s]), extents[s]) for d, s in enumerate(walked))
    temp = Buffer(f"{load.buffer.name}_t{serial}", load.dtype, tuple(a.extent for a in axes))
    own: dict[Sym, Dim] = {s: a.sym for s, a in zip(walked, axes, strict=True)}
    source = Load(load.buffer, tuple(own[i] if isinstance(i, Sym) else i for i in load.index))
    return Stage((temp,), axes, tuple(a.sym for a in axes), (source,)), Load(temp, tuple(walked))
