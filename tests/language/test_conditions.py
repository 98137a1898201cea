"""Stores under a condition do what the same loops do in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright import lang as tl

X = np.random.default_rng(0).standard_normal(37).astype(np.float32)


def test_a_condition_on_indices_guards_what_is_read() -> None:
    @tw.kernel
    def shifted(x: tl.f32("n")):
        (n,) = x.shape
        y = tl.zeros(n)
        for i in tl.loop(n):
            with tl.when(i >= 2):
                y[i] = x[i - 2]
        return y

    for n in (1, 2, 3, 37):
        np.testing.assert_array_equal(shifted(X[:n]), np.concatenate([np.zeros(2, np.float32), X])[:n])


def test_updates_scatters_loops_and_conditions_within() -> None:
    @tw.kernel
    def sorted_out(x: tl.f32("n"), bins: tl.i32("n")):
        (n,) = x.shape
        counts, sums = tl.zeros(4, tl.i32), tl.zeros((4, 3))
        for i in tl.loop(n):
            at = tl.clamp(bins[i], 0, 3)
            with tl.when((bins[i] >= 0) & (bins[i] < 4)):
                counts[at] += 1
                for k in tl.loop(3):
                    with tl.when(x[i] > 0.5 * k):
                        sums[at, k] += x[i] * (k + 1)
        return counts, sums

    bins = np.random.default_rng(1).integers(-2, 6, 37).astype(np.int32)
    counts, sums = np.zeros(4, np.int32), np.zeros((4, 3), np.float32)
    for x, at in zip(X, bins, strict=True):
        if 0 <= at < 4:
            counts[at] += 1
            for k in range(3):
                if x > 0.5 * k:
                    sums[at, k] += x * (k + 1)
    got = sorted_out(X, bins)
    np.testing.assert_array_equal(got[0], counts)
    np.testing.assert_allclose(got[1], sums, rtol=1e-6)


def test_the_condition_is_what_it_was_before_the_body() -> None:
    @tw.kernel
    def once(x: tl.f32(2)):
        y = x.copy()
        with tl.when(y[0] < 3.0):
            y[0] = 5.0
            y[1] = y[1] + y[0]
            with tl.when(y[1] > 10.0):
                y[1] = -y[1]
                y[0] = y[1]
        return y

    for x, want in (((1, 2), (5, 7)), ((2, 6), (-11, -11)), ((3, 6), (3, 6)), ((4, 20), (4, 20))):
        np.testing.assert_array_equal(once(np.array(x, np.float32)), np.array(want, np.float32))


def test_what_is_left_alone_keeps_its_sign_and_its_nan() -> None:
    @tw.kernel
    def added(x: tl.f32("n"), c: tl.bool_("n")):
        (n,) = x.shape
        y = x.copy()
        for i in tl.loop(n):
            with tl.when(c[i]):
                y[i] += 1.0
        return y

    x = np.array([-0.0, 0.0, np.nan, np.inf, -0.0], np.float32)
    c = np.array([False, False, False, False, True])
    got = added(x, c)
    np.testing.assert_array_equal(got, np.array([-0.0, 0.0, np.nan, np.inf, 1.0], np.float32))
    assert np.signbit(got[0]) and not np.signbit(got[1])


def test_tensors_of_the_body() -> None:
    @tw.kernel
    def normed(x: tl.f32("m", "n")):
        m, n = x.shape
        y = x.copy()
        for i in tl.loop(m):
            with tl.when(i >= 1):
                total = tl.compute((), lambda i=i: tl.sum(lambda k: x[i - 1, k], n))
                for j in tl.loop(n):
                    y[i, j] = x[i, j] - total[()]
        return y

    x = X[:35].reshape(5, 7)
    want = x.copy()
    want[1:] -= x[:-1].sum(1, keepdims=True)
    np.testing.assert_allclose(normed(x), want, rtol=1e-5, atol=1e-6)


CONDITIONS = {
    "even": (lambda i, j, x: (i + j) % 2 == 0),
    "below": (lambda i, j, x: j < i),
    "positive": (lambda i, j, x: x[i, j] > 0),
    "both": (lambda i, j, x: (x[i, j] > -0.5) & (j <= i + 1)),
    "not": (lambda i, j, x: ~(x[i, j] > 0.3)),
}
BODIES = {
    "set": (lambda y, i, j, v: y.__setitem__((i, j), v * 2)),
    "add": (lambda y, i, j, v: y.__setitem__((i, j), y[i, j] + v)),
    "column": (lambda y, i, j, v: y.__setitem__((i, 0), y[i, 0] - v)),
    "times": (lambda y, i, j, v: y.__setitem__((0, j), y[0, j] * v)),
}


@given(
    st.sampled_from(sorted(CONDITIONS)),
    st.sampled_from(sorted(CONDITIONS)),
    st.lists(st.sampled_from(sorted(BODIES)), min_size=1, max_size=3),
)
def test_random_bodies_are_python_s(outer: str, inner: str, bodies: list[str]) -> None:
    def run(x: Any, y: Any, pairs: Any, when: Any) -> Any:
        for i, j in pairs:
            with when(CONDITIONS[outer](i, j, x)):
                for name in bodies:
                    with when(CONDITIONS[inner](i, j, x)):
                        BODIES[name](y, i, j, x[i, j])
        return y

    def in_python(x: Any) -> Any:
        y = x.copy()
        for i in range(4):
            for j in range(5):
                if np.bool_(CONDITIONS[outer](i, j, x)):
                    for name in bodies:
                        if np.bool_(CONDITIONS[inner](i, j, x)):
                            BODIES[name](y, i, j, x[i, j])
        return y

    @tw.kernel
    def made(x: tl.f32(4, 5)):
        return run(x, x.copy(), tl.grid(4, 5), tl.when)

    x = X[:20].reshape(4, 5)
    np.testing.assert_allclose(made(x), in_python(x), rtol=1e-5, atol=1e-6)


def test_what_has_no_meaning_is_refused() -> None:
    def no_bool(x: Any) -> Any:
        y = x.copy()
        with tl.when(x[0]):
            y[0] = 1.0
        return y

    def within(x: Any) -> Any:
        y = x.copy()

        def value(i: Any) -> Any:
            with tl.when(i > 0):
                pass
            return x[i]

        return tl.compute(y.shape, value)

    def outside(x: Any) -> Any:
        y = x.copy()
        for i in tl.loop(x.shape[0]):
            with tl.when(i >= 1):
                y[i - 1] = x[i]
        return y

    for function, rule in ((no_bool, "no bool"), (within, "inside of an expression"), (outside, "may be less than 0")):
        with pytest.raises(tw.CompileError, match=rule):
            tw.kernel(function).graph(tl.f32("n"))
