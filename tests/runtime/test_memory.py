"""Memory of results: used again when nobody holds it, never while anybody does."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from runtime.tiny import scale_model
from tilewright.runtime.plan import OutputPlan
from tilewright.runtime.python import memory
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
    monkeypatch.setattr(ResultPool, "_new", lambda pool, kind, n, most: (made.append(n), new(pool, kind, n, most))[1])
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


TENSOR_HOLDERS: dict[str, Callable[[torch.Tensor], object]] = {
    "itself": lambda t: t,
    "a view": lambda t: t[5:9, ::2].T,
    "its data": lambda t: t.data,
    "an array": lambda t: t.numpy(),
    "a memoryview": lambda t: memoryview(t.numpy()),
    "its storage": lambda t: t.untyped_storage(),
    "DLPack": np.from_dlpack,
    "a graph": lambda t: t.requires_grad_().exp(),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TENSOR_HOLDERS)
def test_memory_of_a_tensor_that_somebody_holds_is_left_alone(name: str) -> None:
    model, x = scale_model(), torch.ones(LARGE // 8, 4)
    result = model(x)
    address, held = result.data_ptr(), TENSOR_HOLDERS[name](result)
    del result
    assert all(model(k * x).data_ptr() != address for k in range(4))
    del held
    gc.collect()
    if name not in ("an array", "a memoryview"):  # after Tensor.numpy() PyTorch resizes the storage no more
        assert address in {model(x).data_ptr() for _ in range(2)}


@pytest.mark.parametrize("n_rows", [2, LARGE // 8])
@pytest.mark.parametrize("n_calls", [1, 4])  # by the long way, and by native code
def test_a_result_can_be_made_larger(n_rows: int, n_calls: int) -> None:
    """As any tensor of PyTorch's, by itself and as ``out=`` of another size; a later result is not."""
    model, x = scale_model(), torch.ones(n_rows, 4)
    for _ in range(n_calls):
        result = model(x)
    expected = result.clone()
    assert torch.equal(result.resize_(4 * n_rows, 4)[:n_rows], expected)
    with pytest.warns(UserWarning, match="resized"):
        torch.cat([x] * 9, out=result)
    assert result.shape == (9 * n_rows, 4)
    del result
    assert torch.equal(model(x), expected)
    assert model(x).untyped_storage().nbytes() < 2 * expected.nbytes


def test_a_result_of_which_data_decide_the_size_can_be_made_larger() -> None:
    class Marked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0]

    x = torch.linspace(-1, 2, 60)
    found = tw.compile(Marked(), (x,))(x)
    assert torch.equal(found, x[x > 0])
    assert torch.equal(found.clone().resize_(50)[:40], found)
    assert found.resize_(500).shape == (500,)


@pytest.mark.parametrize("n_rows", [2, LARGE // 8])
def test_a_pytorch_without_the_functions_that_results_are_made_by(monkeypatch: pytest.MonkeyPatch, n_rows: int) -> None:
    monkeypatch.setattr(memory, "_torch", lambda: None)
    model, x = scale_model(), torch.ones(n_rows, 4)
    for k in range(5):
        assert torch.equal(model(k * x), 2 * k * x + 10)


def test_memory_that_was_shared_with_other_processes_is_not_used_again() -> None:
    """Another process may read it long after its tensor is gone here."""
    model, x = scale_model(), torch.ones(LARGE // 8, 4)
    address = model(x).share_memory_().data_ptr()
    assert all(model(x).data_ptr() != address for _ in range(4))


def test_memory_that_cannot_be_resized_is_not_used_again() -> None:
    """PyTorch resizes no storage that ``Tensor.numpy()`` has read."""
    model, x = scale_model(), torch.ones(LARGE // 8, 4)
    for _ in range(4):
        result = model(x)
        assert result.resize_(LARGE, 4).shape == (LARGE, 4)
        model(x).numpy()


@pytest.mark.parametrize("tensors", [set(), {0}], ids=["array", "tensor"])
@pytest.mark.parametrize("n_bytes", [1 << 62, 1 << 64, 1 << 70])
def test_more_bytes_than_there_are_addresses_are_no_memory(n_bytes: int, tensors: set[int]) -> None:
    with pytest.raises((MemoryError, ValueError)):
        ResultPool().results(outputs(n_bytes), tensors)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, LARGE), min_size=1, max_size=4), st.sets(st.integers(0, 3)), st.integers(0, 5)
        ),
        max_size=12,
    )
)
def test_no_two_results_share_memory(calls: list[tuple[list[int], set[int], int]]) -> None:
    """Calls of any sizes for arrays and tensors, each followed by forgetting some of the results so far."""
    pool, held, most = ResultPool(), list[tuple[Any, int]](), 0
    for k, (sizes, tensors, n_forgotten) in enumerate(calls):
        for i, result in enumerate(pool.results(outputs(*sizes), tensors)):
            assert isinstance(result, torch.Tensor) == (i in tensors)
            address = result.data_ptr() if i in tensors else address_of(result)
            assert result.nbytes < RECYCLED_FROM or address % ALIGNMENT == 0
            result[:] = k
            held.append((result, k))
        most = max(most, sum(sizes))
        assert pool.kept_bytes <= 2 * 17 / 16 * most
        assert all(array[0] == array[-1] == value for array, value in held)
        del held[:n_forgotten]


def test_what_is_kept_follows_the_sizes_of_the_calls() -> None:
    pool = ResultPool()
    pool.results(outputs(100 * LARGE))
    for _ in range(3):
        pool.results(outputs(LARGE, LARGE))
    assert pool.kept_bytes <= 4 * LARGE


def test_a_growing_sequence_seldom_needs_a_new_buffer() -> None:
    pool = ResultPool()
    addresses = [address_of(pool.results(outputs(LARGE + 64 * n))[0]) for n in range(100)]
    assert len(set(addresses)) <= 3


def test_threads_never_get_the_same_memory() -> None:
    pool, wrong = ResultPool(), list[int]()

    def caller(k: int) -> None:
        for _ in range(200):
            (array,) = pool.results(outputs(RECYCLED_FROM))
            array[:] = k
            if not (array == k).all():
                wrong.append(k)

    callers = [threading.Thread(target=caller, args=(k,)) for k in range(8)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert wrong == []
