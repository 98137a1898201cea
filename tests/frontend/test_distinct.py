"""Distinct elements and slices are NumPy's, in every order and along every axis."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import tensor_type_of
from tilewright.frontend.distinct import distinct


def ours(x: np.ndarray, axis: int | None, **options: bool) -> list[np.ndarray]:
    pool = Pool()
    given, b = pool.input("x", tensor_type_of(x)), Builder(pool)

    def places(flags):
        rows, _ = b.results(b(ops.argwhere, flags, count="n"))
        return b(ops.reshape, rows, shape=rows.shape[:1])

    found = tuple(distinct(b, given, axis, places, **options))
    graph = Graph("distinct", pool, (given,), found, ("values", "firsts", "inverse", "counts"))
    return evaluate_graph(graph, (x,))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("axis", (None, 0, 1, 2))
def test_as_numpy_has_them(axis: int | None, seed: int) -> None:
    r = np.random.default_rng(seed)
    dtype = [np.bool_, np.int32, np.float32][seed % 3]
    x = r.integers(0, 3, [(4, 2, 1), (1, 5, 2), (3, 3, 3)][seed // 2]).astype(dtype)
    values, firsts, inverse, counts = np.unique(
        x, axis=axis, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    got = ours(x, axis)
    for a, b in zip(got, (values, firsts, inverse.ravel(), counts), strict=True):
        np.testing.assert_array_equal(a, b)
    met = np.argsort(firsts)
    by_place = ours(x, axis, is_sorted=False)
    wanted = (np.take(values, met, axis or 0), firsts[met], np.argsort(met)[inverse.ravel()], counts[met])
    for a, b in zip(by_place, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("nan_is_one", (False, True))
def test_nan(nan_is_one: bool) -> None:
    x = np.array([np.nan, 1, np.nan, 1, 0], np.float32)
    values, _, inverse, counts = ours(x, None, nan_is_one=nan_is_one)
    want = np.unique(x, return_inverse=True, return_counts=True, equal_nan=nan_is_one)
    for a, b in zip((values, inverse, counts), want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_wide_rows_of_an_onnx_file() -> None:
    node = helper.make_node("Unique", ["x"], ["y", "", "at", ""], axis=0)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 100])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", 100]),
         helper.make_tensor_value_info("at", TensorProto.INT64, ["n"])],
    )  # fmt: skip
    model = tw.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), cache=False
    )
    x = np.zeros((5, 100), np.float32)
    x[1:3, 99], x[4, 0] = 1, -1
    values, inverse = np.unique(x, axis=0, return_inverse=True)
    for a, b in zip(model(x), (values, inverse.ravel()), strict=True):
        np.testing.assert_array_equal(a, b)
