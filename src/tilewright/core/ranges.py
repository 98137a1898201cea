"""What integers can be: the range of an index that data choose, and what is known where a value stands.

In: a ``Value``. Out: its least and greatest as expressions of loops and sizes; the values below it with the guards
around each. Not its business: whether a range fits a buffer (``language.inside``, ``tile.reach``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.core import types
from tilewright.core.compute import Binary, Cast, Const, Index, Inside, Select, Value, operands
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, maximum, minimum
from tilewright.core.types import DType

Guards = tuple[Dim, ...]
Range = tuple[Dim | None, Dim | None]


def under_guards(v: Value, guards: Guards) -> Iterator[tuple[Value, Guards]]:
    """Every value below, once for each set of guards that it stands under: what is known to be at least 0 there."""
    seen: set[tuple[Value, Guards]] = set()
    ahead = [(v, guards)]
    while ahead:
        pair = x, known = ahead.pop()
        if pair in seen:
            continue
        seen.add(pair)
        yield pair
        if isinstance(x, Select) and isinstance(x.cond, Inside):
            ahead += [(x.a, (*known, *x.cond.exprs)), (x.b, known)]
        else:
            ahead += [(o, known) for o in operands(x)]


def range_of(v: Value) -> Range:
    """The least and the greatest that an integer can be, as expressions of loops and sizes; None for an open end."""
    match v:
        case Const():
            return int(v.value), int(v.value)
        case Index():
            return v.expr, v.expr
        case Cast() if not v.a.dtype.is_float and v.a.dtype is not types.u64:
            return _fitting(range_of(v.a), v.dtype)
        case Select():
            (a, b), (c, d) = range_of(v.a), range_of(v.b)
            return _of_both(a, c, minimum), _of_both(b, d, maximum)
        case Binary():
            return _fitting(_of_operation(v), v.dtype)
    return _of_dtype(v.dtype)


def _of_operation(v: Binary) -> Range:
    (a, b), (c, d) = range_of(v.a), range_of(v.b)
    match v.op:
        case "add":
            return _of_both(a, c, lambda x, y: x + y), _of_both(b, d, lambda x, y: x + y)
        case "sub":
            return _of_both(a, d, lambda x, y: x - y), _of_both(b, c, lambda x, y: x - y)
        case "min":
            return _of_both(a, c, minimum), _of_either(b, d, minimum)
        case "max":
            return _of_either(a, c, maximum), _of_both(b, d, maximum)
        case "rem" if is_known(c) and c == d and c > 0 and is_known(a) and a >= 0:
            return 0, c - 1
        case "and" if is_known(c) and c == d and c >= 0:
            return 0, c
    return _of_dtype(v.dtype)


def _of_both(x: Dim | None, y: Dim | None, how: Callable[[Dim, Dim], Dim]) -> Dim | None:
    return None if x is None or y is None else how(x, y)


def _of_either(x: Dim | None, y: Dim | None, how: Callable[[Dim, Dim], Dim]) -> Dim | None:
    return y if x is None else x if y is None else how(x, y)


def _fitting(found: Range, dtype: DType) -> Range:
    """The range, where the type surely holds it: else integers wrap. Sizes are far from the end of 64 bits."""
    low, high = found
    if dtype is types.i64:
        return found
    least, most = _of_dtype(dtype)
    fits = is_known(low) and is_known(high) and is_known(least) and is_known(most) and least <= low <= high <= most
    return found if fits else (least, most)


def _of_dtype(dtype: DType) -> Range:
    if dtype.is_float or dtype is types.i64:
        return None, None
    return int(dtype.min), None if dtype is types.u64 else int(dtype.max)
