"""PyTorch's `quantized_decomposed` ops, by which PT2E exports quantised modules: the bits that PyTorch computes."""

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the ops
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw

Q = torch.ops.quantized_decomposed
U8, I8 = (0, 255, torch.uint8), (-128, 127, torch.int8)


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def check(function, *tensors):
    expected = function(*tensors)
    model = tw.compile(Of(function).eval(), example_inputs=tensors, cache=False, threads=1)
    found = model(*[t.numpy() for t in tensors])
    pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    for a, b in pairs:
        np.testing.assert_array_equal(np.asarray(b), a.numpy())
    return model


def rows(seed=0, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape or (5, 7)).astype(np.float32) * 3)


SCALES = torch.linspace(0.01, 0.2, 7)
ZEROS = torch.tensor([0, 3, -5, 100, 7, 1, 0])
CASES = {
    "quantize": lambda x: Q.quantize_per_tensor(x, 0.0371, 131, *U8),
    "quantize to fewer": lambda x: Q.quantize_per_tensor(x, 0.0371, 3, -100, 90, torch.int8),
    "quantize to 16 bits": lambda x: Q.quantize_per_tensor(x, 0.00371, -3, -(2**15), 2**15 - 1, torch.int16),
    "dequantize": lambda x: Q.dequantize_per_tensor(x.to(torch.int8), 0.0371, 31, *I8),
    "dequantize from afar": lambda x: Q.dequantize_per_tensor(x.to(torch.int8), 0.0371, 310, *I8),
    "quantize channels": lambda x: Q.quantize_per_channel(x, SCALES, ZEROS, 1, *I8),
    "quantize channels in f64": lambda x: Q.quantize_per_channel(x, SCALES.double(), ZEROS, 1, *I8),
    "dequantize channels": lambda x: Q.dequantize_per_channel(x.to(torch.int8), SCALES, ZEROS, 1, *I8),
    "dequantize channels around 0": lambda x: Q.dequantize_per_channel(x.to(torch.int8), SCALES, None, 1, *I8),
    "choose": lambda x: Q.choose_qparams(x, 0, 255, 1e-5, torch.uint8),
    "choose with a sign": lambda x: Q.choose_qparams_symmetric(x, -127, 127, 1e-5, torch.int8),
    "choose for rows": lambda x: Q.choose_qparams_per_token_asymmetric(x, torch.int8),
    "choose for rows with a sign": lambda x: Q.choose_qparams_per_token(x, torch.int8),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_ops(name):
    check(CASES[name], rows())


FAKE = {
    "number": torch.fake_quantize_per_tensor_affine,
    "tensor": lambda x, scale, zero, *limits: torch.fake_quantize_per_tensor_affine(
        x, torch.tensor(scale), torch.tensor(zero, dtype=torch.int32), *limits),
    "channels": lambda x, scale, zero, *limits: torch.fake_quantize_per_channel_affine(
        x, scale * SCALES, torch.full((7,), zero, dtype=torch.int32), 1, *limits),
    "switched off": lambda x, scale, zero, *limits: torch.ops.aten
        ._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, torch.tensor(scale), torch.tensor(zero), torch.tensor([0]), *limits),
}  # fmt: skip


@settings(max_examples=6)
@given(
    st.sampled_from(list(FAKE)),
    st.sampled_from([torch.float16, torch.float32, torch.float64]),
    st.sampled_from([(0, 255), (-128, 127), (1, 7)]),
    st.floats(0.001, 30),
    st.integers(1, 7),
    st.integers(0, 1 << 30),
)
def test_quantised_and_back(name, dtype, limits, scale, zero, seed):
    x = rows(seed, 5, 7) * 10
    x[0, :4] = torch.tensor([np.nan, np.inf, -np.inf, 1e30])
    check(lambda x: FAKE[name](x, scale, zero, *limits), x.to(dtype))


def test_a_gradient_passes_within_the_limits():
    def loss(x):
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 9).square().sum()

    compiled = torch.compile(loss, backend="tilewright", options={"fallback": False})
    gradients = []
    for f in (loss, compiled):
        x = rows().requires_grad_()
        f(x).backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert (gradients[0] == 0).any()


def dynamic(x):
    scale, zero = Q.choose_qparams(x, -128, 127, 1e-5, torch.int8)
    stored = Q.quantize_per_tensor.tensor(x, scale, zero, *I8)
    return Q.dequantize_per_tensor.tensor(stored, scale, zero, *I8)


def by_rows(x):
    scales, zeros = Q.choose_qparams_per_token_asymmetric(x, torch.int8)
    stored = Q.quantize_per_token(x, scales, zeros, *I8)
    return Q.dequantize_per_token(stored, scales, zeros, *I8, torch.float32)


@settings(max_examples=4)
@given(st.integers(0, 1 << 30), st.sampled_from([dynamic, by_rows]))
def test_scales_that_the_call_chooses(seed, function):
    check(function, rows(seed, 3, 9))


class Exported(torch.nn.Module):
    """What PT2E makes of a convolution and a linear layer; all scales are powers of two, so that sums are exact."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(0)
        self.register_buffer("kernel", torch.from_numpy(rng.integers(-127, 128, (6, 3, 3, 3)).astype(np.int8)))
        self.register_buffer("matrix", torch.from_numpy(rng.integers(-127, 128, (10, 6)).astype(np.int8)))
        self.register_buffer("scales", 2.0 ** -torch.arange(5, 11).float())
        self.register_buffer("zeros", torch.zeros(6, dtype=torch.int64))

    def rounded(self, x, scale, zero):
        return Q.dequantize_per_tensor(Q.quantize_per_tensor(x, scale, zero, *U8), scale, zero, *U8)

    def forward(self, x):
        kernel = Q.dequantize_per_channel(self.kernel, self.scales, self.zeros, 0, *I8)
        x = torch.nn.functional.conv2d(self.rounded(x, 2.0**-5, 120), kernel, padding=1)
        x = self.rounded(torch.relu(x), 2.0**-3, 0).mean((2, 3))
        matrix = Q.dequantize_per_tensor(self.matrix, 2.0**-6, 0, *I8)
        return self.rounded(torch.nn.functional.linear(self.rounded(x, 2.0**-4, 0), matrix), 2.0**-2, 100)


def test_an_exported_net_multiplies_bytes():
    model = check(Exported().eval(), rows(1, 2, 3, 8, 8))
    report = str(model.report())
    assert "u8 x i8" in report or "i8 x u8" in report
