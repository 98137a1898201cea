"""Reductions over windows, and their scattering counterpart: pooling, its gradient, sums of prefixes.

In: calls. Out: nodes (``frontend.window_folds``). A window whose size or padding follows from a symbolic size, as
that of a cumulative sum does, is a call that has them as operands.
Not its business: reductions of whole axes (``reduce``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import i64, product
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.operation import DAMAGED, NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.ops.elementwise import as_pair
from tilewright.frontend.stablehlo.ops.narrow import all_in_wider
from tilewright.frontend.stablehlo.ops.reduce import by_neighbours
from tilewright.frontend.stablehlo.regions import combiner_of, keeps_larger
from tilewright.frontend.window_folds import WindowSizes, windows_apart, windows_folded

Convert = Callable[[Operation], Result]


def _windows_of(c: Operation) -> WindowSizes:
    rank = len(c.operands[0].shape)
    ones = (1,) * rank
    return WindowSizes(
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
    windows = WindowSizes(c.sizes(2 * n), strides, dilations, spread, c.edges(2 * n + 4))
    return _reduced(c, windows, c.walker.called(c), n)


_N_OPERANDS = 5


def _reduced(c: Operation, windows: WindowSizes, region: Any, n: int) -> Result:
    """``n`` operands, and what they start from, by a region."""
    x, start, op = c.operands[0], c.operands[n], combiner_of(region) if n == 1 else ""
    if isinstance(x, Node) and isinstance(start, Node) and isinstance(op, OpDef):
        made = windows_folded(c, x, start, windows, op)
        if made is not None:
            return made
    parts = [_apart(c, x, s, windows) for x, s in zip(c.operands[:n], c.operands[n : 2 * n], strict=True)]
    return by_neighbours(c, [p for p, _ in parts], c.operands[n : 2 * n], parts[0][1], region)


def _apart(c: Operation, x: Value, start: Value, w: WindowSizes) -> tuple[Value, tuple[int, ...]]:
    if not isinstance(x, Pair) and not isinstance(start, Pair):
        return windows_apart(c, x, start, w)
    pair, filler = as_pair(c, x), as_pair(c, start)
    re, axes = windows_apart(c, pair.re, filler.re, w)
    return Pair(re, windows_apart(c, pair.im, filler.im, w)[0]), axes


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
