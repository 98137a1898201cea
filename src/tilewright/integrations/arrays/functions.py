"""The functions of the array API (2024.12) that are arithmetic: on elements, along axes, of matrices.

In: traced arrays, arrays and numbers. Out: traced arrays. Not its business: functions that make or move arrays
(``making``). Names, arguments and results are those of the standard; types are promoted as NumPy 2 promotes them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from math import log
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.graph import Pool
from tilewright.core.opdef import OpDef
from tilewright.integrations.arrays.traced import (
    TracedArray,
    applied,
    apply,
    cast,
    fits,
    known,
    lifted,
    offered_type,
    promoted,
    promoted_type,
    public,
)

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
    return tuple(sorted(axes_in_order(x, range(x.ndim) if axis is None else axis)))


def axes_in_order(x: TracedArray, axis: int | Sequence[int], more: int = 0) -> list[int]:
    """Axes as they are named, each once."""
    found = [axis_of(x, k, more) for k in whole_numbers(axis)]
    if len(set(found)) < len(found):
        raise OpError(f"the axes {axis} name one twice", remedy="name each once")
    return found


def whole_numbers(given: int | Sequence[int]) -> list[int]:
    """One, or a sequence of them, of Python's or NumPy's."""
    try:
        several: Iterable[Any] = given if isinstance(given, Iterable) and np.ndim(given) else [given]
        return [operator.index(n) for n in several]
    except TypeError:
        raise OpError(f"{given!r} is no whole number and no sequence of them", remedy="give whole numbers") from None


def axis_of(x: TracedArray, axis: int, more: int = 0) -> int:
    (axis,), rank = whole_numbers([axis]), x.ndim + more
    if not -rank <= axis < rank:
        raise OpError(f"axis {axis} is none of {rank}", remedy="count axes from 0, or from the last, which is -1")
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
    "add": ops.add, "multiply": ops.mul, "maximum": ops.maximum, "minimum": ops.minimum, "subtract": ops.sub,
    "bitwise_and": ops.bitwise_and, "bitwise_or": ops.bitwise_or, "bitwise_xor": ops.bitwise_xor,
    "bitwise_left_shift": ops.shift_left, "bitwise_right_shift": ops.shift_right,
}  # fmt: skip
_COMPARED = {
    "equal": ops.eq, "not_equal": ops.ne, "less": ops.lt, "less_equal": ops.le, "greater": ops.gt,
    "greater_equal": ops.ge,
}  # fmt: skip
_BY_PYTHON = {
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
_DIVIDED = {"floor_divide": ops.floor_div, "remainder": ops.mod}
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
        kinds = "iub" if name in _WHOLE else "b" if name == "abs" else ""
        return given if given.dtype.kind in kinds else apply(op, given)

    return f


def _real(op: OpDef, _: str) -> Callable[..., Any]:
    return lambda pool, x, /: apply(op, real(lifted(pool, x)))


def _two(op: OpDef, _: str) -> Callable[..., Any]:
    return lambda pool, x1, x2, /: apply(op, *promoted([x1, x2], pool))


def _compared(op: OpDef, name: str) -> Callable[..., Any]:
    def f(pool: Pool, x1: Any, x2: Any, /) -> TracedArray:
        wanted = promoted_type([x1, x2])
        if all(fits(x, wanted) for x in (x1, x2)):
            return apply(op, *promoted([x1, x2], pool))
        # A number outside of the range compares with every element as with 0.
        sides = [x if isinstance(x, int) else 0 for x in (x1, x2)]
        shape = next((lifted(pool, x).shape for x in (x1, x2) if not isinstance(x, int)), ())
        return lifted(pool, np.full(shape, _BY_PYTHON[name](*sides)))

    return f


def _divided(op: OpDef, _: str) -> Callable[..., Any]:
    def f(pool: Pool, x1: Any, x2: Any, /) -> TracedArray:
        x, y = promoted([x1, x2], pool)
        divisor = known(y)
        if np.issubdtype(x.dtype, np.floating):
            made = apply(op, x, y)
            return _by_an_infinity(x, y, made) if op is ops.floor_div else made
        if divisor is not None and divisor.all():
            return apply(op, x, y)
        zero, one = (lifted(pool, np.asarray(n, x.dtype)) for n in (0, 1))
        is_zero = apply(ops.eq, y, zero)
        return apply(ops.where, is_zero, zero, apply(op, x, apply(ops.where, is_zero, one, y)))

    return f


def _by_an_infinity(x: TracedArray, y: TracedArray, made: TracedArray) -> TracedArray:
    """Floor division where one of both is infinite: the quotient, as the standard has it and NumPy has not."""
    is_one = apply(ops.logical_xor, *(apply(ops.isinf, v) for v in (x, y)))
    is_number = apply(ops.ne, y, lifted(y.pool, np.zeros((), y.dtype)))
    return apply(ops.where, apply(ops.logical_and, is_one, is_number), apply(ops.div, x, y), made)


def _power(op: OpDef, _: str) -> Callable[..., Any]:
    def f(pool: Pool, x1: Any, x2: Any, /) -> TracedArray:
        x, y = promoted([x1, x2], pool)
        exponent = known(y)
        if x.dtype.kind == "i" and exponent is not None and (exponent < 0).any():
            raise OpError("integers have no negative powers", remedy="cast the array to floats first")
        return apply(op, x, y)

    return f


def _two_real(op: OpDef, _: str) -> Callable[..., Any]:
    return lambda pool, x1, x2, /: apply(op, *map(real, promoted([x1, x2], pool)))


def _flags(op: OpDef, _: str) -> Callable[..., Any]:
    return lambda pool, x1, x2, /: apply(op, *(_truth(lifted(pool, x)) for x in (x1, x2)))


def _truth(x: TracedArray) -> TracedArray:
    return x if x.dtype == np.bool_ else apply(ops.ne, x, lifted(x.pool, np.zeros((), x.dtype)))


for _names, _convert in (
    (_SAME, _same), (_REAL, _real), (_TWO, _two), (_COMPARED, _compared), (_DIVIDED, _divided),
    ({"pow": ops.pow}, _power), (_TWO_REAL, _two_real), (_FLAGS, _flags),
):  # fmt: skip
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
    apart = apply(ops.neg, apply(ops.abs, apply(ops.sub, x, y)))  # of equal infinities NaN
    less = apply(ops.where, apply(ops.eq, x, y), lifted(pool, np.zeros((), x.dtype)), apart)
    return apply(ops.add, apply(ops.maximum, x, y), apply(ops.log1p, apply(ops.exp, less)))


def _is_marked(x: TracedArray) -> TracedArray:
    """Is the sign bit of floats set? That of zeros and of NaN counts too."""
    bits = apply(ops.bitcast, x, dtype=offered_type(np.dtype(f"i{x.dtype.itemsize}")))
    return apply(ops.lt, bits, lifted(x.pool, np.zeros((), bits.dtype)))


@offered
def signbit(pool: Pool, x: Any, /) -> TracedArray:
    """Is the sign bit set?"""
    return _is_marked(real(lifted(pool, x)))


@offered
def copysign(pool: Pool, x1: Any, x2: Any, /) -> TracedArray:
    """The magnitude of one number and the sign of another."""
    x, y = map(real, promoted([x1, x2], pool))
    size = apply(ops.abs, x)
    return apply(ops.where, _is_marked(y), apply(ops.neg, size), size)


@offered
def hypot(pool: Pool, x1: Any, x2: Any, /) -> TracedArray:
    """``sqrt(x1**2 + x2**2)``, whose squares do not overflow; infinite where a number is, also beside NaN."""
    x, y = (apply(ops.abs, real(part)) for part in promoted([x1, x2], pool))
    large, small = apply(ops.maximum, x, y), apply(ops.minimum, x, y)
    zero, one, endless = (lifted(pool, np.asarray(n, x.dtype)) for n in (0, 1, np.inf))
    ratio = apply(ops.div, small, apply(ops.where, apply(ops.eq, large, zero), one, large))
    size = apply(ops.mul, large, apply(ops.sqrt, apply(ops.add, one, apply(ops.mul, ratio, ratio))))
    is_endless = apply(ops.logical_or, apply(ops.isinf, x), apply(ops.isinf, y))
    return apply(ops.where, is_endless, endless, size)


@offered
def count_nonzero(pool: Pool, x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> TracedArray:
    """How many elements are not zero."""
    given = cast(_truth(lifted(pool, x)), np.int64)
    return apply(ops.reduce_sum, given, axes=axes_of(given, axis), keepdims=keepdims)


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
    for op, limit, sign in ((ops.maximum, min, 1), (ops.minimum, max, -1)):
        if limit is None or (given.dtype.kind in "iu" and _is_beyond(limit, given.dtype, sign)):
            continue
        if given.dtype.kind in "iu" and isinstance(limit, float):
            if not limit.is_integer():
                raise OpError(f"{limit} is no limit of integers", remedy="give a whole number, or cast the array")
            limit = int(limit)
        given = cast(apply(op, *promoted([given, limit], pool)), given.dtype)
    return given


def _is_beyond(limit: Any, dtype: np.dtype[Any], sign: int) -> bool:
    """Does a number limit nothing, because all integers of the type are on the right side of it?"""
    info = np.iinfo(dtype)
    return isinstance(limit, int | float) and bool(limit < info.min if sign > 0 else limit > info.max)


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
        axes = axes_of(given, axis)
        if any(given.shape[k] == 0 for k in axes):
            raise OpError(f"the shape {given.shape} has no element along axes {axes}", remedy="put an element before")
        return apply(op, given, axes=axes, keepdims=keepdims)

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
        given = cast(given, np.uint8) if given.dtype == np.bool_ else given
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
            raise OpError(f"an array of {given.ndim} axes needs an axis", remedy="name the axis")
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
    first, second = axes if isinstance(axes, tuple | list) else (range(-axes, 0), range(axes))
    summed = axes_in_order(x, first), axes_in_order(y, second)
    if len(summed[0]) != len(summed[1]):
        raise OpError(f"the axes {summed[0]} and {summed[1]} are no pairs", remedy="name as many of each array")
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
