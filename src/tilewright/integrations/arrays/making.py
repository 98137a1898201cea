"""The functions of the array API that make arrays and move their elements.

In: traced arrays, arrays and numbers; shapes are Python's numbers. Out: traced arrays. Not its business: arithmetic
(``functions``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.graph import Builder, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array
from tilewright.integrations.arrays.functions import (
    Axis,
    axes_in_order,
    axes_of,
    axis_of,
    offered,
    whole_numbers,
)
from tilewright.integrations.arrays.traced import (
    TracedArray,
    applied,
    apply,
    cast,
    known,
    lifted,
    promoted,
    user_loc,
)

Shape = int | Sequence[int]

# --- arrays of known numbers ----------------------------------------------------------------------------------------


def _made(f: Callable[..., Any], name: str) -> None:
    """A function whose arguments decide its numbers: NumPy's own, as a constant."""

    def call(pool: Pool, *args: Any, device: Any = None, **kwargs: Any) -> TracedArray:
        return lifted(pool, f(*args, **kwargs))

    call.__name__, call.__doc__ = name, f"The array API's ``{name}``."
    offered(call)


for _name in ("arange", "empty", "eye", "full", "linspace", "ones", "zeros"):
    _made(getattr(np, _name), _name)


@offered
def asarray(
    pool: Pool, obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None
) -> TracedArray | Array:
    """An array of numbers or nested lists of them; of an array, itself or its cast."""
    x = obj if isinstance(obj, TracedArray) else lifted(pool, np.asarray(obj))
    if copy is False and isinstance(obj, np.ndarray) and (dtype is None or dtype == obj.dtype):
        return obj
    return x if dtype is None else cast(x, dtype)


def _like(value: float | None) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /, *fill: Any, dtype: Any = None, device: Any = None) -> TracedArray:
        given = lifted(pool, x)
        number = fill[0] if value is None else value
        return lifted(pool, np.full(given.shape, number, given.dtype if dtype is None else dtype))

    return f


for _name, _value in (("zeros_like", 0), ("ones_like", 1), ("empty_like", 0), ("full_like", None)):
    _f = _like(_value)
    _f.__name__, _f.__doc__ = _name, f"The array API's ``{_name}``."
    offered(_f)


@offered
def astype(pool: Pool, x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> TracedArray:
    """The array in another type."""
    return cast(lifted(pool, x), dtype)


# --- shapes ---------------------------------------------------------------------------------------------------------


def reshaped(x: TracedArray, shape: Sequence[int]) -> TracedArray:
    return x if tuple(shape) == x.shape else apply(ops.reshape, x, shape=tuple(shape))


@offered
def reshape(pool: Pool, x: Any, /, shape: Shape, *, copy: bool | None = None) -> TracedArray:
    """The same elements in another shape, of which one size may be -1."""
    given = lifted(pool, x)
    sizes = whole_numbers(shape)
    if sizes.count(-1) == 1:
        rest = int(np.prod([n for n in sizes if n != -1], dtype=np.int64))
        sizes[sizes.index(-1)] = given.size // rest if rest else 0
    return reshaped(given, sizes)


@offered
def expand_dims(pool: Pool, x: Any, /, *, axis: Axis = 0) -> TracedArray:
    """With axes of one element more."""
    given = lifted(pool, x)
    at = whole_numbers(() if axis is None else axis)
    shape = list(given.shape)
    for k in sorted(axes_in_order(given, at, len(at))):
        shape.insert(k, 1)
    return reshaped(given, shape)


@offered
def squeeze(pool: Pool, x: Any, /, axis: Axis = None) -> TracedArray:
    """Without axes, which have one element each."""
    given = lifted(pool, x)
    gone = [k for k, n in enumerate(given.shape) if n == 1] if axis is None else axes_of(given, axis)
    if any(given.shape[k] != 1 for k in gone):
        raise OpError(
            f"axes {tuple(gone)} of the shape {given.shape} do not all have one element", remedy="name others"
        )
    return reshaped(given, [n for k, n in enumerate(given.shape) if k not in gone])


@offered
def permute_dims(pool: Pool, x: Any, /, axes: Sequence[int]) -> TracedArray:
    """Axes in another order."""
    given = lifted(pool, x)
    order = axes_in_order(given, axes)
    if len(order) != given.ndim:
        raise OpError(f"{axes} is no order of {given.ndim} axes", remedy="name each axis")
    return apply(ops.transpose, given, perm=tuple(order))


@offered
def matrix_transpose(pool: Pool, x: Any, /) -> TracedArray:
    """The last two axes exchanged."""
    given = lifted(pool, x)
    if given.ndim < 2:
        raise OpError(f"an array of {given.ndim} axes is no matrix", remedy="give it two axes or more by reshape")
    n = given.ndim
    return apply(ops.transpose, given, perm=(*range(n - 2), n - 1, n - 2))


@offered
def moveaxis(pool: Pool, x: Any, source: Shape, destination: Shape, /) -> TracedArray:
    """Axes put in other places, the others in their order."""
    given = lifted(pool, x)
    first, second = axes_in_order(given, source), axes_in_order(given, destination)
    if len(first) != len(second):
        raise OpError(f"{len(first)} axes can't take {len(second)} places", remedy="name as many places as axes")
    order = [k for k in range(given.ndim) if k not in first]
    for to, of in sorted(zip(second, first, strict=True)):
        order.insert(to, of)
    return apply(ops.transpose, given, perm=tuple(order))


@offered
def broadcast_to(pool: Pool, x: Any, /, shape: Shape) -> TracedArray:
    """Repeated along axes of one element to the shape."""
    return apply(ops.expand, lifted(pool, x), shape=tuple(whole_numbers(shape)))


@offered
def broadcast_arrays(pool: Pool, *arrays: Any) -> list[TracedArray]:
    """All in the one shape to which they broadcast."""
    given = [lifted(pool, x) for x in arrays]
    try:
        shape = np.broadcast_shapes(*(x.shape for x in given))
    except ValueError:
        shapes = ", ".join(str(x.shape) for x in given)
        raise OpError(f"the shapes {shapes} do not broadcast", remedy="sizes must be equal or 1") from None
    return [x if x.shape == shape else apply(ops.expand, x, shape=shape) for x in given]


# --- moves ----------------------------------------------------------------------------------------------------------


def _some(arrays: Sequence[Any], pool: Pool) -> list[TracedArray]:
    given = list(arrays)
    if not given:
        raise OpError("there is no array", remedy="give at least one")
    return promoted(given, pool)


@offered
def concat(pool: Pool, arrays: Sequence[Any], /, *, axis: int | None = 0) -> TracedArray:
    """One behind the other; with no axis, all elements in order."""
    parts = _some(arrays, pool)
    if axis is None:
        parts, axis = [reshaped(x, (x.size,)) for x in parts], 0
    return apply(ops.concat, *parts, axis=axis_of(parts[0], axis))


@offered
def stack(pool: Pool, arrays: Sequence[Any], /, *, axis: int = 0) -> TracedArray:
    """One behind the other along a new axis."""
    parts = _some(arrays, pool)
    at = axis_of(parts[0], axis, 1)
    rows = [reshaped(x, (*x.shape[:at], 1, *x.shape[at:])) for x in parts]
    return apply(ops.concat, *rows, axis=at)


@offered
def unstack(pool: Pool, x: Any, /, *, axis: int = 0) -> tuple[TracedArray, ...]:
    """The slices along an axis."""
    given = lifted(pool, x)
    at = axis_of(given, axis)
    return tuple(indexed(given, (*(slice(None),) * at, k)) for k in range(given.shape[at]))


@offered
def flip(pool: Pool, x: Any, /, *, axis: Axis = None) -> TracedArray:
    """Backwards along axes."""
    given = lifted(pool, x)
    return apply(ops.reverse, given, axes=axes_of(given, axis))


@offered
def roll(pool: Pool, x: Any, /, shift: Shape, *, axis: Axis = None) -> TracedArray:
    """Elements moved on along axes, from the end to the start."""
    given = lifted(pool, x)
    flat = reshaped(given, (given.size,)) if axis is None else given
    axes, shifts = whole_numbers(0 if axis is None else axis), whole_numbers(shift)
    n = max(len(axes), len(shifts))
    if min(len(axes), len(shifts)) not in (1, n):
        raise OpError(f"{len(shifts)} shifts are given for {len(axes)} axes", remedy="give one for each axis")
    axes, shifts = axes * (n // len(axes)), shifts * (n // len(shifts))
    for by, k in zip(shifts, axes, strict=True):  # one after the other: an axis may be named twice
        flat = apply(ops.roll, flat, shifts=(by,), axes=(axis_of(flat, k),))
    return reshaped(flat, given.shape)


@offered
def tile(pool: Pool, x: Any, repetitions: Shape, /) -> TracedArray:
    """The whole repeated along each axis."""
    given, times = lifted(pool, x), whole_numbers(repetitions)
    shape = (*(1,) * (len(times) - given.ndim), *given.shape)
    return apply(ops.tile, reshaped(given, shape), repeats=(*(1,) * (len(shape) - len(times)), *times))


@offered
def repeat(pool: Pool, x: Any, repeats: Any, /, *, axis: int | None = None) -> TracedArray:
    """Each element repeated, all as often, or each by a number of its own."""
    given, times = lifted(pool, x), known(lifted(pool, repeats))
    if times is None:
        raise OpError("how often elements are repeated decides a size", remedy="give numbers that are no arguments")
    if times.dtype.kind not in "iu" or times.ndim > 1 or (times < 0).any():
        raise OpError(f"{repeats!r} does not say how often", remedy="give a whole number, or a vector of them")
    given = reshaped(given, (given.size,)) if axis is None else given
    at = axis_of(given, 0 if axis is None else axis)
    if times.size not in (1, given.shape[at]):
        raise OpError(f"{times.size} numbers are given for {given.shape[at]} elements", remedy="give one for each")
    order = np.repeat(np.arange(given.shape[at], dtype=np.int64), times)
    return apply(ops.gather, given, lifted(pool, order), axis=at)


@offered
def take(pool: Pool, x: Any, indices: Any, /, *, axis: int | None = None) -> TracedArray:
    """The slices that a vector names."""
    given = lifted(pool, x)
    if axis is None and given.ndim != 1:
        raise OpError(f"an array of {given.ndim} axes needs an axis", remedy="name the axis")
    at = axis_of(given, 0 if axis is None else axis)
    return apply(ops.gather, given, places(pool, indices, given.shape[at]), axis=at)


@offered
def take_along_axis(pool: Pool, x: Any, indices: Any, /, *, axis: int = -1) -> TracedArray:
    """For each element of the indices, the one that it names along an axis."""
    given = lifted(pool, x)
    at = axis_of(given, axis)
    return apply(ops.gather_elements, given, places(pool, indices, given.shape[at]), axis=at)


def _triangle(upper: bool) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /, *, k: int = 0) -> TracedArray:
        return apply(ops.trilu, lifted(pool, x), k=operator.index(k), upper=upper)

    return f


for _name, _upper in (("tril", False), ("triu", True)):
    _f = _triangle(_upper)
    _f.__name__, _f.__doc__ = _name, f"The array API's ``{_name}``."
    offered(_f)


@offered
def meshgrid(pool: Pool, *arrays: Any, indexing: str = "xy") -> list[TracedArray]:
    """Coordinates of a grid, one array for each vector."""
    given = [lifted(pool, x) for x in arrays]
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[:2] = [1, 0]
    shape = tuple(given[k].shape[0] if given[k].ndim else 1 for k in order)
    made = []
    for k, x in enumerate(given):
        place = [1] * len(given)
        place[order.index(k)] = x.size
        made.append(apply(ops.expand, reshaped(x, place), shape=shape))
    return made


@offered
def diff(pool: Pool, x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> TracedArray:
    """Differences of neighbours, ``n`` times, with what stands before and behind: arrays, or one number everywhere."""
    given = lifted(pool, x)
    at = axis_of(given, axis)
    parts = [lifted(pool, part) for part in (prepend, given, append) if part is not None]
    once = tuple(1 if k == at else size for k, size in enumerate(given.shape))
    parts = [part if part.ndim else apply(ops.expand, part, shape=once) for part in parts]
    given = concat(parts, axis=at) if len(parts) > 1 else given
    for _ in range(n):
        before, after = ((*(slice(None),) * at, s) for s in (slice(None, -1), slice(1, None)))
        op: OpDef = ops.ne if given.dtype == np.bool_ else ops.sub
        given = apply(op, indexed(given, after), indexed(given, before))
    return given


# --- indexing -------------------------------------------------------------------------------------------------------


def indexed(x: TracedArray, key: Any) -> TracedArray:
    """``x[key]`` of numbers, slices, ``...`` and ``None``, and at most one array of integers; or of one mask alone."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if len(keys) == 1 and _is_array(key := keys[0]) and _is_mask(key):
        return _masked(x, lifted(x.pool, np.asarray(key) if isinstance(key, list) else key))
    n_used = sum(k is not None and k is not Ellipsis for k in keys)
    if n_used > x.ndim:
        raise OpError(f"{n_used} indices are given for an array of {x.ndim} axes", remedy="give at most one for each")
    if sum(k is Ellipsis for k in keys) > 1:
        raise OpError("an index has two ellipses", remedy="write slices for one")
    if any(isinstance(k, bool | np.bool_) for k in keys):
        raise OpError("a bool as an index gives a result whose size depends on it", remedy="use where")
    arrays = [k for k in keys if _is_array(k)]
    if len(arrays) > 1:
        raise OpError("an array is indexed by one array at most", remedy="use take_along_axis, or index twice")
    named = [n for n, k in enumerate(keys) if k is not None and k is not Ellipsis and not isinstance(k, slice)]
    are_apart = bool(arrays) and named[-1] - named[0] >= len(named)
    if not any(k is Ellipsis for k in keys):
        keys.append(Ellipsis)
    at = next(k for k, v in enumerate(keys) if v is Ellipsis)
    keys[at : at + 1] = [slice(None)] * (x.ndim - n_used)
    starts, stops, steps, shape, axis, gathered = [], [], [], [], 0, None
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        n = x.shape[axis]
        if isinstance(k, slice):
            start, stop, step = k.indices(n)
            length = len(range(start, stop, step))
            first = start if step > 0 or not length else start + (length - 1) * step
            start, stop = (first, first + (length - 1) * abs(step) + 1) if length else (0, 0)
            shape.append(length)
        elif _is_array(k):
            gathered = (len(shape), k)
            start, stop, step = 0, n, 1
            shape.append(n)
        else:
            (place,) = whole_numbers([k])
            if not -n <= place < n:
                raise OpError(
                    f"index {place} is outside of axis {axis} with {n} elements", remedy=f"use {-n} to {n - 1}"
                )
            start, stop, step = place % n, place % n + 1, 1
        starts.append(start)
        stops.append(stop)
        steps.append(step)
        axis += 1
    made = x
    if (tuple(starts), tuple(stops)) != ((0,) * x.ndim, x.shape) or any(abs(s) != 1 for s in steps):
        made = apply(ops.slice, x, starts=tuple(starts), stops=tuple(stops), steps=tuple(map(abs, steps)))
    turned = tuple(k for k, s in enumerate(steps) if s < 0)
    made = apply(ops.reverse, made, axes=turned) if turned else made
    made = reshaped(made, shape)
    if gathered is None:
        return made
    place, indices = gathered
    chosen = places(x.pool, indices, made.shape[place])
    made = apply(ops.gather, made, chosen, axis=place)
    if not are_apart:
        return made
    # As NumPy has it, where a slice or None is between an array and a number, the array's axes come first.
    of_array = range(place, place + chosen.ndim)
    return apply(ops.transpose, made, perm=(*of_array, *(k for k in range(made.ndim) if k not in of_array)))


def _is_mask(key: Any) -> bool:
    return bool((key if isinstance(key, TracedArray) else np.asarray(key)).dtype == np.bool_)


def _masked(x: TracedArray, mask: TracedArray) -> TracedArray:
    """The slices where a mask of the first axes holds, in order. How many there are only a call may know."""
    n = mask.ndim
    if n == 0 or mask.shape != x.shape[:n]:
        raise OpError(f"a mask of {mask.shape} is not of the first axes of {x.shape}", remedy="broadcast it to these")
    rows = reshaped(x, (int(np.prod(mask.shape)), *x.shape[n:]))
    numbers = known(mask)
    if numbers is not None:
        return apply(ops.gather, rows, lifted(x.pool, np.flatnonzero(numbers)), axis=0)
    return apply(ops.gather, rows, column(rows_of(reshaped(mask, (mask.size,)), "mask"), 0), axis=0)


def rows_of(flags: TracedArray, name: str) -> TracedArray:
    """Where flags are set, a row of indices each, in order."""
    return applied(ops.argwhere, flags, count=f"{name}_{flags.node.serial}")[0]


def column(rows: TracedArray, k: int) -> TracedArray:
    """A column of rows whose number a call brings."""
    b, (n, _) = Builder(rows.pool, user_loc()), rows.node.shape
    part = b(ops.slice, rows.node, starts=(0, k), stops=(n, k + 1), steps=(1, 1))
    return TracedArray(rows.pool, b(ops.reshape, part, shape=(n,)))


def _is_array(key: Any) -> bool:
    return isinstance(key, TracedArray | np.ndarray | list)


def places(pool: Pool, indices: Any, n: int) -> TracedArray:
    """Indices of ``n`` elements as i64; those whose numbers are known must be among the elements."""
    given = np.asarray(indices, np.int64) if isinstance(indices, list) and not np.size(indices) else indices
    made = lifted(pool, given)
    if made.dtype == np.bool_:
        raise OpError("an array of bools gives a result whose size depends on it", remedy="use where")
    if made.dtype.kind == "f":
        raise OpError(f"elements of type {made.dtype} are no indices", remedy="cast them to int64")
    numbers = known(made)
    if numbers is not None and ((numbers < -n) | (numbers >= n)).any():
        wrong = numbers[(numbers < -n) | (numbers >= n)][0]
        raise OpError(f"index {wrong} is outside of an axis of {n} elements", remedy=f"use {-n} to {n - 1}")
    return cast(made, np.int64)
