"""`tilewright.quantize(mode="weights")`: weights in few bits, files, a report, wrong options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.core.diag import Loc, OptionError
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.passes import run_pipeline
from tilewright.core.types import Array, TensorType, f32
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.graph.pipeline import passes_for
from tilewright.graph.quantize.books import BOOKS
from tilewright.graph.quantize.codes import real_rows, rounded_rows
from tilewright.target.target import Target
from tilewright.tools.tokens import product_bytes

RNG = np.random.default_rng(5)
BYTES = {"int8": 1.2, "int4": 0.7, "nf4": 1.2, "fp4": 1.2, "fp8": 1.2, "fp8e5m2": 1.2, "fp16": 2.1}


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def two_layers() -> Graph:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (4, 128)))
    h = b.at(Loc("first"))(ops.matmul, x, b.const(normal(128, 128)))
    h = b(ops.relu, h)
    y = b.at(Loc("second"))(ops.matmul, h, b.const(normal(128, 64)))
    z = b.at(Loc("odd"))(ops.matmul, y, b.const(normal(64, 7)))
    return Graph("g", b.pool, (x,), (z,), ("z",))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("weights", BOOKS)
def test_files_hold_the_bits_and_come_back_as_the_same_products(weights: str, tmp_path: Path) -> None:
    graph = two_layers()
    quantised = tw.quantize(graph, mode="weights", weights=weights)
    quantised.save(tmp_path / "q.onnx")
    back = import_onnx(tmp_path / "q.onnx").unchecked()
    made, again = (run_pipeline(g, passes_for(2, target=Target.parse("native"))) for g in (quantised, back))
    stored = (ops.coded_matmul, ops.scaled_matmul)
    if weights != "fp16":  # halves have a type of their own
        products = [[n.op for n in g.nodes() if n.op in stored] for g in (made, again)]
        assert products[0][:2] == products[1][:2]  # a reader folds constants as small as the last one's
        assert len(products[1]) >= 2
    n_weights = 128 * 128 + 128 * 64
    assert (tmp_path / "q.onnx").stat().st_size < BYTES[weights] * n_weights + 4 * 64 * 7 + 2000
    x = normal(4, 128)
    got, want = (np.asarray(tw.compile(g, cache=False)(x)) for g in (back, quantised))
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("mode", ["weights", "static", "dynamic"])
def test_what_was_quantised_is_kept_no_longer(mode: str) -> None:
    """A model of many gigabytes and its codes are not there at once longer than needed."""
    graph = two_layers()
    quantised = tw.quantize(graph, normal(8, 128) if mode == "static" else None, mode=mode)
    assert all(quantised.pool.owns(node) for node in quantised.nodes())
    assert not any(quantised.pool.owns(node) for node in graph.nodes())


def test_onnxruntime_reads_the_numbers_that_are_meant(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL  # no rows in 8 bits
    graph, x = two_layers(), normal(4, 128)
    for weights in ("int4", "nf4", "fp8"):
        quantised = tw.quantize(graph, mode="weights", weights=weights)
        quantised.save(tmp_path / "q.onnx")
        (want,) = runtime.InferenceSession(tmp_path / "q.onnx", options).run(None, {"x": x})
        got = np.asarray(tw.compile(quantised, cache=False)(x))
        np.testing.assert_allclose(got, want, atol=2e-4 * np.abs(want).max())


def test_the_report_has_each_product_and_why_one_stays() -> None:
    quantised = tw.quantize(two_layers(), mode="weights", weights="nf4", spare=["second"])
    first, second, odd = quantised.report.layers
    assert first.type == "f32 x nf4" and first.sqnr_db is not None and 15 < first.sqnr_db < 30
    assert second.type == "f32" and second.why == "spared as asked"
    assert odd.type == "f32" and "7 columns fill no whole words" in odd.why
    assert "1 of 3 products with weights of nf4, by the nearest codes" in str(quantised.report)
    better = tw.quantize(two_layers(), mode="weights", weights="int8").report.layers[0].sqnr_db
    assert better is not None and better > first.sqnr_db + 15


def places(size: int, kernel: int = 1, layout: str = "NCHW") -> tuple[Graph, Array]:
    """A convolution of 64 channels, as the squeezed ones of an image net, and its weights."""
    b, w = Builder(Pool()), normal(32, 64, kernel, kernel)
    x = b.pool.input("x", TensorType(f32, (2, 64, size, 2) if layout == "NCHW" else (2, size, 2, 64)))
    ones, pads = (1, 1), ((kernel // 2,) * 2,) * 2
    attrs = {"strides": ones, "dilations": ones, "pads": pads, "groups": 1, "layout": layout}
    return Graph("g", b.pool, (x,), (b.at(Loc("layer"))(ops.conv, x, b.const(w), **attrs),), ("y",)), w


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("with_data", [False, True])
def test_convolutions_of_few_places_are_products_by_codes(layout: str, with_data: bool, tmp_path: Path) -> None:
    graph, w = places(3, layout=layout)
    x = normal(*(int(n) for n in graph.inputs[0].shape if isinstance(n, int)))
    quantised = tw.quantize(graph, [x] if with_data else None, mode="weights", weights="int8")
    (layer,) = quantised.report.layers
    assert layer.type == "f32 x int8" and layer.sqnr_db is not None and layer.sqnr_db > 40
    found = np.asarray(tw.compile(quantised, cache=False)(x))
    rows = np.moveaxis(x, 1, 3) if layout == "NCHW" else x
    codes, steps = rounded_rows(w.reshape(32, 64), BOOKS["int8"], 32)
    wanted = rows @ real_rows(codes, steps, BOOKS["int8"]).T
    last = np.moveaxis(found, 1, 3) if layout == "NCHW" else found
    # With data codes are others, as near to the exact results as those are.
    exact, scale = rows @ w.reshape(32, 64).T, float(np.abs(wanted).max())
    np.testing.assert_allclose(last, exact if with_data else wanted, atol=(0.02 if with_data else 1e-4) * scale)
    quantised.save(tmp_path / "q.onnx")
    again = tw.compile(tmp_path / "q.onnx", cache=False)
    np.testing.assert_allclose(np.asarray(again(x)), found, atol=1e-4 * scale)


@pytest.mark.parametrize(("size", "kernel"), [(33, 1), (3, 3)])
def test_convolutions_that_read_weights_often_stay_with_a_reason(size: int, kernel: int) -> None:
    (layer,) = tw.quantize(places(size, kernel)[0], mode="weights").report.layers
    assert layer.type == "f32" and "at many places" in layer.why


def test_with_data_codes_are_chosen_for_results() -> None:
    graph = two_layers()
    x = (RNG.standard_normal((32, 16)) @ RNG.standard_normal((16, 128))).astype(np.float32)
    chosen, plain = (tw.quantize(graph, data, mode="weights") for data in (x, None))
    assert "by GPTQ over 8 batches" in str(chosen.report)
    want = np.asarray(tw.compile(graph, cache=False)(x[:4]))
    errors = [np.square(np.asarray(tw.compile(g, cache=False)(x[:4])) - want).sum() for g in (chosen, plain)]
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize(
    ("options", "what"),
    [({"weights": "int5"}, "weights='int5'"), ({"group": 48}, "group=48"), ({"observer": "mse"}, "observer='mse'"),
     ({"activations": "i8"}, "activations='i8'"), ({"spare": ["third"]}, "no layer 'third'"),
     ({"max_drop": 0.1, "evaluate": lambda m: 0.0}, "max_drop"), ({"mode": "dynamic", "group": 64}, "group=64"),
     ({"mode": "static", "weights": "nf4"}, "weights='nf4'")],
)  # fmt: skip
def test_options_that_say_nothing_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=what) as caught:
        tw.quantize(two_layers(), **{"mode": "weights", **options})
    assert caught.value.remedy


@pytest.mark.parametrize(("precision", "n_bytes"), [("int8", 2176), ("int4", 1152), ("nf4-64", 1088), ("fp16", 4096)])
def test_the_bytes_that_a_token_reads(precision: str, n_bytes: int) -> None:
    """Codes, and a half for the step of each group where the groups have steps."""
    torch = pytest.importorskip("torch")
    assert product_bytes(torch.nn.Linear(64, 32), precision) == n_bytes
