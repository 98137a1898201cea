"""TFLite's distinct elements, tables of numbers and StableHLO's ops: what LiteRT gives."""

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from frontend.test_tflite import by_litert
from frontend.test_tflite_control import refused
from frontend.tflite_build import TfliteModel, model_bytes
from small_models import numbers
from tilewright.core.evaluate import evaluate_graph
from tilewright.frontend.tflite.importer import import_tflite

F32, I32 = np.float32, np.int32


def check(content: bytes, arrays: list[np.ndarray]) -> None:
    meant = evaluate_graph(import_tflite(content, "net").graph, arrays)
    made = tw.compile(content, cache=False, threads=1)(*arrays)
    ours = made if isinstance(made, tuple) else (made,)
    for wanted, *found in zip(by_litert(content, arrays), meant, ours, strict=True):
        for each in found:
            assert (each.shape, each.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(each, wanted, rtol=1e-5, atol=1e-5)


def one(
    name: str, arrays: list[np.ndarray], results: list[Any], options: str = "", consts: Any = (), **values: Any
) -> Any:
    model = TfliteModel()
    places = [model.const(a) if k in consts else model.input(a) for k, a in enumerate(arrays)]
    model.outputs = model.op(name, places, results, options, **values)
    return model.bytes(), [a for k, a in enumerate(arrays) if k not in consts]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.uint8])
@pytest.mark.parametrize("seed", range(4))
def test_distinct_elements(dtype: Any, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, [1, 3, 9, 99][seed], [1, 4, 11, 30][seed]).astype(dtype)
    index = [I32, np.int64][seed % 2]
    kind = {I32: 2, np.int64: 4}[index]
    check(*one("UNIQUE", [x], [((1,), dtype), (x.shape, index)], "UniqueOptions", IdxOutType=kind))


def test_rows_of_keys() -> None:
    asked, keys = np.array([7, 1, 3, 9], I32), np.array([1, 3, 5, 9], I32)
    for values in (numbers(4, 3), numbers(4), np.arange(8, dtype=I32).reshape(4, 2)):
        shape = (4, *values.shape[1:])
        check(*one("HASHTABLE_LOOKUP", [asked, keys, values], [(shape, values.dtype), ((4,), np.uint8)]))


@pytest.mark.parametrize("combiner", [0, 1, 2])
def test_joined_rows_of_a_table(combiner: int) -> None:
    ids, indices = np.array([1, 3, 0, 3], I32), np.array([[0, 0, 0], [2, 0, 0], [2, 0, 1], [2, 1, 0]], I32)
    arrays = [ids, indices, np.array([3, 2, 2], I32), np.array([1, 2, 4, 0.5], F32), numbers(4, 3, 2)]
    result = [((3, 2, 3, 2), F32)]
    check(*one("EMBEDDING_LOOKUP_SPARSE", arrays, result, "EmbeddingLookupSparseOptions", {2}, Combiner=combiner))


@pytest.mark.parametrize("name", ["ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"])
@pytest.mark.parametrize("dtype", [F32, I32])
def test_arithmetic_of_stablehlo(name: str, dtype: Any) -> None:
    arrays = [(10 * numbers(3, 4, seed=k)).astype(dtype) for k in range(2)]
    check(*one(f"STABLEHLO_{name}", arrays, [((3, 4), dtype)]))


@pytest.mark.parametrize(("low", "high", "inner"), [
    ([1, 0], [0, 2], [0, 0]), ([0, -1], [-1, 0], [0, 0]), ([1, 0], [0, 1], [2, 1]), ([-2, 0], [0, -1], [1, 0]),
])  # fmt: skip
def test_padding_of_stablehlo(low: list[int], high: list[int], inner: list[int]) -> None:
    sizes = [n + lo + hi + (n - 1) * gap for n, lo, hi, gap in zip((3, 4), low, high, inner, strict=True)]
    names = ("EdgePaddingLow", "EdgePaddingHigh", "InteriorPadding")
    values = {n: np.array(v, np.int64) for n, v in zip(names, (low, high, inner), strict=True)}
    arrays = [numbers(3, 4), np.array(7, F32)]
    check(*one("STABLEHLO_PAD", arrays, [(tuple(sizes), F32)], "StablehloPadOptions", {1}, **values))


GATHERS: dict[str, Any] = {
    "rows": ((5, 4), [[0], [4], [2]], 1, [1], [0], [0], [1, 4]),
    "windows that reach out": ((6, 5), [[5, 3], [-2, 1]], 1, [1, 2], [], [0, 1], [3, 2]),
    "vectors first": ((4, 3, 2), [[3, 0, 1], [1, 2, 0]], 0, [1, 2], [1], [1, 0], [2, 1, 2]),
    "windows first": ((4, 6), [[1], [3]], 1, [0], [0], [0], [1, 5]),
    "single numbers": ((3, 4), [[[0, 1], [2, 3]]], 2, [], [0, 1], [0, 1], [1, 1]),
}
"""Shape, indices, where vectors lie, windows' axes in the result, axes of one that go, what indices are for, sizes."""


@pytest.mark.parametrize("case", GATHERS.values(), ids=GATHERS)
@pytest.mark.parametrize("dtype", [I32, np.int64])
def test_gather_of_stablehlo(case: Any, dtype: type) -> None:
    shape, at, vector, offsets, collapsed, start_map, sizes = case
    indices = np.array(at, dtype)
    outer = iter(n for k, n in enumerate(indices.shape) if k != vector)
    left = iter(n for k, n in enumerate(sizes) if k not in collapsed)
    rank = indices.ndim - 1 + len(offsets)
    made = tuple(next(left) if k in offsets else next(outer) for k in range(rank))
    names = ("OffsetDims", "CollapsedSliceDims", "StartIndexMap", "SliceSizes")
    values = {n: np.array(v, np.int64) for n, v in zip(names, (offsets, collapsed, start_map, sizes), strict=True)}
    options = {"IndexVectorDim": vector, **values}
    check(
        *one("STABLEHLO_GATHER", [numbers(*shape), indices], [(made, F32)], "StablehloGatherOptions", set(), **options)
    )


def test_a_gather_whose_dimensions_do_not_fit_is_told() -> None:
    values = {"OffsetDims": np.array([7]), "StartIndexMap": np.array([0]), "SliceSizes": np.array([1, 4])}
    arrays = [numbers(5, 4), np.zeros((3, 1), I32)]
    content, _ = one(
        "STABLEHLO_GATHER", arrays, [((3, 4), F32)], "StablehloGatherOptions", set(), IndexVectorDim=1, **values
    )
    with pytest.raises(tw.ImportFailed, match="dimensions of a gather"):
        import_tflite(content, "net")


def test_a_composite_is_what_it_is_made_of() -> None:
    inner, main = TfliteModel(), TfliteModel()
    x, y = inner.input(numbers(3, 4)), inner.input(numbers(3, 4))
    inner.outputs = inner.op("MUL", [x, y], [((3, 4), F32)], "MulOptions")
    places = [main.input(numbers(3, 4)) for _ in range(2)]
    values = {"Name": "ours", "CompositeAttributes": np.array([0, 0x24, 1], np.uint8), "DecompositionSubgraphIndex": 1}
    options = "StableHLOCompositeOptions"
    main.outputs = main.op("STABLEHLO_COMPOSITE", places, [((3, 4), F32)], options, **values)
    content = model_bytes(main, inner)
    arrays = [numbers(3, 4), numbers(3, 4, seed=1)]
    check(content, arrays)


def spectrum(part: str, sizes: tuple[int, int], shape: tuple[int, ...]) -> tuple[bytes, list[np.ndarray]]:
    """A part of the transform of rows, as front ends for sound have it."""
    model = TfliteModel()
    at, length = model.input(numbers(*shape)), model.const(np.array(sizes, I32))
    made = (*shape[:-2], sizes[0], sizes[1] // 2 + 1)
    (found,) = model.op("RFFT2D", [at, length], [(made, np.complex64)], "Rfft2dOptions")
    model.outputs = model.op(part, [found], [(made, F32)])
    return model.bytes(), [numbers(*shape)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("part", ["REAL", "IMAG", "COMPLEX_ABS"])
@pytest.mark.parametrize(("sizes", "shape"), [((1, 16), (3, 1, 16)), ((4, 8), (2, 4, 8)), ((2, 32), (3, 20)),
                                              ((2, 8), (4, 11))])  # fmt: skip
def test_transforms_of_rows(part: str, sizes: tuple[int, int], shape: tuple[int, ...]) -> None:
    check(*spectrum(part, sizes, shape))


def test_complex_numbers_stay_between_their_operators() -> None:
    model = TfliteModel()
    at, length = model.input(numbers(1, 8)), model.const(np.array([1, 8], I32))
    model.outputs = model.op("RFFT2D", [at, length], [((1, 5), np.complex64)], "Rfft2dOptions")
    refused("complex", model)
    moved = TfliteModel()
    at, length = moved.input(numbers(1, 8)), moved.const(np.array([1, 8], I32))
    (found,) = moved.op("RFFT2D", [at, length], [((1, 5), np.complex64)], "Rfft2dOptions")
    (turned,) = moved.op("TRANSPOSE", [found, moved.const(np.array([1, 0], I32))], [((5, 1), np.complex64)])
    moved.outputs = moved.op("REAL", [turned], [((5, 1), F32)])
    refused("COMPLEX64", moved)


def test_what_has_no_form_is_told() -> None:
    model = TfliteModel()
    at = model.input(numbers(2, 3))
    model.outputs = model.op("UNIQUE", [at], [((1,), F32), ((6,), I32)], "UniqueOptions", IdxOutType=2)
    refused("distinct elements are those of a vector", model)
