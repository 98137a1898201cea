"""The rule for rows: one or several reductions along the contiguous axis, and element-wise stages over the same rows.

In: a builder, the buffers of the stages in order (the last is the root). Out: steps.
Not its business: reductions whose last output axis is contiguous (``contract``).

Before: one nest per stage (softmax: maximum, exponential, sum, quotient). After: ``for row (parallel)``: every stage at
that row, results of reductions in registers, element-wise temporaries in a row of scratch; each reduction in partial
sums of several vectors; neighbouring passes over the row merge (the exponential and its sum). Where a row's only
result is a function of its sums, stages go one after the other over as many rows as lanes, which that function fills.
"""

from __future__ import annotations

from functools import partial

from tilewright.choose.cost.tile import FUNCTION_OPERATIONS, estimate, pays_threads
from tilewright.choose.strategies.constants import constants_read
from tilewright.choose.strategies.operands import reduced_loops
from tilewright.choose.strategies.pointwise import unrolling, vectorize
from tilewright.choose.strategies.steps import attempt, cached_name
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import (
    computes_function,
    find_body,
    may_vectorize,
    n_arithmetic,
    n_operations,
    nests,
    only_nest,
    statement_of,
    vector_width,
)
from tilewright.core.compute import Buffer, Load
from tilewright.core.dims import is_known, known_at_least, known_over
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Sym, symbols
from tilewright.core.indices import is_chosen, symbols_at, symbols_in
from tilewright.target.target import Target
from tilewright.tile.affine import stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Fold, For, Kind, Role, Space, Store, Update, walk
from tilewright.tile.rewrite import Body, loads_of, values_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import Nest, find_loop, find_place, nest_of

MIN_STEPS = 8
"""Of a pass over a row that is worth asking for: in fewer steps a hint comes too late to be of use."""


def rows(b: ScheduleBuilder, machine: Target, buffers: list[str], *, threads: bool = True) -> None:
    """Schedule all stages together at the rows of the last one; without ``threads`` no loop is made parallel."""
    root = buffers[-1]
    temps = with_plain_root(b, buffers)
    nest = only_nest(b.kernel, root)
    work = work_of(b, [*temps, root])
    if row_loop(b, nest, set(temps)) is None:
        _top_level(b, machine, temps, root)
        return
    nest = _rows_outside(b, nest, set(temps))
    row = row_loop(b, nest, set(temps))
    assert row is not None
    around = [x.sym.name for x in nest.loops]
    if nest.loops[-1].sym.name == row and _ends_in_functions(b, machine, nest, temps):
        around = [*around[:-1], _in_blocks(b, machine, nest, temps)]
    else:
        for name in reversed(temps):
            b.do("compute_at", name, row, _space(b, name, row))
        passes(b, machine, row)
        _ask_for_next(b, machine, row)
    if threads and pays_threads(work, machine, machine.vector_bytes // 4):
        parallel(b, machine, around[:2])


def _ends_in_functions(b: ScheduleBuilder, machine: Target, nest: Nest, temps: list[str]) -> bool:
    """Is a row's one result a function of its sums, and does half a cache keep as many rows as lanes?

    A logarithm of one row's sum takes as long as those of a vector of rows, and longer than a short row itself.
    """
    leaf, row = statement_of(nest), nest.loops[-1]
    if not isinstance(leaf, Store) or n_arithmetic(leaf.value) <= FUNCTION_OPERATIONS:
        return False
    width = vector_width(machine, nest.leaf)
    if width == 1 or not known_at_least(row.extent, width) or not may_vectorize(nest.leaf, row.sym):
        return False
    read = 0.0
    for name in temps:
        made = nests(b.kernel, name)[-1]
        along = reduced_loops(b, name) if isinstance(statement_of(made), Update) else []
        if sum(x.extent != 1 for x in made.loops) - len(along) > len(nest.loops):  # a row of numbers for each row
            return False
        read += estimate([x.extent for x in along]) * sum(x.dtype.n_bytes for s in made.leaf for x in loads_of(s))
    return width * read <= machine.l1_bytes / 2


def _in_blocks(b: ScheduleBuilder, machine: Target, nest: Nest, temps: list[str]) -> str:
    """Each stage at blocks of as many rows as a vector has lanes; returns the loop over blocks."""
    at, _ = b.split(nest.loops[-1].sym.name, vector_width(machine, nest.leaf), "shift")
    for name in reversed(temps):
        b.do("compute_at", name, at, "local")
    for s in find_body(b.kernel, at):
        if isinstance(s, For):
            _inner(b, machine, nest_of(s))
    return at


def with_plain_root(b: ScheduleBuilder, buffers: list[str]) -> list[str]:
    """All buffers but the last, with what that becomes a copy of where it is reduced; else it is a plain assignment."""
    root, temps = buffers[-1], buffers[:-1]
    if any(isinstance(s, Update) and s.buffer.name == root for s in walk(b.kernel.body)):
        b.do("cache", root)
        temps = [*temps, cached_name(b, root)]
    if not isinstance(statement_of(only_nest(b.kernel, root)), Store):
        raise ScheduleError("rows", root, "the last stage is not a plain assignment")
    return temps


def n_reductions(b: ScheduleBuilder, buffers: list[str]) -> int:
    """How many of the buffers are reduced."""
    return sum(any(isinstance(s, Update) for nest in nests(b.kernel, name) for s in nest.leaf) for name in buffers)


def work_of(b: ScheduleBuilder, buffers: list[str]) -> float:
    """Operations of all nests that write one of the buffers."""
    total = 0.0
    for s in b.kernel.body:
        nest = nest_of(s)
        for leaf in nest.leaf:
            if isinstance(leaf, Store | Update) and leaf.buffer.name in buffers:
                cost = sum(n_operations(v) + 1 for v in values_of(leaf))
                total += estimate([x.extent for x in nest.loops]) * cost
    return total


def _rows_outside(b: ScheduleBuilder, nest: Nest, temps: set[str]) -> Nest:
    """The root's nest with the loops that tell rows apart outside of all others: a row may lie in several places, as a
    channel's places in each image of a batch do, and would be reduced anew at each.
    """
    used = _row_symbols(b, nest, temps)
    order = sorted(nest.loops, key=lambda x: x.sym not in used and x.extent != 1)
    if [x.sym for x in order] != [x.sym for x in nest.loops]:
        b.do("reorder", *(x.sym.name for x in order))
    return only_nest(b.kernel, next(s.buffer.name for s in nest.leaf if isinstance(s, Store)))


def row_loop(b: ScheduleBuilder, nest: Nest, temps: set[str]) -> str | None:
    """The deepest loop of the root that a reduced temporary's index uses; None when there is one row only."""
    used = _row_symbols(b, nest, temps)
    deep = [x.sym.name for x in nest.loops if x.sym in used]
    return deep[-1] if deep else None


def _row_symbols(b: ScheduleBuilder, nest: Nest, temps: set[str]) -> set[Sym]:
    """What tells the rows of the root apart."""
    reduced = {s.buffer.name for s in walk(b.kernel.body) if isinstance(s, Update) and s.buffer.name in temps}
    used: set[Sym] = set()
    for leaf in nest.leaf:
        for x in loads_of(leaf):
            if x.buffer.name in reduced:
                used |= symbols_in(x.index)
            elif x.buffer.name in temps and not reduced & _direct(nest):
                used |= symbols_in(x.index[:-1])
    return used


def _direct(nest: Nest) -> set[str]:
    return {x.buffer.name for leaf in nest.leaf for x in loads_of(leaf)}


def is_scalar(b: ScheduleBuilder, name: str, row: str) -> bool:
    """Does the row's body read the buffer at one element only?"""
    body = find_body(b.kernel, row)
    inner = {s.loop.sym for s in walk(body) if isinstance(s, For)}
    for s in walk(body):
        for x in loads_of(s):
            if x.buffer.name == name and any(is_chosen(i) or symbols(i) & inner for i in x.index):
                return False
    return True


def _space(b: ScheduleBuilder, name: str, row: str) -> str:
    """Registers for one element, scratch for a row of known moderate size, else a row of the whole buffer."""
    if is_scalar(b, name, row):
        return "reg"
    buffer = find_place(b.kernel, name, "rows").buffer
    n = buffer.shape[-1]
    return "local" if is_known(n) and 16 * n * buffer.dtype.n_bytes <= EFFORT.added_bytes else "global"


def _top_level(b: ScheduleBuilder, machine: Target, temps: list[str], root: str) -> None:
    """A single row: the nests stay where they are; results of reductions become registers."""
    for name in temps:
        place = find_place(b.kernel, name, "rows")
        if estimate(place.buffer.shape) == 1:
            b.do("place", name, "reg")
    _merge_passes(b, None)
    wanted = {*temps, root}
    chosen = [s for s in b.kernel.body if _names_written((s,)) & wanted]
    for s in chosen:
        _inner(b, machine, nest_of(s))


def _names_written(body: Body) -> set[str]:
    return {s.buffer.name for s in walk(body) if isinstance(s, Store | Update)}


def passes(b: ScheduleBuilder, machine: Target, row: str) -> None:
    """Merge neighbouring passes of the loop ``row``, then give every pass of the row its vectors."""
    _merge_passes(b, row)
    for s in find_body(b.kernel, row):
        if isinstance(s, For):
            _inner(b, machine, nest_of(s))


def _ask_for_next(b: ScheduleBuilder, machine: Target, row: str) -> None:
    """The last reducing pass that reads a row of an operand asks for the next row, a step for what the same step reads.

    The machine's own prefetching ends at a page's end or learns that a row is over too late, and meets each row anew.
    """
    asked = set[Buffer]()
    for s in reversed(find_body(b.kernel, row)):
        if (
            not isinstance(s, For)
            or s.loop.kind is not Kind.SERIAL
            or not any(isinstance(x, Update) for x in walk(s.body))
        ):
            continue
        for load in (x for leaf in walk(s.body) if isinstance(leaf, Store | Update) for x in loads_of(leaf)):
            if load.buffer not in asked:
                asked.add(load.buffer)
                steps = _steps_to_next(b, machine, load, row, s.loop.sym)
                line = machine.line(load.buffer.dtype)
                if steps >= MIN_STEPS:
                    attempt(b, partial(b.do, "stream", load.buffer.name, s.loop.sym.name, steps, line))


def _steps_to_next(b: ScheduleBuilder, machine: Target, load: Load, row: str, sym: Sym) -> int:
    """Steps of ``sym`` from a place to the same in the next row; 0 where caches hold the operand, or not its rows."""
    buffer = load.buffer
    along_row = find_loop(b.kernel, row, "rows").loop.sym
    length, step = (stride_along(buffer, load.index, x) for x in (along_row, sym))
    place = find_place(b.kernel, buffer.name, "rows")
    is_streamed = place.space is Space.GLOBAL and place.role is not Role.CONST  # constants are laid in order later
    if not is_streamed or estimate(buffer.shape) * buffer.dtype.n_bytes <= machine.l2_bytes:
        return 0
    if not is_known(length) or not known_over(step, 0):
        return 0
    return round(length / step) if length * buffer.dtype.n_bytes <= machine.l2_part_bytes else 0


def _merge_passes(b: ScheduleBuilder, row: str | None) -> None:
    """An element-wise pass before a reducing one over the same extent joins it; what starts the sum goes first.

    Without ``row`` the passes are those of a kernel of one row.
    """

    def passes_now() -> Body:
        return b.kernel.body if row is None else find_body(b.kernel, row)

    body = passes_now()
    k = 0
    while k + 1 < len(body):
        first = body[k]
        k += 1
        second = next((s for s in body[k:] if not isinstance(s, Store)), None)
        if not isinstance(first, For) or not isinstance(second, For) or first.loop.extent != second.loop.extent:
            continue
        if any(isinstance(x, For) for x in (*first.body, *second.body)):
            continue
        if not all(isinstance(x, Store) for x in first.body) or not isinstance(second.body[-1], Update):
            continue
        mark = b.mark()
        try:
            b.do("merge", first.loop.sym.name, second.loop.sym.name)
            body, k = passes_now(), 0
        except ScheduleError:
            b.back(mark)


def _inner(b: ScheduleBuilder, machine: Target, nest: Nest) -> None:
    """Vectors for the innermost loop of one pass: partial results for a reduction, plain lanes otherwise."""
    if not nest.loops or any(isinstance(s, Fold | For) for s in nest.leaf):
        return
    loop = nest.loops[-1]
    packed = [find_place(b.kernel, name, "rows").buffer for name in constants_read(b)]
    if loop.kind is not Kind.SERIAL or not may_vectorize(nest.leaf, loop.sym, packed=packed):
        return
    width = vector_width(machine, nest.leaf)
    if width == 1:
        return
    last = nest.leaf[-1]
    name = loop.sym.name
    if isinstance(last, Update) and not any(loop.sym in symbols_at(i) for i in last.index):
        b.do("rfactor", last.buffer.name, name, min(machine.partial_sums, machine.max_copies), width)
    elif all(isinstance(s, Store) for s in nest.leaf):
        made = [v for s in nest.leaf for v in values_of(s)]
        is_long = any(computes_function(v, loop.sym) for v in made)
        most = machine.rows_in_step if is_long else machine.partial_sums
        unrolled = max(unrolling(sum(map(n_operations, made)), most), 2)
        vectorize(b, machine, name, loop.extent, width, unrolled, in_step=is_long)
