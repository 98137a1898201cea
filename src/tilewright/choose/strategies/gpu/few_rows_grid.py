"""The strategy for products of few rows: a warp for each part of the terms, whose sums meet in shared memory.

In: a builder, a GPU, a product's stages (``few_rows``). Out: one grid, whose thread loops count warps.
Not its business: which products, and their tiles (``few_rows``); products of more rows (``matrix_units``).

After, for P parts by W warps of columns::

    for n_o (block):
      for c<P, w<W (thread): for nt: for m<16, n<8 (warp): T = 0      registers of the lanes
      for s:
        for c, w (thread): for lane<32 (warp): A[c, 16, D] = ..       shared; 16 bytes at a time, some steps ahead
        for c, w (thread): for lane<32 (warp): B[c, D, N] = ..
        for c, w (thread): for ks, nt: for m<16, n<8, k<16 (warp): T += A * B     one instruction
      for c, w (thread): for nt: for m<16, n<8 (warp): Q[c] = T       shared
      for c, w (thread): for m: for n (warp): Y = f(Q[0] + Q[1] + ..)
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.choose.strategies.gpu.elements import at_most, copied_ahead, extent_of, shared_tile
from tilewright.choose.strategies.gpu.few_rows import FewRows, StripTile
from tilewright.choose.strategies.steps import cached_name
from tilewright.choose.strategies.view import find_body, nest_with, only_nest
from tilewright.core.dims import is_known
from tilewright.target.gpu import Gpu
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import Store, Update
from tilewright.tile.schedule import ScheduleBuilder


def few_rows(b: ScheduleBuilder, gpu: Gpu, x: FewRows) -> None:
    """Schedule the four stages of a product as one grid."""
    tile = x.tile
    *batches, row, column = [y.sym.name for y in only_nest(b.kernel, x.root).loops]
    batches = at_most(b, batches, MAX_DIMENSIONS - 1)
    at, inside = b.split(column, tile.columns)
    b.do("reorder", at, row, inside)
    b.do("fill", inside, tile.columns)
    for name in (*batches, at):
        b.do("kind", name, "block")
    b.do("cache", x.sums)
    own = cached_name(b, x.sums)
    b.do("compute_at", x.sums, at, "shared")
    b.do("fill", nest_with(find_body(b.kernel, at), x.sums, Store).loops[1].sym.name, tile.rows)
    b.do("compute_at", own, at, "local")
    body = find_body(b.kernel, at)
    copied, start = (nest_with(body, name, Store).loops for name in (x.sums, own))
    *walked, step, term = [y.sym.name for y in nest_with(body, own, Update).loops]
    loops = [_by_warps(b, tile, [y.sym.name for y in nest]) for nest in (copied, start)]
    # Factors are copied by whole rows and columns, before those are loops of warps and instructions.
    b.do("reorder", step, *walked, term)
    for factor in (x.left, x.right):
        _copy(b, gpu, tile, factor, step)
    _multiplied(b, gpu, tile, walked, term)
    for of_warps, own_loops in loops:
        _kinds(b, of_warps, own_loops, _inside(tile))
    _root(b, tile, row, inside)
    stages = tile.stages
    n = extent_of(b, step)
    if gpu.has_async_copies and is_known(n) and min(stages, n) > 1:
        copied_ahead(b, (x.left, x.right), step, min(stages, n))


def _inside(tile: StripTile) -> tuple[str, ...]:
    """What a warp's own loops are: instructions by rows and columns, and rows and columns of one; of a lane, rows."""
    return ("unroll", "unroll", "warp", "warp") if tile.shape is not None else ("unroll",)


def _by_columns(b: ScheduleBuilder, tile: StripTile, loop: str, factor: int) -> tuple[list[str], str]:
    """A loop by warps of columns and what is inside of each; there is no loop where there is one such warp."""
    if tile.column_warps == 1:
        return [], loop
    warp, inside = b.split(loop, factor)
    return [warp], inside


def _split(b: ScheduleBuilder, tile: StripTile, loops: list[str]) -> tuple[list[str], list[str]]:
    """Loops of parts, rows and columns as those that number warps or lanes, and those of each of them, in order."""
    part, row, column = loops
    if tile.shape is None:
        return [part, column], [row]
    rows, columns, _ = tile.shape.extents
    turn, lane = b.split(row, rows)
    warp, own = _by_columns(b, tile, column, tile.own_columns)
    beside, column = b.split(own, columns)
    return [part, *warp], [turn, beside, lane, column]


def _multiplied(b: ScheduleBuilder, gpu: Gpu, tile: StripTile, loops: list[str], term: str) -> None:
    """The terms of a step, by matrix instructions or by lanes."""
    warps, inner = _split(b, tile, loops)
    if tile.shape is not None:
        turn, depth = b.split(term, tile.shape.extents[2])
        b.do("reorder", *warps, turn, *inner, depth)
        _kinds(b, warps, [turn, *inner, depth], ("unroll", *_inside(tile), "warp"))
        return
    turn, depth = b.split(term, gpu.access_bytes // tile.n_bytes)
    b.do("reorder", *warps, turn, depth, *inner)
    _kinds(b, warps, [turn, depth, *inner], ("serial", "unroll", *_inside(tile)))


def _by_warps(b: ScheduleBuilder, tile: StripTile, loops: list[str]) -> tuple[list[str], list[str]]:
    """The same loops, nested in that order."""
    first, second = _split(b, tile, loops)
    b.do("reorder", *first, *second)
    return first, second


def _kinds(b: ScheduleBuilder, warps: list[str], inner: list[str], kinds: Sequence[str]) -> None:
    for name, kind in zip((*warps, *inner), (*["thread"] * len(warps), *kinds), strict=True):
        b.do("kind", name, kind)


def _root(b: ScheduleBuilder, tile: StripTile, row: str, column: str) -> None:
    """What is made of the sums: rows are shared out among the warps of parts, columns among lanes."""
    turn, part = b.split(row, tile.parts)
    b.do("fill", part, tile.parts)
    if tile.shape is None:
        b.do("reorder", part, column, turn)
        _kinds(b, [part, column], [turn], ("unroll",))
        return
    warp, lane = _by_columns(b, tile, column, tile.own_columns)
    b.do("reorder", part, *warp, turn, lane)
    _kinds(b, [part, *warp], [turn, lane], ("unroll", "warp"))


def _copy(b: ScheduleBuilder, gpu: Gpu, tile: StripTile, factor: str, at: str) -> None:
    """A factor's tiles come to shared memory by all lanes of all warps, neighbours in memory by neighbouring lanes."""
    turn, thread, row_elements = shared_tile(b, gpu, factor, at, tile.warps * gpu.warp_lanes)
    if tile.shape is None:
        part, column = b.split(thread, tile.columns)
        b.do("reorder", part, column, turn)
        _kinds(b, [part, column], [turn], ("unroll",))
    else:
        number, lane = b.split(thread, gpu.warp_lanes)
        warp, part = _by_columns(b, tile, number, tile.column_warps)
        warps = [*warp, part]
        b.do("reorder", *warps, lane, turn)
        _kinds(b, warps, [lane, turn], ("warp", "unroll"))
    if extent_of(b, turn) == 1:
        b.do("unit", turn)
    b.do("align", factor, row_elements + tile.pad)
