"""Native entries: calls with shapes that came before, which must be like any other call."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.tiny import copy_model, gate_model, scale_model
from tilewright.runtime.errors import ExecutionError, InputError
from tilewright.runtime.manifest import TensorSpec
from tilewright.runtime.python import entry
from tilewright.runtime.python.model import LoadedModel

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "float16", "bfloat16", "float32", "float64"]


def has_entry(model: LoadedModel) -> bool:
    return model._entry is not None


def prepared(model: LoadedModel, *args: Any) -> LoadedModel:
    """The model after calls that give it an entry for such arguments."""
    for _ in range(2):
        model(*args)
    assert has_entry(model)
    return model


def of_dtype(name: str, n: int) -> np.ndarray[Any, Any]:
    dtype = np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" else np.dtype(name)
    return (np.arange(n) % 3).astype(dtype)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("n", [1, 7, 300, 20_000])
@pytest.mark.parametrize("name", DTYPES)
def test_calls_give_the_same_with_and_without(name: str, n: int, kind: str) -> None:
    x = of_dtype(name, n)
    model = copy_model([TensorSpec("a", name, (n,))], [TensorSpec("p", name, (n,))], [x.nbytes], [n])
    given: Any = x
    if kind == "torch":
        torch = pytest.importorskip("torch")
        given = torch.from_numpy(x.astype(np.float32)).to(getattr(torch, name))
    results = [model(given) for _ in range(4)]
    assert has_entry(model) == ((kind, name) != ("numpy", "bfloat16")), "whose arrays are no buffers"
    for result in results:
        assert type(result) is type(given) and result.dtype == given.dtype and result.shape == given.shape
        values = result.float().numpy() if kind == "torch" else result
        assert np.array_equal(values.astype(np.float32), x.astype(np.float32))
    addresses = [r.data_ptr() if kind == "torch" else r.ctypes.data for r in results]
    assert len(set(addresses)) == 4, "each has memory of its own"
    assert x.nbytes < entry.RECYCLED_FROM or all(a % 64 == 0 for a in addresses)


def test_read_only_arrays_have_an_entry() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    x.flags.writeable = False
    assert np.array_equal(prepared(scale_model(), x)(x), 2 * x + 10)


def test_several_results_and_no_argument() -> None:
    specs = [TensorSpec("a", "float32", (2,)), TensorSpec("b", "int32", (3,))]
    outputs = [TensorSpec("p", "float32", (2,)), TensorSpec("q", "int32", (3,))]
    model = copy_model(specs, outputs, [8, 12], [2, 3])
    x, y = np.ones(2, np.float32), np.arange(3, dtype=np.int32)
    p, q = prepared(model, x, y)(x, y)
    assert np.array_equal(p, x) and np.array_equal(q, y)
    assert prepared(copy_model([], [TensorSpec("p", "float32", (2,))], [], [2]))().shape == (2,)


def test_what_an_entry_is_not_for_goes_the_long_way() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = prepared(scale_model(), x)
    read_only = x.copy()
    read_only.flags.writeable = False
    for other in (x.T.copy().T, x[:2], np.ones((5, 4), np.float32), read_only, x[::-1], x.astype(">f4").astype("<f4")):
        assert np.array_equal(model(other), 2 * other + 10)
    assert np.array_equal(model(x=x), 2 * x + 10)
    y = np.empty_like(x)
    assert model(x, out=y) is y
    wrong: list[tuple[Any, ...]] = [(), (x, x), (x.astype(np.float64),), (x[:, :3].copy(),), ("x",), (None,), (x[0],)]
    for args in wrong:
        with pytest.raises(InputError):
            model(*args)
    assert np.array_equal(model(x), 2 * x + 10) and has_entry(model)


def test_a_failure_is_explained() -> None:
    x = np.ones(4, np.float32)
    model, gate = gate_model()
    gate[1] = 1
    assert has_entry(prepared(model, x))
    with pytest.raises(ExecutionError):
        model(-x)
    assert np.array_equal(model(x), x)


def test_references_are_given_back() -> None:
    torch = pytest.importorskip("torch")
    x = np.ones((3, 4), np.float32)
    t = torch.ones(3, 4)
    model = scale_model()
    for value in (x, t):
        prepared(model, value)
        before = sys.getrefcount(value), sys.getrefcount(None)
        for _ in range(1000):
            model(value)
            with pytest.raises(InputError):
                model(value[0])
        assert sys.getrefcount(value) == before[0] and abs(sys.getrefcount(None) - before[1]) < 500
        result = model(value)
        ref = weakref.ref(result)
        del result
        assert ref() is None


def test_a_model_that_nobody_holds_goes_at_once() -> None:
    x = np.ones((3, 4), np.float32)
    gc.collect()
    gc.disable()
    try:
        model = prepared(scale_model(), x)
        ref = weakref.ref(model)
        del model
        assert ref() is None
    finally:
        gc.enable()


def test_results_outlive_their_model() -> None:
    torch = pytest.importorskip("torch")
    for value in (np.ones((3, 4), np.float32), torch.ones(3, 4)):
        result = prepared(scale_model(), value)(value)
        gc.collect()
        assert float(result.sum()) == 12 * 12


def test_entries_for_the_latest_shapes_are_kept() -> None:
    model = scale_model()
    arrays = [np.ones((n, 4), np.float32) for n in range(1, entry.KEPT + 4)]
    for x in arrays:
        prepared(model, x)
    assert len(model._entries._found) == entry.KEPT
    latest = model._entry
    prepared(model, arrays[-2])
    assert model._entry is not latest
    prepared(model, arrays[-1])
    assert model._entry is latest


def test_models_with_much_memory_have_none() -> None:
    model = scale_model()
    x = np.ones((entry.MOST_BYTES // 16 + 1, 4), np.float32)  # the arena has its size
    for _ in range(4):
        model(x)
    assert not has_entry(model)


def test_without_the_native_function_calls_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "_code", lambda: None)
    model, x = scale_model(), np.ones((3, 4), np.float32)
    for _ in range(4):
        assert np.array_equal(model(x), 2 * x + 10)
    assert not has_entry(model)


def test_a_second_call_at_the_same_time_does_not_disturb_the_first() -> None:
    model, gate = gate_model()
    x, y = np.full(4, 1, np.float32), np.full(4, 2, np.float32)
    gate[1] = 1
    prepared(model, x)
    gate[:] = 0
    results: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: results.update(first=model(x)))
    thread.start()
    while gate[0] == 0:
        pass  # the first call is in the code, and has let go of the interpreter's lock
    other = threading.Thread(target=lambda: results.update(second=model(y)))
    gate[0] = 0
    other.start()
    while gate[0] == 0:
        pass
    gate[1] = 1
    other.join()
    thread.join()
    assert np.array_equal(results["first"], x) and np.array_equal(results["second"], y)


@settings(max_examples=25)
@given(n_threads=st.integers(2, 4), rows=st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_calls_from_many_threads(n_threads: int, rows: list[int]) -> None:
    model = scale_model()
    wrong: list[str] = []

    def work(seed: int) -> None:
        for k in range(60):
            x = np.full((rows[(seed + k // 3) % len(rows)], 4), seed * 1000 + k, np.float32)
            if not np.array_equal(model(x), 2 * x + 10):
                wrong.append(f"{seed} {k}")

    run_threads(work, n_threads)
    assert not wrong


def run_threads(work: Callable[[int], None], n: int) -> None:
    threads = [threading.Thread(target=work, args=(k,)) for k in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def test_tensors_that_look_like_others() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(12.0).reshape(3, 4)
    model = prepared(scale_model(), x)
    negative = torch._neg_view(x)  # its memory holds the opposite of its values
    others = [negative, x.T.contiguous().T, x.clone().requires_grad_(), torch.nn.Parameter(x), x[:, :4]]
    for other in others:
        assert torch.equal(model(other), 2 * other.detach() + 10)
    with torch.inference_mode():
        assert torch.equal(model(x), 2 * x + 10)
    for wrong in (x.double(), x.to_sparse(), x.to("meta"), x.numpy()[0]):
        with pytest.raises(InputError):
            model(wrong)


def test_under_pytorchs_modes_and_transforms() -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.arange(12.0).reshape(3, 4)
    model = prepared(scale_model(), x)
    with FlopCounterMode(display=False):
        assert torch.equal(model(x), 2 * x + 10)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model(x).shape == x.shape
    assert torch.equal(model(x), 2 * x + 10)
