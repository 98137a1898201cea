"""Nests in the order of Pluto's loops: random ones compute what they did, stencils are skewed and tiled along time."""

from dataclasses import replace
from random import Random
from threading import Thread

import numpy as np
import pytest

from tilewright import ops
from tilewright.build.kernels import optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.core.compute import Binary, Buffer, Const, Load
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f64, i64
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.interp import run
from tilewright.tile.ir import For, If, Kernel, Kind, Loop, Place, Role, Space, Store, Update, walk
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import loop_sym
from tilewright.tile.schedule import PRIMITIVES, ScheduleBuilder
from tilewright.tile.text import body_text
from tilewright.tile.verify import verify

pytest.importorskip("islpy")
bands = pytest.importorskip("tilewright.tile.polyhedral.bands")
orders = pytest.importorskip("tilewright.tile.polyhedral.orders")
ordered = pytest.importorskip("tilewright.choose.strategies.ordered")

REACH = 2
"""How far from its own place an iteration reads."""
SIDE = 5
SLOW_SEEDS = (range(10, 25), *(range(k, k + 25) for k in range(25, 500, 25)))
SEEDS = [range(10), *(pytest.param(seeds, marks=pytest.mark.slow) for seeds in SLOW_SEEDS)]


def place(buffer, role=Role.OUT):
    return Place(buffer, Space.GLOBAL, role)


def random_nest(random):
    """Up to three statements on two buffers, in up to three loops, of which inner ones may be triangles."""
    wide = SIDE + 2 * REACH
    buffers = [Buffer("a", i64, (wide, wide)), Buffer("b", i64, (wide,))]
    names = iter("ijklmnpqrs")

    def index(buffer, loops):
        return tuple(random.choice(loops).sym + random.randint(0, 2 * REACH) for _ in buffer.shape)

    def statement(loops):
        target = random.choice(buffers)
        loads = [Load(b, index(b, loops)) for b in random.choices(buffers, k=2)]
        value = Binary(random.choice(["add", "sub", "max"]), *loads)
        if random.random() < 0.3:
            return Update(target, index(target, loops), random.choice(["add", "max"]), value)
        return Store(target, index(target, loops), value)

    def body(loops, depth):
        made = []
        for _ in range(random.randint(1, 2)):
            if depth and random.random() < 0.8:
                extent = random.choice([SIDE, random.randint(1, SIDE)])
                if loops and random.random() < 0.3:
                    extent = loops[-1].sym + 1
                loop = Loop(loop_sym(next(names), extent), extent)
                made.append(For(loop, body([*loops, loop], depth - 1)))
            else:
                made.append(statement(loops))
        return tuple(made[:2])

    outer = Loop(loop_sym("t", SIDE), SIDE)
    try:
        return Kernel("k", tuple(map(place, buffers)), (), (For(outer, body([outer], 2)),))
    except StopIteration:
        return random_nest(random)


def random_forms(random, kernel, fusion):
    found = bands.bands_of(kernel, is_fused=fusion == "fused").bands
    made = []
    for b in found:
        order = random.sample(range(len(b.loops)), len(b.loops))
        tiles = [random.choice([0, 0, 2, 3]) for _ in order]
        waves = (tuple(order[-2:]),) if len(order) > 1 and random.random() < 0.3 else ()
        made.append(orders.BandForm(tuple(order), tuple(tiles), waves))
    return orders.forms_text(made)


def random_case(random):
    """A nest and arguments of the step; another in place of one whose dependences are too many, or beyond ``isl``."""
    while True:
        kernel = random_nest(random)
        fusion, lanes = random.choice(["fused", "apart"]), random.choice([0, 2, 4])
        try:
            return kernel, ("t", fusion, random_forms(random, kernel, fusion), lanes)
        except ScheduleError as e:
            assert "dependences, more than" in e.message or "has no solution" in e.message


def results(kernel, reverse=False):
    rng = np.random.default_rng(0)
    given = {p.buffer.name: rng.integers(-9, 9, p.buffer.shape) for p in kernel.places if p.space is Space.GLOBAL}
    made = run(kernel, given, reverse=reverse)
    return {p.buffer.name: made[p.buffer.name] for p in kernel.places if p.space is Space.GLOBAL}


@pytest.mark.parametrize("seeds", SEEDS)
def test_random_nests_compute_what_they_did(seeds):
    """Every order and every tile of a band is legal, and none changes a result."""
    n_lanes = n_refused = 0
    for seed in seeds:
        kernel, step = random_case(Random(seed))
        try:
            made = PRIMITIVES["resequence"](kernel, *step)
        except ScheduleError as e:
            assert "has no form" in e.message  # bounds that isl writes with a choice, which no expression here has
            n_refused += 1
            continue
        verify(made)
        n_lanes += any(isinstance(s, For) and s.loop.kind is Kind.VECTOR for s in walk(made.body))
        before, after = results(kernel), results(made, reverse=True)
        for name, x in before.items():
            said = f"{seed} {step}\n{body_text(kernel.body)}\n{body_text(made.body)}"
            np.testing.assert_array_equal(after[name], x, err_msg=said)
    assert n_lanes and n_refused <= 2


def heat(n=None):
    """Steps of heat along a line, between two buffers."""
    n = Sym("n", 3) if n is None else n
    a, b = Buffer("a", i64, (n,)), Buffer("b", i64, (n,))

    def sweep(name, source, target):
        x = Loop(loop_sym(name, n - 2), n - 2)
        value = Binary("add", Load(source, (x.sym,)), Load(source, (x.sym + 2,)))
        return For(x, (Store(target, (x.sym + 1,), value),))

    t = Loop(loop_sym("t", 6), 6)
    sizes = (n,) if isinstance(n, Sym) else ()
    return Kernel("heat", (place(a), place(b)), sizes, (For(t, (sweep("i", a, b), sweep("j", b, a))),))


def test_a_stencil_is_tiled_along_time():
    """Steps of time are a loop of the band, and a tile holds several of them: the outermost loop is one of tiles."""
    kernel = heat(12)
    (band,) = bands.bands_of(kernel, is_fused=True).bands
    assert len(band.loops) == 2
    made = PRIMITIVES["resequence"](kernel, "t", "fused", "0 1:2 4", 2)
    outermost = next(s for s in made.body if isinstance(s, For))
    assert outermost.loop.extent == 3  # of six steps
    np.testing.assert_array_equal(results(made)["a"], results(kernel)["a"])


def seidel(n=12, steps=3):
    """Steps of a stencil in place, each of whose elements needs the one before it in its row."""
    a, x, y = Buffer("a", i64, (n, n)), loop_sym("x", n - 2), loop_sym("y", n - 2)
    value = Binary("add", Load(a, (x + 1, y)), Binary("sub", Load(a, (x, y + 2)), Load(a, (x + 2, y + 1))))
    t = Loop(loop_sym("t", steps), steps)
    nest = For(t, (For(Loop(x, n - 2), (For(Loop(y, n - 2), (Store(a, (x + 1, y + 1), value),)),)),))
    return Kernel("seidel", (place(a),), (), (nest,))


def test_waves_take_what_waits_apart():
    """A row's elements wait for each other; along the sum of two loops those of one wave do not."""
    kernel = seidel()
    found = bands.bands_of(kernel, is_fused=True)
    (band,) = found.bands
    assert orders.waits(found, [orders.BandForm.as_found(band)], band)
    (form,) = orders.read_forms("0 2+1 1:0 0 4", found.bands)
    assert str(form) == "0 2+1 1:0 0 4"
    made = PRIMITIVES["resequence"](kernel, "t", "fused", str(form), 4)
    (innermost,) = [s for s in walk(made.body) if isinstance(s, For) and isinstance(s.body[0], Store)]
    at_once = replace(innermost, loop=replace(innermost.loop, kind=Kind.PARALLEL))
    backwards = results(replace(made, body=replaced(made.body, innermost, at_once)), reverse=True)
    np.testing.assert_array_equal(backwards["a"], results(kernel)["a"])


def replaced(body, old, new):
    """The body with one loop in another's place."""
    return tuple(
        new if s is old else replace(s, body=replaced(s.body, old, new)) if isinstance(s, For | If) else s for s in body
    )


def test_what_waits_runs_in_waves():
    """An iteration that needs the last one's result takes as long as its chain, and so the price says."""
    a, i = Buffer("a", i64, (400,)), Loop(loop_sym("i", 398), 398)
    value = Binary("sub", Binary("add", Load(a, (i.sym,)), Load(a, (i.sym + 1,))), Load(a, (i.sym + 2,)))
    t = Loop(loop_sym("t", 90), 90)
    b = ScheduleBuilder(Kernel("k", (place(a),), (), (For(t, (For(i, (Store(a, (i.sym + 1,), value),)),)),)))
    ordered.ordered(b, Target.parse("x86-64-v3"), "t")
    (step,) = b.schedule.steps
    assert "+" in step.args[2]


def test_a_tile_begins_where_its_end_is_near():
    """Strips of waves run from their own start, not from the first of all with nothing to do until then."""
    made = PRIMITIVES["resequence"](seidel(400, 50), "t", "fused", "0 2+1 1:0 0 32", 4)
    assert ordered.n_runs(made.body, {}) == pytest.approx(50 * 398 * 398, rel=0.1)


def pivoted(random, n=6):
    """All elements by those of a row and a column that may be of the pivot, at random places, in random orders."""
    a = Buffer("a", i64, (n + 2, n + 2))
    k, i, j = (loop_sym(name, n) for name in ("k", "i", "j"))
    c, d, e = (random.randint(0, 2) for _ in range(3))
    by = Binary(random.choice(["add", "sub"]), Load(a, (i + d, k + c)), Load(a, (k + e, j + c)))
    place, op = (i + d, j + c), random.choice(["min", "max", "add"])
    update = Update(a, place, op, by) if random.random() < 0.5 else Store(a, place, Binary(op, Load(a, place), by))
    ends = {s: random.choice([n, n, k + 1, n - k]) for s in (i, j)}
    inner = [Loop(s, ends[s]) for s in random.sample([i, j], 2)]
    return Kernel("k", (globals()["place"](a),), (), (For(Loop(k, n), (For(inner[0], (For(inner[1], (update,)),)),)),))


def test_rows_are_cut_where_the_pivot_is():
    """Iterations before the one that all others of a row read, and those behind it, share nothing and may be lanes."""
    n_cut = n_lanes = 0
    for seed in range(6):
        kernel = pivoted(Random(seed))
        n_cut += len(bands.bands_of(kernel, is_fused=True).instances) > 1
        for form in random_forms(Random(seed), kernel, "fused"), "":
            try:
                made = PRIMITIVES["resequence"](kernel, "k", "fused", form, 4)
            except ScheduleError as e:
                assert "has no form" in e.message
                continue
            verify(made)
            n_lanes += any(isinstance(s, For) and s.loop.kind is Kind.VECTOR for s in walk(made.body))
            said = f"{seed} {form}\n{body_text(kernel.body)}\n{body_text(made.body)}"
            np.testing.assert_array_equal(results(made)["a"], results(kernel)["a"], err_msg=said)
    assert n_cut >= 3 and n_lanes >= 3


def test_sizes_of_a_call_are_kept():
    kernel = heat()
    made = PRIMITIVES["resequence"](kernel, "t", "fused", "1 0:4 2", 4)
    for n in (3, 4, 9, 17):
        given = {name: np.arange(n) ** 2 % 7 for name in "ab"}
        before, after = (run(k, {b: x.copy() for b, x in given.items()}, {"n": n}) for k in (kernel, made))
        np.testing.assert_array_equal(after["a"], before["a"])


def test_large_numbers_are_parameters():
    """An order of a nest of 400 iterations takes as long to find as one of any size."""
    numbers = pytest.importorskip("tilewright.tile.polyhedral.sets").large_numbers
    assert numbers(heat(400)) == [398]
    found = bands.bands_of(heat(400), is_fused=True)
    assert [str(next(iter(x.values()))) for x in found.bands[0].loops] == [
        str(next(iter(x.values()))) for x in bands.bands_of(heat(900), is_fused=True).bands[0].loops
    ]


@pytest.mark.parametrize(
    "step, said",
    [
        (("t", "together"), "unknown fusion"),
        (("t", "fused", "0 0"), "no order of 2 loops"),
        (("t", "fused", "1 0+1"), "no order of 2 loops"),
        (("t", "fused", "0 1; 0"), "2 forms for 1 bands"),
        (("t", "fused", "0 1", -1), "-1 lanes"),
        (("i", "fused"), "inside of another loop"),
    ],
)
def test_what_does_not_fit_is_refused(step, said):
    with pytest.raises(ScheduleError, match=said):
        PRIMITIVES["resequence"](heat(12), *step)


def test_a_step_that_breaks_a_dependence_is_refused():
    """Bands are legal in any order by themselves; what a form says is proved all the same."""
    found = bands.bands_of(heat(12), is_fused=True)
    (band,) = found.bands
    backwards = tuple({k: m.neg() for k, m in x.items()} for x in band.loops)
    broken = bands.Band(0, backwards)
    paths = {k: tuple(broken if x is band else x for x in p) for k, p in found.paths.items()}
    wrong = bands.Bands(found.instances, found.parameters, found.kept, found.commuting, (broken,), paths)
    with pytest.raises(ScheduleError, match="breaks a dependence on"):
        orders.order_of(wrong, orders.read_forms("", wrong.bands))


def test_times_have_no_number_that_is_one_in_all_iterations() -> None:
    """``isl`` takes twice as long with a time of twice as many numbers; a statement alone has one for each loop."""
    a, (i, j) = Buffer("a", i64, (9, 9)), (Loop(loop_sym(x, 8), 8) for x in "ij")
    nest = For(i, (For(j, (Store(a, (i.sym + 1, j.sym), Load(a, (i.sym, j.sym + 1))),)),))
    found = bands.bands_of(Kernel("k", (place(a),), (), (nest,)), is_fused=True)
    (lone,) = orders.times_of(found, orders.read_forms("", found.bands)).statements.values()
    assert lone.time.dim(bands.isl.dim_type.out) == 2


def test_the_cheapest_order_is_taken():
    """Sums of rows into columns run along rows: the search exchanges the loops."""
    n = 64
    a, s = Buffer("a", i64, (n, n)), Buffer("s", i64, (n, n))
    i, j = Loop(loop_sym("i", n - 1), n - 1), Loop(loop_sym("j", n), n)
    store = Store(s, (i.sym + 1, j.sym), Binary("add", Load(s, (i.sym, j.sym)), Load(a, (i.sym, j.sym))))
    kernel = Kernel("k", (place(a, Role.IN), place(s)), (), (For(j, (For(i, (store,)),)),))
    b = ScheduleBuilder(kernel)
    ordered.ordered(b, Target.parse("x86-64-v3"), "j")
    (step,) = b.schedule.steps
    lanes = [x for x in walk(b.kernel.body) if isinstance(x, For) and x.loop.kind is Kind.VECTOR]
    assert step.primitive == "resequence" and lanes
    np.testing.assert_array_equal(results(b.kernel)["s"], results(kernel)["s"])


def test_lanes_along_columns_touch_a_page_each():
    """And so does each of their copies; along rows a vector's step is a part of a page."""
    a, machine = Buffer("a", f64, (768, 512)), Target.parse("x86-64-v4")
    i, copy, lane = (
        Loop(loop_sym("i", 24), 24),
        Loop(loop_sym("c", 4), 4, Kind.UNROLL),
        Loop(Sym("l", 0, 7), 8, Kind.VECTOR),
    )
    at = i.sym * 32 + copy.sym * 8 + lane.sym
    for index, n in (((at, 3), 32), ((3, at), 32 * 8 / machine.page_bytes)):
        body = (For(copy, (For(lane, (Store(a, index, Const(1, f64)),)),)),)
        assert ordered.new_pages(body, i, machine, {}) == n


def test_strips_of_columns_go_to_the_end():
    """A recurrence along rows runs along columns, whose pages a core forgets in a whole column, and not in a strip."""
    n = 1024
    a, i, j = Buffer("a", f64, (n, n)), Loop(loop_sym("i", n), n), Loop(loop_sym("j", n - 1), n - 1)
    step = Store(a, (i.sym, j.sym + 1), Binary("add", Load(a, (i.sym, j.sym)), Load(a, (i.sym, j.sym + 1))))
    b = ScheduleBuilder(Kernel("k", (place(a),), (), (For(i, (For(j, (step,)),)),)))
    machine = Target.parse("x86-64-v4")
    ordered.ordered(b, machine, "i")
    (found,) = b.schedule.steps
    _, tiles = found.args[2].split(":")
    assert 0 < int(tiles.split()[-1]) <= machine.n_near_pages


def test_no_order_is_sought_for_loops_of_an_op() -> None:
    """An op's author chose their order; a search would find none better, in seconds."""
    b = Builder(Pool())
    a, right = (b.pool.input(name, TensorType(f64, (4, 4))) for name in ("a", "right"))
    x = b(ops.solve_triangular, a, right, upper=False)
    graph = Graph("solve", b.pool, (a, right), (x,), ("x",))
    options = Options(target="x86-64-v3")
    groups = optimise_and_split(graph, options, options.machine, Clock()).kernels.groups
    (computation,) = (g.computation for g in groups.values())
    assert ordered.nests_in_order(replace(computation, is_ordered=False))
    assert not ordered.nests_in_order(computation)


def test_of_a_program_that_would_take_long_the_outer_loop_stays() -> None:
    """Seven statements in lanes of a batch: ``isl`` would be at it for half a minute, and count few operations."""
    b = Builder(Pool())
    a, right = (b.pool.input(name, TensorType(f64, (517, 3, 3))) for name in ("a", "right"))
    graph = Graph("solve", b.pool, (a, right), (b(ops.solve_triangular, a, right, upper=False),), ("x",))
    options = Options(target="x86-64-v3")
    (group,) = optimise_and_split(graph, options, options.machine, Clock()).kernels.groups.values()
    kernel = lower(group.computation)
    (nest,) = [s for s in kernel.body if isinstance(s, For)]
    found = bands.bands_of(bands.nest_alone(kernel, nest), is_fused=True)
    (batch,) = found.bands[0].loops
    assert all(path[0] is found.bands[0] for path in found.paths.values())
    assert all(str(m).endswith("-> [i0] }") for m in batch.values())


def test_nests_in_parts_compute_what_they_did(monkeypatch):
    """Where programs are small, outer loops stay as written, and what is inside of them runs in any order."""
    monkeypatch.setattr(bands, "TABLEAU", 60)
    n_parted = 0
    for seed in range(8):
        random = Random(seed)
        kernel = random_nest(random)
        try:
            step = ("t", "fused", random_forms(random, kernel, "fused"), 2)
            made = PRIMITIVES["resequence"](kernel, *step)
        except ScheduleError as e:
            assert "has no form" in e.message or "integer program" in e.message
            continue
        verify(made)
        n_parted += bands.bands_of(kernel, is_fused=True).bands[0].is_written
        before, after = results(kernel), results(made, reverse=True)
        for name, x in before.items():
            np.testing.assert_array_equal(after[name], x, err_msg=f"{seed} {step}\n{body_text(kernel.body)}")
    assert n_parted


def test_threads_put_loops_in_order_at_one_time():
    """``isl`` has one context, whose options and count of operations a search changes while it runs."""
    kernel, texts, faults = heat(), set(), []

    def turn(fusion):
        try:
            b = ScheduleBuilder(kernel)
            b.do("resequence", kernel.body[0].loop.sym.name, fusion, "", 0)
            texts.add((fusion, body_text(b.kernel.body)))
        except Exception as error:
            faults.append(error)

    threads = [Thread(target=turn, args=(fusion,)) for fusion in ("fused", "apart") * 4]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults and len(texts) == 2


def test_a_statement_that_never_runs_leaves_the_nest_as_it_was() -> None:
    a, (i, j) = Buffer("a", i64, (4,)), (Loop(loop_sym("i", 4), 4), Loop(loop_sym("j", 0), 0))
    grown = Store(a, (i.sym,), Binary("add", Load(a, (i.sym,)), Load(a, (0,))))
    kernel = Kernel("k", (place(a),), (), (For(i, (grown, For(j, (grown,)))),))
    with pytest.raises(ScheduleError, match="never run"):
        bands.bands_of(kernel, is_fused=True)


def test_sums_that_the_data_place_have_no_lanes() -> None:
    """A histogram's counts are of one buffer, and each iteration's of an element of its own."""
    x, counts = Buffer("x", i64, (3, 7)), Buffer("counts", i64, (9,))
    i, j = Loop(loop_sym("i", 3), 3), Loop(loop_sym("j", 7), 7)
    count = Update(counts, (Load(x, (i.sym, j.sym)),), "add", Const(1, i64))
    kernel = Kernel("k", (place(x, Role.IN), place(counts)), (), (For(i, (For(j, (count,)),)),))
    made = PRIMITIVES["resequence"](kernel, "i", "fused", "0 1", 4)
    verify(made)
    given = {"x": np.arange(21).reshape(3, 7) ** 2 % 9, "counts": np.zeros(9, np.int64)}
    found = run(made, {b: a.copy() for b, a in given.items()})["counts"]
    np.testing.assert_array_equal(found, np.bincount(given["x"].ravel(), minlength=9))


def test_a_nest_of_few_operations_ends() -> None:
    """Of this nest's integer program ``isl`` counts few operations, and its numbers grew for as long as one waited."""
    kernel, step = random_case(Random(51465))
    before, after = results(kernel), results(PRIMITIVES["resequence"](kernel, *step), reverse=True)
    np.testing.assert_array_equal(after["a"], before["a"])
    np.testing.assert_array_equal(after["b"], before["b"])
