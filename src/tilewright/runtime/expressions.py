"""Integer expressions over symbol names, as manifests spell shapes and constraints.

In: text in Python's syntax, limited to names, integers, ``+ - * // %``, ``min``, ``max``, and for rules comparisons
joined by ``and``, ``or``, ``not``. Out: immutable ``ParsedExpr`` objects that evaluate, and that solve for one symbol.
Not its business: which symbols exist (``shapes``). Nothing is ever executed: the text goes through ``ast`` only.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from tilewright.runtime.plain import dataclass
from tilewright.runtime.syntax import parse_expression

MAX_TEXT = 8192
MAX_DEPTH = 200
"""Longer texts and deeper trees are refused, so that neither building nor evaluating can exhaust the stack."""

Bindings = Mapping[str, int]
Eval = Callable[[Bindings], int]

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FOLD: dict[str, Callable[..., int]] = {"min": min, "max": max}


@dataclass(frozen=True, slots=True)
class ParsedExpr:
    """A parsed expression: its text, the symbols in it, and a closure that evaluates it.

    ``value(bindings)`` raises ``ZeroDivisionError`` for a division by zero and ``KeyError`` for a missing symbol.
    """

    text: str
    symbols: frozenset[str]
    value: Eval
    tree: ast.expr

    def solve(self, symbol: str, result: int, known: Bindings) -> int | None:
        """The one integer for ``symbol`` that gives ``result``, where the expression is ``a*symbol + b``."""
        line = _line(self.tree, symbol, known)
        if line is None or line[0] == 0 or (result - line[1]) % line[0] != 0:
            return None
        return (result - line[1]) // line[0]

    def is_line(self, symbol: str) -> bool:
        """Is it ``a*symbol + b``, whatever the other symbols' values?"""
        return _line(self.tree, symbol, dict.fromkeys(self.symbols - {symbol}, 1)) is not None


def parse_size(text: str) -> ParsedExpr:
    """Parse a size such as ``2*n + 1``; ``ValueError`` says what is wrong with it."""
    return _parse(text, _size)


def parse_rule(text: str) -> ParsedExpr:
    """Parse a rule such as ``n % 8 == 0 and n <= m``; its value is 0 or 1."""
    return _parse(text, _rule)


def _parse(text: str, build: Callable[[ast.expr], Eval]) -> ParsedExpr:
    if len(text) > MAX_TEXT:
        raise ValueError(f"an expression of {len(text)} characters is too long")
    try:
        tree = parse_expression(text)
        _check_depth(tree)
        value = build(tree)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text[:80]!r} is not an expression: {error}") from error
    names = frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)) - _FOLD.keys()
    return ParsedExpr(text, names, value, tree)


def _check_depth(tree: ast.AST) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise ValueError(f"an expression of more than {MAX_DEPTH} levels is too deep")


def _size(node: ast.expr) -> Eval:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool) and abs(number) < 1 << 63:
            return lambda bindings: number
        case ast.Name(id=name) if name not in _FOLD:
            return operator.itemgetter(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _size(operand)
            return lambda bindings: -inner(bindings)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            apply, a, b = _BINARY[type(op)], _size(left), _size(right)
            return lambda bindings: apply(a(bindings), b(bindings))
        case ast.Call(func=ast.Name(id=name), args=[_, *_], keywords=[]) if name in _FOLD:
            fold, parts = _FOLD[name], [_size(arg) for arg in node.args]
            return lambda bindings: fold([part(bindings) for part in parts])
    raise ValueError(f"{_shown(node)} is not allowed in a size")


def _rule(node: ast.expr) -> Eval:
    match node:
        case ast.BoolOp(op=op, values=values):
            parts, join = [_rule(value) for value in values], all if isinstance(op, ast.And) else any
            return lambda bindings: int(join(part(bindings) for part in parts))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _rule(operand)
            return lambda bindings: int(not inner(bindings))
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _COMPARE for op in ops):
            sizes, tests = [_size(n) for n in (left, *rest)], [_COMPARE[type(op)] for op in ops]
            return lambda bindings: _chain(tests, [size(bindings) for size in sizes])
    raise ValueError(f"{_shown(node)} is not a comparison")


def _chain(tests: list[Callable[[int, int], bool]], values: list[int]) -> int:
    return int(all(test(a, b) for test, a, b in zip(tests, values, values[1:], strict=False)))


def _shown(node: ast.expr) -> str:
    return repr(ast.unparse(node)[:80])


def _line(node: ast.expr, symbol: str, known: Bindings) -> tuple[int, int] | None:
    """``(a, b)`` when the node equals ``a*symbol + b`` for the known values of the others."""
    match node:
        case ast.Name(id=name):
            return (1, 0) if name == symbol else (0, known[name])
        case ast.Constant(value=int(number)):
            return 0, number
        case ast.UnaryOp(operand=operand):
            line = _line(operand, symbol, known)
            return None if line is None else (-line[0], -line[1])
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _line(left, symbol, known), _line(right, symbol, known)
            return None if a is None or b is None else _combine(op, a, b)
        case ast.Call(func=ast.Name(id=name), args=args):
            lines = [_line(arg, symbol, known) for arg in args]
            flat = [line[1] for line in lines if line is not None and line[0] == 0]
            return (0, _FOLD[name](flat)) if len(flat) == len(lines) else None
    return None


def _combine(op: ast.operator, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int] | None:
    match op:
        case ast.Add():
            return a[0] + b[0], a[1] + b[1]
        case ast.Sub():
            return a[0] - b[0], a[1] - b[1]
        case ast.Mult() if a[0] == 0 or b[0] == 0:
            return a[0] * b[1] + b[0] * a[1], a[1] * b[1]
        case _ if a[0] == 0 and b[0] == 0 and b[1] != 0:
            return 0, _BINARY[type(op)](a[1], b[1])
    return None
