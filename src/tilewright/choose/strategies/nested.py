"""The rule for sums of sums: each term of the outer sum is made of an inner sum, and no inner sum is ever in memory.

In: a builder, the buffer of the inner sums, that of the outer ones. Out: steps. Not its business: a single sum
(``contract``), packing (``constants``).

Products with a matrix of few bits have this form: the codes of a group are summed as they are, then the group's zero
point and scale join once for all of them. Before: ``T[m, g, j, q] = sum_r ...`` as a whole, then ``Y[m, j, q] = sum_g
f(T)``. After, for a block of lanes and some rows: ``for g: for part of j: t = sum_r ..., in registers; y += f(t)``, and
what is summed is copied out. Along ``j`` the inner sums load the same words, so that a step unpacks each of them once
for all rows of its tile. The words stream through once for one row, and come from a cache for the next rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from tilewright.choose.cost.tile import WORK_PER_BYTE, estimate, pays_threads
from tilewright.choose.strategies.operands import own_loops, reduced_loops, root_terms, update_of
from tilewright.choose.strategies.steps import copied_apart
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import (
    find_body,
    may_vectorize,
    nest_with,
    only_nest,
    vector_width,
)
from tilewright.core import types
from tilewright.core.compute import Binary, Cast, Load, buffers_of_value
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known, known_multiple
from tilewright.core.expr import Sym, symbols
from tilewright.core.indices import symbols_in
from tilewright.target.dots import Dot
from tilewright.target.target import UNPACKING, Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kind, Loop, Update
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import Nest, find_loop


class _Tile(NamedTuple):
    """Inner sums that are in registers at once: rows, codes of a word, vectors."""

    rows: int
    codes: int
    vectors: int


def nested(b: ScheduleBuilder, machine: Target, inner: str, outer: str) -> None:
    """Schedule the reduction ``outer`` together with the reduction ``inner``, whose results only its terms read.

    ``ScheduleError`` where the last axis can't be lanes, or the sums of one row in a block are not a known number.
    """
    acc = copied_apart(b, outer)
    top, term, update = only_nest(b.kernel, outer), update_of(b, acc), update_of(b, inner)
    *rest, lanes = top.loops
    if not may_vectorize((*top.leaf, term), lanes.sym):
        raise ScheduleError("nested", outer, "its last axis can't be lanes")
    work, width = _work(b, inner), vector_width(machine, (*top.leaf, update))
    shared = _shared(b, inner, acc, outer)
    # Codes of one word are unpacked from one register, so the loop over them stands beside the sums, not outside.
    codes = next((x for x in rest if x.sym in shared), None)
    rows = [x for x in rest if x is not codes]
    tile = _tile(machine, update, rows[-1] if rows else None, codes)
    block, *vectors, lane = _split(b, lanes, width, tile.vectors)
    walked, row = _parts(b, rows[-1:], tile.rows)
    part, code = _parts(b, [codes] if codes else [], tile.codes)
    copies = [*row, *code, *vectors]
    b.do("reorder", block, *names(rows[:-1]), *walked, *part, *copies, lane)
    for name in copies:
        b.do("kind", name, "unroll")
    b.do("kind", lane, "vector")
    # Outer sums stay near for a whole block, inner ones in registers for one group: each is made where it is read.
    at = [block, *names(rows[:-1]), *walked][-1]
    b.do("compute_at", acc, at, "local")
    at = _terms_outside(b, acc, nest_with(find_body(b.kernel, at), acc, Update))
    b.do("compute_at", inner, at, "reg")
    last = _terms_outside(b, inner, nest_with(find_body(b.kernel, at), inner, Update))
    if (dot := _dot(machine, update)) is not None and _divides(b, last, dot.group):
        _group(b, inner, at, last, dot.group)
    if pays_threads(work, machine, width):
        parallel(b, machine, [block])


def names(loops: Sequence[Loop]) -> list[str]:
    return [x.sym.name for x in loops]


def _parts(b: ScheduleBuilder, loops: list[Loop], size: int) -> tuple[list[str], list[str]]:
    """The loop, if there is one, as a serial one over parts and one over the elements of a part."""
    if not loops or size == loops[0].extent:
        return [], names(loops)
    if size == 1:
        return names(loops), []
    outside, inside = b.split(loops[0].sym.name, size)
    return [outside], [inside]


def _split(b: ScheduleBuilder, lanes: Loop, width: int, vectors: int) -> list[str]:
    """The loop over blocks of lanes, that over a block's vectors where it has several, that over lanes."""
    block, rest = b.split(lanes.sym.name, width * vectors)
    return [block, rest] if vectors == 1 else [block, *b.split(rest, width)]


def terms_of(b: ScheduleBuilder, acc: str, nest: Nest) -> list[Loop]:
    """The loops over the terms of a sum."""
    own = symbols_in(update_of(b, acc).index)
    return [x for x in nest.loops if x.sym not in own]


def _terms_outside(b: ScheduleBuilder, acc: str, nest: Nest) -> str:
    """Loops over the terms of a sum, then those of its serial loops, outside of what is copied; the last of them."""
    terms = terms_of(b, acc, nest)
    serial = [x for x in nest.loops if x not in terms and x.kind is Kind.SERIAL]
    rest = [x for x in nest.loops if x not in terms and x not in serial]
    b.do("reorder", *names([*terms, *serial, *rest]))
    return [*terms, *serial][-1].sym.name


def _dot(machine: Target, update: Update) -> Dot | None:
    """The machine's dot product for what the inner sums multiply, parts of the constant's elements among it."""
    v = update.value
    if not isinstance(v, Binary) or v.op != "mul" or not isinstance(v.a, Cast) or not isinstance(v.b, Cast):
        return None
    kinds = (v.a.a.dtype, v.b.a.dtype, update.buffer.dtype)
    return next((d for d in machine.dots if (d.left, d.right, d.result) == kinds), None)


def _divides(b: ScheduleBuilder, loop: str, group: int) -> bool:
    extent = find_loop(b.kernel, loop, "nested").loop.extent
    return known_multiple(extent, group)


def _group(b: ScheduleBuilder, inner: str, at: str, terms: str, group: int) -> None:
    """Terms in groups of so many neighbours, each group one dot product inside the lanes."""
    _, inside = b.split(terms, group)
    b.do("kind", inside, "dot")
    nest = nest_with(find_body(b.kernel, at), inner, Update)
    b.do("reorder", *[x.sym.name for x in nest.loops if x.sym.name != inside], inside)


def _shared(b: ScheduleBuilder, inner: str, acc: str, root: str) -> set[Sym]:
    """The root's loops along which inner sums load the same elements: codes of one word."""
    return still(b, inner, acc, root, list(loads_of(update_of(b, inner))))


def still(b: ScheduleBuilder, inner: str, acc: str, root: str, loads: Sequence[Load]) -> set[Sym]:
    """The root's loops along which inner sums read the same elements by ``loads``."""
    update, dims = update_of(b, inner), root_terms(b, acc, root)
    loaded = {s for x in loads for s in symbols_in(x.index)}
    read = next(x for x in loads_of(update_of(b, acc)) if x.buffer.name == inner)
    same = [at for own, at in zip(update.index, read.index, strict=True) if not symbols_in([own]) & loaded]
    return {s for own in symbols_in(same) if own in dims for s in symbols(dims[own])}


def _tile(machine: Target, update: Update, rows: Loop | None, codes: Loop | None) -> _Tile:
    """The tile with the fewest cycles for each sum: multiply-adds, loads, and all that is done in a step.

    Its vectors are as many as one row takes to keep the multipliers busy with all codes of a word, for any number of
    rows: then one packed copy of the words serves programs for one row and for many.
    """
    n_rows, n_codes = (x.extent if x is not None and is_known(x.extent) else 1 for x in (rows, codes))
    unpacking, dot = _unpacking(update), _dot(machine, update)
    each = 1 if dot is None or machine.has_vnni else dot.instructions
    begun = machine.fmas_per_cycle
    if n_codes == 1:  # each code is unpacked for its own sum: so few begin in a cycle, and rows get the registers
        begun = min(begun, machine.issue_width / (each + unpacking + 1))
    chains = machine.fma_latency * begun
    vectors = machine.words_of_a_row(n_codes, begun) // machine.lanes(types.f32)

    def cycles(t: _Tile) -> tuple[float, float]:
        n_sums, n_loads = prod(t), t.rows + t.vectors
        n_operations = n_sums * each + t.codes * t.vectors * unpacking + n_loads
        bound = max(max(n_sums, chains) / machine.fmas_per_cycle, n_loads / machine.load_ports)
        return max(bound, n_operations / machine.issue_width) / n_sums, n_operations / n_sums

    return min(_tiles(machine, n_rows, n_codes, vectors), key=cycles)


def _tiles(machine: Target, n_rows: int, n_codes: int, vectors: int) -> Iterator[_Tile]:
    """Tiles that fit the registers, their rows as even as can be; one sum where no more do."""
    yield _Tile(1, 1, vectors)
    for codes in (c for c in range(1, n_codes + 1) if n_codes % c == 0):
        for rows in dict.fromkeys(-(-n_rows // parts) for parts in range(1, n_rows + 1)):
            if rows * codes * vectors + UNPACKING <= machine.n_vector_registers:
                yield _Tile(rows, codes, vectors)


def _unpacking(update: Update) -> int:
    """Operations on a word before its code is multiplied; masks are made ahead of the loop."""
    found = [x for x in walk_value(update.value) if not isinstance(x, Load) and buffers_of_value(x)]
    return len([x for x in found if not isinstance(x, Cast)]) - 1


def _work(b: ScheduleBuilder, inner: str) -> float:
    """Multiply-adds, or what the operands take to arrive."""
    points = estimate([x.extent for x in (*own_loops(b, inner), *reduced_loops(b, inner))])
    buffers = {x.buffer for x in loads_of(update_of(b, inner))}
    return max(points, sum(estimate(x.shape) * x.dtype.n_bytes for x in buffers) * WORK_PER_BYTE)
