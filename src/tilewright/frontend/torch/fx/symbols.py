"""PyTorch's symbolic sizes as our dimensions.

In: ``SymInt`` values (sympy expressions over size symbols) and the symbols' ranges. Out: ``Dim`` expressions whose
``Sym`` carry bounds and, where known, the name that the user gave the dimension.
A size that only data decide (PyTorch names it ``u0``) is whatever the call that finds it makes of it (``bind``).
Not its business: finding such sizes (``torch.aten.places``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, ceildiv, floordiv, maximum, minimum, mod, substitute
from tilewright.frontend.torch.aten.call import BY_DATA, Unsupported
from tilewright.frontend.torch.fx.conditions import nonnegative_when
from tilewright.frontend.torch.fx.guards import Promises
from tilewright.frontend.torch.fx.rounded import RoundedSize, rounded

_FLOAT_BY_DATA = re.compile(r"zuf\d+")
UNBOUNDED = 2**62  # PyTorch writes "no upper bound" as a huge number or as infinity

_FUNCTIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "FloorDiv": floordiv,
    "CleanDiv": floordiv,
    "CeilDiv": ceildiv,
    "Mod": mod,
    "PythonMod": mod,
    "Max": maximum,
    "Min": minimum,
}


TRACED_FROM = 2
"""PyTorch traces a size that is free as one from here on."""


class SymbolTable:
    """Converts sizes; one sympy symbol is always the same ``Sym``. ``promises`` are what callers are held to."""

    def __init__(
        self,
        names: Mapping[str, str] | None = None,
        places: Mapping[str, str] | None = None,
        promises: Promises | None = None,
    ) -> None:
        """``names`` are the user's, by PyTorch's; ``places`` name the others."""
        self._names = dict(names or {})
        self._places = dict(places or {})
        self._promises = promises or Promises()
        self._symbols: dict[str, Dim] = {}
        self._equal: dict[str, Any] = {}
        self._same: dict[str, set[str]] = {}
        self._ranges: dict[str, tuple[int | None, int | None]] = {}
        self._environment: Any = None
        self.computed: dict[Any, Sym] | None = None
        self._measure: Callable[[RoundedSize, str], Sym] | None = None
        self._names_of: dict[Dim, Sym] = {}
        self._meanings: dict[Sym, Dim] = {}

    def compute_the_rest(self) -> None:
        """Let expressions without a form here be symbols of their own, in ``computed``, which callers work out."""
        self.computed = {}

    def measure_by(self, measure: Callable[[RoundedSize, str], Sym]) -> None:
        """Let a size whose expression is long be the symbol that ``measure`` makes of it and a name from now on.

        In conditions its expression stays, because callers know no such symbol.
        """
        self._measure = measure

    def promise(self, promises: Promises) -> None:
        """Use what callers are held to from now on."""
        self._promises = promises

    def add_ranges(self, ranges: Mapping[Any, Any], down_to: int = TRACED_FROM) -> None:
        """Take over PyTorch's value ranges: ``{sympy symbol: ValueRanges}``.

        That a size without a name is two or more is what the tracer assumes, and no rule of the user's: an exported
        program takes smaller ones too. ``down_to`` is where such a range begins here.
        """
        for symbol, r in ranges.items():
            lower = _finite(r.lower)
            assumed = lower == TRACED_FROM and str(symbol) not in self._names
            self._ranges[str(symbol)] = (down_to if assumed else lower, _finite(r.upper))

    def at_least(self, symbol: Any, least: int) -> None:
        """From now on a sympy symbol is ``least`` or more."""
        self._ranges[str(symbol)] = (least, self._ranges[str(symbol)][1])

    def dim(self, size: Any) -> Dim:
        """A size: an int, a ``SymInt`` or a sympy expression."""
        if is_known(size):
            return size
        node = getattr(size, "node", None)
        if node is None:
            return self._convert(size)
        known = node.maybe_as_int()
        if known is not None:
            return int(known)
        if node.shape_env is not None:
            self._environment = node.shape_env
            for symbol in node.expr.free_symbols:
                if str(symbol) not in self._ranges and symbol in node.shape_env.var_to_range:
                    self.add_ranges({symbol: node.shape_env.var_to_range[symbol]})
                    self._tighten(str(symbol))
        return self._convert(self._promises.simplest(node.expr))

    def _tighten(self, name: str) -> None:
        """A bound that is promised, beyond the range that PyTorch keeps for a symbol."""
        least, (lo, hi) = self._promises.least.get(name), self._ranges[name]
        if least is not None and (lo is None or least > lo):
            self._ranges[name] = (least, hi)

    def promise_total(self, total: Any, size: Any) -> None:
        """From now on a sympy expression is ``size`` where it is the size of a tensor."""
        self._promises.add(total, size)

    def promise_same(self, a: str, b: str) -> None:
        """From now on two sizes that only data decide are one: each call that finds one is held to it."""
        names = self._same.get(a, {a}) | self._same.get(b, {b})
        self._same.update(dict.fromkeys(names, names))

    def same_as(self, symbol: Sym) -> list[Dim]:
        """What a size that only data decide has to be equal to, where that has a meaning by now."""
        names = sorted(self._same.get(symbol.name, ()))
        return [self._symbols[name] for name in names if name != symbol.name and name in self._symbols]

    def integer(self, value: Any) -> tuple[Dim, list[tuple[Sym, int]]]:
        """An integer argument, and the symbols that bring it in, each with a sign: it is the sum of sign times symbol.

        A symbol is never negative: the greater of 0 and sign times the argument.
        """
        size, name = self.dim(value), lone_symbol(value)
        if not isinstance(size, Sym):
            return size, []
        lo, hi = (0, None) if name is None else self._ranges.get(name, (0, None))
        if lo is not None and lo >= 0:
            return size, [(size, 1)]
        below = Sym(f"{size.name}_below", max(-hi, 0) if hi is not None else 0, None if lo is None else -lo)
        parts = [(below, -1)]
        if hi is None or hi > 0:
            parts.append((Sym(f"{size.name}_above", 0, hi), 1))
        result = sum((sign * part for part, sign in parts), 0)
        self.bind(size, result)
        return result, parts

    def least(self, value: Any) -> int | None:
        """The least that PyTorch promises of an integer that is a symbol."""
        return self._ranges.get(lone_symbol(value) or "", (None, None))[0]

    def bind(self, symbol: Sym, value: Dim) -> None:
        """A size that only data decide is ``value`` from now on."""
        self._symbols[symbol.name] = value

    def equate(self, condition: Any) -> bool:
        """Use an equality with a lone symbol as that symbol's value from now on; False where it is no such thing."""
        if type(condition).__name__ != "Equality":
            return False
        for a, b in (condition.args, condition.args[::-1]):
            if not getattr(a, "is_Symbol", False) or BY_DATA.fullmatch(a.name):
                continue
            is_new = a.name not in self._symbols and a.name not in self._equal
            if is_new and a not in b.free_symbols and not is_about_data(b) and self._is_size(b):
                self._equal[a.name] = b
                return True
        return False

    def bound(self, condition: Any) -> bool:
        """Use an equality ``x = f(x)`` as a bound of ``x`` where that makes the two sides one expression.

        ``f``'s minima and maxima with one side that is ``x`` plus a number say which bounds to try: a table of 64
        positions cut to ``64 - max(0, 64 - x)`` is as long as ``x`` up to 64.
        """
        if type(condition).__name__ != "Equality" or len(condition.free_symbols) != 1:
            return False
        (symbol,) = condition.free_symbols
        if BY_DATA.fullmatch(symbol.name) or symbol.name in self._symbols or symbol.name in self._equal:
            return False
        old = self._ranges.get(symbol.name, (0, None))
        points = _turning_points(condition, symbol)
        for at in sorted((at for at in points if at > max(old[0] or 0, 1)), reverse=True):
            self._ranges[symbol.name] = (old[0], at if old[1] is None else min(at, old[1]))
            try:
                a, b = (self._convert(side) for side in condition.args)
            except Unsupported:
                a, b = 0, 1
            del self._symbols[symbol.name]
            if a == b:
                return True
        self._ranges[symbol.name] = old
        return False

    def is_one(self, e: Any) -> bool:
        """Is a sympy expression always 1?"""
        try:
            return self._convert(e) == 1
        except Unsupported:
            return False

    def _is_size(self, e: Any) -> bool:
        try:
            return not any(s.name in self._equal for s in e.free_symbols) and self._convert(e) is not None
        except Unsupported:
            return False

    def nonnegative_when(self, condition: Any) -> list[Dim]:
        """Expressions that are all ``>= 0`` exactly where a sympy condition holds; ``Unsupported`` without such."""
        found = nonnegative_when(condition, self._convert, self._range_of)
        return [substitute(e, self._meanings) for e in found] if self._meanings else found

    def _range_of(self, name: str) -> tuple[int, int | None]:
        lo, hi = self._ranges.get(name, (0, None))
        return max(lo or 0, 0), hi

    def _symbol(self, name: str) -> Dim:
        if name in self._equal:
            return self._convert(self._equal[name])
        if name not in self._symbols:
            lo, hi = self._ranges.get(name, (0, None))
            self._symbols[name] = Sym(self._names.get(name) or self._places.get(name, name), max(lo or 0, 0), hi)
        return self._symbols[name]

    def _convert(self, e: Any) -> Dim:
        kind = type(e).__name__
        if getattr(e, "is_Integer", False):
            return int(e)
        if getattr(e, "is_Symbol", False):
            return self._symbol(e.name)
        if kind == "Add":
            return sum((self._convert(a) for a in e.args), 0)
        if kind == "Mul":
            return self._product(e)
        if kind == "Pow" and getattr(e.exp, "is_Integer", False) and int(e.exp) > 0:
            return self._power(self._convert(e.base), int(e.exp))
        if kind in _FUNCTIONS and len(e.args) >= 2:
            result = self._convert(e.args[0])
            for a in e.args[1:]:
                result = _FUNCTIONS[kind](result, self._convert(a))
            return result
        if kind == "ModularIndexing":  # Inductor's name for (base // divisor) % modulus
            base, divisor, modulus = (self._convert(a) for a in e.args)
            return mod(floordiv(base, divisor), modulus)
        if kind in ("Identity", "ToInt"):  # of a whole number: itself
            return self._convert(e.args[0])
        found = rounded(e, self._convert)
        if found is not None and (found.size == found.most or self.computed is None):
            return self._measured(found)
        return self._computed(e)  # last: callers can work out what has no form here

    def _measured(self, found: RoundedSize) -> Dim:
        """A size of many terms as a symbol of its own, which the program finds once; others as they are."""
        if found.size == found.most or self._measure is None:
            return found.size
        if found.size not in self._names_of:
            symbol = self._names_of[found.size] = self._measure(found, f"rounded_{len(self._names_of)}")
            self._meanings[symbol] = found.size
        return self._names_of[found.size]

    def _computed(self, e: Any) -> Sym:
        """A symbol for a size that callers work out."""
        if self.computed is not None and e in self.computed:
            return self.computed[e]
        by_data = any(BY_DATA.fullmatch(s.name) or _FLOAT_BY_DATA.fullmatch(s.name) for s in e.free_symbols)
        if self.computed is None or self._environment is None or by_data or not getattr(e, "is_integer", False):
            raise Unsupported(f"the size expression {e}", "use + - * // % min and max on sizes")
        least = _finite(self._environment.bound_sympy(e).lower)
        if not _never_negative(e) and (least is None or least < 0):
            raise Unsupported(f"the size expression {e}, which may be negative", "use + - * // % min and max on sizes")
        self.computed[e] = Sym(f"size_{len(self.computed)}", max(least or 0, 0), None)
        return self.computed[e]

    def _product(self, e: Any) -> Dim:
        """A product; a rational factor is an exact division, as PyTorch knows."""
        numerator, denominator = 1, 1
        result: Dim = 1
        for a in e.args:
            if getattr(a, "is_Rational", False):
                numerator, denominator = numerator * int(a.p), denominator * int(a.q)
            else:
                result = result * self._convert(a)
        return floordiv(result * numerator, denominator)

    @staticmethod
    def _power(base: Dim, exponent: int) -> Dim:
        result: Dim = 1
        for _ in range(exponent):
            result = result * base
        return result


def _never_negative(e: Any) -> bool:
    """Is it made of sizes and numbers of 0 and above by operations that keep it so?"""
    if getattr(e, "is_Symbol", False):
        return not BY_DATA.fullmatch(e.name)
    if getattr(e, "is_Number", False):
        return bool(e >= 0)
    kind = type(e).__name__
    return (kind in _KEEP_SIGN or kind.endswith("_sqrt")) and all(_never_negative(a) for a in e.args)


_KEEP_SIGN = frozenset({
    "Add", "Mul", "Pow", "FloatPow", "PowByNatural", "IntTrueDiv", "FloatTrueDiv", "FloorDiv", "CleanDiv", "CeilDiv",
    "Mod", "PythonMod", "Max", "Min", "ToFloat", "TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt", "Identity",
})  # fmt: skip


def _turning_points(condition: Any, symbol: Any) -> set[int]:
    """Where the sides of a minimum or maximum of ``condition`` meet, if one is a number and one ``symbol`` plus one."""
    found: set[int] = set()
    for e in _below(condition):
        if type(e).__name__ in ("Max", "Min") and len(e.args) == 2:
            slope = (e.args[0] - e.args[1]).diff(symbol)
            if slope in (1, -1):
                found.add(int(-slope * (e.args[0] - e.args[1]).subs(symbol, 0)))
    return found


def _below(e: Any) -> list[Any]:
    return [e, *(x for a in e.args for x in _below(a))]


def is_about_data(condition: Any) -> bool:
    """Does a sympy condition speak of what only data decide?"""
    return any(BY_DATA.fullmatch(s.name) or _FLOAT_BY_DATA.fullmatch(s.name) for s in condition.free_symbols)


def is_found_in_data(size: Any) -> bool:
    """Does an unbacked symbol occur in a ``SymInt``, ``SymFloat`` or ``SymBool``?"""
    return is_found_in_floats(size) or any(BY_DATA.fullmatch(name) for name in _names(size))


def is_found_in_floats(size: Any) -> bool:
    """Does the symbol of a tensor's float element occur in a ``SymInt``, ``SymFloat`` or ``SymBool``?"""
    return any(_FLOAT_BY_DATA.fullmatch(name) for name in _names(size))


def _names(size: Any) -> list[str]:
    expression = getattr(getattr(size, "node", None), "expr", None)
    return [s.name for s in getattr(expression, "free_symbols", ())]


def lone_symbol(size: Any) -> str | None:
    """The name of the symbol that a ``SymInt`` is; None for other values."""
    expression = getattr(getattr(size, "node", None), "expr", None)
    return str(expression) if getattr(expression, "is_Symbol", False) else None


def _finite(bound: Any) -> int | None:
    """A bound of a value range; None for infinities and for stand-ins of infinity."""
    try:
        value = int(bound)
    except (TypeError, OverflowError, ValueError, AttributeError):
        return None
    return value if abs(value) < UNBOUNDED else None
