"""The strategy for products of matrices: tiles of the factors in shared memory, a tile of the sums in each thread.

In: a builder, a GPU, a product's stages (``matrices``). Out: one grid.
Not its business: products of 16 bits, which matrix units compute (``matrix_units``), how large tiles are.

After, for tiles of 128 by 128 with 16 terms at a time, by 16 by 16 threads::

    for m_o (block): for n_o (block):
      for ty, tx (thread): T[8, 8] = 0                        registers
      for k_o:
        for ty, tx (thread): A[16, 128] = ..; B[16, 128] = .. shared; some steps ahead; neighbours copy neighbours
        for ty, tx (thread): for k_i: T[8, 8] += A[k_i, 8] * B[k_i, 8]
      for ty, tx (thread): Y[8, 8] = f(T[8, 8])               where that is inside of Y

A thread's rows lie side by side, its columns in groups of one access as far apart as all threads' groups are long, so
that threads beside each other read from different banks.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.choose.strategies.gpu.block_tiles import ThreadTile
from tilewright.choose.strategies.gpu.elements import (
    as_one,
    at_most,
    copied_ahead,
    extent_of,
    in_vectors,
    outermost_first,
)
from tilewright.choose.strategies.gpu.matrices import Product
from tilewright.choose.strategies.view import find_body, nest_with, only_nest
from tilewright.core.expr import mod
from tilewright.target.gpu import Gpu
from tilewright.tile.affine import stride_along
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import Store, Update
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, find_place


@dataclass(frozen=True)
class _ThreadLoops:
    """The loops of the sums' rows or columns: blocks, threads, a thread's groups, and the elements of one."""

    block: str
    thread: str
    group: str
    own: str


def products(b: ScheduleBuilder, gpu: Gpu, product: Product, tile: ThreadTile) -> None:
    """Schedule the four stages of a product as one grid."""
    *batches, row, column = [x.sym.name for x in only_nest(b.kernel, product.root).loops]
    batches = at_most(b, batches, MAX_DIMENSIONS - 2)
    kind = _lanes_kind(b, tile, column)
    m = _rows(b, tile, row)
    n = _columns(b, tile, column)
    b.do("kind", n.own, kind)
    for name, count in (
        (n.own, tile.lanes), (n.thread, tile.column_threads), (n.group, tile.own_columns // tile.lanes),
        (m.own, tile.lanes), (m.group, tile.own_rows // tile.lanes), (m.thread, tile.row_threads),
    ):  # fmt: skip
        if extent_of(b, name) != count:
            b.do("fill", name, count)
    b.do("reorder", m.block, n.block, m.thread, n.thread, m.group, m.own, n.group)
    for name in (*batches, m.block, n.block):
        b.do("kind", name, "block")
    made = b.do("compute_at", product.sums, n.block, "local").loops
    start, step = made[:6], made[6:12]
    (term,) = {x.sym.name for x in nest_with(find_body(b.kernel, n.block), product.sums, Update).loops} - set(step)
    outer, inner = b.split(term, tile.depth)
    for loops, around in ((start, ()), (step, (inner,))):
        row_thread, row_group, row_own, column_thread, column_group, column_own = loops
        walk = (row_thread, column_thread, *around, row_group, column_group, row_own, column_own)
        b.do("reorder", *([outer] if around else []), *walk)
        kinds = ("thread", "thread", *["unroll"] * len(around), "unroll", "unroll", "vector", "vector")
        for name, k in reversed(list(zip(walk, kinds, strict=True))):
            b.do("kind", name, k)
    for name, k in (
        (m.thread, "thread"),
        (n.thread, "thread"),
        (m.group, "unroll"),
        (m.own, "unroll"),
        (n.group, "unroll"),
    ):
        b.do("kind", name, k)
    _copy(b, gpu, tile, product.left, outer, is_turned=True)  # a thread's rows are an access, like its columns
    _copy(b, gpu, tile, product.right, outer, is_turned=False)
    stages = tile.stages(gpu, extent_of(b, outer))
    if gpu.has_async_copies and stages > 1:
        copied_ahead(b, (product.left, product.right), outer, stages)
    # Rows of memory begin in other banks, where elements beside each other go to several.
    b.do("align", product.left, tile.rows + tile.lanes)


def _rows(b: ScheduleBuilder, tile: ThreadTile, row: str) -> _ThreadLoops:
    """A thread's rows are neighbours: all threads of a warp's row read the same ones."""
    block, inside = b.split(row, tile.rows)
    thread, own = b.split(inside, tile.own_rows)
    return _ThreadLoops(block, thread, *b.split(own, tile.lanes))


def _columns(b: ScheduleBuilder, tile: ThreadTile, column: str) -> _ThreadLoops:
    """Neighbouring threads have neighbouring accesses; a thread's next one is where all threads' are over."""
    rest, own = b.split(column, tile.lanes)
    block, inside = b.split(rest, tile.columns // tile.lanes)
    group, thread = b.split(inside, tile.column_threads)
    return _ThreadLoops(block, thread, group, own)


def _lanes_kind(b: ScheduleBuilder, tile: ThreadTile, column: str) -> str:
    """A thread's columns are accesses where they lie side by side in the result and are whole."""
    target = find_loop(b.kernel, column, "products")
    leaf = target.body[0]
    is_beside = isinstance(leaf, Store) and stride_along(leaf.buffer, leaf.index, target.loop.sym) == 1
    return "vector" if is_beside and mod(target.loop.extent, tile.lanes) == 0 else "unroll"


def _copy(b: ScheduleBuilder, gpu: Gpu, tile: ThreadTile, factor: str, at: str, *, is_turned: bool) -> None:
    """A factor's tile comes to shared memory by all threads, neighbours in memory by neighbouring threads."""
    loops = b.do("compute_at", factor, at, "shared").loops
    for name in loops:
        b.do("kind", name, "serial")
    if is_turned:
        b.do("turn", factor, len(find_place(b.kernel, factor, "products").buffer.shape) - 2)
    leaf = nest_with(find_body(b.kernel, at), factor, Store).leaf[0]
    assert isinstance(leaf, Store)
    dims = [outermost_first(i, loops) for i in leaf.index[-2:]]
    b.do("reorder", *dims[0], *dims[1])
    parts = [as_one(b, names) for names in dims]
    leaf = nest_with(find_body(b.kernel, at), factor, Store).leaf[0]
    sym = find_loop(b.kernel, parts[0], "products").loop.sym
    if any(stride_along(x.buffer, x.index, sym) == 1 for x in loads_of(leaf)):
        parts.reverse()
    b.do("reorder", *parts)
    made = b.do("fuse", parts[0], in_vectors(b, gpu, parts[1])).loops[0]
    turn, thread = b.split(made, tile.threads, "guard")
    first, second = b.split(thread, tile.column_threads)
    b.do("reorder", first, second, turn)
    for name, kind in ((first, "thread"), (second, "thread"), (turn, "unroll")):
        b.do("kind", name, kind)
