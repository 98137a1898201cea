"""From phases to threads: a GPU's kernel in its scheduled form becomes flat, which is what back ends read.

In: a ``Kernel`` whose grids hold phases (``tile.ir`` defines both forms). Out: an equal kernel whose grids are one nest
of thread loops each, with barriers; ``TileVerifyError`` where there is none. A flat kernel comes out as it is.
Not its business: which phases there are (``choose``), or how threads become instructions (``codegen``).

Cases:

* Phases of one shape keep their thread loops. Of several shapes, the block becomes one loop over as many threads as the
  largest has, and each phase finds its loops by division; threads that a phase has no use for pass it by.
* Statements in no phase are run by the first thread; those that write registers alone by every thread, and each has
  what they make.
* A ``local`` or ``reg`` buffer whose elements each belong to one thread becomes that thread's own, in registers where
  its places are known numbers; one that a single phase makes and uses stays; any other becomes shared. Where lanes of
  a warp each have elements of their own, the first dimension is the lane.
* A barrier stands between two phases where one writes what the other touches, unless every thread finds there what it
  wrote itself; also where the second one comes in the next iteration of a loop around both. Where threads are warps,
  lanes share what a warp finds, so there the exception does not hold. None stands where bounds or remainders say that
  the two touch different parts of a buffer.
* Copies that phases make ahead are asynchronous: neighbours in a body are one group, with all loops and conditions that
  are inside of an iteration. One group is made in each iteration, and as many as it is ahead before the first one; so a
  barrier that leaves one fewer on the way has waited for what the iteration reads. Threads meet there even where each
  reads copies of its own. What a phase fills and reads itself is copied at once.
* Matrix instructions of four warps go on while their warps walk on. A barrier lets those of the iteration before run
  further where all that comes up to the next barrier touches other parts, which takes one part more than there are
  steps on their way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import gcd, prod
from typing import TypeAlias

from tilewright.core.compute import Buffer, IndexLike, Inside, Load
from tilewright.core.dims import is_known
from tilewright.core.expr import BinaryExpr, Dim, Sym, bounds, floordiv, mod, substitute, symbols, terms_of
from tilewright.core.indices import chosen, is_chosen, symbols_at, symbols_in
from tilewright.runtime.once import computed
from tilewright.tile.errors import TileVerifyError
from tilewright.tile.grid import Grid, grids_of, is_for_gpus, is_of_four_warps, is_uniform, thread_nest, warp_nest
from tilewright.tile.ir import (
    NESTS,
    Barrier,
    Commit,
    Fold,
    For,
    If,
    Kernel,
    Kind,
    Loop,
    Place,
    Space,
    Stmt,
    Store,
    Update,
    walk,
    written,
    written_in,
)
from tilewright.tile.rewrite import (
    Body,
    loads_of,
    loop_sym,
    loops_of,
    places_of,
    reads,
    rewrite_accesses,
    substitute_body,
)
from tilewright.tile.schedule.loops import apart
from tilewright.tile.schedule.tree import fresh
from tilewright.tile.verify import IN_REGISTERS

Shape: TypeAlias = tuple[int, ...]
Index: TypeAlias = tuple[IndexLike, ...]


@dataclass
class _Touched:
    """Where statements touch a buffer, and whether they write it."""

    indices: list[Index] = field(default_factory=list)
    is_written: bool = False


@dataclass(frozen=True, eq=False)
class _Phase:
    """What runs between two barriers; phases of one ``shape`` name their threads alike, ``()`` is one thread.

    One that is ``by_all`` has no shape, and writes registers that every thread has.
    """

    shape: Shape
    body: Body
    by_all: bool = False

    @computed
    def touched(self) -> dict[Buffer, _Touched]:
        found: dict[Buffer, _Touched] = {}
        for s in walk(self.body):
            for b, index in places_of(s):
                found.setdefault(b, _Touched()).indices.append(index)
            for b in written(s):
                found[b].is_written = True
        return found


@dataclass(frozen=True, eq=False)
class _Together:
    """A loop or condition that all threads of the block walk together, around phases."""

    stmt: For | If
    parts: tuple[_Part, ...]


_Part: TypeAlias = "_Phase | _Together"
_Pending: TypeAlias = "tuple[tuple[_Phase, tuple[Sym, ...]], ...]"
"""Phases that may have run since the last barrier, each with the loops of which that may be an earlier iteration."""


def flatten(kernel: Kernel) -> Kernel:
    """The kernel with every grid flat; one for CPUs, and a flat one, as it is."""
    if not is_for_gpus(kernel):
        return kernel
    kernel = _waited_for(kernel)
    if all(_is_flat(kernel, grid) for grid in grids_of(kernel)):
        return kernel
    body: list[Stmt] = []
    for grid in grids_of(kernel):
        inside = grid.body
        if not _is_flat(kernel, grid):
            flattener = _Flattener(kernel, grid)
            inside = flattener.run()
            kernel = replace(kernel, places=tuple(flattener.moved.get(p.buffer, p) for p in kernel.places))
        for loop in reversed(grid.blocks):
            inside = (For(loop, inside),)
        body += inside
    return replace(kernel, body=tuple(body))


def _is_flat(kernel: Kernel, grid: Grid) -> bool:
    """Is nothing to be done? One phase looks flat already, but lanes may have parts of what it keeps in memory."""
    local = {p.buffer for p in kernel.places if p.space is Space.LOCAL}
    lanes = {x.sym for x in loops_of(grid.body) if x.kind is Kind.WARP}
    has_parts = any(b in local and lanes & symbols_in(ix) for s in walk(grid.body) for b, ix in places_of(s))
    return grid.is_flat and not has_parts


def _waited_for(kernel: Kernel) -> Kernel:
    """The kernel with plain copies of what a phase fills ahead and reads itself: no barrier in it waits for others."""
    if not any(p.ahead for p in kernel.places) or any(isinstance(s, Barrier | Commit) for s in walk(kernel.body)):
        return kernel
    plain: set[Buffer] = set()
    for grid in grids_of(kernel):
        bodies = [grid.thread_body] if grid.is_flat else [p.body for p in _Flattener(kernel, grid).phases]
        for body in bodies:
            plain |= {b for s in walk(body) for b in written(s) if any(reads(x, b) for x in walk(body))}
    places = tuple(replace(p, ahead=0) if p.buffer in plain else p for p in kernel.places)
    return replace(kernel, places=places)


class _Flattener:
    """Flattens one grid; ``moved`` has the new places of its buffers by the old buffers."""

    def __init__(self, kernel: Kernel, grid: Grid) -> None:
        self.kernel = kernel
        self.spaces = {p.buffer: p.space for p in kernel.places}
        self.moved: dict[Buffer, Place] = {}
        self.threads: dict[Shape, tuple[Sym, ...]] = {(): ()}
        """The symbols of the thread loops of each shape."""
        self.lane = loop_sym(fresh(kernel, "lane"), kernel.lanes)
        """The symbol of all loops that go once through the lanes of a warp."""
        self.parts = tuple(self._parts(grid.body))
        self.phases = list(_phases(self.parts))
        everything = [*loops_of(grid.body), Loop(self.lane, kernel.lanes, Kind.WARP)]
        self.inner = {x.sym for x in everything if x.kind is not Kind.THREAD}
        """Loops in the block that are no threads: where an access is in its own iterations."""
        self.walked = {x.sym for x in everything}
        self.has_warps = any(x.kind is Kind.WARP for x in loops_of(grid.body))
        self.copied = {x.sym for x in everything if x.kind in IN_REGISTERS}
        self._conflicts: dict[tuple[_Phase, _Phase, tuple[Sym, ...]], bool] = {}

    def run(self) -> Body:
        """The grid's body as one nest of thread loops."""
        self.changes = {b: change for b in self._blocks_own() if (change := self._owned(b)) is not None}
        shapes = [s for s in self.threads if s]
        names = "thread"
        block: Shape = shapes[0] if len(shapes) == 1 else (max(map(prod, shapes), default=1),)
        if len(shapes) == 1:
            self.block = tuple(Loop(s, n, Kind.THREAD) for s, n in zip(self.threads[block], block, strict=True))
        else:
            self.block = (Loop(loop_sym(fresh(self.kernel, names), block[0]), block[0], Kind.THREAD),)
        ahead = [p.ahead for p in self.kernel.places if p.ahead and any(p.buffer in x.touched for x in self.phases)]
        self.ahead = frozenset(p.buffer for p in self.kernel.places if p.ahead)
        self.stages = {
            s
            for p in self.phases
            for b, t in p.touched.items()
            if b in self.ahead and t.is_written
            for ix in t.indices
            for s in symbols_at(ix[0])
        }
        self.barrier = Barrier(min(ahead) - 1 if ahead else None)
        own = [x.sym for p in self.phases for x in loops_of(p.body)]
        threads = [s for own_threads in self.threads.values() for s in own_threads]
        self.of_phases = {*own, *threads, *(x.sym for x in self.block)}
        body, _ = self._emit(self.parts, ())
        body = self._let_run(body)
        for loop in reversed(self.block):
            body = (For(loop, body),)
        return body

    # --- phases ---

    def _parts(self, body: Body) -> Iterator[_Part]:
        """A body as phases in order; statements that are in none come together as one thread's."""
        lone: list[Stmt] = []
        by_all = False
        for s in body:
            is_for_all = self._writes_registers(s)
            if lone and (_has_threads(s) or by_all != is_for_all):
                yield _Phase((), self._lanes_named(tuple(lone)), by_all)
                lone = []
            if not _has_threads(s):
                lone.append(s)
                by_all = is_for_all
                continue
            if isinstance(s, For) and s.loop.kind is Kind.THREAD:
                yield self._phase(s)
                continue
            assert isinstance(s, For | If)
            if not is_uniform(s, set()):
                raise TileVerifyError(f"{s.cond if isinstance(s, If) else s.loop.sym}: threads may not agree on it")
            yield _Together(s, tuple(self._parts(s.body)))
        if lone:
            yield _Phase((), self._lanes_named(tuple(lone)), by_all)

    def _writes_registers(self, s: Stmt) -> bool:
        made = written_in(s)
        return bool(made) and all(self.spaces[b] is Space.REG for b in made)

    def _lanes_named(self, body: Body) -> Body:
        """The statements with one variable for the lanes of a warp, so that phases agree on who has what."""
        lanes, out = self.kernel.lanes, list[Stmt]()
        for s in body:
            if isinstance(s, For) and s.loop.kind is Kind.WARP:
                if len(warp_nest((s,))[0]) == 1 and s.loop.extent == lanes:
                    s = For(Loop(self.lane, lanes, Kind.WARP), substitute_body(s.body, {s.loop.sym: self.lane}))
            elif isinstance(s, For):
                s = For(s.loop, self._lanes_named(s.body))
            elif isinstance(s, If):
                s = If(s.cond, self._lanes_named(s.body))
            out.append(s)
        return tuple(out)

    def _phase(self, s: For) -> _Phase:
        loops, body = thread_nest((s,))
        body = self._lanes_named(body)
        shape = tuple(x.extent for x in loops if is_known(x.extent))
        if prod(shape) == 1:
            return _Phase((), substitute_body(body, {x.sym: 0 for x in loops}))
        own = self.threads.setdefault(shape, tuple(x.sym for x in loops))
        return _Phase(shape, substitute_body(body, {x.sym: s for x, s in zip(loops, own, strict=True)}))

    # --- what belongs to whom ---

    def _blocks_own(self) -> list[Buffer]:
        here = {b for p in self.phases for b in p.touched}
        return [b for b, space in self.spaces.items() if b in here and space in (Space.LOCAL, Space.REG)]

    def _owners(self, shape: Shape, indices: list[Index], lanes: tuple[Sym, ...] = ()) -> tuple[Sym, ...] | None:
        """The threads' and ``lanes``' symbols where no two of them touch one element; None where they may."""
        threads = self.threads[shape]
        over = [*[s for s, n in zip(threads, shape, strict=True) if n > 1], *lanes]
        if not over:
            return threads
        if any(chosen(ix) for ix in indices):
            return None
        return (*threads, *lanes) if apart(indices, over, self.inner - {*lanes}) else None

    def _owned(self, b: Buffer) -> _Change | None:
        """Decide where a buffer of the block lies; how its accesses change when each thread has a part of it."""
        phases = [p for p in self.phases if b in p.touched]
        if self.spaces[b] is Space.REG and all(p.by_all for p in phases if p.touched[b].is_written):
            return None
        indices = [ix for p in phases for ix in p.touched[b].indices]
        mentioned = set[Sym]().union(*map(symbols_in, indices))
        lanes = (self.lane,) if self.lane in mentioned else ()
        shapes = {p.shape for p in phases}
        is_of_phase = len(phases) == 1 and not mentioned & set(self.threads[phases[0].shape])
        # A part is a thread's own where no other thread touches it, in any phase.
        owners = None
        if lanes and is_of_phase:
            owners = self._owners((), indices, lanes)
        elif len(shapes) == 1 and not any(p.by_all for p in phases):
            owners = self._owners(phases[0].shape, indices, lanes)
        if owners is None:
            if is_of_phase and not lanes:
                self._check_lanes(b, self.spaces[b])
                return None
            if self.spaces[b] is Space.REG:
                raise TileVerifyError(f"{b.name}: registers that several threads of a block would share")
            self.moved[b] = Place(b, Space.SHARED)
            return None
        sides = [_part(column, owners, b.shape[d]) for d, column in enumerate(zip(*indices, strict=True))]
        shape = (*([self.kernel.lanes] if lanes else []), *[n for s in sides for _, n in s.digits])
        change = _Change(Buffer(b.name, b.dtype, shape), tuple(sides), lanes)
        places = {x for ix in indices for i in change.moved(ix) for x in symbols_at(i)}
        has_numbers = not any(chosen(ix) for ix in indices) and places <= self.copied
        # Registers have no addresses: what is indexed by anything but numbers, once loops are copied out, is memory.
        space = Space.REG if has_numbers else Space.LOCAL
        if lanes and space is Space.LOCAL:
            self.moved[b] = Place(b, Space.SHARED)
            return None
        self._check_lanes(b, space)
        self.moved[b] = Place(change.buffer, space)
        return change

    def _check_lanes(self, b: Buffer, space: Space) -> None:
        """Refuse memory of a warp that no space has: a ``local`` buffer is each lane's own."""
        if self.has_warps and space is Space.LOCAL:
            rule = "memory of a warp, of which each lane would have its own"
            raise TileVerifyError(f"{b.name}: {rule}", remedy="make it shared")

    def _conflict(self, first: _Phase, second: _Phase, earlier: tuple[Sym, ...]) -> bool:
        """Must all threads have ended the first phase, of an ``earlier`` iteration, before one begins the second?"""
        key = (first, second, earlier)
        if key not in self._conflicts:
            both = first.touched.keys() & second.touched.keys()
            self._conflicts[key] = any(self._conflict_over(b, *key) for b in both)
        return self._conflicts[key]

    def _conflict_over(self, b: Buffer, first: _Phase, second: _Phase, earlier: tuple[Sym, ...]) -> bool:
        one, other = first.touched[b], second.touched[b]
        place = self.moved.get(b)
        space = self.spaces[b] if place is None else place.space
        if space in (Space.REG, Space.LOCAL, Space.TABLE) or not (one.is_written or other.is_written):
            return False
        if not earlier and all(self._never_meet(i, j) for i in one.indices for j in other.indices):
            return False
        others = self.walked - {*earlier}
        if len(earlier) == 1 and apart([*one.indices, *other.indices], list(earlier), self.of_phases | others):
            return False  # each iteration has a part of its own, whatever the loops around and inside are at
        if first.shape != second.shape or self.has_warps or b in self.ahead or first.by_all or second.by_all:
            return True  # a thread has to wait even for copies of its own
        return self._owners(first.shape, [*one.indices, *other.indices]) is None

    def _never_meet(self, one: Index, other: Index) -> bool:
        """Do two accesses of one iteration differ in a dimension, by their bounds, or in a remainder?

        A remainder that the loops around their phases decide.
        """
        pairs = list(zip(one, other, strict=True))
        return any(self._are_apart(a, b) or self._differ(a, b) or self._differ(b, a) for a, b in pairs)

    def _are_apart(self, a: IndexLike, b: IndexLike) -> bool:
        """Is one always greater than the other, whichever threads and iterations of their own make the accesses?"""
        if is_chosen(a) or is_chosen(b):
            return False
        # A thread of one phase meets all threads of the other, so a variable of both stands for two numbers.
        others: dict[Sym, Dim] = {s: Sym(f"another {s.name}", s.lo, s.hi) for s in symbols(b) & self.of_phases}
        low, high = bounds(a - substitute(b, others))
        return (low is not None and low > 0) or (high is not None and high < 0)

    def _differ(self, a: IndexLike, b: IndexLike) -> bool:
        """Is ``a`` a remainder ``x % n``, and ``b`` another one? A number below ``n`` is its own remainder."""
        if not isinstance(a, BinaryExpr) or a.op != "mod" or not is_known(a.b) or is_chosen(b):
            return False
        if isinstance(b, BinaryExpr) and b.op == "mod" and b.b == a.b:
            b = b.a
        else:
            low, high = bounds(b)
            if low is None or high is None or low < 0 or high >= a.b:
                return False
        distance = a.a - b
        is_same_for_all = not (symbols(a.a) | symbols(b)) & self.of_phases
        return is_same_for_all and is_known(distance) and distance % a.b != 0

    # --- the flat form ---

    def _emit(self, parts: Sequence[_Part], pending: _Pending, in_group: bool = False) -> tuple[Body, _Pending]:
        """Statements, and the phases that may have run since the last barrier; ``pending`` are those before.

        ``in_group``: a loop or condition around them closes the group that their copies are.
        """
        out: list[Stmt] = []
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            copies = self._copies(part)
            if isinstance(part, _Together):
                grouped = in_group or copies
                inside, after = self._emit(part.parts, pending, grouped)
                if isinstance(part.stmt, For):  # an iteration follows the one before it
                    own = set(_phases(part.parts))
                    before = _union(pending, _earlier([x for x in after if x[0] in own], part.stmt.loop.sym))
                    inside, after = self._emit(part.parts, before, grouped)
                    out.append(For(part.stmt.loop, inside))
                    # Behind the loop its variable says nothing: another loop may have one of the same name.
                    after = _earlier(_earlier(after, part.stmt.loop.sym), part.stmt.loop.sym)
                else:
                    out.append(If(part.stmt.cond, inside))
                pending = _union(pending, after)  # it may not run at all
            else:
                if any(self._conflict(p, part, earlier) for p, earlier in pending):
                    out.append(self.barrier)
                    pending = ()
                pending = _union(pending, ((part, ()),))
                out += self._guarded(part)
            if copies and not in_group and not self._copies(following):
                out.append(Commit())
        return tuple(out), pending

    def _let_run(self, body: Body) -> Body:
        """The same where matrix instructions of an iteration go on behind the one barrier of the next."""
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, If):
                s = If(s.cond, self._let_run(s.body))
            elif isinstance(s, For) and isinstance(s.body[0], Barrier) and self._may_run(s):
                s = For(s.loop, (replace(s.body[0], running=True), *s.body[1:]))
            elif isinstance(s, For):
                s = For(s.loop, self._let_run(s.body))
            out.append(s)
        return tuple(out)

    def _may_run(self, s: For) -> bool:
        """Does an iteration write nothing that matrix instructions of the one before it read?"""
        swizzled = {p.buffer for p in self.kernel.places if p.swizzled}
        found = [x for x in walk(s.body) if is_of_four_warps(x, swizzled)]
        if not found or any(isinstance(x, Barrier) for x in walk(s.body[1:])):
            return False
        before: dict[Sym, Dim] = {s.loop.sym: s.loop.sym - 1}
        loaded = [x for y in walk(substitute_body(tuple(found), before)) for x in loads_of(y) if x.buffer in swizzled]
        stored = [x for x in walk(s.body) if isinstance(x, Store | Update | Fold)]
        return all(self._never_meet(x.index, y.index) for x in loaded for y in stored if x.buffer in written(y))

    def _copies(self, part: _Part | None) -> bool:
        """Does it fill memory ahead, for one iteration of the loop that reads it?"""
        if isinstance(part, _Together):
            return not self._chooses_stage(part.stmt) and any(self._copies(p) for p in part.parts)
        return part is not None and any(t.is_written for b, t in part.touched.items() if b in self.ahead)

    def _chooses_stage(self, s: For | If) -> bool:
        """Is it a loop that goes from stage to stage of memory that is filled ahead?"""
        return isinstance(s, For) and s.loop.sym in self.stages

    def _guarded(self, phase: _Phase) -> Body:
        """A phase's statements, for those threads of the block that it is for."""

        def moved(b: Buffer, index: Index) -> Load | None:
            return self.changes[b](index) if b in self.changes else None

        body = rewrite_accesses(phase.body, moved) if self.changes else phase.body
        threads = [x.sym for x in self.block]
        if phase.by_all:
            return body
        if not phase.shape:
            others = tuple(0 - x.sym for x in self.block if x.extent != 1)
            return (If(Inside(others), body),) if others else body
        own = self.threads[phase.shape]
        if list(own) == threads:
            return body
        (thread,), dims, rest = threads, dict[Sym, Dim](), prod(phase.shape)
        for s, n in zip(own, phase.shape, strict=True):
            rest //= n
            dims[s] = mod(floordiv(thread, rest), n) if rest * n != self.block[0].extent else floordiv(thread, rest)
        body = substitute_body(body, dims)
        if prod(phase.shape) == self.block[0].extent:
            return body
        return (If(Inside((prod(phase.shape) - 1 - thread,)), body),)


@dataclass(frozen=True)
class _Side:
    """One dimension of a thread's part of a buffer: where it begins, and the steps and counts of what it has of it.

    Several digits, the finest last, are a dimension each.
    """

    base: Dim
    digits: tuple[tuple[int, Dim], ...]

    def places(self, i: Dim) -> Iterator[Dim]:
        """Where in the part the place ``i`` of the dimension is."""
        above = 0
        for step, _ in self.digits:
            at = floordiv(i - self.base, step)
            yield mod(at, above // step) if above else at
            above = step


@dataclass(frozen=True)
class _Change:
    """How accesses change when each thread, and each of the ``lanes``, has its own part of a buffer."""

    buffer: Buffer
    sides: tuple[_Side, ...]
    lanes: tuple[Sym, ...] = ()

    def moved(self, index: Index) -> Index:
        found: list[IndexLike] = [*self.lanes]
        for i, side in zip(index, self.sides, strict=True):
            found += [i] if is_chosen(i) else side.places(i)
        return tuple(found)

    def __call__(self, index: Index) -> Load:
        return Load(self.buffer, self.moved(index))


def _part(column: Sequence[IndexLike], owners: tuple[Sym, ...], extent: Dim) -> _Side:
    """The part of a dimension that each owner touches; all of it where that is not the same for all accesses."""
    everything = _Side(0, ((1, extent),))
    zero: dict[Sym, Dim] = {s: 0 for s in owners}
    bases: set[Dim] = set()
    low: list[int] = []
    high: list[int] = []
    rests: list[Dim] = []
    step = 0
    for i in column:
        if is_chosen(i):
            return everything
        rest = substitute(i, zero)
        lo, hi = bounds(rest)
        base = i - rest
        if lo is None or hi is None or not symbols(base) <= set(owners):
            return everything
        bases.add(base)
        step = gcd(step, *[c for _, c in terms_of(rest)], lo - (low[0] if low else lo))
        low.append(lo)
        high.append(hi)
        rests.append(rest)
    if len(bases) != 1:
        return everything
    step = max(step, 1)
    base, count = bases.pop() + min(low), (max(high) - min(low)) // step + 1
    digits = _digits(rests) if len(set(low)) == 1 else None
    if digits is None or prod(n for _, n in digits) >= count:
        return _Side(base, ((step, count),))
    return _Side(base, digits)


def _digits(places: Sequence[Dim]) -> tuple[tuple[int, int], ...] | None:
    """Steps and counts of the digits of which all places are made, the finest last; None where they are none."""
    found: dict[int, int] = {}
    for i in places:
        for atom, step in terms_of(i):
            if not isinstance(atom, Sym) or atom.lo != 0 or atom.hi is None or step < 1:
                return None
            found[step] = max(found.get(step, 1), atom.hi + 1)
    steps = sorted(found, reverse=True)
    if any(above % step or step * found[step] > above for above, step in pairwise(steps)):
        return None
    return tuple((step, found[step]) for step in steps)


def _has_threads(s: Stmt) -> bool:
    return isinstance(s, NESTS) and (
        (isinstance(s, For) and s.loop.kind is Kind.THREAD) or any(x.kind is Kind.THREAD for x in s.loops)
    )


def _phases(parts: Sequence[_Part]) -> Iterator[_Phase]:
    for p in parts:
        if isinstance(p, _Phase):
            yield p
        else:
            yield from _phases(p.parts)


def _earlier(pending: Sequence[tuple[_Phase, tuple[Sym, ...]]], loop: Sym) -> _Pending:
    return tuple((p, (*loops, loop)) for p, loops in pending)


def _union(a: _Pending, b: _Pending) -> _Pending:
    return (*a, *[x for x in b if x not in a])
