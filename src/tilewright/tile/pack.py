"""Evaluating packed constants: the recipe of ``ir.Packed`` on a NumPy array, at compile time.

In: a recipe and the source's array. Out: the array that the kernel reads.
Not its business: which layout is good (``schedule.operands.pack`` derives it from the loops).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.core.expr import Binary, Dim, Mul, Sym, bounds, coef_of, const_of, terms_of
from tilewright.core.types import Array
from tilewright.tile.ir import Packed


def packed_array(packed: Packed, source: Array) -> Array:
    """The contiguous array of ``packed.param``; ``source`` may have any shape with the right number of elements."""
    shape = tuple(int(d) for d in packed.source.shape if isinstance(d, int))
    source = np.ascontiguousarray(source).reshape(shape)
    grid_shape = tuple(int(d) for d in packed.param.shape if isinstance(d, int))
    strided = _strided(packed, source, grid_shape)
    if strided is not None:
        return strided
    rank = len(grid_shape)
    axes = {
        s: np.arange(n).reshape((1,) * d + (n,) + (1,) * (rank - d - 1))
        for d, (s, n) in enumerate(zip(packed.grid, grid_shape, strict=True))
    }
    indices: list[Array] = []
    inside: Array = np.ones((1,) * rank, np.bool_)
    for e, extent in zip(packed.index, shape, strict=True):
        at = np.asarray(_evaluate(e, axes))
        lo, hi = bounds(e)
        if lo is None or hi is None or lo < 0 or hi >= extent:
            inside = inside & (at >= 0) & (at < extent)
            at = np.clip(at, 0, extent - 1)
        indices.append(at)
    data = np.broadcast_to(source[tuple(indices)], grid_shape)
    if not inside.all():
        data = np.where(inside, data, np.zeros((), source.dtype))
    return np.ascontiguousarray(data)


def _strided(packed: Packed, source: Array, grid_shape: tuple[int, ...]) -> Array | None:
    """The same by one strided copy, which runs at memory speed; None unless every index is a sum from 0 upwards."""
    sizes = dict(zip(packed.grid, grid_shape, strict=True))
    starts, ends = [], []
    for e in packed.index:
        if const_of(e) < 0 or any(not isinstance(a, Sym) or c < 0 for a, c in terms_of(e)):
            return None
        starts.append(const_of(e))
        ends.append(const_of(e) + sum(c * (sizes[a] - 1) for a, c in terms_of(e) if isinstance(a, Sym)) + 1)
    if 0 in grid_shape:
        return np.zeros(grid_shape, source.dtype)
    if any(end > n for end, n in zip(ends, source.shape, strict=True)):
        padded = np.zeros([max(end, n) for end, n in zip(ends, source.shape, strict=True)], source.dtype)
        padded[tuple(slice(n) for n in source.shape)] = source
        source = padded
    strides = [
        sum(coef_of(e, s) * stride for e, stride in zip(packed.index, source.strides, strict=True)) for s in packed.grid
    ]
    first = source[tuple(slice(start, None) for start in starts)]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(first, grid_shape, strides, writeable=False))


def _evaluate(e: Dim, axes: Mapping[Sym, Array]) -> Array | int:
    if isinstance(e, int):
        return e
    if isinstance(e, Sym):
        return axes[e]
    if isinstance(e, Mul):
        result: Array | int = 1
        for f in e.factors:
            result = result * _evaluate(f, axes)
        return result
    if isinstance(e, Binary):
        a, b = _evaluate(e.a, axes), _evaluate(e.b, axes)
        return {"floordiv": np.floor_divide, "mod": np.mod, "min": np.minimum, "max": np.maximum}[e.op](a, b)
    total: Array | int = e.const
    for atom, coef in e.terms:
        total = total + _evaluate(atom, axes) * coef
    return total
