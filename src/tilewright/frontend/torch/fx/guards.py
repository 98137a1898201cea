"""What PyTorch's guards promise of the sizes of one captured graph: callers are turned away where they do not hold.

In: a ``ShapeEnv`` after tracing, or an exported program's guards, which callers of ours are held to. Out: ``Promises``:
expressions that are always equal to simpler ones, and the least values of symbols.
Not its business: sizes as our dimensions (``torch.fx.symbols``), and holding anybody to a promise (``fx``, ``torch``).

A guard ``(s0 // 8) ** 2 == 16`` is kept as ``s0 // 8`` is 4: without it, positions of an image of symbolic size do not
fit the table that is added to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROUNDS = 3
"""How often the guards are read: what one says may make another say more."""


@dataclass
class Promises:
    """``equal`` maps sympy expressions to simpler ones; ``least`` maps symbols' names to lower bounds."""

    equal: dict[Any, Any] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    _known: dict[Any, Any] = field(default_factory=dict)

    def simplest(self, e: Any) -> Any:
        """``e`` with all that is promised of its parts."""
        if not self.equal or not e.free_symbols:
            return e
        if e not in self._known:
            self._known[e] = self._simplest(e)
        return self._known[e]

    def add(self, a: Any, b: Any) -> None:
        """From now on ``a`` is ``b``."""
        self.equal.setdefault(a, b)
        self._known.clear()

    def _simplest(self, e: Any) -> Any:
        """What one promise makes of ``e`` another may make simpler still, at most as often as there are promises."""
        for _ in self.equal:
            before = e
            for a, b in self.equal.items():
                if a.free_symbols <= e.free_symbols:
                    e = e.subs(a, b) if a.is_Mul or a.is_Add else e.xreplace({a: b})
            if e == before:
                break
        return e


def promises_of(graph: Any) -> Promises:
    """What the guards promise of the sizes of an fx graph."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for size in (value, *getattr(value, "shape", ())):
            environment = getattr(getattr(size, "node", None), "shape_env", None)
            if environment is not None:
                return _promises(environment)
    return Promises()


def _promises(environment: Any) -> Promises:
    return promised((environment.replace(guard.expr) for guard in environment.guards), environment.var_to_range)


def promised(conditions: Iterable[Any], ranges: Mapping[Any, Any]) -> Promises:
    """What sympy conditions that all hold promise; ``ranges`` are PyTorch's, by sympy symbols."""
    least = {str(s): r.lower for s, r in ranges.items()}
    made = Promises(least={name: int(lower) for name, lower in least.items() if getattr(lower, "is_Integer", False)})
    guards = [part for condition in conditions for part in _parts(condition)]
    for _ in range(ROUNDS):
        before = len(made.equal), dict(made.least)
        for guard in guards:
            _read(guard, made)
        if before == (len(made.equal), made.least):
            break
    made.equal = dict(sorted(made.equal.items(), key=lambda pair: int(pair[0].count_ops())))
    return made


def _parts(condition: Any) -> Iterator[Any]:
    """The relations that all hold."""
    if type(condition).__name__ == "And":
        for part in condition.args:
            yield from _parts(part)
    elif getattr(condition, "is_Relational", False):
        yield condition


def _read(guard: Any, made: Promises) -> None:
    kind, (a, b) = type(guard).__name__, guard.args
    if kind == "Equality":
        _equate(made.simplest(a), made.simplest(b), made)
    elif kind == "Unequality":
        _not_equal(a - b, made)
    else:
        _at_least(*_difference(kind, a, b), made)


def _weight(e: Any) -> tuple[bool, bool, int, str]:
    return not e.is_Number, not e.is_Symbol, int(e.count_ops()), str(e)


def _equate(a: Any, b: Any, made: Promises) -> None:
    """``a`` is ``b``; the root of both where ``a`` is a square of what is never negative."""
    import sympy

    if _weight(b) > _weight(a):
        a, b = b, a
    if a.is_Pow and a.exp.is_Integer and a.exp > 1 and b.is_Integer and b >= 0 and _is_nonnegative(a.base, made):
        root = round(int(b) ** (1 / int(a.exp)))
        if root ** int(a.exp) == int(b):
            _equate(a.base, sympy.Integer(root), made)
            return
    if a != b and not a.is_Number:
        made.add(a, b)


def _difference(kind: str, a: Any, b: Any) -> tuple[Any, int]:
    """``(e, n)`` such that the relation holds where ``e >= n``."""
    forms = {
        "GreaterThan": (a - b, 0), "StrictGreaterThan": (a - b, 1), "LessThan": (b - a, 0),
        "StrictLessThan": (b - a, 1),
    }  # fmt: skip
    return forms.get(kind, (a - a, 0))


def _at_least(e: Any, n: int, made: Promises) -> None:
    """``e >= n`` bounds a lone symbol, or the factors of a product of which none is negative."""
    constant, rest = e.as_coeff_Add()
    factor, product = rest.as_coeff_Mul()
    if not (constant.is_Integer and factor.is_Integer and factor > 0):
        return
    bound = -((int(constant) - n) // int(factor))
    if product.is_Symbol:
        _raise(product, bound, made)
    elif bound > 0:
        _not_zero(product, made)


def _not_equal(e: Any, made: Promises) -> None:
    """``e != 0``: where ``e`` is a symbol minus its least value, or a product of which no factor is negative."""
    constant, rest = e.as_coeff_Add()
    factor, product = rest.as_coeff_Mul()
    if constant == 0:
        _not_zero(product, made)
    if product.is_Symbol and abs(factor) == 1 and made.least.get(str(product)) == -constant * factor:
        _raise(product, made.least[str(product)] + 1, made)


def _not_zero(product: Any, made: Promises) -> None:
    factors = product.args if product.is_Mul else (product,)
    if all(f.is_Symbol and made.least.get(str(f), -1) >= 0 for f in factors):
        for f in factors:
            _raise(f, 1, made)


def _raise(symbol: Any, bound: int, made: Promises) -> None:
    known = made.least.get(str(symbol))
    made.least[str(symbol)] = bound if known is None else max(known, bound)


def _is_nonnegative(e: Any, made: Promises) -> bool:
    if e.is_Symbol:
        return made.least.get(str(e), -1) >= 0
    if e.is_Number:
        return bool(e >= 0)
    parts: Sequence[Any] = e.args
    return type(e).__name__ in _KEEP_SIGN and all(_is_nonnegative(x, made) for x in parts)


_KEEP_SIGN = frozenset({"Add", "Mul", "Pow", "FloorDiv", "CleanDiv", "CeilDiv", "Mod", "PythonMod", "Max", "Min"})
