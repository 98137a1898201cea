"""The rule for running results along an axis that lanes do not walk: what a step stores, the next finds in registers.

In: a builder, and the buffer of a nest inside of a serial loop whose steps each read what the one before stored. Out:
steps. Not its business: running results along the last axis, which are computed in runs side by side (``ops.reduce``).

Before: ``for t: for i, j: Y[i, t, j] = f(Y[i, t - 1, j])``. After: ``for i in tiles, j in blocks: for t: for i of the
tile, for j of the block``, whose results the next ``t`` finds in registers: a store that is read again at once takes
longer to come back than the arithmetic takes, and much longer where it crosses a line of the cache.
"""

from __future__ import annotations

from tilewright.choose.cost.tile import balanced, estimate, pays_threads
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import may_vectorize, n_operations, only_nest, statement_of, vector_width
from tilewright.core.dims import is_known, known_at_most
from tilewright.core.indices import symbols_at
from tilewright.target.target import Target
from tilewright.tile.affine import stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Loop, Store
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import Nest


def running(b: ScheduleBuilder, machine: Target, buffer: str) -> None:
    """Schedule the nest that writes ``buffer``; ``ScheduleError`` where the structure does not fit."""
    nest = only_nest(b.kernel, buffer)
    leaf = statement_of(nest)
    if not isinstance(leaf, Store):
        raise ScheduleError("running", buffer, "no element is stored")
    step, lanes, width = _step(nest, leaf), nest.loops[-1], vector_width(machine, nest.leaf)
    is_row = stride_along(leaf.buffer, leaf.index, lanes.sym) == 1 and may_vectorize(nest.leaf, lanes.sym)
    if step is lanes or width == 1 or not is_row:
        raise ScheduleError("running", buffer, "lanes do not walk its last axis beside the steps")
    vectors = _vectors_at_once(machine, lanes, estimate([lanes.extent]) * leaf.buffer.dtype.n_bytes, width)
    if not vectors:
        raise ScheduleError("running", buffer, "rows are longer than registers hold")
    work = estimate([x.extent for x in nest.loops]) * n_operations(leaf.value)
    outer, tiled, last = [x.sym.name for x in nest.loops if x not in (step, lanes)], [], lanes.sym.name
    rows = _rows_at_once(machine, nest.loops, step, vectors)
    if rows > 1:
        outer[-1], row = b.split(outer[-1], rows)
        tiled.append(row)
    if not known_at_most(lanes.extent, vectors * width):
        block, last = b.split(last, vectors * width)
        outer.append(block)
    if vectors > 1:
        vector, last = b.split(last, width)
        tiled.append(vector)
    b.do("reorder", *outer, step.sym.name, *tiled, last)
    for name in tiled:
        b.do("kind", name, "unroll")
    b.do("kind", last, "vector")
    b.do("carry", buffer, step.sym.name)
    if outer and pays_threads(work, machine, width):
        parallel(b, machine, outer[:2])


def _step(nest: Nest, leaf: Store) -> Loop:
    """The loop whose iterations read what the ones before them stored."""
    read = [x for x in loads_of(leaf) if x.buffer is leaf.buffer]
    apart = {s for x in read for i, j in zip(x.index, leaf.index, strict=True) if i != j for s in symbols_at(j)}
    found = [x for x in nest.loops if x.sym in apart]
    if len(found) != 1:
        raise ScheduleError("running", leaf.buffer.name, "not a value of what one loop stored before")
    return found[0]


def _vectors_at_once(machine: Target, lanes: Loop, row_bytes: float, width: int) -> int:
    """As many vectors of a row as half of the registers hold, in blocks of about the same size; 0 where that is dear.

    Where rows have pages of their own, a block would ask for another page at each step.
    """
    if not is_known(lanes.extent):
        return 0
    n, most = -(-lanes.extent // width), machine.n_vector_registers // 2
    return balanced(n, most) if n <= most or row_bytes < machine.page_bytes else 0


def _rows_at_once(machine: Target, loops: tuple[Loop, ...], step: Loop, vectors: int) -> int:
    """Rows beside each other, so that no addition waits for the last one, in tiles of about the same size."""
    others = [x for x in loops[:-1] if x is not step]
    if not others or not is_known(others[-1].extent):
        return 1
    return balanced(others[-1].extent, max(machine.waiting_sums // vectors, 1))
