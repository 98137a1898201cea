"""What is wrong with programs over blocks is said with the line, the rule and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tilewright import lang as tl


def shifted(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.store(out, at, tl.load(x, at + 1, mask=at < x.shape[0]), mask=at < x.shape[0])


def unmasked(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.store(out, at, tl.load(x, at), mask=at < x.shape[0])


def mask_of_another_shape(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.load(x, at, mask=tl.arange(0, 4) < 3)


def larger_mask(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.load(x, at, mask=at[:, None] < 3)


def race(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.store(out, tl.arange(0, 8), tl.arange(0, 8).cast(tl.f32))


def race_of_lanes(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.store(out, pid, tl.load(x, at, mask=at < x.shape[0]))


def race_of_blocks(x: Any, out: Any, pid: Any, at: Any) -> None:
    at = pid * 4 + tl.arange(0, 8)
    tl.store(out, at, tl.load(x, at, mask=at < x.shape[0]), mask=at < x.shape[0])


def two_stores(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.store(out, at, 0.0, mask=at < x.shape[0])
    tl.store(out, at + 1, 0.0, mask=at + 1 < x.shape[0])


def read_and_written(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.store(out, at, tl.load(out, at, mask=at < x.shape[0]), mask=at < x.shape[0])


def an_argument(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.store(x, at, 0.0, mask=at < x.shape[0])


def no_constant(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.arange(0, x.shape[0])


def mismatched_dot(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.dot(tl.zeros((4, 3)), tl.zeros((2, 4)))


def other_shapes(x: Any, out: Any, pid: Any, at: Any) -> None:
    at + tl.arange(0, 3)


def gathered(x: Any, out: Any, pid: Any, at: Any) -> None:
    tl.load(x, tl.load(x, at, mask=at < x.shape[0]).cast(tl.i64))


def a_number_changes(x: Any, out: Any, pid: Any, at: Any) -> None:
    count = 0
    for _ in tl.range(4):
        count = count + 1


def another_type(x: Any, out: Any, pid: Any, at: Any) -> None:
    total = tl.zeros(8)
    for _ in tl.range(4):
        total = (total + 1.0).cast(tl.f64)


def a_loop_left(x: Any, out: Any, pid: Any, at: Any) -> None:
    for _ in tl.range(4):
        break


def after_its_loop(x: Any, out: Any, pid: Any, at: Any) -> None:
    for k in tl.range(4):
        last = k + at
    tl.store(out, at, last.cast(tl.f32), mask=at < x.shape[0])


def by_truth(x: Any, out: Any, pid: Any, at: Any) -> None:
    if pid == 0:
        tl.store(out, at, 0.0)


def an_element(x: Any, out: Any, pid: Any, at: Any) -> None:
    out[0] = 1.0


CASES: list[tuple[Callable[..., None], str]] = [
    (shifted, "may be over the last"),
    (unmasked, "may be over the last|is one of n"),
    (mask_of_another_shape, r"a mask and indices of blocks of \(4,\) and \(8,\)"),
    (larger_mask, r"a mask of \(8, 1\) for indices of \(8,\)"),
    (race, "iterations 0 and 1 of pid store to the same place of out"),
    (race_of_lanes, "a value of"),
    (race_of_blocks, "nothing proves that programs store to different places"),
    (two_stores, "two stores to out, at .*may meet"),
    (read_and_written, "stored to by programs that also load it, at "),
    (an_argument, "x is an argument"),
    (no_constant, "no constant"),
    (mismatched_dot, r"dot of blocks of \(4, 3\) and \(2, 4\)"),
    (other_shapes, r"add of blocks of \(8,\) and \(3,\)"),
    (gathered, "an index that the data choose"),
    (a_number_changes, "count changes in the loop"),
    (another_type, "total is f64 before an iteration|total is f32"),
    (a_loop_left, "a loop ends before its last iteration"),
    (after_its_loop, "has ended"),
    (by_truth, "no one truth"),
    (an_element, "a store of an element within programs"),
]


@pytest.mark.parametrize(("body", "rule"), CASES, ids=[body.__name__ for body, _ in CASES])
def test_what_is_refused(body: Callable[..., None], rule: str) -> None:
    @tw.kernel
    def kernel(x: tl.f32("n")):
        (n,) = x.shape
        out = tl.zeros(n)
        for pid in tl.programs(tl.cdiv(n, 8)):
            body(x, out, pid, pid * 8 + tl.arange(0, 8))
        return out

    if body is unmasked:
        kernel.graph()  # asks its callers for sizes that are whole blocks
        return
    with pytest.raises(tw.CompileError, match=rule) as caught:
        kernel.graph()
    (problem,) = caught.value.problems
    assert problem.remedy or problem.rule
    first = body.__code__.co_firstlineno
    assert body is a_loop_left or first < problem.loc.line <= first + 5, problem


def test_words_outside_of_programs() -> None:
    with pytest.raises(tw.CompileError, match="stands outside of programs"):
        tw.kernel(lambda x: tl.load(x, 0)).graph(tl.f32("n"))
    with pytest.raises(tw.CompileError, match="outside of a kernel"):
        tl.arange(0, 4)
