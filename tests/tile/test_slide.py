"""Rows that slide: loops over rows as one, each so far behind that what it reads is there, in few rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import F
from tile.test_schedule import build, refuses, same
from tilewright.core.compute import Buffer, Computation, Serial, Stage, axes_for, syms
from tilewright.core.expr import Sym, maximum, minimum
from tilewright.tile.ir import If, walk
from tilewright.tile.lower import lower
from tilewright.tile.reach import check_reach
from tilewright.tile.schedule.tree import find_loop

FEW = settings(max_examples=25)
WIDTH = 3


def sums(read, i, j, offsets, last=None):
    """A stencil along rows, in which a place beyond the ends is the nearest one if ``last`` says where they are."""
    first, *others = (i + o if last is None else maximum(0, minimum(last, i + o)) for o in offsets)
    total = read[first, j] + read[i if last is not None else first, (j + 1) % WIDTH]
    for at in others:
        total = total + read[at, j]
    return total


def chain(n, *stencils, repeats_edges=False):
    """``t0 = 2 x``, and stage after stage of rows that each take from the one before and from ``t0``."""
    x, made = Buffer("x", F, (n, WIDTH)), Buffer("t0", F, (n, WIDTH))
    axes = axes_for((n, WIDTH))
    stages, rows = [Stage((made,), axes, syms(axes), (x[syms(axes)] + x[syms(axes)],))], n
    first = made
    for k, offsets in enumerate(stencils, 1):
        rows = rows if repeats_edges else rows - max(offsets)
        out, axes = Buffer(f"t{k}", F, (rows, WIDTH)), axes_for((rows, WIDTH))
        i, j = syms(axes)
        value = sums(made, i, j, offsets, n - 1) if repeats_edges else sums(made, i, j, offsets) + first[i, j]
        stages.append(Stage((out,), axes, (i, j), (value,)))
        made = out
    temps = tuple(s.out for s in stages[:-1])
    return Computation((x,), (made,), tuple(stages), temps)


def outer_loops(kernel):
    return [s.loop.sym.name for s in kernel.body]


def rows_of(kernel):
    return {p.buffer.name: p.buffer.shape[0] for p in kernel.places}


def slid(computation, *before, sizes=None):
    """All outermost loops as one."""
    loops = outer_loops(build(computation, *before))
    return same(computation, *before, ("slide", *loops), sizes=sizes)


STENCILS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=3)


@given(STENCILS, st.integers(10, 14))
@FEW
def test_any_chain_of_stencils(stencils, n):
    kernel = slid(chain(n, *stencils))
    assert len(kernel.body) == 1
    shapes = rows_of(kernel)
    # What the last stage reads of the one before it, and rows of t0 until the last stage is there.
    if len(stencils) > 1:
        assert shapes[f"t{len(stencils) - 1}"] == max(stencils[-1]) - min(stencils[-1]) + 1
    assert shapes["t0"] == min(sum(max(s) for s in stencils) + 1, n)


@given(st.lists(st.lists(st.integers(-2, 2), min_size=1, max_size=3), min_size=1, max_size=3), st.integers(3, 9))
@FEW
def test_edges_that_repeat(stencils, n):
    slid(chain(n, *stencils, repeats_edges=True))


@given(STENCILS, st.integers(1, 5), st.sampled_from([10, 13, Sym("N")]), st.integers(10, 14))
@FEW
def test_strips_of_any_length(stencils, rows, n, size):
    in_strips(chain(n, *stencils), rows, len(stencils), {"N": size})


@given(st.lists(st.lists(st.integers(-2, 2), min_size=1, max_size=3), min_size=1, max_size=3), st.integers(1, 5))
@FEW
def test_strips_whose_edges_repeat(stencils, rows):
    in_strips(chain(9, *stencils, repeats_edges=True), rows, len(stencils), {})


def in_strips(computation, rows, n_stencils, sizes):
    """The last stage's rows in strips, for which the others make what is read, row by row."""
    last = outer_loops(build(computation))[-1]
    steps = [("split", last, rows), ("kind", f"{last}_o", "parallel")]
    steps += [("compute_at", f"t{k}", f"{last}_o", "local") for k in reversed(range(n_stencils))]
    strip = find_loop(build(computation, *steps), f"{last}_o", "slide")
    loops = [s.loop.sym.name for s in strip.body]
    same(computation, *steps, ("slide", *loops), sizes=sizes)


def test_a_row_takes_the_place_of_one_that_is_no_longer_read():
    kernel = slid(chain(9, [0, 2], [0, 1]))
    assert rows_of(kernel) == {"x": 9, "t0": 4, "t1": 2, "t2": 6}
    assert [s.cond.exprs[0].const for s in walk(kernel.body) if isinstance(s, If)] == [-2, -3]
    whole = chain(9, [0, 2])
    assert rows_of(slid(Computation(whole.inputs, (*whole.temps, *whole.outputs), whole.items)))["t0"] == 9


def test_rows_of_a_tensor_of_unknown_size_are_a_known_number():
    computation = chain(Sym("N"), [0, 2])
    kernel = slid(computation, sizes={"N": 5})
    assert rows_of(kernel)["t0"] == 3
    check_reach(lower(computation), kernel, ())


def test_what_other_nests_read_stays_whole():
    kernel = same(chain(9, [0, 2], [0, 1]), ("slide", "i0", "i0_1"))
    assert rows_of(kernel)["t0"] == 9  # the third stage reads it


def test_loops_that_do_not_fit():
    c = chain(9, [0, 2], [0, 1])
    refuses(c, ("slide", "i0"), rule="nothing to be behind")
    refuses(c, ("slide", "i0", "i0_2"), rule="do not follow each other")
    refuses(c, ("slide", "i0_1", "i0"), rule="do not follow each other")
    refuses(c, ("kind", "i0", "parallel"), ("slide", "i0", "i0_1"), rule="not serial")
    c = chain(Sym("N"), [0, 2])
    refuses(c, ("reorder", "i1", "i0"), ("slide", "i1", "i0_1"), rule="is not known")


def test_what_a_later_loop_changes_is_not_read_before():
    x, t = Buffer("x", F, (6,)), Buffer("t", F, (6,))
    (first,), (second,) = axes_for((5,)), axes_for((6,))
    i, j = first.sym, second.sym
    items = (Serial(first, (Stage((t,), (), (i,), (x[i + 1],)),)), Serial(second, (Stage((x,), (), (j,), (t[j],)),)))
    refuses(Computation((), (x, t), items), ("slide", "i0", "i0_1"), rule="touches x.*, which a later loop writes")


@pytest.mark.parametrize("space", ["local", "global"])
def test_threads_share_no_rows(space):
    steps = (("split", "i0_1", 3), ("kind", "i0_1_o", "parallel"), ("compute_at", "t0", "i0_1_o", space))
    kernel = same(chain(9, [0, 2]), *steps, ("slide", "t00_0", "i0_1_i"))
    assert rows_of(kernel)["t0"] == (3 if space == "local" else 9)
