"""`tilewright.quantize`: what is quantised, how well, what the report says, and what wrong data lead to."""

import json
import warnings

import numpy as np
import pytest
import torch

import tilewright as tw
from graph.networks import Net
from small_models import convnet, numbers
from tilewright import ops
from tilewright.core.diag import Loc
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import CONST, Builder, Graph, Pool
from tilewright.core.types import TensorType, f32, i8, i32, u8
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.frontend.onnx.writer.model import save_onnx
from tilewright.graph.quantize.places import layers_of, places_of
from tilewright.tools.quantize.quantize import prepared

pytestmark = pytest.mark.usefixtures("shared_kernels")  # each test quantises one of three small nets
IMAGES = (Sym("n", 1), 3, 8, 8)
ROWS = (Sym("n", 1), 8)


def small(body, shape=IMAGES, name="small"):
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, shape), Loc('input "x"'))
    return Graph(name, b.pool, (x,), (body(b, x),), ("y",))


def pooled(b, x):
    """A convolution, a pool, two branches that are joined, a mean and a product."""
    net = Net(b.at(Loc("stem")))
    y = net.relu(net.batch_norm(net.bias(net.conv(x, 8))))
    y = b(ops.max_pool, y, kernel=(2, 2), strides=(2, 2), pads=((0, 0),) * 2)
    branch = Net(b.at(Loc("branch")), 1).conv(y, 4, kernel=1)
    y = b(ops.concat, y, branch, axis=1)
    y = Net(b.at(Loc("head")), 2).conv(y, 8)
    return Net(b.at(Loc("linear")), 3).linear(b(ops.reduce_mean, y, axes=(2, 3)), 10)


def perceptron(b, x):
    first = Net(b.at(Loc("first"))).linear(x, 16)
    return Net(b.at(Loc("second")), 1).linear(b(ops.relu, first), 10)


def sqnr(graph, quantised, *arrays):
    (y,), (z,) = evaluate_graph(graph, arrays), evaluate_graph(quantised, arrays)
    return 10 * np.log10(np.square(y).sum() / np.square(y - z).sum())


def of_op(graph, op):
    return [n for n in graph.nodes() if n.op is op]


@pytest.fixture(scope="module")
def found():
    return tw.quantize(small(pooled), numbers(16, 3, 8, 8), weight_bits=7)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "options",
    [
        {"observer": "percentile"}, {"observer": "entropy"}, {"observer": "mse"}, {"bias_correction": True},
        {"activations": "i8"}, {"weights": "per-tensor"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)  # fmt: skip
def test_the_quantised_graph_is_near_the_graph_it_was_made_of(options):
    graph, x = small(perceptron, ROWS), numbers(4096, 8)
    assert sqnr(graph, tw.quantize(graph, x, batch_size=4096, **options), x) > 22


@pytest.mark.one_in(2)
@pytest.mark.parametrize("activations", ["u16", "i16"])
def test_activations_in_16_bits(activations, tmp_path):
    """Little is left but the weights' error, and other runtimes read the same numbers."""
    graph, x = small(pooled), numbers(16, 3, 8, 8)
    found, bytes_ = (tw.quantize(graph, x, activations=kind) for kind in (activations, activations[0] + "8"))
    assert sqnr(graph, found, x) > sqnr(graph, bytes_, x)
    assert {n.dtype.name for n in of_op(found, ops.quantize_linear)} == {activations}
    assert "in 8 bits, activations in 16, ranges" in str(found.report)
    model = tw.compile(found, cache=False)
    made = np.asarray(model(x))
    np.testing.assert_allclose(made, evaluate_graph(found, [x])[0], atol=1e-3)
    plain = tw.compile(found, target="x86-64-v3", cache=False).report()["types"]
    assert all("stored in 16 bits" in t["why"] for t in plain if t["op"] == "conv")
    runtime = pytest.importorskip("onnxruntime")
    found.save(tmp_path / "q.onnx")
    session = runtime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {session.get_inputs()[0].name: x})[0], made, atol=1e-3)


def test_native_code_means_what_the_graph_means(found):
    x = numbers(3, 3, 8, 8, seed=1)
    assert found.report.n_quantised == 4
    assert sqnr(small(pooled), found, x) > 22
    np.testing.assert_allclose(np.asarray(tw.compile(found, cache=False)(x)), evaluate_graph(found, [x])[0], atol=0.02)


def test_weights_are_bytes_and_biases_steps_of_their_sums(found):
    kernels = [n.inputs[1] for n in found.nodes() if n.op in (ops.conv, ops.matmul)]
    assert {k.op for k in kernels} == {ops.dequantize_linear}
    assert {k.inputs[0].dtype for k in kernels} == {i8}
    assert {n.dtype for n in of_op(found, ops.quantize_linear)} == {u8}
    stored = [n.inputs[0] for n in of_op(found, ops.dequantize_linear)]
    assert sorted(x.shape for x in stored if x.dtype is i32) == [(8,), (10,)]


def test_tensors_that_are_only_moved_share_a_scale(found):
    (pool,), (joined,) = of_op(found, ops.max_pool), of_op(found, ops.concat)
    read = (*pool.inputs, *joined.inputs)
    assert {x.op for x in read} == {ops.dequantize_linear}
    assert len({x.inputs[1] for x in read}) == 1


def test_a_residual_is_a_sum_of_bytes_and_a_mean_reads_bytes():
    graph = prepared(convnet())
    places = places_of(graph, layers_of(graph)[0])
    (residual,) = [n for n in of_op(graph, ops.add) if not any(x.op is CONST for x in n.inputs)]
    (mean,) = of_op(graph, ops.reduce_mean)
    assert {*residual.inputs, *mean.inputs} <= places.group.keys()
    assert {residual, mean} <= places.readers


def test_other_runtimes_compute_the_same_numbers_from_the_file(found, tmp_path):
    found.save(tmp_path / "q.onnx")
    x = numbers(3, 3, 8, 8, seed=1)
    (expected,) = evaluate_graph(found, [x])
    np.testing.assert_allclose(evaluate_graph(import_onnx(tmp_path / "q.onnx"), [x])[0], expected, atol=1e-5)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=0.02)


def test_the_report_has_a_line_for_each_product_and_says_why_one_stays():
    def body(b, x):
        y = Net(b.at(Loc("first"))).linear(x, 16)
        z = b.at(Loc("scores"))(ops.matmul, y, b(ops.transpose, y, perm=(1, 0)))
        return Net(b.at(Loc("second")), 1).conv(b(ops.reshape, z, shape=(1, 1, 4, 4)), 2)

    found = tw.quantize(small(body, (4, 8)), numbers(4, 8)).report
    assert [(x.name, x.type) for x in found.layers] == [("first", "u8 x i8"), ("scores", "f32"), ("second", "u8 x i8")]
    assert found.layers[1].why == "both operands are made by the call: there are no weights"
    assert found.layers[0].sqnr_db > 30
    assert json.loads(json.dumps(found.to_dict()))["layers"][0]["op"] == "matmul"
    assert "2 of 3 products in 8 bits" in str(found)


def test_planted_saturation_is_reported():
    x = numbers(20_000, 8)
    x[:10] *= 1e4
    layers = tw.quantize(small(perceptron, ROWS), x, observer="percentile", batch_size=5000).report.layers
    assert 5e-5 < layers[0].saturated <= 1e-4  # all that the observer may leave out


@pytest.mark.parametrize("data", [True, False])
def test_one_scale_that_would_have_been_better_is_reported(data):
    """The second channel's weights are whole steps of the first one's, and no steps of their own."""
    weights = np.array([[127, 100], [-50, 33], [7, -61], [0, 1]], np.float32)
    graph, x = small(lambda b, x: b(ops.matmul, x, b.const(weights)), (Sym("n", 1), 4)), numbers(64, 4)
    mode = {"mode": "dynamic"} if not data else {}
    (layer,) = tw.quantize(graph, x if data else None, **mode).report.layers
    assert ("one scale for all weights would have" if data else "with one scale") in layer.why
    (layer,) = tw.quantize(graph, x, weights="per-tensor").report.layers
    assert layer.why == ""


def several_readers(b, x):
    """A matrix, a batch of matrices and a convolution; only the matrix gets bytes by its results."""
    heads = [b(ops.matmul, x, b.const(numbers(*shape, seed=1))) for shape in ((16, 6), (1, 1, 16, 6))]
    window = {"strides": (1, 1), "pads": ((0, 0),) * 2, "dilations": (1, 1), "groups": 1, "layout": "NHWC"}
    image = b(ops.conv, x, b.const(numbers(6, 16, 1, 1, seed=2)), **window)
    return b(ops.concat, *heads, image, axis=3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_layers_of_every_kind_may_read_one_operand(weights):
    """What a layer notes of one scale for all weights is never that bytes chosen for the data are not the nearest."""
    x = numbers(16, 8, 8, 16) @ numbers(16, 16, seed=3)
    layers = tw.quantize(small(several_readers, (4, 8, 8, 16)), x, smooth=None, weights=weights).report.layers
    assert [y.type for y in layers] == ["u8 x i8"] * 3
    assert min(y.sqnr_db for y in layers) > 30
    assert weights == "per-channel" or not any(y.why for y in layers)


def outlying(b, x):
    """The second of three layers adds up channels of which one is a thousand times larger."""
    first = Net(b.at(Loc("first"))).linear(x, 16)
    scale = b.const(np.array([1000.0] + [1.0] * 15, np.float32))
    y = b(ops.mul, b(ops.tanh, first), scale)
    weights = np.random.default_rng(5).standard_normal((16, 16)).astype(np.float32)
    weights[0] = 0.0
    y = b.at(Loc("outlier"))(ops.matmul, b(ops.add, y, b.const(np.ones(16, np.float32))), b.const(weights))
    return Net(b.at(Loc("last")), 2).linear(b(ops.tanh, y), 4)


@pytest.mark.slow
def test_a_planted_outlier_layer_is_found_and_spared():
    graph, x = small(outlying, ROWS), numbers(64, 8)
    (expected,) = evaluate_graph(graph, [x])

    def evaluate(model):
        return -float(np.abs(np.asarray(model(x)) - expected).max())

    found = tw.quantize(graph, x, max_drop=0.2, evaluate=evaluate).report
    assert [x.name for x in found.layers if x.type == "f32"] == ["outlier"]
    assert found.score_before - found.score <= 0.2
    assert min(found.layers, key=lambda layer: layer.model_sqnr_db).name == "outlier"


class Recurrent(torch.nn.Module):
    """A recurrence, which has several results, between two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.scan, self.last = (
            torch.nn.Linear(4, 6),
            torch.nn.LSTM(6, 8, batch_first=True),
            torch.nn.Linear(8, 3),
        )

    def forward(self, x):
        return self.last(self.scan(torch.relu(self.first(x)))[0])


def test_what_a_recurrence_gives_is_stored_in_bytes():
    torch.manual_seed(0)
    x = numbers(2, 5, 4)
    net = Recurrent().eval()
    found = tw.quantize(net, [x], example_inputs=(torch.from_numpy(x),))
    assert [layer.type for layer in found.report.layers if layer.op == "matmul"].count("u8 x i8") >= 2
    expected = net(torch.from_numpy(x)).detach().numpy()
    assert np.abs(np.asarray(tw.compile(found, cache=False)(x)) - expected).max() < 0.05 * np.abs(expected).max()


def test_layers_that_are_named_stay():
    graph = small(perceptron, ROWS)
    found = tw.quantize(graph, numbers(64, 8), spare=["first"]).report
    assert [(x.type, x.why) for x in found.layers] == [("f32", "spared as asked"), ("u8 x i8", "")]
    with pytest.raises(tw.OptionError, match="no layer 'third' to spare"):
        tw.quantize(graph, numbers(4, 8), spare=["third"])


def generator():
    yield numbers(4, 8)
    yield {"x": numbers(2, 8)}
    yield (numbers(1, 8),)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", ["array", "dict", "npz", "generator"])
def test_forms_of_calibration_data(form, tmp_path):
    np.savez(tmp_path / "data.npz", x=numbers(96, 8))
    data = {
        "array": numbers(96, 8), "dict": {"x": numbers(96, 8)}, "npz": tmp_path / "data.npz", "generator": generator(),
    }[form]  # fmt: skip
    told = []
    found = tw.quantize(small(perceptron, ROWS), data, measured_batches=2, progress=lambda *args: told.append(args))
    assert found.report.n_batches == 3
    assert ("calibrate", 3, 0) in told


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the calibration data are empty"),
        (np.zeros((0, 8), np.float32), "the calibration data are empty"),
        (np.array(["a", "b"]), "dtype <U1; the model takes float32"),
        ([np.full((2, 8), np.nan, np.float32)], "batch 1: input 'x' has numbers that are not finite"),
        ([np.zeros((2, 7), np.float32)], "input 'x', dimension 1"),
        ({"z": np.zeros((2, 8), np.float32)}, r"calibration data has \['z'\], and the model takes \['x'\]"),
        ([(np.zeros((2, 8), np.float32),) * 2], "a batch has 2 arrays"),
        (3, "calibration data can't be a int"),
        ("nothing.npz", "can't read nothing.npz"),
    ],
)
@pytest.mark.usefixtures("native_calibration")
def test_wrong_data(data, message):
    with pytest.raises(tw.InputError, match=message):
        tw.quantize(small(perceptron, ROWS), data)


def test_data_that_are_constant_are_warned_of():
    with pytest.warns(tw.CalibrationWarning, match='input "x": every number is 1 in all calibration data'):
        tw.quantize(small(perceptron, ROWS), np.ones((4, 8), np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error", tw.CalibrationWarning)
        tw.quantize(small(perceptron, ROWS), numbers(4, 8))


@pytest.mark.parametrize(
    "options",
    [{"observer": "best"}, {"activations": "u4"}, {"weights": "per-row"}, {"max_drop": 0.1}, {"weight_bits": 5},
     {"mode": "dynamic", "activations": "i16"}],
)  # fmt: skip
def test_wrong_options(options):
    with pytest.raises(tw.OptionError):
        tw.quantize(small(perceptron, ROWS), numbers(4, 8), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"weight_bits": 8.0}, "weight_bits=8.0 is not offered"), ({"equalize": "no"}, "neither yes nor no"),
     ({"spare": None}, "no list of names"), ({"spare": "first"}, "no list of names"),
     ({"spare": [3]}, "no list of names"),
     ({"batch_size": 0}, "batch_size=0 is no number"), ({"measured_batches": -2}, "measured_batches=-2 is no number"),
     ({"progress": 3}, "progress=3 can't be called"), ({"max_drop": 0.1, "evaluate": 3}, "evaluate=3 can't be called"),
     ({"max_drop": float("nan"), "evaluate": float}, "max_drop=nan is no number"),
     ({"max_drop": "a", "evaluate": float}, "max_drop='a' is no number"),
     ({"max_drop": 0.1, "evaluate": lambda model: None}, "evaluate gave None"),
     ({"max_drop": 0.1, "evaluate": lambda model: float("nan")}, "evaluate gave nan")],
    ids=lambda x: x if isinstance(x, str) else next(iter(x)),
)  # fmt: skip
def test_arguments_that_are_none_of_their_kind(options, said):
    with pytest.raises(tw.OptionError, match=said) as caught:
        tw.quantize(small(perceptron, ROWS), numbers(4, 8), **options)
    assert caught.value.remedy


def test_the_command_writes_a_model_and_a_table(tmp_path, cli):
    model, data = tmp_path / "m.onnx", tmp_path / "data.npy"
    save_onnx(small(perceptron, ROWS), model)
    np.save(data, numbers(64, 8))
    ran = cli("quantize", model, "--data", data, "--observer", "mse")
    assert ran.code == 0
    assert "2 of 2 products in 8 bits, ranges of 2 batches" in ran.out
    assert len(of_op(import_onnx(tmp_path / "m.int8.onnx"), ops.quantize_linear)) == 2
    assert cli("quantize", model, "--data", data, "--observer", "best").code == 2
    assert cli("quantize", model, "--data", data, "--smooth", "0.5", "--rounding", "nearest").code == 0
    assert cli("quantize", model, "--data", data, "--smooth", "none").code == 0
    assert cli("quantize", model, "--data", data, "--smooth", "2").code == 2
    assert cli("quantize", model, "--data", tmp_path / "none.npz").code == 1
