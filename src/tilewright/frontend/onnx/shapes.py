"""Arithmetic on the values of small tensors that models compute shapes with, while the model is imported.

In: an op and its operands' values as object arrays of dimensions. Out: the result's value as an object array, or None
when it can't be told. An element is an ``int``, a ``float``, a symbolic ``Expr``, or a ``SymbolicRatio`` (a symbolic
dimension times a fraction, from models that scale sizes in floating point).
Not its business: constants alone (the emitter folds those with the op's reference) and making nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright import ops
from tilewright.core import expr
from tilewright.core.dims import is_known, numbers
from tilewright.core.expr import Dim, Expr, is_nonneg
from tilewright.core.graph import Attrs
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, TensorType
from tilewright.ops.value_bounds import NARROW_BITS

Values: TypeAlias = npt.NDArray[Any]
MAX_VALUES = 4096
MAX_ATOMS = 128


class NoClosedForm(Exception):
    """The value depends on a symbol in a way that has no closed form here."""


@dataclass(frozen=True)
class SymbolicRatio:
    """``numerator / denominator`` with a symbolic numerator, exactly."""

    numerator: Expr
    denominator: int


Scalar: TypeAlias = "int | float | Expr | SymbolicRatio"


def is_symbolic(values: Values) -> bool:
    """True when an element is not a plain number."""
    return any(isinstance(v, Expr | SymbolicRatio) for v in values.flat)


def as_values(items: Sequence[Any]) -> Values:
    """A 1-D object array of ``items``."""
    result = np.empty(len(items), object)
    for i, item in enumerate(items):
        result[i] = item
    return result


def evaluate(op: OpDef, operands: Sequence[Values], attrs: Attrs, result: TensorType) -> Values | None:
    """The value of ``op`` on known operands, in the shape of ``result``; None when it can't be told."""
    rule = _RULES.get(op)
    if rule is None or not result.is_static or math.prod(d for d in result.shape if is_known(d)) > MAX_VALUES:
        return None
    try:
        value = rule(operands, attrs, result)
    except (NoClosedForm, ZeroDivisionError, OverflowError):
        return None
    if any(
        is_long(v.numerator if isinstance(v, SymbolicRatio) else v)
        for v in value.flat
        if isinstance(v, Expr | SymbolicRatio)
    ):
        return None
    shape = tuple(numbers(result.shape))
    return _wrapped(value, result.dtype) if value.shape == shape else None


def _wrapped(value: Values, dtype: DType) -> Values | None:
    """The numbers as the type holds them: whole ones wrap around. None for a size that a narrow type may not hold."""
    if not dtype.is_integer:
        return value
    if dtype.bits <= NARROW_BITS and any(isinstance(v, Expr) for v in value.flat):
        return None
    least, span = int(dtype.min), 1 << dtype.bits
    found = np.empty(value.shape, object)
    for at, v in np.ndenumerate(value):
        found[at] = (v - least) % span + least if isinstance(v, int) and not isinstance(v, bool) else v
    return found


def is_long(e: Dim, limit: int = MAX_ATOMS) -> bool:
    """Has the expression more than ``limit`` parts? Arithmetic that squares sizes again and again makes such."""
    n, stack = 0, [e]
    while stack and n <= limit:
        for atom, _ in expr.terms_of(stack.pop()):
            n += 1
            if isinstance(atom, expr.Mul):
                n += len(atom.factors)
                stack.extend(f for f in atom.factors if isinstance(f, expr.BinaryExpr))
            elif isinstance(atom, expr.BinaryExpr):
                stack += [atom.a, atom.b]
    return n > limit


# --- scalars --------------------------------------------------------------------------------------------------------


def _parts(x: Scalar) -> tuple[Dim, int]:
    """Numerator and denominator of an exact value; floats must be fractions of small denominator."""
    if isinstance(x, SymbolicRatio):
        return x.numerator, x.denominator
    if isinstance(x, float):
        if not math.isfinite(x):
            raise NoClosedForm
        f = Fraction(x)
        if f.denominator > 1 << 16:
            f = f.limit_denominator(1024)  # 1/3 as a float stands for the third
            if float(f) != x and np.float32(float(f)) != np.float32(x):
                raise NoClosedForm
        return f.numerator, f.denominator
    return x, 1


def _ratio(num: Dim, den: int) -> Scalar:
    if isinstance(num, int):
        return num // den if num % den == 0 else num / den
    shared = math.gcd(den, num.const, *(c for _, c in num.terms))
    if shared > 1:
        num, den = expr.floordiv(num, shared), den // shared
    return num if den == 1 or isinstance(num, int) else SymbolicRatio(num, den)


def _add(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a + b
    (p, q), (r, s) = _parts(a), _parts(b)
    return _ratio(p * s + r * q, q * s)


def _neg(a: Scalar) -> Scalar:
    return _mul(a, -1)


def _mul(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a * b
    (p, q), (r, s) = _parts(a), _parts(b)
    if len(expr.terms_of(p)) * len(expr.terms_of(r)) > MAX_ATOMS:
        raise NoClosedForm
    return _ratio(p * r, q * s)


def _int_div(a: Scalar, b: Scalar) -> Scalar:
    """Integer division that truncates: floors once both signs are known."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    p, r = _dim(a), _dim(b)
    if not is_nonneg(p) or not is_nonneg(r - 1):
        raise NoClosedForm
    return expr.floordiv(p, r)


def _float_div(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a / b
    (p, q), (r, s) = _parts(a), _parts(b)
    if not isinstance(r, int):
        whole, rest = expr.floordiv(p * s, r), expr.mod(p * s, r)
        if rest == 0:
            return _ratio(whole, q)
        raise NoClosedForm
    if r < 0:
        p, r = p * -1, -r
    return _ratio(p * s, q * r)


def _dim(x: Scalar) -> Dim:
    if isinstance(x, int | Expr):
        return x
    raise NoClosedForm


def _floor(x: Scalar) -> Scalar:
    if isinstance(x, int | Expr):
        return x
    num, den = _parts(x)
    return expr.floordiv(num, den)


def _ceil(x: Scalar) -> Scalar:
    if isinstance(x, int | Expr):
        return x
    num, den = _parts(x)
    return expr.ceildiv(num, den)


def _whole(x: Scalar) -> Scalar:
    """Rounding by an unspecified rule: only values that are whole already have one."""
    if isinstance(x, int | Expr):
        return x
    raise NoClosedForm


def _sign(x: Scalar) -> int:
    """-1, 0 or 1 by the bounds of ``x``."""
    if isinstance(x, int | float):
        return (x > 0) - (x < 0)
    num, _ = _parts(x)
    lo, hi = expr.bounds(num)
    if lo is not None and lo > 0:
        return 1
    if hi is not None and hi < 0:
        return -1
    raise NoClosedForm


def _at_least(a: Scalar, b: Scalar) -> bool:
    difference = _add(a, _neg(b))
    if isinstance(difference, int | float):
        return difference >= 0
    num, _ = _parts(difference)
    if is_nonneg(num):
        return True
    if is_nonneg(num * -1 - 1):
        return False
    raise NoClosedForm


def _equal(a: Scalar, b: Scalar) -> bool:
    difference = _add(a, _neg(b))
    return difference == 0 if isinstance(difference, int | float) else _sign(difference) == 0


def _least(a: Scalar, b: Scalar) -> Scalar:
    return min(a, b) if isinstance(a, int | float) and isinstance(b, int | float) else expr.minimum(_dim(a), _dim(b))


def _most(a: Scalar, b: Scalar) -> Scalar:
    return max(a, b) if isinstance(a, int | float) and isinstance(b, int | float) else expr.maximum(_dim(a), _dim(b))


def _truth(x: Scalar) -> bool:
    return _sign(x) != 0


# --- rules per op ---------------------------------------------------------------------------------------------------

Rule: TypeAlias = Callable[[Sequence[Values], Attrs, TensorType], Values]


def _each(function: Callable[..., Any]) -> Rule:
    """The scalar ``function`` at every broadcast position."""

    def rule(xs: Sequence[Values], attrs: Attrs, result: TensorType) -> Values:
        arrays = np.broadcast_arrays(*xs)
        out = np.empty(arrays[0].shape, object)
        for at in np.ndindex(out.shape):
            out[at] = function(*(a[at] for a in arrays))
        return out

    return rule


def _div(xs: Sequence[Values], attrs: Attrs, result: TensorType) -> Values:
    return _each(_float_div if result.dtype.is_float else _int_div)(xs, attrs, result)


def _cast(xs: Sequence[Values], attrs: Attrs, result: TensorType) -> Values:
    if result.dtype.kind == "bool":
        return _each(_truth)(xs, attrs, result)
    if result.dtype.is_float:
        return xs[0]

    def truncated(x: Scalar) -> Scalar:
        if isinstance(x, float):
            return int(x)
        if isinstance(x, SymbolicRatio) and not is_nonneg(x.numerator):
            raise NoClosedForm
        return _floor(x)

    return _each(truncated)(xs, attrs, result)


def _fold(function: Callable[[Any, Any], Any], start: Any) -> Rule:
    """A reduction over ``axes``."""

    def rule(xs: Sequence[Values], attrs: Attrs, result: TensorType) -> Values:
        x = xs[0]
        kept = [k for k in range(x.ndim) if k not in attrs.axes]
        rows = np.transpose(x, [*kept, *attrs.axes]).reshape([x.shape[k] for k in kept] + [-1])
        out = np.empty(rows.shape[:-1], object)
        for at in np.ndindex(out.shape):
            items = list(rows[at])
            total = start if start is not None else items.pop(0) if items else 0
            for item in items:
                total = function(total, item)
            out[at] = total
        return out.reshape(numbers(result.shape))

    return rule


def _slice(xs: Sequence[Values], a: Attrs, result: TensorType) -> Values:
    at = []
    for start, stop, step in zip(a.starts, a.stops, a.steps, strict=True):
        if not isinstance(start, int) or not isinstance(stop, int):
            raise NoClosedForm
        at.append(slice(start, None if step < 0 and stop < 0 else stop, step))
    return xs[0][tuple(at)]


def _gather(xs: Sequence[Values], a: Attrs, result: TensorType) -> Values:
    if not all(isinstance(i, int) for i in xs[1].flat):
        raise NoClosedForm
    indices = xs[1].astype(np.int64)
    n = xs[0].shape[a.axis]
    if ((indices < -n) | (indices >= n)).any():
        raise NoClosedForm
    taken = np.empty(indices.shape + tuple(n for k, n in enumerate(xs[0].shape) if k != a.axis), object)
    taken[...] = np.moveaxis(xs[0], a.axis, 0)[indices]
    return np.moveaxis(taken, list(range(indices.ndim)), list(range(a.axis, a.axis + indices.ndim)))


def _reshape(xs: Sequence[Values], a: Attrs, result: TensorType) -> Values:
    return xs[0].reshape(numbers(result.shape))


def _expand(xs: Sequence[Values], a: Attrs, result: TensorType) -> Values:
    return np.broadcast_to(xs[0], numbers(result.shape))


def _where(condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, int | Expr) and isinstance(b, int | Expr) and a == b:
        return a
    return a if _truth(condition) else b


_RULES: Mapping[OpDef, Rule] = {
    ops.add: _each(_add),
    ops.sub: _each(lambda a, b: _add(a, _neg(b))),
    ops.mul: _each(_mul),
    ops.div: _div,
    ops.mod: _each(lambda a, b: expr.mod(_dim(a), _dim(b))),
    ops.neg: _each(_neg),
    ops.abs: _each(lambda a: a if _sign(a) >= 0 else _neg(a)),
    ops.sign: _each(_sign),
    ops.floor: _each(_floor),
    ops.ceil: _each(_ceil),
    ops.round: _each(_whole),
    ops.minimum: _each(_least),
    ops.maximum: _each(_most),
    ops.eq: _each(_equal),
    ops.ne: _each(lambda a, b: not _equal(a, b)),
    ops.ge: _each(_at_least),
    ops.le: _each(lambda a, b: _at_least(b, a)),
    ops.gt: _each(lambda a, b: not _at_least(b, a)),
    ops.lt: _each(lambda a, b: not _at_least(a, b)),
    ops.logical_not: _each(lambda a: not _truth(a)),
    ops.logical_and: _each(lambda a, b: _truth(a) and _truth(b)),
    ops.logical_or: _each(lambda a, b: _truth(a) or _truth(b)),
    ops.where: _each(_where),
    ops.cast: _cast,
    ops.reduce_sum: _fold(_add, 0),
    ops.reduce_prod: _fold(_mul, 1),
    ops.reduce_min: _fold(_least, None),
    ops.reduce_max: _fold(_most, None),
    ops.reshape: _reshape,
    ops.expand: _expand,
    ops.transpose: lambda xs, a, result: np.transpose(xs[0], a.perm),
    ops.slice: _slice,
    ops.reverse: lambda xs, a, result: np.flip(xs[0], a.axes),
    ops.concat: lambda xs, a, result: np.concatenate(xs, a.axis),
    ops.gather: _gather,
}
