"""Integer expressions of manifests: what they mean, what they solve for, what they refuse."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from test_system import run_python
from tilewright.runtime.expressions import parse_rule, parse_size

NAMES = {"a": 7, "b": 3, "long_name_1": 12}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("a", 7),
        (" a*b - 1 ", 20),
        ("-a // b", -3),
        ("-a % b", 2),
        ("-(-a // b)", 3),
        ("min(a, b, 5) + max(a, long_name_1)", 15),
        ("2*(a + b)*a", 140),
    ],
)
def test_value(text: str, value: int) -> None:
    assert parse_size(text).value(NAMES) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("a > b", 1), ("a % 2 == 0", 0), ("b < a < 10", 1), ("a == 7 and not b == 3", 0), ("a != 7 or b <= 3", 1)],
)
def test_rule(text: str, value: int) -> None:
    assert parse_rule(text).value(NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "a b", "a +", "a ** 2", "a / 2", "1.5", "True", "'a'", "f(a)", "min()", "max(a, key=b)", "a.b", "a[0]",
        "(a := 1)", "lambda: 1", "[a]", "a if b else 1", "__import__('os')", "a and b", "a < b", "min", "a\0",
        "~a", "+a", "9" * 30, "(" * 300 + "a" + ")" * 300, "-" * 3000 + "a", "a" + "+a" * 3000, "a, b", "*a",
        "min(*a)",
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.text(max_size=40) | st.text("ab1+-*/%()<>=, minax", max_size=40))
def test_any_text_parses_or_is_a_value_error(text: str) -> None:
    for parse in (parse_size, parse_rule):
        try:
            expr = parse(text)
        except ValueError:
            continue
        with contextlib.suppress(ZeroDivisionError):
            assert isinstance(expr.value(dict.fromkeys(expr.symbols, 3)), int)


@given(st.integers(-50, 50).filter(bool), st.integers(-1000, 1000), st.integers(0, 1000), st.integers(1, 9))
def test_solves_lines(a: int, b: int, s: int, m: int) -> None:
    expr = parse_size(f"{a}*s + {b}*m - (3 - 2*m) // 2 - min(m, 5)")
    result = expr.value({"s": s, "m": m})
    assert expr.is_line("s") and not expr.is_line("m")
    assert expr.solve("s", result, {"m": m}) == s
    assert expr.solve("s", result + 1, {"m": m}) is None or abs(a) == 1


def test_nothing_but_a_line_is_solved() -> None:
    for text in ("s*s", "s // 2", "min(s, 4)", "m // s", "0*s + 3", "s - s"):
        assert parse_size(text).solve("s", 3, {"m": 6}) is None


PARSING = """
    import gc, sys, threading, time
    from tilewright.core.expr import Sym, parse
    from tilewright.runtime.expressions import parse_rule, parse_size

    sys.setswitchinterval(1e-6)
    gc.set_threshold(3)
    gc.callbacks.append(lambda phase, info: time.sleep(0))  # another thread's turn, in the middle of a tree
    problems, start = [], threading.Barrier(4)
    text = "(n + 1) * (m + 2) // (k * (n + 3) + 1)"

    def at_depth(depth):  # of which Python counts from
        if depth:
            return at_depth(depth - 1)
        parse_size(text), parse_rule(f"{text} < n"), parse(text, Sym)

    def reader(k):
        start.wait()
        try:
            for _ in range(40):
                at_depth(k)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=reader, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(problems)
"""


def test_threads_that_parse_at_once() -> None:
    assert run_python(PARSING).strip() == "[]"
