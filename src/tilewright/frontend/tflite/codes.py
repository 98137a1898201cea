"""Nodes that LiteRT's integer kernels have in common: codes less their zero point, sums brought back to codes.

In: a call with quantised tensors. Out: nodes on i32 and on codes. Not its business: any one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.frontend.tflite.call import TfliteCall
from tilewright.frontend.tflite.fixed_point import multipliers_of
from tilewright.frontend.tflite.quantisation import Quantisation
from tilewright.ops.quant import POINT

CODES = (types.i8, types.u8, types.i16)
HIGH_BITS = 16
"""Sums of 64 bits are multiplied by the multiplier's upper half."""


def of(c: TfliteCall, k: int) -> Quantisation:
    """The quantisation of operand ``k``, which must have one."""
    found = c.quantised[k] if k < len(c.quantised) else None
    if found is None or c.x(k).dtype not in CODES:
        raise OpError(
            f"operand {k}, {c.x(k).type}, has no codes, and others have", remedy="quantise the whole operator"
        )
    return found


def result(c: TfliteCall, k: int = 0) -> Quantisation:
    """The quantisation of result ``k``, which must have one."""
    found = c.made[k]
    if found is None or c.dtypes[k] not in CODES:
        raise OpError(
            f"result {k}, of {c.dtypes[k]}, has no codes, and operands have", remedy="quantise the whole operator"
        )
    return found


def centred(c: TfliteCall, k: int, x: Node | None = None) -> Node:
    """Operand ``k``, or its codes as they were moved to ``x``, less its zero point, in i32."""
    wide, zero = c.cast(c.x(k) if x is None else x, types.i32), of(c, k).zero
    return c.b(ops.sub, wide, c.b.const(zero, types.i32)) if zero else wide


def rescaled(c: TfliteCall, x: Node, reals: Sequence[float], axis: int = 0) -> Node:
    """``x`` times a real factor, or one for each place along ``axis``, in fixed point."""
    if not np.isfinite(reals).all():
        raise OpError("a scale of 0 divides")
    multipliers, shifts = multipliers_of(reals)
    shifts = np.where(multipliers == 0, np.int32(-1), shifts)
    if len(reals) == 1:
        multipliers, shifts = multipliers.reshape(()), shifts.reshape(())
    if x.dtype is types.i64:
        return _rescaled_long(c, x, multipliers, shifts)
    lowers = bool((shifts < 0).all())
    return c.b(ops.rescale, x, c.b.const(multipliers), c.b.const(shifts), axis=axis, lowers=lowers)


def _rescaled_long(c: TfliteCall, x: Node, multipliers: Array, shifts: Array) -> Node:
    """Sums of 64 bits, channels last: one rounding, halves up."""
    most = (1 << (POINT - HIGH_BITS)) - 1
    high = np.minimum((multipliers.astype(np.int64) + (1 << (HIGH_BITS - 1))) >> HIGH_BITS, most)
    down = (POINT - HIGH_BITS) - shifts.astype(np.int64)
    if down.min(initial=1) < 1:
        raise OpError(f"its scales rescale numbers of 64 bits by 2**{POINT - HIGH_BITS - 1} or more")
    product = c.b(ops.add, c.b(ops.mul, x, c.b.const(high)), c.b.const(np.asarray(np.int64(1) << (down - 1))))
    return c.cast(c.b(ops.shift_right, product, c.b.const(down)), types.i32)


def coded(c: TfliteCall, x: Node, limits: tuple[int, int] | None = None) -> Node:
    """Steps of the result's scale as its codes, within the limits of the fused activation."""
    made, dtype = result(c), c.dtypes[0]
    low, high = made.limits(c.activation, dtype) if limits is None else limits
    y = c.b(ops.add, x, c.b.const(made.zero, types.i32)) if made.zero else x
    return c.cast(c.b(ops.clamp, y, c.b.const(low, types.i32), c.b.const(high, types.i32)), dtype)


def looked_up(c: TfliteCall, f: Callable[[Array], Array]) -> Node:
    """A function of one operand as a table: ``f`` takes all codes (i64) and gives those of the result."""
    x, dtype = c.x(), c.dtypes[0]
    of(c, 0)
    least, most = int(x.dtype.min), int(x.dtype.max)
    table = np.clip(f(np.arange(least, most + 1)), int(dtype.min), int(dtype.max)).astype(dtype.numpy)
    place = c.cast(x, types.i32)
    if least:
        place = c.b(ops.sub, place, c.b.const(least, types.i32))
    return c.b(ops.gather, c.b.const(table), place, axis=0)


def nearest(c: TfliteCall, x: Node) -> Node:
    """The whole number next to a float, halves away from 0."""
    cut = c.b(ops.trunc, x)
    far = c.b(ops.ge, c.b(ops.abs, c.b(ops.sub, x, cut)), c.number(0.5, x))
    return c.b(ops.where, far, c.b(ops.add, cut, c.b(ops.sign, x)), cut)
