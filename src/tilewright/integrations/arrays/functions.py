"""The functions of the array API (2024.12) that are arithmetic: on elements, along axes, of matrices.

In: traced arrays, arrays and numbers. Out: traced arrays. Not its business: functions that make or move arrays
(``making``). Names, arguments and results are those of the standard; types are promoted as NumPy 2 promotes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.graph import Pool
from tilewright.core.opdef import OpDef
from tilewright.integrations.arrays.traced import TracedArray, applied, apply, cast, lifted, promoted, public

Axis = int | Sequence[int] | None
FUNCTIONS: dict[str, Callable[..., Any]] = {}


def offered(f: Callable[..., Any]) -> Callable[..., Any]:
    """Put a function into the table, by its name without a leading underscore."""
    made = FUNCTIONS[f.__name__.strip("_")] = public(f)
    return made


def real(x: TracedArray) -> TracedArray:
    """As floats: integers become f64, as NumPy has it."""
    return x if np.issubdtype(x.dtype, np.floating) else cast(x, np.float64)


def axes_of(x: TracedArray, axis: Axis) -> tuple[int, ...]:
    given = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    return tuple(sorted(axis_of(x, k) for k in given))


def axis_of(x: TracedArray, axis: int, more: int = 0) -> int:
    rank = x.ndim + more
    if not -rank <= axis < rank:
        raise OpError(f"axis {axis} is none of {rank}")
    return axis % rank


# --- elements -------------------------------------------------------------------------------------------------------

_SAME = {
    "abs": ops.abs, "negative": ops.neg, "sign": ops.sign, "floor": ops.floor, "ceil": ops.ceil, "trunc": ops.trunc,
    "round": ops.round,
}  # fmt: skip
_REAL = {
    "acos": ops.acos, "acosh": ops.acosh, "asin": ops.asin, "asinh": ops.asinh, "atan": ops.atan, "atanh": ops.atanh,
    "cos": ops.cos, "cosh": ops.cosh, "exp": ops.exp, "expm1": ops.expm1, "log": ops.log, "log1p": ops.log1p,
    "log2": ops.log2, "sin": ops.sin, "sinh": ops.sinh, "sqrt": ops.sqrt, "tan": ops.tan, "tanh": ops.tanh,
    "reciprocal": ops.reciprocal,
}  # fmt: skip
_TWO = {
    "add": ops.add, "multiply": ops.mul, "pow": ops.pow, "maximum": ops.maximum, "minimum": ops.minimum,
    "subtract": ops.sub, "floor_divide": ops.floor_div, "remainder": ops.mod, "bitwise_and": ops.bitwise_and,
    "bitwise_or": ops.bitwise_or, "bitwise_xor": ops.bitwise_xor, "bitwise_left_shift": ops.shift_left,
    "bitwise_right_shift": ops.shift_right, "equal": ops.eq, "not_equal": ops.ne, "less": ops.lt,
    "less_equal": ops.le, "greater": ops.gt, "greater_equal": ops.ge,
}  # fmt: skip
_FLAGS = {"logical_and": ops.logical_and, "logical_or": ops.logical_or, "logical_xor": ops.logical_xor}
_TWO_REAL = {"divide": ops.div, "atan2": ops.atan2}
_WHOLE = ("floor", "ceil", "trunc", "round")


def _table(names: dict[str, OpDef], convert: Callable[[OpDef, str], Callable[..., Any]]) -> None:
    for name, op in names.items():
        f = convert(op, name)
        f.__name__, f.__doc__ = name, f"The array API's ``{name}``."
        offered(f)


def _same(op: OpDef, name: str) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /) -> TracedArray:
        given = lifted(pool, x)
        is_whole = name in _WHOLE and not np.issubdtype(given.dtype, np.floating)
        return given if is_whole else apply(op, given)

    return f


def _real(op: OpDef, _: str) -> Callable[..., Any]:
    return lambda pool, x, /: apply(op, real(lifted(pool, x)))


def _two(op: OpDef, _: str) -> Callable[..., Any]:
    return lambda pool, x1, x2, /: apply(op, *promoted([x1, x2], pool))


def _two_real(op: OpDef, _: str) -> Callable[..., Any]:
    return lambda pool, x1, x2, /: apply(op, *map(real, promoted([x1, x2], pool)))


def _flags(op: OpDef, _: str) -> Callable[..., Any]:
    return lambda pool, x1, x2, /: apply(op, *(_truth(lifted(pool, x)) for x in (x1, x2)))


def _truth(x: TracedArray) -> TracedArray:
    return x if x.dtype == np.bool_ else apply(ops.ne, x, lifted(x.pool, np.zeros((), x.dtype)))


for _names, _convert in ((_SAME, _same), (_REAL, _real), (_TWO, _two), (_TWO_REAL, _two_real), (_FLAGS, _flags)):
    _table(_names, _convert)


@offered
def positive(pool: Pool, x: Any, /) -> TracedArray:
    """The array itself."""
    return lifted(pool, x)


@offered
def square(pool: Pool, x: Any, /) -> TracedArray:
    """``x * x``."""
    given = lifted(pool, x)
    return apply(ops.mul, given, given)


@offered
def log10(pool: Pool, x: Any, /) -> TracedArray:
    """The logarithm to base 10."""
    given = real(lifted(pool, x))
    return apply(ops.mul, apply(ops.log, given), lifted(pool, np.asarray(1 / log(10), given.dtype)))


@offered
def logaddexp(pool: Pool, x1: Any, x2: Any, /) -> TracedArray:
    """``log(exp(x1) + exp(x2))`` without overflow."""
    x, y = map(real, promoted([x1, x2], pool))
    less = apply(ops.neg, apply(ops.abs, apply(ops.sub, x, y)))
    return apply(ops.add, apply(ops.maximum, x, y), apply(ops.log1p, apply(ops.exp, less)))


@offered
def bitwise_invert(pool: Pool, x: Any, /) -> TracedArray:
    """Each bit turned round; of bools the opposite."""
    given = lifted(pool, x)
    return apply(ops.logical_not if given.dtype == np.bool_ else ops.bitwise_not, given)


@offered
def logical_not(pool: Pool, x: Any, /) -> TracedArray:
    """Is it zero?"""
    return apply(ops.logical_not, _truth(lifted(pool, x)))


def _of_floats(op: OpDef, otherwise: bool) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /) -> TracedArray:
        given = lifted(pool, x)
        if np.issubdtype(given.dtype, np.floating):
            return apply(op, given)
        return lifted(pool, np.full(given.shape, otherwise))

    return f


_table({"isnan": ops.isnan, "isinf": ops.isinf}, lambda op, _: _of_floats(op, False))


@offered
def isfinite(pool: Pool, x: Any, /) -> TracedArray:
    """Neither infinite nor NaN?"""
    given = lifted(pool, x)
    if not np.issubdtype(given.dtype, np.floating):
        return lifted(pool, np.full(given.shape, True))
    return apply(ops.logical_not, apply(ops.logical_or, apply(ops.isinf, given), apply(ops.isnan, given)))


@offered
def clip(pool: Pool, x: Any, /, min: Any = None, max: Any = None) -> TracedArray:  # the standard's names
    """Not below ``min`` and not above ``max``, in the type of ``x``."""
    given = lifted(pool, x)
    for op, limit in ((ops.maximum, min), (ops.minimum, max)):
        if limit is not None:
            given = apply(op, given, cast(lifted(pool, limit, given.dtype), given.dtype))
    return given


@offered
def where(pool: Pool, condition: Any, x1: Any, x2: Any, /) -> TracedArray:
    """Elements of ``x1`` where the condition holds, of ``x2`` elsewhere."""
    return apply(ops.where, _truth(lifted(pool, condition)), *promoted([x1, x2], pool))


# --- along axes -----------------------------------------------------------------------------------------------------


def _summed(x: TracedArray, dtype: Any) -> TracedArray:
    """What is summed: small integers in 64 bits."""
    if dtype is None:
        kind = x.dtype.kind
        dtype = {"b": np.int64, "i": np.int64, "u": np.uint64}.get(kind, x.dtype)
    return cast(x, dtype)


def _reduction(op: OpDef) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> TracedArray:
        given = _summed(lifted(pool, x), dtype)
        return apply(op, given, axes=axes_of(given, axis), keepdims=keepdims)

    return f


def _extreme(op: OpDef) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> TracedArray:
        given = lifted(pool, x)
        return apply(op, given, axes=axes_of(given, axis), keepdims=keepdims)

    return f


def _flagged(op: OpDef) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> TracedArray:
        given = _truth(lifted(pool, x))
        return apply(op, given, axes=axes_of(given, axis), keepdims=keepdims)

    return f


_table({"sum": ops.reduce_sum, "prod": ops.reduce_prod}, lambda op, _: _reduction(op))
_table({"max": ops.reduce_max, "min": ops.reduce_min}, lambda op, _: _extreme(op))
_table({"any": ops.reduce_any, "all": ops.reduce_all}, lambda op, _: _flagged(op))


@offered
def mean(pool: Pool, x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> TracedArray:
    """The arithmetic mean."""
    given = real(lifted(pool, x))
    return apply(ops.reduce_mean, given, axes=axes_of(given, axis), keepdims=keepdims)


@offered
def var(pool: Pool, x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> TracedArray:
    """The variance, with ``n - correction`` in the denominator."""
    given = real(lifted(pool, x))
    axes = axes_of(given, axis)
    return apply(ops.variance, given, axes=axes, keepdims=keepdims, correction=float(correction))


@offered
def std(pool: Pool, x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> TracedArray:
    """The root of the variance."""
    given = real(lifted(pool, x))
    axes = axes_of(given, axis)
    return apply(ops.sqrt, apply(ops.variance, given, axes=axes, keepdims=keepdims, correction=float(correction)))


def _placed(op: OpDef) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> TracedArray:
        given = lifted(pool, x)
        if axis is not None:
            return cast(apply(op, given, axis=axis_of(given, axis), keepdims=keepdims), np.int64)
        flat = apply(ops.reshape, given, shape=(given.size,))
        found = cast(apply(op, flat, axis=0, keepdims=False), np.int64)
        return apply(ops.reshape, found, shape=(1,) * given.ndim) if keepdims else found

    return f


_table({"argmax": ops.argmax, "argmin": ops.argmin}, lambda op, _: _placed(op))


def _running(op: OpDef) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /, *, axis: int | None = None, dtype: Any = None) -> TracedArray:
        given = _summed(lifted(pool, x), dtype)
        if axis is None and given.ndim != 1:
            raise OpError(f"an array of {given.ndim} axes needs an axis")
        return apply(op, given, axis=axis_of(given, 0 if axis is None else axis))

    return f


_table({"cumulative_sum": ops.cumsum, "cumulative_prod": ops.cumprod}, lambda op, _: _running(op))


def _ordered(which: int) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> TracedArray:
        given = lifted(pool, x)
        found = applied(ops.sort, given, axis=axis_of(given, axis), descending=descending, stable=stable)[which]
        return cast(found, np.int64) if which else found

    return f


_table({"sort": ops.sort}, lambda _, __: _ordered(0))
_table({"argsort": ops.sort}, lambda _, __: _ordered(1))


# --- matrices -------------------------------------------------------------------------------------------------------


@offered
def matmul(pool: Pool, x1: Any, x2: Any, /) -> TracedArray:
    """The product of matrices, as ``@``: vectors are rows on the left and columns on the right."""
    x, y = promoted([x1, x2], pool)
    if not x.ndim or not y.ndim:
        raise OpError("a number is no matrix", remedy="multiply by it")
    rows = x if x.ndim > 1 else apply(ops.reshape, x, shape=(1, *x.shape))
    columns = y if y.ndim > 1 else apply(ops.reshape, y, shape=(*y.shape, 1))
    made = apply(ops.matmul, rows, columns)
    shape = list(made.shape)
    if y.ndim == 1:
        del shape[-1]
    if x.ndim == 1:
        del shape[-1 if y.ndim == 1 else -2]
    return apply(ops.reshape, made, shape=tuple(shape)) if tuple(shape) != made.shape else made


@offered
def tensordot(pool: Pool, x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> TracedArray:
    """The sum of products over pairs of axes."""
    x, y = promoted([x1, x2], pool)
    first, second = (range(x.ndim - axes, x.ndim), range(axes)) if isinstance(axes, int) else axes
    summed = [axis_of(x, k) for k in first], [axis_of(y, k) for k in second]
    letters = [chr(97 + k) for k in range(x.ndim + y.ndim)]
    left, right = letters[: x.ndim], letters[x.ndim :]
    for a, b in zip(*summed, strict=True):
        right[b] = left[a]
    kept = [v for k, v in enumerate(left) if k not in summed[0]] + [
        v for k, v in enumerate(right) if k not in summed[1]
    ]
    return apply(ops.einsum, x, y, equation=f"{''.join(left)},{''.join(right)}->{''.join(kept)}")


@offered
def vecdot(pool: Pool, x1: Any, x2: Any, /, *, axis: int = -1) -> TracedArray:
    """The sum of products along an axis."""
    x, y = promoted([x1, x2], pool)
    product = apply(ops.mul, x, y)
    return apply(ops.reduce_sum, product, axes=(axis_of(product, axis),), keepdims=False)
