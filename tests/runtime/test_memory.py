"""Memory of results: used again when nobody holds it, never while anybody does."""

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from runtime.tiny import scale_model
from tilewright.runtime.plan import OutputPlan
from tilewright.runtime.python.memory import RECYCLED_FROM, ResultPool
from tilewright.runtime.values import ALIGNMENT, Array, address_of

LARGE = 4 * RECYCLED_FROM


def outputs(*sizes: int) -> list[OutputPlan]:
    return [OutputPlan(np.dtype(np.uint8), (n,), n, None) for n in sizes]


def test_memory_of_a_dropped_result_is_used_again() -> None:
    model, x = scale_model(), np.ones((LARGE // 8, 4), np.float32)
    first = address_of(model(x))
    assert [address_of(model(x)) for _ in range(5)] == [first] * 5


def test_results_that_are_the_next_calls_inputs_take_turns() -> None:
    model = scale_model()
    result, addresses = model(np.ones((LARGE // 8, 4), np.float32)), []
    for _ in range(6):
        result = model(result)
        addresses.append(address_of(result))
    assert len(set(addresses)) == 2
    assert addresses[::2] == addresses[:1] * 3


class _Split(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x * k for k in range(6))


def test_many_results_of_one_call_are_all_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the caches that a decoder's step returns; also after others were held for good."""
    made = list[int]()
    new = ResultPool._new
    monkeypatch.setattr(ResultPool, "_new", lambda pool, n, most: (made.append(n), new(pool, n, most))[1])
    x = np.ones((LARGE // 4,), np.float32)
    model = tw.compile(_Split(), (torch.from_numpy(x),), threads=1)
    held = [model(x) for _ in range(3)]
    model(x)
    at_first = len(made)
    for k in range(20):
        np.testing.assert_array_equal(model(x)[5], 5 * x, err_msg=str(k))
    assert len(made) == at_first
    assert len(held) == 3


HOLDERS: dict[str, Callable[[Array], object]] = {
    "itself": lambda a: a,
    "a view": lambda a: a[5:9, ::2].T,
    "a memoryview": memoryview,
    "a tensor": torch.from_numpy,
    "a tensor's view": lambda a: torch.from_numpy(a)[3:],
    "DLPack": torch.from_dlpack,
    "a method": lambda a: a.sum,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", HOLDERS)
def test_memory_that_somebody_holds_is_left_alone(name: str) -> None:
    model, x = scale_model(), np.ones((LARGE // 8, 4), np.float32)
    result = model(x)
    address, held = address_of(result), HOLDERS[name](result)
    del result
    assert all(address_of(model(k * x)) != address for k in range(4))
    del held
    gc.collect()
    assert address in {address_of(model(x)) for _ in range(2)}


@settings(max_examples=30)
@given(st.lists(st.tuples(st.lists(st.integers(1, LARGE), min_size=1, max_size=4), st.integers(0, 5)), max_size=12))
def test_no_two_results_share_memory(calls: list[tuple[list[int], int]]) -> None:
    """Calls of any sizes, each followed by forgetting some of the results so far."""
    pool, held, most = ResultPool(), list[tuple[Array, int]](), 0
    for k, (sizes, n_forgotten) in enumerate(calls):
        for array in pool.arrays(outputs(*sizes)):
            assert array.nbytes < RECYCLED_FROM or address_of(array) % ALIGNMENT == 0
            array[:] = k
            held.append((array, k))
        most = max(most, sum(sizes))
        assert pool.kept_bytes <= 2 * 17 / 16 * most
        assert all(array[0] == array[-1] == value for array, value in held)
        del held[:n_forgotten]


def test_what_is_kept_follows_the_sizes_of_the_calls() -> None:
    pool = ResultPool()
    pool.arrays(outputs(100 * LARGE))
    for _ in range(3):
        pool.arrays(outputs(LARGE, LARGE))
    assert pool.kept_bytes <= 4 * LARGE


def test_a_growing_sequence_seldom_needs_a_new_buffer() -> None:
    pool = ResultPool()
    addresses = [address_of(pool.arrays(outputs(LARGE + 64 * n))[0]) for n in range(100)]
    assert len(set(addresses)) <= 3


def test_threads_never_get_the_same_memory() -> None:
    pool, wrong = ResultPool(), list[int]()

    def caller(k: int) -> None:
        for _ in range(200):
            (array,) = pool.arrays(outputs(RECYCLED_FROM))
            array[:] = k
            if not (array == k).all():
                wrong.append(k)

    callers = [threading.Thread(target=caller, args=(k,)) for k in range(8)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert wrong == []
