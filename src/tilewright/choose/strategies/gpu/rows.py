"""The strategy for rows: one block reduces along a row, and computes what needs the row's results.

In: a builder, a GPU, the buffers of the stages in order (the last is the root). Out: one grid.
Not its business: reductions that are few beside their results (``elements``: a thread each), products (``products``).

Before: one nest per stage (softmax: maximum, exponential, sum, quotient). After: ``for row (block)``: every stage at
that row, one after the other, each by all threads of the block: neighbours at neighbouring threads, reductions by a
tree (``tree``), a row of temporaries in shared memory.
"""

from __future__ import annotations

from tilewright.choose.strategies.gpu.elements import block_threads, fused
from tilewright.choose.strategies.rows import row_loop, with_plain_root
from tilewright.choose.strategies.view import find_body, nests, only_nest
from tilewright.core.dims import is_known, known_at_most
from tilewright.core.expr import Dim
from tilewright.core.indices import symbols_in
from tilewright.core.types import product
from tilewright.target.gpu import Gpu
from tilewright.tile.errors import ScheduleError
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import For, Kind, Space, Stmt, Update, walk
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, find_place, nest_of


def rows(b: ScheduleBuilder, gpu: Gpu, buffers: list[str]) -> None:
    """Schedule all stages together at the rows of the last one; a single row is one block's."""
    temps = with_plain_root(b, buffers)
    nest = only_nest(b.kernel, buffers[-1])
    row = row_loop(b, nest, set(temps))
    names = [x.sym.name for x in nest.loops]
    if row is None:
        one_row(b, gpu, [*temps, buffers[-1]])
        return
    for name in reversed(temps):
        b.do("compute_at", name, row, "local")
    *outer, at = fused(b, names[: names.index(row) + 1])
    if len(outer) + 1 > MAX_DIMENSIONS:
        raise ScheduleError("rows", buffers[-1], f"{len(outer) + 1} loops of unknown sizes around a row")
    for name in (*outer, at):
        b.do("kind", name, "block")
    check_room(b, gpu, temps)
    passes(b, gpu, at)


def one_row(b: ScheduleBuilder, gpu: Gpu, buffers: list[str]) -> None:
    """The sums of a single row, each by one block; what has no sum is left to ``elements``."""
    for name in buffers:
        for nest in nests(b.kernel, name):
            leaf = nest.leaf[-1]
            if not isinstance(leaf, Update) or symbols_in(leaf.index):
                continue
            loops = fused(b, [x.sym.name for x in nest.loops])
            if len(loops) > 1:
                raise ScheduleError("rows", name, "a row of unknown sizes")
            block = b.do("enclose", loops[0]).loops[0]
            b.do("kind", block, "block")
            b.do("tree", name, loops[0], threads_for(gpu, find_loop(b.kernel, loops[0], "rows").loop.extent))


def check_room(b: ScheduleBuilder, gpu: Gpu, temps: list[str]) -> None:
    """Refuse rows whose temporaries don't fit in a block's shared memory."""
    places = [find_place(b.kernel, name, "rows") for name in temps]
    held = [product(p.buffer.shape) * p.buffer.dtype.n_bytes for p in places if p.space is Space.LOCAL]
    total: Dim = sum(held, start=0)
    # Half of it, as partial results and another block of the multiprocessor have to fit too.
    if not known_at_most(total, gpu.static_shared_bytes // 2):
        raise ScheduleError("rows", temps[-1], f"a row takes {total} bytes of shared memory")


def passes(b: ScheduleBuilder, gpu: Gpu, at: str) -> None:
    """Every pass over the row by the block's threads."""
    done: set[int] = set()
    while True:
        left = (s for s in find_body(b.kernel, at) if isinstance(s, For) and not _has_threads(s) and id(s) not in done)
        s = next(left, None)
        if s is None:
            return
        done.add(id(s))
        _pass(b, gpu, s)


def _has_threads(s: Stmt) -> bool:
    return any(isinstance(x, For) and x.loop.kind is Kind.THREAD for x in walk((s,)))


def _pass(b: ScheduleBuilder, gpu: Gpu, s: For) -> None:
    """One pass: a sum by a tree, elements dealt round."""
    loops = fused(b, [x.sym.name for x in nest_of(s).loops])
    last = find_loop(b.kernel, loops[-1], "rows")
    leaf = last.body[-1]
    threads = threads_for(gpu, last.loop.extent)
    if len(loops) == 1 and isinstance(leaf, Update) and last.loop.sym not in symbols_in(leaf.index):
        b.do("tree", leaf.buffer.name, loops[0], threads)
        return
    turn, thread = b.split(loops[0], threads_for(gpu, find_loop(b.kernel, loops[0], "rows").loop.extent), "guard")
    b.do("reorder", thread, turn)
    b.do("kind", thread, "thread")


def threads_for(gpu: Gpu, extent: Dim) -> int:
    """The threads of a block for so many elements: all warps that have something to do, a power of two."""
    most = block_threads(gpu)
    if not is_known(extent):
        return most
    threads = gpu.warp_lanes
    while 2 * threads <= min(extent, most):
        threads *= 2
    return threads
