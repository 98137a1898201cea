"""Reductions over windows and axes, as StableHLO and the formats that hold it have them.

In: nodes, the sizes of windows, and the op that joins two elements. Out: nodes. A window over all that lies before (or
behind) is a cumulative op; one of a sum or a maximum of floats is a pool; any other one is taken apart into axes of
places, which are reduced. Not its business: which op a region is, and regions without a name (``stablehlo.ops``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import Dim, floordiv, maximum
from tilewright.core.graph import CONST, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, bool_, i64, product
from tilewright.frontend.moves import Moves, pad_real

# --- folds ----------------------------------------------------------------------------------------------------------

FOLDS: Mapping[OpDef | str, OpDef] = {
    ops.add: ops.reduce_sum, ops.mul: ops.reduce_prod, ops.minimum: ops.reduce_min, ops.maximum: ops.reduce_max,
}  # fmt: skip
_OF_BOOLS: Mapping[OpDef | str, OpDef] = {
    ops.add: ops.reduce_any, ops.maximum: ops.reduce_any, ops.bitwise_or: ops.reduce_any,
    ops.mul: ops.reduce_all, ops.minimum: ops.reduce_all, ops.bitwise_and: ops.reduce_all,
}  # fmt: skip


def fold_of(op: OpDef | str, dtype: DType) -> OpDef | None:
    """The reduction by ``op``, where there is one."""
    return (_OF_BOOLS if dtype is bool_ else FOLDS).get(op)


def neutral(op: OpDef | str, dtype: DType) -> float | None:
    """What changes nothing that it is joined with; None where there is no such number."""
    if dtype is bool_:
        return float(op in (ops.mul, ops.minimum, ops.bitwise_and))
    least: float = -np.inf if dtype.is_float else dtype.min
    most: float = np.inf if dtype.is_float else dtype.max
    numbers: Mapping[OpDef | str, float] = {ops.add: 0, ops.mul: 1, ops.maximum: least, ops.minimum: most}
    return numbers.get(op)


def is_neutral(start: Node, op: OpDef | str) -> bool:
    """Is ``start`` a constant that changes nothing it is joined with?"""
    if start.op is not CONST or start.shape:
        return False
    return bool(start.attrs["data"].array[()] == neutral(op, start.dtype))


def joined(m: Moves, made: Node, start: Node, op: OpDef) -> Node:
    """A reduction's result with what it starts from."""
    if is_neutral(start, op):
        return made
    if made.dtype is bool_:
        op = {ops.bitwise_or: ops.logical_or, ops.bitwise_and: ops.logical_and}.get(op, op)
    return m.b(op, made, start)


# --- windows --------------------------------------------------------------------------------------------------------

PREFIXES: Mapping[OpDef | str, OpDef] = {
    ops.add: ops.cumsum, ops.mul: ops.cumprod, ops.maximum: ops.cummax, ops.minimum: ops.cummin,
}  # fmt: skip
MOST_POOL_AXES = 3


@dataclass(frozen=True)
class WindowSizes:
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


def windows_folded(
    m: Moves, x: Node, start: Node, w: WindowSizes, op: OpDef, *, counts_edges: bool = False
) -> Node | None:
    """Each window's elements and ``start`` joined by ``op``; None where no op reduces by it.

    At the edges and between elements stands ``start`` by StableHLO's specification (``counts_edges``); nothing in XLA.
    """
    is_whole = all(pair == (0, 0) for pair in w.pads) and set(w.spread) <= {1}
    if not counts_edges or is_whole or is_neutral(start, op):
        made = _prefixes(m, x, w, op) or _pooled(m, x, w, op)
        if made is not None:
            return joined(m, made, start, op)
    fold, nothing = fold_of(op, x.dtype), neutral(op, x.dtype)
    if fold is None:
        return None
    filler = start if counts_edges or nothing is None else m.b.const(nothing, x.dtype)
    apart, axes = windows_apart(m, x, filler, w)
    return joined(m, m.b(fold, apart, axes=axes) if axes else apart, start, op)


def _prefixes(m: Moves, x: Node, w: WindowSizes, op: OpDef) -> Node | None:
    """A fold of all before each element, or of all behind it."""
    if op not in PREFIXES or len(w.axes) != 1 or not w.is_dense or x.dtype.kind == "bool":
        return None
    (axis,) = w.axes
    n = x.shape[axis]
    if n != w.sizes[axis] or w.strides[axis] != 1 or w.dilations[axis] != 1:
        return None
    before, behind = w.pads[axis] == (n - 1, 0), w.pads[axis] == (0, n - 1)
    return m.b(PREFIXES[op], x, axis=axis, reverse=behind) if before or behind else None


def _pooled(m: Moves, x: Node, w: WindowSizes, op: OpDef) -> Node | None:
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
    turned = m.transpose(x, order)
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
    image = m.reshape(turned, flat)
    if op is ops.maximum:
        made = m.b(ops.max_pool, image, **window)
    else:
        made = m.b(ops.avg_pool, image, count_include_pad=True, divisor=1, **window)
    places = made.shape[1 : 1 + len(w.axes)] if is_last else made.shape[2:]
    shape = (*[x.shape[k] for k in batch], *places, *[x.shape[k] for k in channels])
    return m.transpose(m.reshape(made, shape), [order.index(k) for k in range(len(order))])


def windows_apart(m: Moves, x: Node, start: Node, w: WindowSizes) -> tuple[Node, tuple[int, ...]]:
    """The windows with their elements along axes of their own, and these axes."""
    x = pad_real(m, x, start, w.pads, tuple(n - 1 for n in w.spread))
    new: list[int] = []
    for axis in range(len(w.sizes)):
        at = axis + len(new)
        if w.sizes[axis] == 1 and w.strides[axis] == 1:
            continue
        x = m.b(ops.gather, x, _places(m, x.shape[at], w, axis), axis=at)
        if w.sizes[axis] != 1:
            new.append(at + 1)
    return x, tuple(new)


def _places(m: Moves, size: Dim, w: WindowSizes, axis: int) -> Node:
    """Which elements of an axis each window has: windows by elements, a vector where they have one."""
    n, step = w.sizes[axis], w.strides[axis]
    if not is_known(n):
        raise OpError("windows of a symbolic size by this region", remedy="give that dimension a fixed size")
    count = maximum(floordiv(size - (n - 1) * w.dilations[axis] - 1, step) + 1, 0)
    within = np.arange(n, dtype=np.int64) * w.dilations[axis]
    if is_known(count):
        places = np.arange(count, dtype=np.int64)[:, None] * step + within
        return m.b.const(places[:, 0] if n == 1 else places)
    first = m.b(ops.mul, m.b(ops.iota, extent=count, dtype=i64), m.b.const(step, i64))
    return first if n == 1 else m.b(ops.add, m.reshape(first, (count, 1)), m.b.const(within))
