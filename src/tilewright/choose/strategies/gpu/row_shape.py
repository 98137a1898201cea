"""How many warps a row gets on a GPU, and where what lies between its passes is held: the cheapest by an estimate.

In: a ``Gpu``, what the rows' passes do. Out: a :class:`RowShape`. Not its business: the steps that make it (``rows``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.target.gpu import Gpu

OTHER_REGISTERS = 32
"""What a thread needs beside the elements that it holds: addresses, partial results, numbers of loops."""


@dataclass(frozen=True)
class RowWork:
    """What is done of each of ``n_rows``.

    ``elements`` is the longest pass, ``n_bytes`` what the memory moves of one of its elements, ``lanes`` how many of
    them are one access, ``operations`` what an element costs in all passes. ``held`` registers for each element are
    alive at one time between passes, or ``held_bytes`` of shared memory; there are ``reductions``.
    """

    n_rows: Dim
    elements: Dim
    n_bytes: int
    lanes: int
    operations: int
    held: int
    held_bytes: int
    reductions: int


@dataclass(frozen=True)
class RowShape:
    """``warps`` of a block for a row, or a warp for each of ``rows``; each lane takes ``lanes`` elements at a time.

    A lane ``holds`` all its elements in registers, or goes through the row in a loop.
    """

    warps: int
    rows: int
    lanes: int
    holds: bool

    @property
    def block_warps(self) -> int:
        """Warps of the block."""
        return self.warps * self.rows


def best_shape(gpu: Gpu, work: RowWork, *, in_registers: bool) -> RowShape | None:
    """The shape of least estimated time, of least instructions among equals; None where no block has the room."""
    priced = [(price, s) for s in _shapes(gpu, work, in_registers=in_registers) if (price := price_of(gpu, work, s))]
    return min(priced, key=lambda x: x[0])[1] if priced else None


def _shapes(gpu: Gpu, work: RowWork, *, in_registers: bool) -> Iterator[RowShape]:
    holds = in_registers and work.held > 0
    lanes = work.lanes
    rows = min(gpu.sm_schedulers, work.n_rows) if is_known(work.n_rows) else gpu.sm_schedulers
    while lanes:  # fewer elements at a time keep more lanes of a single warp busy
        yield RowShape(1, max(rows, 1), lanes, holds)
        lanes //= 2
    warps = 2
    while warps * gpu.warp_lanes <= gpu.max_block_threads:
        yield RowShape(warps, 1, work.lanes, holds)
        warps *= 2


def price_of(gpu: Gpu, work: RowWork, shape: RowShape) -> tuple[float, float] | None:
    """Estimates in microseconds: of the time of all rows, and of their instructions; None where a block has no room.

    Rows take what the slowest of memory, instructions and latency takes. A multiprocessor has so many blocks at one
    time, each of which waits for the memory and for every reduction. A size that is known at
    run time only counts as large enough for every multiprocessor; of no rows one counts.
    """
    a_step = shape.warps * gpu.warp_lanes * shape.lanes
    elements = work.elements if is_known(work.elements) else gpu.sm_threads * work.lanes
    steps = -(-elements // a_step)
    held = steps * work.held if shape.holds else gpu.thread_accesses
    registers = OTHER_REGISTERS + held * shape.lanes
    shared = 0 if shape.holds else shape.rows * elements * work.held_bytes
    fits = registers <= gpu.max_thread_registers
    resident = gpu.blocks_per_sm(shape.block_warps * gpu.warp_lanes, registers, shared) if fits else 0
    if not resident:
        return None
    blocks = max(-(-work.n_rows // shape.rows), 1) if is_known(work.n_rows) else gpu.n_sms * resident
    at_once = max(min(resident, -(-blocks // gpu.n_sms)), 1)
    busy = min(blocks, gpu.n_sms)  # multiprocessors that have a block at all
    exchanges = gpu.warp_lanes.bit_length() - 1
    per_reduction = exchanges * gpu.exchange_instructions + (shape.warps if shape.warps > 1 else 0)
    per_warp = steps * (shape.lanes * work.operations + 1) + work.reductions * per_reduction
    issue_ns = per_warp * shape.block_warps / gpu.sm_schedulers / gpu.ghz
    moved_ns = shape.rows * elements * work.n_bytes / (gpu.memory_gb_per_s / gpu.n_sms)
    # An exchange's instructions wait for each other, and so do the turns of a loop.
    turns = 1 if shape.holds else -(-steps // gpu.thread_accesses)
    waits_ns = turns * gpu.memory_ns + work.reductions * per_reduction * gpu.instruction_cycles / gpu.ghz
    alone_ns = waits_ns + per_warp * gpu.instruction_cycles / gpu.ghz
    of_sm = blocks / busy
    parts = (of_sm * issue_ns, of_sm * moved_ns, max(of_sm / at_once, 1) * alone_ns)
    # Of blocks that take turns one does what the others don't; a single one does everything after each other.
    total_ns = max(parts) + (sum(parts) - max(parts)) / at_once
    return total_ns / 1e3, parts[0] / 1e3
