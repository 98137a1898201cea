"""The rule for copies that products read: they lie in panels, in the order in which the product walks them.

In: a builder whose products have their loops. Out: steps. Not its business: which operands are copied (``relayout``),
constants (``contract``).

A product walks ``T[k, j]`` block of lanes by block of lanes, every ``k`` of one before the next. In rows, one block's
elements are a row apart, so every step touches another page, which no prefetcher follows; in panels they are one run.
One panel is filled before the next, which stays in the first-level cache and reads whole lines of few rows: otherwise
a column of lines would be read at a time, each line of another page.
"""

from __future__ import annotations

from functools import partial

from tilewright.choose.strategies.steps import attempt
from tilewright.core.compute import Buffer, IndexLike, Load
from tilewright.core.dims import is_known
from tilewright.core.expr import Sym, is_nonneg
from tilewright.core.indices import symbols_in, terms_at
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, If, Kind, Loop, Role, Space, Store, Update, walk, written
from tilewright.tile.rewrite import Body, loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.operands import paths_to
from tilewright.tile.schedule.tree import find_place, most_iterations


def lay_in_panels(b: ScheduleBuilder) -> None:
    """Every temporary in memory that stores alone write and products alone read, all of them walking the same panels.

    (Of run-time sizes they do not: rests of tiles walk narrower ones.)
    """
    for place in b.kernel.places:
        if place.role is Role.TMP and place.space is Space.GLOBAL and len(place.buffer.shape) > 1:
            name = place.buffer.name
            if _is_operand(b, place.buffer):
                attempt(b, partial(_lay, b, name))


def _is_operand(b: ScheduleBuilder, buffer: Buffer) -> bool:
    makers = [s for s in walk(b.kernel.body) if buffer in written(s)]
    readers = [s for s in walk(b.kernel.body) if any(x.buffer is buffer for x in loads_of(s))]
    return all(isinstance(s, Store) for s in makers) and bool(readers) and all(isinstance(s, Update) for s in readers)


def _lay(b: ScheduleBuilder, name: str) -> None:
    buffer = find_place(b.kernel, name, "panels").buffer
    found = {_panel(path, load) for path, load in paths_to(b.kernel.body, buffer, ())}
    if len(found) != 1:
        raise ScheduleError("panels", name, f"its readers walk {len(found)} kinds of panels")
    dim, depth, width = found.pop()
    if is_nonneg(width - buffer.shape[dim + 1]):
        raise ScheduleError("panels", name, "it is one panel")
    for path, index in _stores(b.kernel.body, buffer, ()):
        for part, block in ((index[dim], depth), (index[dim + 1], width)):
            _split_at(b, path, part, block)
    b.do("panels", name, dim, depth, width)
    for path, panel in _stores(b.kernel.body, find_place(b.kernel, name, "panels").buffer, ()):
        attempt(b, partial(_fill_in_order, b, path, panel[:-2]))


def _fill_in_order(b: ScheduleBuilder, path: tuple[Loop, ...], panel: tuple[IndexLike, ...]) -> None:
    """The loops that say which panel is written go outside of those that walk inside of one."""
    which = symbols_in(panel)
    order = sorted(path, key=lambda x: x.sym not in which)
    if order != list(path):
        b.do("reorder", *[x.sym.name for x in order])


def _panel(path: tuple[Loop, ...], load: Load) -> tuple[int, int, int]:
    """The dimension before the one of the lanes, and a panel's extents along both."""
    vectors = [x for x in path if x.kind is Kind.VECTOR]
    lanes = [x.sym for x in vectors]
    dim = next((d for d, i in enumerate(load.index) if _step(i, lanes) == 1), 0) - 1
    if dim < 0 or len(lanes) != 1:
        raise ScheduleError("panels", load.buffer.name, "its lanes have no dimension before them")
    serial = [x.sym for x in path if x.kind in (Kind.SERIAL, Kind.PARALLEL)]
    width = _next_step(load.index[dim + 1], serial, 0)
    depth = _next_step(load.index[dim], serial, 1) or load.buffer.shape[dim]
    if not width or not is_known(depth):
        raise ScheduleError("panels", load.buffer.name, "it is not walked block by block")
    if most_iterations(vectors[0]) > width:
        raise ScheduleError("panels", load.buffer.name, "windows overlap, and a panel holds no vector")
    blocks, walked = _loops_of(load.index[dim + 1], serial), _loops_of(load.index[dim], serial, depth)
    if walked and max(serial.index(x) for x in blocks) > min(serial.index(x) for x in walked):
        raise ScheduleError("panels", load.buffer.name, "the reduction goes from block to block")
    return dim, depth, width


def _step(i: IndexLike, syms: list[Sym]) -> int:
    return next((c for a, c in terms_at(i) if a in syms), 0)


def _loops_of(i: IndexLike, syms: list[Sym], below: int | None = None) -> list[Sym]:
    """Of ``syms``, those that move the index, by less than ``below`` at a step."""
    terms = terms_at(i)
    return [a for a, c in terms if isinstance(a, Sym) and a in syms and (below is None or c < below)]


def _next_step(i: IndexLike, syms: list[Sym], above: int) -> int:
    """The smallest step of a loop over ``above``; 0 when there is none."""
    steps = [c for a, c in terms_at(i) if a in syms and c > above]
    return min(steps, default=0)


def _stores(body: Body, buffer: Buffer, path: tuple[Loop, ...]) -> list[tuple[tuple[Loop, ...], tuple[IndexLike, ...]]]:
    """Where the buffer is written, with the loops around."""
    found: list[tuple[tuple[Loop, ...], tuple[IndexLike, ...]]] = []
    for s in body:
        if isinstance(s, Store) and s.buffer is buffer:
            found.append((path, s.index))
        elif isinstance(s, For):
            found += _stores(s.body, buffer, (*path, s.loop))
        elif isinstance(s, If):
            found += _stores(s.body, buffer, path)
    return found


def _split_at(b: ScheduleBuilder, path: tuple[Loop, ...], index: IndexLike, block: int) -> None:
    """A loop that goes through several blocks in steps smaller than a block becomes one over blocks and one inside."""
    loops = {x.sym: x for x in path if x.kind in (Kind.SERIAL, Kind.PARALLEL)}
    for atom, step in terms_at(index):
        small = isinstance(atom, Sym) and atom in loops and 0 < step < block and block % step == 0
        if small and isinstance(atom, Sym) and not is_nonneg(block - step * loops[atom].extent):
            b.do("split", atom.name, block // step)
