"""What is asked of a ``Dim``: a number answers as numbers do, and what is no number is never said to be known."""

import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.core import dims
from tilewright.core.dims import are_known, divisor, is_known, known, known_multiple, numbers
from tilewright.core.expr import Dim, Sym, floordiv, minimum

N = Sym("n", 1, 8)
UNKNOWN = (N, 2 * N + 1, floordiv(N, 3), minimum(N, 4), None)
COMPARISONS = {
    "known_over": operator.gt,
    "known_under": operator.lt,
    "known_at_least": operator.ge,
    "known_at_most": operator.le,
}


def test_dims_are_numbers_or_known_at_run_time() -> None:
    assert (known(5, 1), known(N, 1), known(N + 1, None), known(None, -1)) == (5, 1, None, -1)
    assert is_known(0) and not any(is_known(d) for d in UNKNOWN)
    assert are_known((1, 2)) and are_known(()) and not are_known((1, N)) and not are_known((None,))
    assert is_known(N - N + 3), "an expression without symbols is a number"


@pytest.mark.parametrize("name", COMPARISONS)
@given(d=st.integers(), n=st.integers() | st.floats(allow_nan=False))
def test_numbers_compare_as_numbers_and_expressions_never(name: str, d: int, n: float) -> None:
    """Not even one whose bounds would prove it, as ``n`` in 1 to 8 is under 9."""
    compare: Callable[[Dim | None, float], bool] = getattr(dims, name)
    assert compare(d, n) == COMPARISONS[name](d, n)
    assert not any(compare(e, 9) or compare(e, 0) or compare(e, n) for e in UNKNOWN)


@given(d=st.integers(), n=st.integers(1, 99))
def test_multiples_are_of_numbers(d: int, n: int) -> None:
    assert known_multiple(d * n, n) and known_multiple(d, n) == (d % n == 0)
    assert not any(known_multiple(e, 1) for e in UNKNOWN)


@given(st.lists(st.integers() | st.sampled_from(UNKNOWN)))
def test_numbers_are_left_in_their_order(given_dims: list[Dim | None]) -> None:
    assert numbers(given_dims) == [d for d in given_dims if d not in UNKNOWN]
    assert are_known(given_dims) == (len(numbers(given_dims)) == len(given_dims))


def test_what_divides_a_number_that_only_a_call_knows() -> None:
    m = Sym("m")
    wanted: dict[Dim, int] = {12: 12, 0: 0, N: 1, N * 6 + 9: 3, N * 4 - m * 6: 2, floordiv(N, 2) * 8: 8}
    assert {e: divisor(e) for e in wanted} == wanted
