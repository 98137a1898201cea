"""The strategy for products of matrices: tiles of the factors in shared memory, a tile of the sums in each thread.

In: a builder, a GPU, a product's stages (``matrices``). Out: one grid.
Not its business: products of 16 bits, which matrix units compute (``matrix_units``).

After, for tiles of 64 by 64 with 16 terms at a time, by 16 by 16 threads::

    for m_o (block): for n_o (block):
      for ty, tx (thread): T[4, 4] = 0                          registers
      for k_o:
        for ty, tx (thread): A[64, 16] = ..; B[16, 64] = ..     shared; neighbours copy neighbours
        for ty, tx (thread): for k_i: T[4, 4] += A[4, k_i] * B[k_i, 4]
      for ty, tx (thread): Y[4, 4] = f(T[4, 4])                 where that is inside of Y
"""

from __future__ import annotations

from tilewright.choose.strategies.gpu.block_tiles import ThreadTile
from tilewright.choose.strategies.gpu.elements import at_most
from tilewright.choose.strategies.gpu.matrices import Product
from tilewright.choose.strategies.view import find_body, nest_with, only_nest
from tilewright.core.expr import mod
from tilewright.tile.affine import stride_along
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import Store, Update
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop


def products(b: ScheduleBuilder, product: Product, tile: ThreadTile) -> None:
    """Schedule the four stages of a product as one grid."""
    *batches, row, column = [x.sym.name for x in only_nest(b.kernel, product.root).loops]
    batches = at_most(b, batches, MAX_DIMENSIONS - 2)
    lanes = _lanes_kind(b, tile, column)
    row_block, row_thread, row_own = _tiled(b, tile, row)
    column_block, column_thread, column_own = _tiled(b, tile, column)
    b.do("reorder", row_block, column_block, row_thread, column_thread, row_own, column_own)
    b.do("kind", column_own, lanes)
    if lanes != "vector":
        b.do("fill", column_own, tile.own)
    b.do("fill", row_own, tile.own)
    b.do("fill", column_thread, tile.threads)
    b.do("fill", row_thread, tile.threads)
    for name in (*batches, row_block, column_block):
        b.do("kind", name, "block")
    for name, kind in ((row_thread, "thread"), (column_thread, "thread"), (row_own, "unroll")):
        b.do("kind", name, kind)
    made = b.do("compute_at", product.sums, column_block, "local").loops
    start, step = made[:4], made[4:8]
    b.do("reorder", start[0], start[2], start[1], start[3])
    (term,) = set(_loops_of_sums(b, product, column_block)) - set(step)
    outer, inner = b.split(term, tile.depth)
    b.do("reorder", outer, step[0], step[2], inner, step[1], step[3])
    for own in (start, step):
        b.do("kind", own[1], "unroll")
        b.do("kind", own[3], "vector")  # a thread's columns of the right factor are one access
    for factor in (product.left, product.right):
        _copy(b, product, tile, factor, outer)
    # Rows of the left factor that threads read beside each other begin in other banks.
    b.do("align", product.left, tile.depth + 1)


def _loops_of_sums(b: ScheduleBuilder, product: Product, column_block: str) -> list[str]:
    """The loops of the nest that adds terms to the sums, in a block."""
    nest = nest_with(find_body(b.kernel, column_block), product.sums, Update)
    return [x.sym.name for x in nest.loops]


def _tiled(b: ScheduleBuilder, tile: ThreadTile, loop: str) -> tuple[str, str, str]:
    """A loop in blocks, threads and what each of these has."""
    block, inside = b.split(loop, tile.rows)
    thread, own = b.split(inside, tile.own)
    return block, thread, own


def _lanes_kind(b: ScheduleBuilder, tile: ThreadTile, column: str) -> str:
    """A thread's columns are one access where they lie side by side in the result and are whole."""
    target = find_loop(b.kernel, column, "products")
    leaf = target.body[0]
    is_beside = isinstance(leaf, Store) and stride_along(leaf.buffer, leaf.index, target.loop.sym) == 1
    return "vector" if is_beside and mod(target.loop.extent, tile.own) == 0 else "unroll"


def _copy(b: ScheduleBuilder, product: Product, tile: ThreadTile, factor: str, at: str) -> None:
    """A factor's tile comes to shared memory by all threads, neighbours in memory by neighbouring threads."""
    loops = b.do("compute_at", factor, at, "shared").loops
    for name in loops:
        b.do("kind", name, "serial")
    # First the two that walk one dimension, whose places then are one loop's.
    if factor == product.left:
        made = b.do("fuse", b.do("fuse", *loops[:2]).loops[0], loops[2]).loops[0]
    else:
        made = b.do("fuse", loops[0], b.do("fuse", *loops[1:]).loops[0]).loops[0]
    turn, thread = b.split(made, tile.threads**2, "guard")
    first, second = b.split(thread, tile.threads)
    b.do("reorder", first, second, turn)
    b.do("kind", first, "thread")
    b.do("kind", second, "thread")
