"""Tiles of rows and keys that a block makes averages of, by instructions of one warp or of four.

In: a ``Gpu``, what is averaged. Out: tiles, best first. Not its business: the steps that make a grid (``averages``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import ClassVar, TypeVar

from tilewright.core import types
from tilewright.core.compute import loads
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.indices import symbols_in
from tilewright.target.gpu import ADDRESS_BYTES, REGISTER_BYTES, Gpu
from tilewright.target.matrices import GROUP_WARPS, LEFT, ROW, SUMS, WARP
from tilewright.tile.schedule.weighted import Weighted

TURNS = (1, 2)
KEYS = (32, 64)
STAGES = 2
"""One step's keys and values are read while the next one's are on their way."""
GROUPS = (1, 2, 3)
GROUP_KEYS = (64, 128)
ALONE = 1.4
"""How much longer weights take where a multiprocessor has one block, whose warps wait for each other."""

T = TypeVar("T")


@dataclass(frozen=True)
class KeyTile:
    """A warp's rows, ``turns`` instructions of them; keys of a step; warps of a block; steps in shared memory."""

    turns: int
    keys: int
    warps: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP


@dataclass(frozen=True)
class GroupTile:
    """Keys of a step; groups of four warps in a block, of 16 rows each warp; steps in shared memory."""

    keys: int
    groups: int
    parts: int
    turns: ClassVar[int] = 1

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.groups * GROUP_WARPS * SUMS.rows

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.groups * GROUP_WARPS * WARP


def tiles_for(gpu: Gpu, w: Weighted) -> list[KeyTile | GroupTile]:
    """Tiles to try, best first: those by instructions of four warps, which multiply twice as fast as those of one."""
    groups = sorted(group_tiles(gpu, w), key=partial(group_tile_us, gpu, w)) if gpu.has_warpgroup_mma else []
    return [*groups, *key_tiles(gpu, w)]


def key_tiles(gpu: Gpu, w: Weighted) -> list[KeyTile]:
    """The tiles whose elements a thread's registers hold; first those with most rows for each key that is read.

    Each warp reads all keys and values of a step from shared memory, once for all of its rows: so rows count first.
    """

    def of_keys(*keys: int) -> list[KeyTile]:
        tiles = [KeyTile(turns, n, gpu.sm_schedulers, STAGES) for turns in TURNS for n in keys]
        return [t for t in tiles if registers_of(gpu, w, t) < gpu.max_thread_registers]

    return sorted(_first_held(of_keys, KEYS), key=lambda t: (-t.turns, -t.keys))


def group_tiles(gpu: Gpu, w: Weighted) -> list[GroupTile]:
    """The tiles whose elements a thread's registers hold, and whose steps a block's shared memory does."""

    def of_keys(*keys: int) -> list[GroupTile]:
        tiles = [GroupTile(n, groups, STAGES) for groups, n in product(GROUPS, keys)]
        return [t for t in tiles if _fits(gpu, w, t)]

    return _first_held(of_keys, GROUP_KEYS)


def _first_held(of_keys: Callable[..., list[T]], keys: Sequence[int]) -> list[T]:
    """The tiles of so many keys that there are registers for, else of half as many, down to an instruction's terms.

    Weights are the left operand of the second product, whose terms are the keys.
    """
    tiles, least = of_keys(*keys), min(keys)
    while not tiles and least > LEFT.columns:
        least //= 2
        tiles = of_keys(least)
    return tiles


def _fits(gpu: Gpu, w: Weighted, tile: GroupTile) -> bool:
    registers = min(gpu.sm_registers // tile.threads, gpu.max_thread_registers)
    return registers_of(gpu, w, tile) < registers and _shared_bytes(w, tile) <= gpu.max_block_shared_bytes


def group_tile_us(gpu: Gpu, w: Weighted, tile: GroupTile) -> float:
    """An estimate of the time in microseconds by tiles of this size.

    In a turn, products and weights follow each other, and a share of the common cache is read. Several blocks of a
    multiprocessor fill each other's gaps. Blocks are taken in rounds, of which the last may be short.
    """
    scores = tile.rows * tile.keys
    of_units = scores * (_known(w.term.extent) + _known(w.column.extent)) / gpu.sm_bf16_fmas_per_cycle
    of_weights = scores / gpu.sm_exponentials_per_cycle
    of_cache = _step_bytes(w, tile) / min(gpu.l2_bytes_per_cycle / gpu.n_sms, gpu.sm_bytes_per_cycle)
    alone = of_units + ALONE * of_weights
    fit = max(gpu.blocks_per_sm(tile.threads, registers_of(gpu, w, tile), _shared_bytes(w, tile)), 1)
    batches = prod(_known(x.extent, gpu.n_sms) for x in w.batches)
    n_blocks = batches * -(-_known(w.row.extent, gpu.n_sms * tile.rows) // tile.rows)
    turns = -(-_known(w.key.extent, gpu.n_sms * tile.keys) // tile.keys)
    full, last = divmod(n_blocks, gpu.n_sms * fit)
    rounds = [*([(full, fit)] if full else []), *([(1, -(-last // gpu.n_sms))] if last else [])]
    cycles = sum(n * max(alone, at_once * max(of_units + of_weights, of_cache)) for n, at_once in rounds)
    return (turns * cycles + len(rounds) * 2 * gpu.memory_ns * gpu.ghz) / gpu.ghz / 1e3


def registers_of(gpu: Gpu, w: Weighted, tile: KeyTile | GroupTile) -> int:
    """What a thread has: scores and averages, words of weights, and a quarter of all for operands and addresses.

    What a mask has for the scores comes on top, and where the last step is no whole one, a guard for each read: then
    elements of the mask come one by one, by an address for each row, and every copy has an address of its own.
    """
    rows = tile.turns * SUMS.rows
    n_bytes = w.dtype.n_bytes * tile.keys + types.f32.n_bytes * (tile.keys + _known(w.column.extent))
    held = -(-4 * rows * n_bytes // (3 * WARP * REGISTER_BYTES))
    masks = [x.dtype.n_bytes for x in loads(w.score) if w.key.sym in symbols_in(x.index) and x.buffer != w.sums.buffer]
    scores = rows * tile.keys // WARP
    if is_known(w.key.extent) and w.key.extent % tile.keys == 0:
        return held + sum(-(-scores * n // REGISTER_BYTES) for n in masks)
    address = ADDRESS_BYTES // REGISTER_BYTES
    copies = -(-_step_bytes(w, tile) // (gpu.access_bytes * tile.threads))
    of_lane = rows // ROW.base
    return held + copies * address + len(masks) * (scores + of_lane * address)


def _step_bytes(w: Weighted, tile: KeyTile | GroupTile) -> int:
    return tile.keys * (_known(w.term.extent) + _known(w.column.extent)) * w.dtype.n_bytes


def _shared_bytes(w: Weighted, tile: GroupTile) -> int:
    return tile.parts * _step_bytes(w, tile) + tile.rows * _known(w.term.extent) * w.dtype.n_bytes


def _known(n: Dim, otherwise: int = 0) -> int:
    return n if is_known(n) else otherwise
