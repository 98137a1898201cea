"""The arena plan: nothing alive at once overlaps, and the arena stays near the bound that no plan can beat."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.core.expr import Dim, Sym, evaluate, floordiv, mod
from tilewright.partition import memory
from tilewright.partition.memory import MemoryPlan, Storage, plan_memory
from tilewright.target.target import Target

B = Sym("B", 1)
lives = st.tuples(st.integers(0, 12), st.integers(0, 5))
static_sizes = st.integers(0, 4096)
symbolic_sizes = st.one_of(static_sizes, st.builds(lambda k, c: B * k + c, st.integers(1, 64), st.integers(0, 256)))


def _storages(sizes: list[tuple[Dim, tuple[int, int]]]) -> list[Storage]:
    return [Storage(n, first, first + length) for n, (first, length) in sizes]


def _check(storages: list[Storage], plan: MemoryPlan, values: dict[Sym, int]) -> None:
    placed = [(evaluate(o, values), evaluate(s.n_bytes, values)) for o, s in zip(plan.offsets, storages, strict=True)]
    total = evaluate(plan.n_bytes, values)
    for (at, n), s in zip(placed, storages, strict=True):
        assert at % 64 == 0 and at >= 0 and at + n <= total
        for (other, m), t in zip(placed, storages, strict=True):
            if s is not t and s.first <= t.last and t.first <= s.last and n and m:
                assert at + n <= other or other + m <= at


@given(st.lists(st.tuples(static_sizes, lives), max_size=12))
def test_static_plan_never_overlaps(sizes: list[tuple[Dim, tuple[int, int]]]) -> None:
    storages = _storages(sizes)
    plan = plan_memory(storages)
    _check(storages, plan, {})
    assert plan.lower_bound is not None and evaluate(plan.n_bytes, {}) >= plan.lower_bound


@given(st.lists(st.tuples(symbolic_sizes, lives), max_size=10), st.integers(1, 50))
def test_symbolic_plan_never_overlaps(sizes: list[tuple[Dim, tuple[int, int]]], batch: int) -> None:
    storages = _storages(sizes)
    _check(storages, plan_memory(storages), {B: batch})


def test_sizes_that_have_no_value_where_all_symbols_are_equal() -> None:
    """The planner weighs sizes by guesses, and its guess for two symbols may be one number."""
    apart, parts = B - Sym("C"), B * 64
    storages = [Storage(64 * n, k, k + 1) for k, n in enumerate((floordiv(parts, apart), parts, mod(parts, apart)))]
    _check(storages, plan_memory(storages), {B: 7, Sym("C"): 2})


def test_a_chain_needs_two_buffers() -> None:
    storages = [Storage(1024, k, k + 1) for k in range(20)]
    plan = plan_memory(storages)
    assert plan.n_bytes == 2048 == plan.lower_bound


def test_a_symbolic_chain_needs_two_buffers() -> None:
    storages = [Storage(B * 64, k, k + 1) for k in range(20)]
    assert plan_memory(storages).n_bytes == B * 128


def test_a_symbolic_plan_fills_gaps_as_a_static_one_does() -> None:
    """A large value's place is free again for two small ones, though a small one that lives on is born between."""
    sizes = [(8, 0, 1), (2, 1, 9), (4, 2, 9), (4, 2, 9)]
    storages = [Storage(B * 64 * n, first, last) for n, first, last in sizes]
    assert plan_memory(storages).n_bytes == B * 640
    assert plan_memory([Storage(64 * n, first, last) for n, first, last in sizes]).n_bytes == 640


def test_large_storages_alive_at_once_begin_in_different_sets() -> None:
    target = Target.parse("x86-64-v3")
    storages = [Storage(64 << 10, k, k + 2) for k in range(9)]
    plan = plan_memory(storages, target)
    _check(storages, plan, {})
    at = [evaluate(o, {}) % target.set_span for o in plan.offsets]
    assert all(at[k] != at[j] for k in range(9) for j in range(k + 1, min(k + 3, 9)))
    least = 3 * (64 << 10)
    assert least < evaluate(plan.n_bytes, {}) <= least + 3 * target.set_span


@given(st.lists(st.tuples(st.integers(0, 40).map(lambda n: n << 12), lives), max_size=12))
def test_plans_with_gaps_never_overlap_and_cost_little(sizes: list[tuple[Dim, tuple[int, int]]]) -> None:
    target, storages = Target.parse("x86-64-v3"), _storages(sizes)
    plan, plain = plan_memory(storages, target), plan_memory(storages)
    _check(storages, plan, {})
    assert evaluate(plan.n_bytes, {}) <= evaluate(plain.n_bytes, {}) + len(storages) * target.set_span


def test_small_storages_and_small_machines_have_no_gaps() -> None:
    small, large = ([Storage(n << 10, k, k + 1) for k in range(4)] for n in (4, 64))
    assert plan_memory(small, Target.parse("x86-64-v3")).n_bytes == 8 << 10
    assert plan_memory(large, Target.parse("cortex-m4")).n_bytes == 128 << 10


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=8), st.integers(0, 9))
def test_free_places_meet_no_span(spans: list[tuple[int, int]], size: int) -> None:
    ends = [(lo, lo + n) for lo, n in spans]
    is_free = memory._free_places(ends, size)
    for at in range(60):
        assert is_free(at) == all(hi <= at or at + size <= lo for lo, hi in ends)
