"""Arithmetic on shapes that hold symbolic dimensions: comparing, resolving and re-indexing.

In: shapes and index expressions. Out: index expressions and facts about shapes.
Not its business: element types, and the rules of any one op (``ops``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from tilewright.core.dims import divisor, is_known
from tilewright.core.expr import Dim, Expr, Sym, bounds, floordiv, is_nonneg, maximum, minimum, mod, substitute
from tilewright.core.types import product

_assumed: ContextVar[dict[Expr, None] | None] = ContextVar("_assumed", default=None)


def surely_differ(a: Dim, b: Dim) -> bool:
    """True when two dimensions can be proved unequal; False means equal or unknown."""
    if _is_apart(a, b):
        return True
    _assume(a - b)
    _assume(b - a)
    return False


def surely_unfit(a: Dim, b: Dim) -> bool:
    """True when a dimension is proved to be neither 1 nor ``b``, to which it is stretched; False means unknown, too."""
    if _is_apart(a, 1) and _is_apart(a, b):
        return True
    if a != 1:
        _assume(maximum(minimum(a - 1, 1 - a), minimum(a - b, b - a)))
    return False


def _is_apart(a: Dim, b: Dim) -> bool:
    lo, hi = bounds(a - b)
    return (lo is not None and lo > 0) or (hi is not None and hi < 0)


def surely_negative(e: Dim) -> bool:
    """True when ``e < 0`` is proved; False means that it is not, or unknown."""
    hi = bounds(e)[1]
    if hi is not None and hi < 0:
        return True
    _assume(e)
    return False


def _assume(e: Dim) -> None:
    found = _assumed.get()
    if found is not None and isinstance(e, Expr) and not is_nonneg(e):
        of_one = floordiv(e, divisor(e))  # as many rows of 16 elements are as many rows
        if isinstance(of_one, Expr):
            found[of_one] = None


@contextmanager
def assumed() -> Iterator[dict[Expr, None]]:
    """What the questions above are asked within and can't tell: calls or data have to keep each at 0 or above."""
    found: dict[Expr, None] = {}
    token = _assumed.set(found)
    try:
        yield found
    finally:
        _assumed.reset(token)


def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """True unless the shapes are proved to differ."""
    return len(a) == len(b) and not any(surely_differ(x, y) for x, y in zip(a, b, strict=True))


def strides_of(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Row-major strides in elements."""
    return tuple(product(shape[k + 1 :]) for k in range(len(shape)))


def linearise(index: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """The row-major position of ``index`` in ``shape``."""
    position: Dim = 0
    for i, n in zip(index, shape, strict=True):
        position = position * n + i
    return position


def delinearise(position: Dim, shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The index at a row-major ``position`` that lies inside ``shape``."""
    index: list[Dim] = []
    for k, stride in enumerate(strides_of(shape)):
        quotient = floordiv(position, stride)
        index.append(quotient if k == 0 else mod(quotient, shape[k]))
    return tuple(index)


def common_parts(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[list[Dim], list[int], list[int]] | None:
    """Sizes into which both shapes can be taken apart, and how many of them each dimension of either has.

    Outermost first; dimensions of 1 have none. None where dimensions overlap without a common part, as 4, 6 and 6, 4.
    """
    parts, of_a, of_b = list[Dim](), [0] * len(a), [0] * len(b)
    for ins, outs in reshape_groups(a, b):
        if len(ins) == 1 and outs:
            shared = [(ins[0], j, b[j]) for j in outs]
        elif len(outs) == 1 and ins:
            shared = [(k, outs[0], a[k]) for k in ins]
        elif (found := _overlaps([(k, a[k]) for k in ins], [(j, b[j]) for j in outs])) is not None:
            shared = found
        else:
            return None
        for k, j, part in shared:
            parts.append(part)
            of_a[k] += 1
            of_b[j] += 1
    return parts, of_a, of_b


def _overlaps(a: Sequence[tuple[int, Dim]], b: Sequence[tuple[int, Dim]]) -> list[tuple[int, int, Dim]] | None:
    """Which dimension of one run overlaps which of the other, and in how many places; None where that is uneven."""
    found = list[tuple[int, int, Dim]]()
    left = list(a[::-1]), list(b[::-1])
    while left[0] and left[1]:
        (k, x), (j, y) = left[0].pop(), left[1].pop()
        if x != y and not (is_known(x) and is_known(y) and min(x, y) > 0 and max(x, y) % min(x, y) == 0):
            return None
        part = x
        if is_known(x) and is_known(y) and x != y:
            part = min(x, y)
            side = int(y > x)
            left[side].append(((k, j)[side], max(x, y) // part))
        found.append((k, j, part))
    return None if left[0] or left[1] else found


def reshape_groups(a: Sequence[Dim], b: Sequence[Dim]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The smallest runs of dimensions with equal products, as positions in ``a`` and in ``b``; ones are left out.

    ``[S, 6, 1, 4] -> [S, 2, 3, 4]`` gives ``([0], [0]), ([1], [1, 2]), ([3], [3])``. Symbolic products match when
    they are equal expressions; what never matches is one run at the end.
    """
    left, right = _prefixes(a), _prefixes(b)
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    for end_i, (_, total) in enumerate(left, 1):
        end_j = next((n for n in range(j + 1, len(right) + 1) if right[n - 1][1] == total), None)
        if end_j is not None:
            groups.append((_positions(left[i:end_i]), _positions(right[j:end_j])))
            i, j = end_i, end_j
    if i < len(left) or j < len(right):
        groups.append((_positions(left[i:]), _positions(right[j:])))
    return groups


def _prefixes(shape: Sequence[Dim]) -> list[tuple[int, Dim]]:
    """``(position, product up to and with it)`` for the dimensions that are not 1."""
    found: list[tuple[int, Dim]] = []
    total: Dim = 1
    for k, d in enumerate(shape):
        if d != 1:
            total = total * d
            found.append((k, total))
    return found


def _positions(run: Sequence[tuple[int, Dim]]) -> tuple[int, ...]:
    return tuple(k for k, _ in run)


def reshape_index(in_shape: Sequence[Dim], out_shape: Sequence[Dim], out_index: Sequence[Dim]) -> tuple[Dim, ...]:
    """Where in ``in_shape`` the element at ``out_index`` of ``out_shape`` lies, both row-major.

    Division and remainder appear only inside the smallest runs of dimensions with equal products.
    """
    index: list[Dim] = [0] * len(in_shape)
    if any(d == 0 for d in in_shape):
        return tuple(index)
    for ins, outs in reshape_groups(in_shape, out_shape):
        position = linearise([out_index[k] for k in outs], [out_shape[k] for k in outs])
        for k, i in zip(ins, delinearise(position, [in_shape[k] for k in ins]), strict=True):
            index[k] = i
    return tuple(index)


def bind_shape(shape: Sequence[Dim], actual: Sequence[int], env: dict[Sym, int]) -> str | None:
    """Give values to the symbols of ``shape`` from an array's shape; None, or what disagrees.

    A dimension that is one unknown symbol, plain or as ``c * s + k``, defines it; every other one is checked
    once its symbols are known, so define symbols by plain dimensions first where there are several shapes.
    """
    if len(shape) != len(actual):
        return f"rank {len(shape)} was expected, not {len(actual)}"
    for d, n in zip(shape, actual, strict=True):
        _define(d, n, env)
    for k, (d, n) in enumerate(zip(shape, actual, strict=True)):
        known = substitute(d, {s: v for s, v in env.items()})
        if is_known(known) and known != n:
            return f"dimension {k} must be {d}{'' if is_known(d) else f' = {known}'}, not {n}"
    return None


def _define(d: Dim, n: int, env: dict[Sym, int]) -> None:
    if isinstance(d, Sym):
        env.setdefault(d, n)
    elif isinstance(d, Expr) and len(d.terms) == 1 and isinstance(d.terms[0][0], Sym):
        (symbol, coefficient) = d.terms[0]
        assert isinstance(symbol, Sym)
        if (n - d.const) % coefficient == 0:
            env.setdefault(symbol, (n - d.const) // coefficient)
