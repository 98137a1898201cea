"""The rule for products of few columns: rows and columns of sums, each a vector of steps of the reduction.

In: a builder, the reduced buffer and, when the epilogue is fused, the buffer of the stage that reads it. Out: steps.
Not its business: products whose columns fill vectors (``contract``), packing (``constants``).

A convolution to three channels, a classifier of five classes, groups with few outputs each: as lanes, the columns
would leave most of a vector idle. Before: ``for row: for column: for k: t[row, column] += x[row, k] * w[k, column]``.
After: for a tile of rows and all columns, ``for k_o: p[row, column, lane] += x[row, 16*k_o + lane] * w[...]``, whose
lanes are added up once for each result.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.choose.cost.tile import FUNCTION_OPERATIONS, MAX_UNROLLED, balanced, estimate, pays_threads
from tilewright.choose.strategies.operands import group_size, operands_of, reduced_loops, update_of
from tilewright.choose.strategies.steps import cached_name, copied_apart, follow, pair_with_rows
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import find_body, n_arithmetic, nest_with, only_nest, statement_of, vector_width
from tilewright.core.compute import Binary, Load
from tilewright.core.dims import is_known, known_over
from tilewright.core.estimates import DOUBT
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Loop, Store, Update
from tilewright.tile.schedule import ScheduleBuilder


@dataclass(frozen=True)
class _Form:
    """Loops by role; ``along`` is the loop of the reduction whose steps become lanes, ``n_rows`` the tile's rows."""

    columns: Loop
    n_columns: int
    rows: Loop | None
    n_rows: int
    outer: list[Loop]
    along: Loop
    width: int
    work: float

    is_apart: bool
    """Do the sums go through memory to an epilogue whose lanes are rows and columns?"""


def narrow(
    b: ScheduleBuilder, machine: Target, reduced: str, root: str | None, *, has_lanes: bool = True, threads: bool = True
) -> None:
    """Schedule the reduction ``reduced`` together with the stage ``root`` that reads it (None: alone).

    ``ScheduleError`` where it is no float product of a contiguous operand by another with few columns (a constant, or
    contiguous along the reduction as well), or where lanes along the columns cost less. Without ``has_lanes`` the last
    axis can't be lanes, and the few columns may be those of any axis: a few queries by the keys of a cache.
    """
    if root is None:
        root, reduced = reduced, copied_apart(b, reduced)
    _split_groups(b, reduced, root)
    blocks = [] if has_lanes else _split_rows(b, machine, reduced, root)
    form = _form(b, machine, reduced, root, has_lanes)
    outer, rows = [x.sym.name for x in form.outer], []
    if form.rows is not None:
        name = form.rows.sym.name
        if form.rows.extent == form.n_rows:
            outer, rows = [n for n in outer if n != name], [name]
        else:
            block, row = b.split(name, form.n_rows)
            outer, rows = [block if n == name else n for n in outer], [row]
    tile = [*rows, form.columns.sym.name]
    outer = [n for n in outer if n not in blocks] + blocks
    if not outer:  # the whole is one tile: a loop of one iteration around it
        around, tile[0] = b.split(tile[0], form.n_rows if rows else form.n_columns)
        outer = [around]
    b.do("reorder", *outer, *tile)
    for name in tile:
        b.do("kind", name, "unroll")
    sums = reduced
    # The sums come out as single numbers. An epilogue of many operations is cheaper in lanes of rows and columns, even
    # by way of memory.
    if form.is_apart:
        b.do("cache", reduced)
        sums = cached_name(b, reduced)
        b.do("compute_at", reduced, outer[-1], "local")
    b.do("compute_at", sums, outer[-1], "reg")
    nest = nest_with(find_body(b.kernel, outer[-1]), sums, Update)
    b.do("spread", sums, nest.loops[0].sym.name, form.along.sym.name, form.width)
    if form.is_apart:
        *walked, lanes = tile
        for name in walked:
            b.do("kind", name, "serial")
        b.do("kind", lanes, "vector")
        pair_with_rows(b, walked[-1], lanes, form.width)
    if threads and pays_threads(form.work, machine, form.width):
        parallel(b, machine, outer[:2])


def _split_groups(b: ScheduleBuilder, acc: str, root: str) -> None:
    """Columns of one group, where an operand is the same for all of them."""
    top = only_nest(b.kernel, root)
    if not top.loops:
        return
    lanes = top.loops[-1]
    size = group_size(b, acc, root, lanes.sym)
    if size is not None and estimate([lanes.extent]) > size:
        b.do("split", lanes.sym.name, size)


def _split_rows(b: ScheduleBuilder, machine: Target, acc: str, root: str) -> list[str]:
    """More rows of the operand that is the same for them than are columns of a tile: blocks of them; their loop.

    It goes inside of the others, so that all rows go by a tile's elements of the other operand while they are cached.
    """
    top = only_nest(b.kernel, root)
    most = max(vector_width(machine, (*top.leaf, update_of(b, acc))) // 2, 1)
    many = [x for x in top.loops if known_over(x.extent, most)]
    many = [x for x in many if sum(op.lane_stride == 0 for op in operands_of(b, acc, root, x.sym)) == 1]
    if len(many) < 2:
        return []
    least = min(many, key=lambda x: estimate([x.extent]))
    assert is_known(least.extent)
    name, n = least.sym.name, least.extent
    size = balanced(n, most)
    block, _ = b.split(name, size, "shift" if n % size else "min")
    return [block]


def _form(b: ScheduleBuilder, machine: Target, acc: str, root: str, has_lanes: bool) -> _Form:
    top, update = only_nest(b.kernel, root), update_of(b, acc)
    leaf, value = statement_of(top), update.value
    reduced = reduced_loops(b, acc)
    sizes = [x.extent for x in reduced if is_known(x.extent)]
    if not top.loops or not isinstance(leaf, Store) or update.op != "add" or len(sizes) < len(reduced):
        raise ScheduleError("narrow", acc, "no sum over known sizes below an assignment")
    if not isinstance(value, Binary) or value.op != "mul":
        raise ScheduleError("narrow", acc, "no sum of products")
    if any(not isinstance(x, Load) or x.dtype is not update.buffer.dtype for x in (value.a, value.b)):
        raise ScheduleError("narrow", acc, "no products of elements of the sums' own type")
    width = vector_width(machine, (*top.leaf, update))
    # More columns than half a vector would fill lanes well enough by themselves.
    few = [x for x in top.loops if is_known(x.extent) and 1 < x.extent <= width // 2]
    columns = few[-1] if few and not has_lanes else top.loops[-1]
    n = columns.extent
    operands = operands_of(b, acc, root, columns.sym)
    shared = [op for op in operands if op.lane_stride == 0]
    walking = [op for op in operands if op.lane_stride != 0]
    if not is_known(n) or n > width // 2 or not update.buffer.dtype.is_float:
        raise ScheduleError("narrow", acc, f"{n} columns of {update.buffer.dtype}")
    if len(shared) != 1 or len(walking) != 1:
        raise ScheduleError("narrow", acc, "not one operand that all columns share, and one that they don't")
    fits = [x for x, size in zip(reduced, sizes, strict=True) if shared[0].step(x.sym) == 1 and size >= width]
    if not fits or not (walking[0].is_constant or walking[0].step(fits[-1].sym) == 1):
        raise ScheduleError("narrow", acc, "no loop of the reduction along which both operands are contiguous")
    along, depth = fits[-1], sizes[reduced.index(fits[-1])]
    outer = [x for x in top.loops if x is not columns]
    # Rows that read the same elements of the operand with few columns share its loads in one tile.
    free = [x for x in outer if known_over(x.extent, 1) and walking[0].step(x.sym) == 0]
    rows = free[-1] if free else None
    # One register for each sum, one for each column's elements, one for the row's.
    most = max(min((machine.n_vector_registers - n - 1) // n, MAX_UNROLLED // n), 1)
    extent = rows.extent if rows is not None and is_known(rows.extent) else 1
    n_rows = balanced(extent, most)
    if n_rows * n < machine.waiting_sums:
        raise ScheduleError("narrow", acc, f"{n_rows * n} sums, each of which waits for itself")
    # Cycles of one result: partial vectors along the reduction and adding them up, or a step for each of its elements
    # with all columns as lanes.
    each = n_arithmetic(leaf.value)
    is_apart = each > FUNCTION_OPERATIONS and n_rows > 1 and rows is not None and follow(leaf, rows, columns)
    operations = each / (width // n * n) if is_apart else each
    steps = prod(sizes) // depth * -(-depth // width)
    mine = steps / machine.fma_ports + machine.folding_cycles + operations
    by_lanes = prod(sizes) / n / machine.fma_ports + (operations if is_apart else each / n)
    if has_lanes and mine > (1 - DOUBT) * by_lanes:
        raise ScheduleError("narrow", acc, f"{n} columns cost less as lanes")
    work = estimate([x.extent for x in top.loops]) * (prod(sizes) + machine.folding_cycles)
    return _Form(columns, n, rows, n_rows, outer, along, width, work, is_apart)
