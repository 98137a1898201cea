"""Attention of one query: one launch that is right in every form of the kernel and races nowhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tile.kernels import arrays_of
from tilewright.choose.gpu import schedule_for_gpu
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Computation,
    Const,
    Load,
    Reduction,
    Stage,
    Unary,
    loop_symbol,
)
from tilewright.core.types import DType, bf16, f16, f32
from tilewright.target.gpu import Gpu
from tilewright.tile.flatten import flatten
from tilewright.tile.interp import run
from tilewright.tile.lower import lower
from tilewright.tile.simt import simulate

GPU = Gpu.parse("cuda-sm90a")


def attention(heads: int, keys: int, depth: int, columns: int, dtype: DType, rows: int = 0) -> Computation:
    """Of one query for each head; or of so many ``rows``, which share the keys."""
    around = [Axis(loop_symbol("h", heads), heads), *([Axis(loop_symbol("i", rows), rows)] if rows else [])]
    j, k, d = (Axis(loop_symbol(name, n), n) for name, n in (("j", keys), ("k", depth), ("d", columns)))
    at = tuple(a.sym for a in around)
    extents = tuple(a.extent for a in around)
    q = Buffer("q", dtype, (*extents, depth))
    x, v = Buffer("x", dtype, (heads, keys, depth)), Buffer("v", dtype, (heads, keys, columns))
    s, e = (Buffer(name, f32, (*extents, keys)) for name in "se")
    top, total = (Buffer(name, f32, extents) for name in ("top", "total"))
    w, o = Buffer("w", dtype, (*extents, keys)), Buffer("o", f32, (*extents, columns))
    y = Buffer("y", dtype, (*extents, columns))

    def wide(b: Buffer, *index) -> Cast:
        return Cast(Load(b, index), f32)

    def stage(out: Buffer, axes, value, *reduced) -> Stage:
        red = Reduction((reduced[0],), reduced[1], (Const(reduced[2], f32),)) if reduced else None
        return Stage((out,), tuple(axes), tuple(a.sym for a in axes), (value,), red)

    below = Binary("sub", Load(s, (*at, j.sym)), Load(top, at))
    items = (
        stage(s, (*around, j), Binary("mul", wide(q, *at, k.sym), wide(x, at[0], j.sym, k.sym)), k, "add", 0.0),
        stage(top, around, Load(s, (*at, j.sym)), j, "max", float("-inf")),
        stage(e, (*around, j), Unary("exp2", below)),
        stage(total, around, Load(e, (*at, j.sym)), j, "add", 0.0),
        stage(w, (*around, j), Cast(Binary("div", Load(e, (*at, j.sym)), Load(total, at)), dtype)),
        stage(o, (*around, d), Binary("mul", wide(w, *at, j.sym), wide(v, at[0], j.sym, d.sym)), j, "add", 0.0),
        stage(y, (*around, d), Cast(Load(o, (*at, d.sym)), dtype)),
    )
    return Computation((q, x, v), (y,), items, (s, top, e, total, w, o))


SIZES = (st.integers(1, 3), st.integers(2, 70) | st.just(128), st.sampled_from((3, 8, 20)), st.sampled_from((4, 8, 10)))


@settings(max_examples=6)
@given(*SIZES, st.sampled_from((f16, bf16)))
def test_one_grid_says_what_the_stages_say(heads: int, keys: int, depth: int, columns: int, dtype: DType) -> None:
    computation = attention(heads, keys, depth, columns, dtype)
    made = schedule_for_gpu(computation, GPU)
    assert [t.taken for t in made.tried] == ["single_rows"] and len(made.kernel.body) == 1
    arrays = arrays_of(computation, {})
    want = run(lower(computation), arrays)["y"].astype(float)
    np.testing.assert_allclose(run(made.kernel, arrays)["y"].astype(float), want, atol=0.05, rtol=0.05)


def test_no_thread_reads_what_another_one_writes_at_that_time() -> None:
    computation = attention(1, 9, 4, 4, bf16)
    arrays = arrays_of(computation, {})
    seen = simulate(flatten(schedule_for_gpu(computation, GPU).kernel), GPU, arrays)
    assert seen.faults == ()
    want = run(lower(computation), arrays)["y"].astype(float)
    np.testing.assert_allclose(seen.arrays["y"].astype(float), want, atol=0.05, rtol=0.05)


def test_keys_of_whole_steps_are_taken_too() -> None:
    """Their loops are those of the threads that read them, in another order."""
    made = schedule_for_gpu(attention(256, 1024, 64, 64, bf16), GPU)
    assert [t.taken for t in made.tried] == ["single_rows"]


def test_rows_that_share_keys_are_no_single_rows() -> None:
    made = schedule_for_gpu(attention(2, 40, 8, 8, bf16, rows=3), GPU)
    assert "single_rows" not in [t.taken for t in made.tried]


def test_more_keys_than_shared_memory_holds_are_scheduled_otherwise() -> None:
    made = schedule_for_gpu(attention(256, 40_000, 8, 8, bf16), GPU)
    assert "single_rows" not in [t.taken for t in made.tried]
    assert any("bytes of shared memory" in note for note in made.kernel.notes)


def notes_of_one_row(computation: Computation, n_launches: int) -> tuple[str, ...]:
    """What was refused on the way to averages of a row, right and in so many launches."""
    made = schedule_for_gpu(computation, GPU)
    assert [t.taken for t in made.tried].count("single_rows") == 1 and len(made.kernel.body) == n_launches
    arrays = arrays_of(computation, {})
    want, got = run(lower(computation), arrays), run(made.kernel, arrays)
    for out in computation.outputs:
        np.testing.assert_allclose(got[out.name].reshape(out.shape), want[out.name], atol=0.05, rtol=0.05)
    return made.kernel.notes


def test_a_factor_may_be_made_of_a_result_behind_the_sums() -> None:
    """It is made where its terms are there, in the row's own launch."""
    computation = attention(32, 40, 8, 8, f32)
    *before, y = computation.items
    assert isinstance(y, Stage)
    (h, d), term = y.axes, Axis(loop_symbol("e", 8), 8)
    z, total = Buffer("z", f32, y.out.shape), Buffer("of_z", f32, (h.extent,))
    items = (
        *before,
        Stage((z,), (h, d), y.index, (Unary("exp2", Load(computation.inputs[0], (h.sym, d.sym))),)),
        Stage((total,), (h,), (h.sym,), (Load(z, (h.sym, term.sym)),), Reduction((term,), "add", (Const(0.0, f32),))),
        replace(y, exprs=(Binary("mul", y.expr, Load(total, (h.sym,))),)),
    )
    outputs, temps = (z, *computation.outputs), (*computation.temps, total)
    notes_of_one_row(replace(computation, items=items, outputs=outputs, temps=temps), 2)


def test_weights_that_are_made_of_averages_are_one_row_with_them() -> None:
    """Scores are sums across memory of keys, too, by a query that was divided by a sum of its row."""
    n = 24
    computation = attention(32, n, n, 8, f32)
    scores, *after = computation.items
    assert isinstance(scores, Stage) and scores.reduction is not None
    (h, j), (k,) = scores.axes, scores.reduction.axes
    q, x, _ = computation.inputs
    total, divided = Buffer("of_q", f32, (h.extent,)), Buffer("divided", f32, q.shape)
    square = Binary("mul", Load(q, (h.sym, k.sym)), Load(q, (h.sym, k.sym)))
    query = Binary("div", Load(q, (h.sym, k.sym)), Load(total, (h.sym,)))
    items = (
        Stage((total,), (h,), (h.sym,), (square,), scores.reduction),
        Stage((divided,), (h, k), (h.sym, k.sym), (query,)),
        replace(scores, exprs=(Binary("mul", Load(divided, (h.sym, k.sym)), Load(x, (h.sym, k.sym, j.sym))),)),
        *after,
    )
    assert notes_of_one_row(replace(computation, items=items, temps=(*computation.temps, total, divided)), 1) == ()


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_attention_of_one_query_is_one_launch(dtype: torch.dtype, bound: float) -> None:
    q, k, v = (torch.randn(1, 2, n, 32, dtype=dtype) for n in (1, 300, 300))
    compiled = tw.compile(Attention(), (q, k, v), target="cuda-sm90a", emulate=True, cache=False)
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(compiled(q, k, v).double(), want, rtol=bound, atol=bound)
    (ptx,) = tw.compile(Attention(), (q, k, v), target="cuda-sm90a", cache=False).ptx.values()
    assert (ptx.count(".entry") == 1 and "ld.global.nc.v4.b32" in ptx) or dtype is torch.bfloat16


def test_one_long_row_is_for_all_multiprocessors() -> None:
    made = schedule_for_gpu(attention(1, 16_000, 128, 128, bf16), GPU)
    assert "single_rows" not in [t.taken for t in made.tried]
