"""TFLite models beside LiteRT with its default kernels (XNNPACK), floats and int8 codes.

    PYTHONPATH=tests:. python -m benchmarks.tflite_models              every model, as floats and as codes
    PYTHONPATH=tests:. python -m benchmarks.tflite_models mobile       models whose name contains a word
    PYTHONPATH=tests:. python -m benchmarks.tflite_models --threads 2 --seconds 0.5 --json

In: nothing. Out: a table: shortest microseconds of LiteRT and of ours, called in turn with arrays in and out, and their
ratio; with ``--json`` as rows. A process of one thread keeps to one core. Numbers are random, sizes those of models for
small machines. Not its business: exactness over many models (``tests/frontend/test_tflite_models.py``); that a model's
results are LiteRT's reference kernels' is seen once before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from benchmarks.interleaved import best_times, geometric_mean

import tilewright as tw
from frontend.tflite_build import Codes, TfliteModel

SAME, VALID = 0, 1
NONE, RELU, RELU6 = 0, 1, 3
ACTIVATIONS = Codes(0.05, -10)
Place = tuple[int, tuple[int, ...]]
"""A tensor's number and its shape."""


@dataclass
class Net:
    """A model that is being built, of floats or of int8 codes with a scale for each channel of a weight."""

    is_coded: bool
    model: TfliteModel = field(default_factory=TfliteModel)
    rng: Any = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def dtype(self) -> Any:
        return np.int8 if self.is_coded else np.float32

    def input(self, *shape: int) -> Place:
        return self.model.input(np.zeros(shape, self.dtype), ACTIVATIONS if self.is_coded else None), shape

    def result(
        self, name: str, operands: list[int], shape: tuple[int, ...], options: str = "", codes: Codes = ACTIVATIONS,
        **values: Any,
    ) -> Place:  # fmt: skip
        made = (shape, self.dtype, codes) if self.is_coded else (shape, self.dtype)
        return self.model.op(name, operands, [made], options, **values)[0], shape

    def weights(self, shape: tuple[int, ...], fan_in: int, axis: int) -> list[int]:
        """A weight and a bias along one of its axes, by which results are about as large as operands."""
        n = shape[axis]
        if not self.is_coded:
            w = self.rng.standard_normal(shape).astype(np.float32) * np.float32(np.sqrt(2 / fan_in))
            return [self.model.const(w), self.model.const(self.rng.standard_normal(n).astype(np.float32))]
        scales = (self.rng.uniform(0.5, 1, n) * np.sqrt(2 / fan_in) / 73).astype(np.float32)
        w = self.rng.integers(-127, 128, shape).astype(np.int8)
        bias = self.rng.integers(-500, 500, n).astype(np.int32)
        bias_codes = Codes(scales * np.float32(ACTIVATIONS.scale), 0, 0)
        return [self.model.const(w, Codes(scales, 0, axis)), self.model.const(bias, bias_codes)]

    def conv(self, x: Place, n: int, size: int = 3, stride: int = 1, act: int = RELU) -> Place:
        at, (batch, h, w, c) = x
        how = {"StrideH": stride, "StrideW": stride, "DilationHFactor": 1, "DilationWFactor": 1, "Padding": SAME}
        operands = [at, *self.weights((n, size, size, c), size * size * c, 0)]
        shape = (batch, -(-h // stride), -(-w // stride), n)
        return self.result("CONV_2D", operands, shape, "Conv2DOptions", **how, FusedActivationFunction=act)

    def depthwise(self, x: Place, size: int = 3, stride: int = 1, act: int = RELU) -> Place:
        at, (batch, h, w, c) = x
        how = {"StrideH": stride, "StrideW": stride, "DilationHFactor": 1, "DilationWFactor": 1, "Padding": SAME}
        operands = [at, *self.weights((1, size, size, c), size * size, 3)]
        shape = (batch, -(-h // stride), -(-w // stride), c)
        how |= {"DepthMultiplier": 1, "FusedActivationFunction": act}
        return self.result("DEPTHWISE_CONV_2D", operands, shape, "DepthwiseConv2DOptions", **how)

    def dense(self, x: Place, n: int, act: int = RELU) -> Place:
        at, shape = x
        operands = [at, *self.weights((n, shape[-1]), shape[-1], 0)]
        options = "FullyConnectedOptions"
        return self.result("FULLY_CONNECTED", operands, (*shape[:-1], n), options, FusedActivationFunction=act)

    def add(self, a: Place, b: Place) -> Place:
        return self.result("ADD", [a[0], b[0]], a[1], "AddOptions", FusedActivationFunction=RELU)

    def pool(self, x: Place, name: str = "MAX_POOL_2D", size: int = 2) -> Place:
        at, (batch, h, w, c) = x
        how = {"StrideH": size, "StrideW": size, "FilterHeight": size, "FilterWidth": size, "Padding": VALID}
        return self.result(name, [at], (batch, h // size, w // size, c), "Pool2DOptions", **how)

    def mean(self, x: Place) -> Place:
        axes = self.model.const(np.array([1, 2], np.int32))
        return self.result("MEAN", [x[0], axes], (x[1][0], x[1][3]), "ReducerOptions", KeepDims=False)

    def concat(self, *xs: Place) -> Place:
        shape = (*xs[0][1][:-1], sum(s[-1] for _, s in xs))
        return self.result("CONCATENATION", [at for at, _ in xs], shape, "ConcatenationOptions", Axis=len(shape) - 1)

    def upscaled(self, x: Place) -> Place:
        at, (batch, h, w, c) = x
        sizes = self.model.const(np.array([2 * h, 2 * w], np.int32))
        options = "ResizeBilinearOptions"
        return self.result("RESIZE_BILINEAR", [at, sizes], (batch, 2 * h, 2 * w, c), options, HalfPixelCenters=True)

    def softmax(self, x: Place) -> Place:
        return self.result("SOFTMAX", [x[0]], x[1], "SoftmaxOptions", Codes(1 / 256, -128), Beta=1.0)

    def bytes(self, *outputs: Place) -> bytes:
        self.model.outputs = [at for at, _ in outputs]
        return self.model.bytes()


def perceptron(net: Net, batch: int = 1) -> Place:
    x = net.input(batch, 512)
    for n in (512, 512, 512):
        x = net.dense(x, n)
    return net.softmax(net.dense(x, 10, NONE))


def autoencoder(net: Net) -> Place:
    """Of sounds of machines, as MLPerf Tiny has it."""
    x = net.input(1, 640)
    for n in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x = net.dense(x, n)
    return net.dense(x, 640, NONE)


def keywords(net: Net) -> Place:
    """Words in a second of sound, by separable convolutions."""
    x = net.conv(net.input(1, 49, 10, 1), 64, 5, 2)
    for _ in range(4):
        x = net.conv(net.depthwise(x), 64, 1)
    return net.softmax(net.dense(net.mean(x), 12, NONE))


def vgg(net: Net) -> Place:
    x = net.input(1, 64, 64, 3)
    for n in (32, 64, 128):
        x = net.pool(net.conv(net.conv(x, n), n))
    return net.softmax(net.dense(net.mean(x), 100, NONE))


def resnet(net: Net) -> Place:
    """Of 32 x 32 pixels, as MLPerf Tiny has it."""
    x = net.conv(net.input(1, 32, 32, 3), 16)
    for n, stride in ((16, 1), (32, 2), (64, 2)):
        y = net.conv(net.conv(x, n, stride=stride), n, act=NONE)
        x = net.add(y, x if stride == 1 else net.conv(x, n, 1, stride, NONE))
    return net.softmax(net.dense(net.mean(x), 10, NONE))


def bottlenecks(net: Net) -> Place:
    x = net.pool(net.conv(net.input(1, 96, 96, 3), 32, 5, 2))
    for n, stride in ((64, 1), (64, 1), (128, 2), (128, 1)):
        y = net.conv(net.conv(net.conv(x, n // 2, 1), n // 2, 3, stride), n, 1, act=NONE)
        x = net.add(y, x if x[1] == y[1] else net.conv(x, n, 1, stride, NONE))
    return net.softmax(net.dense(net.mean(x), 100, NONE))


def mobile(net: Net) -> Place:
    """Separable convolutions of 96 x 96 pixels, a quarter as wide, as MLPerf Tiny has it."""
    x = net.conv(net.input(1, 96, 96, 3), 8, 3, 2)
    for n, stride in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)):
        x = net.conv(net.depthwise(x, 3, stride), n, 1)
    return net.softmax(net.dense(net.mean(x), 2, NONE))


def mobile_v2(net: Net) -> Place:
    x = net.conv(net.input(1, 96, 96, 3), 16, 3, 2, RELU6)
    for n, stride in ((16, 1), (24, 2), (24, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        y = net.depthwise(net.conv(x, 6 * x[1][3], 1, act=RELU6), 3, stride, RELU6)
        y = net.conv(y, n, 1, act=NONE)
        x = net.add(y, x) if x[1] == y[1] else y
    return net.softmax(net.dense(net.mean(net.conv(x, 256, 1)), 100, NONE))


def inception(net: Net) -> Place:
    x = net.pool(net.conv(net.input(1, 64, 64, 3), 32))
    for n in (16, 24, 32):
        x = net.concat(net.conv(x, n, 1), net.conv(net.conv(x, n, 1), n), net.conv(net.conv(x, n, 1), n, 5))
        x = net.pool(x)
    return net.softmax(net.dense(net.mean(x), 50, NONE))


def unet(net: Net) -> Place:
    x = net.input(1, 64, 64, 3)
    kept = []
    for n in (16, 32):
        kept.append(net.conv(net.conv(x, n), n))
        x = net.pool(kept[-1])
    x = net.conv(x, 64)
    for k, n in ((1, 32), (0, 16)):
        x = net.conv(net.concat(net.upscaled(x), kept[k]), n)
    return net.conv(x, 4, 1, act=NONE)


MODELS: Mapping[str, Callable[[Net], Place]] = {
    "perceptron": perceptron, "perceptron of 32": lambda net: perceptron(net, 32), "autoencoder": autoencoder,
    "keywords": keywords, "vgg": vgg, "resnet": resnet, "bottlenecks": bottlenecks, "mobile": mobile,
    "mobile v2": mobile_v2, "inception": inception, "unet": unet,
}  # fmt: skip


def by_litert(content: bytes, threads: int, kernels: OpResolverType) -> Callable[[np.ndarray], np.ndarray]:
    """A call of LiteRT's interpreter."""
    made = Interpreter(model_content=content, num_threads=threads, experimental_op_resolver_type=kernels)
    made.allocate_tensors()
    at, out = made.get_input_details()[0]["index"], made.get_output_details()[0]["index"]

    def call(x: np.ndarray) -> np.ndarray:
        made.set_tensor(at, x)
        made.invoke()
        found: np.ndarray = made.get_tensor(out)
        return found

    return call


def measured(make: Callable[[Net], Place], is_coded: bool, threads: int, seconds: float) -> tuple[float, float]:
    """Shortest microseconds of LiteRT and of ours."""
    net = Net(is_coded)
    content = net.bytes(make(net))
    shape, rng = net.model.tensors[net.model.inputs[0]][1], np.random.default_rng(1)
    x = rng.integers(-128, 128, shape).astype(np.int8) if is_coded else rng.standard_normal(shape).astype(np.float32)
    theirs, ours = by_litert(content, threads, OpResolverType.AUTO), tw.compile(content, threads=threads)
    meant = by_litert(content, threads, OpResolverType.BUILTIN_REF)(x)
    if is_coded:
        np.testing.assert_array_equal(ours(x), meant)
    else:
        np.testing.assert_allclose(ours(x), meant, rtol=1e-4, atol=1e-4)
    litert, own = best_times([lambda: theirs(x), lambda: ours(x)], seconds)
    return litert * 1e6, own * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of the names of models; all without any")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each model")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    asked = parser.parse_args()
    if asked.threads == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows: list[list[Any]] = []
    for name, make in MODELS.items():
        if asked.words and not any(word in name for word in asked.words):
            continue
        row: list[Any] = [name]
        for is_coded in (False, True):
            litert, ours = measured(make, is_coded, asked.threads, asked.seconds)
            row += [round(litert, 1), round(ours, 1), round(litert / ours, 2)]
        rows.append(row)
        if not asked.json:
            print(f"{name:18}" + "".join(f"{n:10.2f}" for n in row[1:]), flush=True)
    if asked.json:
        print(json.dumps(rows))
    else:
        means = [geometric_mean([row[k] for row in rows]) for k in (3, 6)]
        print(f"geometric mean: floats {means[0]:.2f}, codes {means[1]:.2f}")


if __name__ == "__main__":
    main()
