"""TFLite's segments, diagonals, buckets, bits and windows of any axes: what LiteRT gives, whatever shapes and types."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from frontend.test_tflite import CASES, THREE, Const, by_litert, model_of, of, reads_or_refuses
from frontend.tflite_build import TfliteModel
from small_models import numbers
from tilewright.core.evaluate import evaluate_graph
from tilewright.frontend.tflite import segments, volumes
from tilewright.frontend.tflite.importer import import_tflite

F32, I32 = np.float32, np.int32
SEEDS = st.integers(0, 99)
SIZES = st.integers(1, 4)
WHOLE = [np.int8, np.uint8, np.int16, np.int32, np.int64]


def drawn(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
    if dtype is np.bool_ or np.dtype(dtype).kind == "f":
        found = numbers(*shape, seed=seed)
        return found > 0 if dtype is np.bool_ else found.astype(dtype)
    return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)


def check(name: str, case: Any) -> None:
    content, arrays = model_of(name, *case)
    found = evaluate_graph(import_tflite(content, name).graph, arrays)
    for ours, theirs in zip(found, by_litert(content, arrays), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


BITS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.float32, np.float64]


@given(st.sampled_from(BITS), st.sampled_from(BITS), SIZES, SEEDS)
def test_bits_are_read_anew(source: Any, target: Any, n: int, seed: int) -> None:
    ratio = np.dtype(target).itemsize // np.dtype(source).itemsize
    raw = np.random.default_rng(seed).integers(0, 100, (n, ratio or 1) if ratio > 1 else (n,))
    x = raw.astype(source)
    narrow = np.dtype(source).itemsize // np.dtype(target).itemsize
    shape = (n, narrow) if narrow > 1 else (n,)
    content, arrays = model_of("BITCAST", *of(x, shape=shape, dtype=target))
    (ours,) = evaluate_graph(import_tflite(content, "bits").graph, arrays)
    assert ours.tobytes() == by_litert(content, arrays)[0].tobytes() == x.tobytes() and ours.shape == shape


@given(st.sampled_from([F32, np.float64, I32, np.int64]), st.lists(st.integers(-3, 12), max_size=6), SEEDS)
def test_buckets(dtype: Any, edges: list[int], seed: int) -> None:
    x = drawn(dtype, (3, 5), seed)
    if np.dtype(dtype).kind == "f":
        x[0, :3] = np.nan, np.inf, -np.inf
    boundaries = np.array(sorted(edges), F32)
    check("BUCKETIZE", of(x, options="BucketizeOptions", dtype=I32, Boundaries=boundaries))


@given(st.sampled_from([F32, *WHOLE]), SIZES, SIZES, st.booleans(), SEEDS)
def test_diagonals(dtype: Any, rows: int, columns: int, is_made: bool, seed: int) -> None:
    diagonal = drawn(dtype, (2, min(rows, columns)), seed)
    if is_made:
        check("MATRIX_DIAG", of(diagonal, dtype=dtype))
    else:
        check("MATRIX_SET_DIAG", of(drawn(dtype, (2, rows, columns), seed), diagonal, dtype=dtype))


@given(st.sampled_from([F32, np.uint8, I32, np.int64]), st.permutations([0, 1, 2]), st.data())
def test_parts_of_sequences_turn(dtype: Any, axes: list[int], data: st.DataObject) -> None:
    x, (time, batch, _) = drawn(dtype, (3, 4, 2), 0), axes
    lengths = data.draw(st.lists(st.integers(0, x.shape[time]), min_size=x.shape[batch], max_size=x.shape[batch]))
    options = {"SeqDim": time, "BatchDim": batch}
    check("REVERSE_SEQUENCE", of(x, np.array(lengths), options="ReverseSequenceOptions", dtype=dtype, **options))


@given(st.sampled_from([F32, I32, np.int64]), st.sampled_from([I32, np.int64]), st.integers(0, 3), SEEDS)
def test_places_in_a_tensor_of_one_value(dtype: Any, kind: Any, n: int, seed: int) -> None:
    rng, shape = np.random.default_rng(seed), (3, 4)
    places = np.stack([rng.integers(0, d, n + 1) for d in shape], -1).astype(kind)
    values = drawn(dtype, (n + 1,) if n else (), seed)  # of equal places the last counts
    others = Const(np.array(shape, kind)), values, Const(np.array(7, dtype))
    check("SPARSE_TO_DENSE", of(places, *others, options="SparseToDenseOptions", dtype=dtype))


@given(
    st.sampled_from(["Sum", "Prod", "Min", "Max"]), st.sampled_from([F32, I32]),
    st.lists(st.integers(-2, 3), min_size=6, max_size=6), st.booleans(),
)  # fmt: skip
def test_segments(kind: str, dtype: Any, ids: list[int], is_flat: bool) -> None:
    named = np.array(ids, I32).reshape((6,) if is_flat else (2, 3))
    x, n = drawn(dtype, (*named.shape, 2), 1), Const(np.array(4, I32))
    check(f"UNSORTED_SEGMENT_{kind.upper()}", of(x, named, n, options=f"UnsortedSegment{kind}Options", dtype=dtype))


AXES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)), min_size=2, max_size=2)


@given(st.integers(1, 6), st.sampled_from([F32, *WHOLE, np.bool_]), AXES, SEEDS)
def test_windows_of_any_axes(function: int, dtype: Any, axes: list[tuple[int, int, int]], seed: int) -> None:
    if dtype is np.bool_ and function < 3:
        return  # sums and products of bools are refused
    x = drawn(dtype, (5, 6), seed)
    forms = [Const(np.array(v)) for v in zip(*axes, strict=True)]
    start = Const(np.array(1, dtype))
    check("REDUCE_WINDOW", of(x, start, *forms, options="ReduceWindowOptions", ReduceFunction=function, dtype=dtype))


@given(st.sampled_from([F32, *WHOLE]), SIZES, SIZES)
def test_elements_apart(dtype: Any, rows: int, columns: int) -> None:
    between = Const(np.array(1, dtype))
    check("DILATE", of(drawn(dtype, (3, 2), 0), Const(rows, columns), between, options="DilateOptions", dtype=dtype))


@given(st.tuples(*[st.integers(1, 2)] * 6), st.integers(0, 1))
def test_volumes(forms: tuple[int, ...], padding: int) -> None:
    names = ("StrideD", "StrideH", "StrideW", "DilationDFactor", "DilationHFactor", "DilationWFactor")
    options = {**dict(zip(names, forms, strict=True)), "Padding": padding, "options": "Conv3DOptions"}
    x, kernel = numbers(1, 4, 5, 6, 2), numbers(2, 3, 2, 2, 3)
    check("CONV_3D", of(x, Const(kernel), Const(numbers(3)), FusedActivationFunction=3, **options))
    reach = [0 if padding == 0 else (k - 1) * d for k, d in zip((2, 3, 2), forms[3:], strict=True)]
    wanted = [n * s + r for n, s, r in zip((4, 5, 6), forms[:3], reach, strict=True)]
    turned = Const(numbers(2, 3, 2, 3, 2))
    check("CONV_3D_TRANSPOSE", of(Const(1, *wanted, 3), turned, x, Const(numbers(3)), **options))


def test_places_compile() -> None:
    """All operators of floats with their results in one model."""
    model, arrays = TfliteModel(), []
    for name in [*segments.TABLE, *volumes.TABLE]:
        operands, options, _, shape, dtype, values = CASES[name]
        places = [model.const(x.array) if isinstance(x, Const) else model.input(x) for x in operands]
        arrays += [x for x in operands if not isinstance(x, Const)]
        model.outputs += model.op(name, places, [(shape, dtype)], options, **values)
    content = model.bytes()
    made = tw.compile(content, cache=False, threads=1)(*arrays)
    for ours, theirs in zip(made, by_litert(content, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


VOLUME, KERNEL = numbers(1, 4, 5, 6, 2), Const(numbers(2, 3, 2, 2, 3))
ROWS = numbers(3, 4)
REFUSED = {
    "no whole elements": ("BITCAST", of(np.zeros((3, 3), np.int16), shape=(3,), dtype=I32), "has no 2 elements"),
    "bits of bools": ("BITCAST", of(ROWS > 0, shape=(3, 4), dtype=np.int8), "bits of bool are not read"),
    "no common shape": ("BROADCAST_ARGS", of(Const(3, 2), Const(4, 3), dtype=I32), "do not broadcast"),
    "no order": (
        "BUCKETIZE", of(ROWS, options="BucketizeOptions", dtype=I32, Boundaries=np.array([1, 0], F32)), "do not ascend"
    ),
    "another diagonal": ("MATRIX_SET_DIAG", of(numbers(2, 5, 3), numbers(2, 4)), "is no diagonal of f32[2, 5, 3]"),
    "one axis": (
        "REVERSE_SEQUENCE", of(ROWS, np.zeros(4, I32), options="ReverseSequenceOptions", SeqDim=1, BatchDim=1),
        "are along one axis",
    ),
    "too few values": (
        "SPARSE_TO_DENSE", of(np.array([2, 3], I32), Const(5), numbers(1), Const(np.array(0, F32))), "is no value for"
    ),
    "other rows": ("UNSORTED_SEGMENT_SUM", of(ROWS, np.zeros(4, I32), Const(2)), "does not name a segment"),
    "no distance": ("DILATE", of(ROWS, Const(2, 0), Const(np.array(0, F32))), "are no distances"),
    "no function": (
        "REDUCE_WINDOW", of(ROWS, Const(np.array(0, F32)), *[Const(np.array([1, 1]))] * 3,
                            options="ReduceWindowOptions", ReduceFunction=0), "the function 0 of windows",
    ),
    "no strides": ("CONV_3D", of(VOLUME, KERNEL, options="Conv3DOptions", **{**THREE, "StrideD": 0}), "at least 1"),
    "no volume": ("CONV_3D", of(ROWS, KERNEL, options="Conv3DOptions", **THREE), "has no depth, height and width"),
    "another result": (
        "CONV_3D_TRANSPOSE", of(Const(1, 8, 5, 6, 3), Const(numbers(2, 3, 2, 3, 2)), VOLUME, options="Conv3DOptions",
                                Padding=0, **THREE), "is made of volumes of [8, 5, 6]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_interpreter_refuses_is_told(what: str) -> None:
    name, case, rule = REFUSED[what]
    content, _ = model_of(name, *case)
    with pytest.raises(tw.ImportFailed) as failed:
        import_tflite(content, name)
    assert rule in str(failed.value) and [p.op for p in failed.value.problems] == [name]


def every_file() -> list[bytes]:
    """A file of each of these operators."""
    return [model_of(name, *CASES[name])[0] for name in (*segments.TABLE, *volumes.TABLE)]


def test_damaged_files_of_places_are_refused() -> None:
    assert reads_or_refuses(every_file(), range(60)) >= 20


@pytest.mark.slow  # 300 files
def test_many_damaged_files_of_places_are_refused() -> None:
    assert reads_or_refuses(every_file(), range(1000, 1300)) >= 100
