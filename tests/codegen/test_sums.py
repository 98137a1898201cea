"""The lanes of a tile's partial sums, folded together: exactly, for any number of them, in fewer instructions."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native
from tilewright.choose.strategies.narrow import narrow
from tilewright.codegen.cpu import llvm as codegen
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation, Const, Reduction, Stage, axes_for, syms
from tilewright.target.target import Target
from tilewright.tile.lower import lower
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


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(
    keys=st.integers(8, 40), queries=st.integers(2, 8), depth=st.integers(16, 70),
    dtype=st.sampled_from([types.f32, types.f64]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
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


def test_sixteen_sums_take_one_operation_less_than_there_are():
    """One by one they take four additions of vectors or parts of them each; the tail of rows makes no code."""
    text = codegen.assembly(scores(WIDE, 64, 8, 128), WIDE)
    assert len(re.findall(r"vaddps\s.*%[xyz]mm", text)) <= 16
