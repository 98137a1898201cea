"""Transcendental functions as value trees of basic operations.

In: values with ``exp``, ``log``, ``sin``... Out: equal values without them, of ``Fma``, ``add``, ``mul``, ``div``,
``sqrt``, integer operations, ``Bitcast``, ``Select`` and ``pow2i``. Not its business: instructions (``codegen``).

Each function states its error in ULP of its result; f16 and bf16 are computed in f32 and rounded once at the end.
NaN, infinities, signed zeros and denormals give what C's library gives.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from math import frexp

from tilewright.core import types
from tilewright.core.compute import Binary, Cast, Const, Fma, Unary, Value, rewrite_value
from tilewright.tile.elementary import exponential, special, trigonometric
from tilewright.tile.elementary.build import Style

UNARY: Mapping[str, Callable[[Value, Style], Value]] = {
    "rsqrt": special.rsqrt,
    "erf": special.erf,
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "exp2_flushed": exponential.exp2_flushed,
    "reciprocal_flushed": special.reciprocal,
    "expm1": exponential.expm1,
    "log": exponential.log,
    "log2": exponential.log2,
    "log1p": exponential.log1p,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "tanh": exponential.tanh,
    "asinh": exponential.asinh,
    "acosh": exponential.acosh,
    "atanh": exponential.atanh,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": trigonometric.asin,
    "acos": trigonometric.acos,
    "atan": trigonometric.atan,
}
ONE_PLUS: Mapping[str, Callable[[Value, Style], Value]] = {
    "erf": special.one_plus_erf,
    "tanh": exponential.one_plus_tanh,
}
"""``1 + f(x)``, for f32: fewer operations than ``f``, and more digits where the sum is small."""
BINARY: Mapping[str, Callable[[Value, Value, Style], Value]] = {
    "pow": exponential.power,
    "atan2": trigonometric.atan2,
    "rem": special.remainder,
}


def expand(
    value: Value,
    *,
    has_fma: bool = True,
    has_f64: bool = True,
    has_scalef: bool = False,
    functions: Container[str] = (),
) -> Value:
    """``value`` with every transcendental function spelled out for a target with these instructions.

    Without ``has_f64`` the other two hold for f32 alone. ``functions`` of one f32 are instructions, and stay.
    """
    has_special = "exp2" in functions and "reciprocal_flushed" in functions
    narrow_style = Style(has_fma, has_scalef, has_special)
    wide_style = Style(has_fma and has_f64, has_scalef and has_f64)

    def leaf(v: Value) -> Value | None:
        style = wide_style if v.dtype is types.f64 else narrow_style
        if isinstance(v, Unary) and v.op in UNARY:
            if v.op in functions and v.dtype is not types.f64:
                return _in_wide(v, lambda a: Unary(v.op, a), v.a)
            function = UNARY[v.op]
            return _in_wide(v, lambda a: function(a, style), v.a)
        if isinstance(v, Binary) and v.op in BINARY and v.dtype.is_float:
            operation = BINARY[v.op]
            return _in_wide(v, lambda a, b: operation(a, b, style), v.a, v.b)
        if isinstance(v, Binary) and v.op == "pow" and v.dtype.is_integer:
            return exponential.integer_power(v.a, v.b)
        return None

    def sums(v: Value) -> Value | None:
        if has_fma and isinstance(v, Unary) and v.op in ("exp2", "exp2_flushed") and v.dtype is types.f32:
            return _fused(v)
        if has_fma and (v.dtype is types.f32 or (v.dtype is types.f64 and has_f64)) and (fused := _exact_sum(v)):
            return fused
        divisor = _logistic(v) if has_special else None
        if divisor is not None:
            assert isinstance(v, Binary)
            return _in_wide(v, _quotient, v.a, divisor)
        function = _one_plus(v)
        if function is not None and v.dtype is not types.f64:
            return _in_wide(v, lambda a: ONE_PLUS[function.op](a, narrow_style), function.a)
        power = None if has_special else _power_plus(v)
        if power is None:
            return None
        style = wide_style if v.dtype is types.f64 else narrow_style
        return exponential.exp_plus(power[1].a, power[0], style)

    return rewrite_value(rewrite_value(value, sums), leaf)


def _fused(v: Unary) -> Value | None:
    """``exp2(x * c - y)`` with the difference rounded once."""
    d = v.a
    if isinstance(d, Binary) and d.op == "sub" and isinstance(d.a, Binary) and d.a.op == "mul":
        return Unary(v.op, Fma(d.a.a, d.a.b, -d.b))
    return None


def _exact_sum(v: Value) -> Value | None:
    """``a + x * c`` or ``a - x * c`` by a power of two ``c``, in one operation.

    The product has the digits of ``x``, so that the sum is rounded as it was; where the product alone would leave the
    range of its type, the sum does not.
    """
    if not isinstance(v, Binary) or v.op not in ("add", "sub"):
        return None
    for a, product in ((v.a, v.b), (v.b, v.a)) if v.op == "add" else ((v.a, v.b),):
        if isinstance(product, Binary) and product.op == "mul":
            for x, c in ((product.a, product.b), (product.b, product.a)):
                if isinstance(c, Const) and abs(frexp(c.value)[0]) == 0.5:
                    return Fma(x, Const(c.value if v.op == "add" else -c.value, v.dtype), a)
    return None


def _logistic(v: Value) -> Value | None:
    """The divisor ``1 + exp(x)`` of a quotient: near enough itself that no digit is lost by a product."""
    if not isinstance(v, Binary) or v.op != "div" or v.dtype is types.f64 or not v.dtype.is_float:
        return None
    found = _number_plus(v.b)
    return v.b if found and found[0].value == 1 and found[1].op == "exp" else None


def _quotient(a: Value, b: Value) -> Value:
    """``a / b`` for a ``b`` of 1 or more; a quarter of each, since the reciprocal of a greater one would be flushed."""
    quarter = Const(0.25, b.dtype)
    part = quarter if isinstance(a, Const) and a.value == 1 else a * quarter
    return part * Unary("reciprocal_flushed", b * quarter)


def _one_plus(v: Value) -> Unary | None:
    """The ``f(x)`` of ``1 + f(x)`` that has a form of its own."""
    number, f = _number_plus(v) or (None, None)
    return f if number and number.value == 1 and f and f.op in ONE_PLUS else None


def _power_plus(v: Value) -> tuple[Const, Unary] | None:
    """The number and the ``exp(x)`` of a sum that ``exp_plus`` gives: of f32 or f64, and the number neither small
    enough to show a denormal power nor large enough to hide where a power overflows.
    """
    found = _number_plus(v) if v.dtype in (types.f32, types.f64) else None
    fits = found and found[1].op == "exp" and 2.0**-60 <= abs(found[0].value) <= 2.0**60
    return found if fits else None


def _number_plus(v: Value) -> tuple[Const, Unary] | None:
    """The terms of a sum of a number and a function."""
    if isinstance(v, Binary) and v.op == "add":
        for number, f in ((v.a, v.b), (v.b, v.a)):
            if isinstance(number, Const) and isinstance(f, Unary):
                return number, f
    return None


def _in_wide(v: Value, build: Callable[..., Value], *arguments: Value) -> Value:
    if v.dtype in (types.f32, types.f64):
        return build(*arguments)
    return Cast(build(*[Cast(a, types.f32) for a in arguments]), v.dtype)
