"""Programs over blocks: what Triton's first tutorials compute, at sizes that fill no block, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import lang as tl
from tilewright.core.compute import Binary, Load, loads, stages_alone, walk

RNG = np.random.default_rng(0)


@tw.kernel
def add(x: tl.f32("n"), y: tl.f32("n"), BLOCK: int = 64):
    (n,) = x.shape
    out = tl.zeros(n)
    for pid in tl.programs(tl.cdiv(n, BLOCK)):
        at = pid * BLOCK + tl.arange(0, BLOCK)
        mask = n > at
        tl.store(out, at, tl.load(x, at, mask=mask) + tl.load(y, at, mask=mask), mask=mask)
    return out


@tw.kernel
def softmax(x: tl.f32("rows", "n"), BLOCK: int = 128):
    rows, n = x.shape
    out = tl.zeros((rows, n))
    for row in tl.programs(rows):
        at = tl.arange(0, BLOCK)
        v = tl.load(x, (row, at), mask=at < n, other=-np.inf)
        powers = tl.exp(v - tl.max(v, axis=0))
        tl.store(out, (row, at), powers / tl.sum(powers, axis=0), mask=at < n)
    return out


@tw.kernel
def product(a: tl.f32("m", "k"), b: tl.f32("k", "n"), BM: int = 32, BN: int = 64, BK: int = 16):
    (m, k), n = a.shape, b.shape[1]
    c = tl.zeros((m, n))
    for pm, pn in tl.programs(tl.cdiv(m, BM), tl.cdiv(n, BN)):
        rows, columns = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN)
        total = tl.zeros((BM, BN))
        for first in tl.range(0, k, BK):
            ks = first + tl.arange(0, BK)
            x = tl.load(a, (rows[:, None], ks[None, :]), mask=(rows < m)[:, None] & (ks < k)[None, :])
            y = tl.load(b, (ks[:, None], columns[None, :]), mask=(ks < k)[:, None] & (columns < n)[None, :])
            total += tl.dot(x, y)
        tl.store(c, (rows[:, None], columns[None, :]), total, mask=(rows < m)[:, None] & (columns < n)[None, :])
    return c


@tw.kernel
def dropout(x: tl.f32("n"), p: float = 0.5, seed: int = 7, BLOCK: int = 32):
    (n,) = x.shape
    out = tl.zeros(n)
    for pid in tl.programs(tl.cdiv(n, BLOCK)):
        at = pid * BLOCK + tl.arange(0, BLOCK)
        keeps = tl.rand(seed, at) > p
        v = tl.load(x, at, mask=at < n)
        tl.store(out, at, tl.where(keeps, v / (1 - p), 0.0), mask=at < n)
    return out


@tw.kernel
def layer_norm(x: tl.f32("rows", "n"), w: tl.f32("n"), b: tl.f32("n"), BLOCK: int = 16, eps: float = 1e-5):
    rows, n = x.shape
    y = tl.zeros((rows, n))
    means, scales = tl.zeros(rows), tl.zeros(rows)
    for row in tl.programs(rows):
        total = tl.zeros(BLOCK)
        for first in tl.range(0, n, BLOCK):
            at = first + tl.arange(0, BLOCK)
            total += tl.load(x, (row, at), mask=at < n)
        mean = tl.sum(total, axis=0) / n
        squares = tl.zeros(BLOCK)
        for first in tl.range(0, n, BLOCK):
            at = first + tl.arange(0, BLOCK)
            d = tl.where(at < n, tl.load(x, (row, at), mask=at < n) - mean, 0.0)
            squares += d * d
        scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
        tl.store(means, row, mean)
        tl.store(scales, row, scale)
        for first in tl.range(0, n, BLOCK):
            at = first + tl.arange(0, BLOCK)
            mask = at < n
            v = (tl.load(x, (row, at), mask=mask) - mean) * scale
            tl.store(y, (row, at), v * tl.load(w, at, mask=mask) + tl.load(b, at, mask=mask), mask=mask)
    return y, means, scales


@tw.kernel
def online_softmax(x: tl.f32("rows", "n"), BLOCK: int = 16):
    rows, n = x.shape
    y = tl.zeros((rows, n))
    for row in tl.programs(rows):
        most, total = -np.inf, 0.0
        for first in tl.range(0, n, BLOCK):
            at = first + tl.arange(0, BLOCK)
            v = tl.load(x, (row, at), mask=at < n, other=-np.inf)
            new = tl.maximum(most, tl.max(v, axis=0))
            total = total * tl.exp(most - new) + tl.sum(tl.exp(v - new), axis=0)
            most = +new
        for first in tl.range(0, n, BLOCK):
            at = first + tl.arange(0, BLOCK)
            tl.store(y, (row, at), tl.exp(tl.load(x, (row, at), mask=at < n) - most) / total, mask=at < n)
    return y


def numpy_softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def test_vectors_are_added_at_ragged_sizes() -> None:
    for n in (1, 63, 64, 65, 300):
        x, y = floats(2, n)
        np.testing.assert_array_equal(add(x, y), x + y)
        np.testing.assert_array_equal(add(x, y, BLOCK=5), x + y)


@pytest.mark.parametrize("kernel", [softmax, online_softmax])
def test_softmax(kernel: Any) -> None:
    for n in (1, 15, 16, 50, 128):
        x = floats(7, n)
        np.testing.assert_allclose(kernel(x), numpy_softmax(x), rtol=1e-5)


def test_a_product() -> None:
    for m, k, n in ((1, 1, 1), (33, 47, 65), (64, 32, 64), (100, 5, 7)):
        a, b = floats(m, k), floats(k, n)
        np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-4, atol=1e-5)


def test_dropout_is_decided_by_the_seed() -> None:
    x = np.ones(1000, np.float32)
    first = dropout(x)
    assert set(np.unique(first)) == {0, 2}
    assert 400 < np.count_nonzero(first) < 600
    np.testing.assert_array_equal(first, dropout(x, BLOCK=100))
    assert not np.array_equal(first, dropout(x, seed=8))


def test_layer_norm() -> None:
    for n in (1, 15, 16, 50):
        x, (w, b) = floats(7, n), floats(2, n)
        y, means, scales = layer_norm(x, w, b)
        scale = 1 / np.sqrt(x.var(1) + 1e-5)
        np.testing.assert_allclose(means, x.mean(1), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(scales, scale, rtol=1e-4)
        expected = (x - x.mean(1, keepdims=True)) * scale[:, None] * w + b
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


def test_programs_and_lanes_become_the_loops_of_whole_tensors() -> None:
    stages = stages_alone(product.traced().computation)
    assert stages is not None
    total = stages[0]
    assert [str(a.extent) for a in total.axes] == ["m", "n"]
    assert total.reduction is not None
    assert [str(a.extent) for a in total.reduction.axes] == ["k"]
    (i, j), (k,) = total.axes, total.reduction.axes
    assert {x.index for x in loads(total.expr)} == {(i.sym, k.sym), (k.sym, j.sym)}
    assert {type(x) for x in walk(total.expr)} == {Binary, Load}  # no mask is left


def test_they_run_in_modules_of_pytorch() -> None:
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return softmax.torch(torch.relu(x)) * 2

    x = torch.rand(5, 30)
    model = tw.compile(Model(), example_inputs=(x,))
    np.testing.assert_allclose(model(x), torch.softmax(x, 1) * 2, rtol=1e-5)
    assert isinstance(softmax(x), torch.Tensor)


def test_loops_carry_blocks_that_depend_on_each_other() -> None:
    @tw.kernel
    def fibonacci(x: tl.i64("n")):
        (n,) = x.shape
        out = tl.zeros(n, tl.i64)
        for pid in tl.programs(n):
            a, b = tl.zeros(1, tl.i64), tl.full(1, 1, tl.i64)
            for _ in tl.range(10):
                a, b = +b, a + b
            tl.store(out, pid[None], a + tl.load(x, pid[None]))
        return out

    np.testing.assert_array_equal(fibonacci(np.arange(3)), 55 + np.arange(3))


def test_masks_that_end_before_the_first_element_leave_everything() -> None:
    @tw.kernel
    def short(x: tl.f32("n")):
        (n,) = x.shape
        out, total = tl.zeros(n), tl.zeros(1)
        for pid in tl.programs(tl.cdiv(n, 4)):
            at = pid * 4 + tl.arange(0, 4)
            tl.store(out, at, tl.load(x, at, mask=at < n), mask=at < n - 5)
        for pid in tl.programs(1):
            at = tl.arange(0, 8)
            tl.store(total, pid, tl.sum(tl.load(x, at, mask=at < n - 5), axis=0))
        return out, total

    for n in (1, 3, 5, 6, 11):
        out, total = short(np.ones(n, np.float32))
        np.testing.assert_array_equal(out, np.arange(n) < n - 5)
        np.testing.assert_array_equal(total, [max(0, n - 5)])


def test_masks_of_triangles() -> None:
    @tw.kernel
    def corner(x: tl.f32("m", "n"), B: int = 4):
        m, n = x.shape
        out = tl.zeros((m, n))
        for i, j in tl.programs(tl.cdiv(m, B), tl.cdiv(n, B)):
            r, c = (i * B + tl.arange(0, B))[:, None], (j * B + tl.arange(0, B))[None, :]
            first = tl.arange(0, 1)
            left, right = tl.load(x, (r, first[None, :]), mask=r < m), tl.load(x, (first[:, None], c), mask=c < n)
            tl.store(out, (r, c), tl.dot(left, right), mask=(r < m) & (c < n) & (c <= r) & (r + c < n))
        return out

    for m, n in ((1, 1), (7, 5), (5, 9)):
        x, (r, c) = floats(m, n), np.mgrid[:m, :n]
        expected = np.where((c <= r) & (r + c < n), x[:, :1] * x[:1], 0)
        np.testing.assert_allclose(corner(x), expected, rtol=1e-6)
