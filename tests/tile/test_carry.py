"""Results that each step of a loop reads of the one before: in registers, and what code is made of them."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tile.kernels import F, axis, outputs, running_sum
from tilewright import ops
from tilewright.core.compute import Binary, Buffer, Computation, Serial, Stage, axes_for
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32, f64, i32
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Space
from tilewright.tile.lower import lower
from tilewright.tile.schedule import ScheduleBuilder


def carried(computation, *steps):
    b = ScheduleBuilder(lower(computation, "k"))
    for step in steps:
        b.do(*step)
    return b.kernel


KINDS = ("vector", "unroll", "parallel", "step")
IN_LANES = (("kind", "i0", "vector"), ("carry", "Y", "t0"))


@pytest.mark.parametrize("n", [1, 2, 7])
def test_steps_find_the_last_ones_results_in_registers(n):
    plain = running_sum(n, 5)
    kernel = carried(plain, *IN_LANES)
    (want,), (got,) = (outputs(k, plain, {}, reverse=True) for k in (lower(plain), kernel))
    np.testing.assert_array_equal(got, want)
    assert [p.buffer.shape for p in kernel.places if p.space is Space.REG] == [(5,)]


def test_a_run_time_number_of_steps_may_be_none():
    plain = running_sum(Sym("n", 0), 5)
    kernel = carried(plain, *IN_LANES)
    for n in (0, 1, 6):
        (want,), (got,) = (outputs(k, plain, {"n": n}, reverse=True) for k in (lower(plain), kernel))
        np.testing.assert_array_equal(got, want)


def in_place():
    """Every step adds to the same elements."""
    y, t, (j,) = Buffer("Y", F, (5,)), axis("t", 4), axes_for((5,))
    stage = Stage((y,), (j,), (j.sym,), (y[j.sym] + y[j.sym],))
    return Computation((), (y,), (Serial(t, (stage,)),))


def diagonal():
    """A step stores where the next one reads another lane."""
    y, t, (j,) = Buffer("Y", F, (9,)), axis("t", 4), axes_for((5,))
    stage = Stage((y,), (j,), (t.sym + j.sym,), (Binary("add", y[t.sym + j.sym - 1], y[t.sym + j.sym - 1]),))
    return Computation((), (y,), (Serial(t, (stage,)),))


@pytest.mark.parametrize(
    ("computation", "steps", "rule"),
    [
        (running_sum(6, 5, back=2), IN_LANES, "simply read"),
        (running_sum(Sym("n", 0), 5, is_guarded=False), IN_LANES, "without an iteration"),
        (running_sum(6, 5), IN_LANES[1:], "no run-time index"),
        (running_sum(6, 5), (("carry", "Y", "i0"),), "simply read"),
        (running_sum(6, 5), (("carry", "X", "t0"),), "no serial loop that stores"),
        (in_place(), IN_LANES, "two iterations store"),
        (diagonal(), (("kind", "i0", "unroll"), ("carry", "Y", "t0")), "two iterations store"),
    ],
)
def test_what_else_is_read_is_refused(computation, steps, rule):
    with pytest.raises(ScheduleError, match=rule):
        carried(computation, *steps)


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("split"), st.sampled_from(["i0", "t0", "i0_i", "i0_o", "t0_i"]), st.integers(1, 4)),
            st.tuples(st.just("kind"), st.sampled_from(["i0", "i0_i", "i0_o", "t0"]), st.sampled_from(KINDS)),
            st.tuples(st.just("reorder"), st.sampled_from(["i0", "i0_o"]), st.sampled_from(["t0", "t0_o"])),
            st.tuples(st.just("carry"), st.just("Y"), st.sampled_from(["t0", "t0_i", "t0_o", "i0"])),
        ),
        max_size=8,
    )
)
def test_what_is_not_refused_means_the_same(steps):
    plain = running_sum(6, 5)
    b = ScheduleBuilder(lower(plain, "k"))
    for step in [*steps, ("carry", "Y", "t0")]:
        with contextlib.suppress(ScheduleError):
            b.do(*step)
    (want,), (got,) = (outputs(k, plain, {}, reverse=True) for k in (lower(plain), b.kernel))
    np.testing.assert_array_equal(got, want)


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 40, 300]), min_size=2, max_size=3), st.sampled_from([f32, f64, i32]),
    st.sampled_from([ops.cumsum, ops.cumprod, ops.cummax]), st.booleans(), st.booleans(), st.data(),
)  # fmt: skip
def test_running_results_are_the_references(shape, dtype, op, exclusive, reverse, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(dtype, tuple(shape)))
    graph = Graph("g", b.pool, (x,), (b(op, x, axis=axis, exclusive=exclusive, reverse=reverse),), ("y",))
    array = np.random.default_rng(1).choice([-1, 1], shape).astype(dtype.numpy)
    (want,) = evaluate_graph(graph, [array])
    np.testing.assert_array_equal(tilewright.compile(graph, cache=False)(array), want)
