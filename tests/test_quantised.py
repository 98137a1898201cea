"""Quantised models beside ONNX's reference evaluator: the same bits, and products of the bytes that are stored.

A dequantised model's reference adds up floats. Scales are powers of two here, so that those sums are exact, too. The
reference of QLinearConv and QLinearMatMul adds the zero point before it rounds half to even, QuantizeLinear and ONNX
Runtime after that; with an even zero point both are the same.
"""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import fuzz_quantised
import tilewright
from codegen.native import runs_here
from frontend.onnx_build import info, model, node
from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import Builder, Pool
from tilewright.core.types import tensor_type_of
from tilewright.partition.facts import facts_of
from tilewright.target.target import Target

LEVELS = [name for name in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4") if runs_here(Target.parse(name))]
TENSORS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}


def bytes_of(rng, shape, dtype):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def zero_of(rng, dtype):
    """An even number."""
    return np.asarray(bytes_of(rng, (), dtype) // 2 * 2, dtype) if rng.random() < 0.8 else np.zeros((), dtype)


def scale_of(rng, *shape):
    """Powers of two."""
    return (2.0 ** rng.integers(-7, -3, shape)).astype(np.float32)


class Net:
    """A chain of quantised layers that grows at its end; ``dtype`` is that of its activations."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants, self.names = [], {}, 0
        self.dtype = self.rng.choice([np.uint8, np.int8])

    def name(self):
        self.names += 1
        return f"t{self.names}"

    def constant(self, value):
        name = self.name()
        self.constants[name] = np.asarray(value)
        return name

    def add(self, op, *inputs, **attrs):
        name = self.name()
        self.nodes.append(node(op, list(inputs), [name], **attrs))
        return name

    def parameters(self, *shape):
        return self.constant(scale_of(self.rng, *shape)), self.constant(zero_of(self.rng, self.dtype))

    def weights(self, shape, axis):
        """Stored numbers, of 8 bits or 7, scales and zero points: of i8 mostly symmetric, per channel or not."""
        dtype = self.rng.choice([np.int8, np.int8, np.uint8])
        n = (shape[axis],) if self.rng.random() < 0.5 else ()
        zeros = np.zeros(n, dtype)
        if self.rng.random() < 0.4:
            zeros = bytes_of(self.rng, n, dtype) if dtype is np.uint8 else zeros
        numbers = bytes_of(self.rng, shape, dtype)
        stored = self.constant(numbers // 2 if self.rng.random() < 0.5 else numbers)
        return stored, self.constant(scale_of(self.rng, *n)), self.constant(zeros)


def convolution_attrs(rng, channels):
    kernel = int(rng.choice([1, 1, 3, 2]))
    group = int(rng.choice([1, 1, 1, channels]))
    pads = [int(n) for n in rng.integers(0, 2, 4)]
    return kernel, {"group": group, "pads": pads, "strides": [int(rng.integers(1, 3))] * 2}


def random_net(seed, form):
    """Convolutions, products and what stands between them, with operands in bytes (``q``) or dequantised (``qdq``)."""
    net = Net(seed)
    rng, is_image = net.rng, net.rng.random() < 0.6
    channels, size = int(rng.integers(1, 20)), int(rng.integers(3, 9))
    shape = [int(rng.integers(1, 3)), channels, size, size] if is_image else [int(rng.integers(1, 24)), channels]
    start, first = list(shape), net.parameters()
    at, now = "x", first
    for _ in range(int(rng.integers(1, 4))):
        out, after = int(rng.integers(1, 40)), net.parameters()
        if is_image:
            kernel, attrs = convolution_attrs(rng, channels)
            out = channels * 2 if attrs["group"] > 1 else out
            w = net.weights((out, channels // attrs["group"], kernel, kernel), 0)
            size = [(d + a + b - kernel) // attrs["strides"][0] + 1
                    for d, a, b in zip(shape[2:], attrs["pads"][:2], attrs["pads"][2:], strict=True)]  # fmt: skip
            if min(size) < 1:
                break
            shape = [shape[0], out, *size]
        else:
            attrs, w = {}, net.weights((channels, out), 1)
            shape = [shape[0], out]
        bias = rng.integers(-500, 500, out).astype(np.int32)
        at = _layer(net, form, "Conv" if is_image else "MatMul", at, now, w, bias, after, attrs)
        now = after
        if form == "qdq" and rng.random() < 0.5:
            at, now, shape = between(net, at, now, shape)
        channels = shape[1]
        size = shape[2] if is_image else size
        if is_image and shape[2] != shape[3]:
            break
    tensor = TENSORS[net.dtype]
    outputs = [info(at, shape, tensor)]
    m = model(net.nodes, [info("x", start, tensor)], outputs, net.constants, opset=21)
    return m, {"x": bytes_of(rng, start, net.dtype)}


def between(net, at, now, shape):
    """What a model has between two dequantised layers; the tensor, its scale and zero point, its shape."""
    rng, is_image = net.rng, len(shape) == 4
    real = net.add("DequantizeLinear", at, *now)
    kind = rng.choice(["pool", "join", "sum", "clip", "mean", "move"])
    if kind == "pool" and is_image and min(shape[2:]) > 1:
        pad = int(rng.integers(0, 2))  # ONNX's reference takes other pads than equal ones for other axes
        y = net.add("MaxPool", real, kernel_shape=[2, 2], strides=[1, 1], pads=[pad] * 4)
        shape = [*shape[:2], *(d + 2 * pad - 1 for d in shape[2:])]
    elif kind == "join":
        y = net.add("Concat", real, net.add("Relu", real) if rng.random() < 0.5 else real, axis=1)
        shape = [shape[0], 2 * shape[1], *shape[2:]]
    elif kind == "sum":
        other = net.add("QuantizeLinear", net.add("Neg", real), *(after := net.parameters()))
        y = net.add("Add", real, net.add("DequantizeLinear", other, *after))
    elif kind == "mean" and is_image:
        y = net.add("ReduceMean", real, net.constant(np.array([2, 3])), keepdims=1)
        shape = [*shape[:2], 1, 1]
    elif kind == "move":
        y = net.add("Transpose", real, perm=[0, 1, 3, 2] if is_image else [0, 1])
        shape = [*shape[:2], *shape[:1:-1]]
    else:
        low, high = (net.constant(np.float32(n)) for n in (-0.25, 6.0))
        y = net.add("Clip", real, low, high)
    after = now if kind in ("pool", "join", "move") and rng.random() < 0.7 else net.parameters()
    return net.add("QuantizeLinear", y, *after), after, shape


def _layer(net, form, op, at, now, w, bias, after, attrs):
    if form == "q":
        operands = [at, *now, *w, *after]
        if op == "Conv":
            operands.append(net.constant(bias))
        return net.add(f"QLinear{op}", *operands, **attrs)
    real = net.add("DequantizeLinear", at, *now)
    axis = 0 if op == "Conv" else 1
    weights = net.add("DequantizeLinear", *w, axis=axis)
    numbers = net.constant((bias / 4).astype(np.float32))
    if op == "Conv":
        y = net.add("Conv", real, weights, numbers, **attrs)
    else:
        y = net.add("Add", net.add("MatMul", real, weights), numbers)
    if net.rng.random() < 0.5:
        y = net.add("Relu", y)
    return net.add("QuantizeLinear", y, *after)


def check(m, feeds, target):
    (want,) = ReferenceEvaluator(m).run(None, feeds)
    compiled = tilewright.compile(m, target=target, cache=False, threads=1)
    np.testing.assert_array_equal(np.asarray(compiled(*feeds.values())), want)
    return compiled


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", ["q", "qdq"])
@settings(max_examples=6)
@given(st.integers(0, 1 << 30), st.sampled_from(LEVELS))
def test_random_nets(form, seed, target):
    check(*random_net(seed, form), target)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["q", "qdq"])
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_600_random_nets_on_every_level(form, first):
    for seed in range(first, first + 20):
        check(*random_net(seed, form), LEVELS[seed % len(LEVELS)])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(8))
def test_random_models_of_every_kind_of_layer(seed):
    """``make fuzz`` has thousands of them (``fuzz_quantised``)."""
    assert fuzz_quantised.check(fuzz_quantised.COUNT + seed, LEVELS) == "passed"


def multiplied(compiled):
    """The types that the report says are multiplied, by kernel."""
    return re.findall(r"\[([^]]* x [^]]*|[a-z]+\d+)\]", str(compiled.report()))


FORMS = {
    "QLinearConv": lambda: _one("q", image=True),
    "QLinearMatMul": lambda: _one("q", image=False),
    "QDQ conv": lambda: _one("qdq", image=True),
    "QDQ matmul": lambda: _one("qdq", image=False),
}


def _one(form, *, image):
    net = Net(5)
    w = net.weights((24, 16, 3, 3) if image else (16, 24), 0 if image else 1)
    net.constants[w[0]] = net.constants[w[0]].astype(np.int8)
    net.constants[w[2]] = np.zeros_like(net.constants[w[2]], np.int8)
    attrs = {"pads": [1, 1, 1, 1]} if image else {}
    bias = np.arange(24, dtype=np.int32)
    at = _layer(net, form, "Conv" if image else "MatMul", "x", net.parameters(), w, bias, net.parameters(), attrs)
    start, shape = ([1, 16, 7, 7], [1, 24, 7, 7]) if image else ([9, 16], [9, 24])
    tensor = TENSORS[net.dtype]
    m = model(net.nodes, [info("x", start, tensor)], [info(at, shape, tensor)], net.constants, opset=21)
    return m, {"x": bytes_of(net.rng, start, net.dtype)}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("target", LEVELS)
def test_bytes_are_multiplied(name, target):
    compiled = check(*FORMS[name](), target)
    (kinds,) = multiplied(compiled)
    assert set(kinds.split(" x ")) <= {"i8", "u8"}


def test_weights_stay_bytes():
    """A byte each, in the file and in memory, whatever their layout."""
    m, feeds = _one("qdq", image=True)
    compiled = check(m, feeds, "native")
    (n_bytes,) = re.findall(r"^  weights +(\d+)$", str(compiled.report()), re.MULTILINE)
    assert int(n_bytes) < 24 * 16 * 9 * 1.5


@pytest.mark.parametrize("left", [np.uint8, np.int8])
@pytest.mark.parametrize("right", [np.uint8, np.int8])
@pytest.mark.parametrize("target", LEVELS)
def test_the_greatest_products_do_not_saturate(left, right, target):
    """Pairs of bytes whose sums are beyond 16 bits, as ``vpmaddubsw`` would make them."""
    lowest = [np.iinfo(t) for t in (left, right)]
    x = np.full((9, 70), lowest[0].max, left)
    w = np.full((70, 40), lowest[1].min or lowest[1].max, right)
    w[:, ::2] = lowest[1].max
    check(_integer_product(x, w), {"x": x}, target)


@pytest.mark.parametrize(("number", "fits"), [(63, True), (-64, True), (64, False), (-65, False), (-128, False)])
def test_pairs_of_bytes_are_those_of_weights_that_seven_bits_hold(number, fits):
    """A kernel reads them as such, and products by the greatest byte are exact on both sides of the limit."""
    x, w = np.full((9, 70), 255, np.uint8), np.full((70, 40), number, np.int8)
    pool = Pool()
    product = Builder(pool)(ops.matmul, pool.input("x", tensor_type_of(x)), pool.const(w), out_dtype=types.i32)
    assert (facts_of(product, by_byte_pairs=True).ins[1].dtype is types.i7) == fits
    assert facts_of(product).ins[1].dtype is types.i8
    for target in LEVELS:
        check(_integer_product(x, w), {"x": x}, target)


def _integer_product(x, w):
    left, right = (TENSORS[a.dtype.type] for a in (x, w))
    return helper.make_model(
        helper.make_graph(
            [node("MatMulInteger", ["x", "w"], ["y"])], "g", [info("x", x.shape, left)],
            [info("y", (len(x), w.shape[1]), TensorProto.INT32)],
            [helper.make_tensor("w", right, w.shape, w.tobytes(), raw=True)],
        ),
        opset_imports=[helper.make_opsetid("", 21)], ir_version=10,
    )  # fmt: skip
