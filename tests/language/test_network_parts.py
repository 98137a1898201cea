"""What networks are made of, as courses on kernels begin: each against NumPy, for sizes that are no round ones."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import lang as tl

RNG = np.random.default_rng(5)


@tw.kernel
def added(x: tl.f32("n"), y: tl.f32("n")):
    return tl.compute(x.shape, lambda i: x[i] + y[i])


@tw.kernel
def softmax(x: tl.f32("rows", "n")):
    rows, n = x.shape
    most = tl.compute(rows, lambda i: tl.max(lambda k: x[i, k], n))
    powers = tl.compute((rows, n), lambda i, j: tl.exp(x[i, j] - most[i]))
    total = tl.compute(rows, lambda i: tl.sum(lambda k: powers[i, k], n))
    return tl.compute((rows, n), lambda i, j: powers[i, j] / total[i])


@tw.kernel
def product_with_leaky_relu(a: tl.f32("m", "k"), b: tl.f32("k", "n")):
    (m, k), n = a.shape, b.shape[1]
    c = tl.compute((m, n), lambda i, j: tl.sum(lambda p: a[i, p] * b[p, j], k))
    return tl.compute((m, n), lambda i, j: tl.where(c[i, j] >= 0, c[i, j], 0.01 * c[i, j]))


def mixed(x):
    """Bits that look random, of a 32-bit number: T. Mueller's hash."""
    for shift, factor in ((16, 0x45D9F3B), (16, 0x45D9F3B)):
        x = (x ^ (x >> shift)) * factor
    return x ^ (x >> 16)


@tw.kernel
def dropout(x: tl.f32("n"), seed: tl.u32(1), share: tl.f32(1)):
    """Elements go by their place and a seed, so that the same ones go again: no mask is stored."""
    (n,) = x.shape

    def kept(i):
        uniform = (mixed(i.cast(tl.u32) ^ seed[0]) >> 8).cast(tl.f32) / 2.0**24
        return tl.where(uniform >= share[0], x[i] / (1 - share[0]), 0.0)

    return tl.compute(n, kept)


@tw.kernel
def layer_norm(x: tl.f32("rows", "n"), weight: tl.f32("n"), bias: tl.f32("n")):
    rows, n = x.shape
    count = n.cast(tl.f32)
    mean = tl.compute(rows, lambda i: tl.sum(lambda k: x[i, k], n) / count)
    variance = tl.compute(rows, lambda i: tl.sum(lambda k: (x[i, k] - mean[i]) ** 2, n) / count)
    return tl.compute((rows, n), lambda i, j: (x[i, j] - mean[i]) * tl.rsqrt(variance[i] + 1e-5) * weight[j] + bias[j])


@pytest.mark.parametrize("n", [1, 97, 1000])
def test_elements(n):
    x, y = RNG.random(n, np.float32), RNG.random(n, np.float32)
    np.testing.assert_array_equal(added(x, y), x + y)


@pytest.mark.parametrize("shape", [(1, 1), (5, 781), (33, 20)])
def test_rows(shape):
    x = RNG.normal(size=shape).astype(np.float32)
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(softmax(x), powers / powers.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)
    weight, bias = RNG.random((2, shape[1]), np.float32)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(layer_norm(x, weight, bias), expected, rtol=1e-4, atol=1e-5)


def test_a_product_with_what_follows_it():
    a, b = RNG.normal(size=(37, 21)).astype(np.float32), RNG.normal(size=(21, 50)).astype(np.float32)
    expected = a @ b
    expected = np.where(expected >= 0, expected, 0.01 * expected)
    np.testing.assert_allclose(product_with_leaky_relu(a, b), expected, rtol=1e-4, atol=1e-5)


def test_dropout_by_place_and_seed():
    x, share = np.ones(5000, np.float32), np.array([0.3], np.float32)
    seeds = [np.array([s], np.uint32) for s in (1, 2)]
    one, again, other = dropout(x, seeds[0], share), dropout(x, seeds[0], share), dropout(x, seeds[1], share)
    np.testing.assert_array_equal(one, again)
    assert (one != other).any() and abs((one == 0).mean() - 0.3) < 0.03
    with np.errstate(over="ignore"):
        bits = mixed(np.arange(5000, dtype=np.uint32) ^ seeds[0])
    kept = (bits >> 8).astype(np.float32) / np.float32(2**24) >= share
    np.testing.assert_allclose(one, np.where(kept, x / (1 - share), 0), rtol=1e-6)
