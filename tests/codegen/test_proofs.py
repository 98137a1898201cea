"""What is known of index expressions while a kernel is emitted: bounds under bindings, remembered by part."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.codegen.llvm.index import IndexSpace
from tilewright.codegen.llvm.writer import Writer
from tilewright.core.expr import Atom, Dim, Expr, Interval, Sym, bounds, bounds_by_parts, maximum, minimum

N, A, B = Sym("n", 1, None), Sym("a", 0, None), Sym("b", 0, None)
BOUND = {A: (2, 9), B: (0, 30)}


def space() -> IndexSpace:
    """One in which ``a`` and ``b`` are variables of run-time loops."""
    made = IndexSpace(Writer())
    for sym, interval in BOUND.items():
        made.bind_run(sym, f"%{sym.name}", 1, interval)
    return made


@pytest.mark.parametrize(
    "e",
    [A * 3 - B, (A * 5 + B) // 4, (B - A) % 6, A * B, (B - 3) * A, minimum(A * 4, B + N), maximum(B, A * 2) // (A + 1),
     (N + B) // N, A % (B + 1) * -2],
    ids=str,
)  # fmt: skip
def test_bounds_are_those_by_the_intervals_of_the_symbols(e: Expr) -> None:
    assert space().bounds(e) == bounds(e, BOUND)


def test_bounds_follow_a_symbol_that_is_bound_anew() -> None:
    made, e = space(), (A * 5 + B) // 4
    first = made.bounds(e)
    made.bind_run(A, "%a", 1, (0, 1))
    assert made.bounds(e) == bounds(e, {**BOUND, A: (0, 1)}) != first
    made.unbind(A)
    assert made.bounds(e) == bounds(e, {B: BOUND[B]})


def test_each_part_of_an_expression_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, looked_at = space(), list[Atom]()

    def counted(atom: Atom, of: Callable[[Dim], Interval]) -> Interval:
        if getattr(of, "__self__", None) is made:
            looked_at.append(atom)
        return bounds_by_parts(atom, of)

    e: Dim = A + B
    for n in range(5):  # 2**5 ways from the whole to its symbols
        e = (e + n) // 3 + (e * 5 + N) % 7
    monkeypatch.setattr("tilewright.core.expr.bounds_by_parts", counted)
    assert made.bounds(e) == made.bounds(e + 1 - 1)
    assert looked_at and len(looked_at) == len(set(looked_at))


def test_equal_expressions_are_decided_once() -> None:
    made = space()
    found = [made.resolve(minimum(B * 2 + k, N + B) + 1) for k in (3, 3)]
    assert found[0] is found[1]
