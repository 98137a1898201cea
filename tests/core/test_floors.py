"""Sums of quotients with fewer terms keep their value; halves, thirds and so on are found to be what they are."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.expr import Dim, Sym, ceildiv, evaluate, terms_of
from tilewright.core.floors import simplest

N, M = Sym("n", 1), Sym("m", 1)


@st.composite
def sums(draw: st.DrawFn) -> Dim:
    """Sums of symbols and of quotients of few divisors, so that identities apply."""
    divisor = draw(st.integers(2, 5))
    total: Dim = draw(st.integers(-3, 3)) * N + draw(st.integers(-2, 2)) * M
    for _ in range(draw(st.integers(1, 5))):
        of = draw(st.integers(-3, 5)) * N + draw(st.sampled_from((0, 0, 1, -1, 2))) * M + draw(st.integers(-4, 6))
        total = total + draw(st.sampled_from((1, -1, 1, -1, 2))) * (of // draw(st.sampled_from((divisor, 2))))
    return total


@given(sums())
def test_the_value_stays(e: Dim) -> None:
    check_value(e)


@pytest.mark.slow
@settings(max_examples=500)
@given(sums())
def test_500_values_stay(e: Dim) -> None:
    check_value(e)


def check_value(e: Dim) -> None:
    shorter = simplest(e)
    assert len(terms_of(shorter)) <= len(terms_of(e))
    for n, m in itertools.product(range(1, 25), (1, 2, 3, 7)):
        assert evaluate(shorter, {N: n, M: m}) == evaluate(e, {N: n, M: m}), (e, shorter, n, m)


@pytest.mark.parametrize("b", range(2, 8))
def test_parts_of_a_size(b: int) -> None:
    """What is left of a size beside a rounded part of it is rounded the other way; all parts are the whole."""
    for k, d in itertools.product(range(1, b), range(b)):
        part = (k * N + d) // b
        rest = ((b - k) * N + b - 1 - d) // b
        assert simplest(part + rest) == N
        assert simplest(N - part) == simplest(rest)
        assert simplest(2 * N - part - rest) == N
    assert simplest(sum(((N + k) // b for k in range(b)), start=0)) == N
    assert simplest(N - sum(((N + k) // b for k in range(b - 1)), start=0)) == (N + b - 1) // b
    assert simplest(N - ceildiv(N, 2)) == N // 2
    assert simplest(N + M - (N + M + 1) // 2) == (N + M) // 2
