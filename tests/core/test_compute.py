"""Values of the tile language: equality of expressions that share parts, and what a rewrite leaves as it is."""

from __future__ import annotations

import pytest

from tilewright.core.compute import (
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Fma,
    Index,
    Inside,
    Load,
    Lookup,
    Param,
    Select,
    Unary,
    Value,
    operands,
    rewrite_value,
    substitute_value,
    symbols_of_value,
)
from tilewright.core.expr import Sym
from tilewright.core.types import f32, i32, i64


def test_shared_parts_are_compared_once() -> None:
    """By paths there would be 2**200 comparisons."""

    def doubled(depth: int) -> Value:
        x: Value = Load(buffer, (0,))
        for _ in range(depth):
            x = x + x
        return x

    buffer = Buffer("x", f32, (1,))
    assert doubled(200) == doubled(200)
    assert doubled(200) != doubled(199)
    assert len({doubled(200), doubled(200), doubled(3)}) == 2


ROW, COLUMN = Sym("i", 0, 7), Sym("j", 0, 7)
X, AT = Buffer("x", f32, (8, 8)), Buffer("at", i64, (8,))
ELEMENT, CHOSEN = X[ROW, 2 * ROW + 1], X[ROW, AT[ROW]]
EVERY_KIND = [
    ELEMENT,
    CHOSEN,
    Index(ROW + 1),
    Inside((ROW, 7 - ROW)),
    Unary("neg", ELEMENT),
    Binary("add", ELEMENT, CHOSEN),
    Fma(ELEMENT, CHOSEN, ELEMENT),
    Select(Inside((ROW,)), ELEMENT, CHOSEN),
    Cast(ELEMENT, i32),
    Bitcast(ELEMENT, i32),
    Lookup((3, 1, 2), Cast(ELEMENT, i32)),
    Const(1.0, f32),
    Param("a", f32),
]


@pytest.mark.parametrize("value", EVERY_KIND, ids=lambda v: type(v).__name__)
def test_a_rewrite_changes_what_it_must_and_keeps_the_rest(value: Value) -> None:
    assert {type(v) for v in EVERY_KIND} == set(Value.__subclasses__())
    assert rewrite_value(value, lambda _: None) is value
    assert substitute_value(value, {COLUMN: 3}) is value
    moved = substitute_value(value, {ROW: COLUMN})
    assert (moved == value) == (not symbols_of_value(value)) and symbols_of_value(moved) <= {COLUMN}
    assert substitute_value(moved, {COLUMN: ROW}) == value
    # Every operand is rebuilt, and stands where it stood.
    marked = rewrite_value(value, lambda x: Unary("abs", x) if x in (ELEMENT, AT[ROW]) else None)
    assert (marked != value) == bool(operands(value) or value is ELEMENT)
    assert rewrite_value(marked, lambda x: x.a if isinstance(x, Unary) and x.op == "abs" else None) == value
