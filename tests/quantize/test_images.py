"""`mode="dynamic"` of convolutions: each image is rounded over its own range, and sums are of integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from small_models import numbers
from tilewright import ops
from tilewright.core.diag import Loc
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import Array, TensorType, f32

N_READING = 16
"""Results that must read each number before rounding it pays."""


class Case(NamedTuple):
    """A convolution: images, weights, attributes."""

    x: Array
    w: Array
    attrs: dict[str, Any]

    def graph(self, n: Dim | None = None) -> Graph:
        b = Builder(Pool())
        x = b.pool.input("x", TensorType(f32, (len(self.x) if n is None else n, *self.x.shape[1:])))
        return Graph("g", b.pool, (x,), (b.at(Loc("layer"))(ops.conv, x, b.const(self.w), **self.attrs),), ("y",))

    def expected(self, low: int) -> Array:
        """The formula of the documentation; activations from ``low``, which is 0 or -128."""
        pads = [(0, 0), (0, 0), *self.attrs["pads"]]
        padded = np.pad(self.x, pads)
        axes = tuple(range(1, padded.ndim))
        least, most = (f(padded, axis=axes, keepdims=True) for f in (np.min, np.max))
        least, most = np.minimum(least, 0), np.maximum(most, 0)
        scale = np.maximum((most - least) / np.float32(255), np.finfo(np.float32).tiny)
        inverse = np.float32(1) / scale
        zero = np.clip(np.rint(low - least * inverse), low, low + 255)
        stored = np.clip(np.rint(padded * inverse) + zero, low, low + 255) - zero
        most_weight = np.abs(self.w).max(axis=axes, keepdims=True)
        steps = np.where(most_weight > 0, most_weight / 127, 1).astype(np.float32)
        codes = np.clip(np.rint(self.w / steps), -127, 127)
        convolve = torch.nn.functional.conv1d if self.x.ndim == 3 else torch.nn.functional.conv2d
        window = {"stride": self.attrs["strides"], "dilation": self.attrs["dilations"], "groups": self.attrs["groups"]}
        sums = convolve(
            torch.from_numpy(stored.astype(np.float64)), torch.from_numpy(codes.astype(np.float64)), **window
        )
        return np.asarray(sums.numpy() * steps.reshape(1, -1, *[1] * (self.x.ndim - 2)) * scale, np.float32)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    per_group, kernel = draw(st.integers(2, 5)), [draw(st.integers(1, 3)) for _ in range(rank)]
    n_out = groups * N_READING
    sizes = [draw(st.integers(6, 9)) for _ in range(rank)]
    attrs = {
        "strides": tuple(draw(st.integers(1, 2)) for _ in range(rank)),
        "dilations": tuple(draw(st.integers(1, 2)) for _ in range(rank)),
        "pads": tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(rank)),
        "groups": groups,
    }
    seed = draw(st.integers(0, 99))
    x = numbers(2, groups * per_group, *sizes, seed=seed) + np.float32(draw(st.sampled_from([0.0, 3.0, -3.0])))
    x[1] *= draw(st.sampled_from([0.0, 1e-3, 1e20]))  # images of very different sizes
    return Case(x, numbers(n_out, per_group, *kernel, seed=seed + 1), attrs)


@settings(max_examples=12, derandomize=True)
@given(cases(), st.sampled_from(["u8", "i8"]))
def test_images_have_scales_of_their_own_and_sums_are_exact(case: Case, activations: str) -> None:
    quantised = tw.quantize(case.graph(), mode="dynamic", activations=activations)
    wanted = case.expected(0 if activations == "u8" else -128)
    (found,) = evaluate_graph(quantised, [case.x])
    for image, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(image, want, rtol=1e-5, atol=1e-6 * float(np.abs(want).max()))


def case_of(n_out: int = 16, groups: int = 1, channels: int = 4) -> Case:
    attrs = {"strides": (1, 2), "dilations": (1, 1), "pads": ((1, 1), (0, 1)), "groups": groups}
    return Case(numbers(3, channels, 9, 8), numbers(n_out, channels // groups, 3, 3, seed=1), attrs)


def test_native_code_and_onnxruntime_have_the_same_bits(tmp_path: Path) -> None:
    case = case_of()
    quantised = tw.quantize(case.graph(Sym("n", 1)), mode="dynamic")
    model = tw.compile(quantised, cache=False)
    found = np.asarray(model(case.x))
    assert next(t for t in model.report()["types"] if t["op"] == "conv")["type"] == "u8 x i8"
    np.testing.assert_array_equal(found, evaluate_graph(quantised, [case.x])[0])
    quantised.save(tmp_path / "q.onnx")
    runtime = pytest.importorskip("onnxruntime")
    (theirs,) = runtime.InferenceSession(tmp_path / "q.onnx").run(None, {"x": case.x})
    np.testing.assert_allclose(found, theirs, rtol=1e-6, atol=1e-6)


def test_data_choose_weights_and_errors_are_measured() -> None:
    case = case_of()
    quantised = tw.quantize(case.graph(Sym("n", 1)), case.x, mode="dynamic", bias_correction=True)
    (layer,) = quantised.report.layers
    assert layer.type == "u8 x i8" and layer.sqnr_db is not None and layer.sqnr_db > 35 and layer.saturated is None
    (exact,) = evaluate_graph(case.graph(), [case.x])
    assert abs(float((evaluate_graph(quantised, [case.x])[0] - exact).mean())) < 1e-4


@pytest.mark.parametrize("case", [case_of(4, groups=4), case_of(1)], ids=["depthwise", "few results"])
def test_convolutions_that_rounding_would_not_pay_stay(case: Case) -> None:
    (layer,) = tw.quantize(case.graph(), mode="dynamic").report.layers
    assert layer.type == "f32" and "so few products" in layer.why
