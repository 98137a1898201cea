"""Index expressions: simplification never changes a value, bounds hold, text round-trips."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.core.expr import (
    Dim,
    Sym,
    bounds,
    ceildiv,
    evaluate,
    floordiv,
    maximum,
    minimum,
    mod,
    parse,
    substitute,
    symbols,
    to_text,
    weighted_sum,
)
from tilewright.core.largest import largest

X, J, B = Sym("i", 0, 3), Sym("j", 0, 15), Sym("B", 1)
NAMES = {"i": X, "j": J, "B": B}
Values = Mapping[Sym, int]
Case = tuple[Dim, Callable[[Values], int]]


def _leaf(x: Sym | int) -> Case:
    return x, (lambda v: v[x]) if isinstance(x, Sym) else (lambda v: x)


def _combine(op: str, a: Case, b: Case) -> Case:
    (x, f), (y, g) = a, b
    made: Mapping[str, tuple[Callable[[Dim, Dim], Dim], Callable[[int, int], int]]] = {
        "+": (lambda p, q: p + q, lambda p, q: p + q),
        "-": (lambda p, q: p - q, lambda p, q: p - q),
        "*": (lambda p, q: p * q, lambda p, q: p * q),
        "min": (minimum, min),
        "max": (maximum, max),
    }
    build, meaning = made[op]
    return build(x, y), lambda v: meaning(f(v), g(v))


def _divide(op: str, a: Case, n: int) -> Case:
    x, f = a
    if op == "//":
        return floordiv(x, n), lambda v: f(v) // n
    return mod(x, n), lambda v: f(v) % n


cases = st.recursive(
    st.one_of(st.sampled_from([X, J, B]), st.integers(-5, 20)).map(_leaf),
    lambda c: st.one_of(
        st.builds(_combine, st.sampled_from(["+", "-", "*", "min", "max"]), c, c),
        st.builds(_divide, st.sampled_from(["//", "%"]), c, st.integers(1, 12)),
    ),
    max_leaves=6,
)
points = st.builds(lambda i, j, b: {X: i, J: j, B: b}, st.integers(0, 3), st.integers(0, 15), st.integers(1, 40))


@given(cases, points)
def test_simplified_expression_keeps_its_value_and_bounds(case: Case, point: Values) -> None:
    expr, meaning = case
    value = meaning(point)
    assert evaluate(expr, point) == value
    lo, hi = bounds(expr)
    assert (lo is None or lo <= value) and (hi is None or value <= hi)


@given(cases)
def test_text_round_trip(case: Case) -> None:
    assert parse(to_text(case[0]), NAMES.__getitem__) == case[0]


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        ((X * 16 + J) // 16, "i"),
        ((X * 16 + J) % 16, "j"),
        ((X * 16 + J + 8) // 16, "i + ((j + 8) // 16)"),
        ((6 * X + 4 * J + 7) // 8, "(3*i + 2*j + 3) // 4"),
        ((B * 16 + J) // 80, "B // 5"),  # a place in a run of 16, of which five are one
        ((B * 16 + J) % 80, "j + 16*(B % 5)"),
        ((B * 4 + B) // B, "5"),
        (ceildiv(B, 1), "B"),
        (minimum(X, 3), "i"),
        (maximum(B, 1), "B"),
        (B - B % 4, "4*(B // 4)"),
        (((B + 1) // 2 + 1) // 2, "(B + 3) // 4"),
        (B + (-(B % 4)) % 4, "-4*((-B) // 4)"),
        ((B + -B % 4) // ((B + -B % 4) // 4) * ((B + -B % 4) // 4), "-4*((-B) // 4)"),
    ],
)
def test_simplification(expr: Dim, text: str) -> None:
    assert to_text(expr) == text


@given(st.integers(-5, 5), st.lists(st.tuples(cases, st.integers(-3, 3)), max_size=4), cases)
def test_a_sum_put_in_order_once_is_the_sum_of_its_parts(
    const: int, parts: list[tuple[Case, int]], other: Case
) -> None:
    """Whatever meets on the way: a remainder and its dividend become a quotient, what cancels may come back."""
    total: Dim = const
    for (x, _), coef in [*parts, (other, 1), (other, -1)]:
        total = total + x * coef
    whole = [(x, coef) for (x, _), coef in [*parts, (other, 1), (other, -1)]]
    assert weighted_sum(const, whole) == total


def test_substitute_and_symbols() -> None:
    e = (X * B + J) // 4
    assert symbols(e) == {X, J, B}
    assert substitute(e, {B: 4}) == X + J // 4


@pytest.mark.parametrize("expr", [X, X + 2 * J, X * B])
def test_an_expression_can_be_copied(expr: Dim) -> None:
    assert symbols(expr)  # which the expression remembers
    assert copy.deepcopy(expr) == expr


def test_truth_of_an_expression_is_refused() -> None:
    with pytest.raises(TypeError, match="unknown"):
        bool(B - 1)


@pytest.mark.parametrize("text", ["1 / 2", "a.b", "f(1)", "1 if 2 else 3", "(1", "B // 0"])
def test_parse_refuses_everything_else(text: str) -> None:
    with pytest.raises(ValueError, match="integer expression"):
        parse(text, lambda n: B)


def test_quotients_of_polynomials() -> None:
    """SEW-D's sizes, ``s * (q - 1)**2 // (q - 1)**2`` where ``q`` is a quotient itself."""
    q = floordiv(B + 20, 40)
    square = (q - 1) * (q - 1)
    assert floordiv(B * square * 4, square * 4) == B
    assert floordiv((B + X) * (B - X + 3), B + X) == B - X + 3
    assert mod((B + J) * (X + 1), B + J) == 0
    rest = floordiv((B + X) * 3 + 1, B + X)
    assert all(evaluate(rest, {B: b, X: x}) == 3 + 1 // (b + x) for b in (1, 2, 5) for x in (0, 3))


def test_largest_value_up_to_a_cap() -> None:
    """Quotients grow as their divisors shrink: a capacity at the caps alone would be too small."""
    n, k = Sym("n", 1), Sym("k", 0)
    caps = {k: n * 3}
    for e in (k + 2, 40 - k, floordiv(n * 12, k), floordiv(n * 12, k * k) * k, mod(n * 7, k), minimum(k, 5), n - 1):
        bound = largest(e, caps)
        assert not symbols(bound) & {k}
        for size in (1, 2, 5):
            reached = [evaluate(e, {n: size, k: x}) for x in range(1, 3 * size + 1)]
            assert max(reached) <= evaluate(bound, {n: size})


@given(cases, cases, st.sampled_from([1, -1]), points)
def test_largest_value_of_parts_that_may_be_negative(a: Case, b: Case, sign: int, point: Values) -> None:
    """``-(-n // k)`` rounds up: a quotient of what is negative is largest in size where its divisor is least."""
    e = floordiv(a[0], maximum(b[0], 1)) * b[0] * sign
    assert evaluate(e, point) <= evaluate(largest(e, {X: B + 2, J: 15}), {B: point[B]})
