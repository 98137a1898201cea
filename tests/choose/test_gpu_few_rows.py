"""Products of few rows: one launch in which warps share out the terms, right by every lane, for any sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptx.threads import Threads
from tile.kernels import arrays_of
from tilewright.choose.gpu import schedule_for_gpu
from tilewright.choose.strategies.gpu.few_rows import with_few_rows
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Computation,
    Const,
    Inside,
    Load,
    Reduction,
    Select,
    Stage,
    Unary,
    Value,
    loop_symbol,
)
from tilewright.core.types import DType, bf16, f16, f32, i8
from tilewright.runtime.values import aligned_buffer
from tilewright.target.gpu import Gpu
from tilewright.tile.emulate import emulated
from tilewright.tile.flatten import flatten
from tilewright.tile.interp import run
from tilewright.tile.ir import Space
from tilewright.tile.lower import lower
from tilewright.tile.simt import simulate

HOPPER = Gpu.parse("cuda-sm90a")


def wide(x: Load | Cast) -> Value:
    return x if x.dtype is f32 else Cast(x, f32)


def product(
    rows: int, columns: int, terms: int, dtype: DType, *, by_terms: bool = False, turned: bool = False,
    weights: DType | None = None,
) -> Computation:  # fmt: skip
    """The product of a matrix, whose terms lie side by side or its columns do, with a bias and what is made of it.

    The rows of the left factor lie side by side, or are ``turned``; ``weights`` of another dtype are converted.
    """
    m, n, k = (Axis(loop_symbol(name, e), e) for name, e in (("m", rows), ("n", columns), ("k", terms)))
    x = Buffer("x", dtype, (terms, rows) if turned else (rows, terms))
    bias = Buffer("bias", dtype, (columns,))
    w = Buffer("w", weights or dtype, (columns, terms) if by_terms else (terms, columns))
    t, y = Buffer("t", f32, (rows, columns)), Buffer("y", dtype, (rows, columns))
    at = (n.sym, k.sym) if by_terms else (k.sym, n.sym)
    factors = (
        wide(Load(x, (k.sym, m.sym) if turned else (m.sym, k.sym))),
        wide(Load(w, at) if weights is None else Cast(Load(w, at), dtype)),
    )
    index = (m.sym, n.sym)
    zero = Reduction((k,), "add", (Const(0.0, f32),))
    total = Unary("neg", Binary("add", Load(t, index), wide(Load(bias, (n.sym,)))))
    value = total if dtype is f32 else Cast(total, dtype)
    items = (
        Stage((t,), (m, n), index, (Binary("mul", *factors),), zero),
        Stage((y,), (m, n), index, (value,)),
    )
    return Computation((x, w, bias), (y,), items, (t,))


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got.astype(float), want.astype(float), atol=0.1, rtol=0.02)


def test_an_image_s_border_and_the_rest_of_a_tile_are_one_guard() -> None:
    """So that both come by asynchronous copies, which fill in zeros."""
    m, n, k = (Axis(loop_symbol(name, e), e) for name, e in (("m", 5), ("n", 40), ("k", 100)))
    x, w, y = Buffer("x", f16, (5, 90)), Buffer("w", f16, (100, 40)), Buffer("y", f32, (5, 40))
    within = Select(Inside((k.sym - 5, 94 - k.sym)), Load(x, (m.sym, k.sym - 5)), Const(0.0, f16))
    value = Binary("mul", Cast(within, f32), Cast(Load(w, (k.sym, n.sym)), f32))
    stage = Stage((y,), (m, n), (m.sym, n.sym), (value,), Reduction((k,), "add", (Const(0.0, f32),)))
    made, (found,) = with_few_rows(Computation((x, w), (y,), (stage,), ()), HOPPER, (), lambda name: False)
    (left,) = (s.expr for s in made.items if isinstance(s, Stage) and s.out.name == found.left)
    assert isinstance(left, Select) and isinstance(left.a, Load)


SIZES = (st.integers(1, 16), st.integers(8, 40), st.integers(16, 140))


@settings(max_examples=6)
@given(
    st.integers(1, 16),
    st.integers(8, 40),
    st.integers(16, 140),
    st.sampled_from((f16, bf16, f32)),
    *[st.booleans()] * 2,
)
def test_one_launch_for_any_size(
    rows: int, columns: int, terms: int, dtype: DType, by_terms: bool, turned: bool
) -> None:
    computation = product(rows, columns, terms, dtype, by_terms=by_terms, turned=turned)
    made = schedule_for_gpu(computation, HOPPER)
    assert [t.taken for t in made.tried] == ["few_rows"] and len(made.kernel.body) == 1, made.kernel.notes
    arrays = arrays_of(computation, {})
    want = run(lower(computation), arrays)["y"]
    close(run(emulated(flatten(made.kernel)), arrays, reverse=True)["y"], want)


@pytest.mark.parametrize("dtype", [bf16, f32])
@pytest.mark.parametrize("by_terms", [False, True])
def test_no_lane_reads_what_another_one_writes_at_that_time(by_terms: bool, dtype: DType) -> None:
    computation = product(3, 16, 128, dtype, by_terms=by_terms)
    arrays = arrays_of(computation, {})
    seen = simulate(flatten(schedule_for_gpu(computation, HOPPER).kernel), HOPPER, arrays)
    assert seen.faults == ()
    close(seen.arrays["y"], run(lower(computation), arrays)["y"])


@pytest.mark.parametrize("by_terms", [False, True])
def test_the_code_of_lanes_is_right(by_terms: bool) -> None:
    computation = product(3, 16, 72, f16, by_terms=by_terms)  # this CPU has no instruction for bf16
    given_arrays = {}
    arrays = arrays_of(computation, {})
    for b, a in arrays.items():
        memory, start = aligned_buffer(max(a.nbytes, 1))
        given_arrays[b] = memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
        given_arrays[b][...] = a
    threads = Threads(flatten(schedule_for_gpu(computation, HOPPER).kernel))
    threads(given_arrays)
    close(given_arrays["y"], run(lower(computation), arrays)["y"])
    assert "m16n8k16.row.col.f32.f32" in set(threads.warps.calls)


def test_a_matrix_of_more_rows_is_another_strategy_s() -> None:
    made = schedule_for_gpu(product(17, 64, 64, bf16), HOPPER)
    assert "few_rows" not in [t.taken for t in made.tried]


def test_blocks_are_many_and_their_warps_share_the_terms() -> None:
    (tile,) = {s.loop.extent for s in schedule_for_gpu(product(16, 4096, 4096, bf16), HOPPER).kernel.body}
    assert tile >= HOPPER.n_sms


def test_weights_of_bytes_are_widened_on_the_way() -> None:
    computation = product(3, 40, 64, bf16, by_terms=True, weights=i8)
    made = schedule_for_gpu(computation, HOPPER)
    assert [t.taken for t in made.tried] == ["few_rows"]
    assert {p.buffer.dtype for p in made.kernel.places if p.space is Space.SHARED} == {bf16, f32}
    arrays = arrays_of(computation, {})
    close(run(emulated(flatten(made.kernel)), arrays, reverse=True)["y"], run(lower(computation), arrays)["y"])
