"""Shared operands of integer products: widened once where the machine multiplies pairs of 16-bit integers.

In: a normalised ``Computation``. Out: an equal one whose products of bytes read the operand that lanes share from a
copy of 16 bits. Not its business: the operand that walks along the lanes (weights stay bytes and are widened in
registers, ``codegen.cpu.dot``), its layout (``relayout``, ``schedule.pack``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.choose.relayout import copy_of, dot_operands, first_place
from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Buffer,
    Cast,
    Computation,
    Load,
    Serial,
    Stage,
    Value,
    buffers_of_value,
    loop_symbol,
    rewrite_value,
)
from tilewright.core.dims import known_under
from tilewright.target.dots import Dot
from tilewright.tile.affine import stride_along


def widen_shared(computation: Computation, dots: Sequence[Dot]) -> Computation:
    """``sum_k A[i, k] * B[k, j]`` of bytes -> ``A_w = i16(A); sum_k A_w[i, k] * B[k, j]``.

    A copy of A that a stage of this computation makes alone for the product, a padded one, becomes wide itself. Not
    when: a dot product fits the bytes as they are, or none fits the wider type; fewer than ``COPIED_LANES`` results
    share an element of A.
    """
    items, temps = list(computation.items), list(computation.temps)
    for stage in [s for s in computation.items if isinstance(s, Stage)]:
        load = _widened(stage, dots)
        if load is None:
            continue
        maker = _only_maker(items, temps, load.buffer)
        if maker is None:
            copy = _copy(load.buffer, len(temps))
            items.insert(first_place(items, load.buffer), copy)
        else:
            wide = replace(load.buffer, dtype=types.i16)
            copy = replace(maker, outs=(wide,), exprs=(Cast(maker.expr, types.i16),))
            items[_place(items, maker)] = copy
            temps.remove(load.buffer)
        temps.append(copy.out)
        items[_place(items, stage)] = _reading(stage, load.buffer, copy.out)
    return replace(computation, items=tuple(items), temps=tuple(temps))


def _place(items: Sequence[Stage | Serial], stage: Stage) -> int:
    return next(k for k, x in enumerate(items) if x is stage)


def _widened(stage: Stage, dots: Sequence[Dot]) -> Load | None:
    """The load of bytes that all lanes share, where only a wider one has a dot product."""
    found = dot_operands(stage)
    if found is None or found[1].dtype not in (types.i8, types.u8):
        return None
    walking, shared = found
    assert stage.reduction is not None
    along = stage.reduction.axes[-1]
    fits = {(d.left, d.right, d.result) for d in dots if not known_under(along.extent, d.group)}
    rest = (walking.dtype, stage.exprs[0].dtype)
    if (shared.dtype, *rest) in fits or (types.i16, *rest) not in fits:
        return None
    return shared if stride_along(shared.buffer, shared.index, along.sym) == 1 else None


def _only_maker(items: Sequence[Stage | Serial], temps: Sequence[Buffer], buffer: Buffer) -> Stage | None:
    """The stage that makes a temporary which one stage reads, where there is one of each."""
    if buffer not in temps or any(isinstance(s, Serial) for s in items):
        return None
    stages = [s for s in items if isinstance(s, Stage)]
    makers = [s for s in stages if buffer in s.outs]
    readers = [s for s in stages if any(buffer in buffers_of_value(v) for v in s.values)]
    return makers[0] if len(makers) == len(readers) == 1 and makers[0].reduction is None else None


def _copy(buffer: Buffer, serial: int) -> Stage:
    axes = tuple(Axis(loop_symbol(f"w{d}", n), n) for d, n in enumerate(buffer.shape))
    index = tuple(a.sym for a in axes)
    temp = copy_of(buffer, f"w{serial}", types.i16, buffer.shape)
    return Stage((temp,), axes, index, (Cast(Load(buffer, index), types.i16),))


def _reading(stage: Stage, old: Buffer, new: Buffer) -> Stage:
    """The stage with the loads of one buffer from another."""

    def swapped(x: Value) -> Value | None:
        return Load(new, x.index) if isinstance(x, Load) and x.buffer is old else None

    return replace(stage, exprs=tuple(rewrite_value(v, swapped) for v in stage.exprs))
