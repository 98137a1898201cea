"""The strategy for products by matrix units: a warp has a tile of the sums in its lanes' registers.

In: a builder, a GPU, a product's stages (``matrices``). Out: one grid, whose thread loops count warps.
Not its business: products that no instruction computes (``products``), the instruction itself (``codegen.ptx.warps``).

After, for tiles of 128 by 128 with 32 terms at a time, by 2 by 2 warps::

    for m_o (block): for n_o (block):
      for wm, wn (thread): for mt, nt: for m<16, n<8 (warp): T = 0      registers of the lanes
      for k_o:
        for wm, wn (thread): for lane<32 (warp): A[128, 32] = ..        shared; 16 bytes at a time, some steps ahead
        for wm, wn (thread): for lane<32 (warp): B[32, 128] = ..
        for wm, wn (thread): for ks, mt, nt: for m<16, n<8, k<16 (warp): T += A * B    one instruction
      for wm, wn (thread): for mt, nt: for m<16, n<8 (warp): Y = f(T)   where that is inside of Y
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.choose.strategies.gpu.block_tiles import WarpTile, rows_together
from tilewright.choose.strategies.gpu.elements import at_most, copied_ahead, extent_of, lanes_of, shared_tile
from tilewright.choose.strategies.gpu.matrices import Product
from tilewright.choose.strategies.view import find_body, nest_with, only_nest
from tilewright.core.dims import is_known
from tilewright.target.gpu import Gpu
from tilewright.target.matrices import GROUP, RUN_LENGTHS
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import Update
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop


@dataclass(frozen=True)
class _TiledLoop:
    """The loops of the sums' rows or columns: blocks, warps, instructions of a warp, and inside of an instruction."""

    block: str
    warp: str
    turn: str
    lane: str


def matrix_units(b: ScheduleBuilder, gpu: Gpu, product: Product, tile: WarpTile) -> None:
    """Schedule the four stages of a product as one grid."""
    *batches, row, column = [x.sym.name for x in only_nest(b.kernel, product.root).loops]
    batches = at_most(b, batches, MAX_DIMENSIONS - 2)
    rows, columns, terms = tile.shape.extents
    run = _run(b, gpu, product, tile, column)
    together: list[str] = []
    if run > 1:
        column, lanes = b.split(column, run)
        b.do("kind", lanes, "vector")
        together.append(lanes)
    m = _rows_tiled(b, row, tile)
    n = _tiled(b, column, (tile.columns // run, tile.own_columns // run, columns // run))
    # Every warp and lane is there, whether the matrix has something for it or not.
    of_rows = (tile.row_warps, tile.own_rows // rows, rows)
    of_columns = (tile.column_warps, tile.own_columns // columns, columns // run)
    for side, counts in zip((m, n), (of_rows, of_columns), strict=True):
        for name, count in zip((side.lane, side.turn, side.warp), reversed(counts), strict=True):
            b.do("fill", name, count)
    b.do("reorder", m.block, n.block, m.warp, n.warp, m.turn, n.turn, m.lane, n.lane)
    blocks = [*batches, *_ordered(b, gpu, tile, m.block, n.block, has_batches=bool(batches))]
    for name in blocks:
        b.do("kind", name, "block")
    start, step = _sums_inside(b, product, blocks[-1], n_loops=len(_LOOPS) + len(together))
    nest = nest_with(find_body(b.kernel, blocks[-1]), product.sums, Update)
    outer, inner = _in_steps(b, tile, [x.sym.name for x in nest.loops if x.sym.name not in step])
    turn, depth = b.split(inner, terms)
    b.do("reorder", *_by_warps(start))
    # Factors are copied in the order of rows and columns, before warps come first.
    warp_of_rows, turn_of_rows, *others = step
    in_order = (turn_of_rows, warp_of_rows) if tile.is_swizzled else (warp_of_rows, turn_of_rows)
    b.do("reorder", outer, turn, *in_order, *others, depth)
    for factor in (product.left, product.right):
        _copy(b, gpu, tile, factor, outer)
    b.do("reorder", *_by_warps(step)[:2], turn, *_by_warps(step)[2:], depth)
    for loops in (_by_warps(start), _by_warps(step), (m.warp, n.warp, m.turn, n.turn, m.lane, n.lane)):
        for name, kind in zip(loops, ("thread", "thread", "unroll", "unroll", "warp", "warp"), strict=True):
            b.do("kind", name, kind)
    b.do("kind", turn, "unroll")
    b.do("kind", depth, "warp")
    stages = tile.stages(gpu, extent_of(b, outer))
    if gpu.has_async_copies and stages > 1:
        copied_ahead(b, (product.left, product.right), outer, stages, tile.spare)


_LOOPS = ("warp", "warp", "turn", "turn", "lane", "lane")
"""The loops of a block's sums: of rows and of columns each."""


def _run(b: ScheduleBuilder, gpu: Gpu, product: Product, tile: WarpTile, column: str) -> int:
    """How many columns a lane stores at one time, once the lanes of a row have exchanged their sums; 1 where none."""
    width = lanes_of(gpu, find_loop(b.kernel, column, "matrix_units"), apart=(product.sums,))
    fits = (n for n in RUN_LENGTHS if tile.shape.has_pairs and n <= width and tile.shape.extents[1] % (GROUP * n) == 0)
    return next(fits, 1)


def _sums_inside(
    b: ScheduleBuilder, product: Product, block: str, n_loops: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The loops by which a block's sums begin, and those by which they go on, of columns one by one."""
    made = b.do("compute_at", product.sums, block, "local").loops
    start, step = made[:n_loops], made[n_loops : 2 * n_loops]
    return (start, step) if n_loops == len(_LOOPS) else (_by_ones(b, start), _by_ones(b, step))


def _by_ones(b: ScheduleBuilder, loops: tuple[str, ...]) -> tuple[str, ...]:
    """The loops with the last two, of runs and what is in one, as a loop of columns."""
    *others, runs, lanes = loops
    b.do("kind", lanes, "serial")
    return *others, b.do("fuse", runs, lanes).loops[0]


def _in_steps(b: ScheduleBuilder, tile: WarpTile, terms: list[str]) -> tuple[str, str]:
    """The loop of steps and the one of a step's terms, which a product's spelling may have apart already."""
    if len(terms) == 1:
        return b.split(terms[0], tile.depth)
    step, term = terms
    return step, term


def _tiled(b: ScheduleBuilder, loop: str, sizes: tuple[int, int, int]) -> _TiledLoop:
    block, inside = b.split(loop, sizes[0])
    warp, own = b.split(inside, sizes[1])
    turn, lane = b.split(own, sizes[2])
    return _TiledLoop(block, warp, turn, lane)


def _ordered(
    b: ScheduleBuilder, gpu: Gpu, tile: WarpTile, row: str, column: str, *, has_batches: bool
) -> tuple[str, ...]:
    """The loops of blocks in an order by which those that run at one time have few rows and columns between them.

    What they read then stays in the cache that all multiprocessors share. A grid's last dimension goes first: as many
    rows of blocks as divide all of them.
    """
    n_rows, n_columns = extent_of(b, row), extent_of(b, column)
    if has_batches or not is_known(n_rows) or not is_known(n_columns):
        return row, column
    outer, inner = b.split(row, rows_together(gpu, tile, (n_rows, n_columns)))
    b.do("reorder", outer, column, inner)
    return outer, column, inner


def _rows_tiled(b: ScheduleBuilder, loop: str, tile: WarpTile) -> _TiledLoop:
    """The rows; those of four warps that run an instruction together follow each other."""
    if not tile.is_swizzled:
        return _tiled(b, loop, (tile.rows, tile.own_rows, tile.shape.extents[0]))
    block, inside = b.split(loop, tile.rows)
    turn, beside = b.split(inside, tile.row_warps * tile.shape.extents[0])
    warp, lane = b.split(beside, tile.shape.extents[0])
    return _TiledLoop(block, warp, turn, lane)


def _by_warps(loops: tuple[str, ...]) -> tuple[str, ...]:
    """Loops of rows, then of columns, in the order in which they nest: warps, instructions, lanes."""
    first, second = loops[:3], loops[3:]
    return tuple(name for pair in zip(first, second, strict=True) for name in pair)


def _copy(b: ScheduleBuilder, gpu: Gpu, tile: WarpTile, factor: str, at: str) -> None:
    """A factor's tile comes to shared memory by all lanes of all warps, neighbours in memory by neighbouring lanes."""
    turn, thread, row_elements = shared_tile(b, gpu, factor, at, tile.warps * gpu.warp_lanes)
    warp, lane = b.split(thread, gpu.warp_lanes)
    first, second = b.split(warp, tile.column_warps)
    b.do("reorder", first, second, lane, turn)
    for name, kind in ((first, "thread"), (second, "thread"), (lane, "warp"), (turn, "unroll")):
        b.do("kind", name, kind)
    if tile.is_swizzled:
        b.do("swizzle", factor)
    else:
        b.do("align", factor, row_elements + tile.pad)
