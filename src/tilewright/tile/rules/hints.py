"""The rule for what an epilogue reads besides its sums (a residual): hints while the sums are made.

In: a builder whose stages all have their loops. Out: steps. Not its business: panels of constants (``constants``).

A tile reads its part of such an operand once, a few lines of each of its rows, which no hardware prefetcher foresees;
when the epilogue comes to them, the sums wait in registers and nothing else can be done. Asked for all at once they
would hold up the reduction's own loads, so its steps ask for one line each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tilewright.core.compute import Buffer, Load, Value
from tilewright.core.expr import symbols
from tilewright.tile.affine import stride_along
from tilewright.tile.cost import CACHE_LINE, estimate
from tilewright.tile.ir import For, Kind, Loop, Role, Space, Stmt, Store, Update, walk
from tilewright.tile.machine import Machine
from tilewright.tile.rewrite import Body, loads_of, loops_of, written
from tilewright.tile.rules.contract import attempt
from tilewright.tile.schedule import Builder

MIN_STEPS = 16
"""Steps of a reduction that takes long enough for lines to come from memory."""


def hint_operands(b: Builder, machine: Machine) -> None:
    """Every tile of a long reduction asks for what its epilogue reads of operands beyond the first-level cache."""
    for inner, buffer in list(_read_behind(b)):
        if estimate(buffer.shape) * buffer.dtype.n_bytes > machine.l1_bytes:
            line = max(CACHE_LINE // buffer.dtype.n_bytes, 1)
            attempt(b, partial(b.do, "hint", buffer.name, inner, line))


def _read_behind(b: Builder) -> Iterator[tuple[str, Buffer]]:
    """The inner loops of reductions in loops over tiles, and what is read in lanes behind them."""
    fixed = {p.buffer for p in b.kernel.places if p.role is Role.CONST or p.space is not Space.GLOBAL}
    for tile in (s for s in walk(b.kernel.body) if isinstance(s, For) and s.loop.kind in (Kind.SERIAL, Kind.PARALLEL)):
        at, steps = next(((k, x) for k, s in enumerate(tile.body) if (x := _steps(s))), (0, []))
        if estimate([x.extent for x in steps]) < MIN_STEPS:
            continue
        changed = {t for s in walk(tile.body) for t in written(s)}
        before = {x.buffer for s in walk(tile.body[: at + 1]) for x in loads_of(s)}
        behind = [x for x in _in_lanes(tile.body[at + 1 :]) if x.buffer not in fixed | changed | before]
        for buffer in dict.fromkeys(x.buffer for x in behind):
            yield steps[-1].sym.name, buffer


def _steps(s: Stmt) -> list[Loop]:
    """The serial loops around the updates of a tile's sums, where the statement is such a nest."""
    updates = [x for x in walk((s,)) if isinstance(x, Update)]
    serial = [x for x in loops_of((s,)) if x.kind is Kind.SERIAL]
    own = {a for u in updates for i in u.index if not isinstance(i, Value) for a in symbols(i)}
    return [x for x in serial if x.sym not in own] if updates else []


def _in_lanes(body: Body) -> list[Load]:
    """What stores read with lanes side by side."""
    lanes = [x.sym for x in loops_of(body) if x.kind is Kind.VECTOR]
    loads = [x for s in walk(body) if isinstance(s, Store) for x in loads_of(s)]
    return [x for x in loads if any(stride_along(x.buffer, x.index, lane) == 1 for lane in lanes)]
