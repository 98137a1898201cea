"""Features of scheduled kernels: counts beside a walk through every iteration, bytes beside what arithmetic says."""

from collections import Counter
from dataclasses import replace
from itertools import product
from math import prod

import pytest
from benchmarks import computations
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from contractions import contraction
from nests import NESTS
from tilewright.build.kernels import optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.choose.cost.features import Features, features_of
from tilewright.choose.cost.nest import CallSizes
from tilewright.choose.cost.price import price_of
from tilewright.choose.cost.traffic import different
from tilewright.choose.default import schedule
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation, Inside, Stage, axes_for, syms
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Sym, ceildiv, evaluate, floordiv, minimum, symbols
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, If, Kernel, Kind, Stmt
from tilewright.tile.text import parse_kernel

AVX2 = Target.parse("x86-64-v3")
TARGETS = ("x86-64-v4", "x86-64-v3", "aarch64", "cortex-m4")
SIZE = st.integers(12, 90)


def kernels(graph: object, target: str) -> list[Kernel]:
    options = Options(target=target)
    made = optimise_and_split(graph, options, options.machine, Clock()).kernels  # type: ignore[arg-type]
    return [k for k in made.kernels.values() if not k.sizes]


def iterations(kernel: Kernel, sizes: dict[Sym, int]) -> Counter[str]:
    """Iterations of every loop that runs, by walking through all of them; copies of a body run it as often."""
    counts: Counter[str] = Counter()

    def walk(body: tuple[Stmt, ...], env: dict[Sym, int], lanes: bool) -> None:
        for s in body:
            if isinstance(s, If) and isinstance(s.cond, Inside) and all(evaluate(e, env) >= 0 for e in s.cond.exprs):
                walk(s.body, env, lanes)
            if not isinstance(s, For):
                continue
            n, kind = max(evaluate(s.loop.extent, env), 0), s.loop.kind
            if kind is Kind.VECTOR:
                walk(s.body, {**env, s.loop.sym: 0}, True)
                continue
            if kind in (Kind.SERIAL, Kind.PARALLEL) and not lanes:
                counts[s.loop.sym.name] += n
            for k in range(n):
                walk(s.body, {**env, s.loop.sym: k}, lanes)

    walk(kernel.body, dict(sizes), False)
    return counts


def counted(features: Features) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in features.rows:
        if row.loop is not None:
            found[row.loop.sym.name] += round(row.iterations)
    return found


def assert_iterations_are_right(kernel: Kernel, target: Target) -> None:
    found, want = counted(features_of(kernel, target)), iterations(kernel, {})
    assert found.keys() == {n for n, k in want.items() if k} | (found.keys() & want.keys())
    for name, n in want.items():
        assert found[name] == pytest.approx(n, rel=0.02, abs=1), name


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", NESTS)
def test_loops_run_as_often_as_a_walk_through_them_finds(kind, target):
    for kernel in kernels(NESTS[kind](), target):
        assert_iterations_are_right(kernel, Options(target=target).machine)


@settings(max_examples=3)
@given(st.integers(0, 10_000))
def test_loops_of_random_contractions_run_as_often(seed):
    for kernel in kernels(contraction(seed).graph, "x86-64-v3"):
        assert_iterations_are_right(kernel, AVX2)


@given(st.integers(1, 500), st.integers(1, 40))
def test_the_average_of_ragged_tiles_is_exact(n, tile):
    outer = Sym("o", 0, None)
    loops = {outer: ceildiv(n, tile)}
    average = CallSizes({}).average(minimum(tile, n - tile * outer), loops)
    n_tiles = -(-n // tile)
    assert average * n_tiles == pytest.approx(n, rel=1e-6 if n_tiles <= EFFORT.listed else 0.02)
    assert CallSizes({}).most(minimum(tile, n - tile * outer), loops) == min(tile, n)


@st.composite
def uneven_loops(draw, longest):
    """Loops inside of each other: of one length, as far as an outer one has come, the ragged tiles of one."""
    loops = {}
    for name in "abcd"[: draw(st.integers(1, 4))]:
        extent = draw(st.integers(1, longest))
        if loops and draw(st.booleans()):
            outer, tile = draw(st.sampled_from(list(loops))), draw(st.integers(1, 3))
            extent = draw(st.sampled_from([outer + tile, minimum(tile, extent - tile * outer), extent - outer]))
        loops[Sym(name, 0, None)] = extent
    return loops


def counted_runs(loops):
    def of(rest, env):
        if not rest:
            return 1
        (sym, extent), *inner = rest
        n = max(evaluate(extent, env), 0)
        if sym not in set().union(*(symbols(e) for _, e in inner)):
            return n * of(inner, env) if n else 0
        return sum(of(inner, {**env, sym: k}) for k in range(n))

    return of(list(loops.items()), {})


def averaged_runs(loops):
    averages, around = [], {}
    for sym, extent in loops.items():
        averages.append(CallSizes({}).average(extent, around))
        around = {**around, sym: extent}
    return prod(averages)


@settings(max_examples=200)
@given(uneven_loops(6))
def test_averages_of_loops_inside_of_each_other_are_over_the_iterations_that_there_are(loops):
    assert averaged_runs(loops) == pytest.approx(counted_runs(loops))


@settings(max_examples=100)
@given(uneven_loops(90))
def test_averages_of_many_iterations_are_nearly_so(loops):
    """Not of a few corners of many places, which a sample meets by chance."""
    n_runs = counted_runs(loops)
    assume(n_runs * 100 > prod(CallSizes({}).most(extent, loops) for extent in loops.values()))
    assert averaged_runs(loops) == pytest.approx(n_runs, rel=0.1)


def test_tiles_of_a_triangle_run_as_often_as_its_rows_do():
    n, tile = 1000, 32
    i_o, j_o, k_o, i, j, k = (Sym(x, 0, None) for x in ("i_o", "j_o", "k_o", "i", "j", "k"))
    outer = {i_o: ceildiv(n, tile), j_o: i_o + 1, k_o: j_o + 1}
    row, column = i_o * tile + i, j_o * tile + j
    inner = {
        i: minimum(tile, n - tile * i_o), j: minimum(tile, row + 1 - tile * j_o),
        k: minimum(tile, column + 1 - tile * k_o),
    }  # fmt: skip
    assert averaged_runs(outer | inner) == pytest.approx(n * (n + 1) * (n + 2) / 6, rel=0.03)


def test_a_size_without_a_value_at_the_guessed_sizes_is_nothing():
    a, b = Sym("a", 1), Sym("b", 0)
    assert CallSizes({a: 64, b: 64}).known(floordiv(a, a - b)) == 0


@settings(max_examples=12)
@given(SIZE, st.integers(1, 90), SIZE)
@example(22, 27, 67)  # rows in blocks of four, the last of two, and those of the last columns in halves
def test_a_product_has_a_multiply_add_for_every_vector(m, n, k):
    """Of the columns' last vector some lanes may be idle."""
    computation = computations.matmul(m, n, k)
    kernel = schedule(computation, AVX2, [b for b in computation.inputs if b.name == "B"])
    multiplied = features_of(kernel, AVX2).total("multiply")
    lanes = AVX2.lanes(types.f32)
    assert m * n * k / lanes * 0.999 <= multiplied <= m * k * -(-n // lanes) * 1.001


def copy(n: int) -> Computation:
    x, y = Buffer("x", types.f32, (n,)), Buffer("y", types.f32, (n,))
    axes = axes_for((n,))
    return Computation((x,), (y,), (Stage((y,), axes, syms(axes), (x[syms(axes)],)),))


@pytest.mark.parametrize(("n_bytes", "level"), [(4 << 10, 0), (120 << 10, 1), (2 << 20, 2), (64 << 20, 3)])
def test_what_a_cache_holds_is_not_brought_from_behind_it(n_bytes, level):
    """A copy reads a line of one array, and reads and writes back a line of the other. The last cache keeps a part."""
    found = features_of(schedule(copy(n_bytes // 4), AVX2), AVX2)
    kept = [0.0, 0.0, min(AVX2.llc_bytes, AVX2.llc_core_bytes) / (2 * n_bytes)]
    for k in range(3):
        assert found.moved(k) == pytest.approx(3 * n_bytes * (1 - kept[k]) if k < level else 0, rel=0.01)


def test_what_crowds_few_sets_leaves_the_others_alone():
    """A column of lines 4 KiB apart, of which the first cache loses all, and a row beside it, which it keeps."""
    x, y = Buffer("x", types.f32, (64, 1024)), Buffer("y", types.f32, (64,))
    out = Buffer("out", types.f32, (9, 64))
    axes = axes_for((9, 64))
    i, j = syms(axes)
    found = features_of(
        schedule(Computation((x, y), (out,), (Stage((out,), axes, (i, j), (x[j, 0] + y[j],)),)), AVX2), AVX2
    )
    column = 9 * 64 * AVX2.line_bytes
    assert column <= found.moved(0) < column + 9 * 64 * 4


def test_larger_caches_bring_less_and_sets_crowd():
    computation = computations.matmul(250, 250, 250)
    kernel = schedule(computation, AVX2)
    moved = [features_of(kernel, replace(AVX2, l2_bytes=n << 10)).moved(1) for n in (8, 256, 1024)]
    assert moved[0] > moved[1] >= moved[2] == 0

    def column(apart: int) -> Features:
        """Eight columns, one after the other: lines are used again if all of a column's stay."""
        x, y = Buffer("x", types.f32, (64, apart)), Buffer("y", types.f32, (8, 64))
        axes = axes_for((8, 64))
        i, j = syms(axes)
        return features_of(schedule(Computation((x,), (y,), (Stage((y,), axes, (i, j), (x[j, i],)),)), AVX2), AVX2)

    assert column(1024).moved(0) > 3 * column(1040).moved(0)


def test_sizes_of_the_call_are_numbers_that_are_given():
    n = Sym("n", 1, None)
    kernel = schedule(computations.softmax(n, 128), AVX2)
    few, many = (features_of(kernel, AVX2, {n: k}) for k in (10, 1000))
    assert many.total("multiply") == pytest.approx(100 * few.total("multiply"))
    with pytest.raises(ScheduleError, match="no number for n"):
        features_of(kernel, AVX2)


def test_what_registers_do_not_hold_is_stored_and_loaded():
    computation = computations.matmul(64, 64, 64)
    kernel = schedule(computation, AVX2, [b for b in computation.inputs if b.name == "B"])
    few = features_of(kernel, replace(AVX2, n_vector_registers=8))
    assert few.total("store") > 2 * features_of(kernel, AVX2).total("store")


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4))
def test_steps_that_lead_to_the_same_places_are_one(steps):
    """Windows slide over each other: what all of them touch is counted once."""

    def places(of):
        counts = product(*(range(n) for _, n in of))
        return {sum(k * step for k, (step, _) in zip(at, of, strict=True)) for at in counts}

    ordered = tuple(sorted(steps))
    found = different(ordered)
    assert places([(s, int(n)) for s, n in found]) == places(ordered)
    assert prod(n for _, n in found) <= prod(n for _, n in ordered)


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(1, 7), st.integers(1, 3), st.integers(0, 3), st.integers(1, 9), st.integers(1, 7))
def test_the_part_of_a_windows_taps_inside_of_an_image_is_exact(n_rows, taps, stride, pad, n_columns, wide):
    row, tap, column, other = (Sym(n, 0, None) for n in ("row", "tap", "column", "other"))
    loops = {row: n_rows, tap: taps, column: n_columns, other: wide}
    at_y, at_x = row * stride + tap - pad, column + other - pad
    guard = Inside((at_y, n_rows - 1 - at_y, at_x, n_columns - 1 - at_x))

    def inside(n, k, step):
        return sum(0 <= i * step + t - pad < n for i in range(n) for t in range(k)) / (n * k)

    want = inside(n_rows, taps, stride) * inside(n_columns, wide, 1)
    assert CallSizes({}).share(guard, loops) == pytest.approx(want)


def test_taps_outside_of_an_image_are_not_computed():
    """Of a 7x7 window on 7x7 places 37 of 49 taps along an axis are inside: the code for borders leaves others out."""
    c = computations.convolution((1, 7, 7, 16), 16, (7, 7), 1, 3, groups=16)
    kernel = schedule(c, AVX2, [b for b in c.inputs if b.name in ("W", "bias")])
    taps = sum(0 <= i + t - 3 < 7 for i in range(7) for t in range(7)) ** 2
    assert features_of(kernel, AVX2).total("multiply") == pytest.approx(taps * 16 / AVX2.lanes(types.f32), rel=0.1)


@pytest.mark.parametrize("rows", [16, 4])
def test_what_a_condition_leaves_out_is_not_brought(rows):
    """Of 16 rows, each larger than the near caches, so many are read."""
    kernel = parse_kernel(f"""kernel some_rows
  place x: f32[16, 65536] global in
  place y: f32[65536] global out
  body
    for i[0:15] < 16 serial
      if inside({rows - 1} - i)
        for j[0:65535] < 65536 serial
          y[j] max= x[i, j]
""")
    every_row = 65536 * 4 * 3  # a row of x is read, and y read and written back
    assert features_of(kernel, AVX2).moved(0) == pytest.approx(rows * every_row, rel=0.01)


def test_a_core_that_looks_ahead_does_not_wait_for_short_chains():
    c = computations.matmul(64, 8, 24)
    kernel = schedule(c, AVX2, [b for b in c.inputs if b.name == "B"])
    waits = [price_of(kernel, replace(AVX2, window=n)).by_resource["chains"] for n in (1, 64, 512)]
    assert waits[0] > waits[1] > waits[2]
    assert waits[2] < 0.6 * waits[0]
