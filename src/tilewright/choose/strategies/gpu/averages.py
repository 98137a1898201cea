"""The strategy for averages by softmax weights, as attention has: one grid, in which no score goes to memory.

In: a builder, a GPU, the root's name. Out: one grid by the primitive ``online``, with tiles of keys and values copied
ahead. Not its business: softmax without a product behind it (``rows``), factors without matrix instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.choose.strategies.gpu.average_tiles import GroupTile, KeyTile, tiles_for
from tilewright.choose.strategies.gpu.elements import copied_ahead
from tilewright.core.compute import Computation, Stage, Unary, walk
from tilewright.core.expr import evaluate
from tilewright.target.gpu import Gpu
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kernel, Kind, Space
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.script import Made
from tilewright.tile.schedule.weighted import weighted


@dataclass(frozen=True)
class Averages:
    """A root that the strategy fits, the names of its stages, and the tile for it."""

    root: str
    stages: frozenset[str]
    tile: KeyTile | GroupTile


def averages_in(computation: Computation, gpu: Gpu) -> list[Averages]:
    """What of a computation the strategy is for; each was tried by itself."""
    stages = [x for x in computation.items if isinstance(x, Stage)]
    if not any(isinstance(v, Unary) and v.op == "exp2" for s in stages for x in s.exprs for v in walk(x)):
        return []
    kernel, found = lower(computation), list[Averages]()
    for s in stages:
        root = s.out.name
        try:
            seen = weighted(kernel, root)
        except ScheduleError:
            continue
        tile = next((t for t in tiles_for(gpu, seen) if _fits(kernel, gpu, root, t)), None)
        if tile is not None:
            found.append(Averages(root, frozenset({root} | {b.name for b in seen.temporaries}), tile))
    return found


def _fits(kernel: Kernel, gpu: Gpu, root: str, tile: KeyTile | GroupTile) -> bool:
    try:
        averages(ScheduleBuilder(kernel), gpu, root, tile)
    except ScheduleError:
        return False
    return True


def averages(b: ScheduleBuilder, gpu: Gpu, root: str, tile: KeyTile | GroupTile) -> None:
    """Schedule the nests that end in ``root`` as one grid. Fails: a block would have more shared memory than it may."""
    if not gpu.has_mma:
        raise ScheduleError("averages", root, "the GPU has no matrix instructions of a warp")
    if isinstance(tile, GroupTile):
        made = b.do("online_fours", root, tile.keys, tile.groups, tile.parts)
    else:
        made = _by_warps(b, gpu, root, tile)
    blocks = [p.buffer for p in b.kernel.places if p.space is Space.SHARED and p.buffer.name in made.buffers]
    n_bytes = sum(x.dtype.n_bytes * prod(evaluate(n, {}) for n in x.shape) for x in blocks)
    if n_bytes > gpu.max_block_shared_bytes:
        raise ScheduleError("averages", root, f"a block would have {n_bytes} bytes of shared memory")


def _by_warps(b: ScheduleBuilder, gpu: Gpu, root: str, tile: KeyTile) -> Made:
    made = b.do("online", root, tile.turns, tile.keys, tile.warps)
    _, *shared = [p.buffer.name for p in b.kernel.places if p.space is Space.SHARED and p.buffer.name in made.buffers]
    (walk_of_keys,) = [
        x.sym.name for x in loops_of(b.kernel.body) if x.kind is Kind.SERIAL and x.sym.name in made.loops
    ]
    if gpu.has_async_copies and tile.stages > 1:
        copied_ahead(b, shared, walk_of_keys, tile.stages)
    return made
