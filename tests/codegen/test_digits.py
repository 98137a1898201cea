"""Quotients and remainders that a loop carries from turn to turn, against those that are divided out."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, kernel
from codegen.test_loops import agree, i64, loop
from tilewright.codegen.cpu import llvm
from tilewright.core.compute import Buffer, Index
from tilewright.core.expr import Sym, floordiv, mod
from tilewright.target.target import Target
from tilewright.tile.ir import Store

N = 40
DIVISION = re.compile(r"\b([us]div|[us]rem)\b")
WIDTHS = [HOST, Target.parse("x86-64")]


@st.composite
def places(draw):
    """Digits of a number of two loops, one within the other: ``(a k + b r + c) // unit % size``, written in any way."""
    k, r = Sym("k", 0, N - 1), Sym("r", 0, 2)
    number = k * draw(st.integers(1, 9)) + r * draw(st.integers(0, 9)) + draw(st.integers(0, 9))
    unit, size = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    forms = [
        floordiv(number, unit),
        mod(number, size),
        mod(floordiv(number, unit), size),
        floordiv(mod(number, unit * size), unit),
        mod(number, unit * size) - mod(number, unit),
        mod(number * unit, size) * 3 + floordiv(number, unit),
    ]
    return k, r, draw(st.sampled_from(forms))


@given(places(), st.booleans(), st.sampled_from(WIDTHS))
@settings(max_examples=20)
def test_digits_of_a_loop_are_those_of_a_division(place, is_symbolic, target):
    k, r, index = place
    n = Sym("n", 1) if is_symbolic else N
    y = Buffer("y", i64, (3, n))
    tree = kernel([loop(r, 3, loop(k, n, Store(y, (r, k), Index(index))))], y, sizes=(n,) if is_symbolic else ())
    for size in (1, 2, N) if is_symbolic else (None,):
        agree(tree, target, sizes=() if size is None else (size,))


def test_the_innermost_loop_divides_once_before_it_begins():
    """All of its digits: the remainder, the quotient, and the quotient's remainder."""
    y, k, r = Buffer("y", i64, (3, N, 3)), Sym("k", 0, N - 1), Sym("r", 0, 2)
    number = k + r + 5
    stores = [Store(y, (r, k, j), Index(e)) for j, e in enumerate((mod(number, 7), mod(floordiv(number, 7), 6), k))]
    tree = kernel([loop(r, 3, loop(k, N, *stores))], y)
    agree(tree)
    before, inside = re.split(r"^loop.*:", llvm.emit(tree, HOST).text, flags=re.MULTILINE)[-2:]
    assert DIVISION.search(before) and not DIVISION.search(inside)


def test_a_loop_around_others_carries_none():
    y, k, r = Buffer("y", i64, (N, 3)), Sym("k", 0, N - 1), Sym("r", 0, 2)
    tree = kernel([loop(k, N, loop(r, 3, Store(y, (k, r), Index(mod(k, 7) + r))))], y)
    agree(tree)
    assert DIVISION.search(llvm.emit(tree, HOST).text)
