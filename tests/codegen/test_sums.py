"""The lanes of a tile's partial sums, folded together: exactly, for any number of them, in fewer instructions."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native
from tilewright.choose.default import schedule
from tilewright.choose.strategies.narrow import narrow
from tilewright.codegen.cpu import llvm as codegen
from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Computation, Const, Reduction, Stage, Unary, axes_for, syms
from tilewright.target.target import Target
from tilewright.tile.ir import Kind
from tilewright.tile.lower import lower
from tilewright.tile.pack import packed_array
from tilewright.tile.schedule import ScheduleBuilder

WIDE = Target.parse("x86-64-v4")
TARGETS = [HOST, WIDE, Target.parse("x86-64-v3"), Target.parse("x86-64")]


def scores(target, keys, queries, depth, dtype=types.f32):
    """``S[k, q] = sum(K[k, :] * Q[q, :])``, sums along the depth in tiles of keys and all queries."""
    k, q = Buffer("K", dtype, (keys, depth)), Buffer("Q", dtype, (queries, depth))
    out = Buffer("S", dtype, (keys, queries))
    axes, along = axes_for(out.shape), axes_for((depth,), "d")
    (i, j), (d,) = syms(axes), syms(along)
    product = Stage((out,), axes, (i, j), (k[i, d] * q[j, d],), Reduction(along, "add", (Const(0, dtype),)))
    b = ScheduleBuilder(lower(Computation((k, q), (out,), (product,))))
    narrow(b, target, "S", None, has_lanes=False, threads=False)
    return b.kernel


@pytest.mark.one_in(4)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(
    keys=st.integers(8, 40), queries=st.integers(2, 8), depth=st.integers(16, 70),
    dtype=st.sampled_from([types.f32, types.f64]),
)  # fmt: skip
@settings(max_examples=12)
def test_every_sum_lands_in_its_place(target, keys, queries, depth, dtype):
    queries = min(queries, target.vector_bytes // dtype.n_bytes // 2)
    if queries < 2:
        return  # vectors of two lanes have no use for it
    kernel = scores(target, keys, queries, depth, dtype)
    k = (np.arange(keys * depth) * 7 % 19 - 9).astype(dtype.numpy).reshape(keys, depth)
    q = (np.arange(queries * depth) * 5 % 23 - 11).astype(dtype.numpy).reshape(queries, depth)
    out = np.zeros((keys, queries), dtype.numpy)
    Native(kernel, target)(k, q, out)
    np.testing.assert_array_equal(out, k @ q.T)


def squashed(rows, columns, depth):
    """``Y = 1 / (1 + exp(-X @ W))`` with few columns and a constant ``W``: an epilogue dearer than a sum."""
    x, w, t, y = (
        Buffer(n, types.f32, s)
        for n, s in (("X", (rows, depth)), ("W", (depth, columns)), ("t", (rows, columns)), ("Y", (rows, columns)))
    )
    axes, along = axes_for(y.shape), axes_for((depth,), "d")
    (i, j), (d,) = syms(axes), syms(along)
    one = Const(1.0, types.f32)
    product = Stage((t,), axes, (i, j), (x[i, d] * w[d, j],), Reduction(along, "add", (Const(0.0, types.f32),)))
    quotient = Binary("div", one, Unary("exp", Unary("neg", t[i, j])) + one)
    return Computation((x, w), (y,), (product, Stage((y,), axes, (i, j), (quotient,))), (t,))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(rows=st.integers(3, 40), columns=st.integers(2, 5), depth=st.integers(16, 100))
@settings(max_examples=10)
def test_lanes_of_an_epilogue_are_several_rows_of_few_columns(target, rows, columns, depth):
    made = squashed(rows, columns, depth)
    kernel = schedule(made, target, made.inputs[1:])
    rng = np.random.default_rng(rows)
    arrays_in = {
        "X": rng.standard_normal((rows, depth), np.float32),
        "W": rng.standard_normal((depth, columns), np.float32),
    }
    arrays = arrays_in | {p.param.name: packed_array(p, arrays_in[p.source.name]) for p in kernel.packed}
    out = np.zeros((rows, columns), np.float32)
    Native(kernel, target)(*(arrays.get(b.name, out) for b in kernel.params))
    want = 1 / (1 + np.exp(-(arrays_in["X"].astype("d") @ arrays_in["W"])))
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_an_epilogue_of_few_columns_fills_vectors(columns):
    """The lanes of 24 rows: one exponential for each vector of whole rows, not for each row or result."""
    made = squashed(24, columns, 96)
    loops = schedule(made, WIDE, made.inputs[1:]).body[-1].loops
    lanes = [x.extent for x in loops if x.kind is Kind.VECTOR]
    assert lanes[-1] == columns and WIDE.vector_bytes // 4 // columns in [x.sym.hi + 1 for x in loops[-2:]]


def test_sixteen_sums_take_one_operation_less_than_there_are():
    """One by one they take four additions of vectors or parts of them each; the tail of rows makes no code."""
    text = codegen.assembly(scores(WIDE, 64, 8, 128), WIDE)
    assert len(re.findall(r"vaddps\s.*%[xyz]mm", text)) <= 16
