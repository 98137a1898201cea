"""The functions of the array API that search: places of elements, distinct elements; and those on bits and parts.

In: traced arrays, arrays and numbers. Out: traced arrays. Not its business: sorting itself (``functions``).

How many elements are not zero, or distinct, only their numbers say. Such a result has a size that a call brings: it can
be computed with and given back, and asking for its shape is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.graph import Builder, Node, Pool
from tilewright.frontend.distinct import distinct
from tilewright.frontend.nodes import count_passed, next_after
from tilewright.integrations.arrays.functions import FUNCTIONS, offered, real
from tilewright.integrations.arrays.making import column, reshaped, rows_of
from tilewright.integrations.arrays.traced import (
    TracedArray,
    apply,
    cast,
    lifted,
    promoted,
    user_loc,
)

# --- parts of complex numbers, which are not offered, and bits ------------------------------------------------------


def _itself(name: str) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /) -> TracedArray:
        return lifted(pool, x)

    f.__name__, f.__doc__ = name, f"The array API's ``{name}``: of real numbers the array itself."
    return f


for _name in ("conj", "real"):
    offered(_itself(_name))


@offered
def imag(pool: Pool, x: Any, /) -> TracedArray:
    """The imaginary part, which is zero of real numbers."""
    given = lifted(pool, x)
    return lifted(pool, np.zeros(given.shape, given.dtype))


@offered
def nextafter(pool: Pool, x1: Any, x2: Any, /) -> TracedArray:
    """The next float in the direction of another one."""
    x, y = map(real, promoted([x1, x2], pool))
    return TracedArray(pool, next_after(Builder(pool, user_loc()), x.node, y.node))


@offered
def from_dlpack(pool: Pool, x: Any, /, *, device: Any = None, copy: bool | None = None) -> TracedArray:
    """An array of another library's by its memory."""
    return x if isinstance(x, TracedArray) else lifted(pool, np.from_dlpack(x))


# --- places ---------------------------------------------------------------------------------------------------------


@offered
def nonzero(pool: Pool, x: Any, /) -> tuple[TracedArray, ...]:
    """The indices of elements that are not zero, an array for each axis."""
    given = lifted(pool, x)
    if not given.ndim:
        raise OpError("an array of no axes has no indices", remedy="give it an axis by reshape")
    rows = rows_of(FUNCTIONS["not_equal"](given, lifted(pool, np.zeros((), given.dtype))), "nonzero")
    return tuple(column(rows, k) for k in range(given.ndim))


@offered
def searchsorted(pool: Pool, x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> TracedArray:
    """Where elements belong among sorted ones, before their equals or behind them; NaN stands behind all others."""
    given, asked = promoted([x1, x2], pool)
    if given.ndim != 1:
        raise OpError(f"elements are sorted along one axis, not along {given.ndim}", remedy="give a vector")
    if side not in ("left", "right"):
        raise OpError(f"the side {side!r} is none", remedy='give "left" or "right"')
    if sorter is not None:
        given = FUNCTIONS["take"](given, sorter)
    (n,) = given.shape

    def is_passed(last: Node) -> Node:
        element = apply(ops.gather, given, TracedArray(pool, last), axis=0)
        if side == "left":
            return _is_before(element, asked).node
        return apply(ops.logical_not, _is_before(asked, element)).node

    return TracedArray(pool, count_passed(Builder(pool, user_loc()), n, asked.shape, is_passed))


def _is_before(x: TracedArray, y: TracedArray) -> TracedArray:
    less = apply(ops.lt, *(cast(v, np.uint8) if v.dtype == np.bool_ else v for v in (x, y)))
    if x.dtype.kind != "f":
        return less
    is_last = apply(ops.logical_and, apply(ops.isnan, y), apply(ops.logical_not, apply(ops.isnan, x)))
    return apply(ops.logical_or, less, is_last)


# --- distinct elements ----------------------------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """Distinct elements, where each is first, which of them each element is, and how many are equal to it."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """Distinct elements, and how many are equal to each."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """Distinct elements, and which of them each element is."""

    values: Any
    inverse_indices: Any


def _unique(pool: Pool, x: Any) -> UniqueAll:
    given = lifted(pool, x)
    if given.size == 0:
        none = lifted(pool, np.zeros(0, np.int64))
        return UniqueAll(reshaped(given, (0,)), none, reshaped(none, given.shape), none)

    def places(flags: Node) -> Node:
        return column(rows_of(TracedArray(pool, flags), "unique"), 0).node

    found = distinct(Builder(pool, user_loc()), given.node, None, places)
    values, firsts, inverse, counts = (TracedArray(pool, node) for node in found)
    return UniqueAll(values, firsts, reshaped(inverse, given.shape), counts)


@offered
def unique_all(pool: Pool, x: Any, /) -> UniqueAll:
    """Distinct elements in ascending order, with all that is known of them."""
    return _unique(pool, x)


@offered
def unique_counts(pool: Pool, x: Any, /) -> UniqueCounts:
    """Distinct elements in ascending order, and how often each is there."""
    found = _unique(pool, x)
    return UniqueCounts(found.values, found.counts)


@offered
def unique_inverse(pool: Pool, x: Any, /) -> UniqueInverse:
    """Distinct elements in ascending order, and which of them each element is."""
    found = _unique(pool, x)
    return UniqueInverse(found.values, found.inverse_indices)


@offered
def unique_values(pool: Pool, x: Any, /) -> TracedArray:
    """Distinct elements in ascending order."""
    values: TracedArray = _unique(pool, x).values
    return values
