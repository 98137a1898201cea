"""Rings of rows: a producer at its consumer's loop, each row once, wherever a window slides."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import F
from tile.test_schedule import build, refuses, same
from tilewright.core import types
from tilewright.core.compute import (
    Buffer,
    Computation,
    Const,
    Inside,
    Reduction,
    Select,
    Stage,
    axes_for,
    syms,
)
from tilewright.core.expr import Sym
from tilewright.tile.ir import Space

FEW = settings(max_examples=40, deadline=None)


def window(n, k=3, stride=1, dilation=1, pad=1, columns=2, op="add", dtype=F):
    """``y[o, c] = sum over i < k of t[stride*o + dilation*i - pad, c]``, 0 beyond ``t``, which is twice the input."""
    out = (n + 2 * pad - dilation * (k - 1) - 1) // stride + 1
    x, t, y = (Buffer(b, dtype, (rows, columns)) for b, rows in (("x", n), ("t", n), ("y", out)))
    first, last, (tap,) = axes_for((n, columns)), axes_for((out, columns)), axes_for((k,), "k")
    (i, c), (o, d) = syms(first), syms(last)
    at = o * stride + tap.sym * dilation - pad
    zero = Const(0, dtype)
    term = Select(Inside((at, n - 1 - at)), t[at, d], zero) if pad else t[at, d]
    stages = (
        Stage((t,), first, (i, c), (x[i, c] * Const(2, dtype),)),
        Stage((y,), last, (o, d), (term,), Reduction((tap,), op, (zero,))),
    )
    return Computation((x,), (y,), stages, (t,))


def local(kernel, name="t"):
    (place,) = [p for p in kernel.places if p.buffer.name == name]
    assert place.space is Space.LOCAL
    return place.buffer.shape


@given(
    n=st.integers(1, 9),
    k=st.integers(2, 5),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    pad=st.integers(0, 4),
)
@FEW
def test_any_window(n, k, stride, dilation, pad):
    span = dilation * (k - 1) + 1
    if n + 2 * pad < span:
        return
    computation = window(n, k, stride, dilation, pad)
    if stride >= span:
        refuses(computation, ("ring", "t", "i0_2"), rule="do not overlap")
    else:
        assert local(same(computation, ("ring", "t", "i0_2"))) == (span, 2)


@pytest.mark.parametrize("part", [1, 2, 3])
@pytest.mark.parametrize(("k", "stride", "pad"), [(3, 1, 1), (3, 2, 1), (5, 1, 2), (3, 1, 0), (3, 2, 2), (4, 3, 1)])
def test_parts_begin_with_windows_of_their_own(part, k, stride, pad):
    steps = (("split", "i0_2", part), ("kind", "i0_2_o", "parallel"), ("ring", "t", "i0_2_i"))
    kernel = build(window(8, k, stride, 1, pad), *steps)
    same(window(8, k, stride, 1, pad), *steps)
    assert local(kernel) == (k, 2)


@pytest.mark.parametrize("rows", [2, 3])
def test_several_rows_at_once(rows):
    """The window of two rows of the result is one row longer, and moves by two."""
    kernel = same(window(9), ("split", "i0_2", rows), ("ring", "t", "i0_2_o"))
    assert local(kernel) == (2 + rows, 2)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_rows_known_at_run_time_only(n):
    kernel = same(window(Sym("N")), ("ring", "t", "i0_2"), sizes={"N": n})
    assert local(kernel) == (3, 2)


@pytest.mark.parametrize("dtype", [types.f64, types.i32, types.i8, types.f16])
def test_other_dtypes(dtype):
    same(window(6, dtype=dtype), ("ring", "t", "i0_2"))


def test_blocks_of_columns_outside():
    kernel = same(
        window(6, columns=5), ("split", "i1_2", 2), ("reorder", "i1_2_o", "i0_2", "i1_2_i"), ("ring", "t", "i0_2")
    )
    assert local(kernel) == (3, 2)


def test_what_is_no_ring():
    refuses(window(6), ("kind", "i0_2", "parallel"), ("ring", "t", "i0_2"), rule="over a serial loop")
    refuses(window(6), ("ring", "x", "i0_2"), rule="only a temporary")
    refuses(window(6), ("ring", "t", "i1_2"), rule="do not overlap")
    refuses(window(6), ("ring", "t", "k0"), rule="do not overlap")
