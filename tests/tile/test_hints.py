"""Hints at what an epilogue reads besides its sums: while reductions go on, at operands that no near cache holds."""

from dataclasses import replace
from math import ceil, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import WIDE, ZERO, F, check_default, constants_of
from tile.test_schedule import refuses, same
from tilewright.choose.default import schedule
from tilewright.core.compute import Buffer, Computation, Inside, Reduction, Select, Stage, axes_for, syms
from tilewright.core.dims import known_over
from tilewright.core.expr import Sym, evaluate, substitute, symbols
from tilewright.target.target import Target
from tilewright.tile.ir import For, Kind, Prefetch, Store, Update, walk
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import loads_of, loops_of
from tilewright.tile.schedule.operands import MANY


def product_with(rest, m, n, k):
    """``A @ B + rest(R)``, R as large as the result."""
    a, b, r, c = Buffer("A", F, (m, k)), Buffer("B", F, (k, n)), Buffer("R", F, (m, n)), Buffer("C", F, (m, n))
    t = Buffer("T", F, (m, n))
    (i, j), (x,) = syms(axes_for((m, n))), syms(axes_for((k,), "k"))
    product = Reduction(axes_for((k,), "k"), "add", (ZERO,))
    stages = (
        Stage((t,), axes_for((m, n)), (i, j), (a[i, x] * b[x, j],), product),
        Stage((c,), axes_for((m, n)), (i, j), (t[i, j] + rest(r, i, j),)),
    )
    return Computation((a, b, r), (c,), stages, (t,))


def hinted(computation):
    kernel = check_default(computation, "B", machine=replace(WIDE, l1_bytes=1024, l2_bytes=1 << 30))
    return kernel, [s.buffer.name for s in walk(kernel.body) if isinstance(s, Prefetch)]


@pytest.mark.parametrize(("m", "n"), [(12, 32), (10, 35), (1, 300)])
def test_a_residual_is_asked_for_while_sums_are_made(m, n):
    kernel, names = hinted(product_with(lambda r, i, j: r[i, j], m, n, 64))
    assert set(names) == {"R"}
    steps = [s for s in walk(kernel.body) if isinstance(s, For) and any(isinstance(x, Prefetch) for x in s.body)]
    assert steps and all(any(isinstance(x, Update) for x in walk(s.body)) for s in steps)


@pytest.mark.parametrize(
    ("rest", "m", "n", "k"),
    [
        (lambda r, i, j: r[i, j], 12, 32, 12), (lambda r, i, j: r[i, j], 3, 32, 64),
        (lambda r, i, j: r[i, 0], 12, 32, 64), (lambda r, i, j: r[j, i], 32, 32, 64),
    ],
    ids=["a short reduction", "a small operand", "one element a row", "lanes apart"],
)  # fmt: skip
def test_elsewhere_there_are_none(rest, m, n, k):
    assert "R" not in hinted(product_with(rest, m, n, k))[1]


def test_what_is_asked_for_outside_of_a_loop_does_not_move_into_it() -> None:
    """The hint would name a buffer that is no more."""
    a, t, out = (Buffer(name, F, (8, 8)) for name in ("a", "t", "out"))
    i, j = syms(axes_for((8, 8)))
    stages = (
        Stage((t,), axes_for((8, 8)), (i, j), (a[i, j] + ZERO,)),
        Stage((out,), axes_for((8, 8)), (i, j), (t[i, j] + ZERO,)),
    )
    computation = Computation((a,), (out,), stages, (t,))
    outer, inner = (x.sym.name for x in loops_of((lower(computation).body[1],)))
    steps = ("stream", "t", outer, 1, 4), ("compute_at", "t", inner)
    refuses(computation, *steps, rule="a hint outside of the loop asks for it")


def lines_hinted(n_rows, steps, line, n_columns=24):
    """Of the first tile, ``n_rows`` rows and 8 columns: what its steps ask for of the residual, as (row, column)."""
    kernel = same(
        product_with(lambda r, i, j: r[i, j], 2 * n_rows, n_columns, steps), ("reorder", "k0", "i0_1", "i1_1"),
        ("split", "i0_2", n_rows), ("split", "i1_2", 8), ("reorder", "i1_2_o", "i0_2_o", "i0_2_i", "i1_2_i"),
        ("split", "i1_2_i", 4), ("compute_at", "T", "i0_2_o", "local"), ("hint", "R", "k0", line),
    )  # fmt: skip
    (inner,) = [s for s in walk(kernel.body) if isinstance(s, For) and any(isinstance(x, Prefetch) for x in s.body)]
    hints = [x for x in inner.body if isinstance(x, Prefetch)]
    outer = {x.sym: 0 for x in loops_of(kernel.body) if x.sym.name in ("i0_2_o", "i1_2_o")}
    assert inner.loop.sym.name == "k0"
    return [tuple(substitute(i, {**outer, inner.loop.sym: k}) for i in x.index) for k in range(steps) for x in hints]


@given(n_rows=st.integers(1, 5), more=st.integers(0, 30), line=st.sampled_from([1, 2, 4, 8, 16]))
@settings(max_examples=6)
def test_many_steps_ask_for_every_line_again_and_again(n_rows, more, line):
    lines = [(i, j) for i in range(n_rows) for j in range(0, 8, line)]
    steps = MANY * len(lines) + more
    assert lines_hinted(n_rows, steps, line) == [lines[k % len(lines)] for k in range(steps)]


@given(n_rows=st.integers(1, 5), share=st.floats(0, 0.999), line=st.sampled_from([1, 2, 4, 8, 16]))
@settings(max_examples=6)
def test_few_steps_run_on_into_the_next_tile(n_rows, share, line):
    lines = [(i, j) for i in range(2 * n_rows) for j in range(0, 8, line)]
    n_own = len(lines) // 2
    found = lines_hinted(n_rows, n_own + int(share * (MANY - 1) * n_own), line)
    assert found[: len(lines)] == lines


def test_rows_without_a_gap_are_one_run():
    assert lines_hinted(3, 7, 16, n_columns=8)[:4] == [(0, 0), (2, 0), (3, 0), (5, 0)]


def test_rows_that_end_within_a_vector_are_one_run():
    """Vectors of 8 reach beyond rows of 20: lines go on from row to row, and none is asked for twice."""
    kernel = same(
        product_with(lambda r, i, j: r[i, 0], 6, 8, 20), ("reorder", "k0", "i0_1", "i1_1"), ("split", "i0_2", 3),
        ("compute_at", "T", "i0_2_o", "local"), ("split", "k0", 8), ("hint", "A", "k0_o", 4),
    )  # fmt: skip
    (inner,) = [s for s in walk(kernel.body) if isinstance(s, For) and any(isinstance(x, Prefetch) for x in s.body)]
    tile = next(x.sym for x in loops_of(kernel.body) if x.sym.name == "i0_2_o")
    hints = [x for x in inner.body if isinstance(x, Prefetch)]
    found = [tuple(substitute(i, {tile: 0, inner.loop.sym: k}) for i in x.index) for k in range(3) for x in hints]
    places = sorted({20 * (row - 3) + column for row, column in found})
    assert places == list(range(0, 64, 4)) and len(found) <= len(places) + len(hints)


def test_of_what_the_sums_read_the_next_tile_is_asked_for():
    kernel = same(
        product_with(lambda r, i, j: r[i, j], 6, 8, 16), ("reorder", "k0", "i0_1", "i1_1"), ("split", "i0_2", 3),
        ("compute_at", "T", "i0_2_o", "local"), ("hint", "A", "k0", 4),
    )  # fmt: skip
    (inner,) = [s for s in walk(kernel.body) if isinstance(s, For) and any(isinstance(x, Prefetch) for x in s.body)]
    (hint,) = [x for x in inner.body if isinstance(x, Prefetch)]
    tile = next(x.sym for x in loops_of(kernel.body) if x.sym.name == "i0_2_o")
    found = [tuple(substitute(i, {tile: 0, inner.loop.sym: k}) for i in hint.index) for k in range(16)]
    lines = [(i, k) for i in range(3, 6) for k in range(0, 16, 4)]
    assert found == [*lines, *lines[:4]]


@pytest.mark.parametrize(("m", "asked"), [(1, False), (4, True), (16, True)])
def test_many_keys_are_asked_for_while_few_queries_meet_those_before(m, asked):
    """A key that one query meets streams by itself; those that several meet are waited for, tile by tile."""
    machine = replace(WIDE, l1_bytes=1 << 15, llc_bytes=1 << 17, l2_bytes=1 << 14, n_cores=1)
    queries, keys, out = Buffer("Q", F, (2, m, 128)), Buffer("K", F, (2, 100, 128)), Buffer("C", F, (2, m, 100))
    (b, i, j), (x,) = syms(axes_for((2, m, 100))), syms(axes_for((128,), "k"))
    product = Reduction(axes_for((128,), "k"), "add", (ZERO,))
    stage = Stage((out,), axes_for((2, m, 100)), (b, i, j), (queries[b, i, x] * keys[b, j, x],), product)
    kernel = check_default(Computation((queries, keys), (out,), (stage,)), machine=machine)
    hints = [s for s in walk(kernel.body) if isinstance(s, Prefetch) and s.buffer.name == "K"]
    assert bool(hints) == asked


@pytest.mark.parametrize(("m", "llc", "asked"), [(70, 1 << 15, True), (70, 1 << 25, False), (12, 1 << 10, False)])
def test_rows_of_several_tiles_that_come_from_memory_are_asked_for(m, llc, asked):
    computation = product_with(lambda r, i, j: r[i, 0], m, 32, 64)
    kernel = check_default(computation, "B", machine=replace(WIDE, llc_bytes=llc, n_cores=1))
    assert ("A" in {s.buffer.name for s in walk(kernel.body) if isinstance(s, Prefetch)}) == asked


@pytest.mark.parametrize(("n", "l2", "asked"), [(96, 1 << 16, False), (96, 1 << 20, True)])
def test_a_reduction_in_parts_asks_for_no_rows(n, l2, asked):
    """Its sums go on in memory, and every panel reads the rows again: a hint cost a quarter of such a product."""
    computation = product_with(lambda r, i, j: r[i, 0], 70, n, 256)
    machine = replace(WIDE, l2_bytes=l2, llc_bytes=1 << 15, n_cores=1)
    kernel = schedule(computation, machine, constants_of(computation, "B"))
    assert ("A" in {s.buffer.name for s in walk(kernel.body) if isinstance(s, Prefetch)}) == asked


@pytest.mark.parametrize(
    ("numbers", "asked"),
    [
        ({"l2_bytes": 8192, "page_bytes": 256}, True),
        ({"l2_bytes": 1 << 20, "page_bytes": 256}, False),
        ({"l2_bytes": 8192, "page_bytes": 4096}, False),
        ({"l2_bytes": 8192, "page_bytes": 256, "llc_ns": 1e4}, False),
        ({"l2_bytes": 8192, "page_bytes": 256, "llc_bytes": 8192, "memory_ns": 1e4}, False),
    ],
    ids=["beyond a near cache", "in it", "in one page", "no step is early enough", "none is for memory"],
)
def test_rows_in_other_pages_are_asked_for_steps_ahead(numbers, asked):
    """``A`` is constant, as the weights of a convolution of planes."""
    computation = product_with(lambda r, i, j: r[i, 0], 12, 96, 64)
    machine = replace(WIDE, n_cores=1, **{"llc_bytes": 1 << 20, "llc_ns": 4.0, **numbers})
    kernel = check_default(computation, "A", machine=machine)
    hints = [s.index for s in walk(kernel.body) if isinstance(s, Prefetch) and s.buffer.name == "B"]
    assert bool(hints) == asked
    read = {x.index[0] for s in walk(kernel.body) if isinstance(s, Update) for x in loads_of(s) if x.buffer.name == "B"}
    assert all(any(known_over(row - now, 0) for now in read) for row, _ in hints)


@pytest.mark.parametrize(("llc_ns", "asked"), [(300.0, True), (3000.0, False)])
def test_a_reduction_in_parts_asks_for_rows_of_its_next_part(llc_ns, asked):
    """43 steps are fewer than a line takes to come, but what lies behind them is the next part's."""
    computation = product_with(lambda r, i, j: r[i, 0], 40, 96, 512)
    caches = {"l1_bytes": 1 << 14, "l2_bytes": 1 << 15, "llc_bytes": 1 << 20, "page_bytes": 256}
    machine = replace(WIDE, n_cores=1, llc_ns=llc_ns, **caches)
    kernel = schedule(computation, machine, constants_of(computation, "A"))
    assert 43 in [loop.sym.hi + 1 for loop in loops_of(kernel.body) if loop.sym.name.startswith("k0")]
    assert asked == any(isinstance(s, Prefetch) and s.buffer.name == "B" for s in walk(kernel.body))


def test_a_constant_that_the_innermost_loop_does_not_move_is_asked_for_by_one_that_does():
    """Planes of few columns have a loop of one iteration inside of the taps'."""
    x, w, y = Buffer("X", F, (40, 50)), Buffer("W", F, (40, 31)), Buffer("Y", F, (40, 50))
    axes, taps = axes_for(y.shape), axes_for((31,), "k")
    (c, i), (k,) = syms(axes), syms(taps)
    term = Select(Inside((i + k - 15, 64 - i - k)), x[c, i + k - 15], ZERO) * w[c, k]
    planes = Computation((x, w), (y,), (Stage((y,), axes, (c, i), (term,), Reduction(taps, "add", (ZERO,))),))
    kernel = check_default(planes, "W", machine=replace(Target.parse("haswell"), l2_bytes=1 << 13, n_cores=1))
    assert any(isinstance(s, Prefetch) and s.buffer.name.startswith("W") for s in walk(kernel.body))


@pytest.mark.parametrize("apart", [1, 2, 4, 3])
def test_of_elements_apart_each_line_is_asked_for_once(apart):
    """Where a line holds a whole number of them."""
    x, y = Buffer("X", F, (4096 * apart,)), Buffer("Y", F, (4096,))
    axes = axes_for(y.shape)
    (i,) = syms(axes)
    copy = Computation((x,), (y,), (Stage((y,), axes, (i,), (x[i * apart],)),))
    kernel = check_default(copy, machine=replace(WIDE, n_cores=1, l1_bytes=1024, l2_bytes=2048, llc_ns=4.0))
    inner = next(s for s in walk(kernel.body) if any(isinstance(x, Prefetch) for x in getattr(s, "body", ())))
    asked = [s.index[0] for s in inner.body if isinstance(s, Prefetch) and s.buffer.name == "X"]
    step = substitute(asked[0], {inner.loop.sym: 1}) - substitute(asked[0], {inner.loop.sym: 0})
    assert len(asked) == step // (WIDE.line(F) if WIDE.line(F) % apart == 0 else apart)


def test_hints_need_one_nest_behind_and_steps_enough():
    tiled = (("reorder", "k0", "i0_1", "i1_1"), ("split", "i0_2", 2), ("compute_at", "T", "i0_2_o", "local"))
    product = product_with(lambda r, i, j: r[i, j], 4, 8, 12)
    refuses(product, *tiled, ("hint", "B", "k0", 8), rule="no loop outside moves on")
    refuses(product, *tiled, ("hint", "A", "i0_2_i", 4), rule="neither it nor a nest behind it reads")
    refuses(product, *tiled, ("kind", "k0", "unroll"), ("hint", "R", "k0", 4), rule="not serial")
    refuses(product, *tiled, ("hint", "R", "k0", 1), rule="12 steps can't ask for 16 lines")
    twice = product_with(lambda r, i, j: r[i, j] + r[i, 7 - j], 4, 8, 12)
    refuses(twice, *tiled, ("hint", "R", "k0", 4), rule="at one place")


@pytest.mark.parametrize("gb_per_s", [4.0, 8.0])
def test_a_panel_that_one_tile_of_several_rows_reads_streams(gb_per_s):
    """Tiles of several rows, any of which may be a call's first, ask for what comes in a while, and each tile for the
    next panel: a core looks ahead by itself along what one row reads, and no further."""
    machine = replace(WIDE, l2_bytes=8192, n_cores=1, memory_gb_per_s=gb_per_s)
    rows, n, k = Sym("R"), 64, 256
    a, b, c = Buffer("A", F, (rows, k)), Buffer("B", F, (k, n)), Buffer("C", F, (rows, n))
    (i, j), (x,) = syms(axes_for((rows, n))), syms(axes_for((k,), "k"))
    product = Reduction(axes_for((k,), "k"), "add", (ZERO,))
    stage = Stage((c,), axes_for((rows, n)), (i, j), (a[i, x] * b[x, j],), product)
    for size in (0, 1, 5):
        kernel = check_default(Computation((a, b), (c,), (stage,)), "B", machine=machine, sizes={"R": size})
    asks, begins = {}, {}
    for s in walk(kernel.body):
        if isinstance(s, For) and s.loop.kind is Kind.SERIAL and s.loop.extent == k:
            update = next(y for y in walk(s.body) if isinstance(y, Update))
            n_rows = update.buffer.shape[0] if len(update.index) > 1 else 1
            hints = [y.index for y in s.body if isinstance(y, Prefetch)]
            asks[n_rows] = [substitute(index[1], {s.loop.sym: 0}) for index in hints]
            (begins[n_rows],) = [index[-1] for index in hints if index[1] == 0]
    (packed,) = [p.buffer for p in kernel.places if p.buffer.name == "B_p"]
    step_bytes = prod(packed.shape[2:]) * F.n_bytes
    ahead = ceil(machine.memory_ns * gb_per_s / step_bytes)
    assert set(asks.pop(1)) == {0} and min(asks) == 2
    assert all(set(places) == {0, ahead} for places in asks.values())
    most, rest, *_ = sorted(begins, reverse=True)
    first, second = (
        evaluate(begins[x], {y: most + rest if y.name == "R" else 0 for y in symbols(begins[x])}) for x in (most, rest)
    )
    assert (first, second) == (0, k * machine.line(F)), "a tile for the rest goes on where the full one ended"


def transposition(m, n):
    """Rows become columns."""
    x, y = Buffer("X", F, (m, n)), Buffer("Y", F, (n, m))
    i, j = syms(axes_for((n, m)))
    return Computation((x,), (y,), (Stage((y,), axes_for((n, m)), (i, j), (x[j, i],)),))


@pytest.mark.parametrize(("m", "n"), [(256, 32), (250, 48), (200, 37)])
def test_transposed_tiles_ask_for_the_lines_that_later_ones_write(m, n):
    """All of 16 rows, which are more than caches look ahead along."""
    kernel = check_default(transposition(m, n), machine=replace(WIDE, l1_bytes=1024, n_streams=12))
    inner = next(s for s in walk(kernel.body) if any(isinstance(x, Prefetch) for x in getattr(s, "body", ())))
    asked = [s.index for s in inner.body if isinstance(s, Prefetch)]
    store = next(s for s in walk(inner.body) if isinstance(s, Store))
    rows, lanes = loops_of(inner.body)
    firsts = [tuple(substitute(e, {rows.sym: r, lanes.sym: 0}) for e in store.index) for r in range(16)]
    later = {(place[0], place[1] - first[1]) for place, first in zip(asked, firsts, strict=True)}
    assert all(place[0] == first[0] for place, first in zip(asked, firsts, strict=True))
    assert len({ahead for _, ahead in later}) == 1 and min(ahead for _, ahead in later) >= 16


@pytest.mark.parametrize(
    "machine",
    [replace(WIDE, l1_bytes=1024, n_streams=16), replace(WIDE, l1_bytes=1 << 20, n_streams=12)],
    ids=["caches look ahead", "the nearest cache keeps all lines"],
)
def test_other_transposed_tiles_ask_for_none(machine):
    kernel = check_default(transposition(256, 32), machine=machine)
    assert not any(isinstance(s, Prefetch) for s in walk(kernel.body))


def scaled_rows(m, n):
    """Rows times one factor for each column, and a value for each row added."""
    x, f, a, y = Buffer("X", F, (m, n)), Buffer("S", F, (n,)), Buffer("A", F, (m, 1)), Buffer("Y", F, (m, n))
    i, j = syms(axes_for((m, n)))
    value = x[i, j] * f[j] + a[i, 0]
    return Computation((x, f, a), (y,), (Stage((y,), axes_for((m, n)), (i, j), (value,)),))


def test_vectors_ask_for_every_line_of_a_later_step_of_what_passes_through_once():
    """The factors are read again by each row, from a near cache."""
    kernel = check_default(scaled_rows(4, 3072), machine=replace(WIDE, l2_bytes=1024, llc_ns=20.0))
    inner = next(s for s in walk(kernel.body) if any(isinstance(x, Prefetch) for x in getattr(s, "body", ())))
    store = next(s for s in walk(inner.body) if isinstance(s, Store))
    asked = {x.buffer.name: [] for x in inner.body if isinstance(x, Prefetch)}
    for x in inner.body:
        if isinstance(x, Prefetch):
            asked[x.buffer.name].append(x.index[-1])
    assert set(asked) == {"X", "Y"}
    copies = loops_of(inner.body)
    n_lines = prod(loop.extent for loop in copies) // WIDE.line(F)
    first = substitute(store.index[-1], {loop.sym: 0 for loop in copies})
    places = {evaluate(place - first, {}) for place in asked["X"]}
    assert len(places) == n_lines and min(places) > 0


def test_vectors_of_what_a_near_cache_keeps_ask_for_nothing():
    kernel = check_default(scaled_rows(4, 3072), machine=replace(WIDE, l2_bytes=1 << 20))
    assert not any(isinstance(s, Prefetch) for s in walk(kernel.body))
