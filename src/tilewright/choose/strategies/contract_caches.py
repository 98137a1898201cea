"""What of a reduction's operands stays in which cache: chunks of rows, panels before rows.

In: a builder, the reduced buffer, its tile. Out: counts and answers. Not its business: the tile (``contract_plan``).
"""

from __future__ import annotations

from math import ceil

from tilewright.choose.cost.tile import Tile, estimate
from tilewright.choose.strategies.operands import own_loops, root_terms, update_of
from tilewright.choose.strategies.threads import min_tasks
from tilewright.choose.strategies.view import nests, statement_of
from tilewright.core.compute import Load
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known
from tilewright.core.expr import Sym, bounds, mod, substitute
from tilewright.core.indices import is_chosen
from tilewright.target.target import Target
from tilewright.tile.ir import Loop, Role, Update
from tilewright.tile.schedule import ScheduleBuilder

MIN_SHARING_TILES = 4
"""So many tiles in a row share what stays in a cache at least; all but the last know what is read next."""


def shared_by_rows(b: ScheduleBuilder, acc: str, root: str, outermost: list[Sym]) -> float:
    """The most elements of an operand that one iteration of the outermost row loop reads: the rows of a window.

    The next iteration reads most of them again.
    """
    dims, here = root_terms(b, acc, root), dict.fromkeys(outermost, 0)
    most = 0.0
    for x in walk_value(update_of(b, acc).value):
        if isinstance(x, Load):
            n = 1.0
            for i, d in zip(x.index, x.buffer.shape, strict=True):
                lo, hi = (None, None) if is_chosen(i) else bounds(substitute(substitute(i, dims), here))
                whole = estimate([d])
                n *= whole if lo is None or hi is None else min(hi - lo + 1, whole)
            most = max(most, n)
    return most


def row_chunks(
    b: ScheduleBuilder, machine: Target, acc: str, rows: list[Loop], lanes: Loop, tile: Tile, width: int
) -> int:
    """Into how many parts the outermost row loop is cut, so that what the rows read stays in the second-level cache.

    A chunk reads all panels again; it pays when that is less than reading all rows again for every panel.
    """
    update = statement_of(nests(b.kernel, acc)[-1])
    assert isinstance(update, Update)
    loads = [x for x in walk_value(update.value) if isinstance(x, Load)]
    sizes = [(estimate(x.buffer.shape) * x.dtype.n_bytes, is_constant(b, x)) for x in loads]
    row_bytes = max((n for n, fixed in sizes if not fixed), default=0.0)
    panel_bytes = max((n for n, fixed in sizes if fixed), default=0.0)
    if not rows or row_bytes <= machine.l2_kept_bytes:
        return 1
    # Of a run-time number of rows the tiles for the rest would read all panels once more; and tiles walk two loops.
    size = tile.rows if len(rows) == 1 else 1
    if not is_known(rows[0].extent) and (len(rows) > 2 or mod(rows[0].extent, size) != 0):
        return 1
    steps = ceil(estimate([rows[0].extent]) / size)
    least = max(-(-int(row_bytes) // machine.l2_kept_bytes), min_tasks(machine))
    wanted = even_chunks(steps, least, machine.n_cores)
    n_panels = estimate([lanes.extent]) / (tile.vectors * width)
    pays = wanted <= steps // 2 and panel_bytes * wanted < 0.7 * row_bytes * n_panels
    return wanted if pays and _is_shared_out(machine, rows[0], steps * size // wanted) else 1


def short_chunks(
    b: ScheduleBuilder, machine: Target, acc: str, rows: list[Loop], lanes: Loop, tile: Tile, width: int
) -> int:
    """Into how many parts the only row loop is cut where all panels stay in the second-level cache.

    Results larger than that cache go to memory, and neither they nor what the rows read come from it at the pace of
    the products, if all rows are walked for every panel. A chunk is what stays in the first-level cache.
    """
    update = update_of(b, acc)
    loads = [x for x in walk_value(update.value) if isinstance(x, Load) and not is_constant(b, x)]
    n_lanes = estimate([lanes.extent])
    if len(rows) != 1 or not loads or n_lanes <= tile.vectors * width:
        return 1
    n_rows = estimate([rows[0].extent])
    steps, times = ceil(n_rows / tile.rows), estimate([x.extent for x in own_loops(b, acc)]) / (n_rows * n_lanes)
    read = max(max(estimate(x.buffer.shape) * x.dtype.n_bytes for x in loads) / times, 1.0)
    made = n_rows * n_lanes * update.buffer.dtype.n_bytes
    least = steps // max(int(machine.l1_bytes / 2 / (read / steps)), MIN_SHARING_TILES)
    if read + made <= machine.l2_kept_bytes or least < min_tasks(machine):
        return 1
    wanted = even_chunks(steps, least, machine.n_cores)
    return wanted if _is_shared_out(machine, rows[0], steps * tile.rows // wanted) else 1


def _is_shared_out(machine: Target, rows: Loop, chunk: int) -> bool:
    """Do threads get enough chunks of so many rows, also where a call brings as few rows as it may?"""
    least = bounds(rows.extent)[0] or 0
    return is_known(rows.extent) or machine.n_cores == 1 or least // max(chunk, 1) >= min_tasks(machine)


def even_chunks(steps: int, least: int, n_cores: int) -> int:
    """How many chunks of steps, ``least`` or up to twice as many, give the busiest core the fewest steps."""

    def longest(n: int) -> int:
        size = -(-steps // n)
        chunks = -(-steps // size)
        return -(-chunks // n_cores) * size

    return min(range(least, 2 * least + 1), key=longest)


def panels_first(machine: Target, b: ScheduleBuilder, acc: str) -> bool:
    """Lane blocks outside of rows when the operand that rows share is too large to stay in the second-level cache."""
    update = statement_of(nests(b.kernel, acc)[-1])
    assert isinstance(update, Update)
    size = 0.0
    for x in walk_value(update.value):
        if isinstance(x, Load):
            size = max(size, estimate(x.buffer.shape) * x.dtype.n_bytes) if is_constant(b, x) else size
    return size > machine.l2_kept_bytes


def is_constant(b: ScheduleBuilder, x: Load) -> bool:
    return any(p.buffer is x.buffer and p.role is Role.CONST for p in b.kernel.places)
