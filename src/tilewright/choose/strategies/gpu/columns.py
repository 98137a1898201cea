"""The strategy for sums of columns: the warps of a block share the terms of columns that lie side by side.

In: a builder, a GPU, the buffers of the sums of warps, and of what they come to (``partial_sums``). Out: one grid.
Not its business: sums along memory (``rows``), sums of a thread's own (``sums``).

After, for W warps::

    for c (block): for n_o (block):
      for w<W, lane<32 (thread): q = 0; for j: q += f(c, w, j, n); Q[w, lane] = q      shared; 16 bytes a thread
      for lane<32 (thread): p = 0; for w<W (unroll): p += Q[w, lane]; P[c, n] = p
"""

from __future__ import annotations

from tilewright.choose.strategies.gpu.elements import (
    as_one,
    at_most,
    extent_of,
    in_vectors,
    independent,
    outermost_first,
)
from tilewright.choose.strategies.gpu.sums import in_registers
from tilewright.choose.strategies.steps import cached_name
from tilewright.choose.strategies.view import find_body, nest_with, only_nest
from tilewright.target.gpu import Gpu
from tilewright.tile.errors import ScheduleError
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import Store
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule import ScheduleBuilder


def columns(b: ScheduleBuilder, gpu: Gpu, warps: str, root: str) -> None:
    """Schedule the sums of a block's warps, and what they come to."""
    b.do("cache", warps)
    b.do("cache", root)
    own, total = cached_name(b, warps), cached_name(b, root)
    names = [x.sym.name for x in only_nest(b.kernel, root).loops]
    if independent(b, names[0]) != names:
        raise ScheduleError("columns", root, "its loops are no box, or depend on each other")
    *outer, inner = names
    block, lane = b.split(in_vectors(b, gpu, inner), gpu.warp_lanes)
    outer = at_most(b, outer, MAX_DIMENSIONS - 1)
    in_registers(b, gpu, total, lane)
    old = {x.sym.name for x in loops_of(b.kernel.body)}
    loops = [x for x in b.do("compute_at", warps, block, "shared").loops if x not in old]
    for name in loops:
        b.do("kind", name, "serial")
    leaf = nest_with(find_body(b.kernel, block), warps, Store).leaf[0]
    assert isinstance(leaf, Store)
    shared_by, (lane_of_warp, *vector) = [names for i in leaf.index if (names := outermost_first(i, loops))]
    b.do("reorder", *shared_by, lane_of_warp, *vector)
    warp = as_one(b, shared_by)
    for name in vector:
        b.do("kind", name, "vector")
    in_registers(b, gpu, own, lane_of_warp)
    for name in (lane, lane_of_warp):
        if extent_of(b, name) != gpu.warp_lanes:
            b.do("fill", name, gpu.warp_lanes)
    for name in (*outer, block):
        b.do("kind", name, "block")
    for name in (warp, lane_of_warp, lane):
        b.do("kind", name, "thread")
