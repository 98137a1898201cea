"""From the shapes of a call's inputs to values for the model's symbols, and on to output shapes.

In: a manifest's symbolic shapes, ranges and constraints; per call, actual shapes. Out: bindings, and every rule that
the shapes break. Not its business: dtypes and conversion (``values``), raising (``model``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from tilewright.runtime.errors import Violation
from tilewright.runtime.expressions import ParsedExpr, parse_rule, parse_size
from tilewright.runtime.manifest import Constraint, Dim, SymbolSpec, TensorSpec
from tilewright.runtime.plain import dataclass

Shape = tuple[int, ...]
MAX_VALUE = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _Place:
    """A dimension of an input, with its expression where it has one."""

    input: int
    dim: int
    size: int | ParsedExpr


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a symbol's value comes from: the input dimension that is (a line in) the symbol."""

    symbol: str
    place: _Place
    expr: ParsedExpr


class ShapeBinder:
    """Binds a model's symbols. Made once per model; ``ValueError`` when a manifest's shapes make no sense."""

    def __init__(
        self, inputs: Sequence[TensorSpec], symbols: Sequence[SymbolSpec], constraints: Sequence[Constraint]
    ) -> None:
        self._inputs = tuple(inputs)
        self._symbols = tuple(symbols)
        self._places = [
            _Place(i, d, compile_size(size)) for i, spec in enumerate(inputs) for d, size in enumerate(spec.shape)
        ]
        self._rules = [(parse_rule(c.rule), c.reason) for c in constraints]
        names = {s.name for s in symbols}
        for expr in [p.size for p in self._places if isinstance(p.size, ParsedExpr)] + [
            rule for rule, _ in self._rules
        ]:
            if unknown := expr.symbols - names:
                raise ValueError(f"{expr.text!r} uses {sorted(unknown)}, which are not symbols of the inputs")
        self._sources = _find_sources(self._places, [s.name for s in symbols])

    def sources(self) -> list[tuple[str, ParsedExpr, int, int]]:
        """Each symbol with the size, input and dimension to solve for it, in an order in which each can be."""
        return [(s.symbol, s.expr, s.place.input, s.place.dim) for s in self._sources]

    def bind(
        self, shapes: Sequence[Shape | None], *, may_be_empty: bool = False
    ) -> tuple[dict[str, int], list[Violation]]:
        """Values of the symbols, and everything that is wrong; with violations the values may be incomplete.

        A shape of None is not known (its input could not be read) and breaks no rule by itself. ``may_be_empty`` lets a
        symbol be 0 that begins with 1.
        """
        violations, sizes = [], {}
        for i, (spec, shape) in enumerate(zip(self._inputs, shapes, strict=True)):
            if shape is not None and len(shape) != len(spec.shape):
                violations.append(_wrong_rank(spec, shape))
            elif shape is not None:
                sizes.update({(i, d): size for d, size in enumerate(shape)})
        values = self._solve(sizes)
        for place in self._places:
            if (place.input, place.dim) in sizes:
                violations += self._check_place(place, sizes[place.input, place.dim], values)
        outside = list(self._check_ranges(values, may_be_empty))
        told = {violation.symbol for violation in outside}
        return values, [*violations, *outside, *self._check_rules(values, told)]

    def _solve(self, sizes: Mapping[tuple[int, int], int]) -> dict[str, int]:
        """The symbols' values, in the order in which they can be found."""
        values: dict[str, int] = {}
        for source in self._sources:
            given, expr = sizes.get((source.place.input, source.place.dim)), source.expr
            if given is None or not expr.symbols - {source.symbol} <= values.keys():
                continue
            value = expr.solve(source.symbol, given, values)
            if value is not None:
                values[source.symbol] = value
        return values

    def _check_place(self, place: _Place, given: int, values: Mapping[str, int]) -> Iterator[Violation]:
        size, spec = place.size, self._inputs[place.input]
        if isinstance(size, int):
            if given != size:
                yield Violation(
                    spec.name, f"size {given}", f"the model is compiled for size {size}",
                    "pass that size, or compile with a symbolic dimension here (torch.export makes a number of a "
                    "Dim.AUTO where its trace needs one)", dim=place.dim,
                )  # fmt: skip
            return
        expected = evaluate(size, values)
        if expected == given:
            return
        if expected is None:
            if size.symbols - values.keys() and not self._is_source(place):
                return  # its symbol's own input is reported already
            rule = f"no value of {' and '.join(sorted(size.symbols))} makes {size.text} equal to that"
        else:
            rule = f"{size.text} is {expected}{self._because(size, values)}"
        yield Violation(
            spec.name, f"size {given}", rule, "pass inputs whose sizes agree", dim=place.dim, symbol=size.text
        )

    def _check_ranges(self, values: Mapping[str, int], may_be_empty: bool) -> Iterator[Violation]:
        for spec in self._symbols:
            value = values.get(spec.name)
            hi = spec.hi if isinstance(spec.hi, int) else MAX_VALUE
            if value is None or spec.lo <= value <= hi or (may_be_empty and value == 0 and spec.lo == 1):
                continue
            place = self._source_of(spec.name).place
            limits = limits_of(spec, [rule for rule, _ in self._rules])
            rule = f"the model is compiled for {limits}"
            remedy = "pass a size in that range, or compile with a wider one, or for this size alone"
            if NO_SIZE in limits:
                remedy = "compile with other sizes: these contradict each other"
            yield Violation(
                self._inputs[place.input].name, f"{spec.name} is {value}", rule, remedy, dim=place.dim, symbol=spec.name
            )

    def _check_rules(self, values: Mapping[str, int], told: Set[str | None]) -> Iterator[Violation]:
        """What breaks a rule; bounds of the symbols that are ``told`` stand beside their ranges already."""
        for rule, reason in self._rules:
            if not rule.symbols <= values.keys() or evaluate(rule, values):
                continue
            bound = _bound_of(rule)
            if bound is not None and bound[0] in told:
                continue
            names = sorted(rule.symbols)
            place = self._source_of(names[0]).place if names else None
            given = ", ".join(f"{name} is {values[name]}" for name in names)
            if len(names) > 1:
                given = "; ".join(f"{name} is {values[name]} ({self._place_of(name)})" for name in names)
            text = spoken(rule) + (f" ({reason})" if reason else "")
            yield Violation(
                self._inputs[place.input].name if place else "", given, text, "pass sizes for which it does",
                dim=place.dim if place else None, symbol=", ".join(names),
            )  # fmt: skip

    def _because(self, size: ParsedExpr, values: Mapping[str, int]) -> str:
        """Where the values of an expression's symbols came from."""
        causes = []
        for name in sorted(size.symbols & values.keys()):
            causes.append(f"{name} = {values[name]} from {self._place_of(name)}")
        return f" ({'; '.join(causes)})" if causes else ""

    def _place_of(self, symbol: str) -> str:
        """Where a symbol's value comes from, in words."""
        place = self._source_of(symbol).place
        return f"input {self._inputs[place.input].name!r}, dim {place.dim}"

    def _is_source(self, place: _Place) -> bool:
        return any(source.place is place for source in self._sources)

    def _source_of(self, symbol: str) -> _Source:
        return next(source for source in self._sources if source.symbol == symbol)


NO_SIZE = "no size at all"


def limits_of(spec: SymbolSpec, rules: Iterable[ParsedExpr]) -> str:
    """A symbol's range in words: one range, which is what bounds among the rules leave of its own.

    A model's nodes may ask for what no size fulfils; then each bound is said, not a range that ends before it starts.
    """
    bounds = [bound for rule in rules if (bound := _bound_of(rule)) is not None and bound[0] == spec.name]
    lo = max([spec.lo, *(n for _, op, n in bounds if isinstance(op, ast.GtE))])
    ends = [*([spec.hi] if isinstance(spec.hi, int) else []), *(n for _, op, n in bounds if isinstance(op, ast.LtE))]
    hi = min(ends, default=spec.hi)
    if isinstance(hi, int) and hi < lo:
        return f"{NO_SIZE}: it asks for at least {lo} and at most {hi}"
    return f"at least {lo}" if hi is None else f"between {lo} and {hi}"


def _bound_of(rule: ParsedExpr) -> tuple[str, ast.cmpop, int] | None:
    """The symbol, relation and number of a rule that bounds one symbol, such as ``n >= 8``."""
    match rule.tree:
        case ast.Compare(
            left=ast.Name(id=name), ops=[ast.GtE() | ast.LtE() as op], comparators=[ast.Constant(value=int(number))]
        ):
            return name, op, number
    return None


def spoken(rule: ParsedExpr) -> str:
    """A rule in words, where it is one of the common ones; else its text."""
    match rule.tree:
        case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[ast.Constant(value=int(number))]):
            words = _WORDS.get(type(op))
            if words is not None:
                return f"{name} must {words} {number}"
        case ast.Compare(
            left=ast.BinOp(left=ast.Name(id=name), op=ast.Mod(), right=ast.Constant(value=int(number))),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=0)],
        ):
            return f"{name} must be a multiple of {number}"
    return f"{rule.text} must hold"


_WORDS: Mapping[type[ast.cmpop], str] = {
    ast.LtE: "be at most", ast.GtE: "be at least", ast.Eq: "be", ast.NotEq: "not be",
}  # fmt: skip


def compile_size(size: Dim) -> int | ParsedExpr:
    """A size ready to evaluate: numbers stay numbers."""
    return size if isinstance(size, int) else parse_size(size)


def evaluate(size: int | ParsedExpr, values: Mapping[str, int]) -> int | None:
    """Its value; None where a symbol is missing or a divisor is zero."""
    if isinstance(size, int):
        return size
    try:
        return size.value(values)
    except (KeyError, ZeroDivisionError):
        return None


def _wrong_rank(spec: TensorSpec, shape: Shape) -> Violation:
    wanted = f"({', '.join(map(str, spec.shape))})"
    return Violation(
        spec.name, f"shape {shape} has {len(shape)} dimensions", f"the model takes {len(spec.shape)}: {wanted}",
        "reshape the array, or check the order of the inputs",
    )  # fmt: skip


def _find_sources(places: Sequence[_Place], symbols: Sequence[str]) -> list[_Source]:
    """For each symbol the input dimension to read it from, in an order in which each can be solved for.

    Plain occurrences come first; after them lines in one symbol that is not found yet, the others known.
    """
    sources: dict[str, _Source] = {}
    sized = [(p, p.size) for p in places if isinstance(p.size, ParsedExpr)]
    for place, expr in sized:
        name = expr.text.strip()
        if name in expr.symbols:
            sources.setdefault(name, _Source(name, place, expr))
    progress = True
    while progress and len(sources) < len(symbols):
        progress = False
        for place, expr in sized:
            unknown = expr.symbols - sources.keys()
            name = next(iter(unknown)) if len(unknown) == 1 else ""
            if name and expr.is_line(name):
                sources[name] = _Source(name, place, expr)
                progress = True
    if missing := [s for s in symbols if s not in sources]:
        raise ValueError(f"the inputs' shapes do not determine {missing}")
    return list(sources.values())
