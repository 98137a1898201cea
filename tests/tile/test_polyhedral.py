"""Exact dependences: as enumeration finds them; and no step that a primitive's quick check accepts breaks one."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import convolution, matmul, softmax
from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Load
from tilewright.core.expr import Sym, evaluate, maximum, minimum
from tilewright.tile.errors import ScheduleError
from tilewright.tile.interp import run
from tilewright.tile.ir import For, If, Kernel, Loop, Place, Role, Space, Store, Update, walk
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder

isl = pytest.importorskip("islpy")
exact = pytest.importorskip("tilewright.tile.polyhedral.dependences")
exact_sets = pytest.importorskip("tilewright.tile.polyhedral.sets")
bands = pytest.importorskip("tilewright.tile.polyhedral.bands")
orders = pytest.importorskip("tilewright.tile.polyhedral.orders")

I64 = types.i64
ROOM = 24
"""Elements of each axis of a buffer: more than any index of these kernels reaches, from ``MIDDLE`` on either way."""
MIDDLE = 8


# --- random kernels -------------------------------------------------------------------------------------------------


@st.composite
def indices(draw, loops, rank):
    """Affine in at most two loops, from the middle of the buffer on."""
    made = []
    for _ in range(rank):
        index = MIDDLE + draw(st.integers(-2, 2))
        for loop in draw(st.lists(st.sampled_from(loops), min_size=1, max_size=2, unique=True)):
            index = index + draw(st.sampled_from([1, 1, 1, -1, 2])) * loop.sym
        made.append(index)
    return tuple(made)


@st.composite
def nests(draw, buffers, names):
    """A perfect nest of one to three loops around one or two statements over the buffers."""
    loops = []
    for name in names[: draw(st.integers(1, len(names)))]:
        extent = draw(st.integers(2, 4))
        if loops and draw(st.integers(0, 2)) == 0:
            around = sum((x.sym for x in loops), 0)
            extent = minimum(around + 1, extent) if draw(st.booleans()) else maximum(extent - around, 0)
        loops.append(Loop(Sym(name, 0, 3), extent))
    body = []
    for _ in range(draw(st.integers(1, 2))):
        target = draw(st.sampled_from(buffers))
        value = Const(1, I64)
        for source in draw(st.lists(st.sampled_from(buffers), max_size=2)):
            value = value + Load(source, draw(indices(loops, len(source.shape))))
        at = draw(indices(loops, len(target.shape)))
        add = draw(st.booleans())
        body.append(Update(target, at, "add", value) if add else Store(target, at, value))
    return loops, body


def wrapped(loops, body):
    for loop in reversed(loops):
        body = [For(loop, tuple(body))]
    return body


def kernel_of(body, buffers):
    return Kernel("k", tuple(Place(b, Space.GLOBAL, Role.OUT) for b in buffers), (), tuple(body))


@st.composite
def kernels(draw, n_nests=1):
    buffers = [Buffer("A", I64, (ROOM,)), Buffer("B", I64, (ROOM, ROOM))]
    found = [draw(nests(buffers, [f"{c}{k}" for c in "ijk"])) for k in range(n_nests)]
    return kernel_of([s for loops, body in found for s in wrapped(loops, body)], buffers), [x for x, _ in found]


# --- what happens, one iteration after the other -------------------------------------------------------------------


def trace(body, values, numbers):
    """(statement, iteration, reads, writes, update) in order."""
    for s in body:
        if isinstance(s, For):
            for v in range(evaluate(s.loop.extent, values)):
                yield from trace(s.body, {**values, s.loop.sym: v}, numbers)
        elif isinstance(s, If):
            yield from trace(s.body, values, numbers)
        else:
            at = {(s.buffer, tuple(evaluate(i, values) for i in s.index))}
            reads = {(x.buffer, tuple(evaluate(i, values) for i in x.index)) for x in loads_of(s)}
            is_update = isinstance(s, Update)
            yield numbers[id(s)], tuple(values.values()), reads | (at if is_update else set()), at, is_update, reads


def events(kernel):
    numbers = {id(s): k for k, s in enumerate(s for s in walk(kernel.body) if isinstance(s, Store | Update))}
    return list(trace(kernel.body, {}, numbers))


def conflicts(a, b):
    """Do two iterations touch one element, one of them writing?"""
    return bool((a[3] & (b[2] | b[3])) | (a[2] & b[3]))


def pairs_of(kernel):
    return {((a[0], a[1]), (b[0], b[1])) for a, b in combinations(events(kernel), 2) if conflicts(a, b)}


@given(kernels(n_nests=2))
@settings(max_examples=20)
def test_dependences_are_those_that_enumeration_finds(made):
    kernel, _ = made
    found = set()
    for d in exact.dependences(kernel):
        wrapped_pairs = d.pairs.wrap()
        n = d.pairs.dim(isl.dim_type.in_)

        def add(point, d=d, n=n):
            at = [
                point.get_coordinate_val(isl.dim_type.set, k).to_python()
                for k in range(point.space.dim(isl.dim_type.set))
            ]
            found.add(((d.source, tuple(at[:n])), (d.target, tuple(at[n:]))))

        wrapped_pairs.foreach_point(add)
    assert found == pairs_of(kernel)


# --- judgements ----------------------------------------------------------------------------------------------------


def what_is_seen(events):
    """What each load sees, and the end: the last store of the element and the updates since; updates in any order."""
    holds, seen = {}, {}
    for number, at, _, writes, is_update, reads in events:
        for element in reads:
            seen[number, at, element] = holds.get(element, frozenset())
        for element in writes:
            holds[element] = (holds.get(element, frozenset()) if is_update else frozenset()) | {(number, at)}
    return seen, holds


def at_end(kernel):
    """The numbers that its buffers hold in the end, from numbers that differ."""
    shapes = {p.buffer.name: p.buffer.shape for p in kernel.places}
    begin = {name: np.arange(np.prod(shape)).reshape(shape) ** 3 + 7 for name, shape in shapes.items()}
    return {name: array.tolist() for name, array in run(kernel, begin).items()}


def is_broken(kernel, later):
    """Does a load, or the end, see something else when iterations run in the order of the key ``later``?"""
    before = events(kernel)
    return what_is_seen(before) != what_is_seen(sorted(before, key=later))


@given(kernels(), st.data())
@settings(max_examples=30)
def test_exchanges_are_judged_as_enumeration_judges_them(made, data):
    kernel, (loops,) = made
    order = data.draw(st.sampled_from(list(permutations(range(len(loops))))))
    names = [loops[k].sym.name for k in order]
    why = exact.why_not_reorder(kernel, *names)
    assert (why is not None) == is_broken(kernel, lambda e: (*(e[1][k] for k in order), e[0]))
    if why is not None:
        assert all(name in str(why) for name in names) and why.buffer.name in str(why)
    try:
        moved = ScheduleBuilder(kernel).do("reorder", *names).after
    except ScheduleError:
        return
    # Which of several iterations stores one constant last is nothing that anyone sees.
    assert why is None or at_end(moved) == at_end(kernel)


def test_who_stores_one_constant_last_does_not_matter_to_a_reorder():
    a, i, j = Buffer("A", I64, (ROOM,)), Loop(Sym("i", 0, 3), 2), Loop(Sym("j", 0, 3), 2)
    k = Loop(Sym("k", 0, 3), maximum(2 - i.sym - j.sym, 0))
    kernel = kernel_of(wrapped([i, j, k], [Store(a, (k.sym + MIDDLE,), Const(1, I64))]), [a])
    assert exact.why_not_reorder(kernel, "j", "i", "k") is not None
    assert at_end(ScheduleBuilder(kernel).do("reorder", "j", "i", "k").after) == at_end(kernel)


@given(kernels(), st.data())
@settings(max_examples=30)
def test_loops_at_one_time_are_judged_as_enumeration_judges_them(made, data):
    kernel, (loops,) = made
    depth = data.draw(st.integers(0, len(loops) - 1))
    name = loops[depth].sym.name
    shared = any(
        conflicts(a, b) and a[1][:depth] == b[1][:depth] and a[1][depth] != b[1][depth]
        for a, b in combinations(events(kernel), 2)
    )
    assert (exact.why_not_parallel(kernel, name) is not None) == shared
    try:
        ScheduleBuilder(kernel).do("kind", name, "parallel")
    except ScheduleError:
        return
    assert not shared


@given(kernels(n_nests=2))
@settings(max_examples=30)
def test_loops_made_one_are_judged_as_enumeration_judges_them(made):
    kernel, ((first, *_), (second, *_)) = made
    if first.extent != second.extent:
        return
    n_first = sum(isinstance(s, Store | Update) for s in walk((kernel.body[0],)))
    broken = is_broken(kernel, lambda e: (e[1][0], e[0] >= n_first, *e[1][1:], e[0]))
    assert (exact.why_not_merge(kernel, first.sym.name, second.sym.name) is not None) == broken
    try:
        ScheduleBuilder(kernel).do("merge", first.sym.name, second.sym.name)
    except ScheduleError:
        return
    assert not broken


@given(kernels(), st.data())
@settings(max_examples=30)
def test_skews_are_judged_as_enumeration_judges_them(made, data):
    """A statement's iterations by sums of loops, exchanged: refused exactly where one comes before what it needs."""
    kernel, (loops,) = made
    (first, *_) = exact_sets.instances(kernel)
    kernel = kernel_of(wrapped(loops, [first.statement]), [p.buffer for p in kernel.places])
    found, n = exact_sets.instances(kernel), len(loops)
    skews = [[data.draw(st.integers(-1, 2)) for _ in range(k)] + [1] + [0] * (n - 1 - k) for k in range(n)]
    rows = [skews[k] for k in data.draw(st.permutations(range(n)))]
    inside = ", ".join(f"i{k}" for k in range(n))
    text = [" + ".join(f"{c}*i{k}" for k, c in enumerate(row)) for row in rows]
    band = bands.Band(0, tuple({0: isl.Map(f"{{ S0[{inside}] -> [{line}] }}")} for line in text))
    kept, commuting = bands._sorted(found)
    order = bands.Bands(found, (), kept, commuting, (band,), {0: (band,)})
    later = {e[1]: tuple(np.dot(rows, e[1])) for e in events(kernel)}
    pairs = [(a, b) for a, b in combinations(events(kernel), 2) if conflicts(a, b)]
    broken = any(later[a[1]] > later[b[1]] and not _commute(a, b) for a, b in pairs)
    if broken:
        with pytest.raises(ScheduleError, match="breaks a dependence on"):
            orders.order_of(order, [orders.BandForm.as_found(band)])
    else:
        orders.order_of(order, [orders.BandForm.as_found(band)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "judged, drawn",
    [
        (test_exchanges_are_judged_as_enumeration_judges_them, (kernels(), st.data())),
        (test_loops_made_one_are_judged_as_enumeration_judges_them, (kernels(n_nests=2),)),
        (test_skews_are_judged_as_enumeration_judges_them, (kernels(), st.data())),
    ],
    ids=["exchanges", "fusions", "skews"],
)
def test_thousands_of_steps_are_judged_so(judged, drawn):
    """All in all 5,100."""

    @given(st.tuples(*drawn))
    @settings(max_examples=1700)
    def many(case):
        judged.hypothesis.inner_test(*case)

    many()


def _commute(a, b):
    """Do two iterations of one statement share elements only as updates?"""
    return a[4] and b[4] and not (a[3] & b[5]) and not (a[5] & b[3])


def test_a_broken_order_shows_the_first_pair_of_iterations():
    a, (i, j) = Buffer("A", I64, (ROOM, ROOM)), (Loop(Sym(n, 0, 3), 4) for n in "ij")
    sweep = Store(a, (i.sym + 1, j.sym), Load(a, (i.sym, j.sym + 1)) + Const(1, I64))
    why = exact.why_not_reorder(kernel_of(wrapped([i, j], [sweep]), [a]), "j", "i")
    assert str(why) == (
        "j, i in this order would let the iteration (i = 1, j = 0) no longer see what the iteration (i = 0, j = 1) "
        "writes to A"
    )


@pytest.mark.parametrize(
    "made", [matmul(Sym("M"), Sym("N"), Sym("K")), softmax(Sym("R"), 7), convolution((1, 5, 5, 2), 3, (3, 3), 1, 1)]
)
def test_symbolic_sizes_are_parameters(made):
    kernel = lower(made, "k")
    row = next(s.loop.sym.name for s in walk(kernel.body) if isinstance(s, For))
    assert exact.dependences(kernel)
    assert exact.why_not_parallel(kernel, row) is None
