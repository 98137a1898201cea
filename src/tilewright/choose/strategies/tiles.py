"""The rule for products of narrow elements on a CPU's matrix registers.

In: a builder, the reduced buffer and the stage that reads it, as for ``contract``. Out: steps. Not its business: roles
of loops (``contract_plan``), what the registers are (``target.tiles``), packing (``constants``).

Before: ``for row: for lane: for k: S[row, lane] += A[row, k] * B[k, lane]``. After, for blocks of two by two registers
of sums or three beside each other::

    for block, for rows:
        S = 0
        for k_o: for each register of S: S[m, n] += A[m, g, d] * B[g, n, d] for m, g, n, d (one instruction)
        T = S                         (one instruction for each register)
        out[row, lane] = epilogue(T)  (a loop over rows of vectors)

Loops are ordered as vectors would have them: what stays in which cache is the same question. Rows of a register are
balanced, 49 as three 13s and a 10, since a product takes as long for one row as for sixteen. Extents that blocks leave
a rest of are divided, so that registers change their shape once and not in every block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from tilewright.choose.cost.tile import Tile, balanced, estimate, pays_threads
from tilewright.choose.strategies.contract import contract, divided
from tilewright.choose.strategies.contract_plan import ContractionPlan, known_iterations, plan_contraction
from tilewright.choose.strategies.contract_tile import (
    BoxPiece,
    batch_and_rows,
    extent_of,
    order_around,
    split_lanes,
    split_rows,
)
from tilewright.choose.strategies.operands import root_terms, split_groups, update_of
from tilewright.choose.strategies.steps import attempt, cached_name, copied_apart
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import find_body, nests, statement_of
from tilewright.core.compute import Const, Load, loads
from tilewright.core.dims import divisor, is_known, known
from tilewright.core.estimates import ASSUMED_SIZE
from tilewright.core.expr import Sym
from tilewright.core.indices import symbols_at
from tilewright.target.target import Target
from tilewright.target.tiles import TileUnit, unit_for
from tilewright.tile.affine import stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Store, Update
from tilewright.tile.matrix import index_of_sums
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import Nest, find_place, nest_of


@dataclass(frozen=True)
class RegisterBlock:
    """Registers of sums: rows of each, how many along two row loops, how many along the lanes."""

    rows: int
    n_rows: int
    n_rows2: int
    n_columns: int


@dataclass(frozen=True)
class RegisterTiling:
    """The instruction, the steps of a sum that it takes each time, and the registers of a block."""

    unit: TileUnit
    depth: int
    block: RegisterBlock


SHAPES = ((2, 2), (1, 3), (3, 1), (1, 2), (2, 1), (1, 1))
"""Registers of sums along rows and columns: with those of both operands, no more than there are."""


def tiles(b: ScheduleBuilder, machine: Target, reduced: str, root: str | None, *, threads: bool = True) -> list[str]:
    """Schedule the reduction ``reduced`` together with the stage ``root`` that reads it (None: alone).

    Returns the outermost loop of every piece. ``ScheduleError`` where the machine has no such registers for what is
    multiplied, or vectors take fewer cycles.
    """
    if not machine.tile_units:
        raise ScheduleError("tiles", reduced, "the machine has no matrix registers")
    if root is None:
        root, reduced = reduced, copied_apart(b, reduced)
    split_groups(b, machine, reduced, root)
    plan = plan_contraction(b, machine, reduced, root, threads=threads, apart=False)
    tiling = _tiling(plan, machine, *_unit(b, machine, plan), _rows_lie_last(b, plan, root))
    unit, block = tiling.unit, tiling.block
    names = {x.sym.name: x.sym.name for x in (*plan.outer, plan.lanes)}
    sums = {x.sym.name: x.sym.name for x in plan.reduced}
    whole = BoxPiece(plan.acc, names, sums, Tile(vectors=block.n_columns), unit.columns)
    assert plan.rows is not None
    rows = [block.n_rows * block.rows, block.rows]
    pieces = divided(b, [whole], plan.lanes.sym.name, [block.n_columns * unit.columns], _as_it_is)
    # What is left of a number of rows that is known is one block; of one that a call decides, less than a register.
    pieces = divided(b, pieces, plan.rows.sym.name, rows[:1] if is_known(plan.rows.extent) else rows, _as_it_is)
    return [_tiled(b, machine, plan, tiling, piece) for piece in pieces]


def _as_it_is(piece: BoxPiece, size: int) -> BoxPiece:
    """Registers follow from what is in a piece, so none of it changes with its size."""
    return piece


def units_of(machine: Target, update: Update) -> list[TileUnit]:
    """The instructions that multiply what an update reads, whichever side each operand is on."""
    read = sorted(x.buffer.dtype.name for x in loads(update.value))
    return [u for u in machine.tile_units if sorted((u.left.name, u.right.name)) == read]


def contract_inside(b: ScheduleBuilder, machine: Target, reduced: str, root: str) -> None:
    """Schedule a contraction inside of loops that threads share: on matrix registers, or else on vectors."""
    if not attempt(b, partial(tiles, b, machine, reduced, root, threads=False)):
        contract(b, machine, reduced, root, threads=False)


def _unit(b: ScheduleBuilder, machine: Target, plan: ContractionPlan) -> tuple[TileUnit, int]:
    """The instruction for what is multiplied, and how many steps of the sum it takes each time."""
    if not all(_fills_registers(s) for n in nests(b.kernel, plan.acc) for s in n.leaf if isinstance(s, Store)):
        raise ScheduleError("tiles", plan.acc, "its sums begin neither at zero nor with rows of memory")
    read, n = list(loads(update_of(b, plan.acc).value)), divisor(plan.reduced[-1].extent)
    if len(read) == 2 and plan.rows is not None and not plan.is_window:
        left, right = (x for x, _ in sorted(zip(read, plan.operands, strict=True), key=lambda x: x[1].lane_stride != 0))
        unit = unit_for(machine.tile_units, left.buffer.dtype, right.buffer.dtype)
        if unit is not None and plan.group == unit.group and (depth := unit.steps_at_once(n)):
            if not is_known(plan.lanes.extent) and divisor(plan.lanes.extent) % unit.columns:
                raise ScheduleError("tiles", plan.acc, "only a call says how many columns its registers would have")
            return unit, depth
    raise ScheduleError("tiles", plan.acc, "no matrix instruction multiplies such operands")


def _fills_registers(s: Store) -> bool:
    """Is zero stored, or what lies in rows, neighbours of a row beside each other, and has the sums' type?"""
    v = s.value
    if not isinstance(v, Load):
        return isinstance(v, Const) and v.value == 0
    lane, *rows = (i for i in reversed(s.index) if isinstance(i, Sym))
    apart = [stride_along(v.buffer, v.index, x) for x in rows]
    return v.dtype is s.buffer.dtype and stride_along(v.buffer, v.index, lane) == 1 and None not in apart


def _rows_lie_last(b: ScheduleBuilder, plan: ContractionPlan, root: str) -> bool:
    """Do the sums of other rows (``rows2``) lie before those of a register's rows, whose axes are the last ones?"""
    at = [symbols_at(i) for i in root_terms(b, plan.acc, root).values()]
    first, second = (next((k for k, s in enumerate(at) if x and x.sym in s), 0) for x in (plan.rows2, plan.rows))
    return first <= second


def _tiling(
    plan: ContractionPlan, machine: Target, unit: TileUnit, depth: int, may_have_other_rows: bool
) -> RegisterTiling:
    """The block of registers that takes the fewest cycles; ``ScheduleError`` where vectors take fewer."""
    n_rows = known_iterations(plan.rows)
    n_rows2 = known_iterations(plan.rows2) if plan.rows2 is not None and may_have_other_rows else 1
    rows = unit.rows if n_rows is None else balanced(n_rows, unit.rows)
    along = [
        ASSUMED_SIZE / unit.rows if n_rows is None else -(-n_rows // rows),
        ASSUMED_SIZE if n_rows2 is None else n_rows2,
        -(-estimate([plan.lanes.extent]) // unit.columns),
    ]
    sums = estimate([x.extent for x in plan.reduced])
    # Columns that are not counted here come out even, or some of the last registers would be empty.
    whole = 0 if is_known(plan.lanes.extent) else divisor(plan.lanes.extent) // unit.columns
    cycles, block = cheapest_block(unit, rows, along, sums / depth, whole)
    if cycles >= plan.tile.cycles * sums / plan.group:
        raise ScheduleError("tiles", plan.acc, "vectors take fewer cycles")
    return RegisterTiling(unit, depth, block)


def cheapest_block(
    unit: TileUnit, rows: int, along: Sequence[float], steps: float, whole: int = 0
) -> tuple[float, RegisterBlock]:
    """The block of registers, of so many ``rows`` each, that takes the fewest cycles, and these.

    ``along`` are how many registers there would be along both row loops and the lanes, of which a block's divide
    ``whole``; a sum takes ``steps`` products.
    """
    found: list[tuple[float, RegisterBlock]] = []
    for n_rows, n_columns in [x for x in SHAPES if whole % x[1] == 0]:
        for block in (RegisterBlock(rows, n_rows, 1, n_columns), RegisterBlock(rows, 1, n_rows, n_columns)):
            sizes = (block.n_rows, block.n_rows2, n_columns)
            if all(size <= max(n, 1) for n, size in zip(along, sizes, strict=True)):
                blocks = prod(-(-n // size) for n, size in zip(along, sizes, strict=True))
                found.append((blocks * _cycles(unit, n_rows, n_columns, steps), block))
    return min(found, key=lambda x: x[0])


def _cycles(unit: TileUnit, n_rows: int, n_columns: int, steps: float) -> float:
    """Cycles of a block: products, or the loads of their operands, or the wait for the sums; then these are moved."""
    n = n_rows * n_columns
    step = max(n * unit.cycles, (n_rows + n_columns) * unit.load_cycles, unit.latency)
    return steps * step + n * 2 * unit.store_cycles


def _tiled(b: ScheduleBuilder, machine: Target, plan: ContractionPlan, tiling: RegisterTiling, piece: BoxPiece) -> str:
    """The steps of one piece; returns its outermost loop."""
    block, acc = tiling.block, piece.acc
    outer: list[str] = []
    inner: list[str] = []
    blocks, vectors, lanes = split_lanes(b, piece.loops[plan.lanes.sym.name], piece)
    for loop in plan.outer:
        name = piece.loops[loop.sym.name]
        if loop is plan.rows:
            walker, part = split_registers(b, name, tiling)
        else:
            walker, part = split_rows(b, name, block.n_rows2 if loop is plan.rows2 else 1)
        outer += walker
        inner += part
    tiled = [*inner, *vectors, lanes]
    batch, rows = batch_and_rows(plan, piece, outer)
    order = order_around(b, machine, plan, batch, blocks, rows, tiled)
    vectors, lanes = tiled[len(inner) : -1], tiled[-1]
    held, (leaf,) = acc, find_body(b.kernel, lanes)
    is_moved = isinstance(leaf, Store) and isinstance(leaf.value, Load) and leaf.value.buffer.name == acc
    if not is_moved:  # what is computed with the sums reads them from memory, in vectors
        b.do("cache", acc)
        held = cached_name(b, acc)
        b.do("compute_at", acc, order[-1], "local")
        for name in vectors:
            b.do("kind", name, "unroll")
        b.do("kind", lanes, "vector")
    b.do("compute_at", held, order[-1], "matrix")
    for nest in nests_of(b, order[-1], held):
        as_instructions(b, nest, held, tiling)
    if pays_threads(plan.work, machine, plan.width):
        parallel(b, machine, order[:2])
    return order[0]


def split_registers(b: ScheduleBuilder, loop: str, tiling: RegisterTiling) -> tuple[list[str], list[str]]:
    """A row loop as (loops over blocks, loops over registers and over rows of one)."""
    rows, n_registers = tiling.block.rows, tiling.block.n_rows
    n = known(extent_of(b, loop), None)
    walker: list[str] = []
    if n is None or n > rows * n_registers:
        around, loop = b.split(loop, rows * n_registers)
        walker = [around]
    else:
        rows = balanced(n, tiling.unit.rows)
    return walker, [loop] if n is not None and n <= rows else [*b.split(loop, rows)]


def nests_of(b: ScheduleBuilder, at: str, held: str) -> list[Nest]:
    """The nests in the body of a loop that touch the matrix registers."""
    own = {find_place(b.kernel, held, "tiles").buffer}
    found = [nest_of(s) for s in find_body(b.kernel, at)]
    return [n for n in found if any(index_of_sums(s, own) for s in n.leaf)]


def as_instructions(b: ScheduleBuilder, nest: Nest, held: str, tiling: RegisterTiling) -> None:
    """The loops of a nest over registers as those outside of an instruction, and its own."""
    index = index_of_sums(statement_of(nest), {find_place(b.kernel, held, "tiles").buffer})
    columns = [x.sym.name for x in nest.loops if x.sym in symbols_at(index[-1])]
    rows = [x.sym.name for x in nest.loops if x.sym in symbols_at(index[-2])]
    others = [x.sym.name for x in nest.loops if any(x.sym in symbols_at(i) for i in index[:-2])]
    sums = [x.sym.name for x in nest.loops if x.sym.name not in (*columns, *rows, *others)]
    outside = [*others, *rows[:-1], *columns[:-1]]
    own = [rows[-1], columns[-1]]
    if sums:
        steps, inside = b.split(sums[-1], tiling.depth)
        groups, group = b.split(inside, tiling.unit.group)
        sums = [*sums[:-1], steps]
        own = [rows[-1], groups, columns[-1], group]
        b.do("kind", group, "dot")
    for name in outside:
        b.do("kind", name, "unroll")
    b.do("reorder", *sums, *outside, *own)
    for name in own[:3]:
        b.do("kind", name, "matrix")
