"""Rows of a few vectors in turned blocks: right to the last row and column, no byte beyond them, and where it pays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST
from codegen.test_short_rows import TARGETS, WIDE, centred, run
from tile.kernels import check_default, layer_norm, softmax
from tilewright.choose.default import schedule
from tilewright.codegen.cpu import llvm as codegen
from tilewright.core import types
from tilewright.core.compute import Buffer, Cast, Computation, Const, Load, Reduction, Stage, Unary, axes_for, syms
from tilewright.tile.ir import Role, Store, walk


def log_softmax(rows, columns, dtype=types.f32, *, heads=1, biased=False):
    """``x + b - max - log(sum(exp(x + b - max)))`` of every row; with ``biased``, ``b`` has one number a column."""
    shape = (heads, rows, columns)
    x, bias, y = Buffer("X", dtype, shape), Buffer("B", dtype, (columns,)), Buffer("Y", dtype, shape)
    top, total = (Buffer(n, types.f32, shape[:2]) for n in ("top", "total"))
    e = Buffer("e", types.f32, shape)
    (h, i, j), (k,) = syms(axes := axes_for(shape)), syms(inner := axes_for((columns,), "k"))

    def at(c):
        value = x[h, i, c] if dtype is types.f32 else Cast(x[h, i, c], types.f32)
        return value + (bias[c] if dtype is types.f32 else Cast(bias[c], types.f32)) if biased else value

    low, zero = Const(-np.inf, types.f32), Const(0, types.f32)
    result = at(j) - top[h, i] - Unary("log", total[h, i])
    stages = (
        Stage((top,), axes[:2], (h, i), (at(k),), Reduction(inner, "max", (low,))),
        Stage((e,), axes, (h, i, j), (Unary("exp", at(j) - top[h, i]),)),
        Stage((total,), axes[:2], (h, i), (e[h, i, k],), Reduction(inner, "add", (zero,))),
        Stage((y,), axes, (h, i, j), (result if dtype is types.f32 else Cast(result, dtype),)),
    )
    return Computation((x, bias) if biased else (x,), (y,), stages, (top, e, total))


def is_turned(kernel):
    """Are rows of an input copied as they are, into another order?"""
    given = {p.buffer for p in kernel.places if p.role is Role.IN}
    copied = [s.value.buffer for s in walk(kernel.body) if isinstance(s, Store) and isinstance(s.value, Load)]
    return not given.isdisjoint(copied)


def expected(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(rows=st.integers(8, 90), columns=st.integers(5, 66), at_end=st.booleans())
@settings(max_examples=4)
def test_softmax_and_layer_norm(target, rows, columns, at_end):
    x = np.random.default_rng(rows).standard_normal((rows, columns), np.float32)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    got = run(schedule(softmax(rows, columns), target), target, x, shape=x.shape, at_end=at_end)
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)
    got = run(schedule(log_softmax(rows, columns), target), target, x, shape=(1, *x.shape), at_end=at_end)
    np.testing.assert_allclose(got[0], expected(x), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [types.f16, types.bf16])
@pytest.mark.parametrize(("heads", "rows", "columns"), [(1, 16, 13), (2, 33, 37), (3, 48, 32)])
def test_narrow_floats_and_columns_numbers(dtype, heads, rows, columns):
    rng = np.random.default_rng(columns)
    x, bias = (rng.standard_normal(s).astype(dtype.numpy) for s in ((heads, rows, columns), (columns,)))
    made = log_softmax(rows, columns, dtype, heads=heads, biased=True)
    got = run(schedule(made, HOST), HOST, x, bias, shape=x.shape, at_end=True)
    want = expected(x.astype(np.float32) + bias.astype(np.float32))
    np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=0.02, atol=0.02)


@given(rows=st.integers(16, 40), columns=st.integers(9, 40), heads=st.integers(1, 3), biased=st.booleans())
@settings(max_examples=5)
def test_the_schedule_means_what_the_loops_mean(rows, columns, heads, biased):
    check_default(log_softmax(rows, columns, heads=heads, biased=biased), machine=WIDE)


@pytest.mark.parametrize(
    ("made", "turned"),
    [
        (softmax(160, 13), True), (softmax(160, 17), True), (softmax(160, 64), True), (softmax(160, 65), False),
        (softmax(37, 17), False), (softmax(12, 17), False), (centred(160, 17), False),
        (softmax(5000, 40), True), (softmax(5000, 48), False), (layer_norm(160, 32), True),
    ],
)  # fmt: skip
def test_where_it_pays(made, turned):
    """Not for longer rows, few of them, one reduction, nor rows of 40 elements and more from beyond the caches."""
    assert is_turned(schedule(made, WIDE)) == turned


def test_no_lanes_are_folded():
    text = codegen.assembly(schedule(log_softmax(160, 32), WIDE), WIDE)
    assert "zmm" in text and "vextractf" not in text
