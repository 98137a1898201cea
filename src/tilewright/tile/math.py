"""Transcendental functions as value trees of basic operations.

In: values with ``exp``, ``log``, ``sin``... Out: equal values without them, of ``Fma``, ``add``, ``mul``, ``div``,
``rint``, ``Bitcast``, ``Select`` and ``pow2i``. Not its business: instructions (``codegen``).

f16 and bf16 are computed in f32 and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.core import types
from tilewright.core.compute import Binary, Cast, Const, Unary, Value, rewrite_value


@dataclass(frozen=True)
class Style:
    """What the target offers. ``has_scalef``: ``mul(x, pow2i(n))`` is exact for every ``n``, overflow included."""

    has_fma: bool = True
    has_scalef: bool = False


def _rsqrt(x: Value, style: Style) -> Value:
    return Binary("div", Const(1.0, x.dtype), Unary("sqrt", x))


UNARY: dict[str, Callable[[Value, Style], Value]] = {"rsqrt": _rsqrt}
BINARY: dict[str, Callable[[Value, Value, Style], Value]] = {}


def expand(value: Value, *, has_fma: bool = True, has_scalef: bool = False) -> Value:
    """``value`` with every transcendental function spelled out."""
    style = Style(has_fma, has_scalef)

    def leaf(v: Value) -> Value | None:
        if isinstance(v, Unary) and v.op in UNARY:
            return _in_wide(v.dtype, lambda a: UNARY[v.op](a, style), v.a)
        if isinstance(v, Binary) and v.op in BINARY and v.dtype.is_float:
            return _in_wide(v.dtype, lambda a, b: BINARY[v.op](a, b, style), v.a, v.b)
        return None

    return rewrite_value(value, leaf)


def _in_wide(dtype: types.DType, build: Callable[..., Value], *arguments: Value) -> Value:
    if dtype in (types.f32, types.f64):
        return build(*arguments)
    return Cast(build(*[Cast(a, types.f32) for a in arguments]), dtype)
