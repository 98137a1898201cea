"""Conditions on sizes as integer expressions: each holds exactly where all of its expressions are 0 or above.

In: a sympy condition as PyTorch has them (``Eq(Mod(s, 2), 0)``, ``IntTrueDiv(2, s) < 0.5``), the dimensions that its
integer parts are. Out: dimensions. A condition through floats becomes one on whole numbers: of one size by searching
where it turns, of several by multiplying out. Not its business: where conditions come from (``torch.guards``, ``fx``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilewright.core.expr import Dim, bounds, is_nonneg, maximum, minimum
from tilewright.frontend.torch.aten.call import Unsupported
from tilewright.frontend.torch.fx.rounded import MOST_SIZE, Convert, compared

Range = tuple[int, int | None]


def nonnegative_when(condition: Any, convert: Convert, range_of: Callable[[str], Range]) -> list[Dim]:
    """Expressions that are all ``>= 0`` exactly where ``condition`` holds.

    ``convert`` gives the dimension of a whole sub-expression, ``range_of`` the least and the most that a symbol is.
    ``Unsupported`` for a condition without such a form.
    """
    kind = type(condition).__name__
    if kind == "BooleanTrue":
        return []
    if kind == "BooleanFalse":
        return [-1]
    parts = [nonnegative_when(part, convert, range_of) for part in condition.args] if kind in ("And", "Or") else []
    if kind == "And":
        return [e for part in parts for e in part]
    if kind == "Or":
        return _any_of(parts)
    if kind == "Not":
        return _negated(nonnegative_when(condition.args[0], convert, range_of))
    if kind not in _RELATIONS:
        raise Unsupported(f"the condition {condition}", "compare sizes by == != < <= > and >=")
    if _has_floats(condition):
        found = _turned(condition, convert, range_of)
        if found is not None:
            return found
    a, b = _sides(condition, convert)
    return _RELATIONS[kind](a, b)


def _sides(condition: Any, convert: Convert) -> tuple[Dim, Dim]:
    """Whole numbers that compare as the two sides do."""
    left, right = condition.args
    if _has_floats(condition):
        found = compared(left, right, convert)
        if found is None:
            raise Unsupported(f"the condition {condition}", "decide by whole numbers: n * 3 > m * 2 for n / m > 2 / 3")
        return found
    return convert(left), convert(right)


_RELATIONS: Mapping[str, Callable[[Dim, Dim], list[Dim]]] = {
    "GreaterThan": lambda a, b: [a - b],
    "LessThan": lambda a, b: [b - a],
    "StrictGreaterThan": lambda a, b: [a - b - 1],
    "StrictLessThan": lambda a, b: [b - a - 1],
    "Equality": lambda a, b: [a - b, b - a],
    "Unequality": lambda a, b: [maximum(a - b, b - a) - 1],
}


def _any_of(parts: list[list[Dim]]) -> list[Dim]:
    """One of several conditions, of which one without expressions always holds."""
    if not all(parts):
        return []
    lows = []
    for low, *rest in parts:
        for e in rest:
            low = minimum(low, e)
        lows.append(low)
    best, *rest = lows
    for e in rest:
        best = maximum(best, e)
    return [best]


def _negated(holds: list[Dim]) -> list[Dim]:
    """Where not all of the expressions are 0 or above."""
    return _any_of([[-1 * e - 1] for e in holds]) if holds else [-1]


# --- conditions of one size -----------------------------------------------------------------------------------------


def _turned(condition: Any, convert: Convert, range_of: Callable[[str], Range]) -> list[Dim] | None:
    """Where a condition through floats holds by where it turns; None where that is not known.

    Of one size, or of one whole number that is computed of sizes: ``round(0.3 * ((n + -n % 3) // 3)) == 2`` turns with
    the quotient, though not with ``n``. Exact, rounding included, which is not so for several.
    """
    import sympy

    if len(condition.free_symbols) == 1:
        (symbol,) = condition.free_symbols
        found = _searched(condition, range_of)
        if found is not None:
            return _within(found, convert(symbol))
    numbers = set(_whole_numbers(condition))
    if len(numbers) != 1:
        return None
    (number,) = numbers
    size = convert(number)
    if not is_nonneg(size):
        return None
    symbol = sympy.Symbol("number", integer=True, nonnegative=True)
    replaced = condition.xreplace({number: symbol})
    if replaced.free_symbols != {symbol}:
        return None
    least, most = bounds(size)
    found = _searched(replaced, lambda _: (max(least or 0, 0), most))
    return None if found is None else _within(found, size)


def _whole_numbers(e: Any) -> Iterator[Any]:
    """The largest parts without floats in which sizes occur."""
    if not e.free_symbols:
        return
    if getattr(e, "is_integer", False) and not _has_floats(e):
        yield e
    else:
        for part in e.args:
            yield from _whole_numbers(part)


def _has_floats(e: Any) -> bool:
    """Does a float occur in it?"""
    return type(e).__name__ in _FLOATS or bool(getattr(e, "is_Float", False)) or any(map(_has_floats, e.args))


_FLOATS = frozenset({
    "IntTrueDiv", "FloatTrueDiv", "ToFloat", "FloatPow", "TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt",
    "OpaqueUnaryFn_sqrt",
})  # fmt: skip


def _searched(condition: Any, range_of: Callable[[str], Range]) -> tuple[int, int | None, bool] | None:
    """The sizes ``(first, last, inside)`` in or outside of which a condition holds; None where that is not one run.

    A float that only grows, or only shrinks, with the size turns from below a number to above it once: rounding keeps
    the order. The search evaluates it as PyTorch does, in doubles.
    """
    (symbol,) = condition.free_symbols
    e, number = condition.args
    kind = type(condition).__name__
    if e.free_symbols and number.free_symbols:
        return None
    if number.free_symbols:
        e, number, kind = number, e, _MIRRORED[kind]
    direction = _direction(e)
    if direction is None:
        return None
    least, most = range_of(symbol.name)
    end = min(MOST_SIZE if most is None else most, MOST_SIZE)
    wanted = _value(number, {})
    if direction < 0:  # compared times -1, where the order is the other way
        kind = _MIRRORED[kind]

    def at_least(bound: Any, is_strict: bool) -> int:
        """The first size where the float, times the direction, reaches the bound; ``end + 1`` for none."""
        low, high = least, end + 1
        compare = operator.gt if is_strict else operator.ge
        while low < high:
            middle = (low + high) // 2
            if compare(direction * _value(e, {symbol.name: middle}), direction * bound):
                high = middle
            else:
                low = middle + 1
        return low

    reached, passed = at_least(wanted, False), at_least(wanted, True)
    last = None if passed > end else passed - 1
    return {
        "GreaterThan": (reached, None, True),
        "StrictGreaterThan": (passed, None, True),
        "StrictLessThan": (least, reached - 1, True),
        "LessThan": (least, last, True),
        "Equality": (reached, last, True),
        "Unequality": (reached, last, False),
    }[kind]


_MIRRORED = {
    "GreaterThan": "LessThan", "LessThan": "GreaterThan", "StrictGreaterThan": "StrictLessThan",
    "StrictLessThan": "StrictGreaterThan", "Equality": "Equality", "Unequality": "Unequality",
}  # fmt: skip


def _within(found: tuple[int, int | None, bool], size: Dim) -> list[Dim]:
    first, last, inside = found
    if inside:
        return [size - first] if last is None else [size - first, last - size]
    below = first - 1 - size
    return [below] if last is None else [maximum(below, size - (last + 1))]


def _direction(e: Any) -> int | None:
    """1 where ``e`` never falls as its one symbol grows from 0, -1 where it never rises, 0 for a number; else None."""
    kind = type(e).__name__
    if not e.free_symbols:
        return 0
    if getattr(e, "is_Symbol", False):
        return 1
    if kind in _KEEP_ORDER:
        return _direction(e.args[0])
    parts = [_direction(a) for a in e.args]
    if None in parts:
        return None
    known = [p for p in parts if p is not None]
    if kind == "Mul":
        sign = math.prod(-1 if a.is_number and a < 0 else 1 for a in e.args)
        factors = [a for a in e.args if not a.is_number]
        return _common([sign * p for p in known]) if all(map(_is_never_negative, factors)) else None
    if kind in ("IntTrueDiv", "FloatTrueDiv", "FloorDiv", "CleanDiv"):
        return _common([known[0], -known[1]]) if all(map(_is_never_negative, e.args)) else None
    if kind in ("Pow", "FloatPow", "PowByNatural"):
        base, exponent = e.args
        is_power = exponent.is_number and _is_never_negative(base)
        return (known[0] if exponent >= 0 else -known[0]) if is_power else None
    return _common(known) if kind in ("Add", "Max", "Min") else None


_KEEP_ORDER = frozenset({
    "ToFloat", "TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt", "OpaqueUnaryFn_sqrt", "Identity",
})  # fmt: skip


def _common(directions: list[int]) -> int | None:
    """The one direction of several that agree."""
    found = {d for d in directions if d}
    return found.pop() if len(found) == 1 else None if found else 0


def _is_never_negative(e: Any) -> bool:
    if e.is_number:
        return bool(e >= 0)
    if getattr(e, "is_Symbol", False):
        return True
    return all(map(_is_never_negative, e.args))


def _value(e: Any, sizes: Mapping[str, int]) -> Any:
    """What Python makes of ``e``, in whole numbers and doubles."""
    kind = type(e).__name__
    if getattr(e, "is_Symbol", False):
        return sizes[e.name]
    if getattr(e, "is_Integer", False):
        return int(e)
    if getattr(e, "is_Number", False):
        return float(e)
    values = [_value(a, sizes) for a in e.args]
    if kind in _FOLDED:
        total, *rest = values
        for v in rest:
            total = _FOLDED[kind](total, v)
        return total
    if kind not in _COMPUTED:
        raise Unsupported(f"the condition over {e}", "decide by whole numbers")
    try:
        return _COMPUTED[kind](*values)
    except ZeroDivisionError:
        return math.inf


_FOLDED: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Mul": operator.mul, "Max": max, "Min": min,
}  # fmt: skip

_COMPUTED: Mapping[str, Callable[..., Any]] = {
    "IntTrueDiv": operator.truediv, "FloatTrueDiv": operator.truediv, "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv, "Pow": operator.pow, "FloatPow": operator.pow, "PowByNatural": operator.pow,
    "ToFloat": float, "TruncToInt": math.trunc, "FloorToInt": math.floor, "CeilToInt": math.ceil, "RoundToInt": round,
    "OpaqueUnaryFn_sqrt": math.sqrt, "Identity": lambda x: x,
}  # fmt: skip
