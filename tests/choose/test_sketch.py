"""The price of a tile before it is scheduled: near the scheduled kernel's, in every order of its loops."""

from dataclasses import replace

import pytest
from benchmarks import computations

from tilewright import ops
from tilewright.choose.cost.price import price_of
from tilewright.choose.cost.sketch import cut_by, sketch, sketch_tile
from tilewright.choose.cost.tile import Box, Operand, Tile, alike_tiles, choose_tile
from tilewright.choose.cost.traffic import times_written
from tilewright.choose.default import schedule_with_steps
from tilewright.choose.strategies.contract_space import (
    Arrangement,
    Order,
    cheapest_arrangements,
    cheapest_of,
    orders,
    walks_of,
)
from tilewright.core.compute import Buffer, Computation, Const, Reduction, Stage, axes_for
from tilewright.core.estimates import DOUBT
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs
from tilewright.core.types import f32
from tilewright.target.target import Target
from tilewright.tile.ir import Kind

ZEN = replace(Target.parse("znver3"), n_cores=1)
BIG_CACHES = replace(ZEN, l1_bytes=4 << 20, l2_bytes=4 << 20, n_near_pages=1 << 10)
SMALL_CACHES = replace(ZEN, l1_bytes=4 << 10, l2_bytes=32 << 10, llc_bytes=256 << 10)


def product(*shape):
    """A product of constants, and what there is to choose for it."""
    c = computations.matmul(*shape)
    constants, seen = [b for b in c.inputs if b.name == "B"], []
    schedule_with_steps(c, ZEN, constants, arrange=seen.append)
    return c, constants, seen[0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("machine", "off"), [(ZEN, 0.1), (SMALL_CACHES, 0.2)], ids=["zen", "small caches"])
@pytest.mark.parametrize("shape", [(120, 240, 480), (24, 96, 1024), (576, 48, 64)])
def test_a_sketch_is_near_the_price_of_the_scheduled_kernel(shape, machine, off):
    c, constants, space = product(*shape)
    likely = sorted(space.tiles, key=lambda sizes: sketch_tile(space.of, machine, *sizes).least_cycles)
    for sizes in likely[:2]:
        tile = sketch_tile(space.of, machine, *sizes)
        for order in orders(tile, space.outside):
            if 0 < order.depth < 48:  # sums that come and go at every few steps share lines of a cache
                continue
            taken = Arrangement(Tile(*sizes), order)
            kernel = schedule_with_steps(c, ZEN, constants, arrange=lambda _, taken=taken: taken).kernel
            walks = walks_of(tile, space.outside, order, machine)
            seconds = sketch(tile, walks, order.depth, machine, is_shared=False)
            assert seconds == pytest.approx(price_of(kernel, machine).seconds, rel=off), taken


@pytest.mark.parametrize(
    ("extents", "depth", "cut"),
    [((5, 96), 96, (0, 1)), ((5, 96), 300, (0, 1)), ((6, 96), 300, (0, 3)), ((5, 96), 40, (1, 40)), ((7,), 9, (0, 7))],
)
def test_parts_of_a_reduction_cut_one_of_its_loops(extents, depth, cut):
    """The innermost anywhere, one of taps into equal parts."""
    assert cut_by(extents, depth) == cut


def test_a_sketch_of_a_window_tap_by_tap_is_near_the_price_of_the_scheduled_kernel():
    c, seen = computations.convolution((1, 18, 18, 48), 64, (3, 3)), []
    constants = [b for b in c.inputs if b.name == "W"]
    schedule_with_steps(c, ZEN, constants, arrange=seen.append)
    (space,) = seen
    sizes = min(space.tiles, key=lambda sizes: sketch_tile(space.of, ZEN, *sizes).least_cycles)
    tile = sketch_tile(space.of, ZEN, *sizes)
    for machine, depth in ((ZEN, 0), (ZEN, 48), (ZEN, 144), (SMALL_CACHES, 48), (SMALL_CACHES, 144)):
        taken = Arrangement(Tile(*sizes), Order(depth=depth))
        kernel = schedule_with_steps(c, ZEN, constants, arrange=lambda _, taken=taken: taken).kernel
        seconds = sketch(tile, walks_of(tile, space.outside, taken.order, ZEN), depth, machine, is_shared=False)
        assert seconds == pytest.approx(price_of(kernel, machine).seconds, rel=0.1), (machine, depth)


def test_the_cheapest_tile_and_order_follow_what_the_caches_hold():
    *_, space = product(120, 240, 480)
    whole, parts = (cheapest_arrangements(space, m, 1)[0].order for m in (BIG_CACHES, SMALL_CACHES))
    assert (whole.n_chunks, whole.depth) == (1, 0)
    assert parts.n_chunks > 1 or parts.depth > 0


def test_what_is_ranked_first_has_the_least_price_of_all_tiles_in_its_order():
    *_, space = product(77, 130, 200)
    best, *others = cheapest_arrangements(space, ZEN, 3)
    assert [a.seconds for a in others] == sorted(a.seconds for a in others)
    for sizes in space.tiles:
        tile = sketch_tile(space.of, ZEN, *sizes)
        walks = walks_of(tile, space.outside, best.order, ZEN)
        seconds = sketch(tile, walks, best.order.depth, ZEN, is_shared=False)
        assert tile.least_cycles / (ZEN.ghz * 1e9) <= seconds
        assert best.seconds <= seconds


def test_of_tiles_that_the_rules_cannot_tell_apart_a_clearly_cheaper_one_is_taken():
    *_, space = product(120, 240, 480)
    tiles = [(Tile(*sizes), Order()) for sizes in space.tiles]

    def seconds(tile, order):
        sizes = sketch_tile(space.of, ZEN, tile.rows, tile.rows2, tile.vectors)
        return sketch(sizes, walks_of(sizes, space.outside, order, ZEN), 0, ZEN, is_shared=False)

    by_price = sorted(tiles, key=lambda x: seconds(*x))
    cheapest, dearest = by_price[0], by_price[-1]
    near = next(x for x in by_price if 1 < seconds(*x) / seconds(*cheapest) < 1 / (1 - DOUBT))
    assert cheapest_of(space, [dearest, near, cheapest], ZEN) == cheapest
    assert cheapest_of(space, [near, cheapest], ZEN) == near, "no more than the price can tell"


@pytest.mark.parametrize("n", [96, 112, 197])
def test_tiles_alike_are_as_near_as_the_model_can_tell(n):
    rows, lanes, k = Sym("rows"), Sym("lanes"), Sym("k")
    operands = (Operand(rows * 64 + k, 0), Operand(k * 96 + lanes, 1))
    box = Box(lanes, 96, rows, n, None, 1, (), operands)
    best, *others = alike_tiles(box, ZEN, 8)
    assert best == choose_tile(box, ZEN, 8) and others
    assert all(best.cycles <= t.cycles <= best.cycles / (1 - DOUBT) for t in others)


def test_a_panel_is_copied_where_its_rows_lie_in_more_pages_than_a_core_knows():
    """Each row of 3,072 bytes lies in another page, so that all of a panel's are asked for again for every tile."""
    machine = replace(Target.parse("x86-64-v4"), l2_bytes=4 << 20)
    few, many = replace(machine, n_near_pages=64), replace(machine, n_near_pages=1 << 12)
    copied = []
    for m in (few, many):
        steps = schedule_with_steps(computations.matmul(384, 768, 768), m).schedule.steps
        copied.append(any(step.primitive == "stage" for step in steps))
    assert copied == [True, False]


def test_blocks_of_lanes_go_inside_where_lines_of_many_rows_are_waited_for():
    """64 rows that no near cache keeps: a line or two of each of them, or a few as a whole."""
    few = replace(Target.parse("x86-64-v4"), n_cores=2)
    large, small = computations.matmul(64, 25600, 8), computations.matmul(64, 128, 64)
    assert loops_of(large, few)[:2] == ["i0", "i1"]
    assert loops_of(large, replace(few, n_streams=1 << 10)) == loops_of(small, few) == ["i1", "i0"]


def test_rows_of_an_image_follow_each_other_where_results_lie_in_many_planes():
    """768 planes that no near cache keeps: 28 columns of each of them, row after row, or plane after plane."""
    machine = replace(Target.parse("x86-64-v4"), n_cores=2)
    large, small = across_planes(75, 768), across_planes(6, 48)
    assert loops_of(large, machine, "W") == ["w1", "w2"]
    assert loops_of(small, machine, "W") == ["w2", "w1"]


def test_only_loops_that_go_on_in_a_run_of_results_go_inside():
    """Of several images and groups the next result lies in another plane."""
    (images, groups, rows, columns, depth), machine = (3, 2, 257, 289, 257), replace(Target.parse("haswell"), n_cores=2)
    a, x = Buffer("A", f32, (groups, rows, depth)), Buffer("X", f32, (images, groups, depth, columns))
    y = Buffer("Y", f32, (images, groups, rows, columns))
    axes, reduced = axes_for(y.shape), axes_for((depth,), "k")
    (b, g, i, j), k = (s.sym for s in axes), reduced[0].sym
    zero = Const(0, f32)
    product = Stage((y,), axes, (b, g, i, j), (a[g, i, k] * x[b, g, k, j],), Reduction(reduced, "add", (zero,)))
    assert loops_of(Computation((a, x), (y,), (product,)), machine) == ["w3", "w0", "w1", "w2"]


def across_planes(rows, n_out, columns=28):
    """Windows of 1x7 over three planes, from which ``n_out`` are made."""
    shapes = ((1, 3, rows, columns + 6), (n_out, 3, 1, 7), (1, n_out, rows, columns))
    x, w, y = (Buffer(name, f32, shape) for name, shape in zip("XWY", shapes, strict=True))
    attrs = {"strides": (1, 1), "pads": ((0, 0), (0, 0)), "dilations": (1, 1), "layout": "NCHW", "groups": 1}
    return Computation((x, w), (y,), ops.conv.compute((x, w), (y,), Attrs(attrs)))


def test_rows_are_walked_in_chunks_only_where_panels_that_come_again_cost_less():
    """A chunk has few rows to walk a panel, which comes from the last cache while the first of them do."""
    assert loops_of(computations.matmul(256, 2048, 2048), ZEN, "B") == ["i1", "i0"]
    assert loops_of(computations.matmul(784, 512, 512), ZEN, "B") == ["i0", "i1", "i0"]


def loops_of(c, machine, constant="A"):
    """The loops outside of a product's sums, by the axis that they walk."""
    (body,) = schedule_with_steps(c, machine, [b for b in c.inputs if b.name == constant]).kernel.body
    found = []
    while body.loop.kind is not Kind.UNROLL:
        found.append(body.loop.sym.name.removeprefix("Y_")[:2])
        body = body.body[-1]  # behind copies
    return found


def test_results_in_many_pages_move_as_if_twice():
    machine = replace(Target.parse("x86-64-v4"), n_streams=8, page_bytes=4096)
    lanes, rows, blocks = (4, 16), (8192, 32), (64, 100)
    assert times_written(4, [lanes, rows, blocks], machine) == pytest.approx(2 * (2 - 8 / 32))
    assert times_written(4, [lanes, (8192, 8), blocks], machine) == 2, "as many pages as caches look ahead along"
    assert times_written(4, [lanes, blocks, rows], machine) == 2, "row by row"
    assert times_written(4, [lanes, (64, 32), (2048, 100)], machine) == 2, "one run"
    # Half of the runs begin in a page in which another run ended.
    assert times_written(4, [lanes, (2048, 32), blocks], machine) == pytest.approx(2 * (1 + 0.5 * (1 - 8 / 16)))
