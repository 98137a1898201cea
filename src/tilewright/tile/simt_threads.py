"""Statements of a flat GPU kernel as closures of one thread, whose accesses are all observed.

In: statements, a memory that observes. Out: closures and routines. Not its business: what the memory finds (``simt``).

Where threads are warps, each lane of one is a thread of its own that runs the iterations of warp loops which code
generation gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

from tilewright.core.compute import IndexLike, Load, Value
from tilewright.core.dims import numbers
from tilewright.core.indices import symbols_in
from tilewright.target.matrices import LEFT, SUMS, Fragment, runs_of
from tilewright.tile.grid import run_loop, warp_nest
from tilewright.tile.interp import Compiler, Env, StmtFn, ValueFn, binary_fn
from tilewright.tile.ir import NESTS, Barrier, Commit, Fold, For, If, Kind, Loop, Space, Stmt, Store, Update, walk
from tilewright.tile.rewrite import Body

if TYPE_CHECKING:
    from tilewright.tile.simt import Observed

EIGHT = SUMS.columns
"""Rows that one register of a matrix instruction's operands has, and elements of each."""
Routine = Callable[[Env], Iterator[int]]


class SimtCompiler(Compiler):
    """Closures of one thread: as the plain interpreter's, but every access goes through the observed memory."""

    def __init__(self, memory: Observed) -> None:
        super().__init__({}, reverse=False)
        self.observed = memory
        self.is_instruction = self.is_run = False

    def routine(self, body: Body) -> Routine:
        """Statements as a routine that stops at every barrier, and gives its number."""
        parts: list[tuple[Routine | None, StmtFn | None]] = []
        for s in body:
            holds = any(isinstance(x, Barrier) for x in walk((s,)))
            parts.append((self._stopping(s), None) if holds else (None, self.stmt(s)))

        def go(env: Env) -> Iterator[int]:
            for stopping, plain in parts:
                if plain is not None:
                    plain(env)
                elif stopping is not None:
                    yield from stopping(env)

        return go

    def _stopping(self, s: Stmt) -> Routine:
        if isinstance(s, Barrier):
            number, memory, pending, running = id(s), self.observed, s.pending, s.running

            def meet(_: Env) -> Iterator[int]:
                memory.stop(running=running)
                if pending is not None:
                    memory.wait(pending)
                yield number

            return meet
        assert isinstance(s, NESTS)
        inside = self.routine(s.body)
        if isinstance(s, If):
            cond = self.value(s.cond)
            return lambda env: inside(env) if cond(env) else iter(())
        slot, extent = self.slot(s.loop.sym), self.dim(s.loop.extent)

        def go(env: Env) -> Iterator[int]:
            for i in range(extent(env)):
                env[slot] = i
                yield from inside(env)

        return go

    def stmt(self, s: Stmt) -> StmtFn:
        """Lanes say that they are some, so that their accesses count as one."""
        if isinstance(s, For) and s.loop.kind is Kind.WARP:
            return self._warp(s)
        if isinstance(s, Commit):
            return lambda env: self.observed.commit()
        if not isinstance(s, For) or s.loop.kind is not Kind.VECTOR:
            return super().stmt(s)
        slot, extent = self.slot(s.loop.sym), self.dim(s.loop.extent)
        body, memory = [self.stmt(x) for x in s.body], self.observed

        def go(env: Env) -> None:
            outer = memory.lane
            for i in range(extent(env)):
                env[slot], memory.lane = i, outer + i
                for step in body:
                    step(env)
            memory.lane = outer

        return go

    def _warp(self, s: For) -> StmtFn:
        """Iterations of warp loops, each by the lane that has it."""
        loops, inside = warp_nest((s,))
        match inside:
            case (Update() as update,) if len(loops) == 1 and loops[0].sym not in symbols_in(update.index):
                return self._across_lanes(loops[0], update)
        slots, extents = [self.slot(x.sym) for x in loops], [self.dim(x.extent) for x in loops]
        memory, n_lanes = self.observed, self.observed.gpu.warp_lanes
        is_instruction = self.is_instruction = len(loops) > len(SUMS.lane)
        run = run_loop(inside) if len(loops) == len(SUMS.lane) else None
        self.is_run = run is not None
        body = [self.stmt(x) for x in inside]
        self.is_instruction = self.is_run = False
        sums, left = self._layouts()
        held = sums if run is None else runs_of(*numbers((loops[1].extent, run.extent)))
        lanes, n_columns = held.holders, held.columns

        def go(env: Env) -> None:
            first = memory.holder = memory.thread
            memory.n_instructions += 1
            for at in product(*[range(extent(env)) for extent in extents]):
                for slot, i in zip(slots, at, strict=True):
                    env[slot] = i
                if len(at) == 1:
                    memory.thread = first + at[0] % n_lanes
                else:
                    memory.thread = first + lanes[at[0], at[1] % n_columns]
                if is_instruction:
                    memory.instruction = (memory.n_instructions, *[i // EIGHT for i in at])
                    memory.holder = first + left.holders[at[0], at[2]]
                for step in body:
                    step(env)
            memory.thread, memory.instruction = first, None

        return go

    def _layouts(self) -> tuple[Fragment, Fragment]:
        """How the GPU's instructions have sums and left factors in lanes."""
        shape = next(iter(self.observed.gpu.shapes), None)
        return (SUMS, LEFT) if shape is None else (shape.sums, shape.left)

    def _across_lanes(self, loop: Loop, s: Update) -> StmtFn:
        """What every lane has goes into an element that the warp has."""
        slot, extent, memory, site = self.slot(loop.sym), self.dim(loop.extent), self.observed, id(s)
        at, value, combine = self.place(s.index), self.value(s.value), binary_fn(s.op, s.buffer.dtype)

        def go(env: Env) -> None:
            first, found = memory.thread, []
            for i in range(extent(env)):
                env[slot], memory.thread = i, first + i % memory.gpu.warp_lanes
                found.append(value(env))
            memory.thread = first
            place = at(env)
            total = memory.load(s.buffer, place, -site)
            for x in found:
                total = combine(total, x)
            memory.store(s.buffer, place, total, site)

        return go

    def place(self, index: tuple[IndexLike, ...]) -> Callable[[Env], tuple[int, ...]]:
        """A closure that finds a place, inside or not."""
        parts = [self.position(i) for i in index]
        match parts:
            case [first]:
                return lambda env: (first(env),)
            case [first, second]:
                return lambda env: (first(env), second(env))
            case [first, second, third]:
                return lambda env: (first(env), second(env), third(env))
        return lambda env: tuple([p(env) for p in parts])

    def value(self, v: Value) -> ValueFn:
        """Loads are observed."""
        if not isinstance(v, Load):
            return super().value(v)
        at, memory, b, site = self.place(v.index), self.observed, v.buffer, id(v)
        if not (self.is_instruction or self.is_run) or memory.places[b].space is not Space.REG:
            return lambda env: memory.load(b, at(env), site)
        is_run = self.is_run

        def of_holder(env: Env) -> Any:
            place, thread = at(env), memory.thread
            memory.thread = memory.holder
            if is_run:  # lanes exchange what they hold
                memory.thread += SUMS.holders[place[-2] % SUMS.rows, place[-1] % EIGHT]
            value = memory.load(b, place, site)
            memory.thread = thread
            return value

        return of_holder

    def store(self, s: Store) -> StmtFn:
        """A write, observed."""
        at, value, memory, site = self.place(s.index), self.value(s.value), self.observed, id(s)
        return lambda env: memory.store(s.buffer, at(env), value(env), site)

    def update(self, s: Update) -> StmtFn:
        """A read and a write, both observed."""
        at, value, memory, site = self.place(s.index), self.value(s.value), self.observed, id(s)
        combine = binary_fn(s.op, s.buffer.dtype)

        def go(env: Env) -> None:
            i = at(env)
            memory.store(s.buffer, i, combine(memory.load(s.buffer, i, -site), value(env)), site)

        return go

    def fold(self, s: Fold) -> StmtFn:
        """All of a state is read, and then written."""
        at, memory, site, c = self.place(s.index), self.observed, id(s), s.combiner
        values, results = [self.value(v) for v in s.values], [self.value(v) for v in c.result]
        operands = [self.slot(p.name) for p in (*c.state, *c.value)]

        def go(env: Env) -> None:
            i = at(env)
            old = [memory.load(b, i, -site - k) for k, b in enumerate(s.buffers)]
            for slot, x in zip(operands, [*old, *(v(env) for v in values)], strict=True):
                env[slot] = x
            new = [r(env) for r in results]
            for k, (b, x) in enumerate(zip(s.buffers, new, strict=True)):
                memory.store(b, i, x, site + k)

        return go
