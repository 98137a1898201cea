"""Grids of GPUs in the tile IR: their text, their rules, and that no primitive lets blocks or threads race."""

from dataclasses import replace

import pytest

from tile.kernels import elementwise, matmul, reduction, softmax
from tile.test_schedule import build, refuses, same
from tilewright.core.compute import Inside
from tilewright.core.expr import Sym
from tilewright.tile.errors import ScheduleError, TileRunError, TileVerifyError
from tilewright.tile.grid import grids_of, is_flat, is_for_gpus
from tilewright.tile.interp import run
from tilewright.tile.ir import Barrier, For, If, Kind, Loop, Store, Update, walk
from tilewright.tile.lower import lower
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.text import kernel_text, parse_kernel
from tilewright.tile.verify import verify

N = Sym("N")
TURNED = """kernel turned
  size N[1:]
  place X: f32[N, 32] global in
  place Y: f32[N, 32] global out
  place S: f32[32] shared tmp
  body
    for b[0:] < N block
      for t[0:31] < 32 thread
        S[t] = X[b, t]
        barrier
        Y[b, t] = S[-t + 31]
"""
"""Each row turned round, by way of shared memory."""


def test_a_flat_grid_reads_back_and_is_looked_at():
    kernel = parse_kernel(TURNED)
    verify(kernel)
    assert kernel_text(kernel) == TURNED
    (grid,) = grids_of(kernel)
    assert is_for_gpus(kernel) and is_flat(kernel) and grid.is_flat
    assert [x.sym.name for x in (*grid.blocks, *grid.threads)] == ["b", "t"]
    assert [type(s) for s in grid.thread_body] == [Store, Barrier, Store]


def test_kernels_for_cpus_have_no_grids():
    kernel = lower(elementwise((4,)))
    assert not is_for_gpus(kernel) and not is_flat(kernel)


def test_phases_in_a_uniform_loop_are_scheduled_and_not_flat():
    kernel = same(
        matmul(4, 8, 6, False), ("reorder", "k0", "i0_1", "i1_1"), ("enclose", "k0"), ("kind", "k0_b", "block"),
        ("kind", "i1_1", "thread"), ("enclose", "i0"), ("kind", "i0_b", "block"), ("kind", "i1", "thread"),
    )  # fmt: skip
    assert len(grids_of(kernel)) == 2 and not is_flat(kernel)


def test_the_plain_interpreter_leaves_barriers_to_another():
    with pytest.raises(TileRunError, match="beside each other"):
        run(parse_kernel(TURNED), {}, {"N": 1})


def turned(*changes):
    text = TURNED
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_kernel(text)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("in no block loop", ("N block", "N serial")),
        ("inside of a grid", ("32 thread", "32 parallel")),
        ("inside of a grid", ("        barrier", "        for k[0:3] < 4 block\n          barrier")),
        ("no positive number", ("32 thread", "N thread")),
        ("only a flat grid", ("32 thread", "32 serial")),
        ("not every thread", ("        barrier", "        if inside(3 - t)\n          barrier")),
        ("not every thread", ("        barrier", "        for k[0:] < t serial\n          barrier")),
        ("not every thread", ("        barrier", "        if lt(X[b, 0], 0.0:f32)\n          barrier")),
        ("inside of the lanes", ("        barrier", "        for k[0:3] < 4 vector\n          barrier")),
    ],
)
def test_what_is_no_grid_is_refused(rule, change):
    with pytest.raises(TileVerifyError, match=rule):
        verify(turned(change))


def test_thread_loops_with_something_between_are_refused():
    kernel = turned()
    outer = kernel.body[0]
    inner = For(Loop(Sym("u", 0, 1), 2, Kind.THREAD), outer.body[0].body)
    threads = For(outer.body[0].loop, (Barrier(), inner))
    with pytest.raises(TileVerifyError, match="not perfectly nested"):
        verify(replace(kernel, body=(For(outer.loop, (threads,)),)))
    four = outer.body[0]
    for name in "xyz":
        four = For(Loop(Sym(name, 0, 1), 2, Kind.THREAD), (four,))
    with pytest.raises(TileVerifyError, match="3 dimensions"):
        verify(replace(kernel, body=(For(outer.loop, (four,)),)))


def test_memory_of_a_block_ends_with_its_grid():
    kernel = turned()
    with pytest.raises(TileVerifyError, match="two grids use it"):
        verify(replace(kernel, body=kernel.body * 2))


def test_shared_memory_has_a_known_size_and_no_role():
    kernel = turned(("S: f32[32]", "S: f32[N]"))
    with pytest.raises(TileVerifyError, match="no bound"):
        verify(kernel)
    with pytest.raises(TileVerifyError, match="can't be shared"):
        verify(turned(("shared tmp", "shared in")))


def test_a_barrier_under_a_condition_that_all_share_is_right():
    kernel = turned()
    outer = kernel.body[0]
    shared = If(Inside((outer.loop.sym - 1,)), (Barrier(),))
    verify(replace(kernel, body=(For(outer.loop, (For(outer.body[0].loop, (shared, *outer.body[0].body)),)),)))


# --- primitives


def test_a_guard_leaves_every_tile_full():
    for n in (1, 4, 11):
        kernel = same(elementwise((n,)), ("split", "i0", 4, "guard"))
        assert [x.extent for x in kernel.body[0].loops] == [-(-n // 4), 4]
        assert isinstance(kernel.body[0].body[0].body[0], If) == (n % 4 != 0)
    same(elementwise((N,)), ("split", "i0", 4, "guard"), sizes={"N": 6})
    refuses(elementwise((11,)), ("kind", "i0", "vector"), ("split", "i0", 4, "guard"), rule="only statements")


def test_what_moves_under_a_guard_is_guarded() -> None:
    # Nobody reads the rows of T from 5 on, and A has none that they could be made from.
    kernel = same(matmul(5, 6, 7), ("split", "i0_2", 4, "guard"), ("compute_at", "T", "i0_2_i", "local"))
    assert isinstance(kernel.body[0].body[0].body[0], If)


def test_independent_loops_become_blocks_and_threads():
    kernel = same(
        elementwise((N, 11)), ("split", "i1", 4, "guard"), ("kind", "i0", "block"), ("kind", "i1_o", "block"),
        ("kind", "i1_i", "thread"), sizes={"N": 3},
    )  # fmt: skip
    assert is_flat(kernel)


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ("in no block", [("kind", "i0", "thread")]),
        ("is none", [("kind", "i1", "block")]),
        ("no positive number", [("split", "i1", 4), ("kind", "i0", "block"), ("kind", "i1_i", "thread")]),
    ],
)
def test_kinds_keep_the_rules_of_grids(rule, steps):
    refuses(elementwise((5, 6)), *steps, rule=rule)


def test_threads_that_update_one_element_are_refused():
    grid = [("enclose", "i0_1"), ("kind", "i0_1_b", "block")]
    refuses(reduction((3, 8), 1, "add"), *grid, ("kind", "i1", "thread"), rule="thread iterations would update one")
    refuses(reduction((8, 3), 0, "max"), ("reorder", "i0", "i1_1"), ("kind", "i0", "block"), rule="would update one")


def test_what_moves_into_threads_must_not_race():
    first = build(softmax(4, 16))
    row, column = (x.sym.name for x in first.body[-1].loops)
    sums = next(s.buffer.name for s in walk(first.body) if isinstance(s, Update) and s.op == "add")
    # Every thread would add up the row's sum, where all others do.
    steps = [("kind", row, "block"), ("kind", column, "thread"), ("compute_at", sums, row, "shared")]
    builder = ScheduleBuilder(first)
    for primitive, *args in steps:
        builder.do(primitive, *args)
    refuses(softmax(4, 16), *steps[:2], ("compute_at", sums, column, "global"), rule="thread iterations would")


def test_steps_that_are_taken_as_one_must_not_race_at_their_end():
    first = build(softmax(4, 16))
    row, column = (x.sym.name for x in first.body[-1].loops)
    sums = next(s.buffer.name for s in walk(first.body) if isinstance(s, Update) and s.op == "add")
    builder = ScheduleBuilder(first)
    with pytest.raises(ScheduleError, match="thread iterations would"), builder.as_one():
        builder.do("kind", row, "block")
        builder.do("kind", column, "thread")
        builder.do("compute_at", sums, column, "global")
        racing = builder.kernel  # which a step on its own refuses, and here the end of the block
    with pytest.raises(ScheduleError, match="thread iterations would"):
        ScheduleBuilder(racing).do("align", sums, 32)


def test_a_flat_kernel_is_not_rescheduled():
    with pytest.raises(ScheduleError, match="is flat"):
        ScheduleBuilder(turned()).do("enclose", "b")
