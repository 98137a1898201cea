"""Tiles of a product that a GPU's block computes, by threads or by warps with matrix units.

In: a ``Gpu``, dtypes, how many rows, columns and terms a product has. Out: a tile.
Not its business: which sums are products (``matrices``), the steps that make a grid (``products``, ``matrix_units``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.types import DType
from tilewright.target.gpu import Gpu
from tilewright.target.matrices import GROUP_WARPS, MOST_GROUP_COLUMNS, PIECE_BYTES, GroupShape, MatrixShape


@dataclass(frozen=True)
class Extents:
    """How many batches, rows, columns and terms a product has.

    Of the left factor, ``repeats`` elements are the same one, as taps of a convolution read an image: memory brings
    it once, and a cache the others.
    """

    batches: Dim
    rows: Dim
    columns: Dim
    terms: Dim
    repeats: int = 1


class KnownExtents(NamedTuple):
    """Extents in numbers."""

    batches: int
    rows: int
    columns: int
    terms: int
    repeats: int = 1


@dataclass(frozen=True)
class ThreadTile:
    """What a block of ``row_threads`` by ``column_threads`` computes, ``depth`` terms of the sum at a time.

    Each thread has ``own_rows`` by ``own_columns`` of the tile, in accesses of ``lanes`` elements of ``n_bytes``.
    """

    depth: int
    row_threads: int
    column_threads: int
    own_rows: int
    own_columns: int
    lanes: int
    n_bytes: int

    @property
    def rows(self) -> int:
        """Rows of the block."""
        return self.row_threads * self.own_rows

    @property
    def columns(self) -> int:
        """Columns of the block."""
        return self.column_threads * self.own_columns

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return self.row_threads * self.column_threads

    @property
    def step_bytes(self) -> int:
        """Shared memory of one step's factors."""
        return self.depth * (self.rows + self.lanes + self.columns) * self.n_bytes

    def stages(self, gpu: Gpu, steps: Dim) -> int:
        """How many steps lie in shared memory at one time: as many as leave room for another block, if that is two."""
        found = (stages_of(gpu, self.step_bytes, steps, n) for n in (2, 1))
        return next((n for n in found if n > 1), 1)


@dataclass(frozen=True)
class WarpTile:
    """What a block of ``row_warps`` by ``column_warps`` computes by matrix instructions of a shape.

    Each warp has ``own_rows`` and ``own_columns`` of the tile. A multiprocessor has ``beside`` such blocks at one time.
    """

    shape: MatrixShape | GroupShape
    depth: int
    row_warps: int
    column_warps: int
    own_rows: int
    own_columns: int
    beside: int = 1

    @property
    def rows(self) -> int:
        """Rows of the block."""
        return self.row_warps * self.own_rows

    @property
    def columns(self) -> int:
        """Columns of the block."""
        return self.column_warps * self.own_columns

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return self.row_warps * self.column_warps

    @property
    def pad(self) -> int:
        """Elements behind each row in shared memory: rows that one instruction reads then begin in other banks."""
        return 0 if self.is_swizzled else self.shape.extents[2] // 2

    @property
    def is_swizzled(self) -> bool:
        """Do instructions of four warps read the factors, from swizzled memory?"""
        return isinstance(self.shape, GroupShape)

    @property
    def step_bytes(self) -> int:
        """Shared memory of one step's factors, whichever way they lie."""
        rows = self.rows * (self.depth + self.pad) + self.columns * (self.depth + self.pad)
        turned = self.depth * (self.rows + self.pad) + self.depth * (self.columns + self.pad)
        return max(rows, turned) * self.shape.dtype.n_bytes

    @property
    def read_elements(self) -> int:
        """What matrix units read of shared memory for each term of the sum; four warps read the right factor once."""
        turns = self.own_rows // self.shape.extents[0]
        beside = turns * self.own_columns // GROUP_WARPS if self.is_swizzled else self.own_columns
        return self.warps * (self.own_rows + beside)

    @property
    def spare(self) -> int:
        """Steps that instructions may still read while the next one begins."""
        return int(self.is_swizzled)

    def stages(self, gpu: Gpu, steps: Dim) -> int:
        """How many steps are on their way or read at one time."""
        return stages_of(gpu, self.step_bytes, steps, self.beside, self.spare)


def stages_of(gpu: Gpu, step_bytes: int, steps: Dim, blocks: int, spare: int = 0) -> int:
    """As many steps at one time as leave room for so many ``blocks``, of those there are; ``spare`` come besides.

    A memory's latency is hidden by what is on its way, of all blocks of a multiprocessor together.
    """
    room = gpu.sm_shared_bytes // blocks - gpu.block_reserved_bytes
    fit = max(min(room, gpu.max_block_shared_bytes) // step_bytes - spare, 1)
    return min(fit, steps) if is_known(steps) else fit


def tile_of(gpu: Gpu, dtype: DType, unit: MatrixShape | None, extents: Extents) -> ThreadTile | WarpTile:
    """The tile for sums of a dtype, by matrix units where there is an instruction for the factors."""
    return tiles_of(gpu, dtype, unit, extents)[0]


def tiles_of(gpu: Gpu, dtype: DType, unit: MatrixShape | None, extents: Extents) -> list[ThreadTile | WarpTile]:
    """The tile of least estimated time for each kind of instruction, best first; instructions of a thread at last."""
    found: list[ThreadTile | WarpTile] = []
    if unit is not None:
        kinds = [list(group_tiles(gpu, unit.dtype)), list(warp_tiles(gpu, unit, extents))]
        sizes = assumed(gpu, [tile for tiles in kinds for tile in tiles], extents)
        by_us = partial(warp_tile_us, gpu, extents=sizes)
        found += sorted((min(tiles, key=by_us) for tiles in kinds if tiles), key=by_us)
    plain = list(thread_tiles(gpu, dtype.n_bytes))
    return [*found, min(plain, key=partial(thread_tile_us, gpu, extents=assumed(gpu, plain, extents)))]


def least_us(gpu: Gpu, dtype: DType, unit: MatrixShape | None, sizes: KnownExtents) -> float:
    """An estimate of the product's time in microseconds by the best tile there is."""
    tile = tile_of(gpu, dtype, unit, Extents(*sizes))
    return warp_tile_us(gpu, tile, sizes) if isinstance(tile, WarpTile) else thread_tile_us(gpu, tile, sizes)


def assumed(gpu: Gpu, tiles: Sequence[ThreadTile | WarpTile], extents: Extents) -> KnownExtents:
    """The extents, with numbers for those that are known at run time only, the same for every tile.

    There is a block of the largest tile for every multiprocessor, and a step for every scheduler. What is empty counts
    as one: it takes no time by any tile.
    """

    def number(extent: Dim, large: int) -> int:
        return max(extent, 1) if is_known(extent) else large

    rows, columns, depth = (max(sizes) for sizes in zip(*((t.rows, t.columns, t.depth) for t in tiles), strict=True))
    return KnownExtents(
        number(extents.batches, gpu.n_sms),
        number(extents.rows, gpu.n_sms * rows),
        number(extents.columns, gpu.n_sms * columns),
        number(extents.terms, gpu.sm_schedulers * depth),
        extents.repeats,
    )


def thread_tiles(gpu: Gpu, n_bytes: int) -> Iterator[ThreadTile]:
    """Tiles of one or two warps a scheduler, of which a thread's rows and columns are one access or two.

    A step's terms are an access of each thread for each factor.
    """
    lanes = max(gpu.access_bytes // n_bytes, 1)
    for warps in (gpu.sm_schedulers, 2 * gpu.sm_schedulers):
        rows = 1
        while (2 * rows) ** 2 <= warps * gpu.warp_lanes:
            rows *= 2
        for own_rows, own_columns in product((lanes, 2 * lanes), (lanes, 2 * lanes)):
            yield ThreadTile(4 * lanes, rows, warps * gpu.warp_lanes // rows, own_rows, own_columns, lanes, n_bytes)


def thread_tile_us(gpu: Gpu, tile: ThreadTile, extents: KnownExtents) -> float:
    """An estimate of the product's time in microseconds by tiles of this size.

    As for matrix units (:func:`warp_tile_us`), but multiply-adds and accesses of shared memory are instructions that
    take turns.
    """
    steps = -(-extents.terms // tile.depth)
    fmas = tile.own_rows * tile.own_columns
    loads = (tile.own_rows + tile.own_columns) // tile.lanes
    issued = tile.threads * (fmas + loads) / gpu.sm_fmas_per_cycle
    moved = (tile.rows + tile.columns) * tile.n_bytes / (gpu.memory_gb_per_s / gpu.ghz / gpu.n_sms)
    cycles = steps * tile.depth * max(issued, moved / gpu.sm_schedulers) + gpu.memory_ns * gpu.ghz
    return -(-prod(_blocks(tile, extents)) // gpu.n_sms) * cycles / gpu.ghz / 1e3


def warp_tiles(gpu: Gpu, unit: MatrixShape, extents: Extents) -> Iterator[WarpTile]:
    """Every tile whose sums take less than half of a thread's registers, for one or two warps a scheduler."""
    rows, columns, terms = unit.extents
    # A line of memory is what a row of the left factor brings at a time, unless there are fewer terms.
    depth = gpu.line_bytes // unit.dtype.n_bytes // 2
    if is_known(extents.terms):
        depth = min(depth, -(-extents.terms // terms) * terms)
    half = half_registers(gpu)
    for warps in (gpu.sm_schedulers, 2 * gpu.sm_schedulers):
        for row_warps in (w for w in (1, 2, 4, 8) if warps % w == 0):
            for own_rows in (rows, 2 * rows, 4 * rows):
                for own_columns in (2 * columns, 4 * columns, 8 * columns):
                    if own_rows * own_columns < half:
                        one = WarpTile(unit, depth, row_warps, warps // row_warps, own_rows, own_columns)
                        yield from _beside_others(gpu, one)


def _beside_others(gpu: Gpu, tile: WarpTile) -> Iterator[WarpTile]:
    """The tile alone on a multiprocessor, and with another beside it where registers and two steps allow that.

    A thread has as many registers again as its sums take.
    """
    registers = 2 * tile.own_rows * tile.own_columns // gpu.warp_lanes
    yield tile
    twice = replace(tile, beside=2)
    fits = gpu.blocks_per_sm(tile.warps * gpu.warp_lanes, registers, (2 + tile.spare) * tile.step_bytes)
    if fits >= twice.beside:
        yield twice


def half_registers(gpu: Gpu) -> int:
    """Half of what the registers of a warp's threads are at most, one of them being spoken for."""
    return (gpu.max_thread_registers + 1) // 2 * gpu.warp_lanes


def group_tiles(gpu: Gpu, dtype: DType) -> Iterator[WarpTile]:
    """Every tile of one or two times four warps whose sums take up to half of a thread's registers.

    Factors take none of them, as the instruction reads them in shared memory.
    """
    if not gpu.has_warpgroup_mma:
        return
    depth = PIECE_BYTES // dtype.n_bytes
    half = half_registers(gpu)
    # Powers of two, so that all threads copy whole rows or whole parts of one; wide ones first, which read less.
    for columns in (n for n in (4 * depth, 2 * depth, depth) if n <= MOST_GROUP_COLUMNS):
        shape = GroupShape(dtype, columns)
        for turns in (1, 2):
            own_rows = turns * shape.extents[0]
            if own_rows * columns <= half:
                for groups in (1, 2):
                    yield from _beside_others(gpu, WarpTile(shape, depth, groups * GROUP_WARPS, 1, own_rows, columns))


def warp_tile_us(gpu: Gpu, tile: WarpTile, extents: KnownExtents) -> float:
    """An estimate of the product's time in microseconds by tiles of this size.

    A step takes as long as the slowest of matrix units, shared memory, its share of the common cache, and its share of
    memory, of which blocks that run at one time read each row and column once; and no less than memory's latency
    allows for the steps that are on their way. What is made of the sums takes its own instructions. A multiprocessor
    is as busy as its blocks are one after the other; and each of them waits for memory before its first step, while
    nothing but a block ``beside`` it has work to do.
    """
    steps = -(-extents.terms // tile.depth)
    n_bytes = tile.shape.dtype.n_bytes
    rate = gpu.sm_bf16_fmas_per_cycle if tile.is_swizzled else gpu.sm_warp_bf16_fmas_per_cycle
    of_units = tile.rows * tile.columns * tile.depth / rate
    brought = (tile.rows + tile.columns) * tile.depth * n_bytes
    of_shared = (tile.read_elements * tile.depth * n_bytes + brought) / (gpu.shared_banks * gpu.bank_bytes)
    batches, rows, columns = _blocks(tile, extents)
    n_blocks = batches * rows * columns
    at_once = min(n_blocks, gpu.n_sms)
    of_cache = brought / min(gpu.l2_bytes_per_cycle / at_once, gpu.sm_bytes_per_cycle)
    blocks = (rows, columns)
    of_rows, of_columns = lines_at_once(gpu, tile, blocks, rows_together(gpu, tile, blocks))
    lines = of_rows / extents.repeats + of_columns
    lines *= min(batches, -(-at_once // (rows * columns)))
    of_memory = lines * tile.depth * n_bytes / (gpu.memory_gb_per_s / gpu.ghz)
    busy = max(of_units, of_shared, of_cache, of_memory)
    latency = gpu.memory_ns * gpu.ghz
    ahead = tile.stages(gpu, steps) - 1
    # Each pair of sums is converted, handed to another lane and stored.
    end = tile.rows * tile.columns * gpu.exchange_instructions / (gpu.sm_schedulers * gpu.warp_lanes)
    stored = tile.rows * tile.columns * n_bytes * at_once / (gpu.memory_gb_per_s / gpu.ghz)
    of_block = latency + steps * max(busy, latency / max(ahead, 1)) + max(end, stored)
    in_turn = -(-n_blocks // gpu.n_sms)
    overlapped = max(steps * busy + end, steps * of_memory + stored)
    cycles = max(in_turn * overlapped, -(-in_turn // tile.beside) * of_block)
    return cycles / gpu.ghz / 1e3


def _blocks(tile: WarpTile | ThreadTile, extents: KnownExtents) -> tuple[int, int, int]:
    """Batches, rows and columns of blocks."""
    return extents.batches, -(-extents.rows // tile.rows), -(-extents.columns // tile.columns)


def lines_at_once(gpu: Gpu, tile: WarpTile, blocks: tuple[int, int], together: int) -> tuple[int, int]:
    """Rows and columns of the factors that one block for each multiprocessor needs, of rows and columns of ``blocks``.

    Blocks are taken column by column, of ``together`` rows of blocks at a time.
    """
    n_rows, n_columns = blocks
    columns = min(-(-gpu.n_sms // together), n_columns)
    rows = min(together * -(-gpu.n_sms // (together * n_columns)), n_rows)
    return rows * tile.rows, columns * tile.columns


def rows_together(gpu: Gpu, tile: WarpTile, blocks: tuple[int, int]) -> int:
    """How many rows of blocks, which divide all of them, share the cache best; no more than run at one time."""
    n_rows, _ = blocks
    whole = (n for n in range(1, min(n_rows, gpu.n_sms) + 1) if n_rows % n == 0)
    return min(whole, key=lambda n: sum(lines_at_once(gpu, tile, blocks, n)))
