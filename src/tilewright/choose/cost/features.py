"""What a scheduled kernel asks of a machine, for given sizes: instructions, bytes, waiting, forks.

In: a ``Kernel``, a ``Target``, numbers for its symbolic sizes. Out: ``Features``, one row for each loop that runs.
Not its business: how long that takes (``choose.cost.price``), which schedule to take (``choose.default``).

One walk over the tile IR. Loops that are copied, and lanes, are part of the body that they stand in; a loop that runs
has a row of its own, with what its body does besides the loops inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.choose.cost.nest import Around, CallSizes, RunTimeLoop
from tilewright.choose.cost.operations import Operations, guard_of
from tilewright.choose.cost.traffic import Area, CacheLevel, Touch, levels_of, repeated, settle, together
from tilewright.core.compute import Buffer, IndexLike, symbols_of_value
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, evaluate, symbols
from tilewright.core.indices import chosen
from tilewright.target.target import Target
from tilewright.tile.affine import coefficient
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Fold, For, If, Kernel, Kind, Loop, Place, Space, Stmt, Store, Update
from tilewright.tile.matrix import matrices_of, matrix_nest
from tilewright.tile.rewrite import loads_of

NOT_MEMORY = (Space.REG, Space.TABLE, Space.MATRIX)


@dataclass(frozen=True)
class Features:
    """Rows for every loop that runs, outer ones first: the first row is the kernel's own body.

    ``forks`` is how often a call shares a loop out among threads, ``n_shares`` the iterations that they share, at the
    least.
    """

    rows: tuple[RunTimeLoop, ...]
    forks: float
    n_shares: float

    def total(self, kind: str) -> float:
        """Instructions of a class in one call."""
        return sum(r.counts.get(kind, 0.0) * r.iterations for r in self.rows)

    def moved(self, level: int) -> float:
        """Bytes in one call from behind a cache: 0 the first-level one, 1 the second-level one, 2 the last one."""
        return sum(r.moved[level] for r in self.rows)


def in_part(touches: Sequence[Touch], share: float) -> Sequence[Touch]:
    """Accesses that happen in a part of the iterations around them, and bring as little."""
    for touch in touches:
        touch.moved = [n * share for n in touch.moved]
    return touches


def features_of(kernel: Kernel, target: Target, sizes: Mapping[Sym, int] | None = None, n_threads: int = 1) -> Features:
    """The features of one call. ``sizes`` has a number for each of ``kernel.sizes``; ``ScheduleError`` if one lacks."""
    if missing := [s.name for s in kernel.sizes if s not in (sizes or {})]:
        raise ScheduleError("features", kernel.name, f"no number for {', '.join(missing)}")
    walk = _FeatureWalk(kernel, target, sizes or {}, n_threads)
    walk.run()
    return walk.features()


class _FeatureWalk:
    def __init__(self, kernel: Kernel, target: Target, sizes: Mapping[Sym, int], n_threads: int) -> None:
        self.kernel = kernel
        self.target = target
        self.sizes = CallSizes(sizes)
        self.places: dict[Buffer, Place] = {p.buffer: p for p in kernel.places}
        self.matrices = matrices_of(kernel.places)
        self.operations = Operations(target, self.sizes, self.places)
        self.levels: tuple[CacheLevel, ...] = levels_of(target, n_threads)
        self.rows = [RunTimeLoop(None, None)]
        self.forks = 0.0
        self.n_shares = 0.0
        self.accesses: list[Touch] = []

    def run(self) -> None:
        around = Around((self.rows[0],), {}, {}, {}, {}, frozenset(), {}, {})
        self.accesses = self._body(self.kernel.body, around)
        settle(self.accesses, self.levels, self.target)

    def features(self) -> Features:
        for row in self.rows:
            self._spill(row)
        return Features(tuple(self.rows), self.forks, self.n_shares)

    # --- statements ---

    def _body(self, body: Sequence[Stmt], around: Around) -> list[Touch]:
        found: list[Touch] = []
        for s in body:
            if isinstance(s, For):
                found += self._loop(s, around)
            else:
                self.operations.statement(s, self._kept(s, around))
                found += self._accesses(s, around)
                share = self.sizes.share(s.cond, around.loops) if isinstance(s, If) else 0.0
                # A body that is never run has loops without a single entry, which have no averages.
                if isinstance(s, If) and share:
                    found += in_part(self._body(s.body, self._part(share, around)), share)
        together(found, self.levels)
        return found

    def _loop(self, f: For, around: Around) -> list[Touch]:
        loop = f.loop
        count = self.sizes.average(loop.extent, around.loops)
        if count <= 0:
            return []
        if loop.kind is Kind.MATRIX:
            return self._instruction(f, around)
        found = self._body(f.body, self._inside(loop, count, around))
        repeated(found, loop.sym, count, self.levels)
        return found

    def _instruction(self, f: For, around: Around) -> list[Touch]:
        """A nest of matrix loops: one instruction, which touches what all of their iterations do."""
        nest = matrix_nest(f, self.matrices)
        loops = [x for x in (nest.rows, nest.columns, nest.groups, nest.group) if x is not None]
        within = {**around.loops, **{x.sym: x.extent for x in loops}}
        counts = {x.sym: self.sizes.average(x.extent, within) for x in loops}
        self.operations.instruction(nest, counts, around)
        inside = replace(around, loops=within, extents={**around.extents, **counts}, copies={**around.copies, **counts})
        found = self._accesses(nest.statement, inside)
        for sym, count in reversed(counts.items()):
            repeated(found, sym, count, self.levels)
        return found

    def _kept(self, s: Stmt, around: Around) -> Around:
        """A term that a guard makes nothing at an image's border: code generation leaves it out where that is known."""
        guard = guard_of(s) if isinstance(s, Update) and not around.dots else None
        if guard is None or not symbols_of_value(guard).isdisjoint(around.lanes):
            return around
        return self._part(self.sizes.share(guard, around.loops), around)

    def _part(self, share: float, around: Around) -> Around:
        """What runs in a part of the iterations: as if there were so many copies of it."""
        held = Sym(f"if {len(around.copies)}")
        return replace(around, copies={**around.copies, held: share}, blocks=around.blocks | {held})

    def _inside(self, loop: Loop, count: float, around: Around) -> Around:
        extents = {**around.extents, loop.sym: count}
        around = replace(around, loops={**around.loops, loop.sym: loop.extent}, extents=extents)
        kind = loop.kind
        if kind is Kind.VECTOR:
            most = self.sizes.most(loop.extent, around.loops)
            return replace(around, lanes={**around.lanes, loop.sym: most})
        if kind is Kind.DOT:
            copies = {**around.copies, loop.sym: count}
            return replace(around, copies=copies, dots={**around.dots, loop.sym: count})
        if kind in (Kind.UNROLL, Kind.STEP):
            blocks = around.blocks | {loop.sym} if kind is Kind.STEP else around.blocks
            return replace(around, copies={**around.copies, loop.sym: count}, blocks=blocks)
        if around.lanes:  # a serial loop inside of lanes
            return replace(around, copies={**around.copies, loop.sym: count})
        outer = around.running[-1]
        outer.has_loops = True
        entries = outer.iterations * around.n_copies
        node = RunTimeLoop(loop, outer, entries, entries * count)
        self.rows.append(node)
        if kind is Kind.PARALLEL and not any(r.is_parallel for r in around.running):
            self.forks += entries
            self.n_shares = min(self.n_shares, count) if self.n_shares else count
        running = (*around.running, node)
        depths = {**around.depths, loop.sym: len(running) - 1}
        return replace(around, running=running, depths=depths, copies={}, blocks=frozenset())

    # --- memory ---

    def _accesses(self, s: Stmt, around: Around) -> list[Touch]:
        places = [(x.buffer, x.index, False) for x in loads_of(s)]
        if isinstance(s, Store | Update):
            places.append((s.buffer, s.index, True))
        elif isinstance(s, Fold):
            places += [(b, s.index, True) for b in s.buffers]
        in_memory = [p for p in places if p[0] not in self.places or self.places[p[0]].space not in NOT_MEMORY]
        return [self._access(b, index, around, is_write=w) for b, index, w in in_memory]

    def _access(self, buffer: Buffer, index: tuple[IndexLike, ...], around: Around, *, is_write: bool) -> Touch:
        n_bytes = buffer.dtype.n_bytes
        offset = self.sizes.offset(buffer, index)
        used = symbols(offset)
        walks: dict[Sym, int | None] = {s: self._step(offset, s, around) * n_bytes for s in around.extents if s in used}
        by_data = frozenset[Sym]().union(*(symbols_of_value(i) for i in chosen(index)))
        walks |= {s: None for s in around.extents if s in by_data}
        start = evaluate(offset, dict.fromkeys(used, 0)) * n_bytes
        area = Area(n_bytes, float(max(self.sizes.elements(buffer) * n_bytes, n_bytes)), self.target.line_bytes)
        access = Touch(buffer, around.running[-1], area, walks, start, is_write)
        access.moved = [float(level.line) for level in self.levels]
        return access

    def _step(self, offset: Dim, sym: Sym, around: Around) -> int:
        """Elements that an iteration moves on; on average where quotients and remainders make it vary."""
        c = coefficient(offset, sym)
        if c is not None:
            c = self.sizes.known(c)
        if is_known(c):
            return c
        last = max(round(around.extents[sym]) - 1, 1)
        ends = [evaluate(offset, {**dict.fromkeys(symbols(offset), 0), sym: k}) for k in (0, last)]
        return (ends[1] - ends[0]) // last

    # --- registers ---

    def _spill(self, row: RunTimeLoop) -> None:
        """What does not fit into registers is stored and loaded again in every iteration."""
        over = row.live - self.target.n_vector_registers
        if over > 0 and not row.has_loops:
            row.add("load", over)
            row.add("store", over)
