"""The rule for sums of sums whose inner sums are products on a CPU's matrix registers.

In: a builder, the buffer of the inner sums, that of the outer ones. Out: steps. Not its business: vectors (``nested``),
a single sum (``tiles``), where the right operand is decoded (``copies``).

Before: ``T[m, g, j, q] = sum_k A[m, k] * B[k, j, q]``, then ``Y[m, j, q] = sum_g T * S``. After::

    for block of words: (B is decoded here) for rows: for code j: for registers of the block:
        y = 0
        for g:
            t = 0; for k: t += A * B     (matrix registers)
            T = t                        (one instruction for each register)
            y += T * S                   (vectors)
        Y = y

So a block of words comes from memory once, and its codes from a cache for all rows. Where that has no room for all
codes of the words, rows are walked for one code after the other. Blocks are those of ``nested``:
one packed copy of the words serves products of one row and of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.choose.cost.tile import balanced, estimate, pays_threads
from tilewright.choose.strategies.nested import names, still, terms_of
from tilewright.choose.strategies.operands import reduced_loops, update_of
from tilewright.choose.strategies.pointwise import pointwise
from tilewright.choose.strategies.steps import attempt, cached_name, copied_apart
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.tiles import (
    RegisterTiling,
    as_instructions,
    cheapest_block,
    nests_of,
    split_registers,
    units_of,
)
from tilewright.choose.strategies.view import find_body, may_vectorize, nest_with, only_nest, statement_of
from tilewright.core.dims import is_known, known, known_multiple
from tilewright.core.indices import symbols_at
from tilewright.target.target import Target
from tilewright.target.tiles import TileUnit
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Loop, Store, Update, walk
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import nest_of


def nested_tiles(b: ScheduleBuilder, machine: Target, inner: str, outer: str) -> None:
    """Schedule the reduction ``outer`` together with the reduction ``inner``, whose results only its terms read.

    ``ScheduleError`` where the machine has no such registers for what the inner sums multiply, or where the words are
    not whole blocks.
    """
    unit, depth = _unit(b, machine, inner)
    acc = copied_apart(b, outer)
    *rest, lanes = only_nest(b.kernel, outer).loops
    if not may_vectorize((*only_nest(b.kernel, outer).leaf, update_of(b, acc)), lanes.sym):
        raise ScheduleError("nested_tiles", outer, "its last axis can't be lanes")
    right = [x for x in loads_of(update_of(b, inner)) if lanes.sym not in still(b, inner, acc, outer, [x])]
    rows = [x for x in rest if x.sym in still(b, inner, acc, outer, right)]
    columns = [x for x in rest if x not in rows]
    words = machine.words_of_a_row(known(columns[-1].extent, 1) if columns else 1)
    if not rows or not columns or not is_known(rows[-1].extent) or not known_multiple(lanes.extent, words):
        raise ScheduleError("nested_tiles", outer, f"not so many rows by blocks of {words} words")
    tiling = _tiling(b, inner, unit, depth, rows[-1], words)
    work = estimate([x.extent for x in (*rest, lanes)]) * estimate([x.extent for x in reduced_loops(b, inner)])
    work *= estimate([x.extent for x in reduced_loops(b, acc)])

    block, lane = b.split(lanes.sym.name, words)
    across: list[str] = []
    if words > (size := tiling.block.n_columns * unit.columns):
        part, lane = b.split(lane, size)
        across = [part]
    vector, lane = b.split(lane, unit.columns)
    walked, own = split_registers(b, rows[-1].sym.name, tiling)
    # The more columns are decoded at once, the fewer times rows are read again.
    decoded = sum(estimate(x.buffer.shape) * x.dtype.n_bytes for x in right) * words / lanes.extent
    walkers = [*names(rows[:-1]), *walked]
    inside = [*walkers, *names(columns)] if decoded <= machine.l2_kept_bytes else [*names(columns), *walkers]
    outside = [block, *inside, *across]
    b.do("reorder", *outside, *own, vector, lane)
    # Outer sums stay near for a block of registers; inner ones are moved there for one group.
    scales = [x.buffer.name for x in loads_of(update_of(b, acc)) if x.buffer.name != inner]
    b.do("compute_at", acc, outside[-1], "local")
    nest = nest_with(find_body(b.kernel, outside[-1]), acc, Update)
    terms = terms_of(b, acc, nest)
    b.do("reorder", *names(terms), *names([x for x in nest.loops if x not in terms]))
    group = terms[-1].sym.name
    b.do("cache", inner)
    held = cached_name(b, inner)
    b.do("compute_at", inner, group, "local")
    b.do("compute_at", held, group, "matrix")
    for nest in nests_of(b, group, held):
        as_instructions(b, nest, held, tiling)
    _in_vectors(b, outside[-1], [acc, outer])
    for name in scales:  # packed copies are those of ``nested`` where they lie as words do: block by block
        attempt(b, partial(_brought_near, b, machine, name, block))
    if pays_threads(work, machine, machine.lanes(unit.result)):
        parallel(b, machine, [block])


def _unit(b: ScheduleBuilder, machine: Target, inner: str) -> tuple[TileUnit, int]:
    """The instruction for what the inner sums multiply, and how many steps of a sum it takes each time."""
    reduced = reduced_loops(b, inner)
    for unit in units_of(machine, update_of(b, inner)):
        n = reduced[-1].extent if reduced else 0
        if is_known(n) and (depth := unit.steps_at_once(n)):
            return unit, depth
    raise ScheduleError("nested_tiles", inner, "no matrix instruction multiplies such operands")


def _tiling(b: ScheduleBuilder, inner: str, unit: TileUnit, depth: int, rows: Loop, words: int) -> RegisterTiling:
    """Registers of balanced rows, as many side by side as take the fewest cycles."""
    n_rows = int(estimate([rows.extent]))
    each = balanced(n_rows, unit.rows)
    steps = estimate([x.extent for x in reduced_loops(b, inner)]) / depth
    along = -(-n_rows // each), 1, words // unit.columns
    return RegisterTiling(unit, depth, cheapest_block(unit, each, along, steps)[1])


def _brought_near(b: ScheduleBuilder, machine: Target, name: str, at: str) -> None:
    """A constant's part for a block in scratch, copied in the order of its own dimensions."""
    near, *_ = b.do("stage", name, at, "local").buffers
    nest = only_nest(b.kernel, near)
    (load,) = loads_of(statement_of(nest))
    b.do("reorder", *[x.sym.name for i in load.index for x in nest.loops if x.sym in symbols_at(i)])
    pointwise(b, machine, near, threads=False)


def _in_vectors(b: ScheduleBuilder, at: str, written: Sequence[str]) -> None:
    """What begins, joins and copies out outer sums goes over vectors of a row, those side by side copied."""
    kinds: dict[str, str] = {}
    for s in walk(find_body(b.kernel, at)):
        loops, (leaf, *others) = nest_of(s).loops, nest_of(s).leaf
        if len(loops) > 1 and not others and isinstance(leaf, Store | Update) and leaf.buffer.name in written:
            *_, vector, lane = names(loops)
            kinds |= {vector: "unroll", lane: "vector"}
    for name, kind in kinds.items():
        b.do("kind", name, kind)
