"""``quantize_weights``, GPTQ and AWQ: results are closer than those of the nearest codes; wrong data are refused."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OptionError
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import Array, TensorType
from tilewright.graph.quantize.awq import awq_factors
from tilewright.graph.quantize.books import BOOKS
from tilewright.graph.quantize.codes import real_rows, rounded_rows
from tilewright.graph.quantize.encoding import weights_of
from tilewright.graph.quantize.gptq import Inputs, gptq_rows, gptq_weights
from tilewright.runtime.errors import InputError

RNG = np.random.default_rng(0)
INT4, INT8 = BOOKS["int4"], BOOKS["int8"]


def alike(n: int, depth: int) -> Array:
    """Rows whose places go together, as activations do."""
    mix = RNG.standard_normal((depth // 4, depth))
    return (RNG.standard_normal((n, depth // 4)) @ mix + 0.1 * RNG.standard_normal((n, depth))).astype(np.float32)


def error(codes: Array, steps: Array, rows: Array, x: Array) -> float:
    near = (codes.astype(np.int64) - 8) * np.repeat(steps, 32, 1)
    return float(np.square(x @ (near - rows).T).sum())


def test_results_for_the_data_are_closer_than_those_of_nearest_codes() -> None:
    rows, x = RNG.standard_normal((24, 128)).astype(np.float32), alike(400, 128)
    plain = rounded_rows(rows, INT4, 32)
    chosen = gptq_rows(rows, x.astype(np.float64).T @ x, INT4, 32)
    assert error(*chosen, rows, x) < 0.5 * error(*plain, rows, x)


def test_without_any_spread_of_the_data_codes_are_the_nearest() -> None:
    rows = RNG.standard_normal((8, 64)).astype(np.float32)
    codes, steps = gptq_rows(rows, np.eye(64), INT8, 32)
    groups = rows.reshape(8, 2, 32)
    np.testing.assert_array_equal(steps, INT8.near_steps(groups))
    np.testing.assert_array_equal(codes, INT8.nearest(groups, steps).reshape(8, 64))


@pytest.mark.parametrize("codes", ["int8", "int4", "nf4", "fp4", "fp8"])
def test_near_steps_have_less_error_than_those_of_the_largest_weights(codes: str) -> None:
    book, groups = BOOKS[codes], RNG.standard_normal((500, 4, 32)).astype(np.float32)
    near, first = (
        np.square(book.numbers(book.nearest(groups, s)) * s[..., None] - groups).sum(-1)
        for s in (book.near_steps(groups), book.steps_of(groups))
    )
    assert (near <= first).all()
    assert near.sum() < 0.93 * first.sum()


def test_the_largest_inputs_are_rounded_first_and_leave_their_errors_to_the_others() -> None:
    """The last place has nobody to take its error: that of a large input would be the whole error."""
    rows, x = RNG.standard_normal((24, 128)).astype(np.float32), alike(400, 128)
    x[:, -1] *= 40
    moments = x.astype(np.float64).T @ x
    off = real_rows(*gptq_rows(rows, moments, INT4, 32), INT4) - rows
    near = real_rows(*rounded_rows(rows, INT4, 32), INT4) - rows
    assert np.square(x @ off.T).sum() < 0.1 * np.square(x @ near.T).sum()


def share_of_nearest(x: Array, held_out: Array) -> float:
    """The error on ``held_out`` of bytes that are chosen for ``x``, over that of the nearest."""
    weights, step = RNG.standard_normal((128, 48)).astype(np.float32), float(np.ptp(x)) / 255
    near = weights_of(weights, 1)
    (chosen,) = gptq_weights(weights, Inputs(x.astype(np.float64).T @ x, len(x), step), [near])
    np.testing.assert_array_equal(chosen.scale, near.scale)
    errors = [float(np.square(held_out @ (w.rounded() - weights)).sum()) for w in (chosen, near)]
    return errors[0] / errors[1]


def test_bytes_of_weights_are_chosen_for_data_too() -> None:
    both = alike(2500, 128)
    assert share_of_nearest(both[:2000], both[2000:]) < 0.2


@pytest.mark.parametrize("n", [4, 128, 2048])
def test_what_few_rows_have_in_common_by_chance_is_not_believed(n: int) -> None:
    both = RNG.standard_normal((n + 500, 128)).astype(np.float32)
    assert share_of_nearest(both[:n], both[n:]) < 1.25


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


def with_large_inputs(n: int, depth: int) -> Array:
    """Rows of which a few places are far larger than the others."""
    x = RNG.standard_normal((n, depth)).astype(np.float32)
    x[:, ::29] *= 30
    return x


@pytest.mark.parametrize("codes", ["nf4", "fp4", "fp8"])
def test_codes_of_a_book_are_chosen_for_data_too(codes: str) -> None:
    book, x = BOOKS[codes], alike(400, 128)
    rows = RNG.standard_normal((24, 128)).astype(np.float32)
    errors = [
        float(np.square(x @ (real_rows(*found, book) - rows).T).sum())
        for found in (gptq_rows(rows, x.astype(np.float64).T @ x, book, 32), rounded_rows(rows, book, 32))
    ]
    assert errors[0] < 0.6 * errors[1]
    weights, few = RNG.standard_normal((128, 16)).astype(np.float32), x[:50]
    graph = tilewright.quantize_weights(layer(weights), [(few,)], codes=codes)
    got = np.asarray(tilewright.compile(graph, cache=False)(few))
    assert np.abs(got - few @ weights).max() < 0.2 * np.abs(few @ weights).max()


def test_weights_of_large_inputs_are_kept_by_factors() -> None:
    rows, x = RNG.standard_normal((24, 128)).astype(np.float32), with_large_inputs(400, 128)
    factors = awq_factors(rows, x.astype(np.float64).T @ x, INT4, 32)
    codes, steps = rounded_rows(rows * factors, INT4, 32)
    scaled = error(codes, steps, rows * factors, x / factors)
    assert scaled < 0.5 * error(*rounded_rows(rows, INT4, 32), rows, x)


def test_equal_inputs_and_none_leave_weights_as_they_are() -> None:
    rows = RNG.standard_normal((8, 64)).astype(np.float32)
    for moments in (np.eye(64), np.zeros((64, 64))):
        np.testing.assert_array_equal(awq_factors(rows, moments, INT4, 32), np.ones(64))


def test_a_graph_by_awq_divides_its_inputs() -> None:
    weights, x = RNG.standard_normal((128, 16)).astype(np.float32), with_large_inputs(50, 128)
    graph = tilewright.quantize_weights(layer(weights), [(x,)], method="awq")
    want = x @ weights
    chosen, plain = (
        np.asarray(tilewright.compile(g, precision=p, cache=False)(x))
        for g, p in ((graph, "fp32"), (layer(weights), "int4"))
    )
    assert np.square(chosen - want).sum() < 0.5 * np.square(plain - want).sum()


def test_wrong_data_are_refused() -> None:
    graph = layer(RNG.standard_normal((128, 16)).astype(np.float32))
    with pytest.raises(InputError, match="are empty"):
        tilewright.quantize_weights(graph, [])
    with pytest.raises(InputError, match="can't be a NoneType"):
        tilewright.quantize_weights(graph, None)  # type: ignore[arg-type]  # what a user may pass
    x = RNG.standard_normal((50, 128)).astype(np.float32)
    with pytest.raises(InputError, match="batch 2: input 'x' has numbers that are not finite"):
        tilewright.quantize_weights(graph, [(x,), {"x": np.where(x > 2, np.nan, x)}])
    with pytest.warns(tilewright.CalibrationWarning, match='input "x": every number is 3 in all calibration data'):
        tilewright.quantize_weights(graph, [(np.full_like(x, 3),)])
    with pytest.raises(OptionError, match="bits=3"):
        tilewright.quantize_weights(graph, [], bits=3)
    with pytest.raises(OptionError, match="codes='int5'"):
        tilewright.quantize_weights(graph, [], codes="int5")
    with pytest.raises(OptionError, match="method='best'"):
        tilewright.quantize_weights(graph, [], method="best")
    with pytest.raises(tilewright.InputError):
        tilewright.quantize_weights(graph, [(np.zeros((50, 7), np.float32),)])
