"""The rule for rows of a few elements: reductions along them, and element-wise stages over the same rows.

In: a builder, the buffers of the stages in order (the last is the root). Out: steps.
Not its business: longer rows (``rows``), more columns (``contract``).

A row of three elements is a vector of three lanes, whose partial results are added up lane by lane. Here a vector's
lanes are as many rows instead. Before: one nest per stage (softmax: maximum, exponential, sum, quotient), each ``for
row: for column``. After: ``for block of rows``: a reduction is ``for column (unrolled): for row (lanes)``, whose loads
are strided ones that become shuffles; an element-wise stage is one run of rows and columns, all of them lanes. And a
reduction of all rows, column by column, goes over that many rows at a time, into a vector for each column.
"""

from __future__ import annotations

from tilewright.choose.cost.tile import estimate, pays_threads
from tilewright.choose.strategies.operands import operands_of, reduced_loops, update_of
from tilewright.choose.strategies.pointwise import GROUPS
from tilewright.choose.strategies.rows import n_reductions, row_loop, with_plain_root, work_of
from tilewright.choose.strategies.steps import copied_apart
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import find_body, may_vectorize, nest_with, only_nest, vector_width
from tilewright.core.dims import is_known, known_at_least
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kind, Store, Update, walk
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import Nest, nest_of

MOST_COLUMNS = (GROUPS[-1], 8, 12)
"""Elements of a row up to which this pays: of a lone sum; of one with element-wise stages; where there are several."""


def short_rows(b: ScheduleBuilder, machine: Target, buffers: list[str]) -> None:
    """Schedule all stages together at blocks of as many rows as a vector has lanes.

    ``ScheduleError`` where rows are longer than ``MOST_COLUMNS``, fewer than lanes, or known at run time only.
    """
    root = buffers[-1]
    temps = with_plain_root(b, buffers)
    nest = only_nest(b.kernel, root)
    work = work_of(b, [*temps, root])
    row = row_loop(b, nest, set(temps))
    found = next((x for x in nest.loops if x.sym.name == row), None)
    if found is None:
        raise ScheduleError("short_rows", root, "one row only")
    width = vector_width(machine, tuple(s for s in walk(b.kernel.body) if isinstance(s, Store | Update)))
    if width <= GROUPS[-1] or not known_at_least(found.extent, width):
        raise ScheduleError("short_rows", root, f"{found.extent} rows, of which {width} are a vector")
    at, _ = b.split(found.sym.name, width, "shift")
    only_sums = found is nest.loops[-1] and len(temps) == 1
    n_sums = n_reductions(b, temps)
    most = MOST_COLUMNS[0 if only_sums else min(n_sums, 2)]
    for name in reversed(temps):
        b.do("compute_at", name, at, "reg" if only_sums else "local")
    for s in find_body(b.kernel, at):
        _lanes(b, nest_of(s), width, most)
    if pays_threads(work, machine, width):
        parallel(b, machine, [at if x is found else x.sym.name for x in nest.loops][:2])


def few_columns(b: ScheduleBuilder, machine: Target, reduced: str, root: str | None) -> None:
    """Reduce rows of two to four elements, one row after the other in memory, to one of them; steps as of ``narrow``.

    ``ScheduleError`` where the reduction is another one, or has fewer rows than make vectors worth adding up.
    """
    if root is None:
        root, reduced = reduced, copied_apart(b, reduced)
    top, update, along = only_nest(b.kernel, root), update_of(b, reduced), reduced_loops(b, reduced)
    width = vector_width(machine, (*top.leaf, update))
    columns = top.loops[-1] if top.loops else None
    n = columns.extent if columns is not None else 0
    if columns is None or not is_known(n) or n not in GROUPS or width <= GROUPS[-1] or len(along) != 1:
        raise ScheduleError("few_columns", reduced, "no one loop over rows of two to four elements")
    if not is_known(along[0].extent) or along[0].extent < machine.partial_sums * width:
        raise ScheduleError("few_columns", reduced, f"{along[0].extent} rows")
    loads = [x for x in loads_of(update) if x.dtype is update.buffer.dtype]
    found = [(x.lane_stride, x.step(along[0].sym)) for x in operands_of(b, reduced, root, columns.sym)]
    if len(loads) != 1 or found != [(1, n)]:
        raise ScheduleError("few_columns", reduced, "not one operand whose rows lie behind each other")
    outer, tile = [x.sym.name for x in top.loops[:-1]], columns.sym.name
    if not outer:  # a loop of one iteration around the columns
        around, tile = b.split(tile, n)
        outer = [around]
    b.do("kind", tile, "unroll")
    b.do("compute_at", reduced, outer[-1], "reg")
    nest = nest_with(find_body(b.kernel, outer[-1]), reduced, Update)
    b.do("spread", reduced, nest.loops[0].sym.name, along[0].sym.name, width)
    if pays_threads(estimate([x.extent for x in (*top.loops, *along)]), machine, width):
        parallel(b, machine, outer[:2])


def _lanes(b: ScheduleBuilder, nest: Nest, width: int, most: int) -> None:
    """The nest of one stage in a block: rows and columns, or rows alone, as lanes; a reduction's columns copied.

    ``most`` columns at most.
    """
    loops = list(nest.loops)
    leaf = nest.leaf[0]
    if len(nest.leaf) != 1 or not isinstance(leaf, Store | Update) or not loops or len(loops) > 2:
        raise ScheduleError("short_rows", "", f"{len(loops)} loops around {len(nest.leaf)} statements of a block")
    rows, columns = loops[0], loops[1:]
    fits = rows.extent == width and all(is_known(x.extent) and 1 < x.extent <= most for x in columns)
    if not fits or not all(may_vectorize(nest.leaf, x.sym) and x.kind is Kind.SERIAL for x in loops):
        raise ScheduleError("short_rows", rows.sym.name, f"it is no row of two to {most} elements for every lane")
    if isinstance(leaf, Update):
        b.do("reorder", columns[0].sym.name, rows.sym.name)
        b.do("kind", columns[0].sym.name, "unroll")
    else:
        for x in columns:
            b.do("kind", x.sym.name, "vector")
    b.do("kind", rows.sym.name, "vector")
