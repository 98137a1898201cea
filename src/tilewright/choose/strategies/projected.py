"""The rule for a product, point by point, of what a window makes: a block of the window's rows at a time.

In: a builder and the stages: perhaps a reduction and the plain stage that reads it, a window's reduction, perhaps the
plain stage that reads that one, the product, and the plain stage that reads it, if any (a depthwise convolution and the
pointwise one behind it; with the expanding one before it, an inverted residual). Out: steps.
Not its business: register tiles (``contract``), whether it pays (``partition.projections``).

Before: a nest per stage, over the whole image. After: ``for rows (parallel): the window's rows; their products``. What
the window makes exists for a few rows only, in the first- or second-level cache. With a reduction before it, what the
window slides over is a ring of rows (``ring``), and parallel are parts, each with a ring of its own.

Even numbers of rows go together, because a window's register tile has two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tilewright.choose.clusters import Cluster
from tilewright.choose.cost.tile import estimate, pays_threads
from tilewright.choose.strategies.ring import bytes_of, in_ring, shared_rows, work_of
from tilewright.choose.strategies.steps import attempt, cached_name
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.tiles import contract_inside
from tilewright.choose.strategies.view import only_nest
from tilewright.core.compute import Stage
from tilewright.core.dims import is_known, known_at_least
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import BLOCK_SHARE, COPIED_ROWS, RING_SHARE
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, find_place

BLOCKS = ((4, False), (2, False), (4, True), (2, True), (1, False))
"""Rows of a block, and whether the last may have fewer, best first. Longer ones gained nothing on 28x28 to 256x256."""


@dataclass(frozen=True)
class _Parts:
    """Buffers: what the window sums up, what it makes, what the product sums up, the root's; and what is before."""

    window: str
    made: str
    product: str
    root: str
    source: tuple[Stage, ...]


def projected(b: ScheduleBuilder, machine: Target, cluster: Cluster) -> None:
    """Schedule the stages at blocks of rows of the last one. ``ScheduleError`` when it does not fit."""
    parts = _parts(b, cluster)
    work = sum(work_of(s) for s in cluster.stages)
    loops = range(len(only_nest(b.kernel, parts.root).loops) - 1)
    if not any(attempt(b, partial(_at, b, machine, parts, work, k, *rows)) for k in loops for rows in BLOCKS):
        raise ScheduleError("projected", parts.made, "no loop walks it in blocks of rows that fit")
    if parts.source:
        contract_inside(b, machine, *[s.out.name for s in parts.source])
    contract_inside(b, machine, parts.window, parts.made)
    contract_inside(b, machine, parts.product, parts.root)


def _parts(b: ScheduleBuilder, cluster: Cluster) -> _Parts:
    assert cluster.last is not None
    n_before = next(k for k, s in enumerate(cluster.stages) if s is cluster.last)
    made = cluster.stages[n_before - 1]
    window = made if made.reduction else cluster.stages[n_before - 2]
    product = _apart(b, cluster.last, cluster.root)
    source = () if cluster.stages[0] is window else cluster.stages[:2]
    return _Parts(_apart(b, window, made), made.out.name, product, cluster.root.out.name, source)


def _apart(b: ScheduleBuilder, reduction: Stage, reader: Stage) -> str:
    """What the reduction sums up in: where no stage reads it, a copy of it becomes its reader."""
    if reduction is not reader:
        return reduction.out.name
    b.do("cache", reader.out.name)
    return cached_name(b, reader.out.name)


def _at(b: ScheduleBuilder, machine: Target, parts: _Parts, work: float, k: int, n: int, ragged: bool) -> None:
    """Bring all under blocks of ``n`` rows, along the root's loop number ``k``; ``ragged``: the last one is shorter."""
    loops = only_nest(b.kernel, parts.root).loops
    outer, rows = [x.sym.name for x in loops[:k] if is_known(x.extent)], loops[k]
    # Shorter rows go together, as one: a register tile of the product takes about as many points.
    n *= -(-COPIED_ROWS // int(estimate([x.extent for x in loops[k + 1 : -1]])))
    if not known_at_least(rows.extent, n) or (rows.extent % n != 0) is not ragged:
        raise ScheduleError("projected", parts.made, f"{rows.extent} rows are not blocks of {n}")
    if n > 1:
        block, _ = b.split(rows.sym.name, n)
        rows = find_loop(b.kernel, block, "projected").loop
    width = machine.lanes(find_place(b.kernel, parts.root, "projected").buffer.dtype)
    at, n_parts = rows.sym.name, 1
    if parts.source:
        at, n_parts = shared_rows(b, machine, outer, rows, work, width)
    for name in (parts.product, parts.made, parts.window):
        b.do("compute_at", name, at, "local")
    if bytes_of(b, parts.made) > machine.l2_bytes / BLOCK_SHARE:
        raise ScheduleError("projected", parts.made, "a block of rows is too large")
    if parts.source:
        source, strip = parts.source
        again = (n_parts - 1) / estimate([rows.extent, n])
        most = min(machine.l2_bytes / RING_SHARE, EFFORT.added_bytes / 2)  # a block of the window is beside it
        in_ring(b, machine, source, strip.out.name, at, again, most)
    elif pays_threads(work, machine, width):
        parallel(b, machine, [*outer, at])
