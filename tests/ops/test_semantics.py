"""References against what users compare with: PyTorch's functions, and published numbers for the random generator."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import Attrs
from tilewright.ops.random import blocks_of

RNG = np.random.default_rng(3)


def run(op, *arrays, **attrs):
    arrays = [a.numpy() if isinstance(a, torch.Tensor) else a for a in arrays]
    return op.reference(arrays, Attrs(op.complete_attrs(attrs)))


def normal(*shape, dtype=torch.float32):
    return torch.from_numpy(RNG.standard_normal(shape)).to(dtype)


def agree(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(got, expected.numpy(), rtol=tolerance, atol=tolerance)


EDGES = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 4.0, -7.0, 30.0, -30.0, float("inf"), -float("inf"), float("nan")]
)
ACTIVATIONS = {
    ops.sigmoid: torch.sigmoid, ops.relu: torch.relu, ops.silu: F.silu, ops.gelu: F.gelu, ops.leaky_relu: F.leaky_relu,
    ops.elu: F.elu, ops.selu: F.selu, ops.celu: F.celu, ops.softplus: F.softplus, ops.hard_swish: F.hardswish,
    ops.mish: F.mish, ops.softsign: F.softsign, ops.erf: torch.erf, ops.round: torch.round, ops.rsqrt: torch.rsqrt,
    ops.expm1: torch.expm1, ops.log1p: torch.log1p, ops.exp2: torch.exp2, ops.atanh: torch.atanh,
    ops.trunc: torch.trunc,
}  # fmt: skip
INFINITE_IN_TORCH_TOO = {ops.hard_swish, ops.softsign, ops.silu, ops.mish, ops.gelu}


@pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.name)
def test_unary_functions_are_torchs(op):
    x = EDGES[torch.isfinite(EDGES)] if op in INFINITE_IN_TORCH_TOO else EDGES
    agree(run(op, x), ACTIVATIONS[op](x))


def test_variants_of_activations():
    x = normal(50) * 3
    agree(run(ops.gelu, x, approximate="tanh"), F.gelu(x, approximate="tanh"))
    agree(run(ops.elu, x, alpha=0.3), F.elu(x, 0.3))
    agree(run(ops.celu, x, alpha=0.3), F.celu(x, 0.3))
    agree(run(ops.hard_sigmoid, x, alpha=1 / 6, beta=0.5), F.hardsigmoid(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int8], ids=str)
def test_division_and_remainders_are_torchs(dtype):
    a, b = torch.tensor([7, -7, 6, -6, 0, 5, -5]).to(dtype), torch.tensor([2, 2, -3, -3, 4, -7, -7]).to(dtype)
    agree(run(ops.floor_div, a, b), torch.div(a, b, rounding_mode="floor"))
    agree(run(ops.mod, a, b), torch.remainder(a, b))
    agree(run(ops.fmod, a, b), torch.fmod(a, b))
    mode = None if dtype.is_floating_point else "trunc"
    agree(run(ops.div, a, b), torch.div(a, b, rounding_mode=mode))


def test_float_floor_division_and_remainders_at_the_edges():
    a, b = EDGES[:, None], EDGES[None, :]
    for op, wanted in (
        (ops.floor_div, torch.div(a, b, rounding_mode="floor")),
        (ops.mod, torch.remainder(a, b)),
        (ops.fmod, torch.fmod(a, b)),
    ):
        found = run(op, a, b)
        agree(found, wanted)
        assert (np.signbit(found) == wanted.signbit().numpy())[wanted.numpy() == 0].all()


def test_integer_power_wraps_and_takes_negative_exponents():
    a, b = torch.tensor([2, -1, -1, 1, 3, 0, 7]), torch.tensor([-1, -3, -2, -5, 40, 0, 25])
    assert run(ops.pow, a, b).tolist() == [0, -1, 1, 1, 3**40 - 2**64 if 3**40 >= 2**63 else 3**40, 1, wrapped(7**25)]


def wrapped(n):
    return (n + 2**63) % 2**64 - 2**63


def test_integer_division_by_zero_is_defined():
    a, zero = np.array([7, -7, 0], np.int32), np.zeros(3, np.int32)
    assert run(ops.div, a, zero).tolist() == [0, 0, 0] and run(ops.floor_div, a, zero).tolist() == [0, -1, 0]
    assert run(ops.mod, a, zero).tolist() == run(ops.fmod, a, zero).tolist() == [7, -7, 0]


def test_shifts_by_too_much():
    x = np.array([-5, 5], np.int32)
    assert run(ops.shift_left, x, np.array([40, 32], np.int32)).tolist() == [0, 0]
    assert run(ops.shift_right, x, np.array([40, 40], np.int32)).tolist() == [-1, 0]


def test_float_to_integer_casts_saturate():
    x = np.array([np.nan, np.inf, -np.inf, 300.0, -1.9, 127.5], np.float32)
    assert run(ops.cast, x, dtype=types.i8).tolist() == [0, 127, -128, 127, -1, 127]
    assert run(ops.cast, x, dtype=types.u8).tolist() == [0, 255, 0, 255, 0, 127]
    assert run(ops.cast, x, dtype=types.i64).tolist()[1:3] == [2**63 - 1, -(2**63)]
    assert run(ops.cast, x, dtype=types.u64).tolist()[1] == 2**64 - 1
    assert run(ops.cast, x, dtype=types.bool_).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_reductions_are_torchs(dtype):
    x = normal(3, 4, 5, dtype=dtype)
    tolerance = 2e-3 if dtype is torch.float16 else 1e-5
    agree(run(ops.reduce_sum, x, axes=(0, 2)), x.sum((0, 2)), tolerance)
    agree(run(ops.reduce_mean, x, axes=(1,), keepdims=True), x.mean(1, keepdim=True), tolerance)
    agree(run(ops.variance, x, axes=(0, 1), correction=1), x.var((0, 1)), tolerance)
    agree(run(ops.logsumexp, x, axes=(2,)), x.logsumexp(2), tolerance)
    agree(run(ops.reduce_l2, x, axes=(1,)), x.norm(dim=1), tolerance)
    agree(run(ops.cumsum, x, axis=1), x.cumsum(1), tolerance)


def test_logsumexp_of_infinities():
    x = torch.tensor([[-float("inf")] * 2, [float("inf"), 0.0], [1e4, 1e4]])
    agree(run(ops.logsumexp, x, axes=(1,)), x.logsumexp(1))


def test_positions_of_extremes():
    x = torch.tensor([[1.0, 3.0, 3.0], [float("nan"), 9.0, float("nan")], [-float("inf")] * 3])
    assert run(ops.argmax, x, axis=1).tolist() == x.argmax(1).tolist() == [1, 0, 0]
    assert run(ops.argmax, x, axis=1, select_last=True).tolist() == [2, 2, 2]
    assert run(ops.argmin, x, axis=1).tolist() == x.argmin(1).tolist()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_convolutions_are_torchs(n, layout):
    x, w = normal(2, 4, *(7, 6, 5)[:n]), normal(6, 2, *(3, 2, 2)[:n])
    strides, padding, dilations = (2, 1, 2)[:n], (1, 0, 2)[:n], (1, 2, 1)[:n]
    expected = (F.conv1d, F.conv2d, F.conv3d)[n - 1](x, w, None, strides, padding, dilations, 2)
    attrs = {
        "strides": strides,
        "pads": [(p, p) for p in padding],
        "dilations": dilations,
        "groups": 2,
        "layout": layout,
    }
    agree(unlaid(run(ops.conv, laid(x, layout), w, **attrs), layout), expected)
    w, extra = normal(4, 3, *(3, 2, 2)[:n]), (1, 0, 1)[:n]
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    expected = transposed(x, w, None, strides, padding, extra, 2, dilations)
    agree(unlaid(run(ops.conv_transpose, laid(x, layout), w, output_padding=extra, **attrs), layout), expected)


def laid(x, layout):
    return x if layout == "NCHW" else x.movedim(1, -1).contiguous()


def unlaid(a, layout):
    return a if layout == "NCHW" else np.moveaxis(a, -1, 1)


def test_pools_are_torchs():
    x = normal(2, 3, 7, 8)
    attrs = {"kernel": (3, 2), "strides": (2, 1), "pads": ((1, 1), (0, 0))}
    values, indices = F.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2), return_indices=True)
    agree(run(ops.max_pool, x, dilations=(1, 2), **attrs), values)
    got, at = run(ops.max_pool_indices, x, dilations=(1, 2), **attrs)
    agree(got, values)
    assert (at % 56 == indices.numpy()).all() and (at // 56 == np.arange(6).reshape(2, 3, 1, 1)).all()
    agree(run(ops.avg_pool, x, count_include_pad=True, **attrs), F.avg_pool2d(x, (3, 2), (2, 1), (1, 0)))
    agree(run(ops.avg_pool, x, **attrs), F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), count_include_pad=False))
    agree(run(ops.avg_pool, x, divisor=5, **attrs), F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), divisor_override=5))


@pytest.mark.parametrize("include", [False, True])
def test_average_pools_that_round_sizes_up(include):
    x = normal(1, 2, 8, 7)
    expected = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=include)
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": ((1, 1), (1, 1)), "ceil_pads": (1, 0)}
    agree(run(ops.avg_pool, x, count_include_pad=include, **attrs), expected)


def test_normalisations_are_torchs():
    x, scale, bias = normal(2, 6, 4, 3), normal(6), normal(6)
    mean, var = normal(6), normal(6).abs() + 0.5
    expected = F.batch_norm(x, mean, var, scale, bias, eps=1e-3)
    agree(run(ops.batch_norm, x, scale, bias, mean, var, epsilon=1e-3), expected)
    agree(run(ops.instance_norm, x, scale, bias), F.instance_norm(x, weight=scale, bias=bias), 1e-4)
    agree(run(ops.group_norm, x, scale, bias, groups=3), F.group_norm(x, 3, scale, bias), 1e-4)
    rows = normal(4, 3), normal(4, 3)
    agree(run(ops.layer_norm, x, *rows, axis=2), F.layer_norm(x, (4, 3), *rows), 1e-4)
    agree(run(ops.rms_norm, x, rows[0], axis=2, epsilon=1e-6), F.rms_norm(x, (4, 3), rows[0], 1e-6), 1e-4)
    agree(run(ops.lrn, x, size=3, alpha=0.5), F.local_response_norm(x, 3, 0.5, 0.75, 1.0), 1e-4)
    agree(run(ops.l2_normalize, x, axis=1), F.normalize(x, dim=1))
    agree(run(ops.softmax, x * 50, axis=1), F.softmax(x * 50, 1))
    agree(run(ops.log_softmax, x, axis=1), F.log_softmax(x, 1))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_torchs(causal):
    q, k, v = normal(2, 4, 3, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3, enable_gqa=True)
    agree(run(ops.attention, q, k, v, scale=0.3, causal=causal), expected)
    mask = torch.from_numpy(RNG.integers(0, 2, (2, 1, 3, 5)).astype(bool)) | (torch.arange(5) == 0)
    expected = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True)
    agree(run(ops.attention, q, k, v, mask, scale=0.3), expected)


def test_einsum_is_torchs():
    a, b, c = normal(2, 3, 4), normal(4, 3), normal(2, 2)
    agree(run(ops.einsum, a, b, c, equation="bij,jk,bb->bik"), torch.einsum("bij,jk,bb->bik", a, b, c))
    agree(run(ops.einsum, a, b, equation="...j,jk->k..."), torch.einsum("...j,jk->k...", a, b))


def test_philox_gives_the_published_words():
    assert [hex(w) for w in blocks_of(0, np.zeros(1, np.uint64))[0]] == [
        "0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8",
    ]  # fmt: skip


def test_random_numbers_have_their_distribution_and_do_not_repeat():
    state = np.array([12345, 0], np.uint64)
    for dtype in (types.f16, types.bf16, types.f32, types.f64):
        u, moved = run(ops.random_uniform, state, shape=(100, 500), dtype=dtype)
        u = u.astype(np.float64)
        assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.005
        n, _ = run(ops.random_normal, moved, shape=(50000,), dtype=dtype)
        n = n.astype(np.float64)
        assert np.isfinite(n).all() and abs(n.mean()) < 0.02 and abs(n.std() - 1) < 0.02
    a, moved = run(ops.random_uniform, state, shape=(8,), dtype=types.f32)
    b, _ = run(ops.random_uniform, moved, shape=(8,), dtype=types.f32)
    both, _ = run(ops.random_uniform, state, shape=(16,), dtype=types.f32)
    assert (np.concatenate([a, b]) == both).all()
