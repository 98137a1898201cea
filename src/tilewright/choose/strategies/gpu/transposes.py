"""The strategy for elements that lie in another order than what they are made from: tiles through shared memory.

In: a builder, a GPU, the buffer of a plain stage. Out: one grid.
Not its business: elements whose neighbours are made from neighbours (``elements``).

Before: ``for i<m: for j<n: Y[i, j] = f(X[j, i])``. After, for tiles of T by T::

    for i_o (block): for j_o (block):
      for j<T, i<T (thread): S[j, i] = X[..]          neighbours along i by neighbouring threads, 16 bytes each
      for i<T, j<T (thread): Y[..] = f(S[j, i])       neighbours along j

Both ways memory is touched a line at a time or more. Rows of S begin in different banks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.choose.strategies.gpu.elements import at_most, block_threads, extent_of, independent
from tilewright.choose.strategies.view import only_nest, statement_of
from tilewright.core.compute import Buffer, IndexLike, Load
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, mod
from tilewright.core.indices import chosen
from tilewright.target.gpu import Gpu
from tilewright.tile.affine import linear, stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import Store
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop

LINES = 2
"""Of memory that a tile has of each row: with one, a tile that begins inside of a line would touch two for one."""


@dataclass(frozen=True)
class _TileLoop:
    """A loop of the tile, how many elements of it one access has, and how many the tile has."""

    loop: str
    lanes: int
    size: int


def transposes(b: ScheduleBuilder, gpu: Gpu, root: str) -> None:
    """Schedule a plain stage that reads along another of its loops than it writes."""
    nest = only_nest(b.kernel, root)
    leaf = statement_of(nest)
    if not isinstance(leaf, Store) or chosen(leaf.index) or not nest.loops:
        raise ScheduleError("transposes", root, "it is no plain stage")
    names = [x.sym.name for x in nest.loops]
    if independent(b, names[0]) != names:
        raise ScheduleError("transposes", root, "its loops are no box, or depend on each other")
    along = [x.sym for x in nest.loops if stride_along(leaf.buffer, leaf.index, x.sym) == 1]
    if not along:
        raise ScheduleError("transposes", root, "no loop goes along its memory")
    turned = _turned(list(loads_of(leaf)), along[-1])
    across = {s for x in turned for s in (y.sym for y in nest.loops) if stride_along(x.buffer, x.index, s) == 1}
    if len(across) != 1 or len({x.buffer for x in turned}) != len(set(turned)):
        raise ScheduleError("transposes", root, "nothing is read along one other loop")
    (other,) = across
    inner, outer = _sides(b, gpu, leaf, turned, (along[-1], other))
    _schedule(b, gpu, names, (inner, outer), dict.fromkeys(x.buffer.name for x in turned))


def _turned(loads: Sequence[Load], along: Sym) -> list[Load]:
    """What is read with jumps where elements are written side by side."""
    strides = [(x, stride_along(x.buffer, x.index, along)) for x in loads if not chosen(x.index)]
    return [x for x, stride in strides if stride is not None and stride not in (0, 1)]


def _sides(
    b: ScheduleBuilder, gpu: Gpu, leaf: Store, turned: Sequence[Load], syms: tuple[Sym, Sym]
) -> tuple[_TileLoop, _TileLoop]:
    """The tile: as long as some lines of memory each way, longer one way where the other way has less."""
    n_bytes = max(x.dtype.n_bytes for x in (leaf.buffer, *(t.buffer for t in turned)))
    size = LINES * gpu.line_bytes // n_bytes
    while size * size * n_bytes > gpu.static_shared_bytes:
        size //= 2
    others = [x for x in loads_of(leaf) if x not in turned and stride_along(x.buffer, x.index, syms[0]) == 1]
    written = [(leaf.buffer, leaf.index), *((x.buffer, x.index) for x in others)]
    read = [(x.buffer, x.index) for x in turned]
    extents = [extent_of(b, s.name) for s in syms]
    sizes: list[int] = [min(size, n) if is_known(n) else size for n in extents]
    sides = []
    for k, (sym, places) in enumerate(zip(syms, (written, read), strict=True)):
        # Elements go through shared memory one by one: those that share a word with others would take turns.
        lanes = gpu.access_bytes // max(gpu.bank_bytes, *(x.dtype.n_bytes for x, _ in places))
        while lanes > 1 and not all(mod(_start(x, ix, sym), lanes) == 0 == mod(extents[k], lanes) for x, ix in places):
            lanes //= 2
        own = min(size * size // sizes[1 - k], most_threads(gpu))
        extent = extents[k]
        most = min(own, extent) if is_known(extent) else own
        sides.append(_TileLoop(sym.name, lanes, -(-most // lanes) * lanes))
    return sides[0], sides[1]


def _start(buffer: Buffer, index: tuple[IndexLike, ...], sym: Sym) -> Dim:
    """Where accesses along a loop begin, in elements; 1, which is no multiple of anything, where that is unknown."""
    e = linear(buffer, index)
    return 1 if e is None else e - sym


def _schedule(
    b: ScheduleBuilder, gpu: Gpu, names: list[str], sides: tuple[_TileLoop, _TileLoop], staged: Iterable[str]
) -> None:
    inner, outer = sides
    around = [x for x in names if x not in (inner.loop, outer.loop)]
    outer_block, *outer_own = _tiled(b, outer)
    inner_block, *inner_own = _tiled(b, inner)
    b.do("reorder", *around, outer_block, inner_block, *outer_own, *inner_own)
    for name in (*at_most(b, around, MAX_DIMENSIONS - 2), outer_block, inner_block):
        b.do("kind", name, "block")
    for name in staged:
        made = b.do("stage", name, inner_block, "shared", "source")
        b.do("pitch", made.buffer, len(inner_own), outer.size + 1)
        _deal(b, gpu, made.loops[: len(inner_own)], made.loops[len(inner_own) :])
    _deal(b, gpu, outer_own, inner_own)


def _tiled(b: ScheduleBuilder, side: _TileLoop) -> tuple[str, ...]:
    """The loop over tiles, the one in a tile, and the elements of an access where there are several."""
    loop, *lanes = b.split(side.loop, side.lanes) if side.lanes > 1 else (side.loop,)
    return (*b.split(loop, side.size // side.lanes), *lanes)


def _deal(b: ScheduleBuilder, gpu: Gpu, lines: Sequence[str], run: Sequence[str]) -> None:
    """A tile's elements by threads: neighbours along ``run``, as many lines of these as there are threads for."""
    (thread, *vector), (line, *own) = run, lines
    for name in vector:
        b.do("kind", name, "vector")
    counts = [_filled(b, name) for name in (thread, line)]
    lanes = [name for name in own if _filled(b, name)]
    n = 1
    while 2 * n <= min(counts[1], most_threads(gpu) // counts[0]):
        n *= 2
    b.do("reorder", thread, *lanes, line)
    turn, line = b.split(line, n, "guard")
    b.do("reorder", line, thread, turn, *lanes)
    for name, kind in ((line, "thread"), (thread, "thread"), (turn, "unroll"), *((name, "unroll") for name in lanes)):
        b.do("kind", name, kind)


def most_threads(gpu: Gpu) -> int:
    """Threads that share a tile: two warps for each scheduler, of which one reads while the other writes."""
    return 2 * block_threads(gpu)


def _filled(b: ScheduleBuilder, name: str) -> int:
    """How many iterations a loop has in a whole tile; it has as many in every tile now."""
    loop = find_loop(b.kernel, name, "transposes").loop
    if loop.sym.hi is None:
        raise ScheduleError("transposes", name, "a tile of unknown size")
    if loop.extent != loop.sym.hi + 1:
        b.do("fill", name, loop.sym.hi + 1)
    return loop.sym.hi + 1
