"""The rule for a window over what another reduction makes: row by row, through a ring of the rows that it spans.

In: a builder and the stages: a reduction and the plain stage that reads it, the window's reduction, and the plain
stage that reads that one, if any (an expanding convolution and a depthwise one or a pooling). Out: steps.
Not its business: register tiles (``contract``).

Before: a nest per stage, over the whole image. After: ``for part (parallel): for row: (for each new row: the first
reduction); the window``. What lies between the two exists for as many rows as the window spans only, and never goes to
memory. Each part computes the rows that its first window shares with the part before again. Where the ring would be
too large for the second-level cache, the channels are cut into blocks, one after the other (or on threads, without
parts). It pays where the whole is much larger than that cache, and sending it through memory takes longer than
computing rows again.
"""

from __future__ import annotations

from functools import partial

from tilewright.choose.clusters import Cluster
from tilewright.choose.cost.tile import estimate, pays_threads
from tilewright.choose.strategies.steps import attempt, cached_name
from tilewright.choose.strategies.tiles import contract_inside
from tilewright.choose.strategies.view import find_body, nest_with, only_nest
from tilewright.core.compute import Stage
from tilewright.core.dims import is_known, known, known_over
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Loop, Store
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, find_place


def ring(b: ScheduleBuilder, machine: Target, cluster: Cluster) -> None:
    """Schedule the stages at rows of the last one. ``ScheduleError`` when it does not fit or does not pay."""
    source, strip = cluster.stages[0].out.name, cluster.stages[1].out.name
    assert cluster.last is not None
    window, root = cluster.last.out.name, cluster.root.out.name
    if bytes_of(b, strip) < machine.large_bytes:
        raise ScheduleError("ring", strip, "most of it stays in the second-level cache")
    if window == root:
        b.do("cache", root)
        window = cached_name(b, root)
    loops = range(len(only_nest(b.kernel, root).loops) - 1)
    lanes = machine.lanes(find_place(b.kernel, strip, "ring").buffer.dtype)
    vectors = known(only_nest(b.kernel, root).loops[-1].extent, 1) // lanes
    blocks = [n for n in range(1, vectors + 1) if vectors % n == 0] or [1]
    choices = [(n, k) for n in blocks for k in loops]
    if not any(attempt(b, partial(_at, b, machine, cluster, (source, strip, window, root), k, n)) for n, k in choices):
        raise ScheduleError("ring", strip, "no window slides along a loop of its own, or its rows are too large")
    contract_inside(b, machine, source, strip)
    contract_inside(b, machine, window, root)


def _at(
    b: ScheduleBuilder, machine: Target, cluster: Cluster, names: tuple[str, str, str, str], k: int, n_blocks: int
) -> None:
    """Bring all under the root's loop number ``k``, for one of ``n_blocks`` blocks of the last axis after the other."""
    _, strip, window, root = names
    whole = find_place(b.kernel, strip, "ring").buffer
    loops = only_nest(b.kernel, root).loops
    row, outer = loops[k], [x.sym.name for x in loops[:k] if is_known(x.extent)]
    if n_blocks > 1:
        outer.insert(0, _blocks(b, machine.lanes(whole.dtype), loops, n_blocks))
    work = sum(work_of(s) for s in cluster.stages)
    loop, parts = shared_rows(b, machine, outer, row, work, machine.lanes(whole.dtype))
    b.do("compute_at", window, loop, "local")
    again = (parts - 1) / estimate([row.extent])
    in_ring(b, machine, cluster.stages[0], strip, loop, again, machine.l2_part_bytes)


def shared_rows(
    b: ScheduleBuilder, machine: Target, outer: list[str], row: Loop, work: float, width: int
) -> tuple[str, int]:
    """Threads share the first of ``outer``, or parts of the loop ``row``; a part's loop, and how many parts."""
    loop = row.sym.name
    if not pays_threads(work, machine, width):
        return loop, 1
    if outer and estimate([find_loop(b.kernel, outer[0], "ring").loop.extent]) >= machine.n_cores:
        b.do("kind", outer[0], "parallel")
    elif known_over(row.extent, machine.n_cores):
        part, rows = b.split(loop, -(-row.extent // machine.n_cores))
        b.do("kind", part, "parallel")
        return rows, machine.n_cores
    return loop, 1


def in_ring(
    b: ScheduleBuilder, machine: Target, source: Stage, strip: str, loop: str, again: float, most_bytes: float
) -> None:
    """Keep ``strip`` as a ring of rows at ``loop``, and compute ``source`` for each new row of it.

    ``again``: for each row of the ring, the part of all rows that other threads compute too. ``ScheduleError`` where
    the ring takes more than ``most_bytes``, or computing rows again longer than memory.
    """
    whole = find_place(b.kernel, strip, "ring").buffer
    b.do("ring", strip, loop)
    kept = find_place(b.kernel, strip, "ring").buffer
    if bytes_of(b, strip) > most_bytes:
        raise ScheduleError("ring", strip, f"a ring of {kept.shape} is too large")
    cycles = again * estimate(kept.shape[:1]) * work_of(source) / (machine.lanes(whole.dtype) * machine.fma_ports)
    if cycles > estimate(whole.shape) * whole.dtype.n_bytes / machine.llc_bytes_per_cycle:
        raise ScheduleError("ring", strip, "computing rows again takes longer than memory does")
    new = nest_with(find_body(b.kernel, loop), strip, Store).loops[0]
    b.do("compute_at", source.out.name, new.sym.name, "local")


def _blocks(b: ScheduleBuilder, width: int, loops: tuple[Loop, ...], n: int) -> str:
    """Cut the last loop into ``n`` equal blocks of whole vectors, outermost; their loop."""
    last, extent = loops[-1].sym.name, loops[-1].extent
    if not is_known(extent) or extent % (n * width):
        raise ScheduleError("ring", last, f"{extent} are not {n} equal blocks of vectors")
    block, inside = b.split(last, extent // n)
    b.do("reorder", block, *[x.sym.name for x in loops[:-1]], inside)
    return block


def bytes_of(b: ScheduleBuilder, name: str) -> float:
    """The size of a buffer."""
    buffer = find_place(b.kernel, name, "ring").buffer
    return estimate(buffer.shape) * buffer.dtype.n_bytes


def work_of(s: Stage) -> float:
    """Multiplications and additions of a stage."""
    return estimate([a.extent for a in (*s.axes, *(s.reduction.axes if s.reduction else ()))])
