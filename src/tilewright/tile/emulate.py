"""A GPU's kernel as loops of a CPU: blocks one after the other, and the threads of a block from barrier to barrier.

In: a flat ``Kernel`` (``tile.flatten``). Out: an equal ``Kernel`` without blocks, threads, shared memory and barriers,
which any CPU back end compiles; ``TileVerifyError`` where threads meet at a barrier that they may not all reach.
Not its business: speed, or finding races (``tile.simt``): here threads run one after the other between barriers.

Before::

    for b block: for t<4 thread:            for b parallel:
      R = X[b, t]                             for t<4: R[t] = X[b, t]; S[t] = R[t]
      S[t] = R; barrier               =>      for t<4: Y[b, t] = add(R[t], S[3 - t])
      Y[b, t] = add(R, S[3 - t])

A barrier cuts the threads' body into regions, each of which gets the thread loops for itself. A loop or condition that
holds a barrier is walked by all threads together, so it stands around its regions. What a thread keeps from one region
to another becomes an array over the threads; what it needs in one region alone stays. Lanes of a warp run one after the
other, so that its registers become an array too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.core.compute import Buffer, IndexLike, Load
from tilewright.core.indices import symbols_in
from tilewright.tile.errors import TileVerifyError
from tilewright.tile.grid import Grid, grids_of, is_flat, is_for_gpus, is_uniform
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
)
from tilewright.tile.rewrite import Body, loads_of, loops_of, reads, rewrite_accesses
from tilewright.tile.schedule.tree import touches


def emulated(kernel: Kernel) -> Kernel:
    """The kernel for a CPU; one that is for CPUs already comes out as it is."""
    if not is_for_gpus(kernel):
        return kernel
    if not is_flat(kernel):
        raise TileVerifyError(f"{kernel.name}: only a flat kernel is emulated", remedy="flatten it first")
    places = {p.buffer: p for p in kernel.places}
    body: list[Stmt] = []
    for grid in grids_of(kernel):
        made = _Emulation(grid, places)
        inside = made.run()
        places |= made.moved
        body += _in_blocks(grid.blocks, inside)
    return replace(kernel, body=tuple(body), places=tuple(places[p.buffer] for p in kernel.places))


def _in_blocks(blocks: tuple[Loop, ...], body: Body) -> Body:
    """The outermost block loop that goes round more than once is shared among the CPU's threads."""
    is_empty = any(x.extent == 0 for x in blocks)
    shared = next((x for x in blocks if x.extent != 1 and not is_empty), None)
    for x in reversed(blocks):
        body = (For(replace(x, kind=Kind.PARALLEL if x is shared else Kind.SERIAL), body),)
    return body


@dataclass(frozen=True)
class _Region:
    """Statements without a barrier, which each thread runs from end to end."""

    body: Body


@dataclass(frozen=True)
class _Around:
    """A loop or condition that holds barriers, with the regions inside."""

    stmt: For | If
    parts: tuple[_Region | _Around, ...]


class _Emulation:
    """Cuts one grid's threads at barriers; ``moved`` has the new places of buffers by the old ones."""

    def __init__(self, grid: Grid, places: dict[Buffer, Place]) -> None:
        self.threads = grid.threads
        self.syms = {x.sym for x in grid.threads}
        self.lanes = {x.sym for x in loops_of(grid.body) if x.kind is Kind.WARP}
        self.body = tuple(_for_one_thread(grid.thread_body))
        self.parts = tuple(self._cut(self.body))
        here = {b for s in walk(grid.body) for b in (*written(s), *[x.buffer for x in loads_of(s)])}
        # What another grid has for itself was moved for that one.
        self.moved = {b: self._place(p) if b in here else p for b, p in places.items()}

    def run(self) -> Body:
        """The threads' loops around every region."""
        at: tuple[IndexLike, ...] = tuple(x.sym for x in self.threads)

        def change(b: Buffer, index: tuple[IndexLike, ...]) -> Load | None:
            new = self.moved[b].buffer
            return None if new is b else Load(new, (*at, *index))

        return rewrite_accesses(tuple(self._joined(self.parts)), change)

    def _cut(self, body: Body) -> Iterator[_Region | _Around]:
        region: list[Stmt] = []
        for s in body:
            if not isinstance(s, Barrier) and not (isinstance(s, NESTS) and _holds_barrier(s)):
                region.append(s)
                continue
            if region:
                yield _Region(tuple(region))
                region = []
            if isinstance(s, For | If):
                if not is_uniform(s, self.syms):
                    raise TileVerifyError("barrier: not every thread may come to it")
                yield _Around(s, tuple(self._cut(s.body)))
        if region:
            yield _Region(tuple(region))

    def _place(self, place: Place) -> Place:
        """Where a buffer lies: shared memory in the block's scratch, a thread's own in as much for every thread."""
        if place.space is Space.SHARED:
            return replace(place, space=Space.LOCAL, ahead=0, swizzled=False)
        if place.space not in (Space.REG, Space.LOCAL):
            return place
        users = [r for r in _regions(self.parts) if any(touches(s, place.buffer) for s in r.body)]
        is_of_lanes = any(self.lanes & symbols_in(ix) for ix in self._indices(place.buffer))
        if not users or (len(users) == 1 and not is_of_lanes and _begins_anew(users[0].body, place.buffer)):
            return place
        old = place.buffer
        shape = (*[x.extent for x in self.threads], *old.shape)
        return replace(place, buffer=Buffer(old.name, old.dtype, shape), space=Space.LOCAL)

    def _indices(self, b: Buffer) -> Iterator[tuple[IndexLike, ...]]:
        for s in walk(self.body):
            yield from (x.index for x in loads_of(s) if x.buffer is b)
            if isinstance(s, Store | Update | Fold) and b in written(s):
                yield s.index

    def _joined(self, parts: tuple[_Region | _Around, ...]) -> Iterator[Stmt]:
        for part in parts:
            if isinstance(part, _Around):
                inside = tuple(self._joined(part.parts))
                yield For(part.stmt.loop, inside) if isinstance(part.stmt, For) else If(part.stmt.cond, inside)
                continue
            body = part.body
            for x in reversed(self.threads):
                body = (For(replace(x, kind=Kind.SERIAL), body),)
            yield from body


def _for_one_thread(body: Body) -> Iterator[Stmt]:
    """The statements with warp loops as serial ones, and without groups of copies, which are there at once."""
    for s in body:
        if isinstance(s, For):
            kind = Kind.SERIAL if s.loop.kind is Kind.WARP else s.loop.kind
            yield For(replace(s.loop, kind=kind), tuple(_for_one_thread(s.body)))
        elif isinstance(s, If):
            yield If(s.cond, tuple(_for_one_thread(s.body)))
        elif not isinstance(s, Commit):
            yield s


def _holds_barrier(s: Stmt) -> bool:
    return any(isinstance(x, Barrier) for x in walk((s,)))


def _regions(parts: tuple[_Region | _Around, ...]) -> Iterator[_Region]:
    for p in parts:
        if isinstance(p, _Region):
            yield p
        else:
            yield from _regions(p.parts)


def _begins_anew(body: Body, buffer: Buffer) -> bool:
    """Does a region assign the buffer before it uses it, whatever conditions hold?"""
    for s in body:
        if not touches(s, buffer):
            continue
        while isinstance(s, For):
            s = next(x for x in s.body if touches(x, buffer))
        return isinstance(s, Store) and buffer in written(s) and not reads(s, buffer)
    return True
