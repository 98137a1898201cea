"""Rows of a few elements: as many rows as a vector has lanes at once, exactly, and no byte beyond the rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native
from codegen.test_lying_across import Fenced
from tile.kernels import layer_norm, reduction, softmax
from tilewright.choose.default import RULE_BROKE, schedule
from tilewright.codegen.cpu import llvm as codegen
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation, Const, Reduction, Stage, Unary, axes_for, syms
from tilewright.target.target import Target
from tilewright.tile.ir import For, Kind, Store, walk

WIDE = Target.parse("x86-64-v4")
TARGETS = [HOST, WIDE, Target.parse("x86-64-v3"), Target.parse("x86-64")]


def run(tree, target, *arrays, shape, at_end):
    assert not any(RULE_BROKE in note for note in tree.notes), tree.notes
    fenced, out = [Fenced(a, at_end) for a in arrays], Fenced(np.zeros(shape, arrays[0].dtype), at_end)
    Native(tree, target)(*(f.array for f in fenced), out.array)
    return out.array


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(rows=st.integers(2, 90), columns=st.integers(2, 13), at_end=st.booleans())
@settings(max_examples=4)
def test_softmax_and_layer_norm(target, rows, columns, at_end):
    x = np.random.default_rng(rows).standard_normal((rows, columns), np.float32)
    got = run(schedule(softmax(rows, columns), target), target, x, shape=x.shape, at_end=at_end)
    e = np.exp(x.astype("d") - x.max(1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)
    scale, tree = (
        np.linspace(0.5, 2, columns, dtype=np.float32),
        schedule(layer_norm(rows, columns), target),
    )
    got, z = run(tree, target, x, scale, shape=x.shape, at_end=at_end), x.astype("d")
    want = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(
    rows=st.integers(1, 100), columns=st.integers(2, 9), axis=st.integers(0, 1), op=st.sampled_from(["add", "max"]),
    dtype=st.sampled_from([types.f32, types.f64]), at_end=st.booleans(),
)  # fmt: skip
@settings(max_examples=15)
def test_sums_and_maxima_along_either_axis(target, rows, columns, axis, op, dtype, at_end):
    x = (np.arange(rows * columns) * 7 % 19 - 9).astype(dtype.numpy).reshape(rows, columns)
    tree = schedule(reduction((rows, columns), axis, op, dtype), target)
    got = run(tree, target, x, shape=(x.shape[1 - axis],), at_end=at_end)
    np.testing.assert_array_equal(got, x.sum(axis) if op == "add" else x.max(axis))


@pytest.mark.parametrize(("axis", "shuffles"), [(1, 6), (0, 6)])
def test_three_columns_are_three_loads_and_their_shuffles(axis, shuffles):
    text = codegen.assembly(schedule(reduction((1600, 3), axis, "add"), WIDE), WIDE)
    assert text.count("vpermt2ps") == shuffles
    assert "gather" not in text


def test_what_a_row_has_once_is_computed_once():
    text = codegen.assembly(schedule(layer_norm(160, 3), WIDE), WIDE)
    assert text.count("vsqrtps") + text.count("vrsqrt14ps") == 1


@pytest.mark.parametrize(("columns", "n_sums", "blocks"), [(8, 1, True), (9, 1, False), (12, 2, True), (13, 2, False)])
def test_longer_rows_go_in_blocks_where_there_is_more_to_do(columns, n_sums, blocks):
    """A row has one sum before its mean is taken off, two in a softmax; a block of rows has a loop of its own."""
    made = softmax(160, columns) if n_sums == 2 else centred(160, columns)
    tree = schedule(made, WIDE)
    copied = [s for s in walk(tree.body) if isinstance(s, For) and s.loop.kind is Kind.UNROLL]
    assert any(s.loop.extent == columns for s in copied) == blocks


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(rows=st.integers(1, 70), columns=st.integers(2, 70), at_end=st.booleans())
@settings(max_examples=6)
def test_functions_of_sums(target, rows, columns, at_end):
    x = np.random.default_rng(rows).standard_normal((rows, columns), np.float32)
    got = run(schedule(log_sums(rows, columns), target), target, x, shape=(rows,), at_end=at_end)
    np.testing.assert_allclose(got, np.log(np.exp(x.astype("d")).sum(1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("columns", "lanes"), [(50, [16]), (5000, [])])
def test_functions_of_short_rows_sums_have_rows_as_lanes(columns, lanes):
    tree = schedule(log_sums(160, columns), WIDE)
    (last,) = [s for s in walk(tree.body) if isinstance(s, Store) and s.buffer.name == "Y"]
    around = [s.loop for s in walk(tree.body) if isinstance(s, For) and last in s.body]
    assert [x.extent for x in around if x.kind is Kind.VECTOR] == lanes


def log_sums(rows, columns):
    """The logarithm of the sum of every row's exponentials, less their maximum."""
    x, y = (Buffer(n, types.f32, s) for n, s in (("X", (rows, columns)), ("Y", (rows,))))
    m, t = (Buffer(n, types.f32, (rows,)) for n in "mt")
    axes, inner = axes_for((rows,)), axes_for((columns,), "k")
    ((i,), (k,)), least = (syms(axes), syms(inner)), Const(-float("inf"), types.f32)
    largest = Stage((m,), axes, (i,), (x[i, k],), Reduction(inner, "max", (least,)))
    total = Stage((t,), axes, (i,), (Unary("exp", x[i, k] - m[i]),), Reduction(inner, "add", (Const(0, types.f32),)))
    return Computation((x,), (y,), (largest, total, Stage((y,), axes, (i,), (Unary("log", t[i]) + m[i],))), (m, t))


def centred(rows, columns):
    """``x - mean(x)`` of every row."""
    x, y, t = (Buffer(n, types.f32, s) for n, s in (("X", (rows, columns)), ("Y", (rows, columns)), ("t", (rows,))))
    (i, j), (k,) = syms(axes := axes_for((rows, columns))), syms(inner := axes_for((columns,), "k"))
    total = Stage((t,), axes[:1], (i,), (x[i, k],), Reduction(inner, "add", (Const(0, types.f32),)))
    mean = t[i] * Const(1 / columns, types.f32)
    return Computation((x,), (y,), (total, Stage((y,), axes, (i, j), (x[i, j] - mean,))), (t,))
