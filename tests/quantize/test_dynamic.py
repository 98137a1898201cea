"""`tilewright.quantize(mode="dynamic")`: calls round rows, products are of integers, and no data are needed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from graph.networks import Net
from small_models import numbers
from tilewright import ops
from tilewright.core.diag import Loc, OptionError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32

pytestmark = pytest.mark.usefixtures("shared_kernels")


def graph_of(shape, body):
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, shape), Loc('input "x"'))
    return Graph("rows", b.pool, (x,), (body(b.at(Loc("layer")), x),), ("y",))


ROWS = (Sym("n", 1), 24)


def perceptron(shape=ROWS, width=16, seed=1):
    w = numbers(shape[-1], width, seed=seed) / 4
    bias = numbers(width, seed=seed + 1)
    return graph_of(shape, lambda b, x: b(ops.add, b(ops.matmul, x, b.const(w)), b.const(bias))), w, bias


def expected(x, w, bias, dtype):
    """The formula of the documentation, the sums in integers."""
    info = np.iinfo(dtype)
    low, high = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)
    scale = np.maximum((high - low) / np.float32(255), np.finfo(np.float32).tiny)
    inverse = np.float32(1) / scale
    zero = np.clip(np.rint(info.min - low * inverse), info.min, info.max)
    stored = np.clip(np.rint(x * inverse) + zero, info.min, info.max).astype(np.int64)
    most = np.abs(w).max(0)
    of_columns = np.where(most > 0, most / 127, 1).astype(np.float32)
    codes = np.clip(np.rint(w / of_columns), -127, 127).astype(np.int64)
    return ((stored - zero.astype(np.int64)) @ codes).astype(np.float32) * scale * of_columns + bias


@settings(max_examples=10, derandomize=True)
@given(st.data())
def test_rows_have_scales_of_their_own_and_sums_are_exact(data):
    dtype = data.draw(st.sampled_from(["u8", "i8"]))
    lead = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    depth, width, seed = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 40)), data.draw(st.integers(0, 99))
    graph, w, bias = perceptron((*lead, depth), width, seed)
    x = numbers(*lead, depth, seed=seed)
    x *= np.exp(numbers(*lead, 1, seed=seed + 5) * 4)  # rows of very different sizes
    x.reshape(-1, depth)[0] = data.draw(st.sampled_from([0.0, 1.0, -1e-30, 3e30]))
    model = tw.compile(tw.quantize(graph, mode="dynamic", activations=dtype), cache=False)
    wanted = expected(x, w, bias, np.uint8 if dtype == "u8" else np.int8)
    np.testing.assert_allclose(np.asarray(model(x)), wanted, rtol=1e-5, atol=1e-6 * float(np.abs(wanted).max()))


def test_an_outlier_costs_its_own_row_precision_and_no_other():
    graph, _, _ = perceptron()
    x = numbers(6, 24)
    quantised = tw.quantize(graph, mode="dynamic")
    (before,) = evaluate_graph(quantised, [x])
    x[3, 5], x[4, 1] = 1e4, np.nan
    with np.errstate(invalid="ignore"):
        (after,) = evaluate_graph(quantised, [x])
    np.testing.assert_array_equal(np.delete(after, [3, 4], 0), np.delete(before, [3, 4], 0))
    assert np.isnan(after[4]).all()


@pytest.mark.parametrize("activations", ["u8", "i8"])
def test_a_range_over_the_greatest_float(activations):
    """Of a finite row; what a result can hold is a number, too."""
    graph, w, bias = perceptron()
    x = np.zeros((3, 24), np.float32)
    x[0, :3], x[1], x[2, 5] = (3e38, -3e38, 2e38), 1e37, 3e38
    made = np.asarray(tw.compile(tw.quantize(graph, mode="dynamic", activations=activations), cache=False)(x))
    wanted = x.astype(np.float64) @ w + bias
    holds = np.abs(wanted) < 3e38
    assert not np.isnan(made).any() and holds.any(1).all()
    error = np.abs(made - wanted) / np.abs(x).max(1, keepdims=True)
    assert error[holds].max() < 0.05


def test_the_file_means_the_same_to_other_runtimes(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    graph, _, _ = perceptron()
    quantised = tw.quantize(graph, mode="dynamic", weight_bits=7)  # whose sums of two products saturate with 8
    quantised.save(tmp_path / "q.onnx")
    x = numbers(7, 24)
    session = ort.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, evaluate_graph(quantised, [x])[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.asarray(tw.compile(tmp_path / "q.onnx", cache=False)(x)), found, rtol=1e-6, atol=1e-6)


def test_data_choose_weights_for_the_results_and_without_data_they_are_the_nearest():
    graph, _, _ = perceptron()
    x = numbers(256, 4, seed=7) @ numbers(4, 24, seed=8) + numbers(256, 24, seed=9) / 16  # channels have much in common
    options = {"mode": "dynamic", "weights": "per-tensor", "weight_bits": 7}
    nearest, chosen = (tw.quantize(graph, x, rounding=r, **options) for r in ("nearest", "gptq"))
    assert chosen.report.layers[0].sqnr_db > nearest.report.layers[0].sqnr_db + 3
    assert "weights by GPTQ" in str(chosen.report)
    without = tw.quantize(graph, **options)
    assert "the nearest weights" in str(without.report) and without.report.options["rounding"] == "nearest"
    plain = tw.quantize(graph, x, rounding="nearest", smooth=None, **options)
    np.testing.assert_array_equal(evaluate_graph(without, [x])[0], evaluate_graph(plain, [x])[0])


def test_data_of_zeros_choose_the_nearest_weights():
    """GPTQ's matrix of them had no inverse."""
    graph, x = perceptron()[0], numbers(8, 24, seed=7)
    nearest = tw.quantize(graph, mode="dynamic")
    with pytest.warns(tw.CalibrationWarning, match="every number is 0"):
        chosen = tw.quantize(graph, np.zeros((8, 24), np.float32), mode="dynamic")
    np.testing.assert_array_equal(evaluate_graph(nearest, [x])[0], evaluate_graph(chosen, [x])[0])


def test_errors_are_measured_on_data():
    images = (Sym("n", 1), 3, 6, 6)

    def body(b, x):
        y = Net(b).conv(x, 4)
        return b(ops.matmul, b(ops.reshape, y, shape=(x.shape[0], 144)), b.const(numbers(144, 5, seed=3)))

    found = tw.quantize(graph_of(images, body), numbers(8, 3, 6, 6), mode="dynamic", bias_correction=True)
    for layer in found.report.layers:
        assert layer.type == "u8 x i8" and layer.sqnr_db > 30 and layer.saturated is None
    assert "of each row or image by the call" in str(found.report)


@pytest.mark.parametrize(
    "options",
    [{}, {"mode": "dynamic", "observer": "mse"}, {"mode": "dynamic", "bias_correction": True}, {"mode": "sometimes"}],
    ids=str,
)
def test_options_without_a_meaning_are_refused(options):
    with pytest.raises(OptionError):
        tw.quantize(perceptron()[0], **options)
