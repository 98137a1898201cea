"""How much a kernel has to do at least: floating-point operations, and bytes that must cross its border.

In: a ``GroupComputation``. Out: ``KernelWork``. Not its business: how long that takes (``profile``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.core.compute import (
    COMPARE_OPS,
    Axis,
    Binary,
    Buffer,
    Computation,
    Fma,
    Inside,
    Load,
    Select,
    Serial,
    Stage,
    Unary,
    Value,
    walk,
)
from tilewright.core.dims import is_known
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim, Sym, bounds, symbol_order, symbols, terms_of
from tilewright.core.types import product
from tilewright.core.valued import OF_ARRAYS, valued
from tilewright.partition.computation import GroupComputation, sizes_of

FREE_OPS = COMPARE_OPS | {"and", "or", "xor", "shl", "shr", "not", "isnan"}


@dataclass(frozen=True)
class KernelWork:
    """Of one call: ``flops`` (an elementary function counts as one), bytes of constants read, bytes of other operands.

    An operand that is read in part (a gather) counts the elements that are read, at most all of it once.
    """

    flops: int
    constant_bytes: int
    operand_bytes: int


def work_of(made: GroupComputation) -> KernelWork | None:
    """The work of a kernel whose sizes are all numbers; None when one is symbolic."""
    flops = 0
    reads: dict[Buffer, int] = {}
    for stage, times in _stages(made.computation.items, 1):
        points = _count(stage.axes, times)
        folded = _count(stage.reduction.axes, points) if stage.reduction and points is not None else points
        if points is None or folded is None:
            return None
        flops += folded * sum(_operations(v) for v in stage.exprs)
        flops += folded * len(stage.outs) if stage.reduction or stage.update else 0
        for load in dict.fromkeys(x for v in stage.exprs for x in walk(v) if isinstance(x, Load)):
            reads[load.buffer] = reads.get(load.buffer, 0) + folded
    constants = operands = 0
    for buffer in (*made.computation.inputs, *made.computation.outputs):
        size = product(buffer.shape)
        if not is_known(size):
            return None
        n_bytes = min(size, reads.get(buffer, size)) * buffer.dtype.n_bytes
        if buffer in made.constants:
            constants += n_bytes
        else:
            operands += n_bytes
    return KernelWork(flops, constants, operands)


def surely_done(computation: Computation) -> float:
    """The part of a kernel's operations that no schedule leaves out, where conditions on indices allow that for some.

    A tap outside of an image is left out, and so may be what was made for it alone: the least part that one of the
    conditions lets through counts for the whole kernel, or that it keeps from what else is computed. 0 where a
    condition is of another kind, or too long to list.
    """
    part = 1.0
    for stage, _ in _stages(computation.items, 1):
        axes = (*stage.axes, *(stage.reduction.axes if stage.reduction else ()))
        extents = {a.sym: a.extent for a in axes}
        for value in stage.exprs:
            for x in walk(value):
                if isinstance(x, Select):
                    inside = _part_inside(x.cond.exprs, extents) if isinstance(x.cond, Inside) else 0.0
                    part = min(part, inside, 1 - inside if _operations(x.b) else 1.0)
    return part


def _part_inside(exprs: Sequence[Dim], extents: Mapping[Sym, Dim]) -> float:
    """The part of all points at which no expression is negative; expressions that share no symbol are independent."""
    part, left = 1.0, list(exprs)
    while left:
        together = [left.pop()]
        used = set(symbols(together[0]))
        while more := [e for e in left if symbols(e) & used]:
            together += more
            used.update(*map(symbols, more))
            left = [e for e in left if e not in more]
        walked = sorted(used, key=symbol_order)
        sizes = [n for n in (extents.get(s) for s in walked) if is_known(n)]
        if len(sizes) < len(walked) or prod(sizes) > EFFORT.points:
            return 0.0
        at = dict(zip(walked, np.indices(sizes).reshape(len(sizes), prod(sizes)), strict=True))
        inside = np.ones(prod(sizes), bool)
        for e in together:
            inside &= valued(e, at, OF_ARRAYS) >= 0
        part *= float(inside.mean())
    return part


def points_of(made: GroupComputation) -> Dim:
    """How many elements the kernel computes, terms of sums counted one by one, as its sizes have it.

    An extent that changes from one turn of a loop to the next counts with the most that it can be, if there is one.
    """
    sizes = frozenset(sizes_of(made.computation))

    def points(items: Sequence[Stage | Serial]) -> Dim:
        total: Dim = 0
        for item in items:
            axes = (item.axis,) if isinstance(item, Serial) else item.axes
            if isinstance(item, Stage) and item.reduction is not None:
                axes = (*axes, *item.reduction.axes)
            extents = [a.extent if symbols(a.extent) <= sizes else bounds(a.extent)[1] or 1 for a in axes]
            total += product(extents) * (points(item.body) if isinstance(item, Serial) else 1)
        return total

    return points(made.computation.items)


def products_of(made: GroupComputation) -> tuple[str, ...]:
    """The element types that the kernel's sums of products multiply, such as ``("bf16",)``; for the report."""
    found: dict[str, None] = {}
    for stage, _ in _stages(made.computation.items, 1):
        value = stage.exprs[0]
        if stage.reduction is not None and isinstance(value, Binary) and value.op == "mul":
            read = {x.buffer: x.dtype for x in walk(value) if isinstance(x, Load)}
            if len(read) > 1:
                found.update(dict.fromkeys(sorted({d.name for d in read.values()})))
    return tuple(found)


def _stages(items: Sequence[Stage | Serial], times: int | None) -> Iterator[tuple[Stage, int | None]]:
    for item in items:
        if isinstance(item, Serial):
            yield from _stages(item.body, _count((item.axis,), times))
        else:
            yield item, times


def _count(axes: Sequence[Axis], times: int | None) -> int | None:
    """Points of a domain; an axis whose extent depends on another counts with its mean, or its symbol's upper bound."""
    for axis in axes:
        extent = axis.extent if is_known(axis.extent) else _mean(axis)
        if times is None or extent is None:
            return None
        times = int(times * extent)
    return times


def _mean(axis: Axis) -> float | None:
    """Of an extent that grows or shrinks evenly with another axis; else what the axis' symbol can be at most."""
    low, high = bounds(axis.extent)
    if low is not None and high is not None and low >= 0 and all(isinstance(a, Sym) for a, _ in terms_of(axis.extent)):
        return (low + high) / 2
    return None if axis.sym.hi is None else axis.sym.hi + 1


def _operations(value: Value) -> int:
    n = 0
    for x in walk(value):
        if isinstance(x, Fma):
            n += 2 * x.dtype.is_float
        elif isinstance(x, Unary | Binary) and x.op not in FREE_OPS:
            n += x.dtype.is_float
    return n
