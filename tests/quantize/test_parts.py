"""Outlier channels in parts: an equal function, one rounding for all parts, columns where they are worth it."""

import re

import numpy as np
import onnxruntime
import pytest

import tilewright as tw
from small_models import numbers
from tilewright import ops
from tilewright.core.diag import OptionError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32, u8
from tilewright.frontend.onnx.writer.model import save_onnx
from tilewright.graph.quantize.encoding import weights_of
from tilewright.graph.quantize.parts import SplitChannels, most_worth
from tilewright.graph.quantize.places import layers_of
from tilewright.graph.quantize.rounded import Channels, Rounded
from tilewright.graph.quantize.rows import RowForm
from tilewright.graph.quantize.smooth import smoothed

pytestmark = pytest.mark.usefixtures("shared_kernels")
DEPTH, ROWS, OUTLIER = 64, 256, 5
BYTES = Rounded(255, 127, per_channel=True)


def rows_of(outlier):
    x = numbers(ROWS, DEPTH)
    x[:, OUTLIER] *= outlier
    return x


def product_of_a_function():
    """A product whose operand a function makes, so that no constant takes its factors."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (ROWS, DEPTH)))
    y = b(ops.matmul, b(ops.tanh, x), b.const(numbers(DEPTH, 32, seed=1)))
    straight = b(ops.matmul, x, b.const(numbers(DEPTH, 32, seed=2)))
    return Graph("g", b.pool, (x,), (straight, y), ("straight", "function"))


def channels(x):
    return Channels(x.min(0), x.max(0), np.square(x).mean(0))


def test_the_sum_of_rounded_parts_is_the_number_rounded_once():
    parts, step = np.array([1, 2, 3, 7]), 0.25
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (400, 4)))
    split = SplitChannels(np.ones(4, np.float32), parts, step)
    graph = Graph("g", b.pool, (x,), (split.moved(b, split.taken_from(b, x)),), ("y",))
    given = np.linspace(-9, 9, 1600, dtype=np.float32).reshape(400, 4)
    (columns,) = evaluate_graph(graph, [given])
    firsts = np.cumsum(parts) - parts
    found = np.add.reduceat(np.rint(columns / step), firsts, axis=1)
    # Next to a half either neighbour is right: parts are rounded to floats before they are rounded to steps.
    far = np.abs(np.abs(given / step - np.rint(given / step)) - 0.5) > 1e-4
    assert far.mean() > 0.9
    np.testing.assert_array_equal(found[far], np.rint(given / step)[far])
    assert (found[given == 0] == 0).all()


def test_a_channel_gets_parts_where_they_are_worth_their_share():
    w = numbers(DEPTH, 32, seed=2).astype(np.float64)
    alone = [np.ones(DEPTH, np.float32)]
    large, even = (most_worth(alone, channels(rows_of(k)), [w], BYTES, True) for k in (8, 1))
    assert large.parts[OUTLIER] > 4
    assert (large.parts > 1).sum() <= 4
    assert large.n_added % 4 == 0
    assert not even.changes
    assert not most_worth(alone, channels(rows_of(8)), [w], BYTES, False).changes


def test_of_rows_ranges_the_channel_gets_parts_that_makes_most_of_them_wide():
    """Not the one that is larger in a single row."""
    x = rows_of(1)
    x[:, OUTLIER], x[0, 9] = 30, 60
    w = numbers(DEPTH, 32, seed=2).astype(np.float64)
    seen = channels(x)._replace(rows=x.astype(np.float64))
    found = most_worth([np.ones(DEPTH, np.float32)], seen, [w], BYTES, True)
    assert found.parts[OUTLIER] > 4
    assert found.parts.sum() - found.parts[OUTLIER] == DEPTH - 1


def test_results_are_nearer_and_other_runtimes_have_the_same(tmp_path):
    graph, x = product_of_a_function(), rows_of(40)
    wanted = evaluate_graph(graph, [x])
    found = {}
    for split in (False, True):
        made = tw.quantize(graph, x, split_outliers=split, rounding="nearest", weight_bits=7)  # 8 saturate without VNNI
        found[split] = [np.asarray(y) for y in tw.compile(made, cache=False)(x)]
    plain, split = (np.square(found[k][0] - wanted[0]).mean() for k in (False, True))
    assert split < 0.6 * plain
    made.save(tmp_path / "q.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"])
    for a, b in zip(session.run(None, {session.get_inputs()[0].name: x}), found[True], strict=True):
        np.testing.assert_allclose(a, b, atol=0.02 * np.abs(b).max())
    report = str(tw.compile(made, cache=False).report())
    assert re.search(r"\[i[78] x u8\]|\[u8 x i[78]\]", report)


def test_parts_that_calls_move_round_each_row_once_in_its_own_step(tmp_path):
    """A row with an outlier has the step that it would have without."""
    x = rows_of(1)
    x[1::2, OUTLIER] = 14
    b = Builder(Pool())
    rows = b.pool.input("x", TensorType(f32, (ROWS, DEPTH)))
    graph = Graph("g", b.pool, (rows,), (b(ops.matmul, rows, b.const(np.eye(DEPTH, dtype=np.float32))),), ("y",))
    parts = np.where(np.arange(DEPTH) == OUTLIER, 8, 1)
    columns = {rows: SplitChannels(np.ones(DEPTH, np.float32), parts, 0.0)}
    divided, shifts = smoothed(graph, layers_of(graph)[0], columns, of_rows=True)
    layers = layers_of(divided)[0]
    # With 8 bits ONNX Runtime's sums of two products saturate where there is no VNNI.
    weights = {layer.node: weights_of(layer.weights, layer.axis, bits=7) for layer in layers}
    made = RowForm(divided, layers, u8, weights, shifts).inserted({})
    (y,) = evaluate_graph(made, [x])
    error = np.sqrt(np.square(y - x).mean(axis=1))
    assert error[1::2].mean() < 1.1 * error[::2].mean()
    assert np.abs(y - x)[:, OUTLIER].max() < 1.1 * np.abs(y - x).max()  # not eight times as large
    save_onnx(made, tmp_path / "q.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], y, rtol=1e-6, atol=1e-6)


def test_where_the_option_says_nothing():
    with pytest.raises(OptionError, match="split_outliers=True says nothing"):
        tw.quantize(product_of_a_function(), rows_of(1), split_outliers=True, smooth=None)
    with pytest.raises(OptionError, match="no data to measure on"):
        tw.quantize(product_of_a_function(), mode="dynamic", split_outliers=True)
