"""Recurrent layers in few bits: the products of their inputs and of their state, against loops in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import ops
from tilewright.core.diag import Loc, OptionError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import Array, TensorType, f32, u8
from tilewright.graph.quantize.books import BOOKS
from tilewright.graph.quantize.codes import real_rows, rounded_rows
from tilewright.graph.quantize.encoding import Range, encoding_of
from tilewright.ops.loops import repeated

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


class Layer(NamedTuple):
    """A recurrent layer: its weights [directions, gates * hidden, ...], and sequences that it is given."""

    kind: str
    direction: str
    resets_last: bool
    w: Array
    r: Array
    bias: Array
    x: Array
    lengths: Array | None = None

    @property
    def hidden(self) -> int:
        return int(self.r.shape[2])

    def model(self) -> onnx.ModelProto:
        more = {"linear_before_reset": int(self.resets_last)} if self.kind == "GRU" else {}
        node = helper.make_node(
            self.kind, ["x", "w", "r", "b", *(["lengths"] if self.lengths is not None else [])], ["y"], name="cell",
            hidden_size=self.hidden, direction=self.direction, **more,
        )  # fmt: skip
        arrays = [("w", self.w), ("r", self.r), ("b", self.bias)]
        arrays += [("lengths", self.lengths)] if self.lengths is not None else []
        graph = helper.make_graph(
            [node], "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.x.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, name) for name, a in arrays],
        )  # fmt: skip
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def drawn(kind: str, direction: str, sizes: Sequence[int], seed: int = 0, *, resets_last: bool = True) -> Layer:
    steps, batch, inputs, hidden = sizes
    rng, n_dirs, gates = np.random.default_rng(seed), len(DIRECTIONS[direction]), GATES[kind] * hidden

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    w, r = (normal(n_dirs, gates, k) / np.float32(np.sqrt(k)) for k in (inputs, hidden))
    return Layer(kind, direction, resets_last, w, r, normal(n_dirs, 2 * gates), normal(steps, batch, inputs))


Multiply = Callable[[Array, Array], Array]
"""Rows by a matrix of weights [columns, terms]."""


def expected(layer: Layer, of_inputs: Multiply, of_states: Multiply | Sequence[Multiply]) -> Array:
    """The layer's results [steps, directions, batch, hidden], with these products; of states one for each direction."""
    n_steps, batch, hidden = *layer.x.shape[:2], layer.hidden
    y = np.zeros((n_steps, len(layer.w), batch, hidden), np.float32)
    for d, backwards in enumerate(DIRECTIONS[layer.direction]):
        own, recurrent = np.split(layer.bias[d], 2)
        xp = of_inputs(layer.x.reshape(n_steps * batch, -1), layer.w[d]).reshape(n_steps, batch, -1) + own
        h, c = np.zeros((2, batch, hidden), np.float32)
        ends = np.full(batch, n_steps) if layer.lengths is None else layer.lengths
        for t in range(n_steps):
            at, runs = np.where(backwards & (t < ends), ends - 1 - t, t), (t < ends)[:, None]
            multiply = of_states if callable(of_states) else of_states[d]
            new, c_new = _step(layer, xp[at, np.arange(batch)], h, c, layer.r[d], recurrent, multiply)
            h, c = np.where(runs, new, h), np.where(runs, c_new, c)
            y[at, d, np.arange(batch)] = np.where(runs, h, 0)
    return y


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _step(layer: Layer, x: Array, h: Array, c: Array, r: Array, bias: Array, multiply: Multiply) -> tuple[Array, Array]:
    hidden = layer.hidden
    if layer.kind == "RNN":
        return np.tanh(x + multiply(h, r) + bias), c
    if layer.kind == "LSTM":
        i, o, f, g = np.split(x + multiply(h, r) + bias, 4, axis=1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        return _sigmoid(o) * np.tanh(c), c
    early, last = r[: 2 * hidden], r[2 * hidden :]
    gates = _sigmoid(x[:, : 2 * hidden] + multiply(h, early) + bias[: 2 * hidden])
    z, reset = np.split(gates, 2, axis=1)
    part = reset * (multiply(h, last) + bias[2 * hidden :])
    if not layer.resets_last:
        part = multiply(reset * h, last) + bias[2 * hidden :]
    return (1 - z) * np.tanh(x[:, 2 * hidden :] + part) + z * h, c


def by_codes(weights: str, group: int = 32) -> Multiply:
    """Products by the nearest codes of weights."""
    book = BOOKS[weights]

    def multiply(rows: Array, matrix: Array) -> Array:
        found = rounded_rows(matrix, book, group if book.has_steps else matrix.shape[1])
        return np.asarray(rows @ real_rows(*found, book).T, np.float32)

    return multiply


@st.composite
def layers(draw: st.DrawFn, multiple: int = 1) -> Layer:
    """Layers of all kinds, whose inputs and units are multiples of a number."""
    kind, direction = draw(st.sampled_from(list(GATES))), draw(st.sampled_from(list(DIRECTIONS)))
    steps, batch = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    inputs, hidden = (multiple * draw(st.integers(1, 2 if multiple > 1 else 20)) for _ in range(2))
    seed, resets_last = draw(st.integers(0, 99)), draw(st.booleans())
    layer = drawn(kind, direction, (steps, batch, inputs, hidden), seed, resets_last=resets_last)
    if draw(st.booleans()):
        layer = layer._replace(lengths=np.random.default_rng(seed).integers(1, steps + 1, batch).astype(np.int32))
    return layer


def called(graph: Graph, x: Array) -> Array:
    return np.asarray(tw.compile(graph, cache=False)(x))


def near(found: Array, wanted: Array) -> None:
    """Equal, but where a number next to a half was rounded the other way, and what followed from that."""
    off = np.abs(found - wanted)
    assert np.median(off) < 1e-5 and off.max() < 0.02


def rounded_weights(matrix: Array) -> Array:
    """The nearest bytes of each row's own scale."""
    most = np.abs(matrix).max(1, keepdims=True)
    scale = np.where(most > 0, most / 127, 1).astype(np.float32)
    return np.asarray(np.clip(np.rint(matrix / scale), -127, 127) * scale)


def by_rows(rows: Array, matrix: Array) -> Array:
    """Each row in bytes over the range of its numbers and 0."""
    low, high = np.minimum(rows.min(-1, keepdims=True), 0), np.maximum(rows.max(-1, keepdims=True), 0)
    scale = np.maximum((high - low) / np.float32(255), np.finfo(np.float32).tiny)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    stored = np.clip(np.rint(rows * (1 / scale)) + zero, 0, 255) - zero
    return np.asarray(stored * scale @ rounded_weights(matrix).T, np.float32)


def by_range(low: float, high: float) -> Multiply:
    """Bytes of one range, which data told."""
    encoding = encoding_of(Range(low, high), u8)
    return lambda rows, matrix: np.asarray(encoding.rounded(rows) @ rounded_weights(matrix).T, np.float32)


@settings(max_examples=10, derandomize=True)
@given(layers())
def test_calls_round_each_row_of_inputs_and_states(layer: Layer) -> None:
    quantised = tw.quantize(layer.model(), mode="dynamic")
    near(evaluate_graph(quantised, [layer.x])[0], expected(layer, by_rows, by_rows))
    assert {(x.type, x.op == "matmul") for x in quantised.report.layers} == {("u8 x i8", True), ("u8 x i8", False)}


@pytest.mark.filterwarnings("ignore:.*every number is")  # of a sequence of one number, for instance
@settings(max_examples=2, derandomize=True)
@given(layers())
def test_data_tell_the_range_of_inputs_and_states(layer: Layer) -> None:
    quantised = tw.quantize(layer.model(), [layer.x], smooth=None, rounding="nearest")
    plain = expected(layer, lambda x, w: x @ w.T, lambda h, r: h @ r.T)
    of_states = [by_range(plain[:, d].min(), plain[:, d].max()) for d in range(len(layer.w))]
    wanted = expected(layer, by_range(layer.x.min(), layer.x.max()), of_states)
    near(evaluate_graph(quantised, [layer.x])[0], wanted)
    assert all(x.type == "u8 x i8" and x.sqnr_db is not None for x in quantised.report.layers)
    assert len(quantised.report.layers) == 2 * len(layer.w)


@pytest.mark.one_in(2)  # each kind, and each mode
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("LSTM", "static"), ("LSTM", "dynamic"), ("GRU", "dynamic"), ("GRU", "static"), ("RNN", "static"),
        ("RNN", "dynamic"),
    ],
)  # fmt: skip
def test_native_code_multiplies_bytes_and_onnxruntime_agrees(kind: str, mode: str, tmp_path: Path) -> None:
    layer = drawn(kind, "reverse", (5, 2, 24, 20), seed=3, resets_last=False)
    quantised = tw.quantize(layer.model(), [layer.x], mode=mode, weight_bits=7)  # 8 saturate there without VNNI
    model = tw.compile(quantised, cache=False)
    assert [n for n in model.report()["types"] if n["op"] == "matmul" and n["type"] == "u8 x i8"], model.report()
    found = np.asarray(model(layer.x))
    near(found, evaluate_graph(quantised, [layer.x])[0])
    quantised.save(tmp_path / "q.onnx")
    runtime = pytest.importorskip("onnxruntime")
    near(found, runtime.InferenceSession(tmp_path / "q.onnx").run(None, {"x": layer.x})[0])
    exact = expected(layer, lambda x, w: x @ w.T, lambda h, r: h @ r.T)
    assert np.abs(found - exact).max() < 0.06


def test_only_the_layers_that_disturb_most_stay() -> None:
    """Products of a recurrence are ranked like others, and one that is spared is computed in f32."""
    layer = drawn("LSTM", "forward", (5, 2, 16, 16))
    scores = iter([1.0, 0.0, 1.0])
    quantised = tw.quantize(layer.model(), [layer.x], max_drop=0.1, evaluate=lambda model: next(scores))
    (spared,) = (x for x in quantised.report.layers if x.type == "f32")
    assert "disturbs" in spared.why and all(x.model_sqnr_db is not None for x in quantised.report.layers)
    exact = expected(layer, lambda x, w: x @ w.T, lambda h, r: h @ r.T)
    assert np.abs(called(quantised, layer.x) - exact).max() < 0.06


def test_products_inside_loops_of_the_model_are_told() -> None:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (4, 8)))

    def step(inner: Builder, i: Node, now: Sequence[Node], fixed: Sequence[Node]) -> Sequence[Node]:
        return (inner.at(Loc("inner"))(ops.matmul, now[0], inner.const(np.eye(8, dtype=np.float32))),)

    graph = Graph("g", b.pool, (x,), tuple(repeated(b, "body", 3, [x], [], step)), ("y",))
    (told,) = tw.quantize(graph, mode="dynamic").report.layers
    assert told.type == "f32" and "inside a loop" in told.why


def weights_bytes(model: tw.LoadedModel) -> int:
    return int(model.report()["memory"]["weights_bytes"])


@settings(max_examples=10, derandomize=True)
@given(layers(32), st.sampled_from(list(BOOKS)))
def test_weights_alone_are_the_nearest_codes(layer: Layer, weights: str) -> None:
    quantised = tw.quantize(layer.model(), mode="weights", weights=weights)
    wanted = expected(layer, by_codes(weights), by_codes(weights))
    np.testing.assert_allclose(evaluate_graph(quantised, [layer.x])[0], wanted, atol=2e-4)
    assert [x.type for x in quantised.report.layers] == [f"f32 x {weights}"] * 2 * len(layer.w)
    assert all(x.name == 'node "cell" (' + layer.kind + ")" for x in quantised.report.layers)


def test_what_has_no_whole_groups_stays_and_says_so() -> None:
    layer = drawn("GRU", "forward", (2, 1, 20, 32))
    quantised = tw.quantize(layer.model(), mode="weights")
    of_inputs, of_states = quantised.report.layers
    assert (of_inputs.type, of_states.type) == ("f32", "f32 x int4") and "20 terms are no whole groups" in of_inputs.why
    np.testing.assert_allclose(
        called(quantised, layer.x), expected(layer, lambda x, w: x @ w.T, by_codes("int4")), atol=2e-4
    )
    odd = tw.quantize(drawn("LSTM", "forward", (2, 1, 20, 9)).model(), mode="weights")
    (whole,) = odd.report.layers
    assert (whole.op, whole.type) == ("lstm", "f32") and "whole groups" in whole.why


@pytest.mark.parametrize("mode", ["weights", "dynamic"])
def test_layers_are_spared_by_name(mode: str) -> None:
    model = drawn("LSTM", "forward", (2, 1, 32, 32)).model()
    (spared,) = tw.quantize(model, mode=mode, spare=['node "cell" (LSTM)']).report.layers
    assert (spared.op, spared.type, spared.why) == ("lstm", "f32", "spared as asked")
    with pytest.raises(OptionError, match="no layer 'cell'") as caught:
        tw.quantize(model, mode=mode, spare=["cell"])
    assert str(caught.value.remedy).count("LSTM") == 1, "its products have one name, which is told once"


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_take_their_bits_and_no_more(weights: str, tmp_path: Path) -> None:
    layer = drawn("LSTM", "forward", (1, 1, 128, 128))
    quantised = tw.quantize(layer.model(), mode="weights", weights=weights)
    quantised.save(tmp_path / "q.onnx")
    bits, n = BOOKS[weights].bits, layer.w.size + layer.r.size
    most = n * bits / 8 + n / 32 * 2 + layer.bias.nbytes + 4096  # with a scale in half precision for each group
    assert weights_bytes(tw.compile(quantised, cache=False)) < most
    assert (tmp_path / "q.onnx").stat().st_size < most + 4096
    again = tw.compile(tmp_path / "q.onnx", cache=False)
    assert weights_bytes(again) < most
    np.testing.assert_allclose(np.asarray(again(layer.x)), called(quantised, layer.x), atol=1e-5)


@pytest.mark.parametrize(("kind", "weights"), [("LSTM", "int8"), ("GRU", "int4"), ("RNN", "nf4")])
def test_onnxruntime_reads_the_numbers_that_are_meant(kind: str, weights: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL  # no rows in 8 bits
    layer = drawn(kind, "bidirectional", (3, 2, 32, 32))
    quantised = tw.quantize(layer.model(), mode="weights", weights=weights)
    quantised.save(tmp_path / "q.onnx")
    (want,) = runtime.InferenceSession(tmp_path / "q.onnx", options).run(None, {"x": layer.x})
    np.testing.assert_allclose(called(quantised, layer.x), want, atol=1e-4)


def test_data_choose_codes_for_the_results() -> None:
    layer = drawn("RNN", "forward", (8, 12, 32, 32))
    mixed = (layer.x @ np.random.default_rng(1).standard_normal((32, 32))).astype(np.float32) / 40
    mixed[..., 8:] = mixed[..., :8] @ np.random.default_rng(2).standard_normal((8, 24)).astype(np.float32)
    exact = np.asarray(tw.compile(layer.model(), cache=False)(mixed))
    errors = []
    for data in (None, [mixed]):
        quantised = tw.quantize(layer.model(), data, mode="weights")
        errors.append(float(np.square(called(quantised, mixed) - exact).sum()))
    assert errors[1] < 0.8 * errors[0]


def test_a_precision_stores_them_too() -> None:
    layer = drawn("GRU", "reverse", (3, 1, 32, 64))
    model = tw.compile(layer.model(), precision="int8", cache=False)
    wanted = expected(layer, by_codes("int8"), by_codes("int8"))
    np.testing.assert_allclose(np.asarray(model(layer.x)), wanted, atol=2e-4)
    assert weights_bytes(model) < 2 * (layer.w.size + layer.r.size)
