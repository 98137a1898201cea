"""Kernels from the default rules compute what the plain loops compute, for every structure and size."""

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import (
    SMALL,
    WIDE,
    ZERO,
    F,
    axis,
    check_default,
    constants_of,
    convolution,
    elementwise,
    layer_norm,
    matmul,
    reduction,
    softmax,
    transpose,
)
from tilewright import ops
from tilewright.choose.default import schedule, schedule_with_steps
from tilewright.choose.strategies.threads import min_tasks
from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Combiner,
    Computation,
    Const,
    Index,
    Load,
    Param,
    Reduction,
    Select,
    Serial,
    Stage,
    Unary,
    axes_for,
    syms,
)
from tilewright.core.expr import Dim, Sym, floordiv, maximum, minimum, mod
from tilewright.core.graph import Attrs
from tilewright.tile.ir import For, Kind, Prefetch, Role, Space, Store, Update, walk
from tilewright.tile.rewrite import loops_of
from tilewright.tile.text import kernel_text

SLOW = settings(max_examples=12)
PLENTY = dataclasses.replace(SMALL, n_cores=8, ghz=0.0001)
PLENTY_WIDE = dataclasses.replace(WIDE, n_cores=8, ghz=0.0001)


@given(r=st.integers(1, 5), c=st.integers(1, 40))
@SLOW
def test_rows(r, c):
    check_default(softmax(r, c))
    check_default(layer_norm(r, c))


@pytest.mark.parametrize(
    "computation",
    [matmul(50, 30, 1), matmul(1, 30, 1), reduction((20, 1), 1, "max"), reduction((1, 20), 0, "mul")],
    ids=["an outer product", "of a row", "maxima", "products"],
)
def test_a_reduction_over_one_element_is_an_assignment(computation):
    """As an update it was of no rule's shape, and its loops were left as they are, without lanes."""
    kernel = check_default(computation)
    assert not any(isinstance(s, Update) for s in walk(kernel.body))
    assert any(x.kind is Kind.VECTOR for x in loops_of(kernel.body))


@pytest.mark.parametrize(("r", "c"), [(0, 3), (1, 0), (2, 37), (3, 16), (2, 1)])
def test_rows_at_run_time_sizes(r, c):
    check_default(softmax(Sym("R"), Sym("C")), sizes={"R": r, "C": c})


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("r", "c", "l2", "asked"),
    [(9, 1024, 16384, 1), (9, 1059, 20000, 1), (9, 1024, 1 << 20, 0), (9, 64, 1024, 0), (2, 8192, 16384, 0)],
    ids=["rows", "a ragged end", "a near cache", "short rows", "long rows"],
)
def test_rows_that_no_near_cache_holds_are_asked_for_in_time(r, c, l2, asked):
    kernel = check_default(softmax(r, c), machine=dataclasses.replace(WIDE, l2_bytes=l2))
    hinted = [s for s in walk(kernel.body) if isinstance(s, For) and any(isinstance(x, Prefetch) for x in s.body)]
    assert len(hinted) == asked and all(any(isinstance(x, Update) for x in walk(s.body)) for s in hinted)


def test_rows_of_a_constant_are_not_asked_for():
    """It is packed in the order in which it is read, and a buffer of another name then."""
    kernel = check_default(softmax(9, 1024), "X", machine=dataclasses.replace(WIDE, l2_bytes=16384))
    assert not any(isinstance(s, Prefetch) for s in walk(kernel.body))


def spread(r, c):
    """Rows less their last element, times the sum of the squares, in four stages."""
    x, y, v = Buffer("X", F, (r, c)), Buffer("Y", F, (r, c)), Buffer("v", F, (r,))
    d, q = Buffer("d", F, (r, c)), Buffer("q", F, (r, c))
    rows, cols = axes_for((r,), "r"), axes_for((c,), "c")
    (i,), (j,) = syms(rows), syms(cols)
    stages = (
        Stage((d,), (*rows, *cols), (i, j), (x[i, j] - x[i, c - 1],)),
        Stage((q,), (*rows, *cols), (i, j), (d[i, j] * d[i, j],)),
        Stage((v,), rows, (i,), (q[i, j],), Reduction(cols, "add", (ZERO,))),
        Stage((y,), (*rows, *cols), (i, j), (d[i, j] * v[i],)),
    )
    return Computation((x,), (y,), stages, (d, q, v))


@pytest.mark.parametrize("make", [softmax, spread])
def test_passes_over_a_row_share_a_loop(make):
    """The exponential and its sum; the differences and the sum of their squares, which are stored nowhere."""
    kernel = schedule(make(6, 200), WIDE)
    loops = [s for s in walk(kernel.body) if isinstance(s, For)]
    assert any([type(x) for x in s.body] == [Store, Update] for s in loops)
    assert sum(p.space is Space.LOCAL for p in kernel.places) == 1
    check_default(make(6, 200))


def log_softmax(r, c):
    """Along the rows of ``X``: what the maximum was taken off is read twice, by the exponential and at last."""
    x, y, m, s = Buffer("X", F, (r, c)), Buffer("Y", F, (r, c)), Buffer("m", F, (r,)), Buffer("s", F, (r,))
    d, e = Buffer("d", F, (r, c)), Buffer("e", F, (r, c))
    rows, cols = axes_for((r,), "r"), axes_for((c,), "c")
    (i,), (j,) = syms(rows), syms(cols)
    stages = (
        Stage((m,), rows, (i,), (x[i, j],), Reduction(cols, "max", (Const(float("-inf"), F),))),
        Stage((d,), (*rows, *cols), (i, j), (x[i, j] - m[i],)),
        Stage((e,), (*rows, *cols), (i, j), (Unary("exp", d[i, j]),)),
        Stage((s,), rows, (i,), (e[i, j],), Reduction(cols, "add", (ZERO,))),
        Stage((y,), (*rows, *cols), (i, j), (d[i, j] - Unary("log", s[i]),)),
    )
    return Computation((x,), (y,), stages, (d, e, m, s))


@given(r=st.integers(1, 5), c=st.integers(2, 70))
@SLOW
def test_a_difference_from_a_rows_result_is_stored_nowhere(r, c):
    kernel = check_default(log_softmax(r, c))
    assert not [p for p in kernel.places if p.role is Role.TMP and p.space is not Space.REG and p.buffer.shape != (1,)]


def standard(r, c):
    """Rows of mean 0 and variance 1; what the mean was taken off is read twice, by the variance and at last."""
    x, y, t, m = Buffer("X", F, (r, c)), Buffer("Y", F, (r, c)), Buffer("t", F, (r,)), Buffer("m", F, (r,))
    d, v = Buffer("d", F, (r, c)), Buffer("v", F, (r,))
    rows, cols = axes_for((r,), "r"), axes_for((c,), "c")
    (i,), (j,) = syms(rows), syms(cols)
    share = Const(1 / c, F)
    stages = (
        Stage((t,), rows, (i,), (x[i, j],), Reduction(cols, "add", (ZERO,))),
        Stage((m,), rows, (i,), (t[i] * share,)),
        Stage((d,), (*rows, *cols), (i, j), (x[i, j] - m[i],)),
        Stage((v,), rows, (i,), (d[i, j] * d[i, j],), Reduction(cols, "add", (ZERO,))),
        Stage((y,), (*rows, *cols), (i, j), (d[i, j] * Unary("rsqrt", v[i] * share + Const(1e-5, F)),)),
    )
    return Computation((x,), (y,), stages, (t, m, d, v))


def test_a_difference_from_a_mean_is_stored_where_the_near_cache_has_room_for_it():
    """A long row's copy would push the row out; taking the mean off again costs less than reading either back."""
    for l1, is_stored in ((2 * 4 * 70, True), (2 * 4 * 70 - 1, False)):
        kernel = check_default(standard(3, 70), machine=dataclasses.replace(WIDE, l1_bytes=l1))
        assert any(p.role is Role.TMP and p.buffer.shape[-1] == 70 for p in kernel.places) == is_stored


def channels(n, c, places):
    """Each channel's elements, in all images of a batch, less their sum."""
    x, y, t = Buffer("X", F, (n, c, places)), Buffer("Y", F, (n, c, places)), Buffer("t", F, (c,))
    every = axes_for((n, c, places))
    b, i, j = syms(every)
    reduced = (every[0], every[2])
    return Computation(
        (x,), (y,),
        (Stage((t,), every[1:2], (i,), (x[b, i, j],), Reduction(reduced, "add", (ZERO,))),
         Stage((y,), every, (b, i, j), (x[b, i, j] - t[i],))), (t,),
    )  # fmt: skip


@pytest.mark.parametrize("machine", [SMALL, WIDE])
def test_a_row_in_several_places_is_reduced_once(machine):
    """A channel's sum was taken anew for each image of a batch that reads it."""
    kernel = check_default(channels(5, 3, 40), machine=machine)
    around = [s for s in kernel.body if isinstance(s, For) and any(isinstance(x, Update) for x in walk(s.body))]
    sums = [x.loop.extent for s in around for x in walk((s,)) if isinstance(x, For)]
    assert sums[0] == 3, "the loop over channels is the outermost one"


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_a_reduction_reads_once_is_computed_there(at):
    """Along any axis: a copy of all of it would go to memory and back."""
    shape = (6, 20, 40)
    every = axes_for(shape)
    x, t, y = Buffer("X", F, shape), Buffer("T", F, shape), Buffer("Y", F, shape[:at] + shape[at + 1 :])
    kept = [a for k, a in enumerate(every) if k != at]
    stages = (
        Stage((t,), every, syms(every), (x[syms(every)] * x[syms(every)],)),
        Stage((y,), tuple(kept), syms(kept), (t[syms(every)],), Reduction(every[at : at + 1], "add", (ZERO,))),
    )
    kernel = check_default(Computation((x,), (y,), stages, (t,)), machine=WIDE)
    assert not any(p.buffer.shape == shape and p.role is Role.TMP for p in kernel.places)


def test_an_input_in_another_shape_is_no_copy():
    """Two columns of an input as one row, which a sum and the result read."""
    x, y, v, t = Buffer("X", F, (3, 140)), Buffer("Y", F, (6, 70)), Buffer("v", F, (6, 70)), Buffer("t", F, (6,))
    rows, cols = axes_for((6,), "r"), axes_for((70,), "c")
    (i,), (j,) = syms(rows), syms(cols)
    stages = (
        Stage((v,), (*rows, *cols), (i, j), (x[i // 2, 70 * (i % 2) + j],)),
        Stage((t,), rows, (i,), (v[i, j],), Reduction(cols, "add", (ZERO,))),
        Stage((y,), (*rows, *cols), (i, j), (v[i, j] * t[i] + v[i, j],)),
    )
    kernel = check_default(Computation((x,), (y,), stages, (v, t)))
    assert not [p for p in kernel.places if p.buffer.shape[-1:] == (70,) and p.role is Role.TMP]


def test_passes_over_a_single_row_share_a_loop():
    """As those of many rows do, with the results of reductions in registers."""
    kernel = check_default(softmax(1, 200))
    loops = [s for s in walk(kernel.body) if isinstance(s, For)]
    assert any([type(x) for x in s.body] == [Store, Update] for s in loops)
    assert {p.space for p in kernel.places if p.buffer.name in ("m", "s")} == {Space.REG}


@pytest.mark.parametrize("op", ["add", "max", "min", "mul"])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 19, 7), (1, 3, 33)])
def test_reduction_along_any_axis(op, at, shape):
    check_default(reduction(shape, at, op))


@pytest.mark.parametrize("op", ["add", "max"])
@pytest.mark.parametrize("shape", [(40, 6, 16, 1), (40, 33, 1, 1), (40, 1, 33)])
def test_lanes_go_along_memory_though_the_last_dimensions_have_one_element(op, shape):
    """Such a sum was taken one element at a time, down its column: 54 us for 784x8x16x1, now 4.5."""
    computation = reduction(shape, 0, op)
    steps = schedule_with_steps(computation, WIDE).schedule.steps
    assert "rfactor" not in {s.primitive for s in steps}
    check_default(computation, machine=WIDE)


@pytest.mark.parametrize(("rows", "blocks"), [(16, 1), (17, 2), (18, 2), (19, 1)])
def test_few_elements_behind_full_blocks_are_not_transposed(rows, blocks):
    kernel = check_default(transpose(40, rows), machine=WIDE)
    assert sum(isinstance(s, Store) for s in walk(kernel.body)) == blocks


@pytest.mark.parametrize("most", [3, 7, 15])
def test_a_size_that_never_fills_a_block_is_not_divided(most):
    """Full blocks and a rest have no loop for the blocks, which broke the rule."""
    for rows, columns in ((40, Sym("n", 2, most)), (Sym("n", 2, most), 40)):
        assert not schedule_with_steps(transpose(rows, columns), WIDE).kernel.notes


@pytest.mark.parametrize("columns", [3, 17, 33, 100])
def test_columns_of_one_tile_are_lanes_of_their_sums(columns):
    kernel = check_default(reduction((50, columns), 0, "add"), machine=WIDE)
    assert not any("reorder" in note for note in kernel.notes)
    assert [x.kind for x in loops_of(kernel.body)].count(Kind.VECTOR) == 3


@pytest.mark.parametrize("dtype", [types.i8, types.u8, types.i32, types.i64, types.f64, types.f16, types.bool_])
def test_other_dtypes(dtype):
    check_default(elementwise((3, 21), dtype))
    if dtype is not types.bool_:
        check_default(reduction((4, 21), 1, "max", dtype))


def joined(rows, *parts):
    """Parts of rows beside each other, a stage for each."""
    ins = [Buffer(f"X{k}", F, (rows, n)) for k, n in enumerate(parts)]
    out = Buffer("Y", F, (rows, sum(parts)))
    stages = []
    for k, x in enumerate(ins):
        axes = axes_for(x.shape)
        i, j = syms(axes)
        stages.append(Stage((out,), axes, (i, j + sum(parts[:k])), (x[i, j],)))
    return Computation(tuple(ins), (out,), tuple(stages))


@pytest.mark.parametrize("machine", [SMALL, PLENTY])
@pytest.mark.parametrize(
    ("rows", "parts", "merged"),
    [(16, (8, 12), True), (20, (9, 8, 17), True), (15, (8, 12), True), (16, (8, 3), False), (16, (8, 1200), False)],
)
def test_parts_of_rows_are_written_row_by_row(machine, rows, parts, merged):
    """Not of fewer rows than threads want, nor where a part is less than a vector or more than a page."""
    kernel = check_default(joined(rows, *parts), machine=machine)
    assert (len(kernel.body) == 1) == (merged and rows >= min_tasks(machine))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_elements_that_alternate_are_written_in_whole_vectors(n):
    """A stack along a new last axis, of two operands as real and imaginary parts, is one nest."""
    ins, out = tuple(Buffer(f"X{k}", F, (3, 40, 1)) for k in range(n)), Buffer("Y", F, (3, 40, n))
    items = ops.concat.compute(ins, (out,), Attrs({"axis": 2}))
    kernel = check_default(Computation(ins, (out,), tuple(items)), machine=WIDE)
    assert len(kernel.body) == 1
    assert [x.loop.kind for x in walk(kernel.body) if isinstance(x, For)][-2:] == [Kind.VECTOR] * 2


@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=3))
@SLOW
def test_elementwise_and_transpose(shape):
    check_default(elementwise(shape))
    check_default(transpose(shape[0], shape[-1]))


@pytest.mark.parametrize("n", [0, 1, 15, 16, 70])
def test_elementwise_at_a_run_time_size(n):
    check_default(elementwise((2, Sym("N"))), sizes={"N": n})
    check_default(transpose(Sym("N"), 3), sizes={"N": n})


def test_argmax_keeps_a_tuple_state():
    x, best, where = Buffer("X", F, (3, 7)), Buffer("best", F, (3,)), Buffer("where", types.i64, (3,))
    rows, cols = axes_for((3,), "r"), axes_for((7,), "c")
    (i,), (j,) = syms(rows), syms(cols)
    m, a, v, k = Param("m", F), Param("a", types.i64), Param("v", F), Param("k", types.i64)
    wins = Binary("gt", v, m)
    combiner = Combiner((m, a), (v, k), (Select(wins, v, m), Select(wins, k, a)))
    init = (Const(float("-inf"), F), Const(-1, types.i64))
    stage = Stage((best, where), rows, (i,), (x[i, j], Index(j)), Reduction(cols, combiner, init))
    check_default(Computation((x,), (best, where), (stage,)))


def test_gather_and_scatter():
    table, ids, out = Buffer("E", F, (50, 9)), Buffer("ids", types.i64, (6,)), Buffer("Y", F, (6, 9))
    axes = axes_for((6, 9))
    i, j = syms(axes)
    check_default(Computation((table, ids), (out,), (Stage((out,), axes, (i, j), (Load(table, (ids[i], j)),)),)))
    total = Buffer("S", F, (50, 9))
    zero_axes = axes_for((50, 9), "z")
    clear = Stage((total,), zero_axes, syms(zero_axes), (ZERO,))
    add = Stage((total,), axes, (ids[i], j), (Cast(ids[i], F),), None, "add")
    check_default(Computation((ids,), (total,), (clear, add)))


def test_recurrence_keeps_its_order():
    x, h = Buffer("X", F, (5, 8)), Buffer("H", F, (6, 8))
    columns = axes_for((8,), "c")
    (j,) = syms(columns)
    t = axis("t", 5)
    start = Stage((h,), columns, (0, j), (ZERO,))
    step = Stage((h,), columns, (t.sym + 1, j), (h[t.sym, j] * Const(0.5, F) + x[t.sym, j],))
    check_default(Computation((x,), (h,), (start, Serial(t, (step,)))))


def test_two_outputs_and_a_shared_temporary():
    x, y, z = Buffer("X", F, (3, 18)), Buffer("Y", F, (3, 18)), Buffer("Z", F, (3, 18))
    t = Buffer("T", F, (3, 18))
    axes = axes_for((3, 18))
    at = syms(axes)
    stages = (
        Stage((t,), axes, at, (x[at] * x[at],)),
        Stage((y,), axes, at, (t[at] + x[at],)),
        Stage((z,), axes, at, (t[at] - x[at],)),
    )
    check_default(Computation((x,), (y, z), stages, (t,)))


def test_enough_work_runs_in_parallel_and_in_any_order():
    for computation, constants in (
        (matmul(9, 40, 3), ["B"]),
        (convolution((1, 6, 6, 2), 8, (3, 3), 1, 1), ["W"]),
        (softmax(6, 9), []),
        (elementwise((6, 30)), []),
    ):
        kernel = check_default(computation, *constants, machine=PLENTY)
        assert any(x.kind is Kind.PARALLEL for x in loops_of(kernel.body)), computation.outputs


def test_few_iterations_are_shared_out_together_with_those_inside():
    kernel = check_default(matmul(90, 40, 3), "B", machine=PLENTY)
    panels = [s for s in kernel.body if isinstance(s, For)]
    assert all(s.loop.kind is Kind.PARALLEL and s.body[0].loop.kind is Kind.PARALLEL for s in panels)
    kernel = check_default(elementwise((600, 30)), machine=PLENTY)
    assert [x.kind for x in loops_of(kernel.body)].count(Kind.PARALLEL) == 1


def test_schedules_replay():
    from tilewright.choose.default import schedule_with_steps
    from tilewright.tile.lower import lower
    from tilewright.tile.schedule.book import ScheduleBook, apply_lines, schedule_text
    from tilewright.tile.text import kernel_text

    computation = matmul(11, 37, 7)
    done = schedule_with_steps(computation, SMALL, constants_of(computation, "B"))
    lines = ScheduleBook.parse(schedule_text("kernel", done.schedule)).lines["kernel"]
    assert tuple(x.step for x in lines) == done.schedule.steps
    start = lower(done.computation, "kernel", constants_of(done.computation, "B"))
    assert kernel_text(apply_lines(start, lines)) == kernel_text(done.kernel)


SEAMS = {
    "roll": lambda j: mod(j - 5, 67),
    "repeat": lambda j: mod(j, 20),
    "edge": lambda j: minimum(maximum(j - 4, 0), 58),
    "reflection": lambda j: minimum(maximum(j - 4, 4 - j), 2 * 60 - maximum(j - 4, 4 - j)),
    "backwards": lambda j: mod(30 - j, 67),
    "quotient": lambda j: floordiv(j, 25) + floordiv(66 - j, 40),
}


def moved(columns: int, index: Callable[[Dim], Dim]) -> list[str]:
    """The lines that write ``y[i, j] = x[i, index(j)]``."""
    x, y = Buffer("X", F, (3, columns)), Buffer("Y", F, (3, columns))
    axes = axes_for((3, columns))
    i, j = syms(axes)
    kernel = check_default(Computation((x,), (y,), (Stage((y,), axes, (i, j), (x[i, index(j)],)),)))
    assert any(s.loop.kind is Kind.VECTOR for s in walk(kernel.body) if isinstance(s, For))
    return [line for line in kernel_text(kernel).splitlines() if line.strip().startswith("Y[")]


@pytest.mark.parametrize("name", SEAMS)
def test_indices_with_seams_are_cut_into_plain_runs(name):
    stores = moved(67, SEAMS[name])
    assert stores and not any(word in line for line in stores for word in ("%", "min(", "max(", "//"))


def test_runs_of_a_short_row_are_vectors_too():
    """Three runs of eleven elements, of which four are a vector: each element was moved by itself."""
    stores = moved(11, lambda j: minimum(maximum(j - 4, 0), 5))
    assert stores and not any(word in line for line in stores for word in ("min(", "max("))


def test_a_row_that_repeats_itself_stays_whole():
    """Twelve runs of a vector and a half each take more vectors than the row, which repeats itself after three."""
    assert len(moved(67, lambda j: mod(j, 6))) == 1


def test_axes_collapse_across_a_dimension_of_one_element():
    """As the phases of a transposed convolution take turns with its channels."""
    x, y = Buffer("X", F, (3, 34)), Buffer("Y", F, (3, 2, 1, 17))
    axes = axes_for((3, 2, 17))
    i, j, k = syms(axes)
    stage = Stage((y,), axes, (i, j, 0, k), (x[i, 17 * j + k] + x[i, 17 * j + k],))
    kernel = check_default(Computation((x,), (y,), (stage,)), machine=WIDE)
    assert next(p.buffer.shape for p in kernel.places if p.buffer.name == "Y") == (102,)


@given(
    shape=st.sampled_from([(5, 70), (70, 5), (3, 70), (20, 65), (2, 66, 3), (66, 40)]),
    axis=st.integers(0, 1),
    reverse=st.booleans(),
)
def test_threads_are_called_outside_of_the_steps_of_a_running_sum(shape, axis, reverse):
    x, y = Buffer("X", F, shape), Buffer("Y", F, shape)
    attrs = Attrs(ops.cumsum.complete_attrs({"axis": axis, "reverse": reverse}))
    items = ops.cumsum.compute((x,), (y,), attrs)
    stages = [s for i in items for s in (i.body if isinstance(i, Serial) else (i,))]
    temps = dict.fromkeys(b for s in stages for b in s.outs if b is not y)
    kernel = check_default(Computation((x,), (y,), items, tuple(temps)), machine=PLENTY_WIDE)
    for s in walk(kernel.body):
        if isinstance(s, For) and s.loop.kind is Kind.SERIAL:
            assert not any(t.kind is Kind.PARALLEL for t in loops_of(s.body))
