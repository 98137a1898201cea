"""The cost model: how many cycles a register tile takes over a whole box, and whether threads pay.

In: the operands of a reduction as linear offsets, extents, a ``Target``. Out: ``Tile``s; estimates.
Not its business: applying the tile (``choose.strategies``).

A tile of ``rows x rows2 x vectors`` accumulators costs, per step of the serial reduction loops, the largest of: FMAs by
port, loads by port, the latency of the accumulators' chains, issue slots; plus a little per load, more for a vector of
a panel that streams from the second-level cache. Loads are *distinct* values in the tile, counted from the affine
offsets, so windows that slide and operands that repeat need no special case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product as cartesian
from math import prod

from tilewright.core.dims import known
from tilewright.core.estimates import ASSUMED_SIZE, DOUBT, nearest_size
from tilewright.core.expr import Dim, Sym
from tilewright.target.target import MANY_COPIES, Target
from tilewright.tile.affine import coefficient

LOAD_COST = 0.05
"""Cycles that a load of one element adds to a step, beside the ports that it takes: it may miss the nearest cache."""
PANEL_LOAD_COST = 0.2
"""Cycles, the same of a vector of a panel, which streams from the second-level cache."""
EXTRA_SHAPE = 0.02
"""The part of a box's cycles that each further size of tile adds: other code is fetched, where few copies are many."""
EXTRA_WINDOW = 0.1
"""The same of a window, of which each size of tile has versions for the borders."""
MAX_UNROLLED = 32
"""Taps of a window that become copies in one body: with so many, the turns of a loop around them are little."""
WORK_PER_BYTE = 1.0
"""A byte that comes or goes takes a core as long as this many operations: what a product of few rows is bound by."""
MOVED = 2
"""Operations that take as long as an element's loads and its store."""
FUNCTION_OPERATIONS = 8
"""Operations that an elementary function becomes, or more. A value of more than that is computed once and kept, since
it takes longer than the way to the near cache and back."""
FAR = ASSUMED_SIZE**2
"""Elements that a step of unknown length counts as, that of a matrix of unknown sizes: what comes next lies in no line
or page that was read, and may fall into the same set."""


@dataclass(frozen=True)
class Operand:
    """One load of the reduction's body: its element offset, and its stride along the lanes (None: not affine)."""

    offset: Dim
    lane_stride: int | None
    is_constant: bool = False
    _steps: dict[Sym, int] = field(default_factory=dict, compare=False, repr=False)

    def step(self, sym: Sym) -> int:
        """How far one step of ``sym`` moves; an unknown distance counts as far."""
        found = self._steps.get(sym)
        if found is None:
            found = self._steps[sym] = known(coefficient(self.offset, sym), FAR)
        return found


@dataclass(frozen=True)
class Tile:
    """Accumulators: ``rows`` of the row loop, ``rows2`` of a second one, ``vectors`` of the lane loop."""

    rows: int = 1
    rows2: int = 1
    vectors: int = 1
    cycles: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Box:
    """What a register tile is chosen for; extents of None are known at run time only.

    ``row_divisor`` divides a number of rows that only a call knows. ``registers_per_element``: where an element is
    wider than a register, as doubles are for some scalar machines. ``registers_between``: what instructions between a
    product and its sum read, besides the operands.
    """

    lanes: Sym
    n_lanes: int | None
    row: Sym | None
    n_rows: int | None
    row2: Sym | None
    n_rows2: int | None
    unrolled: tuple[tuple[Sym, int], ...]
    operands: tuple[Operand, ...]
    registers_per_operand: int = 1
    registers_per_element: int = 1
    registers_between: int = 0
    row_divisor: int = 1


def choose_tile(box: Box, machine: Target, width: int) -> Tile:
    """The tile with the fewest modelled cycles over the box; ``width`` is the vector width in elements."""
    return alike_tiles(box, machine, width)[0]


def alike_tiles(box: Box, machine: Target, width: int, vectors: int | None = None) -> list[Tile]:
    """The tile of :func:`choose_tile`, and behind it those that the model can't tell from it.

    ``vectors``: only tiles of as many vectors, where there are any.
    """
    sizes = list(tiles_of(box, machine, width))
    sizes = [t for t in sizes if t[2] == vectors] or sizes
    found = [Tile(*t, _box_cycles(box, machine, width, *t)) for t in sizes] or [Tile()]
    best = min(found, key=lambda t: t.cycles)
    return [best, *(t for t in found if t is not best and t.cycles * (1 - DOUBT) <= best.cycles)]


def tiles_of(box: Box, machine: Target, width: int) -> Iterator[tuple[int, int, int]]:
    """Rows, second rows and vectors of the tiles whose sums fit the registers and whose rows fit the cache's sets."""
    registers = machine.n_vector_registers // box.registers_per_element
    max_vectors = 8 if box.n_lanes is None else min(8, -(-box.n_lanes // width))
    window = bool(box.unrolled)
    most_sums = machine.window_sums if window else registers
    most_sums = min(most_sums, machine.max_copies // prod(n for _, n in box.unrolled))
    most_held = registers if window else most_sums
    if window and (box.n_rows is None or box.n_rows >= machine.partial_sums):
        # A window shares nothing between vectors, and every one multiplies the border's versions; rows keep the units
        # busy.
        max_vectors = 1
    for vectors in range(1, max_vectors + 1):
        for rows2 in _counts(box.row2, box.n_rows2, 2 if window else 4):
            for rows in _counts(box.row, box.n_rows, registers):
                if not _fit_sets(box, machine, width, rows, rows2):
                    continue
                sums = rows * rows2 * vectors
                if window:  # what the tile's rows read of a tap that their neighbours read of the next, and a weight
                    beside = rows2 * min(rows, box.unrolled[-1][1]) * vectors + 1
                else:  # all vectors, also of fewer rows: sketches see too little of the traffic of wider tiles
                    beside = (vectors + 1 if rows * rows2 > 1 else 2) * box.registers_per_operand
                fits = sums <= most_sums and sums + beside + box.registers_between <= most_held
                if fits or sums == 1:
                    yield rows, rows2, vectors


def held(rows: int, vectors: int) -> int:
    """Registers of a tile: its sums, and what a step reads, all of the operand that has less and one of the other."""
    return rows * vectors + min(rows, vectors) + 1


def _fit_sets(box: Box, machine: Target, width: int, rows: int, rows2: int) -> bool:
    """Does no set of the first-level cache get more lines of an operand's rows than it has ways?

    Rows a multiple of ``set_span`` apart fall into one set, and would throw each other out at every step.
    """
    n_bytes, ways = machine.vector_bytes // width, machine.l1_bytes // machine.set_span
    if rows * rows2 <= ways:
        return True
    for op in box.operands:
        steps = [0 if s is None else op.step(s) for s in (box.row, box.row2)]
        if op.lane_stride == 0 and any(steps):
            places = {steps[0] * i + steps[1] * j for i in range(rows) for j in range(rows2)}
            lines = {place * n_bytes // machine.line_bytes for place in places}
            counts = Counter(line % (machine.set_span // machine.line_bytes) for line in lines)
            if max(counts.values()) > ways:
                return False
    return True


def _counts(sym: Sym | None, extent: int | None, limit: int) -> list[int]:
    """Tile sizes worth trying: those that balance the rows, 127 as nine 13s and a 10 rather than 9x14+1."""
    if sym is None:
        return [1]
    if extent is None:
        return list(range(1, limit + 1))
    if extent >= limit * limit:  # then each of them is ``extent`` split evenly, and counting takes long
        return list(range(1, limit + 1))
    return sorted({-(-extent // n) for n in range(1, extent + 1) if -(-extent // n) <= limit} | {1})


def _box_cycles(box: Box, machine: Target, width: int, rows: int, rows2: int, vectors: int) -> float:
    total = 0.0
    row_parts = _parts(box.n_rows, rows, box.row_divisor)
    row2_parts = _parts(box.n_rows2, rows2)
    if box.n_rows2 is None and rows2 > 1 and not box.unrolled:
        # Images of a batch: there may be one as well as many, and a tile has its first rows alone then.
        row2_parts = [(n, ASSUMED_SIZE / 2 / n) for n in (1, rows2)]
    n_vectors = None if box.n_lanes is None else -(-box.n_lanes // width)
    lane_parts = _parts(n_vectors, vectors)
    for (m, cm), (m2, cm2), (v, cv) in cartesian(row_parts, row2_parts, lane_parts):
        total += cm * cm2 * cv * step_cycles(box, machine, m, m2, v)
    # The rest of a run-time number of rows is done by tiles that all such nests have.
    shapes = (1 if box.n_rows is None else len(row_parts)) * len(row2_parts) * len(lane_parts)
    extra = (EXTRA_WINDOW if box.unrolled else EXTRA_SHAPE) * MANY_COPIES / machine.max_copies
    return total * (1 + extra * (shapes - 1))


def _parts(extent: int | None, size: int, divisor: int = 0) -> list[tuple[int, float]]:
    """(tile size, how many) covering the extent.

    Run-time extents count as ``ASSUMED_SIZE`` in full tiles, and half a tile behind them unless ``size`` divides their
    ``divisor``.
    """
    if extent is None:
        return [(size, ASSUMED_SIZE / size), *([(size // 2, 1.0)] if divisor % size else [])]
    parts = [(size, float(extent // size))] if extent >= size else []
    return parts + ([(extent % size, 1.0)] if extent % size else [])


def step_cycles(box: Box, machine: Target, rows: int, rows2: int, vectors: int) -> float:
    """Cycles of one step of a tile's reduction."""
    copies = 1
    for _, n in box.unrolled:
        copies *= n
    fmas = rows * rows2 * vectors * copies
    each = [(distinct(box, op, rows, rows2) * _vectors_of(op, vectors), op.lane_stride != 0) for op in box.operands]
    loads = sum(n for n, _ in each)
    latency = machine.fma_latency * copies
    busy = max(fmas / machine.fma_ports, loads / machine.load_ports, latency, (fmas + loads) / machine.issue_width)
    return busy + sum(n * (PANEL_LOAD_COST if is_panel else LOAD_COST) for n, is_panel in each)


def _vectors_of(op: Operand, vectors: int) -> int:
    return vectors if op.lane_stride != 0 else 1


def distinct(box: Box, op: Operand, rows: int, rows2: int) -> int:
    """How many elements of an operand a tile reads in one step: neighbours share them."""
    walks = [(op.step(s), n) for s, n in box.unrolled]
    walks += [(op.step(s), n) for s, n in ((box.row, rows), (box.row2, rows2)) if s is not None]
    return distinct_places(walks)


def distinct_places(walks: Sequence[tuple[int, int]]) -> int:
    """How many places there are at sums of multiples: of each (step, count), up to count - 1 times the step."""
    places = {0}
    for step, n in walks:
        if step:
            places = {p + step * k for p in places for k in range(n)}
    return len(places)


def pays_threads(operations: float, machine: Target, width: int) -> bool:
    """Is the work, in element operations, long enough to wake other threads?"""
    cycles = operations / (width * machine.fma_ports)
    return machine.n_cores > 1 and cycles / (machine.ghz * 1000) > machine.wake_us


def estimate(extents: Sequence[Dim]) -> float:
    """The number of points of a nest; a run-time extent counts as the number nearest to ``ASSUMED_SIZE`` within its
    bounds, and as 1 at least."""
    total = 1.0
    for e in extents:
        total *= known(e, max(nearest_size(e, ASSUMED_SIZE), 1))
    return total


def balanced(n: int, most: int) -> int:
    """The size of the fewest tiles of ``n`` that hold ``most`` at the most, all about as large: 7 for 13 and 12."""
    return -(-n // -(-n // most))
