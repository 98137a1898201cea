"""Values that depend on how places compare: in lanes of 32 bits, and by plain stores where masks are dear."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native
from tilewright.choose.default import schedule
from tilewright.codegen.cpu import llvm as codegen
from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Computation, Const, Index, Load, Select, Stage, axes_for, syms
from tilewright.target.target import Target

TARGETS = [HOST, Target.parse("x86-64-v4"), Target.parse("x86-64-v3"), Target.parse("x86-64")]
COMPARE = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


def doubled_where(op: str, rows: int, columns: int, times: int, shift: int) -> Computation:
    """``out[i, j] = x[i, j]``, and then twice that where ``times*i + shift`` compares with ``j``."""
    x, out = Buffer("X", types.f32, (rows, columns)), Buffer("OUT", types.f32, (rows, columns))

    def stage(value) -> Stage:
        axes = axes_for(out.shape)
        return Stage((out,), axes, syms(axes), (value(*syms(axes)),))

    def changed(i, j):
        old = Load(out, (i, j))
        return Select(Binary(op, Index(times * i + shift), Index(j)), old * Const(2, types.f32), old)

    return Computation((x,), (out,), (stage(lambda i, j: Load(x, (i, j))), stage(changed)))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(
    op=st.sampled_from(sorted(COMPARE)), rows=st.integers(1, 9), columns=st.integers(2, 40),
    times=st.integers(-3, 3), shift=st.sampled_from([-(1 << 40), -40, -5, 0, 3, 17, 1 << 33]),
)  # fmt: skip
@settings(max_examples=12)
def test_places_compare_as_numbers(target, op, rows, columns, times, shift):
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    out = np.zeros_like(x)
    Native(schedule(doubled_where(op, rows, columns, times, shift), target), target)(x, out)
    i, j = np.indices(x.shape)
    np.testing.assert_array_equal(out, np.where(COMPARE[op](times * i + shift, j), 2 * x, x))


def test_where_masks_are_dear_lanes_are_narrow_and_stores_are_plain():
    """A masked store takes an AVX2 core of AMD's as long as a dozen plain ones."""
    target = Target.parse("x86-64-v3")
    text = codegen.assembly(schedule(doubled_where("lt", 64, 64, 1, 0), target), target)
    assert "vpcmpgtd" in text
    assert "vpcmpgtq" not in text
    assert "vmaskmov" not in text
