"""Random steps of any primitive never change what a kernel computes (``python -m fuzz --suite schedules`` has more)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import fuzz_schedules
import tilewright as tw
from language.test_schedules import product
from tilewright import lang as tl
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kernel, Prefetch, walk
from tilewright.tile.lower import lower
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.script import PRIMITIVES


def test_no_schedule_changes_a_result() -> None:
    assert Counter(map(fuzz_schedules.check, range(40)))["passed"] > 30


def test_a_wrong_primitive_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that forgets the last statement of a kernel."""

    def forgets(kernel: Kernel, *args: Any) -> Kernel:
        return replace(kernel, body=kernel.body[:-1])

    forgetful: Any = forgets

    monkeypatch.setattr(fuzz_schedules, "PRIMITIVES", {"split": PRIMITIVES["split"]})
    monkeypatch.setattr(fuzz_schedules, "STEPS_OF_CPUS", ("split",))
    monkeypatch.setitem(PRIMITIVES, "split", forgetful)
    monkeypatch.setattr(fuzz_schedules, "drawn_step", lambda random, kernel: ("split", ["i", 2]))
    with pytest.raises(AssertionError):
        for seed in range(5):
            fuzz_schedules.check(seed)


def test_every_primitive_of_cpus_is_drawn_and_most_are_legal_somewhere() -> None:
    taken: Counter[str] = Counter()
    for seed in range(120):
        taken.update(step.primitive for step in fuzz_schedules.scheduled(Random(seed))[0].schedule.steps)
    assert set(taken) <= set(fuzz_schedules.STEPS_OF_CPUS) and len(taken) > 12


# --- what random steps found ----------------------------------------------------------------------------------------


@tw.kernel
def grown(x: tl.f64("n")) -> Any:
    """Every round sees what the one before has left."""
    y = x.copy()
    for _ in tl.loop(4):
        for i in tl.loop(x.shape[0]):
            y[i] = y[i] / (1 + y[i])
    return y


@tw.kernel
def halves(x: tl.f64("n", "n")) -> Any:
    """Two nests that can be one; then a reader of each."""
    n = x.shape[0]
    a = tl.zeros(n, tl.f64)
    b = tl.zeros(n, tl.f64)
    for i in tl.loop(n):
        a[i] = x[i, 0]
    for j in tl.loop(n):
        b[j] += x[0, j]
    return tl.compute(n, lambda p: a[p] + 1), tl.compute(n, lambda q: b[q] + 1)


@tw.kernel
def below(x: tl.f64("n", "n")) -> Any:
    """A triangle without its diagonal: the first row has no iteration."""
    n = x.shape[0]
    y = tl.zeros(n, tl.f64)
    for i in tl.loop(n):
        for _ in tl.loop(i):
            y[i] += x[i - 1, 0]
    return y


def refused(kernel: tw.UserKernel, *steps: tuple[Any, ...], rule: str) -> None:
    builder = ScheduleBuilder(lower(kernel.traced().computation, "k"))
    for step in steps[:-1]:
        builder.do(*step)
    with pytest.raises(ScheduleError, match=rule):
        builder.do(*steps[-1])


def test_a_shifted_tile_repeats_no_step_that_sees_the_one_before() -> None:
    refused(grown, ("split", "_", 3, "shift"), rule="reads y, which other iterations write")


def test_a_nest_that_changes_two_sums_does_not_run_twice() -> None:
    refused(halves, ("merge", "i", "j"), ("fork", "a", "p"), rule="what makes it changes b too")


@tw.kernel
def twice(x: tl.f64("n")) -> Any:
    """A tensor that is read, and then written again."""
    (n,) = x.shape
    a = tl.compute(n, lambda i: x[i] + 1)
    b = tl.compute(n, lambda i: a[i] * 2)
    for j in tl.loop(n):
        a[j] = b[j]
    return tl.compute(n, lambda i: a[i] + b[i])


def test_what_is_read_between_its_nests_is_not_written_back_at_the_end() -> None:
    refused(twice, ("cache", "a"), rule="read before the last nest that writes it")


def test_a_copy_reads_nothing_that_a_guard_or_an_empty_loop_keeps_out() -> None:
    refused(below, ("stage", "x", "i_1"), rule="a guard keeps its reads inside")
    refused(product, ("split", "p", 4, "guard"), ("stage", "a", "p_i"), rule="a guard keeps its reads inside")


@pytest.mark.parametrize("step", [("prefetch", "a", "i", "p", 0), ("hint", "a", "p", 0), ("stream", "a", "p", 1, -1)])
def test_a_line_of_the_cache_has_an_element(step: tuple[Any, ...]) -> None:
    refused(product, step, rule="a cache line has an element or more")


def test_updates_whose_number_changes_are_not_kept_in_registers() -> None:
    steps = [("rfactor", "result", "p", 2, 4, "p"), ("kind", "p_v_l", "vector")]
    refused(product, *steps, ("accumulate", "result_p", "p_v"), rule="how many elements are updated changes")


@tw.kernel
def separate(x: tl.f64("n")) -> Any:
    """Two sums that nothing joins."""
    (n,) = x.shape
    a = tl.zeros(n, tl.f64)
    for i in tl.loop(n):
        a[i] += x[i]
    b = tl.zeros(n, tl.f64)
    for j in tl.loop(n):
        b[j] += x[j]
    return tl.compute(n, lambda p: a[p] + 1), tl.compute(n, lambda q: b[q] + 1)


def test_a_nest_that_another_changed_since_does_not_run_again() -> None:
    """Merged, the zeros of ``a`` are stored where those of ``b`` are, and again they would undo the sum of ``a``."""
    refused(separate, ("merge", "i0", "i0_1"), ("fork", "b", "q"), rule="a changes while it is made")


def test_what_has_no_bound_by_its_extent_is_not_copied() -> None:
    refused(fuzz_schedules.chain, ("ring", "b", "c_2"), ("kind", "b1_0", "unroll"), rule="a known bound")


@tw.kernel
def columns(x: tl.f64("n", "n")) -> Any:
    """Two loops of a row that read one element of it."""
    n = x.shape[0]
    y = tl.zeros(n, tl.f64)
    for i in tl.loop(n):
        for _ in tl.loop(n):
            y[i] += x[i, 0]
        for _ in tl.loop(n):
            y[i] += x[i, 0]
    return y


def test_a_loop_that_does_not_walk_what_another_reads_asks_for_nothing() -> None:
    refused(columns, ("prefetch", "x", "i", "__1", 8), rule="the panel's size is not known")


def test_no_hint_asks_for_lines_of_registers() -> None:
    in_registers = [("rfactor", "result", "p", 2, 4, "p")]
    refused(product, *in_registers, ("hint", "result_p", "p_v", 4), rule="does not lie in memory")


def test_what_comes_into_registers_is_asked_for_no_more() -> None:
    builder = ScheduleBuilder(lower(product.traced().computation, "k"))
    for step in (("stream", "a", "p", 0, 8), ("stage", "a", "p", "reg")):
        builder.do(*step)
    assert not any(isinstance(s, Prefetch) for s in walk(builder.kernel.body))
