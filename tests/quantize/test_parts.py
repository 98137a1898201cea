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
from tilewright.core.types import TensorType, f32
from tilewright.graph.quantize.parts import SplitChannels, divided_into, most_worth
from tilewright.graph.quantize.rounded import Channels, Rounded

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
    graph = Graph("g", b.pool, (x,), (divided_into(b, x, SplitChannels(np.ones(4, np.float32), parts, step)),), ("y",))
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


@pytest.mark.parametrize("options", [{"mode": "dynamic"}, {"smooth": None}])
def test_where_the_option_says_nothing(options):
    with pytest.raises(OptionError, match="split_outliers=True says nothing"):
        tw.quantize(product_of_a_function(), rows_of(1), split_outliers=True, **options)
