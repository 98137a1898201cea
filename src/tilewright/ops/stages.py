"""Short ways to write the stages of ops that move elements about.

In: output buffers and functions from an output index to a value. Out: lists with stages for ``OpDef.compute``.
Not its business: any op's meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    IndexLike,
    Load,
    Select,
    Serial,
    Stage,
    Value,
    axes_for,
    syms,
)
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym

Items = list[Stage | Serial]


def assign(out: Buffer, value: Callable[[tuple[Sym, ...]], Value]) -> Items:
    """``out[i...] = value(i...)`` over the whole of ``out``."""
    axes = axes_for(out.shape)
    at = syms(axes)
    return [Stage((out,), axes, at, (value(at),))]


def copy_from(out: Buffer, x: Buffer, index: Callable[[tuple[Sym, ...]], Sequence[IndexLike]]) -> Items:
    """``out[i...] = x[index(i...)]`` over the whole of ``out``."""
    return assign(out, lambda at: Load(x, tuple(index(at))))


def write(out: Buffer, axes: tuple[Axis, ...], index: Sequence[IndexLike], value: Value) -> Stage:
    """``out[index] = value`` over ``axes``."""
    return Stage((out,), axes, tuple(index), (value,))


def index_value(e: Dim) -> Value:
    """An index expression as an i64 value; a number becomes a literal."""
    return Const(e, types.i64) if is_known(e) else Index(e)


def as_i64(v: Value) -> Value:
    return v if v.dtype is types.i64 else Cast(v, types.i64)


def wrapped(i: Value, n: Dim) -> Value:
    """A run-time index into ``n`` elements: negative ones count from the end, then clamped to ``0 .. n-1``.

    Clamping keeps every access inside the buffer whatever the data hold.
    """
    i = as_i64(i)
    zero, last = Const(0, types.i64), index_value(n - 1)
    i = Select(Binary("lt", i, zero), Binary("add", i, index_value(n)), i)
    return clamped(i, zero, last)


def clamped(i: Value, lo: Value, hi: Value) -> Value:
    """``i`` kept inside ``lo .. hi``; the lower bound wins when there is nothing between."""
    return Binary("max", Binary("min", i, hi), lo)
