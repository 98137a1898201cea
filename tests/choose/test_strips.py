"""Plain stages a strip of rows at a time: right for whatever each reads of the other, and taken where it pays."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tile.kernels import WIDE, check_default, outputs
from tilewright.choose.normalize import normalize
from tilewright.choose.strategies.strips import StripForm, _in_strips
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation, Const, Stage, axes_for
from tilewright.core.expr import maximum, minimum
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Space
from tilewright.tile.lower import lower
from tilewright.tile.schedule import ScheduleBuilder

F = types.f32


def clamped(e, n):
    return maximum(0, minimum(n - 1, e))


def pipeline(h, w, *offsets):
    """Stages over ``h`` by ``w``, each the sum of the one before at so many rows and columns away, edges repeated."""
    x = Buffer("x", F, (h, w))
    made, stages, temps = x, [], []
    for k, places in enumerate(offsets):
        out = Buffer(f"s{k}", F, (h, w))
        i, j = axes_for((h, w), f"a{k}_")
        value = Const(1, F)
        for dy, dx, step in places:
            value = value + made[clamped(i.sym // step + dy, h), clamped(j.sym // step + dx, w)]
        stages.append(Stage((out,), (i, j), (i.sym, j.sym), (value,)))
        temps.append(out)
        made = out
    return Computation((x,), (temps[-1],), tuple(stages), tuple(temps[:-1]))


PLACES = st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.sampled_from([1, 1, 2]))


@given(
    offsets=st.lists(st.lists(PLACES, min_size=1, max_size=3), min_size=2, max_size=4),
    form=st.builds(StripForm, st.sampled_from([2, 4, 8]), st.booleans()),
    h=st.integers(16, 21),
)
@settings(max_examples=40)
def test_strips_compute_what_whole_results_do(offsets, form, h):
    computation = pipeline(h, 19, *offsets)
    b = ScheduleBuilder(lower(computation))
    try:
        _in_strips(b, WIDE, [s.out.name for s in computation.items], form)
    except ScheduleError:
        assume(False)
    for got, want in zip(outputs(b.kernel, computation, {}), outputs(lower(computation), computation, {}), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_a_stencil_s_operand_is_made_in_strips_where_no_near_cache_holds_it():
    """And whole where one does: then it is near already."""
    places = [(dy, dx, 1) for dy in (-2, 0, 2) for dx in (-2, 0, 2)]
    chain = pipeline(256, 256, places, places)
    for l2_bytes, space in ((1 << 16, Space.LOCAL), (1 << 20, Space.GLOBAL)):
        kernel = check_default(chain, machine=replace(WIDE, l2_bytes=l2_bytes))
        (between,) = [p for p in kernel.places if p.buffer.name not in ("x", "s1")]
        assert between.space is space


def test_rows_slide_where_whole_strips_would_compute_many_of_them_twice():
    """Five stages of five rows each: a strip of 16 rows needs 32 of the first."""
    rows = [(dy, 0, 1) for dy in range(5)]
    chain = pipeline(400, 32, rows, rows, rows, rows, rows)
    kernel = check_default(chain, machine=replace(WIDE, l1_bytes=1 << 12, l2_bytes=1 << 14, n_cores=1))
    assert all(p.buffer.shape[0] <= 9 for p in kernel.places if p.space is Space.LOCAL)
    assert sum(p.space is Space.LOCAL for p in kernel.places) == 4


def test_what_windows_of_rows_read_keeps_its_rows():
    """A large result that is walked as one run otherwise; strips then hold some of its rows."""
    n = 256
    x, g = Buffer("x", F, (n, n)), Buffer("g", F, (n, n))
    a, b = axes_for((n, n), "a")
    stages, made = [Stage((g,), (a, b), (a.sym, b.sym), (x[a.sym, b.sym] + x[a.sym, b.sym],))], []
    for k in range(2):
        i, j = axes_for((n - 2, n - 2), f"b{k}_")
        made.append(Buffer(f"y{k}", F, (n - 2, n - 2)))
        stages.append(Stage((made[k],), (i, j), (i.sym, j.sym), (g[i.sym, j.sym + k] + g[i.sym + 2, j.sym + k],)))
    chain = Computation((x,), tuple(made), tuple(stages), (g,))
    for l2_bytes, n_dims in ((1 << 16, 2), (1 << 20, 1)):
        (between,) = normalize(chain, replace(WIDE, l2_bytes=l2_bytes)).temps
        assert len(between.shape) == n_dims
