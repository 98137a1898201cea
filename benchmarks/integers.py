"""Quantised layers and chains of convolutions: each form beside its f32 form and beside ONNX Runtime, one thread.

    python -m benchmarks.integers              every row
    python -m benchmarks.integers conv         rows whose name contains a word
    python -m benchmarks.integers --seconds 0.5

In: nothing. Out: a table: shortest microseconds of ours and of ONNX Runtime, called in turn, and their ratio.
Not its business: exactness (``tests/test_quantised.py``), whole nets (``benchmarks.latency``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from benchmarks.interleaved import best_times, onnxruntime_session
from onnx import TensorProto, helper, numpy_helper

import tilewright

FORMS = ("f32", "qdq", "qlinear")
SCALE = np.float32(0.02)


class Model:
    """A chain of layers in one of ``FORMS`` that grows at its end."""

    def __init__(self, form: str, shape: tuple[int, ...], kind: type) -> None:
        self.form, self.shape, self.kind = form, shape, kind
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {"s": SCALE, "z": np.array(120 if kind is np.uint8 else 5, kind)}
        self.at = "x" if form == "qlinear" else self.quantised("x")

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def quantised(self, x: str) -> str:
        if self.form == "f32":
            return x
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, "s", "z"), "s", "z")

    def layer(self, op: str, shape: tuple[int, ...], axis: int, **attrs: Any) -> None:
        """A product or convolution with bias and, but in the QLinear form, ReLU; weights of ``shape`` per channel."""
        k, n = len(self.nodes), shape[axis]
        depth = int(np.prod(shape)) // n
        scales = (self.rng.uniform(0.5, 1, n) * 0.02 / np.sqrt(depth)).astype(np.float32)
        stored = self.rng.integers(-127, 128, shape).astype(np.int8)
        self.constants |= {f"w{k}": stored, f"ws{k}": scales, f"wz{k}": np.zeros(n, np.int8)}
        self.constants[f"b{k}"] = self.rng.standard_normal(n).astype(np.float32)
        if self.form == "qlinear":
            self.at = self.add(f"QLinear{op}", self.at, "s", "z", f"w{k}", f"ws{k}", f"wz{k}", "s", "z", **attrs)
            return
        spread = scales.reshape([n if d == axis else 1 for d in range(len(shape))])
        if self.form == "f32":
            self.constants[f"w{k}"] = stored * spread
        w = f"w{k}" if self.form == "f32" else self.add("DequantizeLinear", f"w{k}", f"ws{k}", f"wz{k}", axis=axis)
        y = self.add("Conv", self.at, w, f"b{k}", **attrs) if op == "Conv" else self.add(
            "Add", self.add("MatMul", self.at, w), f"b{k}"
        )  # fmt: skip
        self.at = self.quantised(self.add("Relu", y))

    def finished(self, result: tuple[int, ...]) -> tuple[onnx.ModelProto, dict[str, Any]]:
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(self.kind)) if self.form == "qlinear" else TensorProto.FLOAT
        used = {i for n in self.nodes for i in n.input}
        graph = helper.make_graph(
            self.nodes, "g", [helper.make_tensor_value_info("x", dtype, self.shape)],
            [helper.make_tensor_value_info(self.at, dtype, result)],
            [numpy_helper.from_array(np.asarray(v), k) for k, v in self.constants.items() if k in used],
        )  # fmt: skip
        x = self.rng.standard_normal(self.shape) * (40 if self.form == "qlinear" else 1)
        feeds = {"x": np.clip(x, -100, 100).astype(self.kind if self.form == "qlinear" else np.float32)}
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]), feeds


def product(form: str, m: int, n: int, k: int, kind: type = np.uint8) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """One product with constant weights."""
    made = Model(form, (m, k), kind)
    made.layer("MatMul", (k, n), 1)
    return made.finished((m, n))


def chain(
    form: str, channels: int, size: int, kernels: tuple[int, ...], groups: int = 1, kind: type = np.uint8
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Convolutions of as many channels one behind the other; those with ``groups`` are the ones with a window."""
    made = Model(form, (1, channels, size, size), kind)
    for k in kernels:
        group = groups if k > 1 else 1
        made.layer("Conv", (channels, channels // group, k, k), 0, pads=[k // 2] * 4, group=group)
    return made.finished((1, channels, size, size))


def cases() -> Iterator[tuple[str, Callable[[str], tuple[onnx.ModelProto, dict[str, Any]]]]]:
    yield "matmul 384x768x768", lambda f: product(f, 384, 768, 768)
    yield "matmul 384x768x768 of i8", lambda f: product(f, 384, 768, 768, np.int8)
    yield "matmul 127x1000x300", lambda f: product(f, 127, 1000, 300)
    yield "conv 1x1 64, 56x56, 4 layers", lambda f: chain(f, 64, 56, (1, 1, 1, 1))
    yield "conv 1x1 256, 28x28, 4 layers", lambda f: chain(f, 256, 28, (1, 1, 1, 1))
    yield "conv 3x3 64, 56x56, 4 layers", lambda f: chain(f, 64, 56, (3, 3, 3, 3))
    yield "conv 3x3 256, 14x14, 4 layers", lambda f: chain(f, 256, 14, (3, 3, 3, 3))
    yield "conv depthwise and 1x1 128, 28x28, 4 layers", lambda f: chain(f, 128, 28, (3, 1, 3, 1), 128)


def runtime(m: onnx.ModelProto, feeds: Mapping[str, Any]) -> Callable[[], Any]:
    """A call of ONNX Runtime with one thread."""
    session = onnxruntime_session(m.SerializeToString())
    return lambda: session.run(None, feeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only rows whose name contains one of them")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row")
    options = parser.parse_args()
    print(f"{'case':46} {'form':8} {'ours us':>9} {'ONNX Runtime us':>16} {'ratio':>6} {'of our f32':>11}")
    for name, made in cases():
        if options.words and not any(w in name for w in options.words):
            continue
        built = [(form, *made(form)) for form in FORMS]
        calls: list[Callable[[], Any]] = []
        for _, m, feeds in built:
            compiled, arrays = tilewright.compile(m, cache=False, threads=1), list(feeds.values())
            calls += [lambda c=compiled, a=arrays: c(*a), runtime(m, feeds)]
        best = best_times(calls, options.seconds * len(FORMS))
        for k, (form, _, _) in enumerate(built):
            ours, theirs = best[2 * k], best[2 * k + 1]
            print(
                f"{name:46} {form:8} {ours * 1e6:9.1f} {theirs * 1e6:16.1f} {theirs / ours:6.2f} {best[0] / ours:11.2f}"
            )


if __name__ == "__main__":
    main()
