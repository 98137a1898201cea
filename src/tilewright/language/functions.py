"""Functions of elements, and reductions over loops, of the language for kernels.

In: elements, indices, numbers; functions of indices and how far those go. Out: elements.
Not its business: tensors and loops (``trace``), operators (``values``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tilewright.core import types
from tilewright.language.blocks import folded
from tilewright.language.errors import refused
from tilewright.language.lanes import BlockValue
from tilewright.language.trace import fold, reduce, signature_of
from tilewright.language.values import Element, Scalar, Whole, element, lane_by_lane, unary, where
from tilewright.ops.random import uniform_at
from tilewright.tile.schedule.partials import identity_of

# --- of one element -------------------------------------------------------------------------------------------------


def sqrt(x: Scalar) -> Element:
    """The square root of a float."""
    return unary("sqrt", x)


def rsqrt(x: Scalar) -> Element:
    """1 over the square root."""
    return unary("rsqrt", x)


def exp(x: Scalar) -> Element:
    """e to the power of a float."""
    return unary("exp", x)


def exp2(x: Scalar) -> Element:
    """2 to the power of a float."""
    return unary("exp2", x)


def expm1(x: Scalar) -> Element:
    """``exp(x) - 1``, exact also near 0."""
    return unary("expm1", x)


def log(x: Scalar) -> Element:
    """The natural logarithm."""
    return unary("log", x)


def log2(x: Scalar) -> Element:
    """The logarithm to base 2."""
    return unary("log2", x)


def log1p(x: Scalar) -> Element:
    """``log(1 + x)``, exact also near 0."""
    return unary("log1p", x)


def sin(x: Scalar) -> Element:
    """The sine of radians."""
    return unary("sin", x)


def cos(x: Scalar) -> Element:
    """The cosine of radians."""
    return unary("cos", x)


def tan(x: Scalar) -> Element:
    """The tangent of radians."""
    return unary("tan", x)


def atan(x: Scalar) -> Element:
    """The arc tangent, in radians."""
    return unary("atan", x)


def tanh(x: Scalar) -> Element:
    """The hyperbolic tangent."""
    return unary("tanh", x)


def erf(x: Scalar) -> Element:
    """The error function."""
    return unary("erf", x)


def floor(x: Scalar) -> Element:
    """The greatest whole number that is not above a float; it stays a float."""
    return unary("floor", x)


def ceil(x: Scalar) -> Element:
    """The least whole number that is not below a float; it stays a float."""
    return unary("ceil", x)


def trunc(x: Scalar) -> Element:
    """A float without what follows the point."""
    return unary("trunc", x)


def rint(x: Scalar) -> Element:
    """The nearest whole number, of two equally near ones the even one; it stays a float."""
    return unary("rint", x)


def isnan(x: Scalar) -> Element:
    """Is a float no number?"""
    return unary("isnan", x)


@lane_by_lane
def rand(seed: Scalar, at: Scalar) -> Element:
    """A random number of at least 0 and under 1, which a seed and an integer, such as an element's place, decide."""
    key, counter = (element(x) for x in (seed, at))
    if not key.dtype.is_integer or not counter.dtype.is_integer:
        raise refused(
            f"random numbers of {key.dtype} and {counter.dtype}", "give a seed and a place, which are integers"
        )
    return Element(uniform_at(key.cast(types.u64).value, counter.cast(types.u64).value))


# --- folds ----------------------------------------------------------------------------------------------------------


def _folded(op: str, value: Callable[..., Any] | BlockValue, extents: tuple[Whole, ...], axis: int | None) -> Any:
    """A fold over indices; of a block it is one along an axis, or along all."""
    if not isinstance(value, BlockValue):
        if axis is not None:
            raise refused("an axis of what is no block", "give the function of indices and how far those go")
        return reduce(op, value, extents)
    if extents:
        axis, *more = (*map(operator.index, extents), *([] if axis is None else [axis]))
        if more:
            raise refused(
                f"a fold of a block along {len(more) + 1} axes", "fold along one, or without an axis along all"
            )
    return folded(op, value, axis)


def sum(value: Callable[..., Any] | BlockValue, *extents: Whole, axis: int | None = None) -> Any:
    """The sum of ``value(k, ...)`` over all indices below the extents, in whichever order; 0 of none.

    >>> tl.compute((m, n), lambda i, j: tl.sum(lambda k: a[i, k] * b[k, j], kk))
    """
    return _folded("add", value, extents, axis)


def prod(value: Callable[..., Any] | BlockValue, *extents: Whole, axis: int | None = None) -> Any:
    """The product over all indices below the extents; 1 of none."""
    return _folded("mul", value, extents, axis)


def max(value: Callable[..., Any] | BlockValue, *extents: Whole, axis: int | None = None) -> Any:
    """The greatest over all indices below the extents, NaN where one is; of none, -infinity or the least integer."""
    return _folded("max", value, extents, axis)


def min(value: Callable[..., Any] | BlockValue, *extents: Whole, axis: int | None = None) -> Any:
    """The least over all indices below the extents, NaN where one is; of none, infinity or the greatest integer."""
    return _folded("min", value, extents, axis)


def all(value: Callable[..., Any], *extents: Whole) -> Element:
    """Does a condition hold for all indices below the extents?"""
    return reduce("and", _truth(value), extents)


def any(value: Callable[..., Any], *extents: Whole) -> Element:
    """Does a condition hold for an index below the extents?"""
    return reduce("or", _truth(value), extents)


def _truth(value: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose values have to be bools."""

    def checked(*at: Any) -> Element:
        v = element(value(*at))
        if v.dtype is not types.bool_:
            raise refused(f"a condition of {v.dtype}", "compare it with something")
        return v

    checked.__signature__ = signature_of(value)  # type: ignore[attr-defined]  # loops are called as its parameters are
    return checked


def argmax(value: Callable[..., Any], extent: Whole) -> Element:
    """The first index at which ``value(k)`` is greatest, as ``i64``; a NaN is never greater."""
    return _argument(value, extent, lambda a, b: b > a, "max")


def argmin(value: Callable[..., Any], extent: Whole) -> Element:
    """The first index at which ``value(k)`` is least, as ``i64``; a NaN is never less."""
    return _argument(value, extent, lambda a, b: b < a, "min")


def _argument(value: Callable[..., Any], extent: Whole, is_better: Callable[..., Element], op: str) -> Element:
    signature_of(value)  # ``fold`` sees the function below only

    def pair(k: Any) -> tuple[Element, Element]:
        v = element(value(k))
        return v, element(k)

    def better(a: Any, b: Any) -> tuple[Element, Element]:
        return where(is_better(a[0], b[0]), b[0], a[0]), where(is_better(a[0], b[0]), b[1], a[1])

    _, at = fold(pair, extent, start=(lambda d: identity_of(op, d).value, 0), combine=better)
    found: Element = at
    return found
