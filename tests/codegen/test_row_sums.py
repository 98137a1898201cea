"""Sums of rows of a few vectors: right to the last row and element, no byte beyond them, and folded together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.test_short_rows import TARGETS, WIDE, run
from tile.kernels import reduction
from tilewright.choose.default import schedule
from tilewright.codegen.cpu import llvm as codegen
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation, Const, Reduction, Stage, Unary, axes_for, syms


def means(rows, columns):
    """The mean of every row."""
    x, y, t = (Buffer(n, types.f32, s) for n, s in (("X", (rows, columns)), ("Y", (rows,)), ("t", (rows,))))
    (i,), (k,) = syms(axes := axes_for((rows,))), syms(inner := axes_for((columns,), "k"))
    total = Stage((t,), axes, (i,), (x[i, k],), Reduction(inner, "add", (Const(0, types.f32),)))
    return Computation((x,), (y,), (total, Stage((y,), axes, (i,), (t[i] * Const(1 / columns, types.f32),))), (t,))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(
    rows=st.integers(30, 150), columns=st.integers(9, 66), op=st.sampled_from(["add", "max", "mean"]),
    dtype=st.sampled_from([types.f32, types.f64]), at_end=st.booleans(),
)  # fmt: skip
@settings(max_examples=10)
def test_rows_are_reduced(target, rows, columns, op, dtype, at_end):
    made = means(rows, columns) if op == "mean" else reduction((rows, columns), 1, op, dtype)
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype("f" if op == "mean" else dtype.numpy)
    got = run(schedule(made, target), target, x, shape=(rows,), at_end=at_end)
    want = {"add": np.sum, "max": np.max, "mean": np.mean}[op](x.astype("d"), axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def matrix_by_vector(rows, columns, dtype):
    """``Y[i] = exp(sum_k X[i, k] * V[k])``: all rows share the vector's elements."""
    x, v, y, t = (
        Buffer(n, dtype, s) for n, s in (("X", (rows, columns)), ("V", (columns,)), ("Y", (rows,)), ("t", (rows,)))
    )
    (i,), (k,) = syms(axes := axes_for((rows,))), syms(inner := axes_for((columns,), "k"))
    total = Stage((t,), axes, (i,), (x[i, k] * v[k],), Reduction(inner, "add", (Const(0, dtype),)))
    return Computation((x, v), (y,), (total, Stage((y,), axes, (i,), (Unary("exp", t[i]),))), (t,))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(
    rows=st.integers(30, 80), columns=st.integers(9, 90), dtype=st.sampled_from([types.f32, types.f64]),
    at_end=st.booleans(),
)  # fmt: skip
@settings(max_examples=7)
def test_a_matrix_by_a_vector(target, rows, columns, dtype, at_end):
    rng = np.random.default_rng(columns)
    x, v = (rng.standard_normal(s).astype(dtype.numpy) / 8 for s in ((rows, columns), (columns,)))
    got = run(schedule(matrix_by_vector(rows, columns, dtype), target), target, x, v, shape=(rows,), at_end=at_end)
    np.testing.assert_allclose(got, np.exp(x.astype("d") @ v), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "columns", "together"),
    [(64, 17, True), (64, 64, True), (64, 65, True), (64, 1000, True), (3000, 700, True), (3000, 1000, False)],
)
def test_rows_that_share_a_vector_are_folded_together_however_long(rows, columns, together):
    """But where they come from beyond the near caches, and a block of them lies in more pages than these look ahead."""
    tree = schedule(matrix_by_vector(rows, columns, types.f32), WIDE)
    assert any(p.buffer.shape == (16, 16) for p in tree.places) == together


@pytest.mark.parametrize(
    ("rows", "columns", "together"),
    [(64, 17, True), (771, 49, True), (771, 64, True), (63, 49, False), (771, 65, False), (771, 16, False),
     (3000, 49, True)],
)  # fmt: skip
def test_where_lanes_are_folded_together(rows, columns, together):
    """Not for few rows, nor rows of a vector or of more than four."""
    tree = schedule(means(rows, columns), WIDE)
    assert any(p.buffer.shape == (16, 16) for p in tree.places) == together
    if together:
        assert codegen.assembly(tree, WIDE).count("vextract") < 16
