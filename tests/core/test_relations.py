"""Rules that callers read, from expressions that must be ``>= 0``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.core.expr import Dim, Expr, Sym, evaluate, maximum, minimum
from tilewright.core.relations import rules_of
from tilewright.runtime.expressions import parse_rule

N = Sym("n", 0)


def rules(*constraints: Dim) -> list[str]:
    return rules_of(c for c in constraints if isinstance(c, Expr))


def test_of_bounds_of_one_size_the_narrowest_is_a_rule() -> None:
    assert rules(N - 6, 40 - N, N - 8, 50 - N) == ["n >= 8", "n <= 40"]
    assert rules(N - 6, N - 8, 8 - N) == ["n == 8"]


def test_a_number_that_always_holds_is_no_rule() -> None:
    assert rules(minimum(3, 8 - N)) == ["n <= 8"]
    assert rules(maximum(-1, N - 8)) == ["n >= 8"]


@given(st.lists(st.tuples(st.sampled_from([1, -1, 2]), st.integers(-9, 9), st.integers(-3, 3)), min_size=1, max_size=4))
def test_rules_hold_where_every_expression_does(parts: list[tuple[int, int, int]]) -> None:
    made = [e for a, b, c in parts for e in (a * N + b, minimum(c, a * N + b), maximum(c, b - a * N))]
    spelled = [parse_rule(rule) for rule in rules(*made)]
    given_ones = [e for e in made if isinstance(e, Expr)]
    for n in range(0, 12):
        assert all(rule.value({"n": n}) for rule in spelled) == all(evaluate(e, {N: n}) >= 0 for e in given_ones)
