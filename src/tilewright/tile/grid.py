"""Grids of a GPU kernel, looked at as loops of blocks, phases and threads; and the rules that they keep.

In: a ``Kernel`` with ``block`` and ``thread`` loops (``tile.ir`` says what they mean). Out: its ``Grid``s, or
``TileVerifyError`` naming the loop or statement and the rule.
Not its business: races (primitives refuse them), or limits of one GPU (``target``).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.core.compute import Binary, Buffer, Cast, Load, Value, loads, symbols_of_value
from tilewright.core.dims import known_at_least
from tilewright.core.expr import Sym, symbols
from tilewright.core.indices import symbols_in
from tilewright.target.gpu import AXES
from tilewright.target.matrices import SUMS
from tilewright.tile.errors import TileVerifyError
from tilewright.tile.ir import (
    NESTS,
    Barrier,
    Commit,
    For,
    If,
    Kernel,
    Kind,
    Loop,
    Space,
    Stmt,
    Store,
    Update,
    walk,
    written,
)
from tilewright.tile.rewrite import Body, loads_of, loops_of

MAX_DIMENSIONS = len(AXES)
"""The dimensions of a grid, and of a block."""
OF_BLOCKS = (Space.LOCAL, Space.REG, Space.SHARED)
"""The spaces of which every block has memory of its own."""

Condition = TypeVar("Condition", bound=Value)


@dataclass(frozen=True)
class Grid:
    """One launch: its block loops, outermost first, and what stands inside of them."""

    blocks: tuple[Loop, ...]
    body: Body

    @property
    def threads(self) -> tuple[Loop, ...]:
        """The thread loops of a flat grid, outermost first; empty in any other."""
        return thread_nest(self.body)[0]

    @property
    def thread_body(self) -> Body:
        """What every thread of a flat grid runs."""
        return thread_nest(self.body)[1]

    @property
    def is_flat(self) -> bool:
        """Is all of it in one nest of thread loops?"""
        return bool(self.threads)


def thread_nest(body: Body) -> tuple[tuple[Loop, ...], Body]:
    """The thread loops that a body is one nest of, and what is in them; no loops where it is anything else."""
    return _nest_of_kind(body, Kind.THREAD)


def warp_nest(body: Body) -> tuple[tuple[Loop, ...], Body]:
    """The same of warp loops."""
    return _nest_of_kind(body, Kind.WARP)


def warp_nests(body: Body) -> Iterator[tuple[tuple[Loop, ...], Body]]:
    """Every perfect nest of warp loops in a body, with what is in it."""
    for s in body:
        if isinstance(s, For) and s.loop.kind is Kind.WARP:
            yield warp_nest((s,))
        elif isinstance(s, NESTS):
            yield from warp_nests(s.body)


def run_loop(body: Body) -> Loop | None:
    """The loop of a run's elements, the only one in a body of conditions; None where there is none."""
    _, body = through_conditions(body, Value)
    s = body[0] if len(body) == 1 else None
    return s.loop if isinstance(s, For) and s.loop.kind is Kind.VECTOR else None


def through_conditions(body: Body, kind: type[Condition]) -> tuple[list[Condition], Body]:
    """The conditions of a kind that a body is one nest of, outermost first, and what is in them."""
    found: list[Condition] = []
    while len(body) == 1 and isinstance(body[0], If) and isinstance(body[0].cond, kind):
        found.append(body[0].cond)
        body = body[0].body
    return found, body


def rows_of_warps(body: Body, lanes: int) -> set[Buffer]:
    """The buffers with an element for each row of a warp's sums: what a nest of one warp loop stores at its iterations.

    In registers each is held by all lanes that share the row. A loop of as many iterations as a warp has ``lanes``
    counts these, not rows.
    """
    found: set[Buffer] = set()
    for loops, inside in warp_nests(body):
        if len(loops) == 1 and loops[0].extent != lanes:
            stores = (s for s in walk(inside) if isinstance(s, Store) and loops[0].sym in symbols_in(s.index))
            found |= {s.buffer for s in stores}
    return found


def is_of_four_warps(s: Stmt, swizzled: Container[Buffer]) -> bool:
    """Is it a matrix instruction whose right factor lies in swizzled memory? Four warps read it there together.

    Its left factor lies there too, or in registers of each warp.
    """
    loops, body = warp_nest((s,))
    # A loop for each of the two places of a sum, and one for the terms.
    if len(loops) != len(SUMS.lane) + 1 or len(body) != 1 or not isinstance(body[0], Update):
        return False
    match body[0].value:
        case Binary(op="mul", b=Cast(a=Load() as right)):
            return right.buffer in swizzled
    return False


def _nest_of_kind(body: Body, kind: Kind) -> tuple[tuple[Loop, ...], Body]:
    loops: list[Loop] = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].loop.kind is kind:
        loops.append(body[0].loop)
        body = body[0].body
    return tuple(loops), body


def is_for_gpus(kernel: Kernel) -> bool:
    """Does the kernel hold anything that only a GPU has?"""
    has_space = any(p.space is Space.SHARED for p in kernel.places)
    return has_space or any(
        isinstance(s, Barrier) or (isinstance(s, For) and s.loop.kind in (Kind.BLOCK, Kind.THREAD))
        for s in walk(kernel.body)
    )


def grids_of(kernel: Kernel) -> tuple[Grid, ...]:
    """The kernel's grids in the order of their launches; ``TileVerifyError`` for a statement that is none."""
    found: list[Grid] = []
    for s in kernel.body:
        blocks, body = _nest_of_kind((s,), Kind.BLOCK)
        if not blocks:
            raise TileVerifyError(f"{kernel.name}: a statement of a GPU's kernel is in no block loop")
        found.append(Grid(blocks, body))
    return tuple(found)


def is_flat(kernel: Kernel) -> bool:
    """Is every grid one nest of thread loops, as back ends read it?"""
    return is_for_gpus(kernel) and all(g.is_flat for g in grids_of(kernel))


def check_grids(kernel: Kernel) -> None:
    """Check what ``tile.ir`` says of grids; kernels for CPUs have none and pass."""
    if not is_for_gpus(kernel):
        for s in walk(kernel.body):
            if isinstance(s, Commit) or (isinstance(s, For) and s.loop.kind is Kind.WARP):
                raise TileVerifyError(f"{'commit' if isinstance(s, Commit) else s.loop.sym.name}: outside of a grid")
        return
    home: dict[Buffer, int] = {}
    own = {p.buffer for p in kernel.places if p.space in OF_BLOCKS}
    for n, grid in enumerate(grids_of(kernel)):
        _check_dimensions(grid.blocks, "block")
        # Before a grid is flat nothing says yet which memory of a block is registers of its threads.
        in_registers = (Space.REG,) if grid.is_flat else (Space.REG, Space.LOCAL)
        _GridChecker(grid, {p.buffer for p in kernel.places if p.space in in_registers}).run()
        for s in walk(grid.body):
            for b in sorted({*written(s), *(x.buffer for x in loads_of(s))} & own, key=lambda b: b.name):
                if home.setdefault(b, n) != n:
                    raise TileVerifyError(f"{b.name}: it does not outlive the grid that makes it, but two grids use it")


def _check_dimensions(loops: Sequence[Loop], kind: str) -> None:
    if len(loops) > MAX_DIMENSIONS:
        raise TileVerifyError(f"{loops[0].sym.name}: {len(loops)} {kind} loops; a GPU has {MAX_DIMENSIONS} dimensions")
    own = {x.sym for x in loops}
    for x in loops:
        if symbols(x.extent) & own:
            raise TileVerifyError(f"{x.sym.name}: the extent {x.extent} of a {kind} loop depends on one beside it")
        if kind == "thread" and not known_at_least(x.extent, 1):
            raise TileVerifyError(f"{x.sym.name}: a thread loop of {x.extent} iterations, which is no positive number")


class _GridChecker:
    """Walks what is inside of a grid's block loops, with the statements around."""

    def __init__(self, grid: Grid, registers: Container[Buffer]) -> None:
        self.grid = grid
        self.registers = registers
        self.has_warps = any(x.kind is Kind.WARP for x in loops_of(grid.body))

    def run(self) -> None:
        self._body(self.grid.body, ())

    def _body(self, body: Body, path: tuple[For | If, ...]) -> None:
        for s in body:
            if isinstance(s, Barrier | Commit):
                self._barrier(path)
            elif isinstance(s, For) and s.loop.kind in (Kind.BLOCK, Kind.PARALLEL):
                raise TileVerifyError(f"{s.loop.sym.name}: a {s.loop.kind.value} loop inside of a grid")
            elif isinstance(s, For) and s.loop.kind is Kind.THREAD:
                self._phase(s, path)
            elif isinstance(s, NESTS):
                self._body(s.body, (*path, s))
            elif self.has_warps:
                self._lanes(s, path)

    def _lanes(self, s: Stmt, path: tuple[For | If, ...]) -> None:
        """What threads that are warps write to memory, their lanes share out; or each of them would write it."""
        shared = [b for b in written(s) if b not in self.registers]
        if shared and not any(isinstance(x, For) and x.loop.kind is Kind.WARP for x in path):
            raise TileVerifyError(f"{shared[0].name}: every lane of a warp would write it", remedy="use a warp loop")

    def _phase(self, s: For, path: tuple[For | If, ...]) -> None:
        name = s.loop.sym.name
        if any(isinstance(x, For) and x.loop.kind is Kind.THREAD for x in path):
            raise TileVerifyError(f"{name}: thread loops of one phase are not perfectly nested")
        if any(isinstance(x, For) and x.loop.kind in (Kind.VECTOR, Kind.DOT) for x in path):
            raise TileVerifyError(f"{name}: a thread loop inside of lanes")
        threads, body = thread_nest((s,))
        _check_dimensions(threads, "thread")
        at: For = s
        inside = [s]
        while at.body is not body:
            inner = at.body[0]
            assert isinstance(inner, For)
            at = inner
            inside.append(at)
        self._body(body, (*path, *inside))

    def _barrier(self, path: tuple[For | If, ...]) -> None:
        if not self.grid.is_flat:
            raise TileVerifyError("barrier: between phases there is one already; only a flat grid spells it out")
        own = {x.sym for x in self.grid.threads}
        for s in path:
            if isinstance(s, For) and s.loop.kind in (Kind.VECTOR, Kind.DOT):
                raise TileVerifyError(f"barrier: inside of the lanes of {s.loop.sym.name}")
            if not is_uniform(s, own):
                raise TileVerifyError(f"barrier: {_name(s)} is not the same for all, so not every thread comes to it")


def is_uniform(s: Stmt, threads: set[Sym]) -> bool:
    """Do all threads of a block agree how often a loop goes round, or whether a condition holds?

    What is read from memory may differ from thread to thread.
    """
    if isinstance(s, If):
        return not symbols_of_value(s.cond) & threads and not loads(s.cond)
    return not isinstance(s, For) or s.loop.sym in threads or not symbols(s.loop.extent) & threads


def _name(s: For | If) -> str:
    return f"the extent of {s.loop.sym.name}" if isinstance(s, For) else f"the condition {s.cond}"
