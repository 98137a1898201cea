"""StableHLO's scatter, windows and random bits within TFLite: what LiteRT gives, where it has a kernel for it."""

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import tilewright as tw
from frontend.test_tflite_control import refused
from frontend.test_tflite_lookups import check
from frontend.tflite_build import TfliteModel, model_bytes
from small_models import numbers

F32, I32 = np.float32, np.int32
U64 = np.uint64


def with_computation(
    computation: str, name: str, arrays: list[np.ndarray], results: list[Any], options: str, number: str, **values: Any
) -> list[TfliteModel]:
    """An operator and the sub-graph of two scalars that it combines by; ``second`` gives the second one."""
    main, inner = TfliteModel(), TfliteModel()
    main.outputs = main.op(name, [main.input(a) for a in arrays], results, options, **{number: 1}, **values)
    scalars = [inner.input(np.zeros((), arrays[0].dtype)) for _ in range(2)]
    made = [((), arrays[0].dtype)]
    inner.outputs = scalars[1:] if computation == "second" else inner.op(f"STABLEHLO_{computation}", scalars, made)
    return [main, inner]


SCATTERS: dict[str, Any] = {
    "rows": ((5, 4), [[0], [4], [0]], (3, 4), 1, [1], [0], [0]),
    "windows, some outside": ((6, 5), [[4, 3], [1, 1], [4, 4]], (3, 2, 2), 1, [1, 2], [], [0, 1]),
    "elements": ((3, 4), [[0, 1], [2, 3], [0, 1]], (3,), 1, [], [0, 1], [0, 1]),
    "windows first": ((4, 6), [[1], [3]], (6, 2), 1, [0], [0], [0]),
}
"""Shape, indices, the updates' shape, where vectors lie, windows' axes, axes they lack, what indices are for."""


def scatter(case: Any, computation: str, dtype: Any) -> tuple[list[TfliteModel], list[np.ndarray]]:
    shape, at, update_shape, vector, window, inserted, to_operand = case
    arrays = [np.round(4 * numbers(*s, seed=k)).astype(dtype) for k, s in enumerate((shape, update_shape))]
    arrays.insert(1, np.array(at, I32))
    names = ("UpdateWindowDims", "InsertedWindowDims", "ScatterDimsToOperandDims")
    values = {n: np.array(v, np.int64) for n, v in zip(names, (window, inserted, to_operand), strict=True)}
    graphs = with_computation(
        computation, "STABLEHLO_SCATTER", arrays, [(shape, dtype)], "StablehloScatterOptions",
        "UpdateComputationSubgraphIndex", IndexVectorDim=vector, **values,
    )  # fmt: skip
    return graphs, arrays


@pytest.mark.one_in(2)
@pytest.mark.parametrize("computation", ["ADD", "MULTIPLY", "MAXIMUM", "MINIMUM", "second"])
@pytest.mark.parametrize("name", SCATTERS)
def test_scatter(name: str, computation: str) -> None:
    graphs, arrays = scatter(SCATTERS[name], computation, F32)
    check(model_bytes(*graphs), arrays)


def test_scatter_of_integers() -> None:
    graphs, arrays = scatter(SCATTERS["rows"], "ADD", I32)
    check(model_bytes(*graphs), arrays)


@pytest.mark.parametrize("change", [{4: [0, 1]}, {5: [3]}, {6: [0, 0]}, {2: (3, 5)}, {3: 7}])
def test_a_scatter_whose_dimensions_do_not_fit_is_told(change: dict[int, Any]) -> None:
    case = [change.get(k, v) for k, v in enumerate(SCATTERS["rows"])]
    refused("dimensions of a scatter", *scatter(case, "ADD", F32)[0])


def test_another_computation_is_told() -> None:
    refused("STABLEHLO_SUBTRACT", *scatter(SCATTERS["rows"], "SUBTRACT", F32)[0])


WINDOWS: dict[str, Any] = {
    "pool": ((4, 6), [2, 3], [2, 1], [1, 1], [1, 1], [0, 0, 1, 1]),
    "gaps": ((7, 5), [2, 2], [1, 2], [3, 1], [1, 1], [0, 0, 0, 0]),
    "spread": ((3, 4), [2, 2], [1, 1], [1, 1], [2, 3], [1, 0, 0, 2]),
    "prefixes": ((3, 5), [1, 5], [1, 1], [1, 1], [1, 1], [0, 0, 4, 0]),
    "cropped": ((5, 6), [2, 2], [1, 1], [1, 1], [1, 1], [-1, 0, 0, -2]),
}
"""Shape, window, strides, gaps within it, distances of the operand's elements, edges."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("computation", "start"), [("ADD", 0), ("ADD", 2), ("MULTIPLY", 1), ("MAXIMUM", -9), ("MINIMUM", 9)]
)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str, computation: str, start: float) -> None:
    shape, size, strides, gaps, apart, pads = WINDOWS[name]
    for dtype in (F32, I32):
        x = np.round(2 * numbers(*shape)).astype(dtype)
        join = {"ADD": lax.add, "MULTIPLY": lax.mul, "MAXIMUM": lax.max, "MINIMUM": lax.min}[computation]
        edges = list(zip(pads[::2], pads[1::2], strict=True))
        padded = lax.pad(x, dtype(start), [(lo, hi, gap - 1) for (lo, hi), gap in zip(edges, apart, strict=True)])
        want = lax.reduce_window(padded, dtype(start), join, size, strides, "VALID", None, gaps)
        names = ("WindowDimensions", "WindowStrides", "WindowDilations", "BaseDilations", "Padding")
        values = {n: np.array(v, np.int64) for n, v in zip(names, (size, strides, gaps, apart, pads), strict=True)}
        graphs = with_computation(
            computation, "STABLEHLO_REDUCE_WINDOW", [x, np.array(start, dtype)], [(want.shape, dtype)],
            "StablehloReduceWindowOptions", "BodySubgraphIndex", **values,
        )  # fmt: skip
        content = model_bytes(*graphs)
        check(content, [x, np.array(start, dtype)])


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("kind", "algorithm"), [(1, "RNG_PHILOX"), (2, "RNG_THREE_FRY")])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_random_bits(kind: int, algorithm: str, dtype: Any) -> None:
    state, shape = np.array([5, 2**32 - 2], U64), (3, 4)
    model = TfliteModel()
    results = [((2,), U64), (shape, dtype)]
    model.outputs = model.op(
        "STABLEHLO_RNG_BIT_GENERATOR", [model.input(state)], results, "StablehloRngBitGeneratorOptions", Algorithm=kind
    )
    with jax.enable_x64(True):
        want = lax.rng_bit_generator(state, shape, dtype=dtype, algorithm=lax.RandomAlgorithm[algorithm])
        want = [np.asarray(a) for a in want]
    made = tw.compile(model.bytes(), cache=False)(state)
    for a, b in zip(made, want, strict=True):
        np.testing.assert_array_equal(a, b)
    check(model.bytes(), [state])
