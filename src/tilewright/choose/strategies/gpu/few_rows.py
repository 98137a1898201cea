"""Products of few rows, as of a step of decoding: the warps of a block share out the terms.

In: a computation, a GPU. Out: an equal one in which each such product is four stages, and their names.
Not its business: the steps that make a grid of them (``few_rows_grid``); products of more rows (``matrices``).

Such a product takes as long as its right factor takes to come from memory, so it wants as much of that on its way as
there can be, for every multiprocessor. Rows are those of one matrix instruction at most, by which those of f16 and bf16
are multiplied; of f32 a lane has a column. Before::

    Y[m, n] = sum over k of A[m, k] * B[k, n]

After, for P parts, whose steps of D terms take turns, ``k = (s*P + c)*D + j``::

    A[c, m, s, j], B[c, s, j, n]                                what there is of both, else 0
    T[c, m, n] = sum over s, j of A[c, m, s, j] * B[c, s, j, n]       a warp for each part, and for columns beside
    Y[m, n]    = T[0, m, n] + T[1, m, n] + ..                   with what the one plain stage makes of it that reads it

The order of a float sum changes, by a fixed rule. Not when: a size is known at run time only; a vector's result has no
dimension of one element, in which its row is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod

from tilewright.choose.strategies.gpu.matrices import (
    AxisGroup,
    Factors,
    any_factors_of,
    by_memory,
    digits_of,
    epilogue_of,
    factor_stage,
    group_of,
    lies_along,
    rest_of,
    root_of,
    sums_stage,
    unwidened,
)
from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Cast,
    Computation,
    Const,
    Load,
    Stage,
    Value,
    loads,
    loop_symbol,
    stages_alone,
    syms,
)
from tilewright.core.dims import numbers
from tilewright.core.expr import Dim, Sym
from tilewright.target.gpu import Gpu
from tilewright.target.matrices import CHUNK_BYTES, LEFT, SUMS, WARP, MatrixShape

MOST_STAGES = 4
"""Steps at one time, beyond which copies wait for memory's bandwidth and no longer for its latency."""


@dataclass(frozen=True)
class StripTile:
    """What a block computes: ``rows`` and ``column_warps`` times ``own_columns``, by so many ``parts`` of the terms.

    Each part has ``depth`` terms of a step, elements of ``n_bytes``, of which ``stages`` are in shared memory at one
    time. Instructions of a ``shape`` multiply them, or those of a lane for each column.
    """

    shape: MatrixShape | None
    n_bytes: int
    rows: int
    parts: int
    depth: int
    column_warps: int
    own_columns: int
    stages: int
    lanes: int = WARP

    @property
    def columns(self) -> int:
        """Columns of the block."""
        return self.column_warps * self.own_columns

    @property
    def warps(self) -> int:
        """Warps of the block, whose lanes have columns of several parts where those are few."""
        return self.parts * self.column_warps if self.shape is not None else self.parts * self.columns // self.lanes

    @property
    def pad(self) -> int:
        """Elements behind each row in shared memory: rows that are read at one time then begin in other banks."""
        return CHUNK_BYTES // self.n_bytes

    @property
    def step_bytes(self) -> int:
        """Shared memory of one step's factors, whichever way they lie."""
        row = max(self.columns * (self.depth + self.pad), self.depth * (self.columns + self.pad))
        return self.parts * (self.rows * (self.depth + self.pad) + row) * self.n_bytes

    @property
    def sums_bytes(self) -> int:
        """Shared memory of the parts' sums."""
        return self.parts * self.rows * self.columns * types.f32.n_bytes


@dataclass(frozen=True)
class FewRows:
    """The names of one product's stages: factors, sums of parts, what is made of those; and the buffer it is ``of``."""

    of: str
    left: str
    right: str
    sums: str
    root: str
    tile: StripTile

    @property
    def stages(self) -> tuple[str, ...]:
        """All of them."""
        return self.left, self.right, self.sums, self.root


def with_few_rows(
    computation: Computation, gpu: Gpu, taken: Container[str], is_refused: Callable[[str], bool]
) -> tuple[Computation, list[FewRows]]:
    """The computation with such products spelled so, but for stages ``taken`` and those of which it ``is_refused``."""
    stages = stages_alone(computation)
    if stages is None:
        return computation, []
    made, temps, found = list[Stage](), list(computation.temps), list[FewRows]()
    moved = set[int]()
    for s in stages:
        if id(s) in moved:
            continue
        factors = any_factors_of(s) if s.out.name not in taken and not is_refused(s.out.name) else None
        tile = _tile(s, factors, gpu) if factors is not None else None
        if factors is None or tile is None:
            made.append(s)
            continue
        epilogue = epilogue_of(s, stages, computation)
        if not factors.rows and _place_of_row(epilogue or s) < 0:
            made.append(s)
            continue
        if epilogue is not None:
            moved.add(id(epilogue))
            temps.remove(s.out)
        spelled = _Spelling(s, factors, tile, gpu)
        own = (spelled.left, spelled.right, spelled.sums)
        made += [*own, spelled.root(epilogue)]
        temps += [x.out for x in own]
        names = [x.out.name for x in made[-4:]]
        found.append(FewRows(s.out.name, names[0], names[1], names[2], names[3], tile))
    return replace(computation, items=tuple(made), temps=tuple(temps)), found


# --- which tile -----------------------------------------------------------------------------------------------------


def _tile(s: Stage, factors: Factors, gpu: Gpu) -> StripTile | None:
    """The tile of least estimated time; None where there is no such product."""
    unit = factors.unit(gpu)
    if unit is not None and not unit.has_pairs:  # sums of parts are added up as pairs
        return None
    groups = (factors.batches, factors.rows, factors.columns, factors.terms)
    extents = [numbers([a.extent for a in axes]) for axes in groups]
    if any(len(n) < len(axes) or 0 in n for n, axes in zip(extents, groups, strict=True)):
        return None
    batches, rows, columns, terms = map(prod, extents)
    if rows > SUMS.rows or columns < SUMS.columns or terms < LEFT.columns or s.out.dtype is not types.f32:
        return None
    if unit is None and not all(
        v.dtype is types.f32 and _lies_somehow(v, factors) for v in (factors.left, factors.right)
    ):
        return None
    tiles = _unit_tiles(gpu, unit) if unit is not None else _lane_tiles(gpu, rows)
    return min(tiles, key=partial(strip_us, gpu, work=_work(factors.right, batches, columns, terms)), default=None)


@dataclass(frozen=True)
class StripWork:
    """How large a product is; ``n_bytes`` of memory are an element of its right factor.

    It ``is_copied`` as it is, which runs ahead by itself; what is computed on the way waits for each step's elements.
    """

    batches: int
    columns: int
    terms: int
    n_bytes: int
    is_copied: bool


def _work(right: Value, batches: int, columns: int, terms: int) -> StripWork:
    """The work of a product with that right factor."""
    is_copied = isinstance(right, Load) or (isinstance(right, Cast) and isinstance(right.a, Load))
    return StripWork(batches, columns, terms, sum(x.dtype.n_bytes for x in loads(right)), is_copied)


def _lies_somehow(value: Value, factors: Factors) -> bool:
    """Are elements of a factor read as they lie, neighbours of a row, of a column or of terms?"""
    return isinstance(value, Load) and any(
        lies_along(value, axes) for axes in (factors.rows, factors.columns, factors.terms) if axes
    )


def _unit_tiles(gpu: Gpu, unit: MatrixShape) -> Iterator[StripTile]:
    """Every tile of several parts, whose steps there is room for; a warp has columns of a sector to a line."""
    n_bytes = unit.dtype.n_bytes
    for parts, column_warps, depth, stages in _shapes(gpu, n_bytes):
        for columns in _doublings(gpu.sector_bytes // n_bytes, gpu.line_bytes // n_bytes):
            tile = StripTile(unit, n_bytes, SUMS.rows, parts, depth, column_warps, columns, stages)
            if _resident(gpu, tile):
                yield tile


def _lane_tiles(gpu: Gpu, rows: int) -> Iterator[StripTile]:
    """The same by a lane for each column, which has all its rows in registers.

    The left factor, which every block brings again, is at most half of the right one: addresses of more copies than
    those would take the registers that its rows have.
    """
    n_bytes = types.f32.n_bytes
    line = gpu.line_bytes // n_bytes
    stages = range(MOST_STAGES, 1, -1)
    widths, of_schedulers = _doublings(gpu.sector_bytes // n_bytes, line), _doublings(1, gpu.instruction_cycles)
    for columns, of_scheduler, depth, count in product(widths, of_schedulers, (line // 2, line), stages):
        parts = of_scheduler * gpu.sm_schedulers * gpu.warp_lanes // columns
        if not parts:  # a multiprocessor of few lanes
            continue
        tile = StripTile(None, n_bytes, rows, parts, depth, 1, columns, count, gpu.warp_lanes)
        if 2 * rows <= columns and _resident(gpu, tile):
            yield tile


def _shapes(gpu: Gpu, n_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Parts, warps of columns, terms of a step, and steps at one time.

    A scheduler has as many warps as hide how long an instruction waits for the last one's result, or fewer.
    """
    line = gpu.line_bytes // n_bytes
    most_warps = gpu.instruction_cycles * gpu.sm_schedulers
    counts = _doublings(1, most_warps)
    for parts, column_warps, depth in product(counts[1:], counts, (line // 2, line)):
        warps = parts * column_warps
        if warps % gpu.sm_schedulers == 0 and warps <= most_warps:
            yield from ((parts, column_warps, depth, stages) for stages in range(MOST_STAGES, 1, -1))


def _doublings(least: int, most: int) -> list[int]:
    """The number, and its doubles up to another one."""
    return [least << n for n in range((most // least).bit_length())]


def _resident(gpu: Gpu, tile: StripTile) -> int:
    """How many blocks a multiprocessor has at one time."""
    shared = tile.stages * tile.step_bytes + tile.sums_bytes
    return gpu.blocks_per_sm(tile.warps * gpu.warp_lanes, gpu.max_thread_registers // 2, shared)


def strip_us(gpu: Gpu, tile: StripTile, work: StripWork) -> float:
    """An estimate of the product's time in microseconds.

    A block waits for memory once, and for what it has on its way as often as steps go by. Multiprocessors take blocks
    in rounds; all of them share memory, which gives each its part of the right factor once.
    """
    n_bytes = tile.n_bytes
    blocks = work.batches * -(-work.columns // tile.columns)
    steps = -(-work.terms // (tile.parts * tile.depth))
    of_sm = -(-blocks // gpu.n_sms)
    at_once = min(_resident(gpu, tile), of_sm)
    brought = tile.parts * tile.depth * (tile.rows + tile.columns) * n_bytes
    waiting = at_once * (min(tile.stages - 1, steps) if work.is_copied else 1) * brought
    # What a byte takes: of what may be on its way, of what the cache gives one multiprocessor, and of all of them.
    byte_ns = max(gpu.memory_ns / waiting, 1 / (gpu.sm_bytes_per_cycle * gpu.ghz))
    rounds_ns = of_sm * steps * brought * byte_ns
    cache_ns = blocks * steps * brought * max(byte_ns / min(blocks, gpu.n_sms), 1 / (gpu.l2_bytes_per_cycle * gpu.ghz))
    memory_ns = work.batches * work.columns * work.terms * work.n_bytes / gpu.memory_gb_per_s
    busy, waits = _cycles(gpu, tile, steps)
    units_ns, alone_ns = of_sm * busy / gpu.ghz, waits / gpu.ghz
    # The sums go to shared memory and back.
    sums_ns = 2 * of_sm * tile.sums_bytes / (gpu.shared_banks * gpu.bank_bytes) / gpu.ghz
    # Of blocks that take turns one does what the others don't; a single one does everything after each other.
    beside = (cache_ns, rounds_ns, memory_ns, units_ns)
    longest = max(beside)
    return (gpu.memory_ns + longest + (sum(beside) - longest) / (2 * at_once) + sums_ns + alone_ns) / 1e3


def _cycles(gpu: Gpu, tile: StripTile, steps: int) -> tuple[float, float]:
    """What a block's instructions take of a multiprocessor, and how long those of a warp wait for each other."""
    terms = tile.parts * tile.depth * steps
    if tile.shape is not None:
        _, columns, depth = tile.shape.extents
        per_step = tile.depth // depth * (2 + tile.own_columns // columns)
        fmas = tile.rows * tile.columns * terms
        return fmas / gpu.sm_warp_bf16_fmas_per_cycle, steps * per_step * gpu.instruction_cycles
    # A lane reads its element and, by whole accesses, those of all rows, which all lanes have in common.
    reads = 1 + tile.rows * tile.n_bytes / gpu.access_bytes
    busy = tile.columns * terms * (tile.rows / gpu.sm_fmas_per_cycle + reads / gpu.shared_banks)
    return busy, steps * tile.depth * gpu.instruction_cycles


# --- the stages -----------------------------------------------------------------------------------------------------


class _Spelling:
    """The stages of one product."""

    def __init__(self, s: Stage, factors: Factors, tile: StripTile, gpu: Gpu) -> None:
        self.s, self.tile = s, tile
        self.batches, self.has_rows = factors.batches, bool(factors.rows)
        self.run = gpu.access_bytes // tile.n_bytes
        self.m = group_of("m", factors.rows or (Axis(loop_symbol("row", 1), 1),), tile.rows, 1)
        self.n = group_of("n", factors.columns, tile.columns, self.run)
        self.part = Axis(loop_symbol("part", tile.parts), tile.parts)
        self.k = self._terms(factors.terms)
        # Matrix units widen narrow factors themselves.
        left, right = (x if tile.shape is None else unwidened(x) for x in (factors.left, factors.right))
        outer = (*self.batches, self.part)
        self.left = factor_stage(s.out, "a", left, outer, by_memory(left, self.m, self.k))
        self.right = factor_stage(s.out, "b", right, outer, by_memory(right, self.n, self.k))
        both, zero = (self.left, self.right), (Const(0, types.f32),)
        self.sums = sums_stage(s.out, outer, (self.m, self.n, self.k), both, zero)

    def _terms(self, axes: Sequence[Axis]) -> AxisGroup:
        """Terms as steps of one part's neighbours."""
        parts, depth = self.tile.parts, self.tile.depth
        n = prod(numbers([a.extent for a in axes]))
        steps = -(-n // (parts * depth))
        step, term = Axis(loop_symbol("s_", steps), steps), Axis(loop_symbol("j_", depth), depth)
        at = (step.sym * parts + self.part.sym) * depth + term.sym
        guard = () if steps * parts * depth == n else (rest_of(at, n, self.run),)
        return AxisGroup(axes, step, (step, term), guard, digits_of(at, axes))

    def _total(self) -> Value:
        """The parts' sums, in pairs, with what the sum starts from."""
        assert self.s.reduction is not None
        at = (self.m.whole.sym, self.n.whole.sym)
        values: list[Value] = [Load(self.sums.out, (*syms(self.batches), c, *at)) for c in range(self.tile.parts)]
        while len(values) > 1:
            values = [Binary("add", a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        (start,) = self.s.reduction.init
        return values[0] if start == Const(0, types.f32) else Binary("add", start, values[0])

    def root(self, epilogue: Stage | None) -> Stage:
        """What is made of the sums, over the matrix's points."""
        axes = (*self.batches, self.m.whole, self.n.whole)
        digits: dict[Sym, Dim] = {**self.m.digits, **self.n.digits}
        made = root_of(self.s, epilogue, self._total(), axes, digits)
        if self.has_rows:
            return made
        index = list(made.index)  # the row of a vector is counted where the result has a place for it
        index[_place_of_row(epilogue or self.s)] = self.m.whole.sym
        return replace(made, index=tuple(index))


def _place_of_row(s: Stage) -> int:
    """The dimension of one element in which a vector's row may be counted; -1 where there is none."""
    places = [d for d, (i, n) in enumerate(zip(s.index, s.out.shape, strict=True)) if n == 1 and i == 0]
    return places[0] if places else -1
