"""ATen's adaptive pooling: as many windows as asked for, from ``i * size // out`` to ``ceil((i + 1) * size / out)``.

In: calls. Out: nodes: a plain pool where sizes divide, else weighted sums per axis, or a table of places; where a size
is symbolic, masks of the windows. Not its business: other pooling (``torch.aten.pool``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilewright import ops
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import Array, f32, i64, product
from tilewright.frontend.banded import banded_sum
from tilewright.frontend.nodes import dim_scalar, reshape
from tilewright.frontend.torch.aten.call import AtenCall, Result, cast
from tilewright.frontend.torch.aten.pool import batched

Convert = Callable[[AtenCall], Result]


def _adaptive(n: int, is_max: bool) -> Convert:
    def convert(c: AtenCall) -> Result:
        x = batched(c, n)
        sizes, outs = x.shape[-n:], c.shape[-n:]
        rank = len(x.shape)
        if is_max and len(c.results) > 1 and are_known((*sizes, *outs)):
            return _adaptive_max(c, x, sizes, outs)
        if all(o == 1 for o in outs):
            reduce = ops.reduce_max if is_max else ops.reduce_mean
            y = c.b(reduce, x, axes=tuple(range(rank - n, rank)), keepdims=True)
        elif all(is_known(s) and is_known(o) and s % o == 0 for s, o in zip(sizes, outs, strict=True)):
            kernel = tuple(s // o for s, o in zip(sizes, outs, strict=True))
            op = ops.max_pool if is_max else ops.avg_pool
            y = c.b(op, x, kernel=kernel, strides=kernel, pads=((0, 0),) * n, layout="NCHW")
        elif not are_known((*sizes, *outs)):
            return _greatest_by_masks(c, x, sizes, outs) if is_max else _average_by_masks(c, x, sizes, outs)
        elif is_max:
            return _adaptive_max(c, x, sizes, outs)
        else:
            y = _average_by_windows(c, x, sizes, outs)
        y = reshape(c.b, y, c.shape)
        return y if len(c.results) == 1 else (y, None)

    return convert


def _adaptive_max(c: AtenCall, x: Node, sizes: tuple[Dim, ...], outs: tuple[Dim, ...]) -> Result:
    """Windows as tables of positions; shorter ones repeat their first place."""
    b, n = c.b, len(sizes)
    table = np.zeros((1, 1), np.int64)
    for size, out in zip(sizes, outs, strict=True):
        assert is_known(size)
        assert is_known(out)
        ranges = [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]
        width = max((stop - start for start, stop in ranges), default=0)
        along = np.array([[min(k, stop - start - 1) * (start + k < stop) + start for k in range(width)]
                          for start, stop in ranges], np.int64).reshape(out, width)  # fmt: skip
        joined = table[:, None, :, None] * size + along[None, :, None, :]
        table = joined.reshape(table.shape[0] * out, table.shape[1] * width)
    lead = x.shape[: len(x.shape) - n]
    flat: Dim = 1
    for d in sizes:
        flat = flat * d
    axis = len(lead) + 1
    windows = b(ops.gather, reshape(b, x, (*lead, flat)), b.const(table), axis=len(lead))
    y = b(ops.reduce_max, windows, axes=(axis,), keepdims=False)
    if len(c.results) == 1:
        return reshape(b, y, c.shape)
    # the first of equals: a place that is repeated gives the same index anyway
    best = b(ops.argmax, windows, axis=axis, keepdims=True)
    tables = b(ops.expand, b.const(table), shape=(*lead, *table.shape))
    index = b(ops.gather_elements, tables, best, axis=axis)
    return reshape(b, y, c.shape), reshape(b, index, c.shape)


def _average_by_windows(c: AtenCall, x: Node, sizes: tuple[Dim, ...], outs: tuple[Dim, ...]) -> Node:
    """Adaptive windows overlap unevenly: along each axis the means are sums with weights of their own."""
    dtype, n = x.dtype, len(sizes)
    x = x if dtype.bits >= 32 else cast(c.b, x, f32)
    for axis, (size, out) in enumerate(zip(sizes, outs, strict=True), len(x.shape) - n):
        assert is_known(size)
        assert is_known(out)
        x = banded_sum(c.b, x, axis, window_weights(size, out))
    return cast(c.b, x, dtype)


def window_weights(size: int, out: int) -> Array:
    """How much of each place of an axis is in each window's mean: ``[out, size]``."""
    weights = np.zeros((out, size))
    for i in range(out):
        start, stop = i * size // out, -(-(i + 1) * size // out)
        weights[i, start:stop] = 1 / (stop - start)
    return weights


def window_ends(c: AtenCall, size: Dim, out: Dim) -> tuple[Node, Node]:
    """Where the windows along an axis begin and end, i64[out]."""
    b = c.b
    at = b(ops.iota, extent=out, dtype=i64)
    n, k = dim_scalar(b, size, i64), dim_scalar(b, out, i64)
    start = b(ops.floor_div, b(ops.mul, at, n), k)
    after = b(ops.mul, b(ops.add, at, b.const(1, i64)), n)
    return start, b(ops.floor_div, b(ops.add, after, b(ops.sub, k, b.const(1, i64))), k)


def _spread(c: AtenCall, x: Node, axis: int, size: Dim, out: Dim, filler: float) -> Node:
    """``x`` with an axis of windows before ``axis``, and ``filler`` for what is outside of each."""
    b = c.b
    start, end = (reshape(b, e, (out, 1)) for e in window_ends(c, size, out))
    at = b(ops.iota, extent=size, dtype=i64)
    mask = b(ops.logical_and, b(ops.ge, at, start), b(ops.lt, at, end))
    mask = reshape(b, mask, (out, size, *(1,) * (len(x.shape) - axis - 1)))
    return b(ops.where, mask, reshape(b, x, (*x.shape[:axis], 1, *x.shape[axis:])), b.const(filler, x.dtype))


def _average_by_masks(c: AtenCall, x: Node, sizes: tuple[Dim, ...], outs: tuple[Dim, ...]) -> Node:
    """The mean of each window, axis by axis."""
    b, first = c.b, len(x.shape) - len(sizes)
    for axis, (size, out) in enumerate(zip(sizes, outs, strict=True), first):
        start, end = window_ends(c, size, out)
        count = reshape(b, cast(b, b(ops.sub, end, start), x.dtype), (out, *(1,) * (len(x.shape) - axis - 1)))
        x = b(ops.reduce_sum, _spread(c, x, axis, size, out, 0.0), axes=(axis + 1,), keepdims=False)
        x = b(ops.div, x, count)
    return reshape(b, x, c.shape)


def _greatest_by_masks(c: AtenCall, x: Node, sizes: tuple[Dim, ...], outs: tuple[Dim, ...]) -> Result:
    """The greatest element of each window and its place in the plane, from the last axis to the first: of equal ones
    the first in row-major order."""
    b, first = c.b, len(x.shape) - len(sizes)
    place: Node | None = None
    for k in reversed(range(len(sizes))):
        axis, spread = first + k, _spread(c, x, first + k, sizes[k], outs[k], float("-inf"))
        x = b(ops.reduce_max, spread, axes=(axis + 1,), keepdims=False)
        at = b(ops.argmax, spread, axis=axis + 1, keepdims=False)
        below = at if place is None else b(ops.gather_elements, place, at, axis=axis)
        stride = dim_scalar(b, product(sizes[k + 1 :]), i64)
        place = at if place is None else b(ops.add, b(ops.mul, at, stride), below)
    assert place is not None
    values = reshape(b, x, c.shape)
    return values if len(c.results) == 1 else (values, reshape(b, place, c.shape))


TABLE: Mapping[str, Convert] = {
    **{f"{prefix}adaptive_avg_pool{n}d.default": _adaptive(n, False) for n in (1, 2, 3) for prefix in ("", "_")},
    **{f"adaptive_max_pool{n}d.default": _adaptive(n, True) for n in (1, 2, 3)},
}
