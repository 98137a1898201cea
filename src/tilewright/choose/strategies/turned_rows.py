"""The rule for rows of a few vectors: reductions along them whose lanes are other rows, through turned copies.

In: a builder, the buffers of the stages in order (the last is the root). Out: steps.
Not its business: shorter rows (``short_rows``), longer ones (``rows``), more columns (``contract``).

A row of 17 elements takes two vectors, a fold of their lanes for each reduction, and its sum's reciprocal or logarithm
a scalar function. Here a block of as many rows as a vector has lanes is turned once: column ``j`` of all of them is a
vector. Before: one nest per stage, each ``for row: for column``. After: ``for block of rows``: a copy of its elements,
turned on loading (shuffles of whole vectors); every stage as ``for column: for row (lanes)``, what is reduced as one
vector of all rows' results; and the way back.
"""

from __future__ import annotations

from tilewright.choose.cost.tile import estimate, pays_threads
from tilewright.choose.strategies.pointwise import GROUPS
from tilewright.choose.strategies.rows import n_reductions, row_loop, with_plain_root, work_of
from tilewright.choose.strategies.steps import cached_name
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import find_body, may_vectorize, nests, only_nest, vector_width
from tilewright.core.dims import is_known, known
from tilewright.core.estimates import IDLE
from tilewright.core.indices import symbols_at
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Role, Store, Update, walk
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import Nest, find_place, nest_of

MOST_COLUMNS, FAR = 64, 40
"""Elements of a row that are turned, of each input and the result, for each reduction: with more, rows as they lie
take less time; fewer where all does not stay in the second-level cache, as lines come in no order that is foreseen."""


def turned_rows(b: ScheduleBuilder, machine: Target, buffers: list[str]) -> None:
    """Schedule all stages together at blocks of as many rows as a vector has lanes, each block turned.

    ``ScheduleError`` where rows are longer than ``MOST_COLUMNS``, fewer than lanes, or known at run time only, and
    where a temporary has rows and columns in one dimension.
    """
    root = buffers[-1]
    temps = with_plain_root(b, buffers)
    nest = only_nest(b.kernel, root)
    work = work_of(b, [*temps, root])
    name = row_loop(b, nest, set(temps))
    width = vector_width(machine, tuple(s for s in walk(b.kernel.body) if isinstance(s, Store | Update)))
    if len(nest.loops) < 2 or name != nest.loops[-2].sym.name:
        raise ScheduleError("turned_rows", root, "not one row of elements for each result of a reduction")
    row, column = nest.loops[-2:]
    is_wide = is_known(column.extent) and width // 2 < column.extent <= MOST_COLUMNS
    n_rows = known(row.extent, 0)
    if not is_wide or width <= GROUPS[-1] or -(-n_rows // width) * width > IDLE * n_rows or n_rows < width:
        raise ScheduleError("turned_rows", root, f"{row.extent} rows of {column.extent} are no blocks of {width}")
    n_sums = n_reductions(b, temps)
    b.do("cache", root)
    temps = [*temps, cached_name(b, root)]
    fetched = _fetched(b, temps)
    turned = estimate([column.extent]) * (len(fetched) + 1)
    # Turning costs more where rows come from beyond the near caches, so that more sums must pay for it.
    is_near = turned * estimate([x.extent for x in nest.loops[:-1]]) * 4 <= machine.l2_bytes
    if n_sums < 2 or turned > (MOST_COLUMNS if is_near else FAR) * n_sums:
        # With one reduction few lanes are folded.
        raise ScheduleError("turned_rows", root, f"{len(fetched)} inputs to turn for {n_sums} reductions")
    # What was the root is now read by a copy, which writes rows again and is the way back.
    back = only_nest(b.kernel, root)
    row, column = back.loops[-2:]
    at, _ = b.split(row.sym.name, width, "shift")
    n_dims = len(find_place(b.kernel, root, "turned_rows").buffer.shape)
    for each in [*reversed(temps), *fetched]:
        shape = find_place(b.kernel, each, "turned_rows").buffer.shape
        # What has a place for each column lies in memory, rows as its last dimension; a number a row fits a register.
        walks_columns = shape[-1:] == (column.extent,) and (each in fetched or len(shape) == n_dims)
        if not walks_columns and estimate(shape) > estimate([x.extent for x in back.loops[:-1]]):
            raise ScheduleError("turned_rows", each, "rows and columns of a temporary are one dimension")
        b.do("compute_at", each, at, "local" if walks_columns or each in fetched else "reg")
        n_left = len(find_place(b.kernel, each, "turned_rows").buffer.shape)
        if walks_columns and n_left > 1:
            b.do("turn", each, n_left - 2)
    for s in find_body(b.kernel, at):
        _lanes(b, machine, nest_of(s), width)
    if pays_threads(work, machine, width):
        parallel(b, machine, [at if x is row else x.sym.name for x in back.loops[:-1]][:2])


def _fetched(b: ScheduleBuilder, temps: list[str]) -> list[str]:
    """Copies of the inputs of which every row has elements of its own, one behind the other."""
    found: list[str] = []
    for name in temps:
        for nest in nests(b.kernel, name):
            for leaf in nest.leaf:
                for x in loads_of(leaf):
                    spot = find_place(b.kernel, x.buffer.name, "turned_rows")
                    walked = [i for i in x.index if symbols_at(i)]
                    if spot.role is Role.IN and len(walked) > 1 and x.buffer.name not in found:
                        found.append(x.buffer.name)
    copies: list[str] = []
    for name in found:
        copies.append(b.do("fetch", name).buffer)
    return copies


def _lanes(b: ScheduleBuilder, machine: Target, nest: Nest, width: int) -> None:
    """Vectors for one nest of a block: rows as lanes, but columns on the way back, where they lie beside each other."""
    loops, leaf = [x for x in nest.loops if x.extent != 1], nest.leaf[0]
    is_plain = len(nest.leaf) == 1 and isinstance(leaf, Store | Update) and 1 <= len(loops) <= 2
    if not is_plain or loops[0].extent != width or not all(may_vectorize(nest.leaf, x.sym) for x in loops):
        raise ScheduleError("turned_rows", "", f"{len(loops)} loops around {len(nest.leaf)} statements of a block")
    row = loops[0].sym.name
    if len(loops) == 1:
        b.do("kind", row, "vector")
        return
    assert isinstance(leaf, Store | Update)
    column = loops[1].sym.name
    if isinstance(leaf, Update):
        _partials(b, leaf.buffer.name, row, column, machine.partial_sums)
        return
    if find_place(b.kernel, leaf.buffer.name, "turned_rows").role is Role.OUT:  # the way back
        vectors, lanes = b.split(column, width)
        copies = row
        b.do("reorder", vectors, copies, lanes)
    else:
        is_way_in = any(find_place(b.kernel, x.buffer.name, "turned_rows").role is Role.IN for x in loads_of(leaf))
        n = int(estimate([loops[1].extent]))
        block = min(width, 1 << n.bit_length() - 1) if is_way_in else machine.partial_sums
        rest = n % block
        b.do("reorder", column, row)
        _, copies = b.split(column, block, "shift" if is_way_in and rest & (rest - 1) else "min")
        lanes = row
    b.do("kind", lanes, "vector")
    b.do("kind", copies, "unroll")


def _partials(b: ScheduleBuilder, buffer: str, row: str, column: str, n: int) -> None:
    """A vector of rows for each of ``n`` partial results, so that not every one waits for the one before."""
    b.do("kind", row, "unroll")
    made = b.do("spread", buffer, row, column, n)
    part = made.buffer
    b.do("turn", part, len(find_place(b.kernel, part, "turned_rows").buffer.shape) - 2)
    rows_before, before, _, each, rows_after, after = made.loops  # the third walks the blocks of columns
    for rows, columns in ((rows_before, before), (row, each), (rows_after, after)):
        b.do("reorder", columns, rows)
        b.do("kind", columns, "unroll")
        b.do("kind", rows, "vector")
