"""Reductions over windows, and their scattering counterpart: pooling, its gradient, sums of prefixes.

In: calls. Out: nodes. A window over all that lies before (or behind) is a cumulative op; one of a sum or a maximum of
floats is a pool; any other one is taken apart into an axis of places, which is reduced. JAX writes a window whose size
or padding follows from a symbolic one, as that of a cumulative sum does, as a call that has them as operands.
Not its business: reductions of whole axes (``reduce``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import Dim, floordiv, maximum
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import i64, product
from tilewright.frontend.stablehlo.operation import DAMAGED, NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.ops.movement import each, padded
from tilewright.frontend.stablehlo.ops.narrow import all_in_wider
from tilewright.frontend.stablehlo.ops.reduce import by_neighbours, fold_of, joined
from tilewright.frontend.stablehlo.regions import combiner_of, keeps_larger

Convert = Callable[[Operation], Result]

PREFIXES: Mapping[OpDef | str, OpDef] = {
    ops.add: ops.cumsum, ops.mul: ops.cumprod, ops.maximum: ops.cummax, ops.minimum: ops.cummin,
}  # fmt: skip
MOST_POOL_AXES = 3


@dataclass(frozen=True)
class _WindowSizes:
    """Sizes, strides, dilations of the window and of the operand, and padding, by axis."""

    sizes: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    spread: tuple[int, ...]
    pads: tuple[tuple[Dim, Dim], ...]

    @property
    def axes(self) -> tuple[int, ...]:
        """Where a window has more than one element."""
        return tuple(k for k, n in enumerate(self.sizes) if n != 1)

    @property
    def is_dense(self) -> bool:
        """Nothing between the operand's elements, and no other axis is strided or padded."""
        others = [k for k in range(len(self.sizes)) if k not in self.axes]
        return set(self.spread) <= {1} and all(self.strides[k] == 1 and self.pads[k] == (0, 0) for k in others)


def _windows_of(c: Operation) -> _WindowSizes:
    rank = len(c.operands[0].shape)
    ones = (1,) * rank
    return _WindowSizes(
        c.ints("window_dimensions", ones), c.ints("window_strides", ones), c.ints("window_dilations", ones),
        c.ints("base_dilations", ones), c.pads("padding", rank),
    )  # fmt: skip


def _reduce_window(c: Operation) -> Result:
    return _reduced(c, _windows_of(c), c.op.regions[0], len(c.operands) // 2)


def _dynamic_reduce_window(c: Operation) -> Result:
    """A call whose last operands are the window's sizes, strides, dilations, those of the operand, and padding."""
    n = (len(c.operands) - _N_OPERANDS) // 2
    if n < 1:
        raise NoForm(f"{len(c.operands)} operands, which are not those of this operation", DAMAGED)
    strides, spread, dilations = (
        c.numbers(2 * n + k, f"windows whose {what} follow from a symbolic size", "give that dimension a fixed size")
        for k, what in ((1, "strides"), (2, "spread"), (3, "gaps"))
    )
    windows = _WindowSizes(c.sizes(2 * n), strides, dilations, spread, c.edges(2 * n + 4))
    return _reduced(c, windows, c.walker.called(c), n)


_N_OPERANDS = 5


def _reduced(c: Operation, windows: _WindowSizes, region: Any, n: int) -> Result:
    """``n`` operands, and what they start from, by a region."""
    x, start, op = c.operands[0], c.operands[n], combiner_of(region) if n == 1 else ""
    if isinstance(x, Node) and isinstance(start, Node) and isinstance(op, OpDef):
        made = _prefixes(c, x, windows, op) or _pooled(c, x, windows, op)
        if made is not None:
            return joined(c, made, start, op)
        fold = fold_of(op, x.dtype)
        if fold is not None:
            apart, axes = _apart(c, x, start, windows)
            assert isinstance(apart, Node)
            return joined(c, c.b(fold, apart, axes=axes), start, op) if axes else joined(c, apart, start, op)
    parts = [_apart(c, x, s, windows) for x, s in zip(c.operands[:n], c.operands[n : 2 * n], strict=True)]
    return by_neighbours(c, [p for p, _ in parts], c.operands[n : 2 * n], parts[0][1], region)


def _prefixes(c: Operation, x: Node, w: _WindowSizes, op: OpDef) -> Node | None:
    """A fold of all before each element, or of all behind it."""
    if op not in PREFIXES or len(w.axes) != 1 or not w.is_dense or x.dtype.kind == "bool":
        return None
    (axis,) = w.axes
    n = x.shape[axis]
    if n != w.sizes[axis] or w.strides[axis] != 1 or w.dilations[axis] != 1:
        return None
    before, behind = w.pads[axis] == (n - 1, 0), w.pads[axis] == (0, n - 1)
    return c.b(PREFIXES[op], x, axis=axis, reverse=behind) if before or behind else None


def _pooled(c: Operation, x: Node, w: _WindowSizes, op: OpDef) -> Node | None:
    """A pool over up to three axes, which come to stand between or behind the batch and the channels."""
    is_pool = op in (ops.add, ops.maximum) and x.dtype.is_float and w.is_dense
    if not is_pool or not 1 <= len(w.axes) <= MOST_POOL_AXES:
        return None
    others = [k for k in range(len(x.shape)) if k not in w.axes]
    # With the channels last, what lies behind all windows is channels; else there are none.
    is_last = bool(others) and others[-1] > w.axes[-1]
    channels = [others[-1]] if is_last else []
    batch = others[:-1] if is_last else others
    order = (*batch, *w.axes, *channels)
    turned = c.transpose(x, order)
    spatial = [x.shape[k] for k in w.axes]
    n = product([x.shape[k] for k in batch])
    flat = (n, *spatial, x.shape[channels[0]]) if is_last else (n, 1, *spatial)
    pads, kernel = tuple(w.pads[k] for k in w.axes), tuple(w.sizes[k] for k in w.axes)
    counts = [n for pair in pads for n in pair]
    if not are_known([*kernel, *counts]) or any(is_known(n) and n < 0 for n in counts):
        return None
    window: dict[str, Any] = {
        "kernel": kernel, "strides": tuple(w.strides[k] for k in w.axes), "pads": pads,
        "dilations": tuple(w.dilations[k] for k in w.axes), "layout": "NHWC" if is_last else "NCHW",
    }  # fmt: skip
    image = c.reshape(turned, flat)
    if op is ops.maximum:
        made = c.b(ops.max_pool, image, **window)
    else:
        made = c.b(ops.avg_pool, image, count_include_pad=True, divisor=1, **window)
    places = made.shape[1 : 1 + len(w.axes)] if is_last else made.shape[2:]
    shape = (*[x.shape[k] for k in batch], *places, *[x.shape[k] for k in channels])
    return c.transpose(c.reshape(made, shape), [order.index(k) for k in range(len(order))])


def _apart(c: Operation, x: Value, start: Value, w: _WindowSizes) -> tuple[Value, tuple[int, ...]]:
    """The windows with their elements along axes of their own, and these axes."""
    x = padded(c, x, start, w.pads, tuple(n - 1 for n in w.spread))
    new: list[int] = []
    for axis in range(len(w.sizes)):
        at = axis + len(new)
        if w.sizes[axis] == 1 and w.strides[axis] == 1:
            continue
        index = _places(c, x.shape[at], w, axis)
        x = each(c, x, lambda p: c.b(ops.gather, p, index, axis=at))  # noqa: B023
        if w.sizes[axis] != 1:
            new.append(at + 1)
    return x, tuple(new)


def _places(c: Operation, size: Dim, w: _WindowSizes, axis: int) -> Node:
    """Which elements of an axis each window has: windows by elements, a vector where they have one."""
    n, step = w.sizes[axis], w.strides[axis]
    if not is_known(n):
        raise NoForm("windows of a symbolic size by this region", "give that dimension a fixed size")
    count = maximum(floordiv(size - (n - 1) * w.dilations[axis] - 1, step) + 1, 0)
    within = np.arange(n, dtype=np.int64) * w.dilations[axis]
    if is_known(count):
        places = np.arange(count, dtype=np.int64)[:, None] * step + within
        return c.b.const(places[:, 0] if n == 1 else places)
    first = c.b(ops.mul, c.b(ops.iota, extent=count, dtype=i64), c.b.const(step, i64))
    return first if n == 1 else c.b(ops.add, c.reshape(first, (count, 1)), c.b.const(within))


# --- select and scatter ---------------------------------------------------------------------------------------------


def _select_and_scatter(c: Operation) -> Node:
    """Each window's chosen element gets the source's; elements that several windows choose get the sum.

    What lies outside of the operand is never chosen: it counts as the element that loses against every other.
    """
    x, source, start = c.nodes()
    w = _windows_of(c)
    select, scatter = c.op.regions
    if combiner_of(scatter) is not ops.add:
        raise NoForm("select_and_scatter by another region than a sum", "write it by reduce_window and scatter")
    is_max = keeps_larger(c, select)
    least, most = (-math.inf, math.inf) if x.dtype.is_float else (x.dtype.min, x.dtype.max)
    losing = c.b.const(least if is_max else most, x.dtype)
    count = product(x.shape)
    places = c.reshape(c.b(ops.iota, extent=count, dtype=i64), x.shape)
    values, axes = _apart(c, x, losing, w)
    where, _ = _apart(c, places, c.reshape(c.dims([count]), ()), w)
    assert isinstance(values, Node) and isinstance(where, Node)
    kept = [k for k in range(len(values.shape)) if k not in axes]
    shape = (*[values.shape[k] for k in kept], product([values.shape[k] for k in axes]))
    values, where = (c.reshape(c.transpose(v, (*kept, *axes)), shape) for v in (values, where))
    last = len(shape) - 1
    chosen = c.b(ops.argmax if is_max else ops.argmin, values, axis=last, keepdims=True)
    at = c.reshape(c.b(ops.gather_elements, where, chosen, axis=last), (product(source.shape), 1))
    room = c.expand(start, (count + 1,))  # the last one is for what lies outside
    made = c.b(ops.scatter_nd, room, at, c.reshape(source, (product(source.shape),)), reduction="add")
    return c.reshape(c.slice(made, 0, 0, count), x.shape)


TABLE: Mapping[str, Convert] = {
    "stablehlo.reduce_window": all_in_wider(_reduce_window),
    "stablehlo.dynamic_reduce_window": all_in_wider(_dynamic_reduce_window),
    "stablehlo.select_and_scatter": all_in_wider(_select_and_scatter),
}
