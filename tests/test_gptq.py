"""``quantize_weights``: codes for data are closer in results than the nearest ones, and wrong data are refused."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OptionError
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import Array, TensorType
from tilewright.graph.quantize.codes import rounded_rows
from tilewright.graph.quantize.gptq import gptq_rows

RNG = np.random.default_rng(0)


def alike(n: int, depth: int) -> Array:
    """Rows whose places go together, as activations do."""
    mix = RNG.standard_normal((depth // 4, depth))
    return (RNG.standard_normal((n, depth // 4)) @ mix + 0.1 * RNG.standard_normal((n, depth))).astype(np.float32)


def error(codes: Array, steps: Array, rows: Array, x: Array) -> float:
    near = (codes.astype(np.int64) - 8) * np.repeat(steps, 32, 1)
    return float(np.square(x @ (near - rows).T).sum())


def test_results_for_the_data_are_closer_than_those_of_nearest_codes() -> None:
    rows, x = RNG.standard_normal((24, 128)).astype(np.float32), alike(400, 128)
    plain = rounded_rows(rows, 4, 32)
    chosen = gptq_rows(rows, x.astype(np.float64).T @ x, 4, 32)
    assert error(*chosen, rows, x) < 0.5 * error(*plain, rows, x)


def test_without_any_spread_of_the_data_codes_are_the_nearest() -> None:
    rows = RNG.standard_normal((8, 64)).astype(np.float32)
    codes, steps = gptq_rows(rows, np.eye(64), 8, 32)
    want, wanted = rounded_rows(rows, 8, 32)
    np.testing.assert_array_equal(codes, want)
    np.testing.assert_array_equal(steps, wanted)


def layer(weights: Array) -> Graph:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (50, 128)))
    return Graph("g", b.pool, (x,), (b(ops.matmul, x, b.const(weights)),), ("y",))


def test_a_quantised_graph_compiles_and_is_nearer_than_precision_alone() -> None:
    weights, x = RNG.standard_normal((128, 16)).astype(np.float32), alike(50, 128)
    graph = tilewright.quantize_weights(layer(weights), [(x,), {"x": x}])
    want = x @ weights
    chosen, plain = (
        np.asarray(tilewright.compile(g, precision=p, cache=False)(x))
        for g, p in ((graph, "fp32"), (layer(weights), "int4"))
    )
    assert np.square(chosen - want).sum() < 0.7 * np.square(plain - want).sum()


def test_wrong_data_are_refused() -> None:
    graph = layer(RNG.standard_normal((128, 16)).astype(np.float32))
    with pytest.raises(OptionError, match="are empty"):
        tilewright.quantize_weights(graph, [])
    with pytest.raises(OptionError, match="not finite"):
        tilewright.quantize_weights(graph, [(np.full((50, 128), np.nan, np.float32),)])
    with pytest.raises(OptionError, match="bits=3"):
        tilewright.quantize_weights(graph, [], bits=3)
    with pytest.raises(tilewright.InputError):
        tilewright.quantize_weights(graph, [(np.zeros((50, 7), np.float32),)])
