"""Random programs over blocks compute what NumPy does, program after program."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from language import block_reference
from tilewright import lang

SIZES = st.integers(1, 9)
BLOCKS = st.integers(1, 5)


def element_wise(tl: Any, a: Any, b: Any, ops: list[str]) -> Any:
    for op in ops:
        match op:
            case "add":
                a = a + b
            case "reversed":
                a = 1 - a
            case "times":
                a = a * b * 0.5
            case "greater":
                a = tl.maximum(a, b)
            case "where":
                a = tl.where(a > b, b, a - 2.0)
            case "exp":
                a = tl.exp(tl.minimum(a, 1.0))
    return a


OPS = st.lists(st.sampled_from(["add", "reversed", "times", "greater", "where", "exp"]), max_size=4)


def check(function: Any, *arrays: Any) -> None:
    got = tw.kernel(lambda x, y: function(lang, x, y))(*arrays)
    np.testing.assert_allclose(got, function(block_reference, *arrays), rtol=1e-4, atol=1e-5)


def data(m: int, n: int) -> Any:
    return np.random.default_rng(m * 100 + n).standard_normal((m, n)).astype(np.float32)


@settings(max_examples=15)
@given(SIZES, SIZES, BLOCKS, BLOCKS, OPS, st.booleans(), st.booleans(), st.integers(0, 3))
def test_element_wise_and_masks(
    m: int, n: int, rows: int, columns: int, ops: list[str], is_turned: bool, by_data: bool, least: int
) -> None:
    def function(tl: Any, x: Any, y: Any) -> Any:
        out = tl.zeros((n, m) if is_turned else (m, n), tl.f32)
        for i, j in tl.programs(tl.cdiv(m, rows), tl.cdiv(n, columns)):
            r = (i * rows + tl.arange(0, rows))[:, None]
            c = (j * columns + tl.arange(0, columns))[None, :]
            mask = (r < m) & (c < n)
            a, b = tl.load(x, (r, c), mask=mask, other=1), tl.load(y, c, mask=c < n)
            to = mask & (r >= least) if not by_data else mask & (a > 0)
            tl.store(out, (c, r) if is_turned else (r, c), element_wise(tl, a, b, ops), mask=to)
        return out

    check(function, data(m, n), data(1, n)[0])


@settings(max_examples=15)
@given(SIZES, SIZES, BLOCKS, BLOCKS, OPS, st.sampled_from(["sum", "max"]), st.booleans())
def test_folds_and_loops(m: int, n: int, rows: int, columns: int, ops: list[str], fold: str, is_carried: bool) -> None:
    def function(tl: Any, x: Any, y: Any) -> Any:
        out = tl.zeros(m, tl.f32)
        for i in tl.programs(tl.cdiv(m, rows)):
            r = i * rows + tl.arange(0, rows)
            total, last = tl.zeros(rows, tl.f32), tl.zeros(rows, tl.f32)
            for first in tl.range(0, n, columns):
                c = first + tl.arange(0, columns)
                mask = (r < m)[:, None] & (c < n)[None, :]
                a = tl.load(x, (r[:, None], c[None, :]), mask=mask, other=-3)
                v = element_wise(tl, a, tl.load(y, c, mask=c < n)[None, :], ops)
                new = tl.sum(v, axis=1) if fold == "sum" else tl.max(v, axis=1)
                if is_carried:
                    last = last * 0.5 + total
                total = total + new if fold == "sum" else tl.maximum(total, new)
            tl.store(out, r, total + last, mask=r < m)
        return out

    check(function, data(m, n), data(1, n)[0])


@settings(max_examples=15)
@given(SIZES, SIZES, BLOCKS, BLOCKS, st.integers(-2, 12), st.integers(-4, 12), st.sampled_from(["sum", "max"]))
def test_masks_that_end_anywhere(m: int, n: int, rows: int, columns: int, short: int, corner: int, fold: str) -> None:
    """Before 0, behind the end, along a diagonal: of loads that are folded, and of stores."""

    def function(tl: Any, x: Any, y: Any) -> Any:
        out, sums = tl.zeros((m, n), tl.f32), tl.zeros(m, tl.f32)
        for i in tl.programs(tl.cdiv(m, rows)):
            r = i * rows + tl.arange(0, rows)
            for first in tl.range(0, n, columns):
                c = first + tl.arange(0, columns)
                inside = (r < m)[:, None] & (c < n)[None, :]
                a = tl.load(x, (r[:, None], c[None, :]), mask=inside & (c < n - short)[None, :])
                b = tl.load(x, (r[:, None], c[None, :]), mask=inside & (r[:, None] + c[None, :] < n - corner))
                to = inside & (r[:, None] + c[None, :] < m - corner) & (r < m - short)[:, None]
                tl.store(out, (r[:, None], c[None, :]), a + 2 * b, mask=to)
            total = tl.zeros(rows, tl.f32)
            for first in tl.range(0, n, columns):
                c = first + tl.arange(0, columns)
                kept = (r < m)[:, None] & (c < n - short)[None, :] & (c < n)[None, :]
                v = tl.load(x, (r[:, None], c[None, :]), mask=kept)
                new = tl.sum(v, axis=1) if fold == "sum" else tl.max(v, axis=1)
                total = total + new if fold == "sum" else tl.maximum(total, new)
            tl.store(sums, r, total, mask=(r < m) & (r < m - corner))
        return out, sums

    got = tw.kernel(lambda x, y: function(lang, x, y))(data(m, n), data(1, n)[0])
    for a, b in zip(got, function(block_reference, data(m, n), data(1, n)[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@settings(max_examples=10)
@given(SIZES, SIZES, SIZES, BLOCKS, BLOCKS, BLOCKS, st.booleans())
def test_products(m: int, k: int, n: int, rows: int, inner: int, columns: int, halves: bool) -> None:
    def function(tl: Any, x: Any, y: Any) -> Any:
        out = tl.zeros((m, n), tl.f32)
        for i, j in tl.programs(tl.cdiv(m, rows), tl.cdiv(n, columns)):
            r, c = i * rows + tl.arange(0, rows), j * columns + tl.arange(0, columns)
            total = tl.zeros((rows, columns), tl.f32)
            for first in tl.range(0, k, inner):
                p = first + tl.arange(0, inner)
                a = tl.load(x, (r[:, None], p[None, :]), mask=(r < m)[:, None] & (p < k)[None, :])
                b = tl.load(y, (p[:, None], c[None, :]), mask=(p < k)[:, None] & (c < n)[None, :])
                total = total * 0.5 + tl.dot(a, b) if halves else total + tl.dot(a, b)
            tl.store(out, (r[:, None], c[None, :]), total, mask=(r < m)[:, None] & (c < n)[None, :])
        return out

    check(function, data(m, k), data(k, n))
