"""The loops of a scheduled kernel for given sizes: how often each runs, and how many iterations it has on average.

In: a kernel's body and numbers for its symbolic sizes. Out: ``RunTimeLoop`` and ``Around`` for every statement.
Not its business: what a statement costs (``choose.cost.operations``, ``choose.cost.traffic``).

Extents may depend on loops outside: tiles whose last one is ragged, triangles. An average over the iterations that
those have is taken, exact where they are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from tilewright.core.compute import Buffer, IndexLike, Inside, Value
from tilewright.core.dims import are_known, is_known, known
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim, Sym, evaluate, substitute, symbols
from tilewright.core.types import Array
from tilewright.core.valued import OF_ARRAYS, OF_INTEGERS, valued
from tilewright.tile.affine import coefficient, first_offset
from tilewright.tile.ir import Kind, Loop

N_LISTED = EFFORT.listed**2
"""Iterations that an average looks at."""
Loops = Mapping[Sym, Dim]
"""The extents of the loops around a statement, by their variables."""


@dataclass
class RunTimeLoop:
    """A loop that runs, with its body (loops inside aside); the kernel's own body is one of a single iteration.

    ``entries`` and ``iterations`` are per call. ``counts`` has the instructions of an iteration by class, ``chain`` the
    cycles for which an iteration waits for the one before. ``kept`` has the registers of each buffer that lives in
    them, ``held`` those that each load fills.
    ``moved`` has the bytes per call that statements directly in the body bring from behind each cache.
    """

    loop: Loop | None
    outer: RunTimeLoop | None
    entries: float = 1.0
    iterations: float = 1.0
    counts: dict[str, float] = field(default_factory=dict)
    chain: float = 0.0
    kept: dict[Buffer, float] = field(default_factory=dict)
    held: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    has_loops: bool = False

    @property
    def is_parallel(self) -> bool:
        return self.loop is not None and self.loop.kind is Kind.PARALLEL

    @property
    def live(self) -> float:
        """Vector registers in use at once: of the loads, all but one wait for the others."""
        return sum(self.kept.values()) + (sum(self.held) - max(self.held) + 1 if self.held else 0.0)

    def add(self, kind: str, count: float) -> None:
        """``count`` more instructions of a class in every iteration."""
        self.counts[kind] = self.counts.get(kind, 0.0) + count


@dataclass(frozen=True)
class Around:
    """The loops around a statement: ``running`` outer ones first; all ``loops``, with their averages in ``extents``.

    ``copies`` has the average number of copies of each loop that is copied, ``blocks`` names those between whose copies
    a basic block ends; ``lanes`` has the registers' elements along each loop of lanes and ``dots`` the loops that are
    one instruction.
    """

    running: tuple[RunTimeLoop, ...]
    depths: Mapping[Sym, int]
    loops: Loops
    extents: Mapping[Sym, float]
    copies: Mapping[Sym, float]
    blocks: frozenset[Sym]
    lanes: Mapping[Sym, int]
    dots: Mapping[Sym, float]

    @property
    def n_lanes(self) -> int:
        return prod(self.lanes.values())

    @property
    def n_copies(self) -> float:
        """Copies of a statement, on average."""
        return prod(self.copies.values())


class CallSizes:
    """Numbers for the sizes of a kernel, and averages of what depends on its loops."""

    def __init__(self, sizes: Mapping[Sym, int]) -> None:
        self.sizes = sizes
        self._known: dict[Dim, Dim] = {}
        self._averages: dict[tuple[Dim, _Space], float] = {}
        self._most: dict[tuple[Dim, tuple[int, ...]], int] = {}

    def known(self, d: Dim) -> Dim:
        """``d`` with sizes as numbers; a number where no loop is left in it."""
        if is_known(d):
            return d
        found = self._known.get(d)
        if found is None:
            try:
                found = substitute(d, dict(self.sizes))
            except ZeroDivisionError:  # sizes that go together in no call
                found = 0
            self._known[d] = found
        return found

    def offset(self, buffer: Buffer, index: tuple[IndexLike, ...]) -> Dim:
        """The element offset of an access, with indices that the data decide at zero."""
        return self.known(first_offset(buffer, index))

    def elements(self, buffer: Buffer) -> int:
        """How many elements a buffer has."""
        n = 1
        for d in buffer.shape:
            n *= known(self.known(d), 1)
        return n

    def average(self, d: Dim, loops: Loops) -> float:
        """The mean of ``d`` over the iterations of the loops around it, none below zero."""
        known = self.known(d)
        if is_known(known):
            return float(max(known, 0))
        space = self._space(symbols(known), loops)
        found = self._averages.get((known, space))
        if found is None:
            at, weights = self._points(space)
            found = self._averages[known, space] = _mean(np.maximum(valued(known, at, OF_ARRAYS), 0), weights)
        return found

    def _space(self, syms: Set[Sym], loops: Loops) -> _Space:
        """The loops of ``syms`` and what decides how often each of their values occurs.

        These are the loops that their extents depend on, and the extents of loops that depend on them.
        """
        extents = {s: self.known(e) for s, e in loops.items()}
        uneven = {s: symbols(e) for s, e in extents.items() if not is_known(e)}
        related, n = set(syms), -1
        while uneven and n != len(related):
            n = len(related)
            for s, used in uneven.items():
                if s in related or not used.isdisjoint(related):
                    related |= {s, *used}
        # A loop whose variable nothing asks for need not be walked: its extent says how often it runs.
        asked = frozenset(syms).union(*(uneven[s] for s in related if s in uneven))
        beside = sorted(asked - extents.keys(), key=lambda s: s.name)
        axes = (*((s, 1) for s in beside), *((s, e) for s, e in extents.items() if s in related & asked))
        return _Space(axes, tuple(extents[s] for s in uneven if s in related - asked))

    def _points(self, space: _Space) -> tuple[dict[Sym, Array], Array]:
        """Values of the loops, and how many iterations each stands for."""
        n_places = prod(self.most(e, dict(space.axes)) for _, e in space.axes)
        at, weights = self._listed(space, n_places) if space.is_even or n_places <= N_LISTED else _drawn(space)
        for extent in space.inner:
            weights = weights * np.maximum(valued(extent, at, OF_ARRAYS), 0)
        return at, weights

    def _listed(self, space: _Space, n_places: int) -> tuple[dict[Sym, Array], Array]:
        """All places if they are few; else of each loop fewer, for as many in all."""
        most = N_LISTED if n_places <= N_LISTED else max(round(N_LISTED ** (1 / len(space.axes))), 3)
        values = [self._values(e, space, most) for _, e in space.axes]
        grid = np.meshgrid(*([v for v, _ in x] for x in values), indexing="ij")
        shares = np.meshgrid(*([w for _, w in x] for x in values), indexing="ij")
        at = {s: g.ravel() for (s, _), g in zip(space.axes, grid, strict=True)}
        weights = np.prod([w.ravel() for w in shares], axis=0)
        for s, extent in space.axes:
            if not is_known(extent):  # a triangle's corner is no iteration
                weights = weights * (at[s] < valued(extent, at, OF_ARRAYS))
        return at, weights

    def share(self, cond: Value, loops: Loops) -> float:
        """The part of its loops' iterations in which a condition on places holds; 1 of one that the data decide."""
        if not isinstance(cond, Inside):
            return 1.0
        exprs = [self.known(e) for e in cond.exprs]
        return prod(self._share(part, loops) for part in _apart(exprs))

    def _share(self, exprs: Sequence[Dim], loops: Loops) -> float:
        """The part of iterations in which all of ``exprs`` are at least 0; they are few values of few sums."""
        space = self._space(frozenset[Sym]().union(*map(symbols, exprs)), loops)
        steps = [[coefficient(e, s) for e in exprs] for s, _ in space.axes]
        most = max(EFFORT.listed // max(len(space.axes), 1), 3)  # corners of several loops are a product of places
        start = tuple(evaluate(e, dict.fromkeys((s for s, _ in space.axes), 0)) for e in exprs)
        is_short = space.is_even and prod(len(self._values(e, space, most)) for _, e in space.axes) <= EFFORT.points
        if is_short and are_known(c for row in steps for c in row):
            values = {start: 1.0}
            for (_, extent), row in zip(space.axes, steps, strict=True):
                wider: dict[tuple[int, ...], float] = {}
                for (k, weight), (at, n) in product(self._values(extent, space, most), values.items()):
                    moved = tuple(x + k * known(c, 0) for x, c in zip(at, row, strict=True))
                    wider[moved] = wider.get(moved, 0.0) + n * weight
                values = wider
            return sum(n for at, n in values.items() if min(at) >= 0) / sum(values.values())
        places, weights = self._points(space)
        holds = np.all([np.broadcast_to(valued(e, places, OF_ARRAYS) >= 0, weights.shape) for e in exprs], axis=0)
        return _mean(holds, weights)

    def most(self, d: Dim, loops: Loops) -> int:
        """The greatest value of ``d``: at an end of each loop that it depends on."""
        known = self.known(d)
        if is_known(known):
            return max(known, 0)
        syms = sorted(symbols(known), key=lambda s: s.name)
        ends = tuple(max(self.most(loops.get(s, 1), loops) - 1, 0) for s in syms)
        found = self._most.get((known, ends))
        if found is None:
            corners = product(*((0, end) for end in ends))
            found = max(int(valued(known, dict(zip(syms, c, strict=True)), OF_INTEGERS)) for c in corners)
            self._most[known, ends] = found
        return found

    def _values(self, extent: Dim, space: _Space, most: int) -> list[tuple[int, float]]:
        """Values of a loop's variable, with the number of iterations that each stands for.

        Loops of more than ``most`` are looked at in as many places, and at their end, where the ragged tile is.
        """
        n = self.most(extent, dict(space.axes))
        if n <= most:
            return [(k, 1.0) for k in range(max(n, 1))]
        step = (n - 2) / (most - 2)
        inner = sorted({round(k * step) for k in range(most - 1)})
        return [*((k, (n - 1) / len(inner)) for k in inner), (n - 1, 1.0)]


@dataclass(frozen=True)
class _Space:
    """Iterations: loops with their extents, and the extents of loops inside of these, as each iteration has so many."""

    axes: tuple[tuple[Sym, Dim], ...]
    inner: tuple[Dim, ...] = ()

    @property
    def is_even(self) -> bool:
        """Has every loop as many iterations in each of the others?"""
        return not self.inner and all(is_known(e) for _, e in self.axes)


def _drawn(space: _Space) -> tuple[dict[Sym, Array], Array]:
    """Iterations that lie evenly among all, each loop's within what the ones around it leave to it.

    Fractions are the multiples of powers of a root of ``x ** (n + 1) = x + 1``, which fill ``n`` dimensions evenly.
    """
    n_axes, root = len(space.axes), 2.0
    for _ in range(EFFORT.attempts):
        root = (1 + root) ** (1 / (n_axes + 1))
    at: dict[Sym, Array] = {}
    weights = np.ones(N_LISTED)
    for k, (s, extent) in enumerate(space.axes):
        ends = np.maximum(np.broadcast_to(valued(extent, at, OF_ARRAYS), (N_LISTED,)), 0)
        at[s] = np.floor((0.5 + root ** -(k + 1) * np.arange(N_LISTED)) % 1 * ends).astype(np.int64)
        weights = weights * ends
    return at, weights


def _mean(values: Array, weights: Array) -> float:
    """The mean, nothing where there is no iteration."""
    return float(np.average(values, weights=weights)) if weights.any() else 0.0


def _apart(exprs: Sequence[Dim]) -> list[list[Dim]]:
    """Expressions in groups that share no symbol: rows and columns of an image are inside independently."""
    found: list[tuple[frozenset[Sym], list[Dim]]] = []
    for e in exprs:
        used = symbols(e)
        near = [g for g in found if g[0] & used]
        joined = (used.union(*(s for s, _ in near)), [x for _, g in near for x in g] + [e])
        found = [g for g in found if not g[0] & used] + [joined]
    return [g for _, g in found]
