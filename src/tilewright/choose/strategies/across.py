"""The rule for running results along the last axis of many rows: a block of rows is laid across, folded, and laid back.

In: a builder, the buffer in which rows lie across and the one that is made of it. Out: steps. Not its business: running
results along other axes (``running``), few rows or long ones, which are cut into runs (``ops.reduce``) that are rows
here.

Before: ``for t: for i: T[t, i] = X[i, t]; for u: for i: T[u + 1, i] = f(T[u, i], T[u + 1, i]); for i: for t: Y[i, t] =
T[t, i]``. After: ``for blocks of i`` around all three, whose part of T stays in a near cache, and both ways are
transposes in registers. In three nests T goes to memory and back between them, which takes longer than the folding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from tilewright.choose.cost.tile import estimate, pays_threads
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import n_operations, nests, statement_of, vector_width
from tilewright.core.compute import Cast, Load, Serial, Stage
from tilewright.core.dims import is_known
from tilewright.core.effort import EFFORT
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Loop, Store
from tilewright.tile.rewrite import loads_of
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
    value = before.expr.a if isinstance(before.expr, Cast) else before.expr
    is_copy = isinstance(value, Load) and before.reduction is None and behind.reduction is None
    return (before, behind) if is_fold and is_copy and len(before.outs) == len(behind.outs) == 1 else None


def across(b: ScheduleBuilder, machine: Target, turned: str, out: str) -> None:
    """Schedule the nests that write ``turned`` and ``out``; ``ScheduleError`` where the structure does not fit."""
    found = nests(b.kernel, turned)
    makers = ((x, {v.buffer.name for s in x.leaf for v in loads_of(s)}) for x in nests(b.kernel, out))
    back = next((x for x, read in makers if turned in read), None)
    if len(found) != 2 or back is None or len({len(x.loops) for x in (*found, back)}) != 1 or len(back.loops) < 2:
        raise ScheduleError("across", turned, "it is not laid across, folded and laid back, with loops of rows")
    copy, fold = found
    leaf = statement_of(fold)
    if not isinstance(leaf, Store):
        raise ScheduleError("across", turned, "no element is stored")
    (steps, *outer, rows), width = copy.loops, vector_width(machine, (statement_of(copy), leaf, statement_of(back)))
    row_bytes = estimate([steps.extent]) * find_place(b.kernel, turned, "across").buffer.dtype.n_bytes
    # A step of one vector of rows waits for the one before it, while those of others are stored.
    at_once = ceil(machine.fma_latency * machine.store_ports / machine.store_cycles)
    n = min(at_once, int(EFFORT.added_bytes // 4 / (row_bytes * width)))  # scratch holds a few of them
    if width == 1 or n == 0 or not is_known(steps.extent):
        raise ScheduleError("across", turned, "no block of its rows fits into scratch")
    dims = [leaf.index.index(x.sym) for x in fold.loops[1:]]  # which are not all, where there is but one row
    work = estimate([x.extent for x in copy.loops]) * n_operations(leaf.value)
    of_copy = _transposed(b, [*outer, rows, steps], n * width, width)
    of_fold = [x.sym.name for x in fold.loops[1:-1]]
    block, row = b.split(fold.loops[-1].sym.name, n * width)
    vectors, lanes = b.split(row, width)
    of_fold.append(block)
    b.do("reorder", *of_fold, fold.loops[0].sym.name, vectors, lanes)
    b.do("kind", vectors, "unroll")
    b.do("kind", lanes, "vector")
    of_back = _transposed(b, back.loops, n * width, width, lanes_last=True)
    for loops in zip(of_copy, of_fold, of_back, strict=True):
        b.do("merge", loops[0], loops[1])
        b.do("merge", loops[0], loops[2])
    for dim, loop in zip(dims, of_copy, strict=True):
        b.do("fold", turned, dim, loop)
    b.do("place", turned, "local")
    if pays_threads(work, machine, width):
        parallel(b, machine, of_copy[:2])


def _transposed(
    b: ScheduleBuilder, loops: Sequence[Loop], block: int, width: int, *, lanes_last: bool = False
) -> list[str]:
    """The last two loops, rows and steps, in square tiles of registers, blocks of rows outside; the loops around these.

    ``lanes_last``: lanes are steps, else rows.
    """
    *outer, rows, steps = (x.sym.name for x in loops)
    blocks, row = b.split(rows, block)
    tile, row = b.split(row, width)
    of_steps, step = b.split(steps, width)
    lanes, copies = (step, row) if lanes_last else (row, step)
    b.do("kind", lanes, "vector")
    b.do("kind", copies, "unroll")
    b.do("reorder", *outer, blocks, tile, of_steps, copies, lanes)
    return [*outer, blocks]
