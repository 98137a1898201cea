"""The rule for running results along the last axis of many rows: a block of rows is laid across, folded, and laid back.

In: a builder, the buffer in which rows lie across and the one that is made of it. Out: steps. Not its business: running
results along other axes (``running``), few rows, whose parts are folded side by side (``ops.reduce``).

Before: ``for t: for i: T[t, i] = X[i, t]; for u: for i: T[u + 1, i] = f(T[u, i], T[u + 1, i]); for i: for t: Y[i, t] =
T[t, i]``. After: ``for blocks of i`` around all three, whose part of T stays in a near cache, and both ways are
transposes in registers. In three nests T goes to memory and back between them, which takes longer than the folding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from tilewright.choose.cost.tile import estimate, pays_threads
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import n_operations, nests, only_nest, statement_of, vector_width
from tilewright.core.compute import Load, Serial, Stage
from tilewright.core.dims import is_known
from tilewright.core.effort import EFFORT
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Loop, Store
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_place


def turned_by(items: Sequence[Stage | Serial], k: int) -> tuple[Stage, Stage] | None:
    """The stage that lays rows across for the serial loop that is item ``k``, and the one that lays them back."""
    if not 0 < k < len(items) - 1:
        return None
    before, loop, behind = items[k - 1], items[k], items[k + 1]
    if not (isinstance(before, Stage) and isinstance(loop, Serial) and isinstance(behind, Stage)):
        return None
    folded = loop.body[0] if len(loop.body) == 1 else None
    is_fold = isinstance(folded, Stage) and folded.outs == before.outs and folded.reduction is None
    is_copy = isinstance(before.expr, Load) and before.reduction is None and behind.reduction is None
    return (before, behind) if is_fold and is_copy and len(before.outs) == len(behind.outs) == 1 else None


def across(b: ScheduleBuilder, machine: Target, turned: str, out: str) -> None:
    """Schedule the nests that write ``turned`` and ``out``; ``ScheduleError`` where the structure does not fit."""
    found, back = nests(b.kernel, turned), only_nest(b.kernel, out)
    if len(found) != 2 or any(len(x.loops) != 2 for x in (*found, back)):
        raise ScheduleError("across", turned, "it is not laid across, folded and laid back, with one loop of rows")
    copy, fold = found
    leaf = statement_of(fold)
    if not isinstance(leaf, Store):
        raise ScheduleError("across", turned, "no element is stored")
    (steps, rows), width = copy.loops, vector_width(machine, (statement_of(copy), leaf, statement_of(back)))
    row_bytes = estimate([steps.extent]) * find_place(b.kernel, turned, "across").buffer.dtype.n_bytes
    # A step of one vector of rows waits for the one before it, while those of others are stored.
    at_once = ceil(machine.fma_latency * machine.store_ports / machine.store_cycles)
    n = min(at_once, int(EFFORT.added_bytes // 4 / (row_bytes * width)))  # scratch holds a few of them
    if width == 1 or n == 0 or not is_known(steps.extent):
        raise ScheduleError("across", turned, "no block of its rows fits into scratch")
    work = estimate([steps.extent, rows.extent]) * n_operations(leaf.value)
    block = _transposed(b, copy.loops[::-1], n * width, width)
    of_fold, row = b.split(fold.loops[1].sym.name, n * width)
    vectors, lanes = b.split(row, width)
    b.do("reorder", of_fold, fold.loops[0].sym.name, vectors, lanes)
    b.do("kind", vectors, "unroll")
    b.do("kind", lanes, "vector")
    of_back = _transposed(b, back.loops, n * width, width, lanes_last=True)
    b.do("merge", block, of_fold)
    b.do("merge", block, of_back)
    b.do("fold", turned, 1, block)
    b.do("place", turned, "local")
    if pays_threads(work, machine, width):
        parallel(b, machine, [block])


def _transposed(b: ScheduleBuilder, loops: Sequence[Loop], block: int, width: int, *, lanes_last: bool = False) -> str:
    """Rows and steps in square tiles of registers, blocks of rows outside; ``lanes_last``: of steps, else of rows."""
    rows, steps = (x.sym.name for x in loops)
    outer, row = b.split(rows, block)
    tile, row = b.split(row, width)
    of_steps, step = b.split(steps, width)
    lanes, copies = (step, row) if lanes_last else (row, step)
    b.do("kind", lanes, "vector")
    b.do("kind", copies, "unroll")
    b.do("reorder", outer, tile, of_steps, copies, lanes)
    return outer
