"""Pipelines in the language, as a course on image processing has them: each against NumPy, for several sizes."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import lang as tl

RNG = np.random.default_rng(24)


def image(*shape, dtype=np.float32):
    if np.dtype(dtype).kind == "f":
        return RNG.random(shape).astype(dtype)
    return RNG.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


# --- a value at each place ------------------------------------------------------------------------------------------


@tw.kernel
def gradient(like: tl.u8("h", "w")):
    h, w = like.shape
    return tl.compute((h, w), lambda y, x: x + y, dtype=tl.i32)


@tw.kernel
def brighten(picture: tl.u8("h", "w", "c")):
    def lighter(y, x, c):
        value = picture[y, x, c].cast(tl.f32) * 1.5
        return tl.minimum(value, 255.0).cast(tl.u8)

    return tl.compute(picture.shape, lighter)


@tw.kernel
def masked(picture: tl.f32("h", "w")):
    """Choices by place and by value."""

    def chosen(y, x):
        return tl.where((y >= 2) & (x >= 1), tl.where(picture[y, x] > 0.5, 1.0, 0.25), picture[y, x])

    return tl.compute(picture.shape, chosen)


def test_a_gradient_is_made_of_indices():
    y, x = np.indices((7, 9))
    np.testing.assert_array_equal(gradient(image(7, 9, dtype=np.uint8)), x + y)


def test_bytes_saturate_where_the_kernel_says_so():
    picture = image(5, 8, 3, dtype=np.uint8)
    np.testing.assert_array_equal(brighten(picture), np.minimum(picture * np.float32(1.5), 255).astype(np.uint8))


def test_choices_by_place_and_by_value():
    picture = image(6, 5)
    expected = picture.copy()
    expected[2:, 1:] = np.where(picture[2:, 1:] > 0.5, 1, 0.25)
    np.testing.assert_array_equal(masked(picture), expected)


# --- several stages, edges ------------------------------------------------------------------------------------------


@tw.kernel
def blur(picture: tl.f32("h", "w")):
    h, w = picture.shape
    across = tl.compute((h, w - 2), lambda y, x: (picture[y, x] + picture[y, x + 1] + picture[y, x + 2]) / 3)
    return tl.compute((h - 2, w - 2), lambda y, x: (across[y, x] + across[y + 1, x] + across[y + 2, x]) / 3)


def blurred(x):
    across = (x[:, :-2] + x[:, 1:-1] + x[:, 2:]) / 3
    return (across[:-2] + across[1:-1] + across[2:]) / 3


@tw.kernel
def blur_to_the_edge(picture: tl.f32("h", "w")):
    """Beyond the edge stands the nearest element."""
    h, w = picture.shape

    def at(y, x):
        return picture[tl.clamp(y, 0, h - 1), tl.clamp(x, 0, w - 1)]

    return tl.compute((h, w), lambda y, x: tl.sum(lambda dy, dx: at(y + dy - 1, x + dx - 1), 3, 3) / 9)


@tw.kernel
def shifted_with_zeros(picture: tl.f32("h", "w")):
    """Beyond the edge stands 0: what is outside is not read."""
    h, w = picture.shape
    return tl.compute((h, w), lambda y, x: tl.where((y >= 1) & (x < w - 2), picture[y - 1, x + 2], 0.0))


@pytest.mark.parametrize("shape", [(3, 3), (9, 40), (17, 65)])
def test_blurs(shape):
    picture = image(*shape)
    np.testing.assert_allclose(blur(picture), blurred(picture), rtol=1e-5)
    padded = np.pad(picture, 1, mode="edge")
    h, w = shape
    expected = sum(padded[dy : dy + h, dx : dx + w] for dy in range(3) for dx in range(3)) / 9
    np.testing.assert_allclose(blur_to_the_edge(picture), expected, rtol=1e-5)
    shifted = np.zeros_like(picture)
    shifted[1:, :-2] = picture[:-1, 2:]
    np.testing.assert_array_equal(shifted_with_zeros(picture), shifted)


@tw.kernel
def sharpened(picture: tl.f32("h", "w")):
    """Two results that share a stage."""
    h, w = picture.shape
    soft = tl.compute((h, w - 2), lambda y, x: (picture[y, x] + 2 * picture[y, x + 1] + picture[y, x + 2]) / 4)
    sharp = tl.compute((h, w - 2), lambda y, x: 2 * picture[y, x + 1] - soft[y, x])
    return soft, sharp


def test_several_results():
    picture = image(6, 20)
    soft, sharp = sharpened(picture)
    expected = (picture[:, :-2] + 2 * picture[:, 1:-1] + picture[:, 2:]) / 4
    np.testing.assert_allclose(soft, expected, rtol=1e-5)
    np.testing.assert_allclose(sharp, 2 * picture[:, 1:-1] - expected, rtol=1e-4, atol=1e-6)


# --- reductions, updates, tuples ------------------------------------------------------------------------------------


@tw.kernel
def histogram(picture: tl.u8("h", "w")):
    h, w = picture.shape
    counts = tl.zeros(256, tl.i32)
    for y, x in tl.grid(h, w):
        counts[picture[y, x]] += 1
    return counts


@tw.kernel
def equalised(picture: tl.u8("h", "w")):
    """Grey levels by their rank: a count, a running sum, a table."""
    h, w = picture.shape
    counts = tl.zeros(256, tl.i32)
    for y, x in tl.grid(h, w):
        counts[picture[y, x]] += 1
    below = tl.zeros(256, tl.i32)
    for k in tl.loop(1, 256):
        below[k] = below[k - 1] + counts[k - 1]
    return tl.compute((h, w), lambda y, x: below[picture[y, x]])


@tw.kernel
def running(x: tl.f32("n")):
    """An element from the one before."""
    (n,) = x.shape
    y = tl.zeros(n)
    for i in tl.loop(n):
        y[i] = x[i] + tl.where(i >= 1, 0.5 * y[i - 1], 0.0)
    return y


@tw.kernel
def extremes(x: tl.f32("m", "n")):
    m, n = x.shape
    least = tl.compute(m, lambda i: tl.min(lambda k: x[i, k], n))
    most = tl.compute(m, lambda i: tl.max(lambda k: x[i, k], n))
    at = tl.compute(m, lambda i: tl.argmax(lambda k: x[i, k], n))
    return least, most, at, tl.compute(m, lambda i: tl.any(lambda k: x[i, k] > 0.999, n))


@tw.kernel
def complex_product(x: tl.f64("n", 2)):
    """A fold of pairs whose order counts: the product of complex numbers."""
    n = x.shape[0]

    def times(a, b):
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    re, im = tl.fold(lambda k: (x[k, 0], x[k, 1]), n, start=(1.0, 0.0), combine=times)
    return tl.compute(2, lambda k: tl.where(k < 1, re, im))


def test_histograms():
    picture = image(21, 30, dtype=np.uint8)
    counts = np.bincount(picture.ravel(), minlength=256)
    np.testing.assert_array_equal(histogram(picture), counts)
    below = np.concatenate([[0], np.cumsum(counts)[:-1]])
    np.testing.assert_array_equal(equalised(picture), below[picture])


def test_loops_keep_their_order():
    x = image(11)
    expected = [x[0]]
    for v in x[1:]:
        expected.append(v + np.float32(0.5) * expected[-1])
    np.testing.assert_allclose(running(x), expected, rtol=1e-6)


def test_extremes():
    x = image(5, 33)
    for found, expected in zip(extremes(x), (x.min(1), x.max(1), x.argmax(1), (x > 0.999).any(1)), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_fold_of_pairs_in_order():
    x = RNG.normal(size=(6, 2))
    expected = np.prod(x[:, 0] + 1j * x[:, 1])
    np.testing.assert_allclose(complex_product(x), [expected.real, expected.imag], rtol=1e-12)


# --- products -------------------------------------------------------------------------------------------------------


@tw.kernel
def product(a: tl.f32("m", "k"), b: tl.f32("k", "n")):
    (m, k), n = a.shape, b.shape[1]
    return tl.compute((m, n), lambda i, j: tl.sum(lambda p: a[i, p] * b[p, j], k))


@tw.kernel
def product_in_loops(a: tl.f32("m", "k"), b: tl.f32("k", "n")):
    (m, k), n = a.shape, b.shape[1]
    c = tl.zeros((m, n))
    for i, j, p in tl.grid(m, n, k):
        c[i, j] += a[i, p] * b[p, j]
    return c


@pytest.mark.parametrize("shape", [(1, 1, 1), (17, 9, 30), (64, 48, 33)])
def test_products(shape):
    m, k, n = shape
    a, b = image(m, k), image(k, n)
    np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-4)
    np.testing.assert_allclose(product_in_loops(a, b), a @ b, rtol=1e-4)
