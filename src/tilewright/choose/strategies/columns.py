"""Columns of a product that fill no vector, all there are or those behind full vectors: sums along the reduction.

In: a stage; a builder, the columns' own accumulator and loops. Out: whether it fits; steps. Not its business: the full
vectors (``contract``), products that are sums along the reduction altogether (``rows``).

One column more than fills vectors would take a vector of its own at every step of the reduction, with most of its
lanes idle: 17 columns at the price of 24 or 32. As a sum along the reduction, a vector of its steps at a time, it costs
little more than its share; partial sums are added up once for each result.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import prod

from tilewright.choose.cost.tile import Operand, balanced, estimate
from tilewright.choose.strategies.view import find_body, nest_with
from tilewright.core.compute import Binary, Buffer, Const, Inside, Load, Select, Stage, Value
from tilewright.core.dims import is_known, known_under
from tilewright.core.estimates import COPIED_ROWS, DOUBT
from tilewright.core.expr import Dim
from tilewright.target.target import Target
from tilewright.tile.affine import stride_along
from tilewright.tile.ir import Loop, Update
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, most_iterations, uses


def are_few_columns(machine: Target, stage: Stage, constants: Container[Buffer]) -> bool:
    """Is every result of a product better a sum along the reduction, since its columns fill no vector?

    As lanes, three columns take a multiply-add for every step, a chain of them where one row has to wait for each. It
    fits sums over one axis of numeric extent of an element that neighbours follow, the same for all columns, times a
    constant (it will be packed), both of the sums' own type.
    """
    reduction, value, dtype = stage.reduction, stage.exprs[0], stage.out.dtype
    if reduction is None or reduction.op != "add" or len(reduction.axes) != 1 or not stage.axes or not dtype.is_float:
        return False
    depth, columns, width = reduction.axes[0].extent, stage.axes[-1].extent, machine.lanes(dtype)
    if not is_known(depth) or not known_under(columns, width) or not isinstance(value, Binary):
        return False
    if value.op != "mul" or not isinstance(value.a, Load) or not isinstance(value.b, Load):
        return False
    shared = [x for x in (value.a, value.b) if x.buffer not in constants]
    if len(shared) != 1 or {value.a.dtype, value.b.dtype} != {dtype}:
        return False
    strides = [stride_along(shared[0].buffer, shared[0].index, a.sym) for a in (stage.axes[-1], reduction.axes[0])]
    rows = estimate([a.extent for a in stage.axes[:-1]])
    each = max(2 / machine.load_ports, 1 / machine.fma_ports)
    apart = columns * (-(-depth // width) * each + machine.folding_cycles)
    return strides == [0, 1] and apart < depth * max(1 / machine.fma_ports, machine.fma_latency / rows)


def columns_apart(
    machine: Target,
    update: Update,
    operands: Sequence[Operand],
    reduced: Sequence[Loop],
    columns: Dim,
    rows: float,
    width: int,
) -> int:
    """How many of the ``columns`` go along the reduction: all behind the full vectors, or none.

    It fits sums of products of two elements of the sums' own type, many rows to share each column, and a reduction of
    numeric extents whose innermost loop walks neighbours of the operand that has no columns.
    """
    value, sizes = update.value, [x.extent for x in reduced if is_known(x.extent)]
    if not isinstance(value, Binary) or value.op != "mul" or update.op != "add" or not update.buffer.dtype.is_float:
        return 0
    factors = [_unguarded(x, reduced) for x in (value.a, value.b)]
    if not all(isinstance(x, Load) for x in factors):
        return 0
    if not is_known(columns) or len(sizes) < len(reduced) or not sizes or len(operands) != 2:
        return 0
    last = reduced[-1].sym
    shared = [op for op in operands if op.lane_stride == 0]
    walking = [op for op in operands if op.lane_stride != 0]
    n = columns % width
    if len(shared) != 1 or columns < width or n == 0 or shared[0].step(last) != 1:
        return 0
    copied, steps = not walking[0].is_constant, prod(sizes[:-1]) * -(-sizes[-1] // width)
    vector = prod(sizes) / machine.fma_ports
    if copied:
        if factors != [value.a, value.b] or len(reduced) > 1 or rows < COPIED_ROWS:
            return 0
        if sizes[-1] * value.dtype.n_bytes > machine.l1_bytes:  # a copied column is read for every row
            return 0
        # Two loads a step, of a row and of a copied column, whose elements move one by one, once for all rows.
        moved = prod(sizes) * (1 / machine.load_ports + 1 / machine.store_ports) / rows
        apart = n * (steps * max(2 / machine.load_ports, 1 / machine.fma_ports) + machine.folding_cycles + moved)
    else:
        sums = _sums(machine)
        # While sums wait for their last additions, those of one vector more cost nothing.
        if n > sums or rows * (columns // width) < machine.waiting_sums:
            return 0
        # A tile of rows and columns shares its loads, fewer for each sum, the more rows it has; and its sums wait.
        tile = min(rows, sums / n)
        step = max((1 / n + 1 / tile) / machine.load_ports, 1 / machine.fma_ports, machine.fma_latency / (n * tile))
        apart = n * (steps * step + machine.adding_cycles)
    # The full vectors cost the same in both; a gain that is small beside them is within the model's error.
    whole = columns // width * prod(sizes) / machine.fma_ports + vector
    return n if apart + DOUBT * whole < vector else 0


def _unguarded(v: Value, reduced: Sequence[Loop]) -> Value:
    """What a guard lets through that is the same along the innermost loop of the reduction, where it leaves a zero."""
    if isinstance(v, Select) and isinstance(v.cond, Inside) and v.b == Const(0, v.dtype):
        return v if uses(v.cond, reduced[-1].sym) else v.a
    return v


def along_reduction(
    b: ScheduleBuilder,
    machine: Target,
    acc: str,
    outer: Sequence[str],
    rows: Sequence[str],
    column: str,
    width: int,
    copied: str,
) -> list[str]:
    """Sums of the columns in partial vectors, a register tile of rows and columns at a time; returns the outer loops.

    The root's loops are ``outer``, ``rows`` and ``column``. The operand ``copied`` (if any) is copied for each column;
    in scratch of the thread when that is inside of a loop that threads share.
    """
    tile: list[str] = []
    walkers = [*outer, *([column, *rows] if copied else [*rows, column])]
    if len(walkers) > 1:
        b.do("reorder", *walkers)
    if not copied:
        walkers, tile = _row_tile(b, rows, _sums(machine) // _most(b, column))
        walkers, tile = [*outer, *walkers], [*tile, column]
    # Sums are placed in a loop, and the whole may be one tile.
    if not walkers:  # a loop of one iteration around the tile
        around, tile[0] = b.split(tile[0], _most(b, tile[0]))
        walkers = [around]
    for name in tile:
        b.do("kind", name, "unroll")
    b.do("compute_at", acc, walkers[-1], "reg")
    nest = nest_with(find_body(b.kernel, walkers[-1]), acc, Update)
    reduced = [x.sym.name for x in nest.loops][len(tile) :]
    if copied:
        b.do("stage", copied, column, "local" if walkers[0] != column else "global")
        b.do("rfactor", acc, reduced[-1], min(machine.partial_sums, machine.max_copies), width, *reduced[:-1][:1])
    else:
        b.do("spread", acc, nest.loops[0].sym.name, reduced[-1], width)
    return walkers


def _sums(machine: Target) -> int:
    """Partial sums of a tile of rows and columns, whose multiply-adds share what they load."""
    return min(machine.n_vector_registers // 2, machine.max_copies)


def _row_tile(b: ScheduleBuilder, rows: Sequence[str], most: int) -> tuple[list[str], list[str]]:
    """At most so many iterations of the innermost row loops as a tile: the loops outside of it, and its own."""
    walkers: list[str] = []
    tile: list[str] = []
    for row in reversed(rows):
        extent = _most(b, row)
        size = balanced(extent, max(most, 1))
        if size == 1:
            walkers.insert(0, row)
        elif size == extent:
            tile.insert(0, row)
        else:
            walker, part = b.split(row, size)
            walkers.insert(0, walker)
            tile.insert(0, part)
        most //= size
    return walkers, tile


def _most(b: ScheduleBuilder, loop: str) -> int:
    return most_iterations(find_loop(b.kernel, loop, "columns").loop)
