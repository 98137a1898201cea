"""Run-time operands of a product that lie badly for lanes: copied once, transposed, in groups, or row by row.

In: a normalised ``Computation``. Out: an equal one in which such an operand is read from a copy that lanes can walk.
Not its business: constants (``schedule.pack`` re-lays them at compile time), padding (``normalize``).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from functools import partial

from tilewright.choose.cost.tile import estimate
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Computation,
    Const,
    Inside,
    Load,
    Select,
    Serial,
    Stage,
    Value,
    loop_symbol,
    rewrite_value,
    substitute_value,
    walk,
)
from tilewright.core.dims import is_known, known_under
from tilewright.core.estimates import COPIED_LANES, COPIED_ROWS
from tilewright.core.expr import Dim, Sym, ceildiv, floordiv, is_nonneg, mod, symbols
from tilewright.core.indices import is_chosen
from tilewright.core.types import DType, product
from tilewright.target.dots import Dot
from tilewright.tile.affine import is_affine, stride_along

MIN_SCATTERED_ROWS = 320
"""Results that share rows which are brought together. Below, as for heads of 64 columns in one matrix and 256 rows,
the copy takes longer than it saves (``docs/choices.md``, "Heads in one matrix")."""


def relay_operands(
    computation: Computation, constants: Container[Buffer] = (), dots: Sequence[Dot] = ()
) -> Computation:
    """``sum_k A[i, k] * B[j, k]`` -> ``B_t[k, j] = B[j, k]; sum_k A[i, k] * B_t[k, j]``.

    So that the last output axis can be lanes. Where a dot product fits the types, in its groups, whichever way B lies:
    ``B_t[k2, j, d] = B[j, g*k2 + d]; sum_k A[i, k] * B_t[k // g, j, k % g]``, and an A that lies across the sums, as
    an image whose channels come first, is turned for it. Rows that lie apart, as a head's do in
    a matrix of several, would fall into few sets of a cache; they are brought together where ``MIN_SCATTERED_ROWS``
    results share them. Not when: B is a constant; one result has an element of B, or, if A lies along the sums as B
    does, no more than a ``COPIED_LANES``th of the sums or twice ``COPIED_ROWS``; there are fewer than ``COPIED_LANES``
    lanes (the copy would not pay); the copy would be larger than B; B's indices are no sums of loops; every operand
    depends on the last axis.
    """
    items: list[Stage | Serial] = []
    temps = list(computation.temps)
    copies: set[Buffer] = set()
    for item in computation.items:
        while isinstance(item, Stage) and (found := _relaid(item, constants, dots, len(temps))) is not None:
            load, copy, there = found
            if load.buffer in copies:
                break
            copies.add(copy.out)
            items.insert(first_place(items, load.buffer), copy)
            temps.append(copy.out)
            item = replace(item, exprs=tuple(rewrite_value(v, partial(_swap, load, there)) for v in item.exprs))
        items.append(item)
    return replace(computation, items=tuple(items), temps=tuple(temps))


def first_place(items: Sequence[Stage | Serial], buffer: Buffer) -> int:
    """Behind the last of ``items`` that writes ``buffer``."""
    made = [k for k, x in enumerate(items) if isinstance(x, Stage) and buffer in x.outs]
    return made[-1] + 1 if made else 0


def copy_of(buffer: Buffer, kind: str, dtype: DType, shape: Sequence[Dim]) -> Buffer:
    """A buffer for a copy of another one; ``kind`` tells the copies of a buffer apart."""
    return Buffer(f"{buffer.name}_{kind}", dtype, tuple(shape))


def _relaid(
    stage: Stage, constants: Container[Buffer], dots: Sequence[Dot], serial: int
) -> tuple[Load, Stage, Load] | None:
    """The load to be replaced, the stage that copies its buffer, the load that replaces it."""
    across = _across_operand(stage, constants, dots)
    if across is not None:
        return across, *_copied(stage, across, serial)
    grouped = _group_operand(stage, constants, dots)
    if grouped is not None:
        return grouped[0], *_in_groups(stage, *grouped, serial)
    load = _lane_operand(stage, constants)
    return None if load is None else (load, *_copied(stage, load, serial))


def _swap(load: Load, there: Load, x: Value) -> Value | None:
    return there if x == load else None


def _lane_operand(stage: Stage, constants: Container[Buffer]) -> Load | None:
    """The one load to be copied."""
    if stage.reduction is None or stage.reduction.op != "add" or len(stage.axes) < 2 or stage.update is not None:
        return None
    last = stage.axes[-1]
    loads = dict.fromkeys(x for v in stage.exprs for x in walk(v) if isinstance(x, Load))
    turned = [x for x in loads if _depends(x, last.sym)]
    if len(turned) != 1 or len(loads) != 2 or estimate([last.extent]) < COPIED_LANES:
        return None
    load = turned[0]
    walked = _walked(stage, load)
    if load.buffer in constants or not _is_copied(load, walked):
        return None
    along = _strides(stage, load)
    rows = estimate([a.extent for a in stage.axes if a not in walked])
    if stride_along(load.buffer, load.index, last.sym) == 1:
        steps = [abs(n) for n in along if is_known(n)]  # rows of one of several heads lie apart
        are_apart = bool(steps) and min(steps) >= 2 * estimate([last.extent])
        return load if are_apart and rows >= MIN_SCATTERED_ROWS else None
    (other,) = (x for x in loads if x is not load)
    if 1 not in along or rows < 2:
        return None
    if not any(n == 1 == m for n, m in zip(along, _strides(stage, other), strict=True)):
        return load
    # If the other operand lies along the sums, too, few rows read it where it lies, in tiles of rows and columns. Each
    # result is a vector of sums then that is added up, which takes as long as to copy some elements of each column.
    sums = estimate([a.extent for a in stage.reduction.axes])
    return load if rows > min(sums / COPIED_LANES, 2 * COPIED_ROWS) else None


def _strides(stage: Stage, load: Load) -> list[Dim | None]:
    """How far apart elements lie along each axis of the reduction."""
    assert stage.reduction is not None
    return [stride_along(load.buffer, load.index, a.sym) for a in stage.reduction.axes]


def _walked(stage: Stage, load: Load) -> list[Axis]:
    """The axes that the access depends on: of the result, of the reduction, and the last one of the result."""
    assert stage.reduction is not None
    order = [*stage.axes[:-1], *stage.reduction.axes, stage.axes[-1]]
    return [a for a in order if _depends(load, a.sym)]


def dot_operands(stage: Stage) -> tuple[Load, Load] | None:
    """Of a sum of products of two widened loads: the one that walks along the lanes, and the one that they share.

    None for another stage, and for one of fewer than ``COPIED_LANES`` lanes.
    """
    red, value = stage.reduction, stage.exprs[0]
    if red is None or red.op != "add" or not red.axes or stage.update is not None or not stage.axes:
        return None
    last = stage.axes[-1]
    if not isinstance(value, Binary) or value.op != "mul" or estimate([last.extent]) < COPIED_LANES:
        return None
    loads = [v.a for v in (value.a, value.b) if isinstance(v, Cast) and isinstance(v.a, Load)]
    walking = [x for x in loads if _depends(x, last.sym)]
    shared = [x for x in loads if not _depends(x, last.sym)]
    return (walking[0], shared[0]) if len(walking) == len(shared) == 1 else None


def _across_operand(stage: Stage, constants: Container[Buffer], dots: Sequence[Dot]) -> Load | None:
    """The run-time operand of a dot product that all lanes share, where it lies across the sums."""
    red, found = stage.reduction, dot_operands(stage)
    if found is None or red is None or found[1].buffer in constants:
        return None
    (walking, load), along = found, red.axes[-1]
    is_dot = (load.dtype, walking.dtype, stage.exprs[0].dtype) in {(d.left, d.right, d.result) for d in dots}
    if not is_dot or not _is_copied(load, _walked(stage, load)):
        return None
    return load if stride_along(load.buffer, load.index, along.sym) not in (0, 1) else None


def _group_operand(stage: Stage, constants: Container[Buffer], dots: Sequence[Dot]) -> tuple[Load, int] | None:
    """The run-time operand of a dot product that lanes walk, and the size of its groups."""
    red, found = stage.reduction, dot_operands(stage)
    if found is None or red is None or len(red.axes) != 1 or found[0].buffer in constants:
        return None
    (load, other), along = found, red.axes[0].sym
    types = (other.dtype, load.dtype, stage.exprs[0].dtype)
    group = next((d.group for d in dots if (d.left, d.right, d.result) == types), 0)
    known = {a.sym for a in (*stage.axes, *red.axes)}
    if not group or stride_along(other.buffer, other.index, along) != 1 or not _walks(load, known):
        return None
    rows = [a.extent for a in stage.axes if not _depends(load, a.sym)]
    count = red.axes[0].extent
    return (load, group) if estimate(rows) >= COPIED_ROWS and not known_under(count, group) else None


def _is_copied(load: Load, walked: Sequence[Axis]) -> bool:
    """May a copy of what the axes walk take its buffer's place? One of windows that overlap would be larger."""
    is_window = not is_nonneg(product(load.buffer.shape) - product([a.extent for a in walked]))
    return not is_window and _walks(load, {a.sym for a in walked})


def _walks(load: Load, known: set[Sym]) -> bool:
    """Is every index a sum of loops times numbers?"""
    return all(not is_chosen(i) and is_affine(i, known) and symbols(i) <= known for i in load.index)


def _in_groups(stage: Stage, load: Load, group: int, serial: int) -> tuple[Stage, Load]:
    """A copy whose last dimensions are groups of the reduction, the lanes, and the members of a group."""
    assert stage.reduction is not None
    (along,), last = stage.reduction.axes, stage.axes[-1]
    lead = [a for a in stage.axes[:-1] if _depends(load, a.sym)]
    n_groups = ceildiv(along.extent, group)
    extents: list[Dim] = [*[a.extent for a in lead], n_groups, last.extent, group]
    axes = tuple(Axis(loop_symbol(f"t{d}", n), n) for d, n in enumerate(extents))
    *own, at, lane, member = (a.sym for a in axes)
    temp = copy_of(load.buffer, f"g{serial}", load.dtype, extents)
    k = at * group + member
    dims: dict[Sym, Dim] = {**{a.sym: s for a, s in zip(lead, own, strict=True)}, along.sym: k, last.sym: lane}
    value: Value = substitute_value(load, dims)
    if not is_nonneg(along.extent - n_groups * group):
        value = Select(Inside((along.extent - 1 - k,)), value, Const(0, load.dtype))
    index = (*[a.sym for a in lead], floordiv(along.sym, group), last.sym, mod(along.sym, group))
    return Stage((temp,), axes, tuple(a.sym for a in axes), (value,)), Load(temp, index)


def _depends(x: Load, sym: Sym) -> bool:
    return stride_along(x.buffer, x.index, sym) != 0


def _copied(stage: Stage, load: Load, serial: int) -> tuple[Stage, Load]:
    """The stage that copies with the lanes' dimension last, and the load that replaces ``load``."""
    walked = _walked(stage, load)
    axes = tuple(Axis(loop_symbol(f"t{d}", a.extent), a.extent) for d, a in enumerate(walked))
    temp = copy_of(load.buffer, f"t{serial}", load.dtype, [a.extent for a in axes])
    source = substitute_value(load, {a.sym: own.sym for a, own in zip(walked, axes, strict=True)})
    return Stage((temp,), axes, tuple(a.sym for a in axes), (source,)), Load(temp, tuple(a.sym for a in walked))
