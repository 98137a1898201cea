"""Rings of rows: a producer at its consumer's loop, each row once, wherever a window slides."""

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import SMALL, WIDE, ZERO, F, check_default, relu
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
from tilewright.tile.ir import Kind, Space
from tilewright.tile.rewrite import loops_of

FEW = settings(max_examples=20)


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


def expanded(n, h, w, depth, channels, k=3, stride=1, pad=1, epilogue=True):
    """A product over pixels, its bias and maximum with 0, and a window over the result, channel by channel."""
    oh, ow = ((size + 2 * pad - k) // stride + 1 for size in (h, w))
    x, a, bias = Buffer("X", F, (n, h, w, depth)), Buffer("A", F, (depth, channels)), Buffer("bias", F, (channels,))
    taps, t, u = (
        Buffer("W", F, (k, k, channels)),
        Buffer("t", F, (n, h, w, channels)),
        Buffer("u", F, (n, h, w, channels)),
    )
    v, y = Buffer("v", F, (n, oh, ow, channels)), Buffer("Y", F, (n, oh, ow, channels))
    first, inner, last, window = (
        axes_for(t.shape),
        axes_for((depth,), "d"),
        axes_for(y.shape, "j"),
        axes_for((k, k), "k"),
    )
    (b, i, j, c), (d,), (p, o, q, e), (r, s) = syms(first), syms(inner), syms(last), syms(window)
    at = (o * stride + r - pad, q * stride + s - pad)
    inside = Inside((at[0], h - 1 - at[0], at[1], w - 1 - at[1]))
    term = Select(inside, u[p, *at, e], ZERO) if pad else u[p, *at, e]
    out = v if epilogue else y
    stages = [
        Stage((t,), first, (b, i, j, c), (x[b, i, j, d] * a[d, c],), Reduction(inner, "add", (ZERO,))),
        Stage((u,), first, (b, i, j, c), (relu(t[b, i, j, c] + bias[c]),)),
        Stage((out,), last, (p, o, q, e), (term * taps[r, s, e],), Reduction(window, "add", (ZERO,))),
    ]
    if epilogue:
        stages.append(Stage((y,), last, (p, o, q, e), (relu(v[p, o, q, e] + bias[e]),)))
    return Computation((x, a, bias, taps), (y,), tuple(stages), (t, u, *((v,) if epilogue else ())))


def tight(computation, n_cores=1, base=SMALL):
    """A machine whose second-level cache is half of what lies between; threads always pay."""
    (u,) = [b for b in computation.temps if b.name == "u"]
    return replace(base, l2_bytes=prod(u.shape) * 2, n_cores=n_cores, ghz=1e-6)


@given(
    n=st.integers(1, 2), w=st.integers(3, 9), depth=st.integers(1, 3), channels=st.integers(1, 9),
    k=st.sampled_from([2, 3]), stride=st.integers(1, 3), pad=st.integers(0, 1), epilogue=st.booleans(),
    n_cores=st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=7)
def test_the_rule_is_right(n, w, depth, channels, k, stride, pad, epilogue, n_cores):
    computation = expanded(n, 25, w, depth, channels, k, stride, pad, epilogue)
    check_default(computation, "A", "W", "bias", machine=tight(computation, n_cores))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("n_cores", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("base", [SMALL, WIDE])
def test_what_lies_between_is_a_few_rows(base, stride, n_cores):
    computation = expanded(1, 30, 6, 3, 8, stride=stride)
    kernel = check_default(computation, "A", "W", "bias", machine=tight(computation, n_cores, base))
    assert local(kernel, "u") == (3, 6, 8) and not kernel.notes
    assert sum(x.kind is Kind.PARALLEL for x in loops_of(kernel.body)) == n_cores - 1


def test_channels_in_blocks_where_rows_are_long():
    computation = expanded(1, 10, 6, 3, 16)
    kernel = check_default(computation, "A", "W", "bias", machine=tight(computation))
    assert local(kernel, "u") == (3, 6, 4)


def test_what_the_cache_holds_is_no_ring():
    computation = expanded(1, 30, 6, 3, 8)
    kernel = check_default(computation, "A", "W", "bias")
    assert any("stays in the second-level cache" in note for note in kernel.notes)


def test_batches_begin_anew():
    computation = expanded(3, 20, 4, 2, 4)
    assert local(check_default(computation, "A", machine=tight(computation, 2)), "u") == (3, 4, 4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("n_cores", [1, 2])
def test_images_of_a_run_time_number_share_their_rows(n_cores):
    computation = expanded(Sym("N"), 30, 6, 3, 8)
    machine = tight(expanded(1, 30, 6, 3, 8), n_cores)
    for n in (1, 3):
        kernel = check_default(computation, "A", "W", "bias", machine=machine, sizes={"N": n})
    assert local(kernel, "u") == (3, 6, 8) and not kernel.notes
    assert sum(x.kind is Kind.PARALLEL for x in loops_of(kernel.body)) == n_cores - 1
