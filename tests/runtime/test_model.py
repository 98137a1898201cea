"""A loaded model as a callable: ways to call it, memory, failures, threads."""

import os
import threading
from array import array

import ml_dtypes
import numpy as np
import pytest

from runtime.tiny import copy_model, positive_model, scale_model
from tilewright.runtime.errors import ExecutionError, InputError, ResourceError, Violation
from tilewright.runtime.manifest import TensorSpec
from tilewright.runtime.values import as_array


def rows(n: int, start: float = 0.0) -> np.ndarray:
    return np.arange(start, start + 4 * n, dtype=np.float32).reshape(n, 4)


def test_symbolic_batch() -> None:
    model = scale_model()
    for n in (0, 1, 2, 3, 100, 2):
        np.testing.assert_array_equal(model(rows(n)), 2 * rows(n) + 10)


def test_positional_keyword_and_dict_are_the_same_call() -> None:
    model, x = scale_model(), rows(3)
    for result in (model(x), model(x=x), model({"x": x}), model.run({"x": x})["y"]):
        np.testing.assert_array_equal(result, 2 * x + 10)


def test_several_outputs_are_a_tuple() -> None:
    specs = [TensorSpec("a", "float32", (3,)), TensorSpec("b", "int64", (2, 2))]
    model = copy_model(specs, [TensorSpec("p", "float32", (3,)), TensorSpec("q", "int64", (2, 2))], [12, 32], [3, 2, 2])
    a, b = np.arange(3, dtype=np.float32), np.arange(4).reshape(2, 2)
    p, q = model(a, b)
    np.testing.assert_array_equal(p, a)
    np.testing.assert_array_equal(q, b)
    p, q = model(b=b, a=a)
    np.testing.assert_array_equal(q, b)
    assert list(model.run({"b": b, "a": a})) == ["p", "q"]
    p, q = model(a, b=b)
    np.testing.assert_array_equal(p, a)


def test_signature() -> None:
    model = scale_model()
    assert str(model.inputs[0]) == "x: float32[n, 4]"
    assert model.outputs[0].shape == ("n", 4)
    assert [s.name for s in model.symbols] == ["n"]
    assert model.report() == {"model": "scale"}
    assert "2 threads" in repr(model)


def test_scalars_and_empty_arrays() -> None:
    specs = [TensorSpec("a", "float64", ()), TensorSpec("b", "float32", (0, 5))]
    model = copy_model(specs, [TensorSpec("p", "float64", ()), TensorSpec("q", "float32", (0, 5))], [8, 0], [0, 5])
    for scalar in (np.float64(3.5), np.array(3.5)):
        p, q = model(scalar, np.zeros((0, 5), np.float32))
        assert p.shape == () and p == 3.5
        assert q.shape == (0, 5)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "bool", "int8", "uint64", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    model = copy_model([TensorSpec("a", name, (6,))], [TensorSpec("p", name, (6,))], [6 * dtype.itemsize], [6])
    a = np.array([0, 1, 0, 1, 1, 0]).astype(dtype)
    result = model(a)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, a)


def test_strided_inputs_are_copied_and_counted() -> None:
    model, wide = scale_model(), np.arange(48, dtype=np.float32).reshape(6, 8)
    strided = [wide[:, ::2], wide.T[:4].T, np.asfortranarray(wide[:, :4]), wide[::-1, :4]]
    for x in strided:
        np.testing.assert_array_equal(model(x), 2 * x + 10)
    assert model.copies == len(strided)
    raw = np.frombuffer(b"\0" + rows(3).tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4)
    np.testing.assert_array_equal(model(raw), 2 * rows(3) + 10)
    assert model.copies == len(strided) + (not raw.flags.aligned)


def test_read_only_inputs_are_not_copied() -> None:
    model, x = scale_model(), rows(3)
    x.flags.writeable = False
    np.testing.assert_array_equal(model(x), 2 * x + 10)
    assert model.copies == 0


def test_buffers_and_dlpack() -> None:
    class OnlyDlpack:
        def __init__(self, a: np.ndarray) -> None:
            self.a = a

        def __dlpack__(self, **options: object) -> object:
            return self.a.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.a.__dlpack_device__()

    model = scale_model()
    np.testing.assert_array_equal(model(OnlyDlpack(rows(2))), 2 * rows(2) + 10)
    view = memoryview(array("f", range(8))).cast("B").cast("f", (2, 4))
    np.testing.assert_array_equal(model(view), 2 * rows(2) + 10)
    assert model.copies == 0


def test_what_numpy_s_dlpack_lacks_is_read_as_an_array() -> None:
    class Narrow:
        """An array of bfloat16 as JAX's: NumPy's DLPack does not know its type, ``ml_dtypes`` does."""

        def __init__(self, a: np.ndarray, device: int) -> None:
            self.a, self.device = a, device

        def __dlpack__(self, **options: object) -> object:
            raise RuntimeError("Unsupported dtype in DLTensor.")

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.device, 0

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return self.a

    spec, a = TensorSpec("a", "bfloat16", (4,)), np.ones(4, ml_dtypes.bfloat16)
    assert as_array(Narrow(a, 1), spec) is a
    found = as_array(Narrow(a, 2), spec)
    assert isinstance(found, Violation) and "can't be read" in found.given


def test_outputs_start_on_a_cache_line_and_own_their_memory() -> None:
    model, x = scale_model(), rows(1000)
    first = model(x)
    expected = first.copy()
    second = model(x + 1)
    assert first.ctypes.data % 64 == 0 and first.flags.writeable
    assert not np.may_share_memory(first, second)
    np.testing.assert_array_equal(first, expected)


def test_out() -> None:
    model, x = scale_model(), rows(5)
    y = np.zeros((5, 4), np.float32)
    assert model(x, out=y) is y
    np.testing.assert_array_equal(y, 2 * x + 10)
    assert model(x, out=(y,)) is y


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (np.zeros((4, 4), np.float32), "shape"),
        (np.zeros((5, 4), np.float64), "float32"),
        (np.zeros((5, 8), np.float32)[:, ::2], "contiguous"),
        ([], "1 outputs"),
    ],
)
def test_out_must_fit(out: object, text: str) -> None:
    with pytest.raises(InputError, match=text):
        scale_model()(rows(5), out=out)


def test_out_must_not_overlap_an_input() -> None:
    x = rows(5)
    with pytest.raises(InputError, match="overlaps"):
        scale_model()(x, out=x)


def test_shape_decided_by_data() -> None:
    model = positive_model()
    x = np.array([1, -2, 3, 0, 5], np.float32)
    np.testing.assert_array_equal(model(x), [1, 3, 5])
    np.testing.assert_array_equal(model(np.zeros(4, np.float32)), np.zeros(0))
    np.testing.assert_array_equal(model(x[:0]), np.zeros(0))
    few = model(np.concatenate([x, np.zeros(10_000, np.float32)]))
    assert few.base is None, "a small result must not keep the buffer of the upper bound alive"
    with pytest.raises(InputError, match="out="):
        model(x, out=np.zeros(5, np.float32))


def test_failure_reported_by_the_code() -> None:
    with pytest.raises(ExecutionError, match=r"x\[0\] is -1 at net.py:7"):
        positive_model()(np.array([-1, 2], np.float32))


def test_no_memory_is_a_typed_error() -> None:
    huge = (1 << 61, 1 << 61)
    model = copy_model(
        [TensorSpec("a", "float32", ())], [TensorSpec("p", "float32", huge)], [0], list(huge)
    )  # fmt: skip
    with pytest.raises(ResourceError, match="memory"):
        model(np.float32(1))


@pytest.mark.parametrize("threads", [0, -3])
def test_threads_must_be_positive(threads: int) -> None:
    with pytest.raises(InputError, match="threads"):
        scale_model(threads=threads)


def test_threads_stay_as_they_were() -> None:
    """Memory for each is set aside when a model is loaded; a later number would change nothing without a word."""
    model, name = scale_model(threads=2), "threads"
    with pytest.raises(AttributeError, match=name):
        setattr(model, name, 1)
    assert model.threads == 2


def test_results_do_not_depend_on_threads() -> None:
    x = rows(257)
    results = [scale_model(threads=t)(x) for t in (1, 2, 3, 8)]
    assert all(np.array_equal(r, results[0]) for r in results)


def test_sixteen_threads_call_two_models() -> None:
    models = [scale_model(10), scale_model(20)]
    wrong: list[str] = []

    def caller(k: int) -> None:
        model, shift = models[k % 2], 10 + 10 * (k % 2)
        for i in range(200):
            x = rows(1 + (7 * i + k) % 50, start=k)
            if not np.array_equal(model(x), 2 * x + shift):
                wrong.append(f"caller {k}, call {i}")

    callers = [threading.Thread(target=caller, args=(k,)) for k in range(16)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert wrong == []
    assert len(models[0]._frames._free) <= 4


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("n_calls", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_memory_is_flat_over_calls_with_changing_shapes(n_calls: int) -> None:
    model = scale_model()
    arrays = [rows(n) for n in range(1, 1200)]  # more shapes than plans are kept
    for x in arrays * 2:
        model(x)
    before = resident_bytes()
    for i in range(n_calls):
        model(arrays[i * 7 % len(arrays)])
    assert resident_bytes() - before < 4 << 20


def test_memory_is_flat_over_models_loaded_and_dropped() -> None:
    def use() -> None:
        assert scale_model()(rows(1))[0, 0] == 10

    for _ in range(50):
        use()
    before = resident_bytes()
    for _ in range(300):
        use()
    assert resident_bytes() - before < 24 << 20
