"""Loops, lanes, guards and buffers of every kind, against the tile IR's interpreter."""

import numpy as np
import pytest

from codegen.native import HOST, Native, kernel, local, param, random_array, reg
from tilewright.codegen.cpu import llvm
from tilewright.codegen.llvm.split import Splits
from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Combiner,
    Const,
    Index,
    Inside,
    Param,
    Select,
)
from tilewright.core.expr import Sym, ceildiv, evaluate, maximum, minimum
from tilewright.target.target import Target
from tilewright.tile import interp
from tilewright.tile.ir import Fold, For, If, Kind, Loop, Place, Prefetch, Role, Space, Store, Update
from tilewright.tile.text import parse_kernel

TARGETS = [HOST, Target.parse("x86-64-v3"), Target.parse("x86-64")]
f32, i32, i64 = types.f32, types.i32, types.i64
ZERO, ONE = Const(0.0, f32), Const(1.0, f32)
every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)


def sym(name, extent):
    return Sym(name, 0, extent - 1 if isinstance(extent, int) else None)


def loop(s, extent, *body, kind=Kind.SERIAL):
    return For(Loop(s, extent, kind), body)


def lanes(s, extent, *body):
    return loop(s, extent, *body, kind=Kind.VECTOR)


def agree(tree, target=HOST, sizes=(), threads=1, given=None):
    """Native code and interpreter write the same outputs, from random inputs."""
    rng, env = np.random.default_rng(0), dict(zip(tree.sizes, sizes, strict=True))
    arrays = {}
    for b in tree.params:
        shape = tuple(evaluate(d, env) for d in b.shape)
        arrays[b.name] = (given or {}).get(b.name, random_array(rng, shape, b.dtype)).reshape(shape).copy()
    want = {name: a.copy() for name, a in arrays.items()}
    interp.run(tree, want, {s.name: n for s, n in env.items()})
    Native(tree, target)(*arrays.values(), sizes=sizes, threads=threads)
    for name, a in arrays.items():
        np.testing.assert_allclose(a.astype("d"), want[name].astype("d"), rtol=1e-5, atol=1e-5, err_msg=name)


# --- guards and splitting -------------------------------------------------------------------------------------------


@every_target
@pytest.mark.parametrize("n", [0, 3, 9, 25, 40, 64])
def test_an_element_that_some_copies_may_read(target, n):
    """One element for all lanes is read in the copies that have a lane to read it, not where the first of them has."""
    x, y, size = Buffer("x", f32, (1,)), Buffer("y", f32, (64,)), Sym("n", 0)
    c, u, lane = sym("c", 2), sym("u", 4), sym("l", 8)
    at = lane + 8 * u + 32 * c
    store = Store(y, (at,), Select(Inside((at - size,)), Binary("mul", x[0], Const(2.0, f32)), ONE))
    copies = loop(u, 4, lanes(lane, 8, store), kind=Kind.UNROLL)
    agree(kernel([loop(c, 2, copies)], x, y, sizes=(size,)), target, sizes=(n,))


def padded_convolution(h, w, channels, tile):
    """3x3, pad 1, depthwise, ``tile`` columns at once, guards inline."""
    x, k, y = Buffer("x", f32, (h, w, channels)), Buffer("k", f32, (3, 3, channels)), Buffer("y", f32, (h, w, channels))
    acc = Buffer("acc", f32, (tile, 16))
    oh, wo, wi, lane, kh, kw = sym("oh", h), Sym("wo", 0), sym("wi", tile), sym("l", 16), sym("kh", 3), sym("kw", 3)
    ow = tile * wo + wi
    at = (oh + kh - 1, ow + kw - 1, lane)
    value = Select(Inside((at[0], h - 1 - at[0], at[1], w - 1 - at[1])), x[at], ZERO)

    def columns(*body):
        return loop(wi, minimum(tile, w - tile * wo), lanes(lane, 16, *body), kind=Kind.UNROLL)

    body = (
        columns(Store(acc, (wi, lane), ZERO)),
        loop(kh, 3, loop(kw, 3, columns(Update(acc, (wi, lane), "add", value * k[kh, kw, lane])), kind=Kind.UNROLL)),
        columns(Store(y, (oh, ow, lane), acc[wi, lane])),
    )
    return kernel([loop(oh, h, loop(wo, ceildiv(w, tile), *body))], x, k, y, reg(acc))


@every_target
@pytest.mark.parametrize(("h", "w", "tile"), [(5, 9, 4), (1, 1, 3), (4, 8, 2)])
def test_padding_guards(h, w, tile, target):
    agree(padded_convolution(h, w, 16, tile), target)


def test_interior_runs_without_guards():
    """The loops are cut at the border: no select of an address remains."""
    text = llvm.emit_kernel(padded_convolution(56, 56, 16, 4), HOST)
    assert "ptr" in text and "select i1" not in text


@every_target
def test_triangular_guard_in_lanes(target):
    """A causal mask never has one status for a piece: it becomes lane masks."""
    x, y = Buffer("x", f32, (20, 20)), Buffer("y", f32, (20, 20))
    i, o, lane = sym("i", 20), sym("o", 5), sym("l", 4)
    j = 4 * o + lane
    store = Store(y, (i, j), Select(Inside((i - j,)), x[i, j], Const(-1.0, f32)))
    agree(kernel([loop(i, 20, loop(o, 5, lanes(lane, 4, store)))], x, y), target)


@every_target
def test_guarded_load_out_of_bounds_does_not_happen(target):
    """Reads before the start of the buffer would fault: the buffer is the first thing on its page."""
    x, y = Buffer("x", f32, (8,)), Buffer("y", f32, (64,))
    i, o, lane, n = sym("i", 64), sym("o", 4), sym("l", 16), Sym("n", 0)
    far = 1 << 20
    scalar = Store(y, (i,), Select(Inside((i - n, 7 - i + n)), x[(i - n) * 1 + 0], ONE))
    at = 16 * o + lane - n * far
    vector = Update(y, (16 * o + lane,), "add", Select(Inside((at, 7 - at)), x[at], ONE))
    tree = kernel([loop(i, 64, scalar), loop(o, 4, lanes(lane, 16, vector))], x, y, sizes=(n,))
    agree(tree, target, sizes=(3,))
    agree(tree, target, sizes=(0,))


def test_loops_around_one_that_may_be_empty_are_skipped_as_a_whole():
    """Rows that a call may not have, in a loop over panels at every step: one test a step, and none for each panel."""
    n, lane = Sym("n", 0), sym("l", 8)
    steps, panels, rows = sym("t", 3), sym("p", 5), sym("r", n)
    x, y, index = Buffer("x", f32, (3, 5, n, 8)), Buffer("y", f32, (3, 5, n, 8)), (steps, panels, rows, lane)
    tile = loop(panels, 5, loop(rows, n, lanes(lane, 8, Store(y, index, x[index]))))
    tree = kernel([loop(steps, 3, tile)], x, param(y, Role.OUT), sizes=(n,))
    for size in (0, 1, 3):
        agree(tree, sizes=(size,))
    _, test, behind = llvm.emit(tree, HOST).text.partition("\nthen")
    assert test and behind.count("= phi i64") == 2 and behind.count("br i1") == 3  # ends of three loops


def test_a_loop_of_no_turns_within_one_of_one_turn_is_left_out():
    """Its extent depends on a loop that is still to be entered, and whose only value is 0."""
    x, y, outer, p = Buffer("x", f32, (4,)), Buffer("y", f32, (4,)), sym("s", 3), sym("p", 1)
    q = Sym("q", 0)
    tree = kernel([loop(outer, 3, loop(p, 1, loop(q, -p, Store(y, (p + q,), x[p + q]))))], x, param(y, Role.OUT))
    assert "store float" not in llvm.emit(tree, HOST).text


@every_target
@pytest.mark.parametrize("n", [0, 1, 5, 16, 37])
def test_run_time_sizes(n, target):
    """A ragged vector loop, an extent that depends on an outer loop, and an unrolled loop that may be short."""
    size = Sym("N", 0)
    x, y = Buffer("x", f32, (size,)), Buffer("y", f32, (size,))
    o, lane, i, j = Sym("o", 0), sym("l", 8), Sym("i", 0), Sym("j", 0)
    u = sym("u", 3)
    body = [
        loop(o, ceildiv(size, 8), lanes(lane, minimum(8, size - 8 * o), Store(y, (8 * o + lane,), x[8 * o + lane]))),
        loop(i, size, loop(j, minimum(i, 4), Update(y, (i,), "add", x[i - j - 1]))),
        loop(u, minimum(3, size), Update(y, (u,), "mul", Const(2.0, f32)), kind=Kind.UNROLL),
    ]
    agree(kernel(body, x, y, sizes=(size,)), target, sizes=(n,))


def test_many_conditions_stay_compilable():
    """Code stays within its limit when guards would multiply it: what is not cut is decided at run time."""
    x, y = Buffer("x", f32, (12,) * 4), Buffer("y", f32, (12,) * 4)
    a, b, c, d = (sym(n, 12) for n in "abcd")
    shifts = [(a - 1, a - 3, a - 5), (b - 1, b - 3, b - 5), (c - 1, c - 3), (d - 1, d - 2)]
    value = ZERO
    for exprs in shifts:
        for e in exprs:
            value = value + Select(Inside((e,)), x[a, b, c, d], ONE)
    tree = kernel([loop(a, 12, loop(b, 12, loop(c, 12, loop(d, 12, Store(y, (a, b, c, d), value)))))], x, y)
    assert llvm.emit_kernel(tree, HOST).count("\n") < 20000
    n = 4
    small = kernel([loop(a, n, loop(b, n, loop(c, n, loop(d, n, Store(y, (a, b, c, d), value)))))], x, y)
    agree(small)


# --- lanes ----------------------------------------------------------------------------------------------------------


@every_target
@pytest.mark.parametrize(("scale", "shift"), [(2, 1), (3, 0), (-1, 15), (5, 2), (0, 3)])
def test_strided_loads_and_stores(scale, shift, target):
    x, y, z = Buffer("x", f32, (96,)), Buffer("y", f32, (16,)), Buffer("z", f32, (96,))
    lane = sym("l", 16)
    at = scale * lane + shift
    stores = [Store(y, (lane,), x[at])] + ([Store(z, (at,), x[lane])] if scale else [])
    agree(kernel([lanes(lane, 16, *stores)], x, y, z), target)


@every_target
def test_lane_index_with_division(target):
    """Nearest-neighbour resize, and a reshape: lanes that are not linear in the index."""
    x, y, z = Buffer("x", f32, (3, 7)), Buffer("y", f32, (21,)), Buffer("z", f32, (2, 16))
    o, lane = sym("o", 2), sym("l", 16)
    j = 16 * o + lane
    reshape = lanes(lane, minimum(16, 21 - 16 * o), Store(y, (j,), x[j // 7, j % 7]))
    resize = lanes(lane, 16, Store(z, (o, lane), x[o, lane * 7 // 16]))
    agree(kernel([loop(o, 2, reshape, resize)], x, y, z), target)


@every_target
def test_two_dimensional_lanes(target):
    x, y = Buffer("x", f32, (6, 4)), Buffer("y", f32, (6, 5, 4))
    o, g, c = sym("o", 3), sym("g", 2), sym("c", 4)
    at = 2 * o + g
    body = lanes(g, 2, lanes(c, 4, Store(y, (at, c, 1), x[at, c]), Store(y, (at, 4, c), x[at, 0])))
    agree(kernel([loop(o, 3, body)], x, y), target)


@every_target
@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
def test_lane_reduction(op, target):
    """An update whose target does not depend on the lanes, ragged; and one whose target depends on some."""
    x, s, r = Buffer("x", f32, (5, 13)), Buffer("s", f32, (5,)), Buffer("r", f32, (4,))
    i, o, lane = sym("i", 5), sym("o", 2), sym("l", 8)
    j = 8 * o + lane
    rows = loop(i, 5, loop(o, 2, lanes(lane, minimum(8, 13 - 8 * o), Update(s, (i,), op, x[i, j]))))
    g, c = sym("g", 4), sym("c", 3)
    blocks = lanes(g, 4, lanes(c, 3, Update(r, (g,), op, x[g, c])))
    agree(kernel([rows, blocks], x, s, r), target)


@every_target
def test_partial_sums_with_a_masked_tail(target):
    """Lanes beyond a ragged end keep what an unmasked store put there."""
    x, s, acc = Buffer("x", f32, (21,)), Buffer("s", f32, (1,)), Buffer("acc", f32, (8,))
    o, lane = sym("o", 3), sym("l", 8)
    at = 8 * o + lane
    body = [
        lanes(lane, 8, Store(acc, (lane,), Const(-100.0, f32))),
        loop(o, 3, lanes(lane, minimum(8, 21 - 8 * o), Update(acc, (lane,), "max", x[at]))),
        Store(s, (0,), ZERO),
        lanes(lane, 8, Update(s, (0,), "add", acc[lane])),
    ]
    agree(kernel(body, x, s, reg(acc)), target)


@every_target
def test_serial_loop_inside_lanes(target):
    x, y, acc = Buffer("x", f32, (9, 16)), Buffer("y", f32, (16,)), Buffer("acc", f32, (16,))
    lane, k = sym("l", 16), sym("k", 9)
    body = lanes(
        lane,
        16,
        Store(acc, (lane,), ZERO),
        loop(k, 9, Update(acc, (lane,), "add", x[k, lane])),
        Store(y, (lane,), acc[lane]),
    )
    agree(kernel([body], x, y, reg(acc)), target)


@every_target
def test_lanes_that_cannot_run_together(target):
    """Extents and scatter targets that depend on the lane: one iteration at a time, in order."""
    j, x, y = Buffer("j", i32, (16,)), Buffer("x", f32, (16,)), Buffer("y", f32, (16,))
    lane, k = sym("l", 16), Sym("k", 0)
    body = [
        lanes(lane, 16, loop(k, lane, Update(y, (lane,), "add", x[k]))),
        lanes(lane, 16, Update(y, (j[lane],), "add", x[lane])),
        lanes(lane, 16, Store(y, (j[lane],), x[lane])),
    ]
    given = {"j": np.array([3, 3, 5, 0] * 4, np.int32)}
    agree(kernel(body, j, x, y), target, given=given)


# --- run-time indices, branches, folds ------------------------------------------------------------------------------


@every_target
@pytest.mark.parametrize("dtype", [f32, types.i8, types.f64, types.f16, types.bool_], ids=str)
def test_gather(dtype, target):
    x, j, y = Buffer("x", dtype, (9, 20)), Buffer("j", i64, (6,)), Buffer("y", dtype, (6, 20))
    z = Buffer("z", dtype, (6, 5))
    i, o, lane = sym("i", 6), sym("o", 3), sym("l", 8)
    at = 8 * o + lane
    rows = loop(i, 6, loop(o, 3, lanes(lane, minimum(8, 20 - 8 * o), Store(y, (i, at), x[j[i], at]))))
    columns = loop(i, 5, lanes(lane, 6, Store(z, (lane, i), x[j[lane], 3 * i])))
    agree(kernel([rows, columns], x, j, y, z), target, given={"j": np.array([0, 8, 3, 3, 1, 7])})


@every_target
def test_branches(target):
    """On a run-time value, in lanes and out of them; registers that change in a branch."""
    x, y, total = Buffer("x", f32, (16,)), Buffer("y", f32, (16,)), Buffer("t", f32, (1,))
    i, lane = sym("i", 16), sym("l", 16)
    positive = Binary("lt", ZERO, x[i])
    body = [
        Store(total, (0,), ZERO),
        loop(i, 16, If(positive, (Update(total, (0,), "add", x[i]),))),
        lanes(lane, 16, If(Binary("lt", x[lane], ZERO), (Store(y, (lane,), total[0]), Update(y, (0,), "add", ONE)))),
    ]
    agree(kernel(body, x, y, reg(total)), target)


@every_target
def test_fold_finds_the_first_maximum(target):
    x, best, where = Buffer("x", f32, (4, 30)), Buffer("m", f32, (4,)), Buffer("w", i64, (4,))
    state, value = (Param("sv", f32), Param("si", i64)), (Param("vv", f32), Param("vi", i64))
    wins = Binary("gt", value[0], state[0])
    combiner = Combiner(state, value, (Select(wins, value[0], state[0]), Select(wins, value[1], state[1])))
    i, k, lane = sym("i", 4), sym("k", 30), sym("l", 4)
    init = [Store(best, (lane,), Const(-9.0, f32)), Store(where, (lane,), Const(0, i64))]
    in_lanes = loop(k, 30, lanes(lane, 4, Fold((best, where), (lane,), combiner, (x[lane, k], Index(k)))))
    scalar = loop(i, 4, loop(k, 30, Fold((best, where), (i,), combiner, (x[i, k] + ONE, Index(k)))))
    agree(kernel([lanes(lane, 4, *init), in_lanes, scalar], x, best, where), target)


# --- buffers --------------------------------------------------------------------------------------------------------


@every_target
def test_tables(target):
    """Constant positions read literals (zeros make terms vanish), run-time positions memory."""
    table, x, y = Buffer("t", f32, (3, 4)), Buffer("x", f32, (12,)), Buffer("y", f32, (12,))
    numbers = np.array([[0, 1, 2, 0], [3, 0, 0, 4], [5, 6, 0, 7]], "f")
    i, u, lane = sym("i", 3), sym("u", 3), sym("l", 4)
    body = [
        loop(u, 3, lanes(lane, 4, Store(y, (4 * u + lane,), table[u, lane])), kind=Kind.UNROLL),
        loop(i, 3, Update(y, (i,), "add", table[i, 1] * x[i])),
    ]
    places = (param(x), param(y), Place(table, Space.TABLE, Role.CONST, numbers))
    agree(kernel(body, *places), target)


@every_target
@pytest.mark.parametrize("threads", [1, 3])
def test_local_buffers_belong_to_a_task(threads, target):
    x, y, row, shared = (
        Buffer(n, f32, s) for n, s in [("x", (10, 8)), ("y", (10, 8)), ("row", (8,)), ("shared", (8,))]
    )
    i, k, n = sym("i", 10), sym("k", 8), Sym("N", 0)
    body = [
        loop(k, 8, Store(shared, (k,), x[0, k])),
        loop(
            i,
            minimum(n, 10),
            loop(k, 8, Store(row, (k,), x[i, k] + shared[k])),
            loop(k, 8, Store(y, (i, k), row[7 - k])),
            kind=Kind.PARALLEL,
        ),
    ]
    tree = kernel(body, x, y, local(row), local(shared), sizes=(n,))
    for size in (0, 1, 10):
        agree(tree, target, sizes=(size,), threads=threads)


@pytest.mark.one_in(2)
@every_target
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [1, 5])
def test_two_parallel_loops_are_shared_out_as_one(rows, threads, target):
    """Chunks begin and end within a row; both loops are cut at a border."""
    n = Sym("N", 0)
    for width, sizes in ((13, ()), (n, (0,)), (n, (1,)), (n, (29,))):
        x, y = Buffer("x", f32, (rows, width)), Buffer("y", f32, (rows, width))
        i, j = sym("i", rows), sym("j", width)
        value = Select(Inside((i - 1, rows - 2 - i, j - 3)), x[i, j] * x[i - 1, j - 3], x[i, j])
        inner = loop(j, width, Store(y, (i, j), value), kind=Kind.PARALLEL)
        tree = kernel([loop(i, rows, inner, kind=Kind.PARALLEL)], x, y, sizes=(n,) if sizes else ())
        agree(tree, target, sizes=sizes, threads=threads)
        triangle = loop(j, i + 1, Store(y, (i, 0), x[i, 0] * ONE), kind=Kind.PARALLEL)
        tree = kernel([loop(i, rows, triangle, kind=Kind.PARALLEL)], x, y, sizes=(n,) if sizes else ())
        if sizes != (0,):
            agree(tree, target, sizes=sizes, threads=threads)


@every_target
def test_registers_indexed_at_run_time_become_memory(target):
    x, y, ring = Buffer("x", f32, (12,)), Buffer("y", f32, (12,)), Buffer("ring", f32, (3,))
    i = sym("i", 12)
    body = [
        loop(sym("k", 3), 3, Store(ring, (sym("k", 3),), ZERO)),
        loop(i, 12, Store(y, (i,), ring[i % 3]), Store(ring, (i % 3,), x[i])),
    ]
    agree(kernel(body, x, y, reg(ring)), target)


@every_target
def test_registers_of_two_shapes(target):
    """Written by lanes, read one by one and across two groups; carried through two nested loops."""
    x, y, acc = Buffer("x", f32, (4, 4, 16)), Buffer("y", f32, (2, 16)), Buffer("acc", f32, (16,))
    a, b, v, lane, u = sym("a", 4), sym("b", 4), sym("v", 2), sym("l", 8), sym("u", 16)
    at = 8 * v + lane
    body = [
        loop(v, 2, lanes(lane, 8, Store(acc, (at,), ZERO)), kind=Kind.UNROLL),
        loop(a, 4, loop(b, 4, loop(v, 2, lanes(lane, 8, Update(acc, (at,), "add", x[a, b, at])), kind=Kind.STEP))),
        loop(u, 16, Store(y, (0, u), acc[15 - u]), kind=Kind.UNROLL),
        lanes(lane, 8, Store(y, (1, lane), acc[lane + 4])),
        lanes(lane, 4, Store(y, (1, lane + 8), acc[4 * lane])),
        lanes(lane, 4, Store(y, (1, lane + 12), ONE)),
    ]
    agree(kernel(body, x, y, reg(acc)), target)


@every_target
def test_stored_values_are_seen_by_later_loads(target):
    """Forwarding in a block, and no forwarding across an overlapping store."""
    x, y, n = Buffer("x", f32, (40,)), Buffer("y", f32, (40,)), Sym("n", 0)
    i, lane = sym("i", 8), sym("l", 8)
    body = [
        lanes(
            lane, 8, Store(x, (lane,), x[lane] + x[lane + 1]), Store(x, (lane + 4,), ONE), Store(y, (lane,), x[lane])
        ),
        loop(i, 8, Store(y, (i + 8,), x[i]), Store(x, (n + i,), ZERO), Update(y, (i + 8,), "add", x[i])),
    ]
    tree = kernel(body, x, y, sizes=(n,))
    Native(tree, target)  # lanes run together here, so only the second loop has one meaning
    agree(kernel(body[1:], x, y, sizes=(n,)), target, sizes=(2,))


def test_prefetch_out_of_bounds_is_harmless():
    x, y, i = Buffer("x", f32, (8,)), Buffer("y", f32, (8,)), sym("i", 8)
    agree(kernel([loop(i, 8, Prefetch(x, (i + 100000,)), Store(y, (i,), x[i]))], x, y))
    assert "prefetcht0" in llvm.assembly(kernel([loop(i, 8, Prefetch(x, (i,)), Store(y, (i,), x[i]))], x, y), HOST)
    written = kernel([loop(i, 8, Prefetch(y, (i,)), Store(y, (i,), x[i]))], x, param(y, Role.OUT))
    assert "prefetchw" in llvm.assembly(written, Target.parse("x86-64-v4"))
    assert "prefetcht0" in llvm.assembly(written, Target.parse("x86-64")), "which has no instruction for that"


def test_names_of_any_kind():
    x, y, i = Buffer('a/b "c" %1', f32, (4,)), Buffer("é:0", f32, (4,)), sym("i.j k", 4)
    tree = kernel([loop(i, 4, Store(y, (i,), x[i]), kind=Kind.PARALLEL)], x, y, name="conv_1.x")
    agree(tree, threads=2)


def test_conditions_that_are_decided_vanish():
    x, y, i = Buffer("x", f32, (8,)), Buffer("y", f32, (8,)), sym("i", 8)
    cond = Binary("and", Inside((i, 7 - i)), Inside((maximum(i, 3) - 3,)))
    tree = kernel([loop(i, 8, Store(y, (i,), Select(cond, x[i], ZERO) + Cast(Index(i), f32)))], x, y)
    agree(tree)
    assert "select" not in llvm.emit_kernel(tree, HOST)


def test_deep_expressions():
    x, y, i, lane = Buffer("x", f32, (32,)), Buffer("y", f32, (32,)), sym("i", 2), sym("l", 16)
    at = 16 * i + lane
    value = x[at]
    for _ in range(3000):
        value = value + ONE
    data, got = np.arange(32, dtype="f"), np.zeros(32, "f")
    Native(kernel([loop(i, 2, lanes(lane, 16, Store(y, (at,), value)))], x, y))(data, got)
    np.testing.assert_array_equal(got, data + 3000)


def test_many_nests_in_a_ragged_loop_leave_it_in_whole_tiles_and_one_rest():
    """Its conditions all change at the last tile: two pieces, and not as many as there are conditions."""
    nests = "".join(
        f"""
      for c{k}[0:8] < 9 unroll
        for v{k}[0:2] < (min(-48*i + 392, 48) + 15) // 16 unroll
          for x{k}[0:15] < min(-16*v{k} + min(-48*i + 392, 48), 16) vector
            out{k}[c{k}, x{k} + 16*v{k} + 48*i] = in0[c{k}, x{k} + 16*v{k} + 48*i]"""
        for k in range(14)
    )
    places = "".join(f"\n  place out{k}: f32[9, 392] global out" for k in range(14))
    kernel = parse_kernel(
        f"kernel k\n  place in0: f32[9, 392] global in{places}\n  body\n    for i[0:8] < 9 serial{nests}\n"
    )
    assert Splits(kernel.body, kernel.sizes).of(kernel.body[0])
