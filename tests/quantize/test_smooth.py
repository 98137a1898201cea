"""SmoothQuant: an equal function, with operands whose outlier channels cost the others no precision."""

import numpy as np
import pytest

import tilewright as tw
from small_models import numbers
from tilewright import ops
from tilewright.core.diag import Loc, OptionError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.graph.quantize.places import layers_of
from tilewright.graph.quantize.rounded import Channels, Rounded, met_by
from tilewright.graph.quantize.smooth import columns_of, smoothable, smoothed
from tilewright.runtime.errors import InputError

pytestmark = pytest.mark.usefixtures("shared_kernels")
DEPTH, OUTLIER = 32, 5


def two_readers():
    """A norm whose result two products read, and its rows; the gain makes one channel large."""
    gain = np.ones(DEPTH, np.float32)
    gain[OUTLIER] = 80
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (Sym("n", 1), DEPTH)), Loc("x"))
    y = b.at(Loc("norm"))(ops.layer_norm, x, b.const(gain), b.const(numbers(DEPTH, seed=4)), axis=1, epsilon=1e-5)
    heads = [b.at(Loc(f"product {k}"))(ops.matmul, y, b.const(numbers(DEPTH, 16, seed=k))) for k in range(2)]
    return Graph("heads", b.pool, (x,), (*heads, y), ("first", "second", "rows"))


BYTES = Rounded(255, 127, per_channel=True)


def channels(x):
    return Channels(x.min(0), x.max(0), np.square(x).mean(0))


@pytest.mark.parametrize("is_read_elsewhere", [True, False])
@pytest.mark.parametrize("alpha", [0.5, None])
def test_the_function_is_the_same_and_a_gain_takes_the_factors_where_nothing_else_reads_it(alpha, is_read_elsewhere):
    graph, x = two_readers(), numbers(9, DEPTH)
    layers = smoothable(layers_of(graph)[0])
    (operand,) = {layer.node.inputs[0] for layer in layers}
    held = evaluate_graph(graph, [x])[2]
    held[:, 7] = 0  # as of a channel that no datum reaches
    if not is_read_elsewhere:
        graph = Graph("heads", graph.pool, graph.inputs, graph.outputs[:2], graph.output_names[:2])
    after = smoothed(graph, layers, columns_of(layers, {operand: channels(held)}, BYTES, alpha)).graph
    for a, b in zip(evaluate_graph(graph, [x]), evaluate_graph(after, [x]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert [n.op for n in after.nodes()].count(ops.mul) == is_read_elsewhere


@pytest.mark.parametrize("alpha", [0.9, None])
@pytest.mark.parametrize("tiny", [1e-25, 1e-44])
def test_a_channel_of_tiny_numbers_has_a_factor_that_floats_can_divide_by(tiny, alpha):
    graph, held = two_readers(), numbers(9, DEPTH)
    held[:, 7] *= np.float32(tiny)
    layers = smoothable(layers_of(graph)[0])
    operand = layers[0].node.inputs[0]
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        (found,) = columns_of(layers, {operand: channels(held.astype(np.float64))}, BYTES, alpha).values()
        assert np.isfinite(np.float32(1) / found.factors).all()


def test_the_expected_error_is_the_error_of_rounding():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4096, DEPTH)) * np.exp(rng.standard_normal(DEPTH)), rng.standard_normal((DEPTH, 24))
    for factors in np.ones(DEPTH), np.abs(x).max(0):
        low, high = min((x / factors).min(), 0), (x / factors).max()
        step, steps = (high - low) / 255, np.abs(w * factors[:, None]).max(0) / 127
        rounded = np.rint(x / factors / step) * step @ (np.rint(w * factors[:, None] / steps) * steps)
        error = np.square(rounded - x @ w).sum(1).mean()
        of_operand = BYTES.of_operand(channels(x), met_by([w]), factors, BYTES.step(channels(x), factors))
        assert of_operand + BYTES.of_weights(channels(x), [w], factors) == pytest.approx(error, rel=0.1)


def test_the_expected_error_of_rows_is_that_of_their_own_steps():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4096, DEPTH)) * np.exp(rng.standard_normal((4096, 1)))
    w, factors = rng.standard_normal((DEPTH, 24)), np.exp(rng.standard_normal(DEPTH))
    scaled = x / factors
    steps = (scaled.max(1, keepdims=True) - scaled.min(1, keepdims=True)) / 255
    error = np.square((np.rint(scaled / steps) * steps * factors - x) @ w).sum(1).mean()
    seen = channels(x)._replace(rows=x[::8])
    expected = BYTES.of_operand(seen, met_by([w]), factors, BYTES.step(seen, factors))
    assert expected == pytest.approx(error, rel=0.1)
    assert BYTES.step(channels(x), factors) > 2 * BYTES.step(seen, factors)


def test_channels_of_one_size_get_no_factors():
    x = np.tile([-1.0, 1.0], (DEPTH, 1)).T
    b = Builder(Pool())
    rows = b.pool.input("x", TensorType(f32, (4, DEPTH)), Loc("x"))
    y = b(ops.matmul, rows, b.const(np.ones((DEPTH, 8), np.float32)))
    layers = smoothable(layers_of(Graph("g", b.pool, (rows,), (y,), ("y",)))[0])
    assert columns_of(layers, {rows: channels(x)}, BYTES, None) == {}


def of_function(b, x):
    """A function of a product that one product reads: no constant makes its channels, and nothing else reads it."""
    first = numbers(DEPTH, DEPTH, seed=1)
    first[:, OUTLIER] *= 80
    y = b.at(Loc("gelu"))(ops.gelu, b.at(Loc("first"))(ops.matmul, x, b.const(first)))
    return b.at(Loc("second"))(ops.matmul, y, b.const(numbers(DEPTH, 16, seed=2)))


def test_factors_stay_where_one_product_alone_reads_the_operand():
    """A scale in front of a product is folded into its weights elsewhere, which would take the factors back."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (256, DEPTH)), Loc("x"))
    graph, rows = Graph("g", b.pool, (x,), (of_function(b, x),), ("y",)), numbers(256, DEPTH)
    plain, smooth = (tw.quantize(graph, rows, smooth=s).report.layers[1] for s in (None, "auto"))
    assert smooth.sqnr_db > plain.sqnr_db + 3


def test_factors_are_of_all_data_that_can_be_read_twice():
    """One channel is large in the last batch only."""
    batches = [numbers(64, DEPTH, seed=k) for k in range(3)]
    batches[2][:, OUTLIER] *= 80
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (64, DEPTH)), Loc("x"))
    graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, b.const(numbers(DEPTH, 16, seed=2))),), ("y",))
    once, twice = (tw.quantize(graph, d, measured_batches=2).report.layers[0] for d in (iter(batches), batches))
    assert twice.sqnr_db > once.sqnr_db + 6


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_an_outlier_channel_costs_the_others_no_precision(mode):
    graph, x = two_readers(), numbers(256, DEPTH)
    plain, smooth, chosen = (tw.quantize(graph, x, mode=mode, smooth=s).report.layers for s in (None, 0.5, "auto"))
    for a, b, c in zip(plain, smooth, chosen, strict=True):
        assert min(b.sqnr_db, c.sqnr_db) > a.sqnr_db + 3
    wanted = evaluate_graph(graph, [x])
    found = tw.compile(tw.quantize(graph, x, mode=mode, smooth=0.5), cache=False)(x)
    for a, b in zip(wanted, found, strict=True):
        assert np.square(a - np.asarray(b)).sum() < 1e-3 * np.square(a).sum()


@pytest.mark.parametrize("smooth", [0, 1, -0.5, float("nan"), "a", False])
def test_an_exponent_lies_between_0_and_1(smooth):
    with pytest.raises(OptionError, match="between 0 and 1"):
        tw.quantize(two_readers(), numbers(8, DEPTH), smooth=smooth)


def test_data_that_are_empty_or_not_finite_are_refused():
    with pytest.raises(InputError, match="empty"):
        tw.quantize(two_readers(), iter(()), smooth=0.5)
    x = numbers(8, DEPTH)
    x[3] = np.inf
    with pytest.raises(InputError, match="not finite"):
        tw.quantize(two_readers(), x, smooth=0.5)
