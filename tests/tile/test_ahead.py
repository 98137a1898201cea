"""Memory that a GPU fills ahead by asynchronous copies: whoever reads it has waited for them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.core.compute import Buffer, IndexLike, Inside, Load
from tilewright.core.expr import Dim, Sym, minimum
from tilewright.core.types import bool_, f32, i64
from tilewright.target.gpu import Gpu
from tilewright.tile.errors import ScheduleError
from tilewright.tile.flatten import flatten
from tilewright.tile.ir import Commit, For, If, Kernel, Kind, Loop, Place, Role, Space, Stmt, Store, walk
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.simt import simulate
from tilewright.tile.verify import verify

GPU = Gpu.parse("cuda")
V, T, U, R, Q = Sym("v", 0, 7), Sym("t", 0, 3), Sym("u", 0, 3), Sym("r", 0, 1), Sym("q", 0, 1)
X, Y, TILE = Buffer("X", f32, (8, 4)), Buffer("Y", f32, (8, 4)), Buffer("T", f32, (4,))
FLAG, TO = Buffer("F", bool_, (8,)), Buffer("I", i64, (8,))


def threads(sym: Sym, *body: Stmt) -> For:
    return For(Loop(sym, 4, Kind.THREAD), body)


def fill(*index: IndexLike, tile: Buffer = TILE) -> Store:
    return Store(tile, index, Load(X, (V, T)))


def read(index: Dim) -> Store:
    return Store(Y, (V, U), Load(TILE, (index,)))


def kernel(*body: Stmt, tile: Buffer = TILE, loop: Loop | None = None) -> Kernel:
    """A block that walks rows; ``body`` is what it does in each."""
    return grid(For(loop or Loop(V, 8), body), tile=tile)


def grid(*body: Stmt, tile: Buffer = TILE) -> Kernel:
    given = (Place(b, Space.GLOBAL, Role.IN) for b in (X, FLAG, TO))
    places = (*given, Place(Y, Space.GLOBAL, Role.OUT), Place(tile, Space.SHARED))
    return Kernel("k", places, (), (For(Loop(Sym("b", 0, 0), 1, Kind.BLOCK), body),))


def runs(k: Kernel, stages: int) -> Kernel:
    """The flat kernel with a tile that is filled ahead, seen to compute what it did without a fault."""
    verify(k)
    builder = ScheduleBuilder(k)
    builder.do("pipeline", "T", "v", stages)
    found = []
    for form in (k, builder.kernel):
        flat = flatten(form)
        verify(flat)
        x, y = np.arange(32, dtype=np.float32).reshape(8, 4), np.zeros((8, 4), np.float32)
        arrays = {"X": x, "Y": y, "F": np.ones(8, bool), "I": np.arange(8) % 4}
        seen = simulate(flat, GPU, arrays)
        assert seen.faults == ()
        found.append(seen.arrays["Y"])
    np.testing.assert_array_equal(*found)
    return flat


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_what_a_condition_leaves_out_is_a_group(stages: int) -> None:
    inside = Inside((3 - V,))
    runs(kernel(If(inside, (threads(T, fill(T)),)), If(inside, (threads(U, read(3 - U)),))), stages)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("rows", [7, 8])
def test_an_iteration_is_one_group_however_many_rows_it_fills(stages: int, rows: int) -> None:
    tile, v = Buffer("T", f32, (2, 4)), Sym("v", 0, 3)
    n = minimum(2, rows - 2 * v)
    maker = For(Loop(R, n), (threads(T, Store(tile, (R, T), Load(X, (2 * v + R, T)))),))
    reader = For(Loop(Q, n), (threads(U, Store(Y, (2 * v + Q, U), Load(tile, (Q, 3 - U)))),))
    flat = runs(kernel(maker, reader, tile=tile, loop=Loop(v, 4)), stages)
    assert sum(isinstance(s, Commit) for s in walk(flat.body)) == 2


@pytest.mark.parametrize("stages", [2, 3])
def test_a_thread_waits_for_copies_of_its_own(stages: int) -> None:
    runs(kernel(threads(T, fill(T)), threads(U, read(U))), stages)


def test_what_a_phase_fills_and_reads_is_copied_at_once() -> None:
    tile, lane = Buffer("T", f32, (4, 1)), Sym("l", 0, 0)
    body = (fill(T, lane, tile=tile), Store(Y, (V, T), Load(tile, (T, 0))))
    maker, reader = For(Loop(lane, 1), body[:1]), body[1]
    flat = runs(grid(threads(T, For(Loop(V, 8), (maker, reader))), tile=tile), 3)
    assert not any(p.ahead for p in flat.places)


def refuses(k: Kernel, rule: str) -> None:
    verify(k)
    with pytest.raises(ScheduleError, match=rule):
        ScheduleBuilder(k).do("pipeline", "T", "v", 2)


def test_an_element_that_is_stored_twice_is_refused() -> None:
    reader = threads(U, read(3 - U))
    refuses(kernel(threads(T, For(Loop(R, 2), (fill(T),))), reader), "twice")
    refuses(kernel(threads(T, fill(T), fill(T)), reader), "twice")


def test_data_do_not_decide_whether_or_where_it_is_filled() -> None:
    flag, reader = Load(FLAG, (V,)), threads(U, read(3 - U))
    refuses(kernel(If(flag, (For(Loop(T, 4), (fill(T),)),)), If(flag, (For(Loop(U, 4), (read(3 - U),)),))), "data")
    chosen = Buffer("T", f32, (4, 4))
    reader = threads(U, Store(Y, (V, U), Load(chosen, (0, U))))
    refuses(kernel(threads(T, fill(Load(TO, (V,)), T, tile=chosen)), reader, tile=chosen), "data")


def test_it_is_filled_within_its_shape_for_iterations_that_there_are_not() -> None:
    tile, r, q = Buffer("T", f32, (8, 4)), Sym("r", 0, 7), Sym("q", 0, 7)
    maker = For(Loop(r, V + 1), (threads(T, Store(tile, (r, T), Load(X, (r, T)))),))
    reader = For(Loop(q, V + 1), (threads(U, Store(Y, (V, U), Load(tile, (q, 3 - U)))),))
    refuses(kernel(maker, reader, tile=tile), "outside of its shape")
    reader = threads(U, Store(Y, (V, U), Load(tile, (V, 3 - U))))
    refuses(kernel(threads(T, fill(V, T, tile=tile)), reader, tile=tile), "outside of its shape")
