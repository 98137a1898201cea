"""The price of a register tile before it is scheduled: the same model as a scheduled kernel's, from numbers alone.

In: a reduction's loops and accesses as numbers, a tile, the order of the loops outside of it. Out: seconds.
Not its business: which tiles there are (``choose.strategies``), scheduled kernels (``choose.cost.features``).

A scheduled kernel takes milliseconds to make and to price, a sketch a tenth of one. It counts what
``choose.cost.features`` would: the instructions of a step of the reduction, the chain of its sums, iterations, and the
bytes that each cache brings by the reuse distance of every loop; and besides, in the same way, pages of memory, which
tell a panel that lies in the rows of a wide matrix from its copy. Parts of a ragged tile count as they are. The
coefficients are those of the price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product as cartesian
from math import ceil, prod

from tilewright.choose.cost.ahead import is_busy, steps_ahead
from tilewright.choose.cost.nest import RunTimeLoop
from tilewright.choose.cost.price import FITTED, joined, memory_cycles, row_cycles
from tilewright.choose.cost.tile import distinct_places
from tilewright.choose.cost.traffic import Area, CacheLevel, levels_of, times_written
from tilewright.core.expr import Sym
from tilewright.target.target import Target
from tilewright.tile.ir import Loop

_ROW = Loop(Sym("row"), 1)


def cut_by(extents: Sequence[int], depth: int) -> tuple[int, int]:
    """Which of the nested loops of a reduction is cut, and after how many of its iterations, for parts of ``depth``
    steps.

    Those inside of it run whole in each part. Parts of an outer loop, the taps of a window, are all alike, so that they
    have fewer steps where those don't divide its iterations.
    """
    k = len(extents) - 1
    while k and depth >= prod(extents[k:]):
        k -= 1
    most = max(min(depth // prod(extents[k + 1 :]), extents[k]), 1)
    is_last = k == len(extents) - 1
    return k, most if is_last else max(n for n in range(1, most + 1) if extents[k] % n == 0)


@dataclass(frozen=True)
class NestAccess:
    """A mention of a buffer of ``size`` bytes; ``steps`` has the bytes that each loop moves it on.

    A packed operand lies as the tile reads it, one block of lanes after the other. Of one that is not, caches bring
    ``beyond`` lines behind every run, whose end they can't know.
    """

    n_bytes: int
    size: float
    steps: Mapping[Sym, int]
    is_packed: bool = False
    is_write: bool = False
    beyond: int = 0


@dataclass(frozen=True)
class Contraction:
    """A reduction in numbers: loops with their iterations, accesses, and what a step of it takes.

    ``reduced`` loops run outside of the tile, ``unrolled`` ones are copies inside of it. ``operands`` are read in every
    step, ``others`` once for each result, where ``n_arithmetic`` operations make it from the sum. ``width`` lanes fill
    a register. ``group`` steps of the reduction are one instruction, and a sum takes ``registers``. ``term`` has the
    instructions by class that join a term to its sum, of which ``links`` wait for each other. The part ``inside`` of
    the terms is computed, and the others lie outside of an image.
    """

    outer: Mapping[Sym, int]
    row: Sym | None
    row2: Sym | None
    lanes: Sym
    n_lanes: int
    reduced: tuple[tuple[Sym, int], ...]
    unrolled: tuple[tuple[Sym, int], ...]
    operands: tuple[NestAccess, ...]
    others: tuple[NestAccess, ...]
    n_arithmetic: float
    width: int
    group: int = 1
    registers: int = 1
    term: tuple[tuple[str, float], ...] = (("multiply", 1.0),)
    links: int = 1
    inside: float = 1.0

    @property
    def n_batches(self) -> int:
        return prod(n for s, n in self.outer.items() if s not in (self.row, self.row2))

    @property
    def n_copies(self) -> int:
        return prod(n for _, n in self.unrolled)

    @property
    def n_steps(self) -> int:
        """Iterations of the reduction outside of the tile."""
        return prod(-(-n // self.group) if k == 0 else n for k, (_, n) in enumerate(reversed(self.reduced)))

    def n_parts(self, depth: int) -> int:
        """Parts of the reduction, of so many steps each or a few less; all steps at once are one."""
        if not depth:
            return 1
        extents = [n for _, n in self.reduced]
        k, steps = cut_by(extents, depth)
        return -(-extents[k] // steps) * prod(extents[:k])


@dataclass(frozen=True)
class Walk:
    """A loop outside of the tile: ``count`` iterations, each of which moves ``sym`` on by ``size``."""

    sym: Sym
    count: int
    size: int


@dataclass(frozen=True)
class TilePart:
    """Tiles of one size of a ragged tiling: ``weight`` of the whole work, the times it is entered.

    ``busy`` has what resources other than memory take, as the price joins them: the sum of their powers.
    """

    weight: float
    entries: float
    busy: float


@dataclass(frozen=True)
class TileSketch:
    """A tile of a contraction, priced with all data in the first-level cache: ``least_cycles``, for any order."""

    of: Contraction
    rows: int
    rows2: int
    vectors: int
    parts: tuple[TilePart, ...]
    least_cycles: float

    @property
    def block(self) -> int:
        """Lanes of a tile."""
        return self.vectors * self.of.width

    def size(self, loop: Sym) -> int:
        """Iterations of a loop that a tile takes at once."""
        return self.rows if loop is self.of.row else self.rows2 if loop is self.of.row2 else 1


def sketch_tile(of: Contraction, target: Target, rows: int, rows2: int, vectors: int) -> TileSketch:
    """The instructions of a tile's steps, with every part of a ragged one by itself."""
    sizes = (
        _parts(1 if of.row is None else of.outer[of.row], rows),
        _parts(1 if of.row2 is None else of.outer[of.row2], rows2),
        _parts(-(-of.n_lanes // of.width), vectors),
    )
    found, least = [], 0.0
    inner = -(-of.reduced[-1][1] // of.group) if of.reduced else 1
    points = prod(sum(m * n for m, n in part) for part in sizes)
    for (m, cm), (m2, cm2), (v, cv) in cartesian(*sizes):
        n = cm * cm2 * cv
        steps = float(n * of.n_batches * of.n_steps)
        counts = _step(of, target, m, m2, v)
        chain = target.fma_latency * of.n_copies * of.links * of.inside
        row = RunTimeLoop(_ROW, None, steps / inner, steps, counts, chain)
        resources = row_cycles(row, target, FITTED)
        part = TilePart(m * m2 * v * n / points, row.entries, sum(x**FITTED.overlap for x in resources.values()))
        found.append(part)
        least += joined(resources, FITTED) + row.entries * FITTED.end
    return TileSketch(of, rows, rows2, vectors, tuple(found), least)


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """(tile size, how many) covering the extent."""
    parts = [(size, extent // size)] if extent >= size else []
    return parts + ([(extent % size, 1)] if extent % size else [])


def _step(of: Contraction, target: Target, rows: int, rows2: int, vectors: int) -> dict[str, float]:
    """Instructions of one step of the reduction."""
    n_sums = rows * rows2 * vectors * of.registers
    counts = {kind: n_sums * of.n_copies * n * of.inside for kind, n in of.term}
    walks = [*of.unrolled, *((s, n) for s, n in ((of.row, rows), (of.row2, rows2)) if s is not None)]
    held = []
    for x in of.operands:
        lane = abs(x.steps.get(of.lanes, 0))
        n = distinct_places([(x.steps.get(s, 0), m) for s, m in walks]) * (vectors if lane else 1)
        held.append(n * (of.registers if lane else 1))
        if x.is_packed or lane <= x.n_bytes:
            loads = {"load": held[-1]}
        elif lane <= x.n_bytes * of.width:
            loads = {"load": n * lane // x.n_bytes, "shuffle": n * lane // x.n_bytes}
        else:
            loads = {"element": n * of.width}
        for kind, m in loads.items():
            counts[kind] = counts.get(kind, 0.0) + m * of.inside
    spilled = n_sums + sum(held) - max(held) + 1 - target.n_vector_registers
    if spilled > 0:
        counts["load"] = counts.get("load", 0.0) + spilled
        counts["store"] = float(spilled)
    return counts


@dataclass
class _Moving:
    """An access within the loops looked at so far: the places touched, bytes brought from behind each cache.

    Each byte brought moves ``times``: what is written is read before and written back later. All that comes from behind
    a cache comes in the ``share`` of the tiles that are the first to touch it.
    """

    area: Area
    steps: Mapping[Sym, int]
    times: float = 1.0
    moved: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)


class _Loops:
    """Accesses in a growing nest of loops: what each cache brings, by the reuse distance (``choose.cost.traffic``)."""

    def __init__(self, levels: Sequence[CacheLevel]) -> None:
        self.levels = levels
        self.line = levels[0].line
        self.accesses: list[_Moving] = []

    def touch(self, area: Area, steps: Mapping[Sym, int], times: float = 1.0) -> None:
        n = len(self.levels)
        self.accesses.append(_Moving(area, steps, times, [area.lines * self.line] * n, [1.0] * n))

    def repeat(self, sym: Sym, count: int, size: int = 1, *, is_even: bool = False) -> None:
        """A loop around all accesses, of which each iteration moves ``sym`` on by ``size``.

        ``is_even``: iterations are so short, as a tile's own steps, that what they bring comes evenly.
        """
        if count == 1:
            return
        every = sum(a.area.lines for a in self.accesses)
        for a in self.accesses:
            step, area = a.steps.get(sym, 0), a.area
            a.area = area.over(step * size, count, self.line) if step else area
            grown = min(max(a.area.lines / area.lines, 1.0), count)
            others = (every - area.lines) * self.line
            for k, level in enumerate(self.levels):
                # Where each iteration touches other lines there is nothing to keep.
                kept = level.kept(area.room(level) + others) if grown < count else 0.0
                times = kept * grown + (1 - kept) * count
                a.moved[k] *= times
                if not is_even:
                    a.share[k] *= times / count

    def _kept(self) -> list[list[float]]:
        """For each access, the part of what it touches that each cache keeps until it is touched again."""
        every = sum(a.area.lines for a in self.accesses)
        return [
            [level.kept(a.area.room(level) + (every - a.area.lines) * self.line) for level in self.levels]
            for a in self.accesses
        ]

    def join(self, other: _Loops) -> None:
        """What ``other`` touched comes behind."""
        self.accesses += other.accesses

    def settle(self) -> list[Brought]:
        """What each cache gets from behind it in a call: one that holds the whole has it from the call before."""
        found = list(zip(self.accesses, self._kept(), strict=True))
        return [
            Brought([(a.moved[k] * a.times * (1 - parts[k]), a.share[k]) for a, parts in found if parts[k] < 1])
            for k in range(len(self.levels))
        ]


@dataclass(frozen=True)
class Brought:
    """The bytes of each access that a cache gets from behind it, and the part of the time in which they come."""

    by_access: Sequence[tuple[float, float]]

    @property
    def n_bytes(self) -> float:
        return sum(n for n, _ in self.by_access)

    def during(self, share: float) -> float:
        """The bytes of a call that were as busy all the time as the last ``share`` of it."""
        return sum(n / own for n, own in self.by_access if own >= share)


def sketch(tile: TileSketch, walks: Sequence[Walk], depth: int, target: Target, *, is_shared: bool) -> float:
    """Seconds of a call with this tile: the mean, in logarithms, of one thread and all where they share the first walk.

    With a ``depth`` all tiles inside of the last walk along the lanes do so many steps of the reduction before the
    next ones, as :func:`cut_by` has it; their sums wait in memory.
    """
    parts = tile.of.n_parts(depth)
    caches = (*levels_of(target), levels_of(target, target.n_cores)[-1])
    *near, alone, among_all = _moved(tile, walks, depth, target, caches)
    outside = _outside(tile, walks, parts if depth else 0, target)
    outside += _page_cycles(tile, walks, depth, target)
    n_shares = walks[0].count if walks else 1
    counts = (1, target.n_cores) if is_shared and target.n_cores > 1 else (1,)
    seconds = []
    for n in counts:
        phases = _phases([*near, alone if n == 1 else among_all], target)
        cycles = outside
        for p in tile.parts:
            for part, memory in phases:
                busy = p.busy + sum((m * p.weight) ** FITTED.overlap for m in memory)
                cycles += part * busy ** (1 / FITTED.overlap)
            cycles += p.entries * parts * FITTED.end
        if n > 1:
            cycles = cycles / (n_shares / ceil(n_shares / n)) + target.fork_cycles
        seconds.append((cycles + FITTED.call) / (target.ghz * 1e9))
    return float(prod(seconds) ** (1 / len(seconds)))


def _phases(brought: Sequence[Brought], target: Target) -> list[tuple[float, Sequence[float]]]:
    """Parts of a call, each with the cycles that a whole one would wait for each cache if all of it were alike.

    A panel comes from behind a cache while the first rows walk it, and the arithmetic waits for it; while the other
    rows do, nothing comes. So a call takes longer than its bytes would if they came evenly. What comes in the smallest
    share of the time is taken to come while all else does.
    """
    shares = sorted({share for level in brought for _, share in level.by_access} | {1.0}, reverse=True)
    return [
        (share - rarer, memory_cycles([level.during(share) for level in brought], target, FITTED))
        for share, rarer in zip(shares, (*shares[1:], 0.0), strict=True)
    ]


def copy_seconds(of: Contraction, operand: int, n_copies: int, vectors: int, target: Target) -> float:
    """Seconds of one thread for copies of an operand besides :func:`sketch`, which has where its elements come from.

    Every element is copied ``n_copies`` times, into the second-level cache and out of it again: single elements of what
    all lanes share, and of what lanes walk runs of ``vectors``. No products run while these come from a farther cache,
    or a core looks up pages, of which it knows fewer than rows lie apart. Lines behind each run, which the copy does
    not need, come with it.
    """
    x = of.operands[operand]
    n_rows = float(n_copies * prod(n for s, n in (*of.outer.items(), *of.reduced, *of.unrolled) if x.steps.get(s)))
    is_vector = bool(x.steps.get(of.lanes))
    n = n_rows * (-(-of.n_lanes // of.width) if is_vector else 1)
    row = RunTimeLoop(_ROW, None, n, n, {"load": 1.0, "store": 1.0})
    row.moved[0] = 2 * n * x.n_bytes * (of.width if is_vector else 1)
    pages = 0.0
    if is_vector:
        n_runs = n_rows * -(-of.n_lanes // (vectors * of.width))
        come = row.moved[0] / 2 + n_runs * x.beyond * target.line_bytes
        row.moved[1:] = [come if x.size > level.n_bytes else 0.0 for level in levels_of(target)[1:]]
        apart = [n for s, n in of.reduced if abs(x.steps.get(s, 0)) >= target.page_bytes]
        pages = n_runs if prod(apart) >= target.n_near_pages else 0.0
    cycles = float(joined(row_cycles(row, target, FITTED), FITTED)) + pages * target.page_cycles
    return cycles / (target.ghz * 1e9)


def whole_copy_seconds(n_bytes: float, target: Target) -> float:
    """Seconds of one thread for the bytes of a copy that leave the caches that can't hold it.

    Each line is read before it is written; what reads the copy later counts that for itself.
    """
    row = RunTimeLoop(_ROW, None)
    row.moved = [2 * n_bytes if n_bytes > level.n_bytes else 0.0 for level in levels_of(target)]
    return float(joined(row_cycles(row, target, FITTED), FITTED)) / (target.ghz * 1e9)


def _page_cycles(tile: TileSketch, walks: Sequence[Walk], depth: int, target: Target) -> float:
    """Cycles that a call waits for pages which a core does not know any more: rows of a wide matrix have one each.

    What it knows is a cache of pages. Nothing looks ahead beyond the end of one, so little else is done meanwhile,
    except where steps ask for what later ones read (``strategies.hints``) and all rows use it before the next panel.
    """
    page = target.page_bytes
    known = CacheLevel(target.n_near_pages * page, page, page)
    is_once = bool(walks) and walks[0].sym is tile.of.lanes
    found = (replace(x, beyond=0) for x in tile.of.operands if not (is_once and _is_asked_for(x, tile, target)))
    of = replace(tile.of, operands=tuple(found))
    (brought,) = _moved(replace(tile, of=of), walks, depth, target, (known,))
    return brought.n_bytes / page * target.page_cycles


def _is_asked_for(x: NestAccess, tile: TileSketch, target: Target) -> bool:
    """Does every step of the reduction read it in another page, beyond the near caches, with room for hints?

    Panels of constants have hints of their own.
    """
    of, n_steps = tile.of, 1
    step = abs(x.steps.get(of.reduced[-1][0], 0)) if of.reduced else 0
    if x.is_packed or not target.has_prefetch or step < target.page_bytes or x.size <= target.l2_bytes:
        return False
    for sym, n in reversed(of.reduced):
        if abs(x.steps.get(sym, 0)) != step * n_steps:
            break
        n_steps *= n
    products = tile.rows * tile.rows2 * tile.vectors * of.n_copies
    if not steps_ahead(x.size, products / target.fmas_per_cycle, n_steps, target):
        return False
    n_hints = ceil(tile.block * x.n_bytes / target.line_bytes) if x.steps.get(of.lanes) else 1
    return not is_busy(
        _step(of, target, tile.rows, tile.rows2, tile.vectors).get("load", 0.0) + n_hints, products, target
    )


def _moved(
    tile: TileSketch, walks: Sequence[Walk], depth: int, target: Target, caches: Sequence[CacheLevel]
) -> list[Brought]:
    """What comes from behind each of the caches in a call."""
    of, line = tile.of, caches[0].line
    loops = _Loops(caches)
    for x in of.operands:
        loops.touch(_area(x, tile, line, of.unrolled), _steps(x, tile))
    results = _Loops(loops.levels)
    for x in of.others:
        results.touch(_area(x, tile, line, ()), x.steps, _times(x, tile, walks, target))
    # All at once is one part: no loop of the reduction is cut, and none runs around the parts.
    cut, steps = cut_by([n for _, n in of.reduced], depth) if depth else (-1, 0)
    for sym, n in reversed(of.reduced[cut + 1 :]):
        loops.repeat(sym, n, is_even=True)
    if depth:
        loops.repeat(of.reduced[cut][0], steps, is_even=True)
    last_block = max((k for k, w in enumerate(walks) if w.sym is of.lanes), default=-1)
    outside, inside = (walks[: last_block + 1], walks[last_block + 1 :]) if depth else (walks, ())
    if depth:
        _touch_sums(loops, tile, inside, target, line)
    for w in reversed(inside):
        loops.repeat(w.sym, w.count, w.size)
        results.repeat(w.sym, w.count, w.size)
    if depth:
        sym, n = of.reduced[cut]
        loops.repeat(sym, -(-n // steps), steps)
        for sym, n in reversed(of.reduced[:cut]):
            loops.repeat(sym, n)
    loops.join(results)
    for w in reversed(outside):
        loops.repeat(w.sym, w.count, w.size)
    return loops.settle()


def _times(x: NestAccess, tile: TileSketch, walks: Sequence[Walk], target: Target) -> float:
    """How often a byte moves of a result, or of what makes it of the sums."""
    if not x.is_write:
        return 1.0
    of = tile.of
    tiled = ((of.lanes, tile.block), (of.row, tile.rows), (of.row2, tile.rows2))
    loops = [(x.steps.get(s, 0), n) for s, n in tiled if s is not None]
    loops += [(w.size * x.steps.get(w.sym, 0), w.count) for w in reversed(walks)]
    return times_written(x.n_bytes, loops, target)


def _outside(tile: TileSketch, walks: Sequence[Walk], parts: int, target: Target) -> float:
    """Cycles of the loops outside of the reduction, and of what makes results of the sums."""
    of, entries, cycles = tile.of, 1.0, 0.0
    for w in walks:
        cycles += entries * FITTED.end + entries * w.count * FITTED.turn / target.issue_width
        entries *= w.count
    vectors = prod(of.outer.values()) * -(-of.n_lanes // of.width)
    n = float(vectors * of.registers)
    counts = {"store": n * (1 + parts), "load": n * (len(of.others) - 1 + parts), "simple": n * of.n_arithmetic}
    return cycles + float(joined(row_cycles(RunTimeLoop(None, None, counts=counts), target, FITTED), FITTED))


def _area(x: NestAccess, tile: TileSketch, line: int, copies: Sequence[tuple[Sym, int]]) -> Area:
    """What one step of the tile, or its end, touches of a buffer."""
    of = tile.of
    area = Area(x.n_bytes, max(x.size, float(x.n_bytes)), line, beyond=x.beyond)
    lane = x.steps.get(of.lanes, 0)
    if lane:
        area = area.over(x.n_bytes if x.is_packed else lane, min(tile.block, of.n_lanes), line)
    for sym, n in (*copies, (of.row, tile.rows), (of.row2, tile.rows2)):
        if sym is not None and n > 1:
            area = area.over(x.steps.get(sym, 0), n, line)
    return area


def _steps(x: NestAccess, tile: TileSketch) -> Mapping[Sym, int]:
    """Bytes that each loop moves on; of a packed operand by the layout that the tile asks for."""
    if not x.is_packed:
        return x.steps
    of = tile.of
    step = tile.block * x.n_bytes
    found: dict[Sym, int] = {}
    for s, n in reversed((*of.reduced, *of.unrolled)):
        if x.steps.get(s):
            found[s] = step
            step *= n
    found[of.lanes] = step // tile.block
    step *= -(-of.n_lanes // tile.block)
    for s, n in reversed(list(of.outer.items())):
        if x.steps.get(s):
            found[s] = step
            step *= n
    return found


def _touch_sums(loops: _Loops, tile: TileSketch, inside: Sequence[Walk], target: Target, line: int) -> None:
    """The sums of all tiles within a block of lanes lie one behind the other."""
    n_bytes = target.vector_bytes * tile.rows * tile.rows2 * tile.vectors * tile.of.registers
    steps: dict[Sym, int] = {}
    step = n_bytes
    for w in reversed(inside):
        steps[w.sym] = -(-step // w.size)
        step *= w.count
    area = Area(target.vector_bytes, float(step), line)
    loops.touch(
        area.over(target.vector_bytes, n_bytes // target.vector_bytes, line),
        steps,
        times_written(target.vector_bytes, (), target),
    )
