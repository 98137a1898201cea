"""The rule for chains: a contraction, reductions along its rows, and a contraction that walks the rows (attention).

In: a builder and the stages of the chain: the first contraction, what lies between, the last contraction and, when it
is fused, its epilogue. Out: steps. Not its business: register tiles (``contract``), passes over one row (``rows``).

Before: a nest per stage, each over all rows. After: ``for batches: for a block of rows``: the block's part of the first
contraction by register tiles into a strip of scratch; row by row the passes between (for a softmax: the maximum, then
exponential and sum in one); the last contraction and its epilogue by register tiles from the strip. What lies between
the contractions exists for one block of rows only, in one strip, which stays in the second-level cache. Elements that
a guard hides from every row of the block (the keys after a query) are not computed.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.choose.clusters import Cluster
from tilewright.choose.cost.tile import balanced, estimate, pays_threads
from tilewright.choose.strategies.narrow import narrow
from tilewright.choose.strategies.operands import root_terms, update_of
from tilewright.choose.strategies.rows import passes, rows
from tilewright.choose.strategies.steps import attempt, cached_name
from tilewright.choose.strategies.threads import min_tasks, parallel
from tilewright.choose.strategies.tiles import contract_inside, units_of
from tilewright.choose.strategies.view import find_body, n_operations, nests, only_nest
from tilewright.core.compute import Stage, loads
from tilewright.core.dims import divisor, is_known, known_over
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import ASSUMED_SIZE, COPIED_ROWS
from tilewright.core.expr import Dim, Sym, substitute, symbol_order, symbols
from tilewright.core.indices import placed
from tilewright.target.target import Target
from tilewright.target.tiles import TileUnit
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, Loop, Stmt, Update, walk, written
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_place

BLOCK_ROWS = 24
"""Rows of a block, a few tiles, which share each panel of keys while it is in a near cache."""
MOST_ROWS = BLOCK_ROWS * 4 // 3
"""Where so many come out even, or are all there are."""


@dataclass(frozen=True)
class _Chain:
    """Names of buffers: ``source`` is the first contraction and ``strip`` the stage that alone reads it, ``last`` and
    ``root`` the second's; ``between`` is all the rest, from the strip's readers on, in order."""

    source: str
    strip: str
    between: tuple[str, ...]
    last: str
    root: str
    is_contraction: bool


def chain(b: ScheduleBuilder, machine: Target, cluster: Cluster) -> None:
    """Schedule all stages of a chain at blocks of rows of the last one."""
    work = sum(_work(s) for s in cluster.stages)
    c = _parts(b, cluster)
    order, inner, is_block = _block(b, machine, c)
    at = order[-1]
    late = [n for n in c.between if _reads(b, c.root, n)]
    early = [n for n in (c.source, c.strip, *c.between) if n not in late]
    units = _units(b, machine, c)
    for name in [*late, c.last, *reversed(early)]:
        _bring(b, name, at, is_block)
        attempt(b, partial(_trim, b, name, at, units))
    if pays_threads(work, machine, machine.vector_bytes // 4):  # before uneven tiles hide that rows are apart
        parallel(b, machine, order[:2])
    if c.is_contraction:
        contract_inside(b, machine, c.source, c.strip)
    elif not attempt(b, partial(narrow, b, machine, c.source, c.strip, has_lanes=False, threads=False)):
        rows(b, machine, [c.source, c.strip], threads=False)
    contract_inside(b, machine, c.last, c.root)
    apart = {_name(s) for s in find_body(b.kernel, at) if isinstance(s, For) and not _writes((s,)) <= {*c.between}}
    for name in early[2:]:
        attempt(b, partial(b.do, "reuse", name, c.strip))
    for name in (c.strip, *c.between):
        attempt(b, partial(_align, b, machine, name))
    _passes_between(b, machine, {c.strip, *c.between}, at, len(inner), apart)


def _bring(b: ScheduleBuilder, name: str, at: str, is_block: bool) -> None:
    """Compute a stage's part for one block: in scratch of the thread, or, where its size is only known at run time or
    large, in memory that the next block uses again."""

    def in_scratch() -> None:
        b.do("compute_at", name, at, "local")
        buffer = find_place(b.kernel, name, "chain").buffer
        if estimate(buffer.shape) * buffer.dtype.n_bytes > EFFORT.added_bytes // 4:  # there are a few
            raise ScheduleError("chain", name, "a strip of it is too large for scratch")

    if not attempt(b, in_scratch):
        b.do("compute_at", name, at, "global")
        for dim in range(len(find_place(b.kernel, name, "chain").buffer.shape) if is_block else 0):
            attempt(b, partial(b.do, "fold", name, dim, at))


def _align(b: ScheduleBuilder, machine: Target, name: str) -> None:
    """Rows longer than a vector begin on one."""
    buffer = find_place(b.kernel, name, "chain").buffer
    lanes, last = machine.lanes(buffer.dtype), buffer.shape[-1]
    if len(buffer.shape) > 1 and known_over(last, lanes) and last % lanes:
        b.do("align", name, lanes)


def _trim(b: ScheduleBuilder, name: str, at: str, units: Sequence[TileUnit]) -> None:
    """Reductions along the rows end where the block's last row does, when a guard says that there is such an end.

    Where matrix registers add up whole rows evenly, they end with the register that holds it.
    """
    loop = nests(b.kernel, name)[-1].loops[-1]
    depth = units[0].depth if units and divisor(loop.extent) % units[0].depth == 0 else 1
    b.do("trim", loop.sym.name, at, *([depth] if depth > 1 else []))


def _units(b: ScheduleBuilder, machine: Target, c: _Chain) -> list[TileUnit]:
    """The instructions on matrix registers for the first contraction and the last."""
    return [u for name in (c.source, c.last) for u in units_of(machine, update_of(b, name))]


def _work(s: Stage) -> float:
    reduced = s.reduction.axes if s.reduction else ()
    return estimate([a.extent for a in (*s.axes, *reduced)]) * sum(n_operations(v) + 1 for v in s.exprs)


def _parts(b: ScheduleBuilder, cluster: Cluster) -> _Chain:
    """Names of the parts; a contraction that no stage reads as its epilogue gets a copy to be that."""
    first, root = cluster.stages[0], cluster.root.out.name
    assert cluster.last is not None
    users = [s for s in cluster.stages if any(x.buffer is first.out for v in s.exprs for x in loads(v))]
    source, strip, last = first.out.name, users[0].out.name, cluster.last.out.name
    if len(users) != 1 or users[0].reduction is not None:
        b.do("cache", source)
        source, strip = cached_name(b, source), source
    if last == root:
        b.do("cache", root)
        last = cached_name(b, root)
    named = {source, strip, last, root}
    between = tuple(s.out.name for s in cluster.stages if s.out.name not in named)
    return _Chain(source, strip, between, last, root, cluster.has_lanes)


def _reads(b: ScheduleBuilder, reader: str, name: str) -> bool:
    return any(x.buffer.name == name for s in only_nest(b.kernel, reader).leaf for x in loads_of(s))


def _block(b: ScheduleBuilder, machine: Target, c: _Chain) -> tuple[list[str], list[str], bool]:
    """Order the root's loops: batches, those that feed all threads first; blocks of rows; rows of a block, lanes.

    Returns the loops outside of a block, its rows, and whether there are blocks.
    """
    top = only_nest(b.kernel, c.root)
    *loops, lanes = top.loops
    rows_inside: list[Loop] = []
    for loop in reversed(_row_loops(b, c)):
        if not is_known(loop.extent) or loop.extent * estimate([x.extent for x in rows_inside]) > MOST_ROWS:
            if not rows_inside:
                rows_inside.append(loop)
            break
        rows_inside.insert(0, loop)
    inside = [x.sym.name for x in rows_inside]
    batches = [x for x in loops if x not in rows_inside]
    batches.sort(key=lambda x: not (is_known(x.extent) and x.extent >= min_tasks(machine)))
    outside = [x.sym.name for x in batches]
    if len(loops) > 0:
        b.do("reorder", *outside, *inside, lanes.sym.name)
    size = _block_rows(b, machine, c, rows_inside)
    if size:
        block, row = b.split(inside[0], size, "shift" if is_known(rows_inside[0].extent) else "min")
        outside.append(block)
        inside = [row]
    if not outside:
        raise ScheduleError("chain", c.root, "one block of one batch: nothing to put the strip at")
    return outside, inside, bool(size)


def _row_loops(b: ScheduleBuilder, c: _Chain) -> list[Loop]:
    """The root's loops on which an operand of the last contraction does not depend, in the other's order."""
    dims = root_terms(b, c.last, c.root)
    update = nests(b.kernel, c.last)[-1].leaf[-1]
    assert isinstance(update, Update)
    loops = {x.sym: x for x in only_nest(b.kernel, c.root).loops[:-1]}
    found: dict[Sym, Loop] = {}
    for x in loads(update.value):
        index = [substitute(i, dims) for i in placed(x.index)]
        others = [y for y in loads(update.value) if y is not x]
        used = {s for y in others for i in placed(y.index) for s in symbols(substitute(i, dims))}
        walked = [s for i in index for s in sorted(symbols(i), key=symbol_order)]
        found |= {s: loops[s] for s in walked if s in loops and s not in used}
    return list(found.values())


def _block_rows(b: ScheduleBuilder, machine: Target, c: _Chain, inside: list[Loop]) -> int:
    """How many rows a block has; 0: all of them. A number that divides the rows where there is one near.

    Of a strip that takes more than its part of the second-level cache, as many as make two tiles: with one, every panel
    of keys would be read once and not again.
    """
    strip = find_place(b.kernel, c.strip, "chain").buffer
    row_bytes = estimate(strip.shape[-1:]) * strip.dtype.n_bytes
    most = max(int(machine.l2_part_bytes / row_bytes), COPIED_ROWS)
    if not inside or estimate([x.extent for x in inside]) <= min(most, MOST_ROWS):
        return 0
    if len(inside) > 1:
        raise ScheduleError("chain", c.strip, "its rows are several loops")
    extent = inside[0].extent
    units = _units(b, machine, c)
    if units and c.is_contraction:
        return _registers_of_rows(units[0], extent, most)
    if not is_known(extent):
        return min(BLOCK_ROWS, most)
    good = [r for r in range(BLOCK_ROWS // 2, min(MOST_ROWS, most) + 1) if extent % r == 0]
    even = balanced(extent, min(BLOCK_ROWS, most))
    return min(good, key=lambda r: (abs(r - BLOCK_ROWS), -r), default=even)


def _registers_of_rows(unit: TileUnit, extent: Dim, most: int) -> int:
    """Rows of a block that need the fewest matrix registers for all rows: part of one takes as long as a whole one."""
    rows = unit.rows
    sizes = range(rows, min(MOST_ROWS, most) + 1)

    def registers(size: int) -> float:
        return (-(-extent // size) if is_known(extent) else ASSUMED_SIZE / size) * -(-size // rows)

    return min(sizes, key=lambda n: (registers(n), -n))


def _passes_between(
    b: ScheduleBuilder, machine: Target, names: Container[str], loop: str, depth: int, apart: Container[str] = ()
) -> None:
    """Row by row: the nests that write ``names`` share their row loops, and their passes become vectors.

    Not the loops ``apart``: the contractions'.
    """
    if depth == 0:
        passes(b, machine, loop)
        return

    def is_pass(s: Stmt) -> bool:
        return isinstance(s, For) and _name(s) not in apart and all(n in names for n in _writes((s,)))

    k = 0
    while k + 1 < len(body := find_body(b.kernel, loop)):
        first, second = body[k], body[k + 1]
        both = is_pass(first) and is_pass(second)
        if not both or not attempt(b, partial(b.do, "merge", _name(first), _name(second))):
            k += 1
    for s in find_body(b.kernel, loop):
        if is_pass(s):
            _passes_between(b, machine, names, _name(s), depth - 1)


def _name(s: Stmt) -> str:
    assert isinstance(s, For)
    return s.loop.sym.name


def _writes(body: tuple[Stmt, ...]) -> set[str]:
    return {x.name for s in walk(body) for x in written(s)}
