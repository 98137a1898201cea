"""Runs of lanes that are no power of two: read and written at once where masks are cheap, and nothing beyond them."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native
from codegen.test_lying_across import Fenced
from tilewright.choose.default import RULE_BROKE, schedule
from tilewright.codegen.cpu import llvm as codegen
from tilewright.core import types
from tilewright.core.compute import Axis, Buffer, Computation, Const, Reduction, Stage, axes_for, syms
from tilewright.core.expr import Sym
from tilewright.target.target import Target

WIDE = Target.parse("x86-64-v4")
TARGETS = [HOST, WIDE, Target.parse("x86-64-v3"), Target.parse("x86-64")]


def products(batch: int, m: int, n: int, k: int, dtype: types.DType = types.f32) -> Computation:
    """``out[b, i, j] = sum over k of x[b, i, k] * w[b, k, j]``."""
    x, w, out = (Buffer(name, dtype, shape) for name, shape in
                 (("X", (batch, m, k)), ("W", (batch, k, n)), ("OUT", (batch, m, n))))  # fmt: skip
    axes = axes_for(out.shape)
    b, i, j = syms(axes)
    s = Sym("k", 0, k - 1)
    total = Reduction((Axis(s, k),), "add", (Const(0, dtype),))
    return Computation((x, w), (out,), (Stage((out,), axes, (b, i, j), (x[b, i, s] * w[b, s, j],), total),))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(
    batch=st.integers(1, 20), m=st.integers(1, 7), n=st.integers(1, 17), k=st.integers(1, 19), at_end=st.booleans(),
    dtype=st.sampled_from([types.f32, types.f64, types.i32]),
)  # fmt: skip
@settings(max_examples=10)
def test_products_of_small_matrices(target, batch, m, n, k, at_end, dtype):
    random = np.random.default_rng(n)
    x, w = (random.integers(-4, 5, size).astype(dtype.numpy) for size in ((batch, m, k), (batch, k, n)))
    tree = schedule(products(batch, m, n, k, dtype), target)
    assert not any(RULE_BROKE in note for note in tree.notes), tree.notes
    a, b, out = Fenced(x, at_end), Fenced(w, at_end), Fenced(np.zeros((batch, m, n), dtype.numpy), at_end)
    Native(tree, target)(a.array, b.array, out.array)
    np.testing.assert_array_equal(out.array, x @ w)


@pytest.mark.parametrize(("target", "in_parts"), [(WIDE, False), (Target.parse("x86-64-v3"), True)])
def test_whole_where_masks_are_cheap(target, in_parts):
    text = codegen.emit_kernel(schedule(products(20, 3, 7, 5), target), target)
    assert bool(re.search(r"load <7 x float>", text)) == in_parts
    assert bool(re.search(r"masked\.load\.v8f32", text)) != in_parts
    assert bool(re.search(r"masked\.store\.v8f32", text)) != in_parts


def scaled(n: int, dtype: types.DType) -> Computation:
    """``out[i] = x[i] + x[i]``."""
    x, out = Buffer("X", dtype, (n,)), Buffer("OUT", dtype, (n,))
    axes = axes_for(out.shape)
    (i,) = syms(axes)
    return Computation((x,), (out,), (Stage((out,), axes, (i,), (x[i] + x[i],)),))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(n=st.integers(1, 70), at_end=st.booleans(), dtype=st.sampled_from([types.f32, types.f64, types.i8, types.i16]))
@settings(max_examples=20)
def test_ends_of_rows(target, n, at_end, dtype):
    tree = schedule(scaled(n, dtype), target)
    x, out = (np.arange(n) % 50).astype(dtype.numpy), Fenced(np.zeros(n, dtype.numpy), at_end)
    Native(tree, target)(Fenced(x, at_end).array, out.array)
    np.testing.assert_array_equal(out.array, x + x)


@pytest.mark.parametrize("n", [12, 13, 14, 15, 100])
def test_ends_of_rows_are_stored_in_parts_where_masks_are_dear(n):
    for target in (Target.parse("x86-64-v3"), Target.parse("x86-64")):
        assert "masked.store" not in codegen.emit_kernel(schedule(scaled(n, types.f32), target), target)
