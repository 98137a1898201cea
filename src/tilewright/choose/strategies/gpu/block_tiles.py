"""Tiles of a product that a GPU's block computes, by threads or by warps with matrix units.

In: a ``Gpu``, dtypes, how many rows, columns and terms a product has. Out: a tile.
Not its business: which sums are products (``matrices``), the steps that make a grid (``products``, ``matrix_units``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.types import DType
from tilewright.target.gpu import Gpu
from tilewright.target.matrices import MatrixShape

MOST_STAGES = 4
"""Steps at one time, beyond which copies wait for memory's bandwidth and no longer for its latency."""


@dataclass(frozen=True)
class Extents:
    """How many batches, rows, columns and terms a product has."""

    batches: Dim
    rows: Dim
    columns: Dim
    terms: Dim


@dataclass(frozen=True)
class ThreadTile:
    """What a block of ``threads`` by ``threads`` computes, ``depth`` terms of the sum at a time.

    Each thread has ``own`` rows and columns of the tile.
    """

    depth: int
    threads: int
    own: int

    @property
    def rows(self) -> int:
        """Rows of the block."""
        return self.threads * self.own

    @property
    def columns(self) -> int:
        """Columns of the block."""
        return self.rows


@dataclass(frozen=True)
class WarpTile:
    """What a block of ``row_warps`` by ``column_warps`` computes by matrix instructions of a shape.

    Each warp has ``own_rows`` and ``own_columns`` of the tile.
    """

    shape: MatrixShape
    depth: int
    row_warps: int
    column_warps: int
    own_rows: int
    own_columns: int

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
        return self.shape.left.columns // 2

    @property
    def step_bytes(self) -> int:
        """Shared memory of one step's factors, whichever way they lie."""
        rows = self.rows * (self.depth + self.pad) + self.columns * (self.depth + self.pad)
        turned = self.depth * (self.rows + self.pad) + self.depth * (self.columns + self.pad)
        return max(rows, turned) * self.shape.dtype.n_bytes

    def stages(self, gpu: Gpu, steps: Dim) -> int:
        """How many steps lie in shared memory at one time: as many as leave room for another block, of those there are.

        A memory's latency is hidden by what is on its way, of all blocks of a multiprocessor together.
        """
        room = gpu.sm_shared_bytes // 2 - gpu.block_reserved_bytes
        fit = min(room // self.step_bytes, MOST_STAGES)
        return min(fit, steps) if is_known(steps) else fit


def tile_of(gpu: Gpu, dtype: DType, unit: MatrixShape | None, extents: Extents) -> ThreadTile | WarpTile:
    """The tile for sums of a dtype, by matrix units where there is an instruction for the factors."""
    if unit is not None:
        return min(warp_tiles(gpu, unit, extents), key=lambda tile: warp_tile_us(gpu, tile, extents))
    return thread_tile(gpu, dtype.n_bytes)


def thread_tile(gpu: Gpu, n_bytes: int) -> ThreadTile:
    """A thread's rows and columns are one access each, and a step's terms are one access of each thread.

    Two warps for each scheduler hide each other's accesses of shared memory.
    """
    own = max(gpu.access_bytes // n_bytes, 1)
    threads = 1
    while (2 * threads) ** 2 <= 2 * gpu.warp_lanes * gpu.sm_schedulers:
        threads *= 2
    return ThreadTile(threads, threads, own)


def warp_tiles(gpu: Gpu, unit: MatrixShape, extents: Extents) -> Iterator[WarpTile]:
    """Every tile whose sums leave half of a thread's registers to the rest, for one or two warps a scheduler."""
    rows, columns, terms = unit.extents
    # A line of memory is what a row of the left factor brings at a time, unless there are fewer terms.
    depth = gpu.line_bytes // unit.dtype.n_bytes // 2
    if is_known(extents.terms):
        depth = min(depth, -(-extents.terms // terms) * terms)
    most = gpu.max_thread_registers // 2 * gpu.warp_lanes
    for warps in (gpu.sm_schedulers, 2 * gpu.sm_schedulers):
        for row_warps in (w for w in (1, 2, 4, 8) if warps % w == 0):
            for own_rows in (rows, 2 * rows, 4 * rows):
                for own_columns in (2 * columns, 4 * columns, 8 * columns):
                    if own_rows * own_columns <= most:
                        yield WarpTile(unit, depth, row_warps, warps // row_warps, own_rows, own_columns)


def warp_tile_us(gpu: Gpu, tile: WarpTile, extents: Extents) -> float:
    """An estimate of the product's time in microseconds by tiles of this size.

    A block takes as long as the slowest of its matrix units, its shared memory and its share of the memory's bandwidth;
    multiprocessors take blocks in rounds, of which the last may be short. A size that is known at run time only counts
    as large enough for every multiprocessor.
    """
    terms = extents.terms if is_known(extents.terms) else tile.depth * gpu.sm_schedulers
    steps = -(-terms // tile.depth)
    n_bytes = tile.shape.dtype.n_bytes
    of_units = tile.rows * tile.columns * tile.depth / gpu.sm_bf16_fmas_per_cycle
    read = tile.warps * (tile.own_rows + tile.own_columns) * tile.depth * n_bytes
    brought = (tile.rows + tile.columns) * tile.depth * n_bytes
    of_shared = (read + brought) / (gpu.shared_banks * gpu.bank_bytes)
    of_memory = brought / (gpu.memory_gb_per_s / gpu.ghz / gpu.n_sms)
    cycles = steps * max(of_units, of_shared, of_memory) + tile.rows * tile.columns / gpu.sm_fmas_per_cycle
    rounds = -(-_n_blocks(tile, extents, gpu) // gpu.n_sms)
    return rounds * cycles / gpu.ghz / 1e3


def _n_blocks(tile: WarpTile, extents: Extents, gpu: Gpu) -> int:
    n = 1
    for extent, size in ((extents.batches, 1), (extents.rows, tile.rows), (extents.columns, tile.columns)):
        n *= -(-extent // size) if is_known(extent) else gpu.n_sms
    return n
