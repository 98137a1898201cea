"""Products and convolutions by the default rules are what plain loops compute, for every structure and size."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import (
    SMALL,
    WIDE,
    ZERO,
    F,
    check_default,
    constants_of,
    convolution,
    matmul,
    partial_sums,
)
from tilewright.choose.default import schedule, schedule_with_steps
from tilewright.core.compute import (
    Binary,
    Buffer,
    Computation,
    Reduction,
    Stage,
    Unary,
    axes_for,
    syms,
)
from tilewright.core.expr import Sym, symbols
from tilewright.core.indices import symbols_at
from tilewright.target.target import Target
from tilewright.tile.affine import coefficient
from tilewright.tile.ir import For, Kind, Prefetch, Role, Space, Update, walk
from tilewright.tile.rewrite import loads_of, loops_of

SLOW = settings(max_examples=12)
TIGHT = dataclasses.replace(WIDE, l1_bytes=1024)
PLENTY_WIDE = dataclasses.replace(WIDE, n_cores=8, ghz=0.0001)


@given(m=st.integers(1, 12), n=st.integers(1, 20), k=st.integers(1, 5), epilogue=st.booleans(), fixed=st.booleans())
@SLOW
def test_matmul(m, n, k, epilogue, fixed):
    check_default(matmul(m, n, k, epilogue), *(["B"] if fixed else []))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("known", ["", "M", "N", "K", "MN", "MNK"])
@pytest.mark.parametrize("size", [0, 1, 5, 17])
def test_matmul_at_run_time_sizes(known, size):
    m, n, k = (Sym(x) if x in known else fixed for x, fixed in (("M", 6), ("N", 10), ("K", 3)))
    constants = [] if set("NK") & set(known) else ["B"]
    check_default(matmul(m, n, k), *constants, sizes={x: size for x in known})


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("machine", [WIDE, PLENTY_WIDE])
def test_columns_behind_full_vectors(fixed, machine):
    """They are sums along the reduction, beside the full vectors; a run-time operand's column is copied for that."""
    kernel = check_default(matmul(16, 17, 100), *(["B"] if fixed else []), machine=machine)
    assert partial_sums(kernel)
    assert any(p.role is Role.TMP and p.space is not Space.REG for p in kernel.places) != fixed


@pytest.mark.parametrize(("rows", "fixed", "apart"), [(8, True, True), (7, True, False), (8, False, False)])
def test_a_constant_column_takes_fewer_rows_than_one_that_is_copied(rows, fixed, apart):
    kernel = check_default(matmul(rows, 17, 100), *(["B"] if fixed else []), machine=WIDE)
    assert bool(partial_sums(kernel)) == apart


def test_columns_behind_full_vectors_of_a_convolution():
    """Rows and columns share what they load: a tile of partial sums for the three columns of several pixels."""
    kernel = check_default(convolution((1, 6, 6, 40), 19, (3, 1)), "W", "bias", machine=WIDE)
    (sums,) = partial_sums(kernel)
    rows, *rest = sums.shape
    assert rows > 1 and rest == [3, 16]


@pytest.mark.parametrize(("rows", "columns", "depth"), [(15, 17, 100), (16, 17, 30), (16, 21, 100)])
def test_columns_that_stay_in_vectors(rows, columns, depth):
    kernel = schedule(matmul(rows, columns, depth), WIDE)
    assert not partial_sums(kernel)


@given(m=st.integers(1, 3), n=st.integers(1, 6), k=st.integers(90, 200), epilogue=st.booleans())
@SLOW
def test_few_columns(m, n, k, epilogue):
    check_default(matmul(m, n, k, epilogue), "B", machine=WIDE)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "along"),
    [(1, 3, 3000, True), (100, 3, 257, True), (1, 15, 300, True), (100, 3, 30, False), (100, 15, 257, False)],
)
def test_columns_that_fill_no_vector_are_sums_along_the_reduction(rows, columns, depth, along):
    computation = matmul(rows, columns, depth)
    (weights,) = (x for x in computation.inputs if x.name == "B")
    kernel = schedule(computation, WIDE, [weights])
    assert bool(partial_sums(kernel)) == along


@given(
    h=st.integers(3, 6), w=st.integers(3, 6), c=st.integers(1, 3), out=st.integers(1, 9),
    k=st.integers(1, 3), stride=st.integers(1, 2), pad=st.integers(0, 1), n=st.integers(1, 2),
)  # fmt: skip
@SLOW
def test_convolution(h, w, c, out, k, stride, pad, n):
    check_default(convolution((n, h, w, c), out, (k, k), stride, pad), "W", "bias")


@pytest.mark.parametrize(("c", "groups"), [(8, 8), (6, 2), (5, 5), (16, 4)])
@pytest.mark.parametrize(("stride", "pad"), [(1, 1), (2, 1), (1, 0)])
def test_grouped_and_depthwise_convolution(c, groups, stride, pad):
    check_default(convolution((1, 6, 5, c), c, (3, 3), stride, pad, groups), "W", "bias")


@given(group=st.integers(1, 20), out=st.integers(4, 40), groups=st.integers(2, 3))
@SLOW
def test_a_group_that_tiles_do_not_divide_is_one_operand_for_all_lanes(group, out, groups):
    """Its last tile is ragged, and no lane leaves the group for the next one's inputs."""
    computation = convolution((1, 1, 3, group * groups), out * groups, (1, 1), 1, 0, groups)
    check_default(computation, "W", "bias")


@pytest.mark.parametrize(("k", "stride", "pad"), [(3, 1, 1), (3, 2, 1), (2, 1, 0), (3, 1, 0)])
@pytest.mark.parametrize(("h", "w"), [(8, 8), (9, 13)])
def test_several_rows_of_a_window_at_once(k, stride, pad, h, w):
    check_default(convolution((1, h, w, 20), 20, (k, k), stride, pad, 20), "W", "bias", machine=TIGHT)


@given(
    c=st.integers(1, 21), h=st.integers(1, 5), w=st.integers(3, 30), kh=st.integers(1, 3), kw=st.integers(1, 3),
    pad=st.integers(0, 1), stride=st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=7)
def test_columns_and_channels_of_a_window_as_one_axis(c, h, w, kh, kw, pad, stride):
    """Whatever the channels, the columns and the border are: no lane reads or writes what is not its own."""
    computation = convolution((1, h + kh, w, c), c, (kh, kw), stride, pad, c)
    check_default(computation, "W", "bias", machine=WIDE)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("c", "rows", "joined"),
    [(3, 5, True), (17, 5, True), (24, 2, True), (16, 2, False), (15, 2, False), (100, 2, False)],
)
def test_channels_that_leave_lanes_idle_share_vectors_with_columns(c, rows, joined):
    kernel = check_default(convolution((1, rows, 40, c), c, (3, 3), 1, 1, c), "W", "bias", machine=WIDE)
    (out,) = (p.buffer for p in kernel.places if p.role is Role.OUT)
    assert (out.shape[-1] == 40 * c) == joined
    assert not kernel.notes
    if joined:  # weights and bias repeat with the channels, and lie in memory as vectors read them
        assert {p.source.name for p in kernel.packed} == {"W", "bias"}


def test_channels_that_the_run_time_scales_stay_an_axis():
    computation = convolution((1, 5, 40, 17), 17, (3, 3), 1, 1, 17)
    kernel = check_default(computation, "W", machine=WIDE)
    (out,) = (p.buffer for p in kernel.places if p.role is Role.OUT)
    assert out.shape[-1] == 17


@pytest.mark.parametrize(("k", "copied"), [(3, ["k1", "k2"]), (5, ["k2"])])
def test_taps_are_copied_in_both_directions_where_registers_hold_them(k, copied):
    """And where a window's rows leave the first-level cache between two rows of the result."""
    computation = convolution((1, 8, 8, 16), 16, (k, k), 1, k // 2, 16)
    for machine, wanted in ((TIGHT, copied), (WIDE, ["k2"])):
        loops = loops_of(schedule(computation, machine, constants_of(computation, "W")).body)
        assert [x.sym.name for x in loops if x.kind is Kind.UNROLL and x.sym.name[0] == "k"] == wanted


def test_epilogue_reads_a_residual_and_splits_heads():
    a, b, r = Buffer("A", F, (6, 5)), Buffer("B", F, (5, 16)), Buffer("R", F, (2, 6, 8))
    t, y = Buffer("T", F, (6, 16)), Buffer("Y", F, (2, 6, 8))
    axes, reduced = axes_for((6, 16)), axes_for((5,), "k")
    (i, j), (k,) = syms(axes), syms(reduced)
    heads = axes_for((2, 6, 8), "h")
    h, s, d = syms(heads)
    product = Stage((t,), axes, (i, j), (a[i, k] * b[k, j],), Reduction(reduced, "add", (ZERO,)))
    finish = Stage((y,), heads, (h, s, d), (t[s, h * 8 + d] + r[h, s, d],))
    kernel = check_default(Computation((a, b, r), (y,), (product, finish), (t,)), "B")
    assert any(p.space is Space.REG for p in kernel.places)


@pytest.mark.parametrize(
    ("n_rows", "l2_bytes", "n", "k", "in_chunks"),
    [
        (400, 1 << 16, 96, 16, True),
        (40, 1 << 16, 96, 16, False),
        (Sym("M"), 1 << 16, 96, 16, True),
        (Sym("M") * 2520, 1 << 17, 192, 128, True),
        (Sym("M"), 1 << 17, 192, 128, False),
    ],
    ids=["many", "few", "any number", "images", "panels that tiles for the rest bring again"],
)
def test_rows_of_a_large_result_walk_all_panels_chunk_by_chunk(n_rows, l2_bytes, n, k, in_chunks):
    machine = dataclasses.replace(WIDE, l1_bytes=8192, l2_bytes=l2_bytes, n_cores=1)
    computation = matmul(n_rows, n, k)
    kernel = schedule(computation, machine, constants_of(computation, "B"))
    outer = next(x.sym for x in loops_of(kernel.body) if x.kind in (Kind.SERIAL, Kind.PARALLEL))
    rows = next(x.index[0] for s in walk(kernel.body) for x in loads_of(s) if x.buffer.name == "A")
    assert (outer in symbols_at(rows)) == in_chunks


@pytest.mark.parametrize("n_rows", [0, 5, 61])
def test_chunks_of_a_run_time_number_of_rows(n_rows):
    machine = dataclasses.replace(WIDE, l1_bytes=1024, l2_bytes=1 << 15, n_cores=1)
    kernel = check_default(matmul(Sym("M"), 256, 16), "B", machine=machine, sizes={"M": n_rows})
    chunks, panels, *_ = (x for x in loops_of(kernel.body) if x.kind is Kind.SERIAL)
    assert symbols(chunks.extent) and panels.extent > 1


@pytest.mark.parametrize(("rows", "in_chunks"), [(Sym("M", 1), False), (Sym("M", 1) * 2520, True)])
def test_chunks_are_no_fewer_than_threads_need(rows, in_chunks):
    """Where a call may bring few rows, the blocks of lanes are what threads share."""
    machine = dataclasses.replace(Target.parse("x86-64-v4"), n_cores=2)
    computation = matmul(rows, 768, 128)
    kernel = schedule(computation, machine, constants_of(computation, "B"))
    shared = next(x for x in loops_of(kernel.body) if x.kind is Kind.PARALLEL)
    assert bool(symbols(shared.extent)) == in_chunks


@pytest.mark.parametrize("n", [3, 16, 40])
def test_a_number_of_rows_that_is_none_in_every_call(n):
    computation = matmul(Sym("M", 0, 0), n, 64)
    schedule(computation, WIDE, constants_of(computation, "B"))


@pytest.mark.parametrize(("pad", "l2_bytes", "parts"), [(0, 1 << 20, []), (0, 1 << 15, [3]), (1, 1 << 15, [3])])
def test_a_deep_window_walks_all_rows_tap_by_tap(pad, l2_bytes, parts):
    """A panel of all taps leaves a near cache before the next rows need it; that of one row of taps stays."""
    machine = dataclasses.replace(WIDE, l2_bytes=l2_bytes, n_cores=1)
    side = 9 - 2 * pad
    kernel = check_default(convolution((1, side, side, 8), 64, (3, 3), pad=pad), "W", machine=machine)
    panel = kernel.body[-1]
    inside = [s.loop for s in panel.body if isinstance(s, For)]
    assert [x.extent for x in inside if x.sym.name.startswith("k")] == parts


@given(m=st.integers(1, 9), n=st.integers(8, 40), k=st.integers(1, 40), step=st.integers(2, 4))
@SLOW
def test_every_so_many_th_column_of_an_operand(m, n, k, step):
    """``A[i, k] * B[k, 3*j]``: its columns are lanes, brought together by shuffles up to three apart."""
    a, b, c = (Buffer(x, F, s) for x, s in (("A", (m, k)), ("B", (k, n * step)), ("C", (m, n))))
    (i, j), (x,) = syms(axes_for(c.shape)), syms(axes_for((k,), "k"))
    stage = Stage(
        (c,), axes_for(c.shape), (i, j), (a[i, x] * b[x, step * j],), Reduction(axes_for((k,), "k"), "add", (ZERO,))
    )
    kernel = check_default(Computation((a, b), (c,), (stage,)), machine=WIDE)
    lanes = [x.sym for x in loops_of(kernel.body) if x.kind is Kind.VECTOR]
    updates = [s for s in walk(kernel.body) if isinstance(s, Update)]
    assert step > 3 or all(any(coefficient(s.index[-1], x) == 1 for x in lanes) for s in updates)


def test_of_many_constant_matrices_the_next_one_is_hinted_at_once():
    """A hint's panel is one matrix, not a row of them again for each matrix in it."""
    n, rows, depth, width = 3, 24, 16, 32
    shapes = {"A": (n, n, rows, depth), "B": (n, n, depth, width), "C": (n, n, rows, width)}
    a, b, c = (Buffer(name, F, shape) for name, shape in shapes.items())
    u, v, i, j = syms(axes_for(c.shape))
    (k,) = syms(axes_for((depth,), "k"))
    product = Reduction(axes_for((depth,), "k"), "add", (ZERO,))
    stage = Stage((c,), axes_for(c.shape), (u, v, i, j), (a[u, v, i, k] * b[u, v, k, j],), product)
    machine = dataclasses.replace(WIDE, l2_bytes=16384, n_cores=1)
    kernel = check_default(Computation((a, b), (c,), (stage,)), "B", machine=machine)

    def hints(body):
        inside = sum(s.loop.extent * hints(s.body) for s in body if isinstance(s, For))
        return inside + sum(isinstance(s, Prefetch) for s in body)

    n_lines = n * n * depth * width * F.n_bytes // machine.line_bytes
    assert n_lines <= hints(kernel.body) <= 2 * n_lines


def test_the_tile_of_a_product_lives_in_registers():
    kernel = check_default(matmul(12, 32, 4), "B", machine=WIDE)
    (acc,) = [p.buffer for p in kernel.places if p.space is Space.REG]
    assert len(acc.shape) == 2
    assert [b.name for b in kernel.params] == ["A", "B_p", "bias", "C"]
    assert {Kind.VECTOR, Kind.UNROLL} <= {x.kind for x in loops_of(kernel.body)}


@pytest.mark.parametrize("m, n, k", [(32, 40, 70), (30, 38, 71)])
def test_long_reductions_walk_all_rows_part_by_part(m, n, k):
    little = dataclasses.replace(SMALL, l2_bytes=8192)
    kernel = check_default(matmul(m, n, k), "B", machine=little)
    sums = [p for p in kernel.places if p.space is Space.LOCAL]
    assert len(sums) == 1, "the sums of a lane block stay in memory between the parts"


def test_a_tile_that_happens_once_at_most_walks_no_parts():
    """Of a run-time number of rows the tiles for the rest: no other one would find a part of the panel in the cache."""
    machine = dataclasses.replace(WIDE, l2_bytes=1 << 19, n_cores=1)
    computation = matmul(Sym("M"), 128, 4096)
    kernel = schedule(computation, machine, constants_of(computation, "B"))
    assert not [p for p in kernel.places if p.space is Space.LOCAL], "sums wait nowhere between parts"
    assert sum(p.buffer.name.startswith("B_p") for p in kernel.places) == 1


def test_windows_keep_their_guards():
    for stride in (1, 2):
        kernel = check_default(convolution((1, 9, 7, 8), 8, (3, 3), stride, 1, 8), "W", "bias")
        assert not any("pad" in p.buffer.name for p in kernel.places), "a copy costs more than the window"
    kernel = check_default(convolution((1, 6, 6, 2), 8, (3, 3), 1, 1), "W", "bias")
    assert any("pad" in p.buffer.name for p in kernel.places)


def test_rows_that_share_a_cache_set_are_few():
    computation = matmul(56, 32, 1024)
    kernel = schedule(computation, WIDE, constants_of(computation, "B"))
    tile = [p for p in kernel.places if p.space is Space.REG]
    assert tile[0].buffer.shape[0] <= WIDE.l1_bytes // WIDE.set_span


@pytest.mark.parametrize("m, n, k", [(17, 12, 5), (Sym("M"), 9, 6)])
def test_a_run_time_operand_is_turned_once(m, n, k):
    a, b, c = Buffer("A", F, (2, m, k)), Buffer("B", F, (2, n, k)), Buffer("C", F, (2, m, n))
    axes, reduced = axes_for((2, m, n)), axes_for((k,), "k")
    (g, i, j), (x,) = syms(axes), syms(reduced)
    product = Stage((c,), axes, (g, i, j), (a[g, i, x] * b[g, j, x],), Reduction(reduced, "add", (ZERO,)))
    kernel = check_default(Computation((a, b), (c,), (product,)), sizes={"M": 18})
    turned = [p.buffer for p in kernel.places if p.buffer.name.startswith("B_t")]
    assert turned and turned[0].shape[-1] == n


def turned(batch, m, n, k):
    """``C[g] = A[g] @ B[g].T``, both known at run time only."""
    a, b, c = Buffer("A", F, (batch, m, k)), Buffer("B", F, (batch, n, k)), Buffer("C", F, (batch, m, n))
    axes, reduced = axes_for((batch, m, n)), axes_for((k,), "k")
    (g, i, j), (x,) = syms(axes), syms(reduced)
    product = Stage((c,), axes, (g, i, j), (a[g, i, x] * b[g, j, x],), Reduction(reduced, "add", (ZERO,)))
    return Computation((a, b), (c,), (product,))


@given(batch=st.integers(1, 3), m=st.integers(2, 15), n=st.integers(1, 40), k=st.integers(1, 60))
@SLOW
def test_few_rows_by_an_operand_that_is_not_turned(batch, m, n, k):
    check_default(turned(batch, m, n, k), machine=WIDE)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("m", "sums"), [(2, True), (8, True), (12, True), (1, False), (16, False)])
def test_few_rows_share_the_elements_of_the_other_operand(m, sums):
    """In tiles of partial sums, more than eight rows in blocks; a copy that is turned pays from sixteen on."""
    kernel = check_default(turned(2, m, 40, 64), machine=WIDE)
    tiles = [p.buffer.shape for p in kernel.places if p.space is Space.REG and len(p.buffer.shape) == 3]
    assert bool(tiles) == sums


@pytest.mark.parametrize("kernel", [3, 5])
def test_one_output_channel_sums_in_lanes(kernel):
    """Its weights are read across until they are packed, which must not keep the sum from being vectors."""
    made = check_default(convolution((1, 6, 6, 8), 1, (kernel, kernel), pad=kernel // 2), "W", "bias")
    (sums,) = {x.loop.sym for s in made.body for x in walk((s,)) if isinstance(x, For) and "_b_l" in x.loop.sym.name}
    assert any(x.sym == sums and x.kind is Kind.VECTOR for x in loops_of(made.body))


@pytest.mark.parametrize("function", ["exp", "tanh"])
def test_an_epilogue_that_reads_a_sum_twice_is_part_of_the_product(function):
    """``v / f(v)`` with ``v = x @ w + b``: two stages read ``v`` until one of them is computed inside of the other."""
    x, w, bias, out = (Buffer(n, F, s) for n, s in (("x", (12, 9)), ("w", (9, 40)), ("b", (40,)), ("out", (12, 40))))
    product, v, u = (Buffer(n, F, (12, 40)) for n in ("product", "v", "u"))

    def plain(to, value):
        axes = axes_for((12, 40))
        i, j = syms(axes)
        return Stage((to,), axes, (i, j), (value(i, j),))

    axes, (k,) = axes_for((12, 40)), axes_for((9,), "k")
    i, j = syms(axes)
    fold = Stage((product,), axes, (i, j), (x[i, k.sym] * w[k.sym, j],), Reduction((k,), "add", (ZERO,)))
    stages = (
        fold,
        plain(v, lambda i, j: product[i, j] + bias[j]),
        plain(u, lambda i, j: Unary(function, v[i, j])),
        plain(out, lambda i, j: Binary("div", v[i, j], u[i, j])),
    )
    kernel = check_default(Computation((x, w, bias), (out,), stages, (product, v, u)), "w", "b")
    assert not [p for p in kernel.places if p.role is Role.TMP and p.space is Space.GLOBAL]


@pytest.mark.parametrize(("n", "alternates"), [(1008, True), (1000, False)])
def test_panels_are_walked_back_and_forth_only_where_all_are_alike(n, alternates):
    """Walked backwards, a ragged last panel would come first: every vector would be masked."""
    computation = matmul(512, n, 512)
    made = schedule_with_steps(computation, dataclasses.replace(WIDE, n_cores=1), constants_of(computation, "B"))
    assert ("alternate" in [s.primitive for s in made.schedule.steps]) == alternates


@given(m=st.integers(1, 40), n=st.integers(1, 10), k=st.integers(1, 300), epilogue=st.booleans(), fixed=st.booleans())
@SLOW
def test_products_of_few_columns(m, n, k, epilogue, fixed):
    check_default(matmul(m, n, k, epilogue), *(["B"] if fixed else []), machine=WIDE)


@pytest.mark.parametrize(("n", "k", "spreads"), [(3, 576, True), (8, 2048, True), (3, 40, False), (12, 2048, False)])
def test_few_columns_become_sums_along_a_long_reduction(n, k, spreads):
    computation = matmul(64, n, k)
    made = schedule_with_steps(computation, WIDE, constants_of(computation, "B"))
    assert ("spread" in [s.primitive for s in made.schedule.steps]) == spreads


@given(c=st.integers(16, 40), o=st.integers(1, 6), h=st.integers(3, 9), size=st.integers(1, 3))
@SLOW
def test_convolutions_to_few_channels(c, o, h, size):
    check_default(convolution((1, h, h, c), o, (size, size)), "W", machine=WIDE)
