"""Primitives keep the meaning of a kernel or refuse with a reason; random schedules of legal steps compute the same."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tile.kernels import WIDE, ZERO, F, constants_of, convolution, elementwise, matmul, outputs, reduction, softmax
from tilewright.core.compute import (
    Buffer,
    Computation,
    Const,
    Inside,
    Reduction,
    Select,
    Serial,
    Stage,
    Unary,
    axes_for,
    syms,
)
from tilewright.core.expr import Sym, mod
from tilewright.tile.errors import ScheduleError, ScheduleFileError, TileTextError
from tilewright.tile.ir import For, If, Kind, Store, walk
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule import Schedule, ScheduleBuilder, Step
from tilewright.tile.schedule.book import Line, ScheduleBook, apply_lines, read_step, schedule_text
from tilewright.tile.schedule.tree import find_loop
from tilewright.tile.text import kernel_text, parse_kernel
from tilewright.tile.verify import verify

CHOOSE = Path(__file__).parents[2] / "src" / "tilewright" / "choose"


def build(computation, *steps, constants=()):
    b = ScheduleBuilder(lower(computation, "k", constants_of(computation, *constants)))
    for primitive, *args in steps:
        b.do(primitive, *args)
    verify(b.kernel)
    return b.kernel


def same(computation, *steps, constants=(), sizes=None):
    kernel = build(computation, *steps, constants=constants)
    want = outputs(lower(computation), computation, sizes or {})
    for a, b in zip(want, outputs(kernel, computation, sizes or {}, reverse=True), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    return kernel


def names(kernel):
    return [x.sym.name for x in loops_of(kernel.body)]


def refuses(computation, *steps, rule, constants=()):
    with pytest.raises(ScheduleError, match=rule) as caught:
        build(computation, *steps, constants=constants)
    assert caught.value.primitive == steps[-1][0] and caught.value.remedy


# --- loops


@pytest.mark.parametrize("factor", [1, 3, 5, 8, 100])
def test_split_gives_a_ragged_last_tile(factor):
    kernel = same(elementwise((5, 11)), ("split", "i1", factor))
    assert names(kernel) == ["i0", "i1_o", "i1_i"]


def test_split_with_a_shifted_last_tile():
    same(elementwise((11,)), ("split", "i0", 4, "shift"))
    refuses(elementwise((3,)), ("split", "i0", 4, "shift"), rule="needs an extent >= 4")
    refuses(reduction((3, 9), 1, "add"), ("split", "i1", 4, "shift"), rule="accumulates")
    refuses(elementwise((3,)), ("split", "i0", 0), rule="not positive")
    refuses(elementwise((3,)), ("split", "nope", 2), rule="no loop of this name")


@pytest.mark.parametrize("n", [0, 3, 8, 13])
def test_divide_at_run_time(n):
    kernel = same(elementwise((2, Sym("N"))), ("divide", "i1", 4), sizes={"N": n})
    assert names(kernel) == ["i0", "i1_f", "i1_t"]


@pytest.mark.parametrize("at", [1, 3, 8])
def test_cut(at):
    kernel = same(elementwise((2, 9)), ("cut", "i1", at))
    assert names(kernel) == ["i0", "i1_a", "i1_b"]
    refuses(elementwise((2, 9)), ("cut", "i1", 9), rule="no place inside")
    refuses(elementwise((2, Sym("N"))), ("cut", "i1", 2), rule="no place inside")


def test_reorder_permutes_a_perfect_nest():
    assert names(same(matmul(3, 4, 5, False), ("reorder", "k0", "i1_1", "i0_1")))[2:] == ["k0", "i1_1", "i0_1"]
    refuses(matmul(3, 4, 5), ("reorder", "i0", "i0_1"), rule="perfect nest")
    refuses(elementwise((9, 2)), ("split", "i0", 4), ("reorder", "i0_i", "i0_o"), rule="needs a loop inside of it")


def test_reorder_refuses_what_another_iteration_wrote():
    h = Buffer("H", F, (4, 5))
    t, columns = axes_for((3,), "t")[0], axes_for((5,), "c")
    (j,) = syms(columns)
    begin = Stage((h,), columns, (0, j), (ZERO,))
    step = Stage((h,), columns, (t.sym + 1, j), (h[t.sym, (j + 1) % 5],))
    recurrence = Computation((), (h,), (begin, Serial(t, (step,))))
    refuses(recurrence, ("reorder", "c0_1", "t0"), rule="share elements")
    refuses(recurrence, ("kind", "t0", "parallel"), rule="share elements")


@given(rows=st.integers(2, 5), columns=st.integers(2, 40), block=st.integers(1, 20), shift=st.integers(0, 1))
def test_reorder_moves_what_tells_elements_apart_past_steps_of_a_running_sum(rows, columns, block, shift):
    """Columns of a running sum may go outside of its steps, whole or in blocks; with a shift between steps not."""
    h, x = Buffer("H", F, (rows + 1, columns)), Buffer("X", F, (rows, columns))
    t, axes = axes_for((rows,), "t")[0], axes_for((columns,), "c")
    (j,) = syms(axes)
    begin = Stage((h,), axes, (0, j), (ZERO,))
    step = Stage((h,), axes, (t.sym + 1, j), (h[t.sym, (j + 1) % columns if shift else j] + x[t.sym, j],))
    running = Computation((x,), (h,), (begin, Serial(t, (step,))))
    split = [("split", "c0_1", block)] if columns > block else []
    outermost = ("reorder", "c0_1_o" if split else "c0_1", "t0")
    if shift:
        refuses(running, *split, outermost, rule="share elements")
    else:
        same(running, *split, outermost)


def test_warp_loops_lie_in_thread_loops():
    refuses(elementwise((8,)), ("kind", "i0", "warp"), rule="a warp loop in no thread loop")


@pytest.mark.parametrize("kind", ["cluster", "grid"])
def test_kinds_that_no_back_end_has_are_refused(kind):
    refuses(elementwise((8,)), ("kind", "i0", kind), rule=f"there is no kind '{kind}'")
    text = kernel_text(lower(elementwise((8,))))
    assert "< 8 serial" in text
    with pytest.raises(TileTextError, match=kind):
        parse_kernel(text.replace("< 8 serial", f"< 8 {kind}"))


def test_kinds_check_what_they_need():
    refuses(reduction((3, 9), 1, "add"), ("kind", "i1", "parallel"), rule="would update one element")
    refuses(elementwise((Sym("N"),)), ("kind", "i0", "vector"), rule="known bound")
    refuses(elementwise((3, 4)), ("kind", "i0", "vector"), rule="holds only")


def test_fuse_unit_and_merge():
    same(elementwise((3, 4)), ("fuse", "i0", "i1"))
    same(elementwise((3, 4)), ("split", "i0", 3), ("unit", "i0_o"))
    refuses(elementwise((3, 4)), ("unit", "i0"), rule="extent is 3")
    refuses(elementwise((3, Sym("N"))), ("fuse", "i0", "i1"), rule="not a positive number")


@pytest.mark.parametrize("n", [11, Sym("N", 0)])
def test_fuse_makes_one_loop_of_the_halves_of_a_ragged_one(n):
    for sizes in ({"N": 0}, {"N": 3}, {"N": 11}):
        kernel = same(elementwise((5, n)), ("split", "i1", 4), ("fuse", "i1_o", "i1_i"), sizes=sizes)
        assert [x.extent for x in loops_of(kernel.body)] == [5, n]
    # The inner two are of one tile, which is itself shorter at the end.
    kernel = same(elementwise((5, 11)), ("split", "i1", 4), ("split", "i1_i", 3), ("fuse", "i1_i_o", "i1_i_i"))
    assert names(kernel) == ["i0", "i1_o", "i1_i_o_i1_i_i"]
    same(reduction((3, 9), 1, "add"), ("merge", "i0", "i0_1"))
    refuses(softmax(3, 4), ("merge", "r0", "r0_2"), rule="not neighbours")


def test_merge_puts_what_starts_a_sum_first():
    at_row = [("compute_at", name, "r0_5", "local") for name in ("s", "e", "m")]
    kernel = same(softmax(3, 4), *at_row, ("merge", "e1_0", "c0_2"))
    (row,) = kernel.body
    assert [type(s) for s in row.body] == [Store, For, Store, For, For]
    refuses(softmax(3, 4), *at_row, ("merge", "c0", "c0_2"), rule="before or behind")


# --- stages


def test_compute_at_remembers_splits():
    kernel = same(
        matmul(7, 10, 3),
        ("split", "i0_2", 3), ("split", "i1_2", 4), ("reorder", "i0_2_o", "i1_2_o", "i0_2_i", "i1_2_i"),
        ("compute_at", "T", "i1_2_o", "local"),
    )  # fmt: skip
    (t,) = [p.buffer for p in kernel.places if p.buffer.name == "T"]
    assert t.shape == (3, 4)
    assert {"i0_2_i_T0", "i1_2_i_T0", "i0_2_i_T1", "i1_2_i_T1"} <= set(names(kernel))


def test_compute_at_takes_the_hull_of_a_window():
    computation = convolution((1, 6, 6, 2), 3, (3, 3), 1, 1)
    from tilewright.choose.normalize import normalize

    normal = normalize(computation, WIDE)
    (pad,) = [b.name for b in normal.temps if "pad" in b.name]
    kernel = same(normal, ("compute_at", pad, "i1_1", "local"))
    (padded,) = [p.buffer for p in kernel.places if p.buffer.name == pad]
    assert padded.shape[0] == 3


def slid(n, repeats, *, far=0):
    """``y[o, i] = sum over k < 3 of t[i + k - 1 + far]``, 0 beyond ``t``, where ``t`` is twice the input."""
    x, t, y = Buffer("x", F, (n,)), Buffer("t", F, (n,)), Buffer("y", F, (repeats, n))
    (i,), (o, j), (k,) = axes_for((n,)), axes_for((repeats, n)), axes_for((3,), "k")
    at = j.sym + k.sym - 1 + far
    term = Select(Inside((at, n - 1 - at)), t[at], ZERO)
    first = Stage((t,), (i,), (i.sym,), (x[i.sym] * Const(2, F),))
    last = Stage((y,), (o, j), (o.sym, j.sym), (term,), Reduction((k,), "add", (ZERO,)))
    return Computation((x,), (y,), (first, last), (t,))


def test_compute_at_of_a_window_that_guards_keep_inside():
    kernel = same(slid(7, 2), ("compute_at", "t", "i0_2", "local"))
    (t,) = [p.buffer for p in kernel.places if p.buffer.name == "t"]
    assert t.shape == (7,), "each element once, none beyond the ends"
    refuses(slid(7, 2), ("compute_at", "t", "i1_1", "local"), rule="may reach beyond")
    refuses(slid(7, 2), ("split", "i1_1", 3), ("compute_at", "t", "i1_1_o", "local"), rule="may reach beyond")
    same(slid(7, 2, far=2), ("compute_at", "t", "i0_2", "local"))


def test_single_iterations_count_for_nothing_in_places():
    """Whichever comes first of two loops of one stride, one of which runs once."""
    for k in range(4):
        steps = [("split", f"i{k}", 4), ("split", f"i{k}_o", 1), ("reorder", f"i{k}_i", f"i{k}_o_o", f"i{k}_o_i")]
        same(elementwise((4, 8, 12, 16)), *steps)


def test_compute_at_refuses():
    refuses(softmax(3, 4), ("compute_at", "m", "c0_3", "reg"), rule="does not read it|read outside")
    refuses(matmul(3, 4, 5), ("compute_at", "C", "i0_2", "reg"), rule="role out")
    refuses(softmax(Sym("R"), Sym("C")), ("compute_at", "s", "r0_5"), ("compute_at", "e", "r0_5"), rule="no size known")


def test_cache_accumulate_and_fork():
    same(matmul(5, 6, 7, False), ("cache", "C"), ("compute_at", "C_c", "C_w0", "local"))
    same(matmul(5, 6, 7), ("split", "k0", 3), ("accumulate", "T", "k0_i"))
    same(matmul(5, 6, 7), ("divide", "i0_2", 2), ("fork", "T", "i0_2_t"), ("compute_at", "T_f", "i0_2_t", "local"))
    refuses(matmul(5, 6, 7), ("cache", "A"), rule="does not write it")
    refuses(matmul(5, 6, 7), ("accumulate", "T", "i0_1"), rule="change from iteration")
    outside = ("reorder", "i1", "i0_1")  # the reduced loop around one that walks the sums
    refuses(reduction((3, 4, 5), 1, "max"), outside, ("accumulate", "Y", "i1"), rule="no run-time index")


@pytest.mark.parametrize("n", [1, 3, 8, 37])
@pytest.mark.parametrize("op", ["add", "max", "mul"])
def test_rfactor(n, op):
    steps = (("cache", "Y"), ("compute_at", "Y_c", "Y_w0", "reg"), ("rfactor", "Y_c", "i1", 4, 4))
    same(reduction((3, n), 1, op), *steps)
    same(reduction((3, Sym("N")), 1, op), *steps, sizes={"N": n})


@pytest.mark.parametrize("width", [2, 5, 9])
def test_rfactor_around_an_outer_loop(width):
    """Of a convolution's sum: partial results last through all rows of the window."""
    conv = convolution((1, 4, 10, 3), 2, (2, width))
    same(conv, ("compute_at", "T", "j3", "reg"), ("rfactor", "T", "k2", 2, 4, "k0"))
    refuses(conv, ("compute_at", "T", "j3", "reg"), ("rfactor", "T", "k2", 2, 4, "j3"), rule="holds more")


TILED = (
    ("cache", "C"),
    ("split", "C_w0", 2),
    ("kind", "C_w0_i", "unroll"),
    ("kind", "C_w1", "unroll"),
    ("compute_at", "C_c", "C_w0_o", "reg"),
)


@pytest.mark.parametrize("depth", [1, 8, 9, 31])
def test_spread_gives_every_element_of_a_tile_a_vector_of_partial_results(depth):
    kernel = same(matmul(5, 3, depth, epilogue=False), *TILED, ("spread", "C_c", "C_w0_i_C_c1", "k0", 8))
    assert [p.buffer.shape for p in kernel.places if p.buffer.name == "C_c_p"] == [(2, 3, 8)]


def test_spread_refuses():
    plain = matmul(5, 3, 9, epilogue=False)
    refuses(plain, *TILED, ("spread", "C_c", "C_w0_i_C_c1", "C_w1_C_c1", 8), rule="no loop of the reduction")
    refuses(plain, *TILED, ("spread", "C_c", "C_w0_o", "k0", 8), rule="more than one update")
    rolled = tuple(s for s in TILED if s != ("kind", "C_w1", "unroll"))
    refuses(plain, *rolled, ("spread", "C_c", "C_w0_i_C_c1", "k0", 8), rule="unroll the loops")


def rows_twice(r=11, c=6):
    """A row value per row, and what is made of it: ``t[i] = sum_j x[i, j]``; ``y[i, j] = t[i] * x[i, j]``."""
    x, y, t = Buffer("X", F, (r, c)), Buffer("Y", F, (r, c)), Buffer("t", F, (r, c))
    (i, j), axes = syms(axes_for((r, c))), axes_for((r, c))
    stages = (Stage((t,), axes, (i, j), (x[i, j] * x[i, j],)), Stage((y,), axes, (i, j), (t[i, j] + x[i, j],)))
    return Computation((x,), (y,), stages, (t,))


def three_rows(r=3, c=6, shift=0):
    """``s[i, j] = x[i, j]**2; t[i, j] = s[i, j + shift] + 1; y[i, j] = t[i, j] * x[i, j]``."""
    x, y, s, t = (Buffer(n, F, (r, c)) for n in ("X", "Y", "s", "t"))
    (i, j), axes = syms(axes_for((r, c))), axes_for((r, c))
    made = (x[i, j] * x[i, j], s[i, mod(j + shift, c)] + Const(1.0, F), t[i, j] * x[i, j])
    stages = [Stage((b,), axes, (i, j), (v,)) for b, v in zip((s, t, y), made, strict=True)]
    return Computation((x,), (y,), tuple(stages), (s, t))


def test_a_temporary_in_another_ones_memory():
    kernel = same(three_rows(), ("reuse", "t", "s"))
    assert "t" not in [p.buffer.name for p in kernel.places]
    refuses(three_rows(), ("reuse", "s", "t"), rule="at one time")
    refuses(three_rows(), ("reuse", "t", "X"), rule="two temporaries")
    refuses(three_rows(), ("place", "t", "local"), ("reuse", "t", "s"), rule="two temporaries")
    refuses(three_rows(shift=1), ("reuse", "t", "s"), rule="from others")
    refuses(three_rows(), ("compute_at", "s", "i0_1"), ("reuse", "t", "s"), rule="two temporaries")
    refuses(rows_twice(), ("reuse", "t", "t"), rule="two temporaries")
    two_readers = three_rows()
    y = two_readers.items[2]
    read = two_readers.temps[0][y.index]
    late = replace(two_readers, items=(*two_readers.items[:2], replace(y, exprs=(y.expr + read,))))
    refuses(late, ("reuse", "t", "s"), rule="at one time")


def test_rows_that_begin_on_vectors():
    kernel = same(rows_twice(), ("align", "t", 4))
    assert [p.buffer.shape for p in kernel.places if p.buffer.name == "t"] == [(11, 8)]
    refuses(rows_twice(), ("align", "Y", 4), rule="a temporary")
    refuses(rows_twice(c=Sym("N", 1)), ("align", "t", 4), rule="run time")


def test_an_input_is_read_from_a_copy():
    steps = (("fetch", "X"), ("split", "i0_1", 4), ("compute_at", "t", "i0_1_o"))
    assert [p.buffer.shape for p in same(rows_twice(), *steps).places if p.buffer.name == "X_f"] == [(11, 6)]
    kernel = same(rows_twice(), *steps, ("compute_at", "X_f", "i0_1_o"))
    assert [p.buffer.shape for p in kernel.places if p.buffer.name == "X_f"] == [(4, 6)]
    refuses(rows_twice(), ("fetch", "t"), rule="no input")
    refuses(rows_twice(), ("fetch", "X"), ("fetch", "X"), ("fetch", "X_f"), rule="no input")


def test_rows_and_columns_change_places():
    kernel = same(rows_twice(), ("turn", "t", 0))
    assert [p.buffer.shape for p in kernel.places if p.buffer.name == "t"] == [(6, 11)]
    refuses(rows_twice(), ("turn", "t", 1), rule="no temporary")
    refuses(rows_twice(), ("turn", "Y", 0), rule="no temporary")


def test_panels_lie_in_one_run():
    blocks = [("split", name, n) for name, n in (("i0", 4), ("i0_1", 4), ("i1", 2), ("i1_1", 2))]
    kernel = same(rows_twice(), *blocks, ("panels", "t", 0, 4, 2))
    assert [p.buffer.shape for p in kernel.places if p.buffer.name == "t"] == [(3, 3, 4, 2)]
    refuses(rows_twice(), ("panels", "t", 0, 11, 4), rule="by loops of its own")
    refuses(rows_twice(), ("panels", "t", 1, 2, 2), rule="no panels")
    refuses(rows_twice(), ("panels", "Y", 0, 2, 2), rule="only a temporary")


def test_fold_uses_the_place_of_one_iteration_again():
    steps = [("split", "i0_1", 4), ("compute_at", "t", "i0_1_o", "global")]
    kernel = same(rows_twice(), *steps, ("fold", "t", 0, "i0_1_o"))
    assert [p.buffer.shape for p in kernel.places if p.buffer.name == "t"] == [(4, 6)]
    refuses(rows_twice(), *steps, ("fold", "t", 0, "i0_1_o"), ("kind", "i0_1_o", "parallel"), rule="at one time")
    refuses(rows_twice(), *steps, ("kind", "i0_1_o", "parallel"), ("fold", "t", 0, "i0_1_o"), rule="serial loop")
    refuses(rows_twice(), *steps, ("fold", "t", 1, "i0_1_o"), rule="not decided by this loop")
    refuses(rows_twice(), ("fold", "t", 0, "i0_1"), rule="outside of the loop")
    for dim in (-1, 2):
        refuses(rows_twice(), *steps, ("fold", "t", dim, "i0_1_o"), rule="has 2 dimensions")


def test_alternate_walks_odd_steps_backwards():
    kernel = same(elementwise((5, 7)), ("alternate", "i1", "i0"))
    assert "i0 % 2" in str(kernel.body)
    refuses(elementwise((5, 7)), ("alternate", "i0", "i1"), rule="does not enclose")
    x, out = Buffer("X", F, (4, 6)), Buffer("Y", F, (6,))
    (t, i) = axes_for((4, 6))
    last = Serial(t, (Stage((out,), (i,), (i.sym,), (x[t.sym, i.sym],)),))
    same(Computation((x,), (out,), (last,)), ("alternate", "i1", "i0"))


def masked_rows(n=12, slope=-1):
    """``m[i] = max_j s[i, j]``; ``l[i] = sum_j exp(s[i, j] - m[i])``, where s is x up to the diagonal, and -inf."""
    x, s, out = Buffer("X", F, (n, n)), Buffer("s", F, (n, n)), Buffer("Y", F, (n,))
    m = Buffer("m", F, (n,))
    (i, j), axes = syms(axes_for((n, n))), axes_for((n, n))
    low = Const(float("-inf"), F)
    stages = (
        Stage((s,), axes, (i, j), (Select(Inside((i + slope * j,)), x[i, j], low),)),
        Stage((m,), axes[:1], (i,), (s[i, j],), Reduction(axes[1:], "max", (low,))),
        Stage((out,), axes[:1], (i,), (Unary("exp", s[i, j] - m[i]),), Reduction(axes[1:], "add", (ZERO,))),
    )
    return Computation((x,), (out,), stages, (s, m))


def test_trim_leaves_out_what_a_guard_hides():
    steps = [("split", "i0_4", 4), ("trim", "i1_2", "i0_4_o")]
    kernel = same(masked_rows(), *steps)
    extents = {x.sym.name: x.extent for x in loops_of(kernel.body)}
    assert str(extents["i1_2"]) == "4*i0_4_o + 4"
    refuses(masked_rows(slope=1), *steps, rule="does not fall")
    refuses(reduction((3, 9), 1, "add"), ("trim", "i1", "i0_1"), rule="known to change nothing")
    refuses(masked_rows(), ("trim", "i0_4", "i1_2"), rule="inside of both loops")


def padded_taps(pad=4, channels=5):
    """``T[i, c] = sum_k,r p[i + 4 k, r] w[k, r, c]`` where p is x of 6 rows with ``pad`` rows of zeros around it."""
    x, w, out = Buffer("X", F, (6, channels)), Buffer("W", F, (3, channels, 3)), Buffer("T", F, (2 * pad - 2, 3))
    p = Buffer("p", F, (6 + 2 * pad, channels))
    (i, r), axes = syms(axes_for(p.shape)), axes_for(p.shape)
    (row, c), own = syms(axes_for(out.shape)), axes_for(out.shape)
    (k, of), reduced = syms(axes_for((3, channels), "k")), axes_for((3, channels), "k")
    stages = (
        Stage((p,), axes, (i, r), (Select(Inside((i - pad, pad + 5 - i)), x[i - pad, r], ZERO),)),
        Stage((out,), own, (row, c), (p[row + 4 * k, of] * w[k, of, c],), Reduction(reduced, "add", (ZERO,))),
    )
    return Computation((x, w), (out,), stages, (p,))


def test_skip_leaves_out_loops_that_read_padding_alone():
    kernel = same(padded_taps(), ("skip", "k1"))
    (guard,) = [s for s in walk(kernel.body) if isinstance(s, If)]
    assert {str(e) for e in guard.cond.exprs} == {"i0_2 + 4*k0 - 4", "-i0_2 - 4*k0 + 9"}
    tiled = same(padded_taps(), ("split", "i0_2", 2), ("reorder", "i0_2_o", "k0", "k1", "i0_2_i"), ("skip", "k1"))
    (guard,) = [s for s in walk(tiled.body) if isinstance(s, If)]
    assert {str(e) for e in guard.cond.exprs} == {"2*i0_2_o + 4*k0 - 3", "-2*i0_2_o - 4*k0 + 9"}, "the best row counts"
    refuses(padded_taps(), ("skip", "i0_2"), rule="nothing in any of its runs")
    refuses(reduction((3, 9), 1, "add"), ("skip", "i1"), rule="nothing in any of its runs")


def test_rfactor_refuses():
    refuses(reduction((3, 9), 1, "add"), ("rfactor", "Y", "i0_1", 4, 4), rule="no update|depends")
    refuses(reduction((3, 9), 1, "add"), ("rfactor", "Y", "i1", 3, 4), rule="power of two")


# --- operands


def test_pack_follows_the_walk():
    kernel = same(
        matmul(3, 10, 4), ("split", "i1_1", 4), ("reorder", "i1_1_o", "i0_1", "k0", "i1_1_i"), ("pack", "B"),
        constants=["B"],
    )  # fmt: skip
    (packed,) = kernel.packed
    assert packed.param.shape == (3, 4, 4)
    assert [b.name for b in kernel.params] == ["A", "B_p", "bias", "C", "T"]
    refuses(matmul(3, 4, 5), ("pack", "B"), rule="not a constant")
    refuses(matmul(3, 4, 0), ("pack", "B"), rule="it is empty", constants=("B",))


@pytest.mark.parametrize("order", ["walk", "source"])
def test_stage_copies_an_operand(order):
    same(
        matmul(5, 6, 7),
        ("split", "k0", 3),
        ("reorder", "k0_o", "i0_1", "i1_1", "k0_i"),
        ("stage", "B", "k0_o", "local", order),
    )
    refuses(matmul(5, 6, 7), ("stage", "T", "i0_2"), rule="keeps its content")


# --- schedules as data


def test_a_schedule_is_data():
    text = "split(i0_2, 2)\nkind(i0_2_o, parallel)"
    s = Schedule(tuple(read_step(x) for x in text.split("\n")))
    assert str(s) == text
    assert Kind.PARALLEL in {x.kind for x in loops_of(s.apply(lower(matmul(4, 4, 4))).body)}
    with pytest.raises(ScheduleError, match="wrong arguments"):
        Schedule((Step("split", ()),)).apply(lower(matmul(4, 4, 4)))


@pytest.mark.parametrize(
    "wrong", ["", "split", "nope(i0)", "split(i0)", "split(4, i0)", "split(i0, 4, min, 3)", "reorder()"]
)
def test_what_is_no_step_is_refused(wrong):
    with pytest.raises(ScheduleError):
        read_step(wrong)


def test_a_file_of_schedules_gives_the_same_text_back_and_lists_every_broken_line():
    text = "schedule k_1  // a label\n  split(i0, 4)\n  kind(i0_i, vector)\n"
    book = ScheduleBook.parse(text)
    assert not book.problems and book.heads == {"k_1": 1}
    assert schedule_text("k_1", Schedule(tuple(x.step for x in book.lines["k_1"])), "a label") == text
    broken = ScheduleBook.parse("split(i0, 4)\nschedule a\n  splice(i0)\nschedule b\nschedule b\n  split(i0)\nwhat\n")
    assert [p.loc.line for p in broken.problems] == [1, 3, 5, 6, 7]
    assert all(p.rule for p in broken.problems) and not broken.lines


def test_a_file_cannot_make_a_kernel_of_too_much_scratch_or_minutes():
    start = lower(elementwise((1 << 20,)))
    lines = [Line(k, read_step(x)) for k, x in enumerate(["split(i0, 100000)", "kind(i0_i, unroll)"], 1)]
    with pytest.raises(ScheduleFileError, match="unrolled copies"):
        apply_lines(start, lines)
    with pytest.raises(ScheduleFileError, match="scratch"):
        apply_lines(start, [Line(1, read_step("cache(Z)")), Line(2, read_step("place(Z_c, local)"))])
    with pytest.raises(ScheduleFileError, match="2049"):
        apply_lines(start, [Line(k, read_step("divide(i0, 1)")) for k in range(1, 2051)])


STEPS = st.one_of(
    st.tuples(st.just("split"), st.integers(0, 30), st.integers(1, 5)),
    st.tuples(st.just("kind"), st.integers(0, 30), st.sampled_from(["unroll", "vector", "parallel", "step"])),
    st.tuples(st.just("reorder"), st.integers(0, 30), st.integers(0, 30)),
    st.tuples(st.just("compute_at"), st.sampled_from(["T", "X_pad1", "m", "s", "e"]), st.integers(0, 30)),
    st.tuples(st.just("divide"), st.integers(0, 30), st.integers(1, 4)),
    st.tuples(st.just("cut"), st.integers(0, 30), st.integers(1, 4)),
    st.tuples(st.just("merge"), st.integers(0, 30), st.integers(0, 30)),
    st.tuples(st.just("accumulate"), st.sampled_from(["T", "C", "Y"]), st.integers(0, 30)),
    st.tuples(st.just("stage"), st.sampled_from(["A", "B", "X"]), st.integers(0, 30)),
)
KERNELS = st.sampled_from(
    [matmul(5, 7, 3), softmax(3, 7), reduction((3, 4, 5), 1, "max"), convolution((1, 4, 5, 2), 3, (2, 2))]
)


@example(matmul(5, 7, 3), [("kind", 1, "vector"), ("reorder", 1, 0)])
@example(matmul(5, 7, 3), [("kind", 0, "unroll"), ("reorder", 1, 0), ("kind", 0, "vector"), ("kind", 1, "serial")])
@given(computation=KERNELS, steps=st.lists(STEPS, max_size=10))
@settings(max_examples=60)
def test_random_legal_schedules_keep_the_meaning(computation, steps):
    b = ScheduleBuilder(lower(computation, "k"))
    for primitive, *args in steps:
        known = names(b.kernel)
        chosen = [
            known[a % len(known)] if isinstance(a, int) and n_is_loop(primitive, k) else a for k, a in enumerate(args)
        ]
        mark = b.mark()
        try:
            b.do(primitive, *chosen)
        except ScheduleError:
            b.back(mark)
    verify(b.kernel)
    want = outputs(lower(computation), computation, {})
    for a, c in zip(want, outputs(b.kernel, computation, {}, reverse=True), strict=True):
        np.testing.assert_allclose(c, a, rtol=1e-4, atol=1e-5)


def n_is_loop(primitive, position):
    """Is this argument of the step a loop?"""
    return (
        position == 0
        if primitive in ("split", "kind", "divide", "cut")
        else primitive in ("reorder", "merge") or position == 1
    )


# --- what steps made


def test_steps_hand_back_what_they_made():
    """So that no rule has to know how a primitive spells the names of its loops and buffers."""
    b = ScheduleBuilder(lower(matmul(5, 6, 7)))
    outer, inner = b.split("k0", 3)
    assert [x.kind for x in loops_of(b.kernel.body) if x.sym.name in (outer, inner)] == [Kind.SERIAL] * 2
    assert b.do("kind", inner, "unroll").loops == ()
    full, rest = b.do("divide", outer, 2).loops[:2]
    assert [find_loop(b.kernel, x, "divide").loop.extent for x in (full, rest)] == [2, 1]
    cached = b.do("cache", "T").buffer
    assert cached in [p.buffer.name for p in b.kernel.places] and b.do("split", "i1", 2).loops != ()


def test_a_name_that_is_taken_does_not_change_what_is_handed_back():
    x, y = Buffer("i0_o", F, (8,)), Buffer("Y", F, (8,))
    axes = axes_for(x.shape)
    b = ScheduleBuilder(lower(Computation((x,), (y,), (Stage((y,), axes, syms(axes), (x[syms(axes)],)),))))
    (loop,) = names(b.kernel)
    assert list(b.split(loop, 4)) == names(b.kernel) and x.name not in names(b.kernel)


def test_no_rule_spells_the_name_of_a_loop():
    """A name that a rule makes is that of a buffer which it makes itself."""
    spelled = re.compile(r'f"\{[^}]*\}_[a-z0-9]+')
    found = [
        f"{path.name}: {m[0]}" for path in sorted(CHOOSE.rglob("*.py")) for m in spelled.finditer(path.read_text())
    ]
    assert len(found) <= 3 and all("buffer.name" in x for x in found), found
