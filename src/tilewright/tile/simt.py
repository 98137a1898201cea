"""A flat GPU kernel run thread by thread between barriers, with an eye on every access: slow, and sees what GPUs hide.

In: a flat ``Kernel``, a ``Gpu``, arrays for its parameters and values for its sizes. Out: a ``Simulation``: the arrays,
every fault, and how many transactions and bank conflicts the accesses of warps would cost.
Not its business: numbers that are right for every order of threads: what a race gives is one order's.

Faults: a race (two threads touch an element, one of them writes, and no barrier or launch is between; or anybody
touches one that is on its way by an asynchronous copy, for which its thread has not waited yet, or writes one that a
matrix instruction of four warps may still read); a barrier that
not all threads reach; a read of what nobody has written (shared memory, registers, temporaries); an access of several
elements that does not begin at a multiple of its size; an access outside of its buffer, which is left out.

The model of memory is CUDA's programming guide's: a warp's access of global memory moves sectors, one of shared memory
takes as many turns as the busiest bank has words. Where threads are warps, each lane of one is a thread here, which
runs the iterations of warp loops that code generation gives it; a matrix instruction reads eights of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tilewright.core.compute import Buffer
from tilewright.core.dims import is_known
from tilewright.core.expr import Sym, evaluate
from tilewright.core.indices import symbols_in
from tilewright.core.types import Array
from tilewright.target.gpu import Gpu
from tilewright.tile.errors import TileRunError
from tilewright.tile.grid import Grid, grids_of, is_flat, rows_of_warps
from tilewright.tile.ir import (
    Kernel,
    Kind,
    Place,
    Role,
    Space,
    walk,
)
from tilewright.tile.rewrite import loops_of, places_of
from tilewright.tile.simt_threads import SimtCompiler
from tilewright.tile.swizzle import exchanged, in_panels

Access: TypeAlias = tuple[int, int, int | None]
"""Block, epoch, thread; a matrix instruction of four warps reads for none, so that no order of a thread's own holds."""


class FaultKind(Enum):
    """What is wrong; the module's docstring describes each."""

    RACE = "race"
    DIVERGENT_BARRIER = "divergent barrier"
    UNWRITTEN = "unwritten"
    MISALIGNED = "misaligned"
    OUT_OF_BOUNDS = "out of bounds"


@dataclass(frozen=True)
class ThreadFault:
    """A fault, at which buffer or statement, in which grid and block, by which threads."""

    kind: FaultKind
    where: str
    grid: int
    block: tuple[int, ...]
    threads: tuple[int, ...]


@dataclass
class Traffic:
    """What accesses of warps cost: sectors of global memory, turns of shared memory, and the least that would do."""

    sectors: int = 0
    least_sectors: int = 0
    turns: int = 0
    least_turns: int = 0

    @property
    def bank_conflicts(self) -> int:
        """Turns of shared memory beyond the least."""
        return self.turns - self.least_turns


@dataclass(frozen=True)
class Simulation:
    """Arrays by name, faults in the order in which they were met, each place once; traffic by buffer."""

    arrays: Mapping[str, Array]
    faults: tuple[ThreadFault, ...]
    traffic: Mapping[str, Traffic]


def simulate(
    kernel: Kernel, gpu: Gpu, arrays: Mapping[str, Array], sizes: Mapping[str, int] | None = None
) -> Simulation:
    """Run a flat kernel; ``arrays`` hold its parameters by name, and stay as they are.

    Raises ``TileRunError`` for a kernel that is not flat, or an array of another type or number of elements.
    """
    if not is_flat(kernel):
        raise TileRunError(f"{kernel.name} is not flat", remedy="run what tile.flatten makes of it")
    given = {s: dict(sizes or {})[s.name] for s in kernel.sizes}
    memory = Observed(gpu, {p.buffer: p for p in kernel.places}, given)
    memory.take(arrays)
    with np.errstate(all="ignore"):
        for n, grid in enumerate(grids_of(kernel)):
            _GridRun(memory, grid, n, given).run()
    outputs = {b.name: a for b, a in memory.arrays.items()}
    return Simulation(outputs, tuple(memory.faults), memory.traffic)


@dataclass(slots=True)
class _Element:
    """Who touched an element last: threads as (block, epoch, thread)."""

    writer: tuple[int, int, int] | None = None
    arrives: bool = False
    readers: set[Access] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Room:
    """What every access of a buffer asks for, found once: its shape for these sizes, and what its space means.

    ``is_own``: does each thread have one? ``costs``: is it memory whose traffic counts? ``begins_unwritten``: is a read
    before a write a fault?
    """

    shape: tuple[int, ...]
    is_own: bool
    costs: bool
    begins_unwritten: bool
    place: Place

    @classmethod
    def of(cls, place: Place, sizes: Mapping[Sym, int]) -> _Room:
        """The room of a buffer where sizes have these values."""
        is_global = place.space is Space.GLOBAL
        return cls(
            tuple(evaluate(d, sizes) for d in place.buffer.shape),
            is_own=place.space in (Space.REG, Space.LOCAL),
            costs=is_global or place.space is Space.SHARED,
            begins_unwritten=(not is_global or place.role is Role.TMP) and place.table is None,
            place=place,
        )


class Observed:
    """Arrays of all spaces, who touched which element, and the log of the accesses since the last barrier."""

    def __init__(self, gpu: Gpu, places: Mapping[Buffer, Place], sizes: Mapping[Sym, int]) -> None:
        self.gpu, self.places = gpu, places
        self.rooms = {b: _Room.of(place, sizes) for b, place in places.items()}
        self.arrays: dict[Buffer, Array] = {}
        self.touched: dict[tuple[Buffer, int, int], _Element] = {}
        self.faults: list[ThreadFault] = []
        self.traffic: dict[str, Traffic] = {}
        self.log: dict[tuple[object, ...], list[tuple[int, Buffer, int]]] = {}
        self.turns: dict[tuple[int, int], int] = {}
        self.own: dict[tuple[Buffer, int], Array] = {}
        self.of_warps: set[Buffer] = set()
        """Registers that all lanes of a warp, or of a row of its sums, have alike: its first lane stands for them."""
        self.block: tuple[int, ...] = ()
        self.open: dict[int, list[_Element]] = {}
        """What each thread copies asynchronously since its last commit, by the thread that runs, a warp where they are
        warps."""
        self.groups: dict[int, list[list[_Element]]] = {}
        self.going_on: dict[int, list[_Element]] = {}
        """What matrix instructions of four warps read since the last barrier, by the warp."""
        self.running = 0
        self.grid, self.n_block, self.epoch, self.thread, self.lane = 0, 0, 0, 0, 0
        self.n_instructions = 0
        self.instruction: tuple[int, ...] | None = None
        """Of a matrix instruction, its number and which eights of rows, columns and depth are read."""
        self.holder = 0
        """Of a matrix instruction, the thread that has the left operand's element in its registers."""

    def take(self, arrays: Mapping[str, Array]) -> None:
        """Bind the parameters; temporaries begin unwritten."""
        for b, place in self.places.items():
            if place.table is not None:
                self.arrays[b] = np.asarray(place.table).reshape(self.rooms[b].shape)
            elif b.name in arrays:
                given = arrays[b.name]
                if given.dtype != b.dtype.numpy or given.size != prod(self.rooms[b].shape):
                    raise TileRunError(f"{b} can't be the array of {given.dtype}{given.shape}")
                self.arrays[b] = np.array(given).reshape(self.rooms[b].shape)
            else:
                self.arrays[b] = np.zeros(self.rooms[b].shape, b.dtype.numpy)

    def begin_block(self, grid: int, n_block: int, block: tuple[int, ...]) -> None:
        """Memory of a block begins anew; global memory forgets who touched it when a grid begins."""
        if n_block == 0:
            self.touched = {k: _Element((-1, 0, 0)) for k, e in self.touched.items() if e.writer is not None}
        own = {b for b, p in self.places.items() if p.space in (Space.SHARED, Space.REG, Space.LOCAL)}
        self.touched = {k: e for k, e in self.touched.items() if k[0] not in own}
        self.grid, self.n_block, self.block, self.epoch, self.own = grid, n_block, block, 0, {}
        self.open, self.groups, self.going_on = {}, {}, {}

    def fault(self, kind: FaultKind, where: str, *threads: int) -> None:
        """Note a fault, once for each place."""
        if not any(f.kind is kind and f.where == where and f.grid == self.grid for f in self.faults):
            self.faults.append(ThreadFault(kind, where, self.grid, self.block, threads))

    # --- accesses ---

    def load(self, b: Buffer, at: tuple[int, ...], site: int) -> Any:
        """The element's value; 0 outside of the buffer."""
        room = self.rooms[b]
        flat = self._enter(b, room, at, site)
        if flat is None:
            return b.dtype.numpy.type(0)
        owner = self._owner(b)
        entry = self._element(b, room, owner, flat)
        if entry.writer is None and room.begins_unwritten:
            self.fault(FaultKind.UNWRITTEN, b.name, self.thread)
        goes_on = self.instruction is not None and room.place.swizzled
        me = (self.n_block, self.epoch, None if goes_on else owner)
        if goes_on:
            self.going_on.setdefault(self.running, []).append(entry)
        if entry.arrives:
            self.fault(FaultKind.RACE, b.name, self.thread)
        if entry.writer is not None and self._meets(entry.writer, me):
            self.fault(FaultKind.RACE, b.name, entry.writer[2], self.thread)
        entry.readers.add(me)
        return self._array(b, room, owner)[at]

    def store(self, b: Buffer, at: tuple[int, ...], value: Any, site: int) -> None:
        """Write the element; outside of the buffer nothing happens."""
        room = self.rooms[b]
        flat = self._enter(b, room, at, site)
        if flat is None:
            return
        owner = self._owner(b)
        entry = self._element(b, room, owner, flat)
        me = (self.n_block, self.epoch, owner)
        others = entry.readers if entry.writer is None else entry.readers | {entry.writer}
        if met := {o[2] for o in others if self._meets(o, me)}:
            self.fault(FaultKind.RACE, b.name, *sorted(t for t in met if t is not None)[:1], self.thread)
        if entry.arrives:
            self.fault(FaultKind.RACE, b.name, self.thread)
        entry.writer, entry.readers = me, set()
        if room.place.ahead:
            entry.arrives = True
            self.open.setdefault(self.running, []).append(entry)
        self._array(b, room, owner)[at] = value

    def commit(self) -> None:
        """The copies of the thread that runs, since it did so last, are a group."""
        self.groups.setdefault(self.running, []).append(self.open.pop(self.running, []))

    def stop(self, *, running: bool) -> None:
        """What matrix instructions of the warp that runs read is read to its end, or before the next barrier."""
        for entry in self.going_on.pop(self.running, []):
            if running:
                entry.readers.add((self.n_block, self.epoch + 1, None))

    def wait(self, pending: int) -> None:
        """All groups of the thread that runs but its last ones are there: it has written them now."""
        groups = self.groups.get(self.running, [])
        while len(groups) > pending:
            for entry in groups.pop(0):
                entry.arrives = False
                assert entry.writer is not None
                entry.writer = (self.n_block, self.epoch, entry.writer[2])

    def _enter(self, b: Buffer, room: _Room, at: tuple[int, ...], site: int) -> int | None:
        flat = 0
        for i, n in zip(at, room.shape, strict=True):
            if not 0 <= i < n:
                self.fault(FaultKind.OUT_OF_BOUNDS, b.name, self.thread)
                return None
            flat = flat * n + i
        if room.costs:
            lies_at = self._lies_at(b, at, flat)
            warp = self.thread // self.gpu.warp_lanes
            if self.instruction is not None:
                self.log.setdefault((warp, site, self.instruction), []).append((self.thread, b, lies_at))
                return flat
            key = (self.thread, site)
            # All lanes of one access belong to its first one's turn.
            self.turns[key] = self.turns.get(key, 0) + (1 if self.lane == 0 else 0)
            self.log.setdefault((warp, site, self.turns[key]), []).append((self.thread, b, lies_at))
        return flat

    def _lies_at(self, b: Buffer, at: tuple[int, ...], flat: int) -> int:
        """The place of an element in memory, in elements."""
        if not self.places[b].swizzled:
            return flat
        place = in_panels(b, at)
        assert is_known(place)
        return exchanged(place * b.dtype.n_bytes) // b.dtype.n_bytes

    def _owner(self, b: Buffer) -> int:
        """The thread whose registers an element is in."""
        return self.thread - self.thread % self.gpu.warp_lanes if b in self.of_warps else self.thread

    def _array(self, b: Buffer, room: _Room, owner: int) -> Array:
        if not room.is_own:
            return self.arrays[b]
        found = self.own.get((b, owner))
        if found is None:
            found = self.own[b, owner] = np.zeros(room.shape, b.dtype.numpy)
        return found

    def _element(self, b: Buffer, room: _Room, owner: int, flat: int) -> _Element:
        key = (b, owner if room.is_own else -1, flat)
        found = self.touched.get(key)
        if found is None:
            found = self.touched[key] = _Element()
        return found

    def _meets(self, a: Access, b: Access) -> bool:
        """May two accesses of one grid happen at one time?"""
        if a[0] == -1:
            return False
        return a[0] != b[0] or (a[1] == b[1] and a[2] != b[2])

    # --- what accesses cost ---

    def settle(self) -> None:
        """Count the accesses since the last barrier, warp by warp, and find those that are not aligned."""
        read: set[tuple[object, ...]] = set()
        for (warp, site, turn), entries in self.log.items():
            b = entries[0][1]
            n_bytes, traffic = b.dtype.n_bytes, self.traffic.setdefault(b.name, Traffic())
            places = {flat * n_bytes for _, _, flat in entries}
            if isinstance(turn, tuple):  # the other operand's loop does not make an instruction read twice
                if (key := (warp, site, turn[0], min(places))) in read:
                    continue
                read.add(key)
            elif self.places[b].space is Space.GLOBAL:
                # Rows of shared memory may begin anywhere: code generation splits what is not known to be aligned.
                self._check_alignment(b, entries)
            if self.places[b].space is Space.GLOBAL:
                size = self.gpu.sector_bytes
                traffic.sectors += len({(at + k) // size for at in places for k in (0, n_bytes - 1)})
                traffic.least_sectors += -(-len(places) * n_bytes // size)
                continue
            words = {(at + k) // self.gpu.bank_bytes for at in places for k in range(0, n_bytes, self.gpu.bank_bytes)}
            banks = Counter(w % self.gpu.shared_banks for w in words)
            traffic.turns += max(banks.values())
            traffic.least_turns += -(-len(words) // self.gpu.shared_banks)
        self.log, self.turns = {}, {}

    def _check_alignment(self, b: Buffer, entries: list[tuple[int, Buffer, int]]) -> None:
        by_thread: dict[int, list[int]] = {}
        for thread, _, flat in entries:
            by_thread.setdefault(thread, []).append(flat)
        for thread, places in by_thread.items():
            n, size = len(places), len(places) * b.dtype.n_bytes
            is_one = n > 1 and places == list(range(places[0], places[0] + n)) and size <= self.gpu.access_bytes
            if is_one and size & (size - 1) == 0 and places[0] * b.dtype.n_bytes % size:
                self.fault(FaultKind.MISALIGNED, b.name, thread)


class _GridRun:
    """Runs one grid: block by block, in each the threads from barrier to barrier."""

    def __init__(self, memory: Observed, grid: Grid, number: int, sizes: Mapping[Sym, int]) -> None:
        self.memory, self.grid, self.number, self.sizes = memory, grid, number, sizes
        self.threads = SimtCompiler(memory)
        for s in (*sizes, *(x.sym for x in (*grid.blocks, *grid.threads))):
            self.threads.slot(s)
        self.routine = self.threads.routine(grid.thread_body)
        lanes = {x.sym for x in loops_of(grid.body) if x.kind is Kind.WARP}
        self.lanes = memory.gpu.warp_lanes if lanes else 1
        by_lanes = {b for s in walk(grid.body) for b, index in places_of(s) if symbols_in(index) & lanes}
        alike = (memory.places.keys() - by_lanes) | rows_of_warps(grid.body, self.lanes) if lanes else set[Buffer]()
        memory.of_warps = {b for b in alike if memory.places[b].space is Space.REG}

    def run(self) -> None:
        """Every block, in order."""
        extents = [range(evaluate(x.extent, self.sizes)) for x in self.grid.blocks]
        shape = [range(evaluate(x.extent, {})) for x in self.grid.threads]
        for n, block in enumerate(product(*extents)):
            self.memory.begin_block(self.number, n, block)
            head = [*self.sizes.values(), *block]
            rest = [None] * (len(self.threads.slots) - len(head) - len(shape))
            self._block([self.routine([*head, *t, *rest]) for t in product(*shape)])

    def _block(self, threads: list[Iterator[int]]) -> None:
        memory, ended = self.memory, -1
        left = dict(enumerate(threads))
        while left:
            met: dict[int, list[int]] = {}
            for k, t in list(left.items()):
                memory.thread, memory.lane, memory.running = k * self.lanes, 0, k
                site = next(t, ended)
                met.setdefault(site, []).append(k)
                if site == ended:
                    del left[k]
            memory.settle()
            memory.epoch += 1
            if len(met) > 1:
                few = min(met.values(), key=len)
                memory.fault(FaultKind.DIVERGENT_BARRIER, "barrier", *few)
