"""The rule for what an epilogue reads besides its sums (a residual): hints before the reduction begins.

In: a builder whose stages all have their loops. Out: steps. Not its business: panels of constants (``constants``).

A tile reads its part of such an operand once, a few lines of each of its rows, which no hardware prefetcher foresees.
Asked for before the reduction they are there when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tilewright.core.compute import Buffer, Load, Value
from tilewright.core.expr import symbols
from tilewright.tile.affine import stride_along
from tilewright.tile.cost import estimate
from tilewright.tile.ir import For, Kind, Role, Space, Store, Update, walk
from tilewright.tile.machine import Machine
from tilewright.tile.rewrite import Body, loads_of, loops_of, written
from tilewright.tile.rules.contract import attempt
from tilewright.tile.schedule import Builder
from tilewright.tile.schedule.tree import nest_of

MIN_STEPS = 64
"""Steps of a reduction beside which a tile's hints take no time."""


def hint_operands(b: Builder, machine: Machine) -> None:
    """Every tile of a long reduction asks for what its epilogue reads of operands beyond the first-level cache."""
    for loop, buffer in list(_read_behind(b)):
        if estimate(buffer.shape) * buffer.dtype.n_bytes > machine.l1_bytes:
            attempt(b, partial(b.do, "hint", buffer.name, loop))


def _read_behind(b: Builder) -> Iterator[tuple[str, Buffer]]:
    """Loops over tiles, and what is read in lanes behind the reduction in them."""
    fixed = {p.buffer for p in b.kernel.places if p.role is Role.CONST or p.space is not Space.GLOBAL}
    for tile in (s for s in walk(b.kernel.body) if isinstance(s, For) and s.loop.kind in (Kind.SERIAL, Kind.PARALLEL)):
        at = next((k for k, s in enumerate(tile.body) if isinstance(s, For) and _is_long(s)), None)
        if at is None:
            continue
        changed = {t for s in walk(tile.body) for t in written(s)}
        before = {x.buffer for s in walk(tile.body[: at + 1]) for x in loads_of(s)}
        behind = [x for x in _in_lanes(tile.body[at + 1 :]) if x.buffer not in fixed | changed | before]
        for buffer in dict.fromkeys(x.buffer for x in behind):
            yield tile.loop.sym.name, buffer


def _is_long(s: For) -> bool:
    """Does it add to sums, over many steps?"""
    nest = nest_of(s)
    return isinstance(nest.leaf[-1], Update | For) and _steps(s) >= MIN_STEPS


def _steps(s: For) -> float:
    """Steps of the serial loops around the updates of a tile's sums."""
    updates = [x for x in walk((s,)) if isinstance(x, Update)]
    serial = [x for x in loops_of((s,)) if x.kind is Kind.SERIAL]
    own = {a for u in updates for i in u.index if not isinstance(i, Value) for a in symbols(i)}
    return estimate([x.extent for x in serial if x.sym not in own]) if updates else 0.0


def _in_lanes(body: Body) -> list[Load]:
    """What stores read with lanes side by side."""
    lanes = [x.sym for x in loops_of(body) if x.kind is Kind.VECTOR]
    loads = [x for s in walk(body) if isinstance(s, Store) for x in loads_of(s)]
    return [x for x in loads if any(stride_along(x.buffer, x.index, lane) == 1 for lane in lanes)]
