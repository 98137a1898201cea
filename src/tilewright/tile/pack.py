"""Evaluating packed constants: the recipe of ``ir.Packed`` on a NumPy array, at compile time, or as a computation.

In: a recipe and the source's array. Out: the array that the kernel reads.
Not its business: which layout is good (``schedule.operands.pack`` derives it from the loops).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilewright.core.compute import Buffer, Computation, Const, Inside, Load, Select, Stage, Value, axes_for, syms
from tilewright.core.dims import is_known
from tilewright.core.expr import (
    BinaryExpr,
    Dim,
    Sym,
    bounds,
    coef_of,
    const_of,
    is_nonneg,
    substitute,
    symbols,
    terms_of,
    to_text,
)
from tilewright.core.types import Array
from tilewright.core.valued import OF_ARRAYS, valued
from tilewright.tile.ir import Packed


def packing_computation(packed: Packed) -> Computation:
    """The same as a computation, for a source whose numbers only a call knows."""
    source, target = (
        Buffer("in0", packed.source.dtype, packed.source.shape),
        Buffer("out0", packed.param.dtype, packed.param.shape),
    )
    axes = axes_for(packed.param.shape)
    index = tuple(substitute(e, dict(zip(packed.grid, syms(axes), strict=True))) for e in packed.index)
    guards = tuple(
        g for i, d in zip(index, packed.source.shape, strict=True) for g in (i, d - 1 - i) if not is_nonneg(g)
    )
    value: Value = Load(source, index)
    if guards:
        value = Select(Inside(guards), value, Const(0, source.dtype))
    return Computation((source,), (target,), (Stage((target,), axes, syms(axes), (value,)),))


def layout_text(packed: Packed) -> str:
    """What tells layouts apart: equal for recipes that put the same elements in the same order.

    A dimension of one element, and the bounds between dimensions that walk on where the next one ends, say nothing.
    """
    sizes = [int(d) for d in packed.param.shape if is_known(d)]
    grid = [(s, n) for s, n in zip(packed.grid, sizes, strict=True) if n != 1]
    index = [substitute(e, {s: 0 for s, n in zip(packed.grid, sizes, strict=True) if n == 1}) for e in packed.index]
    at = 0
    while at + 1 < len(grid):
        (outer, n), (inner, step) = grid[at : at + 2]
        if all(_walks_on(e, outer, inner, step) for e in index):
            index = [substitute(e, {outer: 0}) for e in index]
            grid[at : at + 2] = [(inner, n * step)]
        else:
            at += 1
    names = {s: Sym(f"d{k}") for k, (s, _) in enumerate(grid)}
    places = [to_text(substitute(e, names)) for e in index]
    return f"{packed.source.shape} {[n for _, n in grid]} {places}"


def _walks_on(e: Dim, outer: Sym, inner: Sym, step: int) -> bool:
    """Does a step of ``outer`` go as far as ``step`` steps of ``inner``, both of which ``e`` is affine in?"""
    used = [a for a, _ in terms_of(e) if not isinstance(a, Sym) and {outer, inner} & symbols(a)]
    return not used and coef_of(e, outer) == step * coef_of(e, inner)


def packed_array(packed: Packed, source: Array) -> Array:
    """The contiguous array of ``packed.param``; ``source`` may have any shape with the right number of elements."""
    shape = tuple(int(d) for d in packed.param.shape if is_known(d))
    made = np.zeros(shape, source.dtype)
    pack_into(made.reshape(-1), packed, source)
    return made


def pack_into(out: Array, packed: Packed, source: Array) -> None:
    """Write the elements of ``packed.param`` into ``out``, a row of zeros, without another copy in memory."""
    shape, param_shape = (tuple(int(d) for d in b.shape if is_known(d)) for b in (packed.source, packed.param))
    source = np.ascontiguousarray(source).reshape(shape)
    grid, index, grid_shape = _without_quotients(packed, param_shape)
    out = out.reshape(grid_shape)
    lines = [_line_of(e, grid) for e in index]
    if all(line is not None for line in lines):
        _copy_strided(out, source, [line for line in lines if line is not None])
    else:
        out[...] = _gathered(source, grid, index, grid_shape)


def pack_bytes(packed: Packed, out: Array, array: Array) -> None:
    """``pack_into`` for memory that has no dtype yet: ``out`` is ``uint8``."""
    pack_into(out.view(array.dtype), packed, array)


def _without_quotients(
    packed: Packed, shape: tuple[int, ...]
) -> tuple[tuple[Sym, ...], tuple[Dim, ...], tuple[int, ...]]:
    """The recipe with each ``s // n`` and ``s % n`` as grid dimensions of their own, where ``n`` divides the extent."""
    grid, sizes, index = list(packed.grid), list(shape), list(packed.index)
    at = 0
    while at < len(grid):
        s, extent = grid[at], sizes[at]
        n = min((n for e in index for n in _divisors(e, s)), default=extent)
        if n >= extent or extent % n:
            at += 1
            continue
        high, low = Sym(f"{s.name}h", 0, extent // n - 1), Sym(f"{s.name}l", 0, n - 1)
        grid[at : at + 1], sizes[at : at + 1] = [high, low], [extent // n, n]
        index = [substitute(e, {s: high * n + low}) for e in index]
    return tuple(grid), tuple(index), tuple(sizes)


def _divisors(e: Dim, s: Sym) -> Iterator[int]:
    """Every ``n`` of an ``s // n`` or ``s % n`` in a sum."""
    for atom, _ in terms_of(e):
        if isinstance(atom, BinaryExpr) and atom.op in ("floordiv", "mod") and is_known(atom.b):
            if atom.a == s:
                yield atom.b
            else:
                yield from _divisors(atom.a, s)


@dataclass(frozen=True)
class _Line:
    """``start + sum(steps[k] * grid[k])`` with nothing below zero."""

    start: int
    steps: tuple[int, ...]

    def last(self, grid_shape: tuple[int, ...]) -> int:
        """Its greatest value."""
        return self.start + sum(c * (n - 1) for c, n in zip(self.steps, grid_shape, strict=True))


def _line_of(e: Dim, grid: tuple[Sym, ...]) -> _Line | None:
    terms = terms_of(e)
    if const_of(e) < 0 or any(not isinstance(a, Sym) or c < 0 for a, c in terms):
        return None
    return _Line(const_of(e), tuple(coef_of(e, s) for s in grid))


def _copy_strided(out: Array, source: Array, lines: list[_Line]) -> None:
    """``out[grid] = source[lines]`` by strided copies, which run at memory speed; what is outside the source stays.

    Where a line leaves the source, the grid is cut along its longest step: what stays inside is one copy, each further
    place one more, cut again along the next step.
    """
    if 0 in out.shape:
        return
    for line, extent in zip(lines, source.shape, strict=True):
        if line.start >= extent:
            return
        if line.last(out.shape) < extent:
            continue
        axis, step = max(((k, c) for k, c in enumerate(line.steps) if out.shape[k] > 1), key=lambda item: item[1])
        rest = line.last(out.shape) - step * (out.shape[axis] - 1)
        n_inside = max(0, (extent - 1 - rest) // step + 1)
        before = (slice(None),) * axis
        _copy_strided(out[(*before, slice(n_inside))], source, lines)
        for k in range(n_inside, out.shape[axis]):
            shifted = [_Line(a.start + k * a.steps[axis], a.steps) for a in lines]
            _copy_strided(out[(*before, slice(k, k + 1))], source, shifted)
        return
    first = source[tuple(slice(line.start, None) for line in lines)]
    strides = [
        sum(line.steps[k] * stride for line, stride in zip(lines, source.strides, strict=True))
        for k in range(len(out.shape))
    ]
    out[...] = np.lib.stride_tricks.as_strided(first, out.shape, strides, writeable=False)


def _gathered(source: Array, grid: tuple[Sym, ...], index: tuple[Dim, ...], grid_shape: tuple[int, ...]) -> Array:
    """The same for any expressions, element by element."""
    rank = len(grid_shape)
    axes = {
        s: np.arange(n).reshape((1,) * d + (n,) + (1,) * (rank - d - 1))
        for d, (s, n) in enumerate(zip(grid, grid_shape, strict=True))
    }
    indices: list[Array] = []
    inside: Array = np.ones((1,) * rank, np.bool_)
    for e, extent in zip(index, source.shape, strict=True):
        at = np.asarray(valued(e, axes, OF_ARRAYS))
        lo, hi = bounds(e)
        if lo is None or hi is None or lo < 0 or hi >= extent:
            inside = inside & (at >= 0) & (at < extent)
            at = np.clip(at, 0, extent - 1)
        indices.append(at)
    data = np.broadcast_to(source[tuple(indices)], grid_shape)
    return data if inside.all() else np.where(inside, data, np.zeros((), source.dtype))
