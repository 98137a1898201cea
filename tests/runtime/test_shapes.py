"""Binding symbols from input shapes."""

import pytest

from tilewright.runtime.manifest import Constraint, SymbolSpec, TensorSpec
from tilewright.runtime.shapes import ShapeBinder


def binder(*shapes: tuple[int | str, ...], symbols: str = "", rules: tuple[str, ...] = ()) -> ShapeBinder:
    inputs = [TensorSpec(f"x{i}", "float32", shape) for i, shape in enumerate(shapes)]
    return ShapeBinder(inputs, [SymbolSpec(s) for s in symbols.split()], [Constraint(r) for r in rules])


def test_plain_symbols() -> None:
    assert binder(("a", "b"), ("b", 3), symbols="a b").bind([(2, 5), (5, 3)]) == ({"a": 2, "b": 5}, [])


def test_symbol_only_in_a_derived_size() -> None:
    values, wrong = binder(("2*s + 1",), symbols="s").bind([(9,)])
    assert values == {"s": 4} and not wrong
    _, wrong = binder(("2*s + 1",), symbols="s").bind([(8,)])
    assert "no value of s makes 2*s + 1 equal to that" in str(wrong[0])


def test_solved_in_the_order_that_works() -> None:
    made = binder(("a*s + t",), ("t - 1", "a"), symbols="s t a")
    assert made.bind([(17,), (4, 3)]) == ({"a": 3, "t": 5, "s": 4}, [])


def test_plain_occurrence_is_preferred() -> None:
    values, wrong = binder(("s // 2",), ("s",), symbols="s").bind([(3,), (6,)])
    assert values == {"s": 6} and not wrong
    _, wrong = binder(("s // 2",), ("s",), symbols="s").bind([(3,), (8,)])
    assert "s // 2 is 4 (s = 8 from input 'x1', dim 0)" in str(wrong[0])


def test_division_by_zero_is_a_violation() -> None:
    _, wrong = binder(("a", "12 // a"), symbols="a").bind([(0, 5)])
    assert wrong
    _, wrong = binder(("a",), symbols="a", rules=("12 % a == 0",)).bind([(0,)])
    assert wrong


def test_bounds_of_one_size_are_one_range() -> None:
    """A call outside of several ranges of a symbol was told each of them."""
    inputs = [TensorSpec("x", "float32", ("n",))]
    rules = [Constraint(rule) for rule in ("n >= 6", "n <= 40", "n <= 50", "n % 2 == 0")]
    made = ShapeBinder(inputs, [SymbolSpec("n", 5, 60)], rules)
    for n in (4, 61):
        _, wrong = made.bind([(n,)])
        assert wrong[0].rule == "the model is compiled for between 6 and 40"
        assert [violation.rule for violation in wrong[1:]] == (["n must be a multiple of 2"] if n % 2 else [])
    assert [violation.rule for violation in made.bind([(5,)])[1]] == [
        "n must be at least 6",
        "n must be a multiple of 2",
    ]
    _, wrong = ShapeBinder(inputs, [SymbolSpec("n", 5)], [Constraint("n >= 8")]).bind([(4,)])
    assert [violation.rule for violation in wrong] == ["the model is compiled for at least 8"]


def test_bounds_that_contradict_each_other_are_no_range() -> None:
    """It was told as "between 5 and 4"."""
    inputs = [TensorSpec("x", "float32", ("n",))]
    _, (wrong,) = ShapeBinder(inputs, [SymbolSpec("n", 5)], [Constraint("n <= 4")]).bind([(4,)])
    assert wrong.rule == "the model is compiled for no size at all: it asks for at least 5 and at most 4"
    assert "contradict" in wrong.remedy


def test_shapes_of_unreadable_inputs_are_not_blamed() -> None:
    assert binder(("a", 2), ("b",), symbols="a b", rules=("a == b",)).bind([None, (3,)])[1] == []


def test_rank_zero_and_no_inputs() -> None:
    assert binder(()).bind([()]) == ({}, [])
    assert binder().bind([]) == ({}, [])


@pytest.mark.parametrize(
    ("shapes", "symbols", "rules"),
    [
        ((("a",),), "", ()),
        ((("a",),), "a b", ()),
        ((("a*b",),), "a b", ()),
        ((("s // 2",),), "s", ()),
        ((("a",),), "a", ("a == z",)),
        ((("a +",),), "a", ()),
        ((("a",),), "a", ("a + 1",)),
    ],
)
def test_manifests_that_make_no_sense(shapes: tuple, symbols: str, rules: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):
        binder(*shapes, symbols=symbols, rules=rules)
