"""The functions of the array API that make arrays and move their elements.

In: traced arrays, arrays and numbers; shapes are Python's numbers. Out: traced arrays. Not its business: arithmetic
(``functions``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.graph import Pool
from tilewright.core.opdef import OpDef
from tilewright.integrations.arrays.functions import FUNCTIONS, Axis, axes_of, axis_of, offered
from tilewright.integrations.arrays.traced import TracedArray, apply, cast, lifted, promoted

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
def asarray(pool: Pool, obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> TracedArray:
    """An array of numbers or nested lists of them; of an array, itself or its cast."""
    x = obj if isinstance(obj, TracedArray) else lifted(pool, np.asarray(obj))
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
    sizes = [shape] if isinstance(shape, int) else [int(n) for n in shape]
    if sizes.count(-1) == 1:
        rest = int(np.prod([n for n in sizes if n != -1], dtype=np.int64))
        sizes[sizes.index(-1)] = given.size // rest if rest else 0
    return reshaped(given, sizes)


@offered
def expand_dims(pool: Pool, x: Any, /, *, axis: Axis = 0) -> TracedArray:
    """With axes of one element more."""
    given = lifted(pool, x)
    at = [axis] if isinstance(axis, int) else list(axis or ())
    shape = list(given.shape)
    for k in sorted(axis_of(given, k, len(at)) for k in at):
        shape.insert(k, 1)
    return reshaped(given, shape)


@offered
def squeeze(pool: Pool, x: Any, /, axis: Axis = None) -> TracedArray:
    """Without axes, which have one element each."""
    given = lifted(pool, x)
    gone = [k for k, n in enumerate(given.shape) if n == 1] if axis is None else axes_of(given, axis)
    if any(given.shape[k] != 1 for k in gone):
        raise OpError(f"axes {tuple(gone)} of the shape {given.shape} do not all have one element")
    return reshaped(given, [n for k, n in enumerate(given.shape) if k not in gone])


@offered
def permute_dims(pool: Pool, x: Any, /, axes: Sequence[int]) -> TracedArray:
    """Axes in another order."""
    given = lifted(pool, x)
    return apply(ops.transpose, given, perm=tuple(axis_of(given, k) for k in axes))


@offered
def matrix_transpose(pool: Pool, x: Any, /) -> TracedArray:
    """The last two axes exchanged."""
    given = lifted(pool, x)
    if given.ndim < 2:
        raise OpError(f"an array of {given.ndim} axes is no matrix")
    n = given.ndim
    return apply(ops.transpose, given, perm=(*range(n - 2), n - 1, n - 2))


@offered
def moveaxis(pool: Pool, x: Any, source: Axis, destination: Axis, /) -> TracedArray:
    """Axes put in other places, the others in their order."""
    given = lifted(pool, x)
    first, second = (
        [axis_of(given, k) for k in ([v] if isinstance(v, int) else v or ())] for v in (source, destination)
    )
    order = [k for k in range(given.ndim) if k not in first]
    for to, of in sorted(zip(second, first, strict=True)):
        order.insert(to, of)
    return apply(ops.transpose, given, perm=tuple(order))


@offered
def broadcast_to(pool: Pool, x: Any, /, shape: Sequence[int]) -> TracedArray:
    """Repeated along axes of one element to the shape."""
    return apply(ops.expand, lifted(pool, x), shape=tuple(int(n) for n in shape))


@offered
def broadcast_arrays(pool: Pool, *arrays: Any) -> list[TracedArray]:
    """All in the one shape to which they broadcast."""
    given = [lifted(pool, x) for x in arrays]
    shape = np.broadcast_shapes(*(x.shape for x in given))
    return [x if x.shape == shape else apply(ops.expand, x, shape=shape) for x in given]


# --- moves ----------------------------------------------------------------------------------------------------------


@offered
def concat(pool: Pool, arrays: Sequence[Any], /, *, axis: int | None = 0) -> TracedArray:
    """One behind the other; with no axis, all elements in order."""
    parts = promoted(list(arrays), pool)
    if axis is None:
        parts, axis = [reshaped(x, (x.size,)) for x in parts], 0
    return apply(ops.concat, *parts, axis=axis_of(parts[0], axis))


@offered
def stack(pool: Pool, arrays: Sequence[Any], /, *, axis: int = 0) -> TracedArray:
    """One behind the other along a new axis."""
    parts = promoted(list(arrays), pool)
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
    axes = [0] if axis is None else [axis] if isinstance(axis, int) else list(axis)
    shifts = [shift] * len(axes) if isinstance(shift, int) else list(shift)
    for by, k in zip(shifts, axes, strict=True):  # one after the other: an axis may be named twice
        flat = apply(ops.roll, flat, shifts=(int(by),), axes=(axis_of(flat, k),))
    return reshaped(flat, given.shape)


@offered
def tile(pool: Pool, x: Any, repetitions: Sequence[int], /) -> TracedArray:
    """The whole repeated along each axis."""
    given, times = lifted(pool, x), [int(n) for n in repetitions]
    shape = (*(1,) * (len(times) - given.ndim), *given.shape)
    return apply(ops.tile, reshaped(given, shape), repeats=(*(1,) * (len(shape) - len(times)), *times))


@offered
def repeat(pool: Pool, x: Any, repeats: int, /, *, axis: int | None = None) -> TracedArray:
    """Each element repeated."""
    given = lifted(pool, x)
    if not isinstance(repeats, int):
        raise OpError("how often elements are repeated must be one number", remedy="use take")
    given = reshaped(given, (given.size,)) if axis is None else given
    at = axis_of(given, axis or 0)
    places = np.repeat(np.arange(given.shape[at], dtype=np.int64), repeats)
    return apply(ops.gather, given, lifted(pool, places), axis=at)


@offered
def take(pool: Pool, x: Any, indices: Any, /, *, axis: int | None = None) -> TracedArray:
    """The slices that a vector names."""
    given = lifted(pool, x)
    if axis is None and given.ndim != 1:
        raise OpError(f"an array of {given.ndim} axes needs an axis")
    return apply(ops.gather, given, cast(lifted(pool, indices), np.int64), axis=axis_of(given, axis or 0))


@offered
def take_along_axis(pool: Pool, x: Any, indices: Any, /, *, axis: int = -1) -> TracedArray:
    """For each element of the indices, the one that it names along an axis."""
    given, at = lifted(pool, x), cast(lifted(pool, indices), np.int64)
    return apply(ops.gather_elements, given, at, axis=axis_of(given, axis))


def _triangle(upper: bool) -> Callable[..., Any]:
    def f(pool: Pool, x: Any, /, *, k: int = 0) -> TracedArray:
        return apply(ops.trilu, lifted(pool, x), k=k, upper=upper)

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
def diff(pool: Pool, x: Any, /, *, axis: int = -1, n: int = 1) -> TracedArray:
    """Differences of neighbours, ``n`` times."""
    given = lifted(pool, x)
    at = axis_of(given, axis)
    for _ in range(n):
        before, after = ((*(slice(None),) * at, s) for s in (slice(None, -1), slice(1, None)))
        op: OpDef = ops.ne if given.dtype == np.bool_ else ops.sub
        given = apply(op, indexed(given, after), indexed(given, before))
    return given


# --- indexing -------------------------------------------------------------------------------------------------------


def indexed(x: TracedArray, key: Any) -> TracedArray:
    """``x[key]`` of numbers, slices, ``...`` and ``None``, and at most one array of integers."""
    keys = list(key) if isinstance(key, tuple) else [key]
    n_used = sum(k is not None and k is not Ellipsis for k in keys)
    if n_used > x.ndim:
        raise IndexError(f"{n_used} indices for an array of {x.ndim} axes")
    if Ellipsis not in [k for k in keys if not isinstance(k, TracedArray | np.ndarray)]:
        keys.append(Ellipsis)
    at = next(k for k, v in enumerate(keys) if v is Ellipsis)
    keys[at : at + 1] = [slice(None)] * (x.ndim - n_used)
    arrays = [k for k in keys if isinstance(k, TracedArray | np.ndarray | list)]
    if len(arrays) > 1:
        raise OpError("an array is indexed by one array at most", remedy="use take_along_axis, or index twice")
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
        elif isinstance(k, TracedArray | np.ndarray | list):
            gathered = (len(shape), axis, k)
            start, stop, step = 0, n, 1
            shape.append(n)
        else:
            place = int(k)
            if not -n <= place < n:
                raise IndexError(f"index {place} is outside of axis {axis} with {n} elements")
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
    place, _, indices = gathered
    at_ = lifted(x.pool, indices if isinstance(indices, TracedArray) else np.asarray(indices))
    if not np.issubdtype(at_.dtype, np.integer):
        raise OpError("an array of bools gives a result whose size depends on it", remedy="use where")
    return apply(ops.gather, made, cast(at_, np.int64), axis=place)


# --- operators ------------------------------------------------------------------------------------------------------

_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
_COMPARED = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
_ALONE = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}


def _install() -> None:
    """Give traced arrays Python's operators, which are functions of the table."""

    def two(name: str, *, turned: bool = False) -> Callable[[Any, Any], Any]:
        f = FUNCTIONS[name]
        return (lambda x, y: f(y, x)) if turned else f

    for name, of in (_OPERATORS | _COMPARED).items():
        setattr(TracedArray, f"__{name}__", two(of))
    for name, of in _OPERATORS.items():
        setattr(TracedArray, f"__r{name}__", two(of, turned=True))
    for name, of in _ALONE.items():
        setattr(TracedArray, f"__{name}__", FUNCTIONS[of])
    index = offered(_getitem)
    members = {
        "__getitem__": index,
        "__iter__": lambda x: (index(x, k) for k in range(len(x))),
        "T": property(lambda x: FUNCTIONS["permute_dims"](x, tuple(reversed(range(x.ndim))))),
        "mT": property(FUNCTIONS["matrix_transpose"]),
    }
    for name, member in members.items():
        setattr(TracedArray, name, member)


def _getitem(pool: Pool, x: TracedArray, key: Any) -> TracedArray:
    return indexed(x, key)


_install()
del FUNCTIONS["getitem"]
